"""Terminal reports: a run, a recommendation and a fit as rich renderables. Nothing here computes or prints.

Whatever comes out of a log (names, ids, file names) goes into Text objects, never into markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specprobe.asked import MOST_TEMPERATURES
from specprobe.curve import CurveFit
from specprobe.drafters.base import ADOPTION_WORDS
from specprobe.ladder import Rung
from specprobe.notices import Notice, inert
from specprobe.processors import Processors
from specprobe.run import ResponseRecord, Run
from specprobe.summary import ResultSummary, RunSummary
from specprobe.temperature_report import (
    entropy_line,
    render_concentration,
    render_groups,
    render_temperatures,
)
from specprobe.units import (
    format_bar,
    format_count,
    format_interval,
    format_number,
    format_percent,
    format_plural,
)

BAR_WIDTH = 24
# What a run says of its target besides the name: of a model here, or of a server.
TARGET_DETAILS = ("dtype", "device", "engine", "version", "url")
HIDDEN_SETTINGS = ("shared_tokens", "target_tokens", "draft_tokens", "equal_sizes")
DRAFT_WORDS = {"greedy": "one-hot drafts", "sampled": "sampled drafts (expected counts)"}


def render_run(run: Run, derived: RunSummary) -> RenderableType:
    """The report of `analyze`: what was measured, then each drafter, then warnings and the next command."""
    parts: list[RenderableType] = [_what_was_measured(run), Text()]
    for summary in derived.results:
        parts += [_result(summary), Text()]
    for temperature, rungs in derived.ladders:
        # Two flags side by side need no steps between them.
        if len(rungs) > 2 or len({rung.adoption for rung in rungs}) > 1:
            parts += [_ladder(temperature, rungs), Text()]
    if derived.temperature_curves:
        parts += [render_temperatures(derived.temperature_curves), Text()]
    for summary in _best_by_temperature(derived.results):
        parts += [*_who_gains(summary), Text()]
    parts.append(_in_one_sentence(derived.results))
    if run.notices:
        parts += [Text(), render_notices(run.notices)]
    return Group(*parts)


def _best_by_temperature(summaries: Sequence[ResultSummary]) -> list[ResultSummary]:
    """The result with most tokens per round at each temperature."""
    best: dict[float, ResultSummary] = {}
    for summary in summaries:
        held = best.setdefault(summary.acceptance.temperature, summary)
        if _most_tokens(summary) > _most_tokens(held):
            best[summary.acceptance.temperature] = summary
    return list(best.values())


def _most_tokens(summary: ResultSummary) -> float:
    return max(totals.tokens_per_round or 1.0 for totals in summary.totals)


def _who_gains(summary: ResultSummary) -> list[RenderableType]:
    """Which groups and requests the gain comes from."""
    acceptance = summary.acceptance
    title = Text.assemble(
        ("who gains", "bold"), f": {inert(acceptance.label, 60)}, temperature {acceptance.temperature:g}"
    )
    groups = [Padding(render_groups(summary.groups), (0, 2))] if summary.groups else []
    return [title, Padding(render_concentration(summary.concentration), (0, 2)), *groups]


def render_notices(notices: Sequence[Notice]) -> RenderableType:
    """Warnings, each with what to do."""
    return Group(*(Text.assemble(("warning: ", "yellow"), inert(notice.message, 1000)) for notice in notices))


def _what_was_measured(run: Run) -> RenderableType:
    workload = run.workload
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    sources = ", ".join(inert(str(source), 200) for source in workload["sources"])
    columns = ", ".join(inert(str(column)) for column in workload.get("columns", ()))
    grid.add_row(
        "workload",
        Text(
            f"{sources}: {format_plural(workload['prompts'], 'prompt')} of {format_plural(workload['rows'], 'row')} "
            f"(format {workload['format']}{f', column {columns}' if columns else ''})"
        ),
    )
    if workload["skipped"]:
        skipped = ", ".join(f"{reason} {format_count(n)}" for reason, n in sorted(workload["skipped"].items()))
        grid.add_row("skipped", Text(skipped))
    if asked := _asked_temperatures(workload.get("temperatures", ())):
        grid.add_row("the log asks", Text(asked))
    for lengths in run.responses:
        total = int(lengths.output_tokens.sum())
        grid.add_row(
            "responses",
            Text(
                f"{format_plural(len(lengths.ids), 'response')}, {format_count(total)} tokens, {lengths.source} "
                f"at temperature {lengths.temperature:g}{_entropy(lengths)}"
            ),
        )
    if run.target is not None:
        record = run.target
        details = [inert(str(record[key]), 120) for key in TARGET_DETAILS if record.get(key)]
        grid.add_row("target", Text(inert(str(record["name"]), 200) + (f" ({', '.join(details)})" if details else "")))
    if sampling := _sampling(run.settings):
        grid.add_row("sampling", Text(sampling))
    grid.add_row("engine rules", Text(run.engine_profile))
    if run.in_flight > 1:
        requests = format_plural(run.in_flight, "request")
        grid.add_row("in flight", Text(f"{requests}, whose tokens fill suffix decoding's shared tree side by side"))
    return grid


def _asked_temperatures(counts: Sequence[Mapping[str, Any]]) -> str:
    """Which share of the requests asks for which temperature; nothing where none says."""
    if all(entry["temperature"] is None for entry in counts):
        return ""
    total = sum(entry["prompts"] for entry in counts)
    if len(counts) > MOST_TEMPERATURES:
        return f"{len(counts)} different temperatures"
    return ", ".join(
        ("no temperature" if entry["temperature"] is None else f"temperature {entry['temperature']:g}")
        + f" {format_percent(entry['prompts'] / total)}"
        for entry in counts
    )


def _sampling(settings: Mapping[str, Any]) -> str:
    """What was asked besides the temperature, in words; nothing where that is nothing."""
    changed = Processors(**settings.get("processors", {})).changed
    asked = [f"{name.replace('_', '-')} {value:g}" for name, value in changed.items()]
    if settings.get("temperatures_from_log"):
        asked = ["each row's own settings", *([f"else {', '.join(asked)}"] if asked else [])]
    return ", ".join(asked)


def _entropy(lengths: ResponseRecord) -> str:
    if lengths.entropy is None:
        return ""
    at = " at temperature 1" if lengths.temperature == 0 else ""
    return f"; the target's entropy{at} is {lengths.entropy.mean:.2f} nats a token"


def _result(summary: ResultSummary) -> RenderableType:
    acceptance = summary.acceptance
    config = _config(acceptance.config)
    title = Text.assemble(
        (inert(acceptance.drafter, 80), "bold"),
        f" ({inert(config, 300)}), temperature {acceptance.temperature:g}, {DRAFT_WORDS[acceptance.draft_sampling]}",
    )
    if acceptance.outside_share is not None:
        what = "the target's probability" if acceptance.expectation else "the response's tokens"
        title.append(f"; {format_percent(acceptance.outside_share)} of {what} outside what it can draft")
    deepest = summary.totals[-1]
    if not deepest.drafted_rounds:
        return Group(title, Padding(Text("no round had a draft: nothing to accept, 1 token per round"), (0, 2)))
    return Group(
        title,
        Padding(_positions(summary), (0, 2)),
        Padding(_depths(summary), (0, 2)),
        Padding(_curve(summary), (0, 2)),
        *([Padding(entropy_line(acceptance.by_entropy), (0, 2))] if acceptance.by_entropy else []),
    )


def _config(config: Mapping[str, Any]) -> str:
    """What matters of a drafter's settings; all of them are in the JSON."""
    parts = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            parts.append(f"{key}: {_config(value)}")
        elif key not in HIDDEN_SETTINGS and value is not None and value is not False:
            parts.append(f"{key} {value:,}" if key == "parameters" else f"{key} {value}")
    return ", ".join(parts)


