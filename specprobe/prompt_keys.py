"""Keys by which equal prompts are known, and the lengths of prompts, computed while gigabytes of rows pass."""

from __future__ import annotations

import json
from collections.abc import Mapping

from xxhash import xxh3_64_intdigest

from specprobe.formats.conversation import Completion, Conversation, TokenRow
from specprobe.prompt import Role
from specprobe.scan import RowPrompts

# Any distinct numbers: the same text is another key as another role's, as a completion, as tool calls.
_SALTS: Mapping[Role, int] = {"system": 1, "user": 2, "assistant": 3, "tool": 4}
_CALLS, _COMPLETION, _TOKENS = 5, 6, 7


def _hash(text: str, seed: int) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), seed)


def measures(prompts: RowPrompts) -> tuple[list[int], list[int]]:
    """For each prompt of a row, a 64-bit key of all that was sent; and its length in characters, or in token ids.

    Equal prompts have equal keys. Others do by chance alone (once in 37 million logs of a million prompts each),
    unless somebody makes texts for which XXH3 collides. The turns that prompts of a conversation share are read once:
    the key of what was sent up to a turn is the seed of the hash of that turn.
    """
    request = prompts.parsed.request
    tools = request.get("tools") or request.get("functions")
    seed = _hash(repr(tools), 0) if tools else 0
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
                key = xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), key + _SALTS[turn.role])
                if turn.tool_calls:
                    key = _hash(json.dumps(turn.tool_calls, default=str), key + _CALLS)
                length += len(text)
            done = use.end
        elif type(item) is Completion:
            key = _hash(item.text, seed + _COMPLETION)
            length = len(item.text)
        elif type(item) is TokenRow:
            key = xxh3_64_intdigest(item.prompt.tobytes(), seed + _TOKENS)
            length = len(item.prompt)
        keys.append(key)
        lengths.append(length)
    return keys, lengths
