"""`gate`: what passes, what fails and what is undecided; where thresholds come from; exit codes and files for CI."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_runs import acceptance, document_of, draw_prompts, run_of, shifted

from specprobe.cli import run_command
from specprobe.cost import CostPoint, CostTable
from specprobe.documents import dump_document
from specprobe.errors import SpecprobeError
from specprobe.gate import Gate, GateResult, GateSettings, Measured, run_gate
from specprobe.gate_report import failure_lines, junit_xml, step_summary
from specprobe.gate_settings import KEYS, gate_settings, parse_share
from specprobe.recommend import recommend
from specprobe.recommendation_document import recommendation_document
from specprobe.result_choice import Choice, choose_result
from specprobe.serving import Traffic

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def write(run, name: str) -> str:
    Path(name).write_text(dump_document(document_of(run)))
    return name


def gate(capsys, *arguments: str) -> tuple[int, dict, str]:
    status = run_command(["gate", *arguments, "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else {}, err


@pytest.fixture(scope="module")
def eagle_runs():
    """Mean acceptance length 3.53 at depth 7 on 80 prompts, as published for EAGLE-3 on mt-bench, and a lower one."""
    p, output = draw_prompts(np.random.default_rng(8), 80, a=14.0, b=5.0)
    low, high = -3.0, 3.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        before = run_of(acceptance(np.random.default_rng(0), shifted(p, middle), output, 7))
        length = before.results[0].totals(7).mean_acceptance_length
        low, high = (middle, high) if length < 3.53 else (low, middle)
    return before, run_of(acceptance(np.random.default_rng(1), shifted(p, middle - 0.45), output, 7))


def test_a_published_regression_fails_and_the_same_run_again_passes(capsys, eagle_runs):
    before, after = eagle_runs
    lengths = [run.results[0].totals(7).mean_acceptance_length for run in eagle_runs]
    assert lengths[0] == pytest.approx(3.53, abs=0.02)
    assert 2.6 < lengths[1] < 3.0
    baseline, now = write(before, "before.json"), write(after, "after.json")
    arguments = ("--max-regression", "5%", "--baseline", baseline, "--depth", "7")
    status, document, err = gate(capsys, now, *arguments)
    assert status == 1
    (regression,) = document["gates"]
    assert not document["passed"]
    assert regression["name"] == "max_regression"
    assert regression["threshold"] == 0.05
    assert 0.05 < regression["low"] < regression["point"] < regression["high"]
    assert regression["enough_data"]
    assert err.count("\n") == 1
    assert err.startswith("gate failed: max regression: ")
    status, document, err = gate(capsys, baseline, *arguments)
    assert (status, document["passed"], err) == (0, True, "")
    assert document["gates"][0]["high"] == 0
    for file, expected in ((baseline, 0), (now, 1)):
        status, document, _ = gate(capsys, file, "--min-acceptance-length", "3.2", "--depth", "7")
        assert status == expected
        assert document["gates"][0]["enough_data"]
        assert document["gates"][0]["point"] == pytest.approx(lengths[expected], abs=1e-9)


@pytest.mark.parametrize(
    ("threshold", "is_maximum", "prompts", "verdict"),
    [
        (1.9, False, 40, "passed"),
        (1.8, False, 40, "passed"),
        (2.0, False, 40, "undecided"),
        (2.2, False, 40, "undecided"),
        (2.21, False, 40, "failed"),
        (2.3, True, 40, "passed"),
        (2.2, True, 40, "passed"),
        (2.0, True, 40, "undecided"),
        (1.7, True, 40, "failed"),
        (1.0, False, 15, "undecided"),
    ],
)
def test_it_decides_on_the_interval(threshold, is_maximum, prompts, verdict):
    measured = (
        Measured(2.0, 1.8, 2.2, prompts) if verdict != "passed" or threshold != 1.9 else Measured(2, 1.9, 2.1, 40)
    )
    one = Gate("min_tokens_per_round", threshold, measured, is_maximum)
    assert one.verdict == verdict
    assert one.passed == (verdict == "passed")
    assert one.enough_data == (verdict != "undecided")
    assert replace(one, allow_undecided=True).passed == (verdict != "failed")


def test_what_is_not_defined_fails_even_where_undecided_is_allowed():
    one = Gate("min_acceptance_length", 1.5, Measured(None, None, None, 0), allow_undecided=True)
    assert (one.verdict, one.passed, one.enough_data, one.prompts_needed) == ("failed", False, False, None)


@pytest.mark.slow
def test_the_prompts_that_are_needed_do_decide():
    rng = np.random.default_rng(0)
    p, output = draw_prompts(rng, 20_000)
    truth = acceptance(rng, p, output, 1).totals(1).tokens_per_round
    threshold = truth - 0.02

    def gates(num_prompts: int, count: int):
        for _ in range(count):
            rows = rng.integers(len(p), size=num_prompts)
            run = run_of(acceptance(rng, p[rows], output[rows], 1))
            yield run_gate(run, GateSettings(min_tokens_per_round=threshold)).gates[0]

    small = [one for one in gates(40, 30) if one.verdict == "undecided"]
    assert len(small) > 15
    # The estimate is from each sample's own point; were that the truth, so many would do.
    needed = int(np.median([replace(one, measured=moved(one.measured, truth)).prompts_needed for one in small]))
    assert needed > 80
    decided = [one.verdict == "passed" for one in gates(needed, 60)]
    assert np.mean(decided) > 0.75


def moved(measured: Measured, point: float) -> Measured:
    by = point - measured.point
    return Measured(point, measured.low + by, measured.high + by, measured.prompts)


def test_no_number_of_prompts_decides_at_the_threshold_or_within_the_error_of_the_cost():
    assert Gate("min_speedup", 2.0, Measured(2.0, 1.8, 2.2, 40)).prompts_needed is None
    free = Gate("min_speedup", 1.9, Measured(2.0, 1.7, 2.4, 40))
    assert free.prompts_needed > 100
    assert replace(free, measured=replace(free.measured, log_deviation=0.02)).prompts_needed > free.prompts_needed
    assert replace(free, measured=replace(free.measured, log_deviation=0.05)).prompts_needed is None


def test_the_default_is_the_result_with_the_most_tokens_and_what_is_ambiguous_is_said():
    rng = np.random.default_rng(0)
    p, output = draw_prompts(rng, 20)
    weak, strong = (acceptance(rng, shifted(p, by), output, 3, name) for by, name in ((-1, "ngram"), (0.5, "suffix")))
    run = run_of(weak, strong)
    chosen = choose_result(run, Choice())
    assert (chosen.name, chosen.depth) == ("suffix", 3)
    assert choose_result(run, Choice(drafter="ngram", depth=2)).acceptance is weak
    for choice, said in (
        (Choice(drafter="eagle3"), "--drafter eagle3: the run has ngram, suffix"),
        (Choice(depth=4), "--depth 4: the run has depths 1 to 3"),
        (Choice(temperature=0.5), r"--temperature 0.5: the run has 0$"),
    ):
        with pytest.raises(SpecprobeError, match=said):
            choose_result(run, choice)
    with pytest.raises(SpecprobeError, match=r"--temperature: the run has 0, 0\.7; name one"):
        choose_result(run_of(strong, acceptance(rng, p, output, 3, temperature=0.7)), Choice())
    twice = run_of(*(replace(strong, config={"min": n, "same": 1}) for n in (2, 5)))
    with pytest.raises(SpecprobeError, match=r"suffix:min=2, suffix:min=5 write .* each; name one"):
        choose_result(twice, Choice(drafter="suffix"))
    assert choose_result(twice, Choice(drafter="suffix:min=5")).acceptance is twice.results[1]


def speedup_document(run, **fields) -> dict:
    """What `recommend` says of a run at concurrency 1 and 64, with other figures for its best option and depth 2."""
    points = tuple(
        CostPoint(batch, query, context, 0.01) for batch in (1, 64) for query in (1, 4) for context in (1, 4096)
    )
    cost = CostTable("file", points, drafter_seconds={"eagle3": 0.001})
    document = recommendation_document(recommend(run, 0.0, cost, [Traffic(1), Traffic(64)]))
    for entry, point in zip(document["by_concurrency"], (1.8, 1.05), strict=True):
        for option in entry["options"]:
            if option["depth"] == 2:
                option |= {"speedup": 1.2, "interval": {"speedup": [1.15, 1.25], "level": 0.9}}
        # The best first.
        entry["options"][0] |= {"speedup": point, "interval": {"speedup": [point - 0.1, point + 0.1], "level": 0.9}}
    return document | fields


def test_speedups_are_taken_from_a_recommendation_for_every_concurrency(capsys):
    rng = np.random.default_rng(0)
    p, output = draw_prompts(rng, 30)
    made = run_of(acceptance(rng, p, output, 3))
    run = write(made, "run.json")
    Path("said.json").write_text(json.dumps(speedup_document(made)))
    arguments = (run, "--min-speedup", "1.1", "--recommendation", "said.json")
    status, document, err = gate(capsys, *arguments)
    assert status == 1
    assert [(one["at"], one["verdict"]) for one in document["gates"]] == [
        ("concurrency 1", "passed"),
        ("concurrency 64", "undecided"),
    ]
    # Whose speed-up that is: no other gate's result.
    best = [f"eagle3 {entry['depth']}" for entry in speedup_document(made)["by_concurrency"]]
    assert [one["of"] for one in document["gates"]] == best
    assert f"at concurrency 64 of {best[1]}: 1.05" in err
    assert "would decide" in err
    # The result named, not the best one.
    status, document, _ = gate(capsys, *arguments, "--drafter", "eagle3", "--depth", "2")
    assert status == 0
    assert {(one["point"], one["low"]) for one in document["gates"]} == {(1.2, 1.15)}
    cost = speedup_document(made)["cost"]
    for fields, code, said in (
        ({"engine_profile": "hf@5.24"}, 2, "recommend from this run"),
        ({"undecided": {"code": "loops", "message": "loops everywhere"}}, 1, "loops everywhere"),
        ({"by_concurrency": [{}]}, 2, "damaged recommendation"),
        # As the published schema says, all of it: nothing is made of a part.
        ({"crossover_concurrency": "never"}, 2, "damaged recommendation (crossover_concurrency"),
        ({"cost": cost | {"log_deviation": -1}}, 2, "damaged recommendation (cost.log_deviation"),
        ({"schema": "specprobe.run/1"}, 2, "schema"),
        # A cost that does not reach so far is no ground for a verdict.
        ({"cost": cost | {"batches": [1, 2]}}, 1, "covers batches 1 to 2"),
    ):
        Path("said.json").write_text(json.dumps(speedup_document(made, **fields)))
        status, _, err = gate(capsys, *arguments)
        assert (status, said in err) == (code, True), err


def test_a_speedup_without_an_interval_is_undecided_and_not_damaged(capsys):
    """Of one prompt, or of an engine's sums, a recommendation has points alone."""
    rng = np.random.default_rng(0)
    made = run_of(acceptance(rng, np.array([0.6]), np.array([300]), 3))
    run = write(made, "run.json")
    document = speedup_document(made)
    for entry in document["by_concurrency"]:
        entry["options"][0]["interval"]["speedup"] = [None, None]
    Path("said.json").write_text(json.dumps(document))
    status, found, err = gate(capsys, run, "--min-speedup", "1.1", "--recommendation", "said.json")
    assert status == 1
    assert [(one["verdict"], one["low"]) for one in found["gates"]] == [("undecided", None)] * 2
    assert "damaged" not in err


