"""Engines' own numbers: real counters of vLLM 0.32, and small samples in the exact form of each other engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specprobe.cli import run_command
from specprobe.compare import compare
from specprobe.documents import dump_document
from specprobe.engine_numbers import read_engine_numbers
from specprobe.engine_numbers.as_run import Served, run_of
from specprobe.engine_numbers.fit import fit_engine_numbers
from specprobe.errors import SpecprobeError
from specprobe.gate import GateSettings, run_gate
from specprobe.profiles import resolve_profile
from specprobe.run import Run
from specprobe.run_document import load_run, run_document
from specprobe.summary import summarize_run

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"vllm_{name}.json").read_text())


def vllm_answer(request: dict, output_tokens: int, depth: int, *, detailed: bool = True) -> dict:
    """An answer of vLLM's chat API with --per-request-spec-decode-metrics; counts as its RequestSpecDecodeMetrics."""
    accepted, drafted = request["per_step_accepted"], request["per_step_drafted"]
    rounds, kept, proposed = len(accepted), sum(accepted), sum(drafted)
    steps = {"per_step_accepted": accepted, "per_step_drafted": drafted} if detailed and rounds else {}
    return {
        "id": f"chatcmpl-{request['id']}",
        "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "..."}}],
        "usage": {"prompt_tokens": 40, "completion_tokens": output_tokens, "total_tokens": 40 + output_tokens},
        "metrics": {
            "speculative_decoding": {
                "mean_acceptance_length": 1 + kept / rounds if rounds else 1.0,
                "draft_acceptance_rate": kept / proposed if proposed else 0.0,
                "acceptance_histogram": [accepted.count(j) for j in range(depth + 1)],
                "num_spec_steps": rounds,
                "num_accepted_draft_tokens": kept,
                "num_draft_tokens": proposed,
                "num_spec_tokens": depth,
                **steps,
            }
        },
    }


def golden_answers(tmp_path: Path, name: str, *, detailed: bool = True) -> Path:
    record = golden(name)
    lengths = {output["id"]: len(output["output_token_ids"]) for output in record["outputs"]}
    depth = record["config"]["num_speculative_tokens"]
    path = tmp_path / f"{name}-{detailed}.jsonl"
    answers = [vllm_answer(one, lengths[one["id"]], depth, detailed=detailed) for one in record["per_request"]]
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return path


def prometheus(counters: dict, requests: int, output_tokens: int, times: int = 1, created: str = "1.79e+09") -> str:
    """vLLM's /metrics, with what prometheus_client puts around."""
    labels = 'engine="0",model_name="smol"'
    lines = ["# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts."]
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        lines += [
            f"vllm:spec_decode_{name}_total{{{labels}}} {float(counters[name] * times)}",
            f"vllm:spec_decode_{name}_created{{{labels}}} {created}",
        ]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {float(count * times)}'
        for i, count in enumerate(counters["accepted_per_pos"])
    ]
    lines += [
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {float((requests - 5) * times)}',
        f'vllm:request_success_total{{{labels},finished_reason="length"}} {float(5 * times)}',
        f"vllm:generation_tokens_total{{{labels}}} {float(output_tokens * times)}",
        f"vllm:prompt_tokens_total{{{labels}}} {float(40 * requests * times)}",
        'python_info{implementation="CPython",version="3.12"} 1.0',
    ]
    return "\n".join(lines) + "\n"


def golden_prometheus(tmp_path: Path, name: str, times: int = 1, **more: str) -> Path:
    record = golden(name)
    written = sum(len(output["output_token_ids"]) for output in record["outputs"])
    path = tmp_path / f"{name}-{times}.prom"
    path.write_text(prometheus(record["counters"], len(record["outputs"]), written, times, **more))
    return path


def write(tmp_path: Path, text: str, name: str = "numbers.txt") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def imported(path: Path, drafter: str = "draft:m", depth: int | None = None) -> Run:
    numbers = read_engine_numbers([path], depth)
    return run_of(numbers, Served(drafter, 0.0), resolve_profile("vllm"), [path.name])


