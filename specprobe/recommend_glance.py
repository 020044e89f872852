"""The one screen of `recommend`: the verdict, best against off, where it breaks even, what to type, what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.text import Text

from specprobe.advise import Advice
from specprobe.blocks import AnyCell, Block, Column, Copyable, Figures, Gap, Said, Section, Sentence
from specprobe.export import command_line
from specprobe.interval import MIN_PROMPTS
from specprobe.labels import label_cells
from specprobe.notice_report import render_notices_briefly
from specprobe.notices import inert
from specprobe.recommend import Recommendation, Verdict
from specprobe.serving import Served
from specprobe.temperature_verdicts import TemperatureVerdicts
from specprobe.units import (
    ABSENT,
    VERDICT_STYLES,
    VERDICT_WORDS,
    format_count,
    format_interval,
    format_number,
    format_percent,
    format_seconds,
)

# More concurrencies are told in the table alone.
MOST_TOLD = 6


def render_verdict(advice: Advice) -> Block:
    """The verdict in one sentence, why there is none where that is so, and the figures."""
    recommendation = advice.recommendation
    parts: list[Block] = [_verdict_sentence(recommendation, names_temperature=bool(advice.temperatures))]
    if recommendation.undecided:
        parts.append(Sentence("why not decided", inert(recommendation.undecided.message, 1000)))
    return Section([*parts, Gap(), _best_against_off(recommendation), Gap()])


def render_glance(advice: Advice) -> Block:
    """What follows the figures where there is one screen."""
    recommendation = advice.recommendation
    parts: list[Block] = [_break_even(recommendation), *_prices(recommendation)]
    parts += [_with_temperature(found) for found in advice.temperatures[:MOST_TOLD]]
    limit, cost = crossover(recommendation), _cost(recommendation)
    parts += [Sentence("", f"{limit} Cost: {cost}"), Said("crossover", limit), Said("cost", cost)]
    if recommendation.export:
        parts += [Gap(), *_settings_briefly(recommendation.by_concurrency), Gap()]
    parts += render_missing_settings(recommendation)
    if notices := [notice for notice in recommendation.notices if notice != recommendation.undecided]:
        parts.append(render_notices_briefly(notices))
    parts.append(Sentence("more", _more(recommendation), lead="More: "))
    return Section(parts)


def render_settings(verdicts: Sequence[Verdict]) -> list[Block]:
    """What to type for each concurrency that should speculate, on one line each, whatever the width of the terminal."""
    return [Copyable(traffics(found), command_line(engine, settings)) for engine, settings, found in _wanted(verdicts)]


def render_missing_settings(recommendation: Recommendation) -> list[Block]:
    """Verdicts to speculate for which specprobe writes no settings."""
    return [
        Sentence(
            f"{traffics([verdict])}, settings",
            f"none, since specprobe writes none for {inert(verdict.best.label, 60)} on "
            f"{recommendation.engine_profile} yet",
            lead=f"{traffics([verdict])}, settings: ",
        )
        for verdict in recommendation.by_concurrency
        if verdict.verdict == "speculate" and not verdict.export
    ]


def traffics(verdicts: Sequence[Verdict]) -> str:
    """What verdicts are for."""
    if any(verdict.by_clock for verdict in verdicts):
        told = next((verdict.arrivals for verdict in verdicts if verdict.arrivals), None)
        return told.in_words if told else "these arrivals"
    return f"concurrency {', '.join(str(verdict.concurrency) for verdict in verdicts)}"


def _verdict_sentence(recommendation: Recommendation, *, names_temperature: bool) -> Block:
    at = f"temperature {recommendation.temperature:g}" if names_temperature else ""
    sentence, facts = Text(f"At {at}: " if at else ""), []
    for number, verdicts in enumerate(_alike(recommendation.by_concurrency)):
        if number:
            sentence.append("; ")
        verdict = verdicts[0]
        # Of a queue that grows, how long it is depends on when one looks.
        is_known = verdict.by_clock and not verdict.plain.falls_behind
        in_flight = f" (some {verdict.concurrency} in flight)" if is_known else ""
        said = Text("not decided" if recommendation.undecided else VERDICT_WORDS[verdict.verdict])
        said.stylize(VERDICT_STYLES[verdict.verdict])
        if verdict.verdict == "speculate":
            said.append(f" with {inert(verdict.best.label, 60)} at depth {verdict.best.depth}")
        elif recommendation.is_of_sums:
            said.append(" (sums over requests have no interval)")
        elif not verdict.best.enough_prompts:
            said.append(f" (fewer than {MIN_PROMPTS} prompts never say speculate)")
        elif _is_overloaded(verdict):
            said.append(" (the server does not keep up with them)")
        sentence.append(f"{traffics(verdicts)}{in_flight}: ").append_text(said)
        facts.append(Said(", ".join(filter(None, (traffics(verdicts) + in_flight, at, "verdict"))), said.plain))
    return Section([Sentence("", sentence.append(".")), *facts])


def _alike(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Neighbours with the same answer together."""
    return [list(found) for _, found in groupby(verdicts, key=_answer)]


