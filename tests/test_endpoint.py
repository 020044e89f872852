"""A server as the target: what is asked of each engine, what is kept of it, and everything that can go wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import toy_target as toy
from fake_target import END, serving_target
from recorded_server import replaying

import specprobe.endpoint
import specprobe.server
from specprobe.cli import run_command
from specprobe.endpoint import Endpoint
from specprobe.errors import SpecprobeError
from specprobe.server import Patience, TransientError
from specprobe.side_by_side import side_by_side
from specprobe.store import TrajectoryStore
from specprobe.trajectories import generated_trajectories

PROMPTS = [toy.chat("count " + "x" * n, id=n) for n in range(8)]
QUICK = Patience(attempts=3, first_wait_seconds=0.001, longest_wait_seconds=0.05)
KINDS = ("vllm", "sglang", "llama.cpp", "unknown")
KEY = "sk-very-secret-key"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("SPECPROBE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def open_at(server, *, tokenizer=True, patience=QUICK, **options):
    named = toy.byte_tokenizer() if tokenizer else None
    return Endpoint(server.url, tokenizer=named, patience=patience, timeout_seconds=1.0, **options)


def write(endpoint, prompts=PROMPTS, **options):
    return generated_trajectories(
        prompts, endpoint, **{"temperature": 0.0, "max_new_tokens": 14, "max_model_len": 400, **options}
    )


def texts(found):
    return [(t.id, t.prompt_ids.tolist(), t.output_ids.tolist(), t.finish_reason) for t in found.trajectories]


def expected(server, prompts=PROMPTS, limit=14):
    tokenizer = toy.byte_tokenizer()
    given = [tokenizer.encode_prompt(prompt).tolist() for prompt in prompts]
    written = [server.writes(ids)[:limit] for ids in given]
    return [
        (prompt.id, ids, out, "stop" if out[-1] == END else "length")
        for prompt, ids, out in zip(prompts, given, written, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_each_engine_gives_the_same_tokens(kind):
    with serving_target(kind) as server:
        endpoint = open_at(server)
        found = write(endpoint)
        assert texts(found) == expected(server)
        assert {t.finish_reason for t in found.trajectories} == {"stop", "length"}
        assert found.notices == ()
        assert endpoint.record["engine"] == kind
        assert endpoint.max_positions == (None if kind == "unknown" else 512)
    for trajectory in found.trajectories:
        if kind == "unknown":
            assert trajectory.log_probs is None
        else:
            size = trajectory.output_ids.size
            assert trajectory.log_probs == pytest.approx([-0.25 * (1 + i % 3) for i in range(size)])


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
def test_engines_that_cut_text_need_no_tokenizer(kind):
    with serving_target(kind) as server:
        assert texts(write(open_at(server, tokenizer=False))) == expected(server)


@pytest.mark.parametrize("kind", ["sglang", "unknown"])
def test_engines_that_do_not_cut_text_ask_for_a_tokenizer(kind):
    with serving_target(kind) as server, pytest.raises(SpecprobeError, match="--tokenizer"):
        write(open_at(server, tokenizer=False))


def test_what_is_asked_leaves_nothing_to_the_servers_defaults():
    with serving_target("vllm") as server:
        write(open_at(server), temperature=0.7, seed=3, samples=2)
        bodies = [body for path, _, body in server.seen if path == "/v1/completions"]
    assert len({body["seed"] for body in bodies}) == len(bodies) == 2 * len(PROMPTS)
    for body in bodies:
        assert (body["temperature"], body["max_tokens"], body["model"]) == (0.7, 14, "served")
        assert (body["top_k"], body["top_p"], body["min_p"], body["repetition_penalty"]) == (0, 1.0, 0.0, 1.0)


@pytest.mark.parametrize(("temperature", "known"), [(0.0, True), (0.7, False), (1.0, True)])
def test_raw_log_probabilities_count_where_they_are_those_of_sampling(temperature, known):
    with serving_target("vllm") as server:
        found = write(open_at(server), temperature=temperature)
    assert all((t.log_probs is not None) == known for t in found.trajectories)


def test_a_template_that_refuses_and_prompts_that_are_too_long_are_skipped():
    prompts = [toy.chat("no such template"), toy.chat("y" * 600), PROMPTS[0]]
    with serving_target("vllm") as server:
        found = write(open_at(server), prompts)
    assert dict(found.skipped) == {"template_error": 1, "too_long": 1}
    assert len(found.trajectories) == 1


LOSSES = {
    "prompt_tokens_differ": {"further_prompt_tokens": 1},
    "reasoning_apart": {"delta": {"reasoning_content": "hm"}},
}


@pytest.mark.parametrize("reason", LOSSES)
def test_text_that_cannot_be_told_in_tokens_is_left_out_once_and_for_all(reason, tmp_path):
    with serving_target("unknown", **LOSSES[reason]) as server:
        for _ in range(2):
            found = write(open_at(server), store=TrajectoryStore(tmp_path))
            assert dict(found.skipped) == {reason: len(PROMPTS)}
            assert [notice.code for notice in found.notices] == [reason]
        assert server.counts["/v1/chat/completions"] == len(PROMPTS)


def test_text_is_held_against_the_tokens_that_the_server_counted(monkeypatch):
    with serving_target("unknown") as server:
        # As if the server's tokens were pairs of letters.
        endpoint = open_at(server)
        tokenizer = endpoint.tokenizer
        cut = tokenizer.encode_continuation
        monkeypatch.setattr(tokenizer, "encode_continuation", lambda text: cut(text)[: len(text) // 2])
        found = write(endpoint)
    assert dict(found.skipped) == {"not_round_trip": len(PROMPTS)}


def test_ids_that_an_old_vllm_does_not_give_come_from_the_tokenizer():
    with serving_target("vllm", gives_ids=False) as server:
        assert texts(write(open_at(server))) == expected(server)
        with pytest.raises(SpecprobeError, match="hold no token ids; name the served model's tokenizer"):
            write(open_at(server, tokenizer=False))


def test_another_tokenizer_than_the_servers_is_told():
    with serving_target("vllm") as server:
        endpoint = Endpoint(server.url, tokenizer=toy.byte_tokenizer(toy.TRIMMING.replace("user", "man")))
        found = write(endpoint, [toy.chat(" a ")])
    assert [notice.code for notice in found.notices] == ["tokenizer_differs"]


PASSING = ["429", "500", "die", "stall", "malformed", "truncated"]


@pytest.mark.parametrize("kind", KINDS)
def test_failures_that_pass_change_nothing(kind):
    with serving_target(kind, faults=PASSING) as server:
        patience = Patience(attempts=8, first_wait_seconds=0.001, longest_wait_seconds=0.01)
        assert texts(write(open_at(server, patience=patience, requests_at_once=2))) == expected(server)


@pytest.mark.parametrize("fault", PASSING)
def test_a_server_that_stays_broken_ends_the_run_and_the_same_command_goes_on(fault, tmp_path):
    store = TrajectoryStore(tmp_path)
    with serving_target("vllm", faults=[None] * 5, fault_always=fault, stall_seconds=1.5) as server:
        with pytest.raises(SpecprobeError) as raised:
            write(open_at(server, requests_at_once=1, patience=Patience(2, 0.001, 0.01)), store=store)
        message = str(raised.value)
        assert "gave up after 2 attempts (5 of 8 responses are kept, the same command goes on from there)" in message
        assert "\x1b" not in message
        server.fault_always = None
        before = server.counts["/v1/completions"]
        found = write(open_at(server), store=store)
        assert server.counts["/v1/completions"] - before == 3
        assert found.reused == 5
        assert texts(found) == expected(server)


@pytest.mark.parametrize(("fault", "hint"), [("400", "told 400"), ("404", "--server-model"), ("301", "final address")])
def test_a_refusal_ends_the_run_at_once(fault, hint, tmp_path):
    with serving_target("vllm", faults=[None, None], fault_always=fault) as server:
        with pytest.raises(SpecprobeError) as raised:
            write(open_at(server, requests_at_once=1), store=TrajectoryStore(tmp_path))
        assert server.counts["/v1/completions"] == 3
    assert hint in str(raised.value)
    assert "2 of 8 responses are kept" in str(raised.value)


def test_what_was_finished_when_another_failed_is_kept(tmp_path):
    """One request fails while others are on their way: those that end first are not lost."""
    store = TrajectoryStore(tmp_path)
    with serving_target("vllm", faults=[None, "400", None, None]) as server:
        with pytest.raises(SpecprobeError) as raised:
            write(open_at(server, requests_at_once=4), store=store)
        server.faults.clear()
        found = write(open_at(server), store=store)
    assert f"{found.reused} of 8 responses are kept" in str(raised.value)
    assert texts(found) == expected(server)


def test_ctrl_c_keeps_what_is_finished(tmp_path):
    store = TrajectoryStore(tmp_path)

    def interrupt(progress):
        if progress.responses == 3:
            raise KeyboardInterrupt

    with serving_target("vllm") as server:
        with pytest.raises(KeyboardInterrupt):
            write(open_at(server, requests_at_once=1), store=store, on_progress=interrupt)
        assert write(open_at(server), store=store).reused >= 3


def test_a_server_says_when_to_come_back(monkeypatch):
    waits = []

    class Stopped(threading.Event):
        def wait(self, timeout=None):
            waits.append(timeout)
            return False

    failures = [TransientError("x", 7.0), TransientError("x", 9999.0), TransientError("x")]

    def ask():
        if failures:
            raise failures.pop(0)
        return "done"

    monkeypatch.setattr(specprobe.server.random, "uniform", lambda *_bounds: 1.0)
    assert Patience(attempts=4, first_wait_seconds=1.0, longest_wait_seconds=60.0).ask(ask, Stopped()) == "done"
    assert waits == [7.0, 60.0, 4.0]


def test_results_come_as_they_end_and_a_failure_comes_after_what_was_finished():
    def work(item, stopped):
        time.sleep(item / 100)
        if item == 7:
            raise ValueError("seven")
        return item

    assert [index for index, _ in side_by_side(work, [6, 1, 3], 3)] == [1, 2, 0]
    seen = []

    def watch():
        for index, _ in side_by_side(work, [1, 7, 2, 90], 4):
            seen.append(index)

    with pytest.raises(ValueError, match="seven"):
        watch()
    assert seen == [0, 2]
    assert list(side_by_side(work, [], 3)) == []


ADDRESSES = {
    "http://user:hunter2@127.0.0.1:1/v1": "SPECPROBE_API_KEY",
    "http://127.0.0.1:1/v1?api_key=hunter2": "SPECPROBE_API_KEY",
    "http://127.0.0.1:1/v1": "refuses connections",
    "http://": "not the address",
}


@pytest.mark.parametrize("url", ADDRESSES)
def test_addresses_that_are_none(url, tmp_path, monkeypatch, capsys):
    status, _, error = analyze(url, tmp_path, monkeypatch, capsys)
    assert status == 2
    assert ADDRESSES[url] in error
    assert "hunter2" not in error
    assert len(error.strip().splitlines()) == 1


def analyze(url, folder, monkeypatch, capsys, *further, rows=6):
    monkeypatch.chdir(folder)
    log = Path("log.jsonl")
    log.write_text("".join(json.dumps({"prompt": "count " + "x" * n}) + "\n" for n in range(rows)))
    arguments = ["analyze", "log.jsonl", "--target", url, "--max-new-tokens", "14", "--depth", "3", *further]
    status = run_command([*arguments, "--json"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_run_names_the_server_and_recommend_does_not_time_it(tmp_path, monkeypatch, capsys):
    with serving_target("vllm") as server:
        status, out, _ = analyze(server.url, tmp_path, monkeypatch, capsys, "--temperature", "0,0.7")
        assert status == 0
        document = json.loads(out)
        assert document["target"] == {
            "kind": "endpoint", "name": "served", "url": server.url, "model": "served", "engine": "vllm",
            "version": "0.32.0", "max_position_embeddings": 512,
        }  # fmt: skip
        assert {result["drafter"] for result in document["results"]} == {"ngram", "suffix"}
        assert "other_engine_serves" in [warning["code"] for warning in document["warnings"]]
        assert run_command(["recommend", "--concurrency", "1"]) == 2
        assert "--gpu" in capsys.readouterr().err
        # Another server of the same model is compared with this one, another model is not.
        status, again, _ = analyze(server.url, tmp_path, monkeypatch, capsys, "--temperature", "0,0.7")
        assert again == out


@pytest.mark.parametrize(
    ("engine", "is_other"),
    [("vllm@0.32", False), ("vllm-v1@0.32", False), ("vllm-v2@0.32", False), ("vllm-v1@0.33", True), ("hf", True)],
)
def test_the_rules_of_the_servers_version_are_named(tmp_path, monkeypatch, capsys, engine, is_other):
    """Which of an engine's runners serves it does not say, so either may be named."""
    with serving_target("vllm") as server:
        status, out, _ = analyze(server.url, tmp_path, monkeypatch, capsys, "--engine", engine, "--drafter", "ngram")
    assert status == 0
    codes = [warning["code"] for warning in json.loads(out)["warnings"]]
    assert ("other_engine_serves" in codes) == is_other


