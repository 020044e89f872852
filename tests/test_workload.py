"""From files to a Workload or an Inspection: counts, duplicates, warnings, limits, the JSON document, the table."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    ("options", "says"),
    [
        ({"format": "nonsense"}, "--format nonsense: unknown"),
        ({"max_prompts": 0}, "at least 1"),
        ({"group_by": ""}, "--group-by: is empty"),
        ({"group_by": " "}, "--group-by: is empty"),
    ],
)
def test_wrong_options(options: dict[str, object], says: str, log: Path) -> None:
    with pytest.raises(SpecprobeError, match=says):
        read_workload([str(log)], **options)  # type: ignore[arg-type]


def write(path: Path, *rows: Any) -> str:
    path.write_bytes(jsonl(*rows))
    return str(path)


def groups(*sources: str, **options: Any) -> list[str | None]:
    return [prompt.group for prompt in read_workload(sources, **options).prompts]


def in_body(**body: Any) -> dict[str, Any]:
    return {"custom_id": "c", "body": {**chat(("user", "q")), **body}}


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("coding", "coding"),
        ("  coding\n", "coding"),
        ("[bold]\x1b[31mred", "[bold]\x1b[31mred"),
        ("1.50", "1.50"),
        ("x" * 81, "x" * 80),
        ("é" * 10**6, "é" * 80),
        (7, "7"),
        (10**90, "1" + "0" * 79),
        (0, "0"),
        (True, "True"),
        (False, "False"),
        (0.25, "0.25"),
        (3.0, "3"),
        (1e300, "1e+300"),
        (["coding"], "coding"),
        ([2.5], "2.5"),
        (None, None),
        ("", None),
        (" \t", None),
        (float("nan"), None),
        (float("inf"), None),
        ([float("nan")], None),
        ([], None),
        ([""], None),
        ([None], None),
        (["a", "b"], None),
        ([["a"]], None),
        ({"name": "coding"}, None),
        ([{"name": "coding"}], None),
    ],
)
def test_what_makes_a_label(value: Any, label: str | None, tmp_path: Path) -> None:
    row = {**ask("q"), "kind": value}
    assert groups(write(tmp_path / "x.jsonl", row), group_by="kind") == [label]


@pytest.mark.parametrize(
    ("row", "column", "label"),
    [
        ({**ask("q"), "metadata": {"category": "a"}}, "metadata.category", "a"),
        ({**ask("q"), "metadata.category": "key", "metadata": {"category": "path"}}, "metadata.category", "key"),
        ({**ask("q"), "a": {"b": {"c": 1}}}, "a.b.c", "1"),
        ({**ask("q"), "a": {"b.c": 1}}, "a.b.c", "1"),
        (in_body(model="m"), "model", "m"),
        (in_body(metadata={"category": "a"}), "metadata.category", "a"),
        (in_body(metadata={"category": "a"}), "body.metadata.category", "a"),
        ({**in_body(model="inner"), "model": "outer"}, "model", "outer"),
        ({**in_body(model="inner"), "model": None}, "model", None),
        ({"request": {**chat(("user", "q")), "user": "u"}}, "user", "u"),
        ({"custom_id": "c", "params": {**chat(("user", "q")), "metadata": {"user_id": "u"}}}, "metadata.user_id", "u"),
    ],
)
def test_where_a_label_is(row: dict[str, Any], column: str, label: str | None, tmp_path: Path) -> None:
    assert groups(write(tmp_path / "x.jsonl", row), group_by=column) == [label]


@pytest.mark.parametrize("column", ["kind.", ".kind", "kind.x", "metadata.kind", "metadata.list.0", "prompt.strip"])
def test_a_path_leads_through_objects_only(column: str, tmp_path: Path) -> None:
    row = {**ask("q"), "kind": "a", "metadata": {"list": ["a"]}}
    with pytest.raises(SpecprobeError, match=r"no row has that column; keys seen: prompt, kind, metadata$"):
        groups(write(tmp_path / "x.jsonl", row), group_by=column)


def test_rows_without_a_label_have_none_and_prompts_of_a_row_share_theirs(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ask("q"), {**QA, "kind": "chat"}, [{"role": "user", "content": "bare"}])
    assert groups(path, group_by="kind") == [None, "chat", "chat", None]
    assert groups(path, group_by="kind", first_turn=True) == [None, "chat", None]
    assert groups(path) == [None] * 4


def test_labels_of_csv_and_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.csv"
    path.write_text("prompt,kind\nq,a\nr,\ns\n")
    assert groups(str(path), group_by="kind") == ["a", None, None]
    rows = [{**ask("q"), "task": {"kind": "a"}}, {**ask("r"), "task": None}]
    datasets = SimpleNamespace(load_dataset=lambda *_, **__: rows)
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    assert groups("hf:me/x", group_by="task.kind") == ["a", None]
    with pytest.raises(SpecprobeError, match="--group-by kind: no row has that column; keys seen: prompt, task"):
        groups("hf:me/x", group_by="kind")


def test_several_files_are_groups_by_themselves(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", ask("q"), ask("r")), write(tmp_path / "b.jsonl", {**ask("s"), "kind": "k"})
    assert groups(a) == [None, None]
    assert groups(a, b) == groups(str(tmp_path)) == [a, a, b]
    assert groups(a, b, group_by="kind") == [None, None, "k"]
    assert groups(a, b, max_prompts=2) == [None, None]
    c = write(tmp_path / "c.jsonl", {**ask("t"), "kind": None})
    assert groups(a, c, group_by="kind") == [None, None, None]


def test_files_without_prompts_make_no_groups(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", ask("q"))
    write(tmp_path / "b.jsonl", ask("q"))
    write(tmp_path / "c.jsonl", {"other": 1})
    (tmp_path / "d.jsonl").write_text("<html>")
    assert groups(a, str(tmp_path / "c.jsonl")) == [None]
    assert groups(str(tmp_path), dedupe=True) == [None]


def test_a_column_that_no_usable_row_has(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", {"kind": "no prompt"}, {**ask("q"), "\x1b[31m": 1, "a text and no name": 2})
    b = write(tmp_path / "b.jsonl", {**ask("r"), "model": "m"})
    with pytest.raises(SpecprobeError) as caught:
        groups(a, b, group_by="kind")
    says = r"--group-by kind: no row has that column; keys seen: prompt, model"
    assert str(caught.value) == says
    bare = write(tmp_path / "c.jsonl", *[[{"role": "user", "content": "bare"}]] * 2)
    with pytest.raises(SpecprobeError, match="keys seen: none"):
        groups(bare, group_by="role")
    many = [write(tmp_path / f"{n}.jsonl", {**ask("q"), f"k{n}": 1}) for n in range(20)]
    with pytest.raises(SpecprobeError, match=r"keys seen: prompt, k0, .*, k10$"):
        groups(*many, group_by="kind")


def test_a_file_that_fails_half_way_names_no_column(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", ask("q"))
    whole = gzip.compress(jsonl(*({**ask("q"), "kind": str(n)} for n in range(20_000))), mtime=0)
    (tmp_path / "b.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SpecprobeError, match=r"--group-by kind: no row has that column; keys seen: prompt"):
        groups(str(tmp_path), group_by="kind")


def test_a_label_makes_no_other_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", *({**ask("q"), "kind": kind} for kind in "ab"))
    assert groups(path, group_by="kind") == ["a", "b"]
    assert groups(path, group_by="kind", dedupe=True) == ["a"]


def test_temperature_counts(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {**ask("a"), "temperature": 0.7},
        ask("b"),
        {**QA, "temperature": 1},
        in_body(temperature=0.0),
        {**ask("c"), "sampling_params": {"temperature": 0}},
        {**ask("d"), "temperature": 1.0},
        {**ask("e"), "temperature": float("nan")},
        {**ask("f"), "temperature": "0.7"},
    ]
    counts = read_workload([write(tmp_path / "x.jsonl", *rows)]).temperature_counts
    assert list(counts.items()) == [(0.0, 2), (0.7, 1), (1.0, 3), (None, 3)]
    assert [type(key) for key in counts] == [float, float, float, type(None)]
    assert read_workload([write(tmp_path / "x.jsonl", rows[0])]).temperature_counts == {0.7: 1}


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
        seen.add([length])
    ordered = sorted(lengths)
    spread = seen.spread()
    assert spread is not None
    assert (spread.min, spread.median, spread.max) == (ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1])


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_large_lengths_have_a_close_median(lengths: list[int]) -> None:
    seen = Lengths()
    for length in lengths:
        seen.add([length])
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
        exact.add([key])
        rough.add([key])
    assert (exact.count, exact.is_exact) == (20_000, True)
    assert not rough.is_exact
    assert abs(rough.count - 20_000) < 4 * 1.2 / 2_000**0.5 * 20_000
