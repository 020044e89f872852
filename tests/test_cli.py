"""The command line as users and scripts meet it: exit codes, one-line errors, one JSON document on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import toy_target as toy
import typer

from specprobe.cli import app, run_command
from specprobe.units import format_bytes

TOKENS = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))


def write_rows(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def log(tmp_path) -> str:
    rows = [
        {
            "id": f"r{i}",
            "prompt_token_ids": [*TOKENS, i],
            "output_token_ids": [*TOKENS, *TOKENS, 9, *TOKENS[: i % 8], 2],
        }
        for i in range(20)
    ]
    return write_rows(tmp_path / "log.jsonl", rows)


COST = {
    "schema": "specprobe.cost/1",
    "points": [
        {"batch": b, "query_tokens": q, "context": c, "seconds": 0.01} for b in (1, 64) for q in (1, 9) for c in (8, 64)
    ],
}


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = run_command(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def test_analyze_prints_one_document_and_keeps_it(capsys, log, tmp_path):
    status, out, err = run(capsys, "analyze", log, "--json", "--depth", "3", "--out", "mine/run.json")
    assert status == 0
    assert out.count("\n") == 1
    document = json.loads(out)
    assert document["schema"] == "specprobe.run/1"
    assert document["engine_profile"] == "vllm@0.33"
    assert [result["drafter"] for result in document["results"]] == ["ngram", "suffix"]
    assert "replaying" in err
    (kept,) = (tmp_path / ".specprobe" / "runs").glob("*.json")
    assert kept.read_text() == Path("mine/run.json").read_text() == out
    assert kept.stat().st_mode & 0o077 == 0


def test_same_input_same_bytes(capsys, log):
    first = run(capsys, "analyze", log, "--json")[1]
    assert run(capsys, "analyze", log, "--json")[1] == first


def test_a_version_that_is_not_known_falls_back_to_the_newest_below(capsys, log):
    document = json.loads(run(capsys, "analyze", log, "--json", "--engine", "vllm@0.32")[1])
    assert document["engine_profile"] == "vllm@0.30"


def test_recommend_takes_the_last_run_and_a_cost_file(capsys, log):
    Path("cost.json").write_text(json.dumps(COST))
    run(capsys, "analyze", log, "--drafter", "ngram:min=2,max=2", "--engine", "vllm@0.30")
    status, out, _ = run(capsys, "recommend", "--cost", "cost.json", "--concurrency", "1,64", "--json")
    assert status == 0
    document = json.loads(out)
    assert [entry["concurrency"] for entry in document["by_concurrency"]] == [1, 64]
    assert document["by_concurrency"][0]["verdict"] == "speculate"
    assert document["export"]["vllm"]["prompt_lookup_max"] == 2


def test_recommend_says_dont_and_that_is_fine(capsys, log):
    points = [dict(point, seconds=0.01 * point["query_tokens"]) for point in COST["points"]]
    Path("cost.json").write_text(json.dumps(COST | {"points": points}))
    run(capsys, "analyze", log, "--drafter", "ngram")
    status, out, _ = run(capsys, "recommend", "--cost", "cost.json", "--concurrency", "64")
    assert status == 0
    assert "don't" in out
    assert "--speculative-config" not in out


def test_recommend_checks_the_engine(capsys, log):
    Path("cost.json").write_text(json.dumps(COST))
    run(capsys, "analyze", log, "--engine", "vllm@0.30")
    assert run(capsys, "recommend", "--cost", "cost.json", "--engine", "vllm")[0] == 0
    for other in ("hf", "vllm@0.33"):
        status, _, err = run(capsys, "recommend", "--cost", "cost.json", "--engine", other)
        assert status == 2
        assert "vllm@0.30" in err


def test_recommend_predicts_a_gpu_that_is_not_here(capsys, log):
    run(capsys, "analyze", log)
    gpu = ("--gpu", "h100", "--target", "meta-llama/Llama-3.1-8B", "--concurrency", "1,32", "--gpu-price", "2")
    status, out, err = run(capsys, "recommend", *gpu, "--json")
    assert status == 0, err
    document = json.loads(out)
    assert document["cost_source"] == "roofline"
    assert document["cost"]["conditions"]["hardware"] == "1 x h100"
    assert document["cost"]["log_deviation"] > 0
    assert document["cost"]["memory"]["kv_capacity_tokens"] > 100_000
    one, many = (entry["baseline"] for entry in document["by_concurrency"])
    assert 0.005 < one["itl_p50_ms"] / 1e3 < 0.008
    assert many["dollars_per_million_output_tokens"] < one["dollars_per_million_output_tokens"] / 10
    split = json.loads(run(capsys, "recommend", *gpu, "--tp", "2", "--dtype", "fp8", "--json")[1])
    assert split["by_concurrency"][0]["baseline"]["itl_p50_ms"] < one["itl_p50_ms"]
    assert split["cost"]["conditions"]["dtype"] == "fp8"
    out = run(capsys, "recommend", *gpu, "--details")[1]
    for words in ("Cost: roofline (1 x h100", "known to err by", "time to first token", "per million output tokens"):
        assert words in " ".join(out.split())


def test_recommend_takes_arrivals_by_rate_and_by_trace(capsys, log):
    Path("cost.json").write_text(json.dumps(COST))
    run(capsys, "analyze", log, "--drafter", "suffix", "--depth", "3")
    status, out, err = run(capsys, "recommend", "--cost", "cost.json", "--rate", "0.5", "--json")
    assert status == 0, err
    (entry,) = json.loads(out)["by_concurrency"]
    assert entry["by_clock"]
    assert entry["arrivals"] == {"rate": 0.5, "trace": None}
    assert entry["speedup_of"] == "mean_request_latency"
    assert entry["speedup"]["point"] > 1
    out = run(capsys, "recommend", "--cost", "cost.json", "--rate", "0.5")[1]
    assert out.startswith("0.5 requests a second (some ")
    assert (
        "speed-up of the mean request latency"
        in run(capsys, "recommend", "--cost", "cost.json", "--rate", "1", "--plain")[1]
    )
    # More than the cost reaches decides nothing, nor does what no server of it keeps up with.
    (entry,) = json.loads(run(capsys, "recommend", "--cost", "cost.json", "--rate", "9999", "--json")[1])[
        "by_concurrency"
    ]
    assert (entry["verdict"], entry["speedup"]["low"] > 1.05) == ("close", True)
    slow = [dict(point, batch=b, seconds=0.01 * b) for point in COST["points"][:4] for b in (1, 1024)]
    Path("slow.json").write_text(json.dumps(COST | {"points": slow}))
    out = " ".join(run(capsys, "recommend", "--cost", "slow.json", "--rate", "9999", "--details")[1].split())
    assert out.startswith("9999 requests a second: too close to call (the server does not keep up with them).")
    assert run(capsys, "report", "--html", "page.html")[0] == 0
    assert "9999 requests a second" in Path("page.html").read_text("utf-8")
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-11-16 18:{i // 60:02}:{i % 60:02}.3927650,374,44" for i in range(40)]
    Path("trace.csv").write_text("\n".join(rows))
    status, out, err = run(capsys, "recommend", "--cost", "cost.json", "--trace", "trace.csv")
    assert status == 0, err
    # 40 requests in 39 seconds.
    assert " ".join(out.split()).startswith("arrivals of trace.csv, 1 request a second (some ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpu", "h99"], "h99"),
        (["--gpu", "h100"], "--target"),
        (["--gpu", "h100", "--target", "meta-llama/Llama-3.1-8B", "--dtype", "int3.5x"], "int3.5x"),
        (["--gpu", "l4", "--target", "meta-llama/Llama-3.1-70B"], "--tp"),
        (["--gpu", "h100", "--target", "./nothing"], "./nothing"),
        (["--gpu", "8xh100", "--target", "meta-llama/Llama-3.1-8B"], "--tp"),
        (["--gpu", "h100+l4", "--target", "meta-llama/Llama-3.1-8B"], "--tp"),
        (["--gpu", "v100-16gb", "--target", "meta-llama/Llama-3.1-8B"], "v100-16gb"),
        (["--gpu", "h100", "--tp", "3", "--target", "meta-llama/Llama-3.1-8B"], "32 heads"),
        (["--cost", "cost.json", "--rate", "1", "--concurrency", "8"], "--concurrency"),
        (["--tp", "2"], "--gpu"),
        (["--cost", "cost.json", "--rate", "0"], "--rate"),
        (["--cost", "cost.json", "--rate", "nan"], "--rate"),
        (["--cost", "cost.json", "--rate", "1", "--trace", "t"], "--trace"),
        (["--cost", "cost.json", "--trace", "missing.csv"], "missing.csv"),
        (["--cost", "cost.json", "--gpu-price", "-1"], "--gpu-price"),
        (["--cost", "cost.json", "--gpu-price", "nan"], "--gpu-price"),
        (["--cost", "cost.json", "--prefer", "cheap"], "cheap"),
        (["--cost", "cost.json", "--concurrency", "100000"], "8192"),
    ],
)
def test_recommend_says_what_is_wrong_with_its_options(capsys, log, options, said):
    Path("cost.json").write_text(json.dumps(COST))
    run(capsys, "analyze", log, "--depth", "2")
    status, out, err = run(capsys, "recommend", *options)
    assert (status, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err


def test_fit_predicts_the_published_rate(capsys):
    status, out, _ = run(capsys, "fit", "--rate", "2=0.454", "--rate", "3=0.356", "--json")
    assert status == 0
    document = json.loads(out)
    models = {model["name"]: model for model in document["models"]}
    # Published at depth 4: 28.3 %.
    assert abs(models["decay"]["acceptance_rate"]["4"] - 0.283) < 0.005
    assert models["geometric"]["acceptance_rate"]["4"] - 0.283 > 0.01
    assert document["best"] == "decay"
    assert "free" not in models


def test_fit_takes_lengths_as_well(capsys):
    status, out, _ = run(capsys, "fit", "--length", "1=1.5", "--length", "2=1.75")
    assert status == 0
    assert "geometric" in out


ANSWERED = {"id": 1, "prompt_token_ids": TOKENS, "output_token_ids": TOKENS}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["analyze"], "prompts"),
        (["analyze", "missing.jsonl"], "missing.jsonl"),
        (["analyze", "log.jsonl", "--depth", "0"], "--depth 0"),
        (["analyze", "log.jsonl", "--depth", "65"], "--depth 65"),
        (["analyze", "log.jsonl", "--depth", "8", "--max-model-len", "9"], "context of 9"),
        (["analyze", "log.jsonl", "--depth", "few"], "--depth"),
        (["analyze", "log.jsonl", "--drafter", "oracle"], "oracle"),
        (["analyze", "log.jsonl", "--drafter", "ngram", "--drafter", "ngram"], "twice"),
        (["analyze", "log.jsonl", "--engine", "tgi"], "tgi"),
        (["analyze", "log.jsonl", "--temperature", "hot"], "--temperature"),
        (["analyze", "log.jsonl", "--temperature", ""], "--temperature"),
        (["analyze", "log.jsonl", "--temperature", "-1"], "--temperature"),
        (["analyze", "log.jsonl", "--temperature", "1e-40"], "--temperature"),
        (["analyze", "log.jsonl", "--max-model-len", "9999999999999999999"], "--max-model-len"),
        (["analyze", "log.jsonl", "--drafter", "ngram:min=99999999999999999999"], "min="),
        (["analyze", "log.jsonl", "--drafter", "suffix:max_tree_depth=100000000"], "max_tree_depth"),
        (["analyze", "log.jsonl", "--drafter", "suffix:max_spec_factor=1e19"], "max_spec_factor"),
        (["analyze", "log.jsonl", "--engine", "vllm@" + 5000 * "9"], "--engine"),
        (["analyze", "log.jsonl", "--draft-sampling", "sampled"], "--draft-sampling"),
        (["analyze", "log.jsonl", "--target", ""], "--target"),
        (["analyze", "log.jsonl", "--target", "a", "--tokenizer", "b"], "--tokenizer"),
        (["analyze", "log.jsonl", "--responses", "generate", "--tokenizer", "b"], "--tokenizer"),
        (["analyze", "log.jsonl", "--chat-template-kwargs", '{"a": NaN}'], "--chat-template-kwargs"),
        (["analyze", "log.jsonl", "--chat-template-kwargs", "[" * 100_000], "--chat-template-kwargs"),
        (["fit", "--rate", "999999999999999999999=0.5"], "depth"),
        (["inspect", "log.jsonl", "--prompt-field", ""], "--prompt-field"),
        (["analyze", "log.jsonl", "--temperature", "nan"], "--temperature"),
        (["analyze", "log.jsonl", "--temperature", "0,0"], "twice"),
        (["analyze", "log.jsonl", "--temperature", "0,1", "--responses", "logged"], "one temperature"),
        (["analyze", "log.jsonl", "--responses", "dreamt"], "--responses"),
        (["analyze", "log.jsonl", "--chat-template-kwargs", "{"], "--chat-template-kwargs"),
        (["analyze", "log.jsonl", "--chat-template-kwargs", "[1]"], "--chat-template-kwargs"),
        (["analyze", "log.jsonl", "--max-prompts", "0"], "--max-prompts"),
        (["analyze", "log.jsonl", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["analyze", "log.jsonl", "--batch-size", "0"], "--batch-size"),
        (["analyze", "log.jsonl", "--seed", "-1"], "--seed"),
        (["analyze", "log.jsonl", "--in-flight", "0"], "--in-flight 0"),
        (["analyze", "log.jsonl", "--format", "telepathy"], "--format"),
        (["analyze", "log.jsonl", "--target", "./no-such-model"], "no-such-model"),
        (["analyze", "log.jsonl", "--quick"], "--quick"),
        (["recommend"], "analyze"),
        (["recommend", "log.jsonl"], "log.jsonl"),
        (["recommend", "nothing.json"], "nothing.json"),
        (["fit"], "--rate"),
        (["fit", "--rate", "2"], "--rate"),
        (["fit", "--rate", "2=45.4"], "45.4"),
        (["fit", "--rate", "0=0.4"], "depth"),
        (["fit", "--rate", "2=0.4", "--rate", "2=0.5"], "twice"),
        (["fit", "--rate", "2=0.4", "--length", "2=1.5"], "either"),
        (["inspect", "empty.jsonl"], "empty"),
        (["inspect", "folder"], "folder"),
        (["benchmark"], "benchmark"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(capsys, arguments, said):
    Path("log.jsonl").write_text(json.dumps(ANSWERED) + "\n")
    Path("empty.jsonl").write_text("")
    Path("folder").mkdir()
    status, _, err = run(capsys, *arguments)
    assert status == 2
    message = err.splitlines()[-1]
    assert message.startswith("error: ")
    assert said in message


def test_recommend_needs_a_range_that_makes_sense(capsys, log):
    Path("cost.json").write_text(json.dumps(COST))
    run(capsys, "analyze", log, "--depth", "2")
    for concurrency in ("0", "-3", "many", ""):
        status, _, err = run(capsys, "recommend", "--cost", "cost.json", "--concurrency", concurrency)
        assert status == 2
        assert "--concurrency" in err
    status, _, err = run(capsys, "recommend", "--cost", "cost.json", "--temperature", "0.7")
    assert status == 2
    assert "the run has 0" in err


def test_recommend_without_a_target_says_what_to_give(capsys, log):
    run(capsys, "analyze", log, "--depth", "2")
    status, _, err = run(capsys, "recommend")
    assert status == 2
    assert "--target" in err
    assert "--cost" in err


@pytest.mark.parametrize(
    ("temperatures", "option", "recorded", "warned"),
    [([0.7, 0.7], None, 0.7, False), ([0.7, 0.2], None, 0.0, True), ([0.7, None], None, 0.0, True),
     ([None, None], None, 0.0, False), ([0.7, 0.7], "0.7", 0.7, False), ([0.7, 0.7], "0", 0.0, True)],
)  # fmt: skip
def test_the_temperature_of_a_log(capsys, tmp_path, temperatures, option, recorded, warned):
    rows = [
        {"prompt_token_ids": TOKENS, "output_token_ids": TOKENS} | ({} if t is None else {"temperature": t})
        for t in temperatures
    ]
    name = write_rows(tmp_path / "log.jsonl", rows)
    status, out, _ = run(capsys, "analyze", name, "--json", *(["--temperature", option] if option else []))
    assert status == 0
    document = json.loads(out)
    assert document["results"][0]["temperature"] == recorded
    assert ("other_temperature" in {warning["code"] for warning in document["warnings"]}) == warned
    is_known = option is not None or any(t is not None for t in temperatures)
    assert document["responses"][0].get("temperature_is_known", True) == is_known
    # It is as known from the run that was kept, and as it says.
    for arguments in (["report"], ["report", "--details"], ["report", "--plain"]):
        shown = " ".join(run(capsys, *arguments)[1].split())
        assert ("not said by the log; taken as 0" in shown) != is_known
        assert is_known or "temperature 0" not in shown
    assert run(capsys, "report", "--html", "page.html")[0] == 0
    # But for what it says of drafting in general.
    page = " ".join(Path("page.html").read_text("utf-8").split()).replace("above temperature 0", "")
    assert ("not said by the log; taken as 0" in page) != is_known
    assert is_known or "temperature 0" not in page


def test_a_log_without_answers_cannot_be_replayed_as_it_is(capsys, tmp_path):
    name = write_rows(tmp_path / "log.jsonl", [{"prompt": "What is the time?"}])
    status, _, err = run(capsys, "analyze", name, "--responses", "logged")
    assert status == 2
    assert "--responses generate" in err


def test_log_text_is_inert_in_the_report(capsys):
    evil = "[red]x[/red]\x1b[31m"
    rows = [{"id": evil + str(i), "prompt_token_ids": TOKENS, "output_token_ids": TOKENS * 3} for i in range(3)]
    name = write_rows(Path("[bold]log.jsonl"), rows)
    status, out, err = run(capsys, "analyze", name, "--depth", "2")
    assert status == 0
    assert "\x1b" not in out + err
    assert "[bold]log" in out.replace("\n", "")


def test_lengths_of_token_ids_are_in_tokens(capsys, log, tmp_path):
    out = run(capsys, "inspect", log)[1]
    assert "prompt length in tokens: min 9, median 9, max 9" in out
    assert "answer length in tokens: min 18, median 21, max 25" in out
    assert "characters" not in out
    document = json.loads(run(capsys, "inspect", log, "--json")[1])
    assert (document["prompt_chars"], document["prompt_tokens"]["max"]) == (None, 9)
    # Beside text, each in its own unit.
    text = write_rows(tmp_path / "text.jsonl", [{"prompt": "What is it?", "response": "A river."}])
    out = run(capsys, "inspect", log, text)[1]
    assert "prompt length in characters: min 11, median 11, max 11" in out
    assert "answer length in characters: min 8, median 8, max 8" in out
    assert "prompt length in tokens: min 9" in out


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1 kB"), (12_345, "12 kB"), (999_499, "999 kB"),
     (999_600, "1 MB"), (340e6, "340 MB"), (999.7e6, "1.0 GB"), (1.23e9, "1.2 GB")],
)  # fmt: skip
def test_bytes_have_a_unit_that_people_read(num_bytes, shown):
    assert format_bytes(num_bytes) == shown


def test_clean_says_how_much_in_words(capsys):
    folder = Path(".specprobe/trajectories/a")
    folder.mkdir(parents=True)
    (folder / "b.jsonl").write_bytes(b"x" * 12_345)
    assert run(capsys, "clean")[1] == "removed 1 file (12 kB) from .specprobe\n"
    assert run(capsys, "clean")[1] == "removed 0 files (0 bytes) from .specprobe\n"


def test_interrupted_is_130(capsys, monkeypatch, log):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("specprobe.analyze.replay_all", interrupt)
    status, _, err = run(capsys, "analyze", log)
    assert status == 130
    assert err.splitlines()[-1].startswith("error: interrupted")


def test_a_full_disk_is_one_line(capsys, log, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    status, out, err = run(capsys, "analyze", log, "--json")
    assert status == 2
    assert "disk is full" in err
    # The answer was printed before it could not be kept.
    assert json.loads(out)["schema"] == "specprobe.run/1"


def test_what_nobody_foresaw_is_one_line_too(capsys, log, monkeypatch):
    def broken(*_arguments, **_options):
        raise ZeroDivisionError("division\nby secret text")

    monkeypatch.setattr("specprobe.analyze.replay_all", broken)
    status, _, err = run(capsys, "analyze", log)
    assert status == 2
    assert err.splitlines()[-1].startswith("error: unexpected ZeroDivisionError in analyze.py:")
    # A library's message may quote the log.
    assert "secret" not in err
    monkeypatch.setenv("SPECPROBE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(capsys, "analyze", log)


@pytest.mark.parametrize("out", [".", "log.jsonl/run.json", "pipe"])
def test_out_is_checked_before_the_work(capsys, log, out, monkeypatch):
    os.mkfifo("pipe")
    monkeypatch.setattr("specprobe.analyze.replay_all", None)
    status, _, err = run(capsys, "analyze", log, "--out", out)
    assert status == 2
    assert "--out" in err.splitlines()[-1]


def test_out_follows_a_link_and_leaves_it(capsys, log):
    Path("real.json").write_text("old")
    Path("link.json").symlink_to("real.json")
    assert run(capsys, "analyze", log, "--json", "--out", "link.json")[0] == 0
    assert Path("link.json").is_symlink()
    assert json.loads(Path("real.json").read_text())["schema"] == "specprobe.run/1"


def test_a_cost_file_and_timing_options_contradict(capsys, log):
    Path("cost.json").write_text(json.dumps(COST))
    run(capsys, "analyze", log, "--depth", "2")
    for option in (["--target", "x"], ["--dtype", "float32"], ["--device", "cpu"], ["--remeasure"]):
        status, _, err = run(capsys, "recommend", "--cost", "cost.json", *option)
        assert status == 2
        assert "nothing is timed or predicted" in err


def test_no_text_of_the_log_gets_out(capsys, tmp_path):
    folder = toy.write_checkpoint(tmp_path / "toy")
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"SECRET {i}"},
                {"role": "assistant", "content": f"SECRET {i} SECRET"},
            ]
        }
        for i in range(20)
    ]
    name = write_rows(tmp_path / "log.jsonl", rows)
    Path("cost.json").write_text(json.dumps(COST))
    shown = ""
    for arguments in (
        ["inspect", name],
        ["inspect", name, "--json"],
        ["analyze", name, "--tokenizer", str(folder)],
        ["analyze", name, "--target", str(folder), "--json", "--max-new-tokens", "4", "--responses", "generate"],
        ["analyze", name, "--target", str(folder), "--json"],
        ["recommend", "--cost", "cost.json"],
    ):
        status, out, err = run(capsys, *arguments)
        assert status == 0, err
        shown += out + err
    kept = [path for path in Path(".specprobe").rglob("*") if path.is_file()]
    assert len(kept) > 3
    shown += "".join(f"{path} {path.read_text()}" for path in kept)
    assert "SECRET" not in shown


def test_control_characters_of_ids_do_not_reach_a_terminal(capsys, tmp_path):
    rows = [{"id": "\x9b31m\u202eé", "prompt_token_ids": TOKENS, "output_token_ids": TOKENS}]
    out = run(capsys, "analyze", write_rows(tmp_path / "log.jsonl", rows), "--json")[1]
    assert out.isascii()
    assert json.loads(out)["results"][0]["per_prompt"][0]["id"] == rows[0]["id"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_of_another_encoding_gets_the_report(log, encoding, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    result = specprobe("analyze", log)
    assert (result.returncode, "Traceback" in result.stderr) == (0, False)
    assert "ngram" in result.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_device_is_one_line(log):
    for arguments in (["analyze", log], ["inspect", log, "--json"], ["fit", "--rate", "1=0.5"]):
        with Path("/dev/full").open("w") as full:
            command = [sys.executable, "-m", "specprobe", *arguments]
            result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
        assert "Exception ignored" not in result.stderr
        assert result.stderr.splitlines()[-1].startswith("error: ")


def specprobe(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-c", code] if code else [sys.executable, "-m", "specprobe"]
    return subprocess.run([*start, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_help_and_token_id_replay_import_neither_torch_nor_transformers(log):
    code = (
        "import sys; from specprobe.cli import run_command; status = run_command(sys.argv[1:]);"
        "print(status, sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)), file=sys.stderr)"
    )
    for arguments in (["--help"], ["analyze", "--help"], ["analyze", log, "--json"], ["inspect", log]):
        assert specprobe(*arguments, code=code).stderr.splitlines()[-1] == "0 []"


@pytest.mark.parametrize("command", [None, *typer.main.get_command(app).commands])
def test_the_help_fits_80_columns_and_cuts_nothing(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    group = typer.main.get_command(app)
    shown = group.commands[command] if command else group
    status, out, _ = run(capsys, *([command] if command else []), "--help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    plain = "".join(out.split())
    for parameter in shown.params:
        for name in (*parameter.opts, *parameter.secondary_opts):
            assert name in out or not name.startswith("-")
        assert "".join((getattr(parameter, "help", None) or "").split()) in plain
    # A command in a line of its own, to the end of its first sentence.
    for line in out.partition("Commands:")[2].splitlines():
        assert not line.endswith("...")


def test_the_module_runs_and_says_its_version():
    result = specprobe("--version")
    assert (result.returncode, result.stdout.split()[0]) == (0, "specprobe")
    assert specprobe().returncode == 2


@pytest.mark.skipif(os.name == "nt", reason="no SIGPIPE there")
def test_a_reader_that_leaves_loses_nothing(log, tmp_path):
    command = f"{sys.executable} -m specprobe analyze {log} --json | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr
    assert len(list((tmp_path / ".specprobe" / "runs").glob("*.json"))) == 1


@pytest.mark.skipif(os.name != "posix", reason="needs a shell that closes streams")
@pytest.mark.parametrize(
    ("streams", "arguments", "status"),
    [
        (">&-", "schema run", 0),
        ("2>&-", "schema run", 0),
        (">&- 2>&-", "schema run", 0),
        (">&-", "schema nothing", 2),
        ("2>&-", "schema nothing", 2),
        ("2>/dev/full", "schema nothing", 2),
        (">/dev/full", "schema run", 2),
        (">/dev/full 2>/dev/full", "schema run", 2),
    ],
)
def test_streams_that_nobody_holds_change_no_exit_status(streams, arguments, status):
    command = f"exec {sys.executable} -m specprobe {arguments} {streams}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
    assert done.stderr.count("error:") == (status == 2 and "2>" not in streams)
