"""From acceptance and cost to a verdict: does speculation pay at this concurrency, with which drafter and depth?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specprobe.acceptance import Acceptance
from specprobe.cost import CostTable
from specprobe.drafters import MODEL_FREE
from specprobe.errors import SpecprobeError
from specprobe.export import Schedule, engine_config
from specprobe.interval import LEVEL
from specprobe.notices import Notice, inert
from specprobe.profiles import resolve_profile
from specprobe.run import ResponseRecord, Run
from specprobe.speedup import (
    DEPTH_TOLERANCE,
    Option,
    Speedup,
    best_depth,
    cost_keys,
    depth_options,
    has_cost,
    summed_counts,
)

SCHEMA = "specprobe.recommendation/1"
# Less is not worth a flag, a deployment and a second thing to watch; published results scatter by as much.
WORTHWHILE_SPEEDUP = 1.05
# No engine runs more sequences at once by default, and a longer table helps nobody.
LARGEST_SCHEDULED_BATCH = 1024
VerdictName = Literal["speculate", "dont", "close"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer at one concurrency. `options` are all that were considered, best first.

    `export`: the engine's settings for the best; empty where it should not be switched on.
    """

    concurrency: int
    verdict: VerdictName
    best: Option
    baseline_round_seconds: float
    options: tuple[Option, ...]
    export: Mapping[str, Any]

    @property
    def baseline_tokens_per_second(self) -> float:
        """Output tokens per second of all requests together, without speculation."""
        return self.concurrency / self.baseline_round_seconds

    @property
    def runner_up(self) -> Option | None:
        """The best option of another drafter."""
        return next((option for option in self.options if option.label != self.best.label), None)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Verdicts for all concurrencies asked for, and what follows for the engine.

    `schedule`: rows (first batch, last batch, depth) for `scheduled_drafter`, 0 for off, over the batches the
    cost table covers. `export`: the engine's settings for the first verdict to speculate.
    `crossover_concurrency`: from here to the largest batch of the cost table no option is faster than not speculating;
    None where one still is at the largest.
    """

    cost: CostTable
    engine_profile: str
    temperature: float
    by_concurrency: tuple[Verdict, ...]
    crossover_concurrency: int | None
    scheduled_drafter: str
    schedule: Schedule
    export: Mapping[str, Any]
    notices: tuple[Notice, ...]

    def to_json(self) -> dict[str, Any]:
        """The `specprobe.recommendation/1` document."""
        return {
            "schema": SCHEMA,
            "cost_source": self.cost.source,
            "cost": {"conditions": dict(self.cost.conditions), **self.cost.quality()},
            "engine_profile": self.engine_profile,
            "temperature": self.temperature,
            "by_concurrency": [_verdict_json(verdict) for verdict in self.by_concurrency],
            "crossover_concurrency": self.crossover_concurrency,
            "schedule_drafter": self.scheduled_drafter,
            "schedule": [list(row) for row in self.schedule],
            "export": dict(self.export),
            "warnings": [{"code": notice.code, "message": notice.message} for notice in self.notices],
        }


def recommend(run: Run, temperature: float, cost: CostTable, concurrencies: Sequence[int]) -> Recommendation:
    """Verdicts from the replays of one of the run's temperatures.

    Raises SpecprobeError where there is nothing to decide on: no result, or no round in any of them.
    """
    lengths = run.responses_at(temperature)
    with_rounds = [a for a in run.results if a.temperature == temperature and a.rounds.any()]
    if not with_rounds:
        raise SpecprobeError("recommend: the run holds no rounds (no response is longer than one token); analyze more")
    offered = resolve_profile(run.engine_profile).drafters
    costed = [a for a in with_rounds if has_cost(a, cost)]
    # What the engine cannot run is no answer, unless nothing else was replayed; a user's own class may be its plugin.
    acceptances = [a for a in costed if a.drafter in offered or a.drafter == "python"] or costed
    left_out = list(dict.fromkeys(a.label for a in costed if not any(a is kept for kept in acceptances)))
    uncosted = list(dict.fromkeys(cost_keys(a)[0] for a in with_rounds if not has_cost(a, cost)))
    if not acceptances:
        raise SpecprobeError(f"recommend: {_no_drafting_time(uncosted)}")
    by_batch = [_depth_by_batch(acceptance, lengths, cost) for acceptance in acceptances]
    schedules = [_rows(depths) for depths in by_batch]
    verdicts = tuple(_verdict(run, acceptances, schedules, cost, lengths, concurrency) for concurrency in concurrencies)
    # What is scheduled and exported for all is what the first verdict to speculate wants, else the largest gain.
    leading = next((v for v in verdicts if v.verdict == "speculate"), max(verdicts, key=lambda v: v.best.speedup))
    chosen = next(i for i, acceptance in enumerate(acceptances) if _is_of(acceptance, leading.best))
    return Recommendation(
        cost=cost,
        engine_profile=run.engine_profile,
        temperature=temperature,
        by_concurrency=verdicts,
        crossover_concurrency=_crossover(by_batch),
        scheduled_drafter=acceptances[chosen].drafter,
        schedule=schedules[chosen],
        export=leading.export,
        notices=(
            *run.notices,
            *([Notice("no_drafting_time", _no_drafting_time(uncosted))] if uncosted else []),
            *([_not_offered(run, left_out)] if left_out else []),
            *_unknown_keys(run, cost),
            *_notices(acceptances, lengths, cost, concurrencies),
        ),
    )


def _is_of(acceptance: Acceptance, option: Option) -> bool:
    return (acceptance.drafter, acceptance.config, acceptance.draft_sampling) == (
        option.drafter,
        option.config,
        option.draft_sampling,
    )


def _not_offered(run: Run, labels: Sequence[str]) -> Notice:
    names = ", ".join(inert(label, 60) for label in labels)
    said = f"{names}: left out of the verdict, since {run.engine_profile} does not offer it"
    return Notice("not_offered_left_out", said)


def _unknown_keys(run: Run, cost: CostTable) -> list[Notice]:
    """A misspelt name in a cost file would count as no time at all."""
    known = {key for acceptance in run.results for key in cost_keys(acceptance)}
    unknown = sorted(cost.drafters - known - set(MODEL_FREE))
    if not unknown:
        return []
    names = ", ".join(inert(name, 80) for name in unknown)
    return [Notice("unknown_drafter_seconds", f"the cost gives drafting times of {names}, which the run lacks")]


def _no_drafting_time(drafters: Sequence[str]) -> str:
    return (
        f"{', '.join(drafters)}: how long drafting takes is not known, so no speed-up can be given; name it in a cost "
        "file, under drafter_seconds (docs/method.md, Cost files)"
    )


def _verdict(
    run: Run,
    acceptances: Sequence[Acceptance],
    schedules: Sequence[Schedule],
    cost: CostTable,
    lengths: ResponseRecord,
    concurrency: int,
) -> Verdict:
    options = [option for acceptance in acceptances for option in depth_options(acceptance, lengths, cost, concurrency)]
    options.sort(key=lambda option: (-option.speedup, option.depth))
    top = options[0]
    as_good = [
        option
        for option in options
        if (option.drafter, option.config, option.draft_sampling) == (top.drafter, top.config, top.draft_sampling)
        and option.speedup >= top.speedup * (1 - DEPTH_TOLERANCE)
    ]
    best = min(as_good, key=lambda option: option.depth)
    options.remove(best)
    verdict = decide(best.speedup, best.low, best.high, enough_prompts=best.enough_prompts)
    schedule = next(rows for rows, a in zip(schedules, acceptances, strict=True) if _is_of(a, best))
    profile = resolve_profile(run.engine_profile)
    return Verdict(
        concurrency=concurrency,
        verdict=verdict,
        best=best,
        baseline_round_seconds=best.round_seconds / best.break_even_tokens_per_round,
        options=(best, *options),
        export=engine_config(profile, best.drafter, best.config, best.depth, schedule, best.draft_sampling)
        if verdict == "speculate"
        else {},
    )


def decide(speedup: float, low: float | None, high: float | None, *, enough_prompts: bool = True) -> VerdictName:
    """`speculate`: worth it, and more than chance. `dont`: it cannot be worth it. `close`: the data do not say.

    Without an interval nothing is certain, and only a point below 1 says `dont`; too few prompts never say
    `speculate`, since the interval over them is too narrow.
    """
    if low is None or high is None:
        return "dont" if speedup < 1 else "close"
    if high < WORTHWHILE_SPEEDUP:
        return "dont"
    if low > 1 and speedup >= WORTHWHILE_SPEEDUP and enough_prompts:
        return "speculate"
    return "close"


def _depth_by_batch(acceptance: Acceptance, lengths: ResponseRecord, cost: CostTable) -> list[int]:
    """The drafter's depth for batches 1, 2, ... that the cost table covers; 0 where nothing is faster."""
    sums = summed_counts(acceptance).sum(axis=0)
    depths = []
    for batch in range(1, min(cost.batches[-1], LARGEST_SCHEDULED_BATCH) + 1):
        depth, gain = best_depth(Speedup(acceptance, cost, lengths.mean_context, batch), sums)
        depths.append(depth if gain > 1 else 0)
    return depths


