"""Rows that belong together: documents that hold several, messages that name their parents, spans that repeat others.

Everything else passes through one row at a time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from specprobe.containers import Row, Skip
from specprobe.formats.conversation import Completion, Conversation, Parsed
from specprobe.formats.logs import SUSPECT_KEYS, is_related, rows_in
from specprobe.formats.oasst import grown, is_flat
from specprobe.formats.spans import SpanLink, span_link

HELD_SPANS = 2000
"""How many spans are looked at together. A parent and a child that are further apart in a file are not compared."""

MAX_ANCESTORS = 64
"""How far up a trace a repeated request is looked for; frameworks wrap a call in a handful of spans."""


class ReadRow(NamedTuple):
    """A row and what it holds: the format's name ("" where none applies), and requests or the reason there are none."""

    row: Row
    name: str
    found: Parsed | Skip


def gathered(rows: Iterable[Row], *, is_lines: bool) -> Iterator[Row]:
    """Documents opened into their spans or observations, and flat messages (kept until the end) grown into trees.

    `is_lines`: `line` counts lines of the file, so what one line held keeps its number; else rows are counted on.
    """
    messages: list[tuple[int, Any]] = []
    added = 0
    for row in rows:
        value = row.value
        if type(value) is not dict or (
            SUSPECT_KEYS.isdisjoint(value) and "data" not in value and "traces" not in value
        ):
            yield row if is_lines or not added else row._replace(line=row.line + added)
            continue
        inner = rows_in(value)
        if inner is not None:
            for i, item in enumerate(inner):
                known = item if isinstance(item, dict) else Skip("not_object")
                yield Row(row.line if is_lines else row.line + added + i, known, row.repaired and not i)
            added += max(0, len(inner) - 1)
        elif is_flat(value):
            messages.append((row.line + (0 if is_lines else added), row))
        else:
            yield row if is_lines or not added else row._replace(line=row.line + added)
    outcome = grown([(line, row.value) for line, row in messages])
    for i, (line, row) in enumerate(messages):
        yield Row(line, outcome[i], row.repaired)


class _Held(NamedTuple):
    row: ReadRow
    link: SpanLink | None
    digest: bytes | None


def without_repeats(rows: Iterable[ReadRow]) -> Iterator[ReadRow]:
    """The same rows, save that a span which repeats the request of a span inside it is skipped as `repeated_span`.

    Frameworks and the clients below them both report one call, and an agent's span shows what its first call sent.
    """
    held: deque[_Held] = deque()
    traces = _Traces()
    for row in rows:
        if not is_related(row.name):
            yield row
            continue
        link = span_link(row.row.value)
        digest = _digest(row.found) if link is not None and type(row.found) is Parsed else None
        if link is not None:
            traces.add(link, digest)
        held.append(_Held(row, link, digest))
        if len(held) > HELD_SPANS:
            yield _checked(held.popleft(), traces)
    while held:
        yield _checked(held.popleft(), traces)


def _checked(item: _Held, traces: _Traces) -> ReadRow:
    if item.link is not None and item.digest is not None and traces.has_inner(item.link, item.digest):
        return item.row._replace(found=Skip("repeated_span"))
    return item.row


class _Traces:
    """Which span is whose parent, and which spans sent what, of all spans seen."""

    def __init__(self) -> None:
        self._parents: dict[tuple[str, str], str | None] = {}
        self._senders: dict[tuple[str, bytes], list[str]] = {}

    def add(self, link: SpanLink, digest: bytes | None) -> None:
        """Note a span."""
        self._parents.setdefault((link.trace, link.span), link.parent)
        if digest is not None:
            senders = self._senders.setdefault((link.trace, digest), [])
            if len(senders) < MAX_ANCESTORS:
                senders.append(link.span)

    def has_inner(self, link: SpanLink, digest: bytes) -> bool:
        """Whether a span somewhere below this one sent the same."""
        senders = self._senders.get((link.trace, digest), ())
        return any(self._is_above(link, name) for name in senders if name != link.span)

    def _is_above(self, link: SpanLink, name: str) -> bool:
        above = self._parents.get((link.trace, name))
        for _ in range(MAX_ANCESTORS):
            if above is None or above == name:
                return False
            if above == link.span:
                return True
            above = self._parents.get((link.trace, above))
        return False


def _digest(found: Parsed) -> bytes:
    """Of what a request sent; settings and the answer do not count."""
    made = hashlib.sha1(usedforsecurity=False)
    for item in found.items:
        if type(item) is Conversation:
            turns = item.turns[:-1] if item.logged == "last" else item.turns
            for turn in turns:
                made.update(f"{turn.role}\x1f{turn.text}\x1e".encode("utf-8", "surrogatepass"))
        elif type(item) is Completion:
            made.update(item.text.encode("utf-8", "surrogatepass"))
    return made.digest()
