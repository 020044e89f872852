"""Work that others do for the target: the same bytes as alone, over a stand-in that sends everything through pickle and
answers in another order. `--ray` itself: its words and refusals. Real clusters are in test_ray.py."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import tiny_heads
import tiny_mtp
import torch
import toy_target as toy

from specprobe.cli import run_command
from specprobe.crew import Bench
from specprobe.option_values import RAY_ADDRESS, ray_address_added
from specprobe.target import load_target

DRAFTERS = (
    "ngram",
    "suffix",
    "draft:DRAFT",
    "pard:PARD",
    "eagle3:EAGLE3",
    "early-exit:layers=2",
    "hybrid:suffix+draft:DRAFT",
)


class Others:
    """A crew of one that holds a target of its own and keeps three pieces of work at hand, the last of them first."""

    def __init__(self, target):
        self.bench = Bench(target)
        self.done = []
        self.size = 1

    def each(self, work, items):
        numbered = enumerate(items)
        while at_hand := list(islice(numbered, 3)):
            for number, item in reversed(at_hand):
                self.done.append(work.__name__)
                found = work(self.bench, sent(item))
                yield number, sent(found)

    def close(self):
        self.done.append("closed")


def sent(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    target = toy.write_checkpoint(folder / "target", num_hidden_layers=7)
    from transformers import AutoConfig

    return {
        "TARGET": str(target),
        "DRAFT": str(toy.write_checkpoint(folder / "draft", seed=1)),
        "EAGLE3": str(tiny_heads.write_eagle3(folder / "eagle3", AutoConfig.from_pretrained(target))),
        "PARD": str(tiny_mtp.write_pard(folder / "pard")),
    }


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))
    toy.go_offline(monkeypatch)


@pytest.fixture
def others(models, monkeypatch):
    """What stands in for a cluster: `--ray` is taken, and gives these."""
    crew = Others(load_target(models["TARGET"], device="cpu"))
    monkeypatch.setattr("specprobe.options.find_spec", lambda _name: True)
    monkeypatch.setattr("specprobe.ray_crew.with_ray", lambda target, _options, _stages: replace(target, crew=crew))
    return crew


def run(capsys, models, folder, *arguments, log):
    """A run in a folder of its own, with nothing kept from others; the document as it was printed, and stderr."""
    Path(folder).mkdir(exist_ok=True)
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    words = [word for spec in DRAFTERS for word in ("--drafter", spec)]
    for name, path in models.items():
        words = [word.replace(name, path) for word in words]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        given = ["../log.jsonl", "--target", models["TARGET"], "--device", "cpu", "--depth", "3", *words, *arguments]
        status = run_command(["analyze", *given, "--max-new-tokens", "12", "--batch-size", "3", "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    return out, err


@pytest.mark.parametrize(
    ("asked", "log", "works"),
    [
        (
            ("--temperature", "0,0.8", "--samples", "2"),
            [{"prompt": "word " * (n % 7) + str(n)} for n in range(10)],
            {"_write_batch", "_states_of_batch", "_describe", "_draft", "closed"},
        ),
        (
            ("--responses", "logged", "--temperature", "0.8"),
            [{"prompt": "word " * (n % 7) + str(n), "response": "some text " * (n % 3 + 1)} for n in range(10)],
            {"_score_batch", "_states_of_batch", "_describe", "_draft", "closed"},
        ),
    ],
    ids=["generated", "logged"],
)
def test_whoever_does_the_work_the_document_is_the_same(asked, log, works, models, others, capsys, monkeypatch):
    # Several batches of each kind.
    monkeypatch.setattr("specprobe.batches.PASS_TOKENS", 160)
    monkeypatch.setattr("specprobe.target._SCORE_LOGITS", 30_000)
    alone, _ = run(capsys, models, "alone", *asked, log=log)
    assert not others.done
    shared, _ = run(capsys, models, "shared", *asked, "--ray", log=log)
    assert set(others.done) == works
    assert min(others.done.count(work) for work in works - {"_describe", "closed"}) > 3
    assert shared == alone


def test_what_others_wrote_is_taken_by_one_process_and_the_other_way_round(models, others, capsys):
    log = [{"prompt": f"{n} is a number"} for n in range(10)]
    shared, _ = run(capsys, models, "here", "--ray", log=log)
    others.done.clear()
    alone, err = run(capsys, models, "here", log=log)
    assert "10 responses at temperature 0 were there already" in err
    again, err = run(capsys, models, "here", "--ray", log=log)
    assert "10 responses at temperature 0 were there already" in err
    assert "_write_batch" not in others.done
    assert shared == alone == again


def test_a_crew_is_let_go_however_the_run_ends(models, others, capsys):
    Path("log.jsonl").write_text('{"prompt": "a"}\n')
    given = ["analyze", "log.jsonl", "--target", models["TARGET"], "--device", "cpu", "--ray"]
    assert run_command([*given, "--drafter", "early-exit:layers=70"]) == 2
    assert others.done == ["closed"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("log.jsonl --ray", "log.jsonl --ray=local"),
        ("--ray log.jsonl", "--ray=local log.jsonl"),
        ("log.jsonl --ray --json", "log.jsonl --ray=local --json"),
        ("log.jsonl --ray auto --json", "log.jsonl --ray auto --json"),
        ("--ray 10.0.0.1:6379 log.jsonl", "--ray 10.0.0.1:6379 log.jsonl"),
        ("--ray ray://head.example:10001 log.jsonl", "--ray ray://head.example:10001 log.jsonl"),
        ("--ray hf:openai/gsm8k", "--ray=local hf:openai/gsm8k"),
        ("--ray=auto x", "--ray=auto x"),
        ("--ray http://head:8265 log.jsonl", "--ray http://head:8265 log.jsonl"),
        ("--ray head:123456 log.jsonl", "--ray head:123456 log.jsonl"),
        ("-- --ray", "-- --ray"),
    ],
)
def test_ray_takes_an_address_or_none(given, meant):
    assert ray_address_added(given.split()) == meant.split()


def test_what_an_address_is():
    for text in ("local", "auto", "h:1", "ray://h:10001", "[::1]:6379", "ray://[fe80::1]:1"):
        assert RAY_ADDRESS.fullmatch(text)
    for text in ("", "h", "log.jsonl", "http://h:1", "h:123456", "ray://h", "a b:1"):
        assert not RAY_ADDRESS.fullmatch(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--target", "http://127.0.0.1:1/v1"), "--ray: --target is a server"),
        (("--backend", "vllm"), "--ray: vLLM shares its work out by itself"),
        (("--ray=somewhere",), "--ray somewhere: no address; write auto, HOST:PORT or ray://HOST:PORT"),
        (("--responses", "logged"), "--ray: shares out what the target does"),
        (("--dry-run",), "--dry-run: foresees what one process takes"),
    ],
)
def test_where_nothing_is_shared_out_it_is_said(arguments, said, others, capsys):
    Path("log.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    assert run_command(["analyze", "log.jsonl", "--ray", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not others.done


def test_without_ray_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("specprobe.options.find_spec", lambda _name: None)
    Path("log.jsonl").write_text('{"prompt": "a"}\n')
    assert run_command(["analyze", "log.jsonl", "--ray"]) == 2
    assert "pip install 'specprobe[ray]'" in capsys.readouterr().err


def test_a_file_of_settings_cannot_send_prompts_to_a_cluster(capsys):
    Path("log.jsonl").write_text('{"prompt": "a"}\n')
    Path("specprobe.toml").write_text('[analyze]\nray = "auto"\n')
    assert run_command(["analyze", "log.jsonl"]) == 2
    assert "ray: is said on the command line only" in capsys.readouterr().err


def test_ray_is_not_imported_unless_it_works():
    code = "import sys, specprobe.ray_crew, specprobe.ray_worker; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[1]).returncode == 0
