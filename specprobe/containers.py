"""Bytes -> rows. Finds out by content what a stream holds and yields its rows one at a time.

A row is one line of JSONL, one element of a JSON array, one record of CSV or Parquet. `line` counts from 1: the
line of the file for JSONL and CSV (where the record starts), the element of a JSON array, the value among
pretty-printed objects, the row of Parquet and of the Hub.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from specprobe.errors import SpecprobeError
from specprobe.json_values import is_clean, mend, read_value
from specprobe.notices import Notice, inert
from specprobe.quiet import quiet_hub
from specprobe.sources import HEAD_BYTES, HUB_PREFIX, ByteStream

MAX_ROW = 256 << 20
"""The longest row read, in bytes: far above any model's context; what is longer must not fill the memory."""

PARQUET_BATCH = 256

PARQUET_BATCH_BYTES = 1 << 31
"""Of a column at most in one batch, if every row of it were as large as all its distinct values together: a dictionary
makes a small file of one large text many times."""

MOST_IN_MEMORY = 4 << 30
"""Of a stream that has to be in memory as a whole."""


class Skip(NamedTuple):
    """A row that holds no prompt, and the reason, one word of the list in docs/formats.md."""

    reason: str


class Row(NamedTuple):
    """Where a row is, what it holds (a JSON value, or why it cannot be read), whether text was mended."""

    line: int
    value: Any
    repaired: bool = False


@dataclass(slots=True)
class Contents:
    """What a stream turned out to hold. `notices` fills while `rows` is consumed."""

    container: str
    rows: Iterator[Row]
    notices: list[Notice]


Quickly = Callable[[bytes], Any]
"""Decodes lines of shapes that it knows; None for others."""


def read_rows(
    stream: ByteStream, text_columns: frozenset[str] = frozenset(), quickly: Quickly | None = None
) -> Contents:
    """Detect the container and open it. `text_columns` are names that mark the header of a CSV file; `quickly` is asked
    first for what a line of JSONL holds.
    """
    notices: list[Notice] = []
    head = stream.peek_head()
    name = stream.name
    if head.startswith(b"PAR1"):
        return Contents("parquet", _parquet_rows(name, stream), notices)
    _refuse_other_encodings(name, head)
    head = head.removeprefix(codecs.BOM_UTF8)
    if not head.strip() and len(head) < HEAD_BYTES:
        what = "only white space" if head else "empty file"
        raise SpecprobeError(f"{name}: no rows ({what}); nothing to read")
    kind = _kind_of(name, head, text_columns)
    buffered = io.BufferedReader(stream, HEAD_BYTES)
    if buffered.peek(3).startswith(codecs.BOM_UTF8):
        buffered.read(3)
    if kind == "jsonl":
        return Contents(kind, _line_rows(buffered, quickly), notices)
    if kind == "csv":
        return Contents(kind, _csv_rows(name, buffered, _delimiter(head)), notices)
    return Contents(kind, _value_rows(_Text(name, buffered), kind == "array", notices), notices)


def _refuse_other_encodings(name: str, head: bytes) -> None:
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise SpecprobeError(f"{name}: looks like UTF-32; save as UTF-8")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SpecprobeError(f"{name}: looks like UTF-16; save as UTF-8")
    start = head[:200]
    odd, even = start[1::2].count(0), start[0::2].count(0)
    # Latin text in UTF-16 has a NUL in every second byte and none between them.
    if max(odd, even) > len(start) // 3 and min(odd, even) < len(start) // 20 + 1:
        raise SpecprobeError(f"{name}: not UTF-8 (looks like UTF-16); save as UTF-8")


OTHER_FILES = {
    b"PK\x03\x04": "a zip archive; unpack it and name the files inside",
    b"BZh": "bzip2 data; unpack it, or use gzip or zstd",
    b"\xfd7zXZ": "xz data; unpack it, or use gzip or zstd",
    b"\x80\x04": "a Python pickle, which is never opened since it can run code; export JSONL",
    b"\x80\x05": "a Python pickle, which is never opened since it can run code; export JSONL",
    b"ARROW1": "an Arrow file; export Parquet or JSONL",
    b"SQLite format 3": "an SQLite database; export JSONL",
    b"%PDF": "a PDF, not JSON; give the log itself",
    b"version https://git-lfs": "a Git LFS pointer; fetch the file with git lfs pull",
}