def _positions(summary: ResultSummary) -> Table:
    """Acceptance by draft position at the largest depth: survival in drafted rounds, and given the ones before."""
    table = Table(box=None, padding=(0, 2, 0, 0), title=None, header_style="dim")
    table.add_column("position", justify="right")
    table.add_column(f"accepted up to here, depth {summary.totals[-1].depth}", no_wrap=True)
    table.add_column("conditional", justify="right")
    deepest = summary.totals[-1]
    for position, (survival, conditional) in enumerate(
        zip(deepest.survival or (), summary.conditional, strict=False), 1
    ):
        table.add_row(
            str(position),
            Text(f"{format_bar(survival, BAR_WIDTH)} {format_percent(survival):>7}"),
            format_percent(conditional),
        )
    return table


def _depths(summary: ResultSummary) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in (
        "depth",
        "tokens/round",
        "90 % interval",
        "accept. rate",
        "accept. length",
        "coverage",
    ):
        table.add_column(header, justify="right")
    best = max(summary.totals, key=lambda totals: totals.tokens_per_round or 0)
    for totals, interval in zip(summary.totals, summary.tokens_per_round, strict=True):
        table.add_row(
            str(totals.depth),
            format_number(totals.tokens_per_round),
            format_interval(interval.low, interval.high) if interval else "-",
            format_percent(totals.acceptance_rate),
            format_number(totals.mean_acceptance_length),
            format_percent(totals.coverage),
            style="bold" if totals.depth == best.depth else None,
        )
    return table


