"""What a command would do, for how long and with how much memory: the result of `--dry-run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA = "specprobe.plan/1"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that would be done: so many of `unit`, besides those that are kept from before.

    `seconds`: None where nothing is known to foresee it by; `basis`: what they rest on, or why there are none.
    """

    name: str
    count: int
    unit: str
    basis: str
    seconds: float | None = None
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Stopping:
    """When it may stop before everything is done: after so many prompts each, once a precision is reached."""

    asked: float
    looks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a command, in order. `peak_bytes`: of `memory` (which device), None where it is not known.

    `stopping`: where it may end early; the steps are then the most that it does.
    """

    command: Literal["analyze", "recommend"]
    steps: tuple[Step, ...]
    peak_bytes: int | None = None
    peak_basis: str = "not known"
    memory: str = "this machine"
    stopping: Stopping | None = None

    @property
    def seconds(self) -> float:
        """Of all steps that can be foreseen."""
        return sum(step.seconds for step in self.steps if step.seconds is not None)

    @property
    def unforeseen(self) -> Sequence[Step]:
        """The steps without an estimate."""
        return [step for step in self.steps if step.seconds is None]

    def to_json(self) -> dict[str, Any]:
        """The `specprobe.plan/1` document."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "steps": [asdict(step) for step in self.steps],
            "seconds": self.seconds,
            "complete": not self.unforeseen,
            "peak_bytes": self.peak_bytes,
            "peak_basis": self.peak_basis,
            "memory": self.memory,
            **({"precision": asdict(self.stopping)} if self.stopping else {}),
        }
