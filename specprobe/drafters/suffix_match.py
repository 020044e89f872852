"""The best draft that one suffix tree has after a text, for every depth at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specprobe.drafters.suffix_tree import (
    CHILD,
    COUNT,
    LENGTH,
    LINK,
    NEWEST,
    NONE,
    ROOT,
    TARGET,
    TEXT_GAP,
    TOKEN,
    SuffixTree,
    borrowing,
    borrowing_inline,
    find_path,
)


class DraftRules(NamedTuple):
    """What decides drafts besides the text, in the types of arctic-inference.

    `limits` [D]: the most tokens that a match of so many may draft, at the largest depth; it rises to `peak`, the last
    match with the largest one, and falls from there, as a match and its draft have at most D tokens together.
    `floor`: a draft stops before its estimated probability falls below this.
    """

    limits: NDArray[np.int64]
    peak: int
    floor: np.float32


class Drafts(NamedTuple):
    """The best drafts of one text so far, at each depth 1..K, [K].

    `lengths`; `matches`: how many of its leading tokens equal the text that follows; `wrongs`: the first that does not
    (where it is longer); `scores`: the float32 sum of its tokens' estimated probabilities, 0 without a draft. Scratch:
    `partial` [K + 1] (the sums of the draft that is looked at), `longer` [2, D] (see `improve_drafts`).
    """

    lengths: NDArray[np.int64]
    matches: NDArray[np.int64]
    wrongs: NDArray[np.int64]
    scores: NDArray[np.float32]
    partial: NDArray[np.float32]
    longer: NDArray[np.int64]


def draft_rules(max_depth: int, depth: int, factor: float, floor: float) -> DraftRules:
    """The rules for drafts of up to `depth` tokens."""
    match = np.arange(max_depth)
    # The product is a float32, the sum is not.
    by_factor = ((match.astype(np.float32) * np.float32(factor)).astype(np.float64) + 1e-6).astype(np.int64)
    limits = np.minimum(np.minimum(by_factor, depth), max_depth - match)
    return DraftRules(limits, int(np.flatnonzero(limits == limits.max())[-1]), np.float32(floor))


@njit(cache=True, nogil=True)
def new_drafts(depth: int, max_depth: int) -> Drafts:
    """Room for the drafts of depths 1..`depth`; none yet."""
    return Drafts(
        np.zeros(depth, dtype=np.int64),
        np.zeros(depth, dtype=np.int64),
        np.zeros(depth, dtype=np.int64),
        np.zeros(depth, dtype=np.float32),
        np.zeros(depth + 1, dtype=np.float32),
        np.zeros((2, max_depth), dtype=np.int64),
    )


@borrowing
def forget_drafts(best: Drafts) -> None:
    """Have none again."""
    for k in range(best.lengths.size):
        best.lengths[k] = 0
        best.matches[k] = 0
        best.scores[k] = 0


@borrowing
def improve_drafts(
    tree: SuffixTree,
    tokens: NDArray[np.int32],
    history: int,
    run_length: int,
    rules: DraftRules,
    best: Drafts,
) -> None:
    """Put the drafts that one tree has after `tokens[:history]` in `best`, where their score is higher.

    `run_length`: the newest tokens that it holds as its running sequence. One walk serves all depths, since a
    shallower draft from the same match is a prefix of a deeper one; which match wins depends on the depth. A tie goes
    to the longer match: longest first.
    """
    states = tree.states
    longest = min(tree.max_depth, history) - 1
    state = tree.state[NEWEST]
    if states[state, LENGTH] == run_length:
        # All of the running sequence has been seen elsewhere, perhaps with the tokens before it.
        match = run_length
        while match < longest:
            longer, tail = find_path(tree, tokens, history - match - 1, match + 1)
            if longer == NONE and tail == NONE:
                break
            match += 1
            best.longer[0, match] = longer
            best.longer[1, match] = tail
        while match > run_length:
            _consider(tree, tokens, history, best.longer[0, match], best.longer[1, match], match, match, rules, best)
            match -= 1
    # Matches that end in the same state differ in nothing but how much they may draft.
    while state != ROOT:
        link = states[state, LINK]
        shortest, longest = states[link, LENGTH] + 1, min(longest, states[state, LENGTH])
        if shortest <= longest:
            _consider(tree, tokens, history, state, NONE, shortest, longest, rules, best)
        state = link


@borrowing_inline
def _consider(
    tree: SuffixTree,
    tokens: NDArray[np.int32],
    history: int,
    state: int,
    tail: int,
    shortest: int,
    longest: int,
    rules: DraftRules,
    best: Drafts,
) -> None:
    """Put the drafts from matches of `shortest` to `longest` tokens, which all end in `state` or at `tail`, in `best`.

    Each time where its score is higher.
    """
    states, edges, text = tree.states, tree.edges, tree.text
    depth = best.lengths.size
    partial = best.partial
    limit = min(depth, rules.limits[min(max(rules.peak, shortest), longest)])
    length, matched, wrong = 0, 0, -1
    probability, score = np.float32(1.0), np.float32(0.0)
    while length < limit:
        if tail == NONE:
            edge = states[state, CHILD]
            if edge == NONE:
                break
            target = edges[edge, TARGET]
            count = 1 if target < 0 else states[target, COUNT]
            probability *= np.float32(count) / np.float32(states[state, COUNT])
            if probability < rules.floor:
                break
            token = edges[edge, TOKEN]
            if target < 0:
                tail = ~target
            else:
                state = target
        else:
            token = text[tail]
            if token == TEXT_GAP:
                break
            tail += 1
        if length == 0 and not _may_improve(best, probability, limit):
            return
        if matched == length and history + length < tokens.size and tokens[history + length] == token:
            matched += 1
        elif matched == length:
            wrong = token
        length += 1
        score += probability
        partial[length] = score
    for k in range(depth):
        reached = min(length, k + 1)
        # A longer match that may draft less ties where the last tokens add nothing to the sum.
        least = min(reached, rules.limits[longest])
        while reached > least and partial[reached - 1] == partial[reached]:
            reached -= 1
        if partial[reached] > best.scores[k]:
            best.lengths[k] = reached
            best.matches[k] = min(matched, reached)
            best.wrongs[k] = wrong
            best.scores[k] = partial[reached]


@borrowing_inline
def _may_improve(best: Drafts, probability: np.float32, limit: int) -> bool:
    """Whether a draft of at most `limit` tokens, none of them more probable than the first, can have a higher score."""
    most = np.float32(0.0)
    for k in range(limit):
        most += probability
        if most > best.scores[k]:
            return True
    return False
