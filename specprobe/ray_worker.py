"""What runs in an actor of Ray: the target, loaded as the process that asks has loaded it, and the work it is given."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from specprobe import __version__
from specprobe.crew import Bench, Item, Result, Work

if TYPE_CHECKING:
    from specprobe.causal_lm import LoadOptions
    from specprobe.target import Target


@dataclass(frozen=True, slots=True)
class Replica:
    """How to load the target once more.

    `name`: as the user wrote it, None for the embedded one. `threads`: of torch. `folder`: the working directory.
    """

    name: str | None
    load: LoadOptions
    template_kwargs: Mapping[str, Any]
    threads: int
    folder: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where a replica was loaded. `facts`: all of it that must be as elsewhere; `hardware`: rounding differs by it."""

    host: str
    facts: Mapping[str, Any]
    hardware: str


class Worker:
    """An actor. Nothing else of it is used before `load` has returned."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._bench: Bench | None = None

    def load(self) -> Arrival:
        """Load the target."""
        from specprobe.target import load_target

        replica = self._replica
        # Where the nodes share their disks, or there is one, relative paths are the user's.
        with contextlib.suppress(OSError):
            os.chdir(replica.folder)
        target = load_target(replica.name, **asdict(replica.load), template_kwargs=replica.template_kwargs)
        import torch

        torch.set_num_threads(replica.threads)
        self._bench = Bench(target)
        return Arrival(socket.gethostname(), facts_of(target), hardware_of(target))

    def do(self, work: Work[Item, Result], item: Item) -> Result:
        """One piece of work."""
        assert self._bench is not None
        return work(self._bench, item)


def facts_of(target: Target) -> dict[str, Any]:
    """What has to be the same in all processes for their responses to be the same, in words that a user knows."""
    import torch

    return {
        "specprobe": __version__,
        "torch": torch.__version__,
        "weights": target.record.fingerprint,
        "precision": target.record.dtype,
        "device": target.record.device_type,
        "end tokens": target.eos_ids,
    }


def hardware_of(target: Target) -> str:
    """What the target runs on, as far as rounding goes."""
    import torch

    if target.record.device_type == "cuda":
        return torch.cuda.get_device_name(target.device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
