"""Replay: one drafter over a set of trajectories, all depths in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specprobe.acceptance import Acceptance
from specprobe.drafters.base import Drafter, Limits
from specprobe.rounds import walk_all_depths
from specprobe.trajectory import Trajectory


def replay(
    drafter: Drafter,
    trajectories: Sequence[Trajectory],
    depth: int,
    *,
    limits: Limits | None = None,
    on_response: Callable[[int], None] | None = None,
) -> Acceptance:
    """What an engine with this drafter would have counted while writing exactly these responses.

    Exact for one-hot drafts at any temperature, given the text (docs/method.md). All trajectories must have the
    same temperature. `on_response` is called after each response with
    their number so far.
    """
    limits = limits or Limits()
    num_prompts = len(trajectories)
    rounds = np.zeros((num_prompts, depth), dtype=np.int32)
    drafted_at, at_risk_at, accepted_at = (np.zeros((num_prompts, depth, depth), dtype=np.int32) for _ in range(3))
    for p, (trajectory, proposals) in enumerate(
        zip(trajectories, drafter.proposals(trajectories, depth, limits), strict=True)
    ):
        walk_all_depths(
            proposals.drafted,
            proposals.accepted,
            trajectory.output_ids.size + trajectory.tail_ids.size,
            rounds[p],
            drafted_at[p],
            at_risk_at[p],
            accepted_at[p],
        )
        if on_response is not None:
            on_response(p + 1)
    return Acceptance(
        drafter=drafter.name,
        config=drafter.config,
        fixed_length=drafter.fixed_length,
        temperature=trajectories[0].temperature if trajectories else 0.0,
        draft_sampling="greedy",
        ids=tuple(trajectory.id for trajectory in trajectories),
        output_tokens=np.array([trajectory.output_ids.size for trajectory in trajectories], dtype=np.int32),
        rounds=rounds,
        drafted_at=drafted_at,
        at_risk_at=at_risk_at,
        accepted_at=accepted_at,
    )
