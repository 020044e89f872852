"""The terminal report of a calibration: factors, points beside the fit, what was not told. Nothing here computes."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specprobe.calibrate import TOLD_BY, Calibration, FittedPoint
from specprobe.measured_points import StepTiming
from specprobe.notices import inert
from specprobe.report import render_notices
from specprobe.units import format_number, format_percent, format_plural, format_seconds

MEANINGS = {
    "host": "the engine's own work in a step",
    "memory": "seconds of bytes read",
    "compute": "seconds of operations",
    "drafting": "a drafter's step, and accepting",
}


def render_calibration(calibration: Calibration, path: Path) -> RenderableType:
    """The report of `calibrate`; `path` is the cost file."""
    setup, conditions = calibration.setup, calibration.cost.conditions
    where = f"{conditions['devices']} x {conditions['gpu']}, {conditions['dtype']}, {setup.engine}"
    untold = [name for name in calibration.factors if not calibration.is_identified(name)]
    parts: list[RenderableType] = [
        Text.assemble(("calibrated", "bold"), f" {inert(setup.model, 80)} on {inert(where, 120)}"),
        Text(f"to {format_plural(len(calibration.points), 'point')}, speculative {conditions['speculative_points']}"),
        Text(),
        Padding(_factors(calibration), (0, 2)),
        Text(),
        Padding(_points(calibration.points), (0, 2)),
        Text(),
    ]
    if untold:
        parts += [Text(f"{name}: stays near its prior; {TOLD_BY[name]} would tell it") for name in untold]
    parts += [
        Text(
            f"A predicted speed-up may be off by {format_percent(calibration.cost.log_deviation)} (one standard "
            f"deviation). Batches above {conditions['largest_batch_measured']:g} are the roofline's, none was measured."
        ),
        Text(),
        Text(
            f"Saved in {inert(str(path), 400)}. Next: specprobe recommend --cost {inert(shlex.quote(str(path)), 400)}"
        ),
    ]
    if calibration.notices:
        parts += [Text(), render_notices(calibration.notices)]
    return Group(*parts)


def _factors(calibration: Calibration) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("factor")
    for name in ("value", "known to", "before"):
        table.add_column(name, justify="right")
    table.add_column("on")
    for name, factor in calibration.factors.items():
        known, before = (f"x/÷ {format_number(value)}" for value in calibration.uncertainty(name))
        table.add_row(name, format_number(factor), known, before, MEANINGS[name])
    return table


def _points(points: tuple[FittedPoint, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("point", overflow="fold")
    table.add_column("what", overflow="fold")
    for name in ("batch", "context", "measured", "fitted", "error"):
        table.add_column(name, justify="right")
    for point in points:
        timing = point.timing
        if isinstance(timing, StepTiming):
            what = f"step of {timing.query_tokens:g}"
        else:
            what = f"{inert(timing.method, 24)}, depth {timing.depth}"
        shown = [_quantity(point, value) for value in (point.measured, point.fitted)]
        error = f"{100 * point.error:+.1f} %"
        table.add_row(inert(timing.where, 60), what, f"{timing.batch:g}", f"{timing.context:.0f}", *shown, error)
    return table


def _quantity(point: FittedPoint, value: float) -> str:
    if not isinstance(point.timing, StepTiming) and point.timing.measured == "speedup":
        return f"{format_number(value)}x"
    return format_seconds(value)
