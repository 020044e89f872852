"""Curves of acceptance: how the conditional acceptance h_i runs on with the position i in a draft.

    h_i = P(draft token i is accepted | tokens 1..i-1 were)     S_i = h_1 ... h_i
    acceptance rate at depth K = (S_1 + ... + S_K) / K          mean acceptance length = 1 + S_1 + ... + S_K

A model is a name, its parameters and one function from them to h. It is fitted to counts by maximum
quasi-likelihood (`fit_counts`), or to published acceptance rates by least squares (`fit_rates`,
`fit_lengths`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import xlog1py, xlogy

from specprobe.errors import SpecprobeError
from specprobe.notices import Notice

Floats = NDArray[np.float64]

# Every fit is reported at least this deep.
REPORTED_DEPTH = 8
# Deeper than any engine drafts.
DEEPEST = 1024
# Expected counts get arbitrarily small: a position with less than one round in all identifies nothing.
MIN_ROUNDS_AT_RISK = 1.0
# Models within this of the smallest QAICc have substantial support (Burnham & Anderson 2002, section 2.6);
# the simplest of them is taken, because the curve is also used at depths beyond the data. In simulations (32
# and 200 prompts, curves fitted to K = 4) it predicted K = 8 better than the plain minimum in most cases.
INDISTINGUISHABLE = 2.0
# Published rates have three decimals (45.4 %) and lengths two (2.07): half a unit of the last one.
RATE_ROUNDING = 0.0005
LENGTH_ROUNDING = 0.005
# 1 / (a + b + 1) of a Beta(a, b) stays off 0 and 1, where a and b would be infinite or both 0.
MIN_CORRELATION = 1e-9
# Of a parameter in the unit cube; the window of the search keeps this share of its size from step to step,
# enough for it to turn into a slanting ridge.
SEARCH_PRECISION = 1e-10
SEARCH_SHRINKAGE = 0.6


@dataclass(frozen=True, slots=True)
class CurveModel:
    """A family of curves.

    `parameters(depth)` names the parameters that data down to `depth` can hold; `conditional(theta,
    positions)` maps parameters [..., k] and positions [I] (from 1) to h [..., I]; `from_unit` maps the unit
    cube [..., k] onto parameters, so that every point of the cube, edges included, is a curve with h in [0,
    1] at all positions.
    """

    name: str
    parameters: Callable[[int], tuple[str, ...]]
    conditional: Callable[[Floats, Floats], Floats]
    from_unit: Callable[[Floats], Floats]


def _geometric(theta: Floats, positions: Floats) -> Floats:
    return theta[..., :1] * np.ones_like(positions)


def _decay(theta: Floats, positions: Floats) -> Floats:
    return theta[..., :1] * theta[..., 1:2] ** (positions - 1.0)


def _beta_geometric(theta: Floats, positions: Floats) -> Floats:
    a, b = theta[..., :1], theta[..., 1:2]
    return (a + positions - 1.0) / (a + b + positions - 1.0)


def _beta_from_unit(point: Floats) -> Floats:
    """(mean, correlation) to (a, b): mean = a / (a + b), correlation = 1 / (a + b + 1)."""
    mean, correlation = point[..., :1], np.clip(point[..., 1:2], MIN_CORRELATION, 1.0 - MIN_CORRELATION)
    return np.concatenate([mean, 1.0 - mean], axis=-1) * (1.0 - correlation) / correlation


def _free(theta: Floats, positions: Floats) -> Floats:
    return theta[..., np.minimum(positions.astype(np.int64), theta.shape[-1]) - 1]


def _unchanged(point: Floats) -> Floats:
    return point


# In the order of complexity:
# - geometric: h_i = p.
# - decay: h_i = h1 d^(i-1) with d <= 1. A drafter that feeds on its own output gets worse with depth. Rising
#   curves are left to the next model: d > 1 would reach h = 1 a few positions beyond the data.
# - beta-geometric: every round has its own p ~ Beta(a, b); those that got far have a high one, so
#   h_i = (a + i - 1) / (a + b + i - 1) rises towards 1. The geometric is its limit a + b -> infinity.
# - free: every h_i by itself; beyond the data, the last one is held.
MODELS: dict[str, CurveModel] = {
    model.name: model
    for model in (
        CurveModel("geometric", lambda _: ("p",), _geometric, _unchanged),
        CurveModel("decay", lambda _: ("h1", "d"), _decay, _unchanged),
        CurveModel("beta-geometric", lambda _: ("a", "b"), _beta_geometric, _beta_from_unit),
        CurveModel("free", lambda depth: tuple(f"h{i}" for i in range(1, depth + 1)), _free, _unchanged),
    )
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One fitted model.

    `log_likelihood` and `aicc` (the QAICc; None where prompts are too few for its correction) come from
    counts; `squared_error` and `largest_error`, both of depth x rate = accepted tokens per round, from rates.
    """

    name: str
    params: Mapping[str, float]
    log_likelihood: float | None = None
    aicc: float | None = None
    squared_error: float | None = None
    largest_error: float | None = None

    def conditional(self, depth: int) -> Floats:
        """h_1..h_depth."""
        positions = np.arange(1.0, depth + 1.0)
        return MODELS[self.name].conditional(np.array(list(self.params.values())), positions)

    def survival(self, depth: int) -> Floats:
        """S_1..S_depth."""
        return np.multiply.accumulate(self.conditional(depth))

    def acceptance_rate(self, depth: int) -> float:
        """Accepted / drafted tokens where every round drafts `depth` tokens."""
        return float(self.survival(depth).sum()) / depth

    def mean_acceptance_length(self, depth: int) -> float:
        """Accepted tokens per round at `depth`, and the bonus token."""
        return 1.0 + float(self.survival(depth).sum())

    def to_json(self, depth: int) -> dict[str, Any]:
        """One entry of `models` in a `fit` document."""
        depths = range(1, depth + 1)
        return {
            "name": self.name,
            "params": dict(self.params),
            "aicc": self.aicc,
            "conditional": self.conditional(depth).tolist(),
            "survival": self.survival(depth).tolist(),
            "acceptance_rate": {str(k): self.acceptance_rate(k) for k in depths},
            "mean_acceptance_length": {str(k): self.mean_acceptance_length(k) for k in depths},
        }


