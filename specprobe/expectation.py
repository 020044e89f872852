"""Estimates of lower variance: what a round could be expected to accept, in place of what it did accept.

Of a_{s,1} ... a_{s,i}, the chance that position i of a round at s is accepted given the text, only the last factor may
be replaced by its expectation b before the text was known (DESIGN section 2), for that token decides nothing about
how the recursion got there:

    A_i = sum_s r_s S_{s,i-1} b_{s,i}          h_i = A_i / sum_s r_s S_{s,i-1}
    tokens per round = 1 + sum_i A_i / sum_s r_s

b is p(d) for a one-hot draft d, sum_x min(p, q) for a sampled one (sum_x p q under an exact-match rule). Replacing the
earlier factors, too, would go on where the draft was rejected, and is biased. Positions past the end of the text
are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specprobe.drafters.base import Proposals
from specprobe.trajectory import Trajectory

if TYPE_CHECKING:
    from specprobe.target_distribution import ResponseDistribution

Floats = NDArray[np.float64]


def expect_greedy(
    trajectory: Trajectory, proposals: Proposals, p: ResponseDistribution, at_risk_at: Floats, expected_at: Floats
) -> None:
    """Add r_s S_{s,i-1} and r_s S_{s,i-1} p(d) of one response to both [K, K], depth first, then position."""
    assert trajectory.log_probs is not None
    assert proposals.missed is not None
    visited = np.zeros(proposals.drafted.shape, dtype=np.bool_)
    _visit_misses(proposals.drafted, proposals.accepted, visited)
    rows, starts = visited.nonzero()
    places = starts + proposals.accepted[rows, starts]
    # Depths mostly miss the same token at the same place.
    pairs, index = np.unique(np.stack([places, proposals.missed[rows, starts]]), axis=1, return_inverse=True)
    missed = np.zeros(proposals.drafted.shape)
    missed[rows, starts] = np.exp(p.log_p_of(pairs[0].astype(np.int64), pairs[1].astype(np.int64)))[index.reshape(-1)]
    written = np.exp(trajectory.log_probs.astype(np.float64))
    _expect_greedy(proposals.drafted, proposals.accepted, written, missed, at_risk_at, expected_at)


def expect_sampled(proposals: Proposals, at_risk_at: Floats, expected_at: Floats) -> None:
    """The same for sampled drafts, whose `survival` and `overlap` are known."""
    assert proposals.survival is not None
    assert proposals.overlap is not None
    _expect_sampled(proposals.drafted, proposals.survival, proposals.overlap, at_risk_at, expected_at)


@njit(cache=True, nogil=True)
def _visit_misses(drafted: NDArray[np.int16], accepted: NDArray[np.int16], visited: NDArray[np.bool_]) -> None:
    """Mark the rounds [K, N] that an engine runs and whose draft has a token inside the text that is not accepted."""
    num_depths, num_output = drafted.shape
    for row in range(num_depths):
        start = 1
        while start < num_output:
            num_accepted = accepted[row, start]
            visited[row, start] = num_accepted < drafted[row, start] and start + num_accepted < num_output
            start += num_accepted + 1


@njit(cache=True, nogil=True)
def _expect_greedy(
    drafted: NDArray[np.int16],
    accepted: NDArray[np.int16],
    written: Floats,
    missed: Floats,
    at_risk_at: Floats,
    expected_at: Floats,
) -> None:
    """`written` [N]: p of the text; `missed` [K, N]: p of the draft that was not accepted."""
    num_depths, num_output = drafted.shape
    for row in range(num_depths):
        start = 1
        while start < num_output:
            num_accepted = accepted[row, start]
            for i in range(min(drafted[row, start], num_accepted + 1, num_output - start)):
                at_risk_at[row, i] += 1.0
                expected_at[row, i] += written[start + i] if i < num_accepted else missed[row, start]
            start += num_accepted + 1


@njit(cache=True, nogil=True)
def _expect_sampled(
    drafted: NDArray[np.int16],
    survival: Floats,
    overlap: Floats,
    at_risk_at: Floats,
    expected_at: Floats,
) -> None:
    """`survival` and `overlap` [K, K, N], depth first; see `rounds.expect_rounds` for the recursion."""
    num_depths, num_output = drafted.shape
    for row in range(num_depths):
        starts = np.zeros(num_output + num_depths + 1)
        starts[1] = 1.0
        for start in range(1, num_output):
            here = starts[start]
            if here == 0.0:
                continue
            reached = 1.0
            inside = min(drafted[row, start], num_output - start)
            for i in range(inside):
                at_risk_at[row, i] += here * reached
                expected_at[row, i] += here * reached * overlap[row, i, start]
                kept = survival[row, i, start]
                starts[start + i + 1] += here * (reached - kept)
                reached = kept
            starts[start + inside + 1] += here * reached
