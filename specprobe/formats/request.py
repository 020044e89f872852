"""What a request asked for besides its text: sampling settings, tools, structured output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from specprobe.formats.turns import as_list, parse_json
from specprobe.processors import BOUNDS

Number = float | int


def _positive_integer(value: Number) -> bool:
    return value >= 1 and value == int(value)


def _within(name: str) -> Callable[[Number], bool]:
    low, high = BOUNDS[name]
    return lambda value: low <= value <= high


SETTINGS: dict[str, tuple[str, Callable[[Number], bool]]] = {
    "temperature": ("temperature", lambda value: 0 <= value <= 10),
    "top_p": ("top_p", _within("top_p")),
    "top_k": ("top_k", lambda value: _within("top_k")(value) and value == int(value)),
    "min_p": ("min_p", _within("min_p")),
    "output_tokens": ("max_tokens", _positive_integer),
    "max_output_tokens": ("max_tokens", _positive_integer),
    "max_completion_tokens": ("max_tokens", _positive_integer),
    "max_tokens": ("max_tokens", _positive_integer),
    "seed": ("seed", lambda value: value == int(value)),
    "presence_penalty": ("presence_penalty", _within("presence_penalty")),
    "frequency_penalty": ("frequency_penalty", _within("frequency_penalty")),
    "repetition_penalty": ("repetition_penalty", _within("repetition_penalty")),
}
"""Key in a log -> name in `Prompt.settings`, and the values that an engine would take. The last of several wins."""

_NESTED = ("sampling_params", "model_parameters", "extra_body")
_CONSTRAINTS = ("guided_json", "guided_grammar", "guided_regex", "guided_choice", "structured_outputs", "json_schema")
_MAY_CONSTRAIN = frozenset((*_CONSTRAINTS, *_NESTED, "response_format", "text"))


def settings(request: Mapping[str, Any]) -> Mapping[str, Number]:
    """The sampling settings, finite and within range; NaN, negative limits and texts never reach an engine."""
    found: dict[str, Number] = {}
    for scope in _scopes(request):
        for key, (name, is_valid) in SETTINGS.items():
            value = scope.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool) and _finite(value) and is_valid(value):
                found[name] = value
    return MappingProxyType(found)


def _finite(value: Number) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _scopes(request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [request, *(request[key] for key in _NESTED if isinstance(request.get(key), dict))]


def has_structured_output(request: Mapping[str, Any]) -> bool:
    """Whether decoding was constrained to a schema or a grammar, which changes what a drafter gets accepted."""
    if _MAY_CONSTRAIN.isdisjoint(request):
        return False
    return any(_constrains(scope) for scope in _scopes(request))


def _constrains(scope: Mapping[str, Any]) -> bool:
    text = scope.get("text")
    shape = scope.get("response_format") or (text.get("format") if isinstance(text, dict) else None)
    kind = shape.get("type") if isinstance(shape, dict) else None
    return kind in ("json_object", "json_schema") or any(scope.get(key) for key in _CONSTRAINTS)


def tools(request: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The tool definitions in OpenAI's shape, from a list, JSON text, or a list of JSON texts."""
    raw = request.get("tools") or request.get("functions")
    items = (parse_json(item) if isinstance(item, str) else item for item in as_list(raw))
    return tuple(_tool(item) for item in items if isinstance(item, dict))


def has_unreadable_tools(request: Mapping[str, Any]) -> bool:
    """Whether there is something under `tools` of which nothing can be understood."""
    raw = request.get("tools") or request.get("functions")
    return bool(raw) and raw != "[]" and not tools(request)


def _tool(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = raw.get("function") if isinstance(raw.get("function"), dict) else None
    if inner is None and "name" not in raw:
        return raw
    function = dict(inner or {key: value for key, value in raw.items() if key != "type"})
    if "input_schema" in function:
        function["parameters"] = function.pop("input_schema")
    if isinstance(function.get("parameters"), str):
        function["parameters"] = parse_json(function["parameters"]) or {}
    return {"type": "function", "function": function}
