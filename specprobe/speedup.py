"""What one drafter gains at one concurrency, depth by depth: acceptance and cost put together.

With all C slots full, a step of the engine serves C rounds at once. Without speculation it costs T(C, 1) and emits C
tokens; with it, it costs T(C, 1 + drafted tokens) + the drafters' time and emits C x (tokens per round). Hence

    speed-up = tokens per round x T(C, 1) / (T(C, 1 + drafted) + C x drafter seconds)

Tokens per round is a ratio of sums over requests, so it does not depend on C; only the cost does. At C = 1 the round
time is averaged over the draft lengths that occurred; at C > 1 it is taken at their mean, since the lengths of
many rounds average out within a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance
from specprobe.cost import CostTable
from specprobe.interval import bootstrap_t_columns

LEVEL = 0.9
# Between depths that differ by less, the shallower one wins: it wastes less when the load or the traffic changes.
DEPTH_TOLERANCE = 0.01
P95_NORMAL_DEVIATE = 1.645

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Option:
    """One drafter at one depth and concurrency.

    `speedup` is the ratio of output tokens per second to those without speculation; `low`, `high` its interval over
    prompts and repeated timings, None with too few prompts. `break_even_tokens_per_round` is the ratio of the
    two round times: speculation pays above it. Times are in seconds.
    """

    drafter: str
    config: Mapping[str, Any]
    depth: int
    tokens_per_round: float
    coverage: float
    speedup: float
    low: float | None
    high: float | None
    round_seconds: float
    p95_round_seconds: float
    break_even_tokens_per_round: float
    token_seconds: float
    request_seconds: float

    @property
    def break_even_acceptance_length(self) -> float | None:
        """The mean acceptance length (drafted rounds only, bonus included) above which it pays."""
        if not self.coverage:
            return None
        return 1 + (self.break_even_tokens_per_round - 1) / self.coverage


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts of the requests, [P] each: what contexts and latencies follow from."""

    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]

    @property
    def mean_context(self) -> float:
        """Tokens in the KV cache, averaged over all output tokens."""
        weights = np.maximum(self.output_tokens, 1).astype(np.float64)
        return float(np.average(self.prompt_tokens + self.output_tokens / 2, weights=weights))


def depth_options(
    acceptance: Acceptance, lengths: Lengths, cost: CostTable, concurrency: int, seed: int
) -> list[Option]:
    """Every depth of one drafter."""
    context = lengths.mean_context
    speedup = Speedup(acceptance, cost, concurrency, context)
    counts = _counts(acceptance)  # [P, K, 2 + K]
    sums = counts.sum(axis=0)
    round_seconds = speedup.round_seconds(sums)
    speedups = speedup(sums)
    baseline = speedup.baseline_seconds
    intervals = bootstrap_t_columns(
        counts, speedup, level=LEVEL, seed=seed, extra_log_variance=speedup.cost_log_variance(sums)
    )
    options = []
    for row, interval in enumerate(intervals):
        emitted, rounds, *drafted_at = sums[row].tolist()
        token_seconds = float(round_seconds[row]) * rounds / emitted
        options.append(
            Option(
                drafter=acceptance.drafter,
                config=acceptance.config,
                depth=row + 1,
                tokens_per_round=emitted / rounds,
                coverage=drafted_at[0] / rounds,
                speedup=float(speedups[row]),
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                round_seconds=float(round_seconds[row]),
                p95_round_seconds=speedup.p95_seconds(sums[row]),
                break_even_tokens_per_round=float(round_seconds[row]) / baseline,
                token_seconds=token_seconds,
                request_seconds=_request_seconds(lengths, cost, token_seconds),
            )
        )
    return options


def best_depth(acceptance: Acceptance, lengths: Lengths, cost: CostTable, concurrency: int) -> tuple[int, float]:
    """The depth of one drafter at a concurrency, and its speed-up; depth 0 where none is faster."""
    sums = _counts(acceptance).sum(axis=0)
    speedups = Speedup(acceptance, cost, concurrency, lengths.mean_context)(sums)
    top = float(speedups.max())
    depth = 1 + int(np.argmax(speedups >= top * (1 - DEPTH_TOLERANCE)))
    return (depth, top) if top > 1 else (0, top)


