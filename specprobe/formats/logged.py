"""What gateways and tracers log beside a prompt and its answer: settings, tools, models, caches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from specprobe.formats.attributes import number
from specprobe.formats.messages import is_redacted
from specprobe.formats.request import SETTINGS
from specprobe.formats.turns import Turn, parse_json

_CARRIED = ("response_format", "text", "guided_json", "guided_grammar", "guided_regex", "guided_choice")
_CACHE_KEYS = (
    "cache_hit",
    "cacheHit",
    "cached",
    "from_cache",
    "helicone_cache",
    "helicone-cache",
    "cache_status",
    "cache",
)


def as_request(*sources: Any, tools: Any = None) -> dict[str, Any]:
    """One request body out of several mappings of parameters (JSON text too), a later one's values first.

    Names are brought to snake case (`maxOutputTokens` is `max_output_tokens`) and numbers in texts to numbers.
    """
    request: dict[str, Any] = {}
    for source in sources:
        mapping = parse_json(source) if isinstance(source, str) else source
        if not isinstance(mapping, dict):
            continue
        for key, value in mapping.items():
            name = _snake(str(key))
            if name in SETTINGS and value is not None:
                request[name] = number(value)
            elif key in _CARRIED and value:
                request[key] = _parsed(value)
            elif key in ("tools", "functions") and value:
                request["tools"] = value
    known = _tool_list(tools)
    return {**request, "tools": known} if known else request


def _parsed(value: Any) -> Any:
    parsed = parse_json(value)
    return value if parsed is None else parsed


def _tool_list(tools: Any) -> list[Any]:
    """Tool definitions as a list, from a list, JSON text, or an object that holds them by name."""
    value = _parsed(tools) if isinstance(tools, str) else tools
    if isinstance(value, dict):
        named = [(name, _parsed(item)) for name, item in value.items()]
        value = [{"name": name, **item} for name, item in named if isinstance(item, dict)]
    if not isinstance(value, list):
        return []
    return [_named_arguments(item) for item in (_parsed(entry) for entry in value) if isinstance(item, dict)]


def _named_arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The Vercel AI SDK writes `inputSchema` (or an inner `jsonSchema`) where others write `parameters`."""
    schema = tool.get("inputSchema")
    if schema is None:
        return dict(tool)
    return {**{key: value for key, value in tool.items() if key != "inputSchema"}, "parameters": schema}


def _snake(name: str) -> str:
    name = name.rpartition(".")[2]
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def is_cached(*sources: Any) -> bool:
    """Whether a log says that the whole response came out of a cache, so that no model wrote it for this request.

    (Tokens of the prompt that a provider had cached are another thing: the model answered.)
    """
    for source in sources:
        if not isinstance(source, dict):
            continue
        metadata = source.get("metadata")
        metadata = parse_json(metadata) if isinstance(metadata, str) else metadata
        for scope in (source, metadata):
            if isinstance(scope, dict) and any(_says_hit(scope.get(key)) for key in _CACHE_KEYS):
                return True
        if any(_says_hit(source.get(f"{start}.cache_hit")) for start in ("gen_ai", "llm", "metadata", "litellm")):
            return True
    return False


def _says_hit(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "hit"))


def judged(answer: Turn | None, model: str | None, *, is_cached: bool) -> Turn | None:
    """The same answer, with what the log says of it: who wrote it, and whether it is one."""
    if answer is not None:
        answer.model = answer.model or model
        if answer.unusable is None and is_cached:
            answer.unusable = "cached_answer"
        if answer.unusable is None and is_redacted(answer.text) and not answer.tool_calls:
            answer.unusable = "redacted"
    return answer
