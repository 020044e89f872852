"""Counts of many responses, gathered one by one, that do not stay in memory: they are read where they lie on the disk.

Whoever goes through all of them does so block by block, and gives the pages of each back.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from specprobe.scratch import nameless_file, write_scratch

# Rows that are in memory at once, and how many bytes of them need no file.
BLOCK_ROWS = 1024
MEMORY_BYTES = 1 << 22

Table = NDArray[Any]


class GrowingTable:
    """A table [rows, ...] that is filled row after row; one of many megabytes goes to a file that has no name.

    Expectations stay in memory: other than of whole numbers, their sums depend on where blocks end.
    """

    def __init__(self, num_rows: int, shape: tuple[int, ...], kind: type) -> None:
        self._shape, self._kind = (num_rows, *shape), np.dtype(kind)
        num_bytes = self._kind.itemsize * int(np.prod(self._shape))
        self._file: IO[bytes] | None = None
        self._begin = 0
        if num_bytes > MEMORY_BYTES and self._kind.kind == "i" and hasattr(mmap.mmap, "madvise"):
            self._file = nameless_file()
        self._rows: Table = np.zeros((BLOCK_ROWS if self._file else num_rows, *shape), dtype=kind)

    def row(self, number: int) -> Table:
        """A row to fill, of zeros; those before it are done with."""
        if number - self._begin == len(self._rows):
            self._write()
        return self._rows[number - self._begin]

    def finished(self) -> Table:
        """The whole of it, not to be written to where it lies on the disk."""
        if self._file is None:
            return self._rows
        with self._file:
            self._write()
            pages: mmap.mmap | bytes
            try:
                pages = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError:
                # A mapping keeps a file open, of which there may be too many.
                self._file.seek(0)
                pages = self._file.read()
        return np.frombuffer(pages, dtype=self._kind)[: int(np.prod(self._shape))].reshape(self._shape)

    def _write(self) -> None:
        assert self._file is not None
        write_scratch(self._file, self._rows.tobytes())
        self._begin += len(self._rows)
        self._rows[:] = 0


def blocks(table: Table) -> Iterator[Table]:
    """The rows of a table, in order, in one or more blocks; the pages of one that lies on the disk are given back."""
    pages = _pages(table)
    if pages is None:
        yield table
        return
    for begin in range(0, len(table), BLOCK_ROWS):
        yield table[begin : begin + BLOCK_ROWS]
        pages.madvise(mmap.MADV_DONTNEED)


def give_back(table: Table) -> None:
    """A table has been read here and there, and its pages need not stay in memory."""
    if pages := _pages(table):
        pages.madvise(mmap.MADV_DONTNEED)


def _pages(table: Table) -> mmap.mmap | None:
    """What a table that lies on the disk, or a part of one, is mapped by."""
    base: Any = table
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
