"""What is small on the disk and endless once it is read: capped with a message, in bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from specprobe import containers, csv_text
from specprobe.containers import Skip, read_rows
from specprobe.engine_numbers import read_engine_numbers
from specprobe.errors import SpecprobeError
from specprobe.project_defaults import read_table
from specprobe.sources import ByteStream

ROW = 1 << 16
GIB = 1 << 30


@pytest.fixture
def small_rows(monkeypatch):
    """So that an endless row need not be long to be too long."""
    monkeypatch.setattr(containers, "MAX_ROW", ROW)


class Endless:
    """A stream that begins somehow and repeats something so many bytes; never holds more than what is asked for."""

    def __init__(self, start: bytes, repeated: bytes, size: int, end: bytes = b"") -> None:
        self.parts: Iterator[bytes] = self._parts(start, repeated, size, end)
        self.left = b""
        self.given = 0

    def _parts(self, start: bytes, repeated: bytes, size: int, end: bytes) -> Iterator[bytes]:
        yield start
        block = repeated * max(1, 65536 // len(repeated))
        for _ in range(size // len(block)):
            yield block
        yield end

    def read(self, size: int) -> bytes:
        while not self.left:
            part = next(self.parts, None)
            if part is None:
                return b""
            self.left = part
        block, self.left = self.left[:size], self.left[size:]
        self.given += len(block)
        return block


def rows_of(start: bytes, repeated: bytes, size: int, end: bytes = b"", columns: Any = frozenset()) -> list[Any]:
    stream = ByteStream("x", Endless(start, repeated, size, end).read, None)
    return [row.value for row in read_rows(stream, columns).rows]


GOOD = b'{"prompt": "q"}'
LONG = 40 * ROW


@pytest.mark.parametrize(
    ("start", "repeated", "end"),
    [
        (GOOD + b'\n{"prompt": "', b"a", b'"}\n' + GOOD),
        (GOOD + b'\n{"prompt": "', "😀".encode(), b'"}\n' + GOOD),
        (GOOD + b"\n", b"[", b"\n" + GOOD),
        (GOOD + b"\n[", b"1,", b"1]\n" + GOOD),
        (GOOD + b"\n", b" ", b"\n" + GOOD),
        (GOOD + b"\n", b"\x00", b"\n" + GOOD),
    ],
    ids=["text", "wide text", "brackets", "numbers", "blanks", "zeros"],
)
def test_a_line_that_does_not_end(small_rows, start, repeated, end):
    first, *between, last = rows_of(start, repeated, LONG, end)
    assert first == last == {"prompt": "q"}
    assert between in ([Skip("too_long")], [Skip("bad_json")])


@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        (b'[{"prompt": "q"}, {"prompt": "', b"a"),
        (b'[{"prompt": "q"}, {"prompt": "', b"\\\\"),
        (b'[{"prompt": "q"}, ', b"["),
        (b'[{"prompt": "q"}, ', b'{"a":'),
        (b'[{"prompt": "q"}, [', b"1,"),
        (b'[{"prompt": "q"}, ', b"7"),
        (b'[{"prompt": "q"}, nonsense ', b"x"),
    ],
    ids=["text", "escapes", "brackets", "braces", "numbers", "digits", "nonsense"],
)
@pytest.mark.timeout(60)
def test_an_element_that_does_not_end(small_rows, start, repeated):
    first, *others = rows_of(start, repeated, LONG)
    assert first == {"prompt": "q"}
    assert {type(other) for other in others} == {Skip}
    assert {other.reason for other in others} <= {"too_long", "bad_json"}


@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        (b"prompt,response\nq,a\n", b"x"),
        (b"prompt,response\nq,a\n", b"x,"),
        (b'prompt,response\nq,a\n"', b"x"),
        (b'prompt,response\nq,a\n"', b"x\n"),
        (b'prompt,response\nq,a\n"', b'x\n","'),
    ],
    ids=["cell", "cells", "quoted cell", "quoted lines", "quoted cells"],
)
@pytest.mark.timeout(60)
def test_a_record_of_csv_that_does_not_end(small_rows, start, repeated):
    endless = Endless(start, repeated, LONG)
    with pytest.raises(SpecprobeError, match="not CSV"):
        list(read_rows(ByteStream("x", endless.read, None), frozenset({"prompt"})).rows)
    # It was given up soon, not read to its end.
    assert endless.given < 2 * containers.HEAD_BYTES + 4 * ROW


def test_records_of_csv_of_any_number_are_read(small_rows):
    """The cap is on one record, not on the file."""
    text = b"prompt,response\n" + b'"a\nb",c\n' * 40_000
    assert len(text) > 4 * ROW
    rows = [row.value for row in read_rows(ByteStream("x", io.BytesIO(text).read, None), frozenset({"prompt"})).rows]
    assert len(rows) == 40_000
    assert rows[-1] == {"prompt": "a\nb", "response": "c"}


def test_a_blank_file_without_end():
    stream = ByteStream("x", Endless(b"", b" \n", 8 * containers.HEAD_BYTES).read, None)
    with pytest.raises(SpecprobeError, match=r"plain text|no rows"):
        list(read_rows(stream).rows)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_packed_parquet_is_not_unpacked_without_end(monkeypatch, tmp_path, compress):
    """Parquet is read from its end, so a packed one is in memory as a whole."""
    from specprobe.workload import inspect_workload

    sink = io.BytesIO()
    pq.write_table(pa.table({"prompt": ["q"] * 9}), sink)
    path = tmp_path / "a.parquet"
    path.write_bytes(compress(sink.getvalue()))
    assert inspect_workload([str(path)]).prompts == 9
    monkeypatch.setattr(containers, "MOST_IN_MEMORY", 1 << 20)
    path.write_bytes(compress(b"PAR1" + bytes(8 << 20) + b"PAR1"))
    (file,) = inspect_workload([str(path)]).files
    assert "unpack it" in file.error


def test_a_parquet_file_of_one_large_text_many_times(tmp_path):
    """A dictionary makes a small file of them; they are not all unpacked at once."""
    sizes = []
    batches = pq.ParquetFile.iter_batches

    def watched(self: Any, *arguments: Any, **options: Any) -> Any:
        for batch in batches(self, *arguments, **options):
            sizes.append(batch.nbytes)
            yield batch

    path = tmp_path / "a.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(containers, "PARQUET_BATCH_BYTES", 1 << 20)
        patch.setattr(pq.ParquetFile, "iter_batches", watched)
        pq.write_table(
            pa.table({"prompt": ["a" * 200_000] * 500}), path, compression="zstd", dictionary_pagesize_limit=1 << 24
        )
        stream = ByteStream(str(path), path.open("rb").read, None)
        assert sum(1 for _ in read_rows(stream).rows) == 500
    assert path.stat().st_size < 100_000
    assert max(sizes) < 4 << 20


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_engine_numbers([path]),
        lambda path: csv_text.read_text(path, most_bytes=1 << 16, what="a table", instead="a file"),
    ],
    ids=["metrics", "tables"],
)
def test_devices_without_end_are_not_read_to_it(read, monkeypatch):
    monkeypatch.setattr("specprobe.engine_numbers.MOST_BYTES", 1 << 16)
    with pytest.raises(SpecprobeError):
        read(Path("/dev/zero"))


@pytest.mark.parametrize("name", ["specprobe.toml", "pyproject.toml"])
def test_settings_that_lead_elsewhere(tmp_path, name):
    """Settings come with repositories of other people, and are read by every command."""
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(SpecprobeError, match="no regular file"):
        read_table(tmp_path, "analyze")
    (tmp_path / name).unlink()
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SpecprobeError, match="larger than"):
        read_table(tmp_path, "analyze")


# --- for real, in a process whose memory is limited ---

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({most}, {most}))
from specprobe.cli import run_command
sys.exit(run_command(["inspect", *sys.argv[1:], "--json"]))
"""


