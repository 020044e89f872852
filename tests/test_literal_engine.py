"""The literal engine by itself: truncations worked out by hand, accept rules, and the law of what it writes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from literal_engine import (
    ORDERS,
    RULES,
    Counters,
    Drafts,
    NoisyModel,
    Settings,
    TableModel,
    Vector,
    draft_distribution,
    expected_acceptance,
    ngram,
    one_hot_at,
    run_request,
    sample,
    softmax,
    target_distribution,
)
from scipy import stats

ENGINES = sorted(ORDERS)
LOGITS = np.log([0.5, 0.3, 0.15, 0.05])
BOTH: tuple[Drafts, Drafts] = ("greedy", "sampled")
DRAFTS: dict[str, Drafts] = {"one_hot": "greedy", "rejection": "sampled", "exact_match": "sampled"}


def truncated(engine: str, **settings: Any) -> Vector:
    """The distribution that LOGITS give with an empty history."""
    return target_distribution(LOGITS, [], [], Settings(**settings), engine)


def relative(*weights: float) -> Vector:
    """Weights divided by their sum."""
    return np.array(weights) / sum(weights)


def test_settings_that_change_nothing() -> None:
    for engine in ENGINES:
        np.testing.assert_allclose(truncated(engine), [0.5, 0.3, 0.15, 0.05])


@pytest.mark.parametrize("engine", ENGINES)
def test_temperature_one_half_squares(engine: str) -> None:
    np.testing.assert_allclose(truncated(engine, temperature=0.5), relative(0.25, 0.09, 0.0225, 0.0025))


@pytest.mark.parametrize("engine", ENGINES)
def test_top_p_acts_after_the_temperature_except_in_llama_cpp(engine: str) -> None:
    # At T = 0.5 the first token alone has 0.68; at T = 1 it has 0.5, and two are needed to reach 0.6.
    expected = relative(0.25, 0.09, 0, 0) if engine == "llama.cpp" else relative(1, 0, 0, 0)
    np.testing.assert_allclose(truncated(engine, temperature=0.5, top_p=0.6), expected)


@pytest.mark.parametrize("engine", ["hf", "llama.cpp", "sglang", "vllm"])
def test_min_p_acts_after_the_temperature_except_in_llama_cpp(engine: str) -> None:
    # The bound is 0.2 of the largest: 0.15 of 0.5 is above it, 0.0225 of 0.25 is not.
    expected = relative(0.25, 0.09, 0.0225, 0) if engine == "llama.cpp" else relative(0.25, 0.09, 0, 0)
    np.testing.assert_allclose(truncated(engine, temperature=0.5, min_p=0.2), expected)


@pytest.mark.parametrize("engine", ["hf", "llama.cpp", "sglang", "vllm"])
def test_min_p_precedes_top_p_only_in_vllm(engine: str) -> None:
    # min_p leaves 0.625 and 0.375; before it, top_p = 0.6 needs two tokens, after it one.
    expected = relative(1, 0, 0, 0) if engine == "vllm" else relative(0.5, 0.3, 0, 0)
    np.testing.assert_allclose(truncated(engine, min_p=0.4, top_p=0.6), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_top_p_acts_on_what_top_k_left_renormalised(engine: str) -> None:
    np.testing.assert_allclose(truncated(engine, top_k=2, top_p=0.6), [1, 0, 0, 0])
    np.testing.assert_allclose(truncated(engine, top_k=2, top_p=0.65), relative(0.5, 0.3, 0, 0))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tiny_top_p_leaves_one_token(engine: str) -> None:
    np.testing.assert_allclose(truncated(engine, top_p=1e-9), [1, 0, 0, 0])


@pytest.mark.parametrize("engine", ENGINES)
def test_ties_with_the_kth_token_stay_except_in_llama_cpp(engine: str) -> None:
    p = target_distribution(np.log([0.4, 0.2, 0.2, 0.2]), [], [], Settings(top_k=2), engine)
    np.testing.assert_allclose(p, relative(2, 1, 0, 0) if engine == "llama.cpp" else [0.4, 0.2, 0.2, 0.2])


def test_penalties_worked_out_by_hand() -> None:
    logits, prompt, output = np.array([2.0, -1.0, 0.5, 0.0]), [0, 1], [2, 2]
    settings = Settings(repetition_penalty=2.0, frequency_penalty=0.1, presence_penalty=0.3)
    over_output = softmax(np.array([1.0, -2.0, -0.25, 0.0]))
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        np.testing.assert_allclose(target_distribution(logits, prompt, output, settings, engine), over_output)
    over_window = softmax(np.array([0.6, -2.4, -0.25, 0.0]))
    np.testing.assert_allclose(target_distribution(logits, prompt, output, settings, "llama.cpp"), over_window)
    repetition_only = softmax(np.array([1.0, -2.0, 0.25, 0.0]))
    np.testing.assert_allclose(
        target_distribution(logits, prompt, output, Settings(repetition_penalty=2.0), "hf"), repetition_only
    )
    with pytest.raises(ValueError, match="hf has neither"):
        target_distribution(logits, prompt, output, settings, "hf")


def test_llama_cpp_forgets_what_is_more_than_64_tokens_back() -> None:
    logits, settings = np.array([2.0, 1.0, 0.0]), Settings(repetition_penalty=2.0)
    for later, first_logit in ((63, 1.0), (64, 2.0)):
        p = target_distribution(logits, [0], [2] * later, settings, "llama.cpp")
        np.testing.assert_allclose(p, softmax(np.array([first_logit, 1.0, 0.0])))
        p = target_distribution(logits, [0], [2] * later, settings, "vllm")
        np.testing.assert_allclose(p, softmax(np.array([1.0, 1.0, 0.0])))


@pytest.mark.parametrize("engine", ENGINES)
def test_temperature_0_takes_the_argmax_after_penalties(engine: str) -> None:
    settings = Settings(temperature=0.0, top_k=3, top_p=0.5, repetition_penalty=3.0)
    p = target_distribution(np.array([2.0, 1.0, 0.0]), [0], [], settings, engine)
    np.testing.assert_array_equal(p, [0, 1, 0])


def test_min_p_is_refused_where_the_order_has_none() -> None:
    with pytest.raises(ValueError, match="tensorrt-llm has no min_p"):
        truncated("tensorrt-llm", min_p=0.1)


def test_drafts_are_truncated_only_where_processed() -> None:
    settings = Settings(temperature=0.5, top_k=2, repetition_penalty=2.0)
    np.testing.assert_allclose(draft_distribution(LOGITS, settings, 0), relative(0.25, 0.09, 0.0225, 0.0025))
    np.testing.assert_allclose(draft_distribution(LOGITS, settings, 1), relative(0.25, 0.09, 0, 0))
    np.testing.assert_array_equal(draft_distribution(LOGITS, Settings(temperature=0.0), False), [1, 0, 0, 0])


P = np.array([0.4, 0.3, 0.2, 0.1, 0.0])
Q = np.array([0.1, 0.45, 0.05, 0.2, 0.2])


@pytest.mark.parametrize(
    ("rule", "sampled"),
    list(itertools.product(sorted(RULES), (False, True))),
)
def test_rules_accept_at_their_rate_and_emit_the_target(rule: str, sampled: bool) -> None:
    rng = np.random.default_rng(11)
    n, accepted, emitted = 10_000, 0, np.zeros(P.size)
    for _ in range(n):
        x = sample(rng, Q) if sampled else int(np.argmax(Q))
        is_accepted, y = RULES[rule](rng, P, Q if sampled else None, x)
        assert y == x or not is_accepted
        accepted += is_accepted
        emitted[y] += 1
    if not sampled:
        rate = expected_acceptance(P, Q, "one_hot")
    elif rule == "one_hot":
        rate = expected_acceptance(P, Q, "exact_match")
    else:
        rate = expected_acceptance(P, Q, rule)
    assert abs(accepted / n - rate) < 4 * np.sqrt(rate * (1 - rate) / n)
    assert emitted[P == 0].sum() == 0
    assert stats.chisquare(emitted[P > 0], n * P[P > 0]).pvalue > 1e-3


def test_closed_forms() -> None:
    assert expected_acceptance(P, Q, "one_hot") == 0.3
    assert expected_acceptance(P, Q, "rejection") == pytest.approx(0.1 + 0.3 + 0.05 + 0.1)
    assert expected_acceptance(P, Q, "exact_match") == pytest.approx(0.04 + 0.135 + 0.01 + 0.02)
    with pytest.raises(KeyError):
        expected_acceptance(P, Q, "block")


def decode(
    rule: str, settings: Settings, num_output: int, seed: int, target: TableModel, engine: str = "vllm"
) -> Counters:
    """A request of depth 3 with the drafter and the kind of drafts that suit the rule."""
    drafter = NoisyModel(target, noise=1.0, seed=7)
    rng = np.random.default_rng(seed)
    return run_request(rng, target, drafter, [1, 0], num_output, 3, settings, engine, rule, DRAFTS[rule])


@pytest.mark.parametrize("rule", sorted(RULES))
def test_survival_is_geometric_where_contexts_do_not_matter(rule: str) -> None:
    target, settings = TableModel(vocab_size=8, order=0, seed=3), Settings(temperature=0.8)
    counters = decode(rule, settings, 12_000, 5, target)
    p = target_distribution(target.logits([]), [], [], settings, "vllm")
    q = draft_distribution(NoisyModel(target, noise=1.0, seed=7).logits([]), settings, False)
    rate, rounds = expected_acceptance(p, q, rule), counters.rounds
    np.testing.assert_array_equal(counters.drafted_at, [rounds] * 3)
    for position, accepted in enumerate(counters.accepted_at, start=1):
        survival = rate**position
        assert abs(accepted / rounds - survival) < 4 * np.sqrt(survival * (1 - survival) / rounds)


@pytest.mark.parametrize(
    ("rule", "engine", "settings"),
    [
        ("one_hot", "vllm", Settings(temperature=0.9, repetition_penalty=1.5, presence_penalty=0.5)),
        ("rejection", "hf", Settings(temperature=1.2, top_p=0.9)),
        ("rejection", "vllm", Settings(temperature=1.3, frequency_penalty=0.4)),
        ("exact_match", "llama.cpp", Settings(temperature=0.7, min_p=0.1)),
    ],
)
def test_speculation_leaves_the_law_of_the_text(rule: str, engine: str, settings: Settings) -> None:
    target, n = TableModel(vocab_size=3, order=1, seed=4, scale=0.7), 1000
    expected = law_of_texts(target, [1, 0], 4, settings, engine)
    observed = dict.fromkeys(expected, 0)
    for seed in range(n):
        observed[tuple(decode(rule, settings, 4, seed, target, engine).output)] += 1
    assert chi_square_pvalue(np.array(list(observed.values())), n * np.array(list(expected.values()))) > 1e-3


def law_of_texts(
    target: TableModel, prompt: list[int], length: int, settings: Settings, engine: str
) -> dict[tuple[int, ...], float]:
    """Probability of every output of a length, written without speculation."""
    law = {}
    for output in itertools.product(range(target.vocab_size), repeat=length):
        probability = 1.0
        for i, token in enumerate(output):
            logits = target.logits([*prompt, *output[:i]])
            probability *= target_distribution(logits, prompt, output[:i], settings, engine)[token]
        law[output] = probability
    return law


def chi_square_pvalue(observed: npt.NDArray[np.int64], expected: Vector) -> float:
    """Chi-square test with the cells that expect fewer than 5 put together."""
    assert observed[expected == 0].sum() == 0
    observed, expected = observed[expected > 0], expected[expected > 0]
    assert expected.size > 10
    rare = expected < 5
    if not rare.any():
        return float(stats.chisquare(observed, expected).pvalue)
    pooled_observed = np.append(observed[~rare], observed[rare].sum())
    pooled_expected = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(pooled_observed, pooled_expected).pvalue)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_tokens_follow_from_the_counters(rule: str) -> None:
    target, filled = TableModel(vocab_size=8, order=2, seed=1), 0
    for seed in range(150):
        num_output = 1 + seed % 12
        counters = decode(rule, Settings(temperature=0.7, top_k=5), num_output, seed, target)
        assert len(counters.output) == num_output
        written = counters.rounds + counters.accepted_at.sum() - counters.filled_by_drafts
        assert num_output - 1 == written
        assert [step.start for step in counters.steps] == starts_of(counters)
        filled += counters.filled_by_drafts
    assert 0 < filled < 150


def starts_of(counters: Counters) -> list[int]:
    """Where rounds start if each writes what it accepted and one token more."""
    starts = [2]
    for step in counters.steps:
        starts.append(starts[-1] + step.accepted + 1)
    return starts[:-1]


def test_greedy_text_is_the_targets_own_and_a_perfect_drafter_is_always_right() -> None:
    target, settings = TableModel(vocab_size=8, order=2, seed=2), Settings(temperature=0.0)
    drafter = NoisyModel(target, noise=0.0, seed=0)
    text = [1, 0]
    for _ in range(30):
        text.append(int(np.argmax(target.logits(text))))
    for rule, drafts in itertools.product(RULES, BOTH):
        counters = run_request(np.random.default_rng(0), target, drafter, [1, 0], 30, 3, settings, "vllm", rule, drafts)
        assert counters.output == text[2:]
        assert counters.rounds == 8  # 29 tokens in rounds of 4, of which the last has 1 left
        np.testing.assert_array_equal(counters.accepted_at, [8, 7, 7])
        np.testing.assert_array_equal(counters.drafted_at, [8, 8, 8])
        assert counters.filled_by_drafts


@dataclass(frozen=True)
class Monotonous:
    """A model that prefers token 0 to token 1 after any text."""

    vocab_size: int = 2
    order: int = 0

    def logits(self, _sequence: Sequence[int], /) -> Vector:
        return np.array([1.0, 0.0])


def test_penalties_see_the_drafts_before_them() -> None:
    # The target would repeat token 0 for ever; the penalty makes every second token a 1.
    target = Monotonous()
    settings = Settings(temperature=0.0, frequency_penalty=1.5)

    def alternating(sequence: Sequence[int]) -> list[int]:
        return [1 - sequence[-1], sequence[-1], 1 - sequence[-1]]

    counters = run_request(
        np.random.default_rng(0), target, alternating, [], 13, 3, settings, "vllm", "one_hot", "greedy"
    )
    assert counters.output[:5] == [0, 1, 0, 1, 0]
    np.testing.assert_array_equal(counters.accepted_at, [3, 3, 3])


def test_ngram_takes_the_longest_match_and_the_occurrence_asked_for() -> None:
    text = [1, 2, 3, 4, 5, 2, 3, 6, 2, 3]
    assert ngram(1, 3, 2)(text) == [4, 5]
    assert ngram(1, 3, 2, match="latest")(text) == [6, 2]
    assert ngram(3, 3, 2)(text) == []
    assert ngram(3, 3, 2, "latest", "last_token")(text) == [3, 3]
    assert ngram(1, 3, 4)([7, 8, 7]) == [8, 7]
    assert ngram(1, 3, 4, "latest", "last_token")([7, 8, 7]) == [8, 7, 7, 7]
    assert ngram(1, 1, 2)([9]) == []
    assert ngram(2, 2, 2)([5, 5, 5]) == [5]


def test_rounds_without_drafts_are_rounds() -> None:
    target = TableModel(vocab_size=8, order=1, seed=5)
    counters = run_request(
        np.random.default_rng(1), target, ngram(2, 3, 4), [1, 2, 3], 60, 4, Settings(), "vllm", "one_hot", "greedy"
    )
    drafted = [step.drafted for step in counters.steps]
    assert drafted[0] == 0
    assert max(drafted) == 4
    assert counters.drafted_at[0] == sum(count > 0 for count in drafted) < counters.rounds
    assert counters.rounds + counters.accepted_at.sum() - counters.filled_by_drafts == 59


def test_noise_sets_how_close_the_drafter_is() -> None:
    target = TableModel(vocab_size=12, order=1, seed=6)
    closeness = []
    for noise in (0.0, 0.5, 2.0):
        drafter = NoisyModel(target, noise, seed=6)
        pairs = [(softmax(target.logits([c])), softmax(drafter.logits([c]))) for c in range(12)]
        closeness.append(np.mean([expected_acceptance(p, q, "rejection") for p, q in pairs]))
    assert closeness[0] == pytest.approx(1.0)
    assert closeness[0] > closeness[1] > closeness[2] > 0.2


def test_a_rejected_certain_draft_cannot_be_emitted() -> None:
    rng = np.random.default_rng(0)
    for rule in RULES.values():
        assert rule(rng, one_hot_at(2, 4), None, 1) == (False, 2)
        assert rule(rng, one_hot_at(2, 4), None, 2) == (True, 2)
