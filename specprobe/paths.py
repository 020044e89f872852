"""Where specprobe keeps files, and how it writes them: private, atomic, and with one-line errors."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from specprobe.errors import SpecprobeError

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600


def cache_folder() -> Path:
    """What can be rebuilt at any time, shared by all projects of a user (not created here)."""
    if override := os.environ.get("SPECPROBE_CACHE"):
        return Path(override).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path("~/.cache").expanduser()) / "specprobe"


def state_folder() -> Path:
    """What belongs to one project: `.specprobe` in the working directory (not created here)."""
    return Path.cwd() / ".specprobe"


def runs_folder() -> Path:
    """The folder of stored runs."""
    return state_folder() / "runs"


def recommendations_folder() -> Path:
    """The folder of stored recommendations."""
    return state_folder() / "recommendations"


def trajectories_folder() -> Path:
    """The folder of stored responses; they hold what users wrote, so everything in it is private."""
    return state_folder() / "trajectories"


def benches_folder() -> Path:
    """The folder of passes of benches that were not finished; they hold what the servers wrote, so all is private."""
    return state_folder() / "benches"


def make_private_folder(folder: Path) -> Path:
    """Create `folder` and its missing parents, readable by the owner only; existing ones are left as they are."""
    with file_errors(folder):
        for part in [*reversed(folder.parents), folder]:
            if not part.exists():
                part.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
                if part == state_folder():
                    # Nothing in it is for a repository, wherever the project keeps one.
                    write_private(part / ".gitignore", "*\n")
    return folder


def remove_files(paths: Iterable[Path], root: Path) -> tuple[int, int]:
    """Remove files below `root`; gives their number and their bytes."""
    files = freed = 0
    with file_errors(root):
        for path in paths:
            freed += path.lstat().st_size
            path.unlink()
            files += 1
    return files, freed


def write_private(path: Path, content: str | bytes) -> None:
    """Write a whole file so that readers see either the old or the new content, never a part; mode 0600."""
    with private_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def write_shared(path: Path, content: bytes) -> None:
    """The same for a file that other programs and people are to read: with the mode that any new file would have."""
    with file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, content)
    mask = os.umask(0)
    os.umask(mask)
    with file_errors(path):
        path.chmod(0o666 & ~mask)


@contextmanager
def private_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write piece by piece that takes the place of `path` when it is complete; mode 0600."""
    make_private_folder(path.parent)
    with file_errors(path):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def file_errors(path: Path, note: str = "") -> Iterator[None]:
    """Turn an OSError about `path` into one line that says what to do; `note` says what was kept."""
    try:
        yield
    except OSError as error:
        raise SpecprobeError(f"{path}: {_remedy(error)}{f' ({note})' if note else ''}") from error


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "the disk is full; free some space and run the same command again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "no permission to write here; change to a folder of your own, or set SPECPROBE_CACHE for the cache"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "a file is in the way of a folder; move it"
    return f"{(error.strerror or str(error)).lower()}; check the path"
