"""Whether the statistics hold: coverage, power, false alarms and bias on simulated traffic, as Markdown.

    python -m tests.studies.statistics [--quick] [--page docs/statistics.md]

Minutes on one core, half a minute with `--quick`. Seeds are fixed, so the same numbers come out again (with the same
numpy). docs/statistics.md has the tables and says what they mean; `--page` puts new ones in their places.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.studies import benches, comparisons, coverage, curves, expectations, selection
from tests.studies.tables import percent, share_error

CLUSTERED = ("4 samples", "conversations")
COMPARED = ("chat", "sparse copying", "mixed", "conversations")


@dataclass(frozen=True, slots=True)
class Effort:
    """How many units a population has, and how many simulated workloads are behind each figure."""

    population: int
    workloads: int
    all_figures: int
    pairs: int
    benches: int
    choices: int
    fits: int
    responses: int
    sizes: tuple[int, ...] = (16, 32, 64, 200)
    apart_sizes: tuple[int, ...] = (16, 32)
    figure_sizes: tuple[int, ...] = (16, 64)
    choice_sizes: tuple[int, ...] = (16,)
    pair_sizes: tuple[int, ...] = (32, 64)


FULL = Effort(
    population=10_000, workloads=300, all_figures=150, pairs=120, benches=200, choices=60, fits=150, responses=10_000
)
QUICK = Effort(
    population=2000,
    workloads=50,
    all_figures=25,
    pairs=30,
    benches=25,
    choices=15,
    fits=5,
    responses=500,
    sizes=(16, 32),
    figure_sizes=(16,),
    pair_sizes=(32,),
)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Cells of tokens per round by size, the same with clusters taken apart, and cells of all figures."""

    by_size: tuple[coverage.Cell, ...]
    apart: tuple[coverage.Cell, ...]
    all_figures: tuple[coverage.Cell, ...]
    with_cost: float


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Runs that are alike, drafters that are equal on average, the same with turns taken apart, and that differ."""

    alike: tuple[comparisons.Judged, ...]
    equal: tuple[comparisons.Judged, ...]
    turns_apart: comparisons.Judged
    differing: tuple[comparisons.Judged, ...]


@dataclass(frozen=True, slots=True)
class Others:
    """What takes one table each."""

    benches: tuple[benches.Benches, ...]
    selected: tuple[selection.Selected, ...]
    expectations: tuple[expectations.Line, ...]
    curves: tuple[curves.Extrapolated, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """Everything that was simulated."""

    effort: Effort
    coverage: Coverage
    comparisons: Comparisons
    others: Others


Tell = Callable[[str], None]


def run(effort: Effort, tell: Tell = lambda _: None) -> Study:
    """Simulate it all. `tell` is called with what is begun."""
    tell("coverage")
    covered = study_coverage(effort)
    tell("comparisons")
    compared = study_comparisons(effort)
    tell("the rest")
    return Study(effort, covered, compared, study_others(effort))


def study_coverage(effort: Effort) -> Coverage:
    """Intervals of one run."""
    populations = coverage.populations(effort.population)
    by_size = tuple(
        coverage.simulate(name, population, units, effort.workloads, only="tokens per round")
        for name, population in populations.items()
        for units in effort.sizes
    )
    apart = tuple(
        coverage.simulate(name, populations[name], units, effort.workloads, is_apart=True, only="tokens per round")
        for name in CLUSTERED
        for units in effort.apart_sizes
    )
    all_figures = tuple(
        coverage.simulate(name, population, units, effort.all_figures)
        for name, population in populations.items()
        for units in effort.figure_sizes
    )
    with_cost = coverage.cost_coverage(populations["mixed"], 32, effort.all_figures)
    return Coverage(by_size, apart, all_figures, with_cost)


def study_comparisons(effort: Effort) -> Comparisons:
    """Two runs over the same prompts."""
    alike, tastes, differing = [], [], []
    for name in COMPARED:
        drafters = comparisons.Drafters.on(name, effort.population)
        same, equal = drafters.pair(0.0), drafters.equal_on_average()
        for units in effort.pair_sizes:
            alike.append(comparisons.judge(name, drafters.by_unit(same), units, effort.pairs))
            tastes.append(comparisons.judge(name, drafters.by_unit(equal), units, effort.pairs))
            moved = drafters.by_unit(drafters.differing(units))
            differing.append(comparisons.judge(name, moved, units, effort.pairs, with_intervals=False))
    # The last of them has conversations.
    turns_apart = comparisons.turns_apart(drafters, equal, effort.pair_sizes[0], effort.pairs)
    return Comparisons(tuple(alike), tuple(tastes), turns_apart, tuple(differing))


def study_others(effort: Effort) -> Others:
    """Benches, the choice of a depth, counts above temperature 0, curves."""
    populations = coverage.populations(effort.population)
    return Others(
        benches=tuple(
            benches.simulate(name, populations[name], units, effort.benches)
            for name in ("chat", "mixed", "heavy-tailed")
            for units in effort.figure_sizes
        ),
        selected=tuple(
            one for name in ("chat", "copy-heavy") for one in selection.study(name, effort.choice_sizes, effort.choices)
        ),
        expectations=tuple(expectations.study(effort.responses)),
        curves=tuple(
            one
            for name in curves.DRAFTERS
            for one in curves.study(name, effort.figure_sizes, effort.fits, effort.population)
        ),
    )


@dataclass(frozen=True, slots=True)
class Section:
    """One table. `draws`: simulations behind each share in it, None where it has other figures; `words`: below it."""

    title: str
    table: str
    draws: int | None = None
    words: str = ""

    def markdown(self) -> str:
        """As docs/statistics.md shows it."""
        parts = [f"### {self.title}", self.table, self.words]
        return "\n\n".join(part for part in parts if part)


def report(study: Study) -> Iterator[Section]:
    """Everything that docs/statistics.md shows."""
    effort = study.effort

    def error(share: float, draws: int) -> str:
        return f"Standard error of the simulation at {100 * share:.0f} %: {percent(share_error(share, draws))} points."

    yield Section(
        "Coverage of tokens per round, by number of units (%)",
        coverage.size_table(study.coverage.by_size),
        effort.workloads,
        error(0.9, effort.workloads),
    )
    yield Section(
        "The same with every response taken for a unit of its own (%)",
        coverage.size_table(study.coverage.apart),
        effort.workloads,
    )
    yield Section(
        "Coverage of every interval (%)",
        coverage.coverage_table(study.coverage.all_figures),
        effort.all_figures,
        error(0.9, effort.all_figures)
        + f" Where the cost errs by {percent(coverage.COST_DEVIATION)} %, the speed-up of 32 prompts of mixed traffic "
        f"was held in {percent(study.coverage.with_cost)} %.",
    )
    yield Section(
        "The speed-up at the best of eight depths",
        selection.selection_table(study.others.selected),
        effort.choices,
        error(0.9, effort.choices),
    )
    yield Section(
        "The speed-up that bench measures",
        benches.bench_table(study.others.benches),
        effort.benches,
        error(0.9, effort.benches),
    )
    yield Section(
        "What a gate on tokens per round decides (%)",
        coverage.gate_table(study.coverage.by_size),
        effort.workloads,
        error(0.05, effort.workloads),
    )
    yield Section(
        "compare: runs that are alike (%)",
        comparisons.comparison_table(study.comparisons.alike),
        effort.pairs,
        error(0.1, effort.pairs),
    )
    yield Section(
        "compare: equal on average, each drafter better on half of the units (%)",
        comparisons.comparison_table([*study.comparisons.equal, study.comparisons.turns_apart]),
        effort.pairs,
    )
    yield Section(
        "compare: drafters that differ (%)", comparisons.power_table(study.comparisons.differing), effort.pairs
    )
    yield Section(
        "gate --max-regression 0%: drafters that are equal on average (%)",
        comparisons.regression_table(study.comparisons.equal),
        effort.pairs,
    )
    shown = [cell for cell in study.coverage.by_size if cell.units in effort.figure_sizes]
    yield Section("Bias of points (%)", coverage.bias_table(shown))
    yield Section(
        "Counts above temperature 0 against exact expectations",
        expectations.expectation_table(study.others.expectations),
    )
    yield Section("The fitted curve beyond its data: from depth 4 to depth 8", curves.curve_table(study.others.curves))


def with_tables(page: str, sections: Sequence[Section]) -> str:
    """The page with these tables below their titles, in place of the ones that are there."""
    for section in sections:
        there = re.compile(
            rf"^### {re.escape(section.title)}\n\n(?:\|.*\n)+(?:\nStandard error of the simulation.*\n)?", re.M
        )
        assert len(there.findall(page)) == 1, f"the page needs one table below: ### {section.title}"
        page = there.sub(lambda _, section=section: section.markdown() + "\n", page)
    return page


def main() -> None:
    """Print the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few workloads: half a minute, large errors")
    parser.add_argument("--page", type=Path, help="a page whose tables are replaced by the new ones")
    arguments = parser.parse_args()
    begun = time.perf_counter()

    def tell(what: str) -> None:
        print(f"{time.perf_counter() - begun:.0f} s: {what}", file=sys.stderr)

    sections = list(report(run(QUICK if arguments.quick else FULL, tell)))
    print("\n\n".join(section.markdown() for section in sections))
    if arguments.page:
        arguments.page.write_text(with_tables(arguments.page.read_text(), sections))
    tell("done")


if __name__ == "__main__":
    main()
