"""What the page of one run shows, section by section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specprobe.breakdown import Concentration, GroupResult
from specprobe.interval import MIN_PROMPTS
from specprobe.notices import Notice
from specprobe.page.acceptance_views import Named, acceptance_figures, requests_figure, temperature_figure
from specprobe.page.methods import methods_tables
from specprobe.page.parts import (
    Command,
    DataTable,
    FactGroup,
    FigureGroup,
    FigureView,
    HeatMap,
    VerdictCard,
    method_names,
    shown,
)
from specprobe.page.provenance import advice_facts, run_facts
from specprobe.page.stored_advice import StoredAdvice
from specprobe.page.verdict_views import (
    commands,
    heat_maps,
    latency_figures,
    sensitivity_table,
    speedup_by_request,
    temperature_table,
    verdict_cards,
    verdict_sentence,
)
from specprobe.recommend_glance import crossover_words
from specprobe.run import Run
from specprobe.run_words import NOT_SAID, size_of, sources_of, temperature_of
from specprobe.summary import ResultSummary, RunSummary, best_by_temperature
from specprobe.temperature_report import concentration_in_words
from specprobe.units import ABSENT, format_interval, format_number, format_percent, format_plural

# Of a log with more sources than that, the title names the number.
MOST_SOURCES = 2
LONG = 1000


@dataclass(frozen=True, slots=True, eq=False)
class PageInput:
    """A run as it is on the disk, what follows from it, and the recommendation that was made from it, if any."""

    label: str
    sha256: str
    run: Run
    summary: RunSummary
    advice: StoredAdvice | None


@dataclass(frozen=True, slots=True)
class Gains:
    """Who gains at one temperature: a heading, a sentence, and tables of groups and single requests."""

    heading: str
    sentence: str
    tables: tuple[DataTable, ...]


@dataclass(frozen=True, slots=True)
class RunPage:
    """The page of one run. Without a recommendation everything about speed is empty, and `sentence` says so."""

    title: str
    subtitle: tuple[str, ...]
    sentence: str
    has_advice: bool
    cards: tuple[VerdictCard, ...]
    verdict_note: str
    commands: tuple[Command, ...]
    heat_maps: tuple[HeatMap, ...]
    heat_note: str
    warnings: tuple[str, ...]
    acceptance: tuple[FigureGroup, ...]
    entropy: DataTable | None
    temperature: tuple[FigureView, ...]
    temperature_table: DataTable | None
    latencies: tuple[FigureView, ...]
    gains_figures: tuple[FigureView, ...]
    gains: tuple[Gains, ...]
    sensitivity: DataTable | None
    methods: tuple[DataTable, ...]
    provenance: tuple[FactGroup, ...]


def run_page(given: PageInput) -> RunPage:
    """Everything that is shown of one run."""
    run, summary, advice = given.run, given.summary, given.advice
    verdicts = advice.verdicts if advice else ()
    by_request = None if run.is_of_sums else speedup_by_request("request-speedup", verdicts)
    requests = requests_figure("requests", _best_named(run, summary.results))
    return RunPage(
        title=f"Speculative decoding on {_sources(run)}",
        subtitle=_subtitle(run),
        sentence=verdict_sentence(advice) if advice else most_tokens(run, summary.results),
        has_advice=advice is not None,
        cards=verdict_cards(advice) if advice else (),
        verdict_note=_verdict_note(run, advice) if advice else "",
        commands=commands(advice) if advice else (),
        heat_maps=heat_maps(advice) if advice else (),
        heat_note=_crossover(advice) if advice else "",
        warnings=_warnings(advice.notices if advice else run.notices),
        acceptance=tuple(_acceptance(run, summary)),
        entropy=_by_entropy(run, summary.results),
        temperature=(temperature_figure("temperature", summary.temperature_curves, all_names(run, summary)),)
        if summary.temperature_curves
        else (),
        temperature_table=temperature_table(advice) if advice else None,
        latencies=tuple(latency_figures("times", verdicts)),
        gains_figures=tuple(figure for figure in (by_request, requests) if figure is not None),
        gains=tuple(_gains(run, best) for best in best_by_temperature(summary.results)),
        sensitivity=sensitivity_table(verdicts[-1]) if verdicts else None,
        methods=tuple(table for table in methods_tables(run, summary, advice) if table.rows),
        provenance=(*run_facts(run, given.sha256), *([advice_facts(advice)] if advice else [])),
    )


def most_tokens(run: Run, results: Sequence[ResultSummary]) -> str:
    """The answer as far as acceptance gives one."""
    found = max(results, key=lambda one: one.most_tokens_per_round, default=None)
    if found is None or found.most_tokens_per_round <= 1:
        return "No drafter had anything accepted on this traffic."
    acceptance = found.acceptance
    return (
        f"Most tokens per round: {found.most_tokens_per_round:.2f}, with {shown(acceptance.label)} at depth "
        f"{found.best.depth} and {temperature_of(run, acceptance.temperature)}."
    )


def names_of(results: Sequence[ResultSummary]) -> tuple[str, ...]:
    """What the page calls results of one temperature."""
    return method_names([(result.acceptance.label, result.acceptance.config) for result in results])


def all_names(run: Run, summary: RunSummary) -> list[str]:
    """Every method of a run once, in the order of its results, which is that of their colours."""
    names = (names_of(results_at(summary, temperature)) for temperature in run.temperatures)
    return list(dict.fromkeys(name for found in names for name in found))


def results_at(summary: RunSummary, temperature: float) -> list[ResultSummary]:
    """The results of one temperature."""
    return [result for result in summary.results if result.acceptance.temperature == temperature]


def _sources(run: Run) -> str:
    sources = [str(source).rstrip("/").rpartition("/")[2] for source in run.workload.get("sources", ())]
    if len(sources) > MOST_SOURCES:
        return format_plural(len(sources), "source")
    unnamed = "what an engine counted" if run.engine_numbers else "a log"
    return " and ".join(shown(source) for source in sources) or unnamed


def _subtitle(run: Run) -> tuple[str, ...]:
    logged = shown(sources_of(run), LONG) if run.engine_numbers else "logged answers, no target loaded"
    temperatures = ", ".join(f"{value:g}" for value in run.temperatures)
    return (
        shown(run.target["name"]) if run.target else logged,
        size_of(run),
        f"rules of {shown(run.engine_profile)}",
        f"temperature {temperatures if run.temperature_is_known else NOT_SAID}",
    )


def _verdict_note(run: Run, advice: StoredAdvice) -> str:
    about = [shown(v, 80) for k, v in advice.conditions.items() if isinstance(v, str) and k != "fingerprint" and v]
    details = f" ({', '.join(about)})" if about else ""
    note = f"At {temperature_of(run, advice.temperature)}. Cost of a round: {shown(advice.cost_source)}{details}."
    if advice.log_deviation:
        note += f" It is known to err by {format_percent(advice.log_deviation)}, which the intervals hold."
    note += f" From {shown(advice.file, LONG)}{f', kept {advice.kept_at}' if advice.kept_at else ''}."
    if advice.undecided:
        note = f"{shown(advice.undecided, LONG)}. {note}"
    return note


def _crossover(advice: StoredAdvice) -> str:
    words = crossover_words(advice.crossover_concurrency, advice.batches, advice.cost_source)
    return f"{words[0].upper()}{words[1:]}."


def _warnings(notices: Sequence[Notice]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(shown(notice.message, LONG) for notice in notices))


def _acceptance(run: Run, summary: RunSummary) -> list[FigureGroup]:
    groups, looks = [], all_names(run, summary)
    for number, temperature in enumerate(run.temperatures):
        results = results_at(summary, temperature)
        name = temperature_of(run, temperature)
        named = [Named(of, found, looks.index(of)) for of, found in zip(names_of(results), results, strict=True)]
        figures = acceptance_figures(f"acceptance-{number}", name, named)
        if figures:
            groups.append(FigureGroup(name.capitalize() if len(run.temperatures) > 1 else "", figures))
    return groups


def _by_entropy(run: Run, results: Sequence[ResultSummary]) -> DataTable | None:
    rows = []
    for found in results:
        quartiles = found.acceptance.by_entropy
        if quartiles:
            acceptance = found.acceptance
            shares = (format_percent(quartile.acceptance) for quartile in quartiles)
            borders = ", ".join(format_number(quartile.high) for quartile in quartiles[:-1])
            temperature = f"{acceptance.temperature:g}" if run.temperature_is_known else "unknown"
            rows.append((shown(acceptance.label), temperature, *shares, borders))
    if not rows:
        return None
    columns = ("method", "temperature", "least open quarter", "second", "third", "most open quarter", "borders, nats")
    return DataTable(
        "Accepted, given the drafts before it, by how open the target's next token is",
        columns,
        tuple(rows),
        note="Quarters of draft tokens by the target's entropy.",
    )


def _best_named(run: Run, results: Sequence[ResultSummary]) -> list[Named]:
    several = len(run.temperatures) > 1
    return [
        Named(
            f"{found.acceptance.label}, depth {found.acceptance.depth_of_fewest_rounds}"
            + (f", temperature {found.acceptance.temperature:g}" if several else ""),
            found,
            number,
        )
        for number, found in enumerate(best_by_temperature(results))
    ]


def _gains(run: Run, found: ResultSummary) -> Gains:
    acceptance, concentration = found.acceptance, found.concentration
    of = f"{shown(acceptance.label)}, {temperature_of(run, acceptance.temperature)}"
    tables = [table for table in (_groups(of, found.groups), _requests(of, concentration)) if table is not None]
    return Gains(
        heading=of,
        sentence=_without_names(concentration),
        tables=tuple(tables),
    )


def _without_names(found: Concentration | None) -> str:
    """The sentences of the terminal's report, up to the names of requests, which have a table here."""
    return concentration_in_words(found).partition("; most: ")[0].partition("; fewest: ")[0].rstrip(".") + "."


def _groups(of: str, groups: Sequence[GroupResult]) -> DataTable | None:
    if not groups:
        return None
    rows = tuple(
        (
            shown(group.label),
            f"{group.totals.responses:,}",
            format_number(group.totals.tokens_per_round),
            (format_interval(group.interval.low, group.interval.high) if group.interval else ABSENT)
            + ("" if group.enough_prompts else "*"),
            format_percent(group.totals.acceptance_rate),
        )
        for group in groups
    )
    few = not all(group.enough_prompts for group in groups)
    return DataTable(
        f"By group: {of}",
        ("group", "responses", "tokens per round", "90 % interval", "acceptance rate"),
        rows,
        note=f"* fewer than {MIN_PROMPTS} prompts: the interval is too narrow or missing." if few else "",
    )


def _requests(of: str, found: Concentration | None) -> DataTable | None:
    if found is None:
        return None
    rows = [
        (shown(name), which, format_number(value))
        for which, named in (("most", found.best), ("fewest", found.worst))
        for name, value in named
    ]
    if not rows:
        return None
    return DataTable(f"Requests at both ends: {of}", ("request", "writes", "tokens per round"), tuple(rows), num_text=2)
