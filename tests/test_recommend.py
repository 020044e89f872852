"""The verdict on made-up acceptance and cost, where the answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specprobe.acceptance import Acceptance
from specprobe.advise import Advice
from specprobe.cost import CostPoint, CostTable, DraftingPoint
from specprobe.drafters.suffix import SuffixDrafter
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice
from specprobe.recommend import decide, recommend
from specprobe.recommend_glance import crossover_words
from specprobe.recommend_report import render_advice
from specprobe.recommendation_document import recommendation_document
from specprobe.run import ResponseRecord, Run
from specprobe.serving import Traffic
from specprobe.speedup import has_cost

NUM_PROMPTS, DEPTH = 40, 3


def acceptance(accepted_share: float, *, coverage: float = 1.0, drafter: str = "ngram", num_prompts: int = NUM_PROMPTS):
    """Every prompt has about 100 rounds; each position is accepted with the given share, a little uneven."""
    rng = np.random.default_rng(7)
    rounds = np.zeros((num_prompts, DEPTH), dtype=np.int32)
    drafted = np.zeros((num_prompts, DEPTH, DEPTH), dtype=np.int32)
    at_risk, accepted = drafted.copy(), drafted.copy()
    output = np.full(num_prompts, 121, dtype=np.int32)
    for k in range(DEPTH):
        share = np.clip(accepted_share * rng.uniform(0.9, 1.1, num_prompts), 0, 1)
        lengths = coverage * sum(share**i for i in range(1, k + 2))
        rounds[:, k] = np.maximum(np.round(120 / (1 + lengths)), 1)
        for i in range(k + 1):
            drafted[:, k, i] = np.round(rounds[:, k] * coverage)
            at_risk[:, k, i] = np.round(drafted[:, k, i] * share**i)
            accepted[:, k, i] = np.round(drafted[:, k, i] * share ** (i + 1))
        # Every token of the text comes out of a round.
        rounds[:, k] = 120 - accepted[:, k].sum(axis=1)
        drafted[:, k] = np.minimum(drafted[:, k], rounds[:, k, None])
    config = dict(SuffixDrafter().config) if drafter == "suffix" else {"min": 2, "max": 4}
    return Acceptance(
        drafter, config, True, 0.0, "greedy", tuple(range(num_prompts)), output, rounds, drafted,
        at_risk, accepted,
    )  # fmt: skip


def lengths(num_prompts: int = NUM_PROMPTS, *, prompt_tokens: int = 100, looping: int = 0) -> ResponseRecord:
    return ResponseRecord(
        0.0,
        "logged",
        tuple(range(num_prompts)),
        np.full(num_prompts, prompt_tokens, dtype=np.int32),
        np.full(num_prompts, 121, dtype=np.int32),
        prompts=np.arange(num_prompts, dtype=np.int32),
        samples=np.zeros(num_prompts, dtype=np.int32),
        looping=looping,
    )


def cost(seconds, batches=(1, 8, 64)) -> CostTable:
    return CostTable(
        "file",
        tuple(CostPoint(b, q, c, seconds(b, q)) for b in batches for q in (1, 2, 4) for c in (64, 256)),
        prefill_step_seconds=0.0,
    )


def memory_bound(_batch, _query):
    return 0.010


def compute_bound(batch, query):
    return 0.001 * batch * query


def advise(results, table, *concurrencies, profile="vllm@0.33", notices=(), record=None, settings=(), **further):
    record = record or lengths(len(results[0].ids))
    run = Run({}, None, profile, dict(settings), (record,), tuple(results), tuple(notices))
    return recommend(run, 0.0, table, [Traffic(concurrency) for concurrency in concurrencies], **further)


def test_where_a_round_costs_the_same_the_gain_is_the_tokens_per_round():
    result = acceptance(0.7)
    (verdict,) = advise([result], cost(memory_bound), 1).by_concurrency
    assert verdict.verdict == "speculate"
    assert verdict.best.depth == 3
    assert verdict.best.speedup == pytest.approx(result.totals(3).tokens_per_round)
    assert verdict.best.break_even_tokens_per_round == pytest.approx(1.0)
    assert verdict.best.low < verdict.best.speedup < verdict.best.high


def test_where_every_token_costs_a_full_pass_nobody_should_speculate():
    (verdict,) = advise([acceptance(0.7)], cost(compute_bound), 64).by_concurrency
    assert verdict.verdict == "dont"
    # Depth 1: two tokens are paid for, 1.7 come out.
    assert verdict.best.depth == 1
    assert verdict.best.speedup == pytest.approx(1.7 / 2, rel=0.02)
    assert verdict.best.break_even_acceptance_length == pytest.approx(2.0)


def test_the_verdict_turns_with_concurrency_and_the_schedule_follows():
    def turning(batch, query):
        return max(0.010, 0.0004 * batch * query)

    advice = advise([acceptance(0.5)], cost(turning), 1, 64)
    first, last = advice.by_concurrency
    assert (first.verdict, last.verdict) == ("speculate", "dont")
    assert 1 < advice.crossover_concurrency <= 64
    assert advice.schedule[0][0] == 1
    assert advice.schedule[-1][1:] == (64, 0)
    assert [row[0] for row in advice.schedule[1:]] == [row[1] + 1 for row in advice.schedule[:-1]]
    settings = advice.export["vllm"]
    assert settings["method"] == "ngram"
    assert settings["num_speculative_tokens_per_batch_size"] == [list(row) for row in advice.schedule]


def test_the_grid_holds_every_depth_at_powers_of_two_and_at_what_was_asked_for():
    result = acceptance(0.5)
    (flat,) = advise([result], cost(memory_bound), 1, 12).grids
    assert flat.batches == (1, 2, 4, 8, 12, 16, 32, 64)
    # Where every round costs the same, the gain is the tokens per round, but for the steps that prefill.
    expected = [result.totals(depth).tokens_per_round for depth in (1, 2, 3)]
    assert flat.speedup == pytest.approx(np.tile(expected, (8, 1)), rel=0.01)
    # Where every token does, it is those over the tokens that were verified.
    (steep,) = advise([result], cost(compute_bound, batches=(4, 64)), 96).grids
    assert steep.batches == (4, 8, 16, 32, 64)
    assert steep.speedup == pytest.approx(np.tile(np.divide(expected, [2, 3, 4]), (5, 1)), rel=0.02)


def test_the_crossover_is_where_gains_end_for_good():
    def slow_at_8(batch, query):
        return 0.010 * (query if batch == 8 else 1)

    advice = advise([acceptance(0.3)], cost(slow_at_8), 8, 64)
    assert [verdict.verdict for verdict in advice.by_concurrency] == ["dont", "speculate"]
    assert advice.crossover_concurrency is None
    assert advise([acceptance(0.0)], cost(memory_bound), 1).crossover_concurrency == 1


def test_beyond_the_schedule_the_crossover_is_that_of_the_tables_own_batches():
    def late(batch, query):
        return 0.010 if batch <= 2048 else 0.010 * query

    advice = advise([acceptance(0.5)], cost(late, batches=(1, 1024, 2048, 4096)), 1)
    assert advice.crossover_concurrency == 4096
    assert advice.schedule[-1][1] == 1024


def test_a_table_that_starts_late_says_nothing_of_its_own_below():
    advice = advise([acceptance(0.0)], cost(memory_bound, batches=(8, 64)), 8)
    assert advice.crossover_concurrency == 8
    assert advice.schedule == ((1, 64, 0),)
    assert advise([acceptance(0.5)], cost(memory_bound, batches=(8, 64)), 8).schedule == ((1, 64, 3),)


def test_repeated_timings_of_drafting_widen_the_interval():
    def width(spread: float) -> float:
        points = tuple(
            DraftingPoint("eagle3", b, k, c, 0.005, spread_seconds=spread, repeats=5)
            for b in (1, 64) for k in (1, 3) for c in (64, 256)
        )  # fmt: skip
        head = replace(acceptance(0.7), drafter="eagle3", config={"model": "h"})
        best = advise([head], replace(cost(memory_bound), drafting=points), 1).by_concurrency[0].best
        return best.high / best.low

    assert width(0.005) > 1.05 * width(0.0)


def test_the_exported_schedule_holds_the_depth_of_the_verdict():
    def turning(batch, query):
        return max(0.010, 0.0004 * batch * query)

    for concurrency in (1, 3, 8, 20):
        (verdict,) = advise([acceptance(0.5)], cost(turning), concurrency).by_concurrency
        rows = verdict.schedule
        assert [row[0] for row in rows[1:]] == [row[1] + 1 for row in rows[:-1]]
        if verdict.verdict == "speculate":
            assert next(depth for first, last, depth in rows if first <= concurrency <= last) == verdict.best.depth


def test_early_exit_is_known_by_its_layers():
    result = replace(acceptance(0.5), drafter="early-exit", config={"layers": 20})
    assert has_cost(result, replace(cost(memory_bound), drafter_seconds={"early-exit:layers=20": 0.001}))
    assert has_cost(result, replace(cost(memory_bound), drafter_seconds={"early-exit": 0.001}))
    assert not has_cost(result, replace(cost(memory_bound), drafter_seconds={"early-exit:layers=10": 0.001}))


def test_a_schedule_goes_only_to_a_version_that_takes_one():
    def turning(batch, query):
        return max(0.010, 0.0004 * batch * query)

    for profile, takes in (("vllm@0.13", False), ("vllm@0.30", True), ("vllm-v1@0.33", True)):
        settings = advise([acceptance(0.5)], cost(turning), 1, profile=profile).export["vllm"]
        assert ("num_speculative_tokens_per_batch_size" in settings) == takes


def test_the_warnings_of_the_run_reach_the_verdict():
    notice = Notice("degenerate_loops", "stuck")
    assert notice in advise([acceptance(0.5)], cost(memory_bound), 1, notices=[notice]).notices


def test_too_few_prompts_never_say_speculate():
    verdict = advise([acceptance(0.9, num_prompts=15)], cost(memory_bound), 1).by_concurrency[0]
    assert verdict.best.speedup > 2
    assert verdict.verdict == "close"
    assert advise([acceptance(0.9, num_prompts=16)], cost(memory_bound), 1).by_concurrency[0].verdict == "speculate"


def test_nothing_is_exported_when_nothing_should_be_switched_on():
    assert advise([acceptance(0.3)], cost(compute_bound), 8).export == {}


def test_the_drafters_own_time_counts():
    table = cost(memory_bound)
    slow = replace(table, drafter_seconds={"ngram": 0.010})
    fast, slowed = (advise([acceptance(0.7)], t, 1).by_concurrency[0].best.speedup for t in (table, slow))
    assert slowed == pytest.approx(fast / 2)


def test_rounds_without_a_draft_cost_an_ordinary_round_at_concurrency_one():
    def by_query(_batch, query):
        return {1: 0.010, 2: 0.020, 4: 0.040}[query]

    result = acceptance(0.8, coverage=0.25)
    (verdict,) = advise([result], cost(by_query), 1).by_concurrency
    option = next(option for option in verdict.options if option.depth == 1)
    share = result.totals(1).coverage
    assert option.round_seconds == pytest.approx(0.010 + share * 0.010)
    # Three quarters of the rounds have no draft.
    assert option.served.itl_p50_seconds == pytest.approx(0.010)
    assert option.served.itl_p95_seconds == pytest.approx(0.020)


def test_quantiles_of_rounds_are_in_order_whatever_the_kernels_do():
    def odd(_batch, query):
        return {1: 0.008, 2: 0.020, 4: 0.012}[query]

    for concurrency in (1, 8, 64):
        for option in advise([acceptance(0.6, coverage=0.5)], cost(odd), concurrency).by_concurrency[0].options:
            assert option.served.itl_p50_seconds <= option.served.itl_p95_seconds


def test_the_better_drafter_wins_and_the_other_is_runner_up():
    results = [acceptance(0.3), acceptance(0.8, drafter="suffix")]
    verdict = advise(results, cost(memory_bound), 1).by_concurrency[0]
    assert verdict.best.drafter == "suffix"
    assert verdict.runner_up.drafter == "ngram"
    assert len(verdict.options) == 2 * DEPTH


def test_of_two_depths_that_hardly_differ_the_shallower_is_chosen():
    verdict = advise([acceptance(0.02)], cost(memory_bound), 1).by_concurrency[0]
    assert verdict.best.depth == 1


def details(found) -> dict[str, str]:
    return dict(render_advice(Advice(found, ()), details=True).facts())


def test_the_details_say_where_a_deeper_one_is_hardly_faster():
    """Else a depth that is another at the next concurrency looks like a finding."""
    found = advise([acceptance(0.02)], cost(memory_bound), 1)
    fastest = max(found.by_concurrency[0].options, key=lambda option: option.speedup)
    assert fastest.depth > 1
    assert f"({fastest.depth} is the fastest at concurrency 1, 1 was taken)" in details(found)["depth"]
    assert "depth" not in details(advise([acceptance(0.7)], cost(memory_bound), 1))


@pytest.mark.parametrize(
    ("found", "batches", "source", "words"),
    [
        (8, (1, 64), "file", "nothing is faster than not speculating from concurrency 8 on"),
        (None, (1, 64), "file", "speculation is not slower up to 64, the cost's largest batch"),
        (None, (1, 2, 4), "roofline", "speculation is not slower up to concurrency 4; no larger one was predicted"),
        (None, (1,), "roofline", "speculation is not slower at concurrency 1; no other was predicted"),
        (None, (1, 8), "measured", "speculation is not slower up to concurrency 8; no larger one was timed"),
    ],
)
def test_only_a_file_has_a_largest_batch_of_its_own(found, batches, source, words):
    assert crossover_words(found, batches, source) == words


@pytest.mark.parametrize(
    ("speedup", "low", "high", "verdict"),
    [(1.5, 1.3, 1.7, "speculate"), (0.8, 0.7, 0.9, "dont"), (1.2, 0.9, 1.5, "close"), (1.03, 1.01, 1.08, "close"),
     (1.0, 1.0, 1.0, "dont"), (0.99, 0.9, 1.1, "close"), (1.5, None, None, "close"), (0.8, None, None, "dont")],
)  # fmt: skip
def test_decide(speedup, low, high, verdict):
    assert decide(speedup, low, high) == verdict


def test_repeated_timings_that_scatter_widen_the_interval():
    def scattered(spread):
        points = tuple(
            CostPoint(b, q, c, 0.010, spread_seconds=spread, repeats=5)
            for b in (1, 8)
            for q in (1, 2, 4)
            for c in (64, 256)
        )
        best = advise([acceptance(0.7)], CostTable("measured", points), 1).by_concurrency[0].best
        return best.high / best.low

    assert scattered(0.003) > scattered(0.0)


def test_what_the_cost_table_does_not_cover_is_said():
    codes = {notice.code for notice in advise([acceptance(0.5)], cost(memory_bound, batches=(1, 8)), 64).notices}
    assert "cost_batch_not_covered" in codes
    shallow = CostTable("file", tuple(CostPoint(1, q, c, 0.01) for q in (1, 2) for c in (64, 256)))
    codes = {notice.code for notice in advise([acceptance(0.5)], shallow, 1).notices}
    assert "cost_query_not_covered" in codes
    assert "no_prefill_time" in codes
    assert not advise([acceptance(0.5)], replace(cost(memory_bound), prefill_token_seconds=1e-6), 8).notices


def test_what_is_not_covered_decides_nothing():
    (verdict,) = advise([acceptance(0.7)], cost(memory_bound, batches=(1, 8)), 64).by_concurrency
    assert verdict.best.speedup > 1.5
    assert (verdict.verdict, verdict.export) == ("close", {})
    shallow = CostTable("file", tuple(CostPoint(1, q, c, 0.01) for q in (1, 2) for c in (64, 256)))
    (verdict,) = advise([acceptance(0.7)], shallow, 1).by_concurrency
    assert {option.depth for option in verdict.options} == {1}
    assert {row[2] for row in verdict.schedule} == {1}
    plain_only = CostTable("file", tuple(CostPoint(1, 1, c, 0.01) for c in (64, 256)))
    with pytest.raises(SpecprobeError, match="one query token only"):
        advise([acceptance(0.7)], plain_only, 1)


@pytest.mark.parametrize(
    ("in_flight", "concurrencies", "far"),
    [(1, (1, 4), None), (1, (1, 5, 64), (5, 64)), (16, (4, 64), None), (16, (3, 16, 64), (3,)), (4, (65,), (65,))],
)
def test_a_load_far_from_what_filled_the_shared_tree_is_said_once(in_flight, concurrencies, far):
    settings = {} if in_flight == 1 else {"in_flight": in_flight}

    def said(*results):
        found = advise(results, cost(memory_bound), *concurrencies, settings=settings).notices
        return [notice.message for notice in found if notice.code == "suffix_in_flight"]

    assert said(acceptance(0.3)) == []
    messages = said(acceptance(0.3), acceptance(0.8, drafter="suffix"), acceptance(0.7, drafter="suffix"))
    assert len(messages) == (far is not None)
    for message in messages:
        assert f"with {in_flight} request" in message
        # The log has 40 requests: more in flight it cannot show.
        assert message.endswith(", ".join(f"--in-flight {min(c, NUM_PROMPTS)} for {c}" for c in far))


def test_a_run_without_rounds_is_refused():
    empty = acceptance(0.5, num_prompts=2)
    empty.rounds[:] = 0
    with pytest.raises(SpecprobeError, match="no rounds"):
        advise([empty], cost(memory_bound), 1)


def test_the_document_has_what_scripts_rely_on():
    document = recommendation_document(advise([acceptance(0.7)], cost(memory_bound), 1, 8))
    assert document["schema"] == "specprobe.recommendation/1"
    assert document["cost_source"] == "file"
    for entry in document["by_concurrency"]:
        assert entry["verdict"] in ("speculate", "dont", "close")
        assert set(entry["speedup"]) == {"point", "low", "high", "level"}
        for option in entry["options"]:
            assert {"drafter", "depth", "speedup", "output_tokens_per_second", "itl_p50_ms", "itl_p95_ms", "tpot_ms",
                    "request_latency_s"} <= set(option)  # fmt: skip
    assert {"crossover_concurrency", "schedule", "export"} <= set(document)