@pytest.mark.parametrize("name", ["draft_k3_t0", "ngram_k3_t0", "pard_k3_t0", "suffix_k8_t0"])
def test_answers_and_counters_of_one_run_say_the_same(tmp_path, name):
    counters = golden(name)["counters"]
    answers = read_engine_numbers([golden_answers(tmp_path, name)])
    short = read_engine_numbers([golden_answers(tmp_path, name, detailed=False)])
    scrape = read_engine_numbers([golden_prometheus(tmp_path, name)])
    for numbers in (answers, short, scrape):
        counts = numbers.counts
        assert (counts.drafted_rounds, counts.drafted_tokens, counts.accepted_tokens) == (
            counters["num_drafts"],
            counters["num_draft_tokens"],
            counters["num_accepted_tokens"],
        )
        assert list(counts.accepted_at) == counters["accepted_per_pos"]
        assert numbers.mean_acceptance_length == pytest.approx(
            1 + counters["num_accepted_tokens"] / counters["num_drafts"]
        )
        assert numbers.engine == "vllm"
        assert numbers.depth == len(counters["accepted_per_pos"])


def test_positions_at_risk_are_those_that_were_drafted(tmp_path):
    record = golden("suffix_k8_t0")
    counts = read_engine_numbers([golden_answers(tmp_path, "suffix_k8_t0")]).counts
    steps = [
        pair
        for one in record["per_request"]
        for pair in zip(one["per_step_drafted"], one["per_step_accepted"], strict=True)
    ]
    assert counts.at_risk_at[2] == sum(drafted >= 3 and accepted >= 2 for drafted, accepted in steps)
    assert counts.at_risk_at[2] < counts.accepted_at[1]


def test_two_scrapes_are_subtracted(tmp_path):
    counts = read_engine_numbers(
        [golden_prometheus(tmp_path, "ngram_k3_t0"), golden_prometheus(tmp_path, "ngram_k3_t0", 3)]
    ).counts
    counters = golden("ngram_k3_t0")["counters"]
    assert counts.drafted_rounds == 2 * counters["num_drafts"]
    assert list(counts.accepted_at) == [2 * count for count in counters["accepted_per_pos"]]


def test_what_follows_a_value_is_not_the_value(tmp_path):
    """OpenMetrics lets a time or an exemplar follow, which has labels of its own."""
    plain = golden_prometheus(tmp_path, "ngram_k3_t0")
    lines = [
        line if line.startswith("#") or not line else f'{line} # {{trace_id="a b"}} 7.0 1.79e+09'
        for line in plain.read_text().split("\n")
    ]
    assert (
        read_engine_numbers([write(tmp_path, "\n".join(lines), "exemplars.prom")]).counts
        == read_engine_numbers([plain]).counts
    )


def test_restart_between_scrapes_is_noticed(tmp_path):
    once, thrice = (golden_prometheus(tmp_path, "ngram_k3_t0", times) for times in (1, 3))
    with pytest.raises(SpecprobeError, match="begins anew"):
        read_engine_numbers([thrice, once])
    restarted = write(tmp_path, thrice.read_text().replace("1.79e+09", "1.80e+09"), "later.prom")
    with pytest.raises(SpecprobeError, match="begins anew"):
        read_engine_numbers([once, restarted])


def test_label_sets_are_summed(tmp_path):
    text = golden_prometheus(tmp_path, "draft_k3_t0").read_text()
    both = write(tmp_path, text + text.replace('engine="0"', 'engine="1"'))
    one = golden("draft_k3_t0")["counters"]
    assert read_engine_numbers([both]).counts.drafted_rounds == 2 * one["num_drafts"]


VLLM_LINE = (
    "(APIServer pid=1) INFO 08-04 20:51:08 [metrics.py:120] SpecDecoding metrics: "
    "Mean acceptance length: {length:.2f}, Accepted throughput: 1.20 tokens/s, Drafted throughput: 3.40 tokens/s, "
    "Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, "
    "Avg Draft acceptance rate: {rate:.1f}%\n"
)


def vllm_line(counters: dict) -> str:
    drafts, accepted, drafted = counters["num_drafts"], counters["num_accepted_tokens"], counters["num_draft_tokens"]
    return VLLM_LINE.format(
        length=1 + accepted / drafts,
        accepted=accepted,
        drafted=drafted,
        rates=", ".join(f"{count / drafts:.3f}" for count in counters["accepted_per_pos"]),
        rate=100 * accepted / drafted,
    )


