"""One HTTP server that is asked for JSON or for a stream of it: the only HTTP client here, on the standard library's.

Everything that can go wrong on the way is one line that says what to do; what may pass by itself is a TransientError.
The API key comes from the environment only, goes into the Authorization header only, and is cut out of what a server's
errors are quoted from. Redirects are not followed: the key goes to the host that was named and to no other. What a
server sends is read up to a limit.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from specprobe.errors import SpecprobeError
from specprobe.notices import inert

KEY_VARIABLES = ("SPECPROBE_API_KEY", "OPENAI_API_KEY")
# The ids of a prompt of a million tokens fit into one line, and with the rest of an answer into one body.
LONGEST_LINE = 2**24
LONGEST_BODY = 2**26
# What servers answer to a field that they do not take.
FIELD_REFUSED = (400, 422)
# Request timeout, too early.
COME_AGAIN = (408, 425)
QUOTED = 120
# A week; sockets take no number of any size.
LONGEST_TIMEOUT = 604_800

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Words:
    """How a command calls what its errors tell the user to change."""

    address: str
    load: str
    lengths: str


CALIBRATE = Words("--server", "lower --concurrency, or measure a server of your own", "--context and --output-tokens")
BENCH = Words("--server", "lower --concurrency, or ask a server of your own", "--max-new-tokens")
ANALYZE = Words("--target", "lower --batch-size", "--max-model-len and --max-new-tokens")


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask. `timeout_seconds`: without a byte for so long, it counts as hanging."""

    secure: bool
    host: str
    port: int
    path: str
    timeout_seconds: float
    api_key: str = field(default="", repr=False)
    words: Words = CALIBRATE

    @property
    def name(self) -> str:
        """Its address, as errors and records have it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.secure else ''}://{host}:{self.port}{self.path}"

    @property
    def root(self) -> str:
        """The path beside the protocol's, where engines have endpoints of their own."""
        return self.path.removesuffix("/v1")

    def quote(self, text: str, limit: int = QUOTED) -> str:
        """Text of the server's for a message: one short line, without the key."""
        plain = " ".join(text.split())
        return inert(plain.replace(self.api_key, "***") if self.api_key else plain, limit)


class RefusedFieldError(SpecprobeError):
    """The server does not take a field of the request, or the request as a whole."""


class NotFoundError(SpecprobeError):
    """The server has nothing at this path, or no model of this name."""


