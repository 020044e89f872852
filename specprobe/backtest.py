"""Back-test: the roofline's speed-ups against a table of measured ones, group by group.

Cold, nothing but configurations and data sheets enters a prediction (of an anchored row also its measured baseline).
Calibrated, factors on the constants are fitted to a few cells that a seed draws and that are never scored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specprobe.calibration import calibrate
from specprobe.predict import Predictor
from specprobe.published import Cell, Group, Table, read_table

SCHEMA = "specprobe.backtest/1"
GROUPS: tuple[Group, ...] = ("modern", "legacy", "anchored")
# A measured speed-up inside the band has no verdict to be right about.
LOSS_BELOW, WIN_ABOVE = 0.95, 1.05
CALIBRATION_DRAWS = 5
LEGACY_CALIBRATION_CELLS = 8
# A sweep over concurrency needs so many levels before a crossover means something.
SHORTEST_SWEEP = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scored:
    """One cell with the speed-up that was predicted for it."""

    cell: Cell
    predicted: float

    @property
    def error(self) -> float:
        """As a fraction of the measured speed-up, signed."""
        return self.predicted / self.cell.speedup - 1


@dataclass(frozen=True, slots=True)
class Score:
    """How good predictions are over some cells; None where they hold nothing to judge it by."""

    rows_used: float
    verdict_accuracy: float | None
    loss_accuracy: float | None
    median_abs_error: float | None
    p90_abs_error: float | None
    null_one_error: float | None
    null_acceptance_error: float | None
    mean_depth_regret: float | None
    crossovers_within_one_step: float | None

    def to_json(self) -> dict[str, Any]:
        """Under the keys of the document."""
        return {
            "rows_used": round(self.rows_used),
            "verdict_accuracy": self.verdict_accuracy,
            "loss_accuracy": self.loss_accuracy,
            "median_abs_error": self.median_abs_error,
            "p90_abs_error": self.p90_abs_error,
            "median_abs_error_of_nulls": {"one": self.null_one_error, "acceptance_length": self.null_acceptance_error},
            "mean_depth_regret": self.mean_depth_regret,
            "crossovers_within_one_step": self.crossovers_within_one_step,
        }


@dataclass(frozen=True, slots=True)
class Backtest:
    """The result over one table. `rows` are the cold predictions, or those of the first draw that scores a row."""

    mode: Literal["cold", "calibrated"]
    seed: int
    groups: Mapping[str, Score]
    by_source: Mapping[tuple[str, str], Score]
    by_engine: Mapping[tuple[str, str], Score]
    rows: tuple[Scored, ...]
    refused: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """The document of `specprobe backtest --json`."""
        return {
            "schema": SCHEMA,
            "mode": self.mode,
            "seed": self.seed if self.mode == "calibrated" else None,
            "draws": CALIBRATION_DRAWS if self.mode == "calibrated" else None,
            "groups": [{"name": name, **score.to_json()} for name, score in self.groups.items()],
            "rows_refused": dict(self.refused),
            "by_source": _named(self.by_source),
            "by_engine": _named(self.by_engine),
            "rows": [
                {
                    "line": row.cell.line,
                    "group": row.cell.group,
                    "predicted": row.predicted,
                    "measured": row.cell.speedup,
                }
                for row in self.rows
            ],
        }


def backtest(path: Path, *, calibrated: bool = False, seed: int = 0) -> Backtest:
    """Read a table and judge the predictor over it. Raises SpecprobeError where no row can be judged."""
    return judge(read_table(path), Predictor(), calibrated=calibrated, seed=seed)


def judge(table: Table, predictor: Predictor, *, calibrated: bool = False, seed: int = 0) -> Backtest:
    """The back-test of one predictor over the cells of a table."""
    cells = predictor.anchor(table.cells)
    draws = (
        [_calibrated_draw(cells, predictor, seed + draw) for draw in range(CALIBRATION_DRAWS)]
        if calibrated
        else [[Scored(cell, predictor.speedup(cell)) for cell in cells]]
    )
    seen = {scored.cell.line: scored for draw in reversed(draws) for scored in draw}
    return Backtest(
        mode="calibrated" if calibrated else "cold",
        seed=seed,
        groups={name: _median_score(draws, _group, name) for name in GROUPS},
        by_source=_by(cells, draws, lambda cell: (cell.source, cell.group)),
        by_engine=_by(cells, draws, lambda cell: (cell.engine, cell.group)),
        rows=tuple(seen[line] for line in sorted(seen)),
        refused=table.refused,
    )


def score(rows: Sequence[Scored]) -> Score:
    """Accuracy and errors over scored cells."""
    if not rows:
        return Score(0, *([None] * (len(fields(Score)) - 1)))
    measured = np.array([row.cell.speedup for row in rows])
    predicted = np.array([row.predicted for row in rows])
    lengths = np.array([row.cell.acceptance_length for row in rows])
    errors = np.abs(predicted / measured - 1)
    right = (predicted > 1) == (measured > 1)
    return Score(
        rows_used=len(rows),
        verdict_accuracy=_mean(right[(measured < LOSS_BELOW) | (measured > WIN_ABOVE)]),
        loss_accuracy=_mean(right[measured < LOSS_BELOW]),
        median_abs_error=float(np.median(errors)),
        p90_abs_error=float(np.quantile(errors, 0.9)),
        null_one_error=float(np.median(np.abs(1 / measured - 1))),
        null_acceptance_error=float(np.median(np.abs(lengths / measured - 1))),
        mean_depth_regret=_mean(np.array([_regret(sweep) for sweep in depth_sweeps(rows)])),
        crossovers_within_one_step=_mean(np.array([crossover_error(s) <= 1 for s in concurrency_sweeps(rows)])),
    )


def depth_sweeps(rows: Sequence[Scored]) -> list[list[Scored]]:
    """Rows that differ in what a round drafts only."""
    sweeps = _grouped(rows, lambda row: (row.cell.setting, row.cell.concurrency))
    return [sweep for sweep in sweeps if len({row.cell.draft for row in sweep}) > 1]


def concurrency_sweeps(rows: Sequence[Scored]) -> list[list[Scored]]:
    """Rows that differ in concurrency only, rising."""
    sweeps = _grouped(rows, lambda row: (row.cell.setting, row.cell.draft))
    return [
        sorted(sweep, key=lambda row: row.cell.concurrency)
        for sweep in sweeps
        if len({row.cell.concurrency for row in sweep}) >= SHORTEST_SWEEP
    ]


def crossover_error(sweep: Sequence[Scored]) -> int:
    """Grid steps between the first concurrency that loses as predicted and as measured; none counts as past the end."""

    def first_loss(speedups: Sequence[float]) -> int:
        return next((step for step, speedup in enumerate(speedups) if speedup < 1), len(speedups))

    return abs(first_loss([row.predicted for row in sweep]) - first_loss([row.cell.speedup for row in sweep]))


def _regret(sweep: Sequence[Scored]) -> float:
    """The share of the best speed-up that the choice by prediction gives away."""
    chosen = max(sweep, key=lambda row: row.predicted)
    return 1 - chosen.cell.speedup / max(row.cell.speedup for row in sweep)


def _calibrated_draw(cells: Sequence[Cell], predictor: Predictor, seed: int) -> list[Scored]:
    """Every cell that the draw did not fit to, predicted with the constants of its own part of the table."""
    generator = np.random.default_rng(seed)
    scored: list[Scored] = []
    for part in _grouped(cells, _calibration_part):
        count = LEGACY_CALIBRATION_CELLS if part[0].group == "legacy" else 1
        drawn = set(generator.permutation(len(part))[:count].tolist())
        fitted = calibrate([part[index] for index in sorted(drawn)], predictor)
        scored += [Scored(cell, fitted.speedup(cell)) for index, cell in enumerate(part) if index not in drawn]
    return scored


def _calibration_part(cell: Cell) -> Hashable:
    """What shares one set of fitted constants: the legacy engine, a source, or an anchored model."""
    if cell.group == "legacy":
        return "legacy"
    return cell.group, cell.source if cell.group == "modern" else cell.model


def _median_score(draws: Sequence[Sequence[Scored]], key: Callable[[Cell], Hashable], name: Hashable) -> Score:
    """Each figure's median over the draws, of the cells that `key` gives `name`."""
    scores = [score([row for row in draw if key(row.cell) == name]) for draw in draws]
    medians: dict[str, Any] = {}
    for field in fields(Score):
        known = [value for one in scores if (value := getattr(one, field.name)) is not None]
        medians[field.name] = float(np.median(known)) if known else None
    return Score(**medians)


def _group(cell: Cell) -> Group:
    return cell.group


def _by(
    cells: Sequence[Cell], draws: Sequence[Sequence[Scored]], key: Callable[[Cell], tuple[str, str]]
) -> dict[tuple[str, str], Score]:
    names = sorted({key(cell) for cell in cells})
    return {name: _median_score(draws, key, name) for name in names}


def _named(scores: Mapping[tuple[str, str], Score]) -> list[dict[str, Any]]:
    return [{"name": name, "group": group, **score.to_json()} for (name, group), score in scores.items()]


def _grouped(items: Sequence[Any], key: Callable[[Any], Hashable]) -> list[list[Any]]:
    groups: dict[Hashable, list[Any]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if values.size else None
