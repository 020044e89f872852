"""What an engine counted, as a run: `recommend`, `compare` and `gate` then read it like one of `analyze`.

Its one result has one depth, that of the engine. Shallower ones cannot be counted from an engine's record: with fewer
draft tokens other rounds would start elsewhere, and where is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance
from specprobe.checks import check_acceptance
from specprobe.drafters import HybridSpec, ModelSpec, parse_drafter
from specprobe.drafters.base import Adoption
from specprobe.engine_numbers.numbers import EngineCounts, EngineNumbers
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice, inert
from specprobe.profiles import Profile
from specprobe.run import ENGINE_SUMS, ResponseRecord, Run
from specprobe.units import format_plural

# Of sums: each request is a row of the document, at every depth.
MOST_REQUESTS = 10_000
ALL_REQUESTS = "all requests"
SECOND_MODEL = ("draft", "pard")
NO_MODEL = ("mtp", "early-exit")

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Served:
    """What the engine does not say of itself: the drafter, as `analyze --drafter` takes it, how it drafts, and the
    temperature of the requests."""

    drafter: str
    temperature: float
    draft_sampling: str = "greedy"


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Counts by response [P] and position [P, K], at the one depth."""

    ids: tuple[str, ...]
    samples: Ints
    prompts: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    rounds: Ints
    drafted_at: Ints
    at_risk_at: Ints
    accepted_at: Ints


def run_of(numbers: EngineNumbers, served: Served, profile: Profile, read: Sequence[str]) -> Run:
    """The run; `read`: the files. Raises SpecprobeError, naming what is missing, where the counters do not suffice."""
    if not 0 <= served.temperature <= 10:
        raise SpecprobeError(f"--temperature {served.temperature:g}: from 0 to 10, that of the requests")
    depth = numbers.depth
    if depth is None:
        raise SpecprobeError(
            f"import: {numbers.source} of {numbers.engine} do not say how many tokens a round may draft; add --depth"
        )
    rows = _by_request(numbers, depth) if numbers.requests else _alike(numbers.counts, depth)
    acceptance = _acceptance(numbers, served, profile, rows, depth)
    sums = (
        []
        if numbers.requests
        else [
            Notice(
                ENGINE_SUMS,
                f"{numbers.source} of {numbers.engine} do not tell requests apart: equal ones stand for "
                f"{format_plural(len(rows.ids), 'request')}, and no figure has an interval; for that, read answers "
                "with their own counters (docs/engine-numbers.md)",
            )
        ]
    )
    return Run(
        workload={
            "sources": [],
            "format": numbers.source,
            "rows": len(rows.ids),
            "prompts": len(rows.ids),
            "skipped": {},
        },
        target=None,
        engine_profile=profile.name,
        settings={
            "responses": "engine",
            "engine_numbers": {**numbers.to_json(), "files": list(read)},
        },
        responses=(
            ResponseRecord(
                temperature=served.temperature,
                source="logged",
                ids=rows.ids,
                prompt_tokens=rows.prompt_tokens,
                output_tokens=rows.output_tokens,
                prompts=rows.prompts,
                samples=rows.samples,
            ),
        ),
        results=(acceptance,),
        notices=(*numbers.notices, *sums, *_uncounted_rounds(acceptance), *check_acceptance(acceptance)),
    )


def _uncounted_rounds(acceptance: Acceptance) -> list[Notice]:
    """Where rounds had no draft, how far below the truth their number may lie."""
    without = acceptance.rounds[:, -1] - acceptance.drafted_rounds[:, -1]
    if not without.any():
        return []
    rounds, more = float(acceptance.rounds[:, -1].sum()), int((without > 0).sum()) * acceptance.depth
    return [
        Notice(
            "rounds_at_least",
            f"rounds without a draft are not counted; from the text there were {float(without.sum()):,.0f}, and up "
            f"to {more:,} more where a last draft ran past an end: tokens per round may be up to "
            f"{more / (rounds + more):.1%} lower, acceptance is exact",
        )
    ]


