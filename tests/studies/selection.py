"""What it costs that the best of several depths is reported: all depths are walked over the same texts, as in a replay,
the best is chosen as `recommend` chooses it, and its interval is held against the truth about that depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specprobe.rounds import walk_all_depths
from specprobe.speedup import Speedup, best_depth
from tests.studies.coverage import DRAFTING_SECONDS, speedup
from tests.studies.tables import percent, table
from tests.studies.workloads import TRAFFIC, draw_responses

Floats = NDArray[np.float64]

DEPTHS = 8
POPULATION = 4000
# So that the best depth lies within: two thirds of the time of a round for eight tokens more.
PER_TOKEN = 0.08


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """Many workloads: whether the interval at the chosen depth held that depth's true speed-up, the reported speed-up
    over the true one there, and the true one there over that of the truly best depth, both less 1.
    """

    name: str
    units: int
    held: Floats
    flattered: Floats
    kept: Floats


def counts_of(name: str) -> Floats:
    """[P, K, 5 + K], as `specprobe.speedup.speedup_counts`, with a prefill of one step."""
    rng = np.random.default_rng(13)
    responses = draw_responses(rng, TRAFFIC[name], POPULATION)
    counts = np.zeros((POPULATION, DEPTHS, 5 + DEPTHS))
    for number, (p, output) in enumerate(zip(responses.p, responses.output.tolist(), strict=True)):
        hits = rng.random(output) < p
        accepted = np.zeros((DEPTHS, output), dtype=np.int16)
        right_so_far = np.ones(output, dtype=bool)
        for i in range(DEPTHS):
            right_so_far[: output - i] &= hits[i:]
            right_so_far[output - i :] = False
            accepted[i:] += right_so_far
        drafted = np.broadcast_to(np.arange(1, DEPTHS + 1, dtype=np.int16)[:, None], accepted.shape).copy()
        rounds = np.zeros(DEPTHS, dtype=np.int32)
        drafted_at, at_risk_at, accepted_at = np.zeros((3, DEPTHS, DEPTHS), dtype=np.int32)
        walk_all_depths(drafted, accepted, output, rounds, drafted_at, at_risk_at, accepted_at)
        counts[number, :, 0], counts[number, :, 3], counts[number, :, 4] = output - 1, 1, rounds
        counts[number, :, 5:] = drafted_at
    return counts


def cost() -> Speedup:
    """At which depth matters."""
    base = speedup(DEPTHS)
    return replace(
        base,
        seconds=base.baseline_seconds * (1 + PER_TOKEN * np.arange(DEPTHS + 1)),
        drafting_seconds=np.full(DEPTHS, DRAFTING_SECONDS),
        drafting_errors=np.zeros(DEPTHS),
    )


def study(name: str, sizes: Sequence[int], workloads: int) -> list[Selected]:
    """Workloads of each size."""
    population, gain = counts_of(name), cost()
    truth = gain(population.sum(axis=0))
    rows = []
    for units in sizes:
        rng = np.random.default_rng([14, units])
        found = np.zeros((3, workloads))
        for seed in range(workloads):
            counts = population[rng.integers(POPULATION, size=units)]
            points = gain(counts.sum(axis=0))
            depth, _ = best_depth(points)
            interval = gain.intervals(counts, seed=seed)[depth - 1]
            true = truth[depth - 1]
            held = interval is not None and interval.low <= true <= interval.high
            found[:, seed] = held, points[depth - 1] / true - 1, true / truth.max() - 1
        rows.append(Selected(name, units, *found))
    return rows


def selection_table(rows: Sequence[Selected]) -> str:
    """One row for each traffic and size."""

    def mean(values: Floats) -> str:
        return f"{100 * values.mean():+.2f} ± {100 * values.std(ddof=1) / len(values) ** 0.5:.2f}"

    return table(
        ["traffic", "prompts", "speed-up held", "reported over true there, %", "true there over the best, %"],
        [[one.name, str(one.units), percent(one.held.mean()), mean(one.flattered), mean(one.kept)] for one in rows],
    )
