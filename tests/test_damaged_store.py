"""What lies on the disk is not what was written: no wrong response, what is damaged is named, the rest is used."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
import toy_target as toy
from store_faults import RESPONSES, is_response, keep

from specprobe import store as stores
from specprobe.generate import generate
from specprobe.store import TrajectoryStore, describe_damage
from specprobe.trajectory import token_ids
from specprobe.writing import Gathering, Request, Sampling

FLIPS = 200
SAMPLING = Sampling(0.9, max_new_tokens=12, batch_size=4)
REQUESTS = [Request(token_ids([3, *range(10, 14 + n)]), sample=n) for n in range(14)]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return toy.toy_target(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def kept(tmp_path):
    """Responses 0..11 of store_faults, in one file."""
    opened = TrajectoryStore(tmp_path).open({})
    for number in range(RESPONSES):
        keep(opened, number)
    return opened


def file_of(kept) -> Path:
    (path,) = kept.folder.glob("*.jsonl")
    return path


def flipped(content: bytes, rng: random.Random) -> tuple[bytes, int]:
    """With one byte changed to another, and which."""
    place = rng.randrange(len(content))
    other = (content[place] + rng.randrange(1, 256)) % 256
    return content[:place] + bytes([other]) + content[place + 1 :], place


def sound(read) -> set[int]:
    """The numbers of the responses that were read, each as it was kept."""
    numbers = {name: int(name.removeprefix("request")) for name in read.responses}
    assert all(is_response(read.responses[name], number) for name, number in numbers.items())
    return set(numbers.values())


def test_a_changed_byte_is_never_read_and_is_told_by_line(kept):
    path, rng, told = file_of(kept), random.Random(0), 0
    whole = path.read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == 10]
    for _ in range(FLIPS):
        changed, place = flipped(whole, rng)
        path.write_bytes(changed)
        read = kept.read("batch")
        line = sum(end < place for end in ends)
        # A line end that is none any more takes the line after it, too.
        hit = {line, line + 1} if place in ends else {line}
        assert set(range(RESPONSES)) - sound(read) <= hit
        if read.damage:
            (damage,) = read.damage
            assert damage.path == path
            assert {number - 1 for number in damage.lines} <= {line, line + 1}
            told += 1
        else:
            # What looks like a line that a kill cut short, or the last line's end, is no damage.
            assert len(read.responses) == RESPONSES or not changed.split(b"\n")[line].endswith(b"}")
    assert told > FLIPS - 5


def test_many_changed_bytes_at_once(kept):
    path, rng = file_of(kept), random.Random(1)
    whole = path.read_bytes()
    for _ in range(FLIPS):
        content = whole
        for _ in range(rng.randrange(1, 40)):
            content, _ = flipped(content, rng)
        path.write_bytes(content)
        sound(kept.read("batch"))


def test_a_cut_at_any_byte_is_no_damage(kept):
    path = file_of(kept)
    whole = path.read_bytes()
    for end in range(len(whole) - 1200, len(whole)):
        path.write_bytes(whole[:end])
        assert kept.read("batch").damage == ()
        # As the next process leaves it: a line of its own below the torn one.
        path.write_bytes(whole[:end] + b"\n" + whole[: whole.index(b"\n") + 1])
        assert kept.read("batch").damage == ()


def line_of(**fields) -> bytes:
    record = {"request": "r", "output_ids": [1, 2], "log_probs": None, "entropy": None, "finish_reason": "stop"}
    body = json.dumps({key: value for key, value in {**record, **fields}.items() if value != "-"}).encode()
    return hashlib.sha256(body).hexdigest()[:16].encode() + b" " + body + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        line_of(output_ids="-"),
        line_of(request="-"),
        line_of(request=7),
        line_of(output_ids="12"),
        line_of(output_ids=[1.5]),
        line_of(output_ids=[[1, 2]]),
        line_of(output_ids=[True]),
        line_of(output_ids=[2**31]),
        line_of(log_probs="zz"),
        line_of(log_probs="0000"),
        line_of(log_probs="00000000"),
        line_of(entropy=[1, 2]),
        line_of(finish_reason="tired"),
        line_of(obstacle=7),
        hashlib.sha256(b"[1]").hexdigest()[:16].encode() + b" [1]\n",
        hashlib.sha256(b"[" * 9999).hexdigest()[:16].encode() + b" " + b"[" * 9999 + b"\n",
        b"\x00" * 4096 + b"\n",
        b"<html>\n",
    ],
    ids=str,
)
def test_a_line_that_is_no_response_is_told(kept, line):
    path = file_of(kept)
    path.write_bytes(path.read_bytes() + line)
    read = kept.read("batch")
    assert read.damage[0].lines == (RESPONSES + 1,)
    assert len(sound(read)) == RESPONSES


def test_damage_is_one_short_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [stores.Damage(tmp_path / ".specprobe" / f"{name}.jsonl", tuple(range(1, 9))) for name in "abcd"]
    told = describe_damage(files)
    assert told.startswith("32 lines of stored responses are damaged (.specprobe/a.jsonl:1,2,3,4,5 and 3 more,")
    assert "1 more files" in told
    assert describe_damage([stores.Damage(tmp_path / "a\x1b\nb", (7,))]).startswith(
        "1 line of stored responses is damaged (a\\x1b\\nb:7);"
    )


def written(target, folder: Path):
    """All responses, and the batches that ran, by their number of rows."""
    ran: list[int] = []
    decode = toy_decode(ran)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specprobe.generate._decode", decode)
        return generate(target, REQUESTS, SAMPLING, store=TrajectoryStore(folder)), ran


def toy_decode(ran):
    from specprobe.generate import _decode

    def counted(target, rows, sampling):
        ran.append(len(rows))
        yield from _decode(target, rows, sampling)

    return counted


def bits(generated):
    return [(r.output_ids.tobytes(), r.log_probs.tobytes(), r.entropy.tobytes()) for r in generated.responses]


def test_only_the_damaged_batch_runs_again(target, tmp_path):
    """Flipped at random, in one of four files: the same responses, one batch again, all other files untouched."""
    whole, first = written(target, tmp_path)
    assert sorted(first) == [2, 4, 4, 4]
    files = {path: path.read_bytes() for path in sorted(tmp_path.glob("*/*.jsonl"))}
    rng = random.Random(2)
    told = 0
    for _ in range(40):
        for path, content in files.items():
            path.write_bytes(content)
        path = rng.choice(list(files))
        changed, _ = flipped(files[path], rng)
        path.write_bytes(changed)
        found, ran = written(target, tmp_path)
        assert bits(found) == bits(whole)
        assert found.changed == 0
        # Nothing runs where the last line lost its end only.
        assert len(ran) <= 1
        assert found.reused == len(REQUESTS) - sum(ran)
        told += bool(found.damage)
        assert {one.path for one in found.damage} <= {path}
        for other, content in files.items():
            assert other.read_bytes().startswith(changed if other == path else content)
            assert other == path or other.read_bytes() == content
        # What was made again is there now, and the damage is behind us.
        again, ran = written(target, tmp_path)
        assert (ran, again.reused, again.damage, bits(again)) == ([], len(REQUESTS), (), bits(whole))
    assert told > 35


def test_what_comes_one_by_one_is_asked_for_one_by_one(tmp_path):
    """Endpoints and vLLM share a file: a damaged line costs its own response alone."""
    opened = TrajectoryStore(tmp_path).open({})
    from store_faults import response

    for number, request in enumerate(REQUESTS):
        opened.append(Gathering.FILE, request.key, response(number))
    path = file_of(opened)
    lines = path.read_bytes().split(b"\n")
    lines[3] = lines[3].replace(b":[", b":[9", 1)
    path.write_bytes(b"\n".join(lines))
    gathering = Gathering(REQUESTS, [40] * len(REQUESTS), opened, None)
    assert gathering.missing == [3]
    gathering.take(3, response(3))
    found = gathering.generated()
    assert found.damage[0].lines == (4,)
    assert all(is_response(one, number) for number, one in enumerate(found.responses))
    assert Gathering(REQUESTS, [40] * len(REQUESTS), opened, None).generated().damage == ()


def test_analyze_says_it_on_stderr_and_the_run_is_the_same(target, tmp_path, monkeypatch, capfd):
    from specprobe.cli import run_command

    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"r{n}", "prompt": f"row {n}"} for n in range(6)]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["analyze", "log.jsonl", "--target", target.record.name, "--device", "cpu", "--max-new-tokens", "8"]
    assert run_command([*arguments, "--json"]) == 0
    before = capfd.readouterr().out
    (path,) = Path(".specprobe/trajectories").glob("*/*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"stop"', b'"sTop"').replace(b'"length"', b'"lenGth"'))
    assert run_command([*arguments, "--json"]) == 0
    out, err = capfd.readouterr()
    assert out == before
    # However it was broken into lines.
    wanted = f"warning: 6 lines of stored responses are damaged ({path}:1,2,3,4,5 and 1 more);"
    assert "".join(wanted.split()) in "".join(err.split())
    # Once: what was made again is there.
    assert run_command([*arguments, "--json"]) == 0
    assert "damaged" not in capfd.readouterr().err


# --- versions ---


def in_the_old_form(folder: Path) -> dict[Path, bytes]:
    """A store as versions 1 and 3 of the format might be: other folders, another form of line."""
    body = b'{"key":"r","tokens":[1,2]}'
    files = {
        folder / "0123456789abcdef" / "settings.json": b'{"format_version": 1}\n',
        folder / "0123456789abcdef" / "batch.jsonl": hashlib.sha256(body).hexdigest()[:16].encode()
        + b" "
        + body
        + b"\n",
        folder / "fedcba9876543210" / "settings.json": b'{"format_version": 3}\n',
        folder / "fedcba9876543210" / "batch.bin": bytes(range(256)),
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return files


def test_what_another_version_wrote_is_left_alone(target, tmp_path, monkeypatch):
    old = in_the_old_form(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        # The same settings under the format before, so that only the version tells them apart.
        patch.setattr(stores, "FORMAT_VERSION", 1)
        older, ran = written(target, tmp_path)
    assert sum(ran) == len(REQUESTS)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert old.items() <= before.items()
    found, ran = written(target, tmp_path)
    assert (sum(ran), found.reused, found.damage) == (len(REQUESTS), 0, ())
    assert bits(found) == bits(older)
    assert before.items() <= {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}.items()
    # Both serve their own from now on.
    assert written(target, tmp_path)[1] == []
    monkeypatch.setattr(stores, "FORMAT_VERSION", 1)
    assert written(target, tmp_path)[1] == []


def test_lines_of_another_form_in_the_right_place_are_not_misread(kept):
    body = b'{"key":"r","tokens":[1,2]}'
    path = file_of(kept)
    path.write_bytes(hashlib.sha256(body).hexdigest()[:16].encode() + b" " + body + b"\n" + path.read_bytes())
    read = kept.read("batch")
    assert read.damage[0].lines == (1,)
    assert len(sound(read)) == RESPONSES


def test_a_record_with_more_in_it_than_is_known_is_read(tmp_path):
    """A later version may add a key and keep the form."""
    opened = TrajectoryStore(tmp_path).open({})
    opened.folder.mkdir(parents=True)
    (opened.folder / "batch.jsonl").write_bytes(line_of(later="x"))
    assert np.array_equal(opened.load("batch")["r"].output_ids, [1, 2])


@pytest.mark.parametrize("folder", ["runs", "recommendations"])
@pytest.mark.parametrize("schema", ["specprobe.{}/0", "specprobe.{}/99", "specprobe.other/1", None])
def test_runs_and_recommendations_of_another_version_are_refused_by_name(tmp_path, monkeypatch, capfd, folder, schema):
    from specprobe.cli import run_command

    monkeypatch.chdir(tmp_path)
    Path(".specprobe", folder).mkdir(parents=True)
    path = Path(".specprobe", folder, "20260101-000000-000000000.json")
    named = schema.format(folder.removesuffix("s")) if schema else None
    path.write_text(json.dumps({"schema": named, "run_digest": "0" * 16}))
    before = path.read_bytes()
    commands = (["report"], ["recommend"], ["compare", str(path), str(path)], ["gate", "--min-tokens-per-round", "1"])
    for arguments in commands if folder == "runs" else (["export", "--engine", "vllm", "--recommendation", str(path)],):
        assert run_command(arguments) == 2
        err = capfd.readouterr().err
        assert err.count("\n") == 1
        assert "unexpected" not in err
        if named and named.startswith(f"specprobe.{folder.removesuffix('s')}/") and folder == "runs":
            assert "is not known to specprobe" in err
    assert path.read_bytes() == before
