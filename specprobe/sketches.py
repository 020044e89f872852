"""Statistics of streams of any length in bounded memory: lengths and distinct counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MOST_WAITING = 1 << 14


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, median and largest of some counts; the median is exact below 4096 and within 0.05 % above."""

    min: int
    median: int
    max: int


@dataclass(slots=True)
class Lengths:
    """Collects lengths. Only the 12 leading bits of a length are kept for the median, so bins are few.

    `waiting`: lengths that are still to be put into bins, which many at a time takes a fraction of the time.
    """

    bins: Counter[int] = field(default_factory=Counter)
    smallest: int | None = None
    largest: int = 0
    waiting: list[int] = field(default_factory=list)

    def add(self, length: int) -> None:
        """Count one length."""
        self.waiting.append(length)
        if len(self.waiting) == MOST_WAITING:
            self._sort_in()

    def _sort_in(self) -> None:
        for length, count in Counter(self.waiting).items():
            shift = max(0, length.bit_length() - 12)
            self.bins[length >> shift << shift] += count
            if self.smallest is None or length < self.smallest:
                self.smallest = length
            self.largest = max(self.largest, length)
        self.waiting.clear()

    def spread(self) -> Spread | None:
        """None where nothing was counted. The median is the lower of the two middle ones."""
        self._sort_in()
        if self.smallest is None:
            return None
        rank = (self.bins.total() + 1) // 2
        for value in sorted(self.bins):
            rank -= self.bins[value]
            if rank <= 0:
                return Spread(self.smallest, max(value, self.smallest), self.largest)
        raise AssertionError("the bins hold as many lengths as were counted")


@dataclass(slots=True)
class Distinct:
    """Counts distinct 64-bit keys: exactly up to `limit`, above it by adaptive sampling (Wegman).

    Once more than `limit` keys are held, only those whose lowest `depth` bits are zero are kept, each standing for
    2^depth. The standard error is about 1.2 / sqrt(limit), 0.24 % by default.
    """

    limit: int = 1 << 18
    depth: int = 0
    keys: set[int] = field(default_factory=set)

    def add(self, key: int) -> None:
        """Count a key, which must be spread evenly (a digest)."""
        if key & ((1 << self.depth) - 1):
            return
        keys = self.keys
        keys.add(key)
        while len(keys) > self.limit:
            self.depth += 1
            mask = (1 << self.depth) - 1
            self.keys = keys = {kept for kept in keys if not kept & mask}

    @property
    def count(self) -> int:
        """How many distinct keys there were."""
        return len(self.keys) << self.depth

    @property
    def is_exact(self) -> bool:
        """False once the count is an estimate."""
        return self.depth == 0
