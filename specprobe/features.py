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

from specprobe.batches import padded_ids, text_windows
from specprobe.crew import Bench
from specprobe.drafters.base import known_tokens
from specprobe.errors import SpecprobeError
from specprobe.paths import PRIVATE_FILE, file_errors
from specprobe.target import Target
from specprobe.trajectory import TokenIds, Trajectory

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
    return CarriedFeatures({key: {tap: _bytes(by_tap[tap]) for tap in taps} for key, by_tap in states.items()}, dtype)


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
    works = list({_key(trajectory): trajectory for trajectory in trajectories}.values())
    batches = [batch for window in text_windows(works) for batch in window]
    rows: dict[bytes, tuple[int, int]] = {}
    written = 0
    with contextlib.ExitStack() as stack:
        with file_errors(folder, _NOTE):
            files = {tap: stack.enter_context(open(_path(folder, tap), "wb", opener=_private)) for tap in taps}
        texts = (([known_tokens(works[i]) for i in batch], tuple(taps)) for batch in batches)
        for number, found in target.each(_states_of_batch, texts):
            for index, states in zip(batches[number], found, strict=True):
                count = len(known_tokens(works[index]))
                rows[_key(works[index])] = written, count
                written += count
                for tap, file in files.items():
                    _write(file, states[tap], folder)
                if on_response is not None:
                    on_response(len(rows))
    return StoredFeatures(folder, rows, target.text_config.hidden_size, target.model.dtype)


def _states_of_batch(
    bench: Bench, item: tuple[Sequence[TokenIds], Sequence[int]]
) -> list[dict[int, NDArray[np.uint8]]]:
    """By text and tap: [tokens, bytes of a row], in the precision of the weights."""
    target, (texts, taps) = bench.target, item
    with torch.inference_mode(), recording(target, taps) as recorded:
        ids = torch.from_numpy(padded_ids(texts)).to(target.device)
        with contextlib.suppress(_EnoughError):
            target.decoder(input_ids=ids, use_cache=False)
        # Some models keep this stream in float32 beside narrower weights.
        return [
            {tap: _bytes(recorded[tap][row, : len(text)].to(target.model.dtype)) for tap in taps}
            for row, text in enumerate(texts)
        ]


def _bytes(states: torch.Tensor) -> NDArray[np.uint8]:
    # numpy has no bfloat16: the bytes go out as they are.
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
        elif tap <= len(layers):
            handles.append(layers[tap - 1].register_forward_hook(record_output(tap)))
        else:
            raise SpecprobeError(
                f"target {target.record.name}: has {len(layers)} layers, the drafter reads layer {tap}; "
                "the drafter was trained for another target"
            )
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
