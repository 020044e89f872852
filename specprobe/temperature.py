"""How acceptance moves with temperature: what was measured at each temperature, and what lies between.

Between measured temperatures the accepted tokens per round (tokens per round - 1) are interpolated on the log scale,
by a cubic that is monotone wherever the measurements are (Fritsch & Carlson 1980, as scipy's PchipInterpolator). It
never leaves the range of its two neighbours. How far off it is, is measured too: each inner temperature is left
out and interpolated from the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from specprobe.acceptance import Acceptance, drafter_label
from specprobe.interval import Interval, interval_json, tokens_per_round_intervals

# Grid points per unit of temperature: steps of 0.05.
STEPS_PER_UNIT = 20

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Anchor:
    """What was measured at one temperature; `interval` is that of tokens per round, over prompts."""

    temperature: float
    tokens_per_round: float
    acceptance_rate: float | None
    interval: Interval | None

    def to_json(self) -> dict[str, Any]:
        """For the run's document."""
        return {
            "temperature": self.temperature,
            "tokens_per_round": self.tokens_per_round,
            "acceptance_rate": self.acceptance_rate,
            "interval": interval_json(self.interval),
        }


@dataclass(frozen=True, slots=True)
class DensePoint:
    """One temperature of the grid; `interpolated` is False at an anchor, where the values are those measured."""

    temperature: float
    tokens_per_round: float
    acceptance_rate: float | None
    interpolated: bool

    def to_json(self) -> dict[str, Any]:
        """For the run's document."""
        return {
            "temperature": self.temperature,
            "tokens_per_round": self.tokens_per_round,
            "acceptance_rate": self.acceptance_rate,
            "interpolated": self.interpolated,
        }


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Tokens per round at one anchor: interpolated from all others, and measured."""

    temperature: float
    interpolated: float
    measured: float

    @property
    def relative_error(self) -> float:
        """As a fraction of what was measured; above 0 where interpolation promises too much."""
        return self.interpolated / self.measured - 1

    @property
    def gain_error(self) -> float | None:
        """As a fraction of the gain that was measured, tokens per round above 1; None where there was none."""
        return (self.interpolated - self.measured) / (self.measured - 1) if self.measured > 1 else None

    def to_json(self) -> dict[str, Any]:
        """For the run's document."""
        return {
            "temperature": self.temperature,
            "interpolated": self.interpolated,
            "measured": self.measured,
            "relative_error": self.relative_error,
            "gain_error": self.gain_error,
        }


@dataclass(frozen=True, slots=True)
class TemperatureCurve:
    """One drafter at one depth, by temperature: at least two anchors, ascending."""

    drafter: str
    config: Mapping[str, Any]
    draft_sampling: str
    depth: int
    anchors: tuple[Anchor, ...]

    @property
    def label(self) -> str:
        """See `drafter_label`."""
        return drafter_label(self.drafter, self.config, self.draft_sampling)

    @property
    def dense(self) -> tuple[DensePoint, ...]:
        """All multiples of 0.05 from the smallest to the largest anchor, and the anchors themselves."""
        measured = {anchor.temperature: anchor for anchor in self.anchors}
        temperatures = _grid(list(measured))
        tokens_per_round = interpolate_tokens_per_round(self.anchors, temperatures)
        rates = _interpolate_rates(self.anchors, temperatures)
        return tuple(
            DensePoint(t, measured[t].tokens_per_round, measured[t].acceptance_rate, interpolated=False)
            if t in measured
            else DensePoint(t, tokens, rate, interpolated=True)
            for t, tokens, rate in zip(temperatures, tokens_per_round, rates, strict=True)
        )

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Every inner anchor against what the others say of it; empty with two anchors, which say nothing of it."""
        left_out = []
        for number, anchor in list(enumerate(self.anchors))[1:-1]:
            others = self.anchors[:number] + self.anchors[number + 1 :]
            (interpolated,) = interpolate_tokens_per_round(others, [anchor.temperature])
            left_out.append(LeftOut(anchor.temperature, interpolated, anchor.tokens_per_round))
        return tuple(left_out)

    def to_json(self) -> dict[str, Any]:
        """For the run's document; `left_out` is null where the error of interpolation is not known."""
        return {
            "drafter": self.drafter,
            "label": self.label,
            "config": dict(self.config),
            "draft_sampling": self.draft_sampling,
            "depth": self.depth,
            "anchors": [anchor.to_json() for anchor in self.anchors],
            "dense": [point.to_json() for point in self.dense],
            "left_out": [left_out.to_json() for left_out in self.left_out] or None,
        }


def temperature_curves(results: Sequence[Acceptance], *, seed: int = 0) -> tuple[TemperatureCurve, ...]:
    """The curves of all drafters and ways of drafting at every depth, in the order of `results`, then by depth.

    Results of one run; those of one drafter differ in temperature only. At temperature 0 a sampled draft is the greedy
    one, so the greedy result there belongs to the sampled curve too.
    """
    curves: list[TemperatureCurve] = []
    for first in _distinct(results):
        group = {result.temperature: result for result in results if _belongs(result, first)}
        if len(group) < 2:
            continue
        by_temperature = [_anchors(group[temperature], seed) for temperature in sorted(group)]
        for depth, at_depth in enumerate(zip(*by_temperature, strict=True), 1):
            anchors = tuple(anchor for anchor in at_depth if anchor is not None)
            if len(anchors) > 1:
                curves.append(TemperatureCurve(first.drafter, first.config, first.draft_sampling, depth, anchors))
    return tuple(curves)


