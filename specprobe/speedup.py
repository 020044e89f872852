"""What one drafter gains at one concurrency, depth by depth: acceptance and cost put together.

With all C slots full, a step of the engine serves C rounds at once. Without speculation it costs T(C, 1) and emits C
tokens; with it, it costs T(C, 1 + drafted tokens) + the drafters' time and emits C x (tokens per round). Hence

    speed-up = tokens per round x T(C, 1) / (T(C, 1 + drafted) + drafting(C))

Tokens per round is a ratio of sums over requests, so it does not depend on C; only the cost does. At C = 1 the round
time is averaged over the draft lengths that occurred; at C > 1 it is taken at their mean, since the lengths of
many rounds average out within a step. It is the speed of decoding: prefill costs the same with and without, so a
request with a long prompt and a short answer gains less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from specprobe.acceptance import Acceptance, drafter_label
from specprobe.cost import CostTable
from specprobe.drafters import MODEL_FREE
from specprobe.interval import LEVEL, MIN_PROMPTS, bootstrap_t_columns
from specprobe.run import ResponseRecord

# Between depths that differ by less, the shallower one wins: it wastes less when the load or the traffic changes.
DEPTH_TOLERANCE = 0.01
# The middles of 1,000 equally likely slices of a normal distribution.
NORMAL_DEVIATES = ndtri((np.arange(1000) + 0.5) / 1000)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Option:
    """One drafter at one depth and concurrency. Times are in seconds.

    `speedup` is the ratio of output tokens per second of decoding to those without speculation; `low`, `high` its
    interval over prompts and repeated timings, None where there is none, and `enough_prompts` whether it rests on
    MIN_PROMPTS prompts. `break_even_tokens_per_round` is the ratio of the two round times: speculation pays above
    it. `p50_` and `p95_round_seconds` are the gaps between the chunks of a stream.
    """

    drafter: str
    config: Mapping[str, Any]
    draft_sampling: str
    depth: int
    concurrency: int
    tokens_per_round: float
    coverage: float
    speedup: float
    low: float | None
    high: float | None
    enough_prompts: bool
    round_seconds: float
    p50_round_seconds: float
    p95_round_seconds: float
    break_even_tokens_per_round: float
    request_seconds: float

    @property
    def label(self) -> str:
        """See `drafter_label`."""
        return drafter_label(self.drafter, self.config, self.draft_sampling)

    @property
    def token_seconds(self) -> float:
        """Time per output token of one request."""
        return self.round_seconds / self.tokens_per_round

    @property
    def output_tokens_per_second(self) -> float:
        """Of all requests in flight together."""
        return self.concurrency / self.token_seconds

    @property
    def break_even_acceptance_length(self) -> float | None:
        """The mean acceptance length (drafted rounds only, bonus included) above which it pays."""
        if not self.coverage:
            return None
        return 1 + (self.break_even_tokens_per_round - 1) / self.coverage


def depth_options(
    acceptance: Acceptance, lengths: ResponseRecord, cost: CostTable, concurrency: int, *, seed: int = 0
) -> list[Option]:
    """Every depth of one drafter."""
    speedup = Speedup(acceptance, cost, lengths.mean_context, concurrency)
    counts = summed_counts(acceptance)  # [P, K, 2 + K]
    sums = counts.sum(axis=0)
    intervals = bootstrap_t_columns(
        acceptance.by_prompt(counts),
        speedup,
        level=LEVEL,
        seed=seed,
        extra_log_variance=speedup.cost_log_variance(sums),
    )
    points, round_seconds = speedup(sums), speedup.round_seconds(sums)
    mean_output = float(np.maximum(lengths.output_tokens - 1, 0).mean())
    prefill_seconds = float(lengths.prompt_tokens.mean()) * cost.prefill_token_seconds
    enough_prompts = acceptance.num_prompts >= MIN_PROMPTS
    options = []
    for row, interval in enumerate(intervals):
        emitted, rounds, *drafted_at = sums[row].tolist()
        p50, p95 = speedup.round_quantiles(sums[row], row + 1)
        options.append(
            Option(
                drafter=acceptance.drafter,
                config=acceptance.config,
                draft_sampling=acceptance.draft_sampling,
                depth=row + 1,
                concurrency=concurrency,
                tokens_per_round=emitted / rounds,
                coverage=drafted_at[0] / rounds,
                speedup=float(points[row]),
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                enough_prompts=enough_prompts,
                round_seconds=float(round_seconds[row]),
                p50_round_seconds=p50,
                p95_round_seconds=p95,
                break_even_tokens_per_round=float(round_seconds[row]) / speedup.baseline_seconds,
                request_seconds=prefill_seconds + mean_output * float(round_seconds[row]) * rounds / emitted,
            )
        )
    return options


def best_depth(speedup: Speedup, sums: Floats) -> tuple[int, float]:
    """The depth with the largest speed-up, or a shallower one that is as good; and that speed-up. `sums` [K, 2 + K]."""
    speedups = speedup(sums)
    return 1 + int(np.argmax(speedups >= speedups.max() * (1 - DEPTH_TOLERANCE))), float(speedups.max())


def has_cost(acceptance: Acceptance, cost: CostTable) -> bool:
    """Whether the drafter's own time is known; n-gram and suffix take next to none, a model takes its time."""
    return acceptance.drafter in MODEL_FREE or cost.knows(cost_keys(acceptance))