def test_a_speedup_by_the_clock_is_named_after_its_arrivals(capsys):
    rng = np.random.default_rng(0)
    p, output = draw_prompts(rng, 30)
    made = run_of(acceptance(rng, p, output, 3))
    run = write(made, "run.json")
    points = [
        {"batch": b, "query_tokens": q, "context": c, "seconds": 0.01 * b}
        for b in (1, 1024)
        for q in (1, 4)
        for c in (1, 4096)
    ]
    cost = {"schema": "specprobe.cost/1", "points": points, "drafter_seconds": {"eagle3": 0.001}}
    Path("cost.json").write_text(json.dumps(cost))
    found = {}
    for rate in ("0.25", "2000"):
        assert run_command(["recommend", run, "--cost", "cost.json", "--rate", rate, "--json"]) == 0
        Path("said.json").write_text(capsys.readouterr().out)
        _, document, _ = gate(capsys, run, "--min-speedup", "1.01", "--recommendation", "said.json")
        (found[rate],) = document["gates"]
    assert (found["0.25"]["at"], found["0.25"]["verdict"]) == ("0.25 requests a second", "passed")
    # How large the latencies get there depends on how long it lasts.
    assert (found["2000"]["at"], found["2000"]["verdict"]) == ("2000 requests a second", "undecided")
    assert "keep up" in found["2000"]["undecided_because"]


