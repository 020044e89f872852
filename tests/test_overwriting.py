"""No command writes over a file that it reads, however the two are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from specprobe.cli import run_command
from specprobe.errors import SpecprobeError
from specprobe.server import parse_server

FIRST_RUN = Path(__file__).parent / "golden" / "run-1-first.json"
ANSWER = {"prompt_token_ids": [1, 2, 3], "output_token_ids": [1, 2, 3, 1, 2, 3]}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("log.jsonl").write_text(json.dumps(ANSWER) + "\n")
    shutil.copy(FIRST_RUN, "run.json")
    Path("other.json").symlink_to("run.json")


@pytest.mark.parametrize(
    "arguments",
    [
        "analyze log.jsonl --responses logged --out log.jsonl",
        "analyze *.jsonl --responses logged --out ./log.jsonl",
        "analyze log.jsonl --responses logged --ladder run.json --out run.json",
        "report run.json --html run.json",
        "report run.json --html other.json",
        "report other.json --html run.json",
        "gate run.json --min-tokens-per-round 1 --junit run.json",
        "gate run.json --max-regression 5% --baseline other.json --summary run.json",
        "export run.json --engine vllm --out run.json",
        "import run.json --drafter ngram --temperature 0 --out run.json",
        "calibrate log.jsonl --model Llama-3.1-8B --gpu h100 --out log.jsonl",
        "bench log.jsonl --server http://127.0.0.1:9 --speculative http://127.0.0.1:8 --out log.jsonl",
    ],
)
def test_what_a_command_reads_stays(arguments, capsys):
    before = {path.name: path.read_bytes() for path in Path().glob("*.json*")}
    assert run_command(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "is what is read here, and would be overwritten; give another name" in err
    assert {path.name: path.read_bytes() for path in Path().glob("*.json*")} == before


@pytest.mark.parametrize(
    "arguments",
    [
        "analyze logs --out logs/run.json",
        "analyze logs/ --out logs/below/run",
        "analyze . --out logs/run.jsonl.gz",
        "analyze logs/*.json* --out logs/run.json",
        "analyze logs/**/*.json* --out logs/below/run.json",
        "analyze logs --out logs/run.json --dry-run",
        "analyze linked --out logs/run.json",
        "bench logs --server http://127.0.0.1:9 --speculative http://127.0.0.1:8 --out logs/bench.json",
    ],
)
def test_no_result_is_put_where_it_is_read_as_a_log_the_next_time(arguments, capsys):
    Path("logs/below").mkdir(parents=True)
    shutil.copy("log.jsonl", "logs")
    Path("linked").symlink_to("logs")
    assert run_command(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "would read it as input; give a place elsewhere" in err
    assert not Path(".specprobe").exists()


@pytest.mark.parametrize(
    "out", ["run.json", "logs/.run.json", "logs/_runs/run.json", "logs/run.txt", "logs-2/run.json"]
)
def test_what_no_folder_is_searched_for_may_be_written_there(out, capsys):
    """Hidden files, and such as are no data by their names, are left out of folders."""
    Path("logs").mkdir()
    shutil.copy("log.jsonl", "logs")
    for _ in range(2):
        assert run_command(["analyze", "logs", "logs/log*.jsonl", "--out", out]) == 0, capsys.readouterr().err
    assert "1 prompt of" in capsys.readouterr().out


def test_what_was_written_before_is_written_again(capsys):
    for _ in range(2):
        assert run_command(["report", "run.json", "--html", "page.html"]) == 0
    assert "page.html" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["inspect", "analyze"])
def test_an_empty_name_is_not_the_folder(command, capsys):
    assert run_command([command, ""]) == 2
    assert capsys.readouterr().err.startswith("error: prompts: an empty name; ")


@pytest.mark.parametrize(
    "host", ["a..b", "a" * 64 + ".org", "\udcff", "h/\u00e9", "[::1", "h:99999"], ids=lambda host: ascii(host)[:9]
)
def test_addresses_that_nobody_can_ask_are_refused_before_anyone_is(host):
    with pytest.raises(SpecprobeError, match="not an address"):
        parse_server(f"http://{host}", timeout_seconds=1)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e300])
def test_a_timeout_that_no_socket_takes_is_refused(seconds):
    with pytest.raises(SpecprobeError, match="--timeout"):
        parse_server("http://localhost", timeout_seconds=seconds)
