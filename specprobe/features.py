"""Features: what the target's layers held at each token of a trajectory, for drafters that read it.

They come from one teacher-forced pass over the stored trajectories and wait on the disk, so that the target and a
drafter need not be in memory together. Imports torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from specprobe.batches import prompt_windows
from specprobe.crew import Bench
from specprobe.drafters.base import known_tokens
from specprobe.errors import SpecprobeError
from specprobe.paths import PRIVATE_FILE, file_errors
from specprobe.shared_prompts import Text, states_of_texts
from specprobe.target import Target
from specprobe.trajectory import Trajectory

# The target's last hidden state after its final norm: what its head reads.
LAST = -1
_NOTE = "the target's hidden states are kept there while drafters run; finished responses are safe"


class Features(Protocol):
    """States of the target by tap: a tap k >= 0 is what enters layer k (k = layers: what leaves the last), or LAST."""

    def read(self, tap: int, trajectory: Trajectory) -> torch.Tensor:
        """[tokens of prompt, response and tail, hidden size], on the CPU."""


@dataclass(frozen=True, slots=True)
class CarriedFeatures:
    """States of a few trajectories that travel with them, by tap: `rows` uint8, [tokens, bytes of a row]."""

    rows: Mapping[bytes, Mapping[int, NDArray[np.uint8]]] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32

    def read(self, tap: int, trajectory: Trajectory) -> torch.Tensor:
        """See `Features`."""
        # What another process sent cannot be written to, and tensors can.
        return torch.from_numpy(self.rows[_key(trajectory)][tap].copy()).view(self.dtype)


def carried(features: Features, taps: Sequence[int], trajectories: Sequence[Trajectory]) -> CarriedFeatures:
    """The states of these trajectories, to be sent to another process."""
    states = {_key(t): {tap: features.read(tap, t) for tap in taps} for t in trajectories}
    dtype = next((state.dtype for by_tap in states.values() for state in by_tap.values()), torch.float32)
    return CarriedFeatures({key: {tap: in_bytes(by_tap[tap]) for tap in taps} for key, by_tap in states.items()}, dtype)


@dataclass(frozen=True, slots=True)
class StoredFeatures:
    """States on the disk.

    The file of a tap holds one row [hidden size] for each token of each trajectory's prompt, response and tail, in the
    precision the target computed in. `rows`: the first row and the number of rows of a trajectory.
    """

    folder: Path
    rows: Mapping[bytes, tuple[int, int]]
    hidden_size: int
    dtype: torch.dtype

    def read(self, tap: int, trajectory: Trajectory) -> torch.Tensor:
        """See `Features`."""
        first, count = self.rows[_key(trajectory)]
        row_bytes = self.hidden_size * self.dtype.itemsize
        path = _path(self.folder, tap)
        with file_errors(path), path.open("rb") as file:
            file.seek(first * row_bytes)
            content = bytearray(file.read(count * row_bytes))
        return torch.frombuffer(content, dtype=self.dtype).reshape(-1, self.hidden_size)


class FeatureFiles:
    """The files of features while they are written, in a folder; open as long as a block lasts."""

    def __init__(self, folder: Path, taps: Sequence[int]) -> None:
        self._folder, self._taps = folder, taps
        self._stack = contextlib.ExitStack()
        self._files: dict[int, BinaryIO] = {}
        self._rows: dict[bytes, tuple[int, int]] = {}
        self._written = 0

    def __enter__(self) -> FeatureFiles:
        with file_errors(self._folder, _NOTE), contextlib.ExitStack() as stack:
            for tap in self._taps:
                self._files[tap] = stack.enter_context(open(_path(self._folder, tap), "wb", opener=_private))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    @property
    def count(self) -> int:
        """Trajectories that are kept."""
        return len(self._rows)

    def add(self, trajectory: Trajectory, states: Mapping[int, NDArray[np.uint8]]) -> None:
        """Keep the states of a trajectory by tap, as of `in_bytes`; raises SpecprobeError for a full disk."""
        length = known_tokens(trajectory).size
        self._rows[_key(trajectory)] = self._written, length
        self._written += length
        for tap, file in self._files.items():
            assert len(states[tap]) == length
            _write(file, states[tap], self._folder)

    def features(self, hidden_size: int, dtype: torch.dtype) -> StoredFeatures:
        """What was kept, with the width and precision of all states."""
        return StoredFeatures(self._folder, self._rows, hidden_size, dtype)


def distinct_texts(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """One trajectory of each text: the states of equal ones are kept once."""
    return list({_key(trajectory): trajectory for trajectory in trajectories}.values())


def capture_features(
    target: Target,
    trajectories: Iterable[Trajectory],
    taps: Sequence[int],
    folder: Path,
    on_response: Callable[[int], None] | None = None,
) -> StoredFeatures:
    """Run the target over trajectories and keep the states at `taps` in files under `folder`; equal ones once.

    Raises SpecprobeError where the disk cannot hold them.
    """
    works = distinct_texts(trajectories)
    batches = [batch for window in prompt_windows(works) for batch in window]
    texts = (([_prompt_and_rest(works[i]) for i in batch], tuple(taps)) for batch in batches)
    with FeatureFiles(folder, taps) as files:
        for number, found in target.each(_states_of_batch, texts):
            for index, states in zip(batches[number], found, strict=True):
                files.add(works[index], states)
                if on_response is not None:
                    on_response(files.count)
    return files.features(target.text_config.hidden_size, target.model.dtype)


def _states_of_batch(bench: Bench, item: tuple[Sequence[Text], Sequence[int]]) -> list[dict[int, NDArray[np.uint8]]]:
    """By text and tap: [tokens, bytes of a row], in the precision of the weights."""
    target, (texts, taps) = bench.running_target(), item

    def run(**inputs: Any) -> dict[int, torch.Tensor]:
        with recording(target, taps) as recorded:
            with contextlib.suppress(_EnoughError):
                target.decoder(**inputs)
            return dict(recorded)

    with torch.inference_mode():
        # Some models keep this stream in float32 beside narrower weights.
        return [
            {tap: in_bytes(states.to(target.model.dtype)) for tap, states in by_tap.items()}
            for by_tap in states_of_texts(target, texts, run)
        ]


def _prompt_and_rest(trajectory: Trajectory) -> Text:
    return trajectory.prompt_ids, np.concatenate([trajectory.output_ids, trajectory.tail_ids])


def in_bytes(states: torch.Tensor) -> NDArray[np.uint8]:
    """[tokens, bytes of a row] of states [tokens, hidden size], which go out as they are: numpy has no bfloat16."""
    return states.contiguous().cpu().view(torch.uint8).numpy()


def _private(path: str, flags: int) -> int:
    """They tell what the text was."""
    return os.open(path, flags, PRIVATE_FILE)


class _EnoughError(Exception):
    """Ends a forward pass that has gone as deep as it must."""


@contextmanager
def recording(target: Target, taps: Sequence[int], *, stops: bool = True) -> Iterator[dict[int, torch.Tensor]]:
    """While this lasts, a forward pass of the decoder leaves the states at `taps` in the dict.

    `stops`: whether it ends at the last of them, with an exception.
    """
    recorded: dict[int, torch.Tensor] = {}
    layers = target.layers
    handles = []
    if max(taps) > len(layers):
        raise SpecprobeError(
            f"target {target.record.name}: has {len(layers)} layers, the drafter reads layer {max(taps)}; "
            "the drafter was trained for another target"
        )
    # Layers behind the last tap need not be run.
    last = None if LAST in taps or not stops else max(taps)

    def record(tap: int, states: torch.Tensor) -> None:
        recorded[tap] = states
        if tap == last:
            raise _EnoughError

    def record_input(tap: int) -> Callable[..., None]:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            record(tap, args[0] if args else kwargs["hidden_states"])

        return hook

    def record_output(tap: int) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            record(tap, output[0] if isinstance(output, tuple) else output)

        return hook

    for tap in taps:
        if tap == LAST:
            handles.append(target.final_norm.register_forward_hook(record_output(tap)))
        elif tap == 0:
            handles.append(layers[0].register_forward_pre_hook(record_input(tap), with_kwargs=True))
        else:
            handles.append(layers[tap - 1].register_forward_hook(record_output(tap)))
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()
        recorded.clear()


def _write(file: BinaryIO, states: NDArray[np.uint8], folder: Path) -> None:
    with file_errors(folder, _NOTE):
        file.write(states.tobytes())
        file.flush()


def _path(folder: Path, tap: int) -> Path:
    return folder / ("last.bin" if tap == LAST else f"layer-{tap}.bin")


def _key(trajectory: Trajectory) -> bytes:
    """Of the tokens alone: what the target's layers hold depends on nothing else."""
    parts = (trajectory.prompt_ids, trajectory.output_ids, trajectory.tail_ids)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
