"""Timings of the target and its drafters on this device, kept in `.specprobe/costs` as soon as they are there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprobe.cost import CostPoint, CostTable, DraftingPoint
from specprobe.cost_files import read_drafting, read_point, read_seconds
from specprobe.drafters import Drafter
from specprobe.errors import SpecprobeError
from specprobe.paths import state_folder, write_private
from specprobe.progress import Stages

if TYPE_CHECKING:
    from specprobe.measure import CostGrid, Prefill
    from specprobe.measure_drafters import TimedDrafter
    from specprobe.target import Target

TIMINGS_SCHEMA = "specprobe.timings/3"


def measured_cost(
    target: Target,
    grid: CostGrid,
    drafters: Sequence[Drafter],
    depth: int,
    stages: Stages,
    *,
    models: Sequence[TimedDrafter] = (),
    remeasure: bool = False,
) -> CostTable:
    """The cost table of a grid; each block of points is kept in `.specprobe/costs` as soon as it is measured.

    `drafters`: without a model; `models`: those with one.
    """
    from specprobe.measure import forward_kind, measure_drafter, measure_grid, measure_prefill, timing_conditions
    from specprobe.measure_drafters import drafting_depths, measure_drafting

    forward = forward_kind(target)
    conditions = timing_conditions(target, forward)
    path = _place(conditions)
    timings = None if remeasure else _read_timings(path)
    if timings is None:
        timings = _Timings((), (), measure_prefill(target), {})
    with stages.track("timing rounds", grid.total_weight) as advance:
        for block in measure_grid(target, grid, timings.points, forward, on_block=lambda done: advance(done, "")):
            timings = replace(timings, points=(*timings.points, *block))
            _write_timings(path, timings)
    for drafter in drafters:
        key = _drafter_key(drafter, depth)
        if key not in timings.drafter_seconds:
            seconds = {**timings.drafter_seconds, key: measure_drafter(drafter, depth)}
            timings = replace(timings, drafter_seconds=seconds)
    _write_timings(path, timings)
    for model in models:
        for added in measure_drafting(target, model, grid, depth, timings.drafting, forward, stages):
            timings = replace(timings, drafting=(*timings.drafting, *added))
            _write_timings(path, timings)
    drafter_seconds: dict[str, float] = {}
    for drafter in drafters:
        # Two settings of one drafter share a name in the cost table: the slower one's time holds for both.
        seconds_now = timings.drafter_seconds[_drafter_key(drafter, depth)]
        drafter_seconds[drafter.name] = max(seconds_now, drafter_seconds.get(drafter.name, 0.0))
    depths = drafting_depths(depth)
    return CostTable(
        source="measured",
        points=tuple(
            point
            for point in timings.points
            if point.batch in grid.batches
            and point.query_tokens in grid.query_tokens
            and point.context in grid.contexts
        ),
        # By name: the same model named with two settings drafts in the same time.
        drafting=tuple(
            point
            for model in {model.name: model for model in models}.values()
            for point in _full_drafting(timings.drafting, model, grid, depths)
        ),
        drafter_seconds=drafter_seconds,
        prefill_token_seconds=timings.prefill.token_seconds,
        prefill_step_seconds=timings.prefill.step_seconds,
        conditions=conditions,
    )


def kept_points(target: Target) -> tuple[CostPoint, ...] | None:
    """What is kept of the target's rounds under the conditions of now; None where nothing is, not even a prefill."""
    from specprobe.measure import forward_kind, timing_conditions

    timings = _read_timings(_place(timing_conditions(target, forward_kind(target))))
    return None if timings is None else timings.points


def _place(conditions: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16]
    return state_folder() / "costs" / f"{digest}.json"


def _full_drafting(
    points: Sequence[DraftingPoint], model: TimedDrafter, grid: CostGrid, depths: Sequence[int]
) -> list[DraftingPoint]:
    """A drafter's points of a grid under its name in the cost table; none where one is missing."""
    found = [
        replace(point, drafter=model.name)
        for point in points
        if point.drafter == model.key and (point.batch, point.context) in grid.blocks and point.depth in depths
    ]
    return found if len(found) == len(grid.blocks) * len(depths) else []


def _drafter_key(drafter: Drafter, depth: int) -> str:
    return f"{drafter.name} {json.dumps(dict(drafter.config), sort_keys=True)} depth {depth}"


@dataclass(frozen=True, slots=True)
class _Timings:
    """What was timed so far under one set of conditions; not yet a full grid, so not yet a cost table."""

    points: tuple[CostPoint, ...]
    drafting: tuple[DraftingPoint, ...]
    prefill: Prefill
    drafter_seconds: Mapping[str, float]


def _write_timings(path: Path, timings: _Timings) -> None:
    write_private(path, json.dumps({"schema": TIMINGS_SCHEMA, **asdict(timings)}) + "\n")


def _read_timings(path: Path) -> _Timings | None:
    """Timings kept before; None where there are none, or none that this version can read (they are timed again)."""
    from specprobe.measure import Prefill

    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != TIMINGS_SCHEMA:
            return None
        # The same checks as for a cost file; a full grid is not asked of timings.
        points = tuple(read_point(point, number) for number, point in enumerate(document["points"], 1))
        drafting = tuple(read_drafting(point, number) for number, point in enumerate(document["drafting"], 1))
        if len({(p.batch, p.query_tokens, p.context) for p in points}) < len(points):
            return None
        if len({(p.drafter, p.batch, p.depth, p.context) for p in drafting}) < len(drafting):
            return None
        prefill = document["prefill"]
        return _Timings(
            points,
            drafting,
            Prefill(*(read_seconds(prefill[name], name) for name in ("token_seconds", "step_seconds"))),
            {key: read_seconds(value, key) for key, value in document["drafter_seconds"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, AttributeError, SpecprobeError):
        return None