REFUSED = {
    ("--drafter", "medusa:somewhere", "--tokenizer", "toy"): "hidden states",
    ("--drafter", "mtp", "--tokenizer", "toy"): "hidden states",
    ("--drafter", "draft:toy"): "--tokenizer",
    ("--drafter", "draft:toy", "--tokenizer", "toy", "--temperature", "1", "--draft-sampling", "sampled"): "greedy",
    ("--drafter", "draft:toy", "--tokenizer", "toy", "--temperature", "1", "--engine", "hf"): "--engine hf",
    ("--responses", "logged"): "--responses",
    ("--server-model", "other"): "the server has served",
}


@pytest.mark.parametrize("further", REFUSED)
def test_what_a_server_cannot_be_asked_for(further, tmp_path, monkeypatch, capsys):
    toy.write_checkpoint(tmp_path / "toy")
    with serving_target("vllm") as server:
        status, _, error = analyze(server.url, tmp_path, monkeypatch, capsys, *further)
        assert status == 2
        assert REFUSED[further] in error
        assert server.counts["/v1/completions"] == 0


def test_a_draft_model_drafts_for_a_server(tmp_path, monkeypatch, capsys):
    """Its greedy drafts over the server's text are those over the same text as a log of token ids."""
    toy.write_checkpoint(tmp_path / "toy", max_position_embeddings=512)
    draft = ("--drafter", "draft:toy", "--tokenizer", "toy", "--temperature", "0")
    with serving_target("vllm") as server:
        status, out, error = analyze(server.url, tmp_path, monkeypatch, capsys, *draft)
        assert (status, error.count("error")) == (0, 0), error
        found = write(open_at(server), [toy.chat("count " + "x" * n) for n in range(6)])
    rows = [
        {"prompt_token_ids": t.prompt_ids.tolist(), "output_token_ids": t.output_ids.tolist()}
        for t in found.trajectories
    ]
    Path("ids.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_command(["analyze", "ids.jsonl", "--depth", "3", "--responses", "logged", *draft, "--json"]) == 0
    logged = json.loads(capsys.readouterr().out)
    assert [r["depths"] for r in json.loads(out)["results"]] == [r["depths"] for r in logged["results"]]


def test_the_key_appears_nowhere(tmp_path, monkeypatch, capsys):
    """Not in the store, the run, the output, an error that quotes it, or what other users see of the process."""
    monkeypatch.setenv("SPECPROBE_API_KEY", KEY)
    with serving_target("vllm", wanted_key=KEY) as server:
        status, out, error = analyze(server.url, tmp_path, monkeypatch, capsys)
        assert status == 0
        assert all(headers["Authorization"] == f"Bearer {KEY}" for _, headers, _ in server.seen)
    with serving_target("vllm", wanted_key=KEY + "-other") as server:
        status, _, refused = analyze(server.url, tmp_path, monkeypatch, capsys)
        assert status == 2
        assert "wrong key Bearer ***" in refused
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 3
    for text in (out, error, refused, Path("/proc/self/cmdline").read_text(), *written):
        assert KEY not in (text if isinstance(text, str) else text.decode("utf-8", "replace"))
    assert KEY not in repr(specprobe.server.parse_server("http://x/v1", timeout_seconds=1))


def test_another_process_shows_no_key_in_its_title(tmp_path, monkeypatch):
    """While it runs, as `ps` would see it."""
    monkeypatch.setenv("SPECPROBE_API_KEY", KEY)
    (tmp_path / "log.jsonl").write_text('{"prompt": "a"}\n')
    with serving_target("vllm", wanted_key=KEY, fault_always="stall", stall_seconds=60) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "specprobe", "analyze", "log.jsonl", "--target", server.url],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[1]), "SPECPROBE_API_KEY": KEY},
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while not server.counts["/v1/completions"] and time.monotonic() < deadline:
                time.sleep(0.05)
            assert server.counts["/v1/completions"]
            title = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert b"--target" in title
            assert KEY.encode() not in title
        finally:
            process.kill()
            process.communicate()


