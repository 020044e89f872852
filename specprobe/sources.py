"""What the user named (file, folder, glob, `-`) -> byte streams, decompressed by magic bytes, never by name."""

from __future__ import annotations

import glob
import hashlib
import io
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from gzip import BadGzipFile, GzipFile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from specprobe.errors import SpecprobeError
from specprobe.notices import Notice, inert

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STDIN = "-"
HUB_PREFIX = "hf:"
HEAD_BYTES = 1 << 20
"""How much of a stream may be looked at to tell what it holds."""

DATA_SUFFIXES = frozenset(
    (".json", ".jsonl", ".ndjson", ".jsonlines", ".csv", ".tsv", ".parquet", ".traj", ".gz", ".gzip", ".zst", ".zstd")
)
"""Names worth opening inside a folder; a file that the user names is opened whatever it is called."""


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to read: a file, standard input (`-`) or a Hub data set (`hf:...`).

    `chosen` says that the user named this very file; a file found in a folder may turn out not to be a log.
    """

    name: str
    chosen: bool = True

    @property
    def num_bytes(self) -> int:
        """Of the file; 0 for what has no size."""
        try:
            return Path(self.name).stat().st_size if self.name != STDIN and not self.is_hub else 0
        except OSError:
            return 0

    @property
    def is_hub(self) -> bool:
        """Whether rows come from the Hugging Face Hub instead of bytes."""
        return self.name.startswith(HUB_PREFIX)


@dataclass(frozen=True, slots=True)
class Found:
    """The sources behind the user's arguments, in the order given, and what was left aside while finding them."""

    sources: tuple[Source, ...]
    notices: tuple[Notice, ...] = ()


def find_sources(names: Sequence[str]) -> Found:
    """Resolve files, folders (searched to the bottom, in name order), globs, `-` and `hf:` names."""
    if not names:
        raise SpecprobeError("no prompts given; name a file, a folder, a glob, - or hf:NAME")
    sources: list[Source] = []
    notices: list[Notice] = []
    for name in names:
        if not name:
            # Python takes it for the folder it is in: an unset variable of a script is no wish to read that.
            raise SpecprobeError("prompts: an empty name; name a file, a folder, a glob, - or hf:NAME")
        if name == STDIN or name.startswith(HUB_PREFIX):
            sources.append(Source(name))
        elif is_folder(name):
            found = _in_folder(name)
            sources += found.sources
            notices += found.notices
        else:
            sources += _files(name)
    unique = {source.name: source for source in reversed(sources)}
    ordered = [source for source in sources if unique.get(source.name) is source]
    return Found(tuple(ordered), tuple(notices))


def file_hashes(names: Sequence[str]) -> list[dict[str, str]]:
    """Name and SHA-256 of every file behind the user's arguments, as it lies there.

    A stream cannot be read twice, and what has gone since it was read has no hash: both are left out.
    """
    hashes = []
    with suppress(SpecprobeError):
        for source in find_sources(names).sources:
            with suppress(OSError, ValueError):
                if not source.is_hub and Path(source.name).is_file():
                    with Path(source.name).open("rb") as file:
                        digest = hashlib.file_digest(file, "sha256").hexdigest()
                    hashes.append({"name": source.name, "sha256": digest})
    return hashes


def is_folder(name: str) -> bool:
    """Whether this names a folder; what cannot be the name of anything does not."""
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def _files(name: str) -> list[Source]:
    try:
        exists = Path(name).exists()
    except (OSError, ValueError) as error:
        raise SpecprobeError(f"{inert(name, 200)}: cannot be opened ({error}); check the path") from error
    if exists:
        return [Source(name)]
    if any(mark in name for mark in "*?["):
        # pathlib's glob cannot take an absolute pattern.
        paths = glob.glob(name, recursive=True)  # noqa: PTH207
        matches = sorted(path for path in paths if Path(path).is_file())
        if matches:
            return [Source(match) for match in matches]
        raise SpecprobeError(f"{inert(name, 200)}: no file matches this pattern; check it")
    raise SpecprobeError(f"{inert(name, 200)}: no such file or folder; check the path")


def _in_folder(name: str) -> Found:
    """Data files below a folder. Hidden files, `_SUCCESS`-like markers and empty files are no data."""
    root = Path(name)
    try:
        entries = sorted(path for path in root.rglob("*") if path.is_file())
    except OSError as error:
        raise _cannot_read(name, error) from error
    plain = [path for path in entries if not _is_hidden(path, root)]
    data = [path for path in plain if is_data_file(path, root)]
    filled = [p for p in data if p.stat().st_size]
    if not filled:
        raise SpecprobeError(
            f"{name}: a folder without data files ({len(entries)} other files); "
            "give a file, or a folder with .jsonl, .json, .csv or .parquet files"
        )
    notices = []
    if len(plain) > len(data):
        others = len(plain) - len(data)
        message = f"{others} files whose names are not those of data were left out; name them to read them"
        notices.append(Notice("files_left_out", f"{name}: {message}"))
    return Found(tuple(Source(str(path), chosen=False) for path in filled), tuple(notices))


