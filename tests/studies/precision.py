"""Where `--precision` stops, how often the interval there holds the truth, and what other rules would do, as Markdown.

    python -m tests.studies.precision [--repeats 1000] [--asked 0.05] [--prompts 4000] [SCENARIO]...

Each repeat draws a log from a large population and goes through it as `analyze` does: in its stratified random order,
with its looks, its bootstrap-t and its measure of precision. Rules differ in the level of each look's interval. Seeds
are fixed, so the same numbers come out again (with the same numpy).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from specprobe import interval
from specprobe.interval import LEVEL, Interval
from specprobe.looks import interval_level, look_sizes
from specprobe.precision import within_of_unseen
from specprobe.strata import LENGTH_CLASSES, stratified_order
from specprobe.temperature import within_bounds
from tests.studies.workloads import TRAFFIC
from tests.test_interval import SCENARIOS, workload

Floats = NDArray[np.float64]
Levels = Callable[[tuple[int, ...]], Sequence[float]]

POPULATION = 100_000
GROUPS = 12
# The rule of --precision: these intervals, and a bound for prompts of a kind that none of those used was of.
WITH_UNSEEN = "repeated intervals and kinds not seen"


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """Emitted tokens and rounds of each prompt, [N, 2], its kind [N], and the ratios of the population and the log."""

    counts: Floats
    kinds: NDArray[np.intp]
    depth: int
    of_traffic: float

    @property
    def own(self) -> float:
        """Tokens per round of all of the log's prompts."""
        return ratio(self.counts)


@dataclass(frozen=True, slots=True)
class Stop:
    """Where one repeat ended under one rule, and whether its interval held the traffic's ratio and the log's own.

    `holds_at_every_look`: the traffic's, also at the looks after it, so whatever the reason to stop might have been.
    """

    prompts: int
    is_early: bool
    holds_traffic: bool
    holds_log: bool
    error: float
    holds_at_every_look: bool = True


def ratio(counts: Floats) -> float:
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
    WITH_UNSEEN: repeated,
    "confidence sequence": confidence_sequence,
}


def kinds_of(groups: NDArray[np.intp], lengths: Floats) -> NDArray[np.intp]:
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
    return Log(counts, kinds, TRAFFIC[scenario].depth, ratio(population))


@cache
def populations(scenario: str) -> Floats:
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


def draw_log_of_rare_copying(prompts: int, rng: np.random.Generator) -> Log:
    """One prompt in a hundred is copied as a whole, all others accept nothing: a sample of these looks certain."""
    depth, tokens, share = 8, 216.0, 0.01
    rounds = np.where(rng.random(prompts) < share, tokens / (depth + 1), tokens)
    counts = np.stack([np.full(prompts, tokens), rounds], axis=1)
    kinds = kinds_of(np.zeros(prompts, dtype=np.intp), rng.lognormal(0.0, 1.0, prompts))
    return Log(counts, kinds, depth, 1 / (1 - share + share / (depth + 1)))


@cache
def weights(size: int) -> Floats:
    """Resamples, drawn once for each number of prompts, as the same seed draws them anew in each run."""
    return interval._weights(size, np.random.default_rng(0))


def intervals_of(counts: Floats, depth: int, levels: Sequence[float]) -> list[Interval | None]:
    """What `specprobe.temperature.intervals_at` gives at each of the levels, from one set of resamples."""
    emitted, rounds = counts.T
    excess = emitted - rounds
    units = interval._merged((excess[:, None], rounds[:, None]), np.arange(len(rounds)), np.random.default_rng(0))
    scaled, steps = interval._scaled(interval.ratio, "log"), interval._steps(units)
    with np.errstate(all="ignore"):
        center, linear_error = interval._estimate(np.ones((1, len(units))), units, scaled, steps)
        error = interval._jackknife_error(units, scaled, linear_error)
        resampled, errors = interval._estimate(weights(len(units)), units, scaled, steps)
        deviates = (resampled - center) / errors
    point = ratio(counts)
    found = []
    for level in levels:
        one = interval._interval(center[0, 0], error[0], deviates[:, 0], len(units), level, "log", 0.0)
        moved = one and replace(one, point=1 + one.point, low=1 + one.low, high=1 + one.high)
        found.append(within_bounds(moved, point, depth))
    return found