RECORDED = Path(__file__).parent / "golden" / "endpoint-vllm"
OF_LLAMA_CPP = RECORDED.with_name("endpoint-llama.cpp")


def test_what_a_real_llama_cpp_answered():
    """Recorded from b11434 (LLAMA_BUILD_NUMBER not set): a template, its tokens, a completion, and how it refuses."""
    with replaying(OF_LLAMA_CPP) as (url, seen):
        endpoint = Endpoint(url, requests_at_once=1)
        found = write(endpoint, [toy.chat(json.loads((OF_LLAMA_CPP / "asked.json").read_text())["prompt"])])
    (trajectory,) = found.trajectories
    whole = json.loads((OF_LLAMA_CPP / "completion.json").read_text())
    assert (endpoint.engine, endpoint.engine_version, endpoint.max_positions) == ("llama.cpp", "b0-unknown", 2048)
    assert trajectory.prompt_ids.tolist() == json.loads((OF_LLAMA_CPP / "tokenize.json").read_text())["tokens"]
    assert trajectory.output_ids.tolist() == whole["tokens"]
    assert trajectory.finish_reason == "length"
    log_probs = [one["logprob"] for one in whole["completion_probabilities"]]
    assert trajectory.log_probs == pytest.approx(np.array(log_probs), abs=1e-6)
    assert [path for path, _ in seen] == [
        "/v1/models",
        "/version",
        "/props",
        "/apply-template",
        "/tokenize",
        "/completion",
    ]
    # It takes no window of -1, for all tokens, as it once did.
    assert seen[-1][1]["repeat_last_n"] == trajectory.prompt_ids.size + 14


