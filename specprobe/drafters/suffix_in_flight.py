"""Suffix decoding with several requests in flight: their tokens reach the shared tree as an engine's steps write them.

A closed loop. The first requests of the file start; each step runs one round of every request in flight, in order of
admission; the next of the file takes the place of one that is done, in the step after. A prefill is a step that emits
one token. Within a step a request's new tokens enter the trees and its next draft is looked up before the next
request has its turn (vLLM 0.13 to 0.33, v1/spec_decode/suffix_decoding.py): it sees what those before it in the batch
were just given, and of those behind it what they had a step ago.

Which tokens are in the shared tree when a round starts depends on the rounds of all requests, hence on the depth: each
depth is a walk of its own, with a shared tree of its own. A local tree holds its request's text up to the round,
whenever that is: its drafts are looked up once, for all depths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specprobe.drafters.base import Limits, Proposals, known_tokens
from specprobe.drafters.suffix_match import DraftRules, Drafts, draft_rules, forget_drafts, improve_drafts, new_drafts
from specprobe.drafters.suffix_tree import (
    NEWEST,
    ROOT,
    SuffixTree,
    append_token,
    clear_tree,
    new_tree,
    remove_sequence,
    resume_sequence,
    start_sequence,
    with_room,
)
from specprobe.rounds import visited_rounds
from specprobe.trajectory import Trajectory

if TYPE_CHECKING:
    from specprobe.drafters.suffix import SuffixDrafter


class _Requests(NamedTuple):
    """R requests, their texts one after the other.

    `tokens` [all]: prompt, response and tail of each; `first_token` [R]: where its prompt begins; `num_prompt`,
    `num_output`, `num_known` (response and tail) [R]; `first_output` [R]: where its N output tokens begin among all of
    them [O]; `first_text` [R]: where its part of a shared tree's text begins; `longest` [O]: the most tokens that a
    round may draft there.
    """

    tokens: NDArray[np.int32]
    first_token: NDArray[np.int64]
    num_prompt: NDArray[np.int64]
    num_output: NDArray[np.int64]
    num_known: NDArray[np.int64]
    first_output: NDArray[np.int64]
    first_text: NDArray[np.int64]
    longest: NDArray[np.int64]


class _Drafts(NamedTuple):
    """`Proposals` of all requests side by side, [K, O], and the float32 score of each draft."""

    drafted: NDArray[np.int16]
    accepted: NDArray[np.int16]
    missed: NDArray[np.int32]
    scores: NDArray[np.float32]


class _Progress(NamedTuple):
    """How far the requests of one walk are.

    `emitted` [R]: output tokens, those past the end of a response included; 0 before its prefill. `newest` [R]: see
    `resume_sequence`. `running` [in flight]: in order of admission. `num_evicted` [1]: requests come into the shared
    tree, and leave it, in order of the file.
    """

    emitted: NDArray[np.int64]
    newest: NDArray[np.int64]
    running: NDArray[np.int64]
    num_evicted: NDArray[np.int64]


def propose_in_flight(
    drafter: SuffixDrafter, trajectories: Sequence[Trajectory], depth: int, limits: Limits
) -> Iterator[Proposals]:
    """Proposals for each trajectory with `drafter.in_flight` of them running at a time; 0 where no round starts."""
    requests = _lay_out(trajectories, limits)
    rules = draft_rules(drafter.max_tree_depth, depth, drafter.max_spec_factor, drafter.min_token_prob)
    num_columns = requests.longest.size
    drafts = _Drafts(
        np.zeros((depth, num_columns), dtype=np.int16),
        np.zeros((depth, num_columns), dtype=np.int16),
        np.full((depth, num_columns), -1, dtype=np.int32),
        np.zeros((depth, num_columns), dtype=np.float32),
    )
    local = new_tree(drafter.max_tree_depth, 1)
    for request in range(len(trajectories)):
        local = with_room(local, int(requests.num_prompt[request] + requests.num_output[request]))
        _draft_locally(local, requests, request, rules, drafts)
    for row in range(depth):
        _walk(drafter, requests, rules, drafts, row)
    for first, size in zip(requests.first_output.tolist(), requests.num_output.tolist(), strict=True):
        columns = slice(first, first + size)
        drafted, accepted = drafts.drafted[:, columns].copy(), drafts.accepted[:, columns].copy()
        # Elsewhere stands what the local tree alone would draft.
        elsewhere = visited_rounds(drafted, accepted) == 0
        drafted[elsewhere], accepted[elsewhere] = 0, 0
        yield Proposals(drafted, accepted, missed=np.where(elsewhere, -1, drafts.missed[:, columns]))


def _lay_out(trajectories: Sequence[Trajectory], limits: Limits) -> _Requests:
    def ends(sizes: list[int]) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    texts = [known_tokens(trajectory) for trajectory in trajectories]
    prompts = [trajectory.prompt_ids.size for trajectory in trajectories]
    outputs = [trajectory.output_ids.size for trajectory in trajectories]
    known = [text.size - prompt for text, prompt in zip(texts, prompts, strict=True)]
    longest = [limits.longest_drafts(*sizes) for sizes in zip(prompts, outputs, strict=True)]
    return _Requests(
        tokens=np.concatenate([np.empty(0, dtype=np.int32), *texts]),
        first_token=ends([text.size for text in texts])[:-1],
        num_prompt=np.array(prompts, dtype=np.int64),
        num_output=np.array(outputs, dtype=np.int64),
        num_known=np.array(known, dtype=np.int64),
        first_output=ends(outputs)[:-1],
        # One more each: the gap behind it.
        first_text=ends([size + 1 for size in known])[:-1],
        longest=np.concatenate([np.empty(0, dtype=np.int64), *longest]),
    )


def _walk(drafter: SuffixDrafter, requests: _Requests, rules: DraftRules, drafts: _Drafts, row: int) -> None:
    """All rounds of all requests at depth `row` + 1: where they start, drafts of the shared tree take their place."""
    num_requests = requests.num_output.size
    places = min(drafter.in_flight, num_requests)
    progress = _Progress(
        emitted=np.zeros(num_requests, dtype=np.int64),
        newest=np.full(num_requests, ROOT, dtype=np.int64),
        running=np.zeros(places, dtype=np.int64),
        num_evicted=np.zeros(1, dtype=np.int64),
    )
    # Every response has its place in the text from the start, so that all of them can grow.
    text = np.empty(int((requests.num_known + 1).sum()) + 1, dtype=np.int32)
    shared = new_tree(drafter.max_tree_depth, 1)._replace(text=text)
    num_admitted = num_running = 0
    while num_admitted < num_requests or num_running:
        num_new = min(places - num_running, num_requests - num_admitted)
        progress.running[num_running : num_running + num_new] = np.arange(num_admitted, num_admitted + num_new)
        num_admitted, num_running = num_admitted + num_new, num_running + num_new
        running = progress.running[:num_running]
        to_come = int((requests.num_known - progress.emitted)[running].clip(min=0).sum())
        shared = with_room(shared, to_come + num_new)
        fewest = places if num_admitted < num_requests else 1
        num_running = _run_steps(
            shared, requests, rules, drafts, row, progress, num_running, fewest, drafter.max_cached_requests
        )


@njit(cache=True, nogil=True)
def _draft_locally(local: SuffixTree, requests: _Requests, request: int, rules: DraftRules, drafts: _Drafts) -> None:
    """Fill the request's columns with what its own prompt and response propose, at every depth."""
    num_depths = drafts.drafted.shape[0]
    best = new_drafts(num_depths, local.max_depth)
    num_prompt = requests.num_prompt[request]
    first = requests.first_token[request]
    tokens = requests.tokens[first : first + num_prompt + requests.num_known[request]]
    clear_tree(local)
    start_sequence(local)
    for position in range(num_prompt):
        append_token(local, tokens[position])
    for start in range(1, requests.num_output[request]):
        history = num_prompt + start
        append_token(local, tokens[history - 1])
        forget_drafts(best)
        improve_drafts(local, tokens, history, history, rules, best)
        column = requests.first_output[request] + start
        for row in range(num_depths):
            k = min(row + 1, requests.longest[column]) - 1
            if k >= 0:
                _keep(drafts, row, column, best, k)


