"""Coverage of the intervals (law 6), and the properties of the one mechanism behind them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprobe.acceptance import Acceptance
from specprobe.interval import (
    Interval,
    bootstrap_t,
    bootstrap_t_columns,
    ratio,
    ratio_intervals,
    standard_error,
    tokens_per_round_intervals,
)
from specprobe.temperature import intervals_at
from tests.studies.workloads import TRAFFIC, populate

SCENARIOS = ("copy-heavy", "low acceptance", "heavy-tailed", "chat", "sparse copying")


def workload(rng, prompts, scenario, samples=1):
    """Emitted tokens and rounds of each prompt, [P, 2]; of several samples one after the other, [P x samples, 2]."""
    found = populate(rng, replace(TRAFFIC[scenario], samples=samples), prompts)
    return np.stack([found.emitted, found.counts.rounds], axis=1).astype(float)


def tokens_per_round(counts, seed):
    return tokens_per_round_intervals(counts[:, :1], counts[:, 1:], seed=seed)[0]


def generic(counts, seed):
    return bootstrap_t(counts, ratio, seed=seed)


def coverage(interval_of, scenario, prompts, workloads):
    population = workload(np.random.default_rng(1), 50_000, scenario)
    truth = ratio(population.sum(axis=0))
    rng = np.random.default_rng(7)
    hits = 0
    for seed in range(workloads):
        sample = population[rng.integers(len(population), size=prompts)]
        interval = interval_of(sample, seed)
        hits += interval.low <= truth <= interval.high
    return hits / workloads


def allowed(workloads):
    """The bounds of law 6, and three standard errors of the simulation on either side."""
    slack = 3 * np.sqrt(0.9 * 0.1 / workloads)
    return 0.87 - slack, 0.93 + slack


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_coverage_of_32_prompts(scenario):
    low, high = allowed(200)
    assert low <= coverage(tokens_per_round, scenario, 32, 200) <= high


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [32, 64, 200])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_coverage_of_many_workloads(scenario, prompts):
    low, high = allowed(2000)
    assert low <= coverage(tokens_per_round, scenario, prompts, 2000) <= high


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "sparse copying"])
def test_coverage_of_any_statistic_on_the_log_scale(scenario):
    low, high = allowed(2000)
    assert low <= coverage(generic, scenario, 32, 2000) <= high


def sampled_result(counts, prompts, depth):
    """A result of several responses to each prompt, whose counts [P, 2] are those of its deepest depth."""
    rounds = np.zeros((len(counts), depth))
    rounds[:, -1] = counts[:, 1]
    positions = np.zeros((len(counts), depth, depth))
    output = counts[:, 0].astype(np.int32) + 1
    ids = tuple(range(len(counts)))
    return Acceptance("x", {}, True, 1.0, "sampled", ids, output, rounds, *[positions] * 3, prompts=prompts)


@pytest.mark.parametrize("workloads", [200, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scenario", ["chat", "heavy-tailed"])
def test_samples_of_one_prompt_are_one_piece_of_evidence(scenario, workloads):
    """32 prompts with 4 samples each: covered as ever; taken for 128 prompts the intervals are too narrow."""
    prompts, samples, depth = 32, 4, TRAFFIC[scenario].depth
    counts = workload(np.random.default_rng(1), 20_000, scenario, samples)
    truth = ratio(counts.sum(axis=0))
    by_prompt = counts.reshape(-1, samples, 2)
    numbers = np.arange(prompts, dtype=np.int32).repeat(samples)
    rng = np.random.default_rng(7)
    hits = np.zeros(2)
    for seed in range(workloads):
        drawn = by_prompt[rng.integers(len(by_prompt), size=prompts)].reshape(-1, 2)
        for how, prompts_of in enumerate((numbers, None)):
            (interval,) = intervals_at(sampled_result(drawn, prompts_of, depth), [depth], seed=seed)
            hits[how] += interval.low <= truth <= interval.high
    low, high = allowed(workloads)
    clustered, independent = hits / workloads
    assert low <= clustered <= high
    assert independent < min(0.8, clustered)


def prompts_with_spread(count=50, columns=3, seed=0):
    rng = np.random.default_rng(seed)
    rounds = rng.integers(5, 100, (count, columns)).astype(float)
    return rounds * (1 + rng.beta(2, 2, (count, 1))), rounds


def test_point_is_the_ratio_of_sums_and_lies_inside():
    emitted, rounds = prompts_with_spread()
    for column, interval in enumerate(ratio_intervals(emitted, rounds)):
        assert interval.point == pytest.approx(emitted[:, column].sum() / rounds[:, column].sum())
        assert interval.low < interval.point < interval.high


def test_columns_agree_with_one_at_a_time():
    emitted, rounds = prompts_with_spread()
    for column, interval in enumerate(ratio_intervals(emitted, rounds, seed=4)):
        counts = np.stack([emitted[:, column], rounds[:, column]], axis=1)
        one = bootstrap_t(counts, ratio, seed=4)
        assert (one.low, one.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_same_seed_same_interval():
    emitted, rounds = prompts_with_spread()
    assert ratio_intervals(emitted, rounds, seed=3) == ratio_intervals(emitted, rounds, seed=3)
    assert ratio_intervals(emitted, rounds, seed=3) != ratio_intervals(emitted, rounds, seed=4)


def test_higher_level_is_wider():
    emitted, rounds = prompts_with_spread()
    narrow, wide = (ratio_intervals(emitted, rounds, level=level)[0] for level in (0.8, 0.95))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_prompts_without_rounds_change_nothing():
    emitted, rounds = prompts_with_spread()
    padded = [np.vstack([values, np.zeros((10, 3))]) for values in (emitted, rounds)]
    assert ratio_intervals(*padded) == ratio_intervals(emitted, rounds)


@given(st.floats(0.01, 100), st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_units_of_the_counts_do_not_matter(top, bottom):
    emitted, rounds = prompts_with_spread(30, 1)
    plain, scaled = ratio_intervals(emitted, rounds)[0], ratio_intervals(emitted * top, rounds * bottom)[0]
    assert np.array([scaled.low, scaled.high]) == pytest.approx(
        np.array([plain.low, plain.high]) * top / bottom, rel=1e-6
    )


def test_standard_error_is_the_delete_one_jackknife():
    emitted, rounds = prompts_with_spread(40, 1)
    counts = np.hstack([emitted, rounds])
    without = np.array([np.log(ratio(np.delete(counts, p, axis=0).sum(axis=0))) for p in range(40)])
    expected = np.sqrt(39 / 40 * ((without - without.mean()) ** 2).sum())
    assert standard_error(counts, ratio) == pytest.approx(expected)
    assert bootstrap_t(counts, ratio).standard_error == pytest.approx(expected)


def test_a_speed_up_is_a_statistic_like_any_other():
    """Tokens per second with against without speculation: emitted / (rounds + 0.1 drafted)."""
    emitted, rounds = prompts_with_spread(100, 1)
    counts = np.hstack([emitted, rounds, 3 * rounds])
    speed_up = bootstrap_t(counts, lambda sums: sums[..., 0] / (sums[..., 1] + 0.1 * sums[..., 2]))
    tokens_per_round = bootstrap_t(counts[:, :2], ratio)
    assert speed_up.low == pytest.approx(tokens_per_round.low / 1.3, rel=1e-6)
    assert speed_up.high == pytest.approx(tokens_per_round.high / 1.3, rel=1e-6)


def test_extra_variance_adds_in_quadrature():
    emitted, rounds = prompts_with_spread(100, 1)
    counts = np.hstack([emitted, rounds])
    plain, widened = (bootstrap_t(counts, ratio, extra_log_variance=v) for v in (0.0, 0.01))
    distance = np.log(plain.high / plain.point)
    assert np.log(widened.high / widened.point) == pytest.approx(np.hypot(distance, 1.6448536 * 0.1))


@pytest.mark.parametrize("prompts", [0, 1])
def test_fewer_than_two_prompts_have_no_interval(prompts):
    counts = np.tile([5.0, 2.0], (prompts, 1))
    assert tokens_per_round_intervals(counts[:, :1], counts[:, 1:]) == [None]
    assert bootstrap_t(counts, ratio) is None
    assert standard_error(counts, ratio) is None


def test_a_column_with_one_prompt_has_no_interval():
    emitted, rounds = prompts_with_spread(20, 2)
    emitted[1:, 1] = rounds[1:, 1] = 0.0
    first, second = ratio_intervals(emitted, rounds)
    assert first is not None
    assert second is None


def test_tokens_per_round_are_one_where_nothing_is_accepted_and_never_less():
    rounds = np.full((30, 2), 40.0)
    emitted = rounds.copy()
    emitted[:3, 1] += 1.0
    nothing, hardly = tokens_per_round_intervals(emitted, rounds)
    assert nothing == Interval(1.0, 1.0, 1.0, 0.9, 0.0)
    assert 1.0 < hardly.low < hardly.point < hardly.high
    assert hardly.point == pytest.approx(1 + 3 / 1200)


def test_without_variance_the_interval_is_the_point():
    rounds = np.arange(1.0, 31.0)[:, None]
    interval = ratio_intervals(rounds, rounds)[0]
    assert interval == Interval(1.0, 1.0, 1.0, 0.9, 0.0)
    widened = bootstrap_t(np.hstack([rounds, rounds]), ratio, extra_log_variance=0.01)
    assert widened.high == pytest.approx(np.exp(0.16448536))


def test_a_rate_of_zero_belongs_on_the_linear_scale():
    drafted = np.full((30, 1), 40.0)
    assert ratio_intervals(0 * drafted, drafted)[0] is None
    assert ratio_intervals(0 * drafted, drafted, scale="linear")[0] == Interval(0.0, 0.0, 0.0, 0.9, 0.0)


def test_one_prompt_that_carries_all_variance_still_gives_finite_ends():
    rounds = np.full((32, 1), 50.0)
    emitted = rounds.copy()
    emitted[0] = 150.0
    interval = ratio_intervals(emitted, rounds)[0]
    assert np.isfinite([interval.low, interval.high]).all()
    assert interval.low < interval.point < interval.high


def test_merged_prompts_give_the_same_interval_within_the_resampling_error():
    emitted, rounds = prompts_with_spread(20_000, 1)
    counts = np.hstack([emitted, rounds])
    interval = bootstrap_t(counts, ratio)
    assert interval.standard_error == pytest.approx(
        np.sqrt(((emitted - interval.point * rounds) ** 2).sum()) / emitted.sum(), rel=0.1
    )
    assert np.log(interval.high / interval.low) == pytest.approx(2 * 1.645 * interval.standard_error, rel=0.1)


def test_no_warnings(recwarn):
    sparse = np.zeros((20, 2, 2))
    sparse[:, :, 1] = 10.0
    sparse[0, 0, 0] = 1.0
    bootstrap_t_columns(sparse, ratio)
    sparse[:, :, 0] += 10.0
    bootstrap_t_columns(sparse, ratio)
    assert not recwarn.list
