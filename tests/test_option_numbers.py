"""Every numeric option of every command, given numbers that nobody can mean: refused by name in one line, or taken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from invented_reports import POINTS
from test_engine_numbers import vllm_answer

from specprobe.cli import app, run_command
from specprobe.command_group import options_of

FIRST_RUN = Path(__file__).parent / "golden" / "run-1-first.json"
FLOATS = ("nan", "inf", "-1")
INTEGERS = ("0", "-1", str(10**12))
LISTS = ("nan", "inf", "-1", "1,1", "0", str(10**12), "1,,1", "", "1;2")
# Options that hold several numbers in a word, or one with a unit.
IN_WORDS = {
    ("analyze", "--temperature"),
    ("recommend", "--concurrency"),
    ("bench", "--concurrency"),
    ("calibrate", "--concurrency"),
    ("calibrate", "--context"),
    ("gate", "--max-regression"),
}
# What makes sense after all: any whole number seeds, no number of top tokens means all, and so on.
TAKEN = {
    ("analyze", "--temperature", "0"),
    ("analyze", "--top-k", "0"),
    ("analyze", "--top-k", "-1"),
    ("analyze", "--frequency-penalty", "-1"),
    ("analyze", "--presence-penalty", "-1"),
    ("analyze", "--seed", "0"),
    ("analyze", "--seed", str(10**12)),
    ("analyze", "--max-prompts", str(10**12)),
    ("backtest", "--seed", "0"),
    ("backtest", "--seed", str(10**12)),
    ("bench", "--max-prompts", str(10**12)),
    ("bench", "--seed", "0"),
    ("bench", "--seed", str(10**12)),
    ("gate", "--max-regression", "0"),
}
# A command line that does what it says, but for `bench`, which is refused once everything that it names was looked at.
BASES = {
    "analyze": ["log.jsonl", "--drafter", "suffix"],
    "backtest": ["table.csv"],
    "bench": [
        *("absent.jsonl", "--drafter", "suffix", "--tokenizer", "absent"),
        *("--server", "http://localhost:9", "--start", "a", "--start-speculative", "b"),
    ],
    "calibrate": ["points.csv", "--model", "Llama-3.1-8B", "--gpu", "h100", "--out", "cost.out.json"],
    "export": ["run.json", "--engine", "profile"],
    "fit": ["--metrics", "answers.jsonl"],
    "gate": ["run.json", "--min-tokens-per-round", "1", "--baseline", "run.json", "--max-regression", "99%"],
    "import": ["answers.jsonl", "--drafter", "ngram"],
    "recommend": ["run.json", "--cost", "cost.json"],
}
# Without the others of its kind, or with what it is for.
INSTEAD = {
    ("gate", "--min-speedup"): ["run.json", "--recommendation", "advice.json"],
    ("gate", "--max-regression"): ["run.json", "--baseline", "run.json"],
    ("recommend", "--tp"): ["run.json", "--gpu", "h100", "--target", "Llama-3.1-8B"],
    ("recommend", "--gpu-price"): ["run.json", "--gpu", "h100", "--target", "Llama-3.1-8B"],
}


def cases() -> Iterator[tuple[str, str, str]]:
    """Command, option and value, of the real command line."""
    for command, parsed in typer.main.get_command(app).commands.items():
        for option in options_of(parsed):
            flag = f"--{option.flag}"
            of_kind = {float: FLOATS, int: INTEGERS}.get(option.kind, ())
            for value in LISTS if (command, flag) in IN_WORDS else of_kind:
                yield command, flag, value


CASES = list(cases())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("numbers")
    rows = [{"id": i, "prompt_token_ids": [1, 2, 3, i], "output_token_ids": [1, 2, 3] * 4} for i in range(4)]
    (made / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    requests = [{"id": i, "per_step_accepted": [1, 0, 2], "per_step_drafted": [2, 2, 2]} for i in range(3)]
    answers = [vllm_answer(request, 7, 2) for request in requests]
    (made / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    points = [
        {"batch": b, "query_tokens": q, "context": c, "seconds": 0.01} for b in (1, 8) for q in (1, 3) for c in (1, 99)
    ]
    (made / "cost.json").write_text(json.dumps({"schema": "specprobe.cost/1", "points": points}))
    (made / "points.csv").write_text(POINTS)
    shutil.copy(FIRST_RUN, made / "run.json")
    shutil.copy(Path(__file__).parent / "published_invented.csv", made / "table.csv")
    return made


@pytest.fixture
def _in_folder(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    if not Path("advice.json").exists():
        assert run_command(["recommend", *BASES["recommend"], "--json"]) == 0
        Path("advice.json").write_text(capsys.readouterr().out)


def test_the_command_line_has_many_numbers():
    options = {(command, flag) for command, flag, _ in CASES}
    assert len(options) > 40
    assert not IN_WORDS - options
    assert not TAKEN - set(CASES)


@pytest.mark.parametrize(("command", "flag", "value"), [pytest.param(*case, id=" ".join(case)) for case in CASES])
@pytest.mark.usefixtures("_in_folder")
def test_a_number_is_refused_by_name_or_taken(command, flag, value, capsys):
    base = INSTEAD.get((command, flag), BASES[command])
    if command == "import" and flag != "--temperature":
        base = [*base, "--temperature", "0"]
    status = run_command([command, *base, flag, value])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "unexpected" not in err
    if (command, flag, value) in TAKEN:
        # `bench` goes on to what it is to read.
        assert status in (0, 1) or "absent.jsonl" in err
        return
    assert status == 2, err
    *_, message = err.splitlines()
    assert message.startswith("error: ")
    assert flag in message


@pytest.mark.parametrize("command", [name for name in BASES if name != "bench"])
@pytest.mark.usefixtures("_in_folder")
def test_without_them_the_commands_work(command, capsys):
    """Else every number would be refused, for whatever reason."""
    base = [*BASES[command], *(["--temperature", "0"] if command == "import" else [])]
    assert run_command([command, *base]) in (0, 1), capsys.readouterr().err
