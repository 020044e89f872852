"""Logs and exports: which one a row comes from, and the rows that one document of theirs holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specprobe.containers import Skip
from specprobe.formats import chat_exports, gateways, langfuse, oasst, spans
from specprobe.formats.conversation import Parsed
from specprobe.formats.turns import as_list, parse_json

Row = Mapping[str, Any]
Reader = Callable[[Row], Parsed | Skip | None]

LOGS: dict[str, tuple[Callable[[Row], bool], Reader]] = {
    "langfuse": (langfuse.is_observation, langfuse.observation),
    "oasst": (lambda row: oasst.is_tree(row) or oasst.is_flat(row), oasst.oasst),
    "chatgpt": (chat_exports.is_chatgpt, chat_exports.chatgpt),
    "claude": (chat_exports.is_claude, chat_exports.claude),
    "openwebui": (chat_exports.is_openwebui, chat_exports.openwebui),
    "litellm": (gateways.is_litellm, gateways.litellm),
    "helicone": (gateways.is_helicone, gateways.helicone),
    "bedrock": (gateways.is_bedrock, gateways.bedrock),
}
"""Name -> whether a row is of it, and its reader. Spans have three names and are recognised apart."""

SPAN_FORMATS = ("openinference", "otel", "vercel")
RELATED_FORMATS = frozenset([*SPAN_FORMATS, "langfuse"])
"""Formats whose rows name one another as parent and child."""

SUSPECT_KEYS = frozenset(
    [
        *("traceId", "trace_id", "traceID", "spanId", "span_id", "attributes", "tags", "llm", "gen_ai"),
        *("message_tree_id", "message_id", "user_message_id", "mapping", "chat_messages", "chat", "history"),
        *("call_type", "request_body", "recordId", "resourceSpans", "resource_spans", "spans", "observations", "trace"),
    ]
)
"""A row without any of these keys and without a span key is no log, unless it is an observation of few fields, or
OASST's `prompt` object is in it."""


DOCUMENT_KEYS = frozenset(
    [
        *("resourceSpans", "resource_spans", "spans", "observations", "trace", "data", "traces"),
        *("message_tree_id", "message_id", "user_message_id"),
    ]
)
"""A row without any of these keys holds no other rows, and belongs to no tree of messages."""


def read_log(row: Row) -> tuple[str, Parsed | Skip] | None:
    """The name of the log that a row comes from and what it holds; None for a row of no log."""
    for name, (matches, reader) in LOGS.items():
        if matches(row):
            found = reader(row)
            if found is not None:
                return name, found
    return spans.read_span(row) if spans.is_span(row) else None


def rows_in(row: Row) -> list[Any] | None:
    """The spans or observations of a document that holds several; None where the row is a row itself."""
    for key in ("resourceSpans", "resource_spans"):
        if isinstance(row.get(key), list):
            return list(_otlp_spans(row[key]))
    trace = row.get("trace")
    for holder in (row, trace if isinstance(trace, dict) else {}):
        held = holder.get("observations")
        held = parse_json(held) if isinstance(held, str) else held
        if isinstance(held, list) and (held or trace is not None) and all(_is_or_refers(item) for item in held):
            return held
    for key in ("spans", "data", "traces"):
        items = as_list(row.get(key))
        if not items or not all(isinstance(item, dict) for item in items):
            continue
        if key == "spans" and all(spans.is_span(item) or not spans.IDENTITY_KEYS.isdisjoint(item) for item in items):
            return items
        inner = [rows_in(item) for item in items] if key != "spans" else []
        if any(found is not None for found in inner):
            return [one for found, item in zip(inner, items, strict=True) for one in (found or [item])]
        if key == "data" and (
            _is_page(row, items) or all(langfuse.is_observation(item) or spans.is_span(item) for item in items)
        ):
            return items
    return None


def _is_page(row: Row, items: list[Any]) -> bool:
    """Whether it is a page of an API, which says in `meta` which one; entries may then lack any of their fields."""
    return row.keys() == {"data", "meta"} and isinstance(row["meta"], dict) and not any("role" in i for i in items)


def _is_or_refers(item: Any) -> bool:
    return isinstance(item, dict) and ("type" in item or "traceId" in item or "trace_id" in item)


def _otlp_spans(resources: list[Any]) -> Iterator[Any]:
    """The spans of OTLP's resources and scopes (instrumentation libraries, in older files)."""
    scopes = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "instrumentation_library_spans")
    for resource in resources:
        if not isinstance(resource, dict):
            yield resource
            continue
        for key in scopes:
            for scope in as_list(resource.get(key)):
                yield from as_list(scope.get("spans")) if isinstance(scope, dict) else ()