def test_vllm_log_lines_give_the_counters_back(tmp_path):
    counters = golden("draft_k3_t0")["counters"]
    log = write(tmp_path, "INFO: started\n" + vllm_line(counters) + "INFO: idle\n" + vllm_line(counters))
    numbers = read_engine_numbers([log])
    assert numbers.is_rounded
    assert numbers.counts.drafted_rounds == 2 * counters["num_drafts"]
    assert numbers.counts.accepted_tokens == 2 * counters["num_accepted_tokens"]
    for count, exact in zip(numbers.counts.accepted_at, counters["accepted_per_pos"], strict=True):
        assert count == pytest.approx(2 * exact, abs=0.001 * 2 * counters["num_drafts"] + 2)


def test_rounds_of_drafts_of_several_lengths_are_near(tmp_path):
    counters = golden("suffix_k8_t0")["counters"]
    numbers = read_engine_numbers([write(tmp_path, vllm_line(counters))])
    assert numbers.counts.drafted_rounds == pytest.approx(counters["num_drafts"], rel=0.006)
    assert numbers.counts.accepted_tokens == counters["num_accepted_tokens"]


LLAMA_LINES = {
    "2026-10": (
        "slot print_timing: id  1 | task 90 | draft acceptance = 0.54671 (  158 accepted /   289 generated), "
        "mean len =  2.63\nslot print_timing: id  1 | task 90 |      acc per pos = (0.742, 0.557, 0.330)\n"
    ),
    "2026-06": (
        "0.09 I slot print_timing: id  1 | task 90 | draft acceptance = 0.54671 (  158 accepted /   289 generated), "
        "mean acceptance length =  2.63, acceptance rate per position = (0.742, 0.557, 0.330)\n"
    ),
}


@pytest.mark.parametrize("version", LLAMA_LINES)
def test_llama_cpp_log_lines(tmp_path, version):
    numbers = read_engine_numbers([write(tmp_path, LLAMA_LINES[version])], 3)
    counts = numbers.counts
    # 158 / 1.63 = 96.9, and no other whole number is printed as 2.63.
    assert (counts.drafted_rounds, counts.drafted_tokens, counts.accepted_tokens) == (97, 289, 158)
    assert counts.accepted_at == (72, 54, 32)
    assert numbers.mean_acceptance_length == pytest.approx(2.63, abs=0.005)
    assert [request.id for request in numbers.requests] == ["task 90"]


def test_older_llama_cpp_lines_have_a_rate_only(tmp_path):
    line = "draft acceptance rate = 0.57576 (  171 accepted /   297 generated)\n"
    numbers = read_engine_numbers([write(tmp_path, line)], 3)
    assert numbers.acceptance_rate == pytest.approx(171 / 297)
    assert numbers.mean_acceptance_length is None
    assert fit_engine_numbers(numbers).best_curve.acceptance_rate(3) == pytest.approx(171 / 297, abs=1e-6)


LLAMA_METRICS = """# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 800
llamacpp:prompt_tokens_total 300
llamacpp:spec_decode_num_draft_tokens_total 900
llamacpp:spec_decode_num_accepted_tokens_total 450
llamacpp:spec_decode_num_drafts_total 300
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 220
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 150
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 80
"""


def test_llama_cpp_counters(tmp_path):
    path = write(tmp_path, LLAMA_METRICS)
    numbers = read_engine_numbers([path], 3)
    assert numbers.mean_acceptance_length == 2.5
    assert numbers.counts.survival == pytest.approx((220 / 300, 0.5, 80 / 300))
    with pytest.raises(SpecprobeError, match="how many requests"):
        imported(path, depth=3)


def test_llama_cpp_answers(tmp_path):
    timings = {"prompt_n": 10, "cache_n": 30, "predicted_n": 50, "draft_n": 60, "draft_n_accepted": 30}
    counts = read_engine_numbers([write(tmp_path, json.dumps({"id": "chatcmpl-x", "timings": timings}))]).counts
    assert (counts.drafted_tokens, counts.accepted_tokens, counts.drafted_rounds) == (60, 30, None)
    assert (counts.prompt_tokens, counts.output_tokens) == (40, 50)


