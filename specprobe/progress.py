"""What is being done and how long it will take: progress for the code that works, on stderr or nowhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from specprobe.legible import legible
from specprobe.units import format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_BETWEEN_LINES = 15.0
# Before that much is done, its pace says nothing: the first step also does what is done only once.
FORESEEABLE_SHARE = 0.05

Advance = Callable[[float, str], None]
"""Called with the amount done so far and a short note."""


class Stages(Protocol):
    """Where work reports to."""

    def say(self, message: str) -> None:
        """Announce a step whose end cannot be foreseen."""

    def track(self, description: str, total: float) -> AbstractContextManager[Advance]:
        """A context manager around a step with a known total; it gives the function to advance it with."""


class Silent:
    """No progress at all: for library use, and where nobody watches."""

    def say(self, message: str) -> None:
        """Nothing is shown."""

    @contextmanager
    def track(self, description: str, total: float) -> Iterator[Advance]:  # noqa: ARG002
        """Nothing is shown."""
        yield lambda _done, _note: None


SILENT: Stages = Silent()


def where_long(stages: Stages, is_long: bool) -> Stages:
    """The stages for work that may take seconds; for work that is done before anybody reads a line, none."""
    return stages if is_long else SILENT


def counting(advance: Advance, total: int, unit: str) -> Callable[[], None]:
    """A function to call after each of `total` things."""
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        advance(done, f"{done:,}/{total:,} {unit}")

    return one_more


class OnStderr:
    """Lines and bars on stderr: a bar with its ETA on a terminal, a line at the start of a step elsewhere.

    `is_plain`: lines on a terminal too, for who has it read aloud.
    """

    def __init__(self, *, is_plain: bool = False) -> None:
        from specprobe.terminal import ReportConsole

        self._console = ReportConsole(sys.stderr, is_plain=is_plain)

    def say(self, message: str) -> None:
        """One line."""
        encoding = "ascii" if self._console.is_plain else self._console.encoding
        self._console.print(legible(message, encoding), style="dim", soft_wrap=self._console.is_plain)

    @contextmanager
    def track(self, description: str, total: float) -> Iterator[Advance]:
        """A bar with elapsed and remaining time; it goes away when the step ends."""
        if self._console.is_terminal and not self._console.is_plain:
            with _bar(self._console, legible(description, self._console.encoding), total) as advance:
                yield advance
        else:
            self.say(f"{description} ...")
            yield self._lines(description, total)

    def _lines(self, description: str, total: float) -> Advance:
        """A line now and then, for logs and pipes."""
        begin = last = time.monotonic()

        def advance(done: float, note: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < SECONDS_BETWEEN_LINES or not FORESEEABLE_SHARE * total < done < total:
                return
            last = now
            left = (now - begin) * (total - done) / done
            self.say(
                f"{description}: {format_percent(done / total)}{note and ', '}{note}, about {format_seconds(left)} left"
            )

        return advance


@contextmanager
def _bar(console: Console, description: str, total: float) -> Iterator[Advance]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task(description, total=total, note="")
        yield lambda done, note: progress.update(task, completed=done, note=note)
