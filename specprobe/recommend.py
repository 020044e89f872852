"""From acceptance and cost to a verdict: does speculation pay at this concurrency, with which drafter and depth?

With all C slots full, a step of the engine serves C rounds at once. Without speculation it costs T(C, 1) and emits C
tokens; with it, it costs T(C, 1 + drafted tokens) + the drafters' time and emits C x (tokens per round). Hence

    speed-up = tokens per round x T(C, 1) / (T(C, 1 + drafted) + C x drafter seconds)

Tokens per round is a ratio of sums over requests, so it does not depend on C; only the cost does. At C = 1 the round
time is averaged over the draft lengths that occurred; at C > 1 it is taken at their mean, since the lengths of
many rounds average out within a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance
from specprobe.cost import CostTable
from specprobe.errors import SpecprobeError
from specprobe.export import engine_config
from specprobe.interval import bootstrap_t_columns
from specprobe.notices import Notice

SCHEMA = "specprobe.recommendation/1"
LEVEL = 0.9
# Less is not worth a flag, a deployment and a second thing to watch; published results scatter by as much.
WORTHWHILE_SPEEDUP = 1.05
# Between depths that differ by less, the shallower one wins: it wastes less when the load or the traffic changes.
DEPTH_TOLERANCE = 0.01
P95_NORMAL_DEVIATE = 1.645

VerdictName = Literal["speculate", "dont", "close"]
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
class Verdict:
    """The answer at one concurrency. `options` are all that were considered, best first."""

    concurrency: int
    verdict: VerdictName
    best: Option
    baseline_round_seconds: float
    options: tuple[Option, ...]

    @property
    def runner_up(self) -> Option | None:
        """The best option of another drafter."""
        return next((option for option in self.options if option.drafter != self.best.drafter), None)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Verdicts for all concurrencies asked for, and what follows for the engine.

    `schedule`: rows (first batch, last batch, depth) for `scheduled_drafter`, 0 for off, over the batches the
    cost table covers. `crossover_concurrency`: the smallest concurrency at which no option is faster than not
    speculating; None where there is none up to the largest batch of the cost table.
    """

    cost_source: str
    engine_profile: str
    temperature: float
    by_concurrency: tuple[Verdict, ...]
    crossover_concurrency: int | None
    scheduled_drafter: str
    schedule: tuple[tuple[int, int, int], ...]
    export: Mapping[str, Any]
    notices: tuple[Notice, ...]

    def to_json(self) -> dict[str, Any]:
        """The `specprobe.recommendation/1` document."""
        return {
            "schema": SCHEMA,
            "cost_source": self.cost_source,
            "engine_profile": self.engine_profile,
            "temperature": self.temperature,
            "by_concurrency": [_verdict_json(verdict) for verdict in self.by_concurrency],
            "crossover_concurrency": self.crossover_concurrency,
            "schedule_drafter": self.scheduled_drafter,
            "schedule": [list(row) for row in self.schedule],
            "export": dict(self.export),
            "warnings": [{"code": notice.code, "message": notice.message} for notice in self.notices],
        }


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


def recommend(
    acceptances: Sequence[Acceptance],
    lengths: Lengths,
    cost: CostTable,
    *,
    concurrencies: Sequence[int],
    engine_profile: str,
    seed: int = 0,
) -> Recommendation:
    """Verdicts from the replays of one temperature.

    Raises SpecprobeError where there is nothing to decide on: no result, or no round in any of them.
    """
    acceptances = [acceptance for acceptance in acceptances if acceptance.rounds.any()]
    if not acceptances:
        raise SpecprobeError("recommend: the run holds no rounds (no response is longer than one token); analyze more")
    verdicts = tuple(_verdict(acceptances, lengths, cost, concurrency, seed) for concurrency in concurrencies)
    favourite = max(verdicts, key=lambda verdict: verdict.best.speedup).best
    chosen = next(acceptance for acceptance in acceptances if _is_of(acceptance, favourite))
    schedule = _schedule(chosen, lengths, cost)
    speculate = [verdict for verdict in verdicts if verdict.verdict == "speculate"]
    export = (
        engine_config(
            engine_profile.partition("@")[0],
            chosen.drafter,
            chosen.config,
            next((v.best.depth for v in speculate if _is_of(chosen, v.best)), favourite.depth),
            schedule,
        )
        if speculate
        else {}
    )
    return Recommendation(
        cost_source=cost.source,
        engine_profile=engine_profile,
        temperature=acceptances[0].temperature,
        by_concurrency=verdicts,
        crossover_concurrency=_crossover(acceptances, lengths, cost),
        scheduled_drafter=chosen.drafter,
        schedule=schedule,
        export=export,
        notices=_notices(acceptances, lengths, cost, concurrencies),
    )


def _is_of(acceptance: Acceptance, option: Option) -> bool:
    return acceptance.drafter == option.drafter and acceptance.config == option.config


def _verdict(
    acceptances: Sequence[Acceptance], lengths: Lengths, cost: CostTable, concurrency: int, seed: int
) -> Verdict:
    options = [
        option for acceptance in acceptances for option in _options(acceptance, lengths, cost, concurrency, seed)
    ]
    options.sort(key=lambda option: (-option.speedup, option.depth))
    best = min(
        (
            option
            for option in options
            if option.drafter == options[0].drafter
            and option.config == options[0].config
            and option.speedup >= options[0].speedup * (1 - DEPTH_TOLERANCE)
        ),
        key=lambda option: option.depth,
    )
    options.remove(best)
    return Verdict(
        concurrency=concurrency,
        verdict=decide(best.speedup, best.low, best.high),
        best=best,
        baseline_round_seconds=float(cost.round_seconds(concurrency, 1, lengths.mean_context)),
        options=(best, *options),
    )


