"""Suffix decoding: draft the most frequent continuation of the newest tokens, from this and earlier requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specprobe.drafters.base import Adoption, Limits, Proposals, known_tokens, read_option, refuse_unknown_options
from specprobe.drafters.suffix_tree import (
    CHILD,
    COUNT,
    NONE,
    NUM_ACTIVE,
    NUM_REMOVED,
    ROOT,
    RUN_START,
    TAIL,
    TEXT_END,
    TEXT_GAP,
    TOKEN,
    SuffixTree,
    append_token,
    clear_tree,
    copy_tree,
    find_child,
    new_tree,
    remove_sequence,
    start_sequence,
    with_room,
)
from specprobe.profiles import Profile
from specprobe.rounds import walk_rounds
from specprobe.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class SuffixDrafter:
    """Suffix decoding as vLLM runs arctic-inference 0.1.1; option names are vLLM's without their prefix.

    `max_tree_depth`: longest context plus draft. `max_cached_requests`: responses kept in the tree that requests
    share, oldest out first; 0 for none. `max_spec_factor`: a match of m tokens drafts at most factor * m.
    `min_token_prob`: a draft stops before its estimated probability falls below this.
    """

    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1
    name: str = "suffix"
    fixed_length: bool = False
    adoption: Adoption = Adoption.FLAG

    @property
    def config(self) -> Mapping[str, Any]:
        """The four settings of vLLM's suffix decoding."""
        return {
            "max_tree_depth": self.max_tree_depth,
            "max_cached_requests": self.max_cached_requests,
            "max_spec_factor": self.max_spec_factor,
            "min_token_prob": self.min_token_prob,
        }

    def proposals(self, trajectories: Iterable[Trajectory], depth: int, limits: Limits) -> Iterator[Proposals]:
        """One request at a time, in the order given: each sees the responses of those before it.

        The tokens an engine accepted past the end of a response stay in its shared tree. They depend on the
        depth, so once a response with a recorded tail has been seen, every depth keeps a shared tree of its own.
        """
        local = new_tree(self.max_tree_depth, 1)
        shared = [_SharedTree(self)]
        for trajectory in trajectories:
            if trajectory.tail_ids.size and len(shared) == 1 and depth > 1:
                shared = [shared[0], *(shared[0].copy() for _ in range(depth - 1))]
            tokens = known_tokens(trajectory)
            num_prompt, num_output = trajectory.prompt_ids.size, trajectory.output_ids.size
            longest = limits.longest_drafts(num_prompt, num_output)
            local = with_room(local, num_prompt + num_output)
            drafted = np.zeros((depth, num_output), dtype=np.int16)
            accepted = np.zeros((depth, num_output), dtype=np.int16)
            missed = np.full((depth, num_output), -1, dtype=np.int32)
            for row, tree in enumerate(shared):
                rows = slice(None) if len(shared) == 1 else slice(row, row + 1)
                tree.begin(num_output + trajectory.tail_ids.size)
                _propose(
                    local,
                    tree.tree,
                    self.max_cached_requests > 0,
                    tokens,
                    num_prompt,
                    1 if len(shared) == 1 else row + 1,
                    longest,
                    np.float32(self.max_spec_factor),
                    np.float32(self.min_token_prob),
                    drafted[rows],
                    accepted[rows],
                    missed[rows],
                )
                overrun = 0
                if trajectory.tail_ids.size:
                    overrun = _tokens_past_end(drafted, accepted, row + 1, tokens.size - num_prompt)
                tree.finish(tokens[num_prompt:], num_output + min(overrun, trajectory.tail_ids.size))
            yield Proposals(drafted, accepted, missed=missed)


def make_suffix(options: Mapping[str, str], profile: Profile) -> SuffixDrafter:  # noqa: ARG001 - one rule for all
    """`suffix[:max_tree_depth=N,max_cached_requests=N,max_spec_factor=F,min_token_prob=P]`."""
    default = SuffixDrafter()
    refuse_unknown_options(options, default.config, "suffix")

    def whole(key: str, low: int, high: int) -> int:
        return read_option(options, key, int(default.config[key]), int, (low, high), "suffix")

    def share(key: str, high: float) -> float:
        return read_option(options, key, float(default.config[key]), float, (0.0, high), "suffix")

    return SuffixDrafter(
        max_tree_depth=whole("max_tree_depth", 1, 1024),
        max_cached_requests=whole("max_cached_requests", 0, 10**9),
        max_spec_factor=share("max_spec_factor", 1024.0),
        min_token_prob=share("min_token_prob", 1.0),
    )


