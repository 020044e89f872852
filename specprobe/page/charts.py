"""Charts of one look: lines with bands over a small range of whole numbers, and strips that show distributions.

Drawn for 400 CSS pixels, so that text stays legible where a phone shows a chart at its full width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from specprobe.notices import inert
from specprobe.page.svg import GRID, INK, MUTED, PIXELS_PER_INCH, SERIES, SURFACE, drawing_settings, to_svg
from specprobe.units import format_seconds

WIDTH = 400
PLOT_HEIGHT = 210
LEFT, RIGHT, TOP, AXIS_HEIGHT = 54, 18, 10, 42
LEGEND_ROW, STRIP_ROW = 18, 20
# With more of them bands hide each other; the table has every interval.
MOST_BANDS = 4
LONGEST_LABEL = 46
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", (0, (5, 1.5)), (0, (2, 1.2)), (0, (6, 1.5, 1.5, 1.5)))

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A series: y over x, absent where it is not a number; `low`, `high`: its band; `fit`: a fitted curve over x.

    `smooth`: (x, y) of the line to draw through the points, in place of straight ones. `look`: number of its colour and
    mark, the same for the same thing all over a page.
    """

    label: str
    look: int
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    fit: Floats | None = None
    smooth: tuple[Floats, Floats] | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """How an axis reads. `whole`: ticks at whole numbers only; `percent`: of shares; `start`, `end`: fixed limits."""

    label: str
    whole: bool = False
    percent: bool = False
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """A distribution as a strip: `values` rising, at the quantiles `at`. `group`: rows with one stand together."""

    group: str
    label: str
    values: Floats
    at: Floats
    is_baseline: bool = False


@dataclass(frozen=True, slots=True)
class Naming:
    """What a chart is called: `key` on the page, `title` and `description` to those who cannot see it."""

    key: str
    title: str
    description: str


def line_chart(
    naming: Naming, lines: Sequence[Line], x: Axis, y: Axis, *, reference: float | None = None, markers: bool = True
) -> Markup:
    """The SVG of lines, with a legend below; `reference`: where to draw a level line, such as 1 for no gain."""
    with drawing_settings(naming.key):
        height = TOP + PLOT_HEIGHT + AXIS_HEIGHT + LEGEND_ROW * (len(lines) + any(_fitted(line) for line in lines))
        figure = Figure(figsize=(WIDTH / PIXELS_PER_INCH, height / PIXELS_PER_INCH), dpi=PIXELS_PER_INCH)
        axes = _axes(figure, height, LEFT, PLOT_HEIGHT)
        _dress(axes, x, y)
        if reference is not None:
            axes.axhline(reference, color=MUTED, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
        for number, line in enumerate(lines):
            color, marker, dash = _look(line.look)
            # Equal lines stay visible as rims of each other.
            equal = sum(np.array_equal(line.y, later.y, equal_nan=True) for later in lines[number + 1 :])
            if line.low is not None and line.high is not None and len(lines) <= MOST_BANDS:
                axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.16, linewidth=0)
            drawn_x, drawn_y = line.smooth or (line.x, line.y)
            axes.plot(drawn_x, drawn_y, color=color, linewidth=1.8 + 3 * equal, linestyle=dash, zorder=3)
            if markers:
                axes.plot(line.x, line.y, linestyle="", color=color, marker=marker, markersize=5.5 + 3.5 * equal,
                          markeredgecolor=SURFACE, markeredgewidth=0.8, zorder=4)  # fmt: skip
            if line.fit is not None:
                axes.plot(line.x, line.fit, color=color, linewidth=1.5, linestyle=(0, (4, 2.5)), zorder=2)
        axes.set_xlim(*_limits(x, [line.x for line in lines], pad=0.04))
        bounds = [part for line in lines for part in (line.y, line.low, line.high, line.fit) if part is not None]
        axes.set_ylim(*_limits(y, [*bounds, np.array([reference])] if reference is not None else bounds, pad=0.06))
        _legend(figure, height, lines, markers=markers)
        return to_svg(figure, naming.key, naming.title, naming.description)


