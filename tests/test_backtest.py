"""The back-test: which rows are judged and why others are not, the document, calibration, and the published table."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from benchmarks.validation_tables import print_scores

from specprobe.backtest import GROUPS, backtest, crossover_error, depth_sweeps
from specprobe.cli import run_command
from specprobe.errors import SpecprobeError
from specprobe.published import COLUMNS, read_table

INVENTED = Path(__file__).parent / "published_invented.csv"
SHARED = Path(os.environ.get("SPECPROBE_SHARED") or Path(__file__).parents[2] / "shared")
PUBLISHED = SHARED / "data" / "published" / "results.csv"
KEYS = {
    *("name", "rows_used", "verdict_accuracy", "loss_accuracy", "median_abs_error", "p90_abs_error"),
    *("median_abs_error_of_nulls", "mean_depth_regret", "crossovers_within_one_step"),
}
needs_published = pytest.mark.skipif(not PUBLISHED.is_file(), reason="the shared table of published results is absent")


def test_rows_are_used_or_refused_by_reason() -> None:
    result = backtest(INVENTED)
    assert {name: score.rows_used for name, score in result.groups.items()} == {"modern": 5, "legacy": 3, "anchored": 2}
    assert dict(result.refused) == {
        "headline": 1,
        "suspect": 1,
        "missing_num_gpus": 1,
        "missing_engine": 1,
        "missing_model_shape": 1,
        "missing_hardware": 1,
        "missing_method": 1,
        "missing_depth": 1,
        "missing_concurrency": 1,
        "missing_acceptance_length": 1,
        "missing_speedup": 1,
    }


def test_the_document_has_the_keys_of_the_design(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["backtest", str(INVENTED), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "specprobe.backtest/1"
    assert document["mode"] == "cold"
    assert [group["name"] for group in document["groups"]] == list(GROUPS)
    for scores in (document["groups"], document["by_source"], document["by_engine"]):
        assert all(set(one) >= KEYS for one in scores)
        assert all(set(one["median_abs_error_of_nulls"]) == {"one", "acceptance_length"} for one in scores)
    modern, legacy, anchored = document["groups"]
    assert legacy["mean_depth_regret"] is None
    assert legacy["crossovers_within_one_step"] is not None
    assert anchored["loss_accuracy"] is None
    assert modern["verdict_accuracy"] is not None
    assert sum(document["rows_refused"].values()) + len(document["rows"]) == 21


def test_a_report_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert run_command(["backtest", str(INVENTED)]) == 0
    out = capsys.readouterr().out
    assert "modern" in out
    assert "refused" in out


def test_calibrated_never_scores_what_it_fitted_and_repeats_itself() -> None:
    once, again = (backtest(INVENTED, calibrated=True, seed=3).to_json() for _ in range(2))
    assert once == again
    assert once["mode"] == "calibrated"
    used = {group["name"]: group["rows_used"] for group in once["groups"]}
    # One cell of each source, all of the few legacy cells, one of each anchored model.
    assert used == {"modern": 3, "legacy": 0, "anchored": 1}


def test_regret_and_crossovers_are_those_of_sweeps() -> None:
    result = backtest(INVENTED)
    assert len(depth_sweeps(result.rows)) == 2
    legacy = [row for row in result.rows if row.cell.group == "legacy"]
    assert crossover_error(legacy) <= 1


HEADER = ",".join(COLUMNS)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no column"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"a,b\n1,2\n", "no column engine"),
        (HEADER.encode() + b"\n", "no row can be judged"),
        (HEADER.encode() + b"\n,,,,,,,\n", "missing_engine 1"),
        (HEADER.encode() + b'\nvllm,"unclosed\n', "no row can be judged"),
        (HEADER.encode() + b"\nvllm,Qwen/Qwen3-8B,h100,ngram,1e999,NaN,0x3,-0\n", "no row can be judged"),
        (HEADER.encode() + b"\nvllm,Qwen/Qwen3-8B,h100,ngram,3,8,1.5,1e-300\n", "missing_speedup 1"),
        (HEADER.encode() + b"\n" + b"x" * 200_000 + b",y\n", "not CSV"),
        (HEADER.encode() + b"\nvllm,Qwen/Qwen3-8B,h100,ngram,3,8,1.5,1.2,extra,more\n", "missing_num_gpus"),
    ],
)
def test_hostile_tables_give_one_line(
    content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    assert run_command(["backtest", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(SpecprobeError, match="give a CSV file"):
            read_table(path)


def test_columns_that_judging_does_not_need_may_be_absent(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text(f"\ufeff{HEADER.upper()},NUM_GPUS\nvllm,Qwen/Qwen3-8B,h100,ngram,3,8,1.5,1.2,1\n", encoding="utf-8")
    assert backtest(path).groups["modern"].rows_used == 1


@needs_published
def test_cold_over_the_published_table() -> None:
    groups = backtest(PUBLISHED).groups
    modern, legacy, anchored = (groups[name].to_json() for name in GROUPS)
    assert modern["rows_used"] >= 60
    assert legacy["rows_used"] == 391
    assert anchored["rows_used"] == 215
    assert modern["verdict_accuracy"] >= 0.90
    assert modern["loss_accuracy"] >= 0.70
    assert modern["median_abs_error"] <= 0.18
    assert legacy["verdict_accuracy"] >= 0.92
    assert legacy["loss_accuracy"] >= 0.90
    assert legacy["median_abs_error"] <= 0.087
    assert anchored["median_abs_error"] <= 0.15
    assert anchored["mean_depth_regret"] <= 0.015
    for group in (modern, legacy, anchored):
        assert group["median_abs_error"] <= min(group["median_abs_error_of_nulls"].values()) / 2


@needs_published
def test_calibrated_over_the_published_table() -> None:
    groups = backtest(PUBLISHED, calibrated=True).groups
    modern, legacy, anchored = (groups[name].to_json() for name in GROUPS)
    assert legacy["rows_used"] == 391 - 8
    assert legacy["median_abs_error"] <= 0.08
    assert legacy["crossovers_within_one_step"] >= 0.90
    assert anchored["median_abs_error"] <= 0.08
    assert modern["median_abs_error"] <= 0.13


@needs_published
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_validation_page_has_the_figures_of_this_code(calibrated: bool, capsys: pytest.CaptureFixture[str]) -> None:
    print_scores("group", backtest(PUBLISHED, calibrated=calibrated).groups.items())
    page = (Path(__file__).parents[1] / "docs" / "validation.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in page