def sglang_answer(identity: str, accepted: list[int], depth: int) -> dict:
    return {
        "text": "...",
        "meta_info": {
            "id": identity,
            "prompt_tokens": 40,
            "completion_tokens": 1 + len(accepted) + sum(accepted),
            "spec_verify_ct": len(accepted),
            "spec_num_correct_drafts": sum(accepted),
            "spec_num_proposed_drafts": depth * len(accepted),
            # Grows with what was seen, so it may be shorter than the depth.
            "spec_correct_drafts_histogram": [accepted.count(j) for j in range(max(accepted) + 1)],
            # Output tokens by round: 1 + 3 + 6 over 6 is no mean acceptance length.
            "spec_accept_length": (1 + len(accepted) + sum(accepted)) / len(accepted),
        },
    }


def test_sglang_answers_count_without_the_prefill(tmp_path):
    answers = [sglang_answer("a", [0, 1, 2, 0, 0, 1], 3), sglang_answer("b", [0, 0, 1], 3)]
    numbers = read_engine_numbers([write(tmp_path, "\n".join(map(json.dumps, answers)))])
    assert numbers.depth == 3
    assert numbers.mean_acceptance_length == pytest.approx(1 + 5 / 9)
    assert numbers.counts.accepted_at == (4, 1, 0)
    assert run_of(numbers, Served("draft:m", 0.0), resolve_profile("sglang"), []).results[0].totals(3).rounds == 9


SGLANG_METRICS = """sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.5
sglang:spec_accept_rate{model_name="m",tp_rank="0"} 0.5
sglang:spec_num_steps{model_name="m"} 3.0
sglang:spec_num_draft_tokens{model_name="m"} 4.0
"""
SGLANG_COUNTERS = """sglang:spec_verify_calls_total{model_name="m"} 40.0
sglang:generation_tokens_total{model_name="m",is_streaming="false"} 60.0
sglang:generation_tokens_total{model_name="m",is_streaming="true"} 30.0
sglang:num_requests_total{model_name="m"} 2.0
"""


def test_sglang_counters_go_before_gauges(tmp_path):
    gauges = read_engine_numbers([write(tmp_path, SGLANG_METRICS)])
    assert (gauges.depth, gauges.mean_acceptance_length, gauges.counts.drafted_rounds) == (3, 2.5, None)
    assert "interval" in gauges.scope
    counted = read_engine_numbers([write(tmp_path, SGLANG_METRICS + SGLANG_COUNTERS)])
    # 90 tokens, 2 of prefills, 40 of rounds themselves.
    assert counted.counts.accepted_tokens == 48
    assert counted.mean_acceptance_length == pytest.approx(2.2)
    assert counted.acceptance_rate == pytest.approx(48 / 120)


def test_sglang_ranks_that_differ_are_not_averaged(tmp_path):
    text = SGLANG_METRICS + 'sglang:spec_accept_length{model_name="m",tp_rank="1"} 3.5\n'
    with pytest.raises(SpecprobeError, match="ranks say different things"):
        read_engine_numbers([write(tmp_path, text)])


def test_tensorrt_llm_counters_have_no_rounds(tmp_path):
    text = (
        'trtllm_spec_decode_num_draft_tokens_total{model_name="m"} 300.0\n'
        'trtllm_spec_decode_num_accepted_tokens_total{model_name="m"} 120.0\n'
        'trtllm_spec_decode_acceptance_length{model_name="m"} 3.0\n'
    )
    numbers = read_engine_numbers([write(tmp_path, text)], 3)
    assert numbers.acceptance_rate == 0.4
    assert numbers.mean_acceptance_length is None
    with pytest.raises(SpecprobeError, match="add --depth"):
        fit_engine_numbers(read_engine_numbers([write(tmp_path, text)]))


def test_tensorrt_llm_steps_are_summed(tmp_path):
    steps = [
        {"iter": n, "specDecodingStats": {"numDraftTokens": 6, "numAcceptedTokens": 3, "numRequestsWithDraftTokens": 2}}
        for n in range(4)
    ]
    numbers = read_engine_numbers([write(tmp_path, json.dumps([*steps, {"iter": 4}]))], 3)
    assert numbers.counts.drafted_rounds == 8
    assert numbers.mean_acceptance_length == 2.5


