"""A Plan for people: a row for each step, then the sums, then that nothing was done."""

from __future__ import annotations

from specprobe.blocks import Block, Column, Figures, Section, Sentence
from specprobe.notices import inert
from specprobe.plan import Plan, Step, Stopping
from specprobe.units import format_bytes, format_count, format_seconds

LONGEST = 200


def render_plan(plan: Plan) -> Block:
    """What would be done, for how long, and in how much memory."""
    columns = [
        Column("step", is_number=False, wraps=True),
        Column("to do"),
        Column("kept"),
        Column("time"),
        Column("rests on", is_number=False, wraps=True),
    ]
    rows = [
        (
            inert(step.name, LONGEST),
            f"{format_count(step.count)} {step.unit}",
            format_count(step.kept) if step.kept else "",
            _duration(step),
            step.basis,
        )
        for step in plan.steps
    ]
    peak = "not known" if plan.peak_bytes is None else format_bytes(plan.peak_bytes)
    basis = "" if peak == plan.peak_basis else f" ({plan.peak_basis})"
    memory = f"Peak memory of {plan.memory}: {peak}{basis}"
    done = f"Nothing was done or written: specprobe {plan.command} without --dry-run does it."
    return Section(
        [
            Figures(columns, rows),
            Sentence("in all", f"In all {_in_all(plan)}. {memory}."),
            *([Sentence("precision", _stopping(plan.stopping))] if plan.stopping else []),
            Sentence("dry run", done),
        ]
    )


def _in_all(plan: Plan) -> str:
    """The time of the steps that can be foreseen, and which cannot."""
    unknown = ", ".join(inert(step.name, LONGEST) for step in plan.unforeseen)
    if len(plan.unforeseen) == len(plan.steps):
        return f"no time can be foreseen ({unknown})"
    least = "at least " if unknown else ""
    return f"{least}about {format_seconds(plan.seconds)}{f', besides {unknown}' if unknown else ''}"


def _stopping(stopping: Stopping) -> str:
    *earlier, last = map(format_count, stopping.looks)
    if not earlier:
        return f"--precision {stopping.asked:g}: {last} prompts are too few to stop before the last."
    return (
        f"With --precision {stopping.asked:g} that is what all prompts take: it looks after {', '.join(earlier)} of "
        f"{last}, replays anew for each look, and stops where tokens per round is known well enough."
    )


def _duration(step: Step) -> str:
    return "unknown" if step.seconds is None else format_seconds(step.seconds)
