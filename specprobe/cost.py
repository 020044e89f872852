"""Cost: what a round costs, as a function of batch, query tokens per sequence, and context.

A `CostTable` holds points and interpolates between them; where they come from (`measured` on this device, a `roofline`,
an `engine`, or a `file`) is part of it and of every result made with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specprobe.errors import SpecprobeError
from specprobe.step_cost import StepCost

# A round below a nanosecond, or above a day, is a slip of units.
SHORTEST_SECONDS, LONGEST_SECONDS = 1e-9, 86_400.0
MOST_SPREAD = 10.0
Floats = NDArray[np.float64]
Source = Literal["measured", "roofline", "engine", "file"]


def timing_spread(seconds: Sequence[float] | Floats) -> float:
    """The standard deviation that the median absolute deviation of timings stands for, were their errors normal."""
    return 1.4826 * float(np.median(np.abs(np.subtract(seconds, np.median(seconds)))))


@dataclass(frozen=True, slots=True)
class CostPoint:
    """The time of one forward pass of the target over `batch` sequences.

    `query_tokens`: new tokens per sequence (1 + drafted in a round); `context`: tokens already in the KV cache of
    each. `seconds`: the median of `repeats` timings; `spread_seconds`: their
    `timing_spread`; `outliers`: timings beyond 5 spreads of the median.
    """

    batch: int
    query_tokens: int
    context: int
    seconds: float
    spread_seconds: float = 0.0
    repeats: int = 1
    outliers: int = 0


@dataclass(frozen=True, slots=True)
class DraftingPoint:
    """What a drafter adds to a round of `batch` sequences that are to be given `depth` draft tokens each.

    `seconds` is the time of the whole round less that of its verification (a `CostPoint`): drafting, accepting, and
    what the two lose by taking turns. `drafter`: one of the names that `cost_keys` gives. `context`: tokens in the
    cache of each sequence.
    """

    drafter: str
    batch: int
    depth: int
    context: int
    seconds: float
    spread_seconds: float = 0.0
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """What the accelerators hold, in bytes. `drafters`: by name, their weights and their cache of one token.

    `available_bytes`: for weights and caches. `kv_token_bytes`: the target's cache of one token, at the workload's
    mean context where it depends on it.
    """

    available_bytes: float
    weight_bytes: float
    kv_token_bytes: float
    drafters: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))

    def drafter_bytes(self, keys: Sequence[str]) -> tuple[float, float]:
        """Weights and cache of one token of the drafter that goes by one of these names; 0 for one without a model."""
        return next((self.drafters[key] for key in keys if key in self.drafters), (0.0, 0.0))

    def kv_capacity_tokens(self, keys: Sequence[str] = ()) -> float:
        """Tokens that the caches can hold beside the weights; 0 where the weights alone do not fit."""
        weights, kv_token = self.drafter_bytes(keys)
        free = self.available_bytes - self.weight_bytes - weights
        return max(0.0, free) / (self.kv_token_bytes + kv_token) if self.kv_token_bytes + kv_token else math.inf


@dataclass(frozen=True, slots=True)
class CostTable:
    """Round times on a full grid of batch x query tokens x context, linear in between.

    `drafting`: on a full grid of batch x depth x context of its own for each drafter in it. `drafter_seconds` is the
    short form: seconds per sequence of a round, for a model of each drafted token.
    `drafter_prefill_seconds`: what a drafter adds to the prefill of each prompt token.
    `prefill_token_seconds`: what a prompt token adds to a step; `prefill_pair_seconds`: what it adds for each token of
    its prompt before it; `prefill_step_seconds`: a step that only prefills, besides (None: the shortest round).
    `log_deviation`: the standard deviation of log(speed-up) that the source itself is known to err by, 0 for timings.
    `memory`: None where it is not known. `conditions` says on what and how it was measured. Raises SpecprobeError
    where a combination of a grid is missing or a time is not positive.
    """

    source: Source
    points: tuple[CostPoint, ...]
    drafting: tuple[DraftingPoint, ...] = ()
    drafter_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    drafter_prefill_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    prefill_token_seconds: float = 0.0
    prefill_pair_seconds: float = 0.0
    prefill_step_seconds: float | None = None
    log_deviation: float = 0.0
    memory: Memory | None = None
    conditions: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if not self.points:
            raise SpecprobeError("cost: no points; give at least one batch, query_tokens, context and seconds")
        for point in self.points:
            where = f"batch {point.batch}, query_tokens {point.query_tokens}, context {point.context}"
            if min(point.batch, point.query_tokens) < 1 or point.context < 0:
                raise SpecprobeError(f"cost: {where}: batch and query_tokens start at 1, context at 0")
            if not SHORTEST_SECONDS <= point.seconds <= LONGEST_SECONDS:
                raise SpecprobeError(f"cost: {where}: seconds must be positive and those of a round")
            if point.spread_seconds > MOST_SPREAD * point.seconds:
                raise SpecprobeError(f"cost: {where}: a spread_seconds {MOST_SPREAD:g} times the seconds tells nothing")
        if self.query_tokens[0] > 1:
            raise SpecprobeError("cost: no points with query_tokens 1; others are held to a round without drafts")
        for drafting in self.drafting:
            where = f"drafter {drafting.drafter[:40]!r}, batch {drafting.batch}, depth {drafting.depth}"
            if min(drafting.batch, drafting.depth) < 1 or drafting.context < 0:
                raise SpecprobeError(f"cost: {where}: batch and depth start at 1, context at 0")
        _check_full([_key(point) for point in self.points], ("batch", "query_tokens", "context"))
        for points in self._by_drafter().values():
            _check_full([(p.batch, p.depth, p.context) for p in points], ("batch", "depth", "context"))

    @property
    def batches(self) -> list[int]:
        """The batch sizes of the grid, rising."""
        return sorted({point.batch for point in self.points})

    @property
    def query_tokens(self) -> list[int]:
        """The query tokens per sequence of the grid, rising."""
        return sorted({point.query_tokens for point in self.points})

    @property
    def contexts(self) -> list[int]:
        """The contexts of the grid, rising."""
        return sorted({point.context for point in self.points})

    def at_context(self, context: float) -> CostSurface:
        """Round times over batch and query tokens at one context; held constant beyond the ends of the grid."""
        batches, queries = (np.array(axis, dtype=np.float64) for axis in (self.batches, self.query_tokens))
        points = {_key(point): point for point in self.points}
        at = batches, queries, np.array([context])
        seconds = _interpolated({key: point.seconds for key, point in points.items()}, at)[..., 0]
        errors = _interpolated({key: _median_error(point) for key, point in points.items()}, at)[..., 0]
        return CostSurface(batches, queries, seconds, errors)

    def knows(self, keys: Sequence[str]) -> bool:
        """Whether it has the drafting time of a drafter that goes by one of these names."""
        return any(key in self.drafter_seconds or key in self._by_drafter() for key in keys)

    @property
    def drafters(self) -> set[str]:
        """The names of the drafters whose time it has."""
        return {*self.drafter_seconds, *self._by_drafter()}

    @property
    def prefill_floor_seconds(self) -> float:
        """A step that only prefills, besides its tokens."""
        if self.prefill_step_seconds is not None:
            return self.prefill_step_seconds
        return min(point.seconds for point in self.points)

    def drafter_prefill(self, keys: Sequence[str]) -> float:
        """What the drafter of one of these names adds to the prefill of a prompt token."""
        return next((self.drafter_prefill_seconds[key] for key in keys if key in self.drafter_prefill_seconds), 0.0)

    def drafting_seconds(
        self, keys: Sequence[str], batches: Floats, depths: Floats, contexts: Floats, *, by_token: bool
    ) -> Floats:
        """What the drafter of one of these names adds to a round, [batches, depths, contexts]; 0 where unknown.

        Linear between points and constant beyond them. `by_token`: its `drafter_seconds` are of each drafted token.
        """
        if points := self._drafting_of(keys):
            return _interpolated({key: point.seconds for key, point in points.items()}, (batches, depths, contexts))
        seconds = next((self.drafter_seconds[key] for key in keys if key in self.drafter_seconds), 0.0)
        tokens = depths if by_token else np.ones_like(depths)
        return seconds * batches[:, None, None] * tokens[None, :, None] * np.ones_like(contexts)[None, None, :]

    def drafting_errors(self, keys: Sequence[str], batches: Floats, depths: Floats, contexts: Floats) -> Floats:
        """Standard errors of `drafting_seconds`, as repeated timings show them; 0 for what was not timed."""
        if points := self._drafting_of(keys):
            return _interpolated({key: _median_error(p) for key, p in points.items()}, (batches, depths, contexts))
        return np.zeros((batches.size, depths.size, contexts.size))

    def _drafting_of(self, keys: Sequence[str]) -> dict[tuple[int, int, int], DraftingPoint]:
        """The points of the drafter that goes by the first of these names that has any."""
        by_drafter = self._by_drafter()
        named = next((by_drafter[key] for key in keys if key in by_drafter), [])
        return {(point.batch, point.depth, point.context): point for point in named}

    def step_cost(self, keys: Sequence[str] = (), depth: int = 0, *, by_token: bool = False) -> StepCost:
        """The cost as the load simulation takes it; of rounds with a drafter where there is a depth."""
        axes = [np.array(axis, dtype=np.float64) for axis in (self.batches, self.query_tokens, self.contexts)]
        batches, query_tokens, contexts = axes
        seconds = _interpolated({_key(point): point.seconds for point in self.points}, axes)
        drafting = np.zeros((batches.size, contexts.size))
        if depth:
            at = np.array([float(depth)])
            drafting = self.drafting_seconds(keys, batches, at, contexts, by_token=by_token)[:, 0]
        return StepCost(
            batches=batches,
            query_tokens=query_tokens,
            contexts=contexts,
            seconds=seconds,
            drafting_seconds=drafting,
            prefill_token_seconds=self.prefill_token_seconds + (self.drafter_prefill(keys) if depth else 0.0),
            prefill_pair_seconds=self.prefill_pair_seconds,
            prefill_step_seconds=self.prefill_floor_seconds,
        )

    def _by_drafter(self) -> dict[str, list[DraftingPoint]]:
        found: dict[str, list[DraftingPoint]] = {}
        for point in self.drafting:
            found.setdefault(point.drafter, []).append(point)
        return found

    def reaches(self, batch: float, query_tokens: float) -> bool:
        """Whether the grid covers this batch and these query tokens: nothing may be extrapolated in silence."""
        return self.batches[0] <= batch <= self.batches[-1] and query_tokens <= self.query_tokens[-1]

    @property
    def deepest(self) -> int:
        """The most draft tokens of a round that the grid covers."""
        return self.query_tokens[-1] - 1

    def quality(self) -> dict[str, Any]:
        """How good the timings are: the grid, the median spread relative to the median, outliers among timings."""
        return {
            "batches": self.batches,
            "query_tokens": self.query_tokens,
            "contexts": self.contexts,
            "relative_spread": float(np.median([p.spread_seconds / p.seconds for p in self.points])),
            "timings": sum(p.repeats for p in self.points),
            "outliers": sum(p.outliers for p in self.points),
        }


@dataclass(frozen=True, slots=True, eq=False)
class CostSurface:
    """Seconds of a round and their standard errors, [batches, query tokens], linear in between.

    Linear between neighbours, not along a fitted line: kernels change with the batch, and a step is a step.
    """

    batches: Floats
    query_tokens: Floats
    seconds: Floats
    errors: Floats

    def at_batch(self, batch: float) -> tuple[Floats, Floats]:
        """Seconds and standard errors at `query_tokens`, for one batch."""
        at, axes = (np.array([batch]), self.query_tokens), (self.batches, self.query_tokens)
        return _along_axes(self.seconds, axes, at)[0], _along_axes(self.errors, axes, at)[0]


def _check_full(keys: Sequence[tuple[int, int, int]], names: tuple[str, str, str]) -> None:
    """Raise SpecprobeError where points leave out a combination of their values, or give one twice."""
    have = set(keys)
    if len(have) < len(keys):
        raise SpecprobeError(f"cost: a combination of {', '.join(names[:2])} and {names[2]} occurs twice")
    for key in product(*(sorted(set(values)) for values in zip(*keys, strict=True))):
        if key not in have:
            missing = ", ".join(f"{name} {value}" for name, value in zip(names, key, strict=True))
            raise SpecprobeError(f"cost: no point for {missing}; every combination of the values given is needed")


def _interpolated(values: Mapping[tuple[int, int, int], float], at: Sequence[Floats]) -> Floats:
    """Values on a full grid, at every combination of `at`."""
    axes = [np.array(sorted(set(axis)), dtype=np.float64) for axis in zip(*values, strict=True)]
    grid = np.array([values[key] for key in sorted(values)]).reshape([axis.size for axis in axes])
    return _along_axes(grid, axes, at)


def _median_error(point: CostPoint | DraftingPoint) -> float:
    """The standard error of a median of n is about 1.2533 sigma / sqrt(n)."""
    return 1.2533 * point.spread_seconds / math.sqrt(point.repeats)


def _along_axes(grid: Floats, axes: Sequence[Floats], at: Sequence[Floats]) -> Floats:
    """A grid interpolated linearly at every combination of `at`, one axis after the other; constant beyond its ends."""
    for axis, (known, wanted) in enumerate(zip(axes, at, strict=True)):
        position = np.interp(wanted, known, np.arange(known.size))
        low = position.astype(np.intp)
        high = np.minimum(low + 1, known.size - 1)
        share = (position - low).reshape([-1 if other == axis else 1 for other in range(grid.ndim)])
        below, above = np.take(grid, low, axis), np.take(grid, high, axis)
        grid = below + share * (above - below)
    return grid


def _key(point: CostPoint) -> tuple[int, int, int]:
    return point.batch, point.query_tokens, point.context
