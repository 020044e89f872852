"""The interface of a drafter: what it would have drafted at every place where a round of a response can start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from specprobe.errors import SpecprobeError
from specprobe.trajectory import TokenIds, Trajectory

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine's settings, not its drafter, allow.

    `max_model_len`: the context limit (None: no limit is known). `end_token_ids`: the tokens that end a response.
    `max_new_tokens`: the limit of the request, for engines that draft no further than it.
    """

    max_model_len: int | None = None
    end_token_ids: tuple[int, ...] = ()
    max_new_tokens: int | None = None

    def longest_drafts(self, num_prompt: int, num_output: int) -> NDArray[np.int64]:
        """The most tokens a round may draft, for each output token [N] that it can start at.

        A draft never runs into the context limit: with n tokens in the sequence it has at most
        max_model_len - 1 - n (vLLM 0.33 v1/core/sched/scheduler.py; llama.cpp 2026-10 get_n_draft_max in
        tools/server/server-context.cpp). llama.cpp treats the limit of the request alike.
        """
        longest = np.full(num_output, np.iinfo(np.int64).max)
        if self.max_model_len is not None:
            longest = np.maximum(self.max_model_len - 1 - num_prompt - np.arange(num_output), 0)
        if self.max_new_tokens is not None:
            longest = np.minimum(longest, np.maximum(self.max_new_tokens - 1 - np.arange(num_output), 0))
        return longest


@dataclass(frozen=True, slots=True, eq=False)
class Proposals:
    """Drafts for one response, at every depth and every place a round can start.

    `drafted` [K, N] and `accepted` [K, N], int16: row k-1 is depth k, column s is the round whose first draft
    would be output token s (0-based; the prefill emits token 0, so rounds start at 1 and column 0 is unused).
    The context limit is in it.
    `drafted` is the length of the draft; `accepted` is how many of its leading tokens equal what the target
    wrote, never more than drafted: what one-hot drafts have accepted.
    `survival` [K, K, N], float64, for sampled drafts: [k-1, i-1, s] is the probability, given the text, that positions
    1..i were accepted at depth k. None where sampled drafts were not asked for or the drafter has none.
    `outside`: how much of the target's probability lay outside what the drafter can propose, summed over the
    output tokens after the first; None where it can propose everything.
    `missed` [K, N], int32: the draft token after the accepted ones of a one-hot draft, a target id; -1 where the whole
    draft was accepted. `overlap` [K, K, N], float64: as `survival`, sum over x of min(p(x), q(x)) (under an exact-match
    rule of p(x) q(x)) at position i of a sampled draft, given that those before it were accepted. Both serve estimates
    of lower variance; None where they are not known.
    """

    drafted: NDArray[np.int16]
    accepted: NDArray[np.int16]
    survival: NDArray[np.float64] | None = None
    outside: float | None = None
    missed: NDArray[np.int32] | None = None
    overlap: NDArray[np.float64] | None = None


class Adoption(IntEnum):
    """What it takes to switch a drafter on, cheapest first."""

    FLAG = 1
    SECOND_MODEL = 2
    TRAINED_HEAD = 3


ADOPTION_WORDS = {Adoption.FLAG: "flag", Adoption.SECOND_MODEL: "second model", Adoption.TRAINED_HEAD: "trained head"}


class Drafter(Protocol):
    """A drafter as replay sees it.

    `fixed_length` says that every drafted round has as many tokens as the depth allows, so that a curve over
    depths may be fitted; a drafter that chooses its own draft length is censored by what it saw.
    """

    @property
    def name(self) -> str:
        """The name that results carry."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything that decides what is drafted, for the record."""

    @property
    def fixed_length(self) -> bool:
        """Whether drafts always have the length asked for."""

    @property
    def adoption(self) -> Adoption:
        """What it takes to switch it on."""

    def proposals(self, trajectories: Iterable[Trajectory], depth: int, limits: Limits) -> Iterator[Proposals]:
        """Proposals for each trajectory in the order given; state that requests share follows that order."""


def known_tokens(trajectory: Trajectory) -> TokenIds:
    """Prompt, response and recorded tail, one after the other."""
    return np.concatenate([trajectory.prompt_ids, trajectory.output_ids, trajectory.tail_ids])


def read_option(
    options: Mapping[str, str],
    key: str,
    default: Number,
    convert: Callable[[str], Number],
    bounds: tuple[Number, Number],
    spec: str,
) -> Number:
    """One option of a drafter spec as a number within bounds, or the default."""
    if key not in options:
        return default
    try:
        value = convert(options[key])
    except ValueError:
        raise SpecprobeError(f"--drafter: {spec}: {key}={options[key]!r} is not a number") from None
    if not bounds[0] <= value <= bounds[1]:
        raise SpecprobeError(f"--drafter: {spec}: {key}={options[key]} must be from {bounds[0]:g} to {bounds[1]:g}")
    return value


def refuse_unknown_options(options: Mapping[str, str], known: Iterable[str], spec: str) -> None:
    """Raise for an option that the drafter does not have: a setting must never be ignored in silence."""
    known = tuple(known)
    for key in options:
        if key not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            raise SpecprobeError(f"--drafter: {spec} has no option {key!r}; {there}")
