"""A server that writes responses as each engine's server does, token by token, and fails as told.

What it writes follows from the prompt's tokens alone, so that two runs against it can be compared.
"""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import toy_target as toy
from background import in_background
from safetensors.torch import save_file

from specprobe.prompt import Message, Prompt

END = 2  # <|im_end|>
VERSIONS = {
    "vllm": ("/version", {"version": "0.32.0"}),
    "sglang": ("/server_info", {"version": "0.5.6", "context_length": 512}),
    "llama.cpp": ("/props", {"build_info": "b7000-abc", "default_generation_settings": {"n_ctx": 512}}),
}
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp", "unknown": "someone"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *_arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.note(self, None)
        if server.wanted_key and self.headers.get("Authorization") != f"Bearer {server.wanted_key}":
            self.answer(401, {"error": {"message": f"wrong key {self.headers.get('Authorization')}"}})
        elif self.path == "/v1/models":
            entry = {"id": "served", "owned_by": OWNERS[server.kind]}
            self.answer(200, {"data": [entry | ({"max_model_len": 512} if server.kind == "vllm" else {})]})
        elif server.kind in VERSIONS and self.path == VERSIONS[server.kind][0]:
            self.answer(200, VERSIONS[server.kind][1])
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.note(self, body)
        if self.path == "/tokenize":
            text = server.render(body["messages"]) if "messages" in body else body.get("content", body.get("prompt"))
            if "no such template" in text:
                self.answer(400, {"error": {"message": "the template refuses"}})
            else:
                self.answer(200, {"tokens": server.cut(text)})
            return
        if self.path == "/apply-template":
            self.answer(200, {"prompt": server.render(body["messages"])})
            return
        fault = server.next_fault()
        if fault == "die":
            self.connection.close()
        elif fault == "stall":
            time.sleep(server.stall_seconds)
        elif fault in ("429", "500", "400", "404", "301"):
            told = server.refusal or {"error": {"message": f"told {fault}\x1b[31m"}}
            self.answer(int(fault), told, {"Retry-After": "0"})
        elif fault == "malformed":
            self.stream([b"data: {oops"]) if body.get("stream") else self.answer(200, b"{oops")
        else:
            self.respond(body, fault)

    def respond(self, body: dict[str, Any], fault: str | None) -> None:
        server = self.server
        ids = body.get("input_ids", body.get("prompt"))
        if "messages" in body:
            ids = server.cut(server.render(body["messages"]))
        elif isinstance(ids, str):
            ids = server.cut(ids)
        if server.kind == "vllm" and not body.get("stream"):
            self.tell_states(body) if server.states is not None else self.answer(200, {"choices": [{"text": "a"}]})
            return
        sampling = body.get("sampling_params", {})
        limit = body.get("max_tokens", body.get("n_predict", sampling.get("max_new_tokens")))
        written = server.writes(ids)[:limit]
        reason = "stop" if written[-1] == END else "length"
        log_probs = [-0.25 * (1 + i % 3) for i in range(len(written))]
        if self.path == "/generate":
            chosen = [[p, i, None] for p, i in zip(log_probs, written, strict=True)]
            self.answer(
                200,
                {"text": "", "meta_info": {"output_token_logprobs": chosen, "finish_reason": {"type": reason}}},
                cut=fault,
            )
        elif self.path == "/completion":
            told = [{"id": i, "logprob": p} for p, i in zip(log_probs, written, strict=True)]
            stop_type = {"stop": "eos", "length": "limit"}[reason]
            self.answer(
                200,
                {"content": "", "tokens": written, "stop_type": stop_type, "completion_probabilities": told},
                cut=fault,
            )
        else:
            self.stream(self.chunks(ids, written, log_probs, reason, body), cut=fault)

    def tell_states(self, body: dict[str, Any]) -> None:
        """As vLLM's ExampleHiddenStatesConnector: the file is locked when the answer names it, and written later."""
        server = self.server
        server.counts["states"] += 1
        path = server.states_folder / f"cmpl-{server.counts['states']}.safetensors"
        with Path(f"{path}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            told = {"choices": [{"text": "a"}], "kv_transfer_params": {"hidden_states_path": f"/elsewhere/{path.name}"}}
            self.answer(200, told)
            ids = torch.tensor(body["prompt"])
            save_file({"hidden_states": server.states(ids), "token_ids": ids}, path)

    def chunks(self, prompt: Any, written: Any, log_probs: Any, reason: str, body: dict[str, Any]) -> Iterator[bytes]:
        server = self.server
        for number, (token, log_p) in enumerate(zip(written, log_probs, strict=True)):
            text = "" if token == END else server.tokenizer.decode([token])
            choice: dict[str, Any] = {"finish_reason": reason if number == len(written) - 1 else None}
            if self.path.endswith("/chat/completions"):
                choice["delta"] = {"content": text, **server.delta}
            else:
                choice["text"] = text
            if server.kind == "vllm" and server.gives_ids and body.get("return_token_ids"):
                choice |= {"token_ids": [token], "logprobs": {"token_logprobs": [log_p]}}
            yield b"data: " + json.dumps({"choices": [choice]}).encode()
        usage = {"prompt_tokens": len(prompt) + server.further_prompt_tokens, "completion_tokens": len(written)}
        yield b"data: " + json.dumps({"choices": [], "usage": usage}).encode()

    def stream(self, chunks: Any, cut: str | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number, chunk in enumerate(chunks):
            if cut == "truncated" and number == 2:
                return
            self.wfile.write(chunk + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def answer(self, status: int, document: Any, headers: dict[str, str] | None = None, cut: str | None = None) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut == "truncated" else body)


class FakeTarget(ThreadingHTTPServer):
    """`faults`: what befalls the next requests for a response, one each; `seen`: path and body of all requests."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, kind: str, faults: Any = (), port: int = 0, **options: Any) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.kind, self.faults = kind, deque(faults)
        self.tokenizer = toy.byte_tokenizer()
        self.wanted_key: str | None = None
        self.gives_ids = True
        self.delta: dict[str, Any] = {}
        self.further_prompt_tokens = 0
        self.stall_seconds = 2.0
        self.fault_always: str | None = None
        self.refusal: Any = None
        # [tokens, layers, size] of ids [tokens], and where files of them go.
        self.states: Callable[[torch.Tensor], torch.Tensor] | None = None
        self.states_folder = Path()
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        for name, value in options.items():
            assert hasattr(self, name)
            setattr(self, name, value)

    def handle_error(self, *_arguments: Any) -> None:
        """A client that has left is part of the tests."""

    def note(self, handler: Handler, body: Any) -> None:
        with self._lock:
            self.seen.append((handler.path, dict(handler.headers), body))
            self.counts[handler.path] += 1

    def next_fault(self) -> str | None:
        with self._lock:
            return self.faults.popleft() if self.faults else self.fault_always

    def render(self, messages: list[dict[str, Any]]) -> str:
        turns = tuple(Message(m["role"], m["content"]) for m in messages)
        return self.tokenizer.decode(self.tokenizer.encode_prompt(Prompt("", "", 0, "", messages=turns)))

    def cut(self, text: str) -> list[int]:
        return self.tokenizer.encode_prompt(Prompt("", "", 0, "", text=text)).tolist()

    def writes(self, prompt_ids: list[int]) -> list[int]:
        """A few letters that repeat with a period that follows from the prompt, then the end."""
        period = 2 + sum(prompt_ids) % 5
        return [self.cut("abcdefg")[i % period] for i in range(10 + sum(prompt_ids) % 9)] + [END]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def serving_target(kind: str = "vllm", **options: Any) -> Iterator[FakeTarget]:
    """A server that runs until the block ends."""
    with in_background(FakeTarget(kind, **options)) as server:
        yield server
