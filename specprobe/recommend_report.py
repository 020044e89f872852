"""The report of `recommend`: the verdict in one sentence, the figures behind it, the engine's settings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specprobe.advise import Advice
from specprobe.candidates import Option
from specprobe.export import command_line
from specprobe.interval import MIN_PROMPTS
from specprobe.notices import inert
from specprobe.recommend import Recommendation, Verdict
from specprobe.report import render_notices
from specprobe.serving import Served
from specprobe.temperature_report import render_verdicts_by_temperature
from specprobe.units import (
    ABSENT,
    VERDICT_STYLES,
    VERDICT_WORDS,
    format_bytes,
    format_count,
    format_interval,
    format_percent,
    format_seconds,
)

# For other programs, or told already.
UNTOLD = ("fingerprint", "devices")


def render_advice(advice: Advice) -> RenderableType:
    """For people; every figure is in the document too."""
    recommendation = advice.recommendation
    parts: list[RenderableType] = [
        _verdict_sentence(recommendation, names_temperature=bool(advice.temperatures)),
        Text(),
        _verdicts(recommendation),
        Text(),
    ]
    for verdict in recommendation.by_concurrency:
        parts.append(_why(recommendation, verdict))
    parts += [_lengths(recommendation), _limits(recommendation)]
    if advice.temperatures:
        parts += [Text(), render_verdicts_by_temperature(advice.temperatures)]
    if recommendation.export:
        parts += [Text(), *_settings(recommendation.by_concurrency)]
    for verdict in recommendation.by_concurrency:
        if verdict.verdict == "speculate" and not verdict.export:
            parts.append(
                Text(
                    f"concurrency {verdict.concurrency}: no settings, since specprobe writes none for "
                    f"{inert(verdict.best.label, 60)} on {recommendation.engine_profile} yet"
                )
            )
    if recommendation.notices:
        parts += [Text(), render_notices(recommendation.notices)]
    return Group(*parts)


def _verdict_sentence(recommendation: Recommendation, *, names_temperature: bool) -> Text:
    sentence = Text(f"At temperature {recommendation.temperature:g}: " if names_temperature else "")
    for number, verdict in enumerate(recommendation.by_concurrency):
        if number:
            sentence.append("; ")
        sentence.append(f"{_traffic(verdict)}: ")
        word = "not decided" if recommendation.undecided else VERDICT_WORDS[verdict.verdict]
        sentence.append(word, style=VERDICT_STYLES[verdict.verdict])
        if verdict.verdict == "speculate":
            sentence.append(f" with {inert(verdict.best.label, 60)} at depth {verdict.best.depth}")
    return sentence.append(".")


def _traffic(verdict: Verdict) -> str:
    if verdict.by_clock:
        return f"these arrivals (some {verdict.concurrency} in flight)"
    return f"concurrency {verdict.concurrency}"


def _verdicts(recommendation: Recommendation) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in ("conc.", "best", "speed-up", "90 % interval", "tok/s", "ITL p50 / p95", "TPOT"):
        table.add_column(header, justify="left" if header == "best" else "right")
    for verdict in recommendation.by_concurrency:
        best = verdict.best
        table.add_row(
            str(verdict.concurrency),
            f"{inert(best.label, 60)} {best.depth}",
            Text(f"{best.speedup:.2f}x", style=VERDICT_STYLES[verdict.verdict]),
            format_interval(best.low, best.high),
            *_served(best.served),
        )
        table.add_row(
            "",
            Text("off", style="dim"),
            Text("1.00x", style="dim"),
            "",
            *(Text(figure, style="dim") for figure in _served(verdict.plain)),
        )
    return table


def _served(served: Served) -> tuple[str, str, str]:
    """Output tokens per second, gaps between chunks, time per token."""
    p50, p95 = served.itl_p50_seconds, served.itl_p95_seconds
    return (
        _rate(served.output_tokens_per_second),
        ABSENT if p50 is None or p95 is None else f"{format_seconds(p50)} / {format_seconds(p95)}",
        ABSENT if served.tpot_seconds is None else format_seconds(served.tpot_seconds),
    )


def _rate(tokens_per_second: float) -> str:
    return format_count(round(tokens_per_second)) if tokens_per_second >= 10 else f"{tokens_per_second:.2g}"


def _why(recommendation: Recommendation, verdict: Verdict) -> Text:
    best, plain = verdict.best, verdict.plain
    text = (
        f"{_traffic(verdict)}: {inert(best.label, 60)} {best.depth} writes {best.tokens_per_round:.2f} "
        f"tokens per round; a round must write {best.break_even_tokens_per_round:.2f} to break even"
    )
    if best.break_even_acceptance_length is not None:
        text += f" (mean acceptance length {best.break_even_acceptance_length:.2f})"
    if verdict.by_clock:
        text += "; the speed-up is that of the mean request latency"
    latency, with_it = plain.mean_latency_seconds, best.served.mean_latency_seconds
    text += f"; request latency {format_seconds(latency)} -> {format_seconds(with_it)}"
    text += f", {format_percent(best.losing_share)} of requests take longer"
    before, after = (recommendation.dollars_per_million_tokens(served) for served in (plain, best.served))
    if before is not None and after is not None:
        text += f"; ${before:.3g} -> ${after:.3g} per million output tokens"
    if best.drafter_bytes:
        text += f"; the drafter takes {format_bytes(best.drafter_bytes)}"
    if not best.enough_prompts:
        text += f"; fewer than {MIN_PROMPTS} prompts, which never say speculate"
    if verdict.verdict == "close" and not recommendation.undecided and best.low is not None:
        text += "; " + ("step times of yours (calibrate)" if recommendation.cost.log_deviation else "more prompts")
        text += " would narrow the interval"
    if verdict.runner_up is not None:
        text += f"; runner-up {_option(verdict.runner_up)}"
    return Text(text)


def _option(option: Option) -> str:
    return f"{inert(option.label, 60)} {option.depth} at {option.speedup:.2f}x"


def _lengths(recommendation: Recommendation) -> Text:
    """How the gain moves with lengths, and what speculation does not do."""
    verdict = recommendation.by_concurrency[-1]
    found = {(one.scale_prompt, one.scale_output): one.speedup for one in verdict.best.sensitivity}
    words = {(4.0, 1.0): "prompts 4 times as long", (1.0, 4.0): "outputs 4 times as long",
             (1.0, 0.25): "outputs a quarter as long"}  # fmt: skip
    told = [f"{found[factors]:.2f}x with {word}" for factors, word in words.items() if factors in found]
    ttft = f"{format_seconds(verdict.plain.ttft_p50_seconds)} -> {format_seconds(verdict.best.served.ttft_p50_seconds)}"
    text = "Speculation does not make a prefill faster and saves no memory: what changes in the time to first token "
    text += f"(p50 {ttft}) is the wait for a turn."
    if told:
        at = f" at concurrency {verdict.concurrency}" if len(recommendation.by_concurrency) > 1 else ""
        text += f" Were acceptance the same, the gain{at} would be {', '.join(told)}."
    return Text(text)


def _limits(recommendation: Recommendation) -> Text:
    crossover, cost = recommendation.crossover_concurrency, recommendation.cost
    text = (
        f"While all slots are full, speculation is not slower up to {cost.batches[-1]}, the cost table's largest batch."
        if crossover is None
        else f"While all slots are full, nothing is faster than not speculating from concurrency {crossover} on."
    )
    told = {key: value for key, value in cost.conditions.items() if isinstance(value, str) and key not in UNTOLD}
    about = [inert(value, 80) for value in told.values()]
    quality = cost.quality()
    if cost.source == "measured":
        about += [
            f"median spread {format_percent(quality['relative_spread'])}",
            f"{quality['outliers']} outliers in {quality['timings']} timings",
        ]
    if cost.log_deviation:
        about.append(f"known to err by {format_percent(cost.log_deviation)}, which the interval holds")
    details = f" ({', '.join(about)})" if about else ""
    return Text(f"{text} Cost: {cost.source}{details}.", style="dim")


def _settings(verdicts: Sequence[Verdict]) -> list[Text]:
    """What to type for each concurrency that should speculate, on one line each, whatever the width of the terminal."""
    wanted: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        for engine, settings in verdict.export.items():
            wanted.setdefault(command_line(engine, settings), []).append(verdict)
    return [Text(f"# {_traffics(found)}\n{line}", no_wrap=True, overflow="ignore") for line, found in wanted.items()]


def _traffics(verdicts: Sequence[Verdict]) -> str:
    if any(verdict.by_clock for verdict in verdicts):
        return "these arrivals"
    return f"concurrency {', '.join(str(verdict.concurrency) for verdict in verdicts)}"
