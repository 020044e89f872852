"""The project with the oldest or the newest dependencies that pyproject.toml allows, in an environment of its own.

    python -m tests.bounds oldest
    python -m tests.bounds newest --instead torch==2.13.0

Builds the wheel, installs it into a fresh environment with those versions, runs the tests that touch the dependencies
most, and then the commands as a user runs them, the embedded target included. `--instead` takes another version of a
dependency, where the package index has none for this machine at that end, and the result says so. The last line is
JSON; exits with 1 if anything failed, which is kept to look at.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from specprobe.embedded import WHEEL
from tests.declared import ROOT, dependencies, extra, lower_bound
from tests.fresh import Environment, copy_of_the_checkout, try_the_commands

# Each dependency is used for real in one of them; together they take a few minutes.
TESTS = (
    "test_replay", "test_drafters", "test_draft_models", "test_heads", "test_generate", "test_target", "test_tokens",
    "test_sampling_settings", "test_llama", "test_rows", "test_sources", "test_export", "test_roofline_cost",
    "test_calibrate", "test_page", "test_terminal", "test_completion", "test_doctor",
)  # fmt: skip
# What these tests import beside the project.
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "jsonschema-rs")


def wanted(end: str, instead: Sequence[Requirement] = ()) -> list[Requirement]:
    """What pip is to keep to: each lower bound as the only version, or the ranges as they are declared.

    `instead` replaces what would be asked for a dependency; a name that is none is refused.
    """
    replaced = {requirement.name: requirement for requirement in instead}
    declared = dependencies()
    unknown = replaced.keys() - {requirement.name for requirement in declared}
    if unknown:
        raise SystemExit(f"--instead: {', '.join(sorted(unknown))} is no dependency of pyproject.toml")
    if end == "oldest":
        declared = [Requirement(f"{one.name}=={lower_bound(one)}") for one in declared]
    return [replaced.get(one.name, one) for one in declared]


def arguments() -> argparse.ArgumentParser:
    """The options of this script."""
    parser = argparse.ArgumentParser(prog="python -m tests.bounds", description=__doc__.splitlines()[0])
    parser.add_argument("end", choices=("oldest", "newest"))
    parser.add_argument(
        "--instead", metavar="NAME==VERSION", type=Requirement, action="append", default=[], help="may be repeated"
    )
    parser.add_argument("--all-tests", action="store_true", help="all fast tests, not only those of the dependencies")
    return parser


def build(work: Path) -> Path:
    """The wheel of what git tracks here."""
    source = copy_of_the_checkout(work / "source")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(work / "wheel"), str(source)], check=True
    )
    (wheel,) = (work / "wheel").glob("*.whl")
    return wheel


def try_all(environment: Environment, work: Path, *, all_tests: bool) -> str | None:
    """What failed, or nothing."""
    chosen = [] if all_tests else [f"tests/{name}.py" for name in TESTS]
    try:
        environment.run("python", "-m", "pytest", "-p", "no:cacheprovider", *chosen, cwd=ROOT)
        try_the_commands(environment, work / "session")
        log = str(ROOT / "workloads" / "code_repair.jsonl")
        few = ("--max-prompts", "4", "--max-new-tokens", "16")
        environment.run("specprobe", "analyze", log, *few, cwd=work / "session", SPECPROBE_CACHE=str(work / "cache"))
        environment.run("specprobe", "doctor", cwd=work / "session")
    except subprocess.CalledProcessError as error:
        if error.stdout:
            print(error.stdout)
        return " ".join(map(str, error.cmd[:6]))
    except AssertionError as error:
        return str(error)
    return None


def main() -> None:
    given = arguments().parse_args()
    started = time.monotonic()
    asked = wanted(given.end, given.instead)
    work = Path(tempfile.mkdtemp(prefix="specprobe-bounds-"))
    environment = Environment(work / "environment")
    (work / "constraints.txt").write_text("".join(f"{requirement}\n" for requirement in asked))
    tools = [str(one) for one in extra("dev") if one.name in TOOLS]
    environment.install("-c", str(work / "constraints.txt"), str(build(work)), *tools)
    environment.install("--no-deps", WHEEL)
    versions = environment.versions([requirement.name for requirement in asked])
    for name, version in versions.items():
        print(f"{name} {version}")
    failed = try_all(environment, work, all_tests=given.all_tests)
    result = {
        "end": given.end,
        "instead": [str(requirement) for requirement in given.instead],
        "versions": versions,
        "failed": failed,
        "seconds": round(time.monotonic() - started),
    }
    if failed is None:
        shutil.rmtree(work)
    else:
        print(f"kept to look at: {work}")
    print(json.dumps(result))
    sys.exit(failed is not None)


if __name__ == "__main__":
    main()
