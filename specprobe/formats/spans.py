"""Spans of traces: OpenInference, OpenTelemetry gen_ai (new and old names, events) and the Vercel AI SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from specprobe.containers import Skip
from specprobe.formats.attributes import flat, under
from specprobe.formats.conversation import Completion, Conversation, Parsed
from specprobe.formats.logged import as_request, is_cached, judged
from specprobe.formats.messages import marked, sent_turns, with_system
from specprobe.formats.replies import is_failed_finish, reply
from specprobe.formats.turns import Turn, as_list, parse_json, turn, turns

Row = Mapping[str, Any]

PREFIXES = {
    "ai.": "vercel",
    "gen_ai.": "otel",
    "llm.": "openinference",
    "openinference.": "openinference",
    "traceloop.": "otel",
    "attributes.ai.": "vercel",
    "attributes.gen_ai.": "otel",
    "attributes.llm.": "openinference",
    "attributes.openinference.": "openinference",
}
"""How keys begin that only attributes of spans have -> the format; the last ones are columns of a Phoenix table."""

_STARTS = tuple(PREFIXES)
IDENTITY_KEYS = frozenset(
    [
        *("span_id", "spanId", "spanID", "context", "spanContext", "context.span_id", "span_kind"),
        *("trace_id", "traceId", "traceID", "parent_id", "parent_span_id", "parentSpanId"),
        *("start_time", "startTime", "startTimeUnixNano"),
    ]
)
GENERATIONS = frozenset(["chat", "text_completion", "completion", "generate_content", "responses", "chat_completion"])
"""Values of gen_ai.operation.name that are one call of a language model."""


class SpanLink(NamedTuple):
    """Where a span stands in its trace."""

    trace: str
    span: str
    parent: str | None


@dataclass(frozen=True, slots=True)
class Span:
    """A span whose attributes are one flat mapping."""

    row: Row
    attributes: dict[str, Any]

    def first(self, *keys: str) -> Any:
        """The first attribute there is, its parts put together where it is spread over keys."""
        return next((value for key in keys if (value := under(self.attributes, key)) is not None), None)

    def text(self, *keys: str) -> str | None:
        """The first of these attributes that is a text with something in it."""
        texts = (self.attributes.get(key) for key in keys)
        return next((value for value in texts if isinstance(value, str) and value and not value.isspace()), None)


def span_key(row: Row) -> str | None:
    """A key that only the attributes of a span have."""
    for key in row:
        if "." in key and key.startswith(_STARTS):
            return key
    return None


def is_span(row: Row) -> bool:
    """Whether a row is a span: attributes and an identity, or a span's attributes themselves."""
    attributes = row.get("attributes", row.get("tags"))
    has_attributes = isinstance(attributes, dict | list) and bool(attributes)
    if has_attributes and (not IDENTITY_KEYS.isdisjoint(row) or _convention(flat(attributes))):
        return True
    if span_key(row) is not None or isinstance(row.get("gen_ai"), dict):
        return True
    llm = row.get("llm")
    return isinstance(llm, dict) and not {"input_messages", "model_name", "output_messages"}.isdisjoint(llm)


def read_span(row: Row) -> tuple[str, Parsed | Skip]:
    """The convention of a span, and the request in it: only calls of a language model hold one."""
    span = _span(row)
    convention = _convention(span.attributes) or "otel"
    if convention == "vercel":
        return convention, _vercel(span)
    if not _is_generation(span):
        return convention, Skip("not_generation")
    return convention, (_openinference(span) if convention == "openinference" else _gen_ai(span))


