"""Completion, asked as shells ask: by environment variables, in a process of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specprobe import completion
from specprobe.drafters import NAMES
from specprobe.hardware import hardware_names
from specprobe.profiles import PROFILES


def offered(*words: str, shell: str = "bash", folder: Path | None = None) -> list[str]:
    """What is offered for the last of the words."""
    command = ["specprobe", *words]
    environment = {
        **os.environ,
        "_SPECPROBE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": " ".join(command),
        "COMP_CWORD": str(len(command) - 1),
        "_TYPER_COMPLETE_ARGS": " ".join(command),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    arguments = [sys.executable, "-m", "specprobe"]
    found = subprocess.run(arguments, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert not found.stderr
    return found.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("rec",), ["recommend"]),
        (("analyze", "x.jsonl", "--engine", "vllm-v1"), ["vllm-v1", "vllm-v1@0.32", "vllm-v1@0.33"]),
        (("recommend", "--gpu", "h2"), ["h200", "h20"]),
        (("calibrate", "--gpu", "rtx409"), ["rtx4090", "rtx4090-mobile"]),
        (("analyze", "--drafter", "e"), ["eagle:", "eagle3:", "early-exit:"]),
        (("inspect", "--format", "swe"), ["swe-agent", "swe-bench"]),
        (("analyze", "--temperature", "l"), ["log"]),
        (("analyze", "--draft-sampling", "s"), ["sampled"]),
        (("schema", "reco"), ["recommendation"]),
        (("analyze", "--max-p"), ["--max-prompts"]),
    ],
)
def test_values_are_offered(words, expected):
    assert offered(*words) == expected


def test_runs_are_offered_newest_first_then_files_and_folders(tmp_path):
    (tmp_path / ".specprobe" / "runs").mkdir(parents=True)
    for name in ("1.json", "2.json"):
        (tmp_path / ".specprobe" / "runs" / name).write_text("{}")
    for name in ("a.json", "b.txt"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "old").mkdir()
    runs = [".specprobe/runs/2.json", ".specprobe/runs/1.json"]
    assert offered("recommend", "", folder=tmp_path)[:4] == [*runs, "a.json", "old/"]
    assert offered("gate", "--baseline", "a", folder=tmp_path) == ["a.json"]


def test_a_defect_of_the_settings_does_not_silence_completion(tmp_path):
    (tmp_path / "specprobe.toml").write_text("[broken")
    assert offered("analyze", "--temperature", "", folder=tmp_path) == ["log"]


def test_everything_that_there_is_is_offered():
    assert {name.rstrip(":") for name in completion.drafters("")} == set(NAMES)
    assert {profile.name for profile in PROFILES} <= set(completion.engines(""))
    assert completion.gpus("") == list(hardware_names())


def test_nothing_heavy_is_imported_for_it():
    script = (
        "import sys, specprobe.cli; from specprobe import completion as c; "
        "[offer('') for offer in (c.engines, c.gpus, c.drafters, c.formats, c.runs, c.document_names)]; "
        "print(sorted({'torch', 'numpy', 'numba', 'transformers', 'rich'} & set(sys.modules)))"
    )
    root = str(Path(__file__).parents[1])
    begin = time.monotonic()
    found = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    # 0.35 s where nothing else runs.
    assert time.monotonic() - begin < 20
