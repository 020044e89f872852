"""One source -> the prompts in it, one at a time, while everything seen or left out is tallied."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from specprobe.batch_files import BatchAnswers, is_output, request_id
from specprobe.containers import Contents, Row, Skip, hub_rows, plain_name, read_rows
from specprobe.errors import SpecprobeError
from specprobe.formats import FORMATS, TEXT_COLUMNS, parse, parse_as, parse_field
from specprobe.formats.chat import WRAPPERS
from specprobe.formats.conversation import Completion, Conversation, Parsed, Request, Requests, TokenRow, requests
from specprobe.formats.logs import RELATED_FORMATS
from specprobe.formats.plain import PlainChat, PlainChats
from specprobe.formats.request import has_structured_output, has_unreadable_tools
from specprobe.gather import ReadRow, SpanWindow, gathered
from specprobe.notices import Notice, inert
from specprobe.sources import Source, open_source

LINES_KEPT = 5
"""How many line numbers are kept for each skip reason, so that a report can point at the first ones."""

MANY_SKIPPED = 0.1
"""Share of rows without a prompt above which the rest may no longer stand for the traffic."""

ID_KEYS = ("id", "custom_id", "question_id", "task_id", "instance_id", "conversation_id", "prompt_id", "uuid")

LABEL_LENGTH = 80
"""Characters of a label that are kept: enough to tell groups apart, and a column of prose makes no endless names."""

LONGEST_ID = 120
"""Characters of an id: a longer one, or one with line ends, is a text that was put where an id belongs."""

LEAST_TEXT = 16
"""Characters from which on a word that begins a prompt or an answer is taken for its text, not for a label."""

_PLAIN_NAME = re.compile(r"[\w$@./:+-]{1,40}( [\w$@./:+-]{1,20})?")

ABSENT: Any = object()
"""Stands for the value of a column that a row does not have."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How rows become prompts.

    `format` forces one of FORMATS on every row, `prompt_field` names the column of the prompt. `first_turn` takes
    the first user turn of each row instead of one prompt for each logged answer. `dedupe` keeps the first of equal
    prompts. `max_prompts` stops reading early. `group_by` names the column that labels prompts; see `find_column`.
    """

    format: str | None = None
    prompt_field: str | None = None
    first_turn: bool = False
    dedupe: bool = False
    max_prompts: int | None = None
    group_by: str | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise SpecprobeError(f"--format {inert(self.format)}: unknown; choose one of {', '.join(FORMATS)}")
        if self.max_prompts is not None and self.max_prompts < 1:
            raise SpecprobeError(f"--max-prompts {self.max_prompts}: must be at least 1")
        if self.group_by is not None and not self.group_by.strip():
            raise SpecprobeError("--group-by: is empty; name a column, or leave it out")


@dataclass(frozen=True, slots=True)
class FileSummary:
    """What one source held.

    `rows` counts lines, elements or records that are not blank. `first_turns`, `answers` and `prompts` are the
    prompts by the rules "first user turn only", "one for each logged answer" and "what analyze would use".
    `skipped` counts, by reason, rows without a first user turn to send, and logged answers that are none
    (empty_answer, error_answer); `lines` holds the first places of each. `cut` counts answers whose context cannot
    be replayed, `repaired` rows in which lone surrogates were replaced. `models` counts the logged answers in use by
    the model that wrote them, as far as the log says; `joined` counts answers that went to requests of other files.
    `error` says why nothing could be used.
    """

    path: str
    container: str | None
    compression: str | None
    rows: int
    first_turns: int
    answers: int
    prompts: int
    formats: Mapping[str, int]
    columns: Mapping[str, int]
    skipped: Mapping[str, int]
    lines: Mapping[str, tuple[int, ...]]
    cut: Mapping[str, int]
    repaired: int
    structured_outputs: int
    models: Mapping[str, int]
    joined: int
    notices: tuple[Notice, ...]
    error: str | None

    @property
    def format(self) -> str | None:
        """The one format of the file, "mixed" where rows differ, None where no row was understood."""
        return only_or_mixed(self.formats)


def only_or_mixed(names: Mapping[str, int]) -> str | None:
    """The only key, or "mixed"; None of none."""
    return next(iter(names), None) if len(names) < 2 else "mixed"


class RowPrompts(Struct, gc=False):
    """The prompts to use of one row, and the label of their group.

    Rows are handed on whole, since prompts of a row mostly extend one another.
    """

    source: str
    line: int
    row: Any
    parsed: Parsed
    requests: list[Request]
    group: str | None = None

    def ids(self) -> list[str | int]:
        """The row's own id, `id#n` where the row gives several prompts, `file:line` where it has none."""
        own = self.parsed.identity or own_id(self.row)
        has_own = own is not None and not (type(own) is str and self.begins_with(own))
        base = own if own is not None and has_own else f"{self.source}:{self.line}"
        count = len(self.requests)
        return [base] if count == 1 else [f"{base}#{n}" for n in range(1, count + 1)]

    def begins_with(self, word: str) -> bool:
        """Whether a prompt or an answer of the row begins with this word, so that to show it would be to show text."""
        if len(word) < LEAST_TEXT:
            return False
        texts: list[str] = []
        for use in self.requests:
            if type(use.item) is Conversation:
                texts += [turn.text for turn in use.item.turns[: use.end]]
            elif type(use.item) is Completion:
                texts.append(use.item.text)
            if use.answer is not None:
                texts.append(use.answer.text)
        return any(text.lstrip().startswith(word) for text in texts)


