"""Simulated traffic: units of responses that hang together, and what a drafter is counted to do on each response.

A unit is what is drawn at random: a prompt, with all samples of its answer, or a conversation with all its turns. A
workload is so many units of a large population, drawn with replacement, so the truth about each figure is that of the
population, known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance
from tests.simulated_runs import shifted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of prompts. Acceptance ~ Beta(a, b); output tokens log-normal (median, sigma), longer by exp(slope (p -
    mean p)) where copying makes both; a round has a draft with probability `drafted`.
    """

    a: float
    b: float
    median: float
    sigma: float
    slope: float = 0.0
    drafted: float = 1.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Prompts of several kinds, in `shares`, and a drafter of this depth, whose position i accepts p fall^(i-1).

    `samples`: responses to each prompt. `turns`: of a conversation on average, a geometric number. `spread`: between
    responses of one unit, the standard deviation of the log-odds of acceptance.
    """

    depth: int
    kinds: tuple[Kind, ...]
    shares: tuple[float, ...] = (1.0,)
    samples: int = 1
    turns: float = 1.0
    spread: float = 0.0
    fall: float = 1.0


MIXED = (Kind(3.0, 1.2, 300, 0.8, drafted=0.8), Kind(1.2, 5.0, 150, 0.8, drafted=0.25))
TRAFFIC = {
    "chat": Traffic(3, (Kind(6.0, 4.0, 200, 0.6),)),
    "copy-heavy": Traffic(8, (Kind(0.8, 0.5, 250, 0.7, slope=1.0),)),
    "low acceptance": Traffic(3, (Kind(0.5, 6.0, 200, 0.8),)),
    "heavy-tailed": Traffic(5, (Kind(2.0, 1.0, 150, 1.4),)),
    "sparse copying": Traffic(5, (Kind(0.15, 2.0, 200, 1.0, slope=2.0),)),
    "mixed": Traffic(5, MIXED, shares=(0.3, 0.7)),
    "4 samples": Traffic(3, (Kind(6.0, 4.0, 200, 0.6),), samples=4, spread=0.3),
    "conversations": Traffic(5, MIXED, shares=(0.3, 0.7), turns=5, spread=0.5),
}


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """N responses in order of their units: `first` [U + 1] says where each begins; `p`, `output`, `drafted` [N]: chance
    of acceptance, output tokens, and share of rounds with a draft.
    """

    first: Ints
    p: Floats
    output: Ints
    drafted: Floats

    @property
    def unit(self) -> Ints:
        """[N]."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """What is counted on N responses at one depth K: `rounds`, `drafted_rounds` [N]; by position [N, K]."""

    rounds: Ints
    drafted_rounds: Ints
    at_risk_at: Ints
    accepted_at: Ints


def draw_responses(rng: np.random.Generator, traffic: Traffic, num_units: int) -> Responses:
    """Units of a traffic."""
    number = rng.choice(len(traffic.kinds), num_units, p=traffic.shares)
    turns = rng.geometric(1 / traffic.turns, num_units)
    first = np.concatenate([[0], np.cumsum(turns * traffic.samples)])
    unit = np.repeat(np.arange(num_units), np.diff(first))
    a, b, median, sigma, slope, drafted = np.array(
        [[kind.a, kind.b, kind.median, kind.sigma, kind.slope, kind.drafted] for kind in traffic.kinds]
    )[number].T
    p = rng.beta(a, b)[unit]
    p = shifted(np.clip(p, 1e-9, 1 - 1e-9), rng.normal(0.0, traffic.spread, len(unit)))
    lengths = np.exp(rng.normal((np.log(median) - slope * a / (a + b))[unit] + slope[unit] * p, sigma[unit]))
    return Responses(first, p, np.clip(lengths, 2, LONGEST).astype(np.int64), drafted[unit])


def count(rng: np.random.Generator, responses: Responses, depth: int, fall: float = 1.0) -> Counts:
    """Walk the rounds of all responses side by side until every text is written."""
    num_responses = len(responses.p)
    left = responses.output - 1
    chance = responses.p[:, None] * fall ** np.arange(depth)
    rounds, drafted_rounds = np.zeros((2, num_responses), dtype=np.int64)
    # How many rounds accepted exactly j, and how many had exactly j positions at risk.
    accepting, risking = np.zeros((2, num_responses, depth + 1), dtype=np.int64)
    running = np.flatnonzero(left > 0)
    while running.size:
        hits = rng.random((running.size, depth)) < chance[running]
        is_drafted = rng.random(running.size) < responses.drafted[running]
        accepted = np.logical_and.accumulate(hits, axis=1).sum(axis=1) * is_drafted
        room = left[running]
        at_risk = np.minimum(np.minimum(accepted + 1, depth), room) * is_drafted
        accepted = np.minimum(accepted, room)
        rounds[running] += 1
        drafted_rounds[running] += is_drafted
        accepting[running, accepted] += 1
        risking[running, at_risk] += 1
        left[running] -= np.minimum(accepted + 1, room)
        running = running[left[running] > 0]
    return Counts(rounds, drafted_rounds, _at_least(risking), _at_least(accepting))


def _at_least(exactly: Ints) -> Ints:
    """[N, K]: of rounds with exactly 0..K, those with at least 1..K."""
    return exactly[:, ::-1].cumsum(axis=1)[:, -2::-1]


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """Responses and what one drafter is counted to do on them."""

    traffic: Traffic
    responses: Responses
    counts: Counts

    @property
    def num_units(self) -> int:
        """What a workload is drawn from."""
        return len(self.responses.first) - 1

    @property
    def emitted(self) -> Ints:
        """[N]."""
        return self.responses.output - 1

    def all(self) -> Acceptance:
        """The whole population as one result."""
        return self.workload(np.arange(self.num_units))

    def workload(self, units: Ints) -> Acceptance:
        """A result at the one depth over the responses of these units; a unit drawn twice is two prompts."""
        first = self.responses.first
        sizes = np.diff(first)[units]
        rows = np.repeat(first[units] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes) + np.arange(sizes.sum())
        depth = self.traffic.depth

        def at_depth(counts: Ints) -> Ints:
            table = np.zeros((len(rows), depth, *counts.shape[1:]), dtype=np.int32)
            table[:, -1] = counts[rows]
            return table

        every_position = np.broadcast_to(self.counts.drafted_rounds[:, None], self.counts.accepted_at.shape)
        return Acceptance(
            drafter="ngram",
            config={},
            fixed_length=False,
            temperature=0.0,
            draft_sampling="greedy",
            ids=tuple(range(len(rows))),
            output_tokens=self.responses.output[rows].astype(np.int32),
            rounds=at_depth(self.counts.rounds),
            drafted_at=at_depth(every_position),
            at_risk_at=at_depth(self.counts.at_risk_at),
            accepted_at=at_depth(self.counts.accepted_at),
            prompts=np.repeat(np.arange(len(units), dtype=np.int32), sizes),
            first_depth=depth,
        )

    def by_unit(self, counts: Ints) -> Floats:
        """Counts [N, ...] summed by unit."""
        return np.add.reduceat(counts, self.responses.first[:-1], axis=0).astype(np.float64)


def populate(rng: np.random.Generator, traffic: Traffic, num_units: int) -> Population:
    """So many units, and what the drafter does on them."""
    responses = draw_responses(rng, traffic, num_units)
    return Population(traffic, responses, count(rng, responses, traffic.depth, traffic.fall))
