"""What `export --engine` writes: settings that engines take, rates that are what was counted, and named refusals."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_runs import acceptance, document_of, draw_prompts, run_of

from specprobe.cli import run_command
from specprobe.configuration import export_configuration, synthetic_rates
from specprobe.errors import SpecprobeError
from specprobe.export import WRITERS, EngineRefusesError, Speculation, command_line, engine_family, engine_settings
from specprobe.profiles import PROFILES, resolve_profile
from specprobe.result_choice import Choice
from tests.engines.cases import GOLDEN, cases

FIRST_RUN = str(Path(__file__).parent / "golden" / "run-1-first.json")
DEPTH = 4


def a_run(drafter: str = "eagle3", **config):
    rng = np.random.default_rng(7)
    result = acceptance(rng, *draw_prompts(rng, 60), DEPTH, drafter=drafter, config=config or {"model": "org/head"})
    return run_of(result)


def exported(kind: str, run=None, **choice):
    return export_configuration(run or a_run(), kind, Choice(**{"drafter": None, "depth": 3, **choice}))


def test_what_vllm_accepted_is_what_is_exported():
    """The golden file is written by tests/engines/check_vllm.py once vLLM's parser has taken every text in it."""
    golden = json.loads(GOLDEN.read_text())
    assert list(cases()) == golden["cases"]
    texts = [case["text"] for case in golden["cases"] if "text" in case]
    assert len(texts) > 100
    assert {json.loads(text.split("'")[1])["method"] for text in texts} == {
        "ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp", "dflash", "medusa",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "drafter", "config", "text"),
    [
        ("vllm", "eagle3", {"model": "h"},
         """vllm serve MODEL --speculative-config '{"method": "eagle3", "model": "h", "num_speculative_tokens": 3}'"""),
        ("sglang", "draft", {"model": "a b"},
         "python -m sglang.launch_server --model-path MODEL --speculative-algorithm STANDALONE "
         "--speculative-draft-model-path 'a b' --speculative-num-steps 3 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 4"),
        ("sglang", "mtp", {"modules": 1},
         "python -m sglang.launch_server --model-path MODEL --speculative-algorithm NEXTN --speculative-num-steps 3 "
         "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"),
        ("sglang", "dflash", {"model": "h"},
         "python -m sglang.launch_server --model-path MODEL --speculative-algorithm DFLASH "
         "--speculative-draft-model-path h --speculative-dflash-block-size 4"),
        ("tensorrt-llm", "eagle3", {"model": "h"},
         'speculative_config:\n  decoding_type: "Eagle3"\n  max_draft_len: 3\n  speculative_model_dir: "h"'),
        ("tensorrt-llm", "mtp", {"modules": 1},
         'speculative_config:\n  decoding_type: "MTP"\n  num_nextn_predict_layers: 3'),
        ("llama.cpp", "draft", {"model": "d.gguf"},
         "llama-server -m MODEL --spec-type draft-simple --spec-draft-model d.gguf --spec-draft-n-max 3"),
        ("llama.cpp", "mtp", {"modules": 1}, "llama-server -m MODEL --spec-type draft-mtp --spec-draft-n-max 3"),
        ("hf", "draft", {"model": "d"},
         "assistant = AutoModelForCausalLM.from_pretrained('d')\n"
         "assistant.generation_config.update(num_assistant_tokens=3, num_assistant_tokens_schedule='constant', "
         "assistant_confidence_threshold=0.0)\nmodel.generate(..., assistant_model=assistant)"),
    ],
)  # fmt: skip
def test_what_to_type(kind, drafter, config, text):
    assert exported(kind, a_run(drafter, **config)).text == text


def test_the_depth_of_llama_cpps_lookup_is_what_it_copies():
    """Its server drafts so many tokens whatever --spec-draft-n-max says."""
    run = replace(a_run("ngram", min=2, max=2, copy=48), engine_profile="llama.cpp@2026-10")
    flags = "--spec-type ngram-simple --spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 3"
    assert exported("llama.cpp", run).text == f"llama-server -m MODEL {flags}"


