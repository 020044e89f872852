"""A cost table out of the roofline: step, drafting and prefill times, and memory, of a deployment that is not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specprobe.acceptance import Acceptance
from specprobe.cost import CostTable, DraftingPoint, Memory
from specprobe.errors import SpecprobeError
from specprobe.model_shape import shape_of
from specprobe.roofline import (
    Deployment,
    Draft,
    Drafter,
    added_seconds,
    cost_points,
    find_drafter,
    method_kind,
    step_seconds,
)
from specprobe.roofline_constants import COLD_LOG_DEVIATION
from specprobe.scales import CLASSES_OF_HARDWARE
from specprobe.shapes import Shape, quantisation_of

# Drafters that read the target's last hidden state and nothing before it.
WITHOUT_CACHE = ("medusa", "mlp")
# A chunk of a prompt that is long enough to be routed to every expert.
PREFILL_CHUNK = 2048


def roofline_cost(
    deployment: Deployment,
    drafters: Mapping[str, Drafter],
    depth: int,
    batches: Sequence[int],
    contexts: Sequence[int],
    *,
    mean_context: float,
    log_deviation: float = COLD_LOG_DEVIATION,
) -> CostTable:
    """Predicted times over every batch, 1 to 1 + `depth` query tokens, and context; `drafters` by the name of each.

    A drafter's part of a round includes what the engine adds to speculative rounds. `mean_context`: of the workload,
    for what a token takes in caches with windows. Raises SpecprobeError where the weights alone do not fit in the
    memory of the devices.
    """
    # How much memory a machine of a class has nobody knows.
    memory = None if deployment.hardware.name in CLASSES_OF_HARDWARE else _memory(deployment, drafters, mean_context)
    if memory is not None and not memory.kv_capacity_tokens():
        gigabytes = memory.weight_bytes / 1e9
        raise SpecprobeError(
            f"--gpu {deployment.hardware.name}: {deployment.shape.name} in {deployment.quantisation.name} has "
            f"{gigabytes:.0f} GB of weights, and {deployment.devices} of them hold {memory.available_bytes / 1e9:.0f} "
            "GB; give more with --tp, or fewer bits with --dtype"
        )
    token, floor = _prefill(deployment)
    depths = range(1, depth + 1)
    return CostTable(
        source="roofline",
        points=cost_points(deployment, batches, [1 + tokens for tokens in (0, *depths)], contexts),
        drafting=tuple(
            DraftingPoint(name, batch, k, context, added_seconds(deployment, drafter, Draft(k, k), batch, context))
            for name, drafter in drafters.items()
            for batch in batches
            for k in depths
            for context in contexts
        ),
        drafter_prefill_seconds={
            name: _prefill(deployment.with_shape(drafter.shape, drafter.quantisation))[0]
            for name, drafter in drafters.items()
            if drafter.shape is not None and drafter.quantisation is not None and drafter.own_cache
        },
        prefill_token_seconds=token,
        prefill_pair_seconds=deployment.shape.attention_operations / deployment.for_prompts().flops_per_second,
        prefill_step_seconds=floor,
        log_deviation=log_deviation,
        memory=memory,
        conditions={
            "hardware": f"{deployment.devices} x {deployment.hardware.name}",
            "devices": deployment.devices,
            "model": deployment.shape.name,
            "dtype": deployment.quantisation.name,
            "shape": ("shape from its " if deployment.shape.verified else "unverified shape, from ")
            + deployment.shape.source,
            "data_sheet": deployment.hardware.source,
        },
    )


def drafter_of(acceptance: Acceptance, deployment: Deployment) -> Drafter | None:
    """What the roofline takes for a replayed drafter; None for one whose size nobody knows.

    Heads without a known shape are one layer of the target's sizes. A hybrid is costed as its second drafter in every
    round, which is too much where the first one drafts.
    """
    target, quantisation = deployment.shape, deployment.quantisation
    name, config = acceptance.drafter, acceptance.config
    if name.startswith("hybrid:"):
        parts = [(part, options) for part, options in config.items() if isinstance(options, Mapping)]
        name, config = parts[-1] if parts else ("", {})
    if name == "early-exit":
        # It runs on the target's own weights and fills the target's own cache.
        layers = config.get("layers")
        if type(layers) is not int or not 1 <= layers <= target.layers:
            return None
        shape = target.first_layers(layers)
        return Drafter("model", shape, quantisation, own_weights=False, own_cache=False)
    kind = method_kind(name)
    model = str(config.get("model", ""))
    if kind is None:
        return None
    if kind == "none" or not model:
        return find_drafter(name, "", target, quantisation) if kind != "model" else None
    try:
        shape = shape_of(model)
        found = Drafter(kind, shape, quantisation_of("", shape))
    except SpecprobeError:
        # A head is known by what it is for; a whole model is not.
        if kind == "model" or name == "pard":
            return None
        found = find_drafter(name, "", target, quantisation)
    return replace(found, own_cache=name not in WITHOUT_CACHE)


def _prefill(deployment: Deployment) -> tuple[float, float]:
    """What a token of a prompt adds to a step, and what the step takes besides; logits are those of its last token."""
    prompts = deployment.for_prompts()
    chunk, twice = (step_seconds(prompts, 1, tokens, 0, logits=1) for tokens in (PREFILL_CHUNK, 2 * PREFILL_CHUNK))
    token = (twice - chunk) / PREFILL_CHUNK
    return token, max(0.0, chunk - PREFILL_CHUNK * token)


def _memory(deployment: Deployment, drafters: Mapping[str, Drafter], mean_context: float) -> Memory:
    # A context of none has no mean.
    tokens = max(mean_context, 1.0)

    def token_bytes(shape: Shape) -> float:
        return shape.kv_bytes(tokens) * deployment.kv_copies / tokens

    return Memory(
        available_bytes=deployment.available_bytes,
        weight_bytes=deployment.shape.storage_bytes(deployment.quantisation),
        kv_token_bytes=token_bytes(deployment.shape),
        drafters={
            name: (
                drafter.shape.storage_bytes(drafter.quantisation) if drafter.own_weights else 0.0,
                token_bytes(drafter.shape) if drafter.own_cache else 0.0,
            )
            for name, drafter in drafters.items()
            if drafter.shape is not None and drafter.quantisation is not None
        },
    )
