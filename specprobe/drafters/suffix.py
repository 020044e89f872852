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
from specprobe.drafters.suffix_in_flight import propose_in_flight
from specprobe.drafters.suffix_match import DraftRules, draft_rules, forget_drafts, improve_drafts, new_drafts
from specprobe.drafters.suffix_tree import (
    RUN_START,
    TEXT_END,
    SuffixTree,
    append_token,
    clear_tree,
    copy_tree,
    forget_text,
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
    `min_token_prob`: a draft stops before its estimated probability falls below this. `in_flight`: how many requests
    fill the shared tree side by side; a fact of the traffic, not one of the settings.
    """

    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1
    name: str = "suffix"
    fixed_length: bool = False
    adoption: Adoption = Adoption.FLAG
    in_flight: int = 1

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

        With more in flight, what each sees is what engine steps have written by then (`propose_in_flight`).

        The tokens an engine accepted past the end of a response stay in its shared tree. They depend on the
        depth, so once a response with a recorded tail has been seen, every depth keeps a shared tree of its own.
        """
        if self.in_flight > 1 and self.max_cached_requests > 0:
            yield from propose_in_flight(self, list(trajectories), depth, limits)
            return
        rules = draft_rules(self.max_tree_depth, depth, self.max_spec_factor, self.min_token_prob)
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
                    rules,
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
        end = int(self.tree.state[TEXT_END])
        gone = self.cached[0][0] if self.cached else end
        # Moving what is left pays where it is the smaller part.
        if 2 * gone > end:
            forget_text(self.tree, gone)
            self.cached = deque((start - gone, length) for start, length in self.cached)
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
    rules: DraftRules,
    drafted: NDArray[np.int16],
    accepted: NDArray[np.int16],
    missed: NDArray[np.int32],
) -> None:
    """Fill `drafted`, `accepted` and `missed` [rows, N]; row j is depth first_depth + j.

    The local tree holds the prompt and the response, the shared one responses only, the running one included.
    """
    num_depths, num_output = drafted.shape
    last_depth = first_depth + num_depths - 1
    best = new_drafts(last_depth, local.max_depth)
    clear_tree(local)
    start_sequence(local)
    for position in range(num_prompt):
        append_token(local, tokens[position])
    for start in range(1, num_output):
        history = num_prompt + start
        append_token(local, tokens[history - 1])
        forget_drafts(best)
        improve_drafts(local, tokens, history, history, rules, best)
        if use_shared:
            append_token(shared, tokens[history - 1])
            improve_drafts(shared, tokens, history, start, rules, best)
        for row in range(num_depths):
            # Near the context limit the engine asks for a shallower draft, which may come from another match.
            k = min(first_depth + row, longest[start]) - 1
            if k < 0:
                continue
            drafted[row, start] = best.lengths[k]
            accepted[row, start] = best.matches[k]
            if best.matches[k] < best.lengths[k]:
                missed[row, start] = best.wrongs[k]
