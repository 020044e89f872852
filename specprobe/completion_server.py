"""A server that speaks the OpenAI completions protocol: what it is, and one streamed answer, each chunk with its time.

Everything that can go wrong on the way is one line that says what to do. The API key comes from the environment only,
goes into the Authorization header only, and is cut out of what a server's errors are quoted from.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from specprobe.errors import SpecprobeError
from specprobe.notices import inert

KEY_VARIABLES = ("SPECPROBE_API_KEY", "OPENAI_API_KEY")
LONGEST_LINE = 2**20
LONGEST_BODY = 2**22
# A token has one chunk; some servers send an empty one more here and there.
MOST_CHUNKS_A_TOKEN = 4
# What servers answer to a field that they do not take.
FIELD_REFUSED = (400, 422)


@dataclass(frozen=True, slots=True)
class Server:
    """Where completions are asked for. `timeout_seconds`: without a byte for so long, it counts as hanging."""

    secure: bool
    host: str
    port: int
    path: str
    timeout_seconds: float
    api_key: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """As errors call it."""
        return f"http{'s' if self.secure else ''}://{self.host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says of itself; `version` is empty where it does not."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer: when each chunk came, on `time.perf_counter`, and the tokens that the server counted."""

    chunk_times: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int


class RefusedFieldError(SpecprobeError):
    """The server does not take a field of the request."""


def parse_server(url: str, *, timeout_seconds: float) -> Server:
    """The server of a base URL such as http://localhost:8000/v1. Raises SpecprobeError where it is none."""
    remedy = "write for example http://localhost:8000/v1"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise SpecprobeError(f"--server: not an address; {remedy}") from None
    if parts.username is not None or parts.password is not None:
        raise SpecprobeError(f"--server: holds a name or password; set {KEY_VARIABLES[0]} in the environment instead")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise SpecprobeError(f"--server {inert(url, 80)!r}: not the address of a server; {remedy}")
    if not timeout_seconds > 0:
        raise SpecprobeError(f"--timeout {timeout_seconds:g}: a number of seconds above 0")
    key = next((value for name in KEY_VARIABLES if (value := os.environ.get(name, "").strip())), "")
    if not key.isascii() or not (key.isprintable() or not key):
        raise SpecprobeError(f"{' or '.join(KEY_VARIABLES)}: holds what no header may hold; set it again")
    secure = parts.scheme == "https"
    return Server(secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/"), timeout_seconds, key)


def find_model(server: Server, name: str | None) -> ServedModel:
    """The served model of this name, or the only one, with the server's version where it tells one."""
    models = _get_json(server, f"{server.path}/models")
    listed = models.get("data") if isinstance(models, dict) else None
    if not isinstance(listed, list):
        raise SpecprobeError(
            f"{server.name}/models: no list of models; the address must end where /completions follows"
        )
    names = [str(one["id"]) for one in listed if isinstance(one, dict) and "id" in one]
    if name is None and len(names) != 1:
        shown = ", ".join(inert(one) for one in names[:5]) or "none"
        raise SpecprobeError(f"{server.name}: serves {shown}; name one with --server-model")
    if name is not None and name not in names:
        shown = ", ".join(inert(one) for one in names[:5]) or "none"
        raise SpecprobeError(f"--server-model {inert(name)}: the server has {shown}")
    return ServedModel(name or names[0], _version(server))


def stream_completion(server: Server, body: dict[str, Any], is_stopped: Callable[[], bool]) -> Answer:
    """Ask for one streamed completion and read it to its end; `is_stopped` is asked at each chunk.

    Raises RefusedFieldError where the server does not take a field, SpecprobeError for any other failure.
    """
    times: list[float] = []
    usage: dict[str, Any] = {}
    with _answer(server, "POST", f"{server.path}/completions", body) as response:
        kind = response.headers.get_content_type()
        if kind != "text/event-stream":
            raise SpecprobeError(
                f"{server.name}: answers without streaming ({inert(kind)}); use a server, and a way to it, that streams"
            )
        for event in _events(server, response):
            now = time.perf_counter()
            if is_stopped():
                break
            if event.get("usage"):
                usage = event["usage"] if isinstance(event["usage"], dict) else {}
            choices = event.get("choices")
            if not isinstance(choices, list):
                raise SpecprobeError(
                    f"{server.name}: a chunk without choices; it does not speak the completions protocol"
                )
            # The last chunk may carry nothing but why it ended.
            if any(isinstance(one, dict) and (one.get("text") or not one.get("finish_reason")) for one in choices):
                times.append(now)
            if len(times) > MOST_CHUNKS_A_TOKEN * body["max_tokens"]:
                raise SpecprobeError(f"{server.name}: does not stop at max_tokens; look into the server's log")
    return Answer(tuple(times), _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))


