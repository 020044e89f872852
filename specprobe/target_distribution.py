"""p of the target at every output token of a response, from what its head read there. Imports torch.

What can be expected to be accepted at a place needs more of p than the token that was written: p of the token that
was drafted and missed, or all of p beside q. The states come from one teacher-forced pass: those of generation would
differ in the last bits, and an interrupted run would not give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from specprobe.distribution import processed_logits
from specprobe.features import LAST, Features
from specprobe.processors import ProcessingRule
from specprobe.trajectory import Trajectory

if TYPE_CHECKING:
    from specprobe.target import Target

# Values of log p that are worked on at once (64 MB in float32).
_LOGIT_VALUES = 2**24


class TargetDistribution:
    """p of the target over the vocabulary, response by response, as an engine processes it.

    `features`: what the target's head read, where it was captured.
    """

    def __init__(self, target: Target, rule: ProcessingRule) -> None:
        self._name, self._head, self._rule, self._device = (
            target.record.name,
            target.model.get_output_embeddings(),
            rule,
            target.device,
        )
        self.features: Features | None = None

    def of(self, trajectory: Trajectory) -> ResponseDistribution | None:
        """p while this response was written; None where it is not known, or says nothing (temperature 0)."""
        if self.features is None or trajectory.temperature == 0 or trajectory.log_probs is None:
            return None
        first = trajectory.prompt_ids.size - 1
        states = self.features.read(LAST, trajectory)[first : first + trajectory.output_ids.size].to(self._device)
        return ResponseDistribution(trajectory, states, self._head, self._rule)


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
            found.append(log_p.gather(-1, wanted[first : first + step, None])[:, 0].double().cpu().numpy())
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
        return np.minimum(known + gap.double().cpu().numpy() / trajectory.temperature, 0.0)
