"""Drafters with models through the command line: one set of responses for all, what the document holds, recommend."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_heads
import tiny_mtp
import torch
import toy_target as toy

from specprobe import spool
from specprobe.causal_lm import LoadOptions
from specprobe.cli import run_command
from specprobe.documents import dump_document
from specprobe.drafters import DraftContext, Limits, open_drafter, parse_drafter
from specprobe.generate import generate
from specprobe.profiles import resolve_profile
from specprobe.run_document import load_run, run_document
from specprobe.summary import summarize_run
from specprobe.trajectory import Trajectory, token_ids

DEPTH = 3
PROMPTS = [{"prompt": text} for text in ("a", "the same again", "b c d", "1 2 3 4 5 6 7 8 9", "hello hello hello", "?")]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> SimpleNamespace:
    """A target of seven layers, a second model, and a head for the target."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    target = toy.write_checkpoint(folder / "target", num_hidden_layers=7)
    from transformers import AutoConfig

    return SimpleNamespace(
        target=str(target),
        draft=str(toy.write_checkpoint(folder / "draft", seed=1)),
        eagle3=str(tiny_heads.write_eagle3(folder / "eagle3", AutoConfig.from_pretrained(target))),
        pard=str(tiny_mtp.write_pard(folder / "pard")),
    )


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))
    # What `python:` drafters add to the path and to the modules goes with the test.
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    toy.go_offline(monkeypatch)


