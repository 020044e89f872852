"""The replay against an engine loop that is plain and slow, over every drafter and depth, and its laws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Counters, SuffixCache, draft_and_verify, llama_cpp_propose, make_trajectory, ngram_propose

from specprobe.acceptance import Acceptance
from specprobe.drafters import Adoption, Limits
from specprobe.drafters.base import Proposals
from specprobe.drafters.ngram import NgramDrafter
from specprobe.drafters.suffix import SuffixDrafter
from specprobe.profiles import PROFILES, NgramRule
from specprobe.replay import replay
from specprobe.trajectory import Trajectory

# Few tokens, so that they repeat; short texts, so that ends matter.
TOKENS = st.integers(0, 4)
TEXTS = st.tuples(
    st.lists(TOKENS, min_size=1, max_size=25), st.lists(TOKENS, max_size=25), st.lists(TOKENS, max_size=5)
)
WORKLOADS = st.lists(TEXTS, min_size=1, max_size=5)

RULES = {
    "vllm v1": NgramRule(min_n=2, max_n=4, match="earliest"),
    "vllm v2": NgramRule(min_n=2, max_n=4, match="latest", pad="last_token"),
    "hf": NgramRule(min_n=1, max_n=2, match="earliest", stop_at_end_token=True),
    "llama.cpp": NgramRule(
        2, 2, "latest", skip_newest=1, first_start=1, copy_limit=4, min_copied=2, depth_is_copied=True
    ),
}


def trajectories(texts: Sequence[tuple[list[int], list[int], list[int]]], *, tails: bool) -> list[Trajectory]:
    return [make_trajectory(p, o, t if tails and o else (), name=i) for i, (p, o, t) in enumerate(texts)]


def assert_counts(acceptance: Acceptance, prompt: int, depth: int, counters: Counters) -> None:
    row = depth - 1
    assert acceptance.rounds[prompt, row] == counters.rounds
    assert acceptance.drafted_rounds[prompt, row] == counters.drafted_rounds
    assert acceptance.drafted_tokens[prompt, row] == counters.drafted_tokens
    assert acceptance.accepted_at[prompt, row, :depth].tolist() == counters.accepted_at
    assert not acceptance.accepted_at[prompt, row, depth:].any()


@pytest.mark.parametrize("name", RULES)
@given(texts=WORKLOADS, depth=st.integers(1, 6), limit=st.none() | st.integers(8, 40), tails=st.booleans())
@settings(max_examples=60, deadline=None)
def test_ngram_counters_equal_a_real_loop(name, texts, depth, limit, tails):
    works = trajectories(texts, tails=tails)
    limits = Limits(limit, end_token_ids=(0,))
    acceptance = replay(NgramDrafter(RULES[name]), works, depth, limits=limits)
    for p, trajectory in enumerate(works):
        for k in range(1, depth + 1):
            # There the depth is a setting of the lookup itself.
            propose = llama_cpp_propose(2, min(k, 4)) if name == "llama.cpp" else ngram_propose(RULES[name], (0,))
            counters = draft_and_verify(trajectory, propose, k, limit)
            assert_counts(acceptance, p, k, counters)


@given(
    texts=WORKLOADS,
    depth=st.integers(1, 5),
    limit=st.none() | st.integers(4, 40),
    tails=st.booleans(),
    tree_depth=st.integers(1, 9),
    cached=st.integers(0, 3),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    floor=st.sampled_from([0.0, 0.1, 0.5]),
)
@settings(max_examples=200, deadline=None)
def test_suffix_counters_equal_a_real_loop(texts, depth, limit, tails, tree_depth, cached, factor, floor):
    works = trajectories(texts, tails=tails)
    drafter = SuffixDrafter(tree_depth, cached, factor, floor)
    acceptance = replay(drafter, works, depth, limits=Limits(limit))
    for k in range(1, depth + 1):
        cache = SuffixCache(tree_depth, cached, factor, floor)
        for p, trajectory in enumerate(works):
            prompt = trajectory.prompt_ids.tolist()
            cache.start(prompt)
            counters = draft_and_verify(trajectory, cache.propose, k, limit)
            cache.stop(prompt + counters.emitted)
            assert_counts(acceptance, p, k, counters)


def speculative_sampling(model, rule, prompt, num_output, depth, rng) -> tuple[list[int], Counters]:
    """Rejection sampling as engines do it for one-hot drafts: accept d with p(d), else draw from p without d."""
    sequence, counters = list(prompt), Counters(accepted_at=[0] * depth)

    def draw(p):
        return int(rng.choice(len(p), p=p / p.sum()))

    sequence.append(draw(model[sequence[-1]]))
    while len(sequence) - len(prompt) < num_output:
        draft = ngram_propose(rule)(sequence, depth)
        counters.rounds += 1
        counters.drafted_rounds += bool(draft)
        counters.drafted_tokens += len(draft)
        for position, token in enumerate([*draft, None]):
            p = model[sequence[-1]].copy()
            if token is None or rng.random() >= p[token]:
                if token is not None:
                    p[token] = 0
                sequence.append(draw(p))
                break
            sequence.append(token)
            counters.accepted_at[position] += 1
    return sequence[len(prompt) :], counters


@pytest.mark.parametrize("name", ["vllm v1", "vllm v2"])
@pytest.mark.parametrize("depth", [1, 3])
def test_sampled_text_gives_the_counters_of_the_very_run_that_wrote_it(name, depth):
    """At any temperature: given the text, acceptance of a one-hot draft is whether it equals the text."""
    rng = np.random.default_rng(11)
    model = rng.dirichlet(np.full(6, 0.4), size=6)
    for i in range(60):
        prompt = rng.integers(0, 6, 12).tolist()
        written, counters = speculative_sampling(model, RULES[name], prompt, 40, depth, rng)
        # The engine cuts at 40 tokens; what its last round wrote beyond is the tail.
        work = make_trajectory(prompt, written[:40], written[40:], name=i, temperature=1.0)
        assert_counts(replay(NgramDrafter(RULES[name]), [work], depth), 0, depth, counters)


class Scripted:
    """Drafts the truth, or its opposite, over the whole depth."""

    name, config, fixed_length, adoption = "scripted", {}, True, Adoption.FLAG

    def __init__(self, right: bool) -> None:
        self.right = right

    def proposals(self, works, depth, limits):  # noqa: ARG002 - the interface
        for trajectory in works:
            num_output = trajectory.output_ids.size
            left = num_output - np.arange(num_output)
            drafted = np.tile(np.arange(1, depth + 1)[:, None], (1, num_output)).astype(np.int16)
            accepted = np.minimum(drafted, left).astype(np.int16) if self.right else np.zeros_like(drafted)
            yield Proposals(drafted, accepted)


@given(length=st.integers(0, 40), depth=st.integers(1, 6))
def test_a_perfect_drafter_accepts_everything_and_a_wrong_one_nothing(length, depth):
    works = [make_trajectory([1], range(length))]
    perfect = replay(Scripted(right=True), works, depth)
    wrong = replay(Scripted(right=False), works, depth)
    emitted = max(length - 1, 0)
    for k in range(1, depth + 1):
        assert perfect.rounds[0, k - 1] == -(-emitted // (k + 1))
        # All but what the last round drafted past the end.
        assert (perfect.accepted_at[0, k - 1] == perfect.at_risk_at[0, k - 1]).all()
    assert wrong.rounds[0].tolist() == [emitted] * depth
    assert not wrong.accepted_at.any()


def ends_filled(drafter, works, work, depth) -> bool:
    """Whether the last round accepted a draft for the last token, by walking the drafter's own proposals."""
    proposals = list(drafter.proposals(works, depth, Limits()))[-1]
    start, accepted = 1, 0
    while start < work.output_ids.size:
        accepted = proposals.accepted[depth - 1, start]
        start += accepted + 1
    return work.output_ids.size > 1 and start > work.output_ids.size


