"""Cost: what a round costs, as a function of batch, query tokens per sequence, and context.

A `CostTable` holds points and interpolates between them; where they come from (`measured` on this device, or a
`file`) is part of it and of every result made with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specprobe.documents import read_document
from specprobe.errors import SpecprobeError

SCHEMA = "specprobe.cost/1"
# A round below a nanosecond, or above a day, is a slip of units.
SHORTEST_SECONDS, LONGEST_SECONDS = 1e-9, 86_400.0
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CostPoint:
    """The time of one forward pass of the target over `batch` sequences.

    `query_tokens`: new tokens per sequence (1 + drafted in a round); `context`: tokens already in the KV cache of
    each. `seconds`: the median of `repeats` timings; `spread_seconds`: their scaled median absolute deviation
    (1.4826 MAD, the standard deviation of a normal sample); `outliers`: timings beyond 5 spreads of the median.
    """

    batch: int
    query_tokens: int
    context: int
    seconds: float
    spread_seconds: float = 0.0
    repeats: int = 1
    outliers: int = 0


@dataclass(frozen=True, slots=True)
class CostTable:
    """Round times on a full grid of batch x query tokens x context, linear in between.

    `drafter_seconds` maps a drafter's name to its seconds per sequence: of a round, for a model of each drafted
    token. `prefill_token_seconds` is the time per prompt token of a prefill. `conditions` says on what and how it was
    measured. Raises SpecprobeError where a combination of the grid is missing or a time is not positive.
    """

    source: Literal["measured", "file"]
    points: tuple[CostPoint, ...]
    drafter_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    prefill_token_seconds: float = 0.0
    conditions: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if not self.points:
            raise SpecprobeError("cost: no points; give at least one batch, query_tokens, context and seconds")
        for point in self.points:
            if min(point.batch, point.query_tokens) < 1 or point.context < 0:
                raise SpecprobeError(f"cost: {point}: batch and query_tokens start at 1, context at 0")
            if not SHORTEST_SECONDS <= point.seconds <= LONGEST_SECONDS:
                raise SpecprobeError(f"cost: {point}: seconds must be positive and those of a round")
        have = {(p.batch, p.query_tokens, p.context) for p in self.points}
        if len(have) < len(self.points):
            raise SpecprobeError("cost: a combination of batch, query_tokens and context occurs twice")
        for batch, query, context in product(self.batches, self.query_tokens, self.contexts):
            if (batch, query, context) not in have:
                raise SpecprobeError(
                    f"cost: no point for batch {batch}, query_tokens {query}, context {context}; "
                    "every combination of the values given is needed"
                )

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
        return CostSurface(
            np.array(self.batches, dtype=np.float64),
            np.array(self.query_tokens, dtype=np.float64),
            self._surface({_key(p): p.seconds for p in self.points}, context),
            # The standard error of a median of n is about 1.2533 sigma / sqrt(n).
            self._surface({_key(p): 1.2533 * p.spread_seconds / math.sqrt(p.repeats) for p in self.points}, context),
        )

    def _surface(self, values: Mapping[tuple[int, int, int], float], context: float) -> Floats:
        """[batches, query tokens], linear between contexts."""
        shape = len(self.batches), len(self.query_tokens), len(self.contexts)
        grid = np.array([values[key] for key in product(self.batches, self.query_tokens, self.contexts)]).reshape(shape)
        position = float(np.interp(context, self.contexts, np.arange(shape[2])))
        low = int(position)
        high = min(low + 1, shape[2] - 1)
        return grid[..., low] + (position - low) * (grid[..., high] - grid[..., low])

    def reaches(self, batch: float, query_tokens: float) -> bool:
        """Whether the grid covers this batch and these query tokens: nothing may be extrapolated in silence."""
        return self.batches[0] <= batch <= self.batches[-1] and query_tokens <= self.query_tokens[-1]

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

    def to_json(self) -> dict[str, Any]:
        """The document of a cost file."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "conditions": dict(self.conditions),
            "prefill_token_seconds": self.prefill_token_seconds,
            "drafter_seconds": dict(self.drafter_seconds),
            "points": [
                {
                    "batch": p.batch,
                    "query_tokens": p.query_tokens,
                    "context": p.context,
                    "seconds": p.seconds,
                    "spread_seconds": p.spread_seconds,
                    "repeats": p.repeats,
                    "outliers": p.outliers,
                }
                for p in self.points
            ],
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
        position = float(np.interp(batch, self.batches, np.arange(self.batches.size)))
        low = int(position)
        high = min(low + 1, self.batches.size - 1)
        share = position - low
        seconds = self.seconds[low] + share * (self.seconds[high] - self.seconds[low])
        return seconds, self.errors[low] + share * (self.errors[high] - self.errors[low])


def read_cost_file(path: Path) -> CostTable:
    """The cost table of a JSON file (docs/method.md, "Cost files"); its source is `file`, whoever wrote it."""
    document = read_document(path, SCHEMA, "see 'Cost files' in docs/method.md")
    try:
        return _cost_from_json(document)
    except SpecprobeError as error:
        raise SpecprobeError(f"{path}: {error}") from None


def _cost_from_json(document: Mapping[str, Any]) -> CostTable:
    rows = document.get("points")
    if not isinstance(rows, list):
        raise SpecprobeError("cost: 'points' must be a list")
    drafters = document.get("drafter_seconds") or {}
    if not isinstance(drafters, dict):
        raise SpecprobeError("cost: 'drafter_seconds' must map a drafter's name to seconds")
    conditions = document.get("conditions") or {}
    if not isinstance(conditions, dict):
        raise SpecprobeError("cost: 'conditions' must be an object")
    return CostTable(
        source="file",
        points=tuple(read_point(row, number) for number, row in enumerate(rows, 1)),
        drafter_seconds={
            str(name): read_seconds(value, f"drafter_seconds[{name!r}]") for name, value in drafters.items()
        },
        prefill_token_seconds=read_seconds(document.get("prefill_token_seconds", 0.0), "prefill_token_seconds"),
        conditions=conditions,
    )


def read_point(row: Any, number: int) -> CostPoint:
    """One point of a cost file; raises SpecprobeError naming the `number` of the point and what is wrong."""
    if not isinstance(row, dict):
        raise SpecprobeError(f"cost: point {number} is not an object")
    seconds = read_seconds(row.get("seconds"), f"point {number}: 'seconds'")
    if seconds < SHORTEST_SECONDS:
        raise SpecprobeError(f"cost: point {number}: 'seconds' must be positive, and those of a round")
    return CostPoint(
        batch=_whole(row.get("batch"), f"point {number}: 'batch'"),
        query_tokens=_whole(row.get("query_tokens"), f"point {number}: 'query_tokens'"),
        context=_whole(row.get("context"), f"point {number}: 'context'"),
        seconds=seconds,
        spread_seconds=read_seconds(row.get("spread_seconds", 0.0), f"point {number}: 'spread_seconds'"),
        repeats=max(1, _whole(row.get("repeats", 1), f"point {number}: 'repeats'")),
        outliers=_whole(row.get("outliers", 0), f"point {number}: 'outliers'"),
    )


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise SpecprobeError(f"cost: {what} must be a whole number that is not negative")
    return value


def read_seconds(value: Any, what: str) -> float:
    """A number that can be a time in seconds: from 0, and not so large that arithmetic on it overflows."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_SECONDS:
        raise SpecprobeError(f"cost: {what} must be a number from 0 to {LONGEST_SECONDS:g}")
    return float(value)


def _key(point: CostPoint) -> tuple[int, int, int]:
    return point.batch, point.query_tokens, point.context
