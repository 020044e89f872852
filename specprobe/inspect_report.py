"""An Inspection as something rich can print. Text out of a log or a path is never taken for markup."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.text import Text

from specprobe.blocks import Block, Column, Figures, Section, Sentence
from specprobe.notice_report import render_notices
from specprobe.notices import inert
from specprobe.scan import FileSummary
from specprobe.sketches import Spread
from specprobe.units import ABSENT, format_plural
from specprobe.workload import Inspection

LONGEST = 1000


def render_inspection(inspection: Inspection) -> Block:
    """One row for each file, then what was skipped and where, then the warnings."""
    parts: list[Block] = [_files(inspection)]
    skipped = [file for file in inspection.files if file.skipped]
    if skipped:
        parts.append(_skips(skipped))
    parts += [*_totals(inspection), *_warnings(inspection)]
    if inspection.prompts:
        parts.append(Sentence("next", _next_command(inspection), lead="Next: "))
    return Section(parts)


def _next_command(inspection: Inspection) -> str:
    """What to type. Where most prompts have an answer and some have none, all are generated if nothing is said."""
    is_one = len(inspection.files) == 1
    command = f"specprobe analyze {shlex.quote(inspection.files[0].path) if is_one else 'PROMPTS'}"
    unanswered = inspection.prompts - sum(file.answers for file in inspection.files)
    if 0 < unanswered < inspection.prompts / 2:
        command += " --responses logged"
    return command if is_one else f"{command}, the same files"


def _files(inspection: Inspection) -> Block:
    columns = [Column(header, is_number=False, wraps=True) for header in ("file", "format", "prompt from")]
    columns += [Column(header) for header in ("rows", "first turns", "answers", "prompts")]
    rows = [
        (
            inert(file.path, LONGEST),
            inert(", ".join(filter(None, (file.format, file.container, file.compression))) or ABSENT, LONGEST),
            ", ".join(inert(column) for column in file.columns) or ABSENT,
            *(f"{count:,}" for count in (file.rows, file.first_turns, file.answers, file.prompts)),
        )
        for file in inspection.files
    ]
    return Figures(columns, rows)


def _skips(files: list[FileSummary]) -> Block:
    columns = [Column(header, is_number=False, wraps=True) for header in ("file", "skipped", "first at")]
    rows = [
        (
            inert(file.path, LONGEST),
            inert(reason, LONGEST),
            ", ".join(str(line) for line in file.lines.get(reason, ())),
            f"{count:,}",
        )
        for file in files
        for reason, count in file.skipped.items()
    ]
    return Figures([*columns, Column("count")], rows, num_keys=2)


def _totals(inspection: Inspection) -> Iterator[Block]:
    about = "" if inspection.duplicates_exact else "about "
    repeats = f"{about}{inspection.duplicates:,} of them repeat an earlier one"
    yield Sentence("prompts", f"{format_plural(inspection.prompts, 'prompt')}, {repeats}")
    for what, unit, spread in (
        ("prompt", "characters", inspection.prompt_chars),
        ("prompt", "tokens", inspection.prompt_tokens),
        ("answer", "characters", inspection.answer_chars),
        ("answer", "tokens", inspection.answer_tokens),
    ):
        if spread is not None:
            name = f"{what} length in {unit}"
            yield Sentence(name, _spread(spread), lead=f"{name}: ")


def _spread(spread: Spread) -> str:
    return f"min {spread.min:,}, median {spread.median:,}, max {spread.max:,}"


def _warnings(inspection: Inspection) -> Iterator[Block]:
    for file in inspection.files:
        if file.error:
            yield Sentence("error", Text(inert(file.error, LONGEST), style="red"))
        yield render_notices(file.notices)
    yield render_notices(inspection.notices)
