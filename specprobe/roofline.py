"""Roofline: seconds of an engine's step and of a speculative round, from shapes, a data sheet and few constants.

    step = weight and KV bytes / achieved bandwidth + operations / achieved compute + all-reduces + overheads

Bytes and operations are added up, not maximised: a matrix product in the range between the two limits reaches neither,
and published linear fits of step times (constant + tokens in the batch + KV tokens) are sums too. Constants and their
origin are in roofline_constants.py, shapes in shapes.py, data sheets in hardware.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specprobe.cost import CostPoint
from specprobe.errors import SpecprobeError
from specprobe.hardware import Hardware
from specprobe.roofline_constants import EFFICIENCIES, OVERHEADS, Efficiencies, Overhead
from specprobe.shapes import NATIVE_BITS, Quantisation, Shape, find_shape, quantisation_of

# What names of engines begin with, in letters and digits only.
ENGINE_WORDS = {
    "vllmv0": "vllm-v0",
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "tensorrtllm": "trtllm",
    "hf": "hf",
    "huggingface": "hf",
    "transformers": "hf",
    "llamacpp": "llama.cpp",
    "llamaserver": "llama.cpp",
    "mlx": "mlx",
}
# How each method drafts, in letters and digits only. model, head, mtp: one small forward a token; pass: one for all
# tokens; none: no model at all.
METHODS = {
    "draft": "model",
    "draftmodel": "model",
    "assisted": "model",
    "eagle": "head",
    "eagle2": "head",
    "eagle3": "head",
    "hydra": "head",
    "mtp": "mtp",
    "nextn": "mtp",
    "medusa": "pass",
    "peagle": "pass",
    "peagle3": "pass",
    "pard": "pass",
    "dflash": "pass",
    "dspark": "pass",
    "ngram": "none",
    "pld": "none",
    "pldhf": "none",
    "promptlookup": "none",
    "suffix": "none",
    "lookahead": "none",
}
MOST_DEVICES = 1024
# Draft heads of the EAGLE-3 kind predict a reduced vocabulary of this size in the published checkpoints.
EAGLE3_VOCAB = 32_000


@dataclass(frozen=True, slots=True)
class Deployment:
    """A target as it is served: where, by what, and over how many devices.

    `overhead` and `efficiencies` are those of the engine unless they were fitted.
    """

    shape: Shape
    quantisation: Quantisation
    hardware: Hardware
    devices: int
    overhead: Overhead
    efficiencies: Efficiencies = EFFICIENCIES

    @property
    def ways(self) -> int:
        """Over how many devices one layer is split."""
        return 1 if self.overhead.splits_layers else self.devices

    @property
    def bandwidth_bytes_per_second(self) -> float:
        """Achieved, of all devices that work at once."""
        share = self.efficiencies.bandwidth * self.overhead.bandwidth_factor
        return self.hardware.bandwidth_bytes_per_second * share * self.ways

    @property
    def flops_per_second(self) -> float:
        """Achieved at the precision that the kernels multiply in, of all devices that work at once."""
        bits = 16.0
        if self.quantisation.native:
            bits = next(value for word, value in NATIVE_BITS.items() if word in self.quantisation.name)
        peak = self.hardware.flops(bits, floating="fp8" in self.quantisation.name)
        share = self.efficiencies.compute * self.overhead.compute_factor
        if self.quantisation.bits < 16 and peak <= self.hardware.flops_16bit:
            share *= self.efficiencies.weight_only
        return peak * share * self.ways

    @property
    def available_bytes(self) -> float:
        """Of all devices together, for weights and caches."""
        efficiencies = self.efficiencies
        each = efficiencies.memory * self.hardware.memory_bytes - efficiencies.reserved_bytes
        return max(0.0, each) * self.devices

    @property
    def fits(self) -> bool:
        """Whether the weights do."""
        return self.shape.storage_bytes(self.quantisation) <= self.available_bytes

    def for_prompts(self) -> Deployment:
        """As it multiplies the tokens of prompts: many rows at once, and each sequence's KV read once."""
        overhead = replace(self.overhead, expands_batch=False, compute_factor=self.overhead.prefill_compute_factor)
        return replace(self, overhead=overhead, efficiencies=replace(self.efficiencies, weight_only=1.0))

    @property
    def kv_copies(self) -> float:
        """How often the caches are held: latent attention and few KV heads cannot be split over all devices."""
        if self.shape.kv_lora_rank:
            return float(self.ways)
        return max(1.0, self.ways / max(self.shape.kv_heads, 1))

    def with_shape(self, shape: Shape, quantisation: Quantisation) -> Deployment:
        """Another model on the same devices."""
        return replace(self, shape=shape, quantisation=quantisation)


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter as the roofline sees it: how it drafts and the shape of what it runs.

    `own_weights`: whether it has any beside the target's; `own_cache`: whether it keeps keys and values of its own.
    """

    kind: str
    shape: Shape | None = None
    quantisation: Quantisation | None = None
    own_weights: bool = True
    own_cache: bool = True


@dataclass(frozen=True, slots=True)
class Draft:
    """What a round drafts: sequential steps, tokens verified beside the root, and tokens a step works on."""

    depth: int
    tokens: float
    width: int = 1


def engine_overhead(engine: str, *, legacy: bool = False) -> Overhead:
    """The overhead profile of an engine by name; raises SpecprobeError for one without."""
    word = compact(engine)
    known = next((ENGINE_WORDS[start] for start in ENGINE_WORDS if word.startswith(start)), None)
    if known is None:
        raise SpecprobeError(f"engine {engine[:40]!r}: no overhead profile; known are {', '.join(OVERHEADS)}")
    return OVERHEADS["vllm-v0"] if legacy and known == "vllm" else OVERHEADS[known]


def method_kind(method: str) -> str | None:
    """How a method drafts, None where it is not known."""
    return METHODS.get(compact(method))


def find_drafter(
    method: str,
    name: str,
    target: Shape,
    quantisation: Quantisation,
    *,
    shape_of: Callable[[str], Shape] = find_shape,
) -> Drafter:
    """The drafter of a method, its shape by name where `shape_of` knows it, else as the method has it for this target.

    A head is one layer of the target's sizes, dense for EAGLE (the target's own for MTP), and an LM head. A draft model
    has no such default: raises SpecprobeError where its shape is unknown, as for an unknown method.
    """
    kind = method_kind(method)
    if kind is None:
        raise SpecprobeError(f"method {method[:40]!r}: unknown; known are {', '.join(METHODS)}")
    if kind == "none":
        return Drafter("none")
    if kind == "model":
        shape = shape_of(name)
        # Only a name that says so has other bits than 16; a quantised target does not quantise its drafter.
        return Drafter("model", shape, quantisation_of("", shape))
    if kind == "mtp":
        return Drafter("mtp", one_layer(target), quantisation)
    known = _known_head(name, shape_of)
    if known is not None:
        return Drafter(kind, known, quantisation_of("", known))
    vocab = EAGLE3_VOCAB if "eagle3" in compact(method) else 0
    dense = target.intermediate or 4 * target.hidden
    head = replace(one_layer(target), experts=0, moe_intermediate=0, intermediate=dense, draft_vocab=vocab)
    return Drafter(kind, head, quantisation_of("bf16", replace(head, native_quantization="")))


def one_layer(target: Shape) -> Shape:
    """A head of one layer like the target's last one, with its LM head."""
    return replace(target, layers=1, dense_layers=0, kv_layers=None, window_layers=0, draft_vocab=0)


