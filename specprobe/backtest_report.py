"""The terminal report of a back-test: what was judged, how well, and what was refused. Nothing here computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.text import Text

from specprobe.backtest import CALIBRATION_DRAWS, LOSS_BELOW, WIN_ABOVE, Backtest, Score
from specprobe.blocks import Block, Column, Figures, Gap, Section, Sentence
from specprobe.notices import inert
from specprobe.units import ABSENT, format_count, format_percent, format_plural

WORST_ROWS = 5


def render_backtest(result: Backtest) -> Block:
    """The report of `backtest`."""
    how = (
        "configurations and data sheets only"
        if result.mode == "cold"
        else f"constants fitted to cells that are not scored, median over {CALIBRATION_DRAWS} draws, seed {result.seed}"
    )
    parts: list[Block] = [
        Sentence(f"back-test, {result.mode}", how, lead=Text.assemble(("back-test", "bold"), f", {result.mode}: ")),
        Section([_scores("group", result.groups.items()), _nulls(result)], indent=2),
        Gap(),
        _titled("by engine", _scores("engine", _labelled(result.by_engine))),
        Gap(),
        _titled("by source", _scores("source", _labelled(result.by_source))),
        Gap(),
        _titled("furthest off", _worst(result)),
    ]
    if result.refused:
        refused = ", ".join(f"{reason} {format_count(count)}" for reason, count in result.refused.items())
        parts += [Gap(), Sentence("refused", refused, lead=Text("refused ", style="dim"))]
    judged = (
        f"Verdicts are judged on rows measured outside {LOSS_BELOW} to {WIN_ABOVE}, losses on those below. Errors are "
        "shares of the measured speed-up."
    )
    return Section([*parts, Gap(), Sentence("how it is judged", Text(judged, style="dim"))])


def _titled(title: str, block: Block) -> Block:
    return Section([block], title=Text(title, style="bold"), name=title, indent=2)


def _labelled(scores: Mapping[tuple[str, str], Score]) -> list[tuple[str, Score]]:
    return [(f"{inert(name, 48) or ABSENT} ({group})", score) for (name, group), score in scores.items()]


def _scores(what: str, rows: Iterable[tuple[str, Score]]) -> Block:
    columns = [
        Column(what, is_number=False, wraps=True),
        Column("rows"),
        Column("verdict", "verdicts right"),
        Column("losses", "losses found"),
        Column("median", "median error"),
        Column("p90", "p90 error"),
        Column("regret", "regret of the depth"),
        Column("cross.", "crossovers within one step"),
    ]
    shown = []
    for label, score in rows:
        if not score.rows_used:
            continue
        shares = (
            score.verdict_accuracy,
            score.loss_accuracy,
            score.median_abs_error,
            score.p90_abs_error,
            score.mean_depth_regret,
            score.crossovers_within_one_step,
        )
        shown.append((label, format_count(round(score.rows_used)), *map(format_percent, shares)))
    return Figures(columns, shown)


def _nulls(result: Backtest) -> Block:
    """What a predictor that looks at nothing is off by."""
    said = "; ".join(
        f"{name} {format_percent(score.null_one_error)} and {format_percent(score.null_acceptance_error)}"
        for name, score in result.groups.items()
        if score.rows_used
    )
    name = "median errors of predicting 1, and the acceptance length"
    return Sentence(name, Text(said, style="dim"), lead=Text(f"{name}: ", style="dim"))


def _worst(result: Backtest) -> Block:
    worst = sorted(result.rows, key=lambda row: -abs(row.error))[:WORST_ROWS]
    lines = [
        Sentence(
            f"line {row.cell.line}",
            f"{inert(row.cell.engine)}, {inert(row.cell.model)}, {inert(row.cell.method)} depth "
            f"{row.cell.draft.depth}, concurrency {row.cell.concurrency:g}: {row.predicted:.2f} predicted, "
            f"{row.cell.speedup:.2f} measured",
            lead=f"line {row.cell.line}: ",
        )
        for row in worst
    ]
    rows = format_plural(len(result.rows), "row")
    return Section([*lines, Sentence("rows", Text(rows, style="dim"), lead=Text("of ", style="dim"))])
