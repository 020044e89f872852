"""The report of `recommend`: one screen, or with details the reasons, the map over depth and load, and what-ifs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from specprobe.advise import Advice
from specprobe.blocks import Block, Column, Figures, Gap, Said, Section, Sentence
from specprobe.candidates import Option
from specprobe.heat_map import HeatMap
from specprobe.interval import MIN_PROMPTS
from specprobe.notice_report import render_notices
from specprobe.notices import inert
from specprobe.recommend import Recommendation, Verdict
from specprobe.recommend_glance import (
    crossover,
    dollars,
    render_glance,
    render_missing_settings,
    render_settings,
    render_verdict,
    traffics,
)
from specprobe.speedup import DEPTH_TOLERANCE
from specprobe.speedup_grid import SpeedupGrid
from specprobe.temperature_report import render_verdicts_by_temperature
from specprobe.units import ABSENT, format_bytes, format_percent, format_seconds

# For other programs, or told already.
UNTOLD = ("fingerprint", "devices")
# Factors on the lengths of prompts and outputs, in words.
LENGTHS = {
    (4.0, 1.0): "prompts 4 times as long",
    (0.25, 1.0): "prompts a quarter as long",
    (1.0, 4.0): "outputs 4 times as long",
    (1.0, 0.25): "outputs a quarter as long",
    (4.0, 4.0): "both 4 times as long",
    (0.25, 0.25): "both a quarter as long",
}
NO_DRAFTING = "drafting that takes no time"


def render_advice(advice: Advice, *, details: bool = False) -> Block:
    """For people; every figure is in the document too."""
    if not details:
        return Section([render_verdict(advice), render_glance(advice)])
    recommendation = advice.recommendation
    verdicts = recommendation.by_concurrency
    parts: list[Block] = [render_verdict(advice)]
    parts += [_why(recommendation, verdict) for verdict in verdicts]
    parts += _depth_rule(verdicts)
    parts += [Gap(), *_maps(recommendation), Gap(), _what_if(verdicts), _not_changed(verdicts[-1])]
    parts += [Gap(), _cost(recommendation)]
    if advice.temperatures:
        parts += [Gap(), render_verdicts_by_temperature(advice.temperatures)]
    if recommendation.export:
        parts += [Gap(), *render_settings(verdicts)]
    parts += render_missing_settings(recommendation)
    if recommendation.notices:
        parts += [Gap(), render_notices(recommendation.notices)]
    return Section(parts)


def _why(recommendation: Recommendation, verdict: Verdict) -> Block:
    best, plain = verdict.best, verdict.plain
    latency, with_it = plain.mean_latency_seconds, best.served.mean_latency_seconds
    itl, itl_with_it = plain.itl_p50_seconds, best.served.itl_p50_seconds
    length = best.break_even_acceptance_length
    told = {
        "tokens per round": f"{best.tokens_per_round:.2f}",
        "breaks even at": f"{best.break_even_tokens_per_round:.2f}"
        + ("" if length is None else f" (mean acceptance length {length:.2f})"),
        "request latency": f"{format_seconds(latency)} → {format_seconds(with_it)}",
        # All shares of a sum are alike, so that all would gain or all would lose.
        "requests that take longer": "" if recommendation.is_of_sums else format_percent(best.losing_share),
        "gap between chunks p50": f"{_seconds(itl)} → {_seconds(itl_with_it)}",
        "per million output tokens": dollars(recommendation, verdict),
        "weights of the drafter": format_bytes(best.drafter_bytes) if best.drafter_bytes else "",
        "runner-up": _option(verdict.runner_up) if verdict.runner_up else "",
        "speed-up is that of": "the mean request latency" if verdict.by_clock else "",
        "prompts": ""
        if best.enough_prompts or recommendation.is_of_sums
        else f"fewer than {MIN_PROMPTS}, which never say speculate",
    }
    at = traffics([verdict])
    facts = [Said(name, value) for name, value in told.items() if value]
    text = "; ".join(f"{fact.name} {fact.value}" for fact in facts)
    sentence = Sentence("", f"{text}.", lead=f"{at}: {inert(best.label, 60)} {best.depth}: ")
    return Section([sentence, Section(facts, name=f"why, {at}")])


def _depth_rule(verdicts: Sequence[Verdict]) -> list[Block]:
    """Why a depth is not the fastest one, and another one at the next concurrency."""
    told = []
    for verdict in verdicts:
        best = verdict.best
        same = [o for o in verdict.options if o.label == best.label and o.config == best.config]
        fastest = max(same, key=lambda option: option.speedup)
        if fastest.depth != best.depth:
            told.append(f"{fastest.depth} is the fastest at {traffics([verdict])}, {best.depth} was taken")
    if not told:
        return []
    rule = (
        f"of depths that are within {format_percent(DEPTH_TOLERANCE)} of the fastest the shallowest is taken, so that "
        f"neighbouring concurrencies may differ where it hardly matters ({'; '.join(told)})."
    )
    return [Sentence("depth", rule, lead="depth: ")]


def _seconds(seconds: float | None) -> str:
    return ABSENT if seconds is None else format_seconds(seconds)


def _option(option: Option) -> str:
    return f"{inert(option.label, 60)} {option.depth} at {option.speedup:.2f}x"


def _maps(recommendation: Recommendation) -> list[Block]:
    """The grid of each drafter, the best one's first."""
    best = [verdict.best.label for verdict in recommendation.by_concurrency]
    rank = {label: number for number, label in reversed([*enumerate(best)])}
    grids = sorted(recommendation.grids, key=lambda grid: rank.get(grid.label, len(best)))
    legend = (
        "rows: concurrency, columns: depth; all slots full; x speed-up, * fastest of its row, - slower than not "
        "speculating"
    )
    title = Text.assemble(("speed-up by depth and concurrency", "bold"))
    return [Section([Sentence("", Text(legend, style="dim"))], title=title), *map(_map, grids)]


