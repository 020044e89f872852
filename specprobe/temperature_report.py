"""Terminal reports of what moves acceptance: temperature, the group of a request, entropy. Nothing here computes.

Whatever comes out of a log (labels, groups, ids) goes into Text objects, never into markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specprobe.breakdown import Concentration, GroupResult
from specprobe.entropy import EntropyQuartile
from specprobe.interval import MIN_PROMPTS
from specprobe.notices import inert
from specprobe.temperature import Anchor, TemperatureCurve, interpolation_error
from specprobe.temperature_verdicts import TemperatureVerdicts
from specprobe.units import (
    ABSENT,
    VERDICT_STYLES,
    VERDICT_WORDS,
    format_count,
    format_interval,
    format_number,
    format_percent,
    format_plural,
)

# Enough to see the shape; all depths are in the JSON.
SHOWN_DEPTHS = (1, 2, 3, 4, 6, 8)
# What fits in 80 columns.
TEMPERATURES_PER_TABLE = 5


def render_temperatures(curves: Sequence[TemperatureCurve]) -> RenderableType:
    """Tokens per round and acceptance rate by temperature, one table for each drafter; how far interpolation is off."""
    parts: list[RenderableType] = [
        Text.assemble(("tokens per round by temperature", "bold"), " (acceptance rate); rows: depth")
    ]
    for _, of_drafter in groupby(curves, key=lambda curve: (curve.drafter, curve.config, curve.draft_sampling)):
        shown = [curve for curve in of_drafter if curve.depth in SHOWN_DEPTHS]
        parts.append(Text(inert(shown[0].label, 78)))
        parts += [Padding(table, (0, 2)) for table in _temperature_tables(shown)]
    parts.append(_interpolation_error(curves))
    return Group(*parts)


def render_verdicts_by_temperature(temperatures: Sequence[TemperatureVerdicts]) -> RenderableType:
    """The verdict at each temperature, one row for each concurrency and temperature, and where it breaks even."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in ("conc.", "temp.", "speed-up"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("best", overflow="fold")
    for found in temperatures:
        for number, (temperature, verdict) in enumerate(found.verdicts):
            table.add_row(
                Text("" if number else str(found.concurrency)),
                Text(f"{temperature:g}"),
                Text(f"{verdict.best.speedup:.2f}x"),
                Text(VERDICT_WORDS[verdict.verdict], style=VERDICT_STYLES[verdict.verdict]),
                Text(f"{inert(verdict.best.label, 60)} {verdict.best.depth}"),
            )
    return Group(Text("by temperature", style="bold"), Padding(table, (0, 2)), *map(_break_even, temperatures))


def _break_even(found: TemperatureVerdicts) -> Text:
    """Where between two temperatures of the run the best option is as fast as none."""
    if not found.same_requests:
        said = "each temperature has requests of its own, so it is not the temperature alone that differs"
    elif found.break_even:
        turns = ", ".join(f"{temperature:.2f}" for temperature in found.break_even)
        said = f"breaks even near temperature {turns} (interpolated between the points, whatever their intervals)"
    else:
        side = "faster" if found.verdicts[0][1].best.speedup > 1 else "slower"
        said = f"the best is {side} than not speculating at every one of these temperatures"
    return Text(f"concurrency {found.concurrency}: {said}", style="dim")


def render_groups(groups: Sequence[GroupResult]) -> RenderableType:
    """One row for each group of requests, the one that gains most first."""
    table = _table("group", "responses", "tokens/\nround", "90 % interval", "accept.\nrate", "accept.\nlength")
    for group in groups:
        totals = group.totals
        _add_row(
            table,
            inert(group.label),
            format_count(totals.responses),
            format_number(totals.tokens_per_round),
            (format_interval(group.interval.low, group.interval.high) if group.interval else ABSENT)
            + (" " if group.enough_prompts else "*"),
            format_percent(totals.acceptance_rate),
            format_number(totals.mean_acceptance_length),
        )
    depth = f" at depth {groups[0].totals.depth}" if groups else ""
    parts: list[RenderableType] = [Text(f"by group{depth}", style="bold"), Padding(table, (0, 2))]
    if not all(group.enough_prompts for group in groups):
        parts.append(Text(f"* fewer than {MIN_PROMPTS} prompts: the interval is too narrow or missing", style="dim"))
    return Group(*parts)


