"""The speed-up that the roofline predicts for a published cell.

    speed-up = acceptance length x T_base / T_round

and, where the figure counts prefill and the lengths are known, the ratio of the device time of whole requests:

    (prefill + output x T_base / batch) / (prefill with the drafter's + output / acceptance length x T_round / batch)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specprobe.published import Cell
from specprobe.roofline import Deployment, prefill_seconds, round_seconds, step_seconds
from specprobe.roofline_constants import EFFICIENCIES, Efficiencies
from specprobe.scales import UNSCALED, Scales

# How many devices an anchored row may have run on; the one whose baselines are nearest to the measured ones is taken.
DEVICE_COUNTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts cells under given constants."""

    efficiencies: Efficiencies = EFFICIENCIES
    scales: Scales = UNSCALED
    overhead_factors: tuple[tuple[str, float], ...] = ()
    """Factors on single fields of every engine's overhead, by name: for perturbation."""

    def speedup(self, cell: Cell) -> float:
        """Predicted for one cell."""
        deployment = self.deployment(cell)
        context = self._context(cell)
        base = step_seconds(deployment, cell.batch, 1, context)
        around = round_seconds(deployment, cell.drafter, cell.draft, cell.batch, context)
        if cell.devices is None and (measured := cell.measured_baseline_seconds):
            # What the model misses of a plain step, the round has too: the same host, the same pass over the weights.
            base, around = measured, max(around + measured - base, 0.5 * around)
        if not (cell.includes_prefill and cell.prompt_tokens and cell.output_tokens):
            return cell.acceptance_length * base / around
        prefill = prefill_seconds(deployment, cell.prompt_tokens)
        with_drafter = prefill
        if cell.drafter.shape and cell.drafter.quantisation:
            with_drafter += prefill_seconds(
                deployment.with_shape(cell.drafter.shape, cell.drafter.quantisation), cell.prompt_tokens
            )
        plain = prefill + cell.output_tokens * base / cell.batch
        return plain / (with_drafter + cell.output_tokens / cell.acceptance_length * around / cell.batch)

    def baseline_seconds(self, cell: Cell) -> float:
        """A step without speculation, as predicted even where the row states its own."""
        return step_seconds(self.deployment(cell), cell.batch, 1, self._context(cell))

    def deployment(self, cell: Cell) -> Deployment:
        """The target as the row served it; of an anchored row on the devices that `anchor` found."""
        return self._deployment(cell, cell.devices or cell.likely_devices or self._likely_devices([cell]))

    def anchor(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells, those without a number of devices with the likeliest one for all rows of their set-up."""
        setups: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
        for cell in cells:
            if cell.devices is None:
                setups[cell.setup].append(cell)
        likely = {setup: self._likely_devices(rows) for setup, rows in setups.items()}
        return [replace(cell, likely_devices=likely[cell.setup]) if cell.devices is None else cell for cell in cells]

    def _likely_devices(self, cells: Sequence[Cell]) -> int:
        """The number whose steps without speculation are nearest to the measured ones, and that holds the weights."""

        def mismatch(count: int) -> tuple[bool, float]:
            deployments = [self._deployment(cell, count) for cell in cells]
            steps = [
                step_seconds(deployment, cell.batch, 1, self._context(cell))
                for deployment, cell in zip(deployments, cells, strict=True)
            ]
            measured = [cell.measured_baseline_seconds or 1.0 for cell in cells]
            return not deployments[0].fits, float(np.median(np.abs(np.log(np.divide(steps, measured)))))

        return min(DEVICE_COUNTS, key=mismatch)

    def _deployment(self, cell: Cell, devices: int) -> Deployment:
        overhead = cell.overhead
        overhead = replace(overhead, **{name: getattr(overhead, name) * by for name, by in self.overhead_factors})
        overhead = self.scales.applied_to(overhead)
        return Deployment(cell.shape, cell.quantisation, cell.hardware, devices, overhead, self.efficiencies)

    def _context(self, cell: Cell) -> float:
        """KV tokens of a sequence halfway through its answer."""
        if cell.prompt_tokens is None and cell.output_tokens is None:
            return self.efficiencies.default_context
        return (cell.prompt_tokens or 0.0) + (cell.output_tokens or 0.0) / 2
