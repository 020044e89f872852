"""What a request sent, in the form of any API or framework -> turns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specprobe.formats.attributes import nested
from specprobe.formats.turns import ROLES, Turn, parse_json, turns

LANGCHAIN_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}

REDACTED = frozenset(["redacted-by-litellm", "__redacted__", "<redacted>", "[redacted]", "redacted"])
"""What tools that must not log text put in its place, in lower case. Only a turn that is nothing else is redacted."""


def sent_turns(value: Any) -> list[Turn] | None:
    """The turns of a request: a list of messages in any dialect, an object around one, a text, or JSON text of these.

    None where it is none of these: what the model was given is then not known.
    """
    if isinstance(value, str):
        if value.lstrip().startswith(("{", "[", '"')):
            parsed = parse_json(value)
            if isinstance(parsed, dict | list) or (isinstance(parsed, str) and parsed.lstrip().startswith(("{", "["))):
                return sent_turns(parsed)
            if is_cut_json(value):
                return None
        return marked([Turn("user", value)])
    if isinstance(value, dict):
        return _turns_in_dict(value)
    if not isinstance(value, list):
        return None
    if len(value) == 1 and isinstance(value[0], list):
        # LangChain sends a list of conversations.
        value = value[0]
    items = [parse_json(item) if isinstance(item, str) else item for item in value]
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    items = chat_items(items)
    if not any("role" in item or "from" in item for item in items):
        return None
    return marked(turns(_with_tool_roles(items)))


_CUT_JSON = re.compile(r"""\s*[\[{][\[{\s]*["'](role|choices|parts|content|messages|model|type)["']:""")


def is_cut_json(text: str) -> bool:
    """Whether a text that is no JSON was to be JSON of messages: tracers cut long values, or write Python's repr."""
    return _CUT_JSON.match(text) is not None


def _turns_in_dict(value: Mapping[str, Any]) -> list[Turn] | None:
    system = next((value[key] for key in ("system", "instructions", "system_instruction") if value.get(key)), None)
    for key in ("messages", "input", "contents", "prompt"):
        if value.get(key) is not None:
            found = sent_turns(value[key])
            return with_system(found, system) if found is not None else None
    return sent_turns([value]) if "role" in value or "lc" in value or "kwargs" in value else None


def with_system(found: list[Turn], system: Any) -> list[Turn]:
    """Put the system text that a request keeps beside its messages in front, where they do not begin with one."""
    if not system or (found and found[0].role == "system"):
        return found
    parsed = parse_json(system) if isinstance(system, str) and system.lstrip().startswith(("[", "{")) else system
    content = parsed if isinstance(parsed, list | dict) else system
    made = turns(
        [content if isinstance(content, dict) and "role" in content else {"role": "system", "content": content}]
    )
    return [*made[:1], *found] if made and made[0].says_something else found


def chat_items(items: Iterable[Any]) -> list[Any]:
    """Messages of LangChain, OpenInference and the Responses API as `{"role", "content", ...}`; others unchanged."""
    return [_chat_item(item) for item in items if not (isinstance(item, dict) and item.get("type") == "reasoning")]


def _chat_item(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    if any(isinstance(key, str) and key.startswith("message.") for key in item):
        item = nested(item)
    if isinstance(item.get("message"), dict) and "role" not in item:
        return _openinference_item(item["message"])
    kind = item.get("type")
    if kind == "function_call":
        return {"role": "assistant", "tool_calls": [item]}
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
    path = item.get("id")
    if isinstance(item.get("kwargs"), dict):
        name = path[-1] if isinstance(path, list) and path and isinstance(path[-1], str) else ""
        role = name.removesuffix("Chunk").removesuffix("Message").lower()
        return _langchain_item(item["kwargs"], role)
    if "role" not in item and isinstance(kind, str) and kind.lower() in LANGCHAIN_ROLES:
        return _langchain_item(item["data"] if isinstance(item.get("data"), dict) else item, kind.lower())
    return item


def _langchain_item(fields: Mapping[str, Any], role: str) -> dict[str, Any]:
    extra = fields.get("additional_kwargs")
    calls = fields.get("tool_calls") or (extra.get("tool_calls") if isinstance(extra, dict) else None)
    return {**fields, "role": LANGCHAIN_ROLES.get(role, role), "tool_calls": calls}


def _openinference_item(message: Mapping[str, Any]) -> dict[str, Any]:
    """`{"role", "content" | "contents": [{"message_content": part}], "tool_calls": [{"tool_call": call}]}`."""
    item = dict(message)
    parts = message.get("contents")
    if isinstance(parts, list) and not message.get("content"):
        item["content"] = [_inner(part, "message_content") for part in parts]
    if isinstance(message.get("tool_calls"), list):
        item["tool_calls"] = [_inner(call, "tool_call") for call in message["tool_calls"]]
    if message.get("function_call_name"):
        arguments = message.get("function_call_arguments_json")
        item["function_call"] = {"name": message["function_call_name"], "arguments": arguments}
    return item


def _inner(value: Any, key: str) -> Any:
    return value[key] if isinstance(value, dict) and isinstance(value.get(key), dict) else value


def _with_tool_roles(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Some tracers write the name of the tool that was called where its result's role should stand."""
    called: set[str] = set()
    known = []
    for item in items:
        role = item.get("role")
        if isinstance(role, str) and role in called and role.lower() not in ROLES:
            item = {**item, "role": "tool"}
        known.append(item)
        for call in item.get("tool_calls") or () if isinstance(item.get("tool_calls"), list) else ():
            function = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                called.add(function["name"])
    return known


def marked(found: list[Turn]) -> list[Turn]:
    """The same turns, with those whose text was replaced by a marker told apart."""
    for item in found:
        if is_redacted(item.text):
            item.problem, item.unusable = "redacted", "redacted"
    return found


def is_redacted(text: str) -> bool:
    """Whether a text only says that there was one."""
    return len(text) < 32 and text.strip().lower() in REDACTED