def _acceptance(numbers: EngineNumbers, served: Served, profile: Profile, rows: _Rows, depth: int) -> Acceptance:
    name, config, adoption = _drafter(served.drafter, profile)
    is_sampled = served.draft_sampling == "sampled" and served.temperature > 0
    kind: type = np.float64 if is_sampled else np.int32

    def at_depth(counts: Ints) -> Any:
        """[P, ...] at the last of K depths, with zeros for those that were not counted."""
        table = np.zeros((len(counts), depth, *counts.shape[1:]), dtype=kind)
        table[:, -1] = counts
        return table

    return Acceptance(
        drafter=name,
        config=config,
        fixed_length=bool(numbers.counts.has_full_drafts(depth)),
        temperature=served.temperature,
        draft_sampling="sampled" if is_sampled else "greedy",
        ids=rows.ids,
        output_tokens=rows.output_tokens,
        rounds=at_depth(rows.rounds),
        drafted_at=at_depth(rows.drafted_at),
        at_risk_at=at_depth(rows.at_risk_at),
        accepted_at=at_depth(rows.accepted_at),
        adoption=adoption,
        prompts=rows.prompts,
        first_depth=depth,
    )


def _drafter(spec: str, profile: Profile) -> tuple[str, Mapping[str, Any], Adoption]:
    """Name, settings and adoption, as `analyze` would have them, without opening a model."""
    parsed = parse_drafter(spec, profile)
    if isinstance(parsed, HybridSpec):
        raise SpecprobeError("--drafter hybrid: no engine has it; name the one that the server ran")
    if not isinstance(parsed, ModelSpec):
        return parsed.name, parsed.config, parsed.adoption
    config = {**({"model": parsed.model} if parsed.model else {}), **parsed.options}
    if parsed.name in NO_MODEL:
        return parsed.name, config, Adoption.FLAG
    return parsed.name, config, Adoption.SECOND_MODEL if parsed.name in SECOND_MODEL else Adoption.TRAINED_HEAD


def _by_request(numbers: EngineNumbers, depth: int) -> _Rows:
    requests = numbers.requests
    units = {identity: unit for unit, identity in enumerate(dict.fromkeys(one.id for one in requests))}
    rounds = [_rounds(one.counts, depth, f"import: {inert(one.id, 80)}") for one in requests]
    return _Rows(
        ids=tuple(one.id for one in requests),
        samples=_ints([one.sample for one in requests]),
        prompts=_ints([units[one.id] for one in requests]),
        prompt_tokens=_ints([one.counts.prompt_tokens for one in requests]),
        output_tokens=_ints([one.counts.output_tokens for one in requests]),
        rounds=_ints(rounds),
        drafted_at=_ints([one.counts.drafted_at for one in requests]),
        at_risk_at=_ints([one.counts.at_risk_at for one in requests]),
        accepted_at=_ints([one.counts.accepted_at for one in requests]),
    )


def _ints(values: Sequence[Any]) -> Ints:
    try:
        return np.array(values, dtype=np.int32)
    except OverflowError:
        raise SpecprobeError(
            "import: a request of more than 2,147,483,647 tokens; read the engine's own files"
        ) from None


def _rounds(counts: EngineCounts, depth: int, where: str) -> int:
    """All rounds, those without a draft included: the fewest that can have written the text.

    An answer of N tokens has one from the prefill, and what its rounds accepted and one more for each, less what the
    last draft wrote past the end, which is at most the depth. So where drafts were empty the rounds may be a few more,
    at most the depth in each request; where each round had a draft, they are exact.
    """
    _check_complete(counts, where)
    rounds, accepted, written = counts.drafted_rounds or 0, counts.accepted_tokens or 0, counts.output_tokens or 0
    past_end = rounds + accepted - max(written - 1, 0)
    if past_end > depth:
        raise SpecprobeError(
            f"{where}: {rounds} rounds and {accepted} accepted tokens for {written} output tokens; counters and usage "
            "are not of one answer"
        )
    return max(rounds, written - 1 - accepted)


