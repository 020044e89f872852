"""The user's PROMPTS -> a Workload (every prompt) or an Inspection (counts only, in constant memory)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from specprobe.batch_files import batch_answers
from specprobe.conversations import linked
from specprobe.errors import SpecprobeError
from specprobe.formats.conversation import Completion, Conversation, TokenRow
from specprobe.formats.request import has_structured_output, settings, tools
from specprobe.notices import Notice, inert
from specprobe.progress import SILENT, Stages, where_long
from specprobe.prompt import Message, Prompt
from specprobe.prompt_keys import measures
from specprobe.scan import (
    KEYS_SHOWN,
    FileSummary,
    ReadOptions,
    RowPrompts,
    Tally,
    model_of,
    named_model,
    only_or_mixed,
    scan,
)
from specprobe.sketches import Distinct, Lengths, Spread
from specprobe.sources import Found, find_sources
from specprobe.spool import Spool

INSPECT_SCHEMA = "specprobe.inspect/1"

MANY_BYTES = 1 << 24
"""Reading so many may take a second or more."""

MANY_DUPLICATES = 0.1
"""Share of repeated prompts above which acceptance is more about the repetition than about the traffic."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts to analyse and where they came from.

    `duplicates` counts prompts equal to an earlier one (those left out by `dedupe` included) and `distinct`
    the different ones; two prompts are equal when all that was sent is equal, whatever was answered. `prompts` of
    a large log wait on the disk, and each pass over them makes them anew: see `specprobe.spool`.
    """

    files: tuple[FileSummary, ...]
    prompts: Sequence[Prompt]
    duplicates: int
    distinct: int
    notices: tuple[Notice, ...] = ()

    @property
    def rows(self) -> int:
        """Rows read in all files."""
        return sum(file.rows for file in self.files)

    @property
    def skipped(self) -> dict[str, int]:
        """What was left out in all files, by reason."""
        return _sum(file.skipped for file in self.files)

    @property
    def format(self) -> str | None:
        """The format of all rows, or "mixed"."""
        return only_or_mixed(_sum(file.formats for file in self.files))

    @property
    def columns(self) -> dict[str, int]:
        """Prompts by the column they were taken from."""
        return _sum(file.columns for file in self.files)

    @property
    def repaired(self) -> int:
        """Rows in which lone surrogates were replaced."""
        return sum(file.repaired for file in self.files)

    @property
    def structured_outputs(self) -> int:
        """Prompts whose answer was constrained to a schema or grammar."""
        return sum(prompt.structured_output for prompt in self.prompts)

    @property
    def temperature_counts(self) -> dict[float | None, int]:
        """Prompts by the temperature that their settings ask for, lowest first; None, last, where they say nothing."""
        asked = (prompt.settings.get("temperature") for prompt in self.prompts)
        counts = Counter(None if value is None else float(value) for value in asked)
        return dict(sorted(counts.items(), key=lambda item: math.inf if item[0] is None else item[0]))

    @property
    def all_notices(self) -> tuple[Notice, ...]:
        """Warnings about the whole and about each file."""
        return (*self.notices, *(notice for file in self.files for notice in file.notices))


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in the files. Lengths are of everything sent, and of the logged answers: in characters of text, in tokens
    of rows that hold token ids.

    `duplicates` is exact up to 262,144 distinct prompts and an estimate above (`duplicates_exact` tells).
    """

    files: tuple[FileSummary, ...]
    prompts: int
    duplicates: int
    duplicates_exact: bool
    prompt_chars: Spread | None
    answer_chars: Spread | None
    notices: tuple[Notice, ...] = ()
    prompt_tokens: Spread | None = None
    answer_tokens: Spread | None = None

    @property
    def error(self) -> str | None:
        """One line that says why nothing at all can be used, else None."""
        return None if self.prompts else _why_nothing(self.files)

    def to_json(self) -> dict[str, Any]:
        """The `specprobe.inspect/1` document."""
        return {
            "schema": INSPECT_SCHEMA,
            "files": [_file_json(file) for file in self.files],
            "prompts": self.prompts,
            "duplicates": self.duplicates,
            "duplicates_exact": self.duplicates_exact,
            "prompt_chars": asdict(self.prompt_chars) if self.prompt_chars else None,
            "answer_chars": asdict(self.answer_chars) if self.answer_chars else None,
            "prompt_tokens": asdict(self.prompt_tokens) if self.prompt_tokens else None,
            "answer_tokens": asdict(self.answer_tokens) if self.answer_tokens else None,
            "warnings": [asdict(notice) for notice in self.notices],
        }


