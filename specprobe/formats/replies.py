"""What a service answered, in the form of any API or framework -> one assistant turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specprobe.formats.messages import chat_items, is_cut_json
from specprobe.formats.turns import (
    CALL_PARTS,
    REASONING_PARTS,
    RESULT_PARTS,
    ROLES,
    TEXT_PARTS,
    Turn,
    as_list,
    parse_json,
    turn,
    turns,
)

FAILED_FINISHES = frozenset(
    ["content_filter", "content-filter", "safety", "recitation", "error", "abort", "aborted", "cancelled", "canceled"]
)
"""Finish reasons, in lower case, of answers that the model did not end and its token limit did not cut either."""

FAILED_STATES = frozenset(["failed", "failure", "errored", "error", "expired", "cancelled", "canceled"])
"""States of requests, in lower case, that were not answered."""


def failed() -> Turn:
    """Stands for the answer of a request that failed."""
    return Turn("assistant", unusable="error_answer")


def reply(value: Any) -> Turn | None:
    """The answer in a response: a text, a message, or the body of a chat, completion, Responses, Anthropic, Gemini or
    LangChain response, also as JSON text. Of several choices, the first. None where nothing of the kind is there.
    """
    if isinstance(value, str):
        parsed = parse_json(value) if value.lstrip().startswith(("{", "[")) else None
        if parsed is None and is_cut_json(value):
            return Turn("assistant", unusable="unknown_output")
        # An answer that is JSON itself (structured output) is text.
        return (reply(parsed) if _is_reply(parsed) else None) or Turn("assistant", value)
    if isinstance(value, list):
        return _reply_in_list(value)
    if not isinstance(value, dict):
        return None
    found = _reply_in_dict(value)
    if found is not None:
        if _has_failed(value):
            found.unusable = "error_answer"
        found.model = found.model or _name(value.get("model"))
    elif value.get("error") or _has_failed(value):
        return failed()
    return found


_ITEM_TYPES = TEXT_PARTS | CALL_PARTS | RESULT_PARTS | REASONING_PARTS | {"message"}


def _is_reply(value: Any) -> bool:
    """Whether parsed JSON text has the shape of a response, and not that of an answer that is JSON itself."""
    if isinstance(value, list):
        return bool(value) and all(_is_item(item) for item in value)
    if not isinstance(value, dict):
        return False
    keys = value.keys()
    options = next((value[key] for key in ("choices", "candidates", "generations") if value.get(key)), None)
    if isinstance(options, list):
        return isinstance(options[0], list) or (isinstance(options[0], dict) and bool(_CHOICE_KEYS & options[0].keys()))
    if isinstance(value.get("message"), dict):
        return not {"role", "content"}.isdisjoint(value["message"])
    if isinstance(value.get("output"), list):
        return bool(value["output"]) and all(_is_item(item) for item in value["output"])
    if isinstance(value.get("content"), list):
        return "role" in keys or "stop_reason" in keys or all(_is_item(item) for item in value["content"])
    if isinstance(value.get("role"), str):
        return value["role"].lower() in ROLES and bool(_MESSAGE_KEYS & keys)
    if "status_code" in keys or "lc" in keys:
        return True
    return ("text" in keys and bool(_FINISH_KEYS & keys)) or isinstance(value.get("error"), dict)


_CHOICE_KEYS = frozenset(["message", "text", "delta", "content", "generation_info"])
_MESSAGE_KEYS = frozenset(["content", "parts", "tool_calls", "function_call"])
_FINISH_KEYS = frozenset(["finish_reason", "finishReason", "stop_reason"])


def _is_item(item: Any) -> bool:
    """Whether one of a list is a message, a content part or an item of the Responses API."""
    if isinstance(item, list):
        return bool(item) and all(isinstance(one, dict) for one in item)
    if not isinstance(item, dict):
        return False
    return not {"role", "message", "lc"}.isdisjoint(item) or item.get("type") in _ITEM_TYPES


def _reply_in_dict(value: Mapping[str, Any]) -> Turn | None:
    status = value.get("status_code", value.get("statusCode"))
    if isinstance(status, int) and status >= 400:
        return failed()
    if isinstance(value.get("body"), dict | str):
        return reply(value["body"])
    for key in ("choices", "candidates", "generations"):
        options = as_list(value.get(key))
        if options:
            return reply(options[0])
    for key in ("message", "delta"):
        if isinstance(value.get(key), dict):
            return _ended(value, reply(value[key]))
    if isinstance(value.get("output"), list):
        return _items_turn(value["output"])
    if isinstance(value.get("messages"), list):
        return _last_answer(value["messages"])
    if "lc" in value or "kwargs" in value or "role" in value or "from" in value:
        (item,) = chat_items([value])
        found = turn({"role": "assistant", **item})
        return _ended(value, found) if found.role == "assistant" else None
    content = value.get("content", value.get("parts"))
    if isinstance(content, dict):
        return _ended(value, turn({**content, "role": "assistant"}))
    if content is not None or value.get("tool_calls"):
        return _ended(value, turn({**value, "role": "assistant"}))
    for key in ("text", "output", "response", "completion", "generated_text"):
        if isinstance(value.get(key), str):
            return _ended(value, Turn("assistant", value[key]))
    return None


def _reply_in_list(value: Sequence[Any]) -> Turn | None:
    if value and isinstance(value[0], list):
        # LangChain: a list of choices for each prompt of a batch.
        return _reply_in_list(value[0])
    items = [item for item in value if isinstance(item, dict)]
    if not items:
        texts = [item for item in value if isinstance(item, str)]
        return Turn("assistant", texts[0]) if texts else None
    if any("message" in item or "generation_info" in item for item in items):
        return reply(items[0])
    if any("role" in item or "lc" in item for item in items) and not any(
        item.get("type") == "message" for item in items
    ):
        return _last_answer(items)
    return _items_turn(items)


def _last_answer(items: Sequence[Any]) -> Turn | None:
    """The last assistant turn of a list of messages, with what its message says of its end."""
    known = [item for item in chat_items(items) if isinstance(item, dict)]
    answers = [_ended(item, turn(item)) for item in known if turn(item).role == "assistant"]
    return answers[-1] if answers else None


def _items_turn(items: Sequence[Any]) -> Turn:
    """Items of the Responses API, or content parts, as one turn."""
    dicts = [item for item in items if isinstance(item, dict)]
    parts: list[Any] = []
    for item in dicts:
        content = item.get("content")
        if item.get("type") == "message" or (isinstance(content, list) and "type" not in item):
            parts += content if isinstance(content, list) else [content]
        else:
            parts.append(item)
    return turn({"role": "assistant", "content": [part for part in parts if part is not None]})


def _ended(value: Mapping[str, Any], found: Turn | None) -> Turn | None:
    if found is not None:
        reason = value.get("finish_reason") or value.get("finishReason") or value.get("stop_reason")
        if is_failed_finish(reason):
            found.unusable = "error_answer"
        calls = [call for call in as_list(value.get("toolCalls")) if isinstance(call, dict)]
        if calls and not found.tool_calls:
            found.tool_calls = turns([{"role": "assistant", "tool_calls": calls}])[0].tool_calls
    return found


def is_failed_finish(reason: Any) -> bool:
    """Whether a finish reason, or the first of a list of them, says that the answer is not the model's whole one."""
    if isinstance(reason, list):
        reason = reason[0] if reason else None
    return isinstance(reason, str) and reason.lower() in FAILED_FINISHES


def _has_failed(value: Mapping[str, Any]) -> bool:
    states = (value.get("status"), value.get("type"))
    return bool(value.get("error")) or any(isinstance(one, str) and one.lower() in FAILED_STATES for one in states)


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value and not value.isspace() else None
