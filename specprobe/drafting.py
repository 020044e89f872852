"""Drafters over a run's trajectories: opened before anything is generated, then loaded and replayed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specprobe.acceptance import Acceptance
from specprobe.drafters import DraftContext, HybridSpec, Limits, ModelSpec, OpenDrafter, Parsed, open_drafter
from specprobe.drafters.remembered import OpenRemembered
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice, inert
from specprobe.profiles import DraftSampling
from specprobe.progress import Advance, Stages
from specprobe.replay import replays
from specprobe.scratch import scratch_folder
from specprobe.trajectory import Trajectory

if TYPE_CHECKING:
    from specprobe.features import Features
    from specprobe.served_states import ServedStates
    from specprobe.target import Target
    from specprobe.target_distribution import TargetDistribution


def open_all(parsed: Sequence[Parsed], context: DraftContext) -> list[OpenDrafter]:
    """Every drafter, checked against the target. Raises SpecprobeError for the first that does not fit.

    One that is named by itself and as half of a hybrid is opened once, and will draft once.
    """
    halves = [drafter.second for drafter in parsed if isinstance(drafter, HybridSpec)]
    shared = [half for number, half in enumerate(halves) if half in parsed or half in halves[:number]]
    opened = [(half, OpenRemembered(_open_model(half, context))) for half in shared if isinstance(half, ModelSpec)]

    def open_one(drafter: Parsed) -> OpenDrafter:
        found = next((remembered for half, remembered in opened if half == drafter), None)
        if found is None and isinstance(drafter, ModelSpec):
            return _open_model(drafter, context)
        return found or open_drafter(drafter, context, open_one)

    return [open_one(drafter) for drafter in parsed]


def _open_model(spec: ModelSpec, context: DraftContext) -> OpenDrafter:
    """To be loaded here, or by the target's crew where it has one."""
    opened = open_drafter(spec, context)
    if context.target is None or context.target.crew is None:
        return opened
    from specprobe.shared_drafting import OpenShared

    return OpenShared(opened, spec, context)


def replay_all(
    opened: list[OpenDrafter],
    sets: Sequence[Sequence[Trajectory]],
    context: DraftContext,
    draft_samplings: Sequence[DraftSampling],
    limits: Limits,
    stages: Stages,
    *,
    keeps_target: bool = False,
) -> tuple[tuple[Acceptance, ...], tuple[Notice, ...]]:
    """Results by set of trajectories, then drafter, then way of drafting.

    The target runs once more over the text, here or on its server, for those that read its states, which then wait on
    the disk; after that its layers are given up, so that each drafter has the memory to itself, unless it is to write
    more (`keeps_target`). `opened` is emptied as drafters are done.
    """
    notices = [notice for drafter in opened for notice in drafter.notices]
    taps = sorted({tap for drafter in opened for tap in drafter.taps})
    by_set: list[list[Acceptance]] = [[] for _ in sets]
    with ExitStack() as stack:
        features = None
        if context.target is not None:
            folder = stack.enter_context(scratch_folder())
            features = _capture(context.target, context.distribution, sets, taps, folder, stages)
        elif context.states is not None:
            folder = stack.enter_context(scratch_folder())
            features = _capture_elsewhere(context.states, sets, taps, folder, stages)
        if context.distribution is not None:
            notices += context.distribution.notices
        if context.target is not None and any(drafter.has_model for drafter in opened) and not keeps_target:
            context.target.release_layers()
        while opened:
            open_one = opened.pop(0)
            if open_one.has_model:
                stages.say(f"loading {inert(open_one.name, 200)}")
            with _memory_errors(open_one.name):
                drafter = open_one.load(features)
                for index, trajectories in enumerate(sets):
                    with stages.track(f"replaying {inert(drafter.name)}", len(trajectories)) as advance:
                        found = replays(
                            drafter,
                            trajectories,
                            context.depth,
                            _samplings(open_one, trajectories, draft_samplings),
                            limits=limits,
                            distribution=context.distribution,
                            on_response=_counting(advance),
                        )
                    by_set[index] += [_sharing(by_set[index] or found, result) for result in found]
            # Gone before the next one is loaded.
            del drafter, open_one
    return tuple(result for results in by_set for result in results), tuple(dict.fromkeys(notices))


def _sharing(others: Sequence[Acceptance], result: Acceptance) -> Acceptance:
    """The same result; what is known of its responses is that of the first of `others`, which are of the same ones."""
    first = others[0]
    return replace(result, ids=first.ids, output_tokens=first.output_tokens, prompts=first.prompts)


@contextmanager
def _memory_errors(name: str) -> Iterator[None]:
    """One line for a device that is too small."""
    try:
        yield
    except RuntimeError as error:
        # torch's own class on CUDA; elsewhere a RuntimeError that says so.
        if type(error).__name__ != "OutOfMemoryError" and "out of memory" not in str(error).lower():
            raise
        raise SpecprobeError(
            f"drafter {name}: out of memory; try --device cpu, --dtype bfloat16 or fewer --max-new-tokens "
            "(finished responses are kept)"
        ) from error


def _capture(
    target: Target,
    distribution: TargetDistribution | None,
    sets: Sequence[Sequence[Trajectory]],
    taps: Sequence[int],
    folder: Path,
    stages: Stages,
) -> Features | None:
    """One pass of the target over the text: what drafters read of it, and what its distribution follows from."""
    from specprobe.features import LAST, capture_features

    works = [trajectory for trajectories in sets for trajectory in trajectories]
    # Greedily sampled text leaves nothing to expect.
    is_wanted = distribution is not None and distribution.is_wanted
    warm = [trajectory for trajectory in works if trajectory.temperature > 0] if is_wanted else []
    read = works if taps else warm
    if not read:
        return None
    with (
        _memory_errors(target.record.name),
        stages.track("reading the target's hidden states", len(read)) as advance,
    ):
        wanted = sorted({*taps, LAST}) if warm else taps
        features = capture_features(target, read, wanted, folder, _counting(advance))
    if distribution and warm:
        distribution.take(features, warm)
    return features


def _capture_elsewhere(
    states: ServedStates, sets: Sequence[Sequence[Trajectory]], taps: Sequence[int], folder: Path, stages: Stages
) -> Features:
    """What drafters read of the target, from the server that it runs on."""
    works = [trajectory for trajectories in sets for trajectory in trajectories]
    with stages.track("asking for the target's hidden states", len(works)) as advance:
        return states.capture(works, taps, folder, _counting(advance))


def _samplings(
    drafter: OpenDrafter, trajectories: Sequence[Trajectory], ways: Sequence[DraftSampling]
) -> Sequence[DraftSampling]:
    """At temperature 0 a sampled draft is the greedy one, and what has no distribution cannot be sampled from."""
    if not drafter.can_sample or not trajectories or trajectories[0].temperature == 0:
        return ("greedy",)
    return ways


def _counting(advance: Advance) -> Callable[[int], None]:
    return lambda done: advance(done, "")
