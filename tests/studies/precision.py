"""Where `--precision` stops, how often the interval there holds the truth, and what other rules would do, as Markdown.

    python -m tests.studies.precision [--repeats 1000] [--asked 0.05] [--prompts 4000] [SCENARIO]...

Each repeat draws a log from a large population and goes through it as `analyze` does: in its stratified random order,
with its looks, its bootstrap-t and its measure of precision. Rules differ in the level of each look's interval. Seeds
are fixed, so the same numbers come out again (with the same numpy).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from specprobe.acceptance import Acceptance
from specprobe.interval import LEVEL
from specprobe.looks import interval_level, look_sizes
from specprobe.precision import reached
from specprobe.strata import LENGTH_CLASSES, stratified_order
from specprobe.temperature import intervals_at
from tests.test_interval import SCENARIOS, workload

Counts = NDArray[np.float64]
Levels = Callable[[tuple[int, ...]], Sequence[float]]

POPULATION = 100_000
GROUPS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """Emitted tokens and rounds of each prompt, [N, 2], its kind [N], and the ratios of the population and the log."""

    counts: Counts
    kinds: NDArray[np.intp]
    depth: int
    of_traffic: float

    @property
    def own(self) -> float:
        """Tokens per round of all of the log's prompts."""
        return ratio(self.counts)


@dataclass(frozen=True, slots=True)
class Stop:
    """Where one repeat ended under one rule, and whether its interval held the traffic's ratio and the log's own."""

    prompts: int
    is_early: bool
    holds_traffic: bool
    holds_log: bool
    error: float


def ratio(counts: Counts) -> float:
    return float(counts[:, 0].sum() / counts[:, 1].sum())


def alone(sizes: tuple[int, ...]) -> list[float]:
    """As if each look were the only one (Chow & Robbins, Ann. Math. Statist. 36, 1965)."""
    return [LEVEL] * len(sizes)


def bonferroni(sizes: tuple[int, ...]) -> list[float]:
    return [1 - (1 - LEVEL) / len(sizes)] * len(sizes)


@cache
def repeated(sizes: tuple[int, ...]) -> list[float]:
    return [interval_level(sizes)] * len(sizes)


def confidence_sequence(sizes: tuple[int, ...]) -> list[float]:
    """The asymptotic confidence sequence of Waudby-Smith et al., Time-uniform central limit theory and asymptotic
    confidence sequences, 2021, Theorem 2.2, tightest at the middle of the looks; it holds at any number of looks.
    """
    error = 1 - LEVEL
    middle = np.sqrt(float(sizes[0]) * sizes[-1])
    rho2 = (-2 * np.log(error) + np.log(-2 * np.log(error)) + 1) / middle
    scaled = rho2 * np.array(sizes)
    bounds = np.sqrt(2 * (scaled + 1) / scaled * np.log(np.sqrt(scaled + 1) / error))
    return (2 * ndtr(bounds) - 1).tolist()


RULES: dict[str, Levels] = {
    "each look alone": alone,
    "Bonferroni": bonferroni,
    "repeated intervals": repeated,
    "confidence sequence": confidence_sequence,
}


def kinds_of(groups: NDArray[np.intp], lengths: Counts) -> NDArray[np.intp]:
    """As `specprobe.strata` makes them: quarters by length within groups."""
    kinds = np.zeros(len(groups), dtype=np.intp)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        ranks = np.argsort(np.argsort(lengths[members], kind="stable"), kind="stable")
        kinds[members] = LENGTH_CLASSES * group + LENGTH_CLASSES * ranks // len(members)
    return np.unique(kinds, return_inverse=True)[1].astype(np.intp)


def draw_log(scenario: str, prompts: int, rng: np.random.Generator) -> Log:
    """A log of prompts that are drawn independently from one of the populations of tests/test_interval.py."""
    population = populations(scenario)
    counts = population[rng.integers(len(population), size=prompts)]
    # What a prompt's length says of its response is little.
    lengths = counts[:, 0] * rng.lognormal(0.0, 1.0, prompts)
    kinds = kinds_of(np.zeros(prompts, dtype=np.intp), lengths)
    return Log(counts, kinds, SCENARIOS[scenario][2], ratio(population))


@cache
def populations(scenario: str) -> Counts:
    return workload(np.random.default_rng(1), POPULATION, scenario)


def draw_grouped_log(prompts: int, rng: np.random.Generator) -> Log:
    """A log of groups of unequal sizes, one after the other, that accept unequally: what is to be known is of these.

    Group g has a share of 1 / (g + 1), and its prompts are of one scenario, or of another.
    """
    names = ("copy-heavy", "low acceptance", "heavy-tailed", "chat")
    shares = 1 / np.arange(1.0, GROUPS + 1)
    sizes = np.diff(np.round(prompts * np.cumsum([0, *(shares / shares.sum())])).astype(int))
    parts, truths = [], []
    for group, size in enumerate(sizes):
        population = populations(names[group % len(names)])
        parts.append(population[rng.integers(len(population), size=size)])
        truths.append(size * population.mean(axis=0))
    counts = np.concatenate(parts)
    groups = np.repeat(np.arange(GROUPS), sizes)
    traffic = np.sum(truths, axis=0)
    return Log(counts, kinds_of(groups, counts[:, 0] * rng.lognormal(0.0, 1.0, prompts)), 8, traffic[0] / traffic[1])


