"""Suffix decoding with several requests in flight against a literal engine loop, and its laws."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import SharedSuffixCache, make_trajectory, run_in_flight

from specprobe.cli import run_command
from specprobe.drafters import Limits
from specprobe.drafters.suffix import SuffixDrafter, _SharedTree
from specprobe.drafters.suffix_in_flight import propose_in_flight
from specprobe.replay import replay
from specprobe.rounds import visited_rounds, walk_all_depths

TOKENS = st.integers(0, 3)
TEXTS = st.tuples(
    st.lists(TOKENS, min_size=1, max_size=15), st.lists(TOKENS, max_size=30), st.lists(TOKENS, max_size=4)
)
WORKLOADS = st.lists(TEXTS, min_size=1, max_size=8)
DRAFTERS = st.builds(
    SuffixDrafter,
    max_tree_depth=st.integers(1, 9),
    max_cached_requests=st.integers(0, 5) | st.just(10_000),
    max_spec_factor=st.sampled_from([0.5, 1.0, 2.0]),
    min_token_prob=st.sampled_from([0.0, 0.1, 0.5]),
)


def make_works(texts, *, tails=False):
    return [make_trajectory(p, o, t if tails and o else (), name=i) for i, (p, o, t) in enumerate(texts)]


def literal_cache(drafter: SuffixDrafter) -> SharedSuffixCache:
    return SharedSuffixCache(
        drafter.max_tree_depth, drafter.max_cached_requests, drafter.max_spec_factor, drafter.min_token_prob
    )


def assert_equals_a_real_loop(drafter, works, depth, limit=None) -> None:
    acceptance = replay(drafter, works, depth, limits=Limits(limit))
    for k in range(1, depth + 1):
        literal = run_in_flight(works, literal_cache(drafter), k, drafter.in_flight, limit)
        for p, (work, counters) in enumerate(zip(works, literal, strict=True)):
            # Whatever runs beside it, a request writes its own text.
            assert counters.emitted[: work.output_ids.size] == work.output_ids.tolist()
            row = acceptance.accepted_at[p, k - 1]
            counted = (
                acceptance.rounds[p, k - 1],
                acceptance.drafted_rounds[p, k - 1],
                acceptance.drafted_tokens[p, k - 1],
            )
            assert counted == (counters.rounds, counters.drafted_rounds, counters.drafted_tokens)
            assert row[:k].tolist() == counters.accepted_at
            assert not row[k:].any()


@given(
    texts=WORKLOADS,
    drafter=DRAFTERS,
    in_flight=st.integers(2, 10),
    depth=st.integers(1, 5),
    limit=st.none() | st.integers(4, 50),
    tails=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_counters_equal_a_real_loop(texts, drafter, in_flight, depth, limit, tails):
    assert_equals_a_real_loop(replace(drafter, in_flight=in_flight), make_works(texts, tails=tails), depth, limit)


def similar_texts(num_requests: int, seed: int):
    """Copies of a few passages, cut and spoilt here and there, so that requests reach each other's newest tokens."""
    rng = np.random.default_rng(seed)
    passages = [rng.integers(0, 40, 60).tolist() for _ in range(3)]
    texts = []
    for _ in range(num_requests):
        output = list(passages[rng.integers(3)][rng.integers(10) :][: rng.integers(1, 60)])
        for position in rng.integers(0, len(output), 3):
            output[position] = int(rng.integers(0, 40))
        texts.append((rng.integers(0, 40, 10).tolist(), output, rng.integers(0, 40, 3).tolist()))
    return texts


@pytest.mark.parametrize("in_flight", [2, 3, 7, 40])
@pytest.mark.parametrize("cached", [1, 2, 5, 10_000])
def test_requests_that_write_nearly_the_same_equal_a_real_loop(in_flight, cached):
    works = make_works(similar_texts(16, seed=in_flight), tails=True)
    assert_equals_a_real_loop(SuffixDrafter(8, cached, in_flight=in_flight), works, 6)


def walked(proposals, num_known: int) -> list[list]:
    depth = len(proposals.drafted)
    counts = [np.zeros(depth, dtype=np.int32), *(np.zeros((depth, depth), dtype=np.int32) for _ in range(3))]
    walk_all_depths(proposals.drafted, proposals.accepted, num_known, *counts)
    return [count.tolist() for count in counts]


