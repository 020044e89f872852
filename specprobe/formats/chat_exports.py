"""Exports of chat applications: Open WebUI, ChatGPT and Claude. A chat is a tree; its current branch is read."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Any

from specprobe.containers import Skip
from specprobe.formats.conversation import Conversation, Parsed
from specprobe.formats.logged import as_request
from specprobe.formats.messages import with_system
from specprobe.formats.turns import Turn, as_list, turn

Row = Mapping[str, Any]
Nodes = Mapping[Any, Any]


def branch(nodes: Nodes, leaf: Any, parent_of: Callable[[Row], Any]) -> list[Row] | None:
    """The nodes from the root to `leaf`; None where they go round in a circle or `leaf` is not there.

    A parent that was not exported ends the branch.
    """
    path: list[Row] = []
    seen = set()
    name = leaf
    while isinstance(name, str | int) and isinstance(nodes.get(name), dict):
        if name in seen:
            return None
        seen.add(name)
        path.append(nodes[name])
        name = parent_of(nodes[name])
    return path[::-1] or None


def latest_leaf(nodes: Nodes, parent_of: Callable[[Row], Any], time_of: Callable[[Row], Any]) -> Any:
    """The node without children that is the youngest, and the last in the file among those of one time."""
    known = {name: node for name, node in nodes.items() if isinstance(node, dict)}
    parents = {parent for node in known.values() if isinstance(parent := parent_of(node), str | int)}
    leaves = [name for name in known if name not in parents]
    times = {name: value if isinstance(value := time_of(known[name]), int | float) else 0 for name in leaves}
    return max(reversed(leaves), key=lambda name: times[name], default=None)


# Open WebUI


def _history(row: Row) -> Row | None:
    chat = row.get("chat")
    inner = chat.get("history") if isinstance(chat, dict) else None
    history = inner if isinstance(inner, dict) else row.get("history")
    return history if isinstance(history, dict) else None


def is_openwebui(row: Row) -> bool:
    """Whether a row is a chat of Open WebUI, in its wrapper or without."""
    history = _history(row)
    return history is not None and ("currentId" in history or isinstance(history.get("messages"), dict))


def openwebui(row: Row) -> Parsed | Skip | None:
    """`{"chat": {"history": {"messages": {id: node}, "currentId"}}}`: the branch that ends at the current message."""
    history = _history(row)
    if history is None:
        return None
    nodes = history.get("messages")
    if not isinstance(nodes, dict) or not nodes:
        return Skip("empty")
    leaf = history.get("currentId")
    if leaf not in nodes if isinstance(leaf, str) else True:
        leaf = latest_leaf(nodes, _parent_id, lambda node: node.get("timestamp"))
    path = branch(nodes, leaf, _parent_id)
    if path is None:
        return Skip("bad_tree")
    chat = row["chat"] if isinstance(row.get("chat"), dict) else row
    parameters = chat["params"] if isinstance(chat.get("params"), dict) else {}
    found = with_system([_webui_turn(node) for node in path], parameters.get("system") or chat.get("system"))
    return Parsed([Conversation("history.messages", found)], as_request(parameters))


def _parent_id(node: Row) -> Any:
    return node.get("parentId")


def _webui_turn(node: Row) -> Turn:
    made = turn(node)
    if any(isinstance(file, dict) for file in as_list(node.get("files"))):
        made.problem = made.problem or "multimodal"
    if made.role == "assistant":
        made.model = node["model"] if isinstance(node.get("model"), str) else None
        if node.get("error"):
            made.unusable = "error_answer"
        made.text, reasons = _without_details(made.text)
        made.reasoning = made.reasoning or "\n".join(reasons) or None
    return made


_DETAILS = re.compile(r'<details type="(\w+)"[^>]*>(.*?)</details>\s*', re.DOTALL)
_SUMMARY = re.compile(r"\s*<summary>.*?</summary>\s*", re.DOTALL)


def _without_details(text: str) -> tuple[str, list[str]]:
    """The answer without the folded sections that the page shows in it, and the thinking that was in them."""
    if "<details " not in text:
        return text, []
    reasons = [_unfolded(body) for kind, body in _DETAILS.findall(text) if kind == "reasoning"]
    return _DETAILS.sub("", text), [reason for reason in reasons if reason]


def _unfolded(body: str) -> str:
    lines = html.unescape(_SUMMARY.sub("", body, count=1)).strip().split("\n")
    return "\n".join(line.removeprefix(">").removeprefix(" ") for line in lines)


# ChatGPT


def is_chatgpt(row: Row) -> bool:
    """Whether a row is a conversation of a ChatGPT export."""
    nodes = row.get("mapping")
    if not isinstance(nodes, dict):
        return False
    return any(isinstance(node, dict) and not {"parent", "message"}.isdisjoint(node) for node in nodes.values())


def chatgpt(row: Row) -> Parsed | Skip | None:
    """`{"mapping": {id: {"message", "parent", "children"}}, "current_node"}`: the branch that ends at that node."""
    nodes = row.get("mapping")
    if not isinstance(nodes, dict):
        return None
    leaf = row.get("current_node")
    if leaf not in nodes if isinstance(leaf, str) else True:
        leaf = latest_leaf(nodes, _parent, _node_time)
    path = branch(nodes, leaf, _parent)
    if path is None:
        return Skip("bad_tree")
    found = [made for node in path if (made := _chatgpt_turn(node)) is not None]
    return Parsed([Conversation("mapping", found)], {}) if found else Skip("empty")


def _parent(node: Row) -> Any:
    return node.get("parent")


def _node_time(node: Row) -> Any:
    message = node.get("message")
    return message.get("create_time") if isinstance(message, dict) else None


_HIDDEN = "is_visually_hidden_from_conversation"
_TOOL_CONTENT = frozenset(["code", "execution_output", "tether_quote", "tether_browsing_display", "system_error"])
_NO_TURNS = frozenset(["user_editable_context", "model_editable_context", "thoughts", "reasoning_recap"])


def _chatgpt_turn(node: Row) -> Turn | None:
    """The turn of a node; None for the root, what was hidden from the conversation, and what is empty."""
    message = node.get("message")
    if not isinstance(message, dict):
        return None
    metadata = message["metadata"] if isinstance(message.get("metadata"), dict) else {}
    content = message["content"] if isinstance(message.get("content"), dict) else {}
    kind = content.get("content_type")
    if metadata.get(_HIDDEN) or kind in _NO_TURNS:
        return None
    author = message.get("author")
    role = author.get("role") if isinstance(author, dict) else None
    if kind in _TOOL_CONTENT:
        # ChatGPT's own tools: no server's template would write the call so.
        text = next((content[key] for key in ("text", "result") if isinstance(content.get(key), str)), "")
        return Turn("assistant" if role == "assistant" else "tool", text, demo=True) if text else None
    parts = as_list(content.get("parts")) or as_list([content.get("text")])
    made = turn({"role": role, "content": "".join(part for part in parts if isinstance(part, str))})
    if any(isinstance(part, dict) for part in parts):
        made.problem = made.problem or "multimodal"
    if not made.text and not made.problem and made.role != "user":
        return None
    if made.role == "assistant":
        slug = metadata.get("model_slug")
        made.model = slug if isinstance(slug, str) and slug else None
    return made


# Claude


def is_claude(row: Row) -> bool:
    """Whether a row is a conversation of a Claude export."""
    return isinstance(row.get("chat_messages"), list)


def claude(row: Row) -> Parsed | Skip | None:
    """`{"chat_messages": [{"sender", "text", "content": [part], "attachments", "files"}]}`."""
    if not isinstance(row.get("chat_messages"), list):
        return None
    messages: list[Row] = [item for item in row["chat_messages"] if isinstance(item, dict)]
    nodes = {item["uuid"]: item for item in messages if isinstance(item.get("uuid"), str)}
    leaf = row.get("current_leaf_message_uuid")
    if isinstance(leaf, str) and leaf in nodes and any("parent_message_uuid" in item for item in messages):
        path = branch(nodes, leaf, lambda node: node.get("parent_message_uuid"))
        if path is None:
            return Skip("bad_tree")
        messages = path
    if not messages:
        return Skip("empty")
    model = row.get("model")
    found = [_claude_turn(item, model if isinstance(model, str) and model else None) for item in messages]
    return Parsed([Conversation("chat_messages", found)], {})


def _claude_turn(message: Row, model: str | None) -> Turn:
    content = message.get("content")
    parts = [part for part in as_list(content) if not (isinstance(part, dict) and part.get("type") in _CLAUDE_ASIDE)]
    made = turn({"role": message.get("sender"), "content": parts or message.get("text") or ""})
    if not made.says_something and isinstance(message.get("text"), str) and not made.problem:
        made.text = message["text"]
    attached = [item for item in as_list(message.get("attachments")) if isinstance(item, dict)]
    texts = [text for item in attached if isinstance(text := item.get("extracted_content"), str) and text]
    made.text = "\n\n".join(text for text in (*texts, made.text) if text)
    read = {item.get("file_name") for item in attached if item.get("extracted_content")}
    files = [item for key in ("files", "files_v2") for item in as_list(message.get(key)) if isinstance(item, dict)]
    if any(item.get("file_name") not in read for item in files):
        made.problem = made.problem or "multimodal"
    if made.role == "assistant":
        made.model = model
    return made


_CLAUDE_ASIDE = frozenset(["tool_result", "token_budget", "flag"])
"""Parts that the model did not write. (What its tools returned stands in the middle of its own message.)"""