def _request_seconds(lengths: Lengths, cost: CostTable, token_seconds: float) -> float:
    """Mean time of a request: its prefill, then its tokens one round after the other."""
    prefill = float(lengths.prompt_tokens.mean()) * cost.prefill_token_seconds
    return prefill + float(np.maximum(lengths.output_tokens - 1, 0).mean()) * token_seconds


def _counts(acceptance: Acceptance) -> Floats:
    """[P, K, 2 + K]: emitted tokens, rounds, and rounds that drafted at least 1..K tokens, for each depth."""
    emitted = np.broadcast_to(acceptance.emitted_tokens[:, None], acceptance.rounds.shape)
    return np.concatenate(
        [np.stack([emitted, acceptance.rounds], axis=-1), acceptance.drafted_at], axis=-1, dtype=np.float64
    )


class Speedup:
    """Speed-up as a function of summed counts [..., 2 + K] (see `_counts`), for one cost, batch and context."""

    def __init__(self, acceptance: Acceptance, cost: CostTable, concurrency: int, context: float) -> None:
        self.cost, self.concurrency, self.context = cost, concurrency, context
        self.drafting_seconds = concurrency * cost.drafter_seconds.get(acceptance.drafter, 0.0)
        queries = np.arange(1.0, acceptance.depth + 2.0)
        self.seconds_by_query = cost.round_seconds(concurrency, queries, context)  # [K + 1]
        self.baseline_seconds = float(self.seconds_by_query[0])

    def __call__(self, sums: Floats) -> Floats:
        return sums[..., 0] / sums[..., 1] * self.baseline_seconds / self.round_seconds(sums)

    def round_seconds(self, sums: Floats) -> Floats:
        """The mean time of a speculative round."""
        rounds, drafted_at = sums[..., 1], sums[..., 2:]
        if self.concurrency == 1:
            return self._shares(sums) @ self.seconds_by_query + self.drafting_seconds
        mean_query = 1 + drafted_at.sum(axis=-1) / rounds
        return np.interp(mean_query, np.arange(1, self.seconds_by_query.size + 1), self.seconds_by_query) + (
            self.drafting_seconds
        )

    def cost_log_variance(self, sums: Floats) -> Floats:
        """The variance of log(speed-up) that repeated timings show: of both round times, taken as independent."""
        mean_query = 1 + sums[..., 2:].sum(axis=-1) / sums[..., 1]
        baseline = self.cost.round_spread(self.concurrency, 1.0, self.context) / self.baseline_seconds
        speculative = self.cost.round_spread(self.concurrency, mean_query, self.context) / self.round_seconds(sums)
        return baseline**2 + speculative**2

    def p95_seconds(self, sums: Floats) -> float:
        """The round time that 95 % of steps stay below, from the spread of draft lengths over the batch."""
        shares = self._shares(sums)
        lengths = np.arange(shares.size)
        if self.concurrency == 1:
            order = np.argsort(self.seconds_by_query)
            reached = int(np.searchsorted(np.cumsum(shares[order]), 0.95 - 1e-12))
            return float(self.seconds_by_query[order][min(reached, shares.size - 1)]) + self.drafting_seconds
        mean = float(shares @ lengths)
        deviation = math.sqrt(max(float(shares @ lengths**2) - mean**2, 0.0) / self.concurrency)
        query = 1 + min(mean + P95_NORMAL_DEVIATE * deviation, shares.size - 1)
        queries = np.arange(1, self.seconds_by_query.size + 1)
        return float(np.interp(query, queries, self.seconds_by_query)) + self.drafting_seconds

    @staticmethod
    def _shares(sums: Floats) -> Floats:
        """[..., K + 1] the share of rounds that drafted exactly 0..K tokens."""
        at_least = sums[..., 1:] / sums[..., 1:2]
        return at_least - np.concatenate([at_least[..., 1:], np.zeros_like(at_least[..., :1])], axis=-1)
