"""What gateways log of one request: LiteLLM's payload and spend log, Helicone's export, batch lines of Bedrock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specprobe.containers import Skip
from specprobe.formats.chat import has_media
from specprobe.formats.conversation import Completion, Conversation, Parsed
from specprobe.formats.logged import as_request, is_cached, judged
from specprobe.formats.messages import sent_turns, with_system
from specprobe.formats.replies import failed, reply
from specprobe.formats.turns import Turn, parse_json

Row = Mapping[str, Any]

_OTHER_CALLS = ("embed", "rerank", "moderation", "image", "transcription", "speech", "search", "vector_store", "ocr")
"""Parts of the names of calls and addresses that ask for no text."""


def is_litellm(row: Row) -> bool:
    """Whether a row is a StandardLoggingPayload or a row of the proxy's spend log."""
    return "call_type" in row and not _LITELLM_KEYS.isdisjoint(row)


_LITELLM_KEYS = frozenset(["startTime", "model_parameters", "request_id", "response_cost", "cache_hit", "model_group"])


def litellm(row: Row) -> Parsed | Skip | None:
    """One call: `messages`, `response`, `model_parameters`, `status`, `cache_hit`."""
    kind = row.get("call_type")
    if isinstance(kind, str) and any(name in kind for name in _OTHER_CALLS):
        return Skip("not_generation")
    body = _mapping(row.get("proxy_server_request"))
    body = _mapping(body.get("body")) or body
    answer = reply(row.get("response")) if row.get("response") not in (None, "", {}, []) else None
    error = row.get("error_str") or _mapping(row.get("error_information")).get("error_message")
    if row.get("status") in ("failure", "failed", "error") or (error and not answer):
        answer = failed()
    request = as_request(body, row.get("model_parameters"), row.get("optional_params"))
    column, sent = "messages", row.get("messages")
    if sent in (None, "", [], {}, "[]", "{}"):
        column, sent = "proxy_server_request", body
    is_raw = isinstance(kind, str) and "text_completion" in kind and isinstance(sent, str)
    return _one_call(row, column, sent, answer, request, model=row.get("model"), is_raw=is_raw)


def is_helicone(row: Row) -> bool:
    """Whether a row holds the two bodies of a call."""
    return "request_body" in row and "response_body" in row


def helicone(row: Row) -> Parsed | Skip | None:
    """One call: `request_body`, `response_body`, `status`."""
    body = _mapping(row.get("request_body"))
    status = next((row[key] for key in ("response_status", "status_code", "status") if row.get(key) is not None), None)
    value = row.get("response_body")
    answer = reply(value) if value not in (None, "", {}, []) else None
    if _is_failure(status):
        answer = failed()
    model = row.get("response_model") or row.get("model") or body.get("model")
    request = as_request(body)
    path = row.get("request_path") or row.get("target_url") or row.get("url")
    if isinstance(path, str) and any(name in path for name in _OTHER_CALLS):
        return Skip("not_generation")
    is_raw = isinstance(body.get("prompt"), str) and "messages" not in body
    sent = body["prompt"] if is_raw else body
    return _one_call(row, "request_body", sent, answer, request, model=model, is_raw=is_raw)


def _is_failure(status: Any) -> bool:
    if isinstance(status, str):
        return status.lower() in ("error", "failure", "failed") or (status.isdecimal() and int(status[:4]) >= 400)
    return isinstance(status, int) and not isinstance(status, bool) and (status >= 400 or status < 0)


def is_bedrock(row: Row) -> bool:
    """Whether a row is a line of a Bedrock batch."""
    return "recordId" in row and ("modelInput" in row or "modelOutput" in row)


def bedrock(row: Row) -> Parsed | Skip | None:
    """`{"recordId", "modelInput", "modelOutput" | "error"}`: an output repeats its input."""
    body = _mapping(row.get("modelInput"))
    if not body:
        return Skip("no_prompt")
    answer = reply(row.get("modelOutput")) if row.get("modelOutput") else None
    if row.get("error"):
        answer = failed()
    is_raw = isinstance(body.get("prompt"), str) and "messages" not in body
    sent = body.get("inputText") or (body["prompt"] if is_raw else body)
    request = as_request(body, body.get("inferenceConfig"))
    return _one_call(row, "modelInput", sent, answer, request, model=row.get("modelId"), is_raw=is_raw)


def _one_call(
    row: Row, column: str, sent: Any, answer: Turn | None, request: dict[str, Any], *, model: Any, is_raw: bool
) -> Parsed | Skip:
    """A request with its one answer, which the turns that it sent are the context of."""
    if sent in (None, "", [], {}):
        return Skip("no_prompt")
    if isinstance(sent, dict) and has_media(sent):
        return Skip("multimodal")
    name = model if isinstance(model, str) and model else None
    judged(answer, name, is_cached=is_cached(row))
    identity = next((row[key] for key in ("request_id", "recordId") if isinstance(row.get(key), str)), None)
    own = None if isinstance(row.get("id"), str) else identity
    if is_raw:
        return Parsed([Completion(column, sent, answer)], request, own)
    found = sent_turns(sent)
    if found is None:
        return Skip("unknown_input")
    if isinstance(sent, dict):
        found = with_system(found, sent.get("system"))
    item = Conversation(column, [*found, answer], "last") if answer else Conversation(column, found, "none")
    return Parsed([item], request, own)


def _mapping(value: Any) -> Row:
    parsed = parse_json(value) if isinstance(value, str) else value
    return parsed if isinstance(parsed, dict) else {}
