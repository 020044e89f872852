"""The project as a user gets it: built, installed into an environment of its own, and its commands run from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.declared import ROOT

# One answer that repeats its prompt, so that drafters have something to find.
LOG = [
    {"id": f"r{i}", "prompt_token_ids": [*range(1, 9), i], "output_token_ids": [*range(1, 9), *range(1, 9), 9, 2]}
    for i in range(16)
]


def copy_of_the_checkout(to: Path) -> Path:
    """What git tracks and nothing else: a build leaves files behind, and takes in those that an earlier one left."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
    return to


class Environment:
    """A virtual environment that sees nothing of the one that made it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self.python = folder / "bin" / "python"

    def run(self, *arguments: str, cwd: Path | None = None, **variables: str) -> str:
        """What a program of the environment writes to stdout, run outside the checkout unless `cwd` says where."""
        # A variable that puts the checkout on the path, or a tool's settings, would hide what is not installed.
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        program = self.folder / "bin" / arguments[0]
        done = subprocess.run(
            [str(program), *arguments[1:]],
            cwd=cwd or self.folder,
            env=kept | variables,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def install(self, *arguments: str) -> None:
        """With pip, quietly."""
        self.run("python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", *arguments)

    def versions(self, names: Sequence[str]) -> dict[str, str]:
        """What is installed of these packages."""
        code = "import json, sys; from importlib.metadata import version; "
        code += "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
        return json.loads(self.run("python", "-c", code, *names))


def try_the_commands(environment: Environment, folder: Path) -> None:
    """A first session of a user who has a log with answers and no model, in an empty folder; raises where one fails."""
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LOG))
    for shown, expected in (
        (["--help"], "analyze"),
        (["inspect", "log.jsonl"], "16 prompts"),
        (["analyze", "log.jsonl"], "suffix"),
        (["report", "--html", "report.html"], "report.html"),
    ):
        said = environment.run("specprobe", *shown, cwd=folder, SPECPROBE_CACHE=str(folder / "cache"))
        assert expected in said, (shown, said)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "</html>" in page
