"""A recommendation as a page shows it: verdicts in words, what to type, heat maps, latencies, who gains."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specprobe.export import command_line
from specprobe.interval import MIN_PROMPTS
from specprobe.page.charts import Naming, Strip, strip_chart
from specprobe.page.parts import (
    Command,
    DataTable,
    FigureView,
    HeatCell,
    HeatMap,
    Scale,
    VerdictCard,
    method_names,
    shown,
)
from specprobe.page.stored_advice import Distributions, StoredAdvice, StoredOption, StoredServed, StoredVerdict
from specprobe.speedup_grid import SpeedupGrid
from specprobe.units import (
    ABSENT,
    VERDICT_WORDS,
    format_bytes,
    format_count,
    format_interval,
    format_percent,
    format_seconds,
)

# Steps of the heat map's colours begin at these gains, as logarithms; those of losses at one over them.
HEAT_STEPS = tuple(math.log(ratio) for ratio in (1.0, 1.1, 1.3, 1.6, 2.2))
# The line that shows an interval reaches from half the speed, or less, to twice of it, or more.
SHORTEST_SCALE = math.log(2.0)

Floats = NDArray[np.float64]


def verdict_sentence(advice: StoredAdvice) -> str:
    """The answer for all traffics in one sentence."""
    if advice.undecided:
        return "Not decided: what was replayed does not allow a verdict."
    answers: dict[str, list[StoredVerdict]] = {}
    for verdict in advice.verdicts:
        with_what = f" with {shown(verdict.best.label)} at depth {verdict.best.depth}"
        answer = VERDICT_WORDS[verdict.verdict] + (with_what if verdict.verdict == "speculate" else "")
        answers.setdefault(answer, []).append(verdict)
    sentence = "; ".join(f"{answer} at {_traffics(verdicts)}" for answer, verdicts in answers.items())
    return sentence[0].upper() + sentence[1:] + "."


def _traffics(verdicts: Sequence[StoredVerdict]) -> str:
    """`concurrency 1, 8 and 64`."""
    if any(verdict.by_clock for verdict in verdicts):
        return verdicts[0].traffic
    *others, last = (str(verdict.concurrency) for verdict in verdicts)
    return f"concurrency {', '.join(others)} and {last}" if others else f"concurrency {last}"


def verdict_cards(advice: StoredAdvice) -> tuple[VerdictCard, ...]:
    """One for each traffic."""
    ends = [
        abs(math.log(value))
        for verdict in advice.verdicts
        for value in (verdict.best.speedup, verdict.best.low, verdict.best.high)
        if value is not None and value > 0
    ]
    reach = max([*ends, SHORTEST_SCALE]) * 1.04
    return tuple(_card(advice, verdict, reach) for verdict in advice.verdicts)


def _card(advice: StoredAdvice, verdict: StoredVerdict, reach: float) -> VerdictCard:
    best = verdict.best
    method = f"{shown(best.label)}, depth {best.depth}"
    interval = "no interval" if best.low is None or best.high is None else f"{_range(best)} (90 %)"
    headlines = {"speculate": method, "dont": f"best: {method}", "close": f"best: {method}"}
    return VerdictCard(
        traffic=verdict.traffic[0].upper() + verdict.traffic[1:],
        verdict="close" if advice.undecided else verdict.verdict,
        word="not decided" if advice.undecided else VERDICT_WORDS[verdict.verdict],
        headline=headlines[verdict.verdict],
        speedup=f"{best.speedup:.2f}x",
        interval=interval,
        scale=_scale(best, reach),
        columns=("off", f"{shown(best.label, 24)}\u00a0{best.depth}"),
        rows=_served_rows(verdict.baseline, best.served),
        sentences=_sentences(advice, verdict),
    )


def _range(option: StoredOption) -> str:
    return f"{option.low:.2f} to {option.high:.2f}"


def _scale(option: StoredOption, reach: float) -> Scale:
    def place(value: float) -> float:
        return round(50 + 50 * math.log(max(value, 1e-9)) / reach, 2)

    low, high = option.low, option.high
    return Scale(
        one=50.0,
        point=place(option.speedup),
        low=None if low is None else max(0.0, place(low)),
        high=None if high is None else min(100.0, place(high)),
    )


def _served_rows(off: StoredServed, best: StoredServed) -> tuple[tuple[str, str, str], ...]:
    rows = [
        ("output tokens / s", _rate(off.output_tokens_per_second), _rate(best.output_tokens_per_second)),
        ("latency, mean", _time(off.request_latency_seconds), _time(best.request_latency_seconds)),
        ("first token, median", _time(off.ttft_p50_seconds), _time(best.ttft_p50_seconds)),
        ("time per token", _time(off.tpot_seconds), _time(best.tpot_seconds)),
        ("chunk gap, median", _time(off.itl_p50_seconds), _time(best.itl_p50_seconds)),
        ("chunk gap, 95 %", _time(off.itl_p95_seconds), _time(best.itl_p95_seconds)),
    ]
    if off.dollars_per_million_tokens is not None and best.dollars_per_million_tokens is not None:
        dollars = (off.dollars_per_million_tokens, best.dollars_per_million_tokens)
        rows.append(("cost of 1M tokens", f"${dollars[0]:.3g}", f"${dollars[1]:.3g}"))
    return tuple(rows)


def _sentences(advice: StoredAdvice, verdict: StoredVerdict) -> tuple[str, ...]:
    best, runner_up = verdict.best, verdict.runner_up
    found = [
        f"Writes {best.tokens_per_round:.2f} tokens per round; "
        f"{verdict.break_even_tokens_per_round:.2f} would break even.",
    ]
    if not advice.is_of_sums:
        found.append(f"{format_percent(best.losing_share)} of requests take longer than without.")
    if verdict.by_clock:
        found.append("The speed-up is that of the mean request latency.")
    if advice.is_of_sums:
        found.append("Sums over requests have no interval.")
    elif not verdict.enough_prompts:
        found.append(f"Fewer than {MIN_PROMPTS} prompts never say speculate.")
    if verdict.verdict == "close" and not advice.undecided and best.low is not None:
        narrower = "step times of yours (specprobe calibrate)" if advice.log_deviation else "more prompts"
        found.append(f"{narrower[0].upper()}{narrower[1:]} would narrow the interval.")
    if best.drafter_bytes:
        found.append(f"The drafter takes {format_bytes(best.drafter_bytes)}.")
    if runner_up is not None:
        found.append(f"Runner-up: {shown(runner_up.label)} at depth {runner_up.depth}, {runner_up.speedup:.2f}x.")
    return tuple(found)


def commands(advice: StoredAdvice) -> tuple[Command, ...]:
    """What to type for each traffic that should speculate; the same line once."""
    wanted: dict[str, list[StoredVerdict]] = {}
    for verdict in advice.verdicts:
        for engine, settings in verdict.export.items():
            wanted.setdefault(command_line(engine, settings), []).append(verdict)
    return tuple(Command(f"At {_traffics(verdicts)}", shown(line, 2000)) for line, verdicts in wanted.items())


def heat_maps(advice: StoredAdvice) -> tuple[HeatMap, ...]:
    """One for each drafter, that with the largest speed-up first."""
    asked = {verdict.concurrency for verdict in advice.verdicts}
    names = method_names([(grid.label, grid.config) for grid in advice.grids])
    ranked = sorted(zip(names, advice.grids, strict=True), key=lambda found: -float(found[1].speedup.max()))
    return tuple(_heat_map(name, grid, asked) for name, grid in ranked)


def _heat_map(name: str, grid: SpeedupGrid, asked: set[int]) -> HeatMap:
    speedup = grid.speedup
    gains = speedup > 1
    rows = []
    for row, batch in enumerate(grid.batches):
        best = int(np.argmax(speedup[row]))
        cells = []
        for column, value in enumerate(speedup[row].tolist()):
            edges = []
            if column + 1 < speedup.shape[1] and gains[row, column] != gains[row, column + 1]:
                edges.append("right")
            if row + 1 < speedup.shape[0] and gains[row, column] != gains[row + 1, column]:
                edges.append("below")
            cells.append(HeatCell(f"{value:.2f}", _heat_step(value), column == best and value > 1, tuple(edges)))
        rows.append((batch, batch in asked, tuple(cells)))
    depths = range(grid.first_depth, grid.first_depth + speedup.shape[1])
    return HeatMap(name, tuple(depths), tuple(rows))


def _heat_step(speedup: float) -> int:
    size = abs(math.log(max(speedup, 1e-9)))
    step = sum(size >= start for start in HEAT_STEPS)
    return step if speedup > 1 else -step


def latency_figures(key: str, verdicts: Sequence[StoredVerdict]) -> list[FigureView]:
    """Distributions of request latency, time to first token and gaps, without speculation and with the best."""
    known = [v for v in verdicts if v.without is not None and v.with_it is not None]
    if not known:
        return []
    return [
        found
        for name, caption, unit in (
            ("latency", "Latency of a request", "from arrival to last token, log scale"),
            ("ttft", "Time to the first token", "from arrival to first token, log scale"),
            ("gap", "Gap between stream chunks", "between chunks of a stream, log scale"),
        )
        if (found := _latency_figure(f"{key}-{name}", name, caption, unit, known)) is not None
    ]


def _latency_figure(
    key: str, name: str, caption: str, axis: str, verdicts: Sequence[StoredVerdict]
) -> FigureView | None:
    strips, rows = [], []
    for verdict in verdicts:
        best = f"{verdict.best.label} {verdict.best.depth}"
        for label, found in (("off", verdict.without), (best, verdict.with_it)):
            values = _values(found, name) if found is not None else None
            if found is None or values is None or values[0] <= 0:
                continue
            strips.append(Strip(verdict.traffic, label, values, found.at, is_baseline=label == "off"))
            times = np.interp((0.05, 0.25, 0.5, 0.75, 0.95, 0.99), found.at, values).tolist()
            rows.append((verdict.traffic, shown(label), *(format_seconds(time) for time in times)))
    if not strips:
        return None
    columns = ("traffic", "speculation", "5 %", "25 %", "median", "75 %", "95 %", "99 %")
    return FigureView(
        caption=caption,
        svg=strip_chart(
            Naming(key, caption, "Distributions without and with speculation. Quantiles follow as a table."),
            strips,
            axis,
        ),
        table=DataTable(caption, columns, tuple(rows), num_text=2),
    )


def _values(found: Distributions, name: str) -> Floats | None:
    return {"latency": found.latency, "ttft": found.ttft, "gap": found.gap}[name]


def speedup_by_request(key: str, verdicts: Sequence[StoredVerdict]) -> FigureView | None:
    """Of each request: its latency without speculation over that with it."""
    known = [v for v in verdicts if v.request_speedup is not None and v.request_speedup[0] > 0]
    if not known:
        return None
    strips, rows = [], []
    for verdict in known:
        label = f"{verdict.best.label} {verdict.best.depth}"
        assert verdict.request_speedup is not None
        assert verdict.without is not None
        strips.append(Strip(verdict.traffic, label, verdict.request_speedup, verdict.without.at))
        ratios = np.interp((0.05, 0.25, 0.5, 0.75, 0.95), verdict.without.at, verdict.request_speedup).tolist()
        rows.append(
            (
                verdict.traffic,
                shown(label),
                format_percent(verdict.best.losing_share),
                *(f"{ratio:.2f}x" for ratio in ratios),
            )
        )
    caption = "Speed-up, request by request"
    columns = ("traffic", "speculation", "take longer", "5 %", "25 %", "median", "75 %", "95 %")
    return FigureView(
        caption=caption,
        svg=strip_chart(
            Naming(key, caption, "Latency without speculation over latency with it. Quantiles follow as a table."),
            strips,
            "latency without / with, log scale",
            reference=1.0,
            seconds=False,
        ),
        table=DataTable(caption, columns, tuple(rows), num_text=2),
        note="Left of the dotted line a request takes longer than without speculation.",
    )


def sensitivity_table(verdict: StoredVerdict) -> DataTable | None:
    """The gain with other lengths of prompts and outputs; None where only the log's own are within the cost's reach."""
    outputs = sorted({output for _, output in verdict.sensitivity})
    prompts = sorted({prompt for prompt, _ in verdict.sensitivity})
    if len(verdict.sensitivity) < 2:
        return None
    rows = []
    for prompt in prompts:
        found = (verdict.sensitivity.get((prompt, output)) for output in outputs)
        rows.append((_times("prompts", prompt), *(ABSENT if value is None else f"{value:.2f}x" for value in found)))
    return DataTable(
        f"Were texts longer or shorter: speed-up at {verdict.traffic}",
        ("lengths", *(_times("outputs", output) for output in outputs)),
        tuple(rows),
        note=f"{shown(verdict.best.label)} at depth {verdict.best.depth}, acceptance unchanged.",
    )


def temperature_table(advice: StoredAdvice) -> DataTable | None:
    """The verdict at every temperature of the run; None where it has one."""
    if not advice.by_temperature:
        return None
    rows = tuple(
        (
            f"concurrency {found.concurrency}",
            f"{found.temperature:g}",
            VERDICT_WORDS[found.verdict],
            f"{shown(found.label)} {found.depth}",
            f"{found.speedup:.2f}x",
            format_interval(found.low, found.high),
        )
        for found in advice.by_temperature
    )
    turns = [
        f"at concurrency {concurrency} the best breaks even at temperature "
        + ", ".join(f"{temperature:.2f}" for temperature in temperatures)
        for concurrency, temperatures in advice.break_even
        if temperatures
    ]
    return DataTable(
        "Verdicts by temperature",
        ("traffic", "temperature", "verdict", "best", "speed-up", "90 % interval"),
        rows,
        num_text=4,
        note=f"{'; '.join(turns).capitalize()}." if turns else "",
    )


def _times(what: str, factor: float) -> str:
    words = {0.25: "a quarter as long", 1.0: "as in the log", 4.0: "4 times as long"}
    return f"{what} {words.get(factor, f'{factor:g} times as long')}"


def _time(seconds: float | None) -> str:
    return ABSENT if seconds is None else format_seconds(seconds)


def _rate(tokens_per_second: float) -> str:
    return format_count(round(tokens_per_second)) if tokens_per_second >= 10 else f"{tokens_per_second:.2g}"