def span_link(row: Row) -> SpanLink | None:
    """The ids of a span, its parent and its trace, where it has one."""
    contexts = (row[key] for key in ("context", "spanContext") if isinstance(row.get(key), dict))
    context: Row = next(contexts, {})
    span = _first_id(row, ("span_id", "spanId", "spanID", "context.span_id", "id")) or _first_id(
        context, ("span_id", "spanId")
    )
    if span is None:
        return None
    trace = _first_id(row, ("trace_id", "traceId", "traceID", "context.trace_id")) or _first_id(
        context, ("trace_id", "traceId")
    )
    parent = _first_id(
        row,
        ("parent_id", "parent_span_id", "parentSpanId", "parentSpanID", "parentObservationId", "parent_observation_id"),
    )
    above = row.get("parentSpanContext")
    if parent is None and isinstance(above, dict):
        parent = _first_id(above, ("spanId", "span_id"))
    references = row.get("references")
    if parent is None and isinstance(references, list):
        parent = next((_first_id(item, ("spanID",)) for item in references if isinstance(item, dict)), None)
    return SpanLink(trace or "", span, parent)


def _first_id(row: Row, keys: tuple[str, ...]) -> str | None:
    values = (row.get(key) for key in keys)
    return next((str(value) for value in values if isinstance(value, str | int) and value != ""), None)


def _span(row: Row) -> Span:
    attributes = flat(row.get("attributes", row.get("tags")))
    if not _convention(attributes):
        beside = flat({key: value for key, value in row.items() if key not in ("attributes", "events", "body")})
        stripped = {key.removeprefix("attributes."): value for key, value in beside.items()}
        attributes = {**stripped, **attributes}
    for event in _events(row, attributes):
        # An event of the newer conventions carries what could stand on the span.
        for key, value in event.items():
            if key.startswith("gen_ai.") and key not in attributes:
                attributes[key] = value
    return Span(row, attributes)


def _convention(attributes: Mapping[str, Any]) -> str | None:
    kinds = {PREFIXES[start] for key in attributes for start in _STARTS if key.startswith(start)}
    if "ai.operationId" in attributes or "ai.prompt.messages" in attributes or kinds == {"vercel"}:
        return "vercel"
    # Both may be there, where one was derived from the other.
    is_open = "openinference.span.kind" in attributes or any(key.startswith("llm.input_messages") for key in attributes)
    if "openinference" in kinds and (is_open or "otel" not in kinds):
        return "openinference"
    return "otel" if "otel" in kinds else None


def _is_generation(span: Span) -> bool:
    kind = span.text("openinference.span.kind") or span.row.get("span_kind")
    if isinstance(kind, str) and kind.upper() in _KINDS:
        return kind.upper() == "LLM"
    operation = span.text("gen_ai.operation.name")
    if operation is not None:
        return operation.lower() in GENERATIONS
    if span.text("traceloop.span.kind") is not None:
        return False
    request = span.text("llm.request.type")
    if request is not None:
        return request.lower() in GENERATIONS
    return any(key.startswith(_CONTENT) for key in span.attributes) or any(_messages_in_events(span))


_KINDS = frozenset(
    [
        "LLM",
        "CHAIN",
        "AGENT",
        "TOOL",
        "RETRIEVER",
        "RERANKER",
        "EMBEDDING",
        "GUARDRAIL",
        "EVALUATOR",
        "PROMPT",
        "UNKNOWN",
    ]
)
_CONTENT = (
    *("gen_ai.input.messages", "gen_ai.prompt", "gen_ai.completion", "gen_ai.output", "gen_ai.request.model"),
    *("llm.input_messages", "llm.output_messages", "llm.prompts", "llm.model_name", "llm.invocation_parameters"),
)


