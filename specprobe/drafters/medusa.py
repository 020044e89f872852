"""Medusa: heads on the target's last hidden state, one for each position, that do not see each other's drafts.

r = f + SiLU(A f + b) for each residual layer, q_i = softmax(W_i r) (arXiv 2401.10774). The state f is that of the
position which produced the newest token, so head i-1 drafts position i (vLLM 0.30 v1/spec_decode/medusa.py).

Imports torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from specprobe.checkpoint import Checkpoint, open_checkpoint
from specprobe.drafters.base import refuse_unknown_options
from specprobe.drafters.heads import Batch, HeadDrafter, OpenHead, rows_at
from specprobe.drafters.models import DraftContext, ModelSpec
from specprobe.drafters.scores import DraftVocabulary
from specprobe.errors import SpecprobeError
from specprobe.features import LAST, Features
from specprobe.notices import Notice


@dataclass(frozen=True, slots=True)
class MedusaLayout:
    """Where one of the two layouts keeps its tensors.

    `layer`: the name of a residual layer's tensors by head and layer, without `.weight`. `matrix`: that of a head's
    output matrix, None for the target's own.
    """

    num_heads: int
    num_layers: int
    layer: Callable[[int, int], str]
    matrix: Callable[[int], str | None]


class MedusaNetwork:
    """The heads' weights; `heads[i]`: residual layers as (weight, bias), and the output matrix."""

    nested = True

    def __init__(
        self,
        heads: list[tuple[list[tuple[torch.Tensor, torch.Tensor | None]], torch.Tensor | None]],
        target_head: torch.nn.Module,
        rows: int | None,
    ) -> None:
        self._heads, self._target_head, self._rows = heads, target_head, rows

    def begin(self, batch: Batch, depth: int) -> Batch:  # noqa: ARG002
        """Nothing to run."""
        return batch

    def draft(self, state: Batch, position: int, starts: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """The state of the position that produced the newest token, for every position the same."""
        return rows_at(state.features[LAST], state.newest(starts) - 1)

    def rewind(self, state: Batch) -> None:
        """Nothing is kept from round to round."""

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:
        """Head number position - 1."""
        layers, matrix = self._heads[position - 1]
        for weight, bias in layers:
            states = states + torch.nn.functional.silu(torch.nn.functional.linear(states, weight, bias))
        if matrix is None:
            logits: torch.Tensor = self._target_head(states)
            return logits
        return torch.nn.functional.linear(states, matrix[: self._rows])


@dataclass(frozen=True)
class OpenMedusa(OpenHead):
    """Medusa heads that fit the target."""

    spec: ModelSpec
    context: DraftContext
    checkpoint: Checkpoint
    layout: MedusaLayout
    vocabulary: DraftVocabulary | None
    taps: tuple[int, ...] = (LAST,)
    notices: tuple[Notice, ...] = ()

    @property
    def can_sample(self) -> bool:
        """vLLM drafts the argmax of each head whatever the temperature."""
        return False

    def load(self, features: Features | None) -> HeadDrafter:
        """Weights in the target's precision, on its device."""
        assert features is not None
        target = self.context.needed_target(self.spec.name)

        @functools.cache
        def read(name: str) -> torch.Tensor:
            return self.checkpoint.tensor(name).to(target.device, target.model.dtype)

        heads = []
        for head in range(self.context.depth):
            layers = []
            for layer in range(self.layout.num_layers):
                name = self.layout.layer(head, layer)
                bias = f"{name}.bias"
                layers.append((read(f"{name}.weight"), read(bias) if bias in self.checkpoint else None))
            matrix = self.layout.matrix(head)
            heads.append((layers, read(matrix) if matrix else None))
        rows = None if self.vocabulary is None else self.vocabulary.to_target.numel()
        output = target.model.get_output_embeddings()
        return self.head_drafter(
            MedusaNetwork(heads, output, rows),
            features,
            {"heads": self.layout.num_heads, "layers": self.layout.num_layers, "draft_vocabulary": rows},
            vocabulary=self.vocabulary.to(target.device) if self.vocabulary else None,
        )


def open_medusa(spec: ModelSpec, context: DraftContext) -> OpenMedusa:
    """`medusa:MODEL`, in the layout of the Medusa repository or of vLLM."""
    refuse_unknown_options(spec.options, (), spec.name)
    target = context.needed_target(spec.name)
    checkpoint = open_checkpoint(spec.model)
    layout = _layout(checkpoint)
    if context.depth > layout.num_heads:
        raise SpecprobeError(
            f"--drafter medusa:{spec.model}: has {layout.num_heads} heads, one for each position; "
            f"use --depth {layout.num_heads} at most"
        )
    vocabulary = _token_map(checkpoint, target.text_config.vocab_size)
    hidden, rows = target.text_config.hidden_size, target.text_config.vocab_size
    for head in range(layout.num_heads):
        for layer in range(layout.num_layers):
            checkpoint.check_shape(f"{layout.layer(head, layer)}.weight", [hidden, hidden])
            if f"{layout.layer(head, layer)}.bias" in checkpoint:
                checkpoint.check_shape(f"{layout.layer(head, layer)}.bias", [hidden])
        matrix = layout.matrix(head)
        if matrix and vocabulary is None:
            checkpoint.check_shape(matrix, [rows, hidden])
        elif matrix and vocabulary is not None:
            # Longer ones are cut to the map.
            kept = max(checkpoint.rows(matrix), vocabulary.to_target.numel())
            checkpoint.check_shape(matrix, [kept, hidden])
        elif vocabulary is not None:
            raise checkpoint.missing(f"lm_heads.{head}.weight", [vocabulary.to_target.numel(), hidden])
    return OpenMedusa(spec, context, checkpoint, layout, vocabulary)


def _layout(checkpoint: Checkpoint) -> MedusaLayout:
    names = set(checkpoint.names)
    if "blocks.0.layers.0.weight" in names:
        # Without any matrix of theirs, and where the config says so, all heads read the target's or one.
        shared = next((name for name in ("lm_head.weight", "lm_heads.0.weight") if name in names), None)
        has_none = not any(name.startswith(("lm_heads.", "lm_head.")) for name in names)
        is_shared = has_none or shared == "lm_head.weight" or checkpoint.settings.flag("original_lm_head", False)
        return MedusaLayout(
            _count(names, "blocks.{}.layers.0.weight"),
            _count(names, "blocks.0.layers.{}.weight"),
            lambda head, layer: f"blocks.{head}.layers.{layer}",
            (lambda _: shared) if is_shared else (lambda head: f"lm_heads.{head}.weight"),
        )
    # The repository's files name heads by number alone; a copy out of a whole model has a prefix.
    prefix = next((p for p in ("", "medusa_head.") if f"{p}0.0.linear.weight" in names), None)
    if prefix is None:
        raise checkpoint.missing("0.0.linear.weight (Medusa's layout) or blocks.0.layers.0.weight (vLLM's)")
    num_layers = _count(names, prefix + "0.{}.linear.weight")
    return MedusaLayout(
        _count(names, prefix + "{}.0.linear.weight"),
        num_layers,
        lambda head, layer: f"{prefix}{head}.{layer}.linear",
        lambda head: f"{prefix}{head}.{num_layers}.weight",
    )


def _count(names: set[str], pattern: str) -> int:
    """How many tensors of a numbered series there are."""
    number = 0
    while pattern.format(number) in names:
        number += 1
    return number


def _token_map(checkpoint: Checkpoint, target_size: int) -> DraftVocabulary | None:
    if "token_map" not in checkpoint:
        return None
    to_target = checkpoint.tensor("token_map").to(torch.long)
    return DraftVocabulary.checked(to_target, target_size, f"drafter {checkpoint.name}: token_map")
