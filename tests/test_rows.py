"""Rows of a run as CSV and Parquet: every count, and ids that no spreadsheet takes for a formula."""

from __future__ import annotations

import csv
import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import make_trajectory
from test_run import WORKS, document_of, make_run

from specprobe import rows
from specprobe.cli import run_command
from specprobe.errors import SpecprobeError
from specprobe.rows import row_columns, run_rows, safe_cell, write_rows

FIRST_RUN = Path(__file__).parent / "golden" / "run-1-first.json"
RUN = make_run(WORKS)
COUNTS = ("rounds", "drafted_rounds", "drafted_tokens", "accepted_tokens")


def expected(run) -> list[dict]:
    """The same rows, out of the document that the run is kept as."""
    (responses,) = run.responses
    found = []
    for number, result in enumerate(document_of(run)["results"], 1):
        depth = len(result["depths"])
        for index, row in enumerate(result["per_prompt"]):
            p = index // depth
            accepted = row["accepted_at"]
            found.append(
                {
                    "id": str(row["id"]),
                    "prompt": int(responses.prompts[p]),
                    "sample": 0,
                    "group": None,
                    "result": number,
                    "drafter": result["drafter"],
                    "config": json.dumps(result["config"], sort_keys=True),
                    "temperature": 0.0,
                    "draft_sampling": "greedy",
                    "depth": row["depth"],
                    "prompt_tokens": int(responses.prompt_tokens[p]),
                    "output_tokens": int(responses.output_tokens[p]),
                    **{key: row[key] for key in COUNTS if key != "accepted_tokens"},
                    "accepted_tokens": sum(accepted),
                    **{f"accepted_at_{i + 1}": accepted[i] if i < len(accepted) else None for i in range(depth)},
                }
            )
    return found


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_there_is_a_row_for_each_response_drafter_and_depth():
    found = [dict(zip(row_columns(RUN), row, strict=True)) for row in run_rows(RUN)]
    assert len(found) == 2 * 4 * len(WORKS)
    wanted = expected(RUN)
    assert [list(row) for row in found[:1]] == [[*list(wanted[0])[:12], *COUNTS, *list(wanted[0])[16:]]]
    assert found == wanted
    # Not a test of zeros.
    assert sum(row["accepted_at_3"] or 0 for row in found) > 0


def test_csv_and_parquet_hold_the_same(tmp_path, monkeypatch):
    # Several blocks, the last of them short.
    monkeypatch.setattr(rows, "BLOCK_ROWS", 50)
    written = write_rows(RUN, tmp_path / "rows.csv")
    assert write_rows(RUN, tmp_path / "rows.parquet").rows == written.rows == 2 * 4 * len(WORKS)
    parquet = pq.read_table(tmp_path / "rows.parquet")
    assert tuple(parquet.column_names) == written.columns
    assert pq.ParquetFile(tmp_path / "rows.parquet").num_row_groups == 4
    table = parquet.to_pylist()
    assert table == expected(RUN)
    for text, row in zip(read_csv(tmp_path / "rows.csv"), table, strict=True):
        for name, value in row.items():
            if isinstance(value, float):
                assert float(text[name]) == value, name
            else:
                assert text[name] == ("" if value is None else str(value)), name
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_expectations_of_sampled_drafts_keep_their_digits(tmp_path):
    first = RUN.results[0]
    sampled = replace(
        first,
        draft_sampling="sampled",
        rounds=first.rounds / 3,
        drafted_at=first.drafted_at / 3,
        accepted_at=first.accepted_at / 3,
    )
    write_rows(replace(RUN, results=(sampled,)), tmp_path / "rows.csv")
    found = np.array([float(row["rounds"]) for row in read_csv(tmp_path / "rows.csv")])
    assert (found == sampled.rounds.ravel()).all()


HOSTILE = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "'=1", "''+1", 'a"b,c\nd', "'quoted", "é", ""]


def test_no_cell_becomes_a_formula_and_ids_come_back(tmp_path):
    works = [make_trajectory([1, 2, 3], [1, 2, 3], name=name) for name in HOSTILE]
    run = make_run(works, depth=1)
    groups = tuple(HOSTILE)
    run = replace(run, responses=(replace(run.responses[0], groups=groups),))
    write_rows(run, tmp_path / "rows.csv")
    write_rows(run, tmp_path / "rows.parquet")
    for row, name in zip(read_csv(tmp_path / "rows.csv"), HOSTILE * 2, strict=True):
        for cell in (row["id"], row["group"]):
            assert cell[:1] not in tuple("=+-@\t\r\n＝")
            assert (cell[1:] if cell != name else cell) == name
    assert pq.read_table(tmp_path / "rows.parquet")["id"].to_pylist() == HOSTILE * 2


@given(st.text())
def test_a_guarded_cell_tells_what_it_was(text):
    cell = safe_cell(text)
    assert cell[:1] not in tuple("=+-@\t\r\n＝＋－＠")
    # A reader takes one quote off where quotes lead to such a character, and nowhere else.
    assert (cell[1:] if safe_cell(cell) != cell else cell) == text


def test_halves_of_characters_in_a_damaged_run_do_no_harm(tmp_path):
    run = make_run([make_trajectory([1], [2, 3], name="\ud800")], depth=1)
    for name in ("rows.csv", "rows.parquet"):
        assert write_rows(run, tmp_path / name).rows == 2
    assert read_csv(tmp_path / "rows.csv")[0]["id"] == "?"


def test_a_run_without_results_has_a_header_only(tmp_path):
    empty = replace(RUN, results=())
    assert write_rows(empty, tmp_path / "rows.csv").rows == 0
    assert write_rows(empty, tmp_path / "rows.parquet").rows == 0
    assert (tmp_path / "rows.csv").read_text().startswith("id,prompt,sample")


@pytest.mark.parametrize("name", ["rows.xlsx", "rows", "folder.csv", "file/rows.csv"])
def test_what_cannot_be_written_is_one_line(tmp_path, name):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecprobeError, match="rows"):
        write_rows(RUN, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.csv"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    path.write_text("old")

    def broken(run):
        yield from list(run_rows(run))[:3]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rows, "run_rows", broken)
    with pytest.raises(SpecprobeError, match="disk is full"):
        write_rows(RUN, path)
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("rows.csv", "old")]


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(["export", str(FIRST_RUN), "--rows", "rows.csv", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"]["rows"] == len(read_csv(Path("rows.csv"))) == 12
    assert document["rows"]["columns"][0] == "id"
    assert run_command(["export", str(FIRST_RUN), "--rows", "rows.parquet"]) == 0
    assert capsys.readouterr().out == "wrote 12 rows of 18 columns to rows.parquet\n"
    for arguments in (["export"], ["export", "--rows", "rows.csv"], ["export", str(FIRST_RUN)]):
        assert run_command(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1
