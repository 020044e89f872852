"""Numbers as people read them: pure functions, one place."""

from __future__ import annotations

from collections.abc import Sequence

from specprobe.legible import BAR_CELLS, CURVE_CELLS

VERDICT_STYLES = {"speculate": "bold green", "dont": "bold red", "close": "bold yellow"}
VERDICT_WORDS = {"speculate": "speculate", "dont": "don't", "close": "too close to call"}
ABSENT = "-"


def format_percent(share: float | None) -> str:
    """0.4567 -> `45.7 %`."""
    return ABSENT if share is None else f"{100 * share:.1f} %"


def format_number(value: float | None, digits: int = 2) -> str:
    """2.345 -> `2.35`."""
    return ABSENT if value is None else f"{value:.{digits}f}"


def format_interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """`[1.91, 2.40]`, or a dash where there is none."""
    return ABSENT if low is None or high is None else f"[{low:.{digits}f}, {high:.{digits}f}]"


def format_count(value: int) -> str:
    """12345 -> `12,345`."""
    return f"{value:,}"


def format_seconds(seconds: float) -> str:
    """A duration with a sensible unit: `12.3 ms`, `4.5 s`, `3 min 20 s`."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def format_bytes(num_bytes: float) -> str:
    """`1.2 GB`, `340 MB`, `12 kB`, `812 bytes`."""
    for size, unit, digits in ((1e9, "GB", 1), (1e6, "MB", 0), (1e3, "kB", 0)):
        # What would be 1,000 of a unit is 1 of the next.
        if num_bytes >= (1 - 0.0005) * size:
            return f"{num_bytes / size:.{digits}f} {unit}"
    return format_plural(round(num_bytes), "byte")


def format_bar(share: float, width: int) -> str:
    """A bar of `width` cells, in eighths of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (BAR_CELLS[rest] if rest else "")).ljust(width)


def format_curve(shares: Sequence[float]) -> str:
    """A curve over shares from 0 to 1, one cell each, in eighths of a line's height."""
    last = len(CURVE_CELLS) - 1
    return "".join(CURVE_CELLS[min(int(min(max(share, 0.0), 1.0) * len(CURVE_CELLS)), last)] for share in shares)


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of the numbers 0..count - 1, first and last among them, as evenly spread as they can be."""
    if count <= most or most < 2:
        return list(range(count))[: max(most, 0)]
    return [round(number * (count - 1) / (most - 1)) for number in range(most)]


def format_plural(count: int, noun: str) -> str:
    """`1 prompt`, `2 prompts`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