def _file_json(file: FileSummary) -> dict[str, Any]:
    return {
        "path": file.path,
        "container": file.container,
        "compression": file.compression,
        "format": file.format,
        "formats": dict(file.formats),
        "columns": dict(file.columns),
        "rows": file.rows,
        "first_turns": file.first_turns,
        "answers": file.answers,
        "prompts": file.prompts,
        "skipped": dict(file.skipped),
        "lines": {reason: list(lines) for reason, lines in file.lines.items()},
        "cut": dict(file.cut),
        "repaired": file.repaired,
        "structured_outputs": file.structured_outputs,
        "models": dict(file.models),
        "joined": file.joined,
        "warnings": [asdict(notice) for notice in file.notices],
        "error": file.error,
    }


def inspect_workload(
    sources: Sequence[str],
    *,
    format: str | None = None,
    prompt_field: str | None = None,
    first_turn: bool = False,
    stages: Stages = SILENT,
) -> Inspection:
    """Count what the sources hold without keeping any of it.

    A source that cannot be used is told in its summary's `error`; `SpecprobeError` is raised only where a
    name leads nowhere.
    """
    options = ReadOptions(format=format, prompt_field=prompt_field, first_turn=first_turn)
    found = find_sources(sources)
    answers = batch_answers(found.sources)
    prompt_chars, answer_chars, distinct = Lengths(), Lengths(), Distinct()
    prompt_tokens, answer_tokens = Lengths(), Lengths()
    tallies: list[Tally] = []
    prompts = 0
    with _reading(found, stages) as on_read:
        for source in found.sources:
            tally = Tally(source.name)
            tallies.append(tally)
            for row in scan(source, options, tally, answers, on_read):
                keys, lengths = measures(row)
                distinct.add(keys)
                rows_of_ids = [use.item for use in row.requests if type(use.item) is TokenRow]
                if rows_of_ids:
                    prompt_tokens.add(lengths)
                    answer_tokens.add([len(item.output) for item in rows_of_ids if item.output])
                else:
                    prompt_chars.add(lengths)
                    answer_chars.add([len(use.answer.text) for use in row.requests if use.answer])
            prompts += tally.prompts
    # A file that failed half-way had some prompts measured before; they only show where others are left.
    duplicates = max(0, prompts - distinct.count) if prompts else 0
    notices = (*found.notices, *_duplicate_notice(duplicates, prompts, dropped=False))
    return Inspection(
        files=tuple(tally.freeze() for tally in tallies),
        prompts=prompts,
        duplicates=duplicates,
        duplicates_exact=distinct.is_exact,
        prompt_chars=prompt_chars.spread() if prompts else None,
        answer_chars=answer_chars.spread() if prompts else None,
        notices=notices,
        prompt_tokens=prompt_tokens.spread() if prompts else None,
        answer_tokens=answer_tokens.spread() if prompts else None,
    )


def read_workload(
    sources: Sequence[str],
    *,
    format: str | None = None,
    prompt_field: str | None = None,
    first_turn: bool = False,
    dedupe: bool = False,
    max_prompts: int | None = None,
    group_by: str | None = None,
    stages: Stages = SILENT,
) -> Workload:
    """Read every prompt of the sources; the keywords are those of `ReadOptions`.

    Without `group_by`, prompts are labelled by their source where they come from more than one. Raises
    `SpecprobeError` where nothing is usable, a file that the user named cannot be read, or no usable row has the
    column `group_by`; a file of a folder that turns out not to be a log is left out with a notice.
    """
    options = ReadOptions(format, prompt_field, first_turn, dedupe, max_prompts, group_by)
    found = find_sources(sources)
    answers = batch_answers(found.sources)
    reading = _Reading(options)
    tallies: list[Tally] = []
    files: list[FileSummary] = []
    notices = list(found.notices)
    with _reading(found, stages) as on_read:
        for source in found.sources:
            tally = Tally(source.name)
            tallies.append(tally)
            reading.take(scan(source, options, tally, answers, on_read), tally)
            summary = tally.freeze()
            files.append(summary)
            if tally.error and source.chosen:
                raise SpecprobeError(tally.error)
            if summary.error:
                notices.append(Notice("file_not_used", summary.error))
            if reading.is_full:
                message = f"reading stopped after {len(reading.prompts)} prompts, as asked; counts are of these"
                notices.append(Notice("stopped_early", message))
                break
    if not reading.prompts:
        raise SpecprobeError(_why_nothing(files))
    if group_by is not None and not any(tally.has_group_column for tally in tallies):
        raise SpecprobeError(_no_group_column(group_by, tallies))
    total = len(reading.prompts) + (reading.duplicates if options.dedupe else 0)
    notices += _duplicate_notice(reading.duplicates, total, options.dedupe)
    prompts = linked(reading.prompts)
    if group_by is None and len(files) > 1:
        prompts = _grouped_by_source(prompts)
    return Workload(tuple(files), prompts, reading.duplicates, len(reading.seen), tuple(notices))


