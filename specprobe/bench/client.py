"""One side of a bench: how prompts are asked of a server, and what is kept of each answer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specprobe.bench.counters import SpecCounters, counters_of_request
from specprobe.chat_body import conversation
from specprobe.completion_server import MOST_CHUNKS_A_TOKEN
from specprobe.engine_probe import random_words
from specprobe.errors import SpecprobeError
from specprobe.prompt import Message, Prompt
from specprobe.server import Server, stream_events
from specprobe.side_by_side import side_by_side

# Of a warm-up answer: enough rounds to draft in, and to bring up every kernel of a batch.
WARM_UP_WORDS, WARM_UP_TOKENS = 32, 16
DIGEST_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Written:
    """What a server wrote for one prompt; ids where it tells them. No document holds it.

    `num_tokens`: by the server's own count, the end token with or without; 0 where it tells none.
    """

    text: str
    prompt_ids: tuple[int, ...] | None
    output_ids: tuple[int, ...] | None
    finish_reason: Literal["stop", "length"] | None
    num_tokens: int = 0

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Written:
        """What `to_json` gave."""
        prompt_ids, output_ids = (
            None if ids is None else tuple(ids) for ids in (told["prompt_ids"], told["output_ids"])
        )
        return cls(told["text"], prompt_ids, output_ids, told["finish_reason"], told["num_tokens"])

    def to_json(self) -> dict[str, Any]:
        """For private files only."""
        return {
            "text": self.text,
            "prompt_ids": self.prompt_ids,
            "output_ids": self.output_ids,
            "finish_reason": self.finish_reason,
            "num_tokens": self.num_tokens,
        }

    @property
    def units(self) -> Sequence[object]:
        """What two answers are compared by: token ids where there are some, else characters."""
        return self.text if self.output_ids is None else self.output_ids

    @property
    def digest(self) -> str:
        """Tells answers apart and says nothing of them."""
        content = self.text if self.output_ids is None else json.dumps(self.output_ids)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_DIGITS]


@dataclass(frozen=True, slots=True)
class Served:
    """One request as its client saw it. `prompt`: its number in the list of prompts.

    `start_seconds`: when it was sent, since the pass began; `chunk_seconds`: when each chunk with tokens came, since
    then; `chunk_tokens`: tokens of each, None where the server tells the sum only. `counters`: its own, where told.
    """

    prompt: int
    start_seconds: float
    chunk_seconds: tuple[float, ...]
    chunk_tokens: tuple[int, ...] | None
    prompt_tokens: int
    output_tokens: int
    finish_reason: str | None
    digest: str
    counters: SpecCounters | None

    @property
    def ttft_seconds(self) -> float:
        """From sending to the first token."""
        return self.chunk_seconds[0] - self.start_seconds

    @property
    def latency_seconds(self) -> float:
        """From sending to the last token."""
        return self.end_seconds - self.start_seconds

    @property
    def end_seconds(self) -> float:
        """When the last token came, since the pass began."""
        return self.chunk_seconds[-1]

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None of an answer of one token."""
        later = self.output_tokens - 1
        return (self.chunk_seconds[-1] - self.chunk_seconds[0]) / later if later > 0 else None

    def tokens_until(self, seconds: float) -> float:
        """Output tokens that had come by then; spread evenly over chunks where the server tells their sum only."""
        chunks = sum(at <= seconds for at in self.chunk_seconds)
        if self.chunk_tokens is not None:
            return float(sum(self.chunk_tokens[:chunks]))
        return self.output_tokens * chunks / len(self.chunk_seconds)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Served:
        """What `to_json` gave."""
        tokens, counters = told["chunk_tokens"], told["counters"]
        return cls(
            prompt=told["prompt"],
            start_seconds=told["start_s"],
            chunk_seconds=tuple(told["chunk_s"]),
            chunk_tokens=None if tokens is None else tuple(tokens),
            prompt_tokens=told["prompt_tokens"],
            output_tokens=told["output_tokens"],
            finish_reason=told["finish_reason"],
            digest=told["digest"],
            counters=None if counters is None else SpecCounters.from_json(counters),
        )

    def to_json(self) -> dict[str, Any]:
        """For documents; microseconds."""
        return {
            "prompt": self.prompt,
            "start_s": round(self.start_seconds, 6),
            "chunk_s": [round(at, 6) for at in self.chunk_seconds],
            "chunk_tokens": None if self.chunk_tokens is None else list(self.chunk_tokens),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "finish_reason": self.finish_reason,
            "digest": self.digest,
            "counters": self.counters.to_json() if self.counters else None,
        }


@dataclass(frozen=True, slots=True)
class Asking:
    """How one server is asked: its model, and what every request of the bench says."""

    server: Server
    model: str
    temperature: float
    max_new_tokens: int

    def body(self, prompt: Prompt, *, salt: str, seed: int | None) -> tuple[str, dict[str, Any]]:
        """The path and the body of a request for a prompt.

        `salt` keeps a prefix cache from finding what another pass computed (vLLM's cache_salt); llama.cpp is told not
        to look (cache_prompt). Servers that know neither pass over them.
        """
        fields = {
            "model": self.model,
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "cache_salt": salt,
            "cache_prompt": False,
            **({} if seed is None else {"seed": seed}),
        }
        if prompt.messages:
            return "/chat/completions", {**fields, **conversation(prompt)}
        content: Any = prompt.text if prompt.token_ids is None else list(prompt.token_ids)
        return "/completions", {**fields, "prompt": content}


