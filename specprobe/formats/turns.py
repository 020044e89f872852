"""One turn of a chat, in any dialect -> a Turn: role, text, reasoning, tool calls, or the problem with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from specprobe.json_values import is_clean, mend
from specprobe.prompt import Message, Role

ROLES: dict[str, Role] = {
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
"""Role names met in the wild, in lower case. A name that is not here is not guessed at."""

CALL_ROLES = frozenset({"function_call", "tool_call"})
"""ShareGPT roles whose text is itself the call, as JSON."""

PLAIN_ROLES = {name: role for name, role in ROLES.items() if name not in CALL_ROLES}
"""Roles whose text is what they say."""

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "summary_text"})
CALL_PARTS = frozenset({"tool_call", "tool-call", "tool_use", "function_call"})
RESULT_PARTS = frozenset({"tool_result", "tool-result", "tool_call_response", "function_call_output", "tool_response"})
REASONING_PARTS = frozenset({"reasoning", "thinking", "redacted_thinking"})
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
CONTENT_KEYS = ("content", "value", "text", "markdown", "parts", "system_prompt")


class Turn(Struct, gc=False):
    """A normalised turn. `problem` is the skip reason ("multimodal", "unknown_role") of one that cannot be replayed.

    `unusable` is the skip reason of an assistant turn that is context as good as any, but no answer that the model
    gave to this request ("error_answer", "cached_answer", "redacted"). `demo` marks a turn that is context and neither
    request nor answer (SWE-agent's demonstrations, calls of ChatGPT's own tools). `model` wrote the turn, by the log.
    """

    role: Role
    text: str = ""
    problem: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    demo: bool = False
    unusable: str | None = None
    model: str | None = None

    @property
    def says_something(self) -> bool:
        """Whether there is text or a tool call."""
        return bool(self.tool_calls) or bool(self.text and not self.text.isspace())

    def message(self) -> Message:
        """The record for chat templates."""
        return Message(self.role, self.text, self.reasoning, self.tool_calls, self.tool_call_id, self.name)


def turn(raw: Mapping[str, Any]) -> Turn:
    """Normalise one turn object."""
    named = raw.get("role") or raw.get("from")
    role_name = named.strip().lower() if isinstance(named, str) else ""
    role = ROLES.get(role_name)
    result = Turn(role or "user", problem=None if role else "unknown_role", demo=bool(raw.get("is_demo")))
    content = next((raw[key] for key in CONTENT_KEYS if raw.get(key) is not None), None)
    _add_content(result, content)
    calls = [tool_call(call) for call in as_list(raw.get("tool_calls")) if isinstance(call, dict)]
    if isinstance(raw.get("function_call"), dict):
        calls.append(tool_call(raw["function_call"]))
    if role_name in CALL_ROLES and not result.tool_calls:
        called = _calls_in(result.text)
        calls += called
        result.text = "" if called else result.text
    result.tool_calls += tuple(calls)
    if result.reasoning is None:
        reasons = (raw[key] for key in REASONING_KEYS if isinstance(raw.get(key), str) and raw[key])
        result.reasoning = next(reasons, None)
    result.tool_call_id = _text_or_none(raw.get("tool_call_id")) or result.tool_call_id
    result.name = _text_or_none(raw.get("name"))
    return result


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _add_content(result: Turn, content: Any) -> None:
    if isinstance(content, str):
        result.text = content
        return
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return
    texts: list[str] = []
    reasons: list[str] = []
    calls: list[Mapping[str, Any]] = []
    only_results = bool(content)
    for part in content:
        kind = _text_or_none(part.get("type")) if isinstance(part, dict) else None
        only_results &= kind in RESULT_PARTS
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, dict):
            continue
        elif kind in REASONING_PARTS:
            reasons.append(part_text(part))
        elif kind in CALL_PARTS:
            calls += _part_calls(part)
        elif kind in RESULT_PARTS:
            texts.append(part_text(part))
            identity = part.get("tool_use_id") or part.get("toolCallId") or part.get("id")
            result.tool_call_id = _text_or_none(identity)
        elif kind in TEXT_PARTS or (kind is None and has_part_text(part)):
            texts.append(part_text(part))
        elif result.problem is None:
            result.problem = "multimodal"
    result.text = "".join(texts)
    result.reasoning = "".join(reasons) or None
    result.tool_calls = tuple(calls)
    if only_results and result.role == "user":
        # Anthropic's form sends tool results back as a user turn.
        result.role = "tool"


PART_TEXT_KEYS = ("text", "value", "content", "thinking", "reasoning", "input_text", "refusal", "response", "output")


def has_part_text(part: Mapping[str, Any]) -> bool:
    """Whether a part without a type carries text."""
    return any(isinstance(part.get(key), str) for key in PART_TEXT_KEYS)


def part_text(part: Mapping[str, Any]) -> str:
    """The text of one content part; nested parts (of a tool result) are joined."""
    for key in PART_TEXT_KEYS:
        value = part.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return "".join(
                item if isinstance(item, str) else part_text(item)
                for item in value
                if item and isinstance(item, str | dict)
            )
    return next((_result_text(part[key]) for key in ("response", "output", "result") if part.get(key) is not None), "")


def _result_text(value: Any) -> str:
    """What a tool returned, where it is no text: the text in it, else its JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.get("type") == "json" and "value" in value:
        value = value["value"]
    inner = part_text(value) if isinstance(value, dict) else ""
    return inner or json.dumps(value, ensure_ascii=False, default=str)


