"""A random order of the prompts of which every beginning holds the same share of each kind of prompt.

Kinds (strata) are the groups of the log and, within each, the quarters of its prompts by length. In its kind a prompt
stands at a random place: the j-th of m, from 0, at (j + u) / m, with one u from 0 to 1 for each kind. This is
systematic sampling with random starts (Cochran, Sampling Techniques, 1977, chapter 8). The prompts below any x are
m x of each kind, off by less than 1, and every prompt is below x with probability x: none is favoured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specprobe.prompt import Prompt

LENGTH_CLASSES = 4

Indices = NDArray[np.intp]


def draw_order(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """All of the prompts in such an order. Same prompts and seed, same order."""
    return [prompts[index] for index in stratified_order(kinds_of(prompts), seed).tolist()]


def kinds_of(prompts: Sequence[Prompt]) -> Indices:
    """[P]: the number of each prompt's kind, from 0 without a gap."""
    members: dict[str | None, list[int]] = {}
    for index, prompt in enumerate(prompts):
        members.setdefault(prompt.group, []).append(index)
    kinds = np.zeros(len(prompts), dtype=np.intp)
    for group, indices in enumerate(members.values()):
        by_length = sorted(indices, key=lambda index: _length(prompts[index]))
        for rank, index in enumerate(by_length):
            kinds[index] = LENGTH_CLASSES * group + LENGTH_CLASSES * rank // len(by_length)
    return np.unique(kinds, return_inverse=True)[1].astype(np.intp)


def stratified_order(kinds: Indices, seed: int) -> Indices:
    """[P]: a permutation; `kinds` [P] are numbers from 0 without a gap."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(kinds))
    by_kind = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    sizes = np.bincount(kinds)
    # Spread evenly, so that what kinds are ahead or behind cancels where there are many.
    starts = (rng.permutation(len(sizes)) + rng.random(len(sizes))) / len(sizes)
    ranks = np.arange(len(kinds)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    places = (ranks + np.repeat(starts, sizes)) / np.repeat(sizes, sizes)
    return by_kind[np.argsort(places, kind="stable")]


def _length(prompt: Prompt) -> int:
    """In tokens where the log has them, else in characters: before there is a tokenizer."""
    if prompt.token_ids is not None:
        return len(prompt.token_ids)
    return len(prompt.text or "") + sum(len(message.content) for message in prompt.messages)
