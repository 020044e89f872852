"""The report of `compare`: the verdict on each drafter in words, then the figures at every depth."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specprobe.compare import Comparison, Contrast, ResultContrast
from specprobe.interval import MIN_PROMPTS, Interval
from specprobe.notices import inert
from specprobe.units import ABSENT, format_number, format_percent, format_plural

STYLES = {"higher": "bold green", "lower": "bold red", "not significant": "bold", "too few prompts": "bold yellow"}


def render_comparison(comparison: Comparison) -> RenderableType:
    """For people; every figure is in the document too."""
    parts: list[RenderableType] = []
    for difference in comparison.differences:
        parts.append(
            Text.assemble(
                ("not comparable: ", "yellow"),
                f"{difference.what}: {inert(difference.a, 120)} in A, {inert(difference.b, 120)} in B",
            )
        )
    for result in comparison.results:
        parts += [*([Text()] if parts else []), _verdict(result), Padding(_depths(result), (0, 2))]
    for run, label, temperature in comparison.left_out:
        parts.append(
            Text(f"only in {run.upper()}, left out: {inert(label, 60)}, temperature {temperature:g}", style="dim")
        )
    return Group(*parts)


def _verdict(result: ResultContrast) -> Text:
    label = inert(result.a.label, 60)
    text = Text.assemble((f"{label}, temperature {result.a.temperature:g}, depth {result.depth}: ", "bold"))
    judged = result.judged
    text.append(f"tokens per round {format_number(judged.a)} in A, {format_number(judged.b)} in B: ")
    text.append(result.standing, style=STYLES[result.standing])
    text.append(f" ({_signed_interval(judged.difference)}, over {format_plural(result.prompts, 'prompt')})")
    if result.standing == "too few prompts":
        text.append(f"; fewer than {MIN_PROMPTS} prompts are not judged")
    text.append(f". {_detectable(judged)}")
    if result.only_a or result.only_b:
        text.append(
            f" Left out, since the other run lacks them: {format_plural(result.only_a, 'prompt')} of A, "
            f"{result.only_b:,} of B."
        )
    if dict(result.a.config) != dict(result.b.config):
        text.append(" The drafter's settings differ.")
    return text


def _detectable(contrast: Contrast) -> str:
    """What a sample like this one could have shown."""
    detectable = contrast.smallest_detectable
    if detectable is None:
        return "What these prompts could have shown is not known."
    if detectable == 0:
        return "No prompt differs from the others in this, so any difference would have shown."
    share = f" ({format_percent(detectable / contrast.a)})" if contrast.a else ""
    return f"The smallest difference that these prompts show 9 times out of 10 is {detectable:.3f}{share}."


def _depths(result: ResultContrast) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in ("depth", "A", "B", "B - A", "90 % interval", "B / A", "length B - A", "rate B - A"):
        table.add_column(header, justify="right")
    for contrast in result.depths:
        tokens = contrast.tokens_per_round
        length, rate = contrast.mean_acceptance_length.difference, contrast.acceptance_rate.difference
        table.add_row(
            str(contrast.depth),
            format_number(tokens.a),
            format_number(tokens.b),
            ABSENT if tokens.difference is None else f"{tokens.difference.point:+.2f}",
            ABSENT if tokens.difference is None else _ends(tokens.difference),
            ABSENT if tokens.ratio is None else f"{tokens.ratio.point:.2f}",
            ABSENT if length is None else f"{length.point:+.2f}",
            ABSENT if rate is None else f"{100 * rate.point:+.1f} %",
        )
    return table


def _signed_interval(interval: Interval | None) -> str:
    return ABSENT if interval is None else f"{interval.point:+.2f} {_ends(interval)}"


def _ends(interval: Interval) -> str:
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]"
