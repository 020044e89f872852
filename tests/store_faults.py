"""What can happen to the trajectory store, done to it for real: `python -m tests.store_faults FOLDER KILLS`.

Each child keeps responses until it is killed (SIGKILL) with a write cut at a random byte; each is followed by a reader
that wants every response the child had been told was kept, and by a writer that goes on. Then several writers keep
responses in one file at once, and a writer runs into a limit of the file's size as into a full disk. Prints counts as
JSON. Needs POSIX; imports nothing heavy, so that it forks quickly.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import sys
from pathlib import Path

import numpy as np

from specprobe.errors import SpecprobeError
from specprobe.store import Response, SettingsStore, TrajectoryStore
from specprobe.trajectory import token_ids

RESPONSES = 12
WRITERS, RESPONSES_A_WRITER = 4, 50


def response(number: int) -> Response:
    """The response that every process expects under this number; of 1 to 40 tokens."""
    rng = np.random.default_rng(number)
    size = int(rng.integers(1, 41))
    return Response(
        token_ids(rng.integers(0, 50_000, size)),
        rng.normal(size=size).astype(np.float32),
        rng.normal(size=size).astype(np.float32),
        "stop" if number % 2 else "length",
    )


def is_response(found: Response, number: int) -> bool:
    """Whether all of it is as it was kept."""
    wanted = response(number)
    return (
        np.array_equal(found.output_ids, wanted.output_ids)
        and found.log_probs.tobytes() == wanted.log_probs.tobytes()
        and found.entropy.tobytes() == wanted.entropy.tobytes()
        and found.finish_reason == wanted.finish_reason
    )


def keep(store: SettingsStore, number: int) -> None:
    """Keep one response."""
    store.append("batch", f"request{number}", response(number))


def count_kept(store: SettingsStore) -> int:
    """How many responses are there; each must be what was kept."""
    found = store.load("batch")
    for name, one in found.items():
        assert is_response(one, int(name.removeprefix("request"))), name
    return len(found)


def killed_after(num_bytes: int) -> None:
    """From here on this process dies in the write that would pass so many bytes, after the part that fits."""
    write, left = os.write, num_bytes

    def dying(descriptor: int, content: bytes) -> int:
        nonlocal left
        if len(content) <= left:
            left -= len(content)
            return write(descriptor, content)
        write(descriptor, content[:left])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes on")

    os.write = dying


def kill_once(folder: Path, rng: random.Random) -> int:
    """Returns how many responses the killed process had been told were kept."""
    store, whole = TrajectoryStore(folder).open({"kill": rng.random()}), 0
    for number in range(RESPONSES):
        whole += len(json.dumps(response(number).output_ids.tolist())) + 16 * response(number).output_ids.size + 120
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        tell = os.write
        killed_after(rng.randrange(whole))
        for number in range(RESPONSES):
            keep(store, number)
            tell(writer, struct.pack("B", number + 1))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        acknowledged = told.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    promised = acknowledged[-1] if acknowledged else 0
    # The one that was being written may have come whole, too.
    assert promised <= count_kept(store) <= promised + 1
    for number in range(RESPONSES):
        keep(store, number)
    assert count_kept(store) == RESPONSES
    return int(os.WIFSIGNALED(status))


def write_together(folder: Path) -> int:
    """Several processes keep responses in one file; returns how many are there in the end."""
    store, children = TrajectoryStore(folder).open({"together": True}), []
    for first in range(0, WRITERS * RESPONSES_A_WRITER, RESPONSES_A_WRITER):
        child = os.fork()
        if child == 0:
            for number in range(first, first + RESPONSES_A_WRITER):
                keep(store, number)
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    return count_kept(store)


def fill_the_disk(folder: Path) -> tuple[int, str]:
    """A file may not grow past some bytes; returns how many responses are there, and what the user is told."""
    store = TrajectoryStore(folder).open({"full": True})
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    kept, told = 0, ""
    try:
        for number in range(100):
            keep(store, number)
            kept += 1
    except SpecprobeError as error:
        told = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert count_kept(store) == kept
    keep(store, 100)
    assert count_kept(store) == kept + 1
    return kept, told


def main() -> None:
    """See the module."""
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(0)
    killed = sum(kill_once(folder / "kill", rng) for _ in range(kills))
    kept, told = fill_the_disk(folder / "full")
    print(
        json.dumps(
            {
                "kill_points": kills,
                "killed": killed,
                "kept_together": write_together(folder / "together"),
                "kept_before_full": kept,
                "told_when_full": told,
            }
        )
    )


if __name__ == "__main__":
    main()
