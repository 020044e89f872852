"""Whether a document that is read meets its own published schema: the first place that does not, in words.

Only the keywords that `specprobe/schemas` uses are known. Keys that a schema does not name are let pass, since a later
specprobe may add some within a version; so one of several forms (`oneOf`) is any of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from specprobe.notices import inert
from specprobe.schemas import find_kind

# A fault is a place, as keys and indices from the innermost out, and what is needed there.
Fault = tuple[list[str], str]
Check = Callable[[Any], Fault | None]

_IS_OF_TYPE: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    # JSON has no others, but Python reads them.
    "number": lambda value: type(value) is int or (type(value) is float and math.isfinite(value)),
}
_BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, bound: value >= bound, "at least"),
    "maximum": (lambda value, bound: value <= bound, "at most"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "above"),
    "exclusiveMaximum": (lambda value, bound: value < bound, "below"),
}


def first_fault(document: Mapping[str, Any], name: str) -> str | None:
    """Where a document of the kind `name` first misses its schema, such as `results[0].depth: must be at least 1`."""
    fault = _compiled(name)(document)
    if fault is None:
        return None
    place, needed = fault
    return f"{''.join(reversed(place)).removeprefix('.') or 'document'}: {needed}"


@cache
def _compiled(name: str) -> Check:
    schema = find_kind(name).schema()
    return _Compiler(schema.get("$defs", {})).check(schema)


class _Compiler:
    """Turns schemas into functions, so that a run of many thousand rows is read without looking keywords up again."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    def check(self, schema: Mapping[str, Any]) -> Check:
        """What to call with a value."""
        checks = list(self._checks(schema))
        if len(checks) == 1:
            return checks[0]
        least = _least(schema)

        def all_of(value: Any) -> Fault | None:
            # Nearly all that a run holds are counts.
            if least is not None and type(value) is int and value >= least:
                return None
            for one in checks:
                fault = one(value)
                if fault is not None:
                    return fault
            return None

        return all_of

    def _checks(self, schema: Mapping[str, Any]) -> Iterator[Check]:
        if "type" in schema:
            yield _of_type(schema["type"])
        if "const" in schema or "enum" in schema:
            yield _one_of([schema["const"]] if "const" in schema else schema["enum"])
        for keyword in _BOUNDS.keys() & schema.keys():
            yield _within(keyword, schema[keyword])
        for keyword in {"minItems", "maxItems", "minLength"} & schema.keys():
            yield _of_size(keyword, schema[keyword])
        if "pattern" in schema:
            yield _spelt(schema["pattern"])
        if {"properties", "required", "additionalProperties", "propertyNames"} & schema.keys():
            yield self._of_object(schema)
        if "items" in schema:
            yield self._of_items(schema["items"])
        if "$ref" in schema:
            yield self.check(self.parts[schema["$ref"].removeprefix("#/$defs/")])
        for part in schema.get("allOf", ()):
            yield self.check(part)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                yield _any_of([self.check(part) for part in schema[keyword]])
        if "if" in schema:
            yield _if_then(*(self.check(schema.get(keyword, {})) for keyword in ("if", "then", "else")))

    def _of_items(self, schema: Mapping[str, Any]) -> Check:
        item = self.check(schema)
        least = _least(schema)

        def check(value: Any) -> Fault | None:
            if not isinstance(value, list) or (least is not None and _are_counts(value, least)):
                return None
            for index, one in enumerate(value):
                fault = item(one)
                if fault is not None:
                    fault[0].append(f"[{index}]")
                    return fault
            return None

        return check

    def _of_object(self, schema: Mapping[str, Any]) -> Check:
        required = schema.get("required", ())
        named = {key: self.check(part) for key, part in schema.get("properties", {}).items()}
        further = schema.get("additionalProperties")
        others = self.check(further) if isinstance(further, dict) else None
        names = self.check(schema["propertyNames"]) if "propertyNames" in schema else None

        def check(value: Any) -> Fault | None:
            if not isinstance(value, dict):
                return None
            for key in required:
                if key not in value:
                    return [], f"has no {key}"
            for key, one in value.items():
                of_key = named.get(key, others)
                fault = (names(key) if names else None) or (of_key(one) if of_key else None)
                if fault is not None:
                    fault[0].append(f".{inert(key)}")
                    return fault
            return None

        return check


def _least(schema: Mapping[str, Any]) -> float | None:
    """The least whole number that meets a schema of nothing but numbers from a bound on; None for any other schema."""
    is_bound = schema.keys() - {"description"} == {"type", "minimum"} and schema["type"] in ("integer", "number")
    return schema["minimum"] if is_bound else None


def _are_counts(values: list[Any], least: float) -> bool:
    return set(map(type, values)) <= {int} and min(values, default=least) >= least


def _of_type(types: str | list[str]) -> Check:
    names = [types] if isinstance(types, str) else types
    tests = [_IS_OF_TYPE[name] for name in names]
    needed = " or ".join(names)

    def check(value: Any) -> Fault | None:
        return None if any(test(value) for test in tests) else ([], f"must be {needed}")

    return check


def _one_of(values: list[Any]) -> Check:
    # A boolean equals a number in Python, never in JSON.
    allowed = [(type(value), value) for value in values]
    needed = ", ".join(json.dumps(value) for value in values)

    def check(value: Any) -> Fault | None:
        return None if (type(value), value) in allowed else ([], f"must be one of {needed}")

    return check


def _within(keyword: str, bound: float) -> Check:
    holds, words = _BOUNDS[keyword]

    def check(value: Any) -> Fault | None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return ([], f"must be {words} {bound:g}") if is_number and not holds(value, bound) else None

    return check


def _of_size(keyword: str, bound: int) -> Check:
    kind = str if keyword == "minLength" else list
    is_most = keyword == "maxItems"

    def check(value: Any) -> Fault | None:
        if not isinstance(value, kind) or (len(value) <= bound if is_most else len(value) >= bound):
            return None
        return (
            [],
            f"must have {'at most' if is_most else 'at least'} {bound} {'characters' if kind is str else 'items'}",
        )

    return check


def _spelt(pattern: str) -> Check:
    compiled = re.compile(pattern)

    def check(value: Any) -> Fault | None:
        return ([], "is spelt otherwise") if isinstance(value, str) and not compiled.search(value) else None

    return check


def _any_of(checks: list[Check]) -> Check:
    def check(value: Any) -> Fault | None:
        faults = [one(value) for one in checks]
        return None if None in faults else faults[0]

    return check


def _if_then(condition: Check, then: Check, otherwise: Check) -> Check:
    def check(value: Any) -> Fault | None:
        return (then if condition(value) is None else otherwise)(value)

    return check
