"""Every command that README and docs show is parsed by the real command line, and run where it can be."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from specprobe.cli import app, run_command
from specprobe.command_group import describe_defaults
from specprobe.cost_files import read_cost_file
from specprobe.profiles import PROFILES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "workloads" / "README.md"]


def blocks(page: Path) -> Iterator[str]:
    """Fenced shell blocks, and indented ones."""
    text = page.read_text()
    yield from (match.group(1) for match in re.finditer(r"^```(?:bash|console|sh)\n(.*?)^```", text, re.M | re.S))
    yield from (match.group(0) for match in re.finditer(r"^    specprobe .*\n", text, re.M))


def commands() -> list[list[str]]:
    """The arguments of every `specprobe ...` in the pages, in order."""
    found = []
    for page in PAGES:
        for block in blocks(page):
            for part in re.split(r"&&|\n", block.replace("\\\n", " ")):
                shown = part.strip().removeprefix("$ ")
                # The rest of a session is output, and need not be shell at all.
                if re.match(r"(\S*/)?specprobe ", shown):
                    found.append(shlex.split(shown, comments=True)[1:])
    return found


def can_run(arguments: list[str]) -> bool:
    """Only what needs neither the Hub nor a file that a reader would have to bring."""
    if {"--target", "--tokenizer", "--cost", "--ladder"} & set(arguments):
        return False
    # Points are a reader's own; those that a page gives are calibrated on below. So are the runs of a gate.
    if arguments[0] in ("calibrate", "compare", "gate", "import", "bench"):
        return False
    if {"--metrics", "--recommendation"} & set(arguments):
        return False
    # Names a drafter of a run of the reader's own.
    if arguments[0] == "export" and "--drafter" in arguments:
        return False
    if arguments[0] == "report":
        return "before.json" not in arguments
    if arguments[0] in ("inspect", "analyze"):
        return (ROOT / arguments[1]).exists()
    return True


COMMANDS = commands()


def test_there_are_commands_to_test():
    assert len([c for c in COMMANDS if can_run(c)]) >= 4


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_that_is_shown_can_be_parsed(arguments):
    group = typer.main.get_command(app)
    if arguments[0].startswith("-"):
        group.make_context("specprobe", list(arguments), resilient_parsing=True)
        return
    command = group.commands[arguments[0]]
    command.make_context(arguments[0], list(arguments[1:]))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_commands_that_are_shown_work_in_the_order_shown(tmp_path, monkeypatch, capsys):
    (tmp_path / "workloads").symlink_to(ROOT / "workloads")
    monkeypatch.chdir(tmp_path)
    done = set()
    for arguments in filter(can_run, COMMANDS):
        if tuple(arguments) in done:
            continue
        done.add(tuple(arguments))
        assert run_command(arguments) == 0, arguments
        assert capsys.readouterr().out


def test_the_two_readme_commands_are_there_and_ci_runs_the_second():
    readme = (ROOT / "README.md").read_text()
    job = re.search(r"^<!-- main job -->\n```bash\n(.*?)^```", readme, re.M | re.S).group(1)
    tests = re.search(r"^<!-- tests -->\n```bash\n(.*?)^```", readme, re.M | re.S).group(1)
    assert "specprobe analyze" in job
    assert "specprobe recommend" in job
    for tool in ("ruff check", "ruff format --check", "mypy", "pytest"):
        assert tool in tests
    assert "<!-- tests -->" in (ROOT / ".ci" / "run").read_text()


def test_the_page_of_engines_names_every_profile_and_what_each_refuses():
    page = (ROOT / "docs" / "engines.md").read_text()
    for profile in PROFILES:
        assert f"`{profile.name}`" in page
        row = next(line for line in page.splitlines() if line.startswith(f"| `{profile.engine.partition('-v')[0]}..."))
        positions = [row.find(step.replace("_", "-")) for step in profile.processing.order]
        assert positions == sorted(positions)
        assert -1 not in positions
        *_, refused = row.strip("| ").split(" | ")
        for setting in profile.processing.without:
            words = ("penalties", setting.partition("_")[0]) if setting.endswith("penalty") else ("`--min-p`",)
            assert any(word in refused for word in words), (profile.name, setting)
    for setting in {lossy.split()[0] for profile in PROFILES for lossy in profile.lossy}:
        assert setting in page


def test_the_benchmarks_that_a_page_names_can_be_run():
    from tests.benchmarks.peers.__main__ import COMPARISONS, parser

    page = (ROOT / "docs" / "benchmarks.md").read_text()
    shown = re.findall(r"^python -m tests\.benchmarks\.peers(.*)$", page, re.M)
    assert shown
    for line in shown:
        asked = parser().parse_args(shlex.split(line))
        assert set(asked.names) <= set(COMPARISONS)
    assert all(f"`{name}`" in page for name in COMPARISONS)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_scripts_among_the_tests_that_are_shown_are_there_and_say_how_they_are_run():
    shown = {name for page in PAGES for name in re.findall(r"python -m tests\.(\w+(?:\.\w+)*)", page.read_text())}
    assert {"bounds", "gpu_check", "licences", "studies.statistics", "benchmarks.peers"} <= shown
    for name in shown:
        place = ROOT / "tests" / name.replace(".", "/")
        script = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
        assert f"python -m tests.{name}" in script.read_text()


def test_the_constraints_hold_every_pinned_dependency_in_range():
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and line[0] != "#"
    )
    project = (ROOT / "pyproject.toml").read_text()
    assert pinned["torch"] == "2.13.0"
    dependencies = re.search(r"^dependencies = \[(.*?)^\]", project, re.M | re.S).group(1)
    names = set(re.findall(r'"([\w-]+)>=', dependencies))
    assert {"typer", "numpy", "matplotlib"} < names
    assert names <= pinned.keys()


def test_the_drafter_of_the_docs_runs_as_shown(tmp_path, monkeypatch, capsys):
    (source,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "custom-drafter.md").read_text(), re.M | re.S)
    (tmp_path / "my_drafter.py").write_text(source)
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "prompt_token_ids": [1], "output_token_ids": [2, 2, 2, 3]}\n')
    monkeypatch.chdir(tmp_path)
    arguments = ["analyze", "rows.jsonl", "--drafter", "python:my_drafter:LastTokenAgain", "--depth", "2", "--json"]
    assert run_command(arguments) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["config"]["note"] == "kept with the result"
    assert result["per_prompt"][1]["accepted_at"] == [1, 1]


def test_the_points_of_the_docs_are_calibrated_on_as_shown(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "cost.md").read_text()
    cost_table, points = re.findall(r"^```csv\n(.*?)^```", page, re.M | re.S)
    (document,) = re.findall(r"^```json\n(.*?)^```", page, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    for name, content in (("points.csv", points), ("by_hand.csv", cost_table), ("by_hand.json", document)):
        Path(name).write_text(content)
    shown = [arguments for arguments in COMMANDS if arguments[:2] == ["calibrate", "points.csv"]]
    assert shown
    for arguments in shown:
        assert run_command(arguments) == 0
    # The figures of the page are plausible ones: no point is far from the fit.
    assert "warning" not in capsys.readouterr().out
    for name in ("cost.json", "by_hand.csv", "by_hand.json"):
        assert read_cost_file(Path(name)).points


def test_the_settings_of_the_readme_are_taken_as_shown(tmp_path):
    (shown,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    (tmp_path / "specprobe.toml").write_text(shown)
    found, fault = describe_defaults(typer.main.get_command(app), tmp_path)
    assert fault is None
    assert {one.where for one in found} == {"specprobe.toml [analyze]", "specprobe.toml [recommend]"}
