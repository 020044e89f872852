"""Timing the drafters of a run that have models: opened from what the run recorded, loaded one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specprobe.cost import DraftingPoint
from specprobe.drafters import DraftContext, ModelSpec, OpenDrafter, open_drafter, parse_drafter
from specprobe.errors import SpecprobeError
from specprobe.measure import CostGrid, Forward, check_memory, measure_drafting_block
from specprobe.notices import inert
from specprobe.profiles import Profile
from specprobe.progress import Stages

if TYPE_CHECKING:
    from specprobe.causal_lm import LoadOptions
    from specprobe.speculation import LiveDrafter
    from specprobe.target import Target

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")
# Those that `live_drafter` knows.
TIMED = ("draft", "pard", "eagle", "eagle3", "medusa", "mlp", "early-exit")


@dataclass(frozen=True, slots=True, eq=False)
class TimedDrafter:
    """A drafter that can be timed. `name`: what the cost table calls it; `key`: what its timings depend on."""

    opened: OpenDrafter
    name: str
    key: str
    weight_bytes: int


def open_timed(
    specs: Sequence[str], target: Target, profile: Profile, depth: int, options: LoadOptions, stages: Stages
) -> list[TimedDrafter]:
    """Those of a run's drafters that have a model and can be timed; what cannot be opened is said and left out."""
    context = DraftContext(target, target.tokenizer, options, profile, depth, sampled=False)
    found = []
    for spec in specs:
        parsed = parse_drafter(spec, profile) if spec.partition(":")[0] in TIMED else None
        if not isinstance(parsed, ModelSpec):
            continue
        files = _weight_files(parsed.model)
        key = f"{spec} {sum(files.values())} bytes" if files else spec
        name = parsed.label if parsed.model else spec.strip()
        try:
            opened = open_drafter(parsed, context)
        except SpecprobeError as error:
            _say_left_out(name, error, stages)
            continue
        found.append(TimedDrafter(opened, name, key, sum(files.values())))
    return found


def drafting_depths(depth: int) -> list[int]:
    """1, 2, 4, ... and the depth itself."""
    return sorted({2**i for i in range(depth.bit_length())} | {depth})


def measure_drafting(
    target: Target,
    timed: TimedDrafter,
    grid: CostGrid,
    depth: int,
    known: Sequence[DraftingPoint],
    forward: Forward,
    stages: Stages,
) -> Iterator[list[DraftingPoint]]:
    """Points block by block under its key, those in `known` left out; nothing for a drafter that cannot be timed."""
    have = {(p.drafter, p.batch, p.depth, p.context) for p in known}
    missing = {
        (batch, context): left
        for batch, context in grid.blocks
        if (left := [k for k in drafting_depths(depth) if (timed.key, batch, k, context) not in have])
    }
    if not missing:
        return
    try:
        drafter = _load(target, timed, grid, forward)
        if drafter is None:
            stages.say(f"{inert(timed.name, 200)}: drafts in a way that is not timed; left out")
            return
        with stages.track(f"timing {inert(timed.name, 200)}", len(missing)) as advance:
            for done, ((batch, context), depths) in enumerate(missing.items(), 1):
                yield measure_drafting_block(target, drafter, timed.key, batch, context, depths, forward)
                advance(done, "")
    except SpecprobeError as error:
        _say_left_out(timed.name, error, stages)


def _load(target: Target, timed: TimedDrafter, grid: CostGrid, forward: Forward) -> LiveDrafter | None:
    """The drafter, ready to draft in earnest, on memory that was looked at before."""
    from specprobe.features import CarriedFeatures
    from specprobe.live_drafters import live_drafter

    if forward == "eager forward, growing cache":
        return None
    # Most weights are stored in 16 bits.
    check_memory(target, grid, timed.weight_bytes * target.model.dtype.itemsize // 2)
    # Nothing is read: what it drafts from is computed as it goes.
    drafter = live_drafter(timed.opened.load(CarriedFeatures()), target)
    if drafter is None:
        return None
    check_memory(target, grid, drafter_cache_bytes=drafter.cache_token_bytes)
    longest = grid.contexts[-1] + grid.query_tokens[-1]
    if drafter.max_positions is not None and longest > drafter.max_positions:
        raise SpecprobeError(f"knows {drafter.max_positions} positions, and rounds of {longest} are to be timed")
    return drafter


def _weight_files(model: str) -> dict[str, int]:
    """Sizes of the weight files of a local checkpoint; nothing for one of the Hub."""
    folder = Path(model)
    if not model or not folder.is_dir():
        return {}
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES}


def _say_left_out(name: str, error: SpecprobeError, stages: Stages) -> None:
    stages.say(f"{inert(name, 200)}: its drafting is not timed ({inert(str(error), 300)})")
