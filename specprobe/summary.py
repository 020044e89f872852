"""What is derived from one result of a run: totals, intervals, curve, estimates of lower variance, who gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance, DepthTotals, Expectation, at_depth
from specprobe.breakdown import Concentration, GroupResult, by_group, concentration
from specprobe.curve import CurveFit, fit_counts
from specprobe.interval import Interval, ratio_intervals, tokens_per_round_intervals
from specprobe.ladder import Rung, climb
from specprobe.progress import SILENT, Stages, counting, where_long
from specprobe.run import Run
from specprobe.temperature import TemperatureCurve, intervals_at, temperature_curves, within_bounds

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LowerVariance:
    """Estimates of lower variance at one depth (see `specprobe.expectation`), in place of what the text happened to be.

    `at_risk_at`, `accepted_at` [depth]: summed over prompts. `emitted`: what rounds could be expected to emit, the
    counters with A_i in place of what was accepted. `interval`: of tokens per round.
    """

    depth: int
    rounds: float
    emitted: float
    at_risk_at: tuple[float, ...]
    accepted_at: tuple[float, ...]
    interval: Interval | None

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """h_i; None where no round got there."""
        return _shares(self.accepted_at, self.at_risk_at)

    @property
    def tokens_per_round(self) -> float | None:
        """None where there was no round."""
        return self.emitted / self.rounds if self.rounds else None


@dataclass(frozen=True, slots=True, eq=False)
class ResultSummary:
    """What is derived from one result: totals and intervals of tokens per round by depth, and the curve.

    `conditional` holds conditional acceptance at each position of the largest depth, and `conditional_intervals` its
    intervals. `curve` is None for drafters that choose their own draft length: what they did not draft is missing for
    a reason, so no curve over depths is fitted. These rest on `lower_variance` where that is known. `concentration`:
    None of sums, which do not tell requests apart. `groups`: by the labels of the log.
    """

    acceptance: Acceptance
    totals: tuple[DepthTotals, ...]
    tokens_per_round: tuple[Interval | None, ...]
    conditional: tuple[float | None, ...]
    conditional_intervals: tuple[Interval | None, ...]
    curve: CurveFit | None
    lower_variance: tuple[LowerVariance, ...] | None
    concentration: Concentration | None
    groups: tuple[GroupResult, ...] = ()

    @property
    def best(self) -> DepthTotals:
        """At the depth with most tokens per round; of equals the shallowest."""
        return max(self.totals, key=lambda totals: totals.tokens_per_round or 0.0)

    @property
    def most_tokens_per_round(self) -> float:
        """At that depth; 1 where nothing was written in rounds."""
        return self.best.tokens_per_round or 1.0


def best_by_temperature(summaries: Sequence[ResultSummary]) -> list[ResultSummary]:
    """The result with most tokens per round at each temperature."""
    best: dict[float, ResultSummary] = {}
    for summary in summaries:
        held = best.setdefault(summary.acceptance.temperature, summary)
        if summary.most_tokens_per_round > held.most_tokens_per_round:
            best[summary.acceptance.temperature] = summary
    return list(best.values())


def summarize(
    acceptance: Acceptance,
    groups: Sequence[str | None] | None = None,
    *,
    is_of_sums: bool = False,
    seed: int = 0,
) -> ResultSummary:
    """Totals, 90 % intervals over prompts, and the fitted curve at the largest depth; `groups`: label by response.

    `is_of_sums`: whether responses are shares of a sum, of which none is a request that anybody sent.
    """
    depths = range(1, acceptance.depth + 1)
    at_risk, accepted = _best_known(acceptance)
    return ResultSummary(
        acceptance=acceptance,
        totals=tuple(acceptance.totals(k) for k in depths),
        tokens_per_round=intervals_at(acceptance, depths, seed=seed),
        conditional=_shares(accepted.sum(axis=0).tolist(), at_risk.sum(axis=0).tolist()),
        conditional_intervals=tuple(_conditional_intervals(at_risk, accepted, acceptance.interval_level, seed)),
        curve=fit_counts(at_risk, accepted) if acceptance.fixed_length else None,
        lower_variance=_lower_variance(acceptance, acceptance.expectation, seed) if acceptance.expectation else None,
        concentration=None if is_of_sums else concentration(acceptance),
        groups=by_group(acceptance, groups, seed=seed) if groups is not None else (),
    )


# Responses times depths of which intervals and curves may take a second or more.
MANY_CELLS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class RunSummary:
    """What is derived from a run: of each result, in its order; ladders by temperature; curves over temperature."""

    results: tuple[ResultSummary, ...]
    ladders: tuple[tuple[float, tuple[Rung, ...]], ...]
    temperature_curves: tuple[TemperatureCurve, ...]


def summarize_run(run: Run, stages: Stages = SILENT) -> RunSummary:
    """Everything that documents and reports say beyond the counts."""
    cells = sum(len(result.ids) * result.depth for result in run.results)
    results = []
    with where_long(stages, cells >= MANY_CELLS).track("intervals and curves", len(run.results)) as advance:
        told = counting(advance, len(run.results), "results")
        for result in run.results:
            groups = run.responses_at(result.temperature).groups
            results.append(summarize(result, groups, is_of_sums=run.is_of_sums))
            told()
    return RunSummary(
        results=tuple(results),
        ladders=tuple(
            (temperature, climb([result for result in run.results if result.temperature == temperature]))
            for temperature in run.temperatures
        ),
        # Where each temperature has requests of its own, more than the temperature differs.
        temperature_curves=() if run.settings.get("temperatures_from_log") else temperature_curves(run.results),
    )


def _shares(accepted: Sequence[float], at_risk: Sequence[float]) -> tuple[float | None, ...]:
    """Accepted / at risk; None where none was. Rounding of expectations may pass 1 by some billionths."""
    return tuple(min(a / w, 1.0) if w else None for a, w in zip(accepted, at_risk, strict=True))


def _best_known(acceptance: Acceptance) -> tuple[Floats, Floats]:
    """Rounds at risk and accepted by prompt and position of the largest depth, [P, K]."""
    source = acceptance.expectation or acceptance
    tables = source.at_risk_at, source.accepted_at
    at_risk, accepted = (acceptance.by_prompt(at_depth(counts, acceptance.depth)) for counts in tables)
    return at_risk.astype(np.float64), accepted.astype(np.float64)


def _conditional_intervals(at_risk: Floats, accepted: Floats, level: float, seed: int) -> list[Interval | None]:
    """Of accepted / at risk at each position, cut to [0, 1]."""
    intervals = ratio_intervals(accepted, at_risk, level=level, seed=seed, scale="linear")
    return [
        replace(interval, low=max(interval.low, 0.0), high=min(interval.high, 1.0)) if interval else None
        for interval in intervals
    ]


def _lower_variance(acceptance: Acceptance, expectation: Expectation, seed: int) -> tuple[LowerVariance, ...]:
    rounds = acceptance.by_prompt(acceptance.rounds.astype(np.float64))  # [P, K]
    gained = expectation.accepted_at.sum(axis=2) - acceptance.accepted_tokens
    emitted = acceptance.by_prompt(acceptance.emitted_tokens[:, None] + gained)
    intervals = tokens_per_round_intervals(emitted, rounds, level=acceptance.interval_level, seed=seed)
    at_risk, accepted = expectation.at_risk_at.sum(axis=0), expectation.accepted_at.sum(axis=0)
    point = [e / r if r else None for e, r in zip(emitted.sum(axis=0), rounds.sum(axis=0), strict=True)]
    return tuple(
        LowerVariance(
            depth=k + 1,
            rounds=float(rounds[:, k].sum()),
            emitted=float(emitted[:, k].sum()),
            at_risk_at=tuple(at_risk[k, : k + 1].tolist()),
            accepted_at=tuple(accepted[k, : k + 1].tolist()),
            interval=within_bounds(intervals[k], point[k], k + 1),
        )
        for k in range(acceptance.depth)
    )
