"""Speed-up over depth and concurrency as a map that reads without colour, and is never wider than the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from specprobe.blocks import Block, Fact, Medium, wrap
from specprobe.speedup_grid import SpeedupGrid
from specprobe.units import evenly

# Backgrounds from the first row whose bound the speed-up reaches; the text stays readable on each.
SHADES = (
    (1.5, "black on green3"),
    (1.2, "black on pale_green3"),
    (1.05, "black on dark_sea_green2"),
    (1.0, "black on khaki1"),
    (0.9, "black on light_salmon1"),
    (0.0, "white on red3"),
)
CORNER = "conc."
# `12.34*`: speed-ups above 100 would be a fault elsewhere.
CELL = 6


@dataclass(frozen=True, slots=True)
class HeatMap(Block):
    """One row for each concurrency, one column for each depth; depths that do not fit are left out evenly.

    A cell is followed by x, by * where it is the fastest of its row and faster than not speculating, by - where it is
    slower than that.
    """

    grid: SpeedupGrid

    def lines(self, medium: Medium) -> list[Text]:
        """The map, and what is not on it."""
        grid = self.grid
        label = max(len(CORNER), *(len(str(batch)) for batch in grid.batches))
        room = max(1, (medium.width - label) // (CELL + 1))
        shown = _kept(grid.speedup.shape[1], room, self._best)
        header = Text(CORNER.rjust(label), style="dim")
        for column in shown:
            header.append(f" {f'{grid.first_depth + column} ':>{CELL}}")
        header.rstrip()
        lines = [header]
        for batch, speedups, best in zip(grid.batches, grid.speedup.tolist(), self._best, strict=True):
            line = Text(str(batch).rjust(label))
            for column in shown:
                line.append(" ").append(*_cell(speedups[column], is_best=column == best))
            lines.append(line)
        if left := grid.speedup.shape[1] - len(shown):
            lines += wrap(
                Text(f"{left} of {grid.speedup.shape[1]} depths do not fit and are left out", "dim"), medium.width
            )
        return lines

    def facts(self) -> list[Fact]:
        """One for each cell."""
        return [
            (f"concurrency {batch}, depth {number}", f"{speedup:.2f}x")
            for batch, speedups in zip(self.grid.batches, self.grid.speedup.tolist(), strict=True)
            for number, speedup in enumerate(speedups, self.grid.first_depth)
        ]

    @property
    def _best(self) -> list[int | None]:
        """The fastest column of each row; None where none is faster than not speculating."""
        return [int(row.argmax()) if row.max() > 1 else None for row in self.grid.speedup]


def _cell(speedup: float, *, is_best: bool) -> tuple[str, str]:
    mark = "*" if is_best else "-" if speedup < 1 else "x"
    style = next(style for bound, style in SHADES if speedup >= bound)
    return f"{f'{speedup:.2f}{mark}':>{CELL}}", f"bold {style}" if is_best else style


def _kept(count: int, room: int, best: Sequence[int | None]) -> list[int]:
    """Columns that fit: the best of each row where they do, and others spread evenly."""
    if count <= room:
        return list(range(count))
    wanted = sorted({column for column in best if column is not None})
    if len(wanted) > room:
        return evenly(count, room)
    others = [column for column in range(count) if column not in wanted]
    return sorted([*wanted, *(others[number] for number in evenly(len(others), room - len(wanted)))])