@dataclass(frozen=True, slots=True)
class CurveFit:
    """All models that the data identify, and the name of the best (None where the data hold nothing).

    `depth` is the deepest position with data: all beyond is extrapolated. `dispersion` and `prompts` are None
    for fits to rates, `given` holds these {depth: acceptance rate}.
    """

    models: tuple[Curve, ...]
    best: str | None
    depth: int
    dispersion: float | None = None
    prompts: int | None = None
    given: Mapping[int, float] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()

    @property
    def reported_depth(self) -> int:
        """How deep predictions are reported."""
        return max(REPORTED_DEPTH, self.depth)

    @property
    def best_curve(self) -> Curve | None:
        """The fitted model named by `best`."""
        return next((curve for curve in self.models if curve.name == self.best), None)

    def to_json(self, max_depth: int | None = None) -> dict[str, Any]:
        """The body of a `fit` document, as deep as `max_depth`, the data and REPORTED_DEPTH ask for."""
        depth = max(self.reported_depth, max_depth or 0)
        return {
            "models": [curve.to_json(depth) for curve in self.models],
            "best": self.best,
            "depth_of_data": self.depth,
            "dispersion": self.dispersion,
            "prompts": self.prompts,
            "warnings": [{"code": notice.code, "message": notice.message} for notice in self.notices],
        }


def fit_document(fit: CurveFit, max_depth: int | None = None) -> dict[str, Any]:
    """The `specprobe.fit/1` document."""
    return {"schema": "specprobe.fit/1", **fit.to_json(max_depth)}