@pytest.mark.parametrize(
    ("kind", "drafter", "config", "said"),
    [
        ("tensorrt-llm", "eagle", {"model": "h"}, "does not offer eagle"),
        ("sglang", "pard", {"model": "h"}, "does not offer pard"),
        ("sglang", "ngram", {"min": 1, "max": 2}, "a trie over the tokens of all requests"),
        ("llama.cpp", "ngram", {"min": 1, "max": 2}, r"other rules than vllm@0.33, .* --drafter ngram:max=2$"),
        (
            "hf",
            "ngram",
            {"min": 2, "max": 4},
            r"other rules than vllm@0.33, .* --engine hf@5.24 --drafter ngram:max=4$",
        ),
        ("sglang", "draft", {"model": "h", "vocabulary": "mapped"}, "vocabulary of its own"),
        ("vllm", "pard", {"model": "h", "vocabulary": "mapped"}, "plain draft model"),
        ("vllm", "mtp", {"modules": 2}, "only in multiples of 2, not 3; use --depth 2"),
        ("vllm", "medusa", {"model": "h"}, "does not offer medusa"),
        ("vllm", "early-exit", {"layers": 2}, "does not offer early-exit"),
        ("vllm@0.15", "pard", {"model": "h"}, "vllm 0.15 has no parallel_drafting; name vllm@0.16 or newer"),
        ("vllm-synthetic@0.22", "eagle3", {"model": "h"}, "has no synthetic_acceptance_rates"),
        ("vllm", "eagle3", {"note": "edited"}, "does not record model"),
        ("hf", "dflash", {"model": "h"}, "knows no settings of hf"),
        ("profile@2", "eagle3", {"model": "h"}, "has no versions"),
        (
            "vllmm",
            "eagle3",
            {"model": "h"},
            r"llama.cpp, vllm-synthetic, each with or without @VERSION, and profile, a",
        ),
        ("vllm-synthetic@x", "eagle3", {"model": "h"}, "no version number"),
    ],
)
def test_what_is_refused_and_why(kind, drafter, config, said):
    with pytest.raises(SpecprobeError, match=said) as refused:
        exported(kind, a_run(drafter, **config))
    assert "\n" not in str(refused.value)


def test_what_the_engine_takes_of_the_run_is_named_where_the_best_is_refused():
    rng = np.random.default_rng(7)
    prompts = draw_prompts(rng, 30)
    better, worse = (
        acceptance(rng, prompts[0] * share, prompts[1], DEPTH, drafter=drafter, config=config)
        for share, drafter, config in ((1.0, "suffix", {}), (0.5, "ngram", {"min": 12, "max": 12, "copy": 48}))
    )
    run = run_of(better, worse, engine_profile="llama.cpp@2026-10")
    with pytest.raises(
        EngineRefusesError, match=r"does not offer suffix; .*; of this run it takes ngram: name one with"
    ):
        exported("llama.cpp", run)
    assert "--spec-type" in exported("llama.cpp", run, drafter="ngram").text
    with pytest.raises(EngineRefusesError, match=r"; analyze with --engine hf@5.24 and a drafter that it offers$"):
        exported("hf", run)
    # What was named is refused as it is.
    with pytest.raises(EngineRefusesError, match=r"early-exit$"):
        exported("hf", run, drafter="suffix")


def test_every_engine_that_is_named_in_the_refusal_is_one():
    with pytest.raises(SpecprobeError) as refused:
        exported("foo")
    for name in re.findall(
        r"[\w.-]+", str(refused.value).partition("there are")[2].replace("each with or without @VERSION, and", "")
    ):
        with contextlib.suppress(EngineRefusesError):
            assert exported(name).text