@dataclass(slots=True)
class Tally:
    """Counts that grow while a source is read; `freeze` makes the summary of them."""

    path: str
    container: str | None = None
    compression: str | None = None
    rows: int = 0
    first_turns: int = 0
    answers: int = 0
    prompts: int = 0
    rows_without_prompt: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    columns: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    lines: dict[str, list[int]] = field(default_factory=dict)
    cut: Counter[str] = field(default_factory=Counter)
    repaired: int = 0
    structured_outputs: int = 0
    models: Counter[str] = field(default_factory=Counter)
    joined: int = 0
    unreadable_tools: int = 0
    keys_seen: tuple[str, ...] = ()
    keys_ungrouped: tuple[str, ...] = ()
    has_group_column: bool = False
    notices: list[Notice] = field(default_factory=list)
    error: str | None = None

    def skip(self, reason: str, line: int) -> None:
        """Count one thing left out."""
        self.skipped[reason] += 1
        places = self.lines.setdefault(reason, [])
        if len(places) < LINES_KEPT and (not places or places[-1] != line):
            places.append(line)

    def fail(self, message: str) -> None:
        """Nothing of this source may be used; what was counted before is withdrawn, since half a file misleads."""
        self.first_turns = self.answers = self.prompts = 0
        self.has_group_column = False
        self.error = message

    def freeze(self) -> FileSummary:
        """The summary, with the warnings that the counts call for."""
        notices = [*self.notices, *self._warnings()]
        error = self.error or (None if self.prompts or self.joined else self._why_nothing())
        return FileSummary(
            path=self.path,
            container=self.container,
            compression=self.compression,
            rows=self.rows,
            first_turns=self.first_turns,
            answers=self.answers,
            prompts=self.prompts,
            formats=dict(self.formats),
            columns=dict(self.columns),
            skipped=dict(self.skipped),
            lines={reason: tuple(lines) for reason, lines in self.lines.items()},
            cut=dict(self.cut),
            repaired=self.repaired,
            structured_outputs=self.structured_outputs,
            models=dict(self.models),
            joined=self.joined,
            notices=tuple(notices),
            error=error,
        )

    def _warnings(self) -> Iterator[Notice]:
        if self.prompts and self.rows_without_prompt > MANY_SKIPPED * self.rows:
            share = self.rows_without_prompt / self.rows
            yield Notice(
                "many_skipped",
                f"{self.path}: {self.rows_without_prompt} of {self.rows} rows ({share:.0%}) gave no prompt "
                f"({self._reasons()}); the rest may not stand for the traffic: mend them or check the format",
            )
        if self.cut:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self.cut.items())
            yield Notice(
                "answers_cut",
                f"{self.path}: {self.cut.total()} logged answers are not replayed, since their context cannot be "
                f"({reasons}); nothing to do unless they matter",
            )
        if self.repaired:
            yield Notice(
                "text_repaired",
                f"{self.path}: lone surrogates in {self.repaired} rows were replaced by U+FFFD, since tokenizers "
                "refuse them; the writer of the log cuts characters in two",
            )
        if len(self.models) > 1:
            models = ", ".join(f"{inert(model)} {count}" for model, count in self.models.most_common(MODELS_SHOWN))
            yield Notice(
                "several_models",
                f"{self.path}: logged answers of {len(self.models)} models ({models}); --responses logged replays "
                "those of one, the target's where the log has it, and leaves out the others",
            )
        if self.unreadable_tools:
            yield Notice(
                "tools_unreadable",
                f"{self.path}: `tools` of {self.unreadable_tools} rows is no list of tools and was left out, so these "
                "prompts are shorter than what was served; log it as JSON",
            )
        # `instruction` and `instruction+input` are one kind of prompt, the second part of which may be empty.
        if len({column.partition("+")[0] for column in self.columns}) > 1:
            columns = ", ".join(f"{inert(column)} {count}" for column, count in self.columns.most_common())
            yield Notice(
                "several_columns",
                f"{self.path}: prompts come from several columns ({columns}); their acceptance is averaged: "
                "use --prompt-field or --format to take one",
            )

    def _reasons(self) -> str:
        parts = []
        for reason, count in self.skipped.items():
            lines = ", ".join(map(str, self.lines[reason]))
            unit = "line" if self.container in ("jsonl", "csv") else "row"
            parts.append(f"{reason} {count}, first at {unit} {lines}")
        return "; ".join(parts)

    def _why_nothing(self) -> str:
        if not self.rows:
            return f"{self.path}: no rows; nothing to read"
        if set(self.skipped) == {"length_only"}:
            return f"{self.path}: lengths only, no text: cannot be replayed; log the prompts too"
        # Without a column that is known, the first line of a CSV may well be data.
        keys = "a header of CSV" if self.container == "csv" else ", ".join(map(inert, self.keys_seen)) or "none"
        hint = _answers_only_hint(self.keys_seen) or "name the prompt's column with --prompt-field"
        return f"{self.path}: no usable prompt in {self.rows} rows ({self._reasons()}); keys seen: {keys}; {hint}"