def ask(
    asking: Asking,
    prompt: Prompt,
    number: int,
    *,
    salt: str,
    seed: int | None,
    begin: float,
    is_stopped: Callable[[], bool],
) -> tuple[Served, Written]:
    """Ask for one prompt and read its answer; `begin`: when the pass began, on `time.perf_counter`.

    Raises SpecprobeError for every failure of the server.
    """
    path, body = asking.body(prompt, salt=salt, seed=seed)
    start = time.perf_counter()
    reading = _Reading()
    events = stream_events(asking.server, asking.server.path + path, body)
    # Closed at once where it is left early, so that the server need not go on.
    with contextlib.closing(events):
        for at, event in events:
            reading.take(event, at)
            if is_stopped():
                break
            if len(reading.times) > MOST_CHUNKS_A_TOKEN * asking.max_new_tokens:
                raise SpecprobeError(f"{asking.server.name}: does not stop at max_tokens; look into the server's log")
    reading.close()
    if not reading.times and not is_stopped():
        raise SpecprobeError(f"{asking.server.name}: an answer without a token; look into the server's log")
    written = reading.written()
    counts = tuple(reading.counts) if written.output_ids is not None else None
    served = Served(
        prompt=number,
        start_seconds=start - begin,
        chunk_seconds=tuple(at - begin for at in reading.times),
        chunk_tokens=counts,
        prompt_tokens=reading.usage("prompt_tokens"),
        # An end token that is not sent was computed all the same.
        output_tokens=sum(counts)
        if counts is not None
        else reading.usage("completion_tokens") or int(not written.text),
        finish_reason=written.finish_reason,
        digest=written.digest,
        counters=reading.counters,
    )
    if not served.output_tokens and written.text and not is_stopped():
        raise SpecprobeError(
            f"{asking.server.name}: streams neither token ids nor usage, so its tokens cannot be counted; use a server "
            "that takes stream_options.include_usage"
        )
    return served, written


class _Reading:
    """The events of one stream, taken up one by one."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []
        self.counters: SpecCounters | None = None
        self._texts: list[str] = []
        self._prompt_ids: list[int] | None = None
        self._output_ids: list[int] = []
        self._tells_ids = True
        self._finish_reason: str | None = None
        self._end: float | None = None
        self._usage: Mapping[str, Any] = {}

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """An event that came `now`."""
        if isinstance(event.get("usage"), Mapping):
            self._usage = event["usage"]
        self.counters = counters_of_request(event) or self.counters
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
        for holder in (event, choice):
            if _are_ids(holder.get("prompt_token_ids")):
                self._prompt_ids = holder["prompt_token_ids"]
        if isinstance(choice.get("finish_reason"), str):
            self._finish_reason, self._end = choice["finish_reason"], now
        text = _text(choice)
        ids = choice.get("token_ids") if _are_ids(choice.get("token_ids")) else None
        if not text and not ids:
            return
        self.times.append(now)
        self._texts.append(text)
        self._tells_ids &= ids is not None
        self._output_ids += ids or []
        self.counts.append(len(ids or []))

    def close(self) -> None:
        """An answer that is nothing but an end token, which some servers do not send, has its end as its only chunk."""
        if not self.times and self._end is not None:
            self.times, self.counts, self._tells_ids = [self._end], [0], False

    def usage(self, key: str) -> int:
        """Tokens by the server's own count; 0 where it gives none."""
        value = self._usage.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        return len(self._prompt_ids or []) if key == "prompt_tokens" else 0

    def written(self) -> Written:
        """What was read."""
        reason: Literal["stop", "length"] | None = None
        if self._finish_reason in ("stop", "length"):
            reason = "stop" if self._finish_reason == "stop" else "length"
        return Written(
            "".join(self._texts),
            None if self._prompt_ids is None else tuple(self._prompt_ids),
            tuple(self._output_ids) if self._tells_ids and self._output_ids else None,
            reason,
            self.usage("completion_tokens"),
        )


def _text(choice: Mapping[str, Any]) -> str:
    """All that a chunk writes, reasoning included, of either protocol."""
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return choice["text"] if isinstance(choice.get("text"), str) else ""
    parts = [delta.get(key) for key in ("reasoning_content", "reasoning", "content")]
    calls = delta.get("tool_calls")
    return "".join(part for part in parts if isinstance(part, str)) + (json.dumps(calls) if calls else "")


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int and 0 <= one < 2**31 for one in value)


def warm_up(asking: Asking, concurrency: int) -> None:
    """So many untimed requests at once, of random words, so that nothing of the prompts is remembered from them."""
    brief = Asking(asking.server, asking.model, asking.temperature, min(WARM_UP_TOKENS, asking.max_new_tokens))

    def one(_number: int, stopped: threading.Event) -> None:
        message = Message("user", random_words(WARM_UP_WORDS))
        prompt = Prompt("warm-up", "", 0, "", messages=(message,))
        ask(brief, prompt, 0, salt=random_words(2), seed=None, begin=0.0, is_stopped=stopped.is_set)

    for _ in side_by_side(one, range(concurrency), concurrency):
        pass
