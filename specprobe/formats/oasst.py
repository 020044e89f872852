"""OASST: message trees, and the flat form in which each message is a row that names its parent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specprobe.containers import Skip
from specprobe.formats.conversation import Conversation, Parsed
from specprobe.formats.turns import Turn, turn

Row = Mapping[str, Any]

_IDS = ("message_id", "user_message_id")
_PARENTS = ("parent_id", "parent_message_id")


def is_tree(row: Row) -> bool:
    """Whether a row is a whole tree: `{"message_tree_id", "prompt": {"text", "replies": [...]}}`, or its root alone."""
    prompt = row.get("prompt")
    if isinstance(prompt, dict) and ("replies" in prompt or "message_tree_id" in row):
        return True
    return "replies" in row and message_id(row) is not None


def is_flat(row: Row) -> bool:
    """Whether a row is one message of a tree."""
    return (
        message_id(row) is not None and "text" in row and "role" in row and "replies" not in row and _names_parent(row)
    )


def _names_parent(row: Row) -> bool:
    return "message_tree_id" in row or not set(_PARENTS).isdisjoint(row)


def message_id(row: Row) -> str | None:
    """The id of a message."""
    return next((row[key] for key in _IDS if isinstance(row.get(key), str) and row[key]), None)


def parent_id(row: Row) -> str | None:
    """The id of the message that a message answers; None for the first."""
    return next((row[key] for key in _PARENTS if isinstance(row.get(key), str) and row[key]), None)


def oasst(row: Row) -> Parsed | Skip | None:
    """A tree: one request for each answer in it, after the turns from the root down to that answer."""
    prompt = row.get("prompt")
    root = prompt if isinstance(prompt, dict) else row
    if not isinstance(root.get("text"), str):
        return Skip("no_prompt") if is_tree(row) or is_flat(row) else None
    found = list(_branches(root))
    items: list[Any] = [Conversation("text", turns, opens=not i, since=since) for i, (turns, since) in enumerate(found)]
    return Parsed(items, {}, message_id(root))


def _branches(root: Row) -> Iterable[tuple[list[Turn], int]]:
    """The turns of each path from the root to a leaf, and how many of them an earlier path began with."""
    path: list[Turn] = []
    since = 0
    # A node and its depth; depth first, in the order of the file, without recursion: chains may be long.
    pending: list[tuple[Row, int]] = [(root, 0)]
    while pending:
        node, depth = pending.pop()
        since = min(since, depth)
        del path[depth:]
        path.append(_turn(node))
        replies = node.get("replies")
        below = [item for item in replies if isinstance(item, dict)] if isinstance(replies, list) else []
        if below:
            pending += [(item, depth + 1) for item in reversed(below)]
        else:
            yield [*path], since
            since = len(path)


def _turn(node: Row) -> Turn:
    made = turn({"role": node.get("role"), "content": node.get("text")})
    if node.get("deleted") in (True, "true", "True"):
        made.problem = "deleted"
    return made


def grown(messages: Sequence[Row]) -> list[Row | Skip]:
    """Join flat messages: for each, the tree that it is the root of, or why it is none.

    A message whose parent is not in the file is a root. Messages that are their own ancestors hang from no root.
    """
    replies: dict[str, list[int]] = {}
    known: dict[str, int] = {}
    for i, row in enumerate(messages):
        name = message_id(row)
        if name is not None:
            known.setdefault(name, i)
    roots = []
    for i, row in enumerate(messages):
        parent = parent_id(row)
        if parent is not None and parent in known:
            replies.setdefault(parent, []).append(i)
        else:
            roots.append(i)
    trees: dict[int, dict[str, Any]] = {}
    pending = list(roots)
    while pending:
        i = pending.pop()
        if i not in trees:
            trees[i] = dict(messages[i])
            name = message_id(messages[i])
            # Of messages with one id, the first has the replies.
            pending += replies.get(name, []) if name is not None and known[name] == i else []
    for name, below in replies.items():
        if known[name] in trees:
            trees[known[name]]["replies"] = [trees[i] for i in below]
    outcome: list[Row | Skip] = [Skip("not_a_root" if i in trees else "bad_tree") for i in range(len(messages))]
    for i in roots:
        outcome[i] = {"prompt": trees[i], "message_tree_id": message_id(trees[i])}
    return outcome