def decide(speedup: float, low: float | None, high: float | None) -> VerdictName:
    """`speculate`: worth it, and more than chance. `dont`: it cannot be worth it. `close`: the data do not say.

    Without an interval (too few prompts) nothing is certain, and only the point that lies below 1 says `dont`.
    """
    if low is None or high is None:
        return "dont" if speedup < 1 else "close"
    if high < WORTHWHILE_SPEEDUP:
        return "dont"
    if low > 1 and speedup >= WORTHWHILE_SPEEDUP:
        return "speculate"
    return "close"


def _options(acceptance: Acceptance, lengths: Lengths, cost: CostTable, concurrency: int, seed: int) -> list[Option]:
    """Every depth of one drafter."""
    context = lengths.mean_context
    speedup = _SpeedupOf(acceptance, cost, concurrency, context)
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


class _SpeedupOf:
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


def _best_depths(acceptance: Acceptance, lengths: Lengths, cost: CostTable, concurrency: int) -> tuple[int, float]:
    """The depth of one drafter at a concurrency, and its speed-up; depth 0 where none is faster."""
    sums = _counts(acceptance).sum(axis=0)
    speedups = _SpeedupOf(acceptance, cost, concurrency, lengths.mean_context)(sums)
    top = float(speedups.max())
    depth = 1 + int(np.argmax(speedups >= top * (1 - DEPTH_TOLERANCE)))
    return (depth, top) if top > 1 else (0, top)


def _schedule(acceptance: Acceptance, lengths: Lengths, cost: CostTable) -> tuple[tuple[int, int, int], ...]:
    """The drafter's depth for every batch the cost table covers, equal neighbours in one row."""
    rows: list[tuple[int, int, int]] = []
    for batch in range(1, cost.batches[-1] + 1):
        depth, _ = _best_depths(acceptance, lengths, cost, batch)
        if rows and rows[-1][2] == depth:
            rows[-1] = (rows[-1][0], batch, depth)
        else:
            rows.append((batch, batch, depth))
    return tuple(rows)


def _crossover(acceptances: Sequence[Acceptance], lengths: Lengths, cost: CostTable) -> int | None:
    for batch in range(1, cost.batches[-1] + 1):
        if all(_best_depths(acceptance, lengths, cost, batch)[0] == 0 for acceptance in acceptances):
            return batch
    return None


def _notices(
    acceptances: Sequence[Acceptance], lengths: Lengths, cost: CostTable, concurrencies: Sequence[int]
) -> tuple[Notice, ...]:
    notices = []
    depth = max(acceptance.depth for acceptance in acceptances)
    outside = [c for c in concurrencies if not cost.reaches(c, 1)]
    if outside:
        notices.append(
            Notice(
                "cost_batch_not_covered",
                f"the cost table covers batches {cost.batches[0]} to {cost.batches[-1]}; for concurrency "
                f"{', '.join(map(str, outside))} the nearest one was used, which is a guess: add points there",
            )
        )
    if not cost.reaches(cost.batches[0], depth + 1):
        notices.append(
            Notice(
                "cost_query_not_covered",
                f"the cost table stops at {cost.query_tokens[-1]} query tokens a sequence, depth {depth} needs "
                f"{depth + 1}; deeper rounds were costed as if they were free: add points there",
            )
        )
    if not cost.contexts[0] <= lengths.mean_context <= cost.contexts[-1]:
        notices.append(
            Notice(
                "cost_context_not_covered",
                f"the mean context is {lengths.mean_context:.0f} tokens, the cost table covers {cost.contexts[0]} to "
                f"{cost.contexts[-1]}; the nearest one was used",
            )
        )
    outliers = sum(point.outliers for point in cost.points)
    timings = sum(point.repeats for point in cost.points)
    if outliers > 0.1 * timings:
        notices.append(
            Notice(
                "noisy_timings",
                f"{outliers} of {timings} timings lie far from their median, so the machine was busy; the medians "
                "are used, but close other programs and measure again with --remeasure before you trust a close call",
            )
        )
    return tuple(notices)


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    best = verdict.best
    return {
        "concurrency": verdict.concurrency,
        "verdict": verdict.verdict,
        "drafter": best.drafter,
        "depth": best.depth,
        "speedup": {"point": best.speedup, "low": best.low, "high": best.high, "level": LEVEL},
        "break_even_acceptance_length": best.break_even_acceptance_length,
        "break_even_tokens_per_round": best.break_even_tokens_per_round,
        "baseline": {
            "output_tokens_per_second": verdict.concurrency / verdict.baseline_round_seconds,
            "itl_p50_ms": 1e3 * verdict.baseline_round_seconds,
        },
        "options": [_option_json(option, verdict.concurrency) for option in verdict.options],
    }


def _option_json(option: Option, concurrency: int) -> dict[str, Any]:
    return {
        "drafter": option.drafter,
        "config": dict(option.config),
        "depth": option.depth,
        "speedup": option.speedup,
        "interval": {"speedup": [option.low, option.high], "level": LEVEL},
        "tokens_per_round": option.tokens_per_round,
        "output_tokens_per_second": concurrency / option.token_seconds,
        "itl_p50_ms": 1e3 * option.round_seconds,
        "itl_p95_ms": 1e3 * option.p95_round_seconds,
        "tpot_ms": 1e3 * option.token_seconds,
        "request_latency_s": option.request_seconds,
    }