def result_of(counts: Counts, depth: int, level: float) -> Acceptance:
    """Counts of the deepest depth alone."""
    size = len(counts)
    rounds, positions = np.zeros((size, depth)), np.zeros((size, depth, depth))
    rounds[:, -1] = counts[:, 1]
    accepted = positions.copy()
    accepted[:, -1, 0] = counts[:, 0] - counts[:, 1]
    output = counts[:, 0].astype(np.int32) + 1
    ids = tuple(range(size))
    return Acceptance(
        "x", {}, True, 0.0, "sampled", ids, output, rounds, positions, positions, accepted,
        prompts=np.arange(size, dtype=np.int32), first_depth=depth, interval_level=level,
    )  # fmt: skip


def stops(log: Log, order: NDArray[np.intp], levels: Sequence[float], sizes: Sequence[int], asked: float) -> Stop:
    """Where a run of this log stops with each look at its level."""
    for size, level in zip(sizes, levels, strict=True):
        result = result_of(log.counts[order[:size]], log.depth, level)
        if reached(result).is_within(asked) or size == sizes[-1]:
            (interval,) = intervals_at(result, [log.depth])
            held = [interval is not None and interval.low <= x <= interval.high for x in (log.of_traffic, log.own)]
            return Stop(size, size < sizes[-1], held[0], held[1], ratio(log.counts[order[:size]]) / log.of_traffic - 1)
    raise AssertionError("the last look ends it")


def holds_at_every_look(log: Log, order: NDArray[np.intp], level: float, sizes: Sequence[int]) -> bool:
    """Whoever stops as soon as the interval leaves out the truth would find it left out."""
    for size in sizes:
        (interval,) = intervals_at(result_of(log.counts[order[:size]], log.depth, level), [log.depth])
        if interval is None or not interval.low <= log.of_traffic <= interval.high:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Scenario:
    """How logs are drawn, and whether a run goes through them at random or from the top."""

    draw: Callable[[int, np.random.Generator], Log]
    in_file_order: bool = False


def scenarios() -> dict[str, Scenario]:
    found = {name: Scenario(lambda prompts, rng, name=name: draw_log(name, prompts, rng)) for name in SCENARIOS}
    found["groups"] = Scenario(draw_grouped_log)
    found["groups, in file order"] = Scenario(draw_grouped_log, in_file_order=True)
    return found


def simulate(
    scenario: Scenario, repeats: int, prompts: int, asked: float, rules: dict[str, Levels], seed: int = 7
) -> dict[str, list[Stop]]:
    """Every rule on the same logs in the same orders."""
    sizes = look_sizes(prompts)
    found: dict[str, list[Stop]] = {name: [] for name in rules}
    for log, order in drawn(scenario, repeats, prompts, seed):
        for name, levels in rules.items():
            found[name].append(stops(log, order, levels(sizes), sizes, asked))
    return found


def drawn(scenario: Scenario, repeats: int, prompts: int, seed: int) -> Iterator[tuple[Log, NDArray[np.intp]]]:
    rng = np.random.default_rng(seed)
    for repeat in range(repeats):
        log = scenario.draw(prompts, rng)
        yield log, np.arange(prompts) if scenario.in_file_order else stratified_order(log.kinds, repeat)


def row(name: str, rule: str, found: Sequence[Stop]) -> str:
    used = np.array([stop.prompts for stop in found])
    shares = [np.mean([getattr(stop, key) for stop in found]) for key in ("holds_traffic", "holds_log", "is_early")]
    bias = 100 * np.mean([stop.error for stop in found])
    told = [f"{100 * share:.1f}" for share in shares]
    return f"| {name} | {rule} | {told[0]} | {told[1]} | {used.mean():,.0f} | {told[2]} | {bias:+.2f} |"


def main() -> None:
    known = scenarios()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", choices=[*known, []], help="default: all")
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--asked", type=float, default=0.05)
    parser.add_argument("--prompts", type=int, default=4000)
    options = parser.parse_args()
    sizes = look_sizes(options.prompts)
    error = 100 * np.sqrt(LEVEL * (1 - LEVEL) / options.repeats)
    print(f"{options.repeats} repeats, looks at {sizes}, {100 * options.asked:g} % asked; {error:.1f} points of error")
    print("\n| prompts | rule | holds the traffic's, % | the log's, % | prompts used | stopped early, % | bias, % |")
    print("| --- | --- | --: | --: | --: | --: | --: |")
    for name in options.scenario or known:
        for rule, found in simulate(known[name], options.repeats, options.prompts, options.asked, RULES).items():
            print(row(name, rule, found), flush=True)
    print("\n| prompts | repeated intervals hold the traffic's at every look, % |\n| --- | --: |")
    for name in options.scenario or known:
        if known[name].in_file_order:
            continue
        level = repeated(sizes)[0]
        logs = drawn(known[name], options.repeats, options.prompts, 11)
        held = [holds_at_every_look(log, order, level, sizes) for log, order in logs]
        print(f"| {name} | {100 * np.mean(held):.1f} |", flush=True)


if __name__ == "__main__":
    main()