def render_concentration(found: Concentration) -> Text:
    """How few requests the gain comes from, in plain sentences."""
    requests = format_plural(found.requests, "request")
    if found.requests_for_half is None:
        return Text(f"At depth {found.depth} none of {requests} gained anything.")
    nothing = found.requests_with_nothing_accepted
    # A tenth of a handful is one.
    tenth = f", {format_percent(found.top_tenth_share)} from the best tenth" if found.requests >= 20 else ""
    lost = "" if nothing is None else f"; {format_plural(nothing, 'request') if nothing else 'no request'} got nothing"
    return Text(
        f"At depth {found.depth}, half of the gain comes from {found.requests_for_half} of {requests}"
        f"{tenth}{lost}.{_spread(found)}"
    )


def entropy_line(quartiles: Sequence[EntropyQuartile]) -> Text:
    """Acceptance of draft tokens by the entropy of the target where they were drafted."""
    shares = ", ".join(format_percent(quartile.acceptance) for quartile in quartiles)
    borders = ", ".join(format_number(quartile.high, 2) for quartile in quartiles[:-1])
    return Text(
        f"accepted, given the drafts before it, by quartile of the target's entropy (borders {borders} nats): {shares}",
        style="dim",
    )


def _spread(found: Concentration) -> str:
    """A sentence about tokens per round of single requests."""
    if found.quartiles is None:
        return ""
    first, median, third = map(format_number, found.quartiles)
    text = f" The middle half of them write {first} to {third} tokens per round, the median {median}"
    for which, named in (("most", found.best), ("fewest", found.worst)):
        if named:
            text += f"; {which}: " + ", ".join(f"{inert(str(name))} ({format_number(value)})" for name, value in named)
    return text + "."


def _temperature_tables(curves: Sequence[TemperatureCurve]) -> list[Table]:
    """The depths of one drafter; more temperatures than fit go into further tables."""
    temperatures = sorted({anchor.temperature for curve in curves for anchor in curve.anchors})
    tables = []
    for first in range(0, len(temperatures), TEMPERATURES_PER_TABLE):
        columns = temperatures[first : first + TEMPERATURES_PER_TABLE]
        table = _table("depth", *(f"T = {temperature:g}" for temperature in columns))
        for curve in curves:
            measured = {anchor.temperature: anchor for anchor in curve.anchors}
            _add_row(table, str(curve.depth), *(_cell(measured.get(temperature)) for temperature in columns))
        tables.append(table)
    return tables


def _cell(anchor: Anchor | None) -> str:
    """`1.85 (45 %)`."""
    if anchor is None:
        return ABSENT
    rate = ABSENT if anchor.acceptance_rate is None else f"{100 * anchor.acceptance_rate:.0f} %"
    return f"{anchor.tokens_per_round:.2f} ({rate})"


def _interpolation_error(curves: Sequence[TemperatureCurve]) -> Text:
    error = interpolation_error(curves)
    if error is None:
        return Text("How far off interpolation between two temperatures is, is not known: give a third.", style="dim")
    median, largest = map(format_percent, error)
    return Text(
        f"With a temperature left out, what the others say of its gain (tokens per round above 1) is off by {median} "
        f"of that in the median, {largest} at most.",
        style="dim",
    )


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(Text(first), overflow="fold")
    for header in others:
        table.add_column(Text(header), justify="right", no_wrap=True)
    return table


def _add_row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(cell) for cell in cells))
