"""The MLP speculator: a small recurrent network that starts from the target's last hidden state.

s_i = GELU(LN_i(proj_i s_{i-1} + (w/a) emb_i[d_{i-1}])), q_i = softmax(head_i s_i), s_0 the state of the position that
produced the newest token (arXiv 2404.19124, section 3; vLLM 0.30 model_executor/models/mlp_speculator.py).

Imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from specprobe.checkpoint import Checkpoint, open_checkpoint
from specprobe.drafters.base import refuse_unknown_options
from specprobe.drafters.heads import Batch, HeadDrafter, OpenHead, put_rows, rows_at
from specprobe.drafters.models import DraftContext, ModelSpec
from specprobe.errors import SpecprobeError
from specprobe.features import LAST, Features
from specprobe.notices import Notice

EPSILON = 1e-6
# Public ones have 3 to 5.
MOST_POSITIONS = 64


@dataclass(frozen=True, slots=True)
class MlpSettings:
    """`num_positions`: how many tokens the network was trained to draft, each with weights of its own unless tied."""

    num_positions: int
    inner_size: int
    is_tied: bool
    scales_input: bool


@dataclass(slots=True)
class MlpState:
    """`previous` [B, N, inner size]: s_{i-1} of each round."""

    batch: Batch
    previous: torch.Tensor | None = None


class MlpNetwork:
    """The weights of each position: `proj`, `emb`, `ln` (weight, bias), `head`."""

    nested = True

    def __init__(self, settings: MlpSettings, weights: dict[str, torch.Tensor]) -> None:
        self._settings, self._weights = settings, weights

    def begin(self, batch: Batch, depth: int) -> MlpState:  # noqa: ARG002
        """Nothing to run."""
        return MlpState(batch)

    def draft(self, state: MlpState, position: int, starts: torch.Tensor) -> torch.Tensor:
        """One step of the recurrence."""
        settings, batch = self._settings, state.batch
        if position == 1:
            before = rows_at(batch.features[LAST], batch.newest(starts) - 1)
            if settings.scales_input:
                before = _normed(before) / math.sqrt(2)
        else:
            assert state.previous is not None
            before = rows_at(state.previous, starts)
        # The two weights keep the variance of the state at 1 from step to step.
        state_weight = 0.5 ** (0.5 / settings.num_positions)
        token_weight = math.sqrt((1 - state_weight**2) * settings.inner_size / 2)
        tokens = batch.tokens(batch.newest(starts) + position - 1)
        embedded = torch.nn.functional.embedding(tokens, self._weight("emb", position, "weight"))
        states = torch.nn.functional.linear(before, self._weight("proj", position, "weight"))
        states = states + token_weight / state_weight * embedded
        normed = self._weight("ln", position, "weight") * _normed(states) + self._weight("ln", position, "bias")
        states = torch.nn.functional.gelu(normed)
        if state.previous is None:
            width = int(batch.num_output.max())
            state.previous = states.new_zeros(len(starts), width, settings.inner_size)
        put_rows(state.previous, starts, states)
        return states

    def rewind(self, state: MlpState) -> None:
        """Rounds have their own columns."""

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:
        """The position's own matrix."""
        return torch.nn.functional.linear(states, self._weight("head", position, "weight"))

    def _weight(self, part: str, position: int, kind: str) -> torch.Tensor:
        return self._weights[tensor_name(self._settings, part, position, kind)]


def tensor_name(settings: MlpSettings, part: str, position: int, kind: str = "weight") -> str:
    """Of a part of position 1, 2, ...; tied weights are those of the first (of the first two for proj)."""
    index = position - 1
    if settings.is_tied:
        index = min(index, 1) if part == "proj" else 0
    return f"speculator.{part}.{index}.{kind}"


@dataclass(frozen=True)
class OpenMlp(OpenHead):
    """An MLP speculator that fits the target."""

    spec: ModelSpec
    context: DraftContext
    checkpoint: Checkpoint
    settings: MlpSettings
    taps: tuple[int, ...] = (LAST,)
    notices: tuple[Notice, ...] = ()

    def load(self, features: Features | None) -> HeadDrafter:
        """Weights in the target's precision, on its device."""
        assert features is not None
        target = self.context.needed_target(self.spec.name)
        weights = {
            name: self.checkpoint.tensor(name).to(target.device, target.model.dtype)
            for name in _shapes(self.settings, self.context.depth, 0, 0)
        }
        facts = {"positions": self.settings.num_positions, "tied": self.settings.is_tied}
        return self.head_drafter(MlpNetwork(self.settings, weights), features, facts)


def open_mlp(spec: ModelSpec, context: DraftContext) -> OpenMlp:
    """`mlp:MODEL`: IBM's `mlp_speculator` checkpoints."""
    refuse_unknown_options(spec.options, (), spec.name)
    target = context.needed_target(spec.name)
    checkpoint = open_checkpoint(spec.model)
    config = checkpoint.settings
    hidden = target.text_config.hidden_size
    width = config.whole("emb_dim", hidden)
    settings = MlpSettings(
        num_positions=config.whole("n_predict", 3, most=MOST_POSITIONS),
        # IBM's configs say 0 for "as wide as the embeddings".
        inner_size=config.whole("inner_dim", width, least=0) or width,
        is_tied=config.flag("tie_weights", False),
        scales_input=config.flag("scale_input", False),
    )
    if width != hidden:
        raise SpecprobeError(
            f"drafter {spec.model}: emb_dim in config.json is {width}, the target's hidden size is {hidden}; "
            "it was trained for another target"
        )
    if context.depth > settings.num_positions:
        raise SpecprobeError(
            f"--drafter mlp:{spec.model}: drafts {settings.num_positions} tokens; use --depth {settings.num_positions} "
            "at most"
        )
    for name, shape in _shapes(settings, settings.num_positions, hidden, target.text_config.vocab_size).items():
        checkpoint.check_shape(name, shape)
    return OpenMlp(spec, context, checkpoint, settings)


def _shapes(settings: MlpSettings, depth: int, hidden: int, vocab_size: int) -> dict[str, list[int]]:
    """The tensors of positions 1..depth."""
    inner = settings.inner_size
    shapes = {}
    for position in range(1, depth + 1):
        shapes[tensor_name(settings, "emb", position)] = [vocab_size, inner]
        shapes[tensor_name(settings, "proj", position)] = [inner, hidden if position == 1 else inner]
        shapes[tensor_name(settings, "ln", position)] = [inner]
        shapes[tensor_name(settings, "ln", position, "bias")] = [inner]
        shapes[tensor_name(settings, "head", position)] = [vocab_size, inner]
    return shapes


def _normed(states: torch.Tensor) -> torch.Tensor:
    return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + EPSILON)