def _map(grid: SpeedupGrid) -> Block:
    label = inert(grid.label, 60)
    return Section([HeatMap(grid)], title=label, name=f"speed-up of {label}")


def _what_if(verdicts: Sequence[Verdict]) -> Block:
    """How the gain of each verdict's best moves; acceptance stays what it is."""
    asked: list[tuple[str, Callable[[Option], float | None]]] = [("as it is", lambda best: best.speedup)]
    for factors, words in LENGTHS.items():
        asked.append((words, lambda best, factors=factors: _with_lengths(best, factors)))  # type: ignore[misc]
    asked.append((NO_DRAFTING, lambda best: best.free_drafting_speedup))
    rows: list[tuple[str, ...]] = []
    for words, speedup in asked:
        found = [speedup(verdict.best) for verdict in verdicts]
        shown = tuple(ABSENT if value is None else f"{value:.2f}x" for value in found)
        # Lengths that change nothing say something; drafting that hardly takes time was never the question.
        if any(value is not None for value in found) and not (words == NO_DRAFTING and shown == rows[0][1:]):
            rows.append((words, *shown))
    columns = [Column("", is_number=False, wraps=True)]
    columns += [
        Column("latency", "latency") if v.by_clock else Column(f"conc. {v.concurrency}", f"concurrency {v.concurrency}")
        for v in verdicts
    ]
    title = Text.assemble(("what if", "bold"), " (speed-up, were acceptance the same)")
    return Section([Figures(columns, rows)], title=title, name="what if", indent=2)


def _with_lengths(best: Option, factors: tuple[float, float]) -> float | None:
    found = {(one.scale_prompt, one.scale_output): one.speedup for one in best.sensitivity}
    return found.get(factors)


def _not_changed(verdict: Verdict) -> Block:
    """What speculation does not do."""
    ttft = f"{format_seconds(verdict.plain.ttft_p50_seconds)} → {format_seconds(verdict.best.served.ttft_p50_seconds)}"
    text = "Speculation does not make a prefill faster and saves no memory: what changes in the time to first token "
    text += f"(p50 {ttft} at {traffics([verdict])}) is the wait for a turn."
    return Sentence("time to first token", text)


def _cost(recommendation: Recommendation) -> Block:
    cost = recommendation.cost
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
    words = f"{crossover(recommendation)} Cost: {cost.source}{details}."
    return Sentence("cost", Text(words, style="dim"))
