"""A full disk under whatever a command writes: one line, status 2, and what was there before is there still."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from specprobe import spool, tables
from specprobe.cli import run_command
from specprobe.errors import SpecprobeError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of files are of POSIX")

FULL = 2048
COST = {
    "schema": "specprobe.cost/1",
    "points": [
        {"batch": b, "query_tokens": q, "context": c, "seconds": 0.01} for b in (1, 8) for q in (1, 9) for c in (8, 512)
    ],
}


@contextmanager
def full_disk(limit: int = FULL):
    """No file may grow beyond so many bytes: writes end as they do on a full disk."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def run_on_a_full_disk(arguments: list[str], limit: int) -> tuple[int, str, str]:
    """In a process of its own, whose output goes through pipes, which no limit of files holds for."""
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(out_end, 1)
        os.dup2(err_end, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        with full_disk(limit):
            status = run_command(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    os.close(out_end)
    os.close(err_end)
    with os.fdopen(out) as printed, os.fdopen(err) as told:
        shown = printed.read(), told.read()
    return os.WEXITSTATUS(os.waitpid(child, 0)[1]), *shown


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A run, and a log of token ids that needs no model."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"id": f"r{n}", "prompt_token_ids": [1, 2, n], "output_token_ids": [1, 2, n, 1, 2, n, 4]} for n in range(40)
    ]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("cost.json").write_text(json.dumps(COST))
    assert run_command(["analyze", "log.jsonl", "--depth", "3", "--out", "run.json"]) == 0
    return tmp_path


# What is run, and the file with which it replaces an older one; None: one of the project's own folder.
COMMANDS = {
    "analyze": (["analyze", "log.jsonl", "--depth", "3"], None),
    "analyze --out": (["analyze", "log.jsonl", "--depth", "3", "--out", "file"], "file"),
    "recommend": (["recommend", "run.json", "--cost", "cost.json"], None),
    "report --html": (["report", "run.json", "--html", "file"], "file"),
    "export --rows": (["export", "run.json", "--rows", "file.csv"], "file.csv"),
    "export --rows parquet": (["export", "run.json", "--rows", "file.parquet"], "file.parquet"),
    "gate --junit": (
        ["gate", "run.json", "--min-tokens-per-round", "0.5", "--junit", "file", "--allow-undecided"],
        "file",
    ),
    "gate --summary": (
        ["gate", "run.json", "--min-tokens-per-round", "0.5", "--summary", "f", "--allow-undecided"],
        None,
    ),
    "export --engine --out": (["export", "run.json", "--engine", "profile", "--out", "file"], "file"),
}


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_line_and_destroys_nothing(project, name):
    arguments, replaced = COMMANDS[name]
    if replaced:
        Path(replaced).write_bytes(b"what was here before\n")
    before = files(project)
    # Some of the files are small.
    status, out, err = run_on_a_full_disk(arguments, 64 if "gate" in name or "engine" in name else FULL)
    told = [line for line in err.splitlines() if line.startswith("error: ")]
    assert status == 2, err
    assert len(told) == 1
    assert "the disk is full; free some space" in told[0]
    after = files(project)
    assert {path: after.get(path) for path in before} == before
    # No half-written file under a name that anything reads, and none left lying about.
    assert set(after) - set(before) <= {project / "f"}
    assert not [path for path in after if path.name.startswith(".") and path.name != ".gitignore"]
    # What was computed is shown all the same.
    assert out or "export" in name or "report" in name
    assert run_command(arguments) == 0


def test_one_full_disk_of_two_does_not_keep_the_run_from_the_other(project, monkeypatch, capfd):
    from specprobe import run_files

    write = run_files._write

    def full_at_home(text, path):
        with full_disk(10) if ".specprobe" in path.parts else nullcontext():
            write(text, path)

    monkeypatch.setattr(run_files, "_write", full_at_home)
    assert run_command(["analyze", "log.jsonl", "--depth", "3", "--out", "elsewhere.json"]) == 2
    assert "the disk is full" in capfd.readouterr().err
    assert Path("elsewhere.json").read_bytes() == Path("run.json").read_bytes()


@pytest.mark.parametrize(
    "write",
    [lambda: spool.Spool(range(1000)), lambda: tables.GrowingTable(1000, (3,), np.int32).finished()],
    ids=["records", "counts"],
)
def test_a_full_disk_under_what_waits_there(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    for module in (spool, tables):
        monkeypatch.setattr(module, "MEMORY_BYTES", 0)
    # Half of a block fits.
    with full_disk(100), pytest.raises(SpecprobeError, match="the disk is full; free some space"):
        write()
    write()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device is of Linux")
@pytest.mark.parametrize("flags", [[], ["--json"], ["--plain"], ["--details"]], ids=str)
def test_a_full_disk_under_standard_output(project, flags):
    child = os.fork()
    if child == 0:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        os.dup2(os.open("err", os.O_WRONLY | os.O_CREAT), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os._exit(run_command(["analyze", "log.jsonl", "--depth", "3", "--out", "kept.json", *flags]))
    _, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) == 2
    assert Path("err").read_text().splitlines()[-1].startswith("error: standard output: the disk is full")
    assert Path("kept.json").read_bytes() == Path("run.json").read_bytes()
