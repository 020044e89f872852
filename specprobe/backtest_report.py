"""The terminal report of a back-test: what was judged, how well, and what was refused. Nothing here computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specprobe.backtest import CALIBRATION_DRAWS, LOSS_BELOW, WIN_ABOVE, Backtest, Score
from specprobe.notices import inert
from specprobe.units import ABSENT, format_count, format_percent, format_plural

WORST_ROWS = 5


def render_backtest(result: Backtest) -> RenderableType:
    """The report of `backtest`."""
    how = (
        "configurations and data sheets only"
        if result.mode == "cold"
        else f"constants fitted to cells that are not scored, median over {CALIBRATION_DRAWS} draws, seed {result.seed}"
    )
    parts: list[RenderableType] = [
        Text.assemble(("back-test", "bold"), f", {result.mode}: {how}"),
        Padding(_scores("group", ((name, score) for name, score in result.groups.items())), (0, 2)),
        Padding(_nulls(result), (0, 2)),
        Text(),
        Text("by engine", style="bold"),
        Padding(_scores("engine", _labelled(result.by_engine)), (0, 2)),
        Text(),
        Text("by source", style="bold"),
        Padding(_scores("source", _labelled(result.by_source)), (0, 2)),
        Text(),
        Text("furthest off", style="bold"),
        Padding(_worst(result), (0, 2)),
    ]
    if result.refused:
        refused = ", ".join(f"{reason} {format_count(count)}" for reason, count in result.refused.items())
        parts += [Text(), Text.assemble(("refused", "dim"), f" {refused}")]
    parts += [
        Text(),
        Text(
            f"Verdicts are judged on rows measured outside {LOSS_BELOW} to {WIN_ABOVE}, losses on those below. Errors "
            "are shares of the measured speed-up.",
            style="dim",
        ),
    ]
    return Group(*parts)


def _labelled(scores: Mapping[tuple[str, str], Score]) -> list[tuple[str, Score]]:
    return [(f"{inert(name, 48) or ABSENT} ({group})", score) for (name, group), score in scores.items()]


def _scores(what: str, rows: Iterable[tuple[str, Score]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(what, overflow="fold")
    for title in ("rows", "verdict", "losses", "median", "p90", "regret", "cross."):
        table.add_column(title, justify="right", no_wrap=True)
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
        table.add_row(Text(label), format_count(round(score.rows_used)), *map(format_percent, shares))
    return table


def _nulls(result: Backtest) -> Text:
    """What a predictor that looks at nothing is off by."""
    said = "; ".join(
        f"{name} {format_percent(score.null_one_error)} and {format_percent(score.null_acceptance_error)}"
        for name, score in result.groups.items()
        if score.rows_used
    )
    return Text(f"median errors of predicting 1, and the acceptance length: {said}", style="dim")


def _worst(result: Backtest) -> RenderableType:
    worst = sorted(result.rows, key=lambda row: -abs(row.error))[:WORST_ROWS]
    lines = [
        Text(
            f"line {row.cell.line}: {inert(row.cell.engine)}, {inert(row.cell.model)}, {inert(row.cell.method)} depth "
            f"{row.cell.draft.depth}, concurrency {row.cell.concurrency:g}: {row.predicted:.2f} predicted, "
            f"{row.cell.speedup:.2f} measured"
        )
        for row in worst
    ]
    return Group(*lines, Text(f"of {format_plural(len(result.rows), 'row')}", style="dim"))
