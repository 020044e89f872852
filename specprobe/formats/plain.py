"""Lines of JSONL that are a chat and little else, as most are: decoded and understood at once."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from specprobe.batch_files import ID_KEYS
from specprobe.formats import COLUMNS
from specprobe.formats.chat import MEDIA_KEYS, complete
from specprobe.formats.conversation import Parsed
from specprobe.formats.logs import DOCUMENT_KEYS, SUSPECT_KEYS
from specprobe.formats.turns import PLAIN_ROLES, Turn


class _Message(Struct, forbid_unknown_fields=True, rename={"text": "content"}, gc=False):
    role: str
    text: str


class _Share(Struct, forbid_unknown_fields=True, rename={"role": "from", "text": "value"}, gc=False):
    role: str
    text: str


_Scalar = str | int | float | bool | None
_decode_messages = msgspec.json.Decoder(dict[str, list[_Message] | _Scalar]).decode
_decode_shares = msgspec.json.Decoder(dict[str, list[_Share] | _Scalar]).decode

_FIRST_BYTES = 256
"""Of a line, among which the keys of its first turn mostly are, which tell one decoder from the other."""

_NAMES = {"messages": "messages", "conversations": "sharegpt"}
_BEFORE = [name for name, _ in COLUMNS[: COLUMNS.index(("messages", "messages"))]]
_OTHER_KEYS = frozenset((*_BEFORE, *ID_KEYS, "type", *MEDIA_KEYS, *DOCUMENT_KEYS, *SUSPECT_KEYS))
"""A row with one of these keys may be something else than its chat."""

_LONGEST_PAUSE = 63


class PlainChat(Struct, gc=False):
    """A row that was understood while it was decoded. `row` has all but its turns; `name` is that of its format."""

    row: dict[str, Any]
    name: str
    found: Parsed


class PlainChats:
    """Reads lines that are an object of a list, the turns of a chat by role and text alone, and of scalars.

    Where lines are no such chats, most of them are not tried.
    """

    __slots__ = ("_left", "_pause")

    def __init__(self) -> None:
        self._left = self._pause = 0

    def read(self, line: bytes) -> PlainChat | None:
        """The same as decoding the line and `formats.parse` would give; None where it is no such chat."""
        if self._left:
            self._left -= 1
            return None
        chat = _plain_chat(line)
        if chat is None:
            self._left = self._pause = min(2 * self._pause + 1, _LONGEST_PAUSE)
        else:
            self._pause = 0
        return chat


def _plain_chat(line: bytes) -> PlainChat | None:
    is_share = line.find(b'"from"', 0, _FIRST_BYTES) >= 0
    try:
        row: dict[str, Any] = _decode_shares(line) if is_share else _decode_messages(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    column = "messages" if "messages" in row else "conversations"
    raw: Any = row.get(column)
    is_chat = type(raw) is list and bool(raw) and _OTHER_KEYS.isdisjoint(row)
    if not is_chat or [*map(type, row.values())].count(list) > 1:
        return None
    try:
        found = [Turn(PLAIN_ROLES[item.role], item.text) for item in raw]
    except KeyError:
        return None
    return PlainChat(row, _NAMES[column], Parsed([complete(row, column, found)], row))
