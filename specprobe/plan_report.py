"""A Plan as something rich can print."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specprobe.notices import inert
from specprobe.plan import Plan, Step
from specprobe.units import format_bytes, format_count, format_seconds

LONGEST = 200


def render_plan(plan: Plan) -> RenderableType:
    """One row for each step, then the sums, then that nothing was done."""
    table = Table("step", box=None, pad_edge=False, header_style="bold")
    for heading in ("to do", "kept", "time"):
        table.add_column(heading, justify="right")
    table.add_column("rests on")
    for step in plan.steps:
        table.add_row(
            Text(inert(step.name, LONGEST), overflow="fold"),
            f"{format_count(step.count)} {step.unit}",
            format_count(step.kept) if step.kept else "",
            _duration(step),
            Text(step.basis),
        )
    least = "at least " if plan.unforeseen else ""
    peak = "not known" if plan.peak_bytes is None else format_bytes(plan.peak_bytes)
    memory = f"Peak memory of {plan.memory}: {peak} ({plan.peak_basis})"
    return Group(
        table,
        Text(f"In all {least}about {format_seconds(plan.seconds)}. {memory}."),
        Text(f"Nothing was done or written: specprobe {plan.command} without --dry-run does it."),
    )


def _duration(step: Step) -> str:
    return "unknown" if step.seconds is None else format_seconds(step.seconds)
