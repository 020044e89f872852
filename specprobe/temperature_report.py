"""Terminal reports of what moves acceptance: temperature, the group of a request, entropy. Nothing here computes.

Whatever comes out of a log (labels, groups, ids) goes into Text objects, never into markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from specprobe.blocks import Block, Cell, Column, Figures, Section, Sentence
from specprobe.breakdown import Concentration, GroupResult
from specprobe.entropy import EntropyQuartile
from specprobe.interval import MIN_PROMPTS
from specprobe.notices import inert
from specprobe.temperature import Anchor, DensePoint, TemperatureCurve, interpolation_error
from specprobe.temperature_verdicts import TemperatureVerdicts
from specprobe.units import (
    ABSENT,
    VERDICT_STYLES,
    VERDICT_WORDS,
    evenly,
    format_bar,
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
# Points of a curve over temperature, and the cells of its bars.
CURVE_POINTS = 9
BAR_WIDTH = 24
# Of tokens per round above 1: less is drawn as nothing.
NO_GAIN = 0.01


def render_temperatures(curves: Sequence[TemperatureCurve]) -> Block:
    """For each drafter tokens per round and acceptance rate by temperature, and the curve through them at the largest
    depth; how far interpolation is off."""
    parts: list[Block] = []
    for _, of_drafter in groupby(curves, key=lambda curve: (curve.drafter, curve.config, curve.draft_sampling)):
        found = list(of_drafter)
        shown = [curve for curve in found if curve.depth in SHOWN_DEPTHS] or found[:1]
        label = inert(shown[0].label, 78)
        tables = [Section([table], indent=2) for table in _temperature_tables(shown)]
        parts.append(Section([*tables, Section([_drawn(found[-1])], indent=2)], title=label, name=label))
    parts.append(_interpolation_error(curves))
    title = Text.assemble(("tokens per round by temperature", "bold"), " (acceptance rate); rows: depth")
    return Section(parts, title=title, name="by temperature")


def _drawn(curve: TemperatureCurve) -> Block:
    """The curve of one depth as bars of the gain over 1 token a round: measured, and interpolated between."""
    dense = curve.dense
    measured = {number for number, point in enumerate(dense) if not point.interpolated}
    numbers = sorted(measured | set(evenly(len(dense), CURVE_POINTS)))
    highest = max(point.tokens_per_round for point in dense)
    columns = [
        Column("T", "temperature"),
        Column("", "tokens per round", is_number=False),
        Column("", "how", is_number=False),
    ]
    return Section(
        [Figures(columns, [_point(dense[n], highest) for n in numbers])],
        title=f"at depth {curve.depth} (bars begin at 1, which is no gain)",
        name=f"depth {curve.depth}",
    )


def _point(point: DensePoint, highest: float) -> tuple[Cell | str, ...]:
    figure = format_number(point.tokens_per_round)
    bar = format_bar((point.tokens_per_round - 1) / max(highest - 1, NO_GAIN), BAR_WIDTH)
    how = "interpolated" if point.interpolated else "measured"
    return f"{point.temperature:g}", Cell(f"{bar} {figure}", figure), how


def render_verdicts_by_temperature(temperatures: Sequence[TemperatureVerdicts]) -> Block:
    """The verdict at each temperature, one row for each concurrency and temperature, and where it breaks even."""
    by_clock = any(verdict.by_clock for found in temperatures for _, verdict in found.verdicts)
    columns = [
        Column("in flight", "requests in flight") if by_clock else Column("conc.", "concurrency"),
        Column("temp.", "temperature"),
        Column("latency speed-up", "speed-up of the mean request latency") if by_clock else Column("speed-up"),
        Column("verdict", is_number=False),
        Column("best", "best drafter and depth", is_number=False, wraps=True),
    ]
    rows = [
        (
            str(found.concurrency),
            f"{temperature:g}",
            f"{verdict.best.speedup:.2f}x",
            Text(VERDICT_WORDS[verdict.verdict], style=VERDICT_STYLES[verdict.verdict]),
            f"{inert(verdict.best.label, 60)} {verdict.best.depth}",
        )
        for found in temperatures
        for temperature, verdict in found.verdicts
    ]
    table = Section([Figures(columns, rows, num_keys=2)], indent=2)
    return Section([table, *map(render_break_even, temperatures)], title=Text("by temperature", style="bold"))


def render_break_even(found: TemperatureVerdicts) -> Block:
    """Where between two temperatures of the run the best option is as fast as none."""
    if not found.same_requests:
        said = "each temperature has requests of its own, so it is not the temperature alone that differs"
    elif found.break_even:
        turns = ", ".join(f"{temperature:.2f}" for temperature in found.break_even)
        said = f"breaks even near temperature {turns} (interpolated between the points, whatever their intervals)"
    else:
        side = "faster" if found.verdicts[0][1].best.speedup > 1 else "slower"
        said = f"the best is {side} than not speculating at every one of these temperatures"
    at = f"concurrency {found.concurrency}"
    return Sentence(f"{at}, by temperature", Text(said, style="dim"), lead=Text(f"{at}: ", style="dim"))


def render_groups(groups: Sequence[GroupResult]) -> Block:
    """One row for each group of requests, the one that gains most first."""
    columns = [
        Column("group", is_number=False, wraps=True),
        Column("responses"),
        Column("tokens/round", "tokens per round"),
        Column("90 % interval"),
        Column("accept. rate", "acceptance rate"),
        Column("accept. length", "mean acceptance length"),
    ]
    rows = [
        (
            inert(group.label),
            format_count(group.totals.responses),
            format_number(group.totals.tokens_per_round),
            (format_interval(group.interval.low, group.interval.high) if group.interval else ABSENT)
            + (" " if group.enough_prompts else "*"),
            format_percent(group.totals.acceptance_rate),
            format_number(group.totals.mean_acceptance_length),
        )
        for group in groups
    ]
    depth = f" at depth {groups[0].totals.depth}" if groups else ""
    parts: list[Block] = [Section([Figures(columns, rows)], indent=2)]
    if not all(group.enough_prompts for group in groups):
        said = f"fewer than {MIN_PROMPTS} prompts: the interval is too narrow or missing"
        parts.append(Sentence("intervals with *", Text(said, style="dim"), lead=Text("* ", style="dim")))
    return Section(parts, title=Text(f"by group{depth}", style="bold"), name=f"by group{depth}")


def render_concentration(found: Concentration | None) -> Block:
    """How few requests the gain comes from, in plain sentences; None: nobody knows."""
    return Sentence("spread over requests", concentration_in_words(found))


def concentration_in_words(found: Concentration | None) -> str:
    """How few requests the gain comes from, and who gains most and least."""
    if found is None:
        return "Not known: the engine's counters are sums, which do not tell requests apart."
    requests = format_plural(found.requests, "request")
    if found.requests_for_half is None:
        return f"At depth {found.depth} none of {requests} gained anything."
    if found.requests == 1:
        return f"At depth {found.depth} there is one request alone, so all of the gain is its own."
    nothing = found.requests_with_nothing_accepted
    # A tenth of a handful is one.
    tenth = f", {format_percent(found.top_tenth_share)} from the best tenth" if found.requests >= 20 else ""
    lost = "" if nothing is None else f"; {format_plural(nothing, 'request') if nothing else 'no request'} got nothing"
    return (
        f"At depth {found.depth}, half of the gain comes from {found.requests_for_half} of {requests}"
        f"{tenth}{lost}.{_spread(found)}"
    )


def entropy_line(quartiles: Sequence[EntropyQuartile]) -> Block:
    """Acceptance of draft tokens by the entropy of the target where they were drafted."""
    shares = ", ".join(format_percent(quartile.acceptance) for quartile in quartiles)
    borders = ", ".join(format_number(quartile.high, 2) for quartile in quartiles[:-1])
    name = "accepted, given the drafts before it, by quartile of the target's entropy"
    said = f"{shares} (borders {borders} nats)"
    return Sentence(name, Text(said, style="dim"), lead=Text(f"{name}: ", style="dim"))


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


def _temperature_tables(curves: Sequence[TemperatureCurve]) -> list[Block]:
    """The depths of one drafter; more temperatures than fit go into further tables."""
    temperatures = sorted({anchor.temperature for curve in curves for anchor in curve.anchors})
    tables: list[Block] = []
    for first in range(0, len(temperatures), TEMPERATURES_PER_TABLE):
        some = temperatures[first : first + TEMPERATURES_PER_TABLE]
        columns = [Column("depth"), *(Column(f"T = {t:g}", f"temperature {t:g}") for t in some)]
        rows = []
        for curve in curves:
            measured = {anchor.temperature: anchor for anchor in curve.anchors}
            rows.append((str(curve.depth), *(_cell(measured.get(temperature)) for temperature in some)))
        tables.append(Figures(columns, rows))
    return tables


def _cell(anchor: Anchor | None) -> str:
    """`1.85 (45 %)`."""
    if anchor is None:
        return ABSENT
    rate = ABSENT if anchor.acceptance_rate is None else f"{100 * anchor.acceptance_rate:.0f} %"
    return f"{anchor.tokens_per_round:.2f} ({rate})"


def _interpolation_error(curves: Sequence[TemperatureCurve]) -> Block:
    error = interpolation_error(curves)
    said = "How far off interpolation between two temperatures is, is not known: give a third."
    if error is not None:
        median, largest = map(format_percent, error)
        said = "With a temperature left out, what the others say of its gain (tokens per round above 1) is off by "
        said += f"{median} of that in the median, {largest} at most."
    return Sentence("interpolation", Text(said, style="dim"))