@contextmanager
def _reading(found: Found, stages: Stages) -> Iterator[Callable[[int], None]]:
    """Progress by bytes, where there are many; gives what to call with the bytes of each piece."""
    total, done = sum(source.num_bytes for source in found.sources), 0
    with where_long(stages, total >= MANY_BYTES).track("reading prompts", total) as advance:

        def on_read(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            advance(done, "")

        yield on_read


def _grouped_by_source(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    if len({prompt.source for prompt in prompts}) < 2:
        return prompts
    return Spool(replace(prompt, group=prompt.source) for prompt in prompts)


class _Reading:
    """Prompts gathered so far, over all sources."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.prompts: Spool[Prompt] = Spool()
        self.seen: set[int] = set()
        self.duplicates = 0
        self._rows = 0

    @property
    def is_full(self) -> bool:
        limit = self._options.max_prompts
        return limit is not None and len(self.prompts) >= limit

    def take(self, rows: Iterator[RowPrompts], tally: Tally) -> None:
        """Gather the prompts of one source; none where the source fails on the way."""
        begin = len(self.prompts)
        keys: set[int] = set()
        repeated = 0
        for row in rows:
            self._rows += 1
            for prompt, key in zip(to_prompts(row, self._rows), measures(row)[0], strict=True):
                if self.is_full:
                    tally.prompts -= 1
                    continue
                is_repeated = key in keys or key in self.seen
                repeated += is_repeated
                keys.add(key)
                if is_repeated and self._options.dedupe:
                    tally.skip("duplicate", row.line)
                    tally.prompts -= 1
                else:
                    self.prompts.append(prompt)
            if self.is_full:
                break
        if tally.error:
            self.prompts.cut(begin)
            return
        self.seen |= keys
        self.duplicates += repeated


def to_prompts(row: RowPrompts, conversation: int | None = None) -> Iterator[Prompt]:
    """The records for later stages; prompts of one conversation share their messages, and its number."""
    request = row.parsed.request
    defined, constrained, chosen = tools(request), has_structured_output(request), settings(request)
    named = named_model(request)
    item: object = None
    made: list[Message] = []
    for identity, use in zip(row.ids(), row.requests, strict=True):
        if use.item is not item:
            item, made = use.item, []
        if isinstance(item, Conversation):
            made += [turn.message() for turn in item.turns[len(made) : use.end]]
        ids = item if isinstance(item, TokenRow) else None
        yield Prompt(
            id=identity,
            source=row.source,
            line=row.line,
            column=use.item.column,
            messages=tuple(made),
            text=item.text if isinstance(item, Completion) else None,
            token_ids=ids.prompt if ids else None,
            answer=use.answer.message() if use.answer else None,
            answer_token_ids=ids.output if ids else None,
            tail_token_ids=ids.tail if ids else (),
            tools=defined,
            structured_output=constrained,
            settings=chosen,
            model=model_of(use, named),
            group=row.group,
            conversation=conversation,
        )


def _why_nothing(files: Sequence[FileSummary]) -> str:
    errors = [file.error for file in files if file.error]
    more = f" (and {len(errors) - 1} more files without prompts)" if len(errors) > 1 else ""
    return errors[0] + more if errors else "no prompts found; give a file with prompts"


def _no_group_column(name: str, tallies: Sequence[Tally]) -> str:
    seen = dict.fromkeys(key for tally in tallies for key in tally.keys_ungrouped)
    keys = ", ".join(map(inert, list(seen)[:KEYS_SHOWN])) or "none"
    return f"--group-by {inert(name)}: no row has that column; keys seen: {keys}"


def _duplicate_notice(duplicates: int, prompts: int, dropped: bool) -> list[Notice]:
    if not prompts or duplicates <= MANY_DUPLICATES * prompts:
        return []
    share = f"{duplicates} of {prompts} prompts ({duplicates / prompts:.0%}) repeat an earlier one"
    if dropped:
        return [Notice("duplicates_dropped", f"{share} and were left out, as asked")]
    message = f"{share}, which flatters drafters that remember earlier text; --dedupe keeps one of each"
    return [Notice("many_duplicates", message)]


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)