def _openinference(span: Span) -> Parsed | Skip:
    parameters = parse_json(span.first("llm.invocation_parameters")) or span.first("llm.invocation_parameters")
    outer = parse_json(span.attributes.get("input.value"))
    tools = [
        item["tool"].get("json_schema") if isinstance(item, dict) and isinstance(item.get("tool"), dict) else item
        for item in as_list(span.first("llm.tools"))
    ]
    tools = [_flattened_schema(item) for item in tools]
    body = outer if isinstance(outer, dict) else {}
    request = as_request(body, parameters, tools=tools)
    for column in ("llm.input_messages", "input.value"):
        value = span.first(column)
        if value is None:
            continue
        found = sent_turns(value)
        if found is None:
            return Skip("unknown_input")
        if column == "input.value" and span.attributes.get("input.mime_type") == "text/plain":
            found = marked([Turn("user", str(value))])
        found = with_system(found, body.get("system") or body.get("instructions"))
        answer = _reply_of(span, "llm.output_messages", "output.value")
        return _request(span, column, found, answer, request, span.text("llm.model_name"))
    prompts = span.first("llm.prompts")
    texts = [item for item in as_list(prompts) if isinstance(item, str | dict)]
    if texts:
        text = texts[0] if isinstance(texts[0], str) else _prompt_text(texts[0])
        answer = _reply_of(span, "llm.choices", "llm.output_messages", "output.value")
        judged(answer, span.text("llm.model_name"), is_cached=is_cached(span.row, span.attributes))
        return Parsed([Completion("llm.prompts", text, answer)], request, _identity(span))
    return Skip("no_prompt")


def _flattened_schema(item: Any) -> Any:
    if isinstance(item, dict) and isinstance(item.get("tool.json_schema"), str | dict):
        return item["tool.json_schema"]
    return item


def _prompt_text(item: Row) -> str:
    inner = item.get("prompt", item)
    text = inner.get("text") if isinstance(inner, dict) else inner
    text = item.get("prompt.text", text)
    return text if isinstance(text, str) else ""


def _gen_ai(span: Span) -> Parsed | Skip:
    asked = {key.removeprefix("gen_ai.request."): value for key, value in span.attributes.items() if "request." in key}
    tools = span.first("gen_ai.tool.definitions", "gen_ai.request.tools", "llm.request.functions", "tools")
    wants_json = {"response_format": {"type": "json_object"}} if span.text("gen_ai.output.type") == "json" else {}
    request = as_request(asked, wants_json, tools=tools)
    answer = _reply_of(span, "gen_ai.output.messages", "gen_ai.completion", "gen_ai.output.text")
    model = span.text("gen_ai.response.model", "gen_ai.request.model")
    for column in ("gen_ai.input.messages", "gen_ai.prompt"):
        value = span.first(column)
        if value is None:
            continue
        found = sent_turns(value)
        if found is None:
            return Skip("unknown_input")
        found = with_system(found, span.first("gen_ai.system_instructions", "gen_ai.system.instructions"))
        return _request(span, column, found, answer, request, model)
    said = list(_messages_in_events(span))
    if not said:
        return Skip("no_prompt")
    asked_turns = marked([message for message, is_choice in said if not is_choice])
    answer = answer or next((message for message, is_choice in said if is_choice), None)
    found = with_system(asked_turns, span.first("gen_ai.system_instructions"))
    return _request(span, "events", found, answer, request, model)


def _vercel(span: Span) -> Parsed | Skip:
    value = span.first("ai.prompt.messages")
    if value is None:
        # The outer span of a call repeats the inner ones, a tool's span is no request, an embedding has no answer.
        return Skip("outer_span_or_embedding")
    found = sent_turns(value)
    if found is None:
        return Skip("unknown_input")
    settings = {key.rpartition(".")[2]: item for key, item in span.attributes.items() if key.startswith("ai.settings.")}
    asked = {key.removeprefix("gen_ai.request."): item for key, item in span.attributes.items() if "request." in key}
    is_object = "Object" in (span.text("ai.operationId") or "")
    wants_json = {"response_format": {"type": "json_object"}} if is_object else {}
    request = as_request(settings, asked, wants_json, tools=span.first("ai.prompt.tools"))
    model = span.text("ai.response.model", "gen_ai.response.model", "ai.model.id", "gen_ai.request.model")
    return _request(span, "ai.prompt.messages", found, _vercel_answer(span), request, model)


def _vercel_answer(span: Span) -> Turn | None:
    stems = ("ai.response.", "ai.result.")
    text = span.text(*(f"{stem}{key}" for stem in stems for key in ("text", "object")))
    calls = as_list(span.first(*(f"{stem}toolCalls" for stem in stems)))
    if text is None and not calls:
        return None
    answer = turn({"role": "assistant", "content": text or "", "tool_calls": calls})
    answer.reasoning = span.text("ai.response.reasoning")
    if is_failed_finish(span.first("ai.response.finishReason", "ai.finishReason")):
        answer.unusable = "error_answer"
    return answer


