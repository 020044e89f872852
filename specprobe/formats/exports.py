"""Exports that are known but not read in this version: recognised by their keys and refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]

_SPAN_PREFIXES = {
    "ai.": "Vercel AI SDK span",
    "gen_ai.": "OpenTelemetry gen_ai span",
    "llm.": "OpenInference span",
    "openinference.": "OpenInference span",
    "attributes.llm.": "OpenInference span",
    "attributes.openinference.": "OpenInference span",
}
_PREFIXES = tuple(_SPAN_PREFIXES)
_OBSERVATIONS = frozenset(
    ["GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"]
)


def _dict(value: Any) -> Row:
    return value if isinstance(value, dict) else {}


def _first(value: Any) -> Row:
    return _dict(value[0]) if isinstance(value, list) and value else {}


def _span_kind(row: Row) -> str | None:
    """The convention that a span's attributes follow (flat keys, or one level of nesting)."""
    flat = span_key(row)
    if flat is not None:
        return next(name for prefix, name in _SPAN_PREFIXES.items() if flat.startswith(prefix))
    if isinstance(row.get("llm"), dict) and {"input_messages", "model_name", "output_messages"} & row["llm"].keys():
        return "OpenInference span"
    return "OpenTelemetry gen_ai span" if isinstance(row.get("gen_ai"), dict) else None


def span_key(row: Row) -> str | None:
    """A key that only the attributes of a span have."""
    for key in row:
        if "." in key and key.startswith(_PREFIXES):
            return key
    return None


def _is_langfuse(row: Row) -> bool:
    if isinstance(row.get("observations"), list) and ("trace" in row or "traceId" in _first(row["observations"])):
        return True
    traced = "traceId" in row or "trace_id" in row
    kind = row.get("type")
    return traced and isinstance(kind, str) and kind in _OBSERVATIONS and bool({"startTime", "start_time"} & row.keys())


def _is_oasst(row: Row) -> bool:
    if "message_tree_id" in row or "replies" in _dict(row.get("prompt")):
        return True
    ids = {"message_id", "user_message_id"} & row.keys()
    return bool(ids) and bool({"parent_id", "parent_message_id", "replies"} & row.keys())


def _is_chatgpt(row: Row) -> bool:
    nodes = _dict(row.get("mapping"))
    return any(isinstance(node, dict) and {"parent", "message"} & node.keys() for node in nodes.values())


def _is_openwebui(row: Row) -> bool:
    history = _dict(_dict(row.get("chat")).get("history")) or _dict(row.get("history"))
    return "currentId" in history or isinstance(history.get("messages"), dict)


def _is_litellm(row: Row) -> bool:
    return "call_type" in row and bool({"startTime", "model_parameters", "request_id", "response_cost"} & row.keys())


EXPORTS: dict[str, Callable[[Row], bool]] = {
    "Langfuse export": _is_langfuse,
    "OASST message tree": _is_oasst,
    "ChatGPT export": _is_chatgpt,
    "Claude export": lambda row: isinstance(row.get("chat_messages"), list),
    "Open WebUI export": _is_openwebui,
    "LiteLLM logging payload": _is_litellm,
    "Helicone export": lambda row: "request_body" in row and "response_body" in row,
    "OTLP trace file": lambda row: "resourceSpans" in row or "resource_spans" in row,
}

SUSPECT_KEYS = frozenset(
    [
        "observations",
        "traceId",
        "trace_id",
        "message_tree_id",
        "message_id",
        "user_message_id",
        "mapping",
        "chat_messages",
        "chat",
        "history",
        "call_type",
        "request_body",
        "resourceSpans",
        "resource_spans",
        "spans",
        "attributes",
        "llm",
        "gen_ai",
    ]
)
"""A row without any of these keys and without a span key is no export, unless OASST's `prompt` object is in it."""


def export_name(row: Row) -> str | None:
    """The name of the export that this row comes from, or None for a row that this version reads."""
    for name, matches in EXPORTS.items():
        if matches(row):
            return name
    kind = _span_kind(row) or _span_kind(_dict(row.get("attributes")))
    if kind:
        return kind
    span = _first(row.get("spans"))
    if "attributes" in span:
        inner = _span_kind(_dict(span["attributes"])) or "span"
        return f"trace file (an inference-perf OTel replay or the like, of {inner}s)"
    return None
