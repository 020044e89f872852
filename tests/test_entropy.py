"""Entropy and acceptance: which tokens are drafted for, against plain loops, and how they fall into quartiles."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprobe.entropy import (
    EntropyQuartile,
    entropy_edges,
    entropy_quartiles,
    quartile_counts,
    summarize_entropy,
    token_weights,
)
from specprobe.rounds import (
    expect_all_depths,
    expected_rounds,
    one_hot_survival,
    reach,
    visited_rounds,
    walk_rounds,
)
from specprobe.temperature_report import entropy_line

SEEDS = st.integers(0, 2**32 - 1)


def some_drafts(seed: int, depth: int, num_output: int, tail: int = 0):
    """Drafts of any length up to the depth, any number of leading tokens accepted as far as the text goes."""
    rng = np.random.default_rng(seed)
    drafted = np.array([rng.integers(0, k + 2, num_output) for k in range(depth)], dtype=np.int16)
    left = num_output + tail - np.arange(num_output)
    accepted = rng.integers(0, np.minimum(drafted, left) + 1).astype(np.int16)
    return drafted, accepted


def literal_weights(drafted, accepted) -> tuple[list[int], list[int]]:
    """Round by round, draft by draft; `drafted`, `accepted` of one depth."""
    at_risk, kept = [0] * len(drafted), [0] * len(drafted)
    start = 1
    while start < len(drafted):
        for i in range(drafted[start]):
            token = start + i
            if token < len(drafted) and i <= accepted[start]:
                at_risk[token] += 1
                kept[token] += i < accepted[start]
        start += accepted[start] + 1
    return at_risk, kept


def all_walks(drafted, survival, start: int = 1, probability: float = 1.0) -> list[tuple[float, int, int]]:
    """(probability, start, accepted) of every round of every walk; `drafted` [N], `survival` [K, N]."""
    num_output = len(drafted)
    if start >= num_output:
        return []
    length = min(drafted[start], num_output - start)
    reached = [1.0, *survival[:length, start], 0.0]
    rounds = []
    for j in range(length + 1):
        here = probability * (reached[j] - reached[j + 1])
        rounds += [(here, start, j), *all_walks(drafted, survival, start + j + 1, here)]
    return rounds


def weights_of_walk(drafted, accepted) -> tuple[np.ndarray, np.ndarray]:
    """Of one-hot drafts at one depth, [N] each."""
    starts = visited_rounds(drafted[-1:], accepted[-1:])
    at_risk, kept = reach(drafted[-1:], one_hot_survival(accepted[-1:], len(drafted)))
    return token_weights(starts[0], at_risk[0], kept[0])


@settings(deadline=None)
@given(seed=SEEDS, depth=st.integers(1, 5), num_output=st.integers(0, 40), tail=st.integers(0, 4))
def test_token_weights_against_a_literal_loop(seed, depth, num_output, tail):
    drafted, accepted = some_drafts(seed, depth, num_output, tail)
    for k in range(1, depth + 1):
        at_risk, kept = weights_of_walk(drafted[:k], accepted[:k])
        assert (at_risk.tolist(), kept.tolist()) == literal_weights(drafted[k - 1], accepted[k - 1])


@settings(deadline=None)
@given(seed=SEEDS, depth=st.integers(1, 5), num_output=st.integers(0, 40))
def test_token_weights_add_up_to_the_counts_of_the_walk(seed, depth, num_output):
    drafted, accepted = some_drafts(seed, depth, num_output)
    at_risk, kept = weights_of_walk(drafted, accepted)
    counts = np.zeros((3, depth), dtype=np.int32)
    walk_rounds(drafted, accepted, depth, num_output, *counts)
    assert (at_risk.sum(), kept.sum()) == (counts[1].sum(), counts[2].sum())


@settings(deadline=None)
@given(seed=SEEDS, depth=st.integers(1, 4), num_output=st.integers(0, 8))
def test_expected_weights_against_all_walks(seed, depth, num_output):
    rng = np.random.default_rng(seed)
    drafted, _ = some_drafts(seed, depth, num_output)
    chances = rng.uniform(0, 1, (depth, num_output)) * rng.integers(0, 2, (depth, num_output))
    survival = np.broadcast_to(np.cumprod(chances, axis=0), (depth, depth, num_output))
    starts = expected_rounds(drafted, survival)
    at_risk, kept = token_weights(starts[-1], *(values[-1] for values in reach(drafted, survival)))
    some_at_risk, some_kept, some_starts = np.zeros((3, num_output))
    for probability, start, accepted in all_walks(drafted[depth - 1], survival[-1]):
        some_starts[start] += probability
        for i in range(min(drafted[depth - 1, start], accepted + 1, num_output - start)):
            some_at_risk[start + i] += probability
            some_kept[start + i] += probability * (i < accepted)
    assert starts[-1] == pytest.approx(some_starts)
    assert at_risk == pytest.approx(some_at_risk)
    assert kept == pytest.approx(some_kept)
    rounds, *counts = np.zeros(depth), *np.zeros((3, depth, depth))
    expect_all_depths(drafted, survival, rounds, *counts)
    assert rounds[-1] == pytest.approx(some_starts.sum())
    assert (at_risk.sum(), kept.sum()) == pytest.approx((counts[1][-1].sum(), counts[2][-1].sum()))


@settings(deadline=None)
@given(seed=SEEDS, depth=st.integers(1, 5), num_output=st.integers(0, 40))
def test_expected_rounds_of_one_hot_drafts_are_those_of_the_walk(seed, depth, num_output):
    drafted, accepted = some_drafts(seed, depth, num_output)
    expected = expected_rounds(drafted, one_hot_survival(accepted, depth))
    assert expected.tolist() == visited_rounds(drafted, accepted).tolist()


def test_edges_leave_out_the_token_that_the_prefill_writes():
    entropies = [np.array([9, 0, 1], dtype=np.float32), np.array([9, 2, 3, 4], dtype=np.float32)]
    assert entropy_edges(entropies).tolist() == [1, 2, 3]
    summary = summarize_entropy(entropies)
    assert (summary.tokens, summary.mean, summary.quartiles) == (5, 2.0, (1.0, 2.0, 3.0))
    assert summary.to_json() == {"tokens": 5, "mean": 2.0, "quartiles": [1.0, 2.0, 3.0]}
    for nothing in ([], [np.array([1], dtype=np.float32)], [np.zeros(0, dtype=np.float32)]):
        assert entropy_edges(nothing) is None
        assert summarize_entropy(nothing) is None


@given(seed=SEEDS, num_output=st.integers(0, 30))
def test_quartile_counts_against_a_loop(seed, num_output):
    rng = np.random.default_rng(seed)
    entropy = rng.integers(0, 6, num_output).astype(np.float32)
    at_risk, kept = rng.uniform(size=(2, num_output))
    edges = np.array([1.0, 2.5, 4.0])
    expected = np.zeros((2, 4))
    for token in range(num_output):
        quartile = sum(entropy[token] > edge for edge in edges)
        expected[:, quartile] += at_risk[token], kept[token]
    counts = quartile_counts(entropy, edges, at_risk, kept)
    assert np.array(counts) == pytest.approx(expected)
    assert all(part.dtype == np.float64 for part in counts)


def test_quartiles_of_a_target_that_is_mostly_certain():
    # Three quarters of the tokens have no entropy at all: they are all in the first quartile.
    entropy = np.array([5, 0, 0, 0, 0, 0, 0, 2, 3], dtype=np.float32)
    edges = entropy_edges([entropy])
    assert edges.tolist() == [0, 0, 0.5]
    at_risk, kept = quartile_counts(entropy, edges, np.array([0.0, *[1] * 8]), np.array([0.0, *[1] * 6, 0, 1]))
    quartiles = entropy_quartiles(edges, at_risk, kept)
    assert [(q.at_risk, q.accepted, q.acceptance) for q in quartiles] == [
        (6, 6, 1.0),
        (0, 0, None),
        (0, 0, None),
        (2, 1, 0.5),
    ]
    assert [(q.low, q.high) for q in quartiles] == [(None, 0), (0, 0), (0, 0.5), (0.5, None)]
    assert json.loads(json.dumps(quartiles[3].to_json())) == {
        "low": 0.5,
        "high": None,
        "at_risk": 2,
        "accepted": 1,
        "acceptance": 0.5,
    }


def test_the_line_of_quartiles():
    quartiles = [EntropyQuartile(None, 0.01, 1234.4, 1200), EntropyQuartile(0.01, None, 10, 2)]
    name = "accepted, given the drafts before it, by quartile of the target's entropy"
    assert entropy_line(quartiles).facts() == [(name, "97.2 %, 20.0 % (borders 0.01 nats)")]
