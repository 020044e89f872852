"""Which prompts are turns of one conversation, as far as a log tells.

Turns of one conversation are about one thing, so a drafter is good at all of them or at none: they are no independent
evidence, and intervals take them together (see `specprobe.trajectory.prompt_numbers`). The prompts of a row are one
conversation. So are requests that were logged one by one, where one begins with everything that another sent and was
answered, and nothing else in the log goes on from there in another way: then many users begin alike, or an application
begins for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from specprobe.prompt import Message, Prompt
from specprobe.spool import Spool


def linked(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """The same prompts, those that go on with a conversation of another row under the number of that one.

    A prompt that has no `conversation` is left as it is. What goes on with nothing is not copied.
    """
    answered: dict[bytes, int] = {}
    for prompt in prompts:
        if prompt.conversation is not None and prompt.messages and prompt.answer is not None:
            *_, whole = _digests((*prompt.messages, prompt.answer))
            answered.setdefault(whole, prompt.conversation)
    # How the log goes on after each of these exchanges, and in which conversations.
    ways: dict[bytes, set[bytes]] = {}
    followers: dict[bytes, set[int]] = {}
    for prompt in prompts if answered else ():
        if prompt.conversation is None:
            continue
        before = b""
        for digest in _digests(prompt.messages):
            if before in answered:
                ways.setdefault(before, set()).add(digest)
                followers.setdefault(before, set()).add(prompt.conversation)
            before = digest
    numbers = _Joined()
    for exchange, conversations in followers.items():
        if len(ways[exchange]) == 1:
            for conversation in conversations:
                numbers.join(answered[exchange], conversation)
    if not numbers.has_joined:
        return prompts
    return Spool(
        replace(prompt, conversation=number)
        if prompt.conversation is not None and (number := numbers.find(prompt.conversation)) != prompt.conversation
        else prompt
        for prompt in prompts
    )


def units(prompts: Sequence[Prompt]) -> list[int]:
    """[P] which prompts to draw together: a number for each conversation, in order of appearance."""
    numbers: dict[tuple[str, int], int] = {}
    return [
        numbers.setdefault(
            ("alone", place) if prompt.conversation is None else ("in", prompt.conversation), len(numbers)
        )
        for place, prompt in enumerate(prompts)
    ]


class _Joined:
    """Numbers that stand for one another: the smallest of them stands for all."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    @property
    def has_joined(self) -> bool:
        return bool(self._parents)

    def find(self, number: int) -> int:
        while (parent := self._parents.get(number, number)) != number:
            self._parents[number] = self._parents.get(parent, parent)
            number = parent
        return number

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.find(one), self.find(other)))
        self._parents[high] = low


def _digests(messages: Sequence[Message]) -> Iterator[bytes]:
    """Of all messages up to the first, the second, ...; logs trim the space around a text differently."""
    seen = hashlib.sha1(usedforsecurity=False)
    for message in messages:
        calls = json.dumps([dict(call) for call in message.tool_calls], default=str) if message.tool_calls else ""
        text = f"{message.role}\x1f{message.content.strip()}\x1f{calls}\x1e"
        seen.update(text.encode("utf-8", "surrogatepass"))
        yield seen.digest()
