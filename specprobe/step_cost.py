"""What a step of an engine costs: decoding sequences with their drafts, and prompt tokens that are prefilled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class CostArrays(NamedTuple):
    """The fields of a `StepCost` as compiled code takes them."""

    batches: Floats
    query_tokens: Floats
    contexts: Floats
    seconds: Floats
    drafting_seconds: Floats
    prefill_token_seconds: float
    prefill_pair_seconds: float
    prefill_step_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class StepCost:
    """Seconds of an engine's step, linear between the points of a grid and constant beyond its ends.

    `batches` [B], `query_tokens` [Q] and `contexts` [X] rise: decoding sequences, new tokens per sequence (1 +
    drafted, mean over the batch), tokens per sequence in the KV cache before the step (mean). `seconds` [B, Q, X]: of
    a step that decodes; `drafting_seconds` [B, X]: the drafter's own time in such a step for the whole batch, zeros
    without a drafter. A prompt token that is prefilled adds `prefill_token_seconds`, and `prefill_pair_seconds` for
    each token of its own sequence before it. A step that only prefills takes `prefill_step_seconds` besides.

    A step that decodes D sequences with Q query tokens in all and mean context X, and prefills F tokens:
    seconds(D, Q / D, X) + drafting(D, X) + prefill; with D = 0: prefill_step_seconds + prefill. Raises ValueError
    where shapes do not fit, an axis does not rise, or a time is negative or not finite.
    """

    batches: Floats
    query_tokens: Floats
    contexts: Floats
    seconds: Floats
    drafting_seconds: Floats
    prefill_token_seconds: float
    prefill_pair_seconds: float
    prefill_step_seconds: float

    def __post_init__(self) -> None:
        axes = self.batches, self.query_tokens, self.contexts
        if any(axis.ndim != 1 or not axis.size or (np.diff(axis) <= 0).any() for axis in axes):
            raise ValueError("batches, query_tokens and contexts must be one-dimensional and rise")
        num_batches, num_queries, num_contexts = (axis.size for axis in axes)
        if self.seconds.shape != (num_batches, num_queries, num_contexts):
            raise ValueError(
                f"seconds must be [{num_batches}, {num_queries}, {num_contexts}], not {self.seconds.shape}"
            )
        if self.drafting_seconds.shape != (num_batches, num_contexts):
            raise ValueError(
                f"drafting_seconds must be [{num_batches}, {num_contexts}], not {self.drafting_seconds.shape}"
            )
        prefill = self.prefill_token_seconds, self.prefill_pair_seconds, self.prefill_step_seconds
        for times in (self.seconds, self.drafting_seconds, np.array(prefill)):
            if not (np.isfinite(times).all() and (times >= 0).all()):
                raise ValueError("times must be finite and not negative")

    @property
    def arrays(self) -> CostArrays:
        """For compiled code: float64, contiguous."""
        return CostArrays(
            np.ascontiguousarray(self.batches, dtype=np.float64),
            np.ascontiguousarray(self.query_tokens, dtype=np.float64),
            np.ascontiguousarray(self.contexts, dtype=np.float64),
            np.ascontiguousarray(self.seconds, dtype=np.float64),
            np.ascontiguousarray(self.drafting_seconds, dtype=np.float64),
            float(self.prefill_token_seconds),
            float(self.prefill_pair_seconds),
            float(self.prefill_step_seconds),
        )

    def decode_seconds(self, batch: ArrayLike, query_tokens: ArrayLike, context: ArrayLike) -> Floats:
        """Seconds of steps that only decode, drafting included; arguments broadcast.

        `batch`: sequences; `query_tokens`, `context`: per sequence.
        """
        points = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (batch, query_tokens, context)))
        flat = [np.ascontiguousarray(point).reshape(-1) for point in points]
        return _decode_seconds(self.arrays, *flat).reshape(points[0].shape)

    def prefill_seconds(self, prompt_tokens: ArrayLike, max_batched_tokens: int) -> Floats:
        """Seconds to prefill prompts alone, in as many steps as the token budget of a step asks for."""
        prompt = np.asarray(prompt_tokens, dtype=np.float64)
        steps = np.ceil(prompt / max_batched_tokens)
        pairs = prompt * (prompt - 1) / 2
        tokens = self.prefill_token_seconds * prompt + self.prefill_pair_seconds * pairs
        return np.asarray(steps * self.prefill_step_seconds + tokens)


@njit(cache=True, nogil=True)
def _place(axis: Floats, value: float) -> tuple[int, float]:
    """Where a value lies on a rising axis: the point below it, and the share of the way to the next one."""
    if value <= axis[0]:
        return 0, 0.0
    last = axis.size - 1
    if value >= axis[last]:
        return last, 0.0
    low = int(np.searchsorted(axis, value, side="right")) - 1
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


@njit(cache=True, nogil=True)
def decode_step_seconds(cost: CostArrays, batch: float, query_tokens: float, context: float) -> float:
    """Seconds of a step for its decoding sequences: trilinear over the grid, and bilinear for drafting."""
    b, b_share = _place(cost.batches, batch)
    q, q_share = _place(cost.query_tokens, query_tokens)
    x, x_share = _place(cost.contexts, context)
    seconds = 0.0
    for i in range(2):
        b_weight = b_share if i else 1.0 - b_share
        if b_weight == 0.0:
            continue
        for k in range(2):
            x_weight = b_weight * (x_share if k else 1.0 - x_share)
            if x_weight == 0.0:
                continue
            seconds += x_weight * cost.drafting_seconds[b + i, x + k]
            seconds += x_weight * (1.0 - q_share) * cost.seconds[b + i, q, x + k]
            if q_share > 0.0:
                seconds += x_weight * q_share * cost.seconds[b + i, q + 1, x + k]
    return seconds


@njit(cache=True, nogil=True)
def _decode_seconds(cost: CostArrays, batch: Floats, query_tokens: Floats, context: Floats) -> Floats:
    seconds = np.empty(batch.size)
    for i in range(batch.size):
        seconds[i] = decode_step_seconds(cost, batch[i], query_tokens[i], context[i])
    return seconds
