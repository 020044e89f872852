"""From acceptance and cost to a verdict: does speculation pay on this traffic, with which drafter and depth?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specprobe.acceptance import Acceptance
from specprobe.arrivals import Arrivals
from specprobe.candidates import Option, candidates, is_of
from specprobe.cost import CostTable
from specprobe.drafters import MODEL_FREE
from specprobe.errors import SpecprobeError
from specprobe.export import Schedule, engine_config
from specprobe.notices import Notice, inert
from specprobe.profiles import resolve_profile
from specprobe.progress import SILENT, Stages, counting, where_long
from specprobe.refusals import judged, undecidable
from specprobe.run import ResponseRecord, Run, has_sums
from specprobe.serving import Served, Serving, Traffic
from specprobe.speedup import DEPTH_TOLERANCE, best_depth, cost_keys, has_cost
from specprobe.speedup_grid import SpeedupGrid, grid_batches, speedup_grid
from specprobe.units import format_plural

# Less is not worth a flag, a deployment and a second thing to watch; published results scatter by as much.
WORTHWHILE_SPEEDUP = 1.05
# No engine runs more sequences at once by default, and a longer table helps nobody.
LARGEST_SCHEDULED_BATCH = 1024
# From 1 to 8 requests in flight suffix lost 5 % of its tokens per round, from 8 to 24 another 10 % (docs/drafters.md).
FAR_IN_FLIGHT = 4
# The code of the notice that arrivals are too many for a server.
OVERLOADED = "overloaded"
VerdictName = Literal["speculate", "dont", "close"]
Preference = Literal["simple", "fast"]


# Output tokens of all simulations together that may take a second or more.
MANY_TOKENS = 2_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one traffic. `options` are all that were considered, the best first, then the fastest.

    `concurrency`: requests in flight, as asked for or, `by_clock`, as `arrivals` lead to without speculation.
    `plain`: the server without speculation. `export`: the engine's settings for the best; empty where it should not be
    switched on. `schedule`: the best's depth for each batch, with this verdict's own at its concurrency.
    """

    concurrency: int
    verdict: VerdictName
    best: Option
    plain: Served
    options: tuple[Option, ...]
    schedule: Schedule
    export: Mapping[str, Any]
    by_clock: bool = False
    arrivals: Arrivals | None = None

    @property
    def runner_up(self) -> Option | None:
        """The best option of another drafter."""
        return next((option for option in self.options if option.label != self.best.label), None)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Verdicts for all traffics asked for, and what follows for the engine.

    `schedule`: rows (first batch, last batch, depth) for `scheduled_drafter`, 0 for off, over the batches the
    cost table covers. `export`: the engine's settings for the first verdict to speculate.
    `crossover_concurrency`: from here to the largest batch of the cost table no option is faster than not speculating;
    None where one still is at the largest. `grids`: of each drafter, over batches and depths. `undecided`: why nothing
    was decided; all verdicts are `close` then. `dollars_per_hour`: of all GPUs together, None where no price was given.
    """

    cost: CostTable
    run_digest: str
    engine_profile: str
    temperature: float
    by_concurrency: tuple[Verdict, ...]
    crossover_concurrency: int | None
    scheduled_drafter: str
    schedule: Schedule
    export: Mapping[str, Any]
    grids: tuple[SpeedupGrid, ...]
    notices: tuple[Notice, ...]
    undecided: Notice | None = None
    dollars_per_hour: float | None = None

    @property
    def is_of_sums(self) -> bool:
        """Whether the run was made of an engine's sums, which do not tell requests apart."""
        return has_sums(self.notices)

    def dollars_per_million_tokens(self, served: Served) -> float | None:
        """Of output, while the server is as busy as this traffic keeps it; None without a price."""
        if self.dollars_per_hour is None:
            return None
        return self.dollars_per_hour / 3600 / served.output_tokens_per_second * 1e6


