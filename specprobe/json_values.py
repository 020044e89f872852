"""JSON text of anybody -> values that the rest of the reader can walk and tokenize."""

from __future__ import annotations

import json
from typing import Any

import msgspec

MAX_DEPTH = 200
"""Levels of nesting in a row, far above any log's: deeper rows would overflow the stack of whoever walks them."""

_decode_quickly = msgspec.json.Decoder().decode
_decode_anything = json.JSONDecoder().decode


def read_value(text: bytes) -> tuple[Any, bool]:
    """The value that a JSON text holds, as Python's json reads it, and whether it was mended (see `mend`).

    Raises UnicodeDecodeError where it is not UTF-8, another ValueError where it is not JSON, RecursionError where it is
    nested beyond `MAX_DEPTH`.
    """
    try:
        value = _decode_quickly(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # msgspec refuses some of what json reads (lone surrogates, NaN, numbers beyond floats) and reads nothing that
        # json refuses or reads in another way.
        value = _decode_anything(text.decode("utf-8"))
        return (value, False) if is_clean(value) else mend(value)
    if _is_deep(value):
        raise RecursionError
    return value, False


def _is_deep(value: Any, depth: int = 0) -> bool:
    """Whether a value is nested beyond `MAX_DEPTH`."""
    if type(value) is dict:
        value = value.values()
    elif type(value) is not list or _HOLDERS.isdisjoint(map(type, value)):
        return False
    for item in value:
        kind = type(item)
        if kind is not str and (kind is dict or kind is list) and (depth == MAX_DEPTH or _is_deep(item, depth + 1)):
            return True
    return False


_HOLDERS = frozenset((dict, list))


def is_clean(value: Any, depth: int = 0) -> bool:
    """Whether no text in a value holds a surrogate. (Searching raw bytes for escapes would take thrice as long.)

    Raises RecursionError where it is nested beyond `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise RecursionError
    kind = type(value)
    if kind is str:
        return value.isascii() or _encodes(value)
    if kind is dict:
        value = value.values()
    elif kind is not list or set(map(type, value)) <= {int}:
        return True
    for item in value:
        kind = type(item)
        if kind is str:
            if not item.isascii() and not _encodes(item):
                return False
        elif (kind is dict or kind is list) and not is_clean(item, depth + 1):
            return False
    return True


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def mend(value: Any) -> tuple[Any, bool]:
    """Put U+FFFD for lone surrogates, which tokenizers refuse; whether there was any."""
    if isinstance(value, str):
        if value.isascii() or _encodes(value):
            return value, False
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), True
    if isinstance(value, list):
        mended = [mend(item) for item in value]
        changed = any(was for _, was in mended)
        return ([item for item, _ in mended], True) if changed else (value, False)
    if isinstance(value, dict):
        pairs = [(mend(key), mend(item)) for key, item in value.items()]
        changed = any(a or b for (_, a), (_, b) in pairs)
        return ({key: item for (key, _), (item, _) in pairs}, True) if changed else (value, False)
    return value, False
