"""Logs of any content: counts, prompts or one line; no other exception, no hang."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from odd import ODD_VALUES, bent, dumped, fuzz, one_line_or, spoilt
from samples import ROWS

from specprobe.containers import OTHER_FILES
from specprobe.formats import FORMATS
from specprobe.workload import inspect_workload, read_workload

MAGIC = (
    b"",
    b"{",
    b"[",
    b"[{",
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"PAR1",
    b"prompt,response\n",
    b"\xff\xfe",
    *OTHER_FILES,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("logs")


def read(folder: Path, content: bytes, name: str = "log.jsonl", **options: Any) -> None:
    """Both readers, as commands call them; what they count must agree, and be JSON."""
    path = folder / name
    path.write_bytes(content)
    found = one_line_or(lambda: inspect_workload([str(path)], **options))
    if found is not None:
        json.dumps(found.to_json(), allow_nan=False).encode()
    workload = one_line_or(lambda: read_workload([str(path)], **options))
    if workload is None:
        return
    if found is not None:
        assert len(workload.prompts) == found.prompts
    for prompt in workload.prompts:
        # What tokenizers and requests are given.
        for text in (prompt.text or "", *(message.content for message in prompt.messages)):
            text.encode("utf-8")
        for ids in (prompt.token_ids, prompt.answer_token_ids):
            assert ids is None or all(type(i) is int for i in ids)


@fuzz(80)
@given(st.sampled_from(MAGIC), st.binary(max_size=300))
def test_any_bytes(folder, start, rest):
    read(folder, start + rest)


@fuzz(60)
@given(st.lists(ODD_VALUES, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_any_values(folder, values, as_array, is_ascii):
    rows = [values] if as_array else values
    read(folder, b"\n".join(dumped(row, is_ascii=is_ascii) for row in rows))


@fuzz(200)
@given(st.lists(bent(ROWS), min_size=1, max_size=4), st.sampled_from(("lines", "array", "indented")), st.data())
@example([{"messages": [{"role": "user", "content": "q"}], "tools": {"a": 10**30}}], "lines", None)
def test_rows_that_are_nearly_good(folder, rows, form, data):
    if form == "lines":
        content = b"\n".join(map(dumped, rows)) + b"\n"
    else:
        content = json.dumps(rows, indent=1 if form == "indented" else None).encode("utf-8", "surrogatepass")
    read(folder, data.draw(spoilt(content)) if data else content, "log.json")


@fuzz(100)
@given(st.sampled_from(sorted(FORMATS)), st.lists(bent(ROWS), min_size=1, max_size=3))
def test_rows_read_as_a_format_that_was_named(folder, name, rows):
    read(folder, b"\n".join(map(dumped, rows)), format=name)


@fuzz(60)
@given(
    st.lists(bent(ROWS), min_size=1, max_size=3),
    st.sampled_from(("messages", "body.messages", "a", "prompt", "")),
    st.booleans(),
)
def test_columns_that_were_named(folder, rows, name, first_turn):
    read(folder, b"\n".join(map(dumped, rows)), prompt_field=name or None, first_turn=first_turn)


@fuzz(60)
@given(
    st.lists(st.lists(st.text(max_size=12), min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(",;\t"),
    st.data(),
)
def test_tables(folder, rows, delimiter, data):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(["prompt", "response", "id", "temperature"])
    writer.writerows(rows)
    read(folder, data.draw(spoilt(text.getvalue().encode("utf-8", "surrogatepass"))), "log.csv")


@fuzz(40)
@given(st.lists(st.sampled_from(["q", "", None, "\x1b"]), min_size=1, max_size=5), st.data())
def test_parquet(folder, prompts, data):
    table = pa.table({"prompt": prompts, "messages": [[{"role": "user", "content": p}] for p in prompts]})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none")
    read(folder, data.draw(spoilt(sink.getvalue())), "log.parquet")