def recommend(
    run: Run,
    temperature: float,
    cost: CostTable,
    traffics: Sequence[Traffic],
    *,
    prefer: Preference = "simple",
    dollars_per_hour: float | None = None,
    stages: Stages = SILENT,
) -> Recommendation:
    """Verdicts from the replays of one of the run's temperatures.

    `prefer`: `simple` takes the drafter that is easiest to adopt of those within WORTHWHILE_SPEEDUP of the fastest.
    Raises SpecprobeError where there is nothing to decide on: no result, or no round in any of them.
    """
    lengths = run.responses_at(temperature)
    with_rounds = [a for a in run.results if a.temperature == temperature and a.rounds.any()]
    if not with_rounds:
        raise SpecprobeError("recommend: the run holds no rounds (no response is longer than one token); analyze more")
    costed = [a for a in with_rounds if has_cost(a, cost)]
    uncosted = list(dict.fromkeys(cost_keys(a)[0] for a in with_rounds if not has_cost(a, cost)))
    if not costed:
        raise SpecprobeError(f"recommend: {_no_drafting_time(uncosted)}")
    if not cost.deepest:
        raise SpecprobeError("recommend: the cost has rounds of one query token only; add points with more")
    if not (within := [a for a in costed if a.first_depth <= cost.deepest]):
        raise SpecprobeError(
            f"recommend: the cost covers {cost.deepest} draft tokens a round, and the engine ran with "
            f"{costed[0].first_depth}; add points with more"
        )
    costed = within
    acceptances, left_out = judged(costed, run.engine_profile, cost, lengths)
    undecided = undecidable(lengths, acceptances, run.engine_profile)
    batches = _batches(cost)
    by_batch = [_depth_by_batch(speedup_grid(acceptance, lengths, cost, batches)) for acceptance in acceptances]
    schedules = [_rows(batches, depths) for depths in by_batch]
    # Every depth of every drafter, and none, at each concurrency.
    depths = sum(acceptance.depth for acceptance in acceptances)
    # Of arrivals by the clock both ends of the interval are simulated, too.
    total = sum(1 + depths * (1 if traffic.arrival_seconds is None else 3) for traffic in traffics)
    mean_output = max(1.0, float(lengths.output_tokens.mean()))
    requests = max(traffic.num_requests(len(lengths.ids), mean_output) for traffic in traffics)
    told = where_long(stages, total * requests * mean_output >= MANY_TOKENS)
    with told.track("simulating the server", total) as advance:
        one_more = counting(advance, total, "simulations")
        verdicts = tuple(
            _verdict(run, acceptances, schedules, cost, lengths, traffic, prefer, undecided, one_more)
            for traffic in traffics
        )
    # What is scheduled and exported for all is what the first verdict to speculate wants, else the largest gain.
    leading = next((v for v in verdicts if v.verdict == "speculate"), max(verdicts, key=lambda v: v.best.speedup))
    chosen = next(i for i, acceptance in enumerate(acceptances) if is_of(acceptance, leading.best))
    in_flight = [verdict.concurrency for verdict in verdicts]
    return Recommendation(
        cost=cost,
        run_digest=run.digest,
        engine_profile=run.engine_profile,
        temperature=temperature,
        by_concurrency=verdicts,
        crossover_concurrency=_crossover(batches, by_batch),
        scheduled_drafter=acceptances[chosen].drafter,
        schedule=leading.schedule,
        export=leading.export,
        grids=tuple(speedup_grid(a, lengths, cost, grid_batches(cost, in_flight)) for a in acceptances),
        notices=(
            *([undecided] if undecided else []),
            *run.notices,
            *([Notice("no_drafting_time", _no_drafting_time(uncosted))] if uncosted else []),
            *left_out,
            *_unknown_keys(run, cost),
            *_suffix_in_flight(run, acceptances, in_flight, len(lengths.ids)),
            *_notices(acceptances, lengths, cost, _batches_run(verdicts, traffics)),
            *_served_notices(verdicts, traffics),
        ),
        undecided=undecided,
        dollars_per_hour=dollars_per_hour,
    )


def _unknown_keys(run: Run, cost: CostTable) -> list[Notice]:
    """A misspelt name in a cost file would count as no time at all."""
    known = {key for acceptance in run.results for key in cost_keys(acceptance)}
    unknown = sorted(cost.drafters - known - set(MODEL_FREE))
    if not unknown:
        return []
    names = ", ".join(inert(name, 80) for name in unknown)
    return [Notice("unknown_drafter_seconds", f"the cost gives drafting times of {names}, which the run lacks")]


