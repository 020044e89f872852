"""The one screen of `analyze`: the best drafter, a line for each, how the gain is spread, and what to run next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from specprobe.blocks import AnyCell, Block, Cell, Column, Figures, Gap, Section, Sentence
from specprobe.labels import label_cells
from specprobe.notice_report import render_notices_briefly
from specprobe.notices import inert
from specprobe.precision_report import precision_in_words
from specprobe.run import Run
from specprobe.run_words import NOT_SAID, size_of, sources_of
from specprobe.summary import ResultSummary, RunSummary, best_by_temperature
from specprobe.units import (
    ABSENT,
    evenly,
    format_count,
    format_curve,
    format_interval,
    format_number,
    format_percent,
    format_plural,
)

# What leaves room for the rest of a screen of 24 lines; all of them are among the details.
MOST_RESULTS = 9
MOST_GROUPS = 4
# Cells of the curve over positions.
WIDEST_CURVE = 16
# A temperature that is a guess.
UNKNOWN = f" at an unknown temperature ({NOT_SAID})"
UNKNOWN_CELL = Cell("?", NOT_SAID)


def render_glance(run: Run, derived: RunSummary, *, details: bool = False) -> Block:
    """The answer first. With `details`, what these give in full is not told here."""
    parts: list[Block] = [_answer(run, derived.results), Gap(), _results(run, derived.results)]
    if details:
        return Section(parts)
    parts.append(Gap())
    if gains := _who_gains(best_by_temperature(derived.results)):
        parts.append(gains)
    parts.append(Sentence("measured", _what_was_measured(run), lead="Measured: "))
    if precision := run.precision:
        parts.append(Sentence("precision", precision_in_words(precision), lead="Precision: "))
    if run.notices:
        parts.append(render_notices_briefly(run.notices))
    shown = "every position and depth, curves, who gains, warnings in full"
    parts.append(Sentence("more", f"--details ({shown})", lead="More: "))
    return Section(parts)


def _answer(run: Run, summaries: Sequence[ResultSummary]) -> Block:
    best = max(summaries, key=lambda one: one.most_tokens_per_round)
    tokens_per_round, depth = best.most_tokens_per_round, best.best.depth
    if tokens_per_round <= 1:
        none = "No drafter had anything accepted on this traffic: without a trained drafter, don't speculate."
        return Sentence("most tokens per round", none)
    at = f" and temperature {best.acceptance.temperature:g}" if len(run.temperatures) > 1 else ""
    answer = Text.assemble(
        (f"{inert(best.acceptance.label, 60)} at depth {depth}{at}", "bold"), f", {tokens_per_round:.2f}"
    )
    # Without a target there is nothing here to time.
    further = "" if run.target else " --gpu h100 --target MODEL"
    answer.append(
        f". Whether that is faster depends on what a round costs: specprobe recommend --concurrency 1,8,64{further}"
    )
    return Sentence("most tokens per round", answer, lead="Most tokens per round: ")


def _results(run: Run, summaries: Sequence[ResultSummary]) -> Block:
    depth = max(summary.acceptance.depth for summary in summaries)
    columns = [
        Column("drafter", is_number=False, wraps=True),
        Column("temp.", "temperature"),
        Column("depth", "best depth"),
        Column("tokens/round", "tokens per round"),
        Column("90 % interval"),
        Column(f"accepted up to position 1..{depth}", "accepted up to each position", is_number=False),
    ]
    shown = sorted(summaries, key=lambda one: one.most_tokens_per_round, reverse=True)[:MOST_RESULTS]
    labels = label_cells(summary.acceptance.label for summary in summaries)
    rows = [(labels[one.acceptance.label], _temperature(run, one), *_result(one)) for one in summaries if one in shown]
    table = Figures(columns, rows, num_keys=2, repeats_keys=True)
    left = len(summaries) - len(shown)
    more = f"{format_plural(left, 'result')} with fewer tokens per round: --details"
    return Section([table, *([Sentence("left out", more)] if left else [])])


def _temperature(run: Run, summary: ResultSummary) -> AnyCell:
    return f"{summary.acceptance.temperature:g}" if run.temperature_is_known else UNKNOWN_CELL


def _result(summary: ResultSummary) -> tuple[AnyCell, ...]:
    depth = summary.best.depth
    interval = summary.tokens_per_round[depth - 1]
    return (
        str(depth),
        f"{summary.most_tokens_per_round:.2f}",
        format_interval(interval.low, interval.high) if interval else ABSENT,
        _positions(summary.totals[-1].survival or ()),
    )


def _positions(survival: Sequence[float]) -> Cell:
    """From the first position to the last, with the curve between them."""
    if not survival:
        return Cell("nothing drafted", "nothing drafted")
    curve = format_curve([survival[position] for position in evenly(len(survival), WIDEST_CURVE)])
    said = ", ".join(map(format_percent, survival))
    ends = (survival[0], survival[-1])
    first, last = map(format_percent, ends)
    short_first, short_last = (f"{100 * share:.0f} %" for share in ends)
    return Cell(f"{first} {curve} {last}", said, f"{short_first} {curve} {short_last}")


def _who_gains(best: Sequence[ResultSummary]) -> Block | None:
    """Of the first temperature: from how few requests the gain comes, and which groups have most of it."""
    summary = best[0]
    found = summary.concentration
    # Of a single request there is nothing to compare.
    if found is None or found.requests_for_half is None or found.requests < 2:
        return None
    at = f" at temperature {summary.acceptance.temperature:g}" if len(best) > 1 else ""
    text = f"half of {inert(summary.acceptance.label, 60)}'s gain{at} comes from {found.requests_for_half} of "
    text += format_plural(found.requests, "request")
    if groups := summary.groups[:MOST_GROUPS]:
        told = ", ".join(f"{inert(group.label)} {format_number(group.totals.tokens_per_round)}" for group in groups)
        left = len(summary.groups) - len(groups)
        text += f"; tokens per round by group: {told}{f', {left} more' if left else ''}"
    return Sentence("who gains", f"{text}.", lead="Who gains: ")


def _what_was_measured(run: Run) -> str:
    text = f"{size_of(run)} of {sources_of(run)}"
    for source, records in groupby(run.responses, key=lambda lengths: lengths.source):
        told = [
            f"{format_count(int(one.output_tokens.sum()))}"
            + ("" if number else f" tokens {source}")
            + (f" at {'' if number else 'temperature '}{one.temperature:g}" if one.temperature_is_known else UNKNOWN)
            for number, one in enumerate(records)
        ]
        text += f"; {', '.join(told)}"
    if run.target is not None:
        text += f"; target {inert(str(run.target['name']), 200)}"
    return f"{text}; rules of {run.engine_profile}."
