"""The best draft that one suffix tree has after a text, for every depth at once."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specprobe.drafters.suffix_tree import (
    CHILD,
    COUNT,
    NONE,
    NUM_ACTIVE,
    NUM_REMOVED,
    TAIL,
    TEXT_GAP,
    TOKEN,
    SuffixTree,
    find_path,
)


@njit(cache=True, nogil=True)
def best_drafts(
    tree: SuffixTree,
    tokens: NDArray[np.int32],
    history: int,
    run_length: int,
    factor: np.float32,
    floor: np.float32,
    partial: NDArray[np.float32],
    lengths: NDArray[np.int64],
    matches: NDArray[np.int64],
    wrongs: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> None:
    """The best draft of one tree after `tokens[:history]`, for every depth 1..K at once.

    For each depth: its length, how many of its leading tokens equal the text that follows, the first that does not
    (where it is longer), and its score, the float32 sum of its tokens' estimated probabilities. `run_length`: the
    newest tokens that this tree holds as its running sequence. A tie goes to the longer match. One walk serves all
    depths, since a shallower draft from the same match is a prefix of a deeper one; which match wins depends on the
    depth.
    """
    nodes = tree.nodes
    text = tree.text
    max_depth = tree.active.size - 1
    depth = lengths.size
    lengths[:] = 0
    matches[:] = 0
    scores[:] = 0
    partial[0] = 0
    node, tail = NONE, NONE
    length, matched, wrong = 0, 0, -1
    probability, score = np.float32(1.0), np.float32(0.0)
    is_over = False
    last_count = 0
    for match in range(1, min(max_depth, history)):
        if match <= tree.state[NUM_ACTIVE]:
            longer = tree.active[match]
            # Where a longer match occurs as often as the shorter one it occurs at the same places, so its draft goes on
            # from the shorter one's. Removed sequences may have left another order of equals: then it is walked anew.
            is_same = nodes[longer, COUNT] == last_count and tree.state[NUM_REMOVED] == 0
            last_count = nodes[longer, COUNT]
        elif match <= run_length:
            # Seen nowhere but here: it matches, and so do all longer ones, but nothing follows them.
            break
        else:
            longer, tail = find_path(tree, tokens, history - match, match)
            if longer == NONE:
                break
            is_same = False
        if not is_same:
            node = longer
            if match <= run_length:
                tail = NONE
            length, matched, wrong = 0, 0, -1
            probability, score = np.float32(1.0), np.float32(0.0)
            is_over = False
        limit = min(depth, int(np.float32(match) * factor + 1e-6), max_depth - match)
        while length < limit and not is_over:
            if tail == NONE and nodes[node, CHILD] == NONE:
                tail = nodes[node, TAIL]
                is_over = tail == NONE
                continue
            if tail == NONE:
                child = nodes[node, CHILD]
                probability *= np.float32(nodes[child, COUNT]) / np.float32(nodes[node, COUNT])
                node = child
                token = nodes[child, TOKEN]
                is_over = bool(probability < floor)
            else:
                token = text[tail]
                tail += 1
                is_over = token == TEXT_GAP
            if is_over:
                break
            if matched == length and history + length < tokens.size and tokens[history + length] == token:
                matched += 1
            elif matched == length:
                wrong = token
            length += 1
            score += probability
            partial[length] = score
        for k in range(depth):
            reached = min(length, limit, k + 1)
            if partial[reached] >= scores[k]:
                lengths[k] = reached
                matches[k] = min(matched, reached)
                wrongs[k] = wrong
                scores[k] = partial[reached]