def test_a_real_recommendation_is_read(capsys):
    rows = [{"id": i, "prompt_token_ids": [*range(1, 9), i], "output_token_ids": [*range(1, 9)] * 3} for i in range(20)]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    points = [
        {"batch": b, "query_tokens": q, "context": c, "seconds": 0.01} for b in (1, 8) for q in (1, 9) for c in (8, 64)
    ]
    Path("cost.json").write_text(json.dumps({"schema": "specprobe.cost/1", "points": points}))
    assert run_command(["analyze", "log.jsonl", "--drafter", "suffix"]) == 0
    capsys.readouterr()
    assert run_command(["recommend", "--cost", "cost.json", "--concurrency", "1,8", "--json"]) == 0
    Path("said.json").write_text(capsys.readouterr().out)
    # The last run; and an option by name.
    for named in ((), ("--drafter", "suffix", "--depth", "4")):
        status, document, err = gate(capsys, "--min-speedup", "1.2", "--recommendation", "said.json", *named)
        assert (status, err) == (0, "")
        assert [one["at"] for one in document["gates"]] == ["concurrency 1", "concurrency 8"]

    # Another run of the same engine and temperature.
    assert run_command(["analyze", "log.jsonl", "--drafter", "suffix", "--max-prompts", "19"]) == 0
    capsys.readouterr()
    assert run_command(["gate", "--min-speedup", "1.2", "--recommendation", "said.json"]) == 2
    assert "was made from another run" in capsys.readouterr().err