def _answer(verdict: Verdict) -> tuple[str, ...]:
    best = (verdict.best.label, str(verdict.best.depth)) if verdict.verdict == "speculate" else ()
    return (verdict.verdict, *best)


def _best_against_off(recommendation: Recommendation) -> Block:
    by_clock = any(verdict.by_clock for verdict in recommendation.by_concurrency)
    columns = [
        Column("in flight", "requests in flight") if by_clock else Column("conc.", "concurrency"),
        Column("best", is_number=False),
        Column("latency speed-up", "speed-up of the mean request latency") if by_clock else Column("speed-up"),
        Column("90 % interval"),
        Column("tokens/round", "tokens per round"),
        Column("tok/s", "output tokens per second"),
        Column("ITL p95", "gap between chunks, p95"),
        Column("TPOT", "time per output token"),
    ]
    labels = label_cells(option.label for verdict in recommendation.by_concurrency for option in verdict.options)
    rows: list[tuple[AnyCell, ...]] = []
    styles: list[str] = []
    for verdict in recommendation.by_concurrency:
        best, concurrency = verdict.best, str(verdict.concurrency)
        gain = Text(f"{best.speedup:.2f}x", style=VERDICT_STYLES[verdict.verdict])
        interval = format_interval(best.low, best.high)
        rows.append(
            (
                concurrency,
                labels[best.label].followed_by(f" {best.depth}"),
                gain,
                interval,
                format_number(best.tokens_per_round),
                *_served(best.served),
            )
        )
        rows.append((concurrency, "off", "1.00x", "", "1.00", *_served(verdict.plain)))
        styles += ["", "dim"]
    return Figures(columns, rows, num_keys=2, styles=styles)


def _served(served: Served) -> tuple[AnyCell, AnyCell, AnyCell]:
    """Output tokens per second, the longest gaps between chunks, time per token."""
    itl, tpot = served.itl_p95_seconds, served.tpot_seconds
    return (
        format_rate(served.output_tokens_per_second),
        ABSENT if itl is None else format_seconds(itl),
        ABSENT if tpot is None else format_seconds(tpot),
    )


def format_rate(tokens_per_second: float) -> str:
    """Tokens per second: `1,234`, `8.4`."""
    return format_count(round(tokens_per_second)) if tokens_per_second >= 10 else f"{tokens_per_second:.2g}"


def _break_even(recommendation: Recommendation) -> Block:
    verdicts = recommendation.by_concurrency
    several = len(verdicts) > 1
    needed = [
        f"{verdict.best.break_even_tokens_per_round:.2f}"
        + ("" if number else " tokens per round")
        + (f" at {'' if number else 'concurrency '}{verdict.concurrency}" if several else "")
        for number, verdict in enumerate(verdicts[:MOST_TOLD])
    ]
    facts = [
        Said(
            f"{traffics([verdict])}, breaks even at", f"{verdict.best.break_even_tokens_per_round:.2f} tokens per round"
        )
        for verdict in verdicts
    ]
    return Section([Sentence("", f"{', '.join(needed)}.", lead="Break even: "), *facts])


def _prices(recommendation: Recommendation) -> list[Block]:
    verdicts = recommendation.by_concurrency[:MOST_TOLD]
    told = [
        f"{dollars(recommendation, verdict)}{f' at {verdict.concurrency}' if len(verdicts) > 1 else ''}"
        for verdict in verdicts
    ]
    priced = recommendation.dollars_per_hour is not None
    name = "a million output tokens"
    return [Sentence(name, f"{', '.join(told)}.", lead=f"{name.capitalize()}: ")] if priced else []


