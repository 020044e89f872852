"""`calibrate`: the roofline's few free constants fitted to a user's own timings, and the cost table that follows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from specprobe.cost import CostTable
from specprobe.cost_files import cost_document
from specprobe.documents import dump_document
from specprobe.errors import SpecprobeError
from specprobe.hardware import one_kind
from specprobe.measured_points import RoundTiming, StepTiming, Timing
from specprobe.model_shape import shape_of
from specprobe.notices import Notice, inert
from specprobe.paths import write_private
from specprobe.roofline import (
    MOST_DEVICES,
    Deployment,
    Draft,
    Drafter,
    compact,
    engine_overhead,
    find_drafter,
    round_seconds,
    step_seconds,
)
from specprobe.roofline_cost import roofline_cost
from specprobe.scales import WIDEST, Floats, ScaleFit, Scales, fit_scales, prior_of
from specprobe.shapes import quantisation_of

SCHEMA = "specprobe.calibration/1"
# What remains of log(speed-up) after a fit to one cell: 8.7 % median error over the modern rows of docs/validation.md,
# as a standard deviation of a normal error. It counts as so many points in the estimate of what this fit leaves.
CALIBRATED_DEVIATION = 0.087 / 0.6745
CALIBRATED_POINTS = 4
# Nobody's two runs agree better than this (calibration.py, MEASUREMENT_DEVIATION).
LEAST_DEVIATION = 0.05
# A factor whose uncertainty the points have not brought below this share of the prior's was not seen by them.
IDENTIFIED_BELOW = 0.7
# A point that the fit misses by more was measured on, or written down for, something else.
POOR_FIT = 0.25
# Powers of two up to what engines run by default, and contexts between which the roofline is nearly straight.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (0, 512, 2048, 8192, 32768)
MOST_DEPTH = 64
# What a run calls the methods that users' tables and engines call otherwise, in letters and digits only.
METHOD_KEYS = {
    "draftmodel": "draft",
    "assisted": "draft",
    "nextn": "mtp",
    "eagle2": "eagle",
    "peagle": "eagle3",
    "peagle3": "eagle3",
    "pld": "ngram",
    "pldhf": "ngram",
    "promptlookup": "ngram",
}
# Drafters without a model; any run may hold them.
OF_ANY_RUN = ("ngram", "suffix")
# What would tell a factor, for those that were not.
TOLD_BY = {
    "host": "steps of few sequences beside steps of many",
    "memory": "a step of one sequence at a short context and one at a long",
    "compute": "steps of many sequences, or of several query tokens",
    "drafting": "speculative runs, of few sequences and of several depths",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What was measured: the names as given, and the deployment that they mean."""

    model: str
    gpu: str
    engine: str
    deployment: Deployment