def _kind_of(name: str, head: bytes, text_columns: frozenset[str]) -> str:
    """ "jsonl", "json" (values one after another), "array" or "csv"; else an error that says what it is."""
    for magic, what in OTHER_FILES.items():
        if head.startswith(magic):
            raise SpecprobeError(f"{name}: {what}")
    text = head.decode("utf-8", "replace").lstrip()
    if text.startswith(("{", "[")):
        return _json_kind(text)
    if text.startswith("<"):
        line = head[: len(head) - len(head.lstrip())].count(b"\n") + 1
        is_html = re.match(r"<(!doctype\s+html|html|head|body|script)", text, re.IGNORECASE)
        what = "HTML" if is_html else "XML or HTML"
        advice = "perhaps an error page: download the file again"
        raise SpecprobeError(f"{name}: {what}, not JSON (line {line}); {advice}")
    if any(_is_json_line(line, objects=True) for line in text.split("\n", 200)[:200]):
        return "jsonl"
    if _is_json_line(text.split("\n", 1)[0]):
        return "jsonl"
    if _is_csv(name, head, text_columns):
        return "csv"
    advice = "give JSONL, a JSON array, CSV with a header or Parquet"
    raise SpecprobeError(f"{name}: {_plain_kind(head, text)}; {advice}")


def _json_kind(text: str) -> str:
    """Tell lines from a document that spreads over lines, by trying to read the first value."""
    first, newline, rest = text.partition("\n")
    many = bool(newline) and bool(rest.strip())
    document = "array" if text[0] == "[" else "json"
    if not newline:
        return "array" if document == "array" else "jsonl"
    try:
        _, end = _DECODER.raw_decode(text)
    except RecursionError:
        return "jsonl" if many else document
    except json.JSONDecodeError as error:
        if error.pos <= len(first) and many and first.strip() not in ("[", "{"):
            return "jsonl"
        starts_anew = rest.lstrip(" \t\r").startswith(text[0]) and document == "json"
        return "jsonl" if many and starts_anew else document
    except ValueError:
        return "jsonl" if many else document
    if end <= len(first):
        return "jsonl" if many or document == "json" else document
    if document == "array" and text[end:].strip():
        return "json"
    return document


def _is_json_line(line: str, objects: bool = False) -> bool:
    if objects and not line.lstrip().startswith("{"):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _plain_kind(head: bytes, text: str) -> str:
    if head.count(b"\x00") or sum(c == "�" for c in text[:1000]) > 50:
        return "binary data, not JSON"
    stamp = r"\d{4}[-/]\d\d[-/]\d\d|\d\d:\d\d:\d\d|\b(DEBUG|INFO|WARN|WARNING|ERROR)\b"
    if re.search(stamp, text.split("\n", 1)[0][:300]):
        return "a text log, not JSON"
    return "plain text, not JSON"


_DECODER = json.JSONDecoder()


def _line_rows(buffered: BinaryIO, quickly: Quickly | None = None) -> Iterator[Row]:
    """Split on b"\\n" only: U+2028 and U+0085 inside a string are text, not line ends."""
    line = 0
    readline = buffered.readline
    while raw := readline(MAX_ROW):
        line += 1
        if len(raw) == MAX_ROW and not raw.endswith(b"\n"):
            while (raw := readline(HEAD_BYTES)) and not raw.endswith(b"\n"):
                pass
            yield Row(line, Skip("too_long"))
            continue
        if raw.isspace():
            continue
        if quickly is not None and (value := quickly(raw)) is not None:
            yield Row(line, value)
            continue
        try:
            value, repaired = read_value(raw)
        except UnicodeDecodeError:
            value, repaired = Skip("bad_encoding"), False
        except (ValueError, RecursionError):
            value, repaired = Skip("bad_json"), False
        yield Row(line, value, repaired)


class _Text:
    """A window of text over a byte stream. Bad bytes are kept as surrogate escapes, to be found later."""

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self.name = name
        self.window = ""
        self.pos = 0
        self.ended = False
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def more(self) -> bool:
        """Drop what was read and append as much as is pending, so that a long value is parsed few times."""
        if self.ended:
            return False
        self.window = self.window[self.pos :]
        self.pos = 0
        block = self._stream.read(max(HEAD_BYTES, len(self.window)))
        self.ended = not block
        self.window += self._decoder.decode(block, final=self.ended)
        return not self.ended

    def peek(self) -> str:
        """The next character that is not white space, or "" at the end; it is not consumed."""
        while True:
            match = _SPACE.match(self.window, self.pos)
            self.pos = match.end() if match else self.pos
            if self.pos < len(self.window):
                return self.window[self.pos]
            if not self.more():
                return ""