def crossover(recommendation: Recommendation) -> str:
    """From which concurrency on nothing is faster than not speculating."""
    cost = recommendation.cost
    return f"With all slots full, {crossover_words(recommendation.crossover_concurrency, cost.batches, cost.source)}."


def crossover_words(found: int | None, batches: Sequence[int], source: str) -> str:
    """`found`: the concurrency, None where a cost of these batches, from this source, has none."""
    if found is not None:
        return f"nothing is faster than not speculating from concurrency {found} on"
    # A roofline has any batch, and timings are of what was asked for: only a file has a largest one of its own.
    looked_at = {"roofline": "predicted", "measured": "timed"}.get(source)
    if looked_at is None:
        return f"speculation is not slower up to {batches[-1]}, the cost's largest batch"
    if len(batches) == 1:
        return f"speculation is not slower at concurrency {batches[0]}; no other was {looked_at}"
    return f"speculation is not slower up to concurrency {batches[-1]}; no larger one was {looked_at}"


def dollars(recommendation: Recommendation, verdict: Verdict) -> str:
    """Of a million output tokens, without and with; empty without a price."""
    before, after = map(recommendation.dollars_per_million_tokens, (verdict.plain, verdict.best.served))
    return "" if before is None or after is None else f"${before:.3g} → ${after:.3g}"


def _with_temperature(found: TemperatureVerdicts) -> Block:
    told = ", ".join(
        f"{VERDICT_WORDS[verdict.verdict]} at {temperature:g} ({verdict.best.speedup:.2f}x)"
        for temperature, verdict in found.verdicts
    )
    if found.break_even:
        told += f"; breaks even near {', '.join(f'{temperature:.2f}' for temperature in found.break_even)}"
    name = f"temperature, {traffics([found.verdicts[0][1]])}"
    return Sentence(name, f"{told}.", lead=f"{name[0].upper()}{name[1:]}: ")


def _cost(recommendation: Recommendation) -> str:
    """Where it comes from, and how far off it may be."""
    cost = recommendation.cost
    about = [inert(str(cost.conditions[key]), 80) for key in ("hardware", "gpu", "device") if key in cost.conditions][
        :1
    ]
    if cost.source == "measured":
        about.append(f"median spread {format_percent(cost.quality()['relative_spread'])}")
    if cost.log_deviation:
        about.append(f"known to err by {format_percent(cost.log_deviation)}, which the interval holds")
    details = f" ({', '.join(about)})" if about else ""
    return f"{cost.source}{details}."


def _settings_briefly(verdicts: Sequence[Verdict]) -> list[Block]:
    """The first in full; of others that differ by one setting, that one."""
    shown: list[Block] = []
    first: Mapping[str, Any] = {}
    for engine, settings, found in _wanted(verdicts):
        differing = [key for key in settings if settings[key] != first.get(key)]
        if not first or set(first) != set(settings) or len(differing) > 1:
            first = first or settings
            shown.append(Copyable(traffics(found), command_line(engine, settings)))
            continue
        text = ", ".join(f"the same with {key} {settings[key]}" for key in differing)
        shown.append(Sentence(f"{traffics(found)}, command", text, lead=f"# {traffics(found)}: "))
    return shown


def _wanted(verdicts: Sequence[Verdict]) -> list[tuple[str, Mapping[str, Any], list[Verdict]]]:
    """Engine, settings, and the verdicts that want them."""
    wanted: dict[str, tuple[str, Mapping[str, Any], list[Verdict]]] = {}
    for verdict in verdicts:
        for engine, settings in verdict.export.items():
            wanted.setdefault(command_line(engine, settings), (engine, settings, []))[2].append(verdict)
    return list(wanted.values())


def _is_overloaded(verdict: Verdict) -> bool:
    """Whether these arrivals are too many for the best option: then no interval decides."""
    return verdict.by_clock and verdict.best.served.falls_behind


def _more(recommendation: Recommendation) -> str:
    text = "--details (why, depth x concurrency, what-ifs, warnings in full)"
    close = [verdict for verdict in recommendation.by_concurrency if verdict.verdict == "close"]
    if recommendation.undecided is None and any(v.best.low is not None and not _is_overloaded(v) for v in close):
        narrowing = "step times of yours (specprobe calibrate)" if recommendation.cost.log_deviation else "more prompts"
        text = f"{narrowing} would narrow the interval; {text}"
    return text
