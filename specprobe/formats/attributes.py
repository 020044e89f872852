"""Attributes of spans, in whatever form an exporter wrote them -> one flat mapping with dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPED = ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")
_SNAKE = ("string_value", "int_value", "double_value", "bool_value", "bytes_value")


def flat(attributes: Any) -> dict[str, Any]:
    """Dotted key -> value, from flat keys, nested objects, OTLP's list of typed values or Jaeger's list of tags.

    Lists stay values (of messages, say), and so do texts, JSON or not.
    """
    found: dict[str, Any] = {}
    if isinstance(attributes, list):
        for item in attributes:
            if isinstance(item, dict) and isinstance(item.get("key"), str):
                found[item["key"]] = typed_value(item.get("value"))
    elif isinstance(attributes, dict):
        _flatten(attributes, "", found)
    return found


def _flatten(value: Mapping[Any, Any], prefix: str, found: dict[str, Any]) -> None:
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict) and item:
            _flatten(item, f"{name}.", found)
        else:
            found[name] = item


def typed_value(value: Any) -> Any:
    """The value in OTLP's `{"stringValue": ...}` (arrays and key-value lists too); anything else as it is."""
    if not isinstance(value, dict):
        return value
    for key in (*_TYPED, *_SNAKE):
        if key in value:
            inner = value[key]
            # 64-bit integers are texts in OTLP's JSON.
            is_text = key in ("intValue", "int_value") and isinstance(inner, str)
            return number(inner) if is_text else inner
    for key in ("arrayValue", "array_value"):
        if isinstance(value.get(key), dict):
            inner = value[key].get("values")
            return [typed_value(item) for item in inner] if isinstance(inner, list) else []
    for key in ("kvlistValue", "kvlist_value"):
        if isinstance(value.get(key), dict):
            return flat(value[key].get("values"))
    return value


def nested(value: Any) -> Any:
    """Dotted keys as nested objects, and objects whose keys are all numbers as lists, at every level."""
    if isinstance(value, list):
        return [nested(item) for item in value]
    if not isinstance(value, dict):
        return value
    made: dict[str, Any] = {}
    for key, item in value.items():
        place = made
        *outer, last = str(key).split(".")[:MAX_LEVELS]
        for name in outer:
            if not isinstance(place.get(name), dict):
                place[name] = {}
            place = place[name]
        inner = nested(item)
        old = place.get(last)
        place[last] = {**old, **inner} if isinstance(old, dict) and isinstance(inner, dict) else inner
    return _listed(made)


MAX_LEVELS = 16
"""Levels in one dotted key; conventions need nine."""


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _listed(item) for key, item in value.items()}
    if inner and all(key.isdecimal() and len(key) < 9 for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner


def under(attributes: Mapping[str, Any], prefix: str) -> Any:
    """What lies at a dotted key: the value itself, else what the keys below it make up (see `nested`), else None."""
    if attributes.get(prefix) is not None:
        return attributes[prefix]
    start = f"{prefix}."
    below = {key[len(start) :]: item for key, item in attributes.items() if key.startswith(start)}
    return nested(below) if below else None


def number(value: Any) -> Any:
    """A number that was logged as text; anything else as it is."""
    if not isinstance(value, str) or len(value) > 40:
        return value
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return value