def experts_touched(shape: Shape, sequences: float, query_tokens: float, independence: float) -> float:
    """Expected distinct experts of a layer that the tokens of a step are routed to.

    E (1 - (1 - k / E)^n) for n tokens routed independently, each to k of E. The query tokens of one sequence are
    consecutive text: of those after the first only the share `independence` counts.
    """
    if not shape.experts:
        return 0.0
    effective = sequences * (1 + independence * (query_tokens - 1))
    return shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** effective)


def forward_seconds(
    deployment: Deployment, sequences: float, query_tokens: float, context: float, *, logits: float | None = None
) -> float:
    """One forward pass on the device, gaps between kernels included, host overhead of the engine left out.

    `logits`: tokens whose logits are computed, None for all of them.

    weights = bytes of the weights touched / bandwidth + 2 x active parameters x tokens / compute
    attention = max(KV bytes of each sequence / bandwidth, 4 x heads x head size x context x layers x tokens / compute),
    where an engine that expands the batch reads the KV of a sequence once for each of its query tokens
    """
    shape, overhead, efficiencies = deployment.shape, deployment.overhead, deployment.efficiencies
    tokens = sequences * query_tokens
    touched = experts_touched(shape, sequences, query_tokens, efficiencies.expert_independence)
    readers = tokens if overhead.expands_batch else sequences
    kv_seconds = readers * shape.kv_bytes(context) * deployment.kv_copies / deployment.bandwidth_bytes_per_second
    always = shape.weight_bytes(deployment.quantisation, 0)
    routed = shape.weight_bytes(deployment.quantisation, touched) - always
    slower = efficiencies.bandwidth / efficiencies.expert_bandwidth
    weight_seconds = (always + routed * slower) / deployment.bandwidth_bytes_per_second
    attention = shape.attention_operations * context
    without_logits = tokens - (tokens if logits is None else logits)
    matrix_operations = 2 * (shape.active_parameters * tokens - shape.head_parameters * without_logits)
    matrix_seconds = matrix_operations / deployment.flops_per_second
    # One kernel reads the cache while it multiplies: the slower of the two counts.
    attention_seconds = max(kv_seconds, tokens * attention / deployment.flops_per_second)
    device = weight_seconds + matrix_seconds + attention_seconds
    device += _all_reduce_seconds(deployment, tokens)
    gaps = shape.layers * overhead.layer + shape.moe_layers * overhead.moe_layer
    return max(device, gaps) if overhead.eager else device + gaps


