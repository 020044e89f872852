"""Langfuse observations, in the names of its API (camelCase) and of its blob export (snake_case)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specprobe.containers import Skip
from specprobe.formats.conversation import Conversation, Parsed
from specprobe.formats.logged import as_request, is_cached, judged
from specprobe.formats.messages import sent_turns, with_system
from specprobe.formats.replies import reply
from specprobe.formats.turns import Turn, parse_json

Row = Mapping[str, Any]

OBSERVATIONS = frozenset(
    ["GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"]
)


def is_observation(row: Row) -> bool:
    """Whether a row is an observation of a trace, however few of its fields were exported.

    A GENERATION with an input or output is told by that alone; the other types are words that other logs have, too.
    """
    kind = row.get("type")
    if not isinstance(kind, str) or kind not in OBSERVATIONS:
        return False
    is_traced = "traceId" in row or "trace_id" in row
    has_time = "startTime" in row or "start_time" in row
    return (is_traced and has_time) or (kind == "GENERATION" and ("input" in row or "output" in row))


def observation(row: Row) -> Parsed | Skip | None:
    """One observation; only a GENERATION is a request to a model. Without a type, as asked for, it is one."""
    if row.get("type", "GENERATION") != "GENERATION":
        return Skip("not_generation")
    sent = row.get("input")
    if sent is None or sent == "":
        return Skip("no_prompt")
    body = _mapping(sent)
    found = sent_turns(sent)
    if found is None:
        return Skip("unknown_input")
    answered = _mapping(row.get("output"))
    # The Responses API gives the instructions back, and so its tools and settings.
    found = with_system(found, body.get("system") or answered.get("instructions"))
    parameters = row.get("modelParameters", row.get("model_parameters"))
    tools = row.get("toolDefinitions", row.get("tool_definitions"))
    request = as_request(answered if "output" in answered else None, body, parameters, tools=tools or None)
    answer = reply(row.get("output")) if row.get("output") not in (None, "") else None
    if row.get("level") == "ERROR":
        answer = Turn("assistant", unusable="error_answer")
    names = (row.get(key) for key in ("providedModelName", "provided_model_name", "model"))
    judged(answer, next((name for name in names if isinstance(name, str) and name), None), is_cached=is_cached(row))
    item = Conversation("input", [*found, answer], "last") if answer else Conversation("input", found, "none")
    return Parsed([item], request)


def _mapping(value: Any) -> Row:
    parsed = parse_json(value) if isinstance(value, str) else value
    if isinstance(parsed, str):
        parsed = parse_json(parsed)
    return parsed if isinstance(parsed, dict) else {}
