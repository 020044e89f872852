"""`--backend vllm`, over a stand-in for the package: what it is asked, what is kept, and what is refused."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import toy_target as toy

from specprobe.cli import run_command

# As much of vLLM as is used: responses of letters that follow from the prompt, one finished at each step.
PACKAGE = """
import json
from types import SimpleNamespace as Some

print("an engine that prints")


class SamplingParams:
    def __init__(self, **settings):
        self.settings = settings


class LLM:
    def __init__(self, **options):
        if "broken" in options["model"]:
            raise RuntimeError("no memory\\nat all")
        with open("started.jsonl", "a") as file:
            file.write(json.dumps(options) + "\\n")
        self.llm_engine = self.engine_core = self
        self.waiting = []

    def add_request(self, name, prompt, parameters):
        with open("asked.jsonl", "a") as file:
            settings = {k: v for k, v in parameters.settings.items() if k != "output_kind"}
            file.write(json.dumps(settings) + "\\n")
        self.waiting.append((name, prompt["prompt_token_ids"], parameters.settings["max_tokens"]))

    def shutdown(self):
        open("ended", "a").write("x")

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        # The last one first: the order is the engine's affair.
        name, ids, limit = self.waiting.pop()
        written = ([70, 71, 72][: 1 + sum(ids) % 3] * limit)[: limit - sum(ids) % 2]
        reason = "length" if len(written) == limit else "stop"
        logprobs = [{i: Some(logprob=-0.5)} for i in written]
        output = Some(token_ids=written, logprobs=logprobs, finish_reason=reason)
        return [Some(finished=True, request_id=name, outputs=[output])]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a log, a checkpoint and a package named vllm."""
    package = tmp_path / "packages" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    (package / "inputs.py").write_text("TokensPrompt = dict\n")
    (package / "sampling_params.py").write_text("class RequestOutputKind:\n    FINAL_ONLY = 2\n")
    monkeypatch.syspath_prepend(str(package.parent))
    importlib.invalidate_caches()
    toy.write_checkpoint(tmp_path / "toy")
    monkeypatch.chdir(tmp_path)
    Path("log.jsonl").write_text("".join(json.dumps({"prompt": "n" * n}) + "\n" for n in range(1, 7)))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def analyze(capfd, *further):
    arguments = [
        "analyze",
        "log.jsonl",
        "--backend",
        "vllm",
        "--target",
        "toy",
        "--max-new-tokens",
        "12",
        "--depth",
        "3",
    ]
    status = run_command([*arguments, "--json", *further])
    captured = capfd.readouterr()
    return status, captured.out, captured.err


def lines(name):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def test_responses_come_from_the_package_and_are_kept(folder, capfd):
    status, out, error = analyze(capfd, "--batch-size", "4", "--max-model-len", "100")
    assert status == 0, error
    # Exactly one document, whatever the engine prints.
    document = json.loads(out)
    assert document["target"]["kind"] == "backend"
    assert document["target"]["engine"] == "vllm"
    assert document["responses"][0]["source"] == "generated"
    assert set(document["responses"][0]["output_tokens"]) == {11, 12}
    (started,) = lines("started.jsonl")
    assert (started["model"], started["max_num_seqs"], started["max_model_len"]) == ("toy", 4, 100)
    assert all(asked["top_p"] == 1.0 and asked["repetition_penalty"] == 1.0 for asked in lines("asked.jsonl"))
    assert analyze(capfd, "--batch-size", "4", "--max-model-len", "100")[1] == out
    assert len(lines("started.jsonl")) == len(Path("ended").read_text()) == 1


def test_responses_finished_before_an_interruption_are_not_written_again(folder, capfd, monkeypatch):
    from specprobe.store import SettingsStore

    append, kept = SettingsStore.append, []

    def interrupted(*arguments):
        if len(kept) == 2:
            raise KeyboardInterrupt
        kept.append(arguments)
        append(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SettingsStore, "append", interrupted)
        assert analyze(capfd)[0] == 130
    assert Path("ended").exists()
    Path("asked.jsonl").unlink()
    assert analyze(capfd)[0] == 0
    assert len(lines("asked.jsonl")) == 4


def test_samples_have_seeds_of_their_own_and_drafts_are_greedy(folder, capfd):
    status, out, _ = analyze(capfd, "--temperature", "0.8", "--samples", "2")
    assert status == 0
    seeds = {asked["seed"] for asked in lines("asked.jsonl")}
    assert len(seeds) == 12
    assert "target_distribution_unknown" in [warning["code"] for warning in json.loads(out)["warnings"]]


def test_what_cannot_be(folder, capfd, monkeypatch):
    for further, hint in {
        ("--device", "cpu"): "--device",
        ("--drafter", "early-exit:layers=1"): "hidden states",
        ("--target", "http://127.0.0.1:1/v1"): "leave --backend out",
        ("--target", "nowhere"): "nowhere",
    }.items():
        status, _, error = analyze(capfd, *further)
        assert (status, hint in error) == (2, True), error
    assert not Path("started.jsonl").exists()
    Path("toy").rename("broken")
    status, _, error = analyze(capfd, "--target", "broken")
    assert status == 2
    assert "cannot start on broken (no memory)" in error
    monkeypatch.setattr("specprobe.vllm_backend.find_spec", lambda _name: None)
    status, _, error = analyze(capfd, "--target", "broken")
    assert (status, "pip install vllm" in error) == (2, True)