def test_bench_serve_rate_is_per_cent_there_and_a_share_here(tmp_path):
    counters = golden("draft_k3_t0")["counters"]
    drafts = counters["num_drafts"]
    result = {
        "duration": 12.5,
        "completed": 32,
        "total_input_tokens": 1280,
        "total_output_tokens": 4633,
        "median_itl_ms": 9.0,
        "spec_decode_acceptance_rate": 100 * counters["num_accepted_tokens"] / counters["num_draft_tokens"],
        "spec_decode_acceptance_length": 1 + counters["num_accepted_tokens"] / drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": counters["num_draft_tokens"],
        "spec_decode_accepted_tokens": counters["num_accepted_tokens"],
        "spec_decode_per_position_acceptance_rates": [count / drafts for count in counters["accepted_per_pos"]],
    }
    numbers = read_engine_numbers([write(tmp_path, json.dumps(result))])
    assert list(numbers.counts.accepted_at) == counters["accepted_per_pos"]
    assert 100 * numbers.acceptance_rate == pytest.approx(result["spec_decode_acceptance_rate"])
    assert numbers.seconds == 12.5


def test_aiperf_records_and_its_pooled_histogram_agree(tmp_path):
    record = {
        "metadata": {"x_request_id": "r-1", "conversation_id": "c-1"},
        "metrics": {
            "output_sequence_length": {"value": 14, "unit": "tokens"},
            "input_sequence_length": {"value": 40, "unit": "tokens"},
        },
        "spec_decode_acceptance": {
            "engine": "vllm",
            "mean_acceptance_length": 2.6,
            "draft_acceptance_rate": 0.53,
            "acceptance_histogram": {"0": 1, "1": 1, "3": 2, "2": 1},
            "num_accepted_draft_tokens": 9,
            "num_draft_tokens": 15,
            "num_spec_steps": 5,
            "num_spec_tokens": 3,
        },
    }
    requests = read_engine_numbers([write(tmp_path, json.dumps(record))])
    assert requests.counts.accepted_at == (4, 3, 2)
    assert requests.requests[0].id == "c-1"
    pooled = {
        "pooled_spec_decode_acceptance_histogram": {"0": 1, "1": 1, "2": 1, "3": 2},
        "total_draft_tokens": {"unit": "tokens", "avg": 15.0},
    }
    whole = read_engine_numbers([write(tmp_path, json.dumps(pooled))], 3)
    assert whole.counts.accepted_at == (4, 3, 2)
    assert whole.counts.at_risk_at == requests.counts.at_risk_at == (5, 4, 3)


def test_fit_over_requests_and_over_sums(tmp_path):
    by_request = fit_engine_numbers(read_engine_numbers([golden_answers(tmp_path, "draft_k3_t0")]))
    assert by_request.prompts == 32
    counters = golden("draft_k3_t0")["counters"]
    rate = counters["num_accepted_tokens"] / counters["num_draft_tokens"]
    free = next(curve for curve in by_request.models if curve.name == "free")
    assert free.acceptance_rate(3) == pytest.approx(rate, abs=1e-6)
    sums = fit_engine_numbers(read_engine_numbers([golden_prometheus(tmp_path, "draft_k3_t0")]))
    assert sums.given[3] == pytest.approx(rate)
    assert {"no_interval", "since_start"} <= {notice.code for notice in sums.notices}


def test_no_curve_for_drafts_that_end_themselves(tmp_path):
    fitted = fit_engine_numbers(read_engine_numbers([golden_answers(tmp_path, "suffix_k8_t0")]))
    assert fitted.models == ()
    assert [notice.code for notice in fitted.notices] == ["own_draft_length"]


def test_a_run_of_answers_has_the_engine_s_counters_at_its_depth_only(tmp_path):
    run = imported(golden_answers(tmp_path, "draft_k3_t0"))
    (result,) = run.results
    counters = golden("draft_k3_t0")["counters"]
    totals = result.totals(3)
    assert totals.rounds == totals.drafted_rounds == counters["num_drafts"]
    assert list(totals.accepted_at) == counters["accepted_per_pos"]
    assert result.totals(2).tokens_per_round is None
    path = write(tmp_path, dump_document(run_document(run, summarize_run(run))), "run.json")
    loaded = load_run(path)
    assert loaded.digest == run.digest
    assert loaded.results[0].first_depth == 3


