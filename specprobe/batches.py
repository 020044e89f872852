"""Which responses go through a model together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from specprobe.trajectory import TokenIds

Result = TypeVar("Result")

# Results come out in order window by window, so a window bounds what has to wait for its turn.
WINDOW = 64


def windows(sizes: Sequence[int], most: int) -> Iterator[list[list[int]]]:
    """Indices of items of these sizes, in windows of consecutive ones; each window is cut into batches of like size.

    A batch, padded to its largest item, has at most `most` in all; an item larger than that is a batch of its own.
    """
    for start in range(0, len(sizes), WINDOW):
        batches: list[list[int]] = []
        for index in sorted(range(start, min(start + WINDOW, len(sizes))), key=lambda i: (sizes[i], i)):
            # Sizes rise, so the newest item sets the padded size of its batch.
            if batches and (len(batches[-1]) + 1) * sizes[index] <= most:
                batches[-1].append(index)
            else:
                batches.append([index])
        yield batches


def in_order(sizes: Sequence[int], most: int, run: Callable[[list[int]], Iterable[Result]]) -> Iterator[Result]:
    """The result of every item, in order, where `run` gives those of a batch of indices; batches as in `windows`."""
    for window in windows(sizes, most):
        found: dict[int, Result] = {}
        for indices in window:
            found |= zip(indices, run(indices), strict=True)
        yield from (found[index] for index in sorted(found))


def padded_ids(rows: Sequence[TokenIds]) -> NDArray[np.int64]:
    """[B, longest], filled up with 0 on the right, where no token of a causal model looks: no mask is needed."""
    width = max(map(len, rows))
    return np.stack([np.pad(row, (0, width - len(row))) for row in rows]).astype(np.int64)
