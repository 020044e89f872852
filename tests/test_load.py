"""The load simulation: closed forms, laws of scheduling, and a literal scheduler that agrees step by step."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_scheduler import Job, Seconds, serve
from load_closed_forms import closed_form_seconds_alone, closed_form_steady_rate

from specprobe.arrivals import poisson_arrivals
from specprobe.errors import SpecprobeError
from specprobe.load import LoadResult, Server, Workload, repeated, simulate
from specprobe.request_rounds import Rounds, plain_rounds
from specprobe.step_cost import StepCost

ROOMY = Server(max_sequences=256, max_batched_tokens=8192)


def linear_cost(per_context: float = 0.0, drafting: float = 0.0) -> StepCost:
    """8 ms, 0.1 ms for each sequence, 0.02 ms for each query token, and so much per token of context in the cache.

    The grid is dense where the product batch x query tokens bends, which trilinear interpolation follows exactly.
    """
    batches, query_tokens = np.array([1.0, 512.0]), np.array([1.0, 16.0])
    contexts = np.array([0.0, 8192.0])
    b, q, x = np.meshgrid(batches, query_tokens, contexts, indexing="ij")
    seconds = 8e-3 + 1e-4 * b + 2e-5 * b * q + per_context * b * x
    return StepCost(
        batches, query_tokens, contexts, seconds, np.full((2, 2), drafting), 1e-5, 2e-9 if per_context else 0.0, 8e-3
    )


def workload(num_requests: int, seed: int, prompt: tuple[int, int], output: tuple[int, int], depth: int) -> Workload:
    """Random requests; with depth 0 nothing is drafted."""
    rng = np.random.default_rng(seed)
    prompt_tokens = rng.integers(*prompt, num_requests, endpoint=True).astype(np.int32)
    output_tokens = rng.integers(*output, num_requests, endpoint=True).astype(np.int32)
    drafted: list[int] = []
    accepted: list[int] = []
    first = [0]
    for tokens in output_tokens:
        left = int(tokens) - 1
        while left > 0:
            drafted.append(int(rng.integers(0, depth, endpoint=True)))
            accepted.append(int(rng.integers(0, min(drafted[-1], left), endpoint=True)))
            left -= accepted[-1] + 1
        first.append(len(drafted))
    rounds = Rounds(np.array(first), np.array(drafted, dtype=np.uint8), np.array(accepted, dtype=np.uint8))
    return Workload(prompt_tokens, rounds, output_tokens)


def check_laws(load: Workload, server: Server, result: LoadResult, concurrency: int | None) -> None:
    """What holds for every run."""
    steps = result.steps
    assert steps.emitted.sum() == load.output_tokens.sum() == result.whole.output_tokens
    assert steps.decoding.sum() == load.rounds.first[-1]
    assert steps.query_tokens.sum() == load.rounds.first[-1] + load.rounds.drafted.sum(dtype=np.int64)
    assert (steps.query_tokens + steps.prefill_tokens <= server.max_batched_tokens).all()
    assert (steps.running <= min(server.max_sequences, concurrency or load.num_requests)).all()
    assert (steps.in_flight <= (concurrency or load.num_requests)).all()
    assert (steps.decoding <= steps.running).all()
    assert (np.diff(steps.end_seconds) > 0).all()
    if server.kv_capacity_tokens is not None:
        assert result.peak_kv_tokens <= server.kv_capacity_tokens
    prompts = load.prompt_tokens.sum(dtype=np.int64)
    computed = steps.prefill_tokens.sum()
    assert computed == prompts if not result.num_preemptions else computed >= prompts
    assert (np.diff(result.entry_seconds) >= 0).all()
    assert (result.first_token_seconds > result.entry_seconds).all()
    assert (result.end_seconds >= result.first_token_seconds).all()
    assert (result.gap_seconds > 0).all()
    # Chunk after chunk, the gaps lead from the first token to the last.
    until = np.concatenate([[0.0], np.cumsum(result.gap_seconds)])
    spent = np.diff(until[load.rounds.first])
    assert spent == pytest.approx(result.end_seconds - result.first_token_seconds, rel=1e-9, abs=1e-9)


def test_alone_is_the_sum_of_its_steps() -> None:
    """Prompts of several chunks, attention that grows with context, drafts of many lengths."""
    load = workload(60, 1, (1, 3000), (1, 120), 5)
    cost = linear_cost(per_context=1e-8, drafting=1e-3)
    server = Server(max_sequences=4, max_batched_tokens=512)
    result = simulate(load, cost, server, concurrency=1)
    alone = closed_form_seconds_alone(load, cost, server)
    assert result.latency_seconds == pytest.approx(alone, rel=1e-9)
    assert result.duration_seconds == pytest.approx(alone.sum(), rel=1e-9)
    assert result.steady is not None
    assert result.steady.output_tokens_per_second == pytest.approx(load.output_tokens.sum() / alone.sum(), rel=1e-9)
    check_laws(load, server, result, 1)


def test_alone_by_hand() -> None:
    """A prompt of 3 in two steps, then a round that drafts 2 and accepts 1, then a plain one; 5 ms per step."""
    one = np.array([1.0])
    cost = StepCost(one, one, one, np.array([[[5e-3]]]), np.array([[2e-3]]), 1e-3, 1e-4, 4e-3)
    rounds = Rounds(np.array([0, 2]), np.array([2, 0], dtype=np.uint8), np.array([1, 0], dtype=np.uint8))
    load = Workload(np.array([3], dtype=np.int32), rounds, np.array([4], dtype=np.int32))
    result = simulate(load, cost, Server(1, 3 - 1 + 1), concurrency=1)
    # Pairs of a prompt of 3: 0 + 1 + 2.
    ttft = 4e-3 + 3e-3 + 3e-4
    assert result.ttft_seconds == pytest.approx([ttft])
    assert result.gap_seconds == pytest.approx([7e-3, 7e-3])
    assert result.tpot_seconds == pytest.approx([14e-3 / 3])
    assert result.steps.emitted.tolist() == [1, 2, 1]
    # In the first round the cache takes the prompt, the token written and two drafts; in the last, 3 written.
    assert result.steps.kv_tokens.tolist() == [3 + 0 + 2, 3 + 1 + 2, 3 + 3]


@pytest.mark.parametrize("concurrency", [8, 64])
@pytest.mark.parametrize("depth", [0, 4])
def test_steady_window_is_the_closed_form(concurrency: int, depth: int) -> None:
    load = repeated(workload(200, 2, (5, 60), (50, 400), depth), 30 * concurrency, seed=3)
    cost = linear_cost(drafting=5e-4 * depth)
    result = simulate(load, cost, ROOMY, concurrency=concurrency)
    assert result.steady is not None
    expected = closed_form_steady_rate(load, cost, ROOMY, concurrency)
    assert result.steady.output_tokens_per_second == pytest.approx(expected, rel=0.002)
    assert result.whole.output_tokens_per_second < result.steady.output_tokens_per_second
    check_laws(load, ROOMY, result, concurrency)


def test_steady_with_a_cost_of_context() -> None:
    load = repeated(workload(200, 4, (100, 400), (50, 300), 3), 2000, seed=1)
    cost = linear_cost(per_context=2e-9)
    result = simulate(load, cost, ROOMY, concurrency=32)
    assert result.steady is not None
    expected = closed_form_steady_rate(load, cost, ROOMY, 32)
    assert result.steady.output_tokens_per_second == pytest.approx(expected, rel=0.003)


def test_slots_bound_the_batch() -> None:
    """More clients than slots wait in the queue; the server is as fast as with as many clients as slots."""
    load = workload(400, 5, (5, 30), (30, 120), 2)
    cost = linear_cost()
    few = simulate(load, cost, Server(16, 8192), concurrency=16)
    many = simulate(load, cost, Server(16, 8192), concurrency=48)
    check_laws(load, Server(16, 8192), many, 48)
    assert many.steps.running.max() == 16
    assert few.steady is not None
    assert many.steady is not None
    assert many.steady.output_tokens_per_second == pytest.approx(few.steady.output_tokens_per_second, rel=0.02)
    assert many.ttft.p50 > 5 * few.ttft.p50


def test_low_rate_is_alone() -> None:
    load = workload(40, 6, (1, 900), (1, 80), 4)
    cost = linear_cost(per_context=1e-8)
    alone = closed_form_seconds_alone(load, cost, ROOMY)
    arrivals = 3.0 + np.arange(40) * 2 * alone.max()
    result = simulate(load, cost, ROOMY, arrivals=arrivals)
    assert result.latency_seconds == pytest.approx(alone, rel=1e-9)
    assert result.entry_seconds.tolist() == arrivals.tolist()
    assert result.steady is None
    assert result.whole.start_seconds == 3.0
    check_laws(load, ROOMY, result, None)


def test_all_at_once_is_a_closed_loop_of_all() -> None:
    load = workload(50, 7, (1, 500), (1, 60), 3)
    at_once = simulate(load, linear_cost(), ROOMY, arrivals=np.zeros(50))
    closed = simulate(load, linear_cost(), ROOMY, concurrency=50)
    assert (at_once.latency_seconds == closed.latency_seconds).all()


def test_overload_queues() -> None:
    """Twice the rate that the server can take: the queue grows, and the last wait longest."""
    load = workload(400, 8, (20, 40), (40, 60), 0)
    server = Server(8, 8192)
    capacity = closed_form_steady_rate(load, linear_cost(), server, 8) / load.output_tokens.mean()
    result = simulate(load, linear_cost(), server, arrivals=poisson_arrivals(2 * capacity, 400, seed=1))
    check_laws(load, server, result, None)
    assert result.ttft_seconds[300:].mean() > 2 * result.ttft_seconds[:100].mean()
    assert result.whole.output_tokens_per_second == pytest.approx(capacity * load.output_tokens.mean(), rel=0.05)


def test_preemption_happens_and_all_finish() -> None:
    load = workload(60, 9, (50, 100), (100, 200), 3)
    server = Server(32, 512, kv_capacity_tokens=1500.0)
    result = simulate(load, linear_cost(), server, concurrency=32)
    assert result.num_preemptions > 10
    assert result.steps.prefill_tokens.sum() > load.prompt_tokens.sum()
    check_laws(load, server, result, 32)
    roomy = simulate(load, linear_cost(), Server(32, 512), concurrency=32)
    assert roomy.num_preemptions == 0
    assert roomy.duration_seconds < result.duration_seconds
    assert roomy.peak_kv_tokens > 1500


def test_kv_of_exactly_one_request() -> None:
    """A cache that holds the largest request and no token more serves them one after another or as they fit."""
    load = workload(30, 10, (10, 40), (10, 40), 2)
    capacity = float(load.largest_kv_tokens.max())
    server = Server(8, 64, capacity)
    result = simulate(load, linear_cost(), server, concurrency=8)
    check_laws(load, server, result, 8)
    with pytest.raises(SpecprobeError, match="can never be served"):
        simulate(load, linear_cost(), Server(8, 64, capacity - 1), concurrency=8)


def test_chunks_fill_what_decoding_leaves() -> None:
    """With prompts waiting, a step uses its whole budget: decoding first, prompts for the rest."""
    load = workload(40, 11, (400, 900), (20, 60), 2)
    server = Server(16, 128)
    result = simulate(load, linear_cost(), server, concurrency=16)
    check_laws(load, server, result, 16)
    used = result.steps.query_tokens + result.steps.prefill_tokens
    assert (used[:100] == 128).all()
    assert ((result.steps.decoding > 0) & (result.steps.prefill_tokens > 0)).any()


def test_budget_below_the_batch() -> None:
    """Sequences whose drafts do not fit wait a step; all finish, and never is the budget exceeded."""
    load = workload(40, 12, (5, 20), (20, 60), 7)
    server = Server(16, 20)
    result = simulate(load, linear_cost(), server, concurrency=16)
    check_laws(load, server, result, 16)
    # With every slot taken and no prompt left to prefill, some of the sequences had to wait.
    assert ((result.steps.prefill_tokens == 0) & (result.steps.decoding < result.steps.running)).any()


def test_one_token_each() -> None:
    """Requests without any round: no gaps, no time per output token."""
    ones = np.ones(5, dtype=np.int32)
    result = simulate(Workload(100 * ones, plain_rounds(ones), ones), linear_cost(), ROOMY, concurrency=2)
    assert result.itl is None
    assert result.tpot is None
    assert result.mean_batch is None
    assert result.latency == result.ttft
    assert result.num_steps == 3
    assert result.whole.output_tokens == 5


def test_fewer_requests_than_clients_are_never_steady() -> None:
    load = workload(5, 13, (5, 9), (5, 9), 1)
    assert simulate(load, linear_cost(), ROOMY, concurrency=8).steady is None


def test_same_inputs_same_outputs() -> None:
    load = repeated(workload(30, 14, (5, 200), (5, 90), 3), 100, seed=5)
    runs = [simulate(load, linear_cost(1e-9), Server(8, 256, 2000.0), concurrency=16) for _ in range(2)]
    for name in ("entry_seconds", "first_token_seconds", "end_seconds", "gap_seconds"):
        assert (getattr(runs[0], name) == getattr(runs[1], name)).all()
    for column in fields(runs[0].steps):
        assert (getattr(runs[0].steps, column.name) == getattr(runs[1].steps, column.name)).all()


def test_repeated_cycles_through_all() -> None:
    load = workload(7, 15, (5, 2000), (5, 90), 3)
    longer = repeated(load, 24, seed=2)
    assert longer.num_requests == 24
    for start in (0, 7, 14):
        assert sorted(longer.prompt_tokens[start : start + 7]) == sorted(load.prompt_tokens)
    assert longer.prompt_tokens[:7].tolist() != longer.prompt_tokens[7:14].tolist()
    whole = repeated(load, 14, seed=2)
    assert whole.rounds.accepted.sum() == 2 * load.rounds.accepted.sum()
    again = repeated(load, 24, seed=2)
    assert (again.rounds.drafted == longer.rounds.drafted).all()


def test_what_cannot_be_simulated() -> None:
    load = workload(5, 16, (5, 9), (5, 9), 6)
    with pytest.raises(SpecprobeError, match="max_batched_tokens"):
        simulate(load, linear_cost(), Server(8, 3), concurrency=1)
    with pytest.raises(SpecprobeError, match="max_sequences"):
        simulate(load, linear_cost(), Server(0, 300), concurrency=1)
    with pytest.raises(SpecprobeError, match="concurrency 0"):
        simulate(load, linear_cost(), ROOMY, concurrency=0)
    for arrivals in (np.arange(4.0), -np.ones(5), np.arange(5.0)[::-1], np.array([0, 1, 2, 3, np.nan])):
        with pytest.raises(ValueError, match="arrivals"):
            simulate(load, linear_cost(), ROOMY, arrivals=arrivals)
    with pytest.raises(ValueError, match="concurrency or arrivals"):
        simulate(load, linear_cost(), ROOMY)
    with pytest.raises(ValueError, match="concurrency or arrivals"):
        simulate(load, linear_cost(), ROOMY, concurrency=1, arrivals=np.zeros(5))


def test_workloads_that_are_none() -> None:
    ones = np.ones(1, dtype=np.int32)

    def rounds(drafted: list[int], accepted: list[int]) -> Rounds:
        return Rounds(
            np.array([0, len(drafted)]), np.array(drafted, dtype=np.uint8), np.array(accepted, dtype=np.uint8)
        )

    Workload(ones, rounds([3, 3], [0, 3]), 3 * ones)
    for bad in (rounds([3], [0]), rounds([3, 3], [3, 0]), rounds([], []), rounds([0, 0], [1, 0])):
        with pytest.raises(ValueError):
            Workload(ones, bad, 3 * ones)
    with pytest.raises(ValueError):
        Workload(0 * ones, plain_rounds(ones), ones)
    with pytest.raises(ValueError):
        Workload(ones, plain_rounds(ones), 0 * ones)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_agrees_with_a_literal_scheduler(data: st.DataObject) -> None:
    """Step by step and chunk by chunk, over workloads and limits of every kind."""
    seed = data.draw(st.integers(0, 10_000))
    num_requests = data.draw(st.integers(1, 24))
    depth = data.draw(st.sampled_from([0, 1, 4]))
    load = workload(num_requests, seed, (1, data.draw(st.sampled_from([3, 60]))), (1, 25), depth)
    slots = data.draw(st.integers(1, 16))
    budget = data.draw(st.sampled_from([depth + 1, 7, 16, 512]))
    roomy = data.draw(st.booleans())
    capacity = None if roomy else float(load.largest_kv_tokens.max() + data.draw(st.integers(0, 60)))
    concurrency = data.draw(st.sampled_from([None, 1, 5, 16]))
    arrivals = poisson_arrivals(data.draw(st.sampled_from([2.0, 300.0])), num_requests, seed)
    cost = linear_cost(per_context=1e-7, drafting=2e-3)
    server = Server(slots, budget, capacity)
    if concurrency is None:
        result = simulate(load, cost, server, arrivals=arrivals)
    else:
        result = simulate(load, cost, server, concurrency=concurrency)
    check_laws(load, server, result, concurrency)

    jobs = [
        Job(r, int(load.prompt_tokens[r]), literal_rounds(load, r), float(arrivals[r])) for r in range(num_requests)
    ]
    seconds = Seconds(
        lambda b, q, x: 8e-3 + 1e-4 * b + 2e-5 * b * q + 1e-7 * b * x + 2e-3,
        cost.prefill_token_seconds,
        cost.prefill_pair_seconds,
        cost.prefill_step_seconds,
    )
    witness = serve(jobs, seconds, slots, budget, float("inf") if capacity is None else capacity, concurrency)
    steps = result.steps
    assert steps.end_seconds == pytest.approx([step.end for step in witness], rel=1e-9)
    for name in (
        "decoding", "query_tokens", "prefill_tokens", "emitted", "kv_tokens", "running", "in_flight", "preempted"
    ):  # fmt: skip
        assert getattr(steps, name).tolist() == [getattr(step, name) for step in witness], name
    assert result.entry_seconds == pytest.approx([job.entered for job in jobs], rel=1e-9)
    assert result.first_token_seconds == pytest.approx([job.chunks[0][0] for job in jobs], rel=1e-9)
    assert result.end_seconds == pytest.approx([job.chunks[-1][0] for job in jobs], rel=1e-9)


def literal_rounds(load: Workload, request: int) -> list[tuple[int, int]]:
    """(drafted, emitted) of each round of a request."""
    left = int(load.output_tokens[request]) - 1
    found = []
    for n in range(load.rounds.first[request], load.rounds.first[request + 1]):
        emitted = min(int(load.rounds.accepted[n]) + 1, left)
        found.append((int(load.rounds.drafted[n]), emitted))
        left -= emitted
    return found
