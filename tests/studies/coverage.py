"""How often 90 % intervals hold the truth, on which side they miss it, how far points are off on average, and what a
gate decides on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance
from specprobe.bench.replay import Replayed
from specprobe.gate import Gate, Measured, acceptance_length
from specprobe.interval import LEVEL, Interval
from specprobe.speedup import Speedup
from specprobe.summary import _conditional_intervals
from specprobe.temperature import intervals_at
from tests.studies.tables import bias_cell, percent, share_error, table
from tests.studies.workloads import TRAFFIC, Population, populate

Floats = NDArray[np.float64]

CONCURRENCY = 8
# A round that verifies eight tokens takes 15 % longer than one of a single token; drafting takes 2 % of it.
STEP_SECONDS, PER_TOKEN, DRAFTING_SECONDS = 0.020, 0.02, 0.0004
# Of a cost that is predicted, not measured.
COST_DEVIATION = 0.136
FIGURES = ("tokens per round", "acceptance length", "acceptance rate", "h first", "h last", "speed-up")
POINTS = (*FIGURES, "S first", "S last")
# Standard errors from the truth at which a paired t-test decides 9 times out of 10.
DECIDED_AT = 2.93


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Many workloads of one traffic and size: `points`, `low`, `high` [workloads] and `truth` by figure."""

    traffic: str
    units: int
    truth: dict[str, float]
    points: dict[str, Floats]
    low: dict[str, Floats]
    high: dict[str, Floats]

    def misses(self, figure: str) -> tuple[float, float]:
        """Shares of intervals that lie above the truth, and below it; one that is missing lies on neither side."""
        return (
            float((self.low[figure] > self.truth[figure]).mean()),
            float((self.high[figure] < self.truth[figure]).mean()),
        )

    def coverage(self, figure: str) -> float:
        """The share of intervals that hold the truth; one that is missing does not."""
        truth = self.truth[figure]
        return float(((self.low[figure] <= truth) & (truth <= self.high[figure])).mean())

    def decided(self, figure: str, errors: float) -> tuple[float, float]:
        """Shares of gates that pass and that fail where the minimum lies so many standard errors below the truth."""
        threshold = self.truth[figure] - errors * float(self.points[figure].std(ddof=1))
        verdicts = [
            Gate(figure, threshold, Measured(*values, prompts=self.units)).verdict
            for values in zip(
                *(found[figure].tolist() for found in (self.points, self.low, self.high)),
                strict=True,
            )
        ]
        return verdicts.count("passed") / len(verdicts), verdicts.count("failed") / len(verdicts)


def speedup(depth: int, log_deviation: float = 0.0) -> Speedup:
    """At one depth, under a cost without an error of its own, or with one."""
    return Speedup(
        concurrency=CONCURRENCY,
        seconds=STEP_SECONDS * (1 + PER_TOKEN * np.arange(depth + 1)),
        errors=np.zeros(depth + 1),
        drafting_seconds=np.array([DRAFTING_SECONDS]),
        drafting_errors=np.zeros(1),
        prefill_step_seconds=STEP_SECONDS,
        log_deviation=log_deviation,
    )


def speedup_counts(acceptance: Acceptance) -> Floats:
    """[P, 1, 5 + K] as `specprobe.speedup.speedup_counts`, at the one depth, with a prefill of one step."""
    depth = acceptance.depth
    counts = np.zeros((len(acceptance.ids), 1, 5 + depth))
    counts[:, 0, 0], counts[:, 0, 3] = acceptance.emitted_tokens, 1
    counts[:, 0, 4], counts[:, 0, 5:] = acceptance.rounds[:, -1], acceptance.drafted_at[:, -1]
    return counts


def points(acceptance: Acceptance) -> dict[str, float]:
    """Every figure of a result at its depth; NaN where it is not defined."""
    totals = acceptance.totals(acceptance.depth)
    conditional, survival = totals.conditional, totals.survival or (None,)
    found = {
        "tokens per round": totals.tokens_per_round,
        "acceptance length": totals.mean_acceptance_length,
        "acceptance rate": totals.acceptance_rate,
        "h first": conditional[0],
        "h last": conditional[-1],
        "speed-up": float(speedup(acceptance.depth)(speedup_counts(acceptance).sum(axis=0))[0]),
        "S first": survival[0],
        "S last": survival[-1],
    }
    return {name: np.nan if value is None else float(value) for name, value in found.items()}


