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
            prefill_compute_factor=overhead.prefill_compute_factor / self.compute,
        )


UNSCALED = Scales()


@dataclass(frozen=True, slots=True)
class Prior:
    """Standard deviations of log(factor), each factor's own; `shared` is one more that the factors in `together` have
    in common.
    """

    deviations: Mapping[str, float]
    shared: float = 0.0
    together: tuple[str, ...] = ()

    def covariance(self) -> Floats:
        """Of the logarithms, in the order of `deviations`."""
        moves = np.array([name in self.together for name in self.deviations], dtype=np.float64)
        own = np.diag(np.square(list(self.deviations.values())))
        return own + self.shared**2 * np.outer(moves, moves)


# Host overheads differ by a factor of two between machines and versions, achieved bandwidth and compute by a fifth and
# a third, a drafter's steps by two.
PRIOR = Prior(MappingProxyType({"host": 0.5, "memory": 0.2, "compute": 0.35, "drafting": 0.7}))
# `cpu` of the table of hardware is a class of machines, from one core to hundreds. Its size moves all of a step
# together: a factor of ten either way is two standard deviations; beside it, bandwidth and compute of processors
# differ by more than those of accelerators, whose data sheets say what they are.
PRIOR_OF_A_CLASS = Prior(
    MappingProxyType({"host": 0.5, "memory": 0.5, "compute": 0.5, "drafting": 0.7}),
    shared=1.2,
    together=("host", "memory", "compute"),
)
CLASSES_OF_HARDWARE = ("cpu",)


@dataclass(frozen=True, slots=True)
class ScaleFit:
    """Fitted factors, with the standard deviation of each one's logarithm after and before the points were seen."""

    scales: Scales
    deviations: Mapping[str, float]
    prior_deviations: Mapping[str, float]


def prior_of(hardware: Hardware) -> Prior:
    """What is known of the factors on this hardware before anything is measured on it."""
    return PRIOR_OF_A_CLASS if hardware.name in CLASSES_OF_HARDWARE else PRIOR


def fit_scales(misfits: Callable[[Scales], Floats], prior: Prior = PRIOR) -> ScaleFit:
    """The factors that make the squared `misfits` (in standard deviations) and the prior's the least.

    The deviations after the fit are those of the normal approximation at the least squares: (J^T J)^-1, the prior
    included.
    """
    names = list(prior.deviations)
    whiten = np.linalg.inv(np.linalg.cholesky(prior.covariance()))

    def scales(logs: Floats) -> Scales:
        return Scales(**dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: Floats) -> Floats:
        return np.concatenate([misfits(scales(logs)), whiten @ logs])

    fitted = least_squares(residuals, np.zeros(len(names)), bounds=(-WIDEST, WIDEST), max_nfev=MOST_EVALUATIONS)
    jacobian = np.asarray(fitted.jac)
    after = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    before = np.sqrt(np.diag(prior.covariance()))
    return ScaleFit(
        scales(fitted.x),
        dict(zip(names, after.tolist(), strict=True)),
        dict(zip(names, before.tolist(), strict=True)),
    )