class TransientError(SpecprobeError):
    """What may pass: a full, restarting or broken server. `retry_after_seconds`: when the server says to come back."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


def is_address(text: str | None) -> bool:
    """Whether this names a server, not a model."""
    return text is not None and text.strip().lower().startswith(("http://", "https://"))


def parse_server(url: str, *, timeout_seconds: float, words: Words = CALIBRATE) -> Server:
    """The server of a base URL such as http://localhost:8000/v1. Raises SpecprobeError where it is none."""
    remedy = "write for example http://localhost:8000/v1"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
        # What can be looked up and asked for at all; a UnicodeError is a ValueError.
        (parts.hostname or "").encode("idna")
        parts.path.encode("ascii")
    except ValueError:
        raise SpecprobeError(f"{words.address}: not an address; {remedy}") from None
    if parts.username is not None or parts.password is not None:
        raise SpecprobeError(
            f"{words.address}: holds a name or password; set {KEY_VARIABLES[0]} in the environment instead"
        )
    if parts.query or parts.fragment:
        # It may be a key, so it is not shown.
        raise SpecprobeError(f"{words.address}: holds a query or fragment; {remedy}, a key in {KEY_VARIABLES[0]}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecprobeError(f"{words.address} {inert(url, 80)!r}: not the address of a server; {remedy}")
    check_timeout(timeout_seconds)
    key = next((value for name in KEY_VARIABLES if (value := os.environ.get(name, "").strip())), "")
    if not key.isascii() or not (key.isprintable() or not key):
        raise SpecprobeError(f"{' or '.join(KEY_VARIABLES)}: holds what no header may hold; set it again")
    secure = parts.scheme == "https"
    return Server(
        secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/"), timeout_seconds, key, words
    )


def check_timeout(seconds: float) -> None:
    """Refuse what no socket takes."""
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise SpecprobeError(f"--timeout {seconds:g}: from above 0 to {LONGEST_TIMEOUT:,} seconds")


def get_json(server: Server, path: str) -> Any:
    """What a GET of `path` answers."""
    with _answer(server, "GET", path) as response:
        return _parsed(server, path, response)


def get_text(server: Server, path: str) -> str:
    """What a GET of `path` answers, as it is."""
    with _answer(server, "GET", path) as response:
        return _content(server, path, response).decode("utf-8", "replace")


def post_json(server: Server, path: str, body: dict[str, Any]) -> Any:
    """What a POST of `body` to `path` answers."""
    with _answer(server, "POST", path, body) as response:
        return _parsed(server, path, response)


def stream_events(server: Server, path: str, body: dict[str, Any]) -> Generator[tuple[float, dict[str, Any]]]:
    """The JSON objects of a stream of server-sent events up to [DONE], each with its time on `time.perf_counter`.

    Raises TransientError where the stream is damaged, breaks off, or tells of an error in it.
    """
    with _answer(server, "POST", path, body) as response:
        kind = response.headers.get_content_type()
        if kind != "text/event-stream":
            raise SpecprobeError(
                f"{server.name}: answers without streaming ({inert(kind)}); use a server, and a way to it, that streams"
            )
        length = 0
        while line := response.readline(LONGEST_LINE):
            now = time.perf_counter()
            length += len(line)
            if length > LONGEST_BODY:
                raise SpecprobeError(f"{server.name}: does not stop sending; look into the server's log")
            # Comments keep a connection alive; other fields say nothing here.
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield now, _event(server, data)
        raise TransientError(f"{server.name}: the stream broke off before its end; look into the server's log")


def _event(server: Server, data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise TransientError(f"{server.name}: a chunk that is not JSON; look into the server's log") from None
    if not isinstance(event, dict):
        raise TransientError(f"{server.name}: a chunk that is no object; it does not speak the completions protocol")
    if event.get("error"):
        raise TransientError(f"{server.name}: an error in the stream: {_told(server, event)}; see the server's log")
    return event


def _content(server: Server, path: str, response: http.client.HTTPResponse) -> bytes:
    content = response.read(LONGEST_BODY + 1)
    if len(content) > LONGEST_BODY:
        raise SpecprobeError(f"{server.name}: what {inert(path)} answers is too long; look into the server's log")
    return content


def _parsed(server: Server, path: str, response: http.client.HTTPResponse) -> Any:
    try:
        return json.loads(_content(server, path, response))
    except (ValueError, RecursionError):
        raise TransientError(f"{server.name}: what {inert(path)} answers is not JSON; check the address") from None


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
    address = server.words.address
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _refusal(server, path, response)
        yield response
    except ssl.SSLError as error:
        reason = inert(str(error.reason or error), 80)
        # A wrong certificate stays wrong.
        kind_of_failure = SpecprobeError if isinstance(error, ssl.SSLCertVerificationError) else TransientError
        raise kind_of_failure(
            f"{server.name}: no secure connection ({reason}); check the certificate, or http"
        ) from None
    except socket.gaierror:
        raise TransientError(f"{server.name}: no host of this name; check {address}") from None
    except ConnectionRefusedError:
        raise TransientError(f"{server.name}: refuses connections; start the server, or check host and port") from None
    except TimeoutError:
        raise TransientError(
            f"{server.name}: silent for {server.timeout_seconds:g} s; it may be overloaded; else raise --timeout"
        ) from None
    except http.client.HTTPException as error:
        raise TransientError(
            f"{server.name}: does not speak HTTP as it should ({type(error).__name__}); check {address}, and its log"
        ) from None
    except OSError as error:
        reason = inert((error.strerror or str(error)).lower(), 80)
        raise TransientError(
            f"{server.name}: the connection failed ({reason}); check that the server still runs"
        ) from None
    finally:
        connection.close()


def _refusal(server: Server, path: str, response: http.client.HTTPResponse) -> SpecprobeError:
    """Any status but 200, by what can be done about it."""
    status, words = response.status, server.words
    told = _told(server, _json_or_text(response.read(LONGEST_LINE)))
    what = f"{server.name}: status {status} from {inert(path)}{f' ({told})' if told else ''}"
    retry_after = _retry_after_seconds(response.headers.get("Retry-After", ""))
    if status in (401, 403):
        return SpecprobeError(f"{what}; set {KEY_VARIABLES[0]} to a key that it takes")
    if status == 404:
        return NotFoundError(f"{what}; check the path of {words.address} (most end in /v1) and --server-model")
    if status == 429:
        return TransientError(f"{what}; it limits requests: {words.load}", retry_after)
    if 300 <= status < 400:
        return SpecprobeError(f"{what}; it sends elsewhere: give the final address as {words.address}")
    if status in FIELD_REFUSED:
        return RefusedFieldError(f"{what}; its limits may be below {words.lengths}")
    if status >= 500 or status in COME_AGAIN:
        return TransientError(f"{what}; look into the server's log", retry_after)
    return SpecprobeError(f"{what}; check {words.address}")


def _retry_after_seconds(header: str) -> float | None:
    """Of a Retry-After header: seconds, or a date (RFC 9110, 10.2.3); None where it is neither."""
    if header.strip().isdecimal():
        return float(header[:9])
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


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
    return server.quote(answer) if isinstance(answer, str) else ""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a request is made before its failure counts, and how long is waited in between.

    Each wait is twice the one before it, by up to a half longer or shorter, so that requests that failed together do
    not come back together. A server that names a time is given it, up to `longest_wait_seconds`.
    """

    attempts: int = 6
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 120.0

    def ask(self, ask: Callable[[], Result], stopped: threading.Event) -> Result:
        """What `ask` gives, after as many attempts as it takes; raises its last failure, or at once one that stays.

        `stopped` ends the waiting, with the failure that it waited after.
        """
        for attempt in range(1, self.attempts + 1):
            try:
                return ask()
            except TransientError as error:
                wait = self.first_wait_seconds * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
                wait = min(max(wait, error.retry_after_seconds or 0.0), self.longest_wait_seconds)
                if attempt == self.attempts:
                    raise SpecprobeError(f"{error}; gave up after {attempt} attempts") from None
                if stopped.wait(wait):
                    raise
        raise AssertionError("no attempt was allowed")
