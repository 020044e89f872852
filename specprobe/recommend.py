"""From acceptance and cost to a verdict: does speculation pay at this concurrency, with which drafter and depth?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specprobe.acceptance import Acceptance
from specprobe.cost import CostTable
from specprobe.errors import SpecprobeError
from specprobe.export import engine_config
from specprobe.notices import Notice
from specprobe.speedup import DEPTH_TOLERANCE, LEVEL, Lengths, Option, best_depth, depth_options

SCHEMA = "specprobe.recommendation/1"
# Less is not worth a flag, a deployment and a second thing to watch; published results scatter by as much.
WORTHWHILE_SPEEDUP = 1.05
VerdictName = Literal["speculate", "dont", "close"]


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
        option for acceptance in acceptances for option in depth_options(acceptance, lengths, cost, concurrency, seed)
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


def _schedule(acceptance: Acceptance, lengths: Lengths, cost: CostTable) -> tuple[tuple[int, int, int], ...]:
    """The drafter's depth for every batch the cost table covers, equal neighbours in one row."""
    rows: list[tuple[int, int, int]] = []
    for batch in range(1, cost.batches[-1] + 1):
        depth, _ = best_depth(acceptance, lengths, cost, batch)
        if rows and rows[-1][2] == depth:
            rows[-1] = (rows[-1][0], batch, depth)
        else:
            rows.append((batch, batch, depth))
    return tuple(rows)


def _crossover(acceptances: Sequence[Acceptance], lengths: Lengths, cost: CostTable) -> int | None:
    for batch in range(1, cost.batches[-1] + 1):
        if all(best_depth(acceptance, lengths, cost, batch)[0] == 0 for acceptance in acceptances):
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