def fit_counts(at_risk: NDArray[Any], accepted: NDArray[Any]) -> CurveFit:
    """Fit all identified models to counts per prompt and position, integers or expectations; both [P, K].

    `at_risk[p, i]` are the rounds of prompt p that drafted position i inside the response and had accepted
    all positions before it; `accepted[p, i]` those that accepted it too. Censoring at the depth and at the
    end of the response is thus in the counts, and the log-likelihood is that of independent binomials at the
    positions:

        sum_i x_i log h_i + (n_i - x_i) log(1 - h_i)        n, x: sums over prompts

    Rounds within a prompt are correlated, so it is a quasi-likelihood, with the dispersion of `dispersion`
    and

        QAICc = -2 log L / c + 2 k + 2 k (k + 1) / (n - k - 1)

    (Burnham & Anderson 2002, section 2.5), where k counts c as a parameter and n is the number of prompts
    with data, the independent units. Best is, of the models less than INDISTINGUISHABLE above the smallest
    QAICc, the one with the fewest parameters (of two, the one with the smaller QAICc); without any QAICc, the
    fewest parameters. Models with more parameters than positions with data are left out; where nothing was
    at risk there is none.
    """
    n, x = np.asarray(at_risk, dtype=np.float64), np.asarray(accepted, dtype=np.float64)
    assert n.shape == x.shape, "at_risk and accepted have the same shape"
    assert n.ndim == 2, "counts are [prompts, positions]"
    depth = int(np.cumprod(n.sum(axis=0) >= MIN_ROUNDS_AT_RISK).sum())
    n, x = n[:, :depth], np.minimum(x, n)[:, :depth]
    prompts = int(n.any(axis=1).sum())
    scale = dispersion(n, x)
    total, hits = n.sum(axis=0), x.sum(axis=0)
    curves = []
    for model in _identified(depth):
        theta = _most_likely(model, total, hits)
        log_likelihood = float(_log_likelihood(model.conditional(theta, _positions(depth)), total, hits))
        aicc = qaicc(log_likelihood, dispersion=scale, num_parameters=len(theta), num_prompts=prompts)
        params = _named(model, theta, depth)
        curves.append(Curve(model.name, params, log_likelihood=log_likelihood, aicc=aicc))
    return CurveFit(tuple(curves), _best_by_qaicc(curves), depth, dispersion=scale, prompts=prompts)


def dispersion(at_risk: Floats, accepted: Floats) -> float:
    """The dispersion c >= 1: how much more prompts scatter than independent rounds would; arrays [P, K].

    The sum of residuals over prompts, divided by its binomial standard error, is for position i

        z_i = sum_p z_pi = sum_p (x_pi - n_pi h_i) / sqrt(n_i h_i (1 - h_i))        h_i = x_i / n_i

    with the most general model's h_i. Its binomial covariance is the identity, its cluster-robust one is V =
    P / (P - 1) sum_p z_p z_p'. c is the mean of the diagonal of V over the K - 1 directions in which the h_i
    move apart, the common level left out: the mean design effect of Rao & Scott (Annals of Statistics 12,
    1984) for the hypothesis of equal h_i. All models share the level, so how much prompts differ in it (much
    more than in the shape) says nothing on the choice between them; counting it costs most of the power. With
    one position, c is V. Held at 1 or above, as for overdispersion (McCullagh & Nelder 1989, section 4.5); 1
    where fewer than two prompts or no variance say anything.
    """
    n, x = at_risk.sum(axis=0), accepted.sum(axis=0)
    known = (x > 0.0) & (x < n)
    num_prompts = np.count_nonzero(np.any(at_risk > 0.0, axis=1))
    if num_prompts < 2 or not known.any():
        return 1.0
    n, h = n[known], x[known] / n[known]
    z = (accepted[:, known] - at_risk[:, known] * h) / np.sqrt(n * h * (1.0 - h))
    scatter = (z**2).sum()
    directions = len(n)
    if directions > 1:
        level = np.sqrt(n / (h * (1.0 - h)))
        scatter -= ((z @ level) ** 2).sum() / (level @ level)
        directions -= 1
    return max(1.0, float(scatter) / directions * num_prompts / (num_prompts - 1))


def qaicc(log_likelihood: float, *, dispersion: float, num_parameters: int, num_prompts: int) -> float | None:
    """The second-order quasi-AIC; None where prompts are too few for its correction."""
    k = num_parameters + 1
    spare = num_prompts - k - 1
    if spare <= 0:
        return None
    return -2.0 * log_likelihood / dispersion + 2.0 * k + 2.0 * k * (k + 1) / spare