def is_data_file(path: Path, root: Path) -> bool:
    """Whether a file below the folder `root` is read with it, going by its name."""
    return not _is_hidden(path, root) and (path.suffix.lower() in DATA_SUFFIXES or not path.suffix)


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part[0] in "._" for part in path.relative_to(root).parts)


def _cannot_read(name: str, error: OSError) -> SpecprobeError:
    why = error.strerror or type(error).__name__
    return SpecprobeError(f"{name}: cannot be read ({why}); check the path and its permissions")


class ByteStream(io.RawIOBase):
    """A forward-only stream of decompressed bytes whose beginning can be looked at first.

    Pipes cannot seek, so what was looked at is kept and handed out again. Every failure of the file or of its
    compression comes out as a `SpecprobeError` that names the source.
    """

    def __init__(self, name: str, read: Callable[[int], bytes], compression: str | None) -> None:
        super().__init__()
        self.name = name
        self.compression = compression
        self._read = read
        self._head = b""

    def readable(self) -> bool:
        """Always: this is a reader."""
        return True

    def peek_head(self, size: int = HEAD_BYTES) -> bytes:
        """The first `size` bytes (fewer only where the stream is shorter), still to be read."""
        while len(self._head) < size:
            block = self._guarded(size - len(self._head))
            if not block:
                break
            self._head += block
        return self._head[:size]

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill `buffer`, first from what was looked at; 0 at the end."""
        view = memoryview(buffer).cast("B")
        if self._head:
            block, self._head = self._head[: len(view)], self._head[len(view) :]
        else:
            block = self._guarded(len(view))
        view[: len(block)] = block
        return len(block)

    def _guarded(self, size: int) -> bytes:
        try:
            return self._read(size)
        except (EOFError, zlib.error, BadGzipFile) as error:
            if isinstance(error, EOFError):
                raise SpecprobeError(f"{self.name}: gzip data ends early; copy the file again") from error
            raise SpecprobeError(f"{self.name}: damaged gzip data ({error}); copy the file again") from error
        except OSError as error:
            raise _cannot_read(self.name, error) from error


class _ZstdReader:
    """Reads zstd frames one after another; unlike the package's own reader it notices a frame cut short."""

    def __init__(self, name: str, raw: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError as error:
            message = f"{name}: zstd data, and the zstandard package is missing; pip install zstandard"
            raise SpecprobeError(message) from error
        self._name = name
        self._raw = raw
        self._new = zstandard.ZstdDecompressor
        self._error = zstandard.ZstdError
        self._frame = self._new().decompressobj()
        self._inside = False
        self._ready = memoryview(b"")

    def read(self, size: int) -> bytes:
        """At most `size` decompressed bytes; b"" at the end."""
        while not self._ready:
            # Small pieces, since one piece of highly repetitive data may unpack to thousands of times its size.
            block = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._inside = self._new().decompressobj(), False
            block = block or self._raw.read(1 << 14)
            if not block:
                if self._inside:
                    raise SpecprobeError(f"{self._name}: zstd data ends early; copy the file again")
                return b""
            self._inside = True
            try:
                self._ready = memoryview(self._frame.decompress(block))
            except self._error as error:
                raise SpecprobeError(f"{self._name}: damaged zstd data; copy the file again") from error
        # A view, since what is left of a piece may be large and would else be copied each time.
        block, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return block


@contextmanager
def open_source(source: Source, on_read: Callable[[int], None] | None = None) -> Iterator[ByteStream]:
    """Open a file or standard input and take off gzip or zstd, as its first bytes tell.

    `on_read` is called with the number of bytes of each piece that is read, as they lie on the disk.
    """
    if source.name == STDIN:
        yield _decompressed(source.name, sys.stdin.buffer)
        return
    try:
        raw = Path(source.name).open("rb")  # noqa: SIM115 - closed below, where other errors may rise
    except OSError as error:
        raise _cannot_read(source.name, error) from error
    with raw:
        yield _decompressed(source.name, raw, on_read)


def _decompressed(name: str, raw: BinaryIO, on_read: Callable[[int], None] | None = None) -> ByteStream:
    def read(size: int) -> bytes:
        block = raw.read(size)
        if on_read:
            on_read(len(block))
        return block

    plain = ByteStream(name, read, None)
    magic = plain.peek_head(4)
    if magic[:2] == b"\x1f\x8b":
        unpacked = GzipFile(fileobj=io.BufferedReader(plain), mode="rb")
        return ByteStream(name, unpacked.read, "gzip")
    if magic == b"\x28\xb5\x2f\xfd":
        return ByteStream(name, _ZstdReader(name, io.BufferedReader(plain)).read, "zstd")
    return plain
