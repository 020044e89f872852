"""Records and tables that wait on the disk are what they would be in memory."""

from __future__ import annotations

import json
from types import MappingProxyType

import numpy as np
import pytest
from toy_target import write_checkpoint

from specprobe import spool, tables
from specprobe.analyze import analyze
from specprobe.causal_lm import LoadOptions
from specprobe.options import AnalyzeOptions
from specprobe.progress import SILENT
from specprobe.prompt import Message, Prompt
from specprobe.run_document import run_text
from specprobe.spool import Part, Spool
from specprobe.store import TrajectoryStore
from specprobe.summary import summarize_run
from specprobe.tables import GrowingTable, blocks, give_back
from specprobe.trajectory import Trajectory, token_ids


@pytest.fixture(params=["memory", "disk"])
def place(request, monkeypatch, tmp_path):
    """Where things wait: those that are larger than nothing on the disk, or all in memory."""
    monkeypatch.chdir(tmp_path)
    if request.param == "disk":
        monkeypatch.setattr(spool, "MEMORY_BYTES", 0)
        monkeypatch.setattr(tables, "MEMORY_BYTES", 0)
    return request.param


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 300])
def test_a_spool_is_the_sequence_that_was_put_in(place, length):
    items = list(range(length))
    found = Spool(items)
    assert (len(found), list(found), found == items, found[:70]) == (length, items, True, items[:70])
    assert [found[i] for i in reversed(range(length))] == items[::-1]
    assert length == 0 or found[-1] == length - 1
    assert found != [*items, 0]
    with pytest.raises(IndexError):
        found[length]


@pytest.mark.parametrize("length", [0, 1, 64, 100, 128, 130, 200])
def test_a_spool_that_is_cut_goes_on_from_there(place, length):
    found = Spool(range(200))
    assert found[150] == 150
    found.cut(length)
    assert list(found) == list(range(length))
    for item in range(1000, 1200):
        found.append(item)
    assert list(found) == [*range(length), *range(1000, 1200)]


def test_two_readers_of_a_spool_do_not_disturb_each_other(place):
    found = Spool(range(500))
    assert [(one, other) for one, other in zip(found, Part(found, range(100, 500)), strict=False)][399] == (399, 499)


def test_a_part_has_the_records_of_its_places(place):
    part = Part(Spool(range(500)), [3, 499, 7])
    assert (list(part), len(part), part[1], list(part[1:])) == ([3, 499, 7], 3, 499, [499, 7])


def test_records_come_back_as_they_were(place):
    turns = (Message("user", "\ud800", tool_calls=(MappingProxyType({"a": [1]}),)),)
    prompts = [Prompt(i, "log", 1, "c", messages=turns, settings=MappingProxyType({"top_p": 0.5})) for i in range(70)]
    found = Spool(prompts)
    assert found == prompts
    # Turns that prompts share are one object for all of a block.
    first, second, *_ = found
    assert first.messages is second.messages
    ids, none = token_ids([1, 2]), token_ids()
    (trajectory,) = Spool([Trajectory("a", ids, ids, "logged", 0.0, none, log_probs=np.ones(2, np.float32))] * 64)[:1]
    assert trajectory.prompt_ids.tolist() == [1, 2]
    assert not trajectory.prompt_ids.flags.writeable
    assert (trajectory.prompt_ids.dtype, trajectory.log_probs.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize("num_rows", [1, 1023, 1024, 1025, 3000])
def test_a_table_is_the_rows_that_were_filled(place, num_rows):
    growing = GrowingTable(num_rows, (2, 3), np.int32)
    for number in range(num_rows):
        growing.row(number)[:] += number
    found = growing.finished()
    assert (found == np.arange(num_rows)[:, None, None]).all()
    part = found[:, 1]
    assert sum(block.sum() for block in blocks(part)) == part.sum()
    assert (len(list(blocks(part))) > 1) == (place == "disk" and num_rows > 1024)
    give_back(part)
    assert part[-1, 0] == num_rows - 1


def test_expectations_stay_in_memory(place):
    assert isinstance(GrowingTable(2000, (8,), np.float64).finished().base, type(None))


def test_generated_responses_are_the_same_wherever_they_wait(monkeypatch, tmp_path):
    target = str(write_checkpoint(tmp_path / "toy"))
    prompts = ["ab", "abcabc", "ab", "hello"] * 20 + [f"number {number}" for number in range(30)]
    lines = [json.dumps({"id": f"p{number}", "prompt": text}) + "\n" for number, text in enumerate(prompts)]
    (tmp_path / "log.jsonl").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)
    options = AnalyzeOptions(
        prompts=("log.jsonl",),
        target=target,
        load=LoadOptions(device="cpu"),
        temperatures=(0.0, 0.7),
        samples=2,
        max_new_tokens=12,
    )

    def document(store) -> str:
        run = analyze(options, SILENT, store)
        return "".join(run_text(run, summarize_run(run)))

    in_memory = document(None)
    monkeypatch.setattr(spool, "MEMORY_BYTES", 0)
    monkeypatch.setattr(tables, "MEMORY_BYTES", 0)
    store = TrajectoryStore(tmp_path / "store")
    assert document(store) == in_memory
    # Of a run that was cut off: some batches whole, one in part, the others not at all.
    kept = sorted((tmp_path / "store").rglob("*.jsonl"))
    for path in kept[1::3]:
        path.unlink()
    for path in kept[2::3]:
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    assert document(store) == document(store) == in_memory


def test_a_run_is_the_same_wherever_it_waits(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {
            "id": f"r{number}",
            "prompt_token_ids": rng.integers(9, size=12).tolist(),
            "output_token_ids": rng.integers(5, size=rng.integers(1, 40)).tolist(),
            "temperature": [0.0, 0.7][number % 2],
        }
        for number in range(300)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)

    def document(**options) -> str:
        run = analyze(AnalyzeOptions(prompts=("log.jsonl",), responses="logged", **options), SILENT)
        return "".join(run_text(run, summarize_run(run)))

    ways = ({}, {"temperatures": "log"}, {"in_flight": 3}, {"precision": 0.2})
    in_memory = [document(**options) for options in ways]
    monkeypatch.setattr(spool, "MEMORY_BYTES", 0)
    monkeypatch.setattr(tables, "MEMORY_BYTES", 0)
    monkeypatch.setattr(tables, "BLOCK_ROWS", 100)
    assert [document(**options) for options in ways] == in_memory
    # What waited there had no name.
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_where_no_file_can_be_made_all_stays_in_memory(place, monkeypatch):
    def refuse(**_options):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    table = GrowingTable(3000, (2,), np.int32)
    for number in range(3000):
        table.row(number)[:] = number
    assert (table.finished() == np.arange(3000)[:, None]).all()
    assert list(Spool(range(500))) == list(range(500))


def test_a_table_that_cannot_be_mapped_is_read(place, monkeypatch):
    class Refused(tables.mmap.mmap):
        def __new__(cls, *_arguments, **_options):
            raise OSError(24, "Too many open files")

    monkeypatch.setattr(tables.mmap, "mmap", Refused)
    table = GrowingTable(3000, (2,), np.int32)
    for number in range(3000):
        table.row(number)[:] = number
    found = table.finished()
    assert (found == np.arange(3000)[:, None]).all()
    assert sum(len(block) for block in blocks(found)) == 3000
