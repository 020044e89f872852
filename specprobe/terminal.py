"""Where reports go: how wide it is, which characters and colours it has, and whether it wants lines without layout."""

from __future__ import annotations

import os
import stat
from typing import IO

from rich.console import Console

# Below it nothing can be laid out.
NARROWEST = 20
# Of what nobody looks at yet: a file, or a pipe that is not seen from a terminal.
WIDTH_OF_FILES = 80


class ReportConsole(Console):
    """A rich console that also knows whether reports are wanted as plain lines, one fact each."""

    def __init__(self, stream: IO[str], *, is_plain: bool = False) -> None:
        super().__init__(
            file=stream,
            highlight=False,
            markup=False,
            color_system=None if is_plain else "auto",
            width=_width(stream),
        )
        if self.width < NARROWEST:
            self.width = NARROWEST
        # A dumb terminal neither moves its cursor nor has colours: what reads it is a program or a reader aloud.
        self.is_plain = is_plain or self.is_dumb_terminal


def _width(stream: IO[str]) -> int | None:
    """Columns of what is no terminal; None leaves it to rich: $COLUMNS, else the terminal's own.

    A pipe mostly ends in a pager on the terminal that shows errors too; a file has no width, and gets the usual one.
    """
    if stream.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return None
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
        return os.get_terminal_size(2).columns if is_pipe else WIDTH_OF_FILES
    except (OSError, ValueError, AttributeError):
        return WIDTH_OF_FILES
