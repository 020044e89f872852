"""What the page of several runs shows: side by side, the first one as what the others are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specprobe.compare import Comparison, ResultContrast, compare
from specprobe.errors import SpecprobeError
from specprobe.interval import Interval
from specprobe.page.acceptance_views import Named, acceptance_figures
from specprobe.page.parts import DataTable, FactGroup, FigureGroup, shown
from specprobe.page.provenance import advice_facts, run_facts
from specprobe.page.run_page import PageInput, most_tokens, names_of, results_at
from specprobe.page.stored_advice import StoredVerdict
from specprobe.page.verdict_views import verdict_sentence
from specprobe.units import ABSENT, VERDICT_WORDS, format_interval, format_number, format_percent, format_plural

# A label is a column's head.
LONGEST_LABEL = 40
LONG = 1000


@dataclass(frozen=True, slots=True)
class PairedRuns:
    """A run against the first one: a table of what changed, or, as `reason`, why nothing can be said; and notes."""

    heading: str
    reason: str
    table: DataTable | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunNotes:
    """What is to be said of one run: its answer and its warnings."""

    label: str
    sentence: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparisonPage:
    """The page of several runs. `verdicts` is None where no run has a recommendation."""

    title: str
    subtitle: tuple[str, ...]
    sentence: str
    runs: tuple[RunNotes, ...]
    overview: DataTable
    verdicts: DataTable | None
    pairs: tuple[PairedRuns, ...]
    acceptance: tuple[FigureGroup, ...]
    differing: DataTable
    same: FactGroup


def comparison_page(given: Sequence[PageInput]) -> ComparisonPage:
    """Everything that is shown of several runs; their labels are distinct."""
    first, others = given[0], given[1:]
    found = [_compared(first, other) for other in others]
    differing, same = _provenance(given)
    return ComparisonPage(
        title=f"Speculative decoding: {len(given)} runs compared",
        subtitle=tuple(_label(one) for one in given),
        sentence=" ".join(_in_words(first, other, one) for other, one in zip(others, found, strict=True)),
        runs=tuple(_notes(one) for one in given),
        overview=_overview(given),
        verdicts=_verdicts(given),
        pairs=tuple(_paired(first, other, one) for other, one in zip(others, found, strict=True)),
        acceptance=tuple(_acceptance(given)),
        differing=differing,
        same=same,
    )


def _label(given: PageInput) -> str:
    return shown(given.label, LONGEST_LABEL)


def _notes(given: PageInput) -> RunNotes:
    advice = given.advice
    notices = advice.notices if advice else given.run.notices
    return RunNotes(
        label=_label(given),
        sentence=verdict_sentence(advice) if advice else most_tokens(given.run, given.summary.results),
        warnings=tuple(dict.fromkeys(shown(notice.message, LONG) for notice in notices)),
    )


def _overview(given: Sequence[PageInput]) -> DataTable:
    """Every method of every run at its best depth."""
    rows = []
    for one in given:
        for temperature in one.run.temperatures:
            results = results_at(one.summary, temperature)
            for name, found in zip(names_of(results), results, strict=True):
                best = found.best
                interval = found.tokens_per_round[best.depth - 1]
                rows.append(
                    (
                        _label(one),
                        name,
                        f"{temperature:g}" if one.run.temperature_is_known else "unknown",
                        "sums" if one.run.is_of_sums else f"{found.acceptance.num_prompts:,}",
                        str(best.depth),
                        format_number(best.tokens_per_round),
                        format_interval(interval.low, interval.high) if interval else ABSENT,
                        format_percent(best.acceptance_rate),
                        format_number(best.mean_acceptance_length),
                        format_percent(best.coverage),
                    )
                )
    columns = ("run", "method", "temperature", "prompts", "best depth", "tokens per round", "90 % interval",
               "acceptance rate", "acceptance length", "coverage")  # fmt: skip
    return DataTable("Every method at its best depth", columns, tuple(rows), num_text=2)


def _verdicts(given: Sequence[PageInput]) -> DataTable | None:
    """One row for each traffic that any run has a verdict for."""
    by_run = [{v.traffic: v for v in one.advice.verdicts} if one.advice else {} for one in given]
    traffics = list(dict.fromkeys(traffic for verdicts in by_run for traffic in verdicts))
    if not traffics:
        return None
    undecided = [one.advice is not None and one.advice.undecided is not None for one in given]
    rows = [
        (
            traffic,
            *(_verdict(verdicts.get(traffic), is_undecided=no) for verdicts, no in zip(by_run, undecided, strict=True)),
        )
        for traffic in sorted(traffics, key=lambda traffic: _order(by_run, traffic))
    ]
    costs = [
        f"{_label(one)}: cost {shown(one.advice.cost_source)}, temperature {one.advice.temperature:g}"
        if one.advice
        else f"{_label(one)}: no recommendation (specprobe recommend makes one)"
        for one in given
    ]
    return DataTable(
        "Verdict by traffic",
        ("traffic", *(_label(one) for one in given)),
        tuple(rows),
        num_text=1 + len(given),
        note=f"{'; '.join(costs)}.",
    )


def _order(by_run: Sequence[dict[str, StoredVerdict]], traffic: str) -> int:
    return next(verdicts[traffic].concurrency for verdicts in by_run if traffic in verdicts)


def _verdict(found: StoredVerdict | None, *, is_undecided: bool) -> str:
    if found is None:
        return ABSENT
    best = found.best
    word = "not decided" if is_undecided else VERDICT_WORDS[found.verdict]
    interval = f" {format_interval(best.low, best.high)}" if best.low is not None else ""
    return f"{word}: {shown(best.label)} {best.depth}, {best.speedup:.2f}x{interval}"


def _compared(first: PageInput, other: PageInput) -> Comparison | str:
    """What changed, or why that cannot be said."""
    try:
        return compare(first.run, other.run)
    except SpecprobeError as error:
        return str(error).removeprefix("compare: ").partition("; analyze both alike")[0]


def _in_words(first: PageInput, other: PageInput, found: Comparison | str) -> str:
    """What changed, in a sentence."""
    if isinstance(found, str):
        return f"{_label(other)} and {_label(first)} are not comparable prompt by prompt."
    told = [f"{shown(result.a.label)}{_at(first, result)} {_change(result)}" for result in found.results]
    return f"{_label(other)} against {_label(first)}: {'; '.join(told)}."


def _at(first: PageInput, result: ResultContrast) -> str:
    return f" at temperature {result.a.temperature:g}" if len(first.run.temperatures) > 1 else ""


def _change(result: ResultContrast) -> str:
    difference = result.judged.difference
    size = f" ({difference.point:+.2f} tokens per round)" if difference else ""
    words = {
        "higher": "drafts better",
        "lower": "drafts worse",
        "not significant": "does not differ significantly",
        "too few prompts": "has too few prompts to tell",
    }
    return words[result.standing] + (size if result.standing in ("higher", "lower") else "")


def _paired(first: PageInput, other: PageInput, found: Comparison | str) -> PairedRuns:
    heading = f"{_label(other)} against {_label(first)}"
    if isinstance(found, str):
        named = f"A is {_label(first)}, B is {_label(other)}"
        return PairedRuns(heading, f"Not comparable prompt by prompt: {shown(found, LONG)}. {named}.", None, ())
    rows = tuple(_paired_row(result) for result in found.results)
    columns = ("method", "temperature", "result", "prompts", "depth", _label(first), _label(other), "difference",
               "90 % interval", "least that would show")  # fmt: skip
    left_out = [
        f"{shown(label)} at temperature {temperature:g} (only in {_label(first) if run == 'a' else _label(other)})"
        for run, label, temperature in found.left_out
    ]
    return PairedRuns(
        heading,
        "",
        DataTable(
            f"Tokens per round, paired by prompt: {heading}",
            columns,
            rows,
            num_text=3,
            note="Judged at the depth where both runs together take the fewest rounds. “Least that would show” is the "
            "difference that prompts like these show 9 times out of 10.",
        ),
        (
            *(
                f"The settings of {shown(r.a.label)} differ."
                for r in found.results
                if dict(r.a.config) != dict(r.b.config)
            ),
            *([f"Left out: {', '.join(left_out)}."] if left_out else []),
        ),
    )


def _paired_row(result: ResultContrast) -> tuple[str, ...]:
    judged = result.judged
    return (
        shown(result.a.label),
        f"{result.a.temperature:g}",
        result.standing,
        f"{result.prompts:,}",
        str(result.depth),
        format_number(judged.a),
        format_number(judged.b),
        f"{judged.difference.point:+.2f}" if judged.difference else ABSENT,
        _signed(judged.difference),
        format_number(judged.smallest_detectable),
    )


def _signed(interval: Interval | None) -> str:
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]" if interval else ABSENT


def _acceptance(given: Sequence[PageInput]) -> list[FigureGroup]:
    """One group for each temperature and method, with a line for each run that has it."""
    lines: dict[tuple[float, str], list[Named]] = {}
    for look, one in enumerate(given):
        for temperature in one.run.temperatures:
            results = results_at(one.summary, temperature)
            for name, found in zip(names_of(results), results, strict=True):
                lines.setdefault((temperature, name), []).append(Named(one.label, found, look))
    groups = []
    for number, ((temperature, name), named) in enumerate(lines.items()):
        heading = f"{name}, temperature {temperature:g}"
        figures = acceptance_figures(f"acceptance-{number}", heading, named)
        if figures:
            groups.append(FigureGroup(heading, figures))
    return groups


def _provenance(given: Sequence[PageInput]) -> tuple[DataTable, FactGroup]:
    """Facts that differ, a column for each run, and those that all share."""
    by_run = []
    for one in given:
        groups = [*run_facts(one.run, one.sha256), *([advice_facts(one.advice)] if one.advice else [])]
        by_run.append({(group.heading, fact.name): fact for group in groups for fact in group.facts})
    names = list(dict.fromkeys(name for facts in by_run for name in facts))
    rows, same = [], []
    for name in names:
        found = [facts[name].value if name in facts else ABSENT for facts in by_run]
        if len(set(found)) > 1:
            rows.append((f"{name[0]}: {name[1]}", *found))
        else:
            same.append(by_run[0][name])
    table = DataTable(
        "What differs", ("fact", *(_label(one) for one in given)), tuple(rows), num_text=1 + len(given), breaks=True
    )
    return table, FactGroup(f"The same in {format_plural(len(given), 'run')}", tuple(same))
