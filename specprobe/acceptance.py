"""Acceptance: the raw counts of a replay, and everything that follows from them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprobe.entropy import EntropyQuartile
from specprobe.interval import LEVEL
from specprobe.tables import blocks

Counts = NDArray[np.int32] | NDArray[np.float64]
Count = int | float


def drafter_label(drafter: str, config: Mapping[str, Any], draft_sampling: str = "greedy") -> str:
    """What tells two results of a run apart, short enough for a table: the method, its model, how it drafts."""
    label = drafter
    if config.get("model"):
        label += ":" + str(config["model"]).rstrip("/").rpartition("/")[2]
    elif config.get("class"):
        label += ":" + str(config["class"]).rpartition(":")[2]
    elif drafter == "early-exit":
        label += f":layers={config.get('layers')}"
    return label + (" sampled" if draft_sampling == "sampled" else "")


@dataclass(frozen=True, slots=True, eq=False)
class Expectation:
    """Estimates of lower variance beside the counts, float64 [P, K, K] as those (see `specprobe.expectation`).

    `at_risk_at`: sum of r_s S_{s,i-1}, inside the text; `accepted_at`: A_i, what these could be expected to accept.
    """

    at_risk_at: NDArray[np.float64]
    accepted_at: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Acceptance:
    """What one drafter did on one set of trajectories, prompt by prompt, at every depth 1..K.

    Raw counts, int32 (float64 expectations for sampled drafts): `output_tokens` [P] (length of each response),
    `rounds` [P, K],
    `drafted_at`, `at_risk_at`, `accepted_at` [P, K, K], where [p, k-1, i-1] is prompt p at depth k, position i:
    rounds whose draft had at least i tokens; of these, rounds in which positions 1..i-1 were accepted and the
    text reaches position i; of these, rounds in which position i was accepted too (vLLM's per-position count).

    P counts responses; `prompts` [P] says which are to the same prompt, or to prompts of one conversation (None: each
    by itself), since these are no independent evidence. `expectation`: where the target's distribution is known.
    `by_entropy`: draft tokens at the largest depth by the target's entropy there. `first_depth`: depths below it were
    not counted, since an engine ran at that of its own only; their counts are 0. `interval_level`: at which intervals
    over these prompts are made so that they cover at LEVEL, which takes more where prompts were looked at several times
    (see `specprobe.looks`). The last three tables of a large log lie on the disk (see `specprobe.tables`).
    """

    drafter: str
    config: Mapping[str, Any]
    fixed_length: bool
    temperature: float
    draft_sampling: str
    ids: tuple[str | int, ...]
    output_tokens: Counts
    rounds: Counts
    drafted_at: Counts
    at_risk_at: Counts
    accepted_at: Counts
    adoption: int = 1
    outside_share: float | None = None
    prompts: NDArray[np.int32] | None = None
    expectation: Expectation | None = None
    by_entropy: tuple[EntropyQuartile, ...] | None = None
    first_depth: int = 1
    interval_level: float = LEVEL

    def by_prompt(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Counts [P, ...] summed by prompt, or by conversation: over the independent units of an interval."""
        if self.prompts is None or not self.prompts.size:
            return counts
        summed = np.zeros((int(self.prompts.max()) + 1, *counts.shape[1:]), dtype=counts.dtype)
        np.add.at(summed, self.prompts.astype(np.intp), counts)
        return summed

    @property
    def num_prompts(self) -> int:
        """Distinct prompts with at least one round; those of one conversation count as one."""
        return int((self.by_prompt(self.rounds)[:, -1] > 0).sum()) if len(self.ids) else 0

    @property
    def label(self) -> str:
        """See `drafter_label`."""
        return drafter_label(self.drafter, self.config, self.draft_sampling)

    @property
    def depth(self) -> int:
        """The largest depth K."""
        return int(self.rounds.shape[1])

    @property
    def depth_of_fewest_rounds(self) -> int:
        """The depth at which these responses take the fewest rounds; of equals, the shallowest."""
        uncounted = self.first_depth - 1
        return 1 + uncounted + int(np.argmin(self.rounds[:, uncounted:].sum(axis=0)))

    @property
    def emitted_tokens(self) -> Counts:
        """[P] tokens that rounds emitted: all of a response but the prefill's first."""
        return np.maximum(self.output_tokens - 1, 0)

    @property
    def drafted_rounds(self) -> Counts:
        """[P, K] rounds with at least one draft token (vLLM's num_drafts)."""
        return self.drafted_at[:, :, 0]

    @property
    def drafted_tokens(self) -> Counts:
        """[P, K] draft tokens proposed."""
        return _summed_positions(self.drafted_at)

    @property
    def accepted_tokens(self) -> Counts:
        """[P, K] draft tokens accepted."""
        return _summed_positions(self.accepted_at)

    def totals(self, depth: int) -> DepthTotals:
        """The counts at one depth, summed over prompts."""
        row = depth - 1
        return DepthTotals(
            depth=depth,
            responses=len(self.ids),
            emitted_tokens=int(self.emitted_tokens.sum(dtype=np.int64)),
            rounds=_sum(self.rounds[:, row]).item(),
            drafted_at=tuple(_sum(self.drafted_at[:, row, :depth]).tolist()),
            at_risk_at=tuple(_sum(self.at_risk_at[:, row, :depth]).tolist()),
            accepted_at=tuple(_sum(self.accepted_at[:, row, :depth]).tolist()),
        )


def at_depth(counts: Counts, depth: int) -> Counts:
    """[P, K] of counts [P, K, K]: those at one depth, by position."""
    return np.concatenate([block[:, depth - 1].copy() for block in blocks(counts)])


def _summed_positions(counts: Counts) -> Counts:
    """[P, K] of [P, K, K]."""
    return np.concatenate([block.sum(axis=2, dtype=counts.dtype) for block in blocks(counts)])


def _sum(counts: Counts) -> Any:
    """Over prompts, without overflow."""
    kind = np.int64 if counts.dtype.kind == "i" else np.float64
    return functools.reduce(np.add, (block.sum(axis=0, dtype=kind) for block in blocks(counts)))


def _share(part: Count, whole: Count) -> float | None:
    """None of nothing; at most 1, which sums of expectations may miss by a rounding."""
    return min(1.0, part / whole) if whole else None


@dataclass(frozen=True, slots=True)
class DepthTotals:
    """Counts at one depth over all prompts, and the rates that engines report.

    `drafted_at[i-1]`, `at_risk_at[i-1]`, `accepted_at[i-1]`: rounds that drafted position i, of these those that
    accepted all before it and have text there, and those that accepted it too.
    """

    depth: int
    responses: int
    emitted_tokens: int
    rounds: Count
    drafted_at: tuple[Count, ...]
    at_risk_at: tuple[Count, ...]
    accepted_at: tuple[Count, ...]

    @property
    def drafted_rounds(self) -> Count:
        """Rounds with at least one draft token."""
        return self.drafted_at[0]

    @property
    def drafted_tokens(self) -> Count:
        """Draft tokens proposed."""
        return sum(self.drafted_at)

    @property
    def accepted_tokens(self) -> Count:
        """Draft tokens accepted."""
        return sum(self.accepted_at)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None where nothing was drafted."""
        return _share(self.accepted_tokens, self.drafted_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafted rounds, bonus token included (vLLM's definition); None where nothing was drafted."""
        return 1 + self.accepted_tokens / self.drafted_rounds if self.drafted_rounds else None

    @property
    def tokens_per_round(self) -> float | None:
        """Emitted tokens / all rounds, those without a draft included; None where there was no round."""
        return self.emitted_tokens / self.rounds if self.rounds else None

    @property
    def coverage(self) -> float | None:
        """Drafted rounds / rounds."""
        return _share(self.drafted_rounds, self.rounds)

    @property
    def survival(self) -> tuple[float, ...] | None:
        """P(positions 1..i accepted) in a drafted round, as vLLM prints it; None where nothing was drafted."""
        if not self.drafted_rounds:
            return None
        return tuple(min(1.0, accepted / self.drafted_rounds) for accepted in self.accepted_at)

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """P(position i accepted, given those before it), censored rounds left out; None where none was at risk."""
        return tuple(
            _share(accepted, at_risk) for accepted, at_risk in zip(self.accepted_at, self.at_risk_at, strict=True)
        )