def _request(
    span: Span, column: str, found: list[Turn], answer: Turn | None, request: dict[str, Any], model: str | None
) -> Parsed:
    """One request with its one answer; the turns that it sent are its context."""
    if _has_failed(span):
        answer = answer or Turn("assistant")
        answer.unusable = "error_answer"
    if answer is not None:
        if is_failed_finish(span.first("gen_ai.response.finish_reasons", "llm.finish_reason")):
            answer.unusable = "error_answer"
        judged(answer, model, is_cached=is_cached(span.row, span.attributes))
        item = Conversation(column, [*found, answer], "last")
    else:
        item = Conversation(column, found, "none")
    return Parsed([item], request, _identity(span))


def _identity(span: Span) -> str | None:
    link = span_link(span.row)
    return link.span if link else None


def _reply_of(span: Span, *keys: str) -> Turn | None:
    """The answer under the first of these attributes that holds one."""
    for key in keys:
        value = span.first(key)
        if value is None:
            continue
        if key == "llm.choices" and isinstance(value, list) and value and isinstance(value[0], dict):
            inner = value[0].get("completion", value[0])
            value = inner.get("text", value[0].get("completion.text")) if isinstance(inner, dict) else inner
        found = reply(value)
        if found is not None and (found.says_something or found.unusable):
            return found
    return None


def _has_failed(span: Span) -> bool:
    status = span.row.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else status
    code = span.row.get("status_code", code) if code is None else code
    if code == 2 and not isinstance(code, bool):
        return True
    if isinstance(code, str) and code.upper().removeprefix("STATUS_CODE_").removeprefix("STATUSCODE.") == "ERROR":
        return True
    return span.attributes.get("error.type") is not None or span.attributes.get("otel.status_code") == "ERROR"


def _events(row: Row, attributes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a span, each as one flat mapping with its name under `event.name`."""
    for item in [*as_list(row.get("events")), *as_list(row.get("logs")), *as_list(attributes.get("events"))]:
        if isinstance(item, dict):
            # Jaeger says `fields`; some exporters leave the attributes on the event itself.
            inner = flat(item.get("attributes", item.get("fields")))
            name = item.get("event.name") or item.get("name") or inner.get("event.name") or inner.get("event")
            beside = {} if inner else {key: value for key, value in item.items() if isinstance(key, str)}
            body = parse_json(inner.get("event_body")) or item.get("body")
            more = flat(typed if isinstance(typed := body, dict) else {})
            yield {**beside, **inner, **more, "event.name": name}


def _messages_in_events(span: Span) -> Iterator[tuple[Turn, bool]]:
    """Messages that were logged one an event (`gen_ai.user.message`, ...), and whether it is a `gen_ai.choice`."""
    for event in _events(span.row, span.attributes):
        name = event.get("event.name")
        if not isinstance(name, str) or not name.startswith("gen_ai."):
            continue
        kind = name.split(".")
        if name == "gen_ai.choice":
            said = under(event, "message")
            said = parse_json(said) or said
            answer = reply(said if isinstance(said, dict) and "role" in said else {"role": "assistant", **_said(said)})
            if answer is not None:
                if is_failed_finish(event.get("finish_reason")):
                    answer.unusable = "error_answer"
                yield answer, True
        elif len(kind) == 3 and kind[2] == "message":
            message = {key: under(event, key) for key in ("role", "content", "tool_calls", "id", "name")}
            message["role"] = message["role"] or kind[1]
            message["tool_calls"] = parse_json(message["tool_calls"]) or message["tool_calls"]
            message["tool_call_id"] = message.pop("id")
            yield from ((made, False) for made in turns([message]))


def _said(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {"content": value if isinstance(value, str) or value is None else json.dumps(value, default=str)}
