"""Hidden states of a target that vLLM serves, from the files into which its `extract_hidden_states` method writes them.

vLLM 0.32: the speculative method puts the states at the layers in `eagle_aux_hidden_state_layer_ids` into a cache of
its own (v1/spec_decode/extract_hidden_states.py), and ExampleHiddenStatesConnector writes a file for each request:
`hidden_states` [tokens, layers, hidden size] and `token_ids` [tokens] of the prompt, in safetensors. The answer names
the file in `kv_transfer_params`; a lock on a second file ends when it is whole. Layer ids mean what enters the layer,
and as many as there are layers what leaves the last, as taps do here. Imports torch.
"""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from specprobe.drafters.base import known_tokens
from specprobe.errors import SpecprobeError
from specprobe.features import LAST, FeatureFiles, Features, distinct_texts, in_bytes
from specprobe.notices import inert
from specprobe.paths import file_errors
from specprobe.server import Patience, Server, TransientError, post_json
from specprobe.side_by_side import side_by_side
from specprobe.target import Target
from specprobe.trajectory import Trajectory

SUFFIX = ".safetensors"
LOCK_SUFFIX = ".lock"
SECONDS_BETWEEN_LOOKS = 0.02
# What is asked for before there is any text; every vocabulary has these ids.
PROBE_IDS = (1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class ServedStates:
    """A vLLM server that writes hidden states, and what its model's checkpoint has of the parts that heads share.

    `folder`: where the server's files are seen from here. `frame`: see `target_frame`.
    """

    server: Server
    model: str
    folder: Path
    frame: Target
    requests_at_once: int
    patience: Patience

    @property
    def num_layers(self) -> int:
        """Of the target."""
        count: int = self.frame.text_config.num_hidden_layers
        return count

    def layers(self, taps: Iterable[int]) -> list[int]:
        """The layer ids that the server must be started with, in order."""
        return sorted({self.num_layers if tap == LAST else tap for tap in taps})

    def check(self, taps: Sequence[int]) -> None:
        """Raise SpecprobeError, before any text is written, where the server does not write what `taps` need."""
        stopped = threading.Event()
        self.patience.ask(lambda: self.ask(torch.tensor(PROBE_IDS), self.layers(taps), stopped), stopped)

    def capture(
        self,
        trajectories: Iterable[Trajectory],
        taps: Sequence[int],
        folder: Path,
        on_response: Callable[[int], None] | None = None,
    ) -> Features:
        """The states at `taps` over each trajectory, as `capture_features` keeps those of a target that runs here.

        The newest token's are never read, so they are not asked for, and are zeros: the text, which may fill the
        context, fits with the one token that the server writes. Raises SpecprobeError for states that do not fit.
        """
        works = distinct_texts(trajectories)
        layers = self.layers(taps)
        self._check_vocabulary(works)

        def ask(work: Trajectory, stopped: threading.Event) -> torch.Tensor:
            ids = torch.from_numpy(known_tokens(work)[:-1].astype("int64"))
            return self.patience.ask(lambda: self.ask(ids, layers, stopped), stopped)

        with FeatureFiles(folder, taps) as files, torch.inference_mode():
            for index, states in side_by_side(ask, works, self.requests_at_once):
                files.add(works[index], {tap: in_bytes(self._at(tap, states, layers)) for tap in taps})
                if on_response is not None:
                    on_response(files.count)
        return files.features(self.frame.text_config.hidden_size, self.frame.model.dtype)

    def _at(self, tap: int, states: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
        """[tokens + 1, hidden size] of one tap, from all layers' [tokens, layers, hidden size]."""
        found = states[:, layers.index(self.num_layers if tap == LAST else tap)].to(self.frame.model.dtype)
        if tap == LAST:
            found = self.frame.final_norm(found.to(self.frame.device)).cpu()
        return torch.cat([found, torch.zeros_like(found[:1])])

    def _check_vocabulary(self, works: Sequence[Trajectory]) -> None:
        size = self.frame.record.vocab_size
        largest = max((int(known_tokens(work).max()) for work in works), default=0)
        if largest >= size:
            raise SpecprobeError(
                f"--target-checkpoint {self.frame.record.name}: has a vocabulary of {size} ids, and the server writes "
                f"{largest}; name the checkpoint of the served model"
            )

    def ask(self, ids: torch.Tensor, layers: Sequence[int], stopped: threading.Event) -> torch.Tensor:
        """The states [tokens, layers, hidden size] over `ids` [tokens]."""
        body = {"model": self.model, "prompt": ids.tolist(), "max_tokens": 1, "temperature": 0.0}
        answer = post_json(self.server, f"{self.server.path}/completions", body)
        told = answer.get("kv_transfer_params") if isinstance(answer, dict) else None
        place = told.get("hidden_states_path") if isinstance(told, dict) else None
        if not isinstance(place, str) or not place.endswith(SUFFIX):
            raise SpecprobeError(f"{self.server.name}: writes no hidden states; {self._remedy(layers)}")
        # Its folder may have another name here, and a server does not choose what is read on this machine.
        with self._whole_file(Path(place).name, stopped) as tensors:
            return self._checked(tensors, ids, layers)

    @contextmanager
    def _whole_file(self, name: str, stopped: threading.Event) -> Iterator[dict[str, torch.Tensor]]:
        """The tensors of a file once it is whole. It goes once they are found right, since it tells what the text was:
        any other is not the server's to name.
        """
        path, lock = self.folder / name, self.folder / f"{name}{LOCK_SUFFIX}"
        end = time.monotonic() + self.server.timeout_seconds
        while (tensors := _read(path, lock)) is None:
            if time.monotonic() > end:
                raise SpecprobeError(
                    f"--hidden-states {self.folder}: {inert(name, 120)}, which {self.server.name} says to have "
                    "written, is not there or not whole; name the server's shared_storage_path as it is seen here"
                )
            if stopped.wait(SECONDS_BETWEEN_LOOKS):
                raise TransientError("no longer waited for")
        yield tensors
        for used in (path, lock):
            with suppress(OSError):
                used.unlink()

    def _checked(self, tensors: dict[str, torch.Tensor], ids: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
        states, tokens = tensors.get("hidden_states"), tensors.get("token_ids")
        if states is None or tokens is None or states.dim() != 3 or not states.is_floating_point():
            raise SpecprobeError(
                f"--hidden-states: a file of {self.server.name} holds other tensors than vLLM's "
                "ExampleHiddenStatesConnector writes (hidden_states [tokens, layers, size], token_ids); use it"
            )
        if not torch.equal(tokens.to(torch.int64), ids) or len(states) != len(ids):
            raise SpecprobeError(
                f"--hidden-states: a file of {self.server.name} is of other tokens than were asked about; see its log"
            )
        if states.shape[1] != len(layers):
            raise SpecprobeError(
                f"{self.server.name}: writes the states of {states.shape[1]} layers; {self._remedy(layers)}"
            )
        size = self.frame.text_config.hidden_size
        if states.shape[2] != size:
            raise SpecprobeError(
                f"--target-checkpoint {self.frame.record.name}: its states have {size} numbers, the server's "
                f"{states.shape[2]}; name the checkpoint of the served model"
            )
        return states

    def _remedy(self, layers: Sequence[int]) -> str:
        return f"the drafters read {len(layers)}: start vLLM with {server_flags(layers, self.folder)}"


def server_flags(layers: Sequence[int], folder: Path) -> str:
    """The flags of a vLLM server that writes the states at `layers` into `folder`."""
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layers)}},
    }
    transfer = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(folder.absolute())},
    }
    return f"--speculative-config '{json.dumps(speculative)}' --kv-transfer-config '{json.dumps(transfer)}'"


def _read(path: Path, lock: Path) -> dict[str, torch.Tensor] | None:
    """The tensors of a file; None while it is not there, being written, or not whole."""
    with file_errors(path):
        try:
            with suppress(FileNotFoundError), lock.open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return load_file(path)
        except (BlockingIOError, FileNotFoundError, SafetensorError):
            return None
