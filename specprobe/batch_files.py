"""Outputs of batch APIs (OpenAI and its kin, Anthropic, Bedrock) joined to their inputs, which lie in other files."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specprobe.containers import read_rows
from specprobe.errors import SpecprobeError
from specprobe.formats.chat import WRAPPERS
from specprobe.formats.replies import reply
from specprobe.formats.turns import Turn
from specprobe.sources import STDIN, Source, open_source

Row = Mapping[str, Any]

ID_KEYS = ("custom_id", "recordId")
_MARKS = tuple(f'"{key}"'.encode() for key in ID_KEYS)
_HEAD = 1 << 16
_ANSWER_KEYS = ("response", "result", "modelOutput", "error")
_REQUEST_KEYS = (*WRAPPERS, "modelInput")


def request_id(row: Any) -> str | None:
    """The id by which a line of a batch is joined."""
    if type(row) is not dict:
        return None
    return next((value for key in ID_KEYS if isinstance(value := row.get(key), str) and value), None)


def is_output(row: Row) -> bool:
    """Whether a line of a batch holds an answer without its request."""
    return any(row.get(key) is not None for key in _ANSWER_KEYS) and _request(row) is None


def _request(row: Row) -> Any:
    return next((row[key] for key in _REQUEST_KEYS if isinstance(row.get(key), dict)), None)


@dataclass(slots=True)
class _Output:
    """A line of an output file. `problem` is why it is joined to no request."""

    file: str
    name: str
    row: Row
    problem: str | None = None


class _Asked(NamedTuple):
    """A request of an input file; equal bodies have equal digests."""

    file: str
    digest: bytes
    model: str | None


class BatchAnswers:
    """The answers that output files hold, for the requests that input files hold.

    Batch APIs do not keep the order, so an id is all there is to join by. Where requests that differ have one id (two
    batches that were numbered alike), an output belongs to the input of the same name (`a_input` and `a_output`), else
    to the one that names its model; where that does not tell either, nobody gets the answer.
    """

    def __init__(self) -> None:
        self._outputs: list[_Output] = []
        self._requests: dict[str, Counter[_Asked]] = {}
        self._answers: dict[tuple[str, bytes], list[Row]] = {}
        self._outcomes: dict[tuple[str, str], deque[str | None]] = {}

    def note(self, row: Row, file: str) -> None:
        """Take in one line, of an output or of an input."""
        name = request_id(row)
        if name is None:
            return
        if is_output(row):
            self._outputs.append(_Output(file, name, row))
        elif (body := _request(row)) is not None:
            asked = _Asked(file, _digest(body), _model(body.get("model", row.get("modelId"))))
            self._requests.setdefault(name, Counter())[asked] += 1

    def settle(self) -> None:
        """After the last line: give each request its answers; an answer goes before a failure that was tried again."""
        slots: dict[tuple[str, bytes], list[_Output]] = {}
        for output in self._outputs:
            digests = {asked.digest for asked in self._candidates(output)}
            if len(digests) == 1:
                slots.setdefault((output.name, digests.pop()), []).append(output)
            else:
                output.problem = "ambiguous_id" if digests else "missing_input"
        for (name, digest), outputs in slots.items():
            room = sum(count for asked, count in self._requests[name].items() if asked.digest == digest)
            outputs.sort(key=lambda output: not _is_good(output.row))
            for output in outputs[room:]:
                output.problem = "duplicate_id"
            self._answers[name, digest] = [output.row for output in reversed(outputs[:room])]
        for output in self._outputs:
            self._outcomes.setdefault((output.file, output.name), deque()).append(output.problem)
        self._outputs.clear()

    def _candidates(self, output: _Output) -> list[_Asked]:
        """The requests that an output may answer."""
        asked = list(self._requests.get(output.name, ()))
        for matches in (
            lambda one: _stem(one.file) == _stem(output.file),
            lambda one: one.model is not None and one.model == _answering_model(output.row),
        ):
            if len({one.digest for one in asked}) > 1:
                asked = [one for one in asked if matches(one)] or asked
        return asked

    def answered(self, row: Row) -> tuple[Row, str | None]:
        """An input line with its answer, or the reason why it has none; any other line as it is."""
        name = request_id(row)
        body = _request(row)
        if name is None or body is None or any(row.get(key) for key in _ANSWER_KEYS):
            return row, None
        rows = self._answers.get((name, _digest(body)))
        if not rows:
            return row, "missing_output"
        return {**row, **{key: value for key, value in rows.pop().items() if key in _ANSWER_KEYS}}, None

    def output_problem(self, row: Row, file: str) -> str | None:
        """Why an output line is joined to no request, or None where it is. To be asked once a line, in their order."""
        outcomes = self._outcomes.get((file, request_id(row) or ""))
        return outcomes.popleft() if outcomes else "missing_input"


_ROLE_WORDS = re.compile(
    r"(?<![a-z])(in|out|inputs?|outputs?|requests?|responses?|results?|prompts?|answers?|errors?)(?![a-z])"
)


def _stem(file: str) -> str:
    """The name of a file in its folder, without the words that tell an input from an output."""
    path = Path(file.lower())
    return f"{path.parent}/{re.sub(r'[^a-z0-9]+', ' ', _ROLE_WORDS.sub(' ', path.name)).strip()}"


def _digest(body: Any) -> bytes:
    text = json.dumps(body, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.sha1(text, usedforsecurity=False).digest()


def _model(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _answering_model(row: Row) -> str | None:
    answer = _reply(row)
    return answer.model if answer else None


def _reply(row: Row) -> Turn | None:
    value = next((row[key] for key in ("response", "result", "modelOutput") if row.get(key) is not None), None)
    return reply(value) if isinstance(value, dict) else None


def _is_good(row: Row) -> bool:
    answer = _reply(row)
    return answer is not None and answer.unusable is None and answer.says_something


def batch_answers(sources: Sequence[Source]) -> BatchAnswers | None:
    """The answers in the output files among `sources`; None where no file looks like one.

    Files are read once before they are scanned, and only those that begin like a batch file. Standard input cannot
    be read twice.
    """
    files = [source for source in sources if not source.is_hub and source.name != STDIN]
    if len(files) < 2:
        return None
    batches = [source for source in files if _begins_like_one(source)]
    if not any(is_output(row) for source in batches for row in _first_row(source)):
        return None
    answers = BatchAnswers()
    for source in batches:
        for row in _rows(source):
            answers.note(row, source.name)
    answers.settle()
    return answers


def _begins_like_one(source: Source) -> bool:
    try:
        with open_source(source) as stream:
            head = stream.peek_head(_HEAD)
    except SpecprobeError:
        return False
    return any(mark in head for mark in _MARKS)


def _first_row(source: Source) -> Iterator[Row]:
    for row in _rows(source):
        yield row
        return


def _rows(source: Source) -> Iterator[Row]:
    """The objects in a file, up to where it cannot be read; what is wrong with it is told when it is scanned."""
    try:
        with open_source(source) as stream:
            for row in read_rows(stream).rows:
                if type(row.value) is dict:
                    yield row.value
    except SpecprobeError:
        return