@pytest.mark.parametrize("drafter", [*(NgramDrafter(rule) for rule in RULES.values()), SuffixDrafter()], ids=str)
@given(texts=WORKLOADS, depth=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_laws_of_the_counts(drafter, texts, depth):
    works = trajectories(texts, tails=False)
    acceptance = replay(drafter, works, depth)
    accepted, at_risk, drafted = acceptance.accepted_at, acceptance.at_risk_at, acceptance.drafted_at
    assert (np.diff(accepted, axis=2) <= 0).all()
    assert (np.diff(drafted, axis=2) <= 0).all()
    assert (accepted <= at_risk).all()
    assert (at_risk <= drafted).all()
    assert (at_risk[:, :, 1:] <= accepted[:, :, :-1]).all()
    # Every round emits a token more than it accepts, except a last one that drafts have filled.
    filled = acceptance.rounds + acceptance.accepted_tokens - acceptance.emitted_tokens[:, None]
    for p, work in enumerate(works):
        for k in range(1, depth + 1):
            assert filled[p, k - 1] == ends_filled(drafter, works[: p + 1], work, k)
    # Other prompts in the workload change nothing for a drafter without shared state.
    if isinstance(drafter, NgramDrafter):
        alone = replay(drafter, works[-1:], depth)
        assert (alone.accepted_at[0] == accepted[-1]).all()


def test_at_risk_leaves_out_what_lies_beyond_the_text():
    # After "1 2" comes 3 as it did before, but the text ends there: position 2 is drafted, never decided.
    works = [make_trajectory([1, 2, 3, 4, 1], [2, 3])]
    acceptance = replay(NgramDrafter(RULES["vllm v1"]), works, 2)
    assert acceptance.drafted_at[0, 1].tolist() == [1, 1]
    assert acceptance.at_risk_at[0, 1].tolist() == [1, 0]
    assert acceptance.accepted_at[0, 1].tolist() == [1, 0]


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.integers(1, 6))
def test_drafts_that_end_at_the_limit_of_the_request(text, depth):
    prompt, output, _ = text
    work = make_trajectory(prompt, output)
    rule = RULES["vllm v2"]
    acceptance = replay(NgramDrafter(rule), [work], depth, limits=Limits(max_new_tokens=len(output)))
    # As if the context ended there.
    expected = draft_and_verify(work, ngram_propose(rule), depth, len(prompt) + len(output))
    assert acceptance.totals(depth).rounds == expected.rounds
    assert acceptance.totals(depth).drafted_tokens == expected.drafted_tokens
    assert list(acceptance.totals(depth).accepted_at) == expected.accepted_at


def test_every_engine_profile_of_ngram_has_a_rule_the_tests_cover():
    shapes = {(p.ngram.match, p.ngram.pad, p.ngram.skip_newest, p.ngram.stop_at_end_token) for p in PROFILES if p.ngram}
    assert shapes == {(r.match, r.pad, r.skip_newest, r.stop_at_end_token) for r in RULES.values()}
