"""Where runs and recommendations are kept: `.specprobe/runs/`, `.specprobe/recommendations/`, newest last."""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from specprobe.errors import SpecprobeError
from specprobe.paths import file_errors, private_file, recommendations_folder, remove_files, runs_folder

# In the name of a run that holds prompts and responses, so that `clean` finds it.
WITH_TEXT = "-with-text"


def keep_run(text: Iterable[str], out: Path | None, *, has_text: bool = False) -> Path:
    """Write a run, in pieces, to the project's folder, and to `out` where given; the file's name is the time in UTC."""
    path = _keep(text, runs_folder(), WITH_TEXT if has_text else "")
    if out is not None:
        with path.open("rb") as kept, private_file(out.resolve()) as file:
            shutil.copyfileobj(kept, file)
    return path


def remove_texts() -> tuple[int, int]:
    """Remove the runs that hold prompts and responses, and what a killed process left half written.

    Gives the number of files and their bytes.
    """
    root = runs_folder()
    return remove_files([*root.glob(f"*{WITH_TEXT}.json"), *root.glob(".*.json.*")], root)


def keep_recommendation(document: str) -> Path:
    """Write a recommendation to the project's folder, where `report` finds it."""
    return _keep([document], recommendations_folder())


def last_recommendation(run_digest: str) -> Path | None:
    """The newest recommendation that was made from this run; None where there is none."""
    with file_errors(recommendations_folder()):
        kept = sorted(recommendations_folder().glob("*.json"), reverse=True)
    # A whole document is parsed only where it can be the one.
    return next((path for path in kept if run_digest.encode("ascii") in path.read_bytes()), None)


def _keep(text: Iterable[str], folder: Path, suffix: str = "") -> Path:
    now = time.time_ns()
    # Nanoseconds keep the order of documents that are made in the same second.
    moment = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now // 10**9))}-{now % 10**9:09d}"
    path = folder / f"{moment}{suffix}.json"
    with private_file(path) as file:
        file.writelines(piece.encode("ascii") for piece in text)
        file.write(b"\n")
    return path


def check_out(out: Path, option: str = "--out", inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse what cannot become a file before hours are spent on what it is to hold, and what is read by this command.

    `inputs`: files as the user named them, patterns included.
    """
    with file_errors(out):
        if out.exists() and not out.is_file():
            raise SpecprobeError(f"{option} {out}: is no regular file; give the name of a file")
        if out.exists() and any(path.exists() and path.samefile(out) for path in _files(inputs)):
            raise SpecprobeError(f"{option} {out}: is what is read here, and would be overwritten; give another name")
        parent = next(folder for folder in out.absolute().parents if folder.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise SpecprobeError(f"{option} {out}: {parent} cannot be written to; give another place")


def _files(names: Iterable[str | Path | None]) -> Iterator[Path]:
    for name in names:
        if name is not None:
            yield Path(name)
            # pathlib's glob cannot take an absolute pattern.
            yield from map(Path, glob.glob(str(name), recursive=True))  # noqa: PTH207


def last_run() -> Path:
    """The newest run of this project."""
    with file_errors(runs_folder()):
        runs = sorted(runs_folder().glob("*.json"))
    if not runs:
        raise SpecprobeError("no run in .specprobe/runs; run `specprobe analyze PROMPTS` first, or name a run's file")
    return runs[-1]
