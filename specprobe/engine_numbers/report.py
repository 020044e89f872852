"""What an engine counted, for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specprobe.engine_numbers.numbers import EngineNumbers
from specprobe.notices import inert
from specprobe.units import ABSENT, format_count, format_number, format_percent


def render_engine_numbers(numbers: EngineNumbers) -> RenderableType:
    """The source, its counters in our words, and acceptance by position where it is known."""
    counts = numbers.counts
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    recovered = ", from rounded figures" if numbers.is_rounded else ""
    table.add_row("counted by", f"{inert(numbers.engine)}, {inert(numbers.source)}: {inert(numbers.scope)}{recovered}")
    for name, value in (
        ("most draft tokens", numbers.depth),
        ("requests", counts.requests),
        ("rounds with a draft", counts.drafted_rounds),
        ("drafted tokens", counts.drafted_tokens),
        ("accepted tokens", counts.accepted_tokens),
    ):
        table.add_row(name, ABSENT if value is None else format_count(value))
    table.add_row("acceptance rate", format_percent(numbers.acceptance_rate))
    length = format_number(numbers.mean_acceptance_length)
    table.add_row("mean acceptance length", f"{length} (1 + accepted / rounds with a draft)")
    survival = counts.survival
    if survival is not None:
        table.add_row("accepted at", ", ".join(f"{i}: {format_percent(s)}" for i, s in enumerate(survival, 1)))
    return Group(table, Text())
