"""Rows that hold a conversation: OpenAI messages, ShareGPT, request bodies, SWE-agent trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specprobe.containers import Skip
from specprobe.formats.conversation import Completion, Conversation, Parsed
from specprobe.formats.messages import chat_items
from specprobe.formats.replies import failed, reply
from specprobe.formats.turns import Turn, as_list, parse_json, part_text, turn, turns

Row = Mapping[str, Any]

SHAREGPT_KEYS = ("conversations", "conversation", "items", "dialogue", "dialog")
WRAPPERS = ("body", "request", "params", "input")
SYSTEM_KEYS = ("system", "system_prompt")
ANSWER_KEYS = ("output", "response", "completion", "generation")
"""Columns that hold what a model wrote. `answer`, `solution` and such hold a data set's reference."""

MEDIA_KEYS = frozenset(("image", "images", "image_files", "image_url", "video", "videos", "audio", "audios"))


def has_media(row: Row) -> bool:
    """Whether pictures, sound or video come with the row; its text alone was not the prompt."""
    return not MEDIA_KEYS.isdisjoint(row) and any(row.get(key) for key in MEDIA_KEYS)


def system_turn(row: Row) -> list[Turn]:
    """The system text that a row keeps beside its turns."""
    for key in SYSTEM_KEYS:
        if key not in row:
            continue
        value = row[key]
        if isinstance(value, list):
            value = part_text({"content": value})
        if isinstance(value, str) and value and not value.isspace():
            return [Turn("system", value)]
    return []


def messages(row: Row) -> Parsed | Skip | None:
    """`{"messages": [{"role", "content", ...}]}`."""
    return _turn_list(row, "messages")


def sharegpt(row: Row) -> Parsed | Skip | None:
    """`{"conversations": [{"from", "value"}]}` and its dialects."""
    column = next((key for key in SHAREGPT_KEYS if row.get(key) is not None), None)
    return _turn_list(row, column) if column else None


def _turn_list(row: Row, column: str) -> Parsed | Skip | None:
    raw = row.get(column)
    if not isinstance(raw, list):
        if not isinstance(raw, str):
            return None
        raw = parse_json(raw)
        if not isinstance(raw, list):
            return Skip("no_prompt" if row[column].strip() else "empty")
    if not raw:
        return Skip("empty")
    found = turns(raw)
    if not found:
        return Skip("no_prompt")
    if has_media(row):
        return Skip("multimodal")
    return Parsed([complete(row, column, found)], row)


def complete(row: Row, column: str, found: list[Turn]) -> Conversation:
    """Add what a row keeps beside its turns: system text in front, a logged or chosen answer at the end."""
    if not found or found[0].role != "system":
        found[:0] = system_turn(row)
    if found and found[-1].role != "assistant":
        found += logged_answer(row)
    return Conversation(column, found)


def logged_answer(row: Row) -> list[Turn]:
    """What a model answered, from a column of its own; of a pair, `chosen`."""
    for key in (*ANSWER_KEYS, "chosen"):
        value = row.get(key)
        if isinstance(value, str):
            return [_with_reasoning(row, Turn("assistant", value))]
        if isinstance(value, dict):
            answer = turn(value) if "role" in value or "from" in value else reply(value)
            return [answer] if answer else []
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            answered = turns(value)
            if answered and all(item.role in ("assistant", "tool") for item in answered):
                return answered
            return answered[-1:] if key == "chosen" and answered[-1].role == "assistant" else []
    return []


def _with_reasoning(row: Row, answer: Turn) -> Turn:
    reasoning = row.get("reasoning_content") or row.get("reasoning")
    answer.reasoning = reasoning if isinstance(reasoning, str) else None
    return answer


def chosen(row: Row) -> Parsed | Skip | None:
    """A preference pair whose `chosen` side is the whole conversation."""
    return _turn_list(row, "chosen") if isinstance(row.get("chosen"), list) else None


