"""Replay: one drafter over a set of trajectories, all depths in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specprobe.acceptance import Acceptance, DraftSampling
from specprobe.drafters.base import Drafter, Limits, Proposals
from specprobe.errors import SpecprobeError
from specprobe.rounds import expect_all_depths, walk_all_depths
from specprobe.trajectory import Trajectory


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
    on_response: Callable[[int], None] | None = None,
) -> list[Acceptance]:
    """`replay` for several ways of drafting, which share the drafter's work."""
    tallies = [_Tally(len(trajectories), depth, sampling) for sampling in draft_samplings]
    outside: list[float] = []
    for p, (trajectory, proposals) in enumerate(
        zip(trajectories, drafter.proposals(trajectories, depth, limits or Limits()), strict=True)
    ):
        for tally in tallies:
            tally.add(p, trajectory, proposals)
        if proposals.outside is not None:
            outside.append(proposals.outside)
        if on_response is not None:
            on_response(p + 1)
    output_tokens = np.array([trajectory.output_ids.size for trajectory in trajectories], dtype=np.int32)
    return [
        Acceptance(
            drafter=drafter.name,
            config=drafter.config,
            fixed_length=drafter.fixed_length,
            temperature=trajectories[0].temperature if trajectories else 0.0,
            draft_sampling=tally.draft_sampling,
            ids=tuple(trajectory.id for trajectory in trajectories),
            output_tokens=output_tokens,
            rounds=tally.rounds,
            drafted_at=tally.drafted_at,
            at_risk_at=tally.at_risk_at,
            accepted_at=tally.accepted_at,
            adoption=int(drafter.adoption),
            outside_share=sum(outside) / max(1, int(np.maximum(output_tokens - 1, 0).sum())) if outside else None,
        )
        for tally in tallies
    ]


class _Tally:
    """Counts by prompt and depth: integers for one-hot drafts, expectations for sampled ones."""

    def __init__(self, num_prompts: int, depth: int, draft_sampling: DraftSampling) -> None:
        kind = np.int32 if draft_sampling == "greedy" else np.float64
        self.draft_sampling = draft_sampling
        self.rounds = np.zeros((num_prompts, depth), dtype=kind)
        self.drafted_at, self.at_risk_at, self.accepted_at = (
            np.zeros((num_prompts, depth, depth), dtype=kind) for _ in range(3)
        )

    def add(self, p: int, trajectory: Trajectory, proposals: Proposals) -> None:
        counts = self.rounds[p], self.drafted_at[p], self.at_risk_at[p], self.accepted_at[p]
        if self.draft_sampling == "greedy":
            num_known = trajectory.output_ids.size + trajectory.tail_ids.size
            walk_all_depths(proposals.drafted, proposals.accepted, num_known, *counts)
        elif proposals.survival is None:
            raise SpecprobeError("--draft-sampling sampled: this drafter proposes tokens, not distributions")
        else:
            expect_all_depths(proposals.drafted, proposals.survival, *counts)
