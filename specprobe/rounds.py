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
def expect_rounds(
    drafted: NDArray[np.int16],
    survival: NDArray[np.float64],
    depth: int,
    drafted_at: NDArray[np.float64],
    at_risk_at: NDArray[np.float64],
    accepted_at: NDArray[np.float64],
) -> float:
    """Expected counts of the rounds of one response at one depth, given its text.

    `drafted` [K, N] as for `walk_rounds`; `survival` [K, N], S_{s,i} = a_{s,1} ... a_{s,i} in row i-1, for drafts of
    this depth. Adds to the three as `walk_rounds` does, up to the end of the text. Returns the expected number of
    rounds.
    """
    num_output = drafted.shape[1]
    # P(a round starts at s): 1 at token 1, then what earlier rounds send there.
    starts = np.zeros(num_output + depth + 1)
    starts[1] = 1.0
    rounds = 0.0
    for start in range(1, num_output):
        here = starts[start]
        if here == 0.0:
            continue
        rounds += here
        num_drafted = drafted[depth - 1, start]
        reached = 1.0
        for i in range(num_drafted):
            drafted_at[i] += here
            if start + i < num_output:
                at_risk_at[i] += here * reached
                kept = survival[i, start]
                accepted_at[i] += here * kept
                starts[start + i + 1] += here * (reached - kept)
                reached = kept
        starts[start + min(num_drafted, num_output - start) + 1] += here * reached
    return rounds


@njit(cache=True, nogil=True)
def expect_all_depths(
    drafted: NDArray[np.int16],
    survival: NDArray[np.float64],
    rounds: NDArray[np.float64],
    drafted_at: NDArray[np.float64],
    at_risk_at: NDArray[np.float64],
    accepted_at: NDArray[np.float64],
) -> None:
    """`expect_rounds` for every depth: `survival` [K, K, N], depth first, the others as in `walk_all_depths`."""
    for row in range(drafted.shape[0]):
        rounds[row] = expect_rounds(
            drafted,
            survival[row],
            row + 1,
            drafted_at[row],
            at_risk_at[row],
            accepted_at[row],
        )