def _suffix_in_flight(
    run: Run, acceptances: Sequence[Acceptance], concurrencies: Sequence[int], num_responses: int
) -> list[Notice]:
    """Verdicts for a load far from the one whose shared tree was replayed, as far as the log has requests for it."""
    if not any(a.drafter == "suffix" and a.config.get("max_cached_requests") != 0 for a in acceptances):
        return []
    replayed = min(run.in_flight, num_responses)
    shown = {c: min(c, num_responses) for c in concurrencies}
    far = [c for c, most in shown.items() if not replayed / FAR_IN_FLIGHT <= most <= replayed * FAR_IN_FLIGHT]
    if not far:
        return []
    said = f"suffix's shared tree was replayed with {format_plural(replayed, 'request')} in flight"
    asked = ", ".join(f"--in-flight {shown[c]} for {c}" for c in far)
    return [Notice("suffix_in_flight", f"{said}; analyze with {asked}")]


def _no_drafting_time(drafters: Sequence[str]) -> str:
    return (
        f"{', '.join(drafters)}: how long drafting takes is not known, so no speed-up can be given; name it in a cost "
        "file, under drafter_seconds (docs/cost.md, Cost files)"
    )


def _verdict(
    run: Run,
    acceptances: Sequence[Acceptance],
    schedules: Sequence[Schedule],
    cost: CostTable,
    lengths: ResponseRecord,
    traffic: Traffic,
    prefer: Preference,
    undecided: Notice | None,
    on_served: Callable[[], None],
) -> Verdict:
    serving = Serving(lengths, cost, traffic, on_served=on_served)
    plain = serving.plain()
    options = [o for a in acceptances for o in candidates(a, lengths, cost, traffic, serving, plain)]
    options.sort(key=lambda option: (-option.speedup, option.depth))
    best = best_option(options, prefer)
    options.remove(best)
    verdict = _decide(best)
    # Arrivals by the clock run as many together as come, on average over the steps.
    batch = traffic.concurrency or max(plain.batch, best.served.batch, cost.batches[0])
    beyond = not cost.reaches(batch, 1)
    falling_behind = traffic.concurrency is None and best.served.falls_behind
    if undecided or beyond or falling_behind:
        verdict = "close"
    schedule = next(rows for rows, a in zip(schedules, acceptances, strict=True) if is_of(a, best))
    if verdict == "speculate" and traffic.concurrency is not None:
        schedule = _agreeing(schedule, traffic.concurrency, best.depth)
    profile = resolve_profile(run.engine_profile)
    return Verdict(
        concurrency=traffic.concurrency or max(1, round(plain.in_flight)),
        verdict=verdict,
        best=best,
        plain=plain,
        options=(best, *options),
        schedule=schedule,
        export=engine_config(profile, best.drafter, best.config, best.depth, schedule, best.draft_sampling)
        if verdict == "speculate"
        else {},
        by_clock=traffic.arrival_seconds is not None,
        arrivals=traffic.arrivals,
    )


def best_option(options: Sequence[Option], prefer: Preference) -> Option:
    """Of options in order of their speed-up the best drafter, at the shallowest of its depths that are as good.

    `simple`: of those nearly as fast as the fastest, and with its verdict, the one that is easiest to adopt.
    """
    top = options[0]
    if prefer == "simple":
        near = [o for o in options if o.speedup * WORTHWHILE_SPEEDUP >= top.speedup and _decide(o) == _decide(top)]
        top = min(near, key=lambda option: (option.adoption, -option.speedup))
    as_good = [
        option
        for option in options
        if option.label == top.label
        and option.config == top.config
        and option.speedup >= top.speedup * (1 - DEPTH_TOLERANCE)
    ]
    return min(as_good, key=lambda option: option.depth)


def _decide(option: Option) -> VerdictName:
    return decide(option.speedup, option.low, option.high, enough_prompts=option.enough_prompts)


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


def _batches(cost: CostTable) -> list[int]:
    """Every batch that the cost table covers and a schedule may hold, and beyond those the table's own."""
    first, last = cost.batches[0], cost.batches[-1]
    scheduled = range(first, min(last, LARGEST_SCHEDULED_BATCH) + 1)
    return [*scheduled, *(batch for batch in cost.batches if batch > LARGEST_SCHEDULED_BATCH)]