def _check_complete(counts: EngineCounts, where: str) -> None:
    missing = [
        words
        for words, value in (
            ("output tokens (usage)", counts.output_tokens),
            ("prompt tokens (usage)", counts.prompt_tokens),
            ("rounds with a draft", counts.drafted_rounds),
            ("acceptance by position", counts.accepted_at),
        )
        if value is None
    ]
    if missing:
        raise SpecprobeError(f"{where}: {', '.join(missing)}: not said, so it makes no run; `fit --metrics` takes less")
    if counts.at_risk_at is None or counts.drafted_at is None:
        raise SpecprobeError(
            f"{where}: drafts of several lengths, and how many reached which position is not said; start vLLM with "
            "--per-request-spec-decode-metrics detailed"
        )


def _alike(counts: EngineCounts, depth: int) -> _Rows:
    """Sums as requests that are as equal as whole rounds allow, all of one unit, so that nothing has an interval.

    Rounds are dealt out in an order in which each number of accepted tokens comes evenly; the sums stay those counted.
    """
    _check_complete(counts, "import")
    number = counts.requests
    if not number:
        raise SpecprobeError(
            "import: how many requests there were is not said, so rounds without a draft are not known; read answers "
            "with their own counters, or use `fit --metrics`"
        )
    if number > MOST_REQUESTS:
        raise SpecprobeError(
            f"import: {number:,} requests; take two scrapes that are at most {MOST_REQUESTS:,} requests apart"
        )
    written, prompt_tokens = counts.output_tokens or 0, counts.prompt_tokens or 0
    drafted, accepted_at = counts.drafted_rounds or 0, np.array(counts.accepted_at)
    accepted = int(accepted_at.sum())
    past_end = drafted + accepted - (written - number)
    if written < number or past_end > depth * number:
        raise SpecprobeError(
            f"import: {drafted} rounds and {accepted} accepted tokens for {written} output tokens of {number} "
            "requests; some were running at a scrape, or counters are not of one server: take both while it is idle"
        )
    drafts, kept = _dealt(np.array([max(-past_end, 0), *_exactly(drafted, accepted_at)]))
    starts = np.arange(number) * len(kept) // number
    positions = np.arange(depth)
    by_round = (kept[:, None] > positions, drafts[:, None] & (kept[:, None] >= positions))

    def by_request(of_rounds: NDArray[Any]) -> Ints:
        sums = np.concatenate([np.zeros((1, *of_rounds.shape[1:]), np.int64), np.cumsum(of_rounds, axis=0)])
        return np.diff(sums[[*starts, len(kept)]], axis=0).astype(np.int32)

    rounds = by_request(np.ones(len(kept), np.int64))
    at = by_request(by_round[0])
    had_draft = by_request(drafts.astype(np.int64))
    cut = _shares(max(past_end, 0), number)
    return _Rows(
        ids=(ALL_REQUESTS,) * number,
        samples=np.arange(number, dtype=np.int32),
        prompts=np.zeros(number, dtype=np.int32),
        prompt_tokens=_shares(prompt_tokens, number),
        output_tokens=(1 + rounds + at.sum(axis=1) - cut).astype(np.int32),
        rounds=rounds,
        drafted_at=np.repeat(had_draft[:, None], depth, axis=1),
        at_risk_at=by_request(by_round[1]),
        accepted_at=at,
    )


def _exactly(drafted: int, accepted_at: NDArray[Any]) -> NDArray[Any]:
    """Rounds with a draft that accepted exactly 0, 1, .. K tokens."""
    at_least = np.array([drafted, *accepted_at, 0])
    exactly: NDArray[Any] = at_least[:-1] - at_least[1:]
    return exactly


def _dealt(kinds: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(had a draft, accepted tokens) of each round, every kind spread evenly; the first kind has no draft."""
    places = np.concatenate([(np.arange(count) + 0.5) / count for count in kinds if count] or [np.zeros(0)])
    kind = np.repeat(np.arange(len(kinds)), kinds)[np.argsort(places, kind="stable")]
    return kind > 0, np.maximum(kind - 1, 0)


def _shares(total: int, parts: int) -> Ints:
    ends = np.arange(parts + 1, dtype=np.int64) * total // parts
    return np.diff(ends).astype(np.int32)
