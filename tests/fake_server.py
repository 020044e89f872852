"""A server of streamed completions that answers as told: steps of a known length, and every way to fail."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from background import in_background


@dataclass
class Behaviour:
    """How the server acts. `step_seconds`: of a step by the number of requests that run."""

    step_seconds: Callable[[int], float] = lambda running: 0.002 + 0.001 * running
    tokens_a_chunk: int = 1
    models: Any = field(default_factory=lambda: {"data": [{"id": "served"}]})
    version: str | None = "0.33.0"
    status: int = 200
    reason: Any = None
    content_type: str = "text/event-stream"
    refuses_ignore_eos: bool = False
    usage: bool = True
    first_chunk: bytes | None = None
    ends_early: bool = False
    hangs_seconds: float = 0.0
    raw: bytes | None = None
    longest_answer: int = 10_000
    is_endless: bool = False


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        told, server = self.server.behaviour, self.server
        server.seen.append((self.path, dict(self.headers), None))
        if self.path.endswith("/models"):
            self.answer(200, told.models)
        elif self.path == "/version" and told.version:
            self.answer(200, {"version": told.version})
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        told = self.server.behaviour
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), body))
        if told.hangs_seconds:
            time.sleep(told.hangs_seconds)
        if told.raw is not None:
            self.wfile.write(told.raw)
        elif told.status != 200:
            self.answer(told.status, told.reason)
        elif told.refuses_ignore_eos and "ignore_eos" in body:
            self.answer(400, {"error": {"message": "unknown field ignore_eos"}})
        else:
            self.send_response(200)
            self.send_header("Content-Type", told.content_type)
            self.end_headers()
            with self.server.running_one_more():
                self.stream(told, body)

    def stream(self, told: Behaviour, body: dict[str, Any]) -> None:
        if told.first_chunk is not None:
            self.wfile.write(told.first_chunk)
            return
        chunks = min(body["max_tokens"], told.longest_answer) // told.tokens_a_chunk
        for number in itertools.count() if told.is_endless else range(chunks):
            time.sleep(told.step_seconds(self.server.running))
            end = "length" if number == chunks - 1 else None
            self.chunk({"choices": [{"text": "ab" * told.tokens_a_chunk, "finish_reason": end}]})
        if told.usage:
            usage = {
                "prompt_tokens": 2 * len(body["prompt"].split()),
                "completion_tokens": chunks * told.tokens_a_chunk,
            }
            self.chunk({"choices": [], "usage": usage})
        if not told.ends_early:
            self.wfile.write(b"data: [DONE]\n\n")

    def chunk(self, event: dict[str, Any]) -> None:
        self.wfile.write(b": alive\n\ndata: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def answer(self, status: int, document: Any) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour = behaviour
        self.running = 0
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self._lock = threading.Lock()

    def handle_error(self, *_arguments: Any) -> None:
        """A client that has left is part of the tests."""

    @contextmanager
    def running_one_more(self) -> Iterator[None]:
        with self._lock:
            self.running += 1
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def serving(**behaviour: Any) -> Iterator[FakeServer]:
    """A server that runs until the block ends."""
    with in_background(FakeServer(Behaviour(**behaviour))) as server:
        yield server