@given(texts=WORKLOADS, drafter=DRAFTERS, depth=st.integers(1, 5), limit=st.none() | st.integers(4, 50))
@settings(max_examples=100, deadline=None)
def test_one_request_in_flight_is_one_after_the_other(texts, drafter, depth, limit):
    assert_one_after_the_other(
        replace(drafter, max_cached_requests=max(1, drafter.max_cached_requests)),
        make_works(texts, tails=True),
        depth,
        limit,
    )


@pytest.mark.parametrize("cached", [1, 2, 7])
def test_text_of_requests_that_left_the_tree_is_not_missed(cached):
    """One after the other it is forgotten; with more in flight it is kept to the end."""
    works = make_works(similar_texts(60, seed=cached), tails=cached == 2)
    assert_one_after_the_other(SuffixDrafter(8, cached), works, 4, None)


def test_a_tree_from_which_requests_leave_does_not_grow():
    works = make_works([(prompt, [*output, 0], tail) for prompt, output, tail in similar_texts(400, seed=0)])
    shared = _SharedTree(SuffixDrafter(8, 10))
    sizes = []
    for work in works:
        shared.begin(work.output_ids.size)
        shared.finish(work.output_ids, work.output_ids.size)
        sizes.append(sum(part.nbytes for part in shared.tree if isinstance(part, np.ndarray)))
    assert max(sizes) == max(sizes[:100])


def assert_one_after_the_other(drafter, works, depth, limit) -> None:
    in_order = drafter.proposals(works, depth, Limits(limit))
    for work, ours, theirs in zip(
        works, propose_in_flight(drafter, works, depth, Limits(limit)), in_order, strict=True
    ):
        starts = visited_rounds(ours.drafted, ours.accepted) > 0
        assert (starts == (visited_rounds(theirs.drafted, theirs.accepted) > 0)).all()
        num_known = work.output_ids.size + work.tail_ids.size
        assert walked(ours, num_known) == walked(theirs, num_known)
        assert (ours.missed[starts] == theirs.missed[starts]).all()
        # No round starts there, so nothing is drafted there.
        assert not ours.drafted[~starts].any()
        assert (ours.missed[~starts] == -1).all()


def test_what_runs_beside_is_seen_before_it_is_done():
    text = list(range(20))
    works = [make_trajectory([50], text), make_trajectory([60], [*text[:1], *text])]
    alone, beside = (replay(SuffixDrafter(in_flight=n), works, 1) for n in (1, 2))
    # One after the other, the second copies the first to its end; side by side it copies what is there.
    assert alone.accepted_at[1, 0, 0] > beside.accepted_at[1, 0, 0] > 0
    assert beside.rounds[0, 0] == alone.rounds[0, 0] == 19


def test_without_a_shared_tree_nothing_depends_on_what_is_in_flight():
    works = make_works(similar_texts(6, seed=1))
    one, many = (replay(SuffixDrafter(max_cached_requests=0, in_flight=n), works, 4) for n in (1, 5))
    assert (one.accepted_at == many.accepted_at).all()
    assert (one.rounds == many.rounds).all()


def test_the_command_line_says_and_keeps_what_was_in_flight(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"id": i, "prompt_token_ids": p, "output_token_ids": o} for i, (p, o, _) in enumerate(similar_texts(9, 3))]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def document(*arguments: str):
        assert run_command(["analyze", "log.jsonl", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    plain, one, many = document(), document("--in-flight", "1"), document("--in-flight", "4")
    assert plain == one
    assert "in_flight" not in one["settings"]
    assert many["settings"]["in_flight"] == 4
    by_name = [{result["drafter"]: result for result in found["results"]} for found in (one, many)]
    assert by_name[0]["ngram"] == by_name[1]["ngram"]
    assert by_name[0]["suffix"]["config"] == by_name[1]["suffix"]["config"]
    assert by_name[0]["suffix"]["per_prompt"] != by_name[1]["suffix"]["per_prompt"]

    assert run_command(["analyze", "log.jsonl", "--in-flight", "4", "--details"]) == 0
    assert "4 requests, whose tokens fill" in " ".join(capsys.readouterr().out.split())
    assert run_command(["analyze", "log.jsonl", "--details"]) == 0
    assert "in flight" not in capsys.readouterr().out
    # A damaged run is refused, not tripped over.
    Path("run.json").write_text(json.dumps({**many, "settings": {**many["settings"], "in_flight": "x"}}))
    assert run_command(["recommend", "run.json"]) == 2
    assert "in_flight" in capsys.readouterr().err
