"""Acceptance as an engine counted it, in one set of definitions whatever the engine calls its figures.

    acceptance rate         accepted / drafted tokens
    mean acceptance length  1 + accepted tokens / rounds with a draft: the token that the target adds is in it
    accepted at i           rounds with a draft whose tokens 1..i were all accepted

Rounds without a draft are in none of these counters, with any engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from specprobe.errors import SpecprobeError
from specprobe.notices import Notice

# Drafts that a context limit or a grammar shortens now and then do not make a drafter one that ends its own drafts.
FULL_DRAFTS = 0.99
# Draft tokens of a round; what says more is damaged.
DEEPEST = 1024


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """Counters of some requests together; None where the engine does not say.

    `drafted_rounds`: rounds with at least one draft token. `drafted_at`, `at_risk_at`, `accepted_at` [K]: of these,
    those that drafted position i; that did, and accepted all before it; that accepted it, too. `output_tokens`: all
    that were written, the prefill's included.
    """

    drafted_rounds: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    drafted_at: tuple[int, ...] | None = None
    at_risk_at: tuple[int, ...] | None = None
    accepted_at: tuple[int, ...] | None = None
    requests: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None where either is not known, or nothing was drafted."""
        if self.accepted_tokens is None or not self.drafted_tokens:
            return None
        return self.accepted_tokens / self.drafted_tokens

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted tokens / rounds with a draft; None where either is not known."""
        if self.accepted_tokens is None or not self.drafted_rounds:
            return None
        return 1 + self.accepted_tokens / self.drafted_rounds

    @property
    def survival(self) -> tuple[float, ...] | None:
        """Accepted at each position / rounds with a draft, as vLLM prints it."""
        if self.accepted_at is None or not self.drafted_rounds:
            return None
        return tuple(accepted / self.drafted_rounds for accepted in self.accepted_at)

    def has_full_drafts(self, depth: int) -> bool | None:
        """Whether drafts have as many tokens as the depth allows; None where that is not known."""
        if self.drafted_tokens is None or not self.drafted_rounds:
            return None
        return self.drafted_tokens >= FULL_DRAFTS * depth * self.drafted_rounds


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """What an engine counted in one request; `sample`: the how-manieth answer to the prompt of this id."""

    id: str
    counts: EngineCounts
    sample: int = 0


@dataclass(frozen=True, slots=True)
class EngineNumbers:
    """One source: the engine, what was read, and what it counts.

    `depth`: the most draft tokens of a round, None where neither source nor user says. `requests`: one by one where
    the source has them. `scope`: what the counters cover, in words. `stated_length`, `stated_rate`: mean acceptance
    length and acceptance rate where the engine gives these and no counts. `is_rounded`: whether counts were recovered
    from rounded figures. `seconds`: how long it took, where known.
    """

    engine: str
    source: str
    scope: str
    counts: EngineCounts
    depth: int | None = None
    requests: tuple[RequestCounts, ...] = ()
    stated_length: float | None = None
    stated_rate: float | None = None
    is_rounded: bool = False
    seconds: float | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def mean_acceptance_length(self) -> float | None:
        """From the counts, else as stated."""
        return self.counts.mean_acceptance_length or self.stated_length

    @property
    def acceptance_rate(self) -> float | None:
        """From the counts, else as stated."""
        rate = self.counts.acceptance_rate
        return self.stated_rate if rate is None else rate

    def to_json(self) -> dict[str, Any]:
        """For documents: the sums, without single requests."""
        counts = self.counts
        return {
            "engine": self.engine,
            "source": self.source,
            "scope": self.scope,
            "depth": self.depth,
            "requests": counts.requests,
            "output_tokens": counts.output_tokens,
            "drafted_rounds": counts.drafted_rounds,
            "drafted_tokens": counts.drafted_tokens,
            "accepted_tokens": counts.accepted_tokens,
            "accepted_at": list(counts.accepted_at) if counts.accepted_at is not None else None,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "is_rounded": self.is_rounded,
            "seconds": self.seconds,
        }


def summed(parts: Sequence[EngineCounts]) -> EngineCounts:
    """All together; what one of them does not know, the sum does not. Shorter lists go on with zeros."""
    known: dict[str, Any] = {}
    for field in fields(EngineCounts):
        values = [getattr(part, field.name) for part in parts]
        if any(value is None for value in values) or not values:
            continue
        if field.name.endswith("_at"):
            depth = max(map(len, values))
            padded = [[*value, *(0,) * (depth - len(value))] for value in values]
            known[field.name] = tuple(sum(column) for column in zip(*padded, strict=True))
        else:
            known[field.name] = sum(values)
    return EngineCounts(**known)


def checked(counts: EngineCounts, where: str, depth: int | None = None) -> EngineCounts:
    """The counts, with those that follow from them filled in. Raises SpecprobeError where they contradict each other.

    Drafts that all have `depth` tokens were at risk at a position as often as they were accepted at the one before.
    """

    def wrong(what: str) -> SpecprobeError:
        return SpecprobeError(f"{where}: {what}; the counters do not belong together: take them again")

    rounds, drafted, accepted, at = (
        counts.drafted_rounds,
        counts.drafted_tokens,
        counts.accepted_tokens,
        counts.accepted_at,
    )
    if drafted is not None and accepted is not None and accepted > drafted:
        raise wrong(f"{accepted} accepted of {drafted} drafted tokens")
    if rounds is not None and drafted is not None and drafted < rounds:
        raise wrong(f"{drafted} drafted tokens in {rounds} rounds with a draft")
    if at is not None:
        if rounds is not None and at and at[0] > rounds:
            raise wrong(f"{at[0]} rounds accepted the first token, of {rounds} with a draft")
        if any(later > before for before, later in pairwise(at)):
            raise wrong("a later position was accepted more often than one before it")
        if accepted is not None and sum(at) != accepted:
            raise wrong(f"{accepted} accepted tokens, {sum(at)} by position")
    if depth is None:
        return counts
    if rounds is not None and drafted is not None and drafted > depth * rounds:
        raise wrong(f"{drafted} drafted tokens in {rounds} rounds of at most {depth}")
    if at is not None:
        if len(at) > depth and any(at[depth:]):
            raise wrong(f"tokens accepted beyond position {depth}")
        at = (*at[:depth], *(0,) * (depth - len(at)))
        counts = replace(counts, accepted_at=at)
    if counts.drafted_at is None and rounds is not None and drafted == depth * rounds:
        counts = replace(counts, drafted_at=(rounds,) * depth)
        if at is not None:
            counts = replace(counts, at_risk_at=(rounds, *at[:-1]))
    return counts