def fit_rates(rates: Mapping[int, float], *, rounding: float = RATE_ROUNDING) -> CurveFit:
    """Fit curves to acceptance rates {depth: accepted / drafted} alone, by least squares over depth x rate.

    Depth x rate is the expected number accepted per round, S_1 + ... + S_depth. Models with more parameters
    than rates are left out, free also unless every depth from 1 is given. Best has the fewest parameters of
    those that reproduce every rate to `rounding` (half a unit of the last digit published: a closer fit
    follows the rounding). Where none does, the figures hold noise as well, and the smallest AIC of a normal
    error, m log(squared error / m) + 2 k for m rates, keeps free from following it.
    """
    _check_depths(rates, "rate")
    for depth, rate in rates.items():
        if not 0.0 <= rate <= 1.0:
            percent = 1.0 < rate <= 100.0
            hint = f"write {rate / 100:g} for {rate:g} %" if percent else "give accepted / drafted tokens"
            raise SpecprobeError(f"rate at depth {depth}: {rate:g} is not between 0 and 1; {hint}")
    return _fit_accepted(
        {depth: depth * rate for depth, rate in rates.items()},
        {depth: depth * rounding for depth in rates},
    )


def fit_lengths(lengths: Mapping[int, float], *, rounding: float = LENGTH_ROUNDING) -> CurveFit:
    """Fit curves to mean acceptance lengths {depth: length}, bonus token included.

    As `fit_rates` with rate = (length - 1) / depth.
    """
    _check_depths(lengths, "mean acceptance length")
    for depth, length in lengths.items():
        if not 1.0 <= length <= depth + 1.0:
            raise SpecprobeError(
                f"mean acceptance length at depth {depth}: {length:g} is not between 1 and {depth + 1}; "
                "count the bonus token (1 + accepted tokens / rounds with a draft)"
            )
    return _fit_accepted({depth: length - 1.0 for depth, length in lengths.items()}, dict.fromkeys(lengths, rounding))


def _check_depths(given: Mapping[int, float], what: str) -> None:
    if not given:
        raise SpecprobeError(f"{what}: none given; give one for each depth that was measured")
    for depth in given:
        if not 1 <= depth <= DEEPEST or depth != int(depth):
            raise SpecprobeError(f"{what} at depth {depth:.4g}: not a depth; give whole numbers from 1 to {DEEPEST}")


def _fit_accepted(accepted: Mapping[int, float], tolerance: Mapping[int, float]) -> CurveFit:
    """Fit to accepted tokens per round by depth, each known to its tolerance."""
    depths = sorted(int(depth) for depth in accepted)
    target = np.array([accepted[depth] for depth in depths], dtype=np.float64)
    allowed = np.array([tolerance[depth] for depth in depths], dtype=np.float64)
    curves, within = [], []
    for model in _identified(len(depths), free=len(depths) == depths[-1]):
        theta = _least_squares(model, depths, target)
        error = _expected_accepted(model, theta, depths) - target
        curve = Curve(
            model.name,
            _named(model, theta, depths[-1]),
            squared_error=float((error**2).sum()),
            largest_error=float(np.abs(error).max()),
        )
        curves.append(curve)
        if (np.abs(error) <= allowed + SEARCH_PRECISION).all():
            within.append(curve)
    best = (
        min(within, key=lambda curve: (len(curve.params), curve.squared_error))
        if within
        else min(curves, key=lambda curve: _gaussian_aic(curve, len(depths)))
    )
    notices = _falls(depths, target, allowed)
    if not within:
        notices.append(
            Notice(
                "rates_not_reproduced",
                f"no model reproduces the figures to their rounding; {best.name} comes nearest, "
                f"{best.largest_error:.3g} accepted tokens per round off: check that they are of one run",
            )
        )
    given = {depth: accepted[depth] / depth for depth in depths}
    return CurveFit(tuple(curves), best.name, depths[-1], given=given, notices=tuple(notices))


def _gaussian_aic(curve: Curve, num_figures: int) -> float:
    """AIC of a least-squares fit with errors; the squared error is not 0 where figures are not reproduced."""
    assert curve.squared_error is not None, "fits to rates have a squared error"
    return num_figures * float(np.log(curve.squared_error / num_figures)) + 2 * len(curve.params)


def _falls(depths: list[int], target: Floats, allowed: Floats) -> list[Notice]:
    """Warnings where fewer tokens per round are accepted at a greater depth.

    Impossible for one drafter on one stream of rounds, but published tables hold it.
    """
    points = zip(depths, target.tolist(), allowed.tolist(), strict=True)
    return [
        Notice(
            "accepted_falls_with_depth",
            f"accepted per round fall from {before:.3f} at depth {shallow} to {after:.3f} at depth {deep}; "
            "one drafter on the same traffic cannot do that: check that the runs are comparable",
        )
        for (shallow, before, slack), (deep, after, other) in pairwise(points)
        if after < before - slack - other
    ]


