"""Counters of a replay -> the rounds of every response, one by one, for a simulation to play."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """The rounds of R responses, response after response: `first` int64 [R + 1] says where those of each begin.

    `drafted`, `accepted` uint8 [first[R]]: draft tokens of each round, and how many of them were accepted.
    """

    first: NDArray[np.int64]
    drafted: NDArray[np.uint8]
    accepted: NDArray[np.uint8]

    @property
    def num_rounds(self) -> NDArray[np.int64]:
        """[R] rounds of each response."""
        return np.diff(self.first)

    def take(self, responses: NDArray[np.int64]) -> Rounds:
        """The rounds of some responses, in the order named, as often as named."""
        num_rounds = self.num_rounds[responses]
        first = _offsets(num_rounds)
        rounds = np.arange(first[-1]) + np.repeat(self.first[responses] - first[:-1], num_rounds)
        return Rounds(first, self.drafted[rounds], self.accepted[rounds])


def plain_rounds(output_tokens: NDArray[np.int32]) -> Rounds:
    """Without speculation: a response of N tokens takes N - 1 rounds of one token after its prefill."""
    first = _offsets(np.maximum(output_tokens.astype(np.int64) - 1, 0))
    return Rounds(first, np.zeros(first[-1], dtype=np.uint8), np.zeros(first[-1], dtype=np.uint8))


def request_rounds(acceptance: Acceptance, depth: int, seed: int = 0) -> Rounds:
    """The rounds of every response at one depth, in an order drawn by `seed`.

    Counters that are whole numbers (greedy drafts) are kept: accepted_at[j] - accepted_at[j + 1] rounds accept exactly
    j, and so with the drafted; which round has which is paired by size. Of expectations (sampled drafts) each
    counter is rounded up or down, by chance, so that its expectation stays and the tokens of the response come out:
    rounds + accepted is, as for whole numbers, N - 1, or N where the last round is filled by drafts. Rounds and
    accepted tokens are unbiased that way and differ from their expectations by less than 1 in each response; but a
    unit may change to a neighbouring position where whole counters would rise along the draft, and a response that
    accepts nearly everything may take a round more. Where the last round ran past the end of the text, the one put
    last has accepted at least that much.
    """
    row = depth - 1
    rng = np.random.default_rng(seed)
    num_responses = len(acceptance.ids)
    output_tokens = acceptance.output_tokens.astype(np.int64)
    counters = acceptance.rounds[:, row], acceptance.drafted_at[:, row, :depth], acceptance.accepted_at[:, row, :depth]
    whole = all(counter.dtype.kind == "i" for counter in counters)
    rounds, drafted_at, accepted_at = _whole_counters(
        *(counter.astype(np.float64) for counter in counters),
        output_tokens,
        np.zeros(num_responses) if whole else rng.random(num_responses),
    )
    first = _offsets(rounds)
    drafted, accepted = np.zeros(first[-1], dtype=np.uint8), np.zeros(first[-1], dtype=np.uint8)
    _fill(first, drafted_at, accepted_at, output_tokens, rng.random(first[-1]), drafted, accepted)
    return Rounds(first, drafted, accepted)


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


@njit(cache=True, nogil=True)
def _whole_counters(
    rounds: Floats, drafted_at: Floats, accepted_at: Floats, output_tokens: NDArray[np.int64], uniform: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Whole rounds [P], drafted_at, accepted_at [P, K], non-increasing along K, with these expectations.

    Systematic sampling: one uniform number per response is added to the running sum of its counters before rounding
    down, so each counter becomes one of its two neighbours and their sum one of its own.
    """
    num_responses, depth = accepted_at.shape
    whole_rounds = np.zeros(num_responses, dtype=np.int64)
    whole_drafted = np.zeros((num_responses, depth), dtype=np.int64)
    whole_accepted = np.zeros((num_responses, depth), dtype=np.int64)
    for p in range(num_responses):
        # Sums of floats may lie a hair beside the whole number that they are.
        shift = 1e-9 + uniform[p] * (1.0 - 2e-9)
        num_rounds = int(rounds[p] + shift)
        total, before = rounds[p], num_rounds
        for j in range(depth):
            total += accepted_at[p, j]
            whole_accepted[p, j] = int(total + shift) - before
            before += whole_accepted[p, j]
        num_rounds += _make_fit(whole_accepted[p], num_rounds, output_tokens[p] - 1)
        for j in range(depth):
            num_drafted = min(int(drafted_at[p, j] + shift), num_rounds)
            whole_drafted[p, j] = max(num_drafted, whole_accepted[p, j])
        whole_rounds[p] = num_rounds
    return whole_rounds, whole_drafted, whole_accepted


@njit(cache=True, nogil=True)
def _make_fit(accepted_at: NDArray[np.int64], num_rounds: int, emitted: int) -> int:
    """Make `accepted_at` [K] non-increasing and at most `num_rounds`; the rounds missing for `emitted` tokens.

    Positions change places, and what is too much at one moves to the next; what does not fit even at the last one is
    emitted by rounds that accept nothing.
    """
    accepted_at[:] = np.sort(accepted_at)[::-1]
    excess, most = 0, num_rounds
    total = num_rounds
    for j in range(accepted_at.size):
        wanted = accepted_at[j] + excess
        accepted_at[j] = min(wanted, most)
        excess = wanted - accepted_at[j]
        most = accepted_at[j]
        total += accepted_at[j]
    return max(emitted - total, 0)


@njit(cache=True, nogil=True)
def _fill(
    first: NDArray[np.int64],
    drafted_at: NDArray[np.int64],
    accepted_at: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    order: Floats,
    drafted: NDArray[np.uint8],
    accepted: NDArray[np.uint8],
) -> None:
    """Write the rounds that make up the counters, shuffled within each response by `order` [first[P]]."""
    num_responses, depth = drafted_at.shape
    for p in range(num_responses):
        start, stop = first[p], first[p + 1]
        places = np.argsort(order[start:stop])
        for j in range(depth):
            for n in range(drafted_at[p, j]):
                drafted[start + places[n]] += 1
            for n in range(accepted_at[p, j]):
                accepted[start + places[n]] += 1
        past_end = (stop - start) + accepted_at[p].sum() - (output_tokens[p] - 1)
        if past_end > 0:
            _put_last(drafted[start:stop], accepted[start:stop], past_end)


@njit(cache=True, nogil=True)
def _put_last(drafted: NDArray[np.uint8], accepted: NDArray[np.uint8], past_end: int) -> None:
    """Exchange the last round with the latest that accepted at least `past_end`: it is the one cut by the end."""
    last = accepted.size - 1
    for n in range(last, -1, -1):
        if accepted[n] >= past_end:
            drafted[n], drafted[last] = drafted[last], drafted[n]
            accepted[n], accepted[last] = accepted[last], accepted[n]
            return