def _curve(summary: ResultSummary) -> Text:
    if summary.curve is None:
        return Text("no curve: this drafter chooses its own draft length, so depths are not nested", style="dim")
    best = summary.curve.best_curve
    if best is None:
        return Text("no curve: nothing to fit", style="dim")
    depth = summary.acceptance.depth
    if not summary.totals[-1].accepted_tokens:
        return Text("no curve: nothing was accepted", style="dim")
    of = " of the lower-variance estimates" if summary.lower_variance else ""
    text = f"curve{of}: {best.name} ({', '.join(f'{k} {v:.3g}' for k, v in _shown(best.params).items())})"
    fitted, further = best.mean_acceptance_length(depth), best.mean_acceptance_length(2 * depth)
    return Text(
        f"{text}; mean acceptance length {fitted:.2f} at depth {depth}, {further:.2f} extrapolated to {2 * depth}",
        style="dim",
    )


def _shown(params: Mapping[str, float]) -> Mapping[str, float]:
    return dict(list(params.items())[:4])


def _ladder(temperature: float, rungs: Sequence[Rung]) -> RenderableType:
    """What each step up to a dearer drafter bought."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("drafter", overflow="fold")
    table.add_column("takes a", no_wrap=True)
    table.add_column("tokens/round", justify="right", no_wrap=True)
    table.add_column("over the best before", justify="right", no_wrap=True)
    table.add_column("")
    for rung in rungs:
        step = ""
        if rung.step is not None:
            step = f"{rung.step.point:.2f}x {format_interval(rung.step.low, rung.step.high)}"
        table.add_row(
            Text(inert(rung.label, 60)),
            ADOPTION_WORDS[rung.adoption],
            f"{rung.tokens_per_round:.2f} at {rung.depth}",
            step,
            "" if rung.standing == "first" else rung.standing,
        )
    title = Text.assemble(
        (f"step by step, temperature {temperature:g}", "bold"), " (tokens per round; what a round costs is not in it)"
    )
    return Group(title, Padding(table, (0, 2)))


def _in_one_sentence(summaries: Sequence[ResultSummary]) -> Text:
    best = max(
        ((totals.tokens_per_round or 1.0, summary, totals) for summary in summaries for totals in summary.totals),
        key=lambda entry: (entry[0], -entry[2].depth),
    )
    tokens_per_round, summary, totals = best
    if tokens_per_round <= 1:
        return Text("No drafter had anything accepted on this traffic: without a trained drafter, don't speculate.")
    temperatures = {found.acceptance.temperature for found in summaries}
    at = f" at temperature {summary.acceptance.temperature:g}" if len(temperatures) > 1 else ""
    return Text.assemble(
        "Most tokens per round: ",
        (f"{inert(summary.acceptance.label, 60)} at depth {totals.depth}", "bold"),
        f", {tokens_per_round:.2f}{at}. Whether that is faster depends on what a round costs: specprobe recommend "
        "--concurrency 1,8,64",
    )


def render_fit(fit: CurveFit) -> RenderableType:
    """The report of `fit`: each model's parameters and what it predicts."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("depth", justify="right")
    table.add_column("given", justify="right")
    for curve in fit.models:
        table.add_column(curve.name + (" (best)" if curve.name == fit.best else ""), justify="right")
    for depth in range(1, fit.reported_depth + 1):
        table.add_row(
            str(depth),
            format_percent(fit.given.get(depth)),
            *(
                f"{format_percent(curve.acceptance_rate(depth))} / {curve.mean_acceptance_length(depth):.2f}"
                for curve in fit.models
            ),
        )
    parts: list[RenderableType] = [Text("acceptance rate / mean acceptance length, by depth"), table]
    for curve in fit.models:
        parts.append(Text(f"{curve.name}: {', '.join(f'{k} = {v:.4g}' for k, v in curve.params.items())}", style="dim"))
    if fit.notices:
        parts.append(render_notices(fit.notices))
    return Group(*parts)
