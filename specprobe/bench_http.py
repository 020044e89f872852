"""What a bench asks of a server, beside the protocol's own: streams, JSON, and its counters."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from specprobe.completion_server import LONGEST_BODY, Server, _answer, _events, _get_json, parse_server
from specprobe.errors import SpecprobeError
from specprobe.notices import inert


def parse_address(url: str, *, timeout_seconds: float, option: str) -> Server:
    """The server of a base URL that `option` gave. Raises SpecprobeError where it is none."""
    try:
        return parse_server(url, timeout_seconds=timeout_seconds)
    except SpecprobeError as error:
        raise SpecprobeError(str(error).replace("--server", option, 1)) from None


def stream(server: Server, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
    """The events of a streamed answer to `body`, asked for at a path below the server's own, such as /completions."""
    with _answer(server, "POST", server.path + path, body) as response:
        kind = response.headers.get_content_type()
        if kind != "text/event-stream":
            raise SpecprobeError(
                f"{server.name}: answers without streaming ({inert(kind)}); use a server, and a way to it, that streams"
            )
        yield from _events(server, response)


def get_json(server: Server, path: str) -> Any:
    """What a path below the server's own answers."""
    return _get_json(server, server.path + path)


def post_json(server: Server, path: str, body: dict[str, Any]) -> Any:
    """What it answers to `body`."""
    with _answer(server, "POST", server.path + path, body) as response:
        try:
            return json.loads(response.read(LONGEST_BODY))
        except (ValueError, RecursionError):
            raise SpecprobeError(f"{server.name}: what {inert(path)} answers is not JSON; look into its log") from None


def read_metrics(server: Server) -> str | None:
    """The server's counters in the Prometheus text format; None where it shows none."""
    try:
        with _answer(server, "GET", f"{server.path.removesuffix('/v1')}/metrics") as response:
            return response.read(LONGEST_BODY).decode("utf-8", "replace")
    except SpecprobeError:
        return None