@dataclass(frozen=True, slots=True)
class FittedPoint:
    """One timing beside what the fitted constants say; both in seconds, or speed-ups where that was measured."""

    timing: Timing
    measured: float
    fitted: float

    @property
    def error(self) -> float:
        """As a share of what was measured, signed."""
        return self.fitted / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        """Under the keys of the document."""
        timing = self.timing
        kind = (
            {"query_tokens": timing.query_tokens, "quantity": "seconds"}
            if isinstance(timing, StepTiming)
            else {
                "method": timing.method,
                "drafter": timing.drafter,
                "depth": timing.depth,
                "quantity": timing.measured,
            }
        )
        place = {"where": timing.where, "batch": timing.batch, "context": timing.context}
        return {**place, **kind, "measured": self.measured, "fitted": self.fitted, "error": self.error}


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fit, each point beside it, and the cost table under the fitted constants."""

    setup: Setup
    fit: ScaleFit
    points: tuple[FittedPoint, ...]
    cost: CostTable
    notices: tuple[Notice, ...]

    @property
    def factors(self) -> dict[str, float]:
        """By name."""
        return {name: getattr(self.fit.scales, name) for name in self.fit.deviations}

    def uncertainty(self, name: str) -> tuple[float, float]:
        """One standard deviation of a factor either way, as a factor itself: after the points, and before."""
        return math.exp(self.fit.deviations[name]), math.exp(self.fit.prior_deviations[name])

    def is_identified(self, name: str) -> bool:
        """Whether the points tell this factor, or its prior does."""
        return self.fit.deviations[name] < IDENTIFIED_BELOW * self.fit.prior_deviations[name]

    def to_json(self, path: Path) -> dict[str, Any]:
        """The document of `calibrate --json`; `path` is where the cost file is."""
        return {
            "schema": SCHEMA,
            "cost_file": str(path),
            "source": self.cost.source,
            "conditions": dict(self.cost.conditions),
            "factors": [
                {
                    "name": name,
                    "factor": factor,
                    "log_deviation": self.fit.deviations[name],
                    "prior_log_deviation": self.fit.prior_deviations[name],
                    "identified": self.is_identified(name),
                }
                for name, factor in self.factors.items()
            ],
            "points": [point.to_json() for point in self.points],
            "log_deviation": self.cost.log_deviation,
            "warnings": [{"code": notice.code, "message": notice.message} for notice in self.notices],
        }


def find_setup(model: str | None, gpu: str | None, *, devices: int, dtype: str | None, engine: str) -> Setup:
    """The deployment that the options name. Raises SpecprobeError where one is missing, unknown, or does not fit."""
    if not model or not gpu:
        raise SpecprobeError(
            "calibrate: name --model and --gpu; steps of one token each do not say what a round of several costs, and "
            "the roofline of both fills that in"
        )
    if not 1 <= devices <= MOST_DEVICES:
        raise SpecprobeError(f"--tp {devices}: a number of devices from 1 to {MOST_DEVICES}")
    shape = shape_of(model)
    quantisation = quantisation_of(dtype or "", shape)
    deployment = Deployment(shape, quantisation, one_kind(gpu), devices, engine_overhead(engine))
    if not deployment.fits:
        gigabytes = shape.storage_bytes(quantisation) / 1e9
        raise SpecprobeError(
            f"--model {inert(model, 80)}: {gigabytes:.0f} GB of weights do not fit {devices} x {inert(gpu)}; "
            "name what it was measured on with --tp, --dtype and --gpu"
        )
    return Setup(model, gpu, engine, deployment)


def check_depth(depth: int) -> None:
    """Refuse a depth that no cost table has."""
    if not 1 <= depth <= MOST_DEPTH:
        raise SpecprobeError(f"--depth {depth}: from 1 to {MOST_DEPTH}")


def calibrate_points(
    timings: Sequence[Timing],
    setup: Setup,
    *,
    depth: int,
    drafters: Sequence[str] = (),
    conditions: Mapping[str, Any] | None = None,
) -> Calibration:
    """Fit the constants to the timings, and make the cost table of rounds up to `depth` draft tokens.

    `drafters`: further ones that the table is to have, as `analyze --drafter` takes them. `conditions`: what else is
    known of the measurement. Raises SpecprobeError where a drafter's shape is not known.
    """
    check_depth(depth)
    models = _models(timings, setup)
    measured = np.log([_measured(timing) for timing in timings])
    deviations = np.array([timing.deviation for timing in timings])

    def predicted(scales: Scales) -> list[float]:
        deployment = scaled(setup.deployment, scales)
        return [
            predict(deployment, t, models.get(_drafter_of(t)) if isinstance(t, RoundTiming) else None) for t in timings
        ]

    def misfits(scales: Scales) -> Floats:
        return (np.log(predicted(scales)) - measured) / deviations

    fit = fit_scales(misfits, prior_of(setup.deployment.hardware))
    points = tuple(
        FittedPoint(timing, _measured(timing), fitted)
        for timing, fitted in zip(timings, predicted(fit.scales), strict=True)
    )
    asked = [(method, name) for method, _, name in (spec.partition(":") for spec in drafters)]
    named = {**models, **{one: find_model(setup, *one) for one in asked}}
    cost = roofline_cost(
        scaled(setup.deployment, fit.scales),
        {**{name: Drafter("none") for name in OF_ANY_RUN}, **_by_key(named)},
        depth,
        sorted({*BATCHES, round(max(timing.batch for timing in timings))}),
        sorted({*CONTEXTS, round(max(timing.context for timing in timings))}),
        mean_context=float(np.median([timing.context for timing in timings])),
    )
    cost = replace(
        cost,
        source="engine" if any(timing.from_engine for timing in timings) else "roofline",
        log_deviation=log_deviation(points),
        conditions={**_conditions(setup, fit, points), **(conditions or {})},
    )
    return Calibration(setup, fit, points, cost, tuple(_notices(setup, fit, points)))


def scaled(deployment: Deployment, scales: Scales) -> Deployment:
    """The deployment under factors."""
    return replace(deployment, overhead=scales.applied_to(deployment.overhead))


def find_model(setup: Setup, method: str, name: str) -> Drafter:
    """The drafter of a method; at the target's dtype where that has more than 16 bits, as engines load it."""
    deployment = setup.deployment
    drafter = find_drafter(method, name, deployment.shape, deployment.quantisation, shape_of=shape_of)
    if drafter.shape and deployment.quantisation.bits > 16:
        return replace(drafter, quantisation=deployment.quantisation)
    return drafter


