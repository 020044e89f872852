"""Where runs and recommendations are kept: `.specprobe/runs/`, `.specprobe/recommendations/`, newest last."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.paths import file_errors, private_file, recommendations_folder, remove_files, runs_folder
from specprobe.sources import is_data_file, is_folder

# In the name of a run that holds prompts and responses, so that `clean` finds it.
WITH_TEXT = "-with-text"


def keep_run(text: Callable[[], Iterable[str]], out: Path | None, *, has_text: bool = False) -> Path:
    """Write a run to the project's folder, and to `out` where given; the file's name is the time in UTC.

    `text`: gives the pieces of the document, each time from its beginning.
    """
    try:
        return _keep(text(), runs_folder(), WITH_TEXT if has_text else "")
    finally:
        # It may lie on another disk, which is not full.
        if out is not None:
            _write(text(), out.resolve())


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
    made_from = re.compile(rf'"run_digest"\s*:\s*"{re.escape(run_digest)}"'.encode("ascii"))
    return next((path for path in kept if made_from.search(path.read_bytes())), None)


def kept_at(path: Path) -> str | None:
    """When a document was kept, which its name says: `2026-12-01 10:06:13 UTC`; None of a file that was not kept so."""
    try:
        moment = time.strptime(path.name[:15], "%Y%m%d-%H%M%S")
    except ValueError:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", moment)


def _keep(text: Iterable[str], folder: Path, suffix: str = "") -> Path:
    now = time.time_ns()
    # Nanoseconds keep the order of documents that are made in the same second.
    moment = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now // 10**9))}-{now % 10**9:09d}"
    path = folder / f"{moment}{suffix}.json"
    _write(text, path)
    return path


def _write(text: Iterable[str], path: Path) -> None:
    with private_file(path) as file:
        file.writelines(piece.encode("ascii") for piece in text)
        file.write(b"\n")


def check_out(out: Path, option: str = "--out", inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse what cannot become a file before hours are spent on what it is to hold, and what is read by this command.

    `inputs`: files as the user named them, patterns included.
    """
    with file_errors(out):
        if out.exists() and not out.is_file():
            raise SpecprobeError(f"{option} {out}: is no regular file; give the name of a file")
        names = [name for name in inputs if name is not None]
        if out.exists() and any(path.exists() and path.samefile(out) for path in _files(names)):
            raise SpecprobeError(f"{option} {out}: is what is read here, and would be overwritten; give another name")
        if name := next((name for name in names if _would_read(str(name), out)), None):
            raise SpecprobeError(
                f"{option} {out}: is among what {inert(str(name), 200)} names, so that the next command would read it "
                "as input; give a place elsewhere"
            )
        parent = next(folder for folder in out.absolute().parents if folder.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise SpecprobeError(f"{option} {out}: {parent} cannot be written to; give another place")


def _files(names: Iterable[str | Path]) -> Iterator[Path]:
    for name in names:
        yield Path(name)
        # pathlib's glob cannot take an absolute pattern.
        yield from map(Path, glob.glob(str(name), recursive=True))  # noqa: PTH207


def _would_read(name: str, out: Path) -> bool:
    """Whether a folder or a pattern among the inputs would have `out` among its files."""
    place = out.resolve()
    if is_folder(name):
        root = Path(name).resolve()
        return place.is_relative_to(root) and is_data_file(place, root)
    if not glob.has_magic(name):
        return False
    pattern = Path(os.path.abspath(name))  # noqa: PTH100 - resolving would follow a link named like the pattern
    root = next(folder for folder in pattern.parents if not glob.has_magic(str(folder)))
    if "**" in pattern.parts:
        # Any number of folders: only the name is compared.
        return place.is_relative_to(root.resolve()) and place.match(pattern.name)
    return place.match(str(root.resolve() / pattern.relative_to(root)))


def last_run() -> Path:
    """The newest run of this project."""
    with file_errors(runs_folder()):
        runs = sorted(runs_folder().glob("*.json"))
    if not runs:
        raise SpecprobeError("no run in .specprobe/runs; run `specprobe analyze PROMPTS` first, or name a run's file")
    return runs[-1]