def cost_keys(acceptance: Acceptance) -> tuple[str, ...]:
    """What a cost table may call the drafter: with its model as the user named it, else by its method."""
    model = acceptance.config.get("model", acceptance.config.get("class"))
    return (f"{acceptance.drafter}:{model}", acceptance.label, acceptance.drafter) if model else (acceptance.drafter,)


def summed_counts(acceptance: Acceptance) -> Floats:
    """[P, K, 2 + K]: emitted tokens, rounds, and rounds that drafted at least 1..K tokens, for each depth."""
    emitted = np.broadcast_to(acceptance.emitted_tokens[:, None], acceptance.rounds.shape)
    return np.concatenate(
        [np.stack([emitted, acceptance.rounds], axis=-1), acceptance.drafted_at], axis=-1, dtype=np.float64
    )


class Speedup:
    """Speed-up as a function of summed counts [..., 2 + K] (see `summed_counts`), at one concurrency and context."""

    def __init__(self, acceptance: Acceptance, cost: CostTable, context: float, concurrency: int) -> None:
        self.concurrency = concurrency
        surface, depths = cost.at_context(context), np.arange(1.0, acceptance.depth + 1)
        # [K], by depth.
        self.drafting_seconds = cost.drafting_seconds(
            cost_keys(acceptance),
            np.array([float(concurrency)]),
            depths,
            np.array([context]),
            by_token=acceptance.drafter not in MODEL_FREE,
        )[0, :, 0]
        self.queries = np.arange(1.0, acceptance.depth + 2.0)
        seconds, errors = surface.at_batch(concurrency)
        self.seconds = np.interp(self.queries, surface.query_tokens, seconds)  # [K + 1], of 0..K drafted tokens
        self.errors = np.interp(self.queries, surface.query_tokens, errors)
        self.baseline_seconds = float(self.seconds[0])
        self.log_deviation = cost.log_deviation

    def __call__(self, sums: Floats) -> Floats:
        """Tokens per round times the ratio of round times."""
        return sums[..., 0] / sums[..., 1] * self.baseline_seconds / self.round_seconds(sums)

    def round_seconds(self, sums: Floats) -> Floats:
        """The mean time of a speculative round."""
        if self.concurrency == 1:
            return self._shares(sums) @ self.seconds + self.drafting_seconds
        return np.interp(self._mean_query(sums), self.queries, self.seconds) + self.drafting_seconds

    def cost_log_variance(self, sums: Floats) -> Floats:
        """The variance of log(speed-up) that the cost brings: of both round times as repeated timings show it, taken
        as independent, and what the source is known to err by."""
        speculative = np.interp(self._mean_query(sums), self.queries, self.errors) / self.round_seconds(sums)
        return speculative**2 + (self.errors[0] / self.baseline_seconds) ** 2 + self.log_deviation**2

    def round_quantiles(self, sums: Floats, depth: int) -> tuple[float, float]:
        """The round times that 50 % and 95 % of steps stay below, from the draft lengths of the batch; `sums` [2 + K].

        At concurrency 1 these are the lengths that occurred; above, the mean over a batch is taken as normal.
        """
        shares = self._shares(sums)
        if self.concurrency == 1:
            seconds, weights = self.seconds, shares
        else:
            drafted = np.arange(shares.size)
            mean = float(shares @ drafted)
            deviation = math.sqrt(max(float(shares @ drafted**2) - mean**2, 0.0) / self.concurrency)
            # Round times need not rise with the tokens in them, so they are ranked by themselves.
            seconds = np.interp(1 + mean + deviation * NORMAL_DEVIATES, self.queries, self.seconds)
            weights = np.full(seconds.size, 1 / seconds.size)
        order = np.argsort(seconds)
        reached = np.searchsorted(np.cumsum(weights[order]), (0.5 - 1e-9, 0.95 - 1e-9))
        p50, p95 = seconds[order][np.minimum(reached, seconds.size - 1)]
        drafting = float(self.drafting_seconds[depth - 1])
        return float(p50) + drafting, float(p95) + drafting

    @staticmethod
    def _mean_query(sums: Floats) -> Floats:
        """[...] mean query tokens per sequence: 1 + drafted."""
        return 1 + sums[..., 2:].sum(axis=-1) / sums[..., 1]

    @staticmethod
    def _shares(sums: Floats) -> Floats:
        """[..., K + 1] the share of rounds that drafted exactly 0..K tokens."""
        at_least = sums[..., 1:] / sums[..., 1:2]
        return at_least - np.concatenate([at_least[..., 1:], np.zeros_like(at_least[..., :1])], axis=-1)