def _rows(depths: Sequence[int]) -> Schedule:
    """Runs of equal depth as (first batch, last batch, depth)."""
    rows: list[tuple[int, int, int]] = []
    for batch, depth in enumerate(depths, 1):
        if rows and rows[-1][2] == depth:
            rows[-1] = (rows[-1][0], batch, depth)
        else:
            rows.append((batch, batch, depth))
    return tuple(rows)


def _crossover(depths_by_batch: Sequence[Sequence[int]]) -> int | None:
    """The batch from which on no drafter has a depth."""
    last_gain = max((batch for depths in depths_by_batch for batch, depth in enumerate(depths, 1) if depth), default=0)
    return last_gain + 1 if last_gain < len(depths_by_batch[0]) else None


def _notices(
    acceptances: Sequence[Acceptance], lengths: ResponseRecord, cost: CostTable, concurrencies: Sequence[int]
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
                f"{cost.contexts[-1]}; the nearest one was used: add points there",
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
        "draft_sampling": best.draft_sampling,
        "depth": best.depth,
        "speedup": {"point": best.speedup, "low": best.low, "high": best.high, "level": LEVEL},
        "enough_prompts": best.enough_prompts,
        "export": dict(verdict.export),
        "break_even_acceptance_length": best.break_even_acceptance_length,
        "break_even_tokens_per_round": best.break_even_tokens_per_round,
        "baseline": {
            "output_tokens_per_second": verdict.baseline_tokens_per_second,
            "itl_p50_ms": 1e3 * verdict.baseline_round_seconds,
        },
        "options": [_option_json(option) for option in verdict.options],
    }


def _option_json(option: Option) -> dict[str, Any]:
    return {
        "drafter": option.drafter,
        "config": dict(option.config),
        "draft_sampling": option.draft_sampling,
        "depth": option.depth,
        "speedup": option.speedup,
        "interval": {"speedup": [option.low, option.high], "level": LEVEL},
        "tokens_per_round": option.tokens_per_round,
        "output_tokens_per_second": option.output_tokens_per_second,
        "itl_p50_ms": 1e3 * option.p50_round_seconds,
        "itl_p95_ms": 1e3 * option.p95_round_seconds,
        "tpot_ms": 1e3 * option.token_seconds,
        "request_latency_s": option.request_seconds,
    }
