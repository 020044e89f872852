"""How often `compare` calls runs different that are not, how often it finds a difference, and what `gate
--max-regression` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from specprobe.compare import _FIGURES, _contrasts, swapped_as_large
from specprobe.gate import Gate, Measured
from specprobe.interval import LEVEL
from tests.simulated_runs import shifted
from tests.studies.tables import percent, table
from tests.studies.workloads import TRAFFIC, Responses, count, draw_responses

Floats = NDArray[np.float64]

# In standard errors: where a paired t-test finds about 9 of 10.
EFFECT = 3.0
# Of the log-odds of one drafter over the other from unit to unit, where they are equal on average only.
TASTE = 0.5
SECANTS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two drafters on the same responses: emitted tokens and rounds, [N, 2] each, or by unit."""

    a: Floats
    b: Floats

    @property
    def difference(self) -> float:
        """In tokens per round over the whole population: the truth."""
        return tokens_per_round(self.b) - tokens_per_round(self.a)


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Many pairs of workloads: whether `compare` calls them different; whether the intervals of difference and ratio
    hold the truth, and whether that of the difference leaves out 0; what a gate on a regression of 0 says.

    `apart`: the true difference in standard errors; `ideal`: how often a paired t-test on normal data would call it.
    """

    name: str
    units: int
    called: Floats
    leaves_out: Floats
    holds_difference: Floats
    holds_ratio: Floats
    passed: Floats
    failed: Floats
    apart: float
    ideal: float


def tokens_per_round(counts: Floats) -> float:
    """Of counts [U, 2]."""
    emitted, rounds = counts.sum(axis=0)
    return float(emitted / rounds)


@dataclass(frozen=True, slots=True, eq=False)
class Drafters:
    """Drafter A on a population of responses, and any B beside it. `of_a` [N, 2]: emitted tokens and rounds."""

    name: str
    responses: Responses
    of_a: Floats

    @classmethod
    def on(cls, name: str, num_units: int) -> Drafters:
        """Traffic of this name."""
        responses = draw_responses(np.random.default_rng(2), TRAFFIC[name], num_units)
        return cls(name, responses, _counts(responses, responses.p, name, 0))

    def pair(self, log_odds: float, taste: float = 0.0) -> Pair:
        """B's acceptance moved by `log_odds`, and by `taste` standard deviations from unit to unit."""
        rng = np.random.default_rng(3)
        moved = log_odds + rng.normal(0.0, 1.0, len(self.responses.first) - 1)[self.responses.unit] * taste
        return Pair(self.of_a, _counts(self.responses, shifted(self.responses.p, moved), self.name, 1))

    def equal_on_average(self) -> Pair:
        """Each is better on half of the units; tokens per round of both are the same, up to their third digit."""
        at, found = 0.0, self.pair(0.0, TASTE)
        before, difference = 0.1, self.pair(0.1, TASTE).difference
        for _ in range(SECANTS):
            slope = (difference - found.difference) / (before - at)
            before, difference = at, found.difference
            at -= found.difference / slope
            found = self.pair(at, TASTE)
        return found

    def differing(self, units: int) -> Pair:
        """By EFFECT standard errors of a workload of so many units, as near as a straight line leads."""
        small = 0.1
        error = standard_error(self.by_unit(self.pair(0.0)), units)
        return self.pair(EFFECT * error * small / self.pair(small).difference)

    def by_unit(self, pair: Pair) -> Pair:
        """The same, summed by unit."""
        first = self.responses.first[:-1]
        return Pair(*(np.add.reduceat(counts, first, axis=0) for counts in (pair.a, pair.b)))


def _counts(responses: Responses, p: Floats, name: str, seed: int) -> Floats:
    counts = count(np.random.default_rng([4, seed]), replace(responses, p=p), TRAFFIC[name].depth)
    return np.stack([responses.output - 1, counts.rounds], axis=1).astype(np.float64)


