"""From files to a Workload or an Inspection: counts, duplicates, warnings, limits, the JSON document, the table."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messy import ask, chat, jsonl, share
from rich.console import Console

from specprobe.errors import SpecprobeError
from specprobe.inspect_report import render_inspection
from specprobe.sketches import Distinct, Lengths
from specprobe.workload import inspect_workload, read_workload

QA = share(("human", "q"), ("gpt", "a"), ("human", "r"), ("gpt", "b"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    rows = [QA, ask("x"), ask("x"), {"prompt": "y", "output": "z"}, ask(""), {"prompt": "w", "output": ""}]
    path.write_bytes(jsonl(*rows) + b"{broken\n")
    return path


def test_counts(log: Path) -> None:
    inspection = inspect_workload([str(log)])
    (file,) = inspection.files
    assert (file.rows, file.first_turns, file.answers, file.prompts) == (7, 5, 3, 6)
    assert dict(file.skipped) == {"empty": 1, "empty_answer": 1, "bad_json": 1}
    assert dict(file.lines) == {"empty": (5,), "empty_answer": (6,), "bad_json": (7,)}
    assert (file.format, dict(file.columns)) == ("mixed", {"conversations": 2, "prompt": 4})
    assert (inspection.prompts, inspection.duplicates, inspection.duplicates_exact) == (6, 1, True)
    assert inspection.prompt_chars is not None
    assert (inspection.prompt_chars.min, inspection.prompt_chars.max) == (1, 3)
    workload = read_workload([str(log)])
    assert len(workload.prompts) == 6
    assert (workload.duplicates, workload.distinct, workload.rows) == (1, 5, 7)
    assert workload.skipped == dict(file.skipped)
    assert workload.files == inspection.files


def test_first_turn(log: Path) -> None:
    workload = read_workload([str(log)], first_turn=True)
    assert [len(prompt.messages) for prompt in workload.prompts] == [1] * 5
    answers = [prompt.answer.content if prompt.answer else None for prompt in workload.prompts]
    assert answers == ["a", None, None, "z", None]


def test_dedupe_keeps_the_first_and_counts_the_rest(log: Path) -> None:
    workload = read_workload([str(log)], dedupe=True)
    assert len(workload.prompts) == workload.distinct == 5
    assert workload.skipped["duplicate"] == 1
    assert workload.files[0].prompts == 5


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_max_prompts(limit: int, log: Path) -> None:
    workload = read_workload([str(log), str(log.parent)], max_prompts=limit)
    everything = read_workload([str(log)]).prompts
    assert workload.prompts == everything[:limit]
    assert sum(file.prompts for file in workload.files) == len(workload.prompts)
    assert ("stopped_early" in {notice.code for notice in workload.notices}) == (limit < 6)


def test_other_tools_make_another_prompt(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    tool = {"type": "function", "function": {"name": "f"}}
    path.write_bytes(
        jsonl(chat(("user", "q")), {**chat(("user", "q")), "tools": [tool]}, chat(("user", "q"), ("assistant", "a")))
    )
    workload = read_workload([str(path)])
    assert (workload.distinct, workload.duplicates) == (2, 1)


def codes(path: Path) -> set[str]:
    inspection = inspect_workload([str(path)])
    return {notice.code for file in inspection.files for notice in file.notices} | {n.code for n in inspection.notices}


def test_warnings(log: Path, tmp_path: Path) -> None:
    assert codes(log) == {"many_skipped", "several_columns", "many_duplicates"}
    path = tmp_path / "x.json"
    parts = [{"type": "image", "image": "x"}]
    path.write_text(
        json.dumps([{**chat(("user", "q"), ("assistant", "a"), ("user", parts), ("assistant", "b")), "tools": "?"}])[
            :-1
        ]
    )
    assert codes(path) == {"answers_cut", "tools_unreadable", "array_cut"}
    path.write_text(r'{"prompt": "\ud83d"}')
    assert codes(path) == {"text_repaired"}


def test_skips_up_to_a_tenth_are_no_warning(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(jsonl(*(ask(str(n)) for n in range(9)), ask("")))
    assert codes(path) == set()


def test_an_export_ends_its_file(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_bytes(jsonl(ask("q"), {"trace": {}, "observations": []}))
    inspection = inspect_workload([str(path)])
    assert inspection.prompts == 0
    assert inspection.error is not None
    assert f"{path}:2: a Langfuse export; this version does not read it" in inspection.error


def test_a_named_file_that_fails_stops_the_reading_but_not_the_inspection(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.jsonl"
    page.write_text("<html>")
    with pytest.raises(SpecprobeError, match="HTML"):
        read_workload([str(log), str(page)])
    inspection = inspect_workload([str(log), str(page)])
    assert inspection.error is None
    assert inspection.files[1].error is not None
    assert len(read_workload([str(tmp_path)]).prompts) == 6


@pytest.mark.parametrize(
    ("options", "says"), [({"format": "nonsense"}, "--format nonsense: unknown"), ({"max_prompts": 0}, "at least 1")]
)
def test_wrong_options(options: dict[str, object], says: str, log: Path) -> None:
    with pytest.raises(SpecprobeError, match=says):
        read_workload([str(log)], **options)  # type: ignore[arg-type]


def test_prompt_field_reads_what_no_format_knows(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("data\nhello\n")
    assert inspect_workload([str(path)], prompt_field="data").prompts == 1
    path.write_bytes(jsonl({"data": "hello"}, {"data": None}))
    file = inspect_workload([str(path)], prompt_field="data").files[0]
    assert (file.prompts, dict(file.skipped), dict(file.columns)) == (1, {"empty": 1}, {"data": 1})


def test_the_document(log: Path) -> None:
    document = json.loads(json.dumps(inspect_workload([str(log)]).to_json(), allow_nan=False))
    assert document["schema"] == "specprobe.inspect/1"
    assert document["prompts"] == 6
    file = document["files"][0]
    assert {
        "path",
        "container",
        "format",
        "rows",
        "first_turns",
        "answers",
        "prompts",
        "skipped",
        "warnings",
    } <= file.keys()
    assert file["lines"]["bad_json"] == [7]
    assert {warning["code"] for warning in file["warnings"]} == {"many_skipped", "several_columns"}


def test_the_table_shows_counts_and_no_text_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "[bold]x.jsonl"
    path.write_bytes(jsonl(ask("SECRET"), {"\x1b[31m[red]": "SECRET"}, {"prompt": "SECRET", "output": "SECRET"}))
    for source in (str(path), str(tmp_path)):
        out = io.StringIO()
        Console(file=out, width=200).print(render_inspection(inspect_workload([source])))
        text = out.getvalue()
        assert "SECRET" not in text
        assert "\x1b" not in text
        assert "[bold]x.jsonl" in text
        assert "no_prompt" in text


def test_errors_hold_no_prompt_text(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(jsonl({"secrets": "SECRET"}, share(("narrator", "SECRET"))) + b'{"prompt": "SECRET')
    error = inspect_workload([str(path)]).error
    assert error is not None
    assert "SECRET" not in error
    assert "bad_json 1, first at line 3" in error


def test_heavy_packages_are_imported_only_where_needed(log: Path) -> None:
    code = (
        "import sys, specprobe.workload as w; w.inspect_workload([sys.argv[1]]); "
        "print(sorted({'torch', 'transformers', 'rich', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(st.lists(st.integers(0, 4095), min_size=1))
def test_small_lengths_have_an_exact_median(lengths: list[int]) -> None:
    seen = Lengths()
    for length in lengths:
        seen.add(length)
    ordered = sorted(lengths)
    spread = seen.spread()
    assert spread is not None
    assert (spread.min, spread.median, spread.max) == (ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1])


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_large_lengths_have_a_close_median(lengths: list[int]) -> None:
    seen = Lengths()
    for length in lengths:
        seen.add(length)
    middle = sorted(lengths)[(len(lengths) - 1) // 2]
    spread = seen.spread()
    assert spread is not None
    assert abs(spread.median - middle) <= middle / 2000
    assert spread.min <= spread.median <= spread.max


def test_distinct_is_exact_below_its_limit_and_close_above() -> None:
    import hashlib

    keys = [int.from_bytes(hashlib.sha1(str(n).encode()).digest()[:8], "little") for n in range(20_000)]
    exact, rough = Distinct(limit=20_000), Distinct(limit=2_000)
    for key in keys + keys[:5_000]:
        exact.add(key)
        rough.add(key)
    assert (exact.count, exact.is_exact) == (20_000, True)
    assert not rough.is_exact
    assert abs(rough.count - 20_000) < 4 * 1.2 / 2_000**0.5 * 20_000
