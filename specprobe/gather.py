"""Rows that belong together: documents that hold several, messages that name their parents, spans that repeat others.

Everything else passes through one row at a time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from specprobe.containers import Row, Skip
from specprobe.formats.conversation import Completion, Conversation, Parsed
from specprobe.formats.logs import DOCUMENT_KEYS, rows_in
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
    messages: list[Row] = []
    added = 0
    for row in rows:
        value = row.value
        if added:
            row = row._replace(line=row.line + added)
        # Gigabytes of rows pass here; most of them stop at this line.
        if type(value) is not dict or DOCUMENT_KEYS.isdisjoint(value):
            yield row
        elif (inner := rows_in(value)) is not None:
            for i, item in enumerate(inner):
                known = item if isinstance(item, dict) else Skip("not_object")
                yield Row(row.line if is_lines else row.line + i, known, row.repaired and not i)
            added += 0 if is_lines else max(0, len(inner) - 1)
        elif is_flat(value):
            messages.append(row)
        else:
            yield row
    outcome = grown([row.value for row in messages])
    for i, row in enumerate(messages):
        yield row._replace(value=outcome[i])


class _Held(NamedTuple):
    row: ReadRow
    link: SpanLink | None
    digest: bytes | None


class SpanWindow:
    """Holds back spans until those around them are known, and skips as `repeated_span` what a span inside sent, too.

    Frameworks and the clients below them both report one call, and an agent's span shows what its first call sent.
    """

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()
        self._traces = _Traces()

    def put(self, row: ReadRow) -> Iterator[ReadRow]:
        """Take in a span, and give those that need not wait any longer."""
        link = span_link(row.row.value) if type(row.row.value) is dict else None
        digest = _digest(row.found) if link is not None and type(row.found) is Parsed else None
        if link is not None:
            self._traces.add(link, digest)
        self._held.append(_Held(row, link, digest))
        if len(self._held) > HELD_SPANS:
            yield self._checked(self._held.popleft())

    def rest(self) -> Iterator[ReadRow]:
        """What is still held, at the end of the source."""
        while self._held:
            yield self._checked(self._held.popleft())

    def _checked(self, item: _Held) -> ReadRow:
        if item.link is not None and item.digest is not None and self._traces.has_inner(item.link, item.digest):
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
