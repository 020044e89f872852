"""Keys by which equal prompts are known, and the lengths of prompts, computed while gigabytes of rows pass."""

from __future__ import annotations

import json
from collections.abc import Mapping

from xxhash import xxh3_64_intdigest

from specprobe.formats.conversation import Completion, Conversation, TokenRow
from specprobe.prompt import Role
from specprobe.scan import RowPrompts

# What a text is, as its first byte and not in the seed: XXH3 puts a short text and its seed together by xor, so that of
# seeds that are near to each other many pairs of texts would have one key.
_ROLES: Mapping[Role, bytes] = {"system": b"s", "user": b"u", "assistant": b"a", "tool": b"t"}
_TOOLS, _CALLS, _COMPLETION, _TOKENS = b"d", b"c", b"p", b"i"


def _hash(kind: bytes, text: str, seed: int) -> int:
    return xxh3_64_intdigest(kind + text.encode("utf-8", "surrogatepass"), seed)


def measures(prompts: RowPrompts) -> tuple[list[int], list[int]]:
    """For each prompt of a row, a 64-bit key of all that was sent; and its length in characters, or in token ids.

    Equal prompts have equal keys. Others do by chance alone (once in 37 million logs of a million prompts each),
    unless somebody makes texts for which XXH3 collides. The turns that prompts of a conversation share are read once:
    the key of what was sent up to a turn is the seed of the hash of that turn.
    """
    request = prompts.parsed.request
    tools = request.get("tools") or request.get("functions")
    seed = _hash(_TOOLS, repr(tools), 0) if tools else 0
    roles = _ROLES
    keys: list[int] = []
    lengths: list[int] = []
    item: object = None
    for use in prompts.requests:
        if use.item is not item:
            item, key, done, length = use.item, seed, 0, 0
        if type(item) is Conversation:
            for turn in item.turns[done : use.end]:
                text = turn.text
                # As `_hash`, which gigabytes need not call for each turn.
                key = xxh3_64_intdigest(roles[turn.role] + text.encode("utf-8", "surrogatepass"), key)
                if turn.tool_calls:
                    key = _hash(_CALLS, json.dumps(turn.tool_calls, default=str), key)
                length += len(text)
            done = use.end
        elif type(item) is Completion:
            key = _hash(_COMPLETION, item.text, seed)
            length = len(item.text)
        elif type(item) is TokenRow:
            key = xxh3_64_intdigest(_TOKENS + item.prompt.tobytes(), seed)
            length = len(item.prompt)
        keys.append(key)
        lengths.append(length)
    return keys, lengths
