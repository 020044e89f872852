"""What the reader hands on: one prompt, with the answer that was logged for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, in the vocabulary that chat templates use.

    `content` is "" for a turn that is only a tool call. `reasoning` is the thinking text where the log keeps it
    apart from the answer. `tool_calls` holds OpenAI-shaped calls whose `function.arguments` is a mapping where
    the logged text parses to one, else the text as logged (templates such as Qwen's iterate a mapping).
    """

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: what the model was given, and what it (or another model) answered.

    Exactly one of `messages`, `text` (a raw completion prompt, no chat template) and `token_ids` is set.
    The answer, where the log holds one, is `answer` or, for rows of token ids, `answer_token_ids`;
    `tail_token_ids` are the tokens that would have followed the end of the answer (recorded by some
    benchmarks), which an engine's last round may still have accepted. `model` wrote the answer, by the log. `group` is
    the label by which results are broken down: text out of the log or a file's name, as it is, so to be escaped where
    it is printed. `conversation`: the number of the one that it is a turn of, None where nothing is known of one.
    """

    id: str | int
    source: str
    line: int
    column: str
    messages: tuple[Message, ...] = ()
    text: str | None = None
    token_ids: Sequence[int] | None = None
    answer: Message | None = None
    answer_token_ids: Sequence[int] | None = None
    tail_token_ids: Sequence[int] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    structured_output: bool = False
    settings: Mapping[str, float | int] = field(default_factory=lambda: MappingProxyType({}))
    model: str | None = None
    group: str | None = None
    conversation: int | None = None

    @property
    def has_answer(self) -> bool:
        """Whether a logged response can be replayed."""
        return self.answer is not None or self.answer_token_ids is not None
