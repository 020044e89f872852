"""The recursion over rounds: which rounds an engine ran while it wrote a text, and what they accepted.

A round that starts at output token s and accepts j drafts emits j + 1 tokens, and the next round starts at s + j + 1.
The prefill emits token 0 without a draft, so the first round starts at token 1 (vLLM 0.32, and docs/method.md).
For one-hot drafts every acceptance probability a_{s,i} is 0 or 1, so P(a round starts at s) is too, and the recursion
is a walk. For sampled drafts it is a forward recursion over these probabilities, and the counts are expectations.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def walk_rounds(
    drafted: NDArray[np.int16],
    accepted: NDArray[np.int16],
    depth: int,
    num_known: int,
    drafted_at: NDArray[np.int32],
    at_risk_at: NDArray[np.int32],
    accepted_at: NDArray[np.int32],
) -> tuple[int, int]:
    """Count the rounds of one response at one depth.

    `drafted`, `accepted` [K, N]: a drafter's proposals (see `Proposals`), row k-1 for depth k. `num_known` >= N
    counts the output tokens that are known, the recorded tail included. Adds to position i-1 of `drafted_at`
    (rounds whose draft had at least i tokens), `at_risk_at` (... and positions 1..i-1 were accepted, and what the
    target wrote at position i is known) and `accepted_at` (... and position i was accepted).
    Returns the number of rounds and where the next round would start (N, or beyond it by what the last round
    emitted past the end).
    """
    num_output = drafted.shape[1]
    start = 1
    rounds = 0
    while start < num_output:
        rounds += 1
        num_drafted = drafted[depth - 1, start]
        num_accepted = accepted[depth - 1, start]
        for i in range(num_drafted):
            drafted_at[i] += 1
        for i in range(min(num_drafted, num_accepted + 1, num_known - start)):
            at_risk_at[i] += 1
        for i in range(num_accepted):
            accepted_at[i] += 1
        start += num_accepted + 1
    return rounds, start


@njit(cache=True, nogil=True)
def walk_all_depths(
    drafted: NDArray[np.int16],
    accepted: NDArray[np.int16],
    num_known: int,
    rounds: NDArray[np.int32],
    drafted_at: NDArray[np.int32],
    at_risk_at: NDArray[np.int32],
    accepted_at: NDArray[np.int32],
) -> None:
    """`walk_rounds` for every depth: `rounds` [K], the others [K, K] with the depth first."""
    for row in range(drafted.shape[0]):
        rounds[row], _ = walk_rounds(
            drafted,
            accepted,
            row + 1,
            num_known,
            drafted_at[row],
            at_risk_at[row],
            accepted_at[row],
        )


@njit(cache=True, nogil=True)
def visited_rounds(drafted: NDArray[np.int16], accepted: NDArray[np.int16]) -> NDArray[np.float64]:
    """Where the rounds of `walk_rounds` start: r_s [D, N], 1 where a round of that depth starts at s, else 0.

    `drafted`, `accepted` [D, N]: of some depths.
    """
    num_depths, num_output = drafted.shape
    starts = np.zeros((num_depths, num_output))
    for row in range(num_depths):
        start = 1
        while start < num_output:
            starts[row, start] = 1.0
            start += accepted[row, start] + 1
    return starts


@njit(cache=True, nogil=True)
def expected_rounds(drafted: NDArray[np.int16], survival: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for sampled drafts: r_s [D, N] = P(a round of that depth starts at s), given the text.

    `drafted` [D, N]: of some depths; `survival` [D, K, N], depth first: S_{s,i} = a_{s,1} ... a_{s,i} in row i-1.
    """
    num_depths, num_positions, num_output = survival.shape
    starts = np.zeros((num_depths, num_output + num_positions + 1))
    for row in range(num_depths):
        if num_output > 1:
            starts[row, 1] = 1.0
        for start in range(1, num_output):
            here = starts[row, start]
            if here == 0.0:
                continue
            reached = 1.0
            inside = min(drafted[row, start], num_output - start)
            for i in range(inside):
                kept = survival[row, i, start]
                starts[row, start + i + 1] += here * (reached - kept)
                reached = kept
            starts[row, start + inside + 1] += here * reached
    return starts[:, :num_output].copy()


def one_hot_survival(accepted: NDArray[np.int16], num_positions: int) -> NDArray[np.float64]:
    """Survival [D, K, N] of drafts of which so many [D, N] are accepted for certain."""
    return (np.arange(num_positions)[:, None] < accepted[:, None, :]).astype(np.float64)


def reach(drafted: NDArray[np.int16], survival: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of a round at s: P(position i is drafted inside the text and reached), S_{s,i-1}, and P(accepted), S_{s,i}.

    Both [D, K, N]: depth, position, start. `drafted` [D, N], `survival` [D, K, N].
    """
    num_depths, num_positions, num_output = survival.shape
    position, start = np.arange(num_positions)[:, None], np.arange(num_output)
    inside = (position < drafted[:, None, :]) & (start + position < num_output)
    before = np.concatenate([np.ones((num_depths, 1, num_output)), survival[:, :-1]], axis=1)
    return np.where(inside, before, 0.0), np.where(inside, survival, 0.0)


def expect_all_depths(
    drafted: NDArray[np.int16],
    survival: NDArray[np.float64],
    rounds: NDArray[np.float64],
    drafted_at: NDArray[np.float64],
    at_risk_at: NDArray[np.float64],
    accepted_at: NDArray[np.float64],
) -> None:
    """`walk_all_depths` in expectation, given the text and up to its end; `survival` as for `expected_rounds`."""
    starts = expected_rounds(drafted, survival)
    at_risk, accepted = reach(drafted, survival)
    longer = np.arange(drafted.shape[0])[:, None] < drafted[:, None, :]
    rounds += starts.sum(axis=1)
    drafted_at += (starts[:, None] * longer).sum(axis=2)
    at_risk_at += (starts[:, None] * at_risk).sum(axis=2)
    accepted_at += (starts[:, None] * accepted).sum(axis=2)
