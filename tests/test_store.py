import errno
import os
import stat

import numpy as np
import pytest

from specprobe.errors import SpecprobeError
from specprobe.paths import cache_folder, make_private_folder, trajectories_folder, write_private
from specprobe.store import Response, TrajectoryStore, clear
from specprobe.trajectory import token_ids


def response(*ids: int) -> Response:
    log_probs = np.linspace(-1.1, 0, len(ids), dtype=np.float32)
    return Response(token_ids(ids), log_probs, np.linspace(0.1, 2.3, len(ids), dtype=np.float32), "stop")


def same(a: Response, b: Response) -> bool:
    return (
        a.output_ids.tolist() == b.output_ids.tolist()
        and a.log_probs.tobytes() == b.log_probs.tobytes()
        and a.entropy.tobytes() == b.entropy.tobytes()
        and a.finish_reason == b.finish_reason
    )


@pytest.fixture
def store(tmp_path):
    return TrajectoryStore(tmp_path / ".specprobe" / "trajectories")


def test_what_is_read_is_what_was_kept(store):
    store.open({"seed": 1}).append("b", "r1", response(5, 6, 7))
    store.open({"seed": 1}).append("b", "r2", response(8))
    found = store.open({"seed": 1}).load("b")
    assert list(found) == ["r1", "r2"]
    assert same(found["r1"], response(5, 6, 7))
    assert not found["r1"].output_ids.flags.writeable


def test_other_settings_and_other_batches_are_apart(store):
    store.open({"seed": 1}).append("b", "r", response(5))
    assert store.open({"seed": 2}).load("b") == {}
    assert store.open({"seed": 1}).load("c") == {}


def test_only_the_owner_can_read(store):
    kept = store.open({})
    kept.append("b", "r", response(5))
    folders = [kept.folder, store.folder, store.folder.parent]
    assert {stat.S_IMODE(f.stat().st_mode) for f in folders} == {0o700}
    assert {stat.S_IMODE(f.stat().st_mode) for f in kept.folder.iterdir()} == {0o600}


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_torn_last_line_is_redone(store, cut):
    kept = store.open({})
    for name in ("r1", "r2"):
        kept.append("b", name, response(5, 6))
    path = kept.folder / "b.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert list(kept.load("b")) == (["r1", "r2"] if cut == 1 else ["r1"])
    kept.append("b", "r3", response(7))
    assert same(kept.load("b")["r3"], response(7))


def test_damaged_line_counts_as_absent(store):
    kept = store.open({})
    kept.append("b", "r", response(5, 6))
    path = kept.folder / "b.jsonl"
    path.write_bytes(path.read_bytes().replace(b"[5,6]", b"[5,7]") + b"\xff\xfe garbage\n\n")
    assert kept.load("b") == {}


def test_first_of_two_lines_counts(store):
    kept = store.open({})
    kept.append("b", "r", response(5))
    kept.append("b", "r", response(6))
    assert same(kept.load("b")["r"], response(5))


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "disk is full"), (errno.EACCES, "no permission")])
def test_failed_write_says_what_to_do(store, monkeypatch, code, words):
    kept = store.open({})
    kept.append("b", "r1", response(5))

    def fail(descriptor, content):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(SpecprobeError, match=words) as error:
        kept.append("b", "r2", response(6))
    assert "is kept" in str(error.value)
    assert "\n" not in str(error.value)
    assert list(kept.load("b")) == ["r1"]


def test_clear_removes_everything(store):
    store.open({}).append("b", "r", response(5))
    files, freed = clear(store.folder)
    assert (files, freed > 0) == (2, True)
    assert list(store.folder.iterdir()) == []
    assert clear(store.folder) == (0, 0)


def test_private_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_private(path, "one")
    write_private(path, "two")
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_file_in_the_way_of_a_folder(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(SpecprobeError, match="in the way"):
        make_private_folder(tmp_path / "x" / "y")


def test_places(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPECPROBE_CACHE", raising=False)
    assert cache_folder() == tmp_path / "specprobe"
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.chdir(tmp_path)
    assert trajectories_folder() == tmp_path / ".specprobe" / "trajectories"
