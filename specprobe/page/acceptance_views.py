"""Acceptance as figures: by position, by depth, by temperature, by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specprobe.interval import Interval
from specprobe.page.charts import Axis, Line, Naming, line_chart
from specprobe.page.parts import DataTable, FigureView, method_names, shown
from specprobe.summary import ResultSummary
from specprobe.temperature import TemperatureCurve
from specprobe.units import ABSENT, format_interval, format_number, format_percent, format_plural

# Of the sorted requests, so many points are drawn: more cannot be told apart.
MOST_POINTS = 200

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A result, what the page calls it, and the number of its colour."""

    label: str
    found: ResultSummary
    look: int


def acceptance_figures(key: str, of: str, named: Sequence[Named]) -> tuple[FigureView, ...]:
    """Acceptance by position (given those before, and up to here) and tokens per round by depth; none without drafts.

    `key` tells these figures from others of the page, `of` what they are of, to those who cannot see the heading.
    """
    drafted = [one for one in named if one.found.totals[-1].drafted_rounds]
    if not drafted:
        return ()
    return (
        _conditional(f"{key}-conditional", of, drafted),
        _survival(f"{key}-survival", of, drafted),
        _tokens_per_round(f"{key}-tokens", of, drafted),
    )


def _conditional(key: str, of: str, named: Sequence[Named]) -> FigureView:
    lines, rows = [], []
    for one in named:
        label, found = one.label, one.found
        low, high = _ends(found.conditional_intervals)
        curve = found.curve.best_curve if found.curve and found.totals[-1].accepted_tokens else None
        depth = len(found.conditional)
        fit = curve.conditional(depth) if curve else None
        lines.append(Line(label, one.look, _count(depth), _floats(found.conditional), low, high, fit))
        for position, (share, interval) in enumerate(
            zip(found.conditional, found.conditional_intervals, strict=True), 1
        ):
            fitted = ABSENT if fit is None else format_percent(float(fit[position - 1]))
            rows.append((shown(label), str(position), format_percent(share), _percents(interval), fitted))
    caption = "Accepted, given the drafts before it"
    fits = [
        f"{shown(one.label)}: {one.found.curve.best}"
        for one in named
        if one.found.curve is not None and one.found.curve.best
    ]
    return FigureView(
        caption=caption,
        svg=line_chart(
            Naming(key, caption, f"Share accepted at each draft position, {of}, {_of(named)}. A table follows."),
            lines,
            Axis("draft position", whole=True),
            Axis("accepted", percent=True, start=0, end=1.03),
        ),
        table=DataTable(
            _table_caption(caption, of), ("method", "position", "accepted", "90 % interval", "fit"), tuple(rows)
        ),
        note=f"Fitted curve: {'; '.join(fits)}."
        if fits
        else "No curve is fitted where a method chooses its own draft length.",
    )


def _survival(key: str, of: str, named: Sequence[Named]) -> FigureView:
    lines, rows = [], []
    for one in named:
        label, found = one.label, one.found
        survival = found.totals[-1].survival or ()
        lines.append(Line(label, one.look, _count(len(survival)), _floats(survival)))
        rows += [(shown(label), str(i), format_percent(share)) for i, share in enumerate(survival, 1)]
    caption = "Accepted up to here"
    return FigureView(
        caption=caption,
        svg=line_chart(
            Naming(key, caption, f"Share of drafts accepted up to each position, {of}, {_of(named)}. A table follows."),
            lines,
            Axis("draft position", whole=True),
            Axis("accepted", percent=True, start=0, end=1.03),
        ),
        table=DataTable(_table_caption(caption, of), ("method", "position", "accepted up to here"), tuple(rows)),
        note="Of rounds with a draft; vLLM's acceptance rate per position.",
    )


def _tokens_per_round(key: str, of: str, named: Sequence[Named]) -> FigureView:
    lines, rows = [], []
    for one in named:
        label, found = one.label, one.found
        low, high = _ends(found.tokens_per_round)
        points = _floats([totals.tokens_per_round for totals in found.totals])
        lines.append(Line(label, one.look, _count(len(points)), points, low, high))
        for totals, interval in zip(found.totals, found.tokens_per_round, strict=True):
            rows.append(
                (
                    shown(label),
                    str(totals.depth),
                    format_number(totals.tokens_per_round),
                    _numbers(interval),
                    format_percent(totals.acceptance_rate),
                    format_number(totals.mean_acceptance_length),
                    format_percent(totals.coverage),
                )
            )
    caption = "Tokens per round"
    columns = (
        "method",
        "depth",
        "tokens per round",
        "90 % interval",
        "acceptance rate",
        "acceptance length",
        "coverage",
    )
    return FigureView(
        caption=caption,
        svg=line_chart(
            Naming(key, caption, f"Tokens per round at each depth, {of}, {_of(named)}. A table follows."),
            lines,
            Axis("depth: most draft tokens of a round", whole=True),
            Axis("tokens per round"),
            reference=1.0,
        ),
        table=DataTable(_table_caption(caption, of), columns, tuple(rows)),
        note="The dotted line is no speculation: one token per round.",
    )


