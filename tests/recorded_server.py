"""A server that gives recorded answers: FOLDER/NAME.json, or NAME.sse for a stream, by the last word of the path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from background import in_background


@contextmanager
def replaying(folder: Path) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """The address of such a server, and the path and body of each request that it got."""
    seen: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_arguments: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.give(None)

        def do_POST(self) -> None:
            self.give(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def give(self, body: Any) -> None:
            seen.append((self.path, body))
            name = self.path.rpartition("/")[2]
            stream = folder / f"{name}.sse"
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if stream.exists() else "application/json")
            self.end_headers()
            self.wfile.write((stream if stream.exists() else folder / f"{name}.json").read_bytes())

    with in_background(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
