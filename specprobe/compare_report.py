"""The report of `compare`: the verdict on each drafter in words, then the figures at every depth."""

from __future__ import annotations

from rich.text import Text

from specprobe.blocks import Block, Column, Figures, Gap, Section, Sentence
from specprobe.compare import Comparison, Contrast, ResultContrast
from specprobe.interval import MIN_PROMPTS, Interval
from specprobe.notices import inert
from specprobe.run_words import temperature_of
from specprobe.units import ABSENT, format_number, format_percent, format_plural

STYLES = {"higher": "bold green", "lower": "bold red", "not significant": "bold", "too few prompts": "bold yellow"}


def render_comparison(comparison: Comparison) -> Block:
    """For people; every figure is in the document too."""
    parts: list[Block] = []
    for difference in comparison.differences:
        parts.append(
            Sentence(
                f"not comparable, {difference.what}",
                f"{inert(difference.a, 120)} in A, {inert(difference.b, 120)} in B",
                lead=Text.assemble(("not comparable: ", "yellow"), f"{difference.what}: "),
            )
        )
    for result in comparison.results:
        parts += [*([Gap()] if parts else []), _result(comparison, result)]
    for run, label, temperature in comparison.left_out:
        said = Text(f"{inert(label, 60)}, temperature {temperature:g}", style="dim")
        parts.append(
            Sentence(f"only in {run.upper()}, left out", said, lead=Text(f"only in {run.upper()}, left out: ", "dim"))
        )
    return Section(parts)


def _result(comparison: Comparison, result: ResultContrast) -> Block:
    name = f"{inert(result.a.label, 60)}, {temperature_of(comparison.a, result.a.temperature)}"
    depth = f"depth {result.depth}"
    is_of_sums = comparison.a.is_of_sums or comparison.b.is_of_sums
    said = _without_interval(result) if is_of_sums else _verdict(result)
    verdict = Sentence(f"{name}, {depth}", said, lead=Text(f"{name}, {depth}: ", style="bold"))
    return Section([verdict, Section([_depths(result)], name=name, indent=2)])


def _tokens_per_round(result: ResultContrast) -> str:
    return f"tokens per round {format_number(result.judged.a)} in A, {format_number(result.judged.b)} in B: "


def _without_interval(result: ResultContrast) -> Text:
    """Of sums over requests that nobody can tell apart, chance cannot be told from change."""
    return Text(f"{_tokens_per_round(result)}not judged, since an engine's sums do not tell requests apart")


def _verdict(result: ResultContrast) -> Text:
    text = Text(_tokens_per_round(result))
    judged = result.judged
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


def _depths(result: ResultContrast) -> Block:
    headers = ("depth", "A", "B", "B - A", "90 % interval", "B / A", "length B - A", "rate B - A")
    rows = []
    for contrast in result.depths:
        tokens = contrast.tokens_per_round
        length, rate = contrast.mean_acceptance_length.difference, contrast.acceptance_rate.difference
        rows.append(
            (
                str(contrast.depth),
                format_number(tokens.a),
                format_number(tokens.b),
                ABSENT if tokens.difference is None else f"{tokens.difference.point:+.2f}",
                ABSENT if tokens.difference is None else _ends(tokens.difference),
                ABSENT if tokens.ratio is None else f"{tokens.ratio.point:.2f}",
                ABSENT if length is None else f"{length.point:+.2f}",
                ABSENT if rate is None else f"{100 * rate.point:+.1f} %",
            )
        )
    return Figures([Column(header) for header in headers], rows)


def _signed_interval(interval: Interval | None) -> str:
    return ABSENT if interval is None else f"{interval.point:+.2f} {_ends(interval)}"


def _ends(interval: Interval) -> str:
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]"