def intervals(acceptance: Acceptance, seed: int) -> dict[str, tuple[float, float]]:
    """Of every figure that is reported with one, as it is reported."""
    depth = acceptance.depth
    length = acceptance_length(acceptance, depth)
    at_risk, accepted = (
        acceptance.by_prompt(counts[:, -1].astype(np.float64))
        for counts in (acceptance.at_risk_at, acceptance.accepted_at)
    )
    first, last = _conditional_intervals(at_risk[:, [0, -1]], accepted[:, [0, -1]], LEVEL, seed)
    (gain,) = speedup(depth).intervals(acceptance.by_prompt(speedup_counts(acceptance)), seed=seed)
    # `rate_interval` reads nothing of the run.
    rate = Replayed(None, acceptance, depth, 0).rate_interval()  # type: ignore[arg-type]
    found: dict[str, Interval | Measured | None] = {
        "tokens per round": intervals_at(acceptance, [depth], seed=seed)[0],
        "acceptance length": length,
        "acceptance rate": rate,
        "h first": first,
        "h last": last,
        "speed-up": gain,
    }
    return {name: _ends(interval) for name, interval in found.items()}


def _ends(interval: Interval | Measured | None) -> tuple[float, float]:
    if interval is None or interval.low is None or interval.high is None:
        return np.nan, np.nan
    return interval.low, interval.high


def simulate(
    name: str, population: Population, units: int, workloads: int, *, is_apart: bool = False, only: str | None = None
) -> Cell:
    """`workloads` of so many units. `is_apart`: every response taken for a unit of its own; `only`: one figure."""
    rng = np.random.default_rng([7, units])
    names = FIGURES if only is None else (only,)
    found = {figure: np.full((3, workloads), np.nan) for figure in POINTS}
    for number in range(workloads):
        acceptance = population.workload(rng.integers(population.num_units, size=units))
        if is_apart:
            acceptance = replace(acceptance, prompts=None)
        for figure, point in points(acceptance).items():
            found[figure][0, number] = point
        ends = intervals(acceptance, number) if only is None else {only: _tokens_per_round(acceptance, number)}
        for figure in names:
            found[figure][1:, number] = ends[figure]
    truth = points(population.all())
    return Cell(name, units, truth, *({figure: found[figure][i] for figure in POINTS} for i in range(3)))


def _tokens_per_round(acceptance: Acceptance, seed: int) -> tuple[float, float]:
    return _ends(intervals_at(acceptance, [acceptance.depth], seed=seed)[0])


def cost_coverage(population: Population, units: int, workloads: int) -> float:
    """Of the speed-up where the cost errs by COST_DEVIATION, as that of a roofline does."""
    truth = points(population.all())["speed-up"]
    rng = np.random.default_rng(8)
    gain = speedup(population.traffic.depth, COST_DEVIATION)
    hits = 0
    for seed in range(workloads):
        acceptance = population.workload(rng.integers(population.num_units, size=units))
        (interval,) = gain.intervals(acceptance.by_prompt(speedup_counts(acceptance)), seed=seed)
        off = np.exp(rng.normal(0.0, COST_DEVIATION))
        hits += interval is not None and interval.low * off <= truth <= interval.high * off
    return hits / workloads


def populations(num_units: int) -> dict[str, Population]:
    """One of each traffic."""
    return {name: populate(np.random.default_rng([1, i]), TRAFFIC[name], num_units) for i, name in enumerate(TRAFFIC)}


def coverage_table(cells: Sequence[Cell]) -> str:
    """Of the figures, by traffic and number of units."""
    rows = [[cell.traffic, str(cell.units), *(percent(cell.coverage(f)) for f in FIGURES)] for cell in cells]
    return table(["traffic", "units", *FIGURES], rows)


def size_table(cells: Sequence[Cell]) -> str:
    """Tokens per round alone, one row for each traffic, one column for each size."""
    sizes = sorted({cell.units for cell in cells})
    by_key = {(cell.traffic, cell.units): cell for cell in cells}
    rows = [
        [name, *(percent(by_key[name, size].coverage("tokens per round")) for size in sizes)]
        for name in dict.fromkeys(cell.traffic for cell in cells)
    ]
    return table(["traffic", *map(str, sizes)], rows)


def gate_table(cells: Sequence[Cell]) -> str:
    """What a minimum of tokens per round decides: at the truth, and 2.93 standard errors on either side of it."""
    rows = []
    for cell in cells:
        at, below, above = (cell.decided("tokens per round", errors) for errors in (0, DECIDED_AT, -DECIDED_AT))
        rows.append([cell.traffic, str(cell.units), *(percent(s) for s in (at[0], at[1], below[0], above[1]))])
    return table(["traffic", "units", "at the truth: passes", "fails", "2.93 below: passes", "2.93 above: fails"], rows)


def bias_table(cells: Sequence[Cell]) -> str:
    """Relative, in per cent, with Monte Carlo standard errors."""
    rows = [
        [cell.traffic, str(cell.units), *(bias_cell(cell.points[f].tolist(), cell.truth[f]) for f in POINTS)]
        for cell in cells
    ]
    return table(["traffic", "units", *POINTS], rows)


def worst_error(cells: Sequence[Cell]) -> float:
    """The Monte Carlo standard error of a coverage of 90 % over these cells' workloads."""
    return share_error(0.9, min(len(cell.points["speed-up"]) for cell in cells))
