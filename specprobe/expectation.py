"""Estimates of lower variance: what a round could be expected to accept, in place of what it did accept.

Of a_{s,1} ... a_{s,i}, the chance that position i of a round at s is accepted given the text, only the last factor may
be replaced by its expectation b before the text was known (DESIGN section 2), for that token decides nothing about
how the recursion got there:

    A_i = sum_s r_s S_{s,i-1} b_{s,i}          h_i = A_i / sum_s r_s S_{s,i-1}
    tokens per round = (emitted + sum_i A_i - accepted) / rounds

(A round emits its accepted drafts and one token, but for a last one that drafts fill up to the end: hence the
counters, with A_i in place of what was accepted.)
b is p(d) for a one-hot draft d, sum_x min(p, q) for a sampled one (sum_x p q under an exact-match rule). Replacing the
earlier factors, too, would go on where the draft was rejected, and is biased. Positions past the end of the text
are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specprobe.drafters.base import Proposals
from specprobe.rounds import expected_rounds, one_hot_survival, reach, visited_rounds
from specprobe.trajectory import Trajectory

if TYPE_CHECKING:
    from specprobe.target_distribution import ResponseDistribution

Floats = NDArray[np.float64]


def expect_greedy(trajectory: Trajectory, proposals: Proposals, p: ResponseDistribution) -> tuple[Floats, Floats]:
    """r_s S_{s,i-1} and r_s S_{s,i-1} p(d) of one response, summed over s: both [K, K], depth first, then position."""
    assert trajectory.log_probs is not None
    assert proposals.missed is not None
    drafted, accepted = proposals.drafted, proposals.accepted
    num_depths, num_output = drafted.shape
    starts = visited_rounds(drafted, accepted)
    at_risk, kept = reach(drafted, one_hot_survival(accepted, num_depths))
    # What was accepted is the text; the draft behind it, where one is at risk, is another token.
    position, start = np.arange(num_depths)[:, None], np.arange(num_output)
    written = np.exp(trajectory.log_probs.astype(np.float64))[np.minimum(start + position, num_output - 1)]
    missed = _missed(proposals, starts, p)
    chance = np.where(kept > 0, written, missed[:, None, :])
    weight = starts[:, None] * at_risk
    return weight.sum(axis=2), (weight * chance).sum(axis=2)


def expect_sampled(proposals: Proposals) -> tuple[Floats, Floats]:
    """The same for sampled drafts, whose `survival` and `overlap` are known."""
    assert proposals.survival is not None
    assert proposals.overlap is not None
    at_risk, _ = reach(proposals.drafted, proposals.survival)
    weight = expected_rounds(proposals.drafted, proposals.survival)[:, None] * at_risk
    return weight.sum(axis=2), (weight * proposals.overlap).sum(axis=2)


def _missed(proposals: Proposals, starts: Floats, p: ResponseDistribution) -> Floats:
    """p [K, N] of the draft behind the accepted ones, where an engine runs the round and it lies inside the text."""
    assert proposals.missed is not None
    chance = np.zeros(starts.shape)
    num_output = starts.shape[1]
    places = np.arange(num_output) + proposals.accepted
    rows, columns = ((starts > 0) & (proposals.missed >= 0) & (places < num_output)).nonzero()
    # Depths mostly miss the same token at the same place.
    wanted = np.stack([places[rows, columns], proposals.missed[rows, columns]])
    pairs, index = np.unique(wanted, axis=1, return_inverse=True)
    found = np.exp(p.log_p_of(pairs[0].astype(np.int64), pairs[1].astype(np.int64)))
    chance[rows, columns] = found[index.reshape(-1)]
    return chance
