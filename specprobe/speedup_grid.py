"""Speed-up over depth and concurrency at once: where a drafter pays, at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance, drafter_label
from specprobe.cost import CostTable
from specprobe.run import ResponseRecord
from specprobe.speedup import speedup_counts, speedups


@dataclass(frozen=True, slots=True, eq=False)
class SpeedupGrid:
    """One drafter in closed form (`specprobe.speedup`): while all slots are full, every request served to its end.

    `speedup` [B, D]: at `batches` (rising) and at `first_depth` and deeper, as far as the run has counted and the cost
    table reaches.
    """

    drafter: str
    config: Mapping[str, Any]
    draft_sampling: str
    batches: tuple[int, ...]
    first_depth: int
    speedup: NDArray[np.float64]

    @property
    def label(self) -> str:
        """See `drafter_label`."""
        return drafter_label(self.drafter, self.config, self.draft_sampling)

    def to_json(self) -> dict[str, Any]:
        """For the recommendation's document."""
        return {
            "drafter": self.drafter,
            "config": dict(self.config),
            "draft_sampling": self.draft_sampling,
            "concurrency": list(self.batches),
            "first_depth": self.first_depth,
            "speedup": self.speedup.tolist(),
        }


def speedup_grid(
    acceptance: Acceptance, lengths: ResponseRecord, cost: CostTable, batches: Sequence[int]
) -> SpeedupGrid:
    """The grid of one drafter at batches that the cost table covers."""
    sums = speedup_counts(acceptance, lengths, cost).sum(axis=0)
    first = acceptance.first_depth
    found = speedups(acceptance, lengths, cost, batches)
    with np.errstate(invalid="ignore"):  # depths that were not counted have no rounds
        rows = [speedup(sums)[first - 1 : cost.deepest] for speedup in found]
    return SpeedupGrid(
        drafter=acceptance.drafter,
        config=acceptance.config,
        draft_sampling=acceptance.draft_sampling,
        batches=tuple(batches),
        first_depth=first,
        speedup=np.stack(rows),
    )


def grid_batches(cost: CostTable, concurrencies: Sequence[int]) -> list[int]:
    """The powers of two that the cost table covers, and what was asked for where it is covered."""
    first, last = cost.batches[0], cost.batches[-1]
    doubling = {1 << power for power in range(last.bit_length())}
    return sorted(batch for batch in {first, last, *doubling, *concurrencies} if first <= batch <= last)
