"""The report of `bench`: measured beside predicted, whether answers agree, counters beside the replay."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from specprobe.bench.conclusions import AcceptanceCheck, Bench, Level
from specprobe.bench.figures import ArmFigures
from specprobe.bench.texts import Agreement
from specprobe.blocks import Block, Column, Figures, Gap, Section, Sentence
from specprobe.notice_report import render_notices
from specprobe.notices import inert
from specprobe.units import (
    ABSENT,
    VERDICT_STYLES,
    VERDICT_WORDS,
    format_count,
    format_interval,
    format_number,
    format_percent,
    format_plural,
    format_seconds,
)

BROKEN = "this engine's speculative output is broken"


def render_bench(bench: Bench) -> Block:
    """For people; every figure is in the document too."""
    parts: list[Block] = [Sentence("verdict", _headline(bench)), Gap()]
    parts += [Sentence("broken", Text(reason, style="red"), lead="broken: ") for reason in bench.broken]
    parts += [Gap()] if bench.broken else []
    parts += [Sentence("measured", _facts(bench)), Gap(), _arms(bench), Gap(), _speedups(bench), Gap()]
    parts += [Sentence("check", line) for line in _checks(bench)]
    if bench.notices:
        parts += [Gap(), render_notices(bench.notices)]
    return Section(parts)


def _headline(bench: Bench) -> Text:
    if bench.broken:
        return Text(f"{BROKEN}: no verdict", style="bold red")
    sentence = Text()
    for level in bench.levels:
        one = level.measured
        if sentence:
            sentence.append("; ")
        sentence.append(f"concurrency {one.concurrency}: ")
        sentence.append(VERDICT_WORDS[one.verdict], style=VERDICT_STYLES[one.verdict])
        sentence.append(f", measured {one.speedup:.2f}x ({one.standing})")
    return sentence.append(".")


def _facts(bench: Bench) -> str:
    result, plan = bench.result, bench.result.plan
    models = dict.fromkeys(f"{inert(one.name, 60)} {one.version}".strip() for one in result.models.values())
    return (
        f"{format_plural(len(result.prompts), 'prompt')}, {format_plural(plan.repeats, 'repeat')}, temperature "
        f"{plan.temperature:g}, at most {plan.max_new_tokens} tokens; {' and '.join(models)}"
        f"{', restarted between the arms' if result.restarts else ''}"
    )


def _arms(bench: Bench) -> Block:
    columns = [
        Column("conc.", "concurrency"),
        Column("speculation", is_number=False),
        Column("tok/s", "output tokens per second"),
        Column("TTFT p50"),
        Column("ITL p50 / p95"),
        Column("TPOT"),
        Column("latency", "mean request latency"),
        Column("length", "mean acceptance length"),
    ]
    rows = []
    for level in bench.levels:
        one = level.measured
        told = level.acceptance.measured if level.acceptance else None
        length = format_number(told.mean_acceptance_length if told else None)
        rows.append((str(one.concurrency), "without", *_figures(one.plain), ABSENT))
        rows.append((str(one.concurrency), "with", *_figures(one.speculative), length))
    return Figures(columns, rows, num_keys=2)


def _figures(arm: ArmFigures) -> tuple[str, ...]:
    itl = f"{format_seconds(arm.itl.p50)} / {format_seconds(arm.itl.p95)}" if arm.itl else ABSENT
    tpot = format_seconds(arm.tpot.mean) if arm.tpot else ABSENT
    rate = f"{arm.rate:.1f}" if arm.rate < 100 else format_count(round(arm.rate))
    return rate, format_seconds(arm.ttft.p50), itl, tpot, format_seconds(arm.latency.mean)


def _speedups(bench: Bench) -> Block:
    is_predicted = any(level.predicted for level in bench.levels)
    columns = [Column("conc.", "concurrency"), Column("speed-up"), Column("90 % interval"), Column("spread")]
    if is_predicted:
        names = (("predicted", "predicted"), ("as run", "predicted for the requests as run"), ("error", "error"))
        columns += [Column(*pair) for pair in names]
        columns.append(Column("within", "within 10 %, or the spread of the repeats", is_number=False))
    return Figures(columns, [_speedup(level, is_predicted=is_predicted) for level in bench.levels])


def _speedup(level: Level, *, is_predicted: bool) -> list[str]:
    one, prediction = level.measured, level.predicted
    spread = format_percent(one.spread) if len(one.by_repeat) > 1 else ABSENT
    row = [str(one.concurrency), f"{one.speedup:.2f}x", format_interval(one.low, one.high), spread]
    if prediction is not None and level.error is not None:
        as_run = ABSENT if prediction.as_run is None else f"{prediction.as_run:.2f}x"
        row += [f"{prediction.speedup:.2f}x", as_run, f"{100 * level.error:+.1f} %"]
        row.append("yes" if level.is_within else "no")
    elif is_predicted:
        row += [ABSENT] * 4
    return row


def _checks(bench: Bench) -> Iterator[str]:
    for level in bench.levels:
        if level.agreement is not None:
            yield _agreement_line(level.agreement)
        if level.acceptance is not None:
            yield from _acceptance_lines(level, level.acceptance)
    likelihood = bench.likelihood
    if likelihood is not None and likelihood.difference is not None and likelihood.p_value is not None:
        yield (
            f"sampled answers of {format_plural(likelihood.prompts, 'prompt')} under the target: "
            f"{likelihood.plain:.3f} nats a token without speculation, {likelihood.speculative:.3f} with it "
            f"(difference {likelihood.difference:+.3f}, one-sided p {likelihood.p_value:.2g})"
        )
    if bench.greedy is not None:
        agreement = bench.greedy.agreement
        yield f"greedy answers alike: {agreement.compared - len(agreement.divergences)} of {agreement.compared}"


def _agreement_line(agreement: Agreement) -> str:
    alike = agreement.compared - len(agreement.divergences)
    line = f"concurrency {agreement.concurrency}: {alike} of {agreement.compared} answers alike"
    if agreement.divergences:
        unit = "token" if agreement.in_tokens else "character"
        places = sorted(one.position for one in agreement.divergences)
        line += f"; the others leave at {unit} {places[0]} at the earliest, {places[len(places) // 2]} in the median"
    return line


def _acceptance_lines(level: Level, check: AcceptanceCheck) -> Iterator[str]:
    at = f"concurrency {level.measured.concurrency}"
    if check.measured is not None:
        told, expected = check.measured, check.expected
        replayed = ""
        if expected is not None:
            replayed = f"; replayed over the answers without speculation {expected.accepted_tokens:,} of "
            replayed += f"{expected.drafted_tokens:,} ({format_percent(expected.acceptance_rate)})"
        yield (
            f"{at}: accepted {told.accepted_tokens:,} of {told.drafted_tokens:,} draft tokens "
            f"({format_percent(told.acceptance_rate)}){replayed}"
        )
    if check.compared:
        yield f"{at}: counters exactly as replayed in {check.exact} of {check.compared} answers that agree"
    if check.totals_exact is not None:
        yield f"{at}: the server's totals are {'exactly' if check.totals_exact else 'not'} the replay's"