def _expected_accepted(model: CurveModel, theta: Floats, depths: list[int]) -> Floats:
    """S_1 + ... + S_K for each K of `depths`; theta [..., k] -> [..., len(depths)]."""
    survival = np.cumprod(model.conditional(theta, _positions(depths[-1])), axis=-1)
    accepted: Floats = np.cumsum(survival, axis=-1)
    return accepted[..., np.array(depths) - 1]


def _least_squares(model: CurveModel, depths: list[int], target: Floats) -> Floats:
    if model.name == "free":
        return _free_from_accepted(target)

    def score(points: Floats) -> Floats:
        error = _expected_accepted(model, model.from_unit(points), depths) - target
        squared: Floats = (error**2).sum(axis=-1)
        return -squared

    return model.from_unit(_search(score, len(model.parameters(depths[-1]))))


def _free_from_accepted(target: Floats) -> Floats:
    """The h_i whose accepted tokens per round are nearest to `target`, given at depths 1..K.

    With g_j = P(exactly j accepted) >= 0 the target at K is sum_j min(j, K) g_j: non-negative least squares,
    and the survivals S_i = g_i + ... + g_K cannot rise.
    """
    positions = np.arange(1, len(target) + 1)
    exactly, _ = nnls(np.minimum.outer(positions, positions).astype(np.float64), target)
    survival = np.minimum(np.cumsum(exactly[::-1])[::-1], 1.0)
    before = np.append(1.0, survival[:-1])
    h: Floats = survival / np.where(before > 0.0, before, 1.0)
    return h


def _most_likely(model: CurveModel, total: Floats, hits: Floats) -> Floats:
    """Maximum-likelihood parameters from the counts at positions 1..K; in closed form where there is one."""
    if model.name == "geometric":
        return np.array([hits.sum() / total.sum()])
    if model.name == "free":
        return hits / total
    positions = _positions(len(total))

    def score(points: Floats) -> Floats:
        return _log_likelihood(model.conditional(model.from_unit(points), positions), total, hits)

    return model.from_unit(_search(score, len(model.parameters(len(total)))))


def _log_likelihood(h: Floats, total: Floats, hits: Floats) -> Floats:
    likelihood: Floats = (xlogy(hits, h) + xlog1py(total - hits, -h)).sum(axis=-1)
    return likelihood


def _search(score: Callable[[Floats], Floats], num_dimensions: int) -> Floats:
    """The point of the unit cube with the highest score: a grid in a window that follows it and shrinks.

    Maxima on the edges, where half of these fits end, are ordinary grid points to it, and it needs no
    derivative, no start and no tolerance. Scores have one maximum here (the decay's is concave in log h1 and
    log d).
    """
    axis = np.linspace(-1.0, 1.0, 11)
    grid = np.stack(np.meshgrid(*[axis] * num_dimensions, indexing="ij"), axis=-1).reshape(-1, num_dimensions)
    center, reach = np.full(num_dimensions, 0.5), 0.5
    while reach > SEARCH_PRECISION:
        points = np.clip(center + reach * grid, 0.0, 1.0)
        center = points[np.argmax(score(points))]
        reach *= SEARCH_SHRINKAGE
    return center


def _positions(depth: int) -> Floats:
    return np.arange(1.0, depth + 1.0)


def _identified(num_data: int, *, free: bool = True) -> list[CurveModel]:
    """The models with no more parameters than positions or rates given."""
    return [
        model
        for model in MODELS.values()
        if 0 < len(model.parameters(num_data)) <= num_data and (free or model.name != "free")
    ]


def _named(model: CurveModel, theta: Floats, depth: int) -> dict[str, float]:
    return dict(zip(model.parameters(depth), theta.tolist(), strict=True))


def _best_by_qaicc(curves: list[Curve]) -> str | None:
    known = [(curve.aicc, curve) for curve in curves if curve.aicc is not None]
    smallest = min((aicc for aicc, _ in known), default=0.0)
    close = [(len(curve.params), aicc, curve) for aicc, curve in known if aicc < smallest + INDISTINGUISHABLE]
    if close:
        return min(close, key=lambda entry: entry[:2])[2].name
    return min(curves, key=lambda curve: len(curve.params)).name if curves else None
