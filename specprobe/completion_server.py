"""A server that speaks the OpenAI completions protocol: which model and engine it is, and one streamed answer.

Engines put the ids and log-probabilities of tokens into their chunks where the request asks for them (vLLM:
return_token_ids, logprobs); they are kept beside the time of each chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from specprobe.errors import SpecprobeError
from specprobe.server import Server, TransientError, get_json, stream_events

# A token has one chunk; some servers send an empty one more here and there.
MOST_CHUNKS_A_TOKEN = 4
# Letters of a token's text, at most: the longest of vocabularies are runs of blanks.
MOST_LETTERS_A_TOKEN = 1024
# Of a chat's chunk: what the model wrote besides the answer's text.
APART_FROM_TEXT = ("reasoning_content", "reasoning", "tool_calls", "refusal")
LARGEST_ID = 2**31 - 1
Engine = Literal["vllm", "sglang", "llama.cpp", "unknown"]
# What engines write into the list of models.
OWNERS: dict[str, Engine] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says of itself; `version` is empty where it does not.

    `max_model_len`: the longest prompt with response in tokens; None where it does not say.
    """

    name: str
    version: str
    engine: Engine = "unknown"
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer: when each chunk came, on `time.perf_counter`, and the tokens that the server counted.

    `token_ids`, `log_probs` (in nats, as the server computes them): of the output, None where not every chunk has
    them. `finish_reason`: as the server says; None where it was stopped from here. `is_all_text`: False where the
    model also wrote what is not in `text`: reasoning that the server keeps apart, tool calls.
    """

    chunk_times: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    log_probs: tuple[float, ...] | None = None
    finish_reason: str | None = None
    is_all_text: bool = True


def find_model(server: Server, name: str | None) -> ServedModel:
    """The served model of this name, or the only one, with engine and version where the server tells them."""
    models = get_json(server, f"{server.path}/models")
    listed = models.get("data") if isinstance(models, dict) else None
    if not isinstance(listed, list):
        raise SpecprobeError(
            f"{server.name}/models: no list of models; the address must end where /completions follows"
        )
    entries = {str(one["id"]): one for one in listed if isinstance(one, dict) and "id" in one}
    shown = ", ".join(server.quote(one, 40) for one in list(entries)[:5]) or "none"
    if name is None and len(entries) != 1:
        raise SpecprobeError(f"{server.name}: serves {shown}; name one with --server-model")
    if name is not None and name not in entries:
        raise SpecprobeError(f"--server-model {server.quote(name, 40)}: the server has {shown}")
    chosen = name or next(iter(entries))
    engine, version, limit = _engine(server, str(entries[chosen].get("owned_by", "")))
    said = _whole(entries[chosen].get("max_model_len"))
    return ServedModel(chosen, version, engine, said or limit)


def stream_completion(
    server: Server, body: dict[str, Any], is_stopped: Callable[[], bool], path: str = "completions"
) -> Answer:
    """Ask for one streamed completion and read it to its end; `is_stopped` is asked at each chunk.

    `path`: of the protocol, "completions" or "chat/completions". Raises RefusedFieldError where the server does not
    take a field, TransientError for what may pass, SpecprobeError for any other failure.
    """
    times: list[float] = []
    usage: dict[str, Any] = {}
    written = _Written()
    most_tokens = body["max_tokens"]
    for now, event in stream_events(server, f"{server.path}/{path}", body):
        if is_stopped():
            break
        if event.get("usage"):
            usage = event["usage"] if isinstance(event["usage"], dict) else {}
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise TransientError(f"{server.name}: a chunk without choices; it does not speak the completions protocol")
        for choice in choices:
            # The last chunk may carry nothing but why it ended.
            if isinstance(choice, dict) and written.add(server, choice):
                times.append(now)
        if len(times) > MOST_CHUNKS_A_TOKEN * most_tokens or written.length > MOST_LETTERS_A_TOKEN * most_tokens:
            raise SpecprobeError(f"{server.name}: does not stop at max_tokens; look into the server's log")
    return Answer(
        tuple(times),
        _whole(usage.get("prompt_tokens")),
        _whole(usage.get("completion_tokens")),
        "".join(written.text),
        tuple(written.token_ids) if written.has_ids and written.token_ids else None,
        tuple(written.log_probs) if 0 < len(written.log_probs) == len(written.token_ids) else None,
        written.finish_reason,
        written.is_all_text,
    )


class _Written:
    """What the chunks of one answer hold, put together."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.length = 0
        self.token_ids: list[int] = []
        self.log_probs: list[float] = []
        self.has_ids = True
        self.finish_reason: str | None = None
        self.is_all_text = True

    def add(self, server: Server, choice: dict[str, Any]) -> bool:
        """Take one chunk; whether it is of a token, and not only the end."""
        delta = choice.get("delta")
        text = choice.get("text") if not isinstance(delta, dict) else delta.get("content")
        ids, reason = choice.get("token_ids"), choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason = reason
        if isinstance(delta, dict) and any(delta.get(key) for key in APART_FROM_TEXT):
            self.is_all_text = False
        if isinstance(text, str):
            self.text.append(text)
            self.length += len(text)
        if ids is not None:
            self.token_ids += checked_ids(server, ids)
            self.log_probs += _log_probs(choice.get("logprobs"))
        elif text:
            self.has_ids = False
        return bool(text or ids or not reason)


def checked_ids(server: Server, ids: Any) -> list[int]:
    """Token ids out of an answer; raises TransientError for what is none."""
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i <= LARGEST_ID for i in ids):
        raise TransientError(f"{server.name}: token ids that are none; look into the server's log")
    return ids


def _log_probs(told: Any) -> list[float]:
    """Of a chunk's tokens: completions have them as a list, chat has one object a token."""
    if not isinstance(told, dict):
        return []
    content = told.get("content")
    found = told.get("token_logprobs")
    if isinstance(content, list):
        found = [one.get("logprob") if isinstance(one, dict) else None for one in content]
    return [float(p) for p in found if is_log_prob(p)] if isinstance(found, list) else []


def is_log_prob(value: Any) -> bool:
    """Whether this is a number that a log-probability can be, up to rounding."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value < 1e-3


def _whole(value: Any) -> int:
    """A count that a server told; 0 where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _engine(server: Server, owner: str) -> tuple[Engine, str, int | None]:
    """Engine, version and context limit, from what engines tell beside the protocol's path.

    vLLM has /version, SGLang /server_info (once /get_server_info), llama.cpp /props.
    """
    told = OWNERS.get(owner)
    version = _told_by(server, "version").get("version")
    if isinstance(version, str) and told in (None, "vllm"):
        return "vllm", server.quote(version, 40), None
    for path in ("server_info", "get_server_info") if told in (None, "sglang") else ():
        info = _told_by(server, path)
        if isinstance(info.get("version"), str):
            return "sglang", server.quote(info["version"], 40), _whole(info.get("context_length")) or None
    props = _told_by(server, "props") if told in (None, "llama.cpp") else {}
    settings = props.get("default_generation_settings")
    if isinstance(settings, dict):
        build = server.quote(str(props.get("build_info", "")), 40)
        return "llama.cpp", build, _whole(settings.get("n_ctx")) or None
    return told or "unknown", "", None


def _told_by(server: Server, path: str) -> dict[str, Any]:
    """What a server tells at a path that it need not have; nothing where it does not."""
    try:
        answer = get_json(server, f"{server.root}/{path}")
    except SpecprobeError:
        return {}
    return answer if isinstance(answer, dict) else {}
