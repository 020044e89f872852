"""Responses on disk: each is kept the moment it is finished, so that an interrupted run loses nothing.

One folder for each set of settings that change the output, one append-only file for each batch, one line for each
response. File names are hashes; they say nothing about prompts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specprobe.checked_lines import append_record, read_records
from specprobe.paths import file_errors, remove_files, trajectories_folder, write_private
from specprobe.trajectory import TokenIds, token_ids

FORMAT_VERSION = 2


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


class TrajectoryStore:
    """Responses kept under `folder` (by default `.specprobe/trajectories` of the working directory)."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or trajectories_folder()

    def open(self, settings: Mapping[str, Any]) -> SettingsStore:
        """The part of the store that holds responses made under exactly these (JSON-able) settings."""
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
        responses: dict[str, Response] = {}
        for record in read_records(self._path(batch)):
            responses.setdefault(record["request"], _from_record(record))
        return responses

    def append(self, batch: str, request: str, response: Response) -> None:
        """Keep one finished response: when this returns, it is on the disk."""
        path = self._path(batch)
        if not self.folder.is_dir():
            write_private(self.folder / "settings.json", json.dumps(self._settings, indent=2, sort_keys=True) + "\n")
        append_record(path, _to_record(request, response), "every response finished before this one is kept")

    def _path(self, batch: str) -> Path:
        return self.folder / f"{batch}.jsonl"


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


def _to_record(request: str, response: Response) -> dict[str, Any]:
    return {
        "request": request,
        "output_ids": response.output_ids.tolist(),
        "log_probs": None if response.log_probs is None else _to_hex(response.log_probs),
        "entropy": None if response.entropy is None else _to_hex(response.entropy),
        "finish_reason": response.finish_reason,
        **({"obstacle": response.obstacle} if response.obstacle else {}),
    }


def _from_record(record: Mapping[str, Any]) -> Response:
    return Response(
        token_ids(record["output_ids"]),
        None if record["log_probs"] is None else _from_hex(record["log_probs"]),
        None if record["entropy"] is None else _from_hex(record["entropy"]),
        record["finish_reason"],
        record.get("obstacle"),
    )


def _to_hex(values: NDArray[np.float32]) -> str:
    """The bits of the float32 values, so that what is read back is what was computed."""
    return values.astype("<f4").tobytes().hex()


def _from_hex(text: str) -> NDArray[np.float32]:
    values = np.frombuffer(bytes.fromhex(text), dtype="<f4").astype(np.float32)
    values.flags.writeable = False
    return values
