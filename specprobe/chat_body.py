"""A conversation as the chat completions protocol has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specprobe.prompt import Message, Prompt


def conversation(prompt: Prompt, template_kwargs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a request that say what is asked: turns, tools, and further words for the chat template."""
    return {
        "messages": [_turn(message) for message in prompt.messages],
        **({"tools": _plain(prompt.tools)} if prompt.tools else {}),
        **({"chat_template_kwargs": dict(template_kwargs)} if template_kwargs else {}),
    }


def _turn(message: Message) -> dict[str, Any]:
    """A turn as the protocol has it: tool arguments as text."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        turn["reasoning_content"] = message.reasoning
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    optional = {"tool_call_id": message.tool_call_id, "name": message.name}
    return turn | {key: value for key, value in optional.items() if value is not None}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = _plain(call)
    function = plain.get("function")
    if isinstance(function, dict) and not isinstance(function.get("arguments", ""), str):
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return plain


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=dict))
