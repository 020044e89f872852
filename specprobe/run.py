"""A run: everything `analyze` found. See `run_document` for how it is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprobe import __version__
from specprobe.acceptance import Acceptance
from specprobe.entropy import EntropySummary
from specprobe.notices import Notice
from specprobe.precision import Precision

# The code of the notice that an engine's counters do not tell requests apart, so that nothing has an interval.
ENGINE_SUMS = "engine_sums"


def has_sums(notices: Iterable[Notice]) -> bool:
    """Whether these are the notices of a run of such counters, or of what was made from one."""
    return any(notice.code == ENGINE_SUMS for notice in notices)


@dataclass(frozen=True, slots=True, eq=False)
class ResponseRecord:
    """The responses of one temperature: where they come from and how long they are, int32 [P].

    `prompts` [P]: which are to the same prompt, or to prompts of one conversation, by number; `samples` [P]: the
    how-manieth to its prompt. `groups`: the labels of their rows, None where there are none. `entropy`: of the target
    while it wrote, where known. `looping`: how many end in a loop of the same tokens. `texts`: prompt and response of
    each, only where the user asked for them. `temperature_is_known`: False where neither the log nor the user says at
    which they were sampled; 0 is taken then.
    """

    temperature: float
    source: str
    ids: tuple[str | int, ...]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    prompts: NDArray[np.int32]
    samples: NDArray[np.int32]
    groups: tuple[str | None, ...] | None = None
    entropy: EntropySummary | None = None
    looping: int = 0
    texts: tuple[tuple[str, str], ...] | None = None
    temperature_is_known: bool = True

    @property
    def mean_context(self) -> float:
        """Tokens in the KV cache, averaged over all output tokens."""
        return self.mean_context_scaled(1.0, 1.0)

    def mean_context_scaled(self, scale_prompt: float, scale_output: float) -> float:
        """The same with all prompts and outputs longer by these factors."""
        weights = np.maximum(self.output_tokens, 1).astype(np.float64)
        contexts = scale_prompt * self.prompt_tokens + scale_output * self.output_tokens / 2
        return float(np.average(contexts, weights=weights))


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One `analyze`. `workload`, `target` and `settings` are records for people and scripts, kept as they are."""

    workload: Mapping[str, Any]
    target: Mapping[str, Any] | None
    engine_profile: str
    settings: Mapping[str, Any]
    responses: tuple[ResponseRecord, ...]
    results: tuple[Acceptance, ...]
    notices: tuple[Notice, ...]
    version: str = __version__

    @property
    def digest(self) -> str:
        """Of everything that was counted: what was made from this run can be told from what was made from another."""
        seen = hashlib.sha256(self.engine_profile.encode())
        for result in self.results:
            seen.update(f"{result.label} {result.temperature:g} {result.ids}".encode())
            for counts in (result.output_tokens, result.rounds, result.drafted_at, result.accepted_at):
                seen.update(np.ascontiguousarray(counts, dtype=np.float64).tobytes())
        return seen.hexdigest()[:16]

    def responses_at(self, temperature: float) -> ResponseRecord:
        """The responses of one of the run's temperatures."""
        return {lengths.temperature: lengths for lengths in self.responses}[temperature]

    @property
    def is_of_sums(self) -> bool:
        """Whether it was made of an engine's sums over requests that are not told apart."""
        return has_sums(self.notices)

    @property
    def engine_numbers(self) -> Mapping[str, Any] | None:
        """What was read, where an engine counted."""
        return self.settings.get("engine_numbers")

    @property
    def temperature_is_known(self) -> bool:
        """Whether the log or the user says at which temperature the responses were sampled."""
        return all(record.temperature_is_known for record in self.responses)

    @property
    def has_text(self) -> bool:
        """Whether it holds what users wrote and models answered."""
        return any(record.texts is not None for record in self.responses)

    @property
    def in_flight(self) -> int:
        """How many requests ran side by side; older runs have one."""
        return int(self.settings.get("in_flight", 1))

    @property
    def precision(self) -> Precision | None:
        """Where it stopped, of a run that was asked to know tokens per round so well; see `--precision`."""
        entry = self.settings.get("precision")
        return Precision.from_json(entry) if entry else None

    @property
    def temperatures(self) -> list[float]:
        """The temperatures of the run, in the order asked for."""
        return [lengths.temperature for lengths in self.responses]