def _part_calls(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    for key in ("value", "content", "text"):
        if isinstance(part.get(key), str):
            return _calls_in(part[key]) or [{"type": "function", "function": {"name": "", "arguments": part[key]}}]
    return [tool_call(part)]


def _calls_in(text: str) -> list[Mapping[str, Any]]:
    """The calls that a JSON text holds (one object or a list of them); none where it holds something else."""
    parsed = parse_json(text)
    items = parsed if isinstance(parsed, list) else [parsed]
    return [tool_call(item) for item in items if isinstance(item, dict) and ("name" in item or "function" in item)]


ARGUMENT_KEYS = ("arguments", "input", "parameters", "args")


def tool_call(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """An OpenAI-shaped call; arguments are a mapping where they can be, else the text as logged."""
    inner = raw["function"] if isinstance(raw.get("function"), dict) else raw
    arguments = next((inner[key] for key in ARGUMENT_KEYS if inner.get(key) is not None), None)
    name = inner.get("name") or inner.get("toolName")
    call: dict[str, Any] = {
        "type": "function",
        "function": {"name": name if isinstance(name, str) else "", "arguments": _arguments(arguments)},
    }
    identity = raw.get("id") or raw.get("call_id") or raw.get("toolCallId")
    return {"id": identity, **call} if isinstance(identity, str) else call


def _arguments(value: Any) -> Any:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        parsed = parse_json(value)
        return parsed if isinstance(parsed, dict) else value
    return value if isinstance(value, dict) else json.dumps(value, default=str)


def parse_json(text: Any) -> Any:
    """What a JSON text holds, or None where it is no JSON text or nested beyond `MAX_DEPTH`.

    Lone surrogates, which only show once the text is parsed, become U+FFFD here as they do in rows.
    """
    if not isinstance(text, str):
        return None
    try:
        value = json.loads(text)
        return value if is_clean(value) else mend(value)[0]
    except (ValueError, RecursionError):
        return None


def as_list(value: Any) -> list[Any]:
    """A list, also where the log keeps it as JSON text; [] for anything else."""
    if isinstance(value, list):
        return value
    if isinstance(value, str) and value.lstrip().startswith("["):
        parsed = parse_json(value)
        return parsed if isinstance(parsed, list) else []
    return []


def turns(raw: Iterable[Any]) -> list[Turn]:
    """Normalise a list of turns; a turn may be JSON text, a {human, assistant} pair, or null (dropped)."""
    result: list[Turn] = []
    for item in raw:
        # Most turns of most logs are of these two shapes, and gigabytes of them pass here.
        if type(item) is dict and len(item) == 2:
            name, text = (
                (item.get("role"), item["content"]) if "content" in item else (item.get("from"), item.get("value"))
            )
            if type(text) is str and type(name) is str and name in PLAIN_ROLES:
                result.append(Turn(PLAIN_ROLES[name], text))
                continue
        value = item if type(item) is dict else parse_json(item)
        if not isinstance(value, dict):
            continue
        if (
            "role" not in value
            and "from" not in value
            and ("human" in value or "user" in value)
            and "assistant" in value
        ):
            result.append(turn({"role": "user", "content": value.get("human", value.get("user"))}))
            result.append(turn({"role": "assistant", "content": value["assistant"]}))
        else:
            result.append(turn(value))
    return result
