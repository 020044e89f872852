"""Drafters over a run's trajectories: opened before anything is generated, then loaded and replayed one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specprobe.acceptance import Acceptance
from specprobe.drafters import DraftContext, Limits, OpenDrafter, Parsed, open_drafter
from specprobe.notices import Notice, inert
from specprobe.paths import make_private_folder, state_folder
from specprobe.progress import Advance, Stages
from specprobe.replay import DraftSampling, replays
from specprobe.trajectory import Trajectory

if TYPE_CHECKING:
    from specprobe.features import Features
    from specprobe.target import Target


def open_all(parsed: Sequence[Parsed], context: DraftContext) -> list[OpenDrafter]:
    """Every drafter, checked against the target. Raises SpecprobeError for the first that does not fit."""
    return [open_drafter(drafter, context) for drafter in parsed]


def replay_all(
    opened: Sequence[OpenDrafter],
    sets: Sequence[Sequence[Trajectory]],
    context: DraftContext,
    draft_samplings: Sequence[DraftSampling],
    limits: Limits,
    stages: Stages,
) -> tuple[tuple[Acceptance, ...], tuple[Notice, ...]]:
    """Results by set of trajectories, then drafter, then way of drafting.

    The target runs once more over the text for those that read its states, which then wait on the disk; after that
    its layers are given up, so that each drafter has the memory to itself.
    """
    taps = sorted({tap for drafter in opened for tap in drafter.taps})
    by_set: list[list[Acceptance]] = [[] for _ in sets]
    with tempfile.TemporaryDirectory(prefix="states-", dir=_scratch() if taps else None) as folder:
        features = _capture(context.target, sets, taps, Path(folder), stages) if taps and context.target else None
        if context.target is not None and any(drafter.has_model for drafter in opened):
            context.target.release_layers()
        for open_one in opened:
            if open_one.has_model:
                stages.say(f"loading {inert(open_one.name, 200)}")
            drafter = open_one.load(features)
            for index, trajectories in enumerate(sets):
                with stages.track(f"replaying {drafter.name}", len(trajectories)) as advance:
                    by_set[index] += replays(
                        drafter,
                        trajectories,
                        context.depth,
                        _samplings(open_one, trajectories, draft_samplings),
                        limits=limits,
                        on_response=_counting(advance),
                    )
    results = tuple(result for results in by_set for result in results)
    return results, tuple(dict.fromkeys(notice for drafter in opened for notice in drafter.notices))


def _capture(
    target: Target, sets: Sequence[Sequence[Trajectory]], taps: Sequence[int], folder: Path, stages: Stages
) -> Features:
    from specprobe.features import capture_features

    works = [trajectory for trajectories in sets for trajectory in trajectories]
    with stages.track("reading the target's hidden states", len(works)) as advance:
        return capture_features(target, works, taps, folder, _counting(advance))


def _samplings(
    drafter: OpenDrafter, trajectories: Sequence[Trajectory], asked: Sequence[DraftSampling]
) -> Sequence[DraftSampling]:
    """At temperature 0 a sampled draft is the greedy one, and what has no distribution cannot be sampled from."""
    if not drafter.has_model or not trajectories or trajectories[0].temperature == 0:
        return ("greedy",)
    return asked


def _scratch() -> Path:
    """States tell what the text was, so they stay in the project's own private folder."""
    return make_private_folder(state_folder() / "states")


def _counting(advance: Advance) -> Callable[[int], None]:
    return lambda done: advance(done, "")
