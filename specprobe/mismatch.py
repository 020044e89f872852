"""Was a logged answer written by this target? Measured by the likelihood that the target gives to it.

A response sampled from the target at temperature T has, at every token, an expected log p equal to minus the
entropy of the distribution it was drawn from, so the mean of log p + entropy is 0 up to chance. At T = 0 every token
is the argmax, but for numerical near-ties. Text by another model falls below either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specprobe.notices import Notice
from specprobe.target import Score

# Near-ties flip about one greedy token in a hundred between kernels and dtypes (golden runs in float32: none).
MIN_ARGMAX_SHARE = 0.97
# Nats per token; smaller gaps change acceptance by less than its interval.
MAX_LOG_PROB_GAP = 0.05
MAX_Z = 3.0


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How far a log is from what the target would have written.

    `argmax_share`: tokens that greedy decoding would have chosen. `mean_log_prob`: nats per token that is possible.
    `log_prob_gap`: mean of log p + entropy in nats per token, with its standard error over responses. These two are at
    `temperature`, and at temperature 1 where that is 0; there greedy text has a positive gap, and only the
    argmax share says who wrote it. `impossible_tokens`: p = 0 there.
    """

    temperature: float
    argmax_share: float
    mean_log_prob: float
    log_prob_gap: float
    log_prob_gap_error: float
    impossible_tokens: int

    @property
    def is_other_model(self) -> bool:
        """Whether the text is not what this target writes at this temperature."""
        if self.impossible_tokens:
            return True
        if self.temperature == 0:
            return self.argmax_share < MIN_ARGMAX_SHARE
        return self.log_prob_gap < -max(MAX_LOG_PROB_GAP, MAX_Z * self.log_prob_gap_error)

    def notices(self) -> list[Notice]:
        """A warning where the log does not fit the target."""
        if not self.is_other_model:
            return []
        evidence = (
            f"it would have chosen {self.argmax_share:.0%} of their tokens itself"
            if self.temperature == 0
            else f"it gives their tokens {self.mean_log_prob:.2f} nats, {-self.log_prob_gap:.2f} less than its own text"
        )
        if self.impossible_tokens:
            evidence += f", and {self.impossible_tokens} of them it could never have written"
        return [
            Notice(
                "other_model",
                f"the logged answers are not what this target writes at temperature {self.temperature:g}: {evidence}; "
                "acceptance holds for whoever wrote the log: use --responses generate to measure this target",
            )
        ]


def measure_mismatch(scores: Sequence[Score], temperature: float) -> Mismatch | None:
    """Sum up the scores of logged responses; None where there is no token to judge by."""
    possible = [np.isfinite(score.log_probs) for score in scores]
    sizes = np.array([ok.sum() for ok in possible], dtype=np.float64)
    num_tokens = sum(score.log_probs.size for score in scores)
    if not sizes.sum():
        return None
    log_probs = np.array([score.log_probs[ok].sum() for score, ok in zip(scores, possible, strict=True)])
    gaps = np.array([(score.log_probs + score.entropy)[ok].sum() for score, ok in zip(scores, possible, strict=True)])
    gap = gaps.sum() / sizes.sum()
    return Mismatch(
        temperature=temperature,
        argmax_share=float(sum(score.is_argmax.sum() for score in scores) / num_tokens),
        mean_log_prob=float(log_probs.sum() / sizes.sum()),
        log_prob_gap=float(gap),
        log_prob_gap_error=float(np.sqrt(((gaps - gap * sizes) ** 2).sum()) / sizes.sum()),
        impossible_tokens=int(num_tokens - sizes.sum()),
    )