def test_versions_decide_what_is_written():
    assert json.loads(exported("vllm@0.32", a_run("medusa")).text.split("'")[1])["method"] == "medusa"
    schedule = ((1, 4, 3), (5, 64, 0))
    for version, takes in (("0.13", False), ("0.22", False), ("0.24", False), ("0.26", True), ("0.33", True)):
        settings = engine_settings(
            resolve_profile(f"vllm@{version}"), Speculation("eagle3", {"model": "h"}, 2, schedule)
        )
        assert ("num_speculative_tokens_per_batch_size" in settings) == takes
        assert settings["num_speculative_tokens"] == (3 if takes else 2)
    settings = engine_settings(resolve_profile("tensorrt-llm"), Speculation("eagle3", {"model": "h"}, 2, schedule))
    assert settings["max_concurrency"] == 4


def test_every_profile_has_settings_for_most_of_what_it_offers():
    unknown = {
        (profile.name, drafter)
        for profile in PROFILES
        for drafter in profile.drafters
        if (engine_family(profile.engine), drafter) not in WRITERS
    }
    assert unknown == {("hf@5.24", drafter) for drafter in ("mtp", "dflash", "early-exit")}


def test_sampled_drafts_are_switched_on_where_there_are_any():
    run = a_run()
    sampled = run_of(replace(run.results[0], draft_sampling="sampled", temperature=0.7))
    assert exported("vllm", sampled).settings["draft_sample_method"] == "probabilistic"
    assert exported("sglang", sampled).text.endswith(" --speculative-use-rejection-sampling")
    for kind in ("llama.cpp", "tensorrt-llm", "vllm@0.13"):
        with pytest.raises(EngineRefusesError, match="does not sample its drafts"):
            exported(kind, sampled)


def test_synthetic_rates_are_what_was_measured():
    """P(positions 1..i accepted): the truth of simulated prompts, and what vLLM demands of such a list."""
    rng = np.random.default_rng(1)
    output = np.full(200, 400)
    result = acceptance(rng, np.full(200, 0.7), output, DEPTH, config={"model": "h"})
    rates = synthetic_rates(result, 3)
    assert rates == pytest.approx([0.7, 0.49, 0.343], abs=0.01)
    assert list(rates) == sorted(rates, reverse=True)
    settings = exported("vllm-synthetic", run_of(result)).settings
    assert settings["rejection_sample_method"] == "synthetic"
    assert settings["synthetic_acceptance_rates"] == list(rates)
    with pytest.raises(EngineRefusesError, match="chooses its own draft length"):
        synthetic_rates(replace(result, fixed_length=False), 3)


def test_synthetic_rates_reach_as_deep_as_the_schedule():
    result = a_run().results[0]
    wanted = Speculation("eagle3", {"model": "h"}, 2, ((1, 4, 4), (5, 64, 1)))
    settings = engine_settings(resolve_profile("vllm"), wanted, synthetic_rates=lambda k: synthetic_rates(result, k))
    assert len(settings["synthetic_acceptance_rates"]) == settings["num_speculative_tokens"] == 4


def test_the_profile_holds_the_counters_both_ways():
    run = a_run()
    profile = json.loads(exported("profile", run).text)
    totals = run.results[0].totals(3)
    marginal, conditional = profile["marginal_accept_rates"], profile["conditional_accept_rates"]
    assert marginal == pytest.approx([a / totals.drafted_rounds for a in totals.accepted_at], abs=1e-6)
    assert np.cumprod(conditional) == pytest.approx(marginal, abs=1e-5)
    assert profile["mean_accept_length"] == pytest.approx(1 + sum(marginal), abs=1e-5)
    histogram = {int(length): count for length, count in profile["acceptance_length_histogram"].items()}
    assert set(histogram) == {1, 2, 3, 4}
    assert sum(histogram.values()) == totals.drafted_rounds
    assert sum(n * count for n, count in histogram.items()) == totals.drafted_rounds + totals.accepted_tokens


def test_a_temperature_that_nobody_said_is_not_exported():
    run = a_run()
    unsaid = replace(run, responses=tuple(replace(record, temperature_is_known=False) for record in run.responses))
    said = [json.loads(exported("profile", one).text)["measurement_conditions"]["temperature"] for one in (run, unsaid)]
    assert said == [run.results[0].temperature, None]


