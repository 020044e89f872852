"""Temperature and sampling settings through the command line: what is written, replayed, refused and reported."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import literal_engine as literal
import numpy as np
import pytest
import torch
import toy_target as toy

from specprobe.asked import Asked
from specprobe.cli import run_command
from specprobe.distribution import RowProcessors
from specprobe.drafters.scores import DraftVocabulary, outside_mass
from specprobe.features import LAST, capture_features
from specprobe.processors import PLAIN, Processors
from specprobe.profiles import resolve_profile
from specprobe.target import load_target
from specprobe.target_distribution import TargetDistribution
from specprobe.trajectories import generated_trajectories

DEPTH = 3
TEXTS = ("a", "the same again", "b c d", "1 2 3 4 5 6 7 8 9", "hello hello hello", "?")
EVERYTHING = {
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.05,
    "repetition_penalty": 1.4,
    "frequency_penalty": 0.3,
    "presence_penalty": -0.2,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> SimpleNamespace:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    return SimpleNamespace(
        target=str(toy.write_checkpoint(folder / "target")), draft=str(toy.write_checkpoint(folder / "draft", seed=1))
    )


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))
    toy.go_offline(monkeypatch)


def write_rows(*rows: dict[str, Any]) -> str:
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "log.jsonl"


def analyze(capsys, models, *arguments: str, rows: Any = None) -> tuple[int, str, str]:
    log = write_rows(*(rows or ({"prompt": text} for text in TEXTS)))
    fixed = ("--target", models.target, "--device", "cpu", "--json", "--depth", str(DEPTH), "--max-new-tokens", "12")
    status = run_command(["analyze", log, *fixed, *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def document(capsys, models, *arguments: str, rows: Any = None) -> dict[str, Any]:
    status, out, err = analyze(capsys, models, *arguments, rows=rows)
    assert status == 0, err
    return json.loads(out)


@pytest.mark.parametrize("engine", ["vllm", "hf", "llama.cpp", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_what_is_written_has_the_probability_that_the_engine_gives_it(models, engine, temperature):
    """log p and entropy while generating, and when scored, against the literal processing of plain logits."""
    target, rule = load_target(models.target, device="cpu"), resolve_profile(engine).processing
    processors = Processors(**{name: value for name, value in EVERYTHING.items() if name not in rule.without})
    prompts = [toy.raw(text * 3) for text in TEXTS]
    # Some ask for all of it, some for nothing.
    asked = [Asked(processors if number % 2 else PLAIN) for number in range(len(prompts))]
    found = generated_trajectories(
        prompts, target, temperature=temperature, asked=asked, rule=rule, max_new_tokens=80, batch_size=4
    ).trajectories
    assert sum(t.output_ids.size for t in found) > 40
    scores = target.score(found, rule)
    for trajectory, score in zip(found, scores, strict=True):
        log_p, entropy = literally(target.model, trajectory, engine)
        np.testing.assert_allclose(trajectory.log_probs, log_p, atol=2e-4)
        np.testing.assert_allclose(trajectory.entropy, entropy, atol=2e-3)
        np.testing.assert_allclose(score.log_probs, log_p, atol=2e-4)
        np.testing.assert_allclose(score.entropy, entropy, atol=2e-3)
        assert score.is_argmax.all() or temperature > 0


def literally(model: Any, trajectory: Any, engine: str) -> tuple[np.ndarray, np.ndarray]:
    """log p of the text, and entropies."""
    p = literal_p(model, trajectory, engine)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies = -np.nansum(p * np.log(p), axis=1)
    return np.log(p[np.arange(len(p)), trajectory.output_ids]), entropies


def literal_p(model: Any, trajectory: Any, engine: str) -> np.ndarray:
    """[N, V]; at temperature 0 of temperature 1, without cuts."""
    text = torch.from_numpy(np.concatenate([trajectory.prompt_ids, trajectory.output_ids]).astype(np.int64))
    with torch.no_grad():
        logits = model(input_ids=text[None]).logits[0].double().numpy()
    first, asked = trajectory.prompt_ids.size, dict(trajectory.processors.changed)
    if trajectory.temperature == 0:
        asked = {name: value for name, value in asked.items() if name.endswith("penalty")}
    settings = literal.Settings(trajectory.temperature or 1.0, **asked)
    prompt, output = trajectory.prompt_ids.tolist(), trajectory.output_ids.tolist()
    return np.stack(
        [
            literal.target_distribution(logits[first + n - 1], prompt, output[:n], settings, engine)
            for n in range(len(output))
        ]
    )


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
@pytest.mark.parametrize("asked", [{}, {"top_p": 0.9}, {"repetition_penalty": 1.4, "frequency_penalty": 0.3}])
def test_p_of_any_token_comes_out_of_the_states(models, tmp_path, engine, asked):
    target, rule = load_target(models.target, device="cpu"), resolve_profile(engine).processing
    found = generated_trajectories(
        [toy.raw(text) for text in TEXTS], target, temperature=0.9, asked=[Asked(Processors(**asked))] * len(TEXTS),
        rule=rule, max_new_tokens=12,
    ).trajectories  # fmt: skip
    distribution = TargetDistribution(target, rule)
    assert distribution.of(found[0]) is None
    distribution.take(capture_features(target, found, [LAST], tmp_path), found)
    assert not distribution.notices
    rng = np.random.default_rng(0)
    vocabulary = DraftVocabulary.from_target_ids(torch.arange(0, 260, 3), 260)
    for trajectory in found:
        p, known = literal_p(target.model, trajectory, engine), distribution.of(trajectory)
        np.testing.assert_allclose(known.log_p(torch.arange(len(p))).exp(), p, atol=1e-4)
        at, tokens = rng.integers(0, len(p), 50), rng.integers(-2, 262, 50)
        inside = (tokens >= 0) & (tokens < 260)
        expected = np.where(inside, p[at, np.where(inside, tokens, 0)], 0.0)
        np.testing.assert_allclose(np.exp(known.log_p_of(at, tokens)), expected, atol=1e-4)
        outside = p[1:][:, np.arange(260) % 3 > 0].sum()
        assert outside_mass(vocabulary, trajectory, known) == pytest.approx(outside, abs=1e-3)


def test_a_run_over_temperatures(capsys, models):
    found = document(
        capsys, models, "--temperature", "0,0.6,1.2", "--drafter", "ngram:min=1,max=2", "--drafter",
        f"draft:{models.draft}",
    )  # fmt: skip
    assert [r["temperature"] for r in found["responses"]] == [0.0, 0.6, 1.2]
    assert all(r["entropy"]["tokens"] > 0 for r in found["responses"])
    ways = [(r["drafter"], r["temperature"], r["draft_sampling"]) for r in found["results"]]
    # Models draft both ways where the engine offers both; at 0 both are one.
    assert ("draft", 0.0, "sampled") not in ways
    assert {("draft", 0.6, "greedy"), ("draft", 0.6, "sampled"), ("ngram", 1.2, "greedy")} <= set(ways)
    assert ("ngram", 0.6, "sampled") not in ways
    for result in found["results"]:
        assert len(result["by_entropy"]) == 4
        assert result["concentration"]["requests"] > 0
        estimates = result["lower_variance"]
        assert (estimates is None) == (result["temperature"] == 0)
        for depth, estimate in zip(result["depths"], estimates or [], strict=False):
            assert len(estimate["conditional"]) == depth["depth"]
            gained = sum(estimate["accepted_at"]) - depth["accepted_tokens"]
            expected = (depth["emitted_tokens"] + gained) / depth["rounds"]
            assert estimate["tokens_per_round"] == pytest.approx(expected)
        for row in result["per_prompt"]:
            assert ("expected_accepted_at" in row) == (result["temperature"] > 0)
    curves = {(c["drafter"], c["draft_sampling"], c["depth"]) for c in found["temperature_curves"]}
    assert curves == {
        (name, way, k)
        for name, way in (("ngram", "greedy"), ("draft", "greedy"), ("draft", "sampled"))
        for k in (1, 2, 3)
    }
    for curve in found["temperature_curves"]:
        assert [anchor["temperature"] for anchor in curve["anchors"]] == [0.0, 0.6, 1.2]
        assert [left["temperature"] for left in curve["left_out"]] == [0.6]


@pytest.mark.parametrize(
    ("engine", "ways"),
    [
        ("vllm", ["greedy", "sampled"]),
        ("vllm@0.13", ["greedy"]),
        ("hf", ["sampled"]),
        ("llama.cpp", ["greedy"]),
        ("sglang", ["greedy", "sampled"]),
        ("tensorrt-llm", ["greedy"]),
    ],
)
def test_models_draft_as_the_engine_lets_them(capsys, models, engine, ways):
    arguments = ("--temperature", "0.7", "--drafter", f"draft:{models.draft}", "--engine", engine)
    assert [r["draft_sampling"] for r in document(capsys, models, *arguments)["results"]] == ways


def test_settings_change_what_is_written(capsys, models):
    def texts(*arguments: str) -> list[int]:
        found = document(capsys, models, "--drafter", "suffix", *arguments)
        return found["responses"][0]["output_tokens"], found["results"][0]["per_prompt"]

    greedy, one = texts("--temperature", "0"), texts("--temperature", "1", "--top-k", "1")
    assert greedy[0] == one[0]
    assert texts("--temperature", "1") != one
    assert texts("--temperature", "0", "--repetition-penalty", "3") != greedy


LOG = [
    {"id": "cold", "prompt": "a b", "temperature": 0},
    {"id": "hot", "prompt": "c d", "temperature": 0.9, "top_k": 1, "max_tokens": 5},
    {"id": "hot too", "prompt": "e f", "temperature": 0.9},
    {"id": "unsaid", "prompt": "g h"},
    {"id": "tiny", "prompt": "g h", "temperature": 0.001},
    {"id": "refused", "prompt": "g h", "temperature": 0.9, "min_p": 0.1},
]


def test_each_row_at_its_own_settings(capsys, models):
    found = document(capsys, models, "--drafter", "suffix", "--temperature", "log", rows=LOG)
    by_temperature = {
        r["temperature"]: dict(zip(r["ids"], r["output_tokens"], strict=True)) for r in found["responses"]
    }
    assert {t: list(ids) for t, ids in by_temperature.items()} == {
        0.0: ["cold"], 0.01: ["tiny"], 0.9: ["hot", "hot too"], 1.0: ["unsaid"],
    }  # fmt: skip
    assert by_temperature[0.9]["hot"] <= 5
    assert found["workload"]["prompts"] == 5
    assert found["workload"]["skipped"]["engine_refuses"] == 1
    shares = {entry["temperature"]: entry["prompts"] for entry in found["workload"]["temperatures"]}
    assert shares == {0.0: 1, 0.001: 1, 0.9: 3, None: 1}
    assert {"requests_refused", "temperature_unsaid"} <= {warning["code"] for warning in found["warnings"]}
    assert found["settings"]["temperatures_from_log"]


def test_an_engine_that_takes_min_p_refuses_no_row(capsys, models):
    arguments = ("--drafter", "ngram", "--temperature", "log", "--engine", "hf")
    found = document(capsys, models, *arguments, rows=LOG)
    assert found["workload"]["prompts"] == 6


def test_logged_answers_at_their_own_temperatures(capsys, models):
    rows = [
        {"id": n, "prompt": f"p {n}", "response": "some answer", "temperature": t} for n, t in enumerate((0, 0.5, 0.5))
    ]
    found = document(capsys, models, "--responses", "logged", "--temperature", "log", rows=rows)
    assert [(r["temperature"], r["source"], r["ids"]) for r in found["responses"]] == [
        (0.0, "logged", [0]),
        (0.5, "logged", [1, 2]),
    ]
    # The target is named, so p of the text is known, by temperature.
    assert [entry["temperature"] for entry in found["workload"]["log_fit"]] == [0.0, 0.5]


def test_more_samples_are_no_more_prompts(capsys, models):
    arguments = ("--temperature", "0,0.9", "--drafter", "suffix", "--drafter", f"draft:{models.draft}")
    one, three = (document(capsys, models, *arguments, "--samples", n) for n in ("1", "3"))
    cold, hot = three["responses"]
    assert len(cold["ids"]) == 6
    assert (len(hot["ids"]), hot["samples"], hot["prompts"]) == (18, [0] * 6 + [1] * 6 + [2] * 6, [*range(6)] * 3)
    assert three["workload"]["prompts"] == 6
    for mine, theirs in zip(one["results"], three["results"], strict=True):
        # The first sample is what it was alone; the suffix tree of the others holds nothing of it.
        first = [row for row in theirs["per_prompt"] if row["sample"] == 0]
        for row, same in zip(first, mine["per_prompt"], strict=True):
            # Other samples go through the target with them, which rounds p otherwise.
            for key in [key for key in same if key.startswith("expected")]:
                assert row.pop(key) == pytest.approx(same.pop(key), abs=1e-6)
            assert row == same
    codes = [warning["code"] for warning in three["warnings"]]
    assert codes.count("too_few_prompts") >= 1


def test_results_by_a_column_of_the_log(capsys, models):
    rows = [{"prompt": text, "metadata": {"domain": "ab"[n % 2]}} for n, text in enumerate(TEXTS)]
    found = document(capsys, models, "--drafter", "suffix", "--group-by", "metadata.domain", rows=rows)
    (result,) = found["results"]
    assert {group["group"]: group["responses"] for group in result["groups"]} == {"a": 3, "b": 3}
    assert (
        sum(group["rounds"] for group in result["groups"])
        == result["depths"][result["groups"][0]["depth"] - 1]["rounds"]
    )
    assert found["responses"][0]["groups"] == ["a", "b"] * 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--min-p", "0.1", "--temperature", "1"], "vLLM refuses such requests while it speculates"),
        (["--frequency-penalty", "1", "--engine", "hf"], "transformers has no such setting"),
        (["--presence-penalty", "1", "--engine", "sglang", "--drafter", "draft:x"], "one token of each verified round"),
        (["--top-p", "0"], "--top-p 0.0: must be from"),
        (["--top-p", "nan"], "--top-p nan: must be from"),
        (["--top-k", "-2"], "--top-k -2: must be from -1"),
        (["--repetition-penalty", "0"], "--repetition-penalty 0.0: must be from"),
        (["--samples", "0"], "--samples 0: must be at least 1"),
        (["--samples", "1001"], "--samples 1001: must be at most 1000"),
        (["--top-k", "1" + "0" * 400], "must be from -1"),
        (["--temperature", "0,log"], "--temperature"),
        (["--engine", "sglang"], "--drafter: name one; sglang@0.5.23 offers draft"),
        (["--engine", "sglang", "--drafter", "ngram"], "a trie over the tokens of all requests"),
        (["--engine", "hf", "--draft-sampling", "greedy", "--temperature", "1"], "whenever the target samples"),
        (["--group-by", "nope"], "--group-by nope: no row has that column"),
    ],
)
def test_what_does_not_fit_is_one_line(capsys, models, arguments, said):
    status, out, err = analyze(capsys, models, *arguments)
    assert (status, out) == (2, "")
    assert said in err.splitlines()[-1]


def test_too_many_temperatures_in_a_log(capsys, models):
    rows = [{"prompt": "a", "temperature": n / 100} for n in range(1, 15)]
    status, _, err = analyze(capsys, models, "--temperature", "log", rows=rows)
    assert status == 2
    assert "the log says 14 temperatures" in err.splitlines()[-1]


def test_more_temperatures_cost_more_generations_and_replays_and_nothing_else(capsys, models, monkeypatch):
    """Passes of the target are counted: those of generation, and the one over the new text that all drafters share."""
    from specprobe import features, generate

    written, read = [], []
    decode, capture = generate._decode, features.capture_features

    def counted_decode(target, rows, sampling):
        written.append(sampling.temperature)
        yield from decode(target, rows, sampling)

    def counted_capture(target, trajectories, *arguments):
        works = list(trajectories)
        read.append(sorted({work.temperature for work in works}))
        return capture(target, works, *arguments)

    monkeypatch.setattr(generate, "_decode", counted_decode)
    monkeypatch.setattr(features, "capture_features", counted_capture)
    drafter = ("--drafter", "suffix", "--drafter", f"draft:{models.draft}")
    document(capsys, models, *drafter, "--temperature", "0")
    assert (written, read) == ([0.0], [])
    document(capsys, models, *drafter, "--temperature", "0,0.5,0.9,1.3")
    assert written == [0.0, 0.5, 0.9, 1.3]
    assert read == [[0.5, 0.9, 1.3]]


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_an_interrupted_run_with_settings_gives_the_same_bytes(capsys, models, monkeypatch, engine):
    from specprobe import generate

    settings = ("--top-p", "0.9", "--repetition-penalty", "1.2", "--engine", engine)
    arguments = ("--temperature", "0.8", "--drafter", "ngram", "--batch-size", "2", *settings)
    whole = analyze(capsys, models, *arguments)[1]
    assert run_command(["clean"]) == 0
    capsys.readouterr()
    decode, batches = generate._decode, []

    def interrupt(*given):
        batches.append(given)
        if len(batches) == 2:
            raise KeyboardInterrupt
        yield from decode(*given)

    with monkeypatch.context() as patched:
        patched.setattr(generate, "_decode", interrupt)
        assert analyze(capsys, models, *arguments)[0] == 130
    assert analyze(capsys, models, *arguments)[1] == whole


def test_recommend_says_where_it_turns(capsys, models):
    document(capsys, models, "--temperature", "0,0.5,1.3", "--drafter", "suffix")
    points = [
        {"batch": b, "query_tokens": q, "context": 32, "seconds": 0.01 * (1 + 0.02 * b * q)}
        for b in (1, 64) for q in (1, 4)
    ]  # fmt: skip
    Path("cost.json").write_text(json.dumps({"schema": "specprobe.cost/1", "points": points}))
    assert run_command(["recommend", "--cost", "cost.json", "--concurrency", "1,64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["temperature"] == 0.0
    assert [entry["concurrency"] for entry in found["by_temperature"]] == [1, 64]
    for entry, verdict in zip(found["by_temperature"], found["by_concurrency"], strict=True):
        assert [point["temperature"] for point in entry["verdicts"]] == [0.0, 0.5, 1.3]
        assert entry["verdicts"][0]["speedup"] == verdict["speedup"]
        signs = [point["speedup"]["point"] > 1 for point in entry["verdicts"]]
        assert len(entry["break_even_temperatures"]) == sum(a != b for a, b in pairwise(signs))
    assert run_command(["recommend", "--cost", "cost.json", "--concurrency", "1,64", "--details"]) == 0
    assert "by temperature" in capsys.readouterr().out


def test_the_report_says_what_the_log_asks_for_and_who_gains(capsys, models):
    log = write_rows(*(row | {"team": "xy"[n % 2]} for n, row in enumerate(LOG)))
    arguments = ("--temperature", "log", "--group-by", "team", "--drafter", "suffix", "--max-new-tokens", "12")
    assert run_command(["analyze", log, "--target", models.target, "--device", "cpu", "--details", *arguments]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "temperature 0 16.7 %, temperature 0.001 16.7 %, temperature 0.9 50.0 %, no temperature 16.7 %" in out
    assert "tokens per round by temperature" not in out
    assert "each row's own settings" in out
    assert "who gains: suffix, temperature 0.9" in out
    assert "by quartile of the target's entropy" in out
    assert "by group at depth" in out


def test_a_log_without_a_target_has_greedy_drafts_only(capsys, models):
    rows = [{"prompt": "a b", "response": "c d e", "temperature": 0.7}] * 3
    log = write_rows(*rows)
    fixed = ["analyze", log, "--responses", "logged", "--tokenizer", models.target, "--device", "cpu", "--json"]
    drafter = ["--drafter", f"draft:{models.draft}", "--depth", "2"]
    assert run_command([*fixed, *drafter]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert (result["temperature"], result["draft_sampling"]) == (0.7, "greedy")
    # transformers never drafts greedily there; n-gram is one-hot everywhere.
    assert run_command([*fixed, *drafter, "--engine", "hf"]) == 2
    assert "name it with --target" in capsys.readouterr().err.splitlines()[-1]
    assert run_command([*fixed, "--drafter", "ngram", "--engine", "hf"]) == 0


def test_a_target_that_bends_its_logits_has_counters_only(capsys, models, tmp_path):
    target = str(toy.write_checkpoint(tmp_path / "granite", kind="granite", logits_scaling=4.0))
    log = write_rows(*({"prompt": text} for text in TEXTS))
    fixed = ["--target", target, "--device", "cpu", "--json", "--temperature", "0.8", "--max-new-tokens", "12"]
    assert run_command(["analyze", log, *fixed, "--drafter", "suffix"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "target_bends_logits" in {warning["code"] for warning in found["warnings"]}
    assert found["results"][0]["lower_variance"] is None


def test_a_row_with_settings_leaves_the_responses_of_others_alone(capsys, models):
    rows = [{"prompt": text, "temperature": 0.8} for text in TEXTS]
    arguments = ("--temperature", "log", "--drafter", "suffix", "--batch-size", "1")
    before = document(capsys, models, *arguments, rows=rows)
    err = analyze(capsys, models, *arguments, rows=[*rows, {"prompt": "new", "temperature": 0.8, "top_p": 0.9}])[2]
    assert f"{len(TEXTS)} responses at temperature 0.8 were there already" in err
    assert before["responses"][0]["output_tokens"]


@pytest.mark.parametrize("top_p", [0.05, 0.55, 0.9])
def test_equals_at_the_border_of_top_p_are_cut_like_others(top_p):
    logits = torch.tensor([[0.0] * 10, [3.0, 1.0, 1.0, 1.0, 1.0, -2.0, -2.0, -2.0, -2.0, -2.0]])
    rows = RowProcessors([Processors(top_p=top_p)], resolve_profile("vllm").processing, logits.device)
    kept = torch.isfinite(rows.process(logits, 1.0)).sum(-1).tolist()
    for row, count in zip(logits.softmax(-1).double().numpy(), kept, strict=True):
        assert count == 1 + int((np.cumsum(sorted(row, reverse=True)) < top_p - 1e-6).sum())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--top-p", "0.9", "--temperature", "0"), "cuts_without_temperature"),
        (("--temperature", "0.7", "--engine", "llama.cpp"), "engine_truncates"),
        (("--temperature", "0.7", "--engine", "tensorrt-llm"), "engine_caveat"),
    ],
)
def test_what_a_setting_does_not_do_is_said(capsys, models, arguments, code):
    drafter = ("--drafter", f"draft:{models.draft}")
    assert code in {w["code"] for w in document(capsys, models, *drafter, *arguments)["warnings"]}


def test_samples_of_logged_answers_are_refused(capsys, models):
    rows = [{"prompt": "a", "response": "b"}]
    status, _, err = analyze(capsys, models, "--responses", "logged", "--samples", "2", rows=rows)
    assert (status, "--samples: logged answers are what they are" in err.splitlines()[-1]) == (2, True)


@pytest.mark.parametrize("setting", [{"repetition_penalty": 0.005}, {"top_k": 2**40}, {"top_k": -1}, {"top_p": 0}])
def test_an_odd_setting_in_a_row_is_no_setting(capsys, models, setting):
    rows = [{"prompt": "a", "temperature": 0.7} | setting]
    assert (
        document(capsys, models, "--temperature", "log", "--drafter", "suffix", rows=rows)["workload"]["prompts"] == 1
    )


def test_text_of_another_model_has_counters_only(capsys, models):
    rows = [{"prompt": "hello", "response": "hello hello hello hello", "temperature": 0.7}] * 4
    found = document(capsys, models, "--responses", "logged", "--drafter", "ngram:min=1,max=2", rows=rows)
    assert "other_model" in {warning["code"] for warning in found["warnings"]}
    (result,) = found["results"]
    assert result["lower_variance"] is None
    assert result["depths"][0]["accepted_tokens"] > 0


def test_a_log_that_tells_its_temperature_tells_its_other_settings(capsys, models):
    written = document(capsys, models, "--temperature", "0.9", "--top-k", "3", "--drafter", "suffix")
    assert written["results"][0]["lower_variance"]
    rows = [
        {"prompt_token_ids": [60 + n, 61], "output_token_ids": [70, 71, 72], "temperature": 0.9, "top_k": 1}
        for n in range(3)
    ]
    found = document(capsys, models, "--drafter", "suffix", rows=rows)
    # Under top-k 1 this target could have written none, or all but none, of it.
    (fit,) = found["workload"]["log_fit"] or [{"impossible_tokens": 9}]
    assert fit["impossible_tokens"] > 0


def test_a_target_whose_states_cannot_be_watched_has_counters_only(capsys, models, tmp_path):
    fields = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    target = str(toy.write_checkpoint(tmp_path / "gpt2", kind="gpt2", **fields))
    log = write_rows(*({"prompt": text} for text in TEXTS))
    fixed = ["--target", target, "--device", "cpu", "--json", "--temperature", "0.8", "--max-new-tokens", "8"]
    assert run_command(["analyze", log, *fixed, "--drafter", "ngram"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["lower_variance"] is None


def test_intervals_of_estimates_stay_within_what_a_round_can_emit(capsys, models):
    arguments = ("--temperature", "0.2,10", "--drafter", "ngram:min=1,max=2", "--repetition-penalty", "0.01")
    for result in document(capsys, models, *arguments)["results"]:
        for estimate in result["lower_variance"]:
            low, high = estimate["interval"]["tokens_per_round"] or (1, 1)
            assert low <= high <= max(estimate["depth"] + 1, estimate["tokens_per_round"])


def test_a_log_with_one_unanswered_row_is_not_left_aside_without_a_word(capsys, models):
    rows = [{"prompt": text, "response": "x y z"} for text in TEXTS] + [{"prompt": "no answer"}]
    arguments = ("--drafter", "suffix", "--drafter", "ngram")
    found = document(capsys, models, *arguments, rows=rows)
    (said,) = [notice["message"] for notice in found["warnings"] if notice["code"] == "answers_not_used"]
    assert said.startswith(f"{len(TEXTS)} of {len(rows)} prompts have logged answers")
    assert "--responses logged" in said
    _, _, err = analyze(capsys, models, *arguments, rows=rows)
    assert "--responses logged" in err
    asked = document(capsys, models, *arguments, "--responses", "generate", rows=rows)
    assert "answers_not_used" not in {notice["code"] for notice in asked["warnings"]}


def test_what_to_run_next_works_without_a_target(capsys):
    rows = [{"id": n, "prompt_token_ids": [1, 2, 3, 1, 2], "output_token_ids": [3, 1, 2, 3] * 5} for n in range(20)]
    assert run_command(["analyze", write_rows(*rows)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "specprobe recommend --concurrency 1,8,64 --gpu h100 --target MODEL" in shown
    assert run_command(["recommend", "--concurrency", "1,8,64"]) == 2
    assert "--gpu NAME --target MODEL" in capsys.readouterr().err