@pytest.fixture
def run_file() -> str:
    rng = np.random.default_rng(0)
    p, output = draw_prompts(rng, 40)
    return write(run_of(acceptance(rng, p, output, 2)), "run.json")


def test_thresholds_come_from_the_project_and_the_command_line_wins(capsys, run_file):
    Path("pyproject.toml").write_text("[tool.specprobe.gate]\nmin-tokens-per-round = 9\ndepth = 1\n")
    status, document, _ = gate(capsys, run_file)
    assert (status, document["depth"], document["gates"][0]["threshold"]) == (1, 1, 9)
    status, document, _ = gate(capsys, run_file, "--min-tokens-per-round", "1.01", "--depth", "2")
    assert (status, document["depth"]) == (0, 2)
    Path("specprobe.toml").write_text("[gate]\nmin_acceptance_length = 1.01\n[analyze]\ndepth = 1\n")
    status, document, _ = gate(capsys, run_file)
    assert (status, [one["name"] for one in document["gates"]]) == (0, ["min_acceptance_length"])


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[gate]\nmin_tokens = 2", "min_tokens_per_round"),
        ("[gate]\nmin_tokens_per_round = 'two'", "must be a number"),
        ("[gate]\nallow_undecided = 1", "true or false"),
        ("[gate]\ndepth = 1.5", "whole number"),
        ("gate = 3", "no table"),
        ("[gate", "not TOML"),
        ("[gate]\nmax_regression = 'much'", "5%"),
        ("[gate]\nmax_regression = 0.05", "--baseline"),
        ("[gate]\nmax_regression = '120%'\nbaseline = 'run.json'", "below 1"),
        ("", "no threshold"),
    ],
)
def test_settings_that_make_no_sense_are_refused(capsys, run_file, toml, said):
    Path("specprobe.toml").write_text(toml)
    status, _, err = gate(capsys, run_file)
    assert status == 2
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--min-speedup", "1.1"),
        ("--baseline", "run.json", "--min-tokens-per-round", "1"),
        ("--min-tokens-per-round", "nan"),
        ("--min-tokens-per-round", "-1"),
        ("--max-regression", "x%"),
        ("--min-tokens-per-round", "1", "--junit", "."),
        ("--max-regression", "5%", "--baseline", "absent.json"),
    ],
)
def test_mistakes_exit_with_2(capsys, run_file, arguments):
    status, document, err = gate(capsys, run_file, *arguments)
    assert (status, document) == (2, {})
    assert err.startswith("error: ")


