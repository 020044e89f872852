"""Responses on disk: each is kept the moment it is finished, so that an interrupted run loses nothing.

One folder for each set of settings that change the output, one append-only file for each batch, one line for each
response. A line that ends in the middle of its JSON was being written when its process was killed or the disk was full:
it counts as absent. Any other line that is no response was damaged later: it counts as absent too, and is told of. File
names are hashes; they say nothing about prompts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specprobe.checked_lines import append_record, read_lines
from specprobe.notices import inert
from specprobe.paths import benches_folder, file_errors, remove_files, trajectories_folder, write_private
from specprobe.run_files import remove_texts
from specprobe.scratch import remove_abandoned
from specprobe.trajectory import TokenIds, token_ids

FORMAT_VERSION = 2
_LINES_TOLD, _FILES_TOLD = 5, 3


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """What the target wrote for one request.

    `output_ids` [N] int32, the end token included where it stopped by itself; `log_probs` [N] float32: log p of
    each of them as sampled (at temperature 0: under the softmax at temperature 1); `entropy` [N] float32: of the
    distribution that each came from, in nats (at temperature 0 likewise); None where they are not known. `obstacle`:
    why it cannot be replayed, such as retokenized; it is kept all the same, so that nobody asks for it again.
    """

    output_ids: TokenIds
    log_probs: NDArray[np.float32] | None
    entropy: NDArray[np.float32] | None
    finish_reason: Literal["stop", "length"]
    obstacle: str | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """Lines of one file, from 1, that are no responses although they were written to their end."""

    path: Path
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The responses of one file by request key, and what of the file is damaged."""

    responses: dict[str, Response]
    damage: tuple[Damage, ...]


class TrajectoryStore:
    """Responses kept under `folder` (by default `.specprobe/trajectories` of the working directory)."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or trajectories_folder()

    def open(self, settings: Mapping[str, Any]) -> SettingsStore:
        """The part of the store that holds responses made under exactly these (JSON-able) settings.

        The version of the format is one of them, so that what another version wrote is left alone.
        """
        described = {**settings, "format_version": FORMAT_VERSION}
        canonical = json.dumps(described, sort_keys=True, ensure_ascii=True)
        folder = self.folder / hashlib.sha256(canonical.encode("ascii")).hexdigest()[:16]
        return SettingsStore(folder, described)


class SettingsStore:
    """Responses made under one set of settings, by batch and by request."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self._settings = settings

    def load(self, batch: str) -> dict[str, Response]:
        """The finished responses of a batch by request key; of two lines for one request the first counts."""
        return self.read(batch).responses

    def read(self, batch: str) -> Kept:
        """The same, with what is damaged."""
        path = self._path(batch)
        lines = read_lines(path)
        responses: dict[str, Response] = {}
        damaged = list(lines.damaged)
        for number, record in lines.records:
            try:
                responses.setdefault(*_from_record(record))
            except (KeyError, TypeError, ValueError, OverflowError):
                damaged.append(number)
        return Kept(responses, (Damage(path, tuple(sorted(damaged))),) if damaged else ())

    def append(self, batch: str, request: str, response: Response) -> None:
        """Keep one finished response: when this returns, it is on the disk."""
        path = self._path(batch)
        if not self.folder.is_dir():
            write_private(self.folder / "settings.json", json.dumps(self._settings, indent=2, sort_keys=True) + "\n")
        append_record(path, _to_record(request, response), "every response finished before this one is kept")

    def _path(self, batch: str) -> Path:
        return self.folder / f"{batch}.jsonl"


def describe_damage(damage: Sequence[Damage]) -> str:
    """One sentence for the user: how much, in which files and lines, and what became of it."""
    places = [f"{inert(_shown(one.path), 200)}:{_numbers(one.lines)}" for one in damage[:_FILES_TOLD]]
    if len(damage) > _FILES_TOLD:
        places.append(f"{len(damage) - _FILES_TOLD} more files")
    count = sum(len(one.lines) for one in damage)
    what = "1 line of stored responses is damaged" if count == 1 else f"{count} lines of stored responses are damaged"
    return (
        f"{what} ({', '.join(places)}); the responses that are missing were made again, all others used as they were: "
        "check the disk"
    )


def clear(folder: Path | None = None) -> tuple[int, int]:
    """Remove every stored response; returns the number of files removed and of bytes freed."""
    root = folder or trajectories_folder()
    with file_errors(root):
        found = sorted(root.rglob("*"), reverse=True)
        folders = [path for path in found if path.is_dir() and not path.is_symlink()]
    # Also what a killed process left half written.
    files, freed = remove_files([path for path in found if path not in folders], root)
    with file_errors(root):
        for part in folders:
            part.rmdir()
    return files, freed


def remove_all_texts() -> tuple[int, int]:
    """What holds text in the project's folder, whoever wrote it: the number of files removed and of bytes freed."""
    removed = (clear(trajectories_folder()), clear(benches_folder()), remove_abandoned(), remove_texts())
    return sum(files for files, _ in removed), sum(freed for _, freed in removed)


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _numbers(lines: tuple[int, ...]) -> str:
    told = ",".join(map(str, lines[:_LINES_TOLD]))
    return told if len(lines) <= _LINES_TOLD else f"{told} and {len(lines) - _LINES_TOLD} more"


def _to_record(request: str, response: Response) -> dict[str, Any]:
    return {
        "request": request,
        "output_ids": response.output_ids.tolist(),
        "log_probs": None if response.log_probs is None else _to_hex(response.log_probs),
        "entropy": None if response.entropy is None else _to_hex(response.entropy),
        "finish_reason": response.finish_reason,
        **({"obstacle": response.obstacle} if response.obstacle else {}),
    }


def _from_record(record: Mapping[str, Any]) -> tuple[str, Response]:
    """Request key and response. Raises KeyError, TypeError, ValueError or OverflowError for what is none."""
    key, reason, obstacle = record["request"], record["finish_reason"], record.get("obstacle")
    if not isinstance(key, str) or reason not in ("stop", "length") or not isinstance(obstacle, str | None):
        raise ValueError("no record of a response")
    if not isinstance(record["output_ids"], list) or not set(map(type, record["output_ids"])) <= {int}:
        raise ValueError("no token ids")
    ids = token_ids(record["output_ids"])
    log_probs, entropy = (_from_hex(record[name], len(ids)) for name in ("log_probs", "entropy"))
    return key, Response(ids, log_probs, entropy, reason, obstacle)


def _to_hex(values: NDArray[np.float32]) -> str:
    """The bits of the float32 values, so that what is read back is what was computed."""
    return values.astype("<f4").tobytes().hex()


def _from_hex(text: str | None, length: int) -> NDArray[np.float32] | None:
    if text is None:
        return None
    values = np.frombuffer(bytes.fromhex(text), dtype="<f4").astype(np.float32)
    if len(values) != length:
        raise ValueError("not one number a token")
    values.flags.writeable = False
    return values