def request_body(row: Row) -> Parsed | Skip | None:
    """A request one level down: batch input (`body`), Anthropic batches (`params`), wrappers (`request`, `input`)."""
    wrapper = next((key for key in WRAPPERS if isinstance(row.get(key), dict)), None)
    if wrapper is None:
        return None
    body = row[wrapper]
    url = row.get("url")
    if isinstance(url, str) and any(kind in url for kind in ("embedding", "rerank", "moderation")):
        return Skip("no_prompt")
    if has_media(body):
        return Skip("multimodal")
    answer = _response(row)
    for key in ("messages", "input", "prompt"):
        value = body.get(key)
        if value is None:
            continue
        column = f"{wrapper}.{key}"
        if isinstance(value, str) and key == "prompt":
            return Parsed([Completion(column, value, answer)], body)
        found = _body_turns(value, body)
        if found is None:
            return Skip("no_prompt")
        return Parsed([_with_answer(column, found, answer)], body)
    return Skip("no_prompt")


def _with_answer(column: str, found: list[Turn], answer: Turn | None) -> Conversation:
    """A request whose response was logged has that one answer; the turns it sent are its context."""
    return Conversation(column, [*found, answer], "last") if answer else Conversation(column, found)


def _body_turns(value: Any, body: Row) -> list[Turn] | None:
    if isinstance(value, str) and not value.lstrip().startswith("["):
        found = [Turn("user", value)]
    else:
        raw = as_list(value)
        if not all(isinstance(item, dict) for item in raw):
            return None
        found = turns(chat_items(raw))
    instructions = body.get("instructions")
    if isinstance(instructions, str) and instructions:
        return [Turn("system", instructions), *found]
    return found if found and found[0].role == "system" else [*system_turn(body), *found]


def _response(row: Row) -> Turn | None:
    """The answer in a logged response, in any API's form; `result` in Anthropic's batches."""
    if row.get("error") and row.get("response") is None:
        return failed()
    value = row.get("response", row.get("result"))
    return reply(value) if isinstance(value, dict | str) else None


def trajectory(row: Row) -> Parsed | Skip | None:
    """A SWE-agent `.traj`: each step is one request, and its response is the logged answer."""
    steps: list[Row] = [step for step in as_list(row.get("trajectory")) if isinstance(step, dict)]
    history = [item for item in as_list(row.get("history")) if isinstance(item, dict) and "role" in item]
    if not steps and not history:
        return None
    if steps and "role" in steps[0]:
        return Parsed([Conversation("trajectory", turns(steps))], row)
    for column, sent in (
        ("trajectory.query", _query_requests(steps)),
        ("trajectory.messages", _message_requests(steps)),
    ):
        if sent:
            opening = Conversation(column, turns(history) or sent[0][:-1], "none")
            later = [Conversation(column, request, "last", opens=False) for request in sent]
            return Parsed([opening, *later], row)
    return Parsed([Conversation("history", turns(history))], row) if history else None


def _query_requests(steps: list[Row]) -> list[list[Turn]]:
    """`query` is the exact input of its step; the answer's tool calls are seen in the next step's input."""
    requests = []
    for step, following in zip(steps, [*steps[1:], {}], strict=False):
        query = as_list(step.get("query"))
        if not query:
            return []
        later = as_list(following.get("query"))[len(query) :][:1]
        answered = turns(later)
        answer = answered[0] if answered and answered[0].role == "assistant" else _step_answer(step)
        requests.append([*turns(query), answer])
    return requests


def _message_requests(steps: list[Row]) -> list[list[Turn]]:
    """`messages` is the state after its step: the last two turns are the answer and what the tool said."""
    requests = []
    for step in steps:
        state = turns(as_list(step.get("messages")))
        if not state:
            return []
        last = max((i for i, item in enumerate(state) if item.role == "assistant"), default=None)
        if last is not None and last >= len(state) - 2:
            requests.append(state[: last + 1])
        else:
            requests.append([*state, _step_answer(step)])
    return requests


def _step_answer(step: Row) -> Turn:
    said = step.get("response") or step.get("thought")
    return turn({"role": "assistant", "content": said, "tool_calls": step.get("tool_calls")})