def looks_at(log: Log, order: NDArray[np.intp], levels: dict[str, Sequence[float]], asked: float) -> dict[str, Stop]:
    """Where a run of this log stops by each rule, and whether its intervals hold the truth at every look."""
    found: dict[str, Stop] = {}
    always = dict.fromkeys(levels, True)
    sizes = look_sizes(len(order))
    for number, size in enumerate(sizes):
        counts = log.counts[order[:size]]
        point = ratio(counts)
        intervals = intervals_of(counts, log.depth, [of[number] for of in levels.values()])
        for rule, one in zip(levels, intervals, strict=True):
            if one is not None and rule == WITH_UNSEEN:
                unseen = point * within_of_unseen(point, size, log.depth, 1 - levels[rule][number])
                one = replace(one, low=min(one.low, point - unseen), high=max(one.high, point + unseen))
            holds = [one is not None and one.low <= truth <= one.high for truth in (log.of_traffic, log.own)]
            always[rule] = always[rule] and holds[0]
            is_tight = one is not None and max(one.high - point, point - one.low) <= asked * point
            if rule not in found and (is_tight or size == sizes[-1]):
                found[rule] = Stop(size, size < sizes[-1], *holds, point / log.of_traffic - 1)
    return {rule: replace(stop, holds_at_every_look=always[rule]) for rule, stop in found.items()}


@dataclass(frozen=True, slots=True)
class Scenario:
    """How logs are drawn, and whether a run goes through them at random or from the top."""

    draw: Callable[[int, np.random.Generator], Log]
    in_file_order: bool = False


def scenarios() -> dict[str, Scenario]:
    found = {name: Scenario(lambda prompts, rng, name=name: draw_log(name, prompts, rng)) for name in SCENARIOS}
    found["rare copying"] = Scenario(draw_log_of_rare_copying)
    found["groups"] = Scenario(draw_grouped_log)
    found["groups, in file order"] = Scenario(draw_grouped_log, in_file_order=True)
    return found


def simulate(
    scenario: Scenario, repeats: int, prompts: int, asked: float, rules: dict[str, Levels] = RULES, seed: int = 7
) -> dict[str, list[Stop]]:
    """Every rule on the same logs in the same orders."""
    levels = {rule: of_looks(look_sizes(prompts)) for rule, of_looks in rules.items()}
    rng = np.random.default_rng(seed)
    found: dict[str, list[Stop]] = {rule: [] for rule in rules}
    for repeat in range(repeats):
        log = scenario.draw(prompts, rng)
        order = np.arange(prompts) if scenario.in_file_order else stratified_order(log.kinds, repeat)
        for rule, stop in looks_at(log, order, levels, asked).items():
            found[rule].append(stop)
    return found


def row(name: str, rule: str, found: Sequence[Stop]) -> str:
    keys = ("holds_traffic", "holds_log", "holds_at_every_look", "is_early")
    traffic, log, always, early = (f"{100 * np.mean([getattr(stop, key) for stop in found]):.1f}" for key in keys)
    used, bias = np.mean([stop.prompts for stop in found]), 100 * np.mean([stop.error for stop in found])
    return f"| {name} | {rule} | {traffic} | {log} | {always} | {used:,.0f} | {early} | {bias:+.2f} |"


def main() -> None:
    known = scenarios()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--asked", type=float, default=0.05)
    parser.add_argument("--prompts", type=int, default=4000)
    options = parser.parse_args()
    sizes = look_sizes(options.prompts)
    error = 100 * np.sqrt(LEVEL * (1 - LEVEL) / options.repeats)
    print(
        f"{options.repeats} repeats, looks at {sizes}, {100 * options.asked:g} % asked; {error:.1f} points of error\n"
    )
    print("| prompts | rule | holds the traffic's, % | the log's, % | at every look, % | used | early, % | bias, % |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: |")
    for name in options.scenario or known:
        for rule, found in simulate(known[name], options.repeats, options.prompts, options.asked).items():
            print(row(name, rule, found), flush=True)


if __name__ == "__main__":
    main()
