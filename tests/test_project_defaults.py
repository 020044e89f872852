"""Defaults of a project: under the command line, checked by name, told on stderr."""

import json
from pathlib import Path

import pytest
import typer

from specprobe.cli import app, run_command
from specprobe.command_group import describe_defaults, options_of
from specprobe.project_defaults import ALTERNATIVES, LISTS, PATHS_TO_READ, WITHOUT_DEFAULTS

ROWS = '{"id": "a", "prompt_token_ids": [1, 2, 1], "output_token_ids": [2, 1, 2, 1, 2, 3]}\n'
COMMANDS = typer.main.get_command(app).commands


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(ROWS)


def analyze(capsys, *arguments: str) -> tuple[int, dict, str]:
    status = run_command(["analyze", "rows.jsonl", "--json", *arguments])
    out, err = capsys.readouterr()
    return status, json.loads(out) if status == 0 else {}, err


def test_the_file_fills_in_what_the_command_line_leaves_open(capsys):
    Path("specprobe.toml").write_text('[analyze]\nengine = "vllm@0.30"\ndepth = 3\ndrafter = "ngram:min=1,max=2"\n')
    status, run, err = analyze(capsys)
    assert status == 0
    assert (run["engine_profile"], run["settings"]["depth"]) == ("vllm@0.30", 3)
    assert run["settings"]["drafters"] == ["ngram:min=1,max=2"]
    assert err.splitlines()[0] == "defaults from specprobe.toml [analyze]: --engine, --depth, --drafter"


def test_the_command_line_wins_and_only_what_counts_is_told(capsys):
    Path("specprobe.toml").write_text('[analyze]\nengine = "vllm@0.30"\ndepth = 3\ndedupe = true\n')
    status, run, err = analyze(capsys, "--depth", "2", "--no-dedupe", "--engine", "hf", "--drafter", "ngram")
    assert status == 0
    assert (run["settings"]["depth"], run["settings"]["dedupe"], run["settings"]["engine"]) == (2, False, "hf")
    assert "defaults from" not in err


def test_pyproject_counts_where_the_own_file_has_no_such_table(capsys):
    Path("pyproject.toml").write_text("[project]\nname = 'x'\n[tool.specprobe.analyze]\nmax_prompts = 1\ndepth = 4\n")
    Path("specprobe.toml").write_text("[gate]\ndepth = 1\n")
    status, run, err = analyze(capsys)
    assert (status, run["settings"]["depth"]) == (0, 4)
    assert "pyproject.toml [tool.specprobe.analyze]: --max-prompts, --depth" in err
    Path("specprobe.toml").write_text("[analyze]\ndepth = 5\n")
    assert analyze(capsys)[1]["settings"]["depth"] == 5
    assert analyze(capsys)[1]["settings"]["max_prompts"] is None


def test_lists_and_tables_stand_for_their_text(capsys):
    Path("specprobe.toml").write_text('[analyze]\ntemperature = 0.5\ndrafter = ["ngram", "suffix"]\n')
    _, run, _ = analyze(capsys)
    assert run["settings"]["temperatures"] == [0.5]
    Path("specprobe.toml").write_text("[analyze]\nchat-template-kwargs = {enable_thinking = false}\n")
    assert analyze(capsys)[0] == 0


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (
            "[analyze]\ndeph = 3",
            "specprobe.toml [analyze]: 'deph' is not known; there are target, server-model, timeout, drafter",
        ),
        ("[analyze]\ndepth = '3'", "specprobe.toml [analyze] depth: must be a whole number"),
        ("[analyze]\ndepth = true", "must be a whole number"),
        ("[analyze]\ntop_p = 'x'", "specprobe.toml [analyze] top_p: must be a number"),
        ("[analyze]\nengine = 3", "must be text"),
        ("[analyze]\ndrafter = [1]", "must be text, or a list of texts"),
        ("[analyze]\ntemperature = [true]", "must be a number, a list of numbers"),
        ("[analyze]\ndraft-sampling = 'beam'", "must be one of greedy, sampled, both"),
        ("[analyze]\ndedupe = 1", "must be true or false"),
        ("[analyze]\nmax-prompts = 1\nmax_prompts = 2", "there twice"),
        ("[analyze]\ntrust-remote-code = true", "is said on the command line only, --trust-remote-code"),
        ("[analyze]\nout = 'x.json'", "is said on the command line only, --out"),
        ("[analyze]\nladder = 'x'", "is said on the command line only"),
        ("[analyze]\ndrafter = 'python:evil:Drafter'", "on the command line only, since naming it runs its code"),
        ("[analyze]\ndrafter = 'hybrid:suffix+python:evil:Drafter'", "runs its code"),
        ("[anlyze]\ndepth = 3", "specprobe.toml [anlyze]: is no command with settings"),
        ("depth = 3", "specprobe.toml [depth]: is no command with settings"),
        ("[doctor]\nnetwork = true", "is no command with settings"),
        ("analyze = 3", "specprobe.toml [analyze]: is no table"),
        ("[analyze", "specprobe.toml: not TOML"),
        ("[analyze]\nchat-template-kwargs = {day = 2020-01-01}", "JSON"),
    ],
)
def test_what_makes_no_sense_is_refused_by_file_and_name(capsys, toml, said):
    Path("specprobe.toml").write_text(toml)
    status, _, err = analyze(capsys)
    assert (status, err.count("\n")) == (2, 1)
    assert said in err


def test_help_and_doctor_work_with_a_broken_file_and_doctor_tells(capsys):
    Path("specprobe.toml").write_text("[analyze]\ndeph = 3\n")
    assert run_command(["analyze", "--help"]) == 0
    capsys.readouterr()
    group = typer.main.get_command(app)
    assert "'deph'" in str(describe_defaults(group, Path.cwd())[1])
    Path("specprobe.toml").write_text("[analyze]\ndepth = 3\n[gate]\nmin-tokens-per-round = 1.2\n")
    found, fault = describe_defaults(group, Path.cwd())
    assert fault is None
    assert [(one.where, list(one.values)) for one in found] == [
        ("specprobe.toml [analyze]", ["depth"]),
        ("specprobe.toml [gate]", ["min-tokens-per-round"]),
    ]


def test_an_option_silences_the_files_others_of_which_it_is_one(capsys):
    assert analyze(capsys, "--depth", "2")[0] == 0
    Path("specprobe.toml").write_text('[recommend]\ngpu = "h100"\ntarget = "SmolLM2-135M"\nconcurrency = [1, 4]\n')
    status = run_command(["recommend", "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    assert [entry["concurrency"] for entry in json.loads(out)["by_concurrency"]] == [1, 4]
    # A rate is no concurrency, and a cost file no GPU.
    assert run_command(["recommend", "--rate", "1"]) == 0
    assert "defaults from specprobe.toml [recommend]: --gpu, --target\n" in capsys.readouterr().err
    assert run_command(["recommend", "--cost", "none.json"]) == 2
    err = capsys.readouterr().err
    assert "none.json: No such file" in err
    assert "--gpu" not in err


def test_the_options_named_here_are_those_of_the_command_line():
    flags = {name: {option.flag for option in options_of(command)} for name, command in COMMANDS.items()}
    assert set(flags) >= WITHOUT_DEFAULTS
    every = set().union(*flags.values())
    assert every >= PATHS_TO_READ | LISTS
    for command, groups in ALTERNATIVES.items():
        assert flags[command] >= {flag for group in groups for flag in group}