def temperature_figure(key: str, curves: Sequence[TemperatureCurve], looks: Sequence[str]) -> FigureView:
    """Tokens per round over temperature, each method at the depth where it writes most at the lowest temperature.

    `looks`: names of methods in the order of their colours.
    """
    lines: list[Line] = []
    rows: list[tuple[str, ...]] = []
    best = _best_depths(curves)
    for method, curve in zip(method_names([(curve.label, curve.config) for curve in best]), best, strict=True):
        name = f"{method}, depth {curve.depth}"
        low, high = _ends([anchor.interval for anchor in curve.anchors])
        dense = curve.dense
        lines.append(
            Line(
                name,
                looks.index(method) if method in looks else len(looks) + len(lines),
                _floats([anchor.temperature for anchor in curve.anchors]),
                _floats([anchor.tokens_per_round for anchor in curve.anchors]),
                low,
                high,
                smooth=(
                    _floats([point.temperature for point in dense]),
                    _floats([point.tokens_per_round for point in dense]),
                ),
            )
        )
        for anchor in curve.anchors:
            rows.append(
                (
                    shown(name),
                    f"{anchor.temperature:g}",
                    format_number(anchor.tokens_per_round),
                    _numbers(anchor.interval),
                    format_percent(anchor.acceptance_rate),
                )
            )
    caption = "Tokens per round, by temperature"
    return FigureView(
        caption=caption,
        svg=line_chart(
            Naming(key, caption, "Tokens per round at each temperature. The numbers follow as a table."),
            lines,
            Axis("temperature"),
            Axis("tokens per round"),
            reference=1.0,
        ),
        table=DataTable(
            caption, ("method", "temperature", "tokens per round", "90 % interval", "acceptance rate"), tuple(rows)
        ),
        note="Marks are measured; the lines between them are interpolated.",
    )


def requests_figure(key: str, named: Sequence[Named]) -> FigureView | None:
    """Tokens per round of each request, from the one that gains least to the one that gains most."""
    lines, rows = [], []
    for one in named:
        label, found = one.label, one.found
        if found.concentration is None:
            continue
        values = np.sort(found.concentration.tokens_per_round)
        if values.size < 2:
            continue
        at = np.linspace(0, 1, min(values.size, MOST_POINTS))
        lines.append(Line(label, one.look, at, np.quantile(values, at)))
        quantiles = np.quantile(values, (0, 0.25, 0.5, 0.75, 1)).tolist()
        rows.append((shown(label), f"{values.size:,}", *(format_number(value) for value in quantiles)))
    if not lines:
        return None
    caption = "Tokens per round, request by request"
    return FigureView(
        caption=caption,
        svg=line_chart(
            Naming(key, caption, "Requests in order of their tokens per round. Quartiles follow as a table."),
            lines,
            Axis("share of requests", percent=True, start=0, end=1),
            Axis("tokens per round"),
            reference=1.0,
            markers=False,
        ),
        table=DataTable(
            caption, ("method", "requests", "least", "first quarter", "median", "third quarter", "most"), tuple(rows)
        ),
        note="Each line rises from the request that gains least to the one that gains most.",
    )


def _best_depths(curves: Sequence[TemperatureCurve]) -> list[TemperatureCurve]:
    """Of each method the curve of its best depth, in the order of methods."""
    best: dict[tuple[str, str], TemperatureCurve] = {}
    for curve in curves:
        method = (curve.label, repr(sorted(curve.config.items(), key=lambda item: item[0])))
        held = best.setdefault(method, curve)
        if curve.anchors[0].tokens_per_round > held.anchors[0].tokens_per_round:
            best[method] = curve
    return list(best.values())


def _table_caption(caption: str, of: str) -> str:
    return f"{caption}, {of}"


def _of(named: Sequence[Named]) -> str:
    return format_plural(len(named), "line") + ": " + ", ".join(shown(one.label) for one in named)


def _ends(intervals: Sequence[Interval | None]) -> tuple[Floats, Floats]:
    return (
        _floats([interval.low if interval else None for interval in intervals]),
        _floats([interval.high if interval else None for interval in intervals]),
    )


def _count(number: int) -> Floats:
    return np.arange(1.0, number + 1.0)


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _percents(interval: Interval | None) -> str:
    return f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}] %" if interval else ABSENT


def _numbers(interval: Interval | None) -> str:
    return format_interval(interval.low, interval.high) if interval else ABSENT
