"""What a format function returns: the requests that one row holds, before anything is counted or left out."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specprobe.formats.answers import is_error_answer
from specprobe.formats.turns import Turn

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""Stands in SPEED-Bench rows until the benchmark's own script has fetched the texts."""


@dataclass(slots=True)
class Conversation:
    """Turns in order. `logged` says which assistant turns are logged answers: all, only the last turn, or none.

    `opens` is False for a later request of the same row, whose first user turn was already seen; `since` is the
    first turn that no earlier conversation of the row had, so that the answers before it are not counted again.
    """

    column: str
    turns: list[Turn]
    logged: Literal["all", "last", "none"] = "all"
    opens: bool = True
    since: int = 0


@dataclass(slots=True)
class Completion:
    """A raw prompt that no chat template is put around."""

    column: str
    text: str
    answer: Turn | None = None


@dataclass(slots=True)
class TokenRow:
    """A row that is already tokenized."""

    column: str
    prompt: array[int]
    output: array[int] | None
    tail: Sequence[int] = ()


@dataclass(slots=True)
class Parsed:
    """One row, understood. `request` is the mapping that holds sampling settings and tools.

    `identity` is the row's own id where it is not under one of the keys that name it in plain rows.
    """

    items: list[Conversation | Completion | TokenRow]
    request: Mapping[str, Any]
    identity: str | None = None


@dataclass(slots=True)
class Request:
    """One prompt that could be sent: the turns of `item` before `end`, and the logged answer where there is one.

    For Completion and TokenRow the prompt is the item itself and `end` is 0.
    """

    item: Conversation | Completion | TokenRow
    end: int = 0
    answer: Turn | None = None


@dataclass(slots=True)
class Requests:
    """Everything one row offers.

    `first`: the request that ends with the first user turn. `opening`: the same with the user turns that follow it
    before any answer. `answered`: one for each logged answer. `reason`: why there is no `first`. `unusable` counts
    answers that are none (empty, failed); `cut` counts answers whose context cannot be replayed.
    """

    first: Request | None = None
    opening: Request | None = None
    answered: list[Request] = field(default_factory=list)
    reason: str | None = None
    unusable: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)

    def by_default(self) -> list[Request]:
        """What `analyze` uses: one request for each logged answer, or the opening where nothing was answered."""
        return self.answered or ([self.opening] if self.opening else [])

    def by_first_turn(self) -> list[Request]:
        """The peers' way."""
        return [self.first] if self.first else []


def requests(parsed: Parsed) -> Requests:
    """Find the prompts and logged answers of a row."""
    found = Requests()
    for item in parsed.items:
        if type(item) is Conversation:
            _split(item, found)
        elif type(item) is Completion:
            _from_completion(item, found)
        elif type(item) is TokenRow:
            found.first = found.opening = Request(item)
            found.answered += [Request(item)] if item.output else []
    return found


def answer_problem(answer: Turn) -> str | None:
    """Why an assistant turn is no answer: empty_answer, error_answer, cached_answer, redacted, or None."""
    if answer.unusable:
        return answer.unusable
    if not answer.says_something:
        return "empty_answer"
    if answer.tool_calls or not is_error_answer(answer.text):
        return None
    return "error_answer"


def _from_completion(item: Completion, found: Requests) -> None:
    found.reason = _text_problem(item.text)
    if found.reason:
        return
    found.first = found.opening = Request(item)
    if item.answer:
        problem = answer_problem(item.answer)
        if problem:
            found.unusable.append(problem)
        else:
            found.answered.append(Request(item, 0, item.answer))
            found.first = Request(item, 0, item.answer)


def _text_problem(text: str) -> str | None:
    if not text or text.isspace():
        return "empty"
    return "placeholder" if PLACEHOLDER in text else None


def _split(item: Conversation, found: Requests) -> None:
    turns = item.turns
    last = len(turns) - 1
    blocked: str | None = None
    first = -1
    asked = False
    answers: dict[int, Request] = {}
    for i, turn in enumerate(turns):
        if turn.role == "assistant":
            if i < item.since or turn.demo:
                pass
            elif item.logged == "all" or (i == last and item.logged == "last"):
                problem = answer_problem(turn)
                if problem:
                    found.unusable.append(problem)
                elif blocked or turn.problem or not asked:
                    found.cut.append(blocked or turn.problem or "no_user_turn")
                else:
                    answers[i] = Request(item, i, turn)
        elif turn.role == "user" and not turn.demo and not turn.problem:
            if first < 0:
                first = i
                if not blocked and PLACEHOLDER in turn.text:
                    blocked = "placeholder"
            asked = asked or bool(turn.text and not turn.text.isspace())
        elif turn.role == "user" and first < 0 and turn.problem == "multimodal":
            first = i
        blocked = blocked or turn.problem
    found.answered += answers.values()
    if not item.opens:
        return
    found.reason = _opening_problem(turns, first)
    if found.reason is None:
        found.first = Request(item, first + 1, answers[first + 1].answer if first + 1 in answers else None)
        found.opening = Request(item, _end_of_opening(turns, first))


def _opening_problem(turns: list[Turn], first: int) -> str | None:
    if not turns:
        return "empty"
    before = turns[: first + 1] if first >= 0 else turns
    problem = next((turn.problem for turn in before if turn.problem), None)
    if problem or first < 0:
        return problem or "no_user_turn"
    return _text_problem(turns[first].text)


def _end_of_opening(turns: list[Turn], first: int) -> int:
    end = first + 1
    while end < len(turns) and turns[end].role == "user" and not turns[end].problem:
        end += 1
    return end
