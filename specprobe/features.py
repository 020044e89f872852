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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from specprobe.batches import padded_ids, windows
from specprobe.drafters.base import known_tokens
from specprobe.errors import SpecprobeError
from specprobe.paths import PRIVATE_FILE, file_errors
from specprobe.target import Target
from specprobe.trajectory import Trajectory

# The target's last hidden state after its final norm: what its head reads.
LAST = -1
# Tokens of one forward pass, padding included.
_PASS_TOKENS = 4096
_NOTE = "the target's hidden states are kept there while drafters run; finished responses are safe"


@dataclass(frozen=True, slots=True)
class Features:
    """States of the target by tap: a tap k >= 0 is what enters layer k (k = layers: what leaves the last), or LAST.

    The file of a tap holds one row [hidden size] for each token of each trajectory's prompt, response and tail, in the
    precision the target computed in. `rows`: the first row and the number of rows of a trajectory.
    """

    folder: Path
    rows: Mapping[bytes, tuple[int, int]]
    hidden_size: int
    dtype: torch.dtype

    def read(self, tap: int, trajectory: Trajectory) -> torch.Tensor:
        """[tokens, hidden size], on the CPU."""
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
) -> Features:
    """Run the target over trajectories and keep the states at `taps` in files under `folder`; equal ones once.

    Raises SpecprobeError where the disk cannot hold them.
    """
    distinct = {_key(trajectory): trajectory for trajectory in trajectories}
    works = list(distinct.values())
    lengths = [t.prompt_ids.size + t.output_ids.size + t.tail_ids.size for t in works]
    rows: dict[bytes, tuple[int, int]] = {}
    written = 0
    with contextlib.ExitStack() as stack:
        with file_errors(folder, _NOTE):
            files = {tap: stack.enter_context(open(_path(folder, tap), "wb", opener=_private)) for tap in taps}
        stack.enter_context(torch.inference_mode())
        recorded = stack.enter_context(recording(target, taps))
        for batch in (b for window in windows(lengths, _PASS_TOKENS) for b in window):
            ids = padded_ids([known_tokens(works[i]) for i in batch])
            with contextlib.suppress(_EnoughError):
                target.decoder(input_ids=torch.from_numpy(ids).to(target.device), use_cache=False)
            for row, index in enumerate(batch):
                rows[_key(works[index])] = written, lengths[index]
                written += lengths[index]
                for tap, file in files.items():
                    # Some models keep this stream in float32 beside narrower weights.
                    _write(file, recorded[tap][row, : lengths[index]].to(target.model.dtype), folder)
                if on_response is not None:
                    on_response(len(rows))
    return Features(folder, rows, target.text_config.hidden_size, target.model.dtype)


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


def _write(file: BinaryIO, states: torch.Tensor, folder: Path) -> None:
    with file_errors(folder, _NOTE):
        # numpy has no bfloat16: the bytes go out as they are.
        file.write(states.contiguous().cpu().view(torch.uint8).numpy().tobytes())
        file.flush()


def _path(folder: Path, tap: int) -> Path:
    return folder / ("last.bin" if tap == LAST else f"layer-{tap}.bin")


def _key(trajectory: Trajectory) -> bytes:
    """Of the tokens alone: what the target's layers hold depends on nothing else."""
    parts = (trajectory.prompt_ids, trajectory.output_ids, trajectory.tail_ids)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
