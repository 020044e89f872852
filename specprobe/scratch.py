"""Room on the disk for what a run needs only while it lasts: private, and gone when the run is, however it ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import IO

from specprobe.paths import file_errors, make_private_folder, state_folder


def states_folder() -> Path:
    """Where hidden states of the target wait; they tell what the text was, so they stay in the project's own folder."""
    return state_folder() / "states"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder for this process; those of processes that were killed are removed."""
    root = make_private_folder(states_folder())
    with file_errors(root):
        remove_abandoned()
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def nameless_file() -> FileIO | None:
    """A new file that no other process can open; it is gone when it is closed, or this process is.

    None where there can be none: no folder can be written to, or too many files are open. What was to wait there then
    stays in memory.
    """
    try:
        # Without a buffer: what a full disk has refused is not tried again when the file is closed.
        return tempfile.TemporaryFile(dir=nameless_place(), buffering=0)
    except OSError:
        return None


def nameless_place() -> Path:
    """Where such files lie: on the project's disk, since others may be made of memory; nothing is to be seen there."""
    places = (place for place in (state_folder(), Path.cwd()) if os.access(place, os.W_OK))
    return next(places, Path(tempfile.gettempdir()))


def write_scratch(file: IO[bytes], content: bytes | memoryview) -> None:
    """Write all of `content` where the file stands; raises SpecprobeError for a full disk."""
    left = memoryview(content)
    with file_errors(nameless_place(), "what a large log is analysed with waits there; finished responses are safe"):
        while left:
            left = left[file.write(left) :]


def remove_abandoned() -> tuple[int, int]:
    """Remove what no living process owns; gives the number of files and their bytes."""
    files = size = 0
    for folder in states_folder().glob("*-*"):
        if _is_alive(folder.name.partition("-")[0]):
            continue
        found = [path for path in folder.rglob("*") if path.is_file()]
        files += len(found)
        size += sum(path.stat().st_size for path in found)
        shutil.rmtree(folder, ignore_errors=True)
    return files, size


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