def test_rounds_without_a_draft_follow_from_the_text(tmp_path):
    """vLLM leaves them out; the text says how many tokens they wrote, up to what the last draft wrote past its end."""
    record = golden("ngram_k3_t0")
    run = imported(golden_answers(tmp_path, "ngram_k3_t0"), "ngram")
    (result,) = run.results
    assert [notice.code for notice in run.notices] == ["rounds_at_least"]
    written = sum(len(output["output_token_ids"]) - 1 for output in record["outputs"])
    accepted = record["counters"]["num_accepted_tokens"]
    rounds = result.totals(3).rounds
    assert written <= rounds + accepted <= written + 3 * 32
    # 3,019 by a replay of the same text under the rules of that version.
    assert rounds == pytest.approx(3019, rel=0.01)
    assert rounds <= 3019
    assert result.totals(3).coverage == pytest.approx(record["counters"]["num_drafts"] / rounds)


def test_gate_and_compare_take_answers(tmp_path):
    run = imported(golden_answers(tmp_path, "draft_k3_t0"))
    length = (
        1 + golden("draft_k3_t0")["counters"]["num_accepted_tokens"] / golden("draft_k3_t0")["counters"]["num_drafts"]
    )
    (gate,) = run_gate(run, GateSettings(min_acceptance_length=1.3)).gates
    assert gate.measured.point == pytest.approx(length)
    assert gate.verdict == "passed"
    other = imported(golden_answers(tmp_path, "pard_k3_t0"))
    (contrast,) = compare(run, other).results
    assert (contrast.prompts, contrast.depth) == (32, 3)
    assert contrast.depths[1].tokens_per_round.a is None
    assert contrast.judged.difference is not None


def test_gate_cannot_decide_on_sums_and_says_why(tmp_path):
    run = imported(golden_prometheus(tmp_path, "draft_k3_t0"))
    counters = golden("draft_k3_t0")["counters"]
    totals = run.results[0].totals(3)
    assert list(totals.accepted_at) == counters["accepted_per_pos"]
    assert totals.drafted_rounds == counters["num_drafts"]
    assert totals.emitted_tokens == sum(len(o["output_token_ids"]) - 1 for o in golden("draft_k3_t0")["outputs"])
    (gate,) = run_gate(run, GateSettings(min_acceptance_length=1.3)).gates
    assert gate.verdict == "undecided"
    assert "tell requests apart" in gate.blocked
    write(tmp_path, dump_document(run_document(run, summarize_run(run))), "sums.json")
    assert load_run(tmp_path / "sums.json").digest == run.digest


def test_a_sum_is_never_shown_as_a_request(tmp_path, capsys, monkeypatch):
    """All that is known of these 32 requests is what they add up to."""
    monkeypatch.chdir(tmp_path)
    table = "batch,query_tokens,context,seconds\n1,1,128,0.01\n1,4,128,0.011\n"
    write(tmp_path, table, "cost.csv")
    found = {}
    for name, file in (
        ("answers", golden_answers(tmp_path, "ngram_k3_t0")),
        ("sums", golden_prometheus(tmp_path, "ngram_k3_t0")),
    ):
        arguments = ["import", file.name, "--drafter", "ngram", "--temperature", "0", "--out", f"{name}.json"]
        texts = []
        for further in ([], ["--details"]):
            assert run_command([*arguments, *further]) == 0
            texts.append(" ".join(capsys.readouterr().out.split()))
        assert run_command(["recommend", "--cost", "cost.csv", "--details"]) == 0
        texts.append(" ".join(capsys.readouterr().out.split()))
        assert run_command(["gate", f"{name}.json", "--min-tokens-per-round", "1"]) in (0, 1)
        texts.append(" ".join(capsys.readouterr().out.split()))
        assert run_command(["report", f"{name}.json", "--html", f"{name}.html"]) == 0
        capsys.readouterr()
        texts.append(" ".join(Path(f"{name}.html").read_text("utf-8").split()))
        found[name] = texts
    brief, details, recommended, gate, page = found["answers"]
    assert "Measured: 32 prompts of an engine's own counters (ngram_k3_t0-True.jsonl); " in brief
    for text, words in (
        (brief, "Who gains: half of"),
        (details, "who gains"),
        (page, "Requests at both ends"),
        (recommended, "requests that take longer"),
        (gate, "32 prompts"),
        (page, "32 prompts"),
    ):
        assert words in text
    brief, details, recommended, gate, page = found["sums"]
    assert "Measured: sums over 32 requests of an engine's own counters (ngram_k3_t0-1.prom); " in brief
    assert "sums, which do not tell requests apart" in details
    assert "sums over 32 requests" in gate
    for text in found["sums"]:
        for words in ("1 of 1 request", "1 prompt", "half of", "fewer than 16", "take longer", "Requests at both ends"):
            assert words not in text.replace("Speed-up, request by request", "")
    (result,) = json.loads(Path("sums.json").read_text())["results"]
    assert result["concentration"] is None
    assert run_command(["compare", "sums.json", "sums.json"]) == 0
    assert "do not tell requests apart" in " ".join(capsys.readouterr().out.split())


