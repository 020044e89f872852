"""Fit the few free constants of the roofline to some measured cells.

Least squares on log(speed-up), and on log(step without speculation) where a cell states its own, with a prior that
holds each factor near 1: one cell moves the constants a little, eight settle them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from specprobe.predict import Predictor, Scales
from specprobe.published import Cell

# Standard deviations of log(factor): host overheads differ by a factor of two between machines and versions, achieved
# bandwidth and compute by a fifth and a third; a measured speed-up repeats to about 5 %, and a stated baseline holds
# some prefill and network time that is no part of a step.
PRIOR_DEVIATIONS = {"host": 0.5, "memory": 0.2, "compute": 0.35, "drafting": 0.7}
MEASUREMENT_DEVIATION = 0.05
BASELINE_DEVIATION = 0.1


def calibrate(cells: Sequence[Cell], predictor: Predictor) -> Predictor:
    """`predictor` with factors fitted to the cells; unchanged without any."""
    if not cells:
        return predictor
    names = list(PRIOR_DEVIATIONS)
    deviations = np.array([PRIOR_DEVIATIONS[name] for name in names])
    measured = np.log([cell.speedup for cell in cells])
    stated = [(cell, seconds) for cell in cells if (seconds := cell.measured_baseline_seconds)]
    baselines = np.log([seconds for _, seconds in stated])

    def with_factors(logs: NDArray[np.float64]) -> Predictor:
        return replace(predictor, scales=Scales(**dict(zip(names, np.exp(logs).tolist(), strict=True))))

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        candidate = with_factors(logs)
        predicted = np.log([candidate.speedup(cell) for cell in cells])
        steps = np.log([candidate.baseline_seconds(cell) for cell, _ in stated])
        return np.concatenate(
            [
                (predicted - measured) / MEASUREMENT_DEVIATION,
                (steps - baselines) / BASELINE_DEVIATION,
                logs / deviations,
            ]
        )

    fitted = least_squares(residuals, np.zeros(len(names)), bounds=(-4, 4), max_nfev=60)
    return with_factors(fitted.x)
