"""p of the target at every output token of a response, from what its head read there. Imports torch.

What can be expected to be accepted at a place needs more of p than the token that was written: p of the token that
was drafted and missed, or all of p beside q. The states come from one teacher-forced pass: those of generation would
differ in the last bits, and an interrupted run would not give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from specprobe.distribution import processed_logits
from specprobe.features import LAST, Features
from specprobe.notices import Notice
from specprobe.processors import ProcessingRule
from specprobe.trajectory import Trajectory

if TYPE_CHECKING:
    from specprobe.target import Target

# Values of log p that are worked on at once (64 MB in float32).
_LOGIT_VALUES = 2**24
# Some models bend their logits behind the head (a cap, a scale); half precision is off by half as much in the median.
_MOST_ERROR = 0.15
_TOKENS_CHECKED = 64
# Nats: of a token that was written for certain p is 1 however the logits are bent.
_ALL_BUT_CERTAIN = -0.1


class TargetDistribution:
    """p of the target over the vocabulary, response by response, as an engine processes it.

    Known once there is what the target's head read. `notices`: why it is not, where it cannot be.
    """

    def __init__(self, target: Target, rule: ProcessingRule) -> None:
        self._name, self._device = target.record.name, target.device
        self.rule = rule
        self._head = target.model.get_output_embeddings()
        self._features: Features | None = None
        self._is_of_the_text = True
        self.notices: tuple[Notice, ...] = ()

    def disown(self) -> None:
        """The text is another model's: this target's p says nothing of how it came about."""
        self._is_of_the_text = False

    @property
    def is_known(self) -> bool:
        """Whether there are states to make p of."""
        return self._features is not None

    @property
    def is_wanted(self) -> bool:
        """Whether what the head reads is of use."""
        return self._is_of_the_text

    def use(self, features: Features) -> None:
        """From now on p follows from these states."""
        self._features = features

    def take(self, features: Features, trajectories: Sequence[Trajectory]) -> None:
        """Use captured states, if head and states give the log p that these trajectories were written with."""
        self.use(features)
        errors: list[float] = []
        for trajectory in trajectories:
            known = self.of(trajectory)
            errors += known.errors() if known is not None else []
            if len(errors) >= _TOKENS_CHECKED:
                break
        if errors and float(np.median(errors)) > _MOST_ERROR:
            self._features = None
            self.notices = (
                Notice(
                    "target_bends_logits",
                    f"target {self._name}: changes its logits behind its head (a cap or a scale), so what drafts "
                    "could be expected to get accepted is not known; counters are not concerned",
                ),
            )

    def of(self, trajectory: Trajectory) -> ResponseDistribution | None:
        """p while this response was written; None where it is not known, or says nothing (temperature 0)."""
        if self._features is None or trajectory.temperature == 0 or trajectory.log_probs is None:
            return None
        first = trajectory.prompt_ids.size - 1
        states = self._features.read(LAST, trajectory)[first : first + trajectory.output_ids.size].to(self._device)
        return ResponseDistribution(trajectory, states, self._head, self.rule)


@dataclass(frozen=True, slots=True, eq=False)
class ResponseDistribution:
    """p at the output tokens of one response; `states` [N, H]."""

    trajectory: Trajectory
    states: torch.Tensor
    head: Any
    rule: ProcessingRule

    @torch.inference_mode()
    def log_p(self, positions: torch.Tensor) -> torch.Tensor:
        """log p of every token [R, V] at output tokens `positions` [R]."""
        logits = self.head(self.states[positions]).float()
        return torch.log_softmax(processed_logits(logits, self.trajectory, positions, self.rule), dim=-1)

    @torch.inference_mode()
    def p(self, positions: torch.Tensor) -> torch.Tensor:
        """p of every token [R, V] at output tokens `positions` [R]."""
        return self.log_p(positions).exp_()

    def errors(self) -> list[float]:
        """How far log p of the text is from what was recorded, in nats, at tokens that were not all but certain."""
        assert self.trajectory.log_probs is not None
        recorded = self.trajectory.log_probs
        open_ = np.flatnonzero(np.isfinite(recorded) & (recorded < _ALL_BUT_CERTAIN))[:_TOKENS_CHECKED]
        positions = torch.from_numpy(open_).to(self.states.device)
        written = torch.from_numpy(self.trajectory.output_ids[open_].astype(np.int64)).to(self.states.device)
        found = self.log_p(positions).gather(-1, written[:, None])[:, 0].cpu().numpy()
        # A token that rounding took over the border of a cut says nothing of the head.
        return np.abs(found - recorded[open_])[np.isfinite(found)].tolist()

    @torch.inference_mode()
    def log_p_of(self, positions: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """log p of `tokens` [R] at output tokens `positions` [R]; -inf for what is no token of the target."""
        is_token = (tokens >= 0) & (tokens < self.head.weight.shape[0])
        found = np.full(tokens.shape, -np.inf)
        found[is_token] = self._log_p_of(positions[is_token], tokens[is_token])
        return found

    def _log_p_of(self, positions: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        processors = self.trajectory.processors
        at = torch.from_numpy(positions).to(self.states.device)
        wanted = torch.from_numpy(tokens).to(self.states.device)
        if type(self.head) is torch.nn.Linear and not processors.penalizes and not processors.truncates:
            return self._beside_the_text(at, wanted)
        found = [np.empty(0)]
        step = max(1, _LOGIT_VALUES // max(1, self.head.weight.shape[0]))
        for first in range(0, len(at), step):
            log_p = self.log_p(at[first : first + step])
            found.append(log_p.gather(-1, wanted[first : first + step, None])[:, 0].cpu().double().numpy())
        return np.concatenate(found)

    def _beside_the_text(self, at: torch.Tensor, wanted: torch.Tensor) -> NDArray[np.float64]:
        """From log p of the text: two logits differ by T times what their log p differ by."""
        trajectory = self.trajectory
        assert trajectory.log_probs is not None
        written = torch.from_numpy(trajectory.output_ids.astype(np.int64)).to(at.device)[at]
        weight = self.head.weight
        gap = (self.states[at].float() * (weight[wanted].float() - weight[written].float())).sum(-1)
        if self.head.bias is not None:
            gap = gap + self.head.bias[wanted].float() - self.head.bias[written].float()
        known = trajectory.log_probs[at.cpu().numpy()].astype(np.float64)
        return np.minimum(known + gap.cpu().double().numpy() / trajectory.temperature, 0.0)
