"""Coverage of the speed-up that `bench` measures: passes in a closed loop, repeated, over the same prompts."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specprobe.bench.client import Served
from specprobe.bench.figures import Measured, measured
from tests.studies.tables import bias_cell, percent, table
from tests.studies.workloads import Population

CONCURRENCY, REPEATS = 4, 3
PROMPT_TOKENS = 100
PREFILL_SECONDS, STEP_SECONDS, ROUND_SECONDS = 0.05, 0.020, 0.024
# Of the logarithm of the speed of a whole pass: machines are not steady.
PASS_DEVIATION = 0.02
# So many chunks at most stand for a response, since only the ends matter.
CHUNKS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Benches:
    """Many benches: whether the interval held the truth, whether the arms were called different, and the speed-ups."""

    name: str
    units: int
    truth: float
    held: NDArray[np.float64]
    called: NDArray[np.float64]
    speedups: NDArray[np.float64]


def one_pass(
    rng: np.random.Generator, order: Sequence[int], seconds: Sequence[float], output: Sequence[int]
) -> list[Served]:
    """CONCURRENCY slots, each of which takes the next prompt when it is free."""
    pace = float(np.exp(rng.normal(0.0, PASS_DEVIATION)))
    free = [0.0] * CONCURRENCY
    served = []
    for number in order:
        start = heapq.heappop(free)
        first, end = start + pace * PREFILL_SECONDS, start + pace * (PREFILL_SECONDS + seconds[number])
        chunks = np.linspace(first, end, min(CHUNKS, output[number])).tolist()
        served.append(
            Served(number, start, tuple(chunks), None, PROMPT_TOKENS, output[number], "stop", str(number), None)
        )
        heapq.heappush(free, end)
    return served


def bench(rng: np.random.Generator, population: Population, rows: NDArray[np.int64], seed: int) -> Measured:
    """Both arms in turn, in an order of prompts that is new in each repeat."""
    output = population.responses.output[rows].tolist()
    plain = (STEP_SECONDS * population.emitted[rows]).tolist()
    speculative = (ROUND_SECONDS * population.counts.rounds[rows]).tolist()
    arms: tuple[list[list[Served]], list[list[Served]]] = ([], [])
    for _ in range(REPEATS):
        order = rng.permutation(len(rows)).tolist()
        for arm, seconds in zip(arms, (plain, speculative), strict=True):
            arm.append(one_pass(rng, order, seconds, output))
    return measured(CONCURRENCY, *arms, seed=seed)


def true_speedup(population: Population) -> float:
    """Of endless traffic: the ratio of the summed latencies of the same responses."""
    prefill = PREFILL_SECONDS * len(population.emitted)
    plain, speculative = population.emitted.sum(), population.counts.rounds.sum()
    return float((prefill + STEP_SECONDS * plain) / (prefill + ROUND_SECONDS * speculative))


def simulate(name: str, population: Population, units: int, benches: int) -> Benches:
    """Benches over so many prompts."""
    truth = true_speedup(population)
    rng = np.random.default_rng([9, units])
    found = np.zeros((3, benches))
    for seed in range(benches):
        one = bench(rng, population, rng.integers(len(population.emitted), size=units), seed)
        held = one.low is not None and one.high is not None and one.low <= truth <= one.high
        found[:, seed] = held, one.standing in ("faster", "slower"), one.speedup
    return Benches(name, units, truth, *found)


def bench_table(rows: Sequence[Benches]) -> str:
    """One row for each traffic and number of prompts."""
    return table(
        ["traffic", "prompts", "speed-up held", "bias of the speed-up, %"],
        [
            [one.name, str(one.units), percent(one.held.mean()), bias_cell(one.speedups.tolist(), one.truth)]
            for one in rows
        ],
    )
