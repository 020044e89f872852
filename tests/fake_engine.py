"""A toy engine behind the protocols of vLLM: a real target (a table), real n-gram speculation, real counters.

    python tests/fake_engine.py PORT [--speculate]

Every step takes as long as it is told, whatever the number of requests. It can be told to garble what it writes while
it speculates above temperature 0, as an engine with a fault does.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from background import in_background
from reference import Propose, ngram_propose

from specprobe.profiles import NgramRule

VOCABULARY = 16
RULE = NgramRule(min_n=2, max_n=4, match="earliest")
LOGITS = 4.0 * np.random.default_rng(7).standard_normal((VOCABULARY, VOCABULARY, VOCABULARY))


def log_probs(history: list[int], temperature: float = 1.0) -> np.ndarray:
    """Of the next token: by the last two."""
    logits = LOGITS[history[-2], history[-1]] / temperature
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def token_of(history: list[int], temperature: float, rng: np.random.Generator) -> int:
    if temperature == 0:
        return int(log_probs(history).argmax())
    return int(rng.choice(VOCABULARY, p=np.exp(log_probs(history, temperature))))


def spelled(ids: list[int]) -> str:
    return "".join("abcdefghijklmnop"[token] for token in ids)


@dataclass
class Toy:
    """How the engine acts. `depth` 0: it does not speculate. `flips`: prompts (by the length of their ids) whose greedy
    answer takes the second-best token at its third place, `flips_at` one concurrency, as a pass's salt says. `empty`:
    such that are answered by nothing but an end.
    """

    depth: int = 0
    step_seconds: float = 0.002
    propose: Propose = field(default_factory=lambda: ngram_propose(RULE))
    garbles: bool = False
    counts: bool = True
    tells_requests: bool = True
    tells_ids: bool = True
    scores: bool = True
    flips: frozenset[int] = frozenset()
    fails_after: int | None = None
    refuses_with: int | None = None
    drafts_wrongly: bool = False
    empty: frozenset[int] = frozenset()
    streams_tokens: bool = False
    flips_at: int | None = None
    version: str = "0.32.0"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *_arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        engine = self.server
        if self.path.endswith("/models"):
            self.answer({"data": [{"id": "toy", "max_model_len": 4096}]})
        elif self.path == "/version":
            self.answer({"version": engine.toy.version})
        elif self.path == "/metrics" and engine.toy.counts:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(engine.metrics().encode())
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        engine = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        engine.bodies.append(body)
        timed = sum(one.get("stream", False) for one in engine.bodies)
        if engine.toy.fails_after is not None and timed > engine.toy.fails_after:
            self.send_error(engine.toy.refuses_with or 500)
        elif "prompt_logprobs" in body:
            self.score(body)
        elif body.get("ignore_eos"):
            history = list(body["prompt"])
            for _ in range(body["max_tokens"]):
                history.append(token_of(history, 0.0, np.random.default_rng(0)))
            self.answer({"choices": [{"token_ids": history[len(body["prompt"]) :]}]})
        else:
            self.stream(body)

    def score(self, body: dict[str, Any]) -> None:
        rows: list[Any] = [None, None]
        for place in range(2, len(body["prompt"])):
            known = log_probs(body["prompt"][:place])
            tokens = {int(known.argmax()), body["prompt"][place]}
            rows.append({str(token): {"logprob": float(known[token])} for token in tokens})
        self.answer({"choices": [{"prompt_logprobs": rows if self.server.toy.scores else None}]})

    def stream(self, body: dict[str, Any]) -> None:
        engine, toy = self.server, self.server.toy
        if "messages" in body:
            prompt = [0, 1, *(ord(letter) % VOCABULARY for letter in body["messages"][-1]["content"])]
        else:
            prompt = list(body["prompt"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        told = {"prompt_token_ids": prompt} if toy.tells_ids else {}
        self.chunk({"choices": [{"delta": {"role": "assistant", "content": ""}}], **told})
        if len(prompt) in toy.empty:
            self.chunk({"choices": [{"delta": {"content": ""}, "finish_reason": "stop"}]})
            self.chunk({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": 1}})
            self.wfile.write(b"data: [DONE]\n\n")
            return
        rounds: list[tuple[int, int]] = []
        rng = np.random.default_rng(body.get("seed") or 0)
        output: list[int] = []
        for emitted, drafted, accepted in self.rounds(prompt, body, rng):
            time.sleep(toy.step_seconds)
            kept = emitted[: body["max_tokens"] - len(output)]
            output += kept
            if drafted:
                rounds.append((drafted, accepted))
            end = "length" if len(output) == body["max_tokens"] else None
            for part in [[token] for token in kept] if toy.streams_tokens else [kept]:
                told = {"token_ids": part} if toy.tells_ids else {}
                self.chunk({"choices": [{"delta": {"content": spelled(part)}, "finish_reason": end, **told}]})
        engine.count(prompt, rounds)
        last: dict[str, Any] = {"usage": {"prompt_tokens": len(prompt), "completion_tokens": len(output)}}
        if toy.depth and toy.tells_requests:
            histogram = [sum(a == j for _, a in rounds) for j in range(toy.depth + 1)]
            last["metrics"] = {
                "speculative_decoding": {
                    "num_spec_steps": len(rounds),
                    "num_draft_tokens": sum(d for d, _ in rounds),
                    "num_accepted_draft_tokens": sum(a for _, a in rounds),
                    "acceptance_histogram": histogram,
                }
            }
        self.chunk({"choices": [], **last})
        self.wfile.write(b"data: [DONE]\n\n")

    def rounds(
        self, prompt: list[int], body: dict[str, Any], rng: np.random.Generator
    ) -> Iterator[tuple[list[int], int, int]]:
        """What each step emits, and how many tokens it drafted and accepted; first the prefill."""
        toy, temperature = self.server.toy, body["temperature"]
        history, written = list(prompt), 0

        def following() -> int:
            if toy.garbles and temperature > 0:
                return int(rng.integers(VOCABULARY))
            is_third = len(history) == len(prompt) + 2
            at = toy.flips_at is None or body["cache_salt"].endswith(f"-{toy.flips_at}")
            if temperature == 0 and len(prompt) in toy.flips and is_third and at:
                return int(log_probs(history).argsort()[-2])
            return token_of(history, temperature, rng)

        while written < body["max_tokens"]:
            draft = toy.propose(history, toy.depth) if toy.depth and written else []
            if toy.drafts_wrongly:
                draft = [(token + 1) % VOCABULARY for token in draft]
            emitted: list[int] = []
            accepted = 0
            while True:
                emitted.append(following())
                history.append(emitted[-1])
                if accepted == len(draft) or draft[accepted] != emitted[-1]:
                    break
                accepted += 1
            written += len(emitted)
            yield emitted, len(draft), accepted

    def chunk(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def answer(self, document: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())


class Engine(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, toy: Toy, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.toy = toy
        self.bodies: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._drafts = self._drafted = self._asked = 0
        self._accepted_at = [0] * max(1, toy.depth)

    def handle_error(self, *_arguments: Any) -> None:
        """A client that has left is part of the tests."""

    def count(self, prompt: list[int], rounds: list[tuple[int, int]]) -> None:
        with self._lock:
            self._asked += len(prompt)
            self._drafts += len(rounds)
            self._drafted += sum(drafted for drafted, _ in rounds)
            for _, accepted in rounds:
                for i in range(accepted):
                    self._accepted_at[i] += 1

    def metrics(self) -> str:
        with self._lock:
            label = '{engine="0",model_name="toy"}'
            lines = [f"# HELP x y\nvllm:prefix_cache_queries_total{label} {self._asked}.0"]
            lines.append(f"vllm:prefix_cache_hits_total{label} 0.0")
            if self.toy.depth:
                spec = "vllm:spec_decode_num"
                lines += [f"{spec}_drafts_total{label} {self._drafts}.0"]
                lines += [f"{spec}_draft_tokens_total{label} {self._drafted:.6e}"]
                lines += [f"{spec}_accepted_tokens_total{label} {sum(self._accepted_at)}.0"]
                for i, count in enumerate(self._accepted_at):
                    at = f'{{engine="0",model_name="toy",position="{i}"}}'
                    lines += [f"{spec}_accepted_tokens_per_pos_total{at} {count}.0"]
        return "\n".join(lines) + "\n"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def engine(**how: Any) -> Iterator[Engine]:
    """An engine that runs until the block ends."""
    with in_background(Engine(Toy(**how))) as server:
        yield server


if __name__ == "__main__":
    print("an engine for tests", flush=True)
    Engine(Toy(depth=3 if "--speculate" in sys.argv else 0), int(sys.argv[1])).serve_forever()