def _all_reduce_seconds(deployment: Deployment, tokens: float) -> float:
    """Two all-reduces a layer: latency, and 2 (w - 1) / w of the activations over the link."""
    ways, hardware, efficiencies = deployment.ways, deployment.hardware, deployment.efficiencies
    if ways == 1:
        return 0.0
    bytes_sent = 2 * (ways - 1) / ways * tokens * deployment.shape.hidden * 2
    link = hardware.interconnect_bytes_per_second * efficiencies.interconnect
    once = efficiencies.all_reduce_seconds + (bytes_sent / link if link else 0.0)
    return 2 * deployment.shape.layers * once


def step_seconds(
    deployment: Deployment, sequences: float, query_tokens: float, context: float, *, logits: float | None = None
) -> float:
    """One step of the engine: the forward pass, its step overhead, and that of each sequence in it."""
    overhead = deployment.overhead
    rows = sequences * query_tokens if overhead.expands_batch else sequences
    forward = forward_seconds(deployment, sequences, query_tokens, context, logits=logits)
    return forward + overhead.step + rows * overhead.sequence


def prefill_seconds(deployment: Deployment, prompt_tokens: float) -> float:
    """A prompt alone in a step: all its tokens at once, KV written but hardly read, logits of the last token."""
    return step_seconds(deployment.for_prompts(), 1, max(prompt_tokens, 1.0), prompt_tokens / 2, logits=1)


def drafting_seconds(deployment: Deployment, drafter: Drafter, draft: Draft, sequences: float, context: float) -> float:
    """The drafter's own time in a round: sequential steps for models and heads, one for parallel heads, else none.

    A drafter runs on the target's devices; its small layers are split over them like the target's.
    """
    if drafter.shape is None or drafter.quantisation is None or not draft.depth:
        return 0.0
    overhead = deployment.overhead
    there = replace(
        deployment.with_shape(drafter.shape, drafter.quantisation), overhead=replace(overhead, expands_batch=False)
    )
    steps, width = (1, draft.depth) if drafter.kind == "pass" else (draft.depth, draft.width)
    once = forward_seconds(there, sequences, width, context) + overhead.draft_step + sequences * overhead.sequence
    if draft.width > 1:
        once += overhead.tree
    return steps * once


def round_seconds(deployment: Deployment, drafter: Drafter, draft: Draft, sequences: float, context: float) -> float:
    """A whole speculative round: drafting, verification of 1 + drafted tokens a sequence, acceptance.

    Drafters without a model draft only where they find a match: `ngram_coverage` of the rounds.
    """
    coverage = deployment.efficiencies.ngram_coverage if drafter.kind == "none" else 1.0
    verify = step_seconds(deployment, sequences, 1 + coverage * draft.tokens, context)
    return verify + added_seconds(deployment, drafter, draft, sequences, context)


def added_seconds(deployment: Deployment, drafter: Drafter, draft: Draft, sequences: float, context: float) -> float:
    """What a speculative round takes beyond its verification: drafting, accepting and rolling back."""
    overhead = deployment.overhead
    accepting = overhead.round + sequences * overhead.round_sequence + (overhead.tree if draft.width > 1 else 0.0)
    return accepting + drafting_seconds(deployment, drafter, draft, sequences, context)


def cost_points(
    deployment: Deployment, batches: Sequence[int], query_tokens: Sequence[int], contexts: Sequence[int]
) -> tuple[CostPoint, ...]:
    """Step times over a full grid, as a `CostTable` holds them."""
    return tuple(
        CostPoint(batch, query, context, step_seconds(deployment, batch, query, context))
        for batch in batches
        for query in query_tokens
        for context in contexts
    )


def _known_head(name: str, shape_of: Callable[[str], Shape]) -> Shape | None:
    try:
        return shape_of(name) if name else None
    except SpecprobeError:
        return None


def compact(name: str) -> str:
    """A name in lower case, letters and digits only."""
    return "".join(c for c in name.lower() if c.isalnum())
