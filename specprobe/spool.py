"""Many records of which few are in memory: the others wait in a file that has no name and is gone with this process.

What is read of a log, and the tokens it is cut into, are gone through in order, time and again, and hardly ever looked
at one by one. So they are kept in blocks, and whoever goes through them holds one.
"""

from __future__ import annotations

import functools
import io
import operator
import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import IO, Any, TypeVar, overload

from specprobe.batches import WINDOW
from specprobe.paths import file_errors
from specprobe.scratch import nameless_file, nameless_place, write_scratch

Item = TypeVar("Item")

# As many as drafters with models look at together.
BLOCK_ITEMS = WINDOW
# For who looks at one by one, hither and thither within a few batches.
BLOCKS_AT_HAND = 8
# Logs that are smaller than this never touch the disk.
MEMORY_BYTES = 1 << 22


class Spool(Sequence[Item]):
    """Records in the order in which they were appended. Two looks at one may give two objects, so nothing may be told
    by identity, here and in any `Part`.

    Within a block what records share is kept once. Raises SpecprobeError where the disk cannot hold them.
    """

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._file: IO[bytes] = io.BytesIO()
        self._ends = array("q", [0])
        self._newest: list[Item] = []
        self._read: dict[int, list[Item]] = {}
        for item in items:
            self.append(item)

    def append(self, item: Item) -> None:
        """Keep one more."""
        self._newest.append(item)
        if len(self._newest) == BLOCK_ITEMS:
            self._write(_packed(self._newest))
            self._newest = []

    def cut(self, length: int) -> None:
        """Forget all but the first so many."""
        block, left = divmod(length, BLOCK_ITEMS)
        if block < self._blocks:
            self._newest = self._load(block)
            del self._ends[block + 1 :]
            self._read = {}
        del self._newest[left:]

    def __len__(self) -> int:
        return self._blocks * BLOCK_ITEMS + len(self._newest)

    def __iter__(self) -> Iterator[Item]:
        block = 0
        while block < self._blocks:
            yield from self._load(block)
            block += 1
        yield from self._newest

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        block, place = divmod(range(len(self))[index], BLOCK_ITEMS)
        if block == self._blocks:
            return self._newest[place]
        if block not in self._read:
            if len(self._read) == BLOCKS_AT_HAND:
                del self._read[next(iter(self._read))]
            self._read[block] = self._load(block)
        return self._read[block][place]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __del__(self) -> None:
        self._file.close()

    @property
    def _blocks(self) -> int:
        return len(self._ends) - 1

    def _write(self, block: bytes) -> None:
        begin = self._ends[-1]
        if isinstance(self._file, io.BytesIO) and begin + len(block) > MEMORY_BYTES:
            self._file = _on_disk(self._file)
        self._file.seek(begin)
        write_scratch(self._file, block)
        self._ends.append(begin + len(block))

    def _load(self, block: int) -> list[Item]:
        begin, end = self._ends[block], self._ends[block + 1]
        with file_errors(nameless_place()):
            self._file.seek(begin)
            found: list[Item] = pickle.loads(self._file.read(end - begin))
        return found


class Part(Sequence[Item]):
    """Some records of a sequence, by their places in it."""

    def __init__(self, whole: Sequence[Item], places: Sequence[int]) -> None:
        self.whole, self._places = whole, places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Item]:
        return (self.whole[place] for place in self._places)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Part[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Part[Item]:
        if isinstance(index, slice):
            return Part(self.whole, self._places[index])
        return self.whole[self._places[index]]


def beside(records: Sequence[Any]) -> Spool[Any] | list[Any]:
    """An empty sequence whose records are kept as these are: as the objects that they are, or out of the way."""
    while isinstance(records, Part):
        records = records.whole
    return Spool() if isinstance(records, Spool) else []


def _on_disk(file: io.BytesIO) -> IO[bytes]:
    """The same bytes in a file that only this process can reach, where there can be one."""
    disk = nameless_file()
    if disk is None:
        return file
    with file.getbuffer() as content:
        write_scratch(disk, content)
    file.close()
    return disk


class _Pickler(pickle.Pickler):
    """Records by their fields, which is half the work; and mappings that cannot be written to."""

    def reducer_override(self, item: Any) -> Any:
        """How to make an equal one: a function and what it takes."""
        if type(item) is MappingProxyType:
            return _read_only, (dict(item),)
        if is_dataclass(item) and not isinstance(item, type):
            return type(item), _fields_of(type(item))(item)
        return NotImplemented


@functools.cache
def _fields_of(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Gives the values of all fields, in the order in which the constructor takes them."""
    names = [field.name for field in fields(kind)]
    return operator.attrgetter(*names) if len(names) > 1 else lambda item: tuple(getattr(item, name) for name in names)


def _read_only(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    """The type itself has no name that it could be found by."""
    return MappingProxyType(mapping)


def _packed(items: list[Any]) -> bytes:
    packed = io.BytesIO()
    _Pickler(packed, pickle.HIGHEST_PROTOCOL).dump(items)
    return packed.getvalue()
