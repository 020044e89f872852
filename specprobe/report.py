"""The report of `analyze` in full, and that of `fit`. Nothing here computes or prints.

Whatever comes out of a log (names, ids, file names) goes into Text objects, never into markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from specprobe.asked import MOST_TEMPERATURES
from specprobe.blocks import Block, Cell, Column, Figures, Gap, Pairs, Said, Section, Sentence
from specprobe.curve import CurveFit
from specprobe.drafters.base import ADOPTION_WORDS
from specprobe.ladder import Rung
from specprobe.notice_report import render_notices
from specprobe.notices import inert
from specprobe.precision_report import precision_in_words
from specprobe.processors import Processors
from specprobe.run import ResponseRecord, Run
from specprobe.run_glance import render_glance
from specprobe.run_words import NOT_SAID, size_of, sources_of, temperature_of
from specprobe.summary import ResultSummary, RunSummary, best_by_temperature
from specprobe.temperature_report import (
    entropy_line,
    render_concentration,
    render_groups,
    render_temperatures,
)
from specprobe.units import (
    ABSENT,
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


def render_run(run: Run, derived: RunSummary, *, details: bool = False) -> Block:
    """The report of `analyze`: the answer on one screen, and with `details` everything that was measured after it."""
    parts: list[Block] = [render_glance(run, derived, details=details)]
    if not details:
        return Section(parts)
    parts += [Gap(), _what_was_measured(run)]
    for summary in derived.results:
        parts += [Gap(), _result(run, summary)]
    for temperature, rungs in derived.ladders:
        # Two flags side by side need no steps between them.
        if len(rungs) > 2 or len({rung.adoption for rung in rungs}) > 1:
            parts += [Gap(), _ladder(temperature_of(run, temperature), rungs)]
    if derived.temperature_curves:
        parts += [Gap(), render_temperatures(derived.temperature_curves)]
    for summary in best_by_temperature(derived.results):
        parts += [Gap(), _who_gains(run, summary)]
    if run.notices:
        parts += [Gap(), render_notices(run.notices)]
    return Section(parts)


def _who_gains(run: Run, summary: ResultSummary) -> Block:
    """Which groups and requests the gain comes from."""
    acceptance = summary.acceptance
    of = f"{inert(acceptance.label, 60)}, {temperature_of(run, acceptance.temperature)}"
    groups = [render_groups(summary.groups)] if summary.groups else []
    return Section(
        [render_concentration(summary.concentration), *groups],
        title=Text.assemble(("who gains", "bold"), f": {of}"),
        name=of,
        indent=2,
    )


def _what_was_measured(run: Run) -> Block:
    workload = run.workload
    columns = ", ".join(inert(str(column)) for column in workload.get("columns", ()))
    rows_read = format_plural(workload["rows"], "row")
    rows = [
        (
            "workload",
            f"{sources_of(run)}: {size_of(run)}{'' if run.engine_numbers else f' of {rows_read}'} "
            f"(format {workload['format']}{f', column {columns}' if columns else ''})",
        )
    ]
    if workload["skipped"]:
        skipped = ", ".join(f"{reason} {format_count(n)}" for reason, n in sorted(workload["skipped"].items()))
        rows.append(("skipped", skipped))
    if asked := _asked_temperatures(workload.get("temperatures", ())):
        rows.append(("the log asks", asked))
    for lengths in run.responses:
        total = int(lengths.output_tokens.sum())
        rows.append(
            (
                "responses",
                f"{format_plural(len(lengths.ids), 'response')}, {format_count(total)} tokens, {lengths.source}"
                + (f" at temperature {lengths.temperature:g}" if lengths.temperature_is_known else "")
                + _entropy(lengths),
            )
        )
        if not lengths.temperature_is_known:
            rows.append(("temperature", NOT_SAID))
    if run.target is not None:
        record = run.target
        details = [inert(str(record[key]), 120) for key in TARGET_DETAILS if record.get(key)]
        rows.append(("target", inert(str(record["name"]), 200) + (f" ({', '.join(details)})" if details else "")))
    if sampling := _sampling(run.settings):
        rows.append(("sampling", sampling))
    rows.append(("engine rules", run.engine_profile))
    if run.in_flight > 1:
        requests = format_plural(run.in_flight, "request")
        rows.append(("in flight", f"{requests}, whose tokens fill suffix decoding's shared tree side by side"))
    if precision := run.precision:
        rows.append(("precision", precision_in_words(precision)))
    return Pairs(rows)


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


def _result(run: Run, summary: ResultSummary) -> Block:
    acceptance = summary.acceptance
    temperature = temperature_of(run, acceptance.temperature)
    config = _config(acceptance.config)
    title = Text.assemble(
        (inert(acceptance.drafter, 80), "bold"),
        f" ({inert(config, 300)}), {temperature}, {DRAFT_WORDS[acceptance.draft_sampling]}",
    )
    if acceptance.outside_share is not None:
        what = "the target's probability" if acceptance.expectation else "the response's tokens"
        title.append(f"; {format_percent(acceptance.outside_share)} of {what} outside what it can draft")
    name = f"{inert(acceptance.label, 60)}, {temperature}"
    blocks: list[Block] = [
        _positions(summary),
        _depths(summary),
        _curve(summary),
        *([entropy_line(acceptance.by_entropy)] if acceptance.by_entropy else []),
    ]
    if not summary.totals[-1].drafted_rounds:
        blocks = [Sentence("drafted", "no round had a draft: nothing to accept, 1 token per round")]
    settings = f"{inert(config, 300) or 'none'}, {DRAFT_WORDS[acceptance.draft_sampling]}"
    return Section([Said("settings", settings), *blocks], title=title, name=name, indent=2)


def _config(config: Mapping[str, Any]) -> str:
    """What matters of a drafter's settings; all of them are in the JSON."""
    parts = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            parts.append(f"{key}: {_config(value)}")
        elif key not in HIDDEN_SETTINGS and value is not None and value is not False:
            parts.append(f"{key} {value:,}" if key == "parameters" else f"{key} {value}")
    return ", ".join(parts)


