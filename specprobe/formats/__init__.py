"""A row -> the requests in it: one pure function per format; the row's keys alone tell which applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specprobe.containers import Skip, plain_name
from specprobe.formats import chat, flat
from specprobe.formats.conversation import Parsed
from specprobe.formats.langfuse import is_observation
from specprobe.formats.logs import LOGS, SPAN_FORMATS, SUSPECT_KEYS, read_log
from specprobe.formats.spans import read_span, span_key

Row = Mapping[str, Any]
Format = Callable[[Row], Parsed | Skip | None]

FORMATS: dict[str, Format] = {
    "tokens": flat.tokens,
    "batch": chat.request_body,
    "messages": chat.messages,
    "sharegpt": chat.sharegpt,
    "swe-agent": chat.trajectory,
    "turns": flat.question_turns,
    "swe-bench": flat.swe_bench,
    "prompt": flat.prompt,
    "alpaca": flat.alpaca,
    "question": flat.question,
    "problem": flat.problem,
    "inspect": flat.sample,
    "query": flat.query,
    "preference": chat.chosen,
    "text": flat.text,
    **{name: reader for name, (_, reader) in LOGS.items()},
    **dict.fromkeys(SPAN_FORMATS, lambda row: read_span(row)[1]),
}
"""Name -> reader. A reader returns None where the row is not of its format, a Skip where it is unusable."""

COLUMNS: tuple[tuple[str, str], ...] = (
    ("prompt_token_ids", "tokens"),
    ("body", "batch"),
    ("request", "batch"),
    ("params", "batch"),
    ("messages", "messages"),
    ("conversations", "sharegpt"),
    ("conversation", "sharegpt"),
    ("trajectory", "swe-agent"),
    ("history", "swe-agent"),
    ("turns", "turns"),
    ("text", "swe-bench"),
    ("prompt", "prompt"),
    ("instruction", "alpaca"),
    ("question", "question"),
    ("problem_statement", "swe-bench"),
    ("problem", "problem"),
    ("input", "batch"),
    ("input", "inspect"),
    ("query", "query"),
    ("items", "sharegpt"),
    ("dialogue", "sharegpt"),
    ("dialog", "sharegpt"),
    ("chosen", "preference"),
    ("text", "text"),
)
"""Where a prompt may be, most telling first: the first column that holds one decides."""

CHAT_FORMATS = frozenset({"messages", "sharegpt", "batch", "tokens", "swe-agent"})

TEXT_COLUMNS = frozenset(plain_name(name) for name, _ in COLUMNS) | flat.LENGTH_COLUMNS | {*chat.ANSWER_KEYS}
"""Column names, without case and marks, that show the first line of a file to be a CSV header."""


def parse(row: Any) -> tuple[str, Parsed | Skip]:
    """The format's name ("" where none applies) and what the row holds."""
    if type(row) is not dict:
        row = _bare_messages(row)
        if row is None:
            return "", Skip("not_object")
    if not SUSPECT_KEYS.isdisjoint(row) or type(row.get("prompt")) is dict or is_observation(row):
        logged = read_log(row)
        if logged is not None:
            return logged
    unusable: tuple[str, Skip] | None = None
    for column, name in COLUMNS:
        if column not in row or (column == "text" and name == "swe-bench" and "instance_id" not in row):
            continue
        found = FORMATS[name](row)
        if type(found) is Parsed:
            if name not in CHAT_FORMATS and span_key(row):
                return read_span(row)
            return name, found
        if type(found) is Skip and (unusable is None or unusable[1].reason == "no_prompt"):
            unusable = (name, found)
    if unusable is not None and unusable[1].reason != "no_prompt":
        return unusable
    if span_key(row):
        return read_span(row)
    if unusable is None and flat.has_lengths_only(row):
        return "", Skip("length_only")
    return "", Skip("no_prompt")


def parse_as(row: Any, name: str) -> tuple[str, Parsed | Skip]:
    """The row read as the format that the user named."""
    if type(row) is not dict:
        row = _bare_messages(row)
        if row is None:
            return "", Skip("not_object")
    return name, FORMATS[name](row) or Skip("no_prompt")


def parse_field(row: Any, field: str) -> tuple[str, Parsed | Skip]:
    """The prompt is in the column that the user named, perhaps one level down (`body.data`)."""
    if type(row) is not dict:
        return "", Skip("not_object")
    if field in row:
        return "field", flat.column(row, field) or Skip("no_prompt")
    outer, _, inner = field.partition(".")
    nested = row.get(outer)
    if not inner or not isinstance(nested, dict):
        return "field", Skip("no_prompt")
    _, found = parse_field(nested, inner)
    if isinstance(found, Parsed):
        for item in found.items:
            item.column = field
    return "field", found


def _bare_messages(value: Any) -> Row | None:
    """A row that is itself a list of messages."""
    if type(value) is not list or not value:
        return None
    is_chat = all(type(item) is dict and ("role" in item or "from" in item) for item in value)
    return {"messages": value} if is_chat else None
