"""What a dry run says, that it does nothing, and that it counts what the real run then does."""

import json
from pathlib import Path

import pytest
import toy_target as toy

from specprobe.cli import run_command
from specprobe.generate import Request, Sampling, generate, planned_batches
from specprobe.store import TrajectoryStore
from specprobe.trajectory import token_ids


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))
    rows = [{"id": i, "prompt": f"Say {i} {i}", "response": f"{i} and {i}"} for i in range(6)]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(toy.write_checkpoint(tmp_path_factory.mktemp("toy")))


def document(capsys, *arguments: str) -> dict:
    status = run_command([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    return json.loads(out)


def steps(plan: dict) -> dict[str, tuple[int, int]]:
    return {step["name"]: (step["count"], step["kept"]) for step in plan["steps"]}


def test_it_counts_what_is_left_and_writes_nothing(capsys, model):
    generate = ("analyze", "log.jsonl", "--target", model, "--responses", "generate", "--max-new-tokens", "8")
    warm = (*generate, "--temperature", "0,0.7", "--samples", "2")
    before = set(Path().rglob("*"))
    plan = document(capsys, *warm, "--dry-run", "--out", "run.json", "--drafter", "suffix")
    assert set(Path().rglob("*")) == before
    assert steps(plan) == {
        "read the prompts": (6, 0),
        "load the model or tokenizer": (1, 0),
        "generate at temperature 0": (6, 0),
        "generate at temperature 0.7": (12, 0),
        "read the target's hidden states": (12, 0),
        "replay suffix": (18, 0),
    }
    assert plan["complete"]
    assert all(step["seconds"] >= 0 for step in plan["steps"])
    assert plan["seconds"] == pytest.approx(sum(step["seconds"] for step in plan["steps"]))
    assert plan["peak_bytes"] is None or plan["peak_bytes"] > 1e6
    document(capsys, *generate)
    found = steps(document(capsys, *warm, "--dry-run"))
    assert found["generate at temperature 0"] == (0, 6)
    assert found["generate at temperature 0.7"] == (12, 0)


def test_a_batch_that_was_interrupted_counts_as_a_whole(tmp_path, model):
    from specprobe.target import load_target

    target = load_target(model, device="cpu")
    store, sampling = TrajectoryStore(tmp_path / "store"), Sampling(0.0, max_new_tokens=5, batch_size=2)
    requests = [Request(token_ids([5 + i, 6, 7])) for i in range(4)]
    assert [batch.num_kept for batch in planned_batches(target, requests, sampling, store)] == [0, 0]
    generate(target, requests, sampling, store=store)
    assert [batch.num_kept for batch in planned_batches(target, requests, sampling, store)] == [2, 2]
    for path in store.folder.glob("*/*.jsonl"):
        path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    planned = planned_batches(target, requests, sampling, store)
    assert [(batch.num_kept, batch.size, batch.limits) for batch in planned] == [(1, 2, (5, 5))] * 2


def test_what_cannot_be_foreseen_is_unknown(capsys, model):
    plan = document(capsys, "analyze", "log.jsonl", "--target", model, "--drafter", "early-exit:layers=1", "--dry-run")
    assert not plan["complete"]
    assert plan["steps"][-1]["seconds"] is None
    elsewhere = document(capsys, "analyze", "log.jsonl", "--tokenizer", "nobody/has-this", "--dry-run")
    assert [step["seconds"] is None for step in elsewhere["steps"]] == [False, True, True, True]
    assert "not on this machine" in elsewhere["steps"][1]["basis"]


def test_logged_answers_are_cut_and_scored(capsys, model):
    plan = document(capsys, "analyze", "log.jsonl", "--tokenizer", model, "--dry-run")
    assert steps(plan)["cut the logged answers into tokens"] == (6, 0)
    scored = document(capsys, "analyze", "log.jsonl", "--target", model, "--dry-run")
    assert steps(scored)["score the answers"] == (6, 0)
    assert not Path(".specprobe").exists()


def test_what_is_wrong_is_refused_as_without_it(capsys, model):
    assert run_command(["analyze", "none.jsonl", "--dry-run"]) == 2
    assert run_command(["analyze", "log.jsonl", "--drafter", "none", "--dry-run"]) == 2
    assert run_command(["recommend", "--dry-run"]) == 2
    assert "specprobe analyze PROMPTS" in capsys.readouterr().err


def test_recommend_counts_the_rounds_that_are_not_timed_yet(capsys, model):
    document(capsys, "analyze", "log.jsonl", "--target", model, "--depth", "2", "--drafter", "ngram")
    before = set(Path().rglob("*"))
    plan = document(capsys, "recommend", "--concurrency", "1,2", "--dry-run")
    assert set(Path().rglob("*")) == before
    (count, kept) = steps(plan)["time rounds"]
    assert count > 0
    assert kept == 0
    document(capsys, "recommend", "--concurrency", "1,2")
    plan = document(capsys, "recommend", "--concurrency", "1,2", "--dry-run")
    assert steps(plan)["time rounds"] == (0, count)
    assert "time prefills" not in steps(plan)
    again = document(capsys, "recommend", "--concurrency", "1,2", "--dry-run", "--remeasure")
    assert steps(again)["time rounds"] == (count, 0)
    predicted = document(capsys, "recommend", "--gpu", "h100", "--target", "SmolLM2-135M", "--dry-run")
    assert list(steps(predicted)) == ["simulate the server"]
    # Of nothing that can be foreseen there is no sum.
    assert run_command(["recommend", "--gpu", "h100", "--target", "SmolLM2-135M", "--dry-run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "In all no time can be foreseen (simulate the server). Peak memory of this machine: not known" in out
    assert "0 ms" not in out


def test_people_are_told_that_nothing_was_done(capsys, model):
    assert run_command(["analyze", "log.jsonl", "--tokenizer", model, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "Nothing was done or written" in out
    assert "replay suffix" in out