def write_rows(rows: list[dict[str, Any]], name: str = "log.jsonl") -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def command(capsys, *arguments: str) -> tuple[int, str, str]:
    status = run_command(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def analyze(capsys, models, *arguments: str, target: str | None = None) -> tuple[int, str, str]:
    log = write_rows(PROMPTS)
    fixed = ("--json", "--device", "cpu", "--depth", str(DEPTH), "--max-new-tokens", "12")
    return command(capsys, "analyze", log, "--target", target or models.target, *fixed, *arguments)


def drafters(*specs: str) -> list[str]:
    return [word for spec in specs for word in ("--drafter", spec)]


def one_line(status: int, out: str, err: str) -> str:
    """The message of a command that the user must change."""
    message = err.splitlines()[-1]
    assert (status, out) == (2, "")
    assert message.startswith(("error: --drafter", "error: --draft-sampling")), message
    return message


def all_kinds(models) -> list[str]:
    return drafters(
        "ngram", f"draft:{models.draft}", f"eagle3:{models.eagle3}", "early-exit:layers=6", f"pard:{models.pard}",
        f"hybrid:suffix+draft:{models.draft}",
    )  # fmt: skip


# In the order of what they take to adopt, then of naming.
KINDS = {
    "ngram": "flag",
    "early-exit": "flag",
    "draft": "second model",
    "pard": "second model",
    "hybrid:suffix+draft": "second model",
    "eagle3": "trained head",
}


def test_all_drafters_share_one_set_of_responses(capsys, models, monkeypatch):
    calls = []

    def counted(*arguments, **options):
        calls.append(arguments)
        return generate(*arguments, **options)

    monkeypatch.setattr("specprobe.generate.generate", counted)
    arguments = [*all_kinds(models), "--draft-sampling", "both", "--temperature", "0,0.8"]
    status, out, err = analyze(capsys, models, *arguments)
    assert status == 0, err
    # One for each temperature.
    assert len(calls) == 2
    document = json.loads(out)
    found = [(r["temperature"], r["drafter"], r["draft_sampling"]) for r in document["results"]]
    assert found == [
        *((0.0, kind, "greedy") for kind in KINDS),
        *((0.8, kind, way) for kind in KINDS for way in ("greedy", "sampled") if (kind, way) != ("ngram", "sampled")),
    ]
    for result in document["results"]:
        emitted = {depth["emitted_tokens"] for depth in result["depths"]}
        responses = next(r for r in document["responses"] if r["temperature"] == result["temperature"])
        assert emitted == {sum(n - 1 for n in responses["output_tokens"])}


def test_the_document_says_what_was_drafted_with(capsys, models):
    status, out, err = analyze(capsys, models, *all_kinds(models), "--draft-sampling", "both", "--temperature", "0.8")
    assert status == 0, err
    document = json.loads(out)
    assert document["settings"]["draft_samplings"] == ["greedy", "sampled"]
    assert document["settings"]["drafters"] == all_kinds(models)[1::2]
    by_name = {result["drafter"]: result for result in document["results"]}
    assert {kind: by_name[kind]["adoption"] for kind in KINDS} == KINDS
    assert [kind for kind in KINDS if not by_name[kind]["fixed_length"]] == ["hybrid:suffix+draft"]
    draft = by_name["draft"]["config"]
    assert {**draft, "parameters": None} == {
        "model": models.draft, "parameters": None, "vocabulary": "same", "shared_tokens": 260, "target_tokens": 260,
        "draft_tokens": 260, "equal_sizes": True,
    }  # fmt: skip
    assert draft["parameters"] > 10_000
    assert by_name["early-exit"]["config"] == {"layers": 6}
    assert by_name["eagle3"]["config"] == {
        "model": models.eagle3, "layer_ids": [2, 3, 4], "capture": "input_of", "draft_vocabulary": 100,
        "parallel": False,
    }  # fmt: skip
    assert by_name["pard"]["config"]["mask_token"] == tiny_mtp.MASK_TOKEN
    hybrid = by_name["hybrid:suffix+draft"]["config"]
    assert set(hybrid) == {"suffix", "draft"}
    assert hybrid["draft"] == draft
    # Of a random target's probability, most is outside 100 of 260 tokens.
    assert 0.2 < by_name["eagle3"]["outside_share"] < 0.95
    assert all(by_name[kind]["outside_share"] is None for kind in KINDS if kind != "eagle3")
    for result in document["results"]:
        kind = float if result["draft_sampling"] == "sampled" else int
        for row in result["per_prompt"]:
            numbers = [row["rounds"], row["drafted_rounds"], row["drafted_tokens"], *row["accepted_at"]]
            assert {type(number) for number in numbers} == {kind}
            assert row["accepted_at"] == sorted(row["accepted_at"], reverse=True)
        deepest = result["depths"][-1]
        assert deepest["accepted_at"] == pytest.approx(
            np.sum([row["accepted_at"] for row in result["per_prompt"] if row["depth"] == DEPTH], axis=0)
        )


def test_only_sampled_drafts_where_asked_for(capsys, models):
    arguments = [*drafters("ngram", f"draft:{models.draft}"), "--draft-sampling", "sampled"]
    status, out, err = analyze(capsys, models, *arguments, "--temperature", "0,0.8")
    assert status == 0, err
    found = [(r["temperature"], r["drafter"], r["draft_sampling"]) for r in json.loads(out)["results"]]
    assert found == [
        (0.0, "ngram", "greedy"),
        (0.0, "draft", "greedy"),
        (0.8, "ngram", "greedy"),
        (0.8, "draft", "sampled"),
    ]


def test_the_target_itself_is_a_perfect_drafter(capsys, models):
    """Greedily at temperature 0, and sampled from the same distribution above."""
    arguments = [*drafters(f"draft:{models.target}"), "--draft-sampling", "sampled", "--temperature", "0,0.8"]
    status, out, err = analyze(capsys, models, *arguments)
    assert status == 0, err
    document = json.loads(out)
    for result, responses in zip(document["results"], document["responses"], strict=True):
        for depth in result["depths"]:
            # All drafts of a round are right: it emits them and one more.
            rounds = sum(-(-(tokens - 1) // (depth["depth"] + 1)) for tokens in responses["output_tokens"])
            assert depth["rounds"] == pytest.approx(rounds, rel=1e-3)
            assert depth["acceptance_rate"] > 0.5


def test_a_run_with_models_is_the_same_after_reading_it_again(capsys, models):
    arguments = [*all_kinds(models), "--draft-sampling", "both", "--temperature", "0,0.8", "--out", "run.json"]
    status, out, err = analyze(capsys, models, *arguments)
    assert status == 0, err
    run = load_run(Path("run.json"))
    again = dump_document(run_document(run, summarize_run(run)))
    assert again + "\n" == out == Path("run.json").read_text()


def test_same_input_same_bytes_and_nothing_is_left(capsys, models):
    arguments = [*all_kinds(models), "--draft-sampling", "both", "--temperature", "0.8"]
    first = analyze(capsys, models, *arguments)
    assert first[0] == 0
    assert list(Path(".specprobe/states").iterdir()) == []
    assert analyze(capsys, models, *arguments)[1] == first[1]
    assert command(capsys, "clean")[0] == 0
    assert analyze(capsys, models, *arguments)[1] == first[1]
    assert list(Path(".specprobe/states").iterdir()) == []
    assert Path(".specprobe/states").stat().st_mode & 0o077 == 0


def test_what_p_says_does_not_depend_on_how_many_rounds_it_is_held_for(capsys, models, monkeypatch):
    arguments = [*drafters(f"eagle3:{models.eagle3}", f"pard:{models.pard}"), "--temperature", "0.8"]
    status, out, err = analyze(capsys, models, *arguments)
    assert status == 0, err
    whole = json.loads(out)
    monkeypatch.setattr("specprobe.drafters.heads._P_VALUES", 1)
    monkeypatch.setattr("specprobe.drafters.heads._FEWEST_ROUNDS", 3)
    parts = json.loads(analyze(capsys, models, *arguments)[1])
    sampled = 0
    for one, other in zip(whole["results"], parts["results"], strict=True):
        sampled += one["draft_sampling"] == "sampled"
        for row, same in zip(one["per_prompt"], other["per_prompt"], strict=True):
            assert row["expected_accepted_at"] == pytest.approx(same["expected_accepted_at"], rel=1e-4, abs=1e-6)
    assert sampled == 2


@pytest.mark.parametrize("when", ["replays", "_capture"])
def test_an_interrupted_replay_keeps_the_responses(capsys, models, monkeypatch, when):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    arguments = [*drafters(f"eagle3:{models.eagle3}"), "--temperature", "0.8"]
    with monkeypatch.context() as patched:
        patched.setattr(f"specprobe.drafting.{when}", interrupt)
        status, out, err = analyze(capsys, models, *arguments)
    assert (status, out) == (130, "")
    assert err.splitlines()[-1].startswith("error: interrupted")
    assert list(Path(".specprobe/states").iterdir()) == []
    with monkeypatch.context() as patched:
        patched.setattr("specprobe.generate._decode", None)
        status, resumed, err = analyze(capsys, models, *arguments)
    assert status == 0, err
    assert f"{len(PROMPTS)} responses at temperature 0.8 were there already" in " ".join(err.split())
    command(capsys, "clean")
    assert analyze(capsys, models, *arguments)[1] == resumed


def test_what_does_not_fit_is_refused_before_anything_is_generated(capsys, models, monkeypatch):
    """The last of several drafters."""
    monkeypatch.setattr("specprobe.generate._decode", None)
    shallow = str(toy.write_checkpoint(Path("shallow")))
    arguments = drafters("ngram", f"draft:{models.draft}", f"eagle3:{models.eagle3}")
    status, out, err = analyze(capsys, models, *arguments, target=shallow)
    assert (status, out) == (2, "")
    assert "the target has 2 layers" in err.splitlines()[-1]
    assert not list(Path().glob(".specprobe/trajectories/*/*"))


@pytest.mark.parametrize(
    ("specs", "further", "said"),
    [
        (["draft"], [], "needs a model"),
        (["draft:"], [], "needs a model"),
        (["hybrid:suffix"], [], "hybrid:suffix+draft:MODEL"),
        (["hybrid:draft:x+suffix"], [], "first drafter must be one without a model"),
        (["hybrid:suffix+hybrid:suffix+draft:x"], [], "two drafters"),
        (["draft:DRAFT", "draft:DRAFT"], [], "twice"),
        (["draft:DRAFT,speed=3"], [], "no option 'speed'"),
        (["hybrid:suffix+python:os.path:join"], [], "half of a hybrid"),
        (["early-exit:layers=7"], [], "must be from 1 to 6"),
        (["ngram"], ["--draft-sampling", "sampled"], "use greedy"),
        (["draft:DRAFT"], ["--draft-sampling", "sampled", "--engine", "llama.cpp"], "drafts greedily only"),
        (["draft:DRAFT"], ["--draft-sampling", "both", "--engine", "vllm@0.13"], "drafts greedily only"),
    ],
)
def test_a_mistake_with_models_is_one_line(capsys, models, specs, further, said):
    specs = [spec.replace("DRAFT", models.draft) for spec in specs]
    assert said in one_line(*analyze(capsys, models, *drafters(*specs), *further))


# --- hybrid ---


def test_a_hybrid_drafts_with_the_model_where_the_first_has_nothing(capsys, models):
    rng = np.random.default_rng(0)
    rows = [
        {"prompt_token_ids": ids[:6], "output_token_ids": ids[6:]}
        for ids in (np.tile(rng.integers(0, 260, 9), 4).tolist() for _ in range(4))
    ]
    spec = f"hybrid:suffix+draft:{models.draft}"
    arguments = ["--json", "--device", "cpu", "--depth", str(DEPTH), *drafters(spec)]
    status, out, err = command(capsys, "analyze", write_rows(rows), "--responses", "logged", *arguments)
    assert status == 0, err
    result = json.loads(out)["results"][0]
    context = DraftContext(None, None, LoadOptions(device="cpu"), resolve_profile("vllm"), DEPTH, False)
    works = [
        Trajectory(
            id=str(i), prompt_ids=token_ids(r["prompt_token_ids"]), output_ids=token_ids(r["output_token_ids"]),
            source="logged", temperature=0.0, tail_ids=token_ids(),
        )
        for i, r in enumerate(rows)
    ]  # fmt: skip
    first, second = (
        list(open_drafter(parse_drafter(s, context.profile), context).load(None).proposals(works, DEPTH, Limits()))
        for s in ("suffix", f"draft:{models.draft}")
    )
    lone = 0
    for number, (ours, theirs) in enumerate(zip(first, second, strict=True)):
        for depth in range(1, DEPTH + 1):
            start, rounds, accepted = 1, 0, 0
            while start < works[number].output_ids.size:
                chosen = ours if ours.drafted[depth - 1, start] else theirs
                lone += chosen is theirs
                rounds += 1
                right = int(chosen.accepted[depth - 1, start])
                accepted += right
                start += right + 1
            row = result["per_prompt"][number * DEPTH + depth - 1]
            assert (row["rounds"], sum(row["accepted_at"])) == (rounds, accepted)
            assert row["drafted_rounds"] == rounds
    assert lone > 0
    assert result["depths"][0]["accepted_tokens"] > 10


# --- the user's own drafter ---

_NUMBERS = count()


def write_class(body: str) -> str:
    """A module in the current folder, and the spec that names it."""
    name = f"own_drafter_{next(_NUMBERS)}"
    Path(f"{name}.py").write_text(body)
    return f"python:{name}:Mine"


def replay_own(capsys, spec: str, rows: list[dict[str, Any]] | None = None) -> tuple[int, str, str]:
    rows = rows or [{"prompt_token_ids": [1, 2, 3], "output_token_ids": [4, 1, 4, 4, 4, 4]}]
    return command(capsys, "analyze", write_rows(rows), "--json", "--depth", str(DEPTH), "--drafter", spec)


def test_an_own_drafter_is_asked_where_an_engine_would_ask_it(capsys):
    spec = write_class(
        """
import json

class Mine:
    config = {"guess": 4}

    def __init__(self):
        self.asked = []

    def start(self, prompt_ids):
        self.asked.append([len(prompt_ids)])

    def propose(self, token_ids, num_draft_tokens):
        self.asked[-1].append([len(token_ids), num_draft_tokens, token_ids.flags.writeable])
        open("asked.json", "w").write(json.dumps(self.asked))
        return [4] * (num_draft_tokens + 5)
"""
    )
    status, out, err = replay_own(capsys, spec)
    assert status == 0, err
    result = json.loads(out)["results"][0]
    assert (result["drafter"], result["adoption"], result["fixed_length"]) == ("python", "flag", False)
    assert result["config"] == {"class": spec.removeprefix("python:"), "guess": 4}
    # After the 4 of the prefill, 4 is drafted for the 1; the rest is right. More than was asked for is cut.
    assert [(d["rounds"], d["drafted_tokens"], d["accepted_tokens"]) for d in result["depths"]] == [
        (3, 3, 2), (3, 6, 3), (2, 6, 3),
    ]  # fmt: skip
    # Prompt tokens, then for each round: tokens so far, drafts asked for, whether they could be changed.
    assert json.loads(Path("asked.json").read_text()) == [
        [3, [4, 1, False], [5, 1, False], [7, 1, False]],
        [3, [4, 2, False], [5, 2, False], [8, 2, False]],
        [3, [4, 3, False], [5, 3, False]],
    ]


def returning(value: str) -> str:
    return f"import numpy as np\nclass Mine:\n    def propose(self, tokens, most):\n        return {value}\n"


@pytest.mark.parametrize("value", ["[]", "()", "tokens[:0]", "np.array([4], dtype=np.uint8)", "[-1]", "[2**62]"])
def test_an_own_drafter_may_return_any_whole_numbers(capsys, value):
    status, out, err = replay_own(capsys, write_class(returning(value)))
    assert status == 0, err
    assert json.loads(out)["results"][0]["depths"][0]["accepted_tokens"] == (2 if "4" in value else 0)


STARTS_BADLY = "\n    def start(self, prompt):\n        raise KeyError('x')\n"
CONFIGURED_BADLY = "\n    @property\n    def config(self):\n        raise ZeroDivisionError\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (returning("1 / 0"), "propose raised ZeroDivisionError"),
        (returning("[1.5]"), "whole numbers"),
        (returning("'text'"), "whole numbers"),
        (returning("None"), "whole numbers"),
        (returning("[[1], [2, 3]]"), "propose"),
        (returning("[2**80]"), "propose"),
        (returning("tokens.fill(9)"), "propose raised ValueError"),
        (returning("[1]").replace(", most", ""), "propose raised TypeError"),
        (returning("[1]").replace("propose", "guess"), "no method propose"),
        ("class Mine:\n    propose = 3", "no method propose"),
        ("class Other:\n    pass", "AttributeError"),
        ("class Mine:\n    def __init__(self, model):\n        pass", "TypeError"),
        ("class Mine:\n    def __init__(self):\n        raise RuntimeError('no')", "RuntimeError"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("this is no Python", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit"),
        (returning("[]") + STARTS_BADLY, "start raised KeyError"),
        (returning("[]") + "    config = {'a': object()}", "config"),
        (returning("[]") + "    config = {'a': float('nan')}", "config"),
        (returning("[]") + CONFIGURED_BADLY, "ZeroDivisionError"),
    ],
    ids=lambda value: value.strip().splitlines()[-1].strip(),
)
def test_a_fault_in_an_own_drafter_is_one_line(capsys, body, said):
    assert said in one_line(*replay_own(capsys, write_class(body + "\n")))


@pytest.mark.parametrize("spec", ["python", "python:", "python:a", "python:a:", "python::Mine", "python:../x:Mine"])
def test_an_own_drafter_is_named_by_module_and_class(capsys, spec):
    assert "python" in one_line(*replay_own(capsys, spec))


def test_the_same_own_drafter_twice_is_refused(capsys):
    spec = write_class("class Mine:\n    def propose(self, t, n):\n        return []\n")
    log = write_rows([{"prompt_token_ids": [1, 2, 3], "output_token_ids": [4, 1, 4]}])
    assert "twice" in one_line(*command(capsys, "analyze", log, "--json", *drafters(spec, spec)))


def test_an_own_drafter_over_generated_responses(capsys, models):
    spec = write_class("class Mine:\n    def propose(self, t, n):\n        return t[-n:]\n")
    status, out, err = analyze(capsys, models, *drafters(spec, f"draft:{models.draft}"), "--draft-sampling", "both",
                               "--temperature", "0.8")  # fmt: skip
    assert status == 0, err
    found = [(r["drafter"], r["draft_sampling"]) for r in json.loads(out)["results"]]
    assert found == [("python", "greedy"), ("draft", "greedy"), ("draft", "sampled")]


# --- recommend ---


def cost_file(**drafter_seconds: float) -> str:
    points = [
        {"batch": b, "query_tokens": q, "context": c, "seconds": 0.01}
        for b in (1, 64) for q in (1, DEPTH + 1) for c in (8, 64)
    ]  # fmt: skip
    cost = {"schema": "specprobe.cost/1", "points": points, "drafter_seconds": drafter_seconds}
    Path("cost.json").write_text(json.dumps(cost))
    return "cost.json"


@pytest.fixture
def many() -> list[dict[str, Any]]:
    """Enough prompts for a verdict."""
    return [{"prompt": f"{i} {PROMPTS[i % 6]['prompt']}"} for i in range(40)]


def test_a_drafter_whose_time_is_not_known_is_left_out_of_the_verdict(capsys, models):
    assert analyze(capsys, models, *drafters("ngram", f"draft:{models.draft}", f"eagle3:{models.eagle3}"))[0] == 0
    status, out, err = command(capsys, "recommend", "--cost", cost_file(), "--json")
    assert status == 0, err
    document = json.loads(out)
    assert {option["drafter"] for option in document["by_concurrency"][0]["options"]} == {"ngram"}
    (notice,) = [w["message"] for w in document["warnings"] if w["code"] == "no_drafting_time"]
    assert notice.startswith(f"draft:{models.draft}, eagle3:{models.eagle3}: ")
    document = json.loads(command(capsys, "recommend", "--cost", cost_file(draft=0.0, eagle3=0.001), "--json")[1])
    # These models are random: their time is known now, but what accepts nothing is no ground for a verdict.
    assert {o["drafter"] for o in document["by_concurrency"][0]["options"]} == {"ngram"}
    warnings = {warning["code"]: warning["message"] for warning in document["warnings"]}
    assert "no_drafting_time" not in warnings
    assert warnings["broken_left_out"].startswith("draft:draft, eagle3:eagle3: left out")


def test_without_any_drafting_time_there_is_no_verdict(capsys, models):
    assert analyze(capsys, models, *drafters(f"draft:{models.draft}"))[0] == 0
    status, out, err = command(capsys, "recommend", "--cost", cost_file(), "--json")
    assert (status, out) == (2, "")
    assert "drafter_seconds" in err.splitlines()[-1]


def test_a_model_with_a_known_time_takes_part_and_is_exported(capsys, models, many):
    """The target as its own drafter, so that it pays."""
    write_rows(many)
    fixed = ("--json", "--device", "cpu", "--depth", str(DEPTH), "--max-new-tokens", "12")
    spec = drafters("ngram", f"draft:{models.target}")
    arguments = ("--target", models.target, *fixed, *spec, "--temperature", "0,0.8", "--draft-sampling", "sampled")
    assert command(capsys, "analyze", "log.jsonl", *arguments)[0] == 0
    for temperature, further in ((0.0, {}), (0.8, {"draft_sample_method": "probabilistic"})):
        cost = cost_file(draft=0.001)
        status, out, err = command(
            capsys, "recommend", "--cost", cost, "--temperature", str(temperature), "--concurrency", "1,4", "--json"
        )
        assert status == 0, err
        document = json.loads(out)
        verdict = document["by_concurrency"][0]
        assert (verdict["verdict"], verdict["drafter"]) == ("speculate", "draft")
        settings = document["export"]["vllm"]
        assert settings["method"] == "draft_model"
        assert settings["model"] == models.target
        assert settings["num_speculative_tokens"] >= verdict["depth"]
        assert {key: settings[key] for key in further} == further
        assert ("draft_sample_method" in settings) == bool(further)
        # Twice the time of a draft costs more.
        slower = json.loads(
            command(capsys, "recommend", "--cost", cost_file(draft=0.002), "--temperature", str(temperature), "--json")[
                1
            ]
        )
        assert slower["by_concurrency"][0]["speedup"]["point"] < verdict["speedup"]["point"]


def test_the_settings_of_every_kind_of_drafter(capsys, models):
    """What recommend would export, whatever the verdict: read from a run in which each drafter is the only one."""
    from specprobe.export import engine_config

    status, out, err = analyze(capsys, models, *all_kinds(models))
    assert status == 0, err
    methods = {}
    for result in json.loads(out)["results"]:
        config = engine_config(resolve_profile("vllm"), result["drafter"], result["config"], 2, ())
        methods[result["drafter"]] = config.get("vllm", {}).get("method")
    assert methods == {
        "ngram": "ngram", "draft": "draft_model", "eagle3": "eagle3", "early-exit": None, "pard": "draft_model",
        "hybrid:suffix+draft": None,
    }  # fmt: skip


def test_what_a_killed_run_left_behind_is_removed(tmp_path, monkeypatch):
    from specprobe.scratch import remove_abandoned, scratch_folder, states_folder

    monkeypatch.chdir(tmp_path)
    with scratch_folder() as mine:
        # No process has this number: the largest is far below.
        abandoned = states_folder() / "999999999-x"
        abandoned.mkdir()
        (abandoned / "last.bin").write_bytes(b"12345")
        assert remove_abandoned() == (1, 5)
        assert mine.is_dir()
        assert not abandoned.exists()
    assert not list(states_folder().iterdir())


def test_a_file_in_the_way_of_scratch_is_one_line(tmp_path, monkeypatch):
    from specprobe.errors import SpecprobeError
    from specprobe.scratch import scratch_folder, states_folder

    monkeypatch.chdir(tmp_path)
    states_folder().parent.mkdir()
    states_folder().write_text("x")
    with pytest.raises(SpecprobeError, match="in the way"), scratch_folder():
        pass


def test_a_model_by_itself_and_in_a_hybrid_drafts_once(capsys, models, monkeypatch):
    from specprobe.drafters import draft as module

    alone = json.loads(analyze(capsys, models, *drafters("suffix", f"draft:{models.draft}"), "--json")[1])
    hybrid = json.loads(analyze(capsys, models, *drafters(f"hybrid:suffix+draft:{models.draft}"), "--json")[1])
    loads = []
    load = module.load_causal_lm
    monkeypatch.setattr(module, "load_causal_lm", lambda *arguments: loads.append(1) or load(*arguments))
    both = drafters(f"draft:{models.draft}", f"hybrid:suffix+draft:{models.draft}")
    # As of a log of hundreds of prompts: each look at a trajectory gives another object.
    monkeypatch.setattr(spool, "BLOCK_ITEMS", 2)
    monkeypatch.setattr(spool, "BLOCKS_AT_HAND", 1)
    together = json.loads(analyze(capsys, models, *both, "--json")[1])
    assert len(loads) == 1
    assert together["results"] == [alone["results"][1], hybrid["results"][0]]