def strip_chart(
    naming: Naming, strips: Sequence[Strip], label: str, *, reference: float | None = None, seconds: bool = True
) -> Markup:
    """The SVG of distributions, one strip below the other, on a logarithmic axis.

    A thin line spans 5 to 95 %, a thick one 25 to 75 %, the dot is the median, a tick the 99th percentile.
    """
    groups = list(dict.fromkeys(strip.group for strip in strips))
    rows = len(strips) + 0.9 * len(groups)
    plot_height = STRIP_ROW * rows + 8
    height = TOP + plot_height + AXIS_HEIGHT
    with drawing_settings(naming.key):
        figure = Figure(figsize=(WIDTH / PIXELS_PER_INCH, height / PIXELS_PER_INCH), dpi=PIXELS_PER_INCH)
        left = 12 + 7 * max(min(len(strip.label), 18) for strip in strips)
        axes = _axes(figure, height, left, plot_height)
        axes.set_xscale("log")
        _plain(axes, Axis(label))
        position, ticks, names = 0.0, [], []
        for group in groups:
            position += 0.9
            axes.annotate(group, (0, position - 0.35), xycoords=("axes fraction", "data"), xytext=(4 - left, 0),
                          textcoords="offset points", color=MUTED, fontsize=12.5, va="center")  # fmt: skip
            for strip in (strip for strip in strips if strip.group == group):
                _draw_strip(axes, strip, position + 0.5)
                ticks.append(position + 0.5)
                names.append(inert(strip.label, 18))
                position += 1
        if reference is not None:
            axes.axvline(reference, color=INK, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
        axes.set_ylim(position + 0.3, 0)
        axes.set_yticks(ticks, names)
        axes.grid(visible=False, axis="y")
        low = min(float(strip.values[0]) for strip in strips)
        high = max(float(strip.values[-1]) for strip in strips)
        low, high = (min(low, reference), max(high, reference)) if reference is not None else (low, high)
        margin = max((high / low) ** 0.05, 1.02)
        axes.set_xlim(low / margin, high * margin)
        shown = _log_ticks(low / margin, high * margin)
        axes.set_xticks(shown, [format_seconds(tick) if seconds else f"{tick:g}x" for tick in shown])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", which="minor", length=0)
        return to_svg(figure, naming.key, naming.title, naming.description)


def _draw_strip(axes: Axes, strip: Strip, y: float) -> None:
    low, first, median, third, high, top = np.interp((0.05, 0.25, 0.5, 0.75, 0.95, 0.99), strip.at, strip.values)
    color = MUTED if strip.is_baseline else SERIES[0]
    axes.plot([low, high], [y, y], color=color, linewidth=1.6, solid_capstyle="butt", zorder=2)
    axes.plot([first, third], [y, y], color=color, linewidth=7, solid_capstyle="butt", zorder=3)
    axes.plot([top], [y], color=color, marker="|", markersize=8, markeredgewidth=1.6, zorder=2)
    axes.plot([median], [y], marker="o", markersize=6, color=SURFACE, markeredgecolor=INK, zorder=4)


def _axes(figure: Figure, height: float, left: float, plot_height: float) -> Axes:
    """Axes `plot_height` pixels high, below the figure's upper edge; the legend has what is left below."""
    bottom = height - TOP - plot_height
    return figure.add_axes((left / WIDTH, bottom / height, (WIDTH - left - RIGHT) / WIDTH, plot_height / height))


def _dress(axes: Axes, x: Axis, y: Axis) -> None:
    _plain(axes, x)
    axes.set_ylabel(y.label, color=MUTED, fontsize=12.5)
    # Beside the widest numbers of the page's own font, which may be narrower than that of the drawing.
    axes.yaxis.set_label_coords((12 - LEFT) / (WIDTH - LEFT - RIGHT), 0.5)
    for axis, what in ((axes.xaxis, x), (axes.yaxis, y)):
        axis.set_major_locator(
            MaxNLocator(nbins=9 if what.whole else 6, integer=what.whole, min_n_ticks=2, steps=[1, 2, 2.5, 5, 10])
        )
        if what.percent:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}\u00a0%"))
        else:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _plain(axes: Axes, x: Axis) -> None:
    axes.set_facecolor("none")
    axes.set_xlabel(x.label, color=MUTED, fontsize=12.5)
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.tick_params(colors=INK, length=0, labelsize=12.5)


def _limits(axis: Axis, parts: Sequence[Floats], *, pad: float) -> tuple[float, float]:
    known = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    known = known[np.isfinite(known)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    margin = pad * (high - low) or 0.5
    return (
        low - margin if axis.start is None else axis.start,
        high + margin if axis.end is None else axis.end,
    )


def _legend(figure: Figure, height: float, lines: Sequence[Line], *, markers: bool) -> None:
    """One row for each line; matplotlib's own drops labels that begin with an underscore."""
    y = height - TOP - PLOT_HEIGHT - AXIS_HEIGHT - 7
    for line in lines:
        color, marker, dash = _look(line.look)
        _key(figure, height, y, color=color, linestyle=dash, marker=marker if markers else "")
        _words(figure, height, y, inert(line.label, LONGEST_LABEL), INK)
        y -= LEGEND_ROW
    if any(_fitted(line) for line in lines):
        _key(figure, height, y, color=MUTED, linestyle=(0, (4, 2.5)), marker="")
        _words(figure, height, y, "fitted curve, in the colour of what it is fitted to", MUTED)


def _fitted(line: Line) -> bool:
    return line.fit is not None


def _key(figure: Figure, height: float, y: float, *, color: str, linestyle: object, marker: str) -> None:
    ends = [LEFT / WIDTH, (LEFT + 26) / WIDTH]
    line = Line2D(ends, [y / height] * 2, color=color, linewidth=1.8, linestyle=linestyle)  # type: ignore[arg-type]
    figure.add_artist(line)
    if marker:
        middle = Line2D([sum(ends) / 2], [y / height], color=color, marker=marker, markersize=5.5, linestyle="")
        figure.add_artist(middle)


def _words(figure: Figure, height: float, y: float, text: str, color: str) -> None:
    figure.text((LEFT + 34) / WIDTH, (y - 4) / height, text, color=color, fontsize=12.5, va="baseline")


def _look(number: int) -> tuple[str, str, object]:
    """Colour, mark and dashes."""
    dash = DASHES[number // len(SERIES) % len(DASHES)]
    return SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)], dash


def _log_ticks(low: float, high: float) -> list[float]:
    """Up to five round numbers, rising by 1, 2, 5 within each power of ten, or by powers where there are many."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for steps in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{step * 10.0**power:.6g}") for power in powers for step in steps]
        shown = [tick for tick in ticks if low <= tick <= high]
        if len(shown) <= 5:
            return shown
    return shown[:: -(-len(shown) // 5)]