_SPACE = re.compile(r"[ \t\n\r]*")
# Possessive, since backtracking into a string without an end would take exponential time.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)
_DELIMITER = re.compile(r"[,\]{}\[]")
_BAD_BYTE = re.compile("[\udc80-\udcff]")


def _value_rows(text: _Text, in_array: bool, notices: list[Notice]) -> Iterator[Row]:
    """Values of a top-level array or, outside one, values one after another (arrays among them opened)."""
    number = 0
    depth = 0
    if in_array:
        text.peek()
        text.pos += 1
        depth = 1
    while next_char := text.peek():
        if next_char == "]" and depth:
            text.pos += 1
            depth -= 1
        elif next_char == "[" and not depth:
            text.pos += 1
            depth += 1
        elif next_char == "," and (depth or number):
            text.pos += 1
        else:
            number += 1
            row = _next_value(text, number)
            yield row
            if text.ended and text.pos >= len(text.window) and row.value == Skip("bad_json"):
                break
    if depth:
        message = f"the array ends early, after element {number}; the file may be cut: copy it again"
        notices.append(Notice("array_cut", f"{text.name}: {message}"))


def _next_value(text: _Text, number: int) -> Row:
    while True:
        start = text.pos
        try:
            value, end = _DECODER.raw_decode(text.window, start)
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated") or error.pos >= len(text.window) - 16
            if cut and len(text.window) - start < MAX_ROW and text.more():
                continue
            return Row(number, Skip(_skip_value(text)))
        except (ValueError, RecursionError):
            return Row(number, Skip(_skip_value(text)))
        if end == len(text.window) and text.more():
            continue
        text.pos = end
        try:
            if is_clean(value):
                return Row(number, value)
        except RecursionError:
            return Row(number, Skip("bad_json"))
        # A surrogate in the text itself stands for a byte that is not UTF-8; an escaped one is ASCII here.
        if _BAD_BYTE.search(text.window, start, end):
            return Row(number, Skip("bad_encoding"))
        return Row(number, *mend(value))


def _skip_value(text: _Text) -> str:
    """Step over a value that cannot be parsed by balancing its brackets; the reason it is skipped for."""
    if text.peek() not in "{[":
        end = _DELIMITER.search(text.window, text.pos + 1)
        text.pos = end.start() if end else len(text.window)
        return "bad_json"
    while True:
        depth = 0
        for token in _TOKEN.finditer(text.window, text.pos):
            mark = token.group()
            if mark in ("{", "["):
                depth += 1
            elif mark in ("}", "]"):
                depth -= 1
                if depth <= 0:
                    text.pos = token.end()
                    return "bad_json"
        if len(text.window) - text.pos >= MAX_ROW:
            text.pos = len(text.window)
            while text.more():
                text.pos = len(text.window)
            return "too_long"
        if not text.more():
            text.pos = len(text.window)
            return "bad_json"


def plain_name(column: str) -> str:
    """A column name without case, spaces and marks: `Request tokens` and `request_tokens` are the same."""
    return re.sub(r"[\W_]+", "", column).lower()


def _delimiter(head: bytes) -> str:
    first = head.split(b"\n", 1)[0]
    return max((",", "\t", ";"), key=lambda mark: first.count(mark.encode()))


def _is_csv(name: str, head: bytes, text_columns: frozenset[str]) -> bool:
    if b"\x00" in head:
        return False
    first = head.split(b"\n", 1)[0].decode("utf-8", "replace")
    try:
        header = next(csv.reader([first], delimiter=_delimiter(head)), [])
    except csv.Error:
        return False
    if any(len(column) > 80 for column in header):
        return False
    known = any(plain_name(column) in text_columns for column in header)
    return known or (len(header) > 1 and name.lower().endswith((".csv", ".tsv")))


