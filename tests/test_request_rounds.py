"""Rounds of requests: whole counters come back exactly, expectations without bias."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance
from specprobe.load import Workload
from specprobe.request_rounds import Rounds, plain_rounds, request_rounds
from specprobe.rounds import expect_all_depths, walk_all_depths


def greedy(seed: int, num_responses: int, depth: int, tail: int = 0) -> Acceptance:
    """Walks over random proposals whose drafts have any length, with `tail` more tokens known than counted."""
    rng = np.random.default_rng(seed)
    output_tokens = rng.integers(1, 60, num_responses).astype(np.int32)
    rounds = np.zeros((num_responses, depth), dtype=np.int32)
    counters = np.zeros((3, num_responses, depth, depth), dtype=np.int32)
    for p, num_output in enumerate(output_tokens):
        drafted = np.minimum(rng.integers(0, depth + 1, num_output), np.arange(1, depth + 1)[:, None]).astype(np.int16)
        left = num_output + tail - np.arange(num_output)
        accepted = np.minimum(rng.integers(0, depth + 1, num_output), np.minimum(drafted, left)).astype(np.int16)
        walk_all_depths(drafted, accepted, num_output + tail, rounds[p], *(counter[p] for counter in counters))
    return acceptance(output_tokens, rounds, *counters)


def sampled(seed: int, num_responses: int, depth: int, tokens: tuple[int, int], acceptance_rate: float) -> Acceptance:
    """Expectations over texts whose acceptance differs from place to place and from response to response."""
    rng = np.random.default_rng(seed)
    output_tokens = rng.integers(*tokens, num_responses, endpoint=True).astype(np.int32)
    rounds = np.zeros((num_responses, depth))
    counters = np.zeros((3, num_responses, depth, depth))
    for p, num_output in enumerate(output_tokens):
        mean = rng.beta(4 * acceptance_rate, 4 * (1 - acceptance_rate))
        chances = rng.beta(2 * mean + 0.05, 2 * (1 - mean) + 0.05, (1, depth, num_output))
        survival = np.repeat(np.cumprod(chances, axis=1), depth, axis=0)
        drafted = np.repeat(np.arange(1, depth + 1)[:, None], num_output, axis=1).astype(np.int16)
        expect_all_depths(drafted, survival, rounds[p], *(counter[p] for counter in counters))
    return acceptance(output_tokens, rounds, *counters, draft_sampling="sampled")


def acceptance(
    output_tokens: NDArray[np.int32], *counters: NDArray[np.int32 | np.float64], draft_sampling: str = "greedy"
) -> Acceptance:
    ids = tuple(range(output_tokens.size))
    return Acceptance("toy", {}, True, 0.0, draft_sampling, ids, output_tokens, *counters)


def workload_of(rounds: Rounds, found: Acceptance) -> Workload:
    """Raises where the rounds do not emit the responses."""
    return Workload(np.ones(len(found.ids), dtype=np.int32), rounds, found.output_tokens.astype(np.int32))


def survivors(values: NDArray[np.uint8], depth: int) -> list[int]:
    """How many values are at least 1..depth."""
    return [int((values >= i).sum()) for i in range(1, depth + 1)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(0, 4))
def test_whole_counters_come_back(seed: int, depth: int, tail: int) -> None:
    """At every depth, response by response, also where the last round is known to accept beyond the end."""
    found = greedy(seed, 12, depth, tail)
    for row in range(depth):
        rounds = request_rounds(found, row + 1, seed)
        assert rounds.num_rounds.tolist() == found.rounds[:, row].tolist()
        workload_of(rounds, found)
        for p in range(12):
            here = slice(rounds.first[p], rounds.first[p + 1])
            assert survivors(rounds.drafted[here], row + 1) == found.drafted_at[p, row, : row + 1].tolist()
            assert survivors(rounds.accepted[here], row + 1) == found.accepted_at[p, row, : row + 1].tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0.02, 0.98))
def test_expectations_become_rounds_that_emit_the_text(seed: int, depth: int, rate: float) -> None:
    """Any acceptance, any length: rounds lie within 1 of their expectation, or one above where nothing else fits."""
    found = sampled(seed, 20, depth, (1, 40), rate)
    rounds = request_rounds(found, depth, seed)
    workload_of(rounds, found)
    surplus = rounds.num_rounds - found.rounds[:, -1]
    assert (surplus > -1).all()
    assert (surplus < 2).all()
    assert (rounds.drafted <= depth).all()


@pytest.mark.parametrize("tokens", [(2, 12), (20, 60), (200, 300)])
@pytest.mark.parametrize("rate", [0.2, 0.7, 0.95])
def test_expectations_are_met(tokens: tuple[int, int], rate: float) -> None:
    """Ratios of sums over responses and seeds are those of the counters: rounds, drafted and accepted tokens."""
    depth, num_responses, seeds = 4, 60, 400
    found = sampled(5, num_responses, depth, tokens, rate)
    drawn = [request_rounds(found, depth, seed) for seed in range(seeds)]
    # Rounds and accepted tokens are one of two neighbours each: a standard deviation of at most 1/2, five errors.
    error = 5 * 0.5 * np.sqrt(num_responses / seeds)
    rounds = np.mean([rounds.num_rounds.sum() for rounds in drawn])
    assert rounds == pytest.approx(found.rounds[:, -1].sum(), abs=error)
    accepted = np.mean([rounds.accepted.sum(dtype=np.int64) for rounds in drawn])
    assert accepted == pytest.approx(found.accepted_tokens[:, -1].sum(), abs=error)
    # Of a draft of fixed length, every round has all.
    drafted = np.mean([rounds.drafted.sum(dtype=np.int64) for rounds in drawn])
    assert drafted == pytest.approx(found.drafted_tokens[:, -1].sum(), abs=depth * error)
    if tokens[0] >= 200:
        at = np.mean([survivors(rounds.accepted, depth) for rounds in drawn], axis=0)
        assert at == pytest.approx(found.accepted_at[:, -1].sum(axis=0), rel=0.01)


def test_rounds_are_shuffled_by_the_seed() -> None:
    found = greedy(3, 20, 4)
    one, again, other = (request_rounds(found, 4, seed) for seed in (1, 1, 2))
    assert (one.accepted == again.accepted).all()
    assert (one.accepted != other.accepted).any()


def test_plain_rounds() -> None:
    rounds = plain_rounds(np.array([1, 4, 2], dtype=np.int32))
    assert rounds.first.tolist() == [0, 0, 3, 4]
    assert not rounds.drafted.any()
    assert not rounds.accepted.any()


def test_take() -> None:
    first = np.array([0, 2, 2, 5])
    drafted = np.array([1, 2, 3, 4, 5], dtype=np.uint8)
    taken = Rounds(first, drafted, drafted // 2).take(np.array([2, 0, 1, 2]))
    assert taken.first.tolist() == [0, 3, 5, 5, 8]
    assert taken.drafted.tolist() == [3, 4, 5, 1, 2, 3, 4, 5]
    assert taken.accepted.tolist() == [1, 2, 2, 0, 1, 1, 2, 2]
