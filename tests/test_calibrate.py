"""Calibration on a user's own points: known factors come back, what is missing is named, cost files are read again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from benchmarks.vllm_cpu_speed import METHODS, compare, load, main, run_seconds
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from specprobe.calibrate import (
    CALIBRATED_DEVIATION,
    LEAST_DEVIATION,
    Setup,
    calibrate_points,
    find_model,
    find_setup,
    predict,
    scaled,
    write_cost,
)
from specprobe.cli import run_command
from specprobe.cost_files import read_cost_file
from specprobe.errors import SpecprobeError
from specprobe.measured_points import RoundTiming, StepTiming, Timing, read_points, timing_of_row
from specprobe.scales import PRIOR, PRIOR_OF_A_CLASS, Scales, fit_scales

MODEL, DRAFT = "Llama-3.1-8B", "Llama-3.2-1B"
OPTIONS = ["--model", MODEL, "--gpu", "h100"]


def setup_of(gpu: str = "h100", model: str = MODEL, dtype: str | None = None) -> Setup:
    return find_setup(model, gpu, devices=1, dtype=dtype, engine="vllm")


def timings_under(setup: Setup, scales: Scales, noise: float = 0.0, seed: int = 0) -> list[Timing]:
    """Steps over batch, query tokens and context, and rounds of a draft model, as these factors make them."""
    rng = np.random.default_rng(seed)
    deployment = scaled(setup.deployment, scales)
    rows: list[dict[str, object]] = [
        {"batch": b, "query_tokens": q, "context": c} for b in (1, 8, 64) for q in (1, 5) for c in (128, 4096)
    ]
    rows += [
        {"batch": b, "context": 512, "method": "draft_model", "drafter": DRAFT, "depth": k}
        for b in (1, 16)
        for k in (1, 4)
    ]
    timings = []
    for row in rows:
        timing = timing_of_row(row | {"seconds": 1.0}, "made up")
        drafter = find_model(setup, timing.method, timing.drafter) if isinstance(timing, RoundTiming) else None
        seconds = predict(deployment, timing, drafter) * math.exp(noise * rng.standard_normal())
        timings.append(timing_of_row(row | {"seconds": seconds}, "made up"))
    return timings


@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.tuples(st.floats(-1.2, 1.2), st.floats(-0.2, 1.2), st.floats(-0.2, 1.2), st.floats(-1.2, 1.2)))
@example((-1.2, 1.2, 1.2, 1.2))
def test_rounds_that_were_not_measured_are_met_whatever_the_factors(logs):
    """A factor that is a small part of every point may stay near its prior, but then it is a small part of others."""
    setup = setup_of()
    true = Scales(*np.exp(logs).tolist())
    fitted = calibrate_points(timings_under(setup, true), setup, depth=4).fit.scales
    step = {"batch": 4, "query_tokens": 3, "context": 2048, "seconds": 1.0}
    around = {"batch": 6, "context": 1024, "method": "draft_model", "drafter": DRAFT, "depth": 2, "seconds": 1.0}
    for row, drafter in ((step, None), (around, find_model(setup, "draft_model", DRAFT))):
        timing = timing_of_row(row, "made up")
        truth, found = (predict(scaled(setup.deployment, scales), timing, drafter) for scales in (true, fitted))
        assert found == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("gpu", ["h100", "cpu"])
def test_priors_do_not_hold_a_factor_of_three_back_from_accurate_points(gpu):
    setup = setup_of(gpu)
    calibration = calibrate_points(timings_under(setup, Scales(memory=3.0, compute=3.0), noise=0.02), setup, depth=4)
    assert calibration.fit.scales.memory == pytest.approx(3, rel=0.05)
    assert calibration.fit.scales.compute == pytest.approx(3, rel=0.05)
    assert calibration.is_identified("memory")


def test_a_host_bound_machine_is_found_to_be_one():
    setup = setup_of("h100", "SmolLM2-135M")
    calibration = calibrate_points(timings_under(setup, Scales(host=3.0, drafting=3.0), noise=0.02), setup, depth=4)
    assert calibration.fit.scales.host == pytest.approx(3, rel=0.05)
    assert calibration.fit.scales.drafting == pytest.approx(3, rel=0.1)


def test_without_points_of_a_factor_its_prior_stays_and_is_said_to():
    setup = setup_of()
    steps = [t for t in timings_under(setup, Scales()) if isinstance(t, StepTiming)]
    calibration = calibrate_points(steps, setup, depth=4)
    assert calibration.fit.scales.drafting == 1
    assert calibration.fit.deviations["drafting"] == pytest.approx(PRIOR.deviations["drafting"])
    assert not calibration.is_identified("drafting")
    assert calibration.is_identified("memory")
    # Many good steps say nothing of how wrong a round may be.
    assert calibration.cost.log_deviation == CALIBRATED_DEVIATION


def test_on_a_class_of_machines_one_point_moves_all_of_a_step():
    def fitted(prior):
        return fit_scales(lambda scales: np.array([(math.log(scales.memory) - 2.0) / 0.03]), prior).scales

    assert fitted(PRIOR).compute == pytest.approx(1)
    assert fitted(PRIOR_OF_A_CLASS).compute > 4
    assert fitted(PRIOR_OF_A_CLASS).drafting == pytest.approx(1)


def test_what_a_speedup_may_be_off_by_falls_with_points_and_never_below_what_repeats_differ_by():
    setup = setup_of()
    timings = timings_under(setup, Scales(host=1.5))
    few = calibrate_points([timings[0], timings[6], timings[-1]], setup, depth=4).cost.log_deviation
    many = calibrate_points(timings * 5, setup, depth=4).cost.log_deviation
    assert few == pytest.approx(CALIBRATED_DEVIATION, rel=0.05)
    assert many == LEAST_DEVIATION
    noisy = timings_under(setup, Scales(), noise=0.3)
    assert calibrate_points(noisy * 5, setup, depth=4).cost.log_deviation > 0.2


def test_the_speedup_of_a_run_tells_as_much_as_its_seconds():
    setup = setup_of()
    true = Scales(drafting=2.0)
    deployment, drafter = scaled(setup.deployment, true), find_model(setup, "draft_model", DRAFT)
    row = {"batch": 4, "context": 512, "method": "draft_model", "drafter": DRAFT, "depth": 3, "acceptance_length": 2.5}
    by_seconds = timing_of_row(row | {"seconds": 1.0}, "made up")
    seconds = predict(deployment, by_seconds, drafter)
    rate = timing_of_row(row | {"tokens_per_second": 4 * 2.5 / seconds}, "made up")
    assert rate.value == pytest.approx(seconds)
    by_speedup = timing_of_row(row | {"speedup": 1.0}, "made up")
    speedup = timing_of_row(row | {"speedup": predict(deployment, by_speedup, drafter)}, "made up")
    steps = [t for t in timings_under(setup, true) if isinstance(t, StepTiming)]
    fits = [calibrate_points([*steps, one], setup, depth=3).fit.scales.drafting for one in (rate, speedup)]
    assert fits == [pytest.approx(2, rel=0.1)] * 2


def test_a_rate_without_speculation_is_a_step():
    timing = timing_of_row({"concurrency": "16", "context": "74.5", "tokens_per_second": "320"}, "here")
    assert timing == StepTiming("here", 16, 1, 74.5, 16 / 320, 0.05)


def test_a_row_that_says_off_is_a_step_whatever_else_its_table_has():
    row = {"batch": 2, "context": 9, "seconds": 0.1, "method": "Off", "depth": 0, "acceptance_length": 1}
    assert timing_of_row(row, "here") == StepTiming("here", 2, 1, 9, 0.1)


def test_the_share_of_rounds_with_a_draft_comes_from_either_pair_of_facts():
    row = {"batch": 1, "context": 9, "method": "ngram", "depth": 3, "seconds": 0.1, "acceptance_length": 3.0}
    assert timing_of_row(row | {"tokens_per_round": 1.5}, "here").coverage == 0.25
    assert timing_of_row(row | {"coverage": 0.25}, "here").tokens_per_round == 1.5
    with pytest.raises(SpecprobeError, match="coverage: missing"):
        timing_of_row(row, "here")


SPECULATIVE = (
    "batch,context,method,drafter,depth,acceptance_length,tokens_per_round,seconds,tokens_per_second,speedup\n"
)
REFUSED = {
    "no context": ("batch,seconds\n1,0.1\n", "points.csv:2: context: missing"),
    "no time": ("batch,context\n1,9\n", "points.csv:2: seconds: missing"),
    "no batch": ("context,seconds\n9,0.1\n", "no column batch"),
    "batch of 0": ("batch,context,seconds\n0,9,0.1\n", "points.csv:2: batch: '0' is no number from 1"),
    "batch of 1.5": ("batch,context,seconds\n1.5,9,0.1\n", "no whole number"),
    "text for a number": ("batch,context,seconds\n1,9,0.1\n1,9,fast\n", "points.csv:3: seconds: 'fast'"),
    "not finite": ("batch,context,seconds\n1,9,nan\n", "seconds: 'nan'"),
    "milliseconds": ("batch,context,seconds\n1,9,1e9\n", "seconds: '1e9' is no number"),
    "rate of a wide step": ("batch,query_tokens,context,tokens_per_second\n1,5,9,10\n", "several query tokens"),
    "rate beyond belief": ("batch,context,tokens_per_second\n1,9,0.000001\n", "check its unit"),
    "unknown method": (SPECULATIVE + "1,9,magic,,3,2,,0.1,,\n", "points.csv:2: method: 'magic' is not known"),
    "no method": (SPECULATIVE + "1,9,,,3,2,,0.1,,\n", "method: missing"),
    "a drafter alone": (SPECULATIVE + "1,9,,x,,,,0.1,,\n", "method: missing in a row with drafter"),
    "a length alone": (SPECULATIVE + "1,9,,,,2,,0.1,,\n", "method: missing"),
    "no draft model": (SPECULATIVE + "1,9,draft_model,,3,2,,0.1,,\n", "drafter: missing"),
    "unknown draft model": (SPECULATIVE + "1,9,draft_model,nobody/none,3,2,,0.1,,\n", "points.csv:2: drafter: model"),
    "no depth": (SPECULATIVE + "1,9,eagle3,,,2,,0.1,,\n", "depth: missing"),
    "no length": (SPECULATIVE + "1,9,eagle3,,3,,,,50,\n", "acceptance_length: missing"),
    "length above depth + 1": (SPECULATIVE + "1,9,eagle3,,3,4.5,,0.1,,\n", "acceptance_length: '4.5'"),
    "no time of a run": (SPECULATIVE + "1,9,eagle3,,3,2,,,,\n", "seconds: missing"),
    "empty": ("", "no column batch"),
    "header only": ("batch,context,seconds\n", "no points"),
    "huge field": ("batch,context,seconds\n1,9," + "1" * 200_000 + "\n", "points.csv:"),
    "JSON broken": ('{"batch": 1,\n', "points.csv:1: not JSON"),
    "JSON of numbers": ("[1, 2]", "row 1: is no object"),
    "JSON points no list": ('{"points": 3}', "must be a list"),
    "JSON too deep": ("[" * 100_000, "not JSON"),
    "JSON without a fact": ('[{"batch": 1, "context": 3}]', "row 1: seconds: missing"),
    "JSON of wrong kinds": ('{"batch": true, "context": 3, "seconds": 1}', "batch: 'True'"),
    "JSON method a number": ('{"batch": 1, "context": 3, "seconds": 1, "method": 4}', "method: must be text"),
}


@pytest.mark.parametrize(("content", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_missing_is_refused_by_file_line_and_column(content, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("points.csv").write_text(content)
    assert run_command(["calibrate", "points.csv", *OPTIONS]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert not Path(".specprobe").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "name --model and --gpu"),
        (["--model", MODEL], "name --model and --gpu"),
        (["--model", "nobody/none", "--gpu", "h100"], "nobody/none"),
        (["--model", MODEL, "--gpu", "abacus"], "abacus"),
        ([*OPTIONS, "--engine", "abacus"], "abacus"),
        ([*OPTIONS, "--dtype", "abacus"], "abacus"),
        ([*OPTIONS, "--tp", "0"], "--tp 0"),
        ([*OPTIONS, "--depth", "0"], "--depth 0"),
        ([*OPTIONS, "--drafter", "abacus:x"], "abacus"),
        (["--model", "Llama-3.1-405B", "--gpu", "h100"], "do not fit"),
        ([*OPTIONS, "--out", "."], "--out"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("points.csv").write_text("batch,context,seconds\n1,9,0.006\n")
    assert run_command(["calibrate", "points.csv", *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert says in captured.err


def test_no_points_at_all_and_files_that_are_none(tmp_path, capsys):
    assert run_command(["calibrate", *OPTIONS]) == 2
    assert "--server" in capsys.readouterr().err
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, says in ((tmp_path / "absent.csv", "give a CSV or JSON file"), (binary, "UTF-8")):
        assert run_command(["calibrate", str(path), *OPTIONS]) == 2
        assert says in capsys.readouterr().err


def two_timings_and_a_run(setup: Setup, true: Scales) -> str:
    """The least that is enough, as a CSV."""
    steps = [timing_of_row({"batch": b, "context": 512, "seconds": 1}, "") for b in (1, 32)]
    row = {"batch": 1, "context": 512, "method": "draft_model", "drafter": DRAFT, "depth": 3, "seconds": 1}
    deployment = scaled(setup.deployment, true)
    one, many = (predict(deployment, step, None) for step in steps)
    around = predict(deployment, timing_of_row(row, ""), find_model(setup, "draft_model", DRAFT))
    return (
        "batch,context,seconds,tokens_per_second,method,drafter,depth,acceptance_length\n"
        f"1,512,{one},,,,,\n32,512,{many},,off,,,\n1,512,,{2.4 / around},draft_model,{DRAFT},3,2.4\n"
    )


def test_two_timings_and_one_run_give_a_cost_file_that_recommend_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    setup, true = setup_of(), Scales(1.4, 1.15, 1.2, 1.8)
    Path("points.csv").write_text(two_timings_and_a_run(setup, true))
    arguments = ["calibrate", "points.csv", *OPTIONS, "--depth", "4", "--drafter", "eagle3", "--out", "cost.json"]
    assert run_command([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "specprobe.calibration/1"
    assert [point["where"] for point in document["points"]] == [f"points.csv:{line}" for line in (2, 3, 4)]
    assert all(abs(point["error"]) < 0.05 for point in document["points"])
    cost = read_cost_file(Path("cost.json"))
    assert cost.log_deviation == pytest.approx(CALIBRATED_DEVIATION, rel=0.05)
    assert cost.drafters == {"ngram", "suffix", "draft", "eagle3"}
    assert cost.memory is not None
    assert cost.query_tokens == [1, 2, 3, 4, 5]
    conditions = cost.conditions
    assert (conditions["model"], conditions["gpu"], conditions["devices"]) == (MODEL, "h100", 1)
    assert (conditions["points"], conditions["speculative_points"]) == (3, 1)
    assert conditions["largest_batch_measured"] == 32
    assert set(conditions["factors"]) == {"host", "memory", "compute", "drafting"}
    # A round that was not measured: within what is stated, of what the true factors make of it.
    other = {"batch": 8, "context": 2048, "method": "draft_model", "drafter": DRAFT, "depth": 4, "seconds": 1}
    truth = predict(scaled(setup.deployment, true), timing_of_row(other, ""), find_model(setup, "draft_model", DRAFT))
    at = np.array([8.0]), np.array([4.0]), np.array([2048.0])
    found = cost.at_context(2048).at_batch(8)[0][-1] + cost.drafting_seconds(["draft"], *at, by_token=True).item()
    assert found == pytest.approx(truth, rel=cost.log_deviation)


def test_recommend_takes_the_cost_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    setup = setup_of()
    write_cost(Path("cost.json"), calibrate_points(timings_under(setup, Scales()), setup, depth=4).cost)
    # Each repeats itself in its own way from its middle on.
    rows = [
        {"id": str(i), "prompt_token_ids": [i], "output_token_ids": [*range(100, 110 + i), *range(100, 110 + i)]}
        for i in range(20)
    ]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run_command(["analyze", "rows.jsonl", "--drafter", "ngram:min=2,max=3", "--depth", "4", "--json"]) == 0
    capsys.readouterr()
    assert run_command(["recommend", "--cost", "cost.json", "--concurrency", "1,64", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [verdict["concurrency"] for verdict in document["by_concurrency"]] == [1, 64]
    assert all(option["speedup"] > 1 for option in document["by_concurrency"][0]["options"][:1])
    assert document["cost"]["conditions"]["model"] == MODEL


def test_a_report_for_people(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    Path("steps.csv").write_text("batch,context,seconds\n1,512,0.0075\n64,512,0.0120\n")
    assert run_command(["calibrate", "steps.csv", *OPTIONS]) == 0
    out = capsys.readouterr().out
    assert "drafting: stays near its prior; speculative runs" in out
    assert "steps.csv:2" in out
    assert "specprobe recommend --cost .specprobe/calibrated.json" in out
    assert Path(".specprobe/calibrated.json").stat().st_mode & 0o077 == 0


def test_points_that_are_of_something_else_are_said_to_be(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("points.csv").write_text("batch,context,seconds\n1,512,0.0075\n1,512,0.0150\n")
    assert run_command(["calibrate", "points.csv", *OPTIONS, "--json"]) == 0
    codes = {warning["code"] for warning in json.loads(capsys.readouterr().out)["warnings"]}
    assert "poor_fit" in codes
    # A step of one sequence in a tenth of the time that its weights take to read.
    Path("points.csv").write_text("batch,context,seconds\n1,512,0.0006\n1,9000,0.0006\n2,512,0.0006\n")
    assert run_command(["calibrate", "points.csv", *OPTIONS, "--json"]) == 0
    codes = {warning["code"] for warning in json.loads(capsys.readouterr().out)["warnings"]}
    assert "faster_than_data_sheet" in codes


def result_of_vllm(**changes: object) -> dict[str, object]:
    """What `vllm bench serve --save-result` writes, the parts that matter and some that do not."""
    return {
        "date": "20261130-120000",
        "backend": "vllm",
        "model_id": MODEL,
        "num_prompts": 100,
        "completed": 100,
        "request_rate": "inf",
        "max_concurrency": 16,
        "duration": 20.0,
        "total_input_tokens": 102_400,
        "total_output_tokens": 12_800,
        "mean_ttft_ms": 300.0,
        "mean_tpot_ms": 22.0,
        "median_itl_ms": 21.0,
    } | changes


def test_results_of_vllm_bench_serve_are_points(tmp_path):
    plain, speculative, both = (tmp_path / name for name in ("plain.json", "ngram.json", "both.jsonl"))
    plain.write_text(json.dumps(result_of_vllm()))
    counters = {
        "spec_decode_num_drafts": 4_000,
        "spec_decode_draft_tokens": 12_000,
        "spec_decode_accepted_tokens": 6_000,
    }
    with_method = result_of_vllm(**counters, spec_decode_acceptance_length=2.5, method="ngram")
    speculative.write_text(json.dumps(with_method))
    (step,) = read_points([plain])
    assert step == StepTiming(str(plain), 16, 1, 1024 + 64, 0.021, from_engine=True)
    (found,) = read_points([speculative])
    assert isinstance(found, RoundTiming)
    rounds = 12_800 - 100 - 6_000
    assert (found.method, found.depth, found.value) == ("ngram", 3, 0.021)
    assert found.coverage == pytest.approx(4_000 / rounds)
    assert found.tokens_per_round == pytest.approx(12_700 / rounds)
    # What --append-result writes: one result a line.
    both.write_text(f"{json.dumps(result_of_vllm())}\n{json.dumps(with_method)}\n")
    assert [timing.where for timing in read_points([both, plain])] == [f"{both}:1", f"{both}:2", str(plain)]
    assert calibrate_points([step], setup_of(), depth=2).cost.source == "engine"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_concurrency": None}, "max_concurrency: missing"),
        ({"duration": 200.0}, "requests ran at once"),
        ({"completed": 0}, "completed"),
        ({"median_itl_ms": 0}, "median_itl_ms"),
        ({"spec_decode_num_drafts": 10}, "method: missing"),
        ({"spec_decode_num_drafts": 10, "method": "draft_model"}, "drafter: missing"),
        ({"spec_decode_num_drafts": 10, "method": "eagle3"}, "spec_decode_draft_tokens: missing"),
        ({"spec_decode_acceptance_length": 2.0, "method": "eagle3"}, "missing"),
    ],
)
def test_results_that_say_too_little_are_refused(changes, says, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result_of_vllm(**changes)))
    with pytest.raises(SpecprobeError, match=says) as refused:
        read_points([path])
    assert str(path) in str(refused.value)


def test_drafters_of_one_method_are_kept_apart_and_others_go_by_the_method():
    setup = setup_of()

    def names(drafters: Iterable[str]) -> set[str]:
        return calibrate_points(
            [timings_under(setup, Scales())[0]], setup, depth=1, drafters=list(drafters)
        ).cost.drafters

    assert names([f"draft_model:{DRAFT}"]) == {"ngram", "suffix", "draft"}
    several = names([f"draft:{DRAFT}", "draft:Llama-3.2-3B"])
    assert several == {"ngram", "suffix", f"draft:{DRAFT}", "draft:Llama-3.2-3B"}


def test_a_model_may_be_a_folder(tmp_path):
    (tmp_path / "config.json").write_text("{")
    for model, says in ((str(tmp_path), "not JSON"), (str(tmp_path / "absent.json"), "config.json")):
        with pytest.raises(SpecprobeError, match=says):
            setup_of(model=model)
    folder = str(Path(__file__).parent / "golden" / "draft-3l")
    shape = setup_of(model=folder, dtype="float32").deployment.shape
    assert (shape.layers, shape.hidden, shape.tied) == (3, 576, True)


def test_a_written_cost_file_is_read_back_as_it_was(tmp_path):
    cost = calibrate_points(timings_under(setup_of(), Scales()), setup_of(), depth=2).cost
    write_cost(tmp_path / "cost.json", cost)
    back = read_cost_file(tmp_path / "cost.json")
    assert back.points == cost.points
    assert back.drafting == cost.drafting
    assert back.log_deviation == cost.log_deviation


def test_requests_run_out_one_after_the_other():
    assert run_seconds([1, 2, 3], 1, lambda batch: batch) == 6
    assert run_seconds([1, 2, 3], 3, lambda batch: batch) == 3 + 2 + 1
    assert run_seconds([1, 2, 3], 2, lambda _batch: 1.0) == 4


def test_vllm_on_a_cpu_is_predicted_from_one_of_its_cells():
    cells = list(compare(load()))
    assert {cell.label for cell in cells} == set(METHODS)
    assert [(cell.label, cell.concurrency) for cell in cells if cell.is_fitted] == [("draft_k3", 4)]
    assert all(cell.is_within for cell in cells)
    # The verdict, where the repeats agree on one.
    decided = [cell for cell in cells if abs(cell.measured - 1) > cell.spread]
    assert len(decided) >= 3
    assert all((cell.as_run > 1) == (cell.measured > 1) for cell in decided)


def test_the_validation_page_has_the_figures_of_this_code(capsys):
    main()
    page = (Path(__file__).parents[1] / "docs" / "validation.md").read_text(encoding="utf-8")
    for table in capsys.readouterr().out.strip().split("\n\n"):
        assert table in page
