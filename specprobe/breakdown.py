"""Who gains and who loses: one result by group of requests, and how unevenly its gain is spread over requests.

Both are taken at the result's best depth, the one with the fewest rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance, Counts, DepthTotals
from specprobe.interval import MIN_PROMPTS, Interval, interval_json
from specprobe.temperature import intervals_at

# More rows are no longer read.
MAX_GROUPS = 20
NO_GROUP = "(none)"
OTHER_GROUPS = "(other groups)"
# How many of the best and of the worst requests are named.
NUM_NAMED = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The counts of one group of requests, at one depth.

    `interval`: of tokens per round over the group's prompts, None with fewer than two; `num_prompts`: those with at
    least one round, which it rests on.
    """

    label: str
    totals: DepthTotals
    interval: Interval | None
    num_prompts: int

    @property
    def enough_prompts(self) -> bool:
        """Whether the interval can be relied on."""
        return self.num_prompts >= MIN_PROMPTS

    def to_json(self) -> dict[str, Any]:
        """For the run's document."""
        totals = self.totals
        return {
            "group": self.label,
            "depth": totals.depth,
            "responses": totals.responses,
            "emitted_tokens": totals.emitted_tokens,
            "rounds": totals.rounds,
            "drafted_rounds": totals.drafted_rounds,
            "accepted_tokens": totals.accepted_tokens,
            "tokens_per_round": totals.tokens_per_round,
            "acceptance_rate": totals.acceptance_rate,
            "mean_acceptance_length": totals.mean_acceptance_length,
            "interval": interval_json(self.interval),
            "enough_prompts": self.enough_prompts,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Concentration:
    """How the gain is spread over the requests that had a round, at one depth.

    Raw counts [P] by request: `emitted_tokens`, `rounds`, `accepted_tokens`. `is_counted`: False for expectations, of
    which none is ever 0.
    """

    depth: int
    ids: tuple[str | int, ...]
    emitted_tokens: Counts
    rounds: Counts
    accepted_tokens: Counts
    is_counted: bool = True

    @property
    def requests(self) -> int:
        """Those with at least one round; a response of one token has none."""
        return len(self.ids)

    @property
    def requests_with_nothing_accepted(self) -> int | None:
        """Requests in which no draft token was accepted; None where acceptance is expected, not counted."""
        return int((self.accepted_tokens == 0).sum()) if self.is_counted else None

    @property
    def saved_rounds(self) -> Counts:
        """[P] rounds that speculation saved: without it every token takes one."""
        return self.emitted_tokens - self.rounds

    @property
    def tokens_per_round(self) -> Floats:
        """[P]."""
        return self.emitted_tokens / self.rounds

    @property
    def requests_in_top_tenth(self) -> int:
        """A tenth of the requests, rounded up."""
        return -(-self.requests // 10)

    @property
    def top_tenth_share(self) -> float | None:
        """The share of all saved rounds that the tenth of the requests with the most holds; None with none saved."""
        held = self._held()
        return float(held[self.requests_in_top_tenth - 1] / held[-1]) if self.saved_rounds.any() else None

    @property
    def requests_for_half(self) -> int | None:
        """The fewest requests that hold half of all saved rounds; None with none saved."""
        held = self._held()
        return 1 + int(np.searchsorted(held, held[-1] / 2)) if self.saved_rounds.any() else None

    @property
    def quartiles(self) -> tuple[float, float, float] | None:
        """Of tokens per round over requests; None without requests."""
        if not self.requests:
            return None
        first, median, third = np.quantile(self.tokens_per_round, [0.25, 0.5, 0.75]).tolist()
        return first, median, third

    @property
    def best(self) -> tuple[tuple[str | int, float], ...]:
        """The three requests with the most tokens per round, as (id, tokens per round); of equals, the longer one.

        With one emitted token there is one round, whatever the drafter does: such requests are not compared.
        """
        return self._named(self._ranked(best_first=True)[:NUM_NAMED])

    @property
    def worst(self) -> tuple[tuple[str | int, float], ...]:
        """The three with the fewest, the worst first, in the same way; none of `best`."""
        best = self._ranked(best_first=True)[:NUM_NAMED]
        return self._named([p for p in self._ranked(best_first=False) if p not in best][:NUM_NAMED])

    def to_json(self) -> dict[str, Any]:
        """For the run's document, which has the counts by request elsewhere."""
        return {
            "depth": self.depth,
            "requests": self.requests,
            "requests_with_nothing_accepted": self.requests_with_nothing_accepted,
            "top_tenth_share": self.top_tenth_share,
            "requests_for_half": self.requests_for_half,
            "tokens_per_round_quartiles": list(self.quartiles) if self.quartiles else None,
            "best": [{"id": name, "tokens_per_round": value} for name, value in self.best],
            "worst": [{"id": name, "tokens_per_round": value} for name, value in self.worst],
        }

    def _held(self) -> Counts:
        """[P] saved rounds of the 1, 2, ... requests that saved most."""
        return np.cumsum(np.sort(self.saved_rounds)[::-1])

    def _ranked(self, *, best_first: bool) -> list[int]:
        """Requests of at least two emitted tokens, by tokens per round, then longest first."""
        values = -self.tokens_per_round if best_first else self.tokens_per_round
        order = np.lexsort((-self.emitted_tokens, values))
        return [p for p in order.tolist() if self.emitted_tokens[p] >= 2]

    def _named(self, requests: Sequence[int]) -> tuple[tuple[str | int, float], ...]:
        return tuple((self.ids[p], float(self.tokens_per_round[p])) for p in requests)


def by_group(acceptance: Acceptance, groups: Sequence[str | None], *, seed: int = 0) -> tuple[GroupResult, ...]:
    """One result by group, at its best depth; most tokens per round first. `groups` [P]: None for no group.

    Beyond 20 groups those with the fewest responses are merged into one.
    """
    depth = acceptance.depth_of_fewest_rounds
    members: dict[str | None, list[int]] = {}
    for request, group in zip(range(len(acceptance.ids)), groups, strict=True):
        members.setdefault(group, []).append(request)
    results = [_group(label, _select(acceptance, rows), depth, seed) for label, rows in _labelled(members)]
    return tuple(sorted(results, key=lambda result: -(result.totals.tokens_per_round or 0)))


def concentration(acceptance: Acceptance) -> Concentration:
    """How the gain of one result is spread over its requests, at its best depth; samples of one request are summed."""
    row = acceptance.depth_of_fewest_rounds - 1
    prompts = range(len(acceptance.ids)) if acceptance.prompts is None else acceptance.prompts.tolist()
    keys = list(zip(acceptance.ids, prompts, strict=True))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    of_request = np.array([numbers[key] for key in keys], dtype=np.intp)

    def summed(counts: Counts) -> Counts:
        whole = np.zeros(len(numbers), dtype=counts.dtype)
        np.add.at(whole, of_request, counts)
        return whole

    rounds = summed(acceptance.rounds[:, row])
    has_rounds = rounds > 0
    return Concentration(
        depth=row + 1,
        ids=tuple(key[0] for key, counts in zip(numbers, has_rounds.tolist(), strict=True) if counts),
        emitted_tokens=summed(acceptance.emitted_tokens)[has_rounds],
        rounds=rounds[has_rounds],
        accepted_tokens=summed(acceptance.accepted_tokens[:, row])[has_rounds],
        is_counted=acceptance.draft_sampling == "greedy",
    )


def _labelled(members: dict[str | None, list[int]]) -> list[tuple[str, list[int]]]:
    """At most MAX_GROUPS labels with their requests, largest first; groups as large as each other in file order."""
    ranked = sorted(members.items(), key=lambda item: -len(item[1]))
    labelled = [(NO_GROUP if group is None else group, rows) for group, rows in ranked]
    if len(labelled) <= MAX_GROUPS:
        return labelled
    kept, others = labelled[: MAX_GROUPS - 1], labelled[MAX_GROUPS - 1 :]
    return [*kept, (OTHER_GROUPS, sorted(row for _, rows in others for row in rows))]


def _group(label: str, acceptance: Acceptance, depth: int, seed: int) -> GroupResult:
    (interval,) = intervals_at(acceptance, [depth], seed=seed)
    return GroupResult(label, acceptance.totals(depth), interval, acceptance.num_prompts)


def _select(acceptance: Acceptance, requests: list[int]) -> Acceptance:
    """The same result for some of its requests."""
    return replace(
        acceptance,
        ids=tuple(acceptance.ids[request] for request in requests),
        output_tokens=acceptance.output_tokens[requests],
        rounds=acceptance.rounds[requests],
        drafted_at=acceptance.drafted_at[requests],
        at_risk_at=acceptance.at_risk_at[requests],
        accepted_at=acceptance.accepted_at[requests],
        prompts=None if acceptance.prompts is None else acceptance.prompts[requests],
        expectation=None,
        by_entropy=None,
    )