class _SharedTree:
    """The tree over the responses of all requests, with the order in which they leave it."""

    def __init__(self, drafter: SuffixDrafter) -> None:
        self.max_cached_requests = drafter.max_cached_requests
        self.tree = new_tree(drafter.max_tree_depth, 1)
        self.cached: deque[tuple[int, int]] = deque()

    def copy(self) -> _SharedTree:
        """An independent tree with the same content."""
        other = object.__new__(_SharedTree)
        other.max_cached_requests = self.max_cached_requests
        other.tree = copy_tree(self.tree)
        other.cached = self.cached.copy()
        return other

    def begin(self, num_tokens: int) -> None:
        """Start a request; the oldest ones leave where there are too many."""
        if not self.max_cached_requests:
            return
        while len(self.cached) >= self.max_cached_requests:
            remove_sequence(self.tree, *self.cached.popleft())
        self.tree = with_room(self.tree, num_tokens)
        start_sequence(self.tree)

    def finish(self, output: NDArray[np.int32], num_tokens: int) -> None:
        """Add what the last round wrote, up to `num_tokens` of `output`; keep the response."""
        if not self.max_cached_requests:
            return
        start = int(self.tree.state[RUN_START])
        _append_rest(self.tree, output, num_tokens)
        self.cached.append((start, num_tokens))


@njit(cache=True, nogil=True)
def _append_rest(tree: SuffixTree, output: NDArray[np.int32], num_tokens: int) -> None:
    """Append what is missing of the first `num_tokens` of `output`."""
    have = tree.state[TEXT_END] - tree.state[RUN_START]
    for position in range(have, num_tokens):
        append_token(tree, output[position])


@njit(cache=True, nogil=True)
def _tokens_past_end(drafted: NDArray[np.int16], accepted: NDArray[np.int16], depth: int, num_known: int) -> int:
    """How many tokens the last round emits beyond the end of the response."""
    unused = np.zeros(drafted.shape[0], dtype=np.int32)
    _, end = walk_rounds(drafted, accepted, depth, num_known, unused, unused, unused)
    return end - drafted.shape[1]


@njit(cache=True, nogil=True)
def _propose(
    local: SuffixTree,
    shared: SuffixTree,
    use_shared: bool,
    tokens: NDArray[np.int32],
    num_prompt: int,
    first_depth: int,
    longest: NDArray[np.int64],
    factor: np.float32,
    floor: np.float32,
    drafted: NDArray[np.int16],
    accepted: NDArray[np.int16],
    missed: NDArray[np.int32],
) -> None:
    """Fill `drafted`, `accepted` and `missed` [rows, N]; row j is depth first_depth + j.

    The local tree holds the prompt and the response, the shared one responses only, the running one included.
    """
    num_depths, num_output = drafted.shape
    last_depth = first_depth + num_depths - 1
    lengths = np.empty((2, last_depth), dtype=np.int64)
    matches = np.empty((2, last_depth), dtype=np.int64)
    wrongs = np.empty((2, last_depth), dtype=np.int64)
    scores = np.empty((2, last_depth), dtype=np.float32)
    partial = np.empty(last_depth + 1, dtype=np.float32)
    clear_tree(local)
    start_sequence(local)
    for position in range(num_prompt):
        append_token(local, tokens[position])
    for start in range(1, num_output):
        history = num_prompt + start
        append_token(local, tokens[history - 1])
        found = lengths[0], matches[0], wrongs[0], scores[0]
        _best_drafts(local, tokens, history, history, factor, floor, partial, *found)
        if use_shared:
            append_token(shared, tokens[history - 1])
            found = lengths[1], matches[1], wrongs[1], scores[1]
            _best_drafts(shared, tokens, history, start, factor, floor, partial, *found)
        for row in range(num_depths):
            # Near the context limit the engine asks for a shallower draft, which may come from another match.
            k = min(first_depth + row, longest[start]) - 1
            if k < 0:
                continue
            source = 1 if use_shared and scores[1, k] > scores[0, k] else 0
            drafted[row, start] = lengths[source, k]
            accepted[row, start] = matches[source, k]
            if matches[source, k] < lengths[source, k]:
                missed[row, start] = wrongs[source, k]


@njit(cache=True, nogil=True)
def _best_drafts(
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
            longer, tail = _walk(tree, tokens, history - match, match)
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


@njit(cache=True, nogil=True)
def _walk(tree: SuffixTree, tokens: NDArray[np.int32], start: int, length: int) -> tuple[int, int]:
    """Where `tokens[start : start + length]` ends in the tree: its node, and its place in that node's tail or NONE.

    (NONE, NONE) where the tree does not hold it.
    """
    node = ROOT
    tail = NONE
    for position in range(start, start + length):
        if tail == NONE and tree.nodes[node, CHILD] == NONE:
            tail = tree.nodes[node, TAIL]
            if tail == NONE:
                return NONE, NONE
        if tail != NONE:
            if tree.text[tail] != tokens[position]:
                return NONE, NONE
            tail += 1
            continue
        node = find_child(tree, node, tokens[position])
        if node == NONE:
            return NONE, NONE
    return node, tail
