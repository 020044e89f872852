"""An Inspection as something rich can print. Text out of a log or a path is never taken for markup."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specprobe.notices import inert
from specprobe.scan import FileSummary
from specprobe.sketches import Spread
from specprobe.workload import Inspection

LONGEST = 1000


def render_inspection(inspection: Inspection) -> RenderableType:
    """One row for each file, then what was skipped and where, then the warnings."""
    parts: list[RenderableType] = [_files(inspection)]
    skipped = [file for file in inspection.files if file.skipped]
    if skipped:
        parts.append(_skips(skipped))
    parts.append(_totals(inspection))
    parts += _warnings(inspection)
    if inspection.prompts:
        only = shlex.quote(inspection.files[0].path) if len(inspection.files) == 1 else "PROMPTS, the same files"
        parts.append(_text(f"Next: specprobe analyze {only}"))
    return Group(*parts)


def _files(inspection: Inspection) -> Table:
    table = Table("file", "format", "prompt from", box=None, pad_edge=False, header_style="bold")
    for heading in ("rows", "first turns", "answers", "prompts"):
        table.add_column(heading, justify="right")
    for file in inspection.files:
        table.add_row(
            _text(file.path),
            _text(", ".join(filter(None, (file.format, file.container, file.compression))) or "-"),
            _text(", ".join(inert(column) for column in file.columns) or "-"),
            *(f"{count:,}" for count in (file.rows, file.first_turns, file.answers, file.prompts)),
        )
    return table


def _skips(files: list[FileSummary]) -> Table:
    table = Table("file", "skipped", "first at", box=None, pad_edge=False, header_style="bold")
    table.add_column("count", justify="right")
    for file in files:
        for reason, count in file.skipped.items():
            places = ", ".join(str(line) for line in file.lines.get(reason, ()))
            table.add_row(_text(file.path), _text(reason), _text(places), f"{count:,}")
    return table


def _totals(inspection: Inspection) -> Text:
    about = "" if inspection.duplicates_exact else "about "
    lines = [f"{inspection.prompts:,} prompts, {about}{inspection.duplicates:,} of them repeat an earlier one"]
    for what, spread in (("prompt", inspection.prompt_chars), ("answer", inspection.answer_chars)):
        if spread is not None:
            lines.append(f"{what} length in characters: {_spread(spread)}")
    return Text("\n".join(lines))


def _spread(spread: Spread) -> str:
    return f"min {spread.min:,}, median {spread.median:,}, max {spread.max:,}"


def _warnings(inspection: Inspection) -> Iterator[Text]:
    for file in inspection.files:
        if file.error:
            yield _text(file.error, style="red")
        yield from (_text(notice.message, style="yellow") for notice in file.notices)
    yield from (_text(notice.message, style="yellow") for notice in inspection.notices)


def _text(value: str, style: str = "") -> Text:
    return Text(inert(value, LONGEST), style=style, overflow="fold")
