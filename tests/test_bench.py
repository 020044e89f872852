"""`bench`: a toy engine of known speed, with real counters, measured and held against the replay."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import toy_target as toy
from fake_engine import Engine, engine

from specprobe.bench.client import Served, Written
from specprobe.bench.counters import ServerCounters, SpecCounters, counters_of_request, parse_metrics
from specprobe.bench.figures import busy_window, measured, pass_figures, round_gaps
from specprobe.bench.plan import BenchPlan
from specprobe.bench.replay import ReplayOptions, replay_answers
from specprobe.bench.texts import NEAR_TIE_NATS, Score, compare_sampled
from specprobe.cli import run_command
from specprobe.errors import SpecprobeError
from specprobe.progress import Silent

TOY = Path(__file__).parent / "fake_engine.py"
TWO = ("--server", "http://localhost:1/v1", "--speculative", "http://localhost:2/v1")
RULES = ("--drafter", "ngram:min=2,max=4", "--depth", "3", "--engine", "vllm-v1@0.32")


@pytest.fixture
def prompts(tmp_path, monkeypatch):
    """Sixteen prompts of different lengths, in a project of their own."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    rows = [
        {"id": f"p{n}", "messages": [{"role": "user", "content": "".join(map(chr, rng.integers(97, 113, 20 + n)))}]}
        for n in range(16)
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def bench(capsys, prompts: Path, plain: Engine, speculative: Engine, *more: str) -> tuple[int, dict, str]:
    servers = ("--server", plain.url, "--speculative", speculative.url)
    status = run_command(["bench", str(prompts), *servers, "--max-new-tokens", "24", "--json", *more])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else {}, err


def codes(document: dict) -> set[str]:
    return {warning["code"] for warning in document["warnings"]}


def test_arms_are_measured_in_turn_and_their_order_cancels_a_steady_drift():
    plan = BenchPlan((1, 4), 4, 16, 0.0)
    for restarts in (False, True):
        passes = plan.passes(restarts=restarts)
        assert len(passes) == len(set(passes)) == 16
        for concurrency in (1, 4):
            places = [place for place, one in enumerate(passes) if one.concurrency == concurrency]
            arms = [passes[place].arm for place in places]
            assert arms in (
                ["plain", "speculative", "speculative", "plain"] * 2,
                ["speculative", "plain", "plain", "speculative"] * 2,
            )
    blocks = [one.arm for one in plan.passes(restarts=True)]
    # A server that is restarted to change the arm is started five times for four repeats of both.
    assert sum(a != b for a, b in pairwise(blocks)) == 4


def test_prompts_come_in_one_order_for_both_arms_and_another_in_each_repeat():
    plan = BenchPlan((1,), 3, 16, 0.0)
    orders = [plan.order(repeat, 30) for repeat in range(3)]
    assert orders[0] == list(range(30))
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == orders[0] for order in orders)