def _positions(summary: ResultSummary) -> Block:
    """Acceptance by draft position at the largest depth: survival in drafted rounds, and given the ones before."""
    deepest = summary.totals[-1]
    accepted = f"accepted up to here, depth {deepest.depth}"
    rows = [
        (
            str(position),
            Cell(f"{format_bar(survival, BAR_WIDTH)} {format_percent(survival):>7}", format_percent(survival)),
            format_percent(conditional),
        )
        for position, (survival, conditional) in enumerate(
            zip(deepest.survival or (), summary.conditional, strict=False), 1
        )
    ]
    return Figures([Column("position"), Column(accepted, is_number=False), Column("conditional")], rows)


def _depths(summary: ResultSummary) -> Block:
    headers = ("depth", "tokens/round", "90 % interval", "accept. rate", "accept. length", "coverage")
    names = ("depth", "tokens per round", "90 % interval", "acceptance rate", "mean acceptance length", "coverage")
    best = summary.best
    counted = [
        (totals, interval)
        for totals, interval in zip(summary.totals, summary.tokens_per_round, strict=True)
        if totals.depth >= summary.acceptance.first_depth
    ]
    rows = [
        (
            str(totals.depth),
            format_number(totals.tokens_per_round),
            format_interval(interval.low, interval.high) if interval else ABSENT,
            format_percent(totals.acceptance_rate),
            format_number(totals.mean_acceptance_length),
            format_percent(totals.coverage),
        )
        for totals, interval in counted
    ]
    styles = ["bold" if totals.depth == best.depth else "" for totals, _ in counted]
    return Figures([Column(*pair) for pair in zip(headers, names, strict=True)], rows, styles=styles)


def _curve(summary: ResultSummary) -> Block:
    return Sentence("curve", Text(_curve_words(summary), style="dim"), lead=Text("curve: ", style="dim"))


def _curve_words(summary: ResultSummary) -> str:
    if summary.curve is None:
        return "none, since this drafter chooses its own draft length, so depths are not nested"
    best = summary.curve.best_curve
    if best is None:
        return "none, since there is nothing to fit"
    depth = summary.acceptance.depth
    if not summary.totals[-1].accepted_tokens:
        return "none, since nothing was accepted"
    of = "of the lower-variance estimates, " if summary.lower_variance else ""
    text = f"{of}{best.name} ({', '.join(f'{k} {v:.3g}' for k, v in _shown(best.params).items())})"
    fitted, further = best.mean_acceptance_length(depth), best.mean_acceptance_length(2 * depth)
    return f"{text}; mean acceptance length {fitted:.2f} at depth {depth}, {further:.2f} extrapolated to {2 * depth}"


def _shown(params: Mapping[str, float]) -> Mapping[str, float]:
    return dict(list(params.items())[:4])


def _ladder(temperature: str, rungs: Sequence[Rung]) -> Block:
    """What each step up to a dearer drafter bought."""
    rows = []
    for rung in rungs:
        step = ""
        if rung.step is not None:
            step = f"{rung.step.point:.2f}x {format_interval(rung.step.low, rung.step.high)}"
        rows.append(
            (
                inert(rung.label, 60),
                ADOPTION_WORDS[rung.adoption],
                f"{rung.tokens_per_round:.2f} at {rung.depth}",
                step,
                "" if rung.standing == "first" else rung.standing,
            )
        )
    columns = [
        Column("drafter", is_number=False, wraps=True),
        Column("takes a", is_number=False),
        Column("tokens/round", "tokens per round and depth"),
        Column("over the best before"),
        Column("", "judged", is_number=False),
    ]
    title = Text.assemble(
        (f"step by step, {temperature}", "bold"), " (tokens per round; what a round costs is not in it)"
    )
    return Section([Figures(columns, rows)], title=title, name=f"step by step, {temperature}", indent=2)


def render_fit(fit: CurveFit) -> Block:
    """The report of `fit`: each model's parameters and what it predicts."""
    columns = [Column("depth"), Column("given")]
    columns += [Column(curve.name + (" (best)" if curve.name == fit.best else "")) for curve in fit.models]
    rows = [
        (
            str(depth),
            format_percent(fit.given.get(depth)),
            *(
                f"{format_percent(curve.acceptance_rate(depth))} / {curve.mean_acceptance_length(depth):.2f}"
                for curve in fit.models
            ),
        )
        for depth in range(1, fit.reported_depth + 1)
    ]
    what = "acceptance rate / mean acceptance length"
    parts: list[Block] = [Section([Figures(columns, rows)], title=f"{what}, by depth", name=what)]
    for curve in fit.models:
        params = ", ".join(f"{k} = {v:.4g}" for k, v in curve.params.items())
        parts.append(Sentence(curve.name, Text(params, style="dim"), lead=Text(f"{curve.name}: ", style="dim")))
    if fit.notices:
        parts.append(render_notices(fit.notices))
    return Section(parts)