def test_every_key_of_the_file_is_a_setting():
    given = {
        "min_acceptance_length": 2.0,
        "min_speedup": 1.1,
        "min_tokens_per_round": 1.5,
        "max_regression": 0.05,
        "baseline": Path("a"),
        "recommendation": Path("b"),
        "drafter": "suffix",
        "depth": 3,
        "temperature": 0.7,
        "allow_undecided": True,
        "force": True,
    }
    assert set(given) == set(KEYS)
    settings = gate_settings(given, Path())
    assert settings.choice == Choice("suffix", 3, 0.7)
    assert all(getattr(settings, key) == value for key, value in given.items() if hasattr(settings, key))
    assert parse_share("5 %", "x") == parse_share("0.05", "x") == parse_share("5%", "x") == 0.05


def test_a_baseline_that_is_not_comparable_is_refused_unless_forced(capsys, run_file):
    document = json.loads(Path(run_file).read_text())
    Path("old.json").write_text(json.dumps(document | {"engine_profile": "vllm@0.30"}))
    arguments = (run_file, "--max-regression", "5%", "--baseline", "old.json")
    status, _, err = gate(capsys, *arguments)
    assert status == 2
    assert "engine rules" in err
    status, document, _ = gate(capsys, *arguments, "--force")
    assert status == 0
    assert document["baseline_differences"] == [{"what": "engine rules", "baseline": "vllm@0.30", "run": "vllm@0.33"}]
    rng = np.random.default_rng(0)
    p, output = draw_prompts(rng, 40)
    write(run_of(acceptance(rng, p, output, 2, "suffix")), "old.json")
    assert "has no eagle3" in gate(capsys, *arguments)[2]


def hostile_result(eagle_runs) -> GateResult:
    run, _ = eagle_runs
    chosen = choose_result(run, Choice(depth=7))
    name = 'a|<b>&"\x00\x1b[31m\ud800\n`*_'
    gates = (Gate("min_tokens_per_round", 2.0, Measured(1.9, 1.8, 2.1, 40)), Gate("min_acceptance_length", 3.0,
             Measured(4.0, 3.9, 4.1, 40)))  # fmt: skip
    return GateResult(run, replace(chosen, name=name), gates, allow_undecided=False)


def test_junit_is_well_formed_whatever_a_drafter_is_called(eagle_runs):
    suites = ElementTree.fromstring(junit_xml(hostile_result(eagle_runs)))
    assert (suites.get("tests"), suites.get("failures")) == ("2", "1")
    undecided, passed = suites.iter("testcase")
    assert 'a|<b>&"' in undecided.get("classname")
    assert "\\x1b" in undecided.get("classname")
    assert "would decide" in undecided.find("failure").get("message")
    assert passed.find("failure") is None