def inspected(path: Path, most_bytes: int) -> tuple[int, dict[str, Any], str]:
    """Status, document and stderr of `specprobe inspect` within so much address space."""
    result = subprocess.run(
        [sys.executable, "-c", LIMITED.format(most=most_bytes), str(path)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, json.loads(result.stdout) if result.stdout else {}, result.stderr


def write_sparse(path: Path, start: bytes, size: int, end: bytes) -> None:
    with path.open("wb") as file:
        file.write(start)
        file.seek(size)
        file.write(end)


def write_packed(
    path: Path, opened: Callable[[Path], Any], start: bytes, repeated: bytes, size: int, end: bytes
) -> None:
    with opened(path) as file:
        file.write(start)
        block = repeated * (1 << 20)
        for _ in range(size >> 20):
            file.write(block)
        file.write(end)


def gzip_file(path: Path) -> Any:
    return gzip.GzipFile(path, "wb", 1)


def zstd_file(path: Path) -> Any:
    return zstandard.open(path, "wb", cctx=zstandard.ZstdCompressor(level=1))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "kind", ["a line of 5 GB", "an element of 5 GB", "a cell without end", "gzip of 5 GB", "zstd of 5 GB"]
)
def test_five_gigabytes_in_three(tmp_path, kind):
    path, size = tmp_path / "log", 5 * GIB
    good = GOOD + b"\n"
    match kind:
        case "a line of 5 GB":
            write_sparse(path, good + b'{"prompt": "', size, b'"}\n' + good)
        case "an element of 5 GB":
            write_sparse(path, b"[" + good + b', {"prompt": "', size, b'"}, ' + good + b"]")
        case "a cell without end":
            # It is given up long before.
            write_packed(path, gzip_file, b"prompt,response\nq,a\n", b"x", GIB, b"\n")
        case "gzip of 5 GB":
            write_packed(path, gzip_file, good + b'{"prompt": "', b"a", size, b'"}\n' + good)
        case _:
            write_packed(path, zstd_file, good + b'{"prompt": "', b"a", size, b'"}\n' + good)
    status, document, err = inspected(path, 3 * GIB)
    (file,) = document["files"]
    if kind == "a cell without end":
        assert status == 2
        assert "not CSV" in err
    else:
        assert status == 0
        assert file["prompts"] >= 1
        assert set(file["skipped"]) <= {"too_long", "bad_json"}
        assert file["skipped"]