def _count(usage: dict[str, Any], key: str) -> int:
    value = usage.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _events(server: Server, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, up to [DONE]."""
    while line := response.readline(LONGEST_LINE):
        # Comments keep a connection alive; other fields say nothing here.
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise SpecprobeError(f"{server.name}: a chunk that is not JSON; look into the server's log") from None
        if not isinstance(event, dict):
            raise SpecprobeError(
                f"{server.name}: a chunk that is no object; it does not speak the completions protocol"
            )
        if event.get("error"):
            raise SpecprobeError(f"{server.name}: an error in the stream: {_told(server, event)}; see the server's log")
        yield event
    raise SpecprobeError(f"{server.name}: the stream broke off before its end; look into the server's log")


def _get_json(server: Server, path: str) -> Any:
    with _answer(server, "GET", path) as response:
        try:
            return json.loads(response.read(LONGEST_BODY))
        except (ValueError, RecursionError):
            raise SpecprobeError(f"{server.name}: what {inert(path)} answers is not JSON; check the address") from None


def _version(server: Server) -> str:
    """vLLM tells its version beside the protocol's path; others need not."""
    try:
        answer = _get_json(server, f"{server.path.removesuffix('/v1')}/version")
    except SpecprobeError:
        return ""
    version = answer.get("version") if isinstance(answer, dict) else None
    return inert(version) if isinstance(version, str) else ""


@contextmanager
def _answer(
    server: Server, method: str, path: str, body: dict[str, Any] | None = None
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a request, with every failure as one line."""
    kind = http.client.HTTPSConnection if server.secure else http.client.HTTPConnection
    connection = kind(server.host, server.port, timeout=server.timeout_seconds)
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if server.api_key:
        headers["Authorization"] = f"Bearer {server.api_key}"
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _refusal(server, path, response)
        yield response
    except ssl.SSLError as error:
        reason = inert(str(error.reason or error), 80)
        raise SpecprobeError(
            f"{server.name}: no secure connection ({reason}); check the certificate, or http"
        ) from None
    except socket.gaierror:
        raise SpecprobeError(f"{server.name}: no host of this name; check --server") from None
    except ConnectionRefusedError:
        raise SpecprobeError(f"{server.name}: refuses connections; start the server, or check host and port") from None
    except TimeoutError:
        raise SpecprobeError(
            f"{server.name}: silent for {server.timeout_seconds:g} s; it may be overloaded; else raise --timeout"
        ) from None
    except http.client.HTTPException as error:
        raise SpecprobeError(
            f"{server.name}: does not speak HTTP as it should ({type(error).__name__}); check --server, and its log"
        ) from None
    except OSError as error:
        reason = inert((error.strerror or str(error)).lower(), 80)
        raise SpecprobeError(
            f"{server.name}: the connection failed ({reason}); check that the server still runs"
        ) from None
    finally:
        connection.close()


def _refusal(server: Server, path: str, response: http.client.HTTPResponse) -> SpecprobeError:
    """Any status but 200, by what can be done about it."""
    status = response.status
    told = _told(server, _json_or_text(response.read(LONGEST_BODY)))
    what = f"{server.name}: status {status} from {inert(path)}{f' ({told})' if told else ''}"
    if status in (401, 403):
        return SpecprobeError(f"{what}; set {KEY_VARIABLES[0]} to a key that it takes")
    if status == 404:
        return SpecprobeError(f"{what}; check the path of --server (most end in /v1) and --server-model")
    if status == 429:
        return SpecprobeError(f"{what}; it limits requests: lower --concurrency, or measure a server of your own")
    if 300 <= status < 400:
        return SpecprobeError(f"{what}; it sends elsewhere: give the final address as --server")
    if status in FIELD_REFUSED:
        return RefusedFieldError(f"{what}; its limits may be below --context and --output-tokens")
    if status >= 500:
        return SpecprobeError(f"{what}; look into the server's log")
    return SpecprobeError(f"{what}; check --server")


def _json_or_text(body: bytes) -> Any:
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _told(server: Server, answer: Any) -> str:
    """What a server gives as its reason, short and without the key."""
    for key in ("error", "message", "detail"):
        if isinstance(answer, dict) and key in answer:
            answer = answer[key]
    text = " ".join(answer.split()) if isinstance(answer, str) else ""
    return inert(text.replace(server.api_key, "***") if server.api_key else text, 120)
