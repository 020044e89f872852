"""What an engine counted, for people."""

from __future__ import annotations

from specprobe.blocks import Block, Gap, Pairs, Section
from specprobe.engine_numbers.numbers import EngineNumbers
from specprobe.notices import inert
from specprobe.units import ABSENT, format_count, format_number, format_percent


def render_engine_numbers(numbers: EngineNumbers) -> Block:
    """The source, its counters in our words, and acceptance by position where it is known."""
    counts = numbers.counts
    recovered = ", from rounded figures" if numbers.is_rounded else ""
    counters = (
        ("most draft tokens", numbers.depth),
        ("requests", counts.requests),
        ("rounds with a draft", counts.drafted_rounds),
        ("drafted tokens", counts.drafted_tokens),
        ("accepted tokens", counts.accepted_tokens),
    )
    length = format_number(numbers.mean_acceptance_length)
    rows = [
        ("counted by", f"{inert(numbers.engine)}, {inert(numbers.source)}: {inert(numbers.scope)}{recovered}"),
        *((name, ABSENT if value is None else format_count(value)) for name, value in counters),
        ("acceptance rate", format_percent(numbers.acceptance_rate)),
        ("mean acceptance length", f"{length} (1 + accepted / rounds with a draft)"),
    ]
    if counts.survival is not None:
        shares = ", ".join(f"{position}: {format_percent(share)}" for position, share in enumerate(counts.survival, 1))
        rows.append(("accepted at", shares))
    return Section([Pairs(rows), Gap()])
