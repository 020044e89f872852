"""Replay: one drafter over a set of trajectories, all depths in one go."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance, Counts, Expectation
from specprobe.drafters.base import Drafter, Limits, Proposals
from specprobe.entropy import entropy_edges, entropy_quartiles, quartile_counts, token_weights
from specprobe.errors import SpecprobeError
from specprobe.expectation import expect_greedy, expect_sampled
from specprobe.profiles import DraftSampling
from specprobe.rounds import (
    expect_all_depths,
    expected_rounds,
    one_hot_survival,
    reach,
    visited_rounds,
    walk_all_depths,
)
from specprobe.spool import Part
from specprobe.tables import GrowingTable
from specprobe.trajectory import Trajectory, prompt_numbers

if TYPE_CHECKING:
    from specprobe.target_distribution import ResponseDistribution, TargetDistribution

Floats = NDArray[np.float64]


def replay(
    drafter: Drafter,
    trajectories: Sequence[Trajectory],
    depth: int,
    *,
    limits: Limits | None = None,
    draft_sampling: DraftSampling = "greedy",
    on_response: Callable[[int], None] | None = None,
) -> Acceptance:
    """What an engine with this drafter would have counted while writing exactly these responses.

    Exact for one-hot (greedy) drafts at any temperature, given the text; for sampled drafts the expectation given the
    text (docs/method.md). All trajectories must have the same temperature. `on_response` is called after each
    response with their number so far.
    """
    return replays(drafter, trajectories, depth, (draft_sampling,), limits=limits, on_response=on_response)[0]


def replays(
    drafter: Drafter,
    trajectories: Sequence[Trajectory],
    depth: int,
    draft_samplings: Sequence[DraftSampling],
    *,
    limits: Limits | None = None,
    distribution: TargetDistribution | None = None,
    on_response: Callable[[int], None] | None = None,
) -> list[Acceptance]:
    """`replay` for several ways of drafting, which share the drafter's work.

    `distribution`: p of the target while it wrote; with it, estimates of lower variance stand beside the counts.
    Several responses to one prompt are replayed as so many days of the same traffic: what requests share (a suffix
    tree) begins anew with each.
    """
    edges = entropy_edges([t.entropy for t in trajectories if t.entropy is not None])
    tallies = [_Tally(len(trajectories), depth, sampling, edges) for sampling in draft_samplings]
    outside: list[float] = []
    drafts = chain.from_iterable(drafter.proposals(day, depth, limits or Limits()) for day in _days(trajectories))
    ids: list[str | int] = []
    lengths = array("i")
    for p, (trajectory, proposals) in enumerate(zip(trajectories, drafts, strict=True)):
        known = distribution.of(trajectory) if distribution and "greedy" in draft_samplings else None
        for tally in tallies:
            tally.add(p, trajectory, proposals, known)
        ids.append(trajectory.id)
        lengths.append(trajectory.output_ids.size)
        if proposals.outside is not None:
            outside.append(proposals.outside)
        if on_response is not None:
            on_response(p + 1)
    output_tokens = np.array(lengths, dtype=np.int32)
    prompts = prompt_numbers(trajectories)
    counts = [tally.counts() for tally in tallies]
    return [
        Acceptance(
            drafter=drafter.name,
            config=drafter.config,
            fixed_length=drafter.fixed_length,
            temperature=trajectories[0].temperature if trajectories else 0.0,
            draft_sampling=tally.draft_sampling,
            ids=tuple(ids),
            output_tokens=output_tokens,
            rounds=tally.rounds,
            drafted_at=drafted_at,
            at_risk_at=at_risk_at,
            accepted_at=accepted_at,
            adoption=int(drafter.adoption),
            outside_share=sum(outside) / max(1, int(np.maximum(output_tokens - 1, 0).sum())) if outside else None,
            prompts=prompts,
            expectation=tally.expectation,
            by_entropy=None if edges is None else entropy_quartiles(edges, *tally.by_entropy),
        )
        for tally, (drafted_at, at_risk_at, accepted_at) in zip(tallies, counts, strict=True)
    ]


def _days(trajectories: Sequence[Trajectory]) -> Iterator[Sequence[Trajectory]]:
    """The responses of each sample, which follow one another."""
    begin = 0
    for _, day in groupby(trajectory.sample for trajectory in trajectories):
        end = begin + sum(1 for _ in day)
        yield Part(trajectories, range(begin, end))
        begin = end


class _Tally:
    """Counts by prompt and depth: integers for one-hot drafts, expectations for sampled ones."""

    def __init__(self, num_prompts: int, depth: int, draft_sampling: DraftSampling, edges: Floats | None) -> None:
        kind = np.int32 if draft_sampling == "greedy" else np.float64
        self.draft_sampling = draft_sampling
        self.rounds = np.zeros((num_prompts, depth), dtype=kind)
        # [P, 3, K, K]: drafted, at risk, accepted.
        self._counts = GrowingTable(num_prompts, (3, depth, depth), kind)
        self.by_entropy = np.zeros((2, 4))
        self._edges = edges
        self._expected = np.zeros((2, num_prompts, depth, depth))
        self._is_expected = np.zeros(num_prompts, dtype=bool)

    @property
    def expectation(self) -> Expectation | None:
        """Known for all responses or for none."""
        return Expectation(*self._expected) if self._is_expected.size and self._is_expected.all() else None

    def counts(self) -> tuple[Counts, Counts, Counts]:
        """All of them, [P, K, K] each, when the last response has been added."""
        drafted_at, at_risk_at, accepted_at = np.moveaxis(self._counts.finished(), 1, 0)
        return drafted_at, at_risk_at, accepted_at

    def add(
        self, p: int, trajectory: Trajectory, proposals: Proposals, known: ResponseDistribution | None = None
    ) -> None:
        counts = self.rounds[p], *self._counts.row(p)
        expected = None
        if self.draft_sampling == "greedy":
            num_known = trajectory.output_ids.size + trajectory.tail_ids.size
            walk_all_depths(proposals.drafted, proposals.accepted, num_known, *counts)
            if known is not None and proposals.missed is not None:
                expected = expect_greedy(trajectory, proposals, known)
        elif proposals.survival is None:
            raise SpecprobeError("--draft-sampling sampled: this drafter proposes tokens, not distributions")
        else:
            expect_all_depths(proposals.drafted, proposals.survival, *counts)
            if proposals.overlap is not None:
                expected = expect_sampled(proposals)
        # Counters go on into a recorded tail, of which p is not known: the two would not be about the same.
        if expected is not None and not trajectory.tail_ids.size:
            self._expected[:, p] = expected
            self._is_expected[p] = True
        if self._edges is not None and trajectory.entropy is not None:
            self._add_entropy(trajectory.entropy, proposals)

    def _add_entropy(self, entropy: NDArray[np.float32], proposals: Proposals) -> None:
        """At the largest depth."""
        drafted, accepted = proposals.drafted[-1:], proposals.accepted[-1:]
        if self.draft_sampling == "greedy":
            starts, survival = visited_rounds(drafted, accepted), one_hot_survival(accepted, len(proposals.drafted))
        else:
            assert proposals.survival is not None
            survival = proposals.survival[-1:]
            starts = expected_rounds(drafted, survival)
        at_risk, kept = reach(drafted, survival)
        assert self._edges is not None
        self.by_entropy += quartile_counts(entropy, self._edges, *token_weights(starts[0], at_risk[0], kept[0]))