def _csv_rows(name: str, buffered: BinaryIO, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(MAX_ROW)
    text = io.TextIOWrapper(buffered, encoding="utf-8", errors="surrogateescape", newline="")
    lines = _RecordLines(text)
    records = csv.reader(lines, delimiter=delimiter)
    header = None
    while True:
        line = records.line_num + 1
        lines.begin_record()
        try:
            record = next(records, None)
        except csv.Error as error:
            message = f"{name}:{line}: not CSV ({error}); check the quotes from here on"
            raise SpecprobeError(message) from error
        if record is None:
            return
        if header is None:
            header = record
        elif any(_BAD_BYTE.search(cell) for cell in record):
            yield Row(line, Skip("bad_encoding"))
        elif record:
            yield Row(line, dict(zip(header, record, strict=False)))


class _RecordLines:
    """The lines of a table, as csv.reader takes them, up to a length of all lines of a record together."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._left = 0

    def begin_record(self) -> None:
        """What comes now belongs to the next record."""
        self._left = MAX_ROW

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(self._left)
        if not line:
            raise StopIteration
        self._left -= len(line)
        if not self._left:
            raise csv.Error(f"a record of more than {MAX_ROW} characters")
        return line


def _parquet_rows(name: str, stream: ByteStream) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        message = f"{name}: Parquet, and the pyarrow package is missing; pip install pyarrow"
        raise SpecprobeError(message) from error
    try:
        # Parquet is read from its end, so a stream has to be in memory as a whole.
        file = parquet.ParquetFile(_seekable(stream))
        line = 0
        for batch in file.iter_batches(batch_size=_rows_at_once(file.metadata)):
            for value in batch.to_pylist():
                line += 1
                yield Row(line, value)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        message = f"{name}: Parquet, not JSON, and damaged; write it again or give JSONL"
        raise SpecprobeError(message) from error


def _rows_at_once(metadata: Any) -> int:
    """No value is larger than its whole column is in the file, before it is repeated."""
    largest = max(
        (
            metadata.row_group(group).column(column).total_uncompressed_size
            for group in range(metadata.num_row_groups)
            for column in range(metadata.num_columns)
        ),
        default=0,
    )
    return max(1, min(PARQUET_BATCH, PARQUET_BATCH_BYTES // max(largest, 1)))


def _seekable(stream: ByteStream) -> Any:
    plain_file = stream.compression is None and stream.name != "-"
    if plain_file:
        return stream.name
    content = io.BytesIO()
    while block := stream.read(HEAD_BYTES):
        content.write(block)
        if content.tell() > MOST_IN_MEMORY:
            raise SpecprobeError(
                f"{stream.name}: Parquet of more than {MOST_IN_MEMORY >> 20} MiB that is packed or comes through a "
                "pipe; unpack it, and give the file"
            )
    content.seek(0)
    return content


def hub_rows(name: str) -> Contents:
    """Rows of `hf:NAME[:CONFIG][:SPLIT]`, streamed through the `datasets` package."""
    try:
        import datasets
    except ImportError as error:
        raise SpecprobeError(f"{name}: needs the datasets package; pip install datasets") from error
    parts = name.removeprefix(HUB_PREFIX).split(":")
    if not parts[0] or len(parts) > 3:
        message = f"{inert(name, 200)}: not a Hub name; write hf:NAME[:CONFIG][:SPLIT]"
        raise SpecprobeError(message)
    config, split = [*(part or None for part in parts[1:]), None, None][:2]
    try:
        with quiet_hub():
            data = datasets.load_dataset(parts[0], config, split=split, streaming=True)
    except Exception as error:  # whatever a download can raise; the user needs one line
        raise _hub_error(name, error) from error
    if isinstance(data, dict):
        if len(data) != 1:
            splits = ", ".join(inert(key) for key in data)
            advice = f"name one: hf:{parts[0]}:{config or ''}:SPLIT"
            raise SpecprobeError(f"{inert(name, 200)}: has the splits {splits}; {advice}")
        data = next(iter(data.values()))
    return Contents("hub", _hub_iterate(name, data), [])


def _hub_iterate(name: str, data: Any) -> Iterator[Row]:
    line = 0
    try:
        for value in data:
            line += 1
            yield Row(line, value)
    except Exception as error:  # see hub_rows
        raise _hub_error(name, error) from error


def _hub_error(name: str, error: Exception) -> SpecprobeError:
    why = inert(str(error).split("\n", 1)[0], 120) or type(error).__name__
    advice = "check the name and the network, or download the file and give its path"
    return SpecprobeError(f"{inert(name, 200)}: cannot be loaded from the Hub ({why}); {advice}")
