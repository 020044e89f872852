"""How far off the fitted curve is beyond its data: fitted to depth 4, held against what the drafter does at depth 8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specprobe.curve import fit_counts
from tests.studies.tables import percent, table
from tests.studies.workloads import Kind, Population, Traffic, populate

FITTED, PREDICTED = 4, 8
# Nearly all prompts alike; heads that get worse with the position; prompts that differ.
DRAFTERS = {
    "all prompts alike": Traffic(FITTED, (Kind(6000.0, 4000.0, 200, 0.6),)),
    "alike, falling by 7 % a position": Traffic(FITTED, (Kind(8000.0, 2000.0, 200, 0.6),), fall=0.93),
    "chat": Traffic(FITTED, (Kind(6.0, 4.0, 200, 0.6),)),
    "chat, falling by 7 % a position": Traffic(FITTED, (Kind(8.0, 2.0, 200, 0.6),), fall=0.93),
    "copy-heavy": Traffic(FITTED, (Kind(0.8, 0.5, 250, 0.7, slope=1.0),)),
}


@dataclass(frozen=True, slots=True, eq=False)
class Extrapolated:
    """Relative errors of the mean acceptance length at depth 8, of many workloads, and which model was taken."""

    name: str
    units: int
    truth: float
    errors: NDArray[np.float64]
    taken: Counter[str]


def mean_length(population: Population) -> float:
    """1 + accepted / drafted rounds."""
    counts = population.counts
    return float(1 + counts.accepted_at.sum() / counts.drafted_rounds.sum())


def study(name: str, sizes: Sequence[int], fits: int, population: int) -> list[Extrapolated]:
    """Workloads of each size; the truth is the same prompts' at depth 8."""
    traffic = DRAFTERS[name]
    shallow = populate(np.random.default_rng(11), traffic, population)
    deeper = Traffic(PREDICTED, traffic.kinds, fall=traffic.fall)
    truth = mean_length(populate(np.random.default_rng(11), deeper, population))
    found = []
    for units in sizes:
        rng = np.random.default_rng([12, units])
        errors, taken = np.zeros(fits), Counter[str]()
        for number in range(fits):
            rows = rng.integers(population, size=units)
            curve = fit_counts(shallow.counts.at_risk_at[rows], shallow.counts.accepted_at[rows]).best_curve
            assert curve is not None
            taken[curve.name] += 1
            errors[number] = curve.mean_acceptance_length(PREDICTED) / truth - 1
        found.append(Extrapolated(name, units, truth, errors, taken))
    return found


def curve_table(rows: Sequence[Extrapolated]) -> str:
    """Bias and spread in per cent."""
    return table(
        ["drafter", "prompts", "length at 8", "bias, %", "spread, %", "models taken"],
        [
            [
                one.name,
                str(one.units),
                f"{one.truth:.2f}",
                f"{100 * one.errors.mean():+.1f} ± {100 * one.errors.std(ddof=1) / len(one.errors) ** 0.5:.1f}",
                f"{100 * one.errors.std(ddof=1):.1f}",
                ", ".join(f"{name} {percent(n / len(one.errors))} %" for name, n in one.taken.most_common(2)),
            ]
            for one in rows
        ],
    )
