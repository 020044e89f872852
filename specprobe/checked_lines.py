"""Files of JSON records that are appended one by one and survive a machine that stops in the middle of a write.

One line for each record: 16 hex digits of checksum, a space, JSON. A line that does not match its checksum counts as
absent.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from specprobe.paths import PRIVATE_FILE, file_errors

_CHECKSUM_DIGITS = 16


def read_records(path: Path) -> list[dict[str, Any]]:
    """The whole records of a file, oldest first; none where there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        with file_errors(path):
            raise error
    found = (_checked(line) for line in content.split(b"\n"))
    return [record for record in found if record is not None]


def append_record(path: Path, record: dict[str, Any], note: str = "") -> None:
    """Keep one more record: when this returns, it is on the disk. `note`: what an error says of those before it."""
    line = _line(record)
    with file_errors(path, note=note):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        descriptor = os.open(path, flags, PRIVATE_FILE)
        try:
            # A torn last line must not swallow this one.
            start = b"\n" if _ends_inside_a_line(descriptor) else b""
            _write_all(descriptor, start + line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _ends_inside_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _line(record: dict[str, Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode("ascii")
    return _checksum(body) + b" " + body + b"\n"


def _checked(line: bytes) -> dict[str, Any] | None:
    checksum, separator, body = line.partition(b" ")
    return json.loads(body) if separator and checksum == _checksum(body) else None


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_CHECKSUM_DIGITS].encode("ascii")
