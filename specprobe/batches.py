"""Which responses go through a model together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from specprobe.trajectory import TokenIds, Trajectory

Result = TypeVar("Result")

# Tokens of one forward pass over whole texts, padding included.
PASS_TOKENS = 4096

# Results come out in order window by window, so a window bounds what has to wait for its turn.
WINDOW = 64

# A batch of so many tokens, which is about as fast for each as a larger one, takes no item that would make more than so
# much of it padding.
_ENOUGH_TOKENS = 1024
_MOST_PADDING = 0.1


def windows(sizes: Sequence[int], most: int, counts: Sequence[int] | None = None) -> Iterator[list[list[int]]]:
    """Indices of items of these sizes, in windows of consecutive ones; each window is cut into batches of like size.

    A batch, padded to its largest item, has at most `most` in all; an item larger than that is a batch of its own.
    Once it is long enough for a fast pass, little of it is padding.
    `counts`: of items that stay together, as one of them.
    """
    counts = [1] * len(sizes) if counts is None else counts
    for start in range(0, len(sizes), WINDOW):
        batches: list[list[int]] = []
        held = filled = 0
        for index in sorted(range(start, min(start + WINDOW, len(sizes))), key=lambda i: (sizes[i], i)):
            # Sizes rise, so the newest item sets the padded size of its batch.
            padded = (held + counts[index]) * sizes[index]
            used = filled + counts[index] * sizes[index]
            is_wasteful = filled >= _ENOUGH_TOKENS and padded - used > _MOST_PADDING * padded
            if batches and padded <= most and not is_wasteful:
                batches[-1].append(index)
                held, filled = held + counts[index], used
            else:
                batches.append([index])
                held, filled = counts[index], counts[index] * sizes[index]
        yield batches


def text_windows(trajectories: Sequence[Trajectory]) -> Iterator[list[list[int]]]:
    """`windows` of whole texts: indices of those that one forward pass runs over.

    What is cut into the texts of one batch again gives this batch, so a batch may be computed anywhere.
    """
    return windows([_num_tokens(trajectory) for trajectory in trajectories], PASS_TOKENS)


def prompt_windows(trajectories: Sequence[Trajectory]) -> Iterator[list[list[int]]]:
    """As `text_windows`, but texts that begin with one prompt come together, wherever in the order they are.

    Where no two do, these are the batches of `text_windows`.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        by_prompt.setdefault(trajectory.prompt_ids.tobytes(), []).append(index)
    groups: list[list[int]] = []
    sizes: list[int] = []
    for indices in by_prompt.values():
        longest = max(_num_tokens(trajectories[i]) for i in indices)
        step = max(1, PASS_TOKENS // max(1, longest))
        parts = [indices[start : start + step] for start in range(0, len(indices), step)]
        groups += parts
        sizes += [longest] * len(parts)
    for window in windows(sizes, PASS_TOKENS, [len(group) for group in groups]):
        yield [[index for number in batch for index in groups[number]] for batch in window]


def in_order(trajectories: Sequence[Trajectory], run: Callable[[list[int]], Iterable[Result]]) -> Iterator[Result]:
    """The result of every text, in order, where `run` gives those of a batch of indices; see `text_windows`."""
    for window in text_windows(trajectories):
        found: dict[int, Result] = {}
        for indices in window:
            found |= zip(indices, run(indices), strict=True)
        yield from (found[index] for index in sorted(found))


def _num_tokens(trajectory: Trajectory) -> int:
    return trajectory.prompt_ids.size + trajectory.output_ids.size + trajectory.tail_ids.size


def padded_ids(rows: Sequence[TokenIds]) -> NDArray[np.int64]:
    """[B, longest], filled up with 0 on the right, where no token of a causal model looks: no mask is needed."""
    width = max(map(len, rows))
    return np.stack([np.pad(row, (0, width - len(row))) for row in rows]).astype(np.int64)