def request(prompt: int, start: float, step: float, tokens: int, *, first: float = 0.0, chunk: int = 1) -> Served:
    """Chunks of `chunk` tokens every `step` seconds, the first one after `first`."""
    times = tuple(start + (first or step) + step * i for i in range(tokens // chunk))
    return Served(prompt, start, times, (chunk,) * len(times), 10, tokens, "length", "d", None)


def closed_loop(num: int, concurrency: int, step: float, tokens: int, *, chunk: int = 1) -> list[Served]:
    """What a closed loop over equal requests looks like."""
    length = step * (tokens // chunk)
    return [request(n, length * (n // concurrency), step, tokens, chunk=chunk) for n in range(num)]


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_rates_of_a_loop_of_equal_requests_follow_from_its_step(concurrency):
    figures = pass_figures(closed_loop(8, concurrency, 0.01, 20), concurrency)
    assert figures.is_steady
    assert figures.rate == pytest.approx(concurrency / 0.01)
    assert figures.whole_rate == pytest.approx(concurrency / 0.01)


def test_the_rate_leaves_out_the_time_in_which_slots_run_empty():
    requests = [request(0, 0.0, 0.01, 100), request(1, 0.0, 0.01, 20)]
    assert busy_window(requests, 2) == (0.0, pytest.approx(0.2))
    figures = pass_figures(requests, 2)
    assert figures.rate == pytest.approx(200)
    assert figures.whole_rate == pytest.approx(120)
    assert busy_window(requests, 3) is None
    assert not pass_figures(requests, 3).is_steady


def test_speed_up_and_interval_of_arms_of_known_speed():
    plain = [closed_loop(16, 2, 0.01, 20) for _ in range(3)]
    speculative = [closed_loop(16, 2, 0.015, 20, chunk=2) for _ in range(3)]
    found = measured(2, plain, speculative)
    assert found.speedup == pytest.approx(4 / 3)
    assert found.low == pytest.approx(4 / 3) == found.high
    assert found.standing == "faster"
    assert found.verdict == "speculate"
    assert found.drift == pytest.approx(0)
    assert found.spread == pytest.approx(0, abs=1e-9)
    back = measured(2, speculative, plain)
    assert back.speedup == pytest.approx(3 / 4)
    assert (back.standing, back.verdict) == ("slower", "dont")


def test_what_differs_less_than_repeats_do_is_not_significant():
    steps = [0.008, 0.01, 0.012]
    plain = [closed_loop(16, 2, step, 20) for step in steps]
    speculative = [closed_loop(16, 2, step * 0.97, 20) for step in (steps[1], steps[2], steps[0])]
    found = measured(2, plain, speculative)
    assert found.low < 1 < found.high
    assert (found.standing, found.verdict) == ("not significant", "close")
    assert found.drift == pytest.approx(8 / 12 - 1)
    assert found.spread > 0.5
    once = measured(2, plain[:1], speculative[:1])
    assert (once.standing, once.verdict) == ("one repeat", "close")


def test_rounds_beside_the_prefill_of_another_request_are_no_rounds_of_a_full_batch():
    steady = closed_loop(4, 2, 0.01, 20)
    assert round_gaps(steady, 2) == pytest.approx([0.01] * 76)
    # The second request computes its prompt while the first decodes, from 0.05 to 0.15.
    requests = [request(0, 0.0, 0.01, 40), request(1, 0.05, 0.01, 20, first=0.1)]
    gaps = round_gaps(requests, 2)
    assert gaps == pytest.approx([0.01] * len(gaps))
    # After it, until one of both ends at 0.34: 19 of either.
    assert len(gaps) == 38


def test_counters_of_engines_are_read_and_subtracted():
    text = (
        "# TYPE x counter\n"
        'vllm:spec_decode_num_drafts_total{engine="0"} 3.0\nvllm:spec_decode_num_drafts_total{engine="1"} 4.0\n'
        'vllm:spec_decode_num_draft_tokens_total{engine="0"} 2.1e+01\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 9.0 1700000000\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 5.0\n'
        'vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9\nnot a line\nvllm:kv_cache_usage_perc NaN\n'
    )
    counters = parse_metrics(text).speculation
    assert counters == SpecCounters(21, 9, 7, (5, 4))
    with pytest.raises(SpecprobeError, match="no count"):
        parse_metrics(text + "vllm:prefix_cache_hits_total NaN\n")
    assert counters - SpecCounters(1, 2, 3, (2,)) == SpecCounters(20, 7, 4, (3, 4))
    assert parse_metrics("").speculation is None
    told = {"num_spec_steps": 3, "num_draft_tokens": 7, "num_accepted_draft_tokens": 6}
    vllm = {"metrics": {"speculative_decoding": {**told, "acceptance_histogram": [0, 1, 1, 1]}}}
    assert counters_of_request(vllm) == SpecCounters(7, 6, 3, (3, 2, 1))
    timings = {"prompt_n": 5, "predicted_n": 9, "draft_n": 7, "draft_n_accepted": 6}
    assert counters_of_request({"timings": timings}) == SpecCounters(7, 6)
    assert counters_of_request({"timings": {"predicted_n": 9}}) == SpecCounters(0, 0)
    llama_cpp = parse_metrics(
        "llamacpp:spec_decode_num_drafts_total 15\nllamacpp:spec_decode_num_draft_tokens_total 44\n"
        "llamacpp:spec_decode_num_accepted_tokens_total 7\nllamacpp:prompt_tokens_total 30\n"
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 7\n'
        "llamacpp:prompt_tokens_cached_total 10\n"
    )
    assert llama_cpp == ServerCounters("llama.cpp", SpecCounters(44, 7, 15, (7,)), 40, 10)
    assert counters_of_request({"metrics": {"speculative_decoding": {"num_draft_tokens": True}}}) is None
    assert counters_of_request({"metrics": {"speculative_decoding": {**told, "num_draft_tokens": 5}}}) is None


def test_a_toy_engine_is_measured_and_its_counters_are_the_replays(capsys, prompts, tmp_path):
    out = tmp_path / "bench.json"
    with engine(step_seconds=0.004) as plain, engine(depth=3, step_seconds=0.004) as speculative:
        options = ("--concurrency", "1,4", "--repeats", "3", *RULES, "--out", str(out))
        status, document, _ = bench(capsys, prompts, plain, speculative, *options)
        salts = [body["cache_salt"] for body in plain.bodies + speculative.bodies if "cache_salt" in body]
    assert status == 0
    assert json.loads(out.read_text()) == document
    assert document["complete"]
    assert not document["speculation_broken"]
    # Prompts are asked under one salt in both arms and another in every pass of an arm; warm-ups under their own.
    timed = [salt for salt in salts if re.fullmatch(r"[0-9a-f]{8}-\d-\d", salt)]
    assert {timed.count(salt) for salt in timed} == {32}
    assert len(set(timed)) == 6
    for level in document["by_concurrency"]:
        check = level["acceptance"]
        assert (check["requests"], check["agreeing"], check["compared"], check["exact"]) == (48, 48, 48, 48)
        assert check["totals_exact"]
        assert check["measured"] == check["expected"]
        assert check["measured"]["accepted_tokens"] > 0
        assert level["greedy"]["diverging"] == 0
        # Steps are as long in both arms, so the speed-up is tokens per round of the decode.
        emitted = level["speculative"]["output_tokens"]
        steps = sum(len(one["chunk_s"]) for p in document["passes"] if p["arm"] == "speculative"
                    and p["concurrency"] == level["concurrency"] for one in p["requests"])  # fmt: skip
        # How sure that is depends on what else the machine does, so it is left to figures of known times.
        assert level["speedup"]["point"] == pytest.approx(emitted / steps, rel=0.4)
    text = json.dumps(document)
    assert json.loads(prompts.read_text().splitlines()[0])["messages"][0]["content"] not in text


def test_greedy_answers_that_differ_are_counted_and_placed(capsys, prompts):
    # Ids of the first prompt: two, and one for each of its 20 letters.
    with engine() as plain, engine(depth=3, flips=frozenset({22, 25})) as speculative:
        status, document, _ = bench(capsys, prompts, plain, speculative, "--repeats", "2", *RULES)
    assert status == 0
    level = document["by_concurrency"][0]
    assert (level["greedy"]["compared"], level["greedy"]["diverging"]) == (32, 4)
    assert {(one["prompt"], one["position"]) for one in level["greedy"]["divergences"]} == {(0, 2), (3, 2)}
    assert all(one["gap_nats"] > 0 for one in level["greedy"]["divergences"])
    assert {one["near_tie"] for one in level["greedy"]["divergences"]} == {
        one["gap_nats"] <= NEAR_TIE_NATS for one in level["greedy"]["divergences"]
    }
    assert level["greedy"]["plain_diverging"] == 0
    assert "greedy_divergence" in codes(document)
    assert (level["acceptance"]["agreeing"], level["acceptance"]["exact"]) == (28, 28)
    assert level["acceptance"]["totals_exact"] is None
    assert not document["speculation_broken"]


def test_answers_that_both_arms_change_with_the_batch_are_replayed_as_they_are(capsys, prompts):
    how = {"flips": frozenset({22, 25}), "flips_at": 4}
    with engine(**how) as plain, engine(depth=3, **how) as speculative:
        _, document, _ = bench(capsys, prompts, plain, speculative, "--repeats", "2", "--concurrency", "1,4", *RULES)
    alone, together = document["by_concurrency"]
    assert (alone["greedy"]["diverging"], alone["greedy"]["plain_diverging"]) == (0, 0)
    assert (together["greedy"]["diverging"], together["greedy"]["plain_diverging"]) == (0, 4)
    for level in (alone, together):
        check = level["acceptance"]
        assert (check["requests"], check["agreeing"], check["exact"], check["totals_exact"]) == (32, 32, 32, True)


def test_an_engine_that_leaves_the_target_everywhere_is_broken_at_temperature_0(capsys, prompts):
    with engine() as plain, engine(depth=3, flips=frozenset(range(100))) as speculative:
        status, document, _ = bench(capsys, prompts, plain, speculative, "--repeats", "1")
    far = sum(one["near_tie"] is False for one in document["by_concurrency"][0]["greedy"]["divergences"])
    assert far > 8
    assert status == 1
    assert document["speculation_broken"]


@pytest.mark.slow
@pytest.mark.parametrize("scores", [True, False])
def test_an_engine_that_garbles_sampled_speculation_is_broken_and_gets_no_verdict(capsys, prompts, scores):
    options = ("--temperature", "0.8", "--repeats", "2", *RULES)
    with engine(scores=scores) as plain, engine(depth=3, garbles=True) as speculative:
        status, document, _ = bench(capsys, prompts, plain, speculative, *options)
        assert run_command(["bench", str(prompts), "--server", plain.url, "--speculative", speculative.url,
                            "--max-new-tokens", "24", *options]) == 1  # fmt: skip
    report = " ".join(capsys.readouterr().out.split())
    assert status == 1
    assert "this engine's speculative output is broken: no verdict" in report
    assert "too close" not in report
    assert document["speculation_broken"]
    assert all(level["verdict"] is None for level in document["by_concurrency"])
    assert document["greedy_probe"]["diverging"] == 0
    if scores:
        assert document["likelihood"]["difference"] < -1
        assert any("nats a token less likely" in reason for reason in document["broken"])
    else:
        assert document["likelihood"] is None
        assert "distribution_not_tested" in codes(document)
        assert any("of its drafts" in reason for reason in document["broken"])


def test_a_sound_engine_is_not_called_broken_at_a_temperature(capsys, prompts):
    with engine() as plain, engine(depth=3) as speculative:
        options = ("--temperature", "0.8", "--repeats", "2", *RULES)
        status, document, _ = bench(capsys, prompts, plain, speculative, *options)
    assert status == 0
    assert document["broken"] == []
    assert document["likelihood"]["prompts"] == 16
    assert abs(document["likelihood"]["difference"]) < 0.5
    assert document["likelihood"]["p_value"] > 0.001


@pytest.mark.slow
def test_another_drafter_than_the_named_one_is_told_and_is_no_broken_engine(capsys, prompts):
    with engine() as plain, engine(depth=3, drafts_wrongly=True) as speculative:
        status, document, _ = bench(capsys, prompts, plain, speculative, "--repeats", "1", *RULES)
        warm, hot, _ = bench(capsys, prompts, plain, speculative, "--repeats", "1", "--temperature", "0.8", *RULES)
    assert (status, warm) == (0, 0)
    assert "counters_differ" in codes(document)
    assert not document["speculation_broken"]
    assert not hot["speculation_broken"]


def test_the_test_of_likelihood_errs_as_often_as_it_says():
    rng = np.random.default_rng(3)
    called = 0
    for _ in range(400):
        arms = ({n: [Score(tuple(rng.normal(-2, 1.5, 30)), ())] for n in range(16)} for _ in range(2))
        p_value = compare_sampled(*arms).p_value
        called += p_value < 0.1
    assert 20 <= called <= 60
    lower = {n: [Score((-4.0, -5.0 - n), ())] for n in range(16)}
    assert compare_sampled({n: [Score((-2.0, -1.0 - n), ())] for n in range(16)}, lower).is_broken


@pytest.mark.slow
def test_a_bench_is_points_for_calibrate(capsys, prompts, tmp_path):
    out = tmp_path / "bench.json"
    with engine(step_seconds=0.004) as plain, engine(depth=3, step_seconds=0.006) as speculative:
        bench(capsys, prompts, plain, speculative, "--concurrency", "2", "--repeats", "3", *RULES, "--out", str(out))
    model = ("--model", "SmolLM2-135M", "--gpu", "cpu", "--dtype", "float32", "--out", str(tmp_path / "cost.json"))
    assert run_command(["calibrate", str(out), *model, "--depth", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    plain_point, speculative_point = document["points"]
    assert document["source"] == "engine"
    assert (plain_point["batch"], plain_point["query_tokens"]) == (2, 1)
    assert plain_point["measured"] == pytest.approx(0.004, rel=0.5)
    assert (speculative_point["method"], speculative_point["depth"]) == ("ngram", 3)
    assert speculative_point["measured"] == pytest.approx(0.006, rel=0.5)
    with engine(step_seconds=0.004) as plain, engine(depth=3, step_seconds=0.006) as speculative:
        options = ("--repeats", "2", "--concurrency", "2", *RULES, "--cost", str(tmp_path / "cost.json"))
        status, document, _ = bench(capsys, prompts, plain, speculative, *options)
    assert status == 0
    level = document["by_concurrency"][0]
    # Times of the toy, constants of a real machine: the fit goes through both points.
    assert level["prediction_error"] == pytest.approx(
        level["predicted"]["speedup_as_run"] / level["speedup"]["point"] - 1
    )
    assert abs(level["prediction_error"]) < 0.5


def steps_of(seconds: float, path: Path) -> Path:
    """A cost file of a machine whose every step takes as long."""
    points = [{"batch": b, "query_tokens": q, "context": 64, "seconds": seconds} for b in (1, 4) for q in (1, 4)]
    constants = {"prefill_token_seconds": 0, "prefill_step_seconds": seconds, "drafter_seconds": {"ngram": 0}}
    path.write_text(json.dumps({"schema": "specprobe.cost/1", **constants, "points": points}))
    return path


@pytest.mark.slow
def test_prediction_of_a_machine_of_equal_steps_is_the_ratio_of_its_steps(capsys, prompts, tmp_path):
    cost = steps_of(0.004, tmp_path / "cost.json")
    with engine(step_seconds=0.004) as plain, engine(depth=3, step_seconds=0.004) as speculative:
        options = ("--repeats", "3", "--concurrency", "1,4", *RULES, "--cost", str(cost))
        status, document, _ = bench(capsys, prompts, plain, speculative, *options)
        assert run_command(["bench", str(prompts), "--server", plain.url, "--speculative", speculative.url,
                            "--max-new-tokens", "24", "--repeats", "2", *RULES, "--cost", str(cost)]) == 0  # fmt: skip
    report = capsys.readouterr().out
    assert "as run" in report
    assert max(map(len, report.splitlines())) <= 80
    assert status == 0
    one = document["by_concurrency"][0]
    requests = [
        r for p in document["passes"] if p["arm"] == "speculative" and p["concurrency"] == 1 for r in p["requests"]
    ]
    steps, tokens = sum(len(r["chunk_s"]) for r in requests), sum(r["output_tokens"] for r in requests)
    # A prefill takes a step, too, in both arms; the last token of a pass ends its time.
    assert one["predicted"]["speedup_as_run"] == pytest.approx(tokens / steps, rel=1e-6)
    assert one["predicted"]["plain"]["output_tokens_per_second"] == pytest.approx(1 / 0.004)
    assert one["predicted"]["plain"]["itl_p50_ms"] == pytest.approx(4)
    for level in document["by_concurrency"]:
        assert abs(level["prediction_error"]) < 0.4
        assert level["predicted"]["cost_source"] == "file"


@pytest.mark.slow
def test_a_recommendation_is_put_beside_what_was_measured(capsys, prompts, tmp_path):
    cost = steps_of(0.002, tmp_path / "cost.json")
    rng = np.random.default_rng(5)
    rows = [{"prompt_token_ids": [1, 2], "output_token_ids": [*rng.integers(0, 3, 40).tolist()]} for _ in range(16)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_command(["analyze", str(log), "--drafter", "ngram:min=2,max=4", "--depth", "3", "--json"]) == 0
    capsys.readouterr()
    assert run_command(["recommend", "--cost", str(cost), "--concurrency", "1,4", "--json"]) == 0
    recommendation = tmp_path / "recommendation.json"
    recommendation.write_text(capsys.readouterr().out)
    options = [one for entry in json.loads(recommendation.read_text())["by_concurrency"] for one in entry["options"]]
    said = next(one["speedup"] for one in options if one["depth"] == 2)
    with engine() as plain, engine(depth=3) as speculative:
        more = ("--repeats", "2", "--recommendation", str(recommendation))
        _, document, _ = bench(capsys, prompts, plain, speculative, *more, *RULES[:2], "--depth", "2", *RULES[4:])
        _, best, _ = bench(capsys, prompts, plain, speculative, *more, "--concurrency", "1,2")
    assert document["by_concurrency"][0]["predicted"]["speedup"]["point"] == said
    assert document["by_concurrency"][0]["predicted"]["speedup_as_run"] is None
    # Without a drafter the recommendation's own choice, and nothing where it did not say.
    assert best["by_concurrency"][0]["predicted"]["drafter"] == "ngram"
    assert best["by_concurrency"][1]["predicted"] is None


def test_a_server_without_ids_or_counters_is_measured_all_the_same(capsys, prompts):
    quiet = {"counts": False, "tells_requests": False, "tells_ids": False}
    with engine(**quiet) as plain, engine(depth=3, **quiet) as speculative:
        status, document, _ = bench(capsys, prompts, plain, speculative, "--repeats", "2")
    assert status == 0
    level = document["by_concurrency"][0]
    assert level["acceptance"] is None
    assert level["greedy"]["unit"] == "characters"
    assert level["greedy"]["diverging"] == 0
    assert {"caching_not_known"} <= codes(document)
    assert level["plain"]["output_tokens"] == 2 * 16 * 24


def test_answers_whose_text_is_other_tokens_than_were_written_are_left_out(tmp_path):
    """A model may write tokens that no tokenizer would cut its text into."""
    rules = ReplayOptions("ngram:min=2,max=2", 3, "vllm-v1@0.32", tokenizer=str(toy.write_checkpoint(tmp_path / "toy")))
    prompts = [toy.raw("abcabc")] * 4
    written = {n: Written("abcabc", None, None, "stop", count) for n, count in enumerate((7, 6, 5, 0))}
    found = replay_answers(
        rules, prompts, written, {}, temperature=0.0, max_new_tokens=24, max_model_len=None, stages=Silent()
    )
    # By the server's count: with its end token, without, of other tokens, and not told.
    assert [found.counters(n) is None for n in range(4)] == [False, False, True, False]
    assert found.left_out == 1
    with pytest.raises(SpecprobeError, match="as many tokens as the server counted"):
        replay_answers(
            rules, prompts, {2: written[2]}, {}, temperature=0.0, max_new_tokens=24, max_model_len=None, stages=Silent()
        )


def test_an_answer_of_nothing_but_its_end_is_measured(capsys, prompts):
    how = {"empty": frozenset({22}), "tells_ids": False, "counts": False}
    with engine(**how) as plain, engine(depth=3, **how) as speculative:
        status, document, _ = bench(capsys, prompts, plain, speculative, "--repeats", "2")
    assert status == 0
    assert document["by_concurrency"][0]["plain"]["output_tokens"] == 2 * (15 * 24 + 1)


@pytest.mark.slow
def test_ctrl_c_ends_started_servers_and_says_what_is_kept(prompts, tmp_path):
    port = free_port()
    command = f"{sys.executable} {TOY} {port}"
    out = tmp_path / "bench.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "specprobe", "bench", str(prompts), "--server", f"http://127.0.0.1:{port}/v1",
         "--start", command, "--start-speculative", f"{command} --speculate", "--repeats", "100", "--out", str(out)],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(TOY.parents[1])},
    )  # fmt: skip
    end = time.monotonic() + 60
    while not out.exists() and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "with --resume the same command goes on from there" in err.splitlines()[-1]
    assert not json.loads(out.read_text())["complete"]
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", port))


def test_chunks_that_are_no_rounds_are_told_and_are_no_points(capsys, prompts):
    with engine() as plain, engine(depth=3, streams_tokens=True) as speculative:
        _, document, _ = bench(capsys, prompts, plain, speculative, "--repeats", "2", *RULES)
    assert "chunks_not_rounds" in codes(document)
    assert document["by_concurrency"][0]["plain_round_seconds_by_repeat"]
    assert document["by_concurrency"][0]["speculative_round_seconds_by_repeat"] == []
    assert document["by_concurrency"][0]["acceptance"]["totals_exact"]


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def test_one_server_is_restarted_between_the_arms_and_ended_at_the_end(capsys, prompts):
    port = free_port()
    url, command = f"http://127.0.0.1:{port}/v1", f"{sys.executable} {TOY} {port}"
    status = run_command(
        ["bench", str(prompts), "--server", url, "--start", command, "--start-speculative", f"{command} --speculate",
         "--max-prompts", "4", "--max-new-tokens", "12", "--repeats", "2", *RULES, "--json"]
    )  # fmt: skip
    out, _ = capsys.readouterr()
    document = json.loads(out)
    assert status == 0
    assert document["restarts"]
    assert [one["arm"] for one in document["passes"]] == ["plain", "speculative", "speculative", "plain"]
    assert document["by_concurrency"][0]["acceptance"]["exact"] == 8
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{sys.executable} -c \"print('no such model'); exit(3)\"", "status 3; its log ends: no such model"),
        ("/nowhere/vllm serve", "no such file or directory"),
        (f"{sys.executable} -c \"import time; time.sleep(60)\"", "does not answer after 1 s"),
        ('vllm "serve', "not a command"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_come_up_is_one_line(capsys, prompts, command, said):
    begin = time.monotonic()
    status = run_command(
        ["bench", str(prompts), "--server", f"http://127.0.0.1:{free_port()}/v1", "--start", command,
         "--start-speculative", command, "--start-timeout", "1"]
    )  # fmt: skip
    err = capsys.readouterr().err
    assert status == 2
    assert said in err.splitlines()[-1]
    assert time.monotonic() - begin < 20


def test_what_was_measured_before_a_server_failed_is_kept(capsys, prompts, tmp_path):
    out = tmp_path / "bench.json"
    with engine() as plain, engine(depth=3, fails_after=40, refuses_with=429) as speculative:
        options = ("--repeats", "3", "--out", str(out))
        status, _, err = bench(capsys, prompts, plain, speculative, *options)
    assert status == 2
    assert "429" in err.splitlines()[-1]
    kept = json.loads(out.read_text())
    assert not kept["complete"]
    # Warm-ups, 16 prompts twice, and then no more.
    assert sum(one["arm"] == "speculative" for one in kept["passes"]) == 2
    assert kept["by_concurrency"][0]["speedup"]["point"] > 0
    assert "incomplete" in codes(kept)


def asked(server: Engine) -> int:
    """Requests of passes: not those of warm-ups, tails and scores."""
    return sum(body.get("max_tokens") == 24 and body.get("stream", False) for body in server.bodies)


def test_an_interrupted_bench_goes_on_where_it_is_asked_to(capsys, prompts, tmp_path):
    """Repeats that both arms finished are not measured again, and figures are of all; then nothing is left."""
    folder = Path(".specprobe/benches")
    options = ("--repeats", "3", *RULES)
    with engine() as plain, engine(depth=3) as speculative:
        speculative.toy.fails_after = 40
        status, _, err = bench(capsys, prompts, plain, speculative, *options)
        assert status == 2
        # Its first two passes, and two of the other server's: half of the third repeat is of no use alone.
        assert "passes finished and kept: 4; --resume goes on" in err.splitlines()[-1]
        (kept,) = folder.iterdir()
        assert (kept.stat().st_mode | folder.stat().st_mode) & 0o077 == 0
        speculative.toy.fails_after = None
        before = asked(plain), asked(speculative)
        status, document, err = bench(capsys, prompts, plain, speculative, "--resume", *options)
        assert status == 0
        assert "4 of 6 passes are kept and used again" in err
        # The plain half of the third repeat is of another sitting than its other half will be.
        assert (asked(plain) - before[0], asked(speculative) - before[1]) == (16, 16)
    assert document["complete"]
    assert [one["reused"] for one in document["passes"]] == [True, True, True, True, False, False]
    assert [one["repeat"] for one in document["passes"]] == [0, 0, 1, 1, 2, 2]
    assert "resumed" in codes(document)
    acceptance = document["by_concurrency"][0]["acceptance"]
    assert (acceptance["requests"], acceptance["exact"]) == (48, 48)
    assert document["by_concurrency"][0]["greedy"]["compared"] == 48
    assert not list(folder.iterdir())


def test_nothing_is_used_again_unasked_or_of_another_bench(capsys, prompts):
    with engine() as plain, engine(depth=3) as speculative:
        speculative.toy.fails_after = 40
        assert bench(capsys, prompts, plain, speculative)[0] == 2
        speculative.toy.fails_after = None
        for other in (("--seed", "1"), ("--max-prompts", "15"), ("--repeats", "2")):
            _, document, err = bench(capsys, prompts, plain, speculative, "--resume", *other)
            assert "0 of " in err
            assert "resumed" not in codes(document)
        plain.toy.version = "0.33.0"
        status, _, err = bench(capsys, prompts, plain, speculative, "--resume")
        assert status == 2
        assert "0.33.0, and passes are kept of toy 0.32.0; leave --resume out" in err
        _, document, _ = bench(capsys, prompts, plain, speculative)
        assert not any(one["reused"] for one in document["passes"])
    assert not list(Path(".specprobe/benches").iterdir())


def test_unfinished_benches_hold_answers_and_are_cleaned(capsys, prompts):
    with engine() as plain, engine(depth=3, fails_after=40) as speculative:
        assert bench(capsys, prompts, plain, speculative)[0] == 2
    assert list(Path(".specprobe/benches").iterdir())
    assert run_command(["clean"]) == 0
    assert not list(Path(".specprobe/benches").iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--server"),
        (("--server", "http://localhost:1/v1"), "--speculative"),
        (("--server", "http://localhost:1/v1", "--speculative", "http://localhost:1/v1"), "two servers"),
        (("--server", "http://localhost:1/v1", "--start", "a"), "give both"),
        (("--server", "localhost", "--speculative", "http://localhost:2/v1"), "--server 'localhost'"),
        (("--server", "http://localhost:1/v1", "--speculative", "x"), "--speculative 'x'"),
        ((*TWO, "--cost", "c"), "--drafter"),
        ((*TWO, "--drafter", "x"), "'x'"),
        ((*TWO, "--repeats", "0"), "--repeats"),
        (TWO, "refuses connections"),
    ],
)  # fmt: skip
def test_what_must_be_changed_is_one_line(capsys, prompts, options, said):
    assert run_command(["bench", str(prompts), *options]) == 2
    err = capsys.readouterr().err.splitlines()
    assert said in err[-1]


def test_servers_that_do_the_other_arms_work_are_refused(capsys, prompts):
    with engine() as plain, engine(depth=3) as speculative:
        status, _, err = bench(capsys, prompts, speculative, plain)
        assert (status, "speculates" in err) == (2, True)
        with engine() as other:
            status, _, err = bench(capsys, prompts, plain, other)
        assert (status, "does not speculate" in err) == (2, True)


def test_a_damaged_bench_is_refused_by_calibrate(tmp_path, capsys):
    path = tmp_path / "bench.json"
    for document, said in (
        ({"by_concurrency": [{}]}, "damaged"),
        ({"by_concurrency": [], "mean_context": 5}, "no rounds"),
        ({"speculation_broken": True}, "broken"),
    ):
        path.write_text(json.dumps({"schema": "specprobe.bench/1", **document}))
        assert run_command(["calibrate", str(path), "--model", "SmolLM2-135M", "--gpu", "cpu"]) == 2
        assert said in capsys.readouterr().err


def test_plans_that_make_no_sense_are_refused():
    for plan in (((), 3, 16, 0.0), ((0,), 3, 16, 0.0), ((1, 1), 3, 16, 0.0), ((1,), 3, 1, 0.0), ((1,), 3, 16, -1.0)):
        with pytest.raises(SpecprobeError):
            BenchPlan(*plan)