def interpolation_error(curves: Sequence[TemperatureCurve]) -> tuple[float, float] | None:
    """The median and the largest size of all left-out errors of the gain; None where there is none, so not known."""
    found = (left_out.gain_error for curve in curves for left_out in curve.left_out)
    errors = [abs(error) for error in found if error is not None]
    return (float(np.median(errors)), max(errors)) if errors else None


def break_even_temperatures(points: Sequence[tuple[float, float]]) -> list[float]:
    """The temperatures at which the speed-up crosses or touches 1, ascending.

    `points`: (temperature, best speed-up) pairs. Between them log(speed-up) is taken as linear.
    """
    logs = [(temperature, math.log(speedup)) for temperature, speedup in sorted(points)]
    crossings = [temperature for temperature, log in logs if log == 0]
    for (before, log_before), (after, log_after) in pairwise(logs):
        if log_before * log_after < 0:
            crossings.append(before + (after - before) * log_before / (log_before - log_after))
    return sorted(crossings)


def intervals_at(acceptance: Acceptance, depths: Sequence[int], *, seed: int = 0) -> tuple[Interval | None, ...]:
    """90 % intervals of tokens per round over prompts at these depths; None with fewer than two prompts."""
    rounds = acceptance.by_prompt(acceptance.rounds[:, [depth - 1 for depth in depths]]).astype(np.float64)
    emitted = np.broadcast_to(acceptance.by_prompt(acceptance.emitted_tokens)[:, None], rounds.shape)
    intervals = tokens_per_round_intervals(emitted, rounds, level=acceptance.interval_level, seed=seed)
    return tuple(
        within_bounds(interval, acceptance.totals(depth).tokens_per_round, depth)
        for interval, depth in zip(intervals, depths, strict=True)
    )


def within_bounds(interval: Interval | None, point: float | None, depth: int) -> Interval | None:
    """No round emits more than its drafts and the bonus token; and an interval of no width is its point."""
    if interval is None or point is None:
        return None
    high = min(interval.high, depth + 1.0)
    return replace(interval, low=min(interval.low, point), high=max(high, point))


def interpolate_tokens_per_round(anchors: Sequence[Anchor], temperatures: Sequence[float]) -> list[float]:
    """Tokens per round at temperatures between ascending anchors.

    Monotone cubic in the log of the accepted tokens per round, which is linear through two anchors; where any anchor
    has nothing accepted there is no log, and tokens per round itself is interpolated linearly.
    """
    known = [anchor.temperature for anchor in anchors]
    tokens_per_round = np.array([anchor.tokens_per_round for anchor in anchors])
    if tokens_per_round.min() <= 1:
        return np.interp(temperatures, known, tokens_per_round).tolist()
    return (1 + np.exp(_monotone_cubic(known, np.log(tokens_per_round - 1), temperatures))).tolist()


def _interpolate_rates(anchors: Sequence[Anchor], temperatures: Sequence[float]) -> list[float | None]:
    """Acceptance rates at temperatures between anchors; unknown where an anchor drafted nothing."""
    rates = [anchor.acceptance_rate for anchor in anchors if anchor.acceptance_rate is not None]
    if len(rates) < len(anchors):
        return [None] * len(temperatures)
    return _monotone_cubic([anchor.temperature for anchor in anchors], np.array(rates), temperatures).tolist()


def _monotone_cubic(known: Sequence[float], values: Floats, wanted: Sequence[float]) -> Floats:
    """Linear through two points."""
    return np.asarray(PchipInterpolator(np.array(known), values)(np.array(wanted)), dtype=np.float64)


def _grid(temperatures: Sequence[float]) -> list[float]:
    """`temperatures` and the multiples of 0.05 between them. k / 20 is the same float as its decimal, say 0.15."""
    low, high = min(temperatures), max(temperatures)
    steps = range(math.ceil(low * STEPS_PER_UNIT), math.floor(high * STEPS_PER_UNIT) + 1)
    inner = {step / STEPS_PER_UNIT for step in steps if low < step / STEPS_PER_UNIT < high}
    return sorted(inner | set(temperatures))


def _distinct(results: Sequence[Acceptance]) -> list[Acceptance]:
    """The first result of each drafter, config and way of drafting; configs may be nested, so they are compared."""
    found: list[Acceptance] = []
    for result in results:
        if not any(_same_drafter(result, one) and result.draft_sampling == one.draft_sampling for one in found):
            found.append(result)
    return found


def _belongs(result: Acceptance, first: Acceptance) -> bool:
    """Whether a result is an anchor of the curve that `first` begins."""
    return _same_drafter(result, first) and (
        result.draft_sampling == first.draft_sampling or (result.temperature == 0 and result.draft_sampling == "greedy")
    )


def _same_drafter(one: Acceptance, other: Acceptance) -> bool:
    return (one.drafter, one.config) == (other.drafter, other.config)


def _anchors(result: Acceptance, seed: int) -> list[Anchor | None]:
    """By depth; None where there is no round."""
    depths = range(1, result.depth + 1)
    anchors: list[Anchor | None] = []
    for depth, interval in zip(depths, intervals_at(result, depths, seed=seed), strict=True):
        totals = result.totals(depth)
        tokens_per_round = totals.tokens_per_round
        anchors.append(
            None
            if tokens_per_round is None
            else Anchor(result.temperature, tokens_per_round, totals.acceptance_rate, interval)
        )
    return anchors