def test_recommend_takes_answers_and_is_careful_with_sums(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = "batch,query_tokens,context,seconds\n" + "".join(
        f"{batch},{query},128,{0.010 + 0.0001 * batch * query}\n" for batch in (1, 8) for query in (1, 2, 4)
    )
    write(tmp_path, table, "cost.csv")
    for file, verdicts in (
        (golden_answers(tmp_path, "ngram_k3_t0"), {"speculate"}),
        (golden_prometheus(tmp_path, "ngram_k3_t0"), {"close"}),
    ):
        assert run_command(["import", str(file), "--drafter", "ngram", "--temperature", "0"]) == 0
        capsys.readouterr()
        assert run_command(["recommend", "--cost", "cost.csv", "--concurrency", "1,8", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert {entry["verdict"] for entry in document["by_concurrency"]} == verdicts
        assert {option["depth"] for entry in document["by_concurrency"] for option in entry["options"]} == {3}


def test_same_answer_twice_counts_once_and_samples_are_of_one_prompt(tmp_path):
    request = {"id": "a", "per_step_accepted": [1, 0], "per_step_drafted": [2, 2]}
    answer = vllm_answer(request, 4, 2)
    rows = [{"custom_id": "p", "response": {"body": {**answer, "id": f"chatcmpl-{n}"}}} for n in (1, 2, 2)]
    numbers = read_engine_numbers([write(tmp_path, "\n".join(map(json.dumps, rows)))])
    assert [(one.id, one.sample) for one in numbers.requests] == [("p", 0), ("p", 1)]
    assert [notice.code for notice in numbers.notices] == ["rows_twice"]


def test_chunks_of_a_stream_are_read(tmp_path):
    answer = vllm_answer({"id": "a", "per_step_accepted": [1], "per_step_drafted": [2]}, 3, 2)
    text = f'data: {{"id": "chatcmpl-a", "choices": []}}\n\ndata: {json.dumps(answer)}\n\ndata: [DONE]\n'
    assert read_engine_numbers([write(tmp_path, text)]).counts.accepted_tokens == 1


ANSWER = vllm_answer({"id": "a", "per_step_accepted": [1, 0], "per_step_drafted": [2, 2]}, 4, 2)


def changed(**figures: object) -> str:
    answer = json.loads(json.dumps(ANSWER))
    answer["metrics"]["speculative_decoding"].update(figures)
    return json.dumps(answer)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("<html><body>502 Bad Gateway</body></html>", "HTML"),
        ("hello\n", "no numbers of an engine"),
        ('{"choices": []}', "no counters"),
        ("[1, 2]", "no object"),
        (json.dumps(ANSWER)[:-40], "not JSON"),
        (changed(num_draft_tokens=-4), "no count"),
        (changed(num_draft_tokens=float("nan")), "no count"),
        (changed(num_draft_tokens=2.5), "no count"),
        (changed(num_draft_tokens="4"), "no count"),
        (changed(num_draft_tokens=10**400), "no count"),
        (changed(num_spec_steps=3), "holds 2 of 3 rounds"),
        (changed(acceptance_histogram={"999999": 1}), "no histogram"),
        (changed(acceptance_histogram=[2, 0, 0]), "do not belong together|does not add up"),
        (changed(per_step_accepted=[3, 0]), "per_step_accepted"),
        (changed(num_spec_steps=None), "missing"),
        ('vllm:spec_decode_num_drafts_total{engine="0"} NaN\n', "no count"),
        ('vllm:spec_decode_num_drafts_total{engine="0"} -3\n', "no count"),
        ('vllm:spec_decode_num_drafts_total{engine="0"} 1e300\n', "no count"),
        ("# TYPE vllm:spec_decode_num_drafts counter\nvllm:spec_decode_num_drafts_total 1_000\n", "no sample"),
        ("# TYPE vllm:spec_decode_num_drafts counter\nvllm:spec_decode_num_drafts_total \u0663\n", "no sample"),
        ('vllm:generation_tokens_total{engine="0"} 5\n', "no counters of speculative decoding"),
        ('vllm:spec_decode_num_drafts_total{a="0"} 1\nvllm:spec_decode_num_drafts_total{a="0"} 1\n', "given twice"),
        ('vllm:spec_decode_num_drafts_total{a="0"} 1\nvllm:spec_decode_num_dra', "no sample"),
        (
            "vllm:spec_decode_num_drafts_total 0\nvllm:spec_decode_num_draft_tokens_total 0\n"
            "vllm:spec_decode_num_accepted_tokens_total 0\n",
            "no draft was counted",
        ),
        (
            "vllm:spec_decode_num_drafts_total 4\nvllm:spec_decode_num_draft_tokens_total 8\n"
            "vllm:spec_decode_num_accepted_tokens_total 9\n",
            "9 accepted of 8 drafted",
        ),
        ("vllm:spec_decode_num_drafts_total 1\nsglang:spec_accept_length 2.0\n", "counters of vllm and sglang"),
        ("draft acceptance = 0.9 (  9" + "9" * 40 + " accepted /   10 generated)\n", "that many digits"),
        ("draft acceptance = 0.9 (  11 accepted /   10 generated), mean len =  2.00\n", "11 accepted of 10"),
        (VLLM_LINE.format(length=2, accepted=9, drafted=18, rates="0.6, 0. 26", rate=50), "no acceptance rates"),
    ],
)
def test_hostile_files_are_one_line(tmp_path, capsys, text, message):
    path = write(tmp_path, text)
    assert run_command(["fit", "--metrics", str(path), "--depth", "2"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    with pytest.raises(SpecprobeError, match=message):
        read_engine_numbers([path], 2)


def test_binary_and_missing_files_are_one_line(tmp_path, capsys):
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    for name in ("binary", "missing", "."):
        assert run_command(["fit", "--metrics", str(tmp_path / name)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_files_of_several_kinds_are_not_mixed(tmp_path):
    with pytest.raises(SpecprobeError, match="read each by itself"):
        read_engine_numbers([golden_answers(tmp_path, "draft_k3_t0"), golden_prometheus(tmp_path, "draft_k3_t0")])


def test_engine_contradicts_depth(tmp_path):
    with pytest.raises(SpecprobeError, match="the engine says 3"):
        read_engine_numbers([golden_answers(tmp_path, "draft_k3_t0")], 4)


def test_answers_without_usage_make_no_run(tmp_path):
    answer = {key: value for key, value in ANSWER.items() if key != "usage"}
    with pytest.raises(SpecprobeError, match="output tokens"):
        imported(write(tmp_path, json.dumps(answer)))


def test_usage_of_another_answer_is_noticed(tmp_path):
    answer = {**ANSWER, "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    with pytest.raises(SpecprobeError, match="not of one answer"):
        imported(write(tmp_path, json.dumps(answer)))


def test_fit_document_holds_what_was_counted(tmp_path, capsys):
    path = golden_answers(tmp_path, "draft_k3_t0")
    assert run_command(["fit", "--metrics", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["engine_numbers"]["drafted_rounds"] == golden("draft_k3_t0")["counters"]["num_drafts"]
    assert document["best"] is not None
