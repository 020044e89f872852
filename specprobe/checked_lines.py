"""Files of JSON records that are appended one by one and survive a machine that stops in the middle of a write.

One line for each record: 16 hex digits of checksum, a space, JSON. A line that ends in the middle of its JSON was being
written when its process was killed or the disk was full; any other that does not match its checksum was damaged later.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprobe.paths import PRIVATE_FILE, file_errors

_CHECKSUM_DIGITS = 16
# How a line may begin whose end, a brace, was never written.
_TORN = re.compile(rb"[0-9a-f]{1,16}|[0-9a-f]{16} (.*[^}])?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CheckedLines:
    """What a file holds, by number of the line from 1: whole records, oldest first, and lines that are damaged."""

    records: tuple[tuple[int, dict[str, Any]], ...] = ()
    damaged: tuple[int, ...] = ()


def read_lines(path: Path) -> CheckedLines:
    """The whole records of a file and its damaged lines; nothing where there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return CheckedLines()
    except OSError as error:
        with file_errors(path):
            raise error
    records, damaged = [], []
    for number, line in enumerate(content.split(b"\n"), 1):
        if (record := _checked(line)) is not None:
            records.append((number, record))
        elif line and not _is_torn(line):
            damaged.append(number)
    return CheckedLines(tuple(records), tuple(damaged))


def append_record(path: Path, record: Mapping[str, Any], note: str = "") -> None:
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


def _line(record: Mapping[str, Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode("ascii")
    return _checksum(body) + b" " + body + b"\n"


def _checked(line: bytes) -> dict[str, Any] | None:
    checksum, separator, body = line.partition(b" ")
    if not separator or checksum != _checksum(body):
        return None
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _is_torn(line: bytes) -> bool:
    """Whether this may be the beginning of a line that was never written to its end."""
    if not _TORN.fullmatch(line):
        return False
    body = line[_CHECKSUM_DIGITS + 1 :].decode("ascii", "replace")
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        rest = body[error.pos :]
        return error.msg.startswith("Unterminated") or "null".startswith(rest)
    except RecursionError:
        return False
    return False


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_CHECKSUM_DIGITS].encode("ascii")
