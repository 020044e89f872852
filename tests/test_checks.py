"""Warnings: each fires on what it is for, and not on ordinary text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reference import make_trajectory

from specprobe.checks import check_acceptance, check_responses, is_degenerate_loop
from specprobe.drafters import parse_drafter
from specprobe.mismatch import measure_mismatch
from specprobe.profiles import resolve_profile
from specprobe.replay import replay
from specprobe.target import Score
from specprobe.trajectory import token_ids

RNG = np.random.default_rng(3)
TEXT = RNG.integers(0, 1000, 300)


def codes(notices) -> set[str]:
    return {notice.code for notice in notices}


@pytest.mark.parametrize("period", [1, 2, 7, 32])
def test_a_loop_at_the_end_is_one_and_a_loop_in_the_middle_is_none(period):
    loop = np.resize(TEXT[:period], 120)
    assert is_degenerate_loop(token_ids([*TEXT, *loop]))
    assert is_degenerate_loop(token_ids([*TEXT, *loop, 2]))
    assert not is_degenerate_loop(token_ids([*loop, *TEXT]))


@pytest.mark.parametrize("period", [1, 5, 7, 16])
def test_a_loop_needs_48_tokens_before_the_last_one(period):
    loop = np.resize(TEXT[:period], 60)
    assert [is_degenerate_loop(token_ids(loop[:size])) for size in (47, 48, 49, 50)] == [False, False, True, True]


def test_ordinary_and_short_texts_are_no_loops():
    assert not is_degenerate_loop(token_ids(TEXT))
    assert not is_degenerate_loop(token_ids([5] * 20))
    assert not is_degenerate_loop(token_ids())


def test_responses_are_checked():
    stuck = [make_trajectory([1], [*TEXT[:50], *[7] * 100], name=i) for i in range(4)]
    assert codes(check_responses(stuck)) == {"too_few_prompts", "degenerate_loops"}
    fine = [make_trajectory([i], RNG.permutation(TEXT), name=i) for i in range(20)]
    assert not check_responses(fine)
    cut = [replace(work, source="generated", finish_reason="length") for work in fine]
    assert codes(check_responses(cut)) == {"responses_cut"}
    assert not check_responses([replace(work, source="generated", finish_reason="stop") for work in fine])
    # Twenty answers to one prompt are one prompt.
    same = [replace(work, prompt_ids=fine[0].prompt_ids) for work in fine]
    assert codes(check_responses(same)) == {"too_few_prompts"}


def acceptance(works, spec="ngram:min=1,max=2", depth=2):
    return replay(parse_drafter(spec, resolve_profile("vllm@0.30")), works, depth)


def test_a_drafter_without_a_draft_is_said_to_do_nothing():
    assert codes(check_acceptance(acceptance([make_trajectory([1], range(2, 200))]))) == {"nothing_drafted"}


def test_few_rounds_and_censored_ones_are_said():
    repeats = [make_trajectory([1, 2, 3, 4, 5], np.resize([1, 2, 3, 4, 5], 400))]
    assert codes(check_acceptance(acceptance(repeats))) == {"censored_at_depth"}
    assert codes(check_acceptance(acceptance([make_trajectory([1, 2, 3], [1, 9, 8])]))) == {"too_few_rounds"}


def scores(log_probs, entropy, is_argmax, responses=20):
    size = 50
    noise = RNG.normal(0, 0.3, (responses, size))
    return [
        Score(
            (log_probs + noise[i]).astype(np.float32),
            np.full(size, entropy, dtype=np.float32),
            RNG.random(size) < is_argmax,
        )
        for i in range(responses)
    ]


def test_text_of_the_target_fits_and_text_of_another_model_does_not():
    own, other = scores(-1.2, 1.2, 0.6), scores(-2.5, 1.2, 0.4)
    assert not measure_mismatch(own, 1.0).notices()
    assert codes(measure_mismatch(other, 1.0).notices()) == {"other_model"}
    # Greedy text: every token is the argmax, but for a near-tie here and there.
    assert not measure_mismatch(scores(-0.3, 0.5, 1.0), 0.0).notices()
    assert codes(measure_mismatch(scores(-0.9, 0.5, 0.8), 0.0).notices()) == {"other_model"}


def test_an_impossible_token_means_wrong_settings():
    impossible = scores(-1.2, 1.2, 0.6)
    impossible[0].log_probs[3] = -np.inf
    mismatch = measure_mismatch(impossible, 1.0)
    assert mismatch.impossible_tokens == 1
    assert mismatch.is_other_model
    assert np.isfinite(mismatch.mean_log_prob)


def test_nothing_to_measure_is_none():
    assert measure_mismatch([], 0.0) is None
