"""Room on the disk for what a run needs only while it lasts: private, and gone when the run is, however it ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