def predict(deployment: Deployment, timing: Timing, drafter: Drafter | None) -> float:
    """What the roofline says for a timing: seconds, or a speed-up where that was measured."""
    base = step_seconds(deployment, timing.batch, getattr(timing, "query_tokens", 1), timing.context)
    if isinstance(timing, StepTiming) or drafter is None:
        return base
    covered = replace(deployment, efficiencies=replace(deployment.efficiencies, ngram_coverage=timing.coverage))
    around = round_seconds(covered, drafter, Draft(timing.depth, timing.depth), timing.batch, timing.context)
    return timing.tokens_per_round * base / around if timing.measured == "speedup" else around


def log_deviation(points: Sequence[FittedPoint]) -> float:
    """What a speed-up may be off by: the misfits, beside those of calibrated fits to published tables.

    sqrt((n0 s0^2 + sum of squared log errors) / (n0 + points beyond the four factors)); without a speculative run not
    below s0, since nothing tested a round, and never below what two runs differ by.
    """
    squares = sum(math.log(point.fitted / point.measured) ** 2 for point in points)
    beyond = max(0, len(points) - len(Scales.__slots__))
    left = math.sqrt((CALIBRATED_POINTS * CALIBRATED_DEVIATION**2 + squares) / (CALIBRATED_POINTS + beyond))
    untested = not any(isinstance(point.timing, RoundTiming) for point in points)
    return max(left, CALIBRATED_DEVIATION if untested else LEAST_DEVIATION)


def write_cost(path: Path, cost: CostTable) -> None:
    """Write the cost file that `recommend --cost` takes."""
    write_private(path.absolute(), dump_document(cost_document(cost)) + "\n")


def _models(timings: Sequence[Timing], setup: Setup) -> dict[tuple[str, str], Drafter]:
    models: dict[tuple[str, str], Drafter] = {}
    for timing in timings:
        if isinstance(timing, RoundTiming) and _drafter_of(timing) not in models:
            try:
                models[_drafter_of(timing)] = find_model(setup, *_drafter_of(timing))
            except SpecprobeError as error:
                raise SpecprobeError(f"{timing.where}: drafter: {error}") from None
    return models


def _measured(timing: Timing) -> float:
    return timing.seconds if isinstance(timing, StepTiming) else timing.value


def _drafter_of(timing: RoundTiming) -> tuple[str, str]:
    return timing.method, timing.drafter


def _by_key(models: Mapping[tuple[str, str], Drafter]) -> dict[str, Drafter]:
    """Drafters by the names that runs know them by: the method, and the model where a method has several."""
    methods = {(method, name): _method_key(method) for method, name in models}
    several = {key for key in methods.values() if len({name for (_, name), k in methods.items() if k == key}) > 1}
    return {f"{key}:{pair[1]}" if key in several and pair[1] else key: models[pair] for pair, key in methods.items()}


def _method_key(method: str) -> str:
    return METHOD_KEYS.get(compact(method), compact(method))


def _conditions(setup: Setup, fit: ScaleFit, points: Sequence[FittedPoint]) -> dict[str, Any]:
    deployment = setup.deployment
    return {
        "model": setup.model,
        "gpu": deployment.hardware.name,
        "devices": deployment.devices,
        "dtype": deployment.quantisation.name,
        "engine": setup.engine,
        "points": len(points),
        "speculative_points": sum(isinstance(point.timing, RoundTiming) for point in points),
        "largest_batch_measured": max(point.timing.batch for point in points),
        "longest_context_measured": max(point.timing.context for point in points),
        "factors": {name: getattr(fit.scales, name) for name in fit.deviations},
        "factor_log_deviations": dict(fit.deviations),
        "errors": [point.error for point in points],
    }


def _notices(setup: Setup, fit: ScaleFit, points: Sequence[FittedPoint]) -> list[Notice]:
    notices: list[Notice] = []
    for point in points:
        if abs(math.log(point.fitted / point.measured)) > POOR_FIT:
            notices.append(
                Notice(
                    "poor_fit",
                    f"{inert(point.timing.where, 80)}: the fit is off by {100 * point.error:+.0f} %; check its batch, "
                    "context and unit, and that all points are of one set-up",
                )
            )
    if edge := [name for name in fit.deviations if abs(math.log(getattr(fit.scales, name))) > 0.99 * WIDEST]:
        notices.append(
            Notice(
                "factor_at_bound",
                f"{', '.join(edge)}: at the widest factor that is tried; check --model, --gpu, --tp and --dtype",
            )
        )
    achieved = scaled(setup.deployment, fit.scales).bandwidth_bytes_per_second
    peak = setup.deployment.hardware.bandwidth_bytes_per_second * setup.deployment.ways
    if achieved > 1.05 * peak:
        notices.append(
            Notice(
                "faster_than_data_sheet",
                f"steps this short need {achieved / peak:.1f} times the memory bandwidth of the data sheet; check "
                "--gpu, --tp and --dtype",
            )
        )
    return notices
