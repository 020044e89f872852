"""The verdict's server: simulation against closed form, who loses, memory, arrivals, refusals, preferences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_recommend import NUM_PROMPTS, acceptance, advise, cost, lengths, memory_bound

from specprobe.advise import Advice
from specprobe.candidates import candidates
from specprobe.cost import CostPoint, CostTable, Memory
from specprobe.errors import SpecprobeError
from specprobe.recommend import Recommendation, best_option, recommend
from specprobe.recommend_glance import render_verdict
from specprobe.recommendation_document import recommendation_document
from specprobe.refusals import LOOPING_SHARE, SHORTEST_MEAN_OUTPUT
from specprobe.run import Run
from specprobe.serving import Serving, Traffic
from specprobe.speedup import speedup_counts, speedups


def linear(batch, query):
    """A step that is linear in its tokens, as the closed form wants it."""
    return 0.005 + 0.0001 * batch * query


def linear_cost(**changes) -> CostTable:
    table = cost(linear, batches=(1, 64))
    return replace(table, prefill_token_seconds=2e-5, prefill_step_seconds=0.005, **changes)


def short_answers():
    """A result over responses of 16 to 48 tokens, in which three rounds of four accept one draft token."""
    output = np.random.default_rng(3).integers(16, 49, NUM_PROMPTS).astype(np.int32)
    rounds = np.repeat(np.ceil((output - 1) / 1.75).astype(np.int32)[:, None], 3, axis=1)
    accepted = np.zeros((NUM_PROMPTS, 3, 3), dtype=np.int32)
    accepted[:, :, 0] = (output - 1)[:, None] - rounds
    drafted = np.tril(np.ones((3, 3), dtype=np.int32))[None] * rounds[:, :, None]
    counts = {"rounds": rounds, "drafted_at": drafted, "at_risk_at": drafted, "accepted_at": accepted}
    return replace(acceptance(0.5), output_tokens=output, **counts)


@pytest.mark.parametrize("concurrency", [1, 8, 64])
@pytest.mark.parametrize(
    ("result", "bound"), [(acceptance(0.2), 0.02), (acceptance(0.8), 0.02), (short_answers(), 0.04)]
)
def test_the_simulated_gain_is_that_of_the_closed_form_while_all_slots_are_full(concurrency, result, bound):
    table, traffic = linear_cost(), Traffic(concurrency)
    record = replace(lengths(), output_tokens=result.output_tokens)
    serving = Serving(record, table, traffic)
    options = candidates(result, record, table, traffic, serving, serving.plain())
    (closed,) = speedups(result, record, table, [concurrency])
    expected = closed(speedup_counts(result, record, table).sum(axis=0))
    assert [option.speedup for option in options] == pytest.approx(expected, rel=bound)
    for option in options:
        assert option.low < option.speedup < option.high


def test_a_memory_bound_server_is_as_fast_as_its_rounds_are_few():
    plain = Serving(lengths(), cost(memory_bound), Traffic(1)).plain()
    assert plain.itl_p50_seconds == pytest.approx(0.010)
    assert plain.tpot_seconds == pytest.approx(0.010)
    assert plain.mean_latency_seconds == pytest.approx(1.2)
    assert plain.output_tokens_per_second == pytest.approx(121 / 1.2)
    assert plain.ttft_p50_seconds == 0


def test_the_share_that_loses_are_those_whose_drafts_are_rejected():
    good, bad = acceptance(0.9, num_prompts=30), acceptance(0.0, num_prompts=10)
    both = replace(
        good,
        ids=tuple(range(40)),
        **{
            name: np.concatenate([getattr(good, name), getattr(bad, name)])
            for name in ("output_tokens", "rounds", "drafted_at", "at_risk_at", "accepted_at")
        },
    )
    (verdict,) = advise([both], cost(lambda _batch, query: 0.010 * (1 + 0.2 * (query - 1))), 1).by_concurrency
    assert verdict.verdict == "speculate"
    assert verdict.best.losing_share == pytest.approx(10 / 40)


def test_a_drafter_that_takes_the_memory_of_the_batch_can_lose_by_that_alone():
    # Without it 32 requests of at most 221 tokens fit, beside its weights and cache a quarter of them.
    memory = Memory(available_bytes=32 * 240.0, weight_bytes=0.0, kv_token_bytes=1.0, drafters={"draft": (3840.0, 1.0)})
    result = replace(acceptance(0.3), drafter="draft", config={"model": "small"}, adoption=2)
    free, full = (
        advise([result], replace(linear_cost(), drafter_seconds={"draft": 0.0}, memory=m), 32).by_concurrency[0]
        for m in (None, memory)
    )
    assert free.best.served.batch > 2 * full.best.served.batch
    assert full.plain.batch > 2 * full.best.served.batch
    assert full.best.speedup < free.best.speedup
    assert full.best.drafter_bytes == 3840


def test_a_drafter_that_does_not_fit_is_left_out_and_a_target_that_does_not_is_refused():
    big = replace(acceptance(0.5), drafter="draft", config={"model": "big"}, adoption=2)
    table = replace(linear_cost(), drafter_seconds={"draft": 0.0})
    tight = Memory(available_bytes=1000.0, weight_bytes=0.0, kv_token_bytes=1.0, drafters={"draft": (900.0, 1.0)})
    found = advise([acceptance(0.5), big], replace(table, memory=tight), 2)
    assert {option.drafter for option in found.by_concurrency[0].options} == {"ngram"}
    assert "does_not_fit_left_out" in {notice.code for notice in found.notices}
    with pytest.raises(SpecprobeError, match="draft:big: no room"):
        advise([big], replace(table, memory=tight), 2)
    with pytest.raises(SpecprobeError, match="the longest request holds 221 tokens"):
        advise([acceptance(0.5)], replace(table, memory=Memory(220.0, 0.0, 1.0)), 2)


def test_a_cache_that_is_full_is_told_though_nothing_is_preempted():
    room = Memory(available_bytes=8 * 224.0, weight_bytes=0.0, kv_token_bytes=1.0)
    codes = {notice.code for notice in advise([acceptance(0.5)], replace(linear_cost(), memory=room), 32).notices}
    assert "kv_cache_full" in codes
    codes = {notice.code for notice in advise([acceptance(0.5)], replace(linear_cost(), memory=room), 4).notices}
    assert "kv_cache_full" not in codes


def test_for_arrivals_the_interval_is_that_of_the_latency():
    """Near the limit of the server, rounds that are slower by a little make requests wait for long."""
    run = Run({}, None, "vllm@0.33", {}, (lengths(),), (acceptance(0.7),), ())
    table = replace(cost(linear, batches=(1, 1024)), log_deviation=0.05)

    def width(rate: float) -> float:
        arrivals = np.cumsum(np.random.default_rng(0).exponential(1 / rate, 1000))
        (verdict,) = recommend(run, 0.0, table, [Traffic(arrival_seconds=arrivals)]).by_concurrency
        assert verdict.best.low < verdict.best.speedup < verdict.best.high
        return verdict.best.high / verdict.best.low

    assert width(40) > 1.2 * width(1)


def test_arrivals_that_are_rare_see_an_idle_server():
    arrivals = np.arange(100) * 100.0
    (verdict,) = recommend(
        Run({}, None, "vllm@0.33", {}, (lengths(),), (acceptance(0.7),), ()),
        0.0,
        cost(memory_bound),
        [Traffic(arrival_seconds=arrivals)],
    ).by_concurrency
    assert verdict.concurrency == 1
    assert verdict.plain.mean_latency_seconds == pytest.approx(1.2)
    assert verdict.best.speedup == pytest.approx(acceptance(0.7).totals(3).tokens_per_round, rel=0.02)


def test_arrivals_that_are_too_many_are_said_to_be():
    def advised(gap: float) -> Recommendation:
        traffic = Traffic(arrival_seconds=np.arange(2000) * gap)
        table = cost(linear, batches=(1, 1024))
        run = Run({}, None, "vllm@0.33", {}, (lengths(),), (acceptance(0.7),), ())
        return recommend(run, 0.0, table, [traffic])

    # At 1,024 sequences the server writes some 9,500 tokens a second: 80 of these requests.
    for gap, is_overloaded in ((1 / 1000, True), (1 / 20, False)):
        found = advised(gap)
        assert ("overloaded" in {notice.code for notice in found.notices}) == is_overloaded
        (line,) = [value for name, value in render_verdict(Advice(found, ())).facts() if "verdict" in name]
        assert ("does not keep up" in line) == is_overloaded


def test_longer_prompts_gain_less_and_only_covered_lengths_are_told():
    table = replace(linear_cost(), prefill_token_seconds=1e-3)
    wide = replace(table, points=tuple(CostPoint(b, q, c, linear(b, q)) for b in (1, 64) for q in (1, 2, 4)
                                       for c in (16, 4096)))  # fmt: skip
    best = advise([acceptance(0.8)], wide, 1).by_concurrency[0].best
    found = {(one.scale_prompt, one.scale_output): one.speedup for one in best.sensitivity}
    assert len(found) == 9
    assert found[1.0, 1.0] == pytest.approx(best.speedup)
    assert found[4.0, 1.0] < found[1.0, 1.0] < found[1.0, 4.0]
    narrow = advise([acceptance(0.8)], table, 1).by_concurrency[0].best
    assert {(one.scale_prompt, one.scale_output) for one in narrow.sensitivity} == {
        (1.0, 0.25),
        (1.0, 1.0),
        (0.25, 1.0),
    }


def test_of_drafters_that_are_nearly_as_fast_the_easier_one_is_preferred_unless_asked():
    flag = acceptance(0.75)
    head = replace(acceptance(0.76), drafter="eagle3", config={"model": "head"}, adoption=3)
    table = replace(cost(memory_bound), drafter_seconds={"eagle3": 0.0})
    simple, fast = (
        advise([flag, head], table, 1, prefer=prefer).by_concurrency[0].best.drafter for prefer in ("simple", "fast")
    )
    assert (simple, fast) == ("ngram", "eagle3")
    better = replace(acceptance(0.95), drafter="eagle3", config={"model": "head"}, adoption=3)
    assert advise([flag, better], table, 1).by_concurrency[0].best.drafter == "eagle3"


def test_the_easier_one_is_not_preferred_where_the_data_do_not_say_as_much_for_it():
    (verdict,) = advise([acceptance(0.5)], cost(memory_bound), 1).by_concurrency
    head = replace(verdict.best, drafter="eagle3", adoption=3, speedup=1.20, low=1.06, high=1.35)
    uneven = replace(verdict.best, drafter="ngram", adoption=1, speedup=1.17, low=0.97, high=1.40)
    assert best_option([head, uneven], "simple") == head
    even = replace(uneven, low=1.07)
    assert best_option([head, even], "simple") == even
    assert best_option([head, even], "fast") == head


def test_dollars_follow_the_tokens():
    found = advise([acceptance(0.7)], cost(memory_bound), 1, dollars_per_hour=3.6)
    plain = found.by_concurrency[0].plain
    assert found.dollars_per_million_tokens(plain) == pytest.approx(1e-3 / plain.output_tokens_per_second * 1e6)
    document = recommendation_document(found)["by_concurrency"][0]
    ratio = (
        document["baseline"]["dollars_per_million_output_tokens"]
        / document["options"][0]["dollars_per_million_output_tokens"]
    )
    assert ratio == pytest.approx(document["speedup"]["point"])
    unpriced = advise([acceptance(0.7)], cost(memory_bound), 1)
    assert unpriced.dollars_per_million_tokens(plain) is None


def test_what_the_source_is_known_to_err_by_widens_the_interval():
    exact, erring = (
        advise([acceptance(0.5)], replace(cost(memory_bound), log_deviation=deviation), 1).by_concurrency[0]
        for deviation in (0.0, 0.2)
    )
    assert exact.verdict == "speculate"
    assert erring.best.high / erring.best.low > np.exp(2 * 1.6 * 0.2)
    assert advise([acceptance(0.2)], replace(cost(memory_bound), log_deviation=0.2), 1).by_concurrency[0].verdict == (
        "close"
    )


@pytest.mark.parametrize(
    ("record", "results", "code"),
    [
        (lengths(looping=round(LOOPING_SHARE * NUM_PROMPTS)), [acceptance(0.9)], "undecided_loops"),
        (
            replace(lengths(), output_tokens=np.full(NUM_PROMPTS, SHORTEST_MEAN_OUTPUT - 1, dtype=np.int32)),
            [],
            "undecided_too_short",
        ),
        (
            lengths(),
            [replace(acceptance(0.001), drafter="eagle3", config={"model": "broken"}, adoption=3)],
            "undecided_nothing_accepted",
        ),
    ],
)
def test_nothing_is_decided_on_degenerate_input(record, results, code):
    if not results:
        short = acceptance(0.9)
        tokens = record.output_tokens
        few = {name: np.zeros_like(getattr(short, name)) for name in ("drafted_at", "at_risk_at", "accepted_at")}
        results = [replace(short, output_tokens=tokens, rounds=np.repeat(tokens[:, None] - 1, 3, axis=1), **few)]
    table = replace(cost(memory_bound), drafter_seconds={"eagle3": 0.0})
    found = advise(results, table, 1, record=record)
    assert found.undecided.code == code
    assert found.notices[0] == found.undecided
    assert found.by_concurrency[0].verdict == "close"
    assert found.export == {}
    assert recommendation_document(found)["undecided"]["code"] == code


def test_a_broken_head_is_left_out_beside_one_that_works():
    broken = replace(acceptance(0.001), drafter="eagle3", config={"model": "broken"}, adoption=3)
    found = advise([acceptance(0.5), broken], replace(cost(memory_bound), drafter_seconds={"eagle3": 0.0}), 1)
    assert found.undecided is None
    assert "broken_left_out" in {notice.code for notice in found.notices}
    assert {option.drafter for option in found.by_concurrency[0].options} == {"ngram"}


def test_sampled_drafts_of_an_engine_that_matches_exactly_are_not_judged():
    record = replace(lengths(), temperature=0.8)
    head = replace(acceptance(0.5), drafter="eagle3", config={"model": "h"}, temperature=0.8)
    sampled = replace(head, draft_sampling="sampled")
    run = Run({}, None, "vllm-v2@0.18", {}, (record,), (sampled,), ())
    table = replace(cost(memory_bound), drafter_seconds={"eagle3": 0.0})
    assert recommend(run, 0.8, table, [Traffic(1)]).undecided.code == "undecided_exact_match"
    both = replace(run, results=(sampled, head))
    found = recommend(both, 0.8, table, [Traffic(1)])
    assert found.undecided is None
    assert {option.draft_sampling for option in found.by_concurrency[0].options} == {"greedy"}


def test_counters_that_cannot_be_of_these_lengths_are_refused():
    result = acceptance(0.5)
    with pytest.raises(SpecprobeError, match="contradict"):
        advise([replace(result, rounds=result.rounds + 50)], cost(memory_bound), 1)
