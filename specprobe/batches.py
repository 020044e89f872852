"""Which responses go through a model together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