def test_how_a_real_llama_cpp_refuses():
    told = json.loads((OF_LLAMA_CPP / "too_long.json").read_text())
    with serving_target("llama.cpp", fault_always="400") as server:
        server.refusal = told
        with pytest.raises(SpecprobeError, match=r"status 400 .*exceeds the available context size"):
            write(open_at(server, requests_at_once=1))


def test_what_a_real_vllm_answered():
    """Recorded from vLLM 0.32: its model list, the tokens of a conversation, and a streamed completion."""
    with replaying(RECORDED) as (url, seen):
        endpoint = Endpoint(url, requests_at_once=1)
        found = write(endpoint, [toy.chat(json.loads((RECORDED / "asked.json").read_text())["prompt"])])
    (trajectory,) = found.trajectories
    whole = json.loads((RECORDED / "whole.json").read_text())["choices"][0]
    assert (endpoint.engine, endpoint.engine_version, endpoint.max_positions) == ("vllm", "0.32.0", 2048)
    assert trajectory.prompt_ids.tolist() == whole["prompt_token_ids"]
    assert trajectory.output_ids.tolist() == whole["token_ids"]
    assert trajectory.finish_reason == whole["finish_reason"]
    assert trajectory.log_probs == pytest.approx(np.array(whole["logprobs"]["token_logprobs"]), abs=2e-4)
    assert [path for path, _ in seen] == ["/v1/models", "/version", "/tokenize", "/v1/completions"]
