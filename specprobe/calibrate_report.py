"""The terminal report of a calibration: factors, points beside the fit, what was not told. Nothing here computes."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.text import Text

from specprobe.blocks import Block, Column, Figures, Gap, Section, Sentence
from specprobe.calibrate import TOLD_BY, Calibration, FittedPoint
from specprobe.measured_points import StepTiming
from specprobe.notice_report import render_notices
from specprobe.notices import inert
from specprobe.units import format_number, format_percent, format_plural, format_seconds

MEANINGS = {
    "host": "the engine's own work in a step",
    "memory": "seconds of bytes read",
    "compute": "seconds of operations",
    "drafting": "a drafter's step, and accepting",
}


def render_calibration(calibration: Calibration, path: Path) -> Block:
    """The report of `calibrate`; `path` is the cost file."""
    setup, conditions = calibration.setup, calibration.cost.conditions
    where = f"{conditions['devices']} x {conditions['gpu']}, {conditions['dtype']}, {setup.engine}"
    untold = [name for name in calibration.factors if not calibration.is_identified(name)]
    calibrated = (
        f"{inert(setup.model, 80)} on {inert(where, 120)}, to {format_plural(len(calibration.points), 'point')}, "
        f"speculative {conditions['speculative_points']}"
    )
    off = format_percent(calibration.cost.log_deviation)
    parts: list[Block] = [
        Sentence("calibrated", calibrated, lead=Text.assemble(("calibrated", "bold"), " ")),
        Gap(),
        Section([_factors(calibration)], indent=2),
        Gap(),
        Section([_points(calibration.points)], indent=2),
        Gap(),
    ]
    if untold:
        parts += [
            Sentence(name, f"stays near its prior; {TOLD_BY[name]} would tell it", lead=f"{name}: ") for name in untold
        ]
    parts += [
        Sentence(
            "error",
            f"A predicted speed-up may be off by {off} (one standard deviation). Batches above "
            f"{conditions['largest_batch_measured']:g} are the roofline's, none was measured.",
        ),
        Gap(),
        Sentence("saved in", inert(str(path), 400), lead="Saved in "),
        Sentence("next", f"specprobe recommend --cost {inert(shlex.quote(str(path)), 400)}", lead="Next: "),
    ]
    if calibration.notices:
        parts += [Gap(), render_notices(calibration.notices)]
    return Section(parts)


def _factors(calibration: Calibration) -> Block:
    columns = [Column("factor", is_number=False), Column("value"), Column("known to"), Column("before", "known before")]
    rows = []
    for name, factor in calibration.factors.items():
        known, before = (f"x/÷ {format_number(value)}" for value in calibration.uncertainty(name))
        rows.append((name, format_number(factor), known, before, MEANINGS[name]))
    return Figures([*columns, Column("on", is_number=False, wraps=True)], rows)


def _points(points: tuple[FittedPoint, ...]) -> Block:
    columns = [Column(header, is_number=False, wraps=True) for header in ("point", "what")]
    columns += [Column(header) for header in ("batch", "context", "measured", "fitted", "error")]
    rows = []
    for point in points:
        timing = point.timing
        if isinstance(timing, StepTiming):
            what = f"step of {timing.query_tokens:g}"
        else:
            what = f"{inert(timing.method, 24)}, depth {timing.depth}"
        shown = [_quantity(point, value) for value in (point.measured, point.fitted)]
        error = f"{100 * point.error:+.1f} %"
        rows.append((inert(timing.where, 60), what, f"{timing.batch:g}", f"{timing.context:.0f}", *shown, error))
    return Figures(columns, rows, num_keys=2)


def _quantity(point: FittedPoint, value: float) -> str:
    if not isinstance(point.timing, StepTiming) and point.timing.measured == "speedup":
        return f"{format_number(value)}x"
    return format_seconds(value)