def test_the_summary_keeps_markdown_and_html_from_meaning_anything(eagle_runs):
    result = hostile_result(eagle_runs)
    summary = step_summary(result)
    assert summary.startswith("### specprobe gate: failed\n")
    assert r"a\|\<b\>\&" in summary
    assert "\x1b" not in summary
    rows = [line for line in summary.splitlines() if line.startswith("| min")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)
    assert len(failure_lines(result)) == 1


def test_files_are_written_and_the_summary_is_appended(capsys, run_file, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "github.md")
    arguments = [run_file, "--min-tokens-per-round", "9", "--junit", "out/gate.xml"]
    for _ in range(2):
        assert gate(capsys, *arguments)[0] == 1
    assert Path("github.md").read_text().count("### specprobe gate: failed") == 2
    assert ElementTree.parse("out/gate.xml").getroot().get("failures") == "1"
    assert gate(capsys, *arguments, "--summary", "mine.md")[0] == 1
    assert Path("mine.md").read_text().count("###") == 1
    assert Path("github.md").read_text().count("###") == 2


def test_the_reports_are_for_people(capsys, eagle_runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    before, after = write(eagle_runs[0], "before.json"), write(eagle_runs[1], "after.json")
    assert run_command(["compare", before, after]) == 0
    out, _ = capsys.readouterr()
    assert "lower" in out
    assert "The smallest difference that these prompts show 9 times out of 10" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert run_command(["compare", before, after, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (result,) = document["results"]
    assert document["schema"] == "specprobe.compare/1"
    assert (result["significant"], result["standing"], result["prompts"]) == (True, "lower", 80)
    assert run_command(["gate", after, "--min-tokens-per-round", "3.5", "--depth", "7"]) == 1
    out, err = capsys.readouterr()
    assert "failed: min tokens per round" in out
    assert err.count("\n") == 1


@pytest.mark.slow
def test_the_workflow_of_the_docs_runs_as_a_script(tmp_path):
    page = (ROOT / "docs" / "ci.md").read_text()
    (workflow,) = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    indented = re.search(r"^( +)run: \|\n((?:\1  .*\n)+)", workflow, re.M)
    script = re.sub(r"^ +", "", indented[2], flags=re.M)
    assert script.count("specprobe ") == 3
    script = re.sub(r"^specprobe ", f"{sys.executable} -m specprobe ", script, flags=re.M)
    (command,) = re.findall(r"`(specprobe analyze prompts\.jsonl [^`]*baseline\.json)`", page)
    rng = np.random.default_rng(0)

    def rows(noise: float) -> str:
        """Texts that repeat a cycle, with so many of their tokens replaced."""
        written = []
        for number in range(24):
            tokens = np.arange(120 + number) % 7
            tokens = np.where(rng.random(len(tokens)) < noise, rng.integers(7, 30, len(tokens)), tokens)
            prompt = [*range(7), 100 + number]
            written.append({"id": f"r{number}", "prompt_token_ids": prompt, "output_token_ids": tokens.tolist()})
        return "".join(json.dumps(row) + "\n" for row in written)

    def shell(text: str) -> subprocess.CompletedProcess:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "PYTHONPATH": path}
        # As GitHub runs it.
        return subprocess.run(
            ["bash", "-e", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    (tmp_path / "prompts.jsonl").write_text(rows(0.1))
    assert shell(command.replace("specprobe", f"{sys.executable} -m specprobe", 1)).returncode == 0
    unchanged = shell(script)
    assert unchanged.returncode == 0, unchanged.stderr
    assert "not significant" in " ".join(unchanged.stdout.split())
    (tmp_path / "prompts.jsonl").write_text(rows(0.3))
    worse = shell(script)
    assert worse.returncode == 1
    assert "gate failed: max regression" in worse.stderr
    assert ElementTree.parse(tmp_path / "gate.xml").getroot().get("failures") == "1"
    assert (tmp_path / "summary.md").read_text().count("### specprobe gate") == 2
