"""What is being done and how long it will take: progress for the code that works, on stderr or nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

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


class OnStderr:
    """Lines and bars on stderr: a bar with its ETA on a terminal, a line at the start of a step elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, markup=False)

    def say(self, message: str) -> None:
        """One line."""
        self._console.print(message, style="dim")

    @contextmanager
    def track(self, description: str, total: float) -> Iterator[Advance]:
        """A bar with elapsed and remaining time; it goes away when the step ends."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        if not self._console.is_terminal:
            self.say(f"{description} ...")
        with Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        ) as progress:
            task = progress.add_task(description, total=total, note="")
            yield lambda done, note: progress.update(task, completed=done, note=note)
