"""The table of methods: what each takes to adopt, what it drafts, and what it gains."""

from __future__ import annotations

from collections.abc import Sequence

from specprobe.drafters.base import ADOPTION_WORDS, Adoption
from specprobe.ladder import Rung
from specprobe.page.parts import DataTable, method_names
from specprobe.page.stored_advice import StoredAdvice, StoredOption
from specprobe.run import Run
from specprobe.run_words import temperature_of
from specprobe.summary import ResultSummary, RunSummary
from specprobe.units import ABSENT, format_bytes, format_interval, format_number, format_percent

COLUMNS = (
    "method",
    "takes a",
    "standing",
    "best depth",
    "tokens per round (90 % interval)",
    "over the best before",
    "first draft accepted",
    "acceptance rate",
    "coverage",
)
STANDINGS = {"first": ABSENT, "better": "better", "no better": "no better", "open": "not certain", "broken": "broken?"}


def methods_tables(run: Run, summary: RunSummary, advice: StoredAdvice | None) -> tuple[DataTable, ...]:
    """One for each temperature, cheapest first; speed-ups where the recommendation is of that temperature."""
    return tuple(
        _methods(
            [result for result in summary.results if result.acceptance.temperature == temperature],
            rungs,
            advice if advice is not None and advice.temperature == temperature else None,
            temperature_of(run, temperature),
        )
        for temperature, rungs in summary.ladders
    )


def _methods(
    results: Sequence[ResultSummary], rungs: Sequence[Rung], advice: StoredAdvice | None, temperature: str
) -> DataTable:
    verdicts = advice.verdicts if advice else ()
    # Rungs are the results with rounds by adoption; of equal ones, in the order of the run.
    climbed = sorted((r for r in results if r.acceptance.rounds.any()), key=lambda r: r.acceptance.adoption)
    names = method_names([(r.acceptance.label, r.acceptance.config) for r in climbed])
    fastest = [[_fastest(verdict.options, found) for verdict in verdicts] for found in climbed]
    memory = [next((o.drafter_bytes for o in row if o and o.drafter_bytes), None) for row in fastest]
    columns = (
        *COLUMNS,
        *(f"speed-up at {verdict.traffic}" for verdict in verdicts),
        *(["memory"] if any(memory) else []),
    )
    rows = []
    for name, found, rung, options, size in zip(names, climbed, rungs, fastest, memory, strict=True):
        totals, interval = found.totals[rung.depth - 1], found.tokens_per_round[rung.depth - 1]
        rows.append(
            (
                name,
                ADOPTION_WORDS[Adoption(rung.adoption)],
                STANDINGS[rung.standing],
                str(rung.depth),
                format_number(rung.tokens_per_round)
                + (f" {format_interval(interval.low, interval.high)}" if interval else ""),
                f"{rung.step.point:.2f}x {format_interval(rung.step.low, rung.step.high)}" if rung.step else ABSENT,
                format_percent(rung.first_acceptance),
                format_percent(totals.acceptance_rate),
                format_percent(totals.coverage),
                *(f"{option.speedup:.2f}x at {option.depth}" if option else ABSENT for option in options),
                *([format_bytes(size) if size else ABSENT] if any(memory) else []),
            )
        )
    return DataTable(
        f"Methods at {temperature}, cheapest to adopt first",
        columns,
        tuple(rows),
        num_text=3,
        note="Each at the depth where it writes most tokens per round. “Over the best before” is paired by prompt; "
        "speed-ups are at the depth that is fastest there.",
    )


def _fastest(options: Sequence[StoredOption], found: ResultSummary) -> StoredOption | None:
    """The fastest depth of a result."""
    acceptance = found.acceptance
    of_it = [o for o in options if (o.label, dict(o.config)) == (acceptance.label, dict(acceptance.config))]
    return max(of_it, key=lambda option: option.speedup, default=None)
