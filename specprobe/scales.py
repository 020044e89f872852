"""The few free constants of the roofline, as factors, and the one fitter that sets them.

A fit is least squares on logarithms: what was measured against what the roofline says under the factors, each misfit
in units of its own standard deviation, with a prior that holds each factor near 1. Few points move the factors a
little, many settle them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from specprobe.hardware import Hardware
from specprobe.roofline_constants import Overhead

# Standard deviations of log(factor): host overheads differ by a factor of two between machines and versions, achieved
# bandwidth and compute by a fifth and a third, a drafter's steps by two.
PRIOR_DEVIATIONS: Mapping[str, float] = MappingProxyType({"host": 0.5, "memory": 0.2, "compute": 0.35, "drafting": 0.7})
# `cpu` of the table of hardware is a class of machines, from one core to hundreds: a factor of ten either way is two
# standard deviations.
PRIOR_DEVIATIONS_OF_A_CLASS: Mapping[str, float] = MappingProxyType(
    {"host": 1.2, "memory": 1.2, "compute": 1.2, "drafting": 1.2}
)
CLASSES_OF_HARDWARE = ("cpu",)
# Of log(factor) either way: beyond, the points are not of what was named.
WIDEST = 4.0
MOST_EVALUATIONS = 60

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors on the constants, 1 before calibration.

    host: everything an engine adds to a step of its own; memory, compute: seconds of bytes and of operations;
    drafting: a drafter's step and what a speculative round adds.
    """

    host: float = 1.0
    memory: float = 1.0
    compute: float = 1.0
    drafting: float = 1.0

    def applied_to(self, overhead: Overhead) -> Overhead:
        """The overheads of an engine under these factors."""
        return replace(
            overhead,
            step=overhead.step * self.host,
            sequence=overhead.sequence * self.host,
            layer=overhead.layer * self.host,
            moe_layer=overhead.moe_layer * self.host,
            round=overhead.round * self.drafting,
            round_sequence=overhead.round_sequence * self.drafting,
            draft_step=overhead.draft_step * self.drafting,
            tree=overhead.tree * self.drafting,
            bandwidth_factor=overhead.bandwidth_factor / self.memory,
            compute_factor=overhead.compute_factor / self.compute,
        )


UNSCALED = Scales()


@dataclass(frozen=True, slots=True)
class ScaleFit:
    """Fitted factors, with the standard deviation of each one's logarithm after and before the points were seen."""

    scales: Scales
    deviations: Mapping[str, float]
    prior_deviations: Mapping[str, float]


def prior_deviations(hardware: Hardware) -> Mapping[str, float]:
    """How far factors may be from 1 on this hardware before anything is measured on it."""
    return PRIOR_DEVIATIONS_OF_A_CLASS if hardware.name in CLASSES_OF_HARDWARE else PRIOR_DEVIATIONS


def fit_scales(misfits: Callable[[Scales], Floats], deviations: Mapping[str, float] = PRIOR_DEVIATIONS) -> ScaleFit:
    """The factors that make the squared `misfits` (in standard deviations) and the priors' the least.

    The deviations after the fit are those of the normal approximation at the least squares: (J^T J)^-1, priors
    included.
    """
    names = list(deviations)
    prior = np.array([deviations[name] for name in names])

    def scales(logs: Floats) -> Scales:
        return Scales(**dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: Floats) -> Floats:
        return np.concatenate([misfits(scales(logs)), logs / prior])

    fitted = least_squares(residuals, np.zeros(len(names)), bounds=(-WIDEST, WIDEST), max_nfev=MOST_EVALUATIONS)
    jacobian = np.asarray(fitted.jac)
    after = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    return ScaleFit(scales(fitted.x), dict(zip(names, after.tolist(), strict=True)), dict(deviations))