def standard_error(pair: Pair, units: int) -> float:
    """Of the difference over so many units, linearised over the population."""
    of_a, of_b = tokens_per_round(pair.a), tokens_per_round(pair.b)
    pulls = (pair.b[:, 0] - of_b * pair.b[:, 1]) / pair.b[:, 1].mean()
    pulls -= (pair.a[:, 0] - of_a * pair.a[:, 1]) / pair.a[:, 1].mean()
    return float(pulls.std() / np.sqrt(units))


def judge(
    name: str,
    pair: Pair,
    units: int,
    pairs: int,
    draws: Sequence[NDArray[np.int64]] | None = None,
    *,
    with_intervals: bool = True,
) -> Judged:
    """Pairs of workloads of so many units; `draws`: rows of the pair for each, where they are not the units."""
    rng = np.random.default_rng([5, units])
    found = np.zeros((6, pairs))
    ratio = tokens_per_round(pair.b) / tokens_per_round(pair.a)
    figure = _FIGURES["tokens_per_round"][1]
    for number in range(pairs):
        rows = rng.integers(len(pair.a), size=units) if draws is None else draws[number]
        a, b = pair.a[rows], pair.b[rows]
        found[0, number] = swapped_as_large(a, b, number) <= 1 - LEVEL
        if not with_intervals:
            continue
        (contrast,) = _contrasts(a[:, None], b[:, None], figure, LEVEL, number)
        if contrast.difference is None or contrast.ratio is None:
            continue
        low, high = contrast.difference.low, contrast.difference.high
        regression = Measured(1 - contrast.ratio.point, 1 - contrast.ratio.high, 1 - contrast.ratio.low, units)
        verdict = Gate("max_regression", 0.0, regression, is_maximum=True).verdict
        found[1:, number] = (
            low > 0 or high < 0,
            low <= pair.difference <= high,
            contrast.ratio.low <= ratio <= contrast.ratio.high,
            verdict == "passed",
            verdict == "failed",
        )
    apart = abs(pair.difference) / standard_error(pair, units)
    tail = float(stats.t.isf((1 - LEVEL) / 2, units - 1))
    ideal = float(stats.nct.sf(tail, units - 1, apart) + stats.nct.cdf(-tail, units - 1, apart))
    return Judged(name, units, *found, apart=apart, ideal=ideal)


def turns_apart(drafters: Drafters, pair: Pair, units: int, pairs: int) -> Judged:
    """`pair` by response, with every response taken for a unit of its own: what not to do."""
    rng = np.random.default_rng([6, units])
    first = drafters.responses.first
    draws = []
    for _ in range(pairs):
        drawn = rng.integers(len(first) - 1, size=units)
        draws.append(np.concatenate([np.arange(first[unit], first[unit + 1]) for unit in drawn]))
    return judge(f"{drafters.name}, turns apart", pair, units, pairs, draws)


def comparison_table(rows: Sequence[Judged]) -> str:
    """One row for each kind of pairs."""
    return table(
        ["traffic", "units", "swaps call it", "interval leaves out 0", "difference held", "ratio held"],
        [
            [
                one.name,
                str(one.units),
                *(percent(s.mean()) for s in (one.called, one.leaves_out, one.holds_difference, one.holds_ratio)),
            ]
            for one in rows
        ],
    )


def power_table(rows: Sequence[Judged]) -> str:
    """How often a true difference is called, beside a paired t-test on normal data."""
    return table(
        ["traffic", "units", "standard errors apart", "found", "paired t-test"],
        [
            [one.name, str(one.units), f"{one.apart:.2f}", percent(one.called.mean()), percent(one.ideal)]
            for one in rows
        ],
    )


def regression_table(rows: Sequence[Judged]) -> str:
    """A regression of at most 0 %, of drafters that are equal."""
    return table(
        ["traffic", "units", "passes", "fails"],
        [[one.name, str(one.units), percent(one.passed.mean()), percent(one.failed.mean())] for one in rows],
    )
