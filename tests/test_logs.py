"""Logs of gateways and tracers, exports of chat applications: invented rows of every form -> prompts and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprobe.containers import Row, Skip
from specprobe.formats import FORMATS, parse, parse_as
from specprobe.formats.attributes import flat, nested, under
from specprobe.formats.conversation import Parsed, requests
from specprobe.formats.oasst import grown
from specprobe.formats.replies import reply
from specprobe.gather import gathered
from specprobe.prompt import Prompt
from specprobe.responses import _of_one_model
from specprobe.scan import FileSummary
from specprobe.workload import inspect_workload, read_workload

USER = {"role": "user", "content": "Name a river."}
SYSTEM = {"role": "system", "content": "Be brief."}
SAID = {"role": "assistant", "content": "The Elbe."}


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def summary(path: str) -> FileSummary:
    (file,) = inspect_workload([path]).files
    return file


def read(tmp_path: Path, *rows: Any) -> tuple[Prompt, ...]:
    return read_workload([write(tmp_path / "log.jsonl", *rows)]).prompts


def said(prompt: Prompt) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in prompt.messages]


def span(attributes: Any, name: str = "s1", parent: str | None = None, **more: Any) -> dict[str, Any]:
    return {"trace_id": "t", "span_id": name, "parent_span_id": parent, "attributes": attributes, **more}


def otlp(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    def typed(value: Any) -> dict[str, Any]:
        if isinstance(value, list):
            return {"arrayValue": {"values": [typed(item) for item in value]}}
        kind = {str: "stringValue", int: "intValue", float: "doubleValue"}[type(value)]
        return {kind: str(value) if isinstance(value, int) else value}

    return [{"key": key, "value": typed(value)} for key, value in attributes.items()]


PARTS_IN = [{"role": "user", "parts": [{"type": "text", "content": "Name a river."}]}]
PARTS_OUT = [{"role": "assistant", "parts": [{"type": "text", "content": "The Elbe."}], "finish_reason": "stop"}]
GEN_AI = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.response.model": "m-1",
    "gen_ai.request.temperature": 0.7,
    "gen_ai.request.max_tokens": 50,
    "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.input.messages": json.dumps(PARTS_IN),
    "gen_ai.output.messages": json.dumps(PARTS_OUT),
}
OLD_GEN_AI = {
    "gen_ai.request.model": "m-1",
    "gen_ai.request.temperature": "0.7",
    "gen_ai.request.max_tokens": "50",
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "Name a river.",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "The Elbe.",
    "gen_ai.completion.0.finish_reason": "stop",
    "llm.request.type": "chat",
}
OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "m-1",
    "llm.invocation_parameters": '{"temperature": 0.7, "max_completion_tokens": 50}',
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": "Name a river.",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "The Elbe.",
    "output.value": "{}",
}
VERCEL = {
    "ai.operationId": "ai.generateText.doGenerate",
    "ai.model.id": "m",
    "ai.response.model": "m-1",
    "ai.settings.temperature": 0.7,
    "ai.settings.maxOutputTokens": 50,
    "ai.prompt.messages": json.dumps([{"role": "user", "content": [{"type": "text", "text": "Name a river."}]}]),
    "ai.response.text": "The Elbe.",
    "ai.response.finishReason": "stop",
}
EVENTS = [
    {"name": "gen_ai.user.message", "attributes": {"content": "Name a river."}},
    {"name": "gen_ai.choice", "attributes": {"message": json.dumps(SAID), "finish_reason": "stop"}},
]
ASKED = {key: value for key, value in GEN_AI.items() if "messages" not in key}

SPANS: dict[str, tuple[str, dict[str, Any]]] = {
    "otel": ("otel", span(GEN_AI)),
    "otel, attributes alone": ("otel", GEN_AI),
    "otel, typed values": ("otel", span(otlp(GEN_AI))),
    "otel, nested": ("otel", span(nested(GEN_AI))),
    "otel, old names": ("otel", span(OLD_GEN_AI)),
    "otel, prompt as JSON": (
        "otel",
        span({**ASKED, "gen_ai.prompt": json.dumps([USER]), "gen_ai.completion": json.dumps([SAID])}),
    ),
    "otel, events": ("otel", span(ASKED, events=EVENTS)),
    "otel, events in an attribute": (
        "otel",
        span(
            {
                **ASKED,
                "events": json.dumps(
                    [
                        {"event.name": "gen_ai.user.message", **USER},
                        {"event.name": "gen_ai.choice", "index": 0, "message": SAID},
                    ]
                ),
            }
        ),
    ),
    "otel, one event with all": (
        "otel",
        span(
            ASKED,
            events=[
                {
                    "name": "gen_ai.client.inference.operation.details",
                    "attributes": {key: value for key, value in GEN_AI.items() if "messages" in key},
                }
            ],
        ),
    ),
    "otel, old events": (
        "otel",
        span(
            ASKED,
            events=[
                {"name": "gen_ai.content.prompt", "attributes": {"gen_ai.prompt": json.dumps([USER])}},
                {"name": "gen_ai.content.completion", "attributes": {"gen_ai.completion": json.dumps([SAID])}},
            ],
        ),
    ),
    "openinference": ("openinference", span(OPENINFERENCE)),
    "openinference, attributes alone": ("openinference", OPENINFERENCE),
    "openinference, typed values": ("openinference", span(otlp(OPENINFERENCE))),
    "openinference, nested": ("openinference", span(nested(OPENINFERENCE))),
    "openinference, lists": (
        "openinference",
        span(
            {
                **{key: value for key, value in OPENINFERENCE.items() if "messages" not in key},
                "llm.input_messages": [{"message.role": "user", "message.content": "Name a river."}],
                "llm.output_messages": [{"message": SAID}],
            }
        ),
    ),
    "openinference, a table of Phoenix": (
        "openinference",
        {
            "context.span_id": "s1",
            "span_kind": "LLM",
            **{f"attributes.{key}": value for key, value in OPENINFERENCE.items()},
        },
    ),
    "openinference, values only": (
        "openinference",
        span(
            {
                **{key: value for key, value in OPENINFERENCE.items() if "messages" not in key},
                "input.value": json.dumps({"messages": [USER]}),
                "output.value": json.dumps({"choices": [{"message": SAID}]}),
            }
        ),
    ),
    "vercel": ("vercel", {"name": "x", "spanContext": {"traceId": "t", "spanId": "s1"}, "attributes": VERCEL}),
    "vercel, older names": (
        "vercel",
        span(
            {
                **{key: value for key, value in VERCEL.items() if not key.startswith("ai.response.t")},
                "ai.result.text": "The Elbe.",
            }
        ),
    ),
}


@pytest.mark.parametrize("case", SPANS)
def test_span(case: str, tmp_path: Path) -> None:
    name, row = SPANS[case]
    assert parse(row)[0] == name
    (prompt,) = read(tmp_path, row)
    assert said(prompt) == [("user", "Name a river.")]
    assert prompt.answer is not None
    assert prompt.answer.content == "The Elbe."
    assert prompt.model == "m-1"
    assert prompt.settings == {"temperature": 0.7, "max_tokens": 50}
    if "span_id" in row:
        assert prompt.id == "s1"


def document(kind: str) -> Any:
    spans = [
        span({"http.method": "POST"}, "a"),
        span({"openinference.span.kind": "AGENT", "input.value": "Name a river."}, "b", "a"),
        span(OPENINFERENCE, "c", "b"),
        span({**GEN_AI, "gen_ai.operation.name": "execute_tool"}, "d", "b"),
    ]
    if kind == "otlp":
        typed = [{**one, "attributes": otlp(one["attributes"])} for one in spans]
        return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": typed[:2]}, {"spans": typed[2:]}]}]}
    if kind == "replay":
        return {"trace_id": "t", "span_count": 4, "spans": spans}
    if kind == "jaeger":
        made = [
            {
                "traceID": "t",
                "spanID": one["span_id"],
                "references": [{"refType": "CHILD_OF", "traceID": "t", "spanID": one["parent_span_id"]}],
                "tags": [{"key": key, "type": "string", "value": value} for key, value in one["attributes"].items()],
            }
            for one in spans
        ]
        return {"data": [{"traceID": "t", "spans": made}]}
    return spans


@pytest.mark.parametrize("kind", ["otlp", "replay", "jaeger", "array"])
def test_a_document_of_spans(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document(kind), indent=1))
    file = summary(str(path))
    assert (file.rows, file.first_turns, file.answers) == (4, 1, 1)
    assert file.skipped == {"not_generation": 3}
    assert file.lines["not_generation"] == (1, 2, 4)
    (prompt,) = read_workload([str(path)]).prompts
    assert (prompt.id, prompt.line) == ("c", 3)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [0, 2, 1]])
def test_a_span_that_repeats_one_inside_it_counts_once(order: list[int], tmp_path: Path) -> None:
    outer = span({**GEN_AI, "gen_ai.output.messages": json.dumps([{**PARTS_OUT[0], "role": "assistant"}])}, "a")
    spans = [outer, span({"name": "chain"}, "b", "a"), span(OPENINFERENCE, "c", "b")]
    file = summary(write(tmp_path / "log.jsonl", *(spans[i] for i in order)))
    assert (file.rows, file.answers) == (3, 1)
    assert file.skipped == {"repeated_span": 1, "not_generation": 1}
    assert read_workload([str(tmp_path / "log.jsonl")]).prompts[0].id == "c"


def test_equal_requests_of_no_kin_are_all_requests(tmp_path: Path) -> None:
    spans = [span(GEN_AI, "a", "x"), span(GEN_AI, "b", "x"), {**span(GEN_AI, "c", "a"), "trace_id": "other"}]
    assert summary(write(tmp_path / "log.jsonl", *spans)).answers == 3


@pytest.mark.parametrize("parents", [["a", "a"], ["b", "a"]])
def test_spans_that_go_round_in_a_circle(parents: list[str], tmp_path: Path) -> None:
    spans = [span(GEN_AI, name, parent) for name, parent in zip("ab", parents, strict=True)]
    file = summary(write(tmp_path / "log.jsonl", *spans))
    assert file.rows == 2
    assert file.answers + file.skipped.get("repeated_span", 0) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": {"code": 2}}, "error_answer"),
        ({"status": {"code": "STATUS_CODE_ERROR"}}, "error_answer"),
        ({"status_code": "ERROR"}, "error_answer"),
        ({"attributes": {**GEN_AI, "error.type": "timeout"}}, "error_answer"),
        ({"attributes": {**GEN_AI, "gen_ai.response.finish_reasons": ["content_filter"]}}, "error_answer"),
        ({"metadata": {"cache_hit": True}}, "cached_answer"),
    ],
)
def test_answers_of_spans_that_are_none(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    file = summary(write(tmp_path / "log.jsonl", {**span(GEN_AI), **change}))
    assert (file.first_turns, file.answers, dict(file.skipped)) == (1, 0, {reason: 1})


def test_spans_without_what_was_said(tmp_path: Path) -> None:
    hidden = {**OPENINFERENCE, "llm.input_messages.0.message.content": "__REDACTED__"}
    rows = [span(ASKED, "a"), span(hidden, "b"), span({**GEN_AI, "gen_ai.input.messages": '{"args": ["q"]}'}, "c")]
    file = summary(write(tmp_path / "log.jsonl", *rows))
    assert dict(file.skipped) == {"no_prompt": 1, "redacted": 1, "unknown_input": 1}


def test_spans_of_the_vercel_sdk_that_are_no_requests(tmp_path: Path) -> None:
    outer = {"ai.operationId": "ai.generateText", "ai.prompt": '{"prompt": "Name a river."}', "ai.response.text": "x"}
    tool = {"ai.operationId": "ai.toolCall", "ai.toolCall.name": "f"}
    file = summary(write(tmp_path / "log.jsonl", span(outer, "a"), span(VERCEL, "b", "a"), span(tool, "c", "a")))
    assert (file.answers, dict(file.skipped)) == (1, {"outer_span_or_embedding": 2})


def test_tools_calls_and_structured_output_of_spans(tmp_path: Path) -> None:
    call = {"type": "tool-call", "toolCallId": "1", "toolName": "depth", "args": {"of": "Elbe"}}
    result = {
        "type": "tool-result",
        "toolCallId": "1",
        "toolName": "depth",
        "output": {"type": "json", "value": {"m": 4}},
    }
    sent = [USER, {"role": "assistant", "content": [call]}, {"role": "tool", "content": [result]}]
    tool = json.dumps({"type": "function", "name": "depth", "inputSchema": {"type": "object"}})
    attributes = {
        **{key: value for key, value in VERCEL.items() if key != "ai.response.text"},
        "ai.operationId": "ai.streamObject.doStream",
        "ai.prompt.messages": json.dumps(sent),
        "ai.prompt.tools": [tool],
        "ai.response.toolCalls": json.dumps([{"toolCallId": "2", "toolName": "depth", "args": '{"of": "Oder"}'}]),
    }
    (prompt,) = read(tmp_path, span(attributes))
    assert said(prompt)[1:] == [("assistant", ""), ("tool", '{"m": 4}')]
    assert prompt.messages[2].tool_call_id == "1"
    assert prompt.answer is not None
    assert prompt.answer.tool_calls[0]["function"] == {"name": "depth", "arguments": {"of": "Oder"}}
    assert prompt.tools[0]["function"] == {"name": "depth", "parameters": {"type": "object"}}
    assert prompt.structured_output


def test_raw_completions_of_spans(tmp_path: Path) -> None:
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.prompts": [{"prompt.text": "def f("}],
        "llm.choices": [{"completion.text": "x):"}],
    }
    (prompt,) = read(tmp_path, span(attributes))
    assert (prompt.text, prompt.answer and prompt.answer.content) == ("def f(", "x):")


def test_attributes_in_every_form() -> None:
    value = {"kvlistValue": {"values": [{"key": "b", "value": {"intValue": "7"}}]}}
    assert flat([{"key": "a", "value": value}, {"key": 5}, None]) == {"a": {"b": 7}}
    assert flat({"a": {"b": {"c": 1}, "d": {}}, "e.f": [2]}) == {"a.b.c": 1, "a.d": {}, "e.f": [2]}
    assert nested({"a.0.b": 1, "a.10.b": 3, "a.2.b": 2}) == {"a": [{"b": 1}, {"b": 2}, {"b": 3}]}
    assert under({"a": "text", "a.b": 1}, "a") == "text"
    assert under({"a.b": 1}, "a") == {"b": 1}
    assert under({}, "a") is None


# Langfuse


def observed(**more: Any) -> dict[str, Any]:
    return {
        "id": "o1",
        "traceId": "t",
        "type": "GENERATION",
        "startTime": "2026-01-01T00:00:00Z",
        "model": "m-1",
        "modelParameters": {"temperature": "0.7", "maxTokens": 50},
        "input": [USER],
        "output": SAID,
        **more,
    }


LANGCHAIN = {"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "HumanMessage"]}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"input": json.dumps([USER]), "output": json.dumps(SAID)},
        {"input": json.dumps(json.dumps({"messages": [USER]})), "output": json.dumps({"choices": [{"message": SAID}]})},
        {"input": "Name a river.", "output": "The Elbe."},
        {"input": PARTS_IN, "output": PARTS_OUT},
        {
            "input": [[{**LANGCHAIN, "kwargs": {"content": "Name a river."}}]],
            "output": {"type": "ai", "content": "The Elbe.", "role": "assistant"},
        },
        {
            "input": [{"type": "human", "content": "Name a river."}],
            "output": {"generations": [[{"text": "The Elbe."}]]},
        },
        {
            "input": {"contents": [{"role": "user", "parts": [{"text": "Name a river."}]}]},
            "output": {"candidates": [{"content": {"role": "model", "parts": [{"text": "The Elbe."}]}}]},
        },
        {"output": {"content": [{"type": "text", "text": "The Elbe."}], "stop_reason": "end_turn"}},
        {"output": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "The Elbe."}]}]}},
        {"output": {"index": 0, "message": SAID, "event.name": "gen_ai.choice"}},
        {"modelParameters": '{"temperature": 0.7, "max_tokens": "50"}'},
    ],
)
def test_generations_of_langfuse(change: dict[str, Any], tmp_path: Path) -> None:
    (prompt,) = read(tmp_path, observed(**change))
    assert said(prompt) == [("user", "Name a river.")]
    assert prompt.answer is not None
    assert prompt.answer.content == "The Elbe."
    assert (prompt.id, prompt.model, dict(prompt.settings)) == ("o1", "m-1", {"temperature": 0.7, "max_tokens": 50})


def test_snake_case_and_what_the_response_gives_back(tmp_path: Path) -> None:
    row = {
        "id": "o",
        "trace_id": "t",
        "type": "GENERATION",
        "start_time": 1,
        "provided_model_name": "m-1",
        "model_parameters": {},
        "input": json.dumps([USER]),
        "output": json.dumps(
            {
                "instructions": "Be brief.",
                "temperature": 0.2,
                "tools": [{"type": "function", "name": "f", "parameters": {}}],
                "output": [{"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}],
            }
        ),
    }
    (prompt,) = read(tmp_path, row)
    assert said(prompt) == [("system", "Be brief."), ("user", "Name a river.")]
    assert prompt.answer is not None
    assert prompt.answer.tool_calls
    assert (prompt.settings, len(prompt.tools), prompt.model) == ({"temperature": 0.2}, 1, "m-1")


@pytest.mark.parametrize("shape", ["trace and observations", "observations in the trace", "page", "lines"])
def test_an_export_of_langfuse(shape: str, tmp_path: Path) -> None:
    tool = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "depth", "arguments": "{}"}}]}
    later = [USER, tool, {"role": "depth", "content": "4 m"}]
    rows = [
        observed(id="a", type="SPAN"),
        observed(id="b", parentObservationId="a", output=tool),
        observed(id="c", parentObservationId="a", input=json.dumps(later)),
        observed(id="d", input={"args": ["Name a river."]}),
        observed(id="e", input=[{"role": "tool", "content": "4 m"}]),
        observed(id="f", level="ERROR", output=None),
        observed(id="g", metadata='{"cache_hit": true}'),
    ]
    path = tmp_path / "log.json"
    made: Any = {
        "trace and observations": {"trace": {"id": "t"}, "observations": rows},
        "observations in the trace": {"trace": {"id": "t", "observations": rows}},
        "page": {"data": rows, "meta": {"page": 1}},
    }.get(shape)
    text = json.dumps(made) if made else "\n".join(map(json.dumps, rows))
    path.write_text(text)
    file = summary(str(path))
    assert (file.rows, file.first_turns, file.answers, file.format) == (7, 4, 2, "langfuse")
    assert dict(file.skipped) == {
        "not_generation": 1,
        "unknown_input": 1,
        "no_user_turn": 1,
        "error_answer": 1,
        "cached_answer": 1,
    }
    assert said(read_workload([str(path)]).prompts[1])[-1] == ("tool", "4 m")


@pytest.mark.parametrize("shape", ["lines", "page", "array"])
@pytest.mark.parametrize("forced", [False, True])
def test_observations_of_few_fields(forced: bool, shape: str, tmp_path: Path) -> None:
    """As a user cuts them down to, or asks the API for."""
    row = {"type": "GENERATION", "input": [USER], "output": SAID}
    more = {key: observed()[key] for key in ("model", "modelParameters")}
    rows = [row, {**row, **more}, *([{**more, "input": [USER], "output": SAID}] if forced else [])]
    text = {
        "lines": "\n".join(map(json.dumps, rows)),
        "page": json.dumps({"data": rows, "meta": {"page": 1, "limit": 50, "totalItems": len(rows), "totalPages": 1}}),
        "array": json.dumps(rows),
    }[shape]
    path = tmp_path / "log.json"
    path.write_text(text)
    found = read_workload([str(path)], format="langfuse" if forced else None)
    assert (found.format, found.rows, found.skipped) == ("langfuse", len(rows), {})
    assert all(said(prompt) == [("user", "Name a river.")] and prompt.answer for prompt in found.prompts)
    assert [prompt.model for prompt in found.prompts[1:]] == ["m-1"] * (len(rows) - 1)


def test_rows_of_other_logs_that_have_a_type_stay_theirs(tmp_path: Path) -> None:
    rows = [{"type": "AGENT", "messages": [USER, SAID]}, {"type": "GENERATION", "messages": [USER, SAID]}]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert read_workload([str(path)]).format == "messages"


# Gateways


def payload(**more: Any) -> dict[str, Any]:
    return {
        "id": "c1",
        "call_type": "acompletion",
        "startTime": 1,
        "model": "m-1",
        "status": "success",
        "cache_hit": None,
        "messages": [USER],
        "response": {"model": "m-1", "choices": [{"finish_reason": "stop", "message": SAID}]},
        "model_parameters": {"temperature": 0.7, "max_tokens": 50, "tools": [{"name": "f", "parameters": {}}]},
        **more,
    }


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"messages": json.dumps([USER]), "response": json.dumps({"choices": [{"message": SAID}]})},
        {"messages": {"messages": [USER]}, "response": "The Elbe."},
        {"messages": {}, "proxy_server_request": json.dumps({"messages": [USER]}), "cache_hit": "False"},
        {"messages": "Name a river."},
    ],
)
def test_payloads_of_litellm(change: dict[str, Any], tmp_path: Path) -> None:
    (prompt,) = read(tmp_path, payload(**change))
    assert said(prompt) == [("user", "Name a river.")]
    assert prompt.answer is not None
    assert (prompt.id, prompt.answer.content, prompt.model) == ("c1", "The Elbe.", "m-1")
    assert (dict(prompt.settings), len(prompt.tools)) == ({"temperature": 0.7, "max_tokens": 50}, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "failure", "response": {}}, "error_answer"),
        ({"response": None, "error_str": "timeout"}, "error_answer"),
        ({"response": {"choices": [{"finish_reason": "content_filter", "message": SAID}]}}, "error_answer"),
        ({"cache_hit": True}, "cached_answer"),
        ({"cache_hit": "True"}, "cached_answer"),
        ({"response": "redacted-by-litellm"}, "redacted"),
        ({"response": {"choices": [{"message": {"content": "redacted-by-litellm"}}]}}, "redacted"),
    ],
)
def test_answers_of_litellm_that_are_none(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    file = summary(write(tmp_path / "log.jsonl", payload(**change)))
    assert (file.first_turns, file.answers, dict(file.skipped)) == (1, 0, {reason: 1})


def test_rows_of_litellm_that_hold_no_prompt(tmp_path: Path) -> None:
    redacted = [{"role": "user", "content": "redacted-by-litellm"}]
    rows = [payload(call_type="aembedding"), payload(messages=redacted), payload(messages=None), payload(messages=5)]
    file = summary(write(tmp_path / "log.jsonl", *rows))
    assert file.prompts == 0
    assert dict(file.skipped) == {
        "not_generation": 1,
        "redacted": 1,
        "no_prompt": 1,
        "unknown_input": 1,
    }


def test_helicone(tmp_path: Path) -> None:
    row = {
        "request_body": {"model": "m", "messages": [USER], "temperature": 0.5},
        "response_body": {"model": "m-1", "choices": [{"message": SAID}]},
        "status": 200,
    }
    (prompt,) = read(tmp_path, row)
    assert (said(prompt), prompt.model, dict(prompt.settings)) == (
        [("user", USER["content"])],
        "m-1",
        {"temperature": 0.5},
    )
    file = summary(write(tmp_path / "bad.jsonl", {**row, "status": 500}, {**row, "helicone-cache": "HIT"}))
    assert dict(file.skipped) == {"error_answer": 1, "cached_answer": 1}


# Batches


def asked(name: str, text: str = "Name a river.", **more: Any) -> dict[str, Any]:
    body = {"model": "m", "temperature": 0.5, "messages": [{"role": "user", "content": text}], **more}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def done(name: str, text: str = "The Elbe.", status: int = 200, **more: Any) -> dict[str, Any]:
    good = {"model": "m-1", "choices": [{"message": {"role": "assistant", "content": text}}], **more}
    body = good if status == 200 else {"error": {"message": "no"}}
    return {"id": f"x{name}", "custom_id": name, "response": {"status_code": status, "body": body}, "error": None}


def test_batch_outputs_are_joined_by_id(tmp_path: Path) -> None:
    inputs = write(tmp_path / "z_in.jsonl", asked("1"), asked("2", "Name a hill."), asked("3"), asked("4"))
    outputs = write(
        tmp_path / "a_out.jsonl",
        done("3"),
        done("2", "The Brocken."),
        done("9"),
        done("2", "again"),
        done("1", status=429),
    )
    for sources in ([inputs, outputs], [outputs, inputs], [str(tmp_path)], [str(tmp_path / "*.jsonl")]):
        files = {Path(file.path).name: file for file in inspect_workload(sources).files}
        given_in, given_out = files["z_in.jsonl"], files["a_out.jsonl"]
        assert (given_in.rows, given_in.first_turns, given_in.answers) == (4, 4, 2)
        assert dict(given_in.skipped) == {"error_answer": 1, "missing_output": 1}
        assert (given_out.rows, given_out.joined, given_out.prompts, given_out.error) == (5, 3, 0, None)
        assert dict(given_out.skipped) == {"missing_input": 1, "duplicate_id": 1}
        prompts = {prompt.id: prompt for prompt in read_workload(sources).prompts}
        assert {name: p.answer and p.answer.content for name, p in prompts.items()} == {
            "1": None,
            "2": "The Brocken.",
            "3": "The Elbe.",
            "4": None,
        }
        assert (prompts["3"].model, dict(prompts["3"].settings)) == ("m-1", {"temperature": 0.5})


def test_an_answer_goes_before_a_failure_that_was_tried_again(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", asked("1"))
    write(tmp_path / "out.jsonl", done("1", status=500), done("1"))
    files = inspect_workload([str(tmp_path)]).files
    assert sum(file.answers for file in files) == 1
    assert dict(files[1].skipped) == {"duplicate_id": 1}


def test_batches_that_were_numbered_alike(tmp_path: Path) -> None:
    write(tmp_path / "a_input.jsonl", asked("1"))
    write(tmp_path / "b_input.jsonl", asked("1", "Name a hill."))
    write(tmp_path / "a_output.jsonl", done("1"))
    write(tmp_path / "b_output.jsonl", done("1", "The Brocken."))
    prompts = read_workload([str(tmp_path)]).prompts
    assert [(p.messages[0].content, p.answer and p.answer.content) for p in prompts] == [
        ("Name a river.", "The Elbe."),
        ("Name a hill.", "The Brocken."),
    ]
    (tmp_path / "a_output.jsonl").rename(tmp_path / "x.jsonl")
    (tmp_path / "b_output.jsonl").rename(tmp_path / "y.jsonl")
    inspection = inspect_workload([str(tmp_path)])
    assert sum(file.answers for file in inspection.files) == 0
    assert [dict(file.skipped) for file in inspection.files[2:]] == [{"ambiguous_id": 1}] * 2


def test_equal_requests_with_one_id_share_its_answers(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", asked("1"), asked("1"), asked("1"))
    write(tmp_path / "out.jsonl", done("1"), done("1", "The Oder."))
    prompts = read_workload([str(tmp_path)]).prompts
    assert [p.answer and p.answer.content for p in prompts] == ["The Elbe.", "The Oder.", None]


def test_batches_of_anthropic_and_bedrock(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", *({"custom_id": n, "params": {"max_tokens": 9, "messages": [USER]}} for n in "123"))
    message = {
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": [{"type": "text", "text": "The Elbe."}],
    }
    write(
        tmp_path / "out.jsonl",
        {"custom_id": "2", "result": {"type": "succeeded", "message": {**message, "stop_reason": "end_turn"}}},
        {"custom_id": "1", "result": {"type": "errored", "error": {"type": "invalid_request"}}},
        {"custom_id": "3", "result": {"type": "expired"}},
    )
    first, _ = inspect_workload([str(tmp_path)]).files
    assert (first.answers, dict(first.skipped), dict(first.models)) == (1, {"error_answer": 2}, {"m-1": 1})
    body = {"messages": [USER], "system": "Be brief.", "max_tokens": 9}
    row = {
        "recordId": "r",
        "modelInput": body,
        "modelOutput": {"content": message["content"], "stop_reason": "end_turn"},
    }
    (prompt,) = read_workload([write(tmp_path / "bedrock.jsonl", row)]).prompts
    assert said(prompt) == [("system", "Be brief."), ("user", USER["content"])]
    assert (prompt.id, prompt.answer and prompt.answer.content, prompt.settings["max_tokens"]) == ("r", "The Elbe.", 9)


def test_outputs_alone(tmp_path: Path) -> None:
    alone = inspect_workload([write(tmp_path / "out.jsonl", done("1"))])
    assert "give the batch input file too" in (alone.error or "")
    whole = {**done("1"), "body": asked("1")["body"]}
    assert summary(write(tmp_path / "whole.jsonl", whole)).answers == 1


# Chats


def webui(*nodes: tuple[str, str | None, str, str], current: str | None, **more: Any) -> dict[str, Any]:
    messages = {
        name: {"id": name, "parentId": parent, "role": role, "content": text, "model": "m-1", "timestamp": i}
        for i, (name, parent, role, text) in enumerate(nodes)
    }
    return {"id": "w", "chat": {"title": "x", "history": {"messages": messages, "currentId": current}, **more}}


WEBUI = webui(
    ("a", None, "user", "Name a river."),
    ("b", "a", "assistant", "An answer that was made again."),
    (
        "c",
        "a",
        "assistant",
        '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> Which &gt; 1?\n</details>\nThe Elbe.',
    ),
    current="c",
    params={"temperature": 0.7, "system": "Be brief."},
)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_chat_of_open_webui(wrapped: bool, tmp_path: Path) -> None:
    (prompt,) = read(tmp_path, WEBUI if wrapped else {"id": "w", **WEBUI["chat"]})
    assert said(prompt) == [("system", "Be brief."), ("user", "Name a river.")]
    assert prompt.answer is not None
    assert (prompt.answer.content, prompt.answer.reasoning) == ("The Elbe.", "Which > 1?")
    assert (prompt.id, prompt.model, dict(prompt.settings)) == ("w", "m-1", {"temperature": 0.7})


def test_chats_of_open_webui_that_are_broken(tmp_path: Path) -> None:
    circle = webui(("a", "b", "user", "q"), ("b", "a", "assistant", "r"), current="b")
    lost = webui(("a", None, "user", "q"), ("b", "a", "assistant", "r"), current="gone")
    orphan = webui(("b", "gone", "assistant", "r"), current="b")
    picture = webui(("a", None, "user", "q"), ("b", "a", "assistant", "r"), current="b")
    picture["chat"]["history"]["messages"]["a"]["files"] = [{"type": "image", "url": "x"}]
    failed = webui(("a", None, "user", "q"), ("b", "a", "assistant", ""), current="b")
    failed["chat"]["history"]["messages"]["b"]["error"] = {"content": "no"}
    file = summary(write(tmp_path / "log.jsonl", circle, lost, orphan, picture, failed))
    assert (file.first_turns, file.answers) == (2, 1)
    assert dict(file.skipped) == {"bad_tree": 1, "no_user_turn": 1, "multimodal": 1, "error_answer": 1}


def node(name: str, parent: str | None, role: str, *parts: Any, kind: str = "text", **metadata: Any) -> dict[str, Any]:
    content = (
        {"content_type": kind, "parts": list(parts)} if kind != "code" else {"content_type": kind, "text": parts[0]}
    )
    message = {"author": {"role": role}, "content": content, "metadata": metadata, "create_time": 1.0}
    return {"id": name, "parent": parent, "children": [], "message": message}


def chatgpt(*nodes: dict[str, Any], current: Any) -> dict[str, Any]:
    mapping = {"root": {"id": "root", "message": None, "parent": None}, **{one["id"]: one for one in nodes}}
    return {"title": "x", "mapping": mapping, "current_node": current, "conversation_id": "k", "id": "k"}


CHATGPT = [
    node("s", "root", "system", "", is_visually_hidden_from_conversation=True),
    node("u", "s", "user", "about me", kind="user_editable_context"),
    node("a", "u", "user", "Name a river."),
    node("b", "a", "assistant", "Not this one.", model_slug="m-0"),
    node("c", "a", "assistant", "import rivers", kind="code"),
    node("d", "c", "tool", "Elbe"),
    node("e", "d", "assistant", "The Elbe.", model_slug="m-1"),
    node("f", "e", "user", "And a hill?"),
    node("g", "f", "assistant", "The Brocken.", model_slug="m-2"),
]


def test_a_chat_of_chatgpt(tmp_path: Path) -> None:
    first, second = read(tmp_path, chatgpt(*CHATGPT, current="g"))
    assert said(first) == [("user", "Name a river."), ("assistant", "import rivers"), ("tool", "Elbe")]
    assert [prompt.answer and prompt.answer.content for prompt in (first, second)] == ["The Elbe.", "The Brocken."]
    assert [prompt.model for prompt in (first, second)] == ["m-1", "m-2"]
    assert first.id == "k#1"


@pytest.mark.parametrize("current", [None, "gone", 5, ["g"]])
def test_without_a_current_node_the_youngest_branch_is_read(current: Any, tmp_path: Path) -> None:
    assert len(read(tmp_path, chatgpt(*CHATGPT, current=current))) == 2


def test_chats_of_chatgpt_that_are_broken(tmp_path: Path) -> None:
    circle = chatgpt(node("a", "b", "user", "q"), node("b", "a", "assistant", "r"), current="b")
    picture = chatgpt(
        node("a", "root", "user", {"content_type": "image_asset_pointer"}, "q", kind="multimodal_text"), current="a"
    )
    empty = chatgpt(current="root")
    odd = chatgpt({"id": "a", "parent": "root", "message": {"content": "q", "author": 5, "metadata": []}}, current="a")
    file = summary(write(tmp_path / "log.jsonl", circle, picture, empty, odd))
    assert dict(file.skipped) == {"bad_tree": 1, "multimodal": 1, "empty": 1, "unknown_role": 1}


def claude(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"uuid": "c", "name": "x", "chat_messages": list(messages), **more}


def spoken(name: str, sender: str, text: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    made = {"uuid": name, "sender": sender, "text": text, "content": [{"type": "text", "text": text}], **more}
    return {**made, "parent_message_uuid": parent} if parent else made


def test_chats_of_claude(tmp_path: Path) -> None:
    attached = {
        "attachments": [{"file_name": "a.txt", "extracted_content": "Elbe, Oder"}],
        "files": [{"file_name": "a.txt"}],
    }
    plain = claude(spoken("1", "human", "Name a river.", **attached), spoken("2", "assistant", "The Elbe."))
    (prompt,) = read(tmp_path, plain)
    assert said(prompt) == [("user", "Elbe, Oder\n\nName a river.")]
    assert (prompt.id, prompt.answer and prompt.answer.content) == ("c", "The Elbe.")
    tree = claude(
        spoken("1", "human", "Name a river."),
        spoken("2", "assistant", "Not this one.", "1"),
        spoken("3", "assistant", "The Elbe.", "1"),
        current_leaf_message_uuid="3",
        model="m-1",
    )
    (prompt,) = read(tmp_path, tree)
    assert (prompt.answer and prompt.answer.content, prompt.model) == ("The Elbe.", "m-1")
    circle = claude(spoken("1", "human", "q", "2"), spoken("2", "assistant", "r", "1"), current_leaf_message_uuid="2")
    picture = claude(spoken("1", "human", "q", files=[{"file_name": "a.png"}]), spoken("2", "assistant", "r"))
    file = summary(write(tmp_path / "log.jsonl", circle, picture, claude()))
    assert dict(file.skipped) == {"bad_tree": 1, "multimodal": 1, "empty": 1}


# OASST


def message(name: str, parent: str | None, role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"message_id": name, "parent_id": parent, "text": text, "role": role, "lang": "en", **more}


FLAT = [
    message("a", None, "prompter", "Name a river."),
    message("b", "a", "assistant", "The Elbe.", rank=0),
    message("c", "a", "assistant", "The Oder.", rank=1),
    message("d", "b", "prompter", "And a hill?"),
    message("e", "d", "assistant", "The Brocken."),
    message("f", "d", "assistant", "No.", deleted=True),
    message("g", None, "prompter", "Name a lake."),
]


def tree(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (root,) = [row for row in rows if row["message_id"] == name]
    below = [row["message_id"] for row in rows if row["parent_id"] == name]
    return {**root, "replies": [tree(rows, child) for child in below]}


@pytest.mark.parametrize("order", [1, -1])
def test_flat_messages_grow_into_trees(order: int, tmp_path: Path) -> None:
    flat_file = summary(write(tmp_path / "flat.jsonl", *FLAT[::order]))
    assert (flat_file.rows, flat_file.first_turns, flat_file.answers) == (7, 2, 3)
    assert dict(flat_file.skipped) == {"not_a_root": 5}
    assert dict(flat_file.cut) == {"deleted": 1}
    whole = [{"message_tree_id": name, "prompt": tree(FLAT, name)} for name in "ag"]
    trees = summary(write(tmp_path / "trees.jsonl", *whole))
    assert (trees.rows, trees.first_turns, trees.answers) == (2, 2, 3)
    if order == 1:
        prompts = read_workload([str(tmp_path / "trees.jsonl")]).prompts
        assert prompts == tuple(
            type(p)(**{**{k: getattr(p, k) for k in p.__slots__}, "source": prompts[0].source, "line": q.line})
            for p, q in zip(read_workload([str(tmp_path / "flat.jsonl")]).prompts, prompts, strict=True)
        )


def test_each_answer_of_a_tree_follows_its_own_branch(tmp_path: Path) -> None:
    prompts = read(tmp_path, {"message_tree_id": "a", "prompt": tree(FLAT, "a")})
    assert [(said(p), p.answer and p.answer.content) for p in prompts] == [
        ([("user", "Name a river.")], "The Elbe."),
        ([("user", "Name a river."), ("assistant", "The Elbe."), ("user", "And a hill?")], "The Brocken."),
        ([("user", "Name a river.")], "The Oder."),
    ]


def test_messages_whose_parents_are_odd() -> None:
    rows = [
        message("a", "b", "prompter", "q"),
        message("b", "a", "assistant", "r"),
        message("c", "c", "prompter", "q"),
        message("d", "gone", "prompter", "q"),
        message("d", None, "prompter", "q"),
        message("e", "d", "assistant", "r"),
    ]
    outcome = grown(rows)
    assert [one.reason if isinstance(one, Skip) else "root" for one in outcome] == [
        *("bad_tree", "bad_tree", "bad_tree"),
        *("root", "root", "not_a_root"),
    ]


def test_a_long_chain_of_messages(tmp_path: Path) -> None:
    roles = ("prompter", "assistant")
    rows = [message(str(i), str(i - 1) if i else None, roles[i % 2], "text") for i in range(5000)]
    assert summary(write(tmp_path / "log.jsonl", *rows)).answers == 2500


# Models


def test_only_one_models_answers_are_replayed() -> None:
    def prompt(model: str | None) -> Prompt:
        return Prompt(id=1, source="x", line=1, column="c", answer_token_ids=(1,), token_ids=(1,), model=model)

    log = [prompt("org/M-1"), prompt("m-1"), prompt("m-2"), prompt(None)]
    kept, notices = _of_one_model(log, None)
    assert [p.model for p in kept] == ["org/M-1", "m-1", None]
    assert notices[0].code == "other_model"
    assert "m-2 1" in notices[0].message
    kept, _ = _of_one_model(log, "/models/M-2/")
    assert [p.model for p in kept] == ["m-2", None]
    assert _of_one_model(log[:2], "other") == (log[:2], [])


def test_models_are_counted_and_several_are_told(tmp_path: Path) -> None:
    rows = [
        payload(id=str(i), response={"model": name, "choices": [{"message": SAID}]}) for i, name in enumerate("aab")
    ]
    file = summary(write(tmp_path / "log.jsonl", *rows))
    assert dict(file.models) == {"a": 2, "b": 1}
    assert "several_models" in [notice.code for notice in file.notices]


# Hostile


def test_replies_of_no_known_form() -> None:
    for value in (None, 5, True, [], {}, [[]], {"choices": []}, {"choices": [5]}, {"x": 1}, {"message": {}}, [None]):
        answer = reply(value)
        assert answer is None or not answer.says_something


@pytest.mark.parametrize(
    "text",
    [
        *(
            '{"a": 1}',
            '{"role": "admin"}',
            '{"choices": ["a", "b"]}',
            '{"message": "hello"}',
            '{"output": "x"}',
            "[1, 2]",
        ),
        *('[{"type": "tree", "name": "oak"}]', '{"content": "x"}', '{"text": "x"}', '["a"]', "[INST] is a marker", "{"),
    ],
)
def test_answers_that_are_json_themselves_are_text(text: str) -> None:
    answer = reply(text)
    assert answer is not None
    assert (answer.text, answer.unusable, answer.problem) == (text, None, None)


def test_values_that_a_tracer_cut(tmp_path: Path) -> None:
    cut_input = {**GEN_AI, "gen_ai.input.messages": json.dumps(PARTS_IN)[:-9]}
    cut_output = {**GEN_AI, "gen_ai.output.messages": json.dumps(PARTS_OUT)[:-9]}
    file = summary(write(tmp_path / "log.jsonl", span(cut_input, "a"), span(cut_output, "b"), span(GEN_AI, "c")))
    assert (file.answers, dict(file.skipped)) == (1, {"unknown_input": 1, "unknown_output": 1})


def test_lone_surrogates_in_json_in_texts(tmp_path: Path) -> None:
    sent = '[{"role": "user", "content": "half \\ud83d"}]'
    (prompt,) = read(tmp_path, observed(input=sent))
    assert prompt.messages[0].content == "half \ufffd"


def test_json_in_texts_that_is_nested_too_deep(tmp_path: Path) -> None:
    sent = '[{"role": "user", "content": ' + "[" * 900 + "]" * 900 + "}]"
    file = summary(write(tmp_path / "log.jsonl", observed(input=sent), observed()))
    assert (file.rows, file.answers) == (2, 1)


KEYS = [
    *("attributes", "span_id", "parent_id", "trace_id", "traceId", "events", "status", "code", "name", "key", "value"),
    *("stringValue", "arrayValue", "values", "kvlistValue", "gen_ai.input.messages", "gen_ai.prompt.0.content"),
    *("gen_ai.output.messages", "gen_ai.request.model", "gen_ai.request.temperature", "gen_ai.system_instructions"),
    *("openinference.span.kind", "llm.input_messages", "llm.input_messages.0.message.role", "llm.prompts", "llm.tools"),
    *("llm.choices", "llm.output_messages", "llm.invocation_parameters", "input.value", "output.value", "message.role"),
    *("ai.prompt.messages", "ai.response.text", "ai.response.toolCalls", "ai.prompt.tools", "ai.operationId"),
    *(
        "type",
        "startTime",
        "input",
        "output",
        "modelParameters",
        "toolDefinitions",
        "level",
        "metadata",
        "observations",
    ),
    *("trace", "spans", "resourceSpans", "scopeSpans", "data", "call_type", "model_parameters", "messages", "response"),
    *("cache_hit", "error_information", "request_body", "response_body", "recordId", "modelInput", "modelOutput"),
    *("chat", "history", "currentId", "parentId", "mapping", "current_node", "parent", "message", "author", "content"),
    *("parts", "content_type", "chat_messages", "sender", "attachments", "files", "uuid", "parent_message_uuid"),
    *("current_leaf_message_uuid", "prompt", "replies", "message_id", "text", "role", "deleted", "message_tree_id"),
    *("choices", "generations", "candidates", "delta", "body", "tool_calls", "function", "arguments", "kwargs", "lc"),
    *("finish_reason", "error", "custom_id", "result", "contents", "system", "tools", "data", "traces", "files_v2"),
]
TEXTS = st.sampled_from(
    [
        *("", " ", "q", "user", "assistant", "LLM", "GENERATION", "a", "[]", "{}", "true", "acompletion", "ERROR"),
        *('[{"role": "user", "content": "q"}]', '{"messages": [[]]}', "gen_ai.choice", "gen_ai.user.message"),
        "multimodal_text",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=14,
)


@settings(max_examples=600, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6), st.sampled_from([None, *FORMATS]))
def test_no_row_breaks_a_reader(row: dict[str, Any], name: str | None) -> None:
    for one in gathered([Row(1, row)], is_lines=False):
        if isinstance(one.value, Skip):
            continue
        found = (parse_as(one.value, name) if name else parse(one.value))[1]
        if isinstance(found, Parsed):
            requests(found)


def broken(value: Any, draw: Any) -> Any:
    """The value with one thing in it replaced, dropped or doubled."""
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value)))
        choice = draw(st.integers(0, 3))
        if choice == 0:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: draw(SCALARS) if choice == 1 else broken(value[key], draw)}
    if isinstance(value, list) and value:
        i = draw(st.integers(0, len(value) - 1))
        choice = draw(st.integers(0, 2))
        return [*value, value[i]] if choice == 0 else [*value[:i], broken(value[i], draw), *value[i + 1 :]]
    return draw(SCALARS)


WHOLE = [
    *(row for _, row in SPANS.values()),
    *(document(kind) for kind in ("otlp", "replay", "jaeger")),
    {"trace": {}, "observations": [observed(), observed(type="SPAN")]},
    payload(),
    WEBUI,
    chatgpt(*CHATGPT, current="g"),
    claude(spoken("1", "human", "q"), spoken("2", "assistant", "r", "1"), current_leaf_message_uuid="2"),
    {"message_tree_id": "a", "prompt": tree(FLAT, "a")},
]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_breaks_a_reader(data: Any) -> None:
    row = data.draw(st.sampled_from(WHOLE))
    for _ in range(data.draw(st.integers(1, 3))):
        row = broken(row, data.draw)
    for one in gathered([Row(1, row), *(Row(2, item) for item in FLAT)], is_lines=True):
        if not isinstance(one.value, Skip):
            found = parse(one.value)[1]
            if isinstance(found, Parsed):
                requests(found)