def _depth_by_batch(grid: SpeedupGrid) -> list[int]:
    """The drafter's depth for each batch; 0 where nothing is faster."""
    best = [best_depth(row) for row in grid.speedup]
    return [grid.first_depth - 1 + depth if gain > 1 else 0 for depth, gain in best]


def _rows(batches: Sequence[int], depths: Sequence[int]) -> Schedule:
    """Runs of equal depth as (first batch, last batch, depth); below the smallest batch covered it is as there."""
    rows: list[tuple[int, int, int]] = []
    for batch, depth in zip(batches, depths, strict=True):
        if batch > max(LARGEST_SCHEDULED_BATCH, batches[0]):
            break
        if rows and rows[-1][2] == depth:
            rows[-1] = (rows[-1][0], batch, depth)
        else:
            rows.append((rows[-1][1] + 1 if rows else 1, batch, depth))
    return tuple(rows)


def _agreeing(schedule: Schedule, concurrency: int, depth: int) -> Schedule:
    """The schedule with the simulated best depth at one batch, where the closed form has one that is nearly as good."""
    rows: list[tuple[int, int, int]] = []
    for first, last, other in schedule:
        if not first <= concurrency <= last or other == depth:
            rows.append((first, last, other))
            continue
        parts = ((first, concurrency - 1, other), (concurrency, concurrency, depth), (concurrency + 1, last, other))
        rows += [part for part in parts if part[0] <= part[1]]
    return tuple(rows)


def _crossover(batches: Sequence[int], depths_by_batch: Sequence[Sequence[int]]) -> int | None:
    """The first batch from which on no drafter has a depth."""
    gains = [any(depths) for depths in zip(*depths_by_batch, strict=True)]
    last_gain = max((number for number, gain in enumerate(gains) if gain), default=-1)
    return batches[last_gain + 1] if last_gain + 1 < len(batches) else None


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
                f"the cost table covers batches {cost.batches[0]} to {cost.batches[-1]}; for "
                f"{', '.join(map(str, outside))} the nearest one was used, which is a guess and decides nothing: add "
                "points there",
            )
        )
    if not cost.reaches(cost.batches[0], depth + 1):
        notices.append(
            Notice(
                "cost_query_not_covered",
                f"the cost table stops at {cost.query_tokens[-1]} query tokens a sequence, so depths above "
                f"{cost.deepest} are left out: add points there",
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
    if not cost.prefill_token_seconds and cost.source in ("file", "engine"):
        notices.append(
            Notice(
                "no_prefill_time",
                "the cost file does not say what a prompt token takes, so prompts count as free and gains come out too "
                "large: add prefill_token_seconds",
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


def _batches_run(verdicts: Sequence[Verdict], traffics: Sequence[Traffic]) -> list[int]:
    """How many sequences ran together at most: as many as were asked for, for arrivals as the simulation had them."""
    return [
        traffic.concurrency or max(verdict.plain.largest_batch, verdict.best.served.largest_batch)
        for verdict, traffic in zip(verdicts, traffics, strict=True)
    ]


def _served_notices(verdicts: Sequence[Verdict], traffics: Sequence[Traffic]) -> list[Notice]:
    """What a reader of the load should know: memory that runs out, a server that cannot keep up."""
    notices = []
    full = [v.concurrency for v in verdicts if v.plain.memory_bound or v.best.served.memory_bound]
    if full:
        notices.append(
            Notice(
                "kv_cache_full",
                f"the KV cache is full at concurrency {', '.join(map(str, full))}, so fewer requests run at once; the "
                "others wait or are computed again",
            )
        )
    for verdict, traffic in zip(verdicts, traffics, strict=True):
        if traffic.arrival_seconds is None:
            continue
        arms = {"without speculation": verdict.plain, "with the best option": verdict.best.served}
        if behind := [name for name, served in arms.items() if served.falls_behind]:
            said = f"{' and '.join(behind)} the server does not keep up with these arrivals: its queue grows"
            notices.append(Notice(OVERLOADED, f"{said}, and latencies depend on how long that lasts"))
    return notices