def _answers_only_hint(keys: tuple[str, ...]) -> str | None:
    present = set(keys)
    if present & {"custom_id", "recordId"} and present & {"response", "result", "modelOutput"}:
        return "a batch output file holds answers only: give the batch input file too"
    if {"answer_id", "choices"} <= present or {"task_id", "completion"} <= present:
        return "this file holds answers only: give the file with the prompts"
    return None


KEYS_SHOWN = 12
MODELS_SHOWN = 6


def scan(
    source: Source,
    options: ReadOptions,
    tally: Tally,
    answers: BatchAnswers | None = None,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[RowPrompts]:
    """Yield the rows of a source with the prompts to use of each, by the rule in `options`.

    `answers` are those of batch output files, for requests whose answers are in other files. `on_read`: see
    `open_source`. What is wrong with a source that cannot be read is told in `tally.error`.
    """
    try:
        if source.is_hub:
            yield from _scan_contents(source.name, hub_rows(source.name), options, tally, answers)
            return
        with open_source(source, on_read) as stream:
            tally.compression = stream.compression
            columns = TEXT_COLUMNS
            if options.prompt_field:
                columns |= {plain_name(options.prompt_field)}
            quickly = None if options.prompt_field or options.format else PlainChats().read
            yield from _scan_contents(source.name, read_rows(stream, columns, quickly), options, tally, answers)
    except SpecprobeError as error:
        tally.fail(str(error))


def _scan_contents(
    path: str, contents: Contents, options: ReadOptions, tally: Tally, answers: BatchAnswers | None
) -> Iterator[RowPrompts]:
    tally.container = contents.container
    window = SpanWindow()
    read = _reader(options)
    for row in gathered(contents.rows, is_lines=contents.container in ("jsonl", "csv")):
        tally.rows += 1
        if row.repaired:
            tally.repaired += 1
        if answers is not None and type(row.value) is dict:
            joined = _joined(row, tally, answers)
            if joined is None:
                continue
            row = joined
        value = row.value
        found: Parsed | Skip
        if type(value) is PlainChat:
            name, found, value = value.name, value.found, value.row
        else:
            name, found = ("", value) if type(value) is Skip else read(value)
        if not tally.keys_seen and type(value) is dict:
            tally.keys_seen = _first_keys(value)
        if name in RELATED_FORMATS:
            for of in window.put(ReadRow(row, name, found)):
                if prompts := _counted(path, of.row.line, of.row.value, of.name, of.found, options, tally):
                    yield prompts
        elif prompts := _counted(path, row.line, value, name, found, options, tally):
            yield prompts
    for of in window.rest():
        if prompts := _counted(path, of.row.line, of.row.value, of.name, of.found, options, tally):
            yield prompts
    tally.notices += contents.notices


def _joined(row: Row, tally: Tally, answers: BatchAnswers) -> Row | None:
    """A row with the answer of its request, where it asks for one; None for an answer that went to another file."""
    if request_id(row.value) is None:
        return row
    if is_output(row.value):
        problem = answers.output_problem(row.value, tally.path)
        tally.joined += problem is None
        return row._replace(value=Skip(problem)) if problem else None
    value, missing = answers.answered(row.value)
    if missing:
        tally.skip(missing, row.line)
    return row._replace(value=value)


def _counted(
    path: str, line: int, row: Any, name: str, found: Parsed | Skip, options: ReadOptions, tally: Tally
) -> RowPrompts | None:
    """The prompts to use of a row, if any, once everything it holds is counted."""
    if type(found) is Skip:
        tally.skip(found.reason, line)
        tally.rows_without_prompt += 1
        return None
    assert type(found) is Parsed
    offered = requests(found)
    uses = _chosen(offered, options)
    _count(tally, line, offered)
    if not uses:
        tally.rows_without_prompt += 1
        return None
    _count_uses(tally, name, uses, found)
    ready = RowPrompts(path, line, row, found, uses, _group(tally, row, options.group_by))
    if ready.group is not None and ready.begins_with(ready.group):
        raise SpecprobeError(
            f"{path}:{line}: --group-by {inert(str(options.group_by))}: holds the text of prompts or "
            "answers, which no report shows; name a column of labels"
        )
    return ready


def _chosen(offered: Requests, options: ReadOptions) -> list[Request]:
    return offered.by_first_turn() if options.first_turn else offered.by_default()


def _reader(options: ReadOptions) -> Callable[[Any], tuple[str, Parsed | Skip]]:
    """What understands rows, by what the user named."""
    if field := options.prompt_field:
        return lambda row: parse_field(row, field)
    if name := options.format:
        return lambda row: parse_as(row, name)
    return parse


def _count(tally: Tally, line: int, offered: Requests) -> None:
    if offered.first is not None:
        tally.first_turns += 1
    tally.answers += len(offered.answered)
    if offered.reason:
        tally.skip(offered.reason, line)
    for problem in offered.unusable:
        tally.skip(problem, line)
    if offered.cut:
        tally.cut.update(offered.cut)


def _count_uses(tally: Tally, name: str, uses: list[Request], found: Parsed) -> None:
    tally.prompts += len(uses)
    tally.formats[name] += 1
    tally.columns[uses[0].item.column] += len(uses)
    named = named_model(found.request)
    models = tally.models
    for use in uses:
        answer = use.answer
        model = model_of(use, named) if answer is None else answer.model or named
        if model is not None:
            models[model] += 1
    if has_structured_output(found.request):
        tally.structured_outputs += len(uses)
    if ("tools" in found.request or "functions" in found.request) and has_unreadable_tools(found.request):
        tally.unreadable_tools += 1


def named_model(request: Mapping[str, Any]) -> str | None:
    """The model that a request names."""
    value = request.get("model")
    return value if value and type(value) is str else None


def model_of(use: Request, named: str | None) -> str | None:
    """The model that wrote a logged answer, where the log says so, `named` in its request; None without an answer."""
    if use.answer is not None:
        return use.answer.model or named
    return named if type(use.item) is TokenRow and use.item.output else None


def _group(tally: Tally, row: Any, column: str | None) -> str | None:
    if column is None:
        return None
    value = find_column(row, column)
    if value is not ABSENT:
        tally.has_group_column = True
        return label(value)
    # Without a column that is known, the first line of a CSV may well be data.
    if not tally.keys_ungrouped and type(row) is dict and tally.container != "csv":
        tally.keys_ungrouped = _first_keys(row)
    return None


def _first_keys(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys that are names; in a log keyed by its prompts they are text, which no message may show."""
    return tuple(key for key in map(str, list(row)[:KEYS_SHOWN]) if _PLAIN_NAME.fullmatch(key))


def own_id(row: Any) -> str | int | None:
    """The id that a row brings along: the first of ID_KEYS that holds a number or a short text."""
    if type(row) is dict:
        for key in ID_KEYS:
            if key in row:
                value = row[key]
                if type(value) is int or (type(value) is str and _is_short(value)):
                    return value
    return None


def _is_short(text: str) -> bool:
    return 0 < len(text) <= LONGEST_ID and not text.isspace() and len(text.splitlines()) == 1


def find_column(row: Any, name: str) -> Any:
    """What a row holds under the key `name`, else under it as a dotted path, else in a request one level down.

    ABSENT where there is none of these. A key that is there counts, whatever its value.
    """
    if type(row) is not dict:
        return ABSENT
    scopes = (row, *(row[key] for key in WRAPPERS if type(row.get(key)) is dict))
    return next((value for scope in scopes if (value := _at_path(scope, name)) is not ABSENT), ABSENT)


def _at_path(scope: Mapping[str, Any], path: str) -> Any:
    if path in scope:
        return scope[path]
    outer, _, inner = path.partition(".")
    nested = scope.get(outer)
    return _at_path(nested, inner) if type(nested) is dict else ABSENT


def label(value: Any) -> str | None:
    """The name of a group: a text, a number or a boolean, alone or in a list of one; None for all else.

    It is what the log says, only stripped and cut: neither escaped nor interpreted.
    """
    if type(value) is list and len(value) == 1:
        value = value[0]
    if type(value) is float:
        text = f"{value:g}" if math.isfinite(value) else ""
    else:
        text = str(value).strip() if type(value) in (str, int, bool) else ""
    return text[:LABEL_LENGTH] or None