@njit(cache=True, nogil=True)
def _keep(drafts: _Drafts, row: int, column: int, best: Drafts, k: int) -> None:
    drafts.drafted[row, column] = best.lengths[k]
    drafts.accepted[row, column] = best.matches[k]
    drafts.missed[row, column] = best.wrongs[k] if best.matches[k] < best.lengths[k] else -1
    drafts.scores[row, column] = best.scores[k]


@njit(cache=True, nogil=True)
def _run_steps(
    shared: SuffixTree,
    requests: _Requests,
    rules: DraftRules,
    drafts: _Drafts,
    row: int,
    progress: _Progress,
    num_running: int,
    fewest: int,
    max_cached_requests: int,
) -> int:
    """Engine steps while at least `fewest` requests run; returns how many still do, `progress.running` holds them."""
    depth = row + 1
    best = new_drafts(depth, shared.max_depth)
    while num_running >= fewest:
        num_left = 0
        for place in range(num_running):
            request = progress.running[place]
            num_shared = _emit(shared, requests, drafts, row, progress, request, max_cached_requests)
            start = progress.emitted[request]
            if start >= requests.num_output[request]:
                continue
            progress.running[num_left] = request
            num_left += 1
            column = requests.first_output[request] + start
            k = min(depth, requests.longest[column]) - 1
            if k < 0:
                continue
            num_prompt = requests.num_prompt[request]
            first = requests.first_token[request]
            tokens = requests.tokens[first : first + num_prompt + requests.num_known[request]]
            forget_drafts(best)
            improve_drafts(shared, tokens, num_prompt + start, num_shared, rules, best)
            if best.scores[k] > drafts.scores[row, column]:
                _keep(drafts, row, column, best, k)
        num_running = num_left
    return num_running


@njit(cache=True, nogil=True)
def _emit(
    shared: SuffixTree,
    requests: _Requests,
    drafts: _Drafts,
    row: int,
    progress: _Progress,
    request: int,
    max_cached_requests: int,
) -> int:
    """The request's round of this step, or its prefill: what it emits goes into the shared tree.

    Returns how many of its tokens that tree holds: none once it has been evicted, which can be while it runs.
    """
    emitted, num_evicted = progress.emitted, progress.num_evicted
    start, num_known = emitted[request], requests.num_known[request]
    if start == 0:
        while request - num_evicted[0] >= max_cached_requests:
            oldest = num_evicted[0]
            length = min(emitted[oldest], requests.num_known[oldest])
            remove_sequence(shared, requests.first_text[oldest], length)
            num_evicted[0] += 1
        emitted[request] = 1
    else:
        emitted[request] += drafts.accepted[row, requests.first_output[request] + start] + 1
    if request < num_evicted[0]:
        shared.state[NEWEST] = ROOT
        return 0
    resume_sequence(shared, requests.first_text[request], start, progress.newest[request])
    first = requests.first_token[request] + requests.num_prompt[request]
    end = min(emitted[request], num_known)
    for position in range(start, end):
        append_token(shared, requests.tokens[first + position])
    progress.newest[request] = shared.state[NEWEST]
    return end
