"""What a format function returns: the requests that one row holds, before anything is counted or left out."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

from specprobe.formats.answers import LONGEST_ERROR, is_error_answer
from specprobe.formats.turns import Turn

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""Stands in SPEED-Bench rows until the benchmark's own script has fetched the texts."""


class Conversation(Struct, gc=False):
    """Turns in order. `logged` says which assistant turns are logged answers: all, only the last turn, or none.

    `opens` is False for a later request of the same row, whose first user turn was already seen; `since` is the
    first turn that no earlier conversation of the row had, so that the answers before it are not counted again.
    """

    column: str
    turns: list[Turn]
    logged: Literal["all", "last", "none"] = "all"
    opens: bool = True
    since: int = 0


class Completion(Struct, gc=False):
    """A raw prompt that no chat template is put around."""

    column: str
    text: str
    answer: Turn | None = None


class TokenRow(Struct, gc=False):
    """A row that is already tokenized."""

    column: str
    prompt: array[int]
    output: array[int] | None
    tail: Sequence[int] = ()


class Parsed(Struct, gc=False):
    """One row, understood. `items` are of one kind; `request` is the mapping that holds sampling settings and tools.

    `identity` is the row's own id where it is not under one of the keys that name it in plain rows.
    """

    items: list[Conversation | Completion | TokenRow]
    request: Mapping[str, Any]
    identity: str | None = None


class Request(Struct, gc=False):
    """One prompt that could be sent: the turns of `item` before `end`, and the logged answer where there is one.

    For Completion and TokenRow the prompt is the item itself and `end` is 0.
    """

    item: Conversation | Completion | TokenRow
    end: int = 0
    answer: Turn | None = None


class Requests(Struct, gc=False):
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
    if answer.tool_calls:
        return None
    text = answer.text
    if not text or text.isspace():
        return "empty_answer"
    return "error_answer" if len(text) <= LONGEST_ERROR and is_error_answer(text) else None


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
    blocked: str | None = None
    first = -1
    before_first: str | None = None
    asked = False
    since = _first_logged(item)
    answers: list[Request] = []
    for i, turn in enumerate(turns):
        role, problem = turn.role, turn.problem
        if role == "assistant":
            if i >= since and not turn.demo:
                unusable = answer_problem(turn)
                if unusable:
                    found.unusable.append(unusable)
                elif blocked or problem or not asked:
                    found.cut.append(blocked or problem or "no_user_turn")
                else:
                    answers.append(Request(item, i, turn))
        elif role == "user":
            if not problem and not turn.demo:
                if first < 0:
                    first, before_first = i, blocked
                    if not blocked and PLACEHOLDER in turn.text:
                        blocked = "placeholder"
                asked = asked or bool(turn.text and not turn.text.isspace())
            elif first < 0 and problem == "multimodal":
                first, before_first = i, blocked or problem
        if problem:
            blocked = blocked or problem
    found.answered += answers
    if not item.opens:
        return
    if first < 0:
        found.reason = (blocked or "no_user_turn") if turns else "empty"
        return
    found.reason = before_first or _text_problem(turns[first].text)
    if found.reason is None:
        # No answer that is used comes before the first user turn.
        is_answered = bool(answers) and answers[0].end == first + 1
        found.first = answers[0] if is_answered else Request(item, first + 1)
        found.opening = Request(item, _end_of_opening(turns, first))


def _first_logged(item: Conversation) -> int:
    """The turn from which on assistant turns are logged answers that were not counted before."""
    if item.logged == "all":
        return item.since
    return max(item.since, len(item.turns) - 1) if item.logged == "last" else len(item.turns)


def _end_of_opening(turns: list[Turn], first: int) -> int:
    end = first + 1
    while end < len(turns) and turns[end].role == "user" and not turns[end].problem:
        end += 1
    return end
