"""What is read, and that every hostile file ends in counts or in one line, never in a traceback."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from messy import FILES, TWO, ask, jsonl, write

from specprobe import containers
from specprobe.containers import Row, Skip, read_rows
from specprobe.errors import SpecprobeError
from specprobe.formats import TEXT_COLUMNS
from specprobe.sources import Source, file_hashes, find_sources, open_source
from specprobe.workload import inspect_workload, read_workload


def rows(path: Path) -> list[Row]:
    with open_source(Source(str(path))) as stream:
        return list(read_rows(stream, TEXT_COLUMNS).rows)


def values(path: Path) -> list[Any]:
    return [row.value for row in rows(path)]


@pytest.mark.parametrize("name", FILES)
def test_hostile_file(name: str, tmp_path: Path) -> None:
    expected = FILES[name]
    path = tmp_path / name
    path.write_bytes(expected.data)
    inspection = inspect_workload([str(path)])
    (file,) = inspection.files
    assert (file.first_turns, file.answers) == (expected.first_turns, expected.answers)
    assert dict(file.skipped) == expected.skipped
    if expected.lines:
        assert tuple(sorted(line for lines in file.lines.values() for line in lines)) == expected.lines
    if expected.container:
        assert file.container == expected.container
    if expected.error is None:
        assert inspection.error is None
        assert len(read_workload([str(path)]).prompts) == inspection.prompts == file.prompts
    else:
        assert inspection.error is not None
        assert inspection.error.startswith(f"{path}:")
        assert expected.error in inspection.error
        with pytest.raises(SpecprobeError) as caught:
            read_workload([str(path)])
        assert str(caught.value) == inspection.error
        assert inspection.error.isprintable()


def test_a_folder_of_hostile_files_keeps_what_is_good(tmp_path: Path) -> None:
    write(tmp_path)
    workload = read_workload([str(tmp_path)])
    assert len(workload.prompts) > 30
    codes = {notice.code for notice in workload.all_notices}
    assert {"file_not_used", "files_left_out"} <= codes


def test_line_numbers_by_container(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_bytes(b'\n{"prompt": "a"}\n\n{"prompt": "b"}')
    assert [row.line for row in rows(lines)] == [2, 4]
    array = tmp_path / "array.json"
    array.write_bytes(b'[\n\n{"prompt": "a"},\n{"prompt": "b"}]')
    assert [row.line for row in rows(array)] == [1, 2]
    table = tmp_path / "table.csv"
    table.write_bytes(b'prompt,n\n"two\nlines",1\nnext,2\n')
    assert [row.line for row in rows(table)] == [2, 4]


def test_text_is_kept_byte_for_byte(tmp_path: Path) -> None:
    texts = ["007", "18_19", "2024-01-01T00:00:00", "a\u2028b", "\u0000\u001b[31m", "</s><|im_end|>", " pad "]
    path = tmp_path / "x.jsonl"
    path.write_bytes(jsonl(*map(ask, texts)))
    assert [prompt.messages[-1].content for prompt in read_workload([str(path)]).prompts] == texts


@pytest.mark.parametrize("wrap", [b"%s\n", b"[%s, 1]"])
def test_surrogates_are_mended_in_lines_and_arrays(wrap: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(wrap % rb'{"prompt": "\ud83d\ude00 \ud83d \ude00\ud83d", "\udcb2": ["\udcb2"]}')
    first = rows(path)[0]
    assert first.value == {"prompt": "\U0001f600 \ufffd \ufffd\ufffd", "\ufffd": ["\ufffd"]}
    assert first.repaired


def test_whole_emoji_is_no_repair(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(rb'{"prompt": "\ud83d\ude00"}')
    assert rows(path) == [Row(1, {"prompt": "\U0001f600"}, False)]


def test_values_longer_than_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "HEAD_BYTES", 64)
    items = [{"prompt": "é" * n, "n": [n, {"a": '\\"]}'}]} for n in (0, 1, 30, 31, 63, 64, 65, 500, 3)] + [7, 12345]
    for indent in (None, 1):
        path = tmp_path / "x.json"
        path.write_text(json.dumps(items, indent=indent, ensure_ascii=False), encoding="utf-8")
        assert values(path) == items


def test_a_line_over_the_limit_is_skipped_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MAX_ROW", 100)
    path = tmp_path / "x.jsonl"
    path.write_bytes(jsonl(ask("a"), ask("b" * 300), ask("c")))
    assert values(path) == [ask("a"), Skip("too_long"), ask("c")]


def test_an_element_over_the_limit_ends_the_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MAX_ROW", 100)
    monkeypatch.setattr(containers, "HEAD_BYTES", 32)
    path = tmp_path / "x.json"
    path.write_text(json.dumps([ask("a"), ask("b" * 600)]))
    assert values(path) == [ask("a"), Skip("too_long")]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    chats = [[{"role": "user", "content": "q", "name": None}, {"role": "assistant", "content": "a"}], None]
    path = tmp_path / "no_suffix"
    parquet.write_table(pyarrow.table({"messages": chats, "prompt": [None, "p"]}), path)
    file = inspect_workload([str(path)]).files[0]
    assert (file.container, file.rows, file.first_turns, file.answers) == ("parquet", 2, 2, 1)
    zipped = tmp_path / "zipped"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert inspect_workload([str(zipped)]).files[0].rows == 2


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(TWO))))
    workload = read_workload(["-"])
    assert [prompt.id for prompt in workload.prompts] == ["-:1", "-:2"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_read_once_and_in_order(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(TWO))
    writer.start()
    assert len(read_workload([str(pipe)]).prompts) == 2
    writer.join()


def test_hashes_are_those_of_files_and_of_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress(TWO, mtime=0))
    hashes = file_hashes([str(tmp_path), "-", "hf:name"])
    assert hashes == [{"name": str(log), "sha256": hashlib.sha256(log.read_bytes()).hexdigest()}]
    assert file_hashes([str(tmp_path / "gone.jsonl")]) == []


def test_names(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "sub/c.json", ".hidden.jsonl", "_SUCCESS", "README.md", "part-0"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"" if name == "_SUCCESS" else TWO)
    found = find_sources([str(tmp_path)])
    assert [Path(source.name).name for source in found.sources] == ["a.jsonl", "b.jsonl", "part-0", "c.json"]
    assert [notice.code for notice in found.notices] == ["files_left_out"]
    pattern = str(tmp_path / "*.jsonl")
    assert len(find_sources([pattern, str(tmp_path / "a.jsonl")]).sources) == 2
    odd = tmp_path / "x[1].jsonl"
    odd.write_bytes(TWO)
    assert find_sources([str(odd)]).sources == (Source(str(odd)),)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone.jsonl", "no such file"),
        ("gone*.jsonl", "no file matches"),
        ("bad\0name", "check the path"),
        ("empty_folder", "a folder without data files"),
    ],
)
def test_names_that_lead_nowhere(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "empty_folder").mkdir()
    (tmp_path / "empty_folder" / "README.md").write_text("x")
    for read in (read_workload, inspect_workload):
        with pytest.raises(SpecprobeError, match=says):
            read([str(tmp_path / name)])
    with pytest.raises(SpecprobeError, match="no prompts given"):
        find_sources([])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(TWO)
    path.chmod(0)
    with pytest.raises(SpecprobeError, match="cannot be read"):
        read_workload([str(path)])


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    calls: list[tuple[str, str | None, str | None]] = []

    def load(name: str, config: str | None, *, split: str | None, streaming: bool) -> Any:
        calls.append((name, config, split))
        if name == "offline":
            raise ConnectionError("Couldn't reach the Hub\nmore")
        rows = [ask("a"), {"prompt": "b", "response": "c"}]
        return rows if split else {"train": rows, "test": rows} if name == "two" else {"only": rows}

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert inspect_workload(["hf:me/x"]).files[0].answers == 1
    assert read_workload(["hf:me/x:main:test"]).prompts[0].id == "hf:me/x:main:test:1"
    assert read_workload(["hf:me/x::test"]).rows == 2
    assert calls == [("me/x", None, None), ("me/x", "main", "test"), ("me/x", None, "test")]
    for name, says in (
        ("hf:offline", "cannot be loaded from the Hub"),
        ("hf:two", "train, test"),
        ("hf:", "not a Hub"),
    ):
        with pytest.raises(SpecprobeError, match=says) as caught:
            read_workload([name])
        assert "\n" not in str(caught.value)


class Endless(io.RawIOBase):
    """The same block `count` times, made while it is read."""

    def __init__(self, block: bytes, count: int, head: bytes = b"", tail: bytes = b"") -> None:
        self._pending, self._block, self._count, self._tail = head, block, count, tail

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while len(self._pending) < size and self._count:
            self._pending += self._block
            self._count -= 1
        if not self._count:
            self._pending, self._tail = self._pending + self._tail, b""
        block, self._pending = self._pending[:size], self._pending[size:]
        return block


@pytest.mark.parametrize("kind", ["lines", "array"])
def test_memory_does_not_grow_with_the_file(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.dumps({"conversations": [{"from": f, "value": "word " * 800} for f in ("human", "gpt") * 3]}).encode()

    def peak(megabytes: int) -> int:
        many = megabytes * 1_000_000 // len(row)
        if kind == "lines":
            stream = Endless((row + b"\n") * 10, many // 10)
        else:
            stream = Endless((row + b",") * 10, many // 10, b"[", row + b"]")
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stream}))
        tracemalloc.start()
        assert inspect_workload(["-"]).prompts > 0
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    small, large = peak(8), peak(40)
    assert large < small + 2_000_000


@pytest.mark.slow
def test_memory_over_200_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    row = b'{"prompt": "%s", "output": "yes"}\n' % (b"word " * 1000)
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": Endless(row * 20, 2000)}))
    tracemalloc.start()
    inspection = inspect_workload(["-"])
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert inspection.prompts == 40_000
    assert used < 20_000_000
