"""What is asked of whoever writes responses, and what comes back: a model here, an engine, or a server elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from specprobe.defaults import BATCH_SIZE, MAX_NEW_TOKENS
from specprobe.processors import DEFAULT_RULE, PLAIN, ProcessingRule, Processors
from specprobe.prompt import Prompt
from specprobe.store import Damage, Kept, Response, SettingsStore, TrajectoryStore
from specprobe.tokens import Tokenizer, UnrenderableError
from specprobe.trajectory import TokenIds

if TYPE_CHECKING:
    from specprobe.notices import Notice

# Batches that are sorted together by length: enough for little padding, few enough that a longer workload keeps its
# batches.
WINDOW_BATCHES = 4


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are written. `max_model_len`: prompt and response together, in tokens; None: the model's limit."""

    temperature: float
    seed: int = 0
    max_new_tokens: int = MAX_NEW_TOKENS
    max_model_len: int | None = None
    batch_size: int = BATCH_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One response wanted: to which prompt [P], the how-manieth to that prompt, and what the request asks for.

    `rule`: how the engine applies `processors`; the same for all. `max_new_tokens`: its own limit, below that of all.
    `prompt`: what `prompt_ids` were made of, for those who ask with the turns themselves.
    """

    prompt_ids: TokenIds
    sample: int = 0
    processors: Processors = PLAIN
    max_new_tokens: int | None = None
    rule: ProcessingRule = DEFAULT_RULE
    prompt: Prompt | None = None

    @property
    def key(self) -> str:
        """A hash that says nothing about the prompt."""
        asked = []
        if self.processors != PLAIN:
            shaped = (sorted(self.processors.changed.items()), self.rule.order, self.rule.penalty_window)
            asked.append(repr(shaped).encode())
        if self.max_new_tokens is not None:
            asked.append(b"at most %d" % self.max_new_tokens)
        return digest(self.prompt_ids.astype("<i4").tobytes(), str(self.sample).encode(), *asked)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: tokens written, and at most to be written in all; responses finished, in all, from the disk."""

    tokens: int
    tokens_at_most: int
    responses: int
    responses_wanted: int
    responses_reused: int


@dataclass(frozen=True, slots=True)
class Generated:
    """Responses in the order of the requests; `changed`: how many of an interrupted batch came out differently.

    `damage`: of the stored files that had to be completed.
    """

    responses: Sequence[Response]
    reused: int
    changed: int = 0
    damage: tuple[Damage, ...] = ()


class Writer(Protocol):
    """Who writes responses. `tokenizer`: None where only the writer itself can tell tokens."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """How text becomes tokens, where that is known here."""

    @property
    def max_positions(self) -> int | None:
        """Prompt and response together, in tokens; None where no limit is known."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What was odd about the prompts or the writer, as far as it was seen."""

    def encode_all(self, prompts: Sequence[Prompt]) -> list[TokenIds | UnrenderableError]:
        """The ids of each prompt, as the model is given it; or why its chat template refuses it."""

    def write(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        store: TrajectoryStore | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Generated:
        """A response to each request (distinct ones); what is finished is kept in `store` at once, and reused."""


class Elsewhere(Writer, Protocol):
    """A writer that keeps weights and states to itself: a server, or another engine."""

    engine: str
    engine_version: str

    @property
    def record(self) -> Mapping[str, Any]:
        """What a run keeps of the target."""

    def close(self) -> None:
        """Give back what it holds; nothing is written any more."""


class Tally:
    """Counts for the progress callback. `limits`: of each response, in tokens."""

    def __init__(self, limits: Sequence[int], on_progress: Callable[[Progress], None] | None) -> None:
        self._at_most = sum(limits)
        self._wanted = len(limits)
        self._report = on_progress
        self._tokens = self._finished = self.reused = self.changed = 0
        self.damage: list[Damage] = []

    def step(self, tokens: int) -> None:
        """So many tokens were written."""
        self._tokens += tokens
        self._tell()

    def finish(self, limit: int, response: Response) -> None:
        """A response that was being written is complete; what it left of its limit will not be written."""
        self._finished += 1
        self._at_most -= limit - len(response.output_ids)

    def reuse(self, limit: int, response: Response) -> None:
        """A response came from the disk."""
        self.reused += 1
        self._tokens += len(response.output_ids)
        self.finish(limit, response)
        self._tell()

    def _tell(self) -> None:
        if self._report:
            self._report(Progress(self._tokens, self._at_most, self._finished, self._wanted, self.reused))


class Gathering:
    """Responses that end one by one, in any order: each is kept as it ends, and what was kept before is not missing.

    `missing`: indices of the requests that are still to be answered. `limits`: of each response, in tokens.
    """

    # There are no batches that rounding depends on, so one file holds all that was written under the same settings.
    FILE = "responses"

    def __init__(
        self,
        requests: Sequence[Request],
        limits: Sequence[int],
        kept: SettingsStore | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._requests, self._limits, self._kept = requests, limits, kept
        self._tally = Tally(limits, on_progress)
        self._responses: dict[int, Response] = {}
        self.missing: list[int] = []
        found = kept.read(self.FILE) if kept else Kept({}, ())
        for index, request in enumerate(requests):
            if (response := found.responses.get(request.key)) is not None:
                self._responses[index] = response
                self._tally.reuse(limits[index], response)
            else:
                self.missing.append(index)
        if self.missing:
            self._tally.damage += found.damage

    @property
    def num_finished(self) -> int:
        """Responses that are there by now."""
        return len(self._responses)

    def take(self, index: int, response: Response) -> None:
        """The response to the request of this index has ended."""
        self._responses[index] = response
        if self._kept:
            self._kept.append(self.FILE, self._requests[index].key, response)
        self._tally.finish(self._limits[index], response)
        self._tally.step(len(response.output_ids))

    def generated(self) -> Generated:
        """All of them, once none is missing."""
        responses = tuple(self._responses[i] for i in range(len(self._requests)))
        return Generated(responses, self._tally.reused, damage=tuple(self._tally.damage))


def output_limit(
    max_positions: int | None, prompt_tokens: int, sampling: Sampling, own_limit: int | None = None
) -> int:
    """How many tokens a response may have after a prompt of this length: 0 or less where the prompt does not fit.

    `max_positions`: of the model; `own_limit`: of the request.
    """
    limits = [n for n in (max_positions, sampling.max_model_len) if n is not None]
    own = [] if own_limit is None else [own_limit]
    return min([sampling.max_new_tokens, *own, *(n - prompt_tokens for n in limits)])


def digest(*parts: bytes) -> str:
    """24 hex digits of a hash over some byte strings."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