def test_aiconfigurator_gets_accepted_tokens_of_a_step():
    run = a_run("mtp", modules=1)
    found = exported("aiconfigurator", run)
    totals = run.results[0].totals(3)
    assert found.text == f"--nextn 3 --nextn-accepted {totals.accepted_tokens / totals.rounds:.4f}".rstrip("0")
    assert not found.notices
    assert [notice.code for notice in exported("aiconfigurator").notices if notice.code == "priced_as_mtp"]


def test_other_rules_and_unknown_versions_are_said():
    codes = {notice.code for notice in exported("sglang").notices}
    assert "other_engine_rules" in codes
    codes = {notice.code for notice in exported("vllm-synthetic@0.99").notices}
    assert {"unknown_engine_version", "synthetic_acceptance"} <= codes


@pytest.fixture
def recommended(tmp_path, monkeypatch, capsys):
    """A run and what recommend says of it, by files."""
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text(json.dumps(document_of(a_run())))
    points = [
        {"batch": b, "query_tokens": q, "context": c, "seconds": max(0.01, 0.0006 * b * q)}
        for b in (1, 8, 64) for q in (1, 5) for c in (1, 2000)
    ]  # fmt: skip
    cost = {"schema": "specprobe.cost/1", "points": points, "drafter_seconds": {"eagle3": 0.001}}
    Path("cost.json").write_text(json.dumps(cost))

    def recommend(concurrency: str) -> dict:
        arguments = ["recommend", "run.json", "--cost", "cost.json", "--concurrency", concurrency, "--json"]
        assert run_command(arguments) == 0
        text = capsys.readouterr().out
        Path("recommendation.json").write_text(text)
        return json.loads(text)

    return recommend


def test_a_recommendation_chooses_and_brings_its_schedule(recommended, capsys):
    document = recommended("1,64")
    assert document["by_concurrency"][0]["verdict"] == "speculate"
    shown = ["export", "run.json", "--engine", "vllm", "--recommendation", "recommendation.json"]
    assert run_command([*shown, "--json", "--out", "config.txt"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == document["export"]["vllm"]
    assert "num_speculative_tokens_per_batch_size" in found["settings"]
    assert found["depth"] == document["by_concurrency"][0]["depth"]
    assert Path("config.txt").read_text() == found["text"] + "\n"
    assert run_command(shown) == 0
    assert capsys.readouterr().out == found["text"] + "\n"


def test_a_recommendation_against_it_or_of_another_run_is_refused(recommended, capsys):
    document = recommended("64")
    assert document["by_concurrency"][0]["verdict"] != "speculate"
    shown = ["export", "run.json", "--engine", "vllm", "--recommendation", "recommendation.json"]
    for file, change, said in (
        ("run.json", {}, "says for no concurrency to speculate"),
        (FIRST_RUN, {}, "made from another run"),
        ("run.json", {"by_concurrency": [{"verdict": "speculate"}]}, "damaged recommendation"),
    ):
        Path("recommendation.json").write_text(json.dumps(document | change))
        assert run_command([shown[0], file, *shown[2:]]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--engine", "vllm", "--rows", "rows.csv"),
        ("--rows", "rows.csv", "--depth", "2"),
        ("--rows", "rows.csv", "--out", "x"),
        ("--engine", "vllm", "--recommendation", "x", "--depth", "2"),
        ("--engine", "vllm", "--depth", "9"),
        ("--engine", "vllm", "--drafter", "eagle"),
    ],
)
def test_what_does_not_go_together(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(["export", FIRST_RUN, *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_a_choice_tokens_per_round_choose_and_it_is_said(capsys):
    assert run_command(["export", FIRST_RUN, "--engine", "vllm", "--drafter", "ngram", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["warnings"][0]["code"] == "chosen_by_tokens_per_round"
    assert found["text"] == command_line("vllm", found["settings"])
