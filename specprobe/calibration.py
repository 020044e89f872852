"""Fit the few free constants of the roofline to some published cells (scales.py has the fitter and its priors).

Measured are log(speed-up) and, where a cell states it, log(step without speculation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specprobe.predict import Predictor
from specprobe.published import Cell
from specprobe.scales import Floats, Scales, fit_scales

# Standard deviations of a logarithm: a measured speed-up repeats to about 5 %, and a stated baseline holds some prefill
# and network time that is no part of a step.
MEASUREMENT_DEVIATION = 0.05
BASELINE_DEVIATION = 0.1


def calibrate(cells: Sequence[Cell], predictor: Predictor) -> Predictor:
    """`predictor` with factors fitted to the cells; unchanged without any."""
    if not cells:
        return predictor
    measured = np.log([cell.speedup for cell in cells])
    stated = [(cell, seconds) for cell in cells if (seconds := cell.measured_baseline_seconds)]
    baselines = np.log([seconds for _, seconds in stated])

    def misfits(scales: Scales) -> Floats:
        candidate = replace(predictor, scales=scales)
        predicted = np.log([candidate.speedup(cell) for cell in cells])
        steps = np.log([candidate.baseline_seconds(cell) for cell, _ in stated])
        return np.concatenate(
            [(predicted - measured) / MEASUREMENT_DEVIATION, (steps - baselines) / BASELINE_DEVIATION]
        )

    return replace(predictor, scales=fit_scales(misfits).scales)
