"""Figures measured in turn: processor seconds and peak memory, medians, and how far repeats lie apart.

The processor's time is taken, not the clock's, so that other programs on the machine change little, and both sides of
a ratio are measured right after each other, so that what they do change cancels.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Of children; torch in this process has one, too (see __main__).
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Settings:
    """What to measure with; what is None is left out.

    `target`: a checkpoint of the embedded target, for transformers; `draft`, `pard`: drafters for it. `arctic`: a
    folder to import arctic_inference from. `vllm`: an interpreter that has vLLM. `is_small`: whether everything runs
    once and at its smallest size, which shows that it runs and little else.
    """

    target: Path | None = None
    draft: Path | None = None
    pard: Path | None = None
    arctic: Path | None = None
    vllm: Path | None = None
    is_small: bool = False

    def size(self, full: int, small: int) -> int:
        """One of two sizes."""
        return small if self.is_small else full


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, as often as it was measured. `bound`: the goal, an upper one where `is_most`.

    `unit`: behind the figures; x for ratios. `seen`: what they were computed from, in words.
    """

    what: str
    bound: float
    is_most: bool
    values: tuple[float, ...]
    seen: str
    unit: str = "x"

    @property
    def median(self) -> float:
        """The figure that counts."""
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool:
        """Whether it is within the goal."""
        return self.median <= self.bound if self.is_most else self.median >= self.bound

    def to_markdown(self) -> str:
        """A row of the table."""
        goal = f"at {'most' if self.is_most else 'least'} {self.bound:,.3g} {self.unit}"
        verdict = "met" if self.is_met else "**missed**"
        spread = f" ({_digits(min(self.values))} to {_digits(max(self.values))})" if len(self.values) > 1 else ""
        return f"| {self.what} | {goal} | {_digits(self.median)} {self.unit}{spread} | {verdict} | {self.seen} |"


HEADER = "| what | goal | median (lowest to highest) | goal is | seen |\n| --- | --- | --- | --- | --- |"


def at_most(what: str, bound: float, values: Sequence[float], seen: str, unit: str = "x") -> Row:
    """A figure that should be small."""
    return Row(what, bound, True, tuple(values), seen, unit)


def at_least(what: str, bound: float, values: Sequence[float], seen: str, unit: str = "x") -> Row:
    """A figure that should be large."""
    return Row(what, bound, False, tuple(values), seen, unit)


def in_turn(repeats: int, *tasks: Callable[[], float]) -> list[tuple[float, ...]]:
    """What each task gives, all of them one after the other and then again: [repeat][task]."""
    return [tuple(task() for task in tasks) for _ in range(repeats)]


def medians(measured: Sequence[Sequence[float]]) -> list[float]:
    """Of each task."""
    return [statistics.median(column) for column in zip(*measured, strict=True)]


def processor_seconds(task: Callable[[], object]) -> float:
    """Of this process, all threads together."""
    begin = time.process_time()
    task()
    return time.process_time() - begin


@dataclass(frozen=True, slots=True)
class Used:
    """What a child took: processor seconds, and the most memory it held, in bytes."""

    seconds: float
    peak_bytes: int


def run_child(arguments: Sequence[str | Path], folder: Path = ROOT, more: Mapping[str, str] | None = None) -> Used:
    """Run a command of this Python to its end in `folder`, its output dropped; AssertionError where it fails."""
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": search, **(more or {})}
    child = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, said.decode("utf-8", "replace")
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return Used(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
