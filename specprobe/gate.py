"""`gate`: thresholds that a run must meet, decided on intervals, so that noise neither passes nor fails one.

A minimum passes where the lower end of the 90 % interval is at or above the threshold, and fails where the upper end
is below it; a maximum the other way round. In between, and with fewer than 16 prompts, the sample cannot say: the gate
is undecided, which counts as failed unless the user allows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from specprobe.acceptance import Acceptance, drafter_label
from specprobe.arrivals import Arrivals
from specprobe.compare import POWER, check_comparable, contrast_results
from specprobe.documents import read_own_document
from specprobe.errors import SpecprobeError
from specprobe.interval import LEVEL, MIN_PROMPTS, Interval, tokens_per_round_intervals
from specprobe.notices import inert
from specprobe.pairing import Difference, pair_prompts, pair_results, pair_temperatures
from specprobe.progress import SILENT, Stages
from specprobe.recommend import OVERLOADED
from specprobe.recommendation_document import SCHEMA as RECOMMENDATION_SCHEMA
from specprobe.result_choice import Choice, ChosenResult, choose_result
from specprobe.run import ENGINE_SUMS, Run
from specprobe.run_document import load_run
from specprobe.temperature import intervals_at, within_bounds

SCHEMA = "specprobe.gate/1"

Verdict = Literal["passed", "failed", "undecided"]


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What a run must meet; None leaves a gate out. `choice`: the result that is held against it.

    `max_regression`: of tokens per round against `baseline`, a fraction. `allow_undecided`: what the sample cannot
    decide passes. `force`: a baseline that is not comparable is compared all the same.
    """

    min_acceptance_length: float | None = None
    min_tokens_per_round: float | None = None
    min_speedup: float | None = None
    max_regression: float | None = None
    baseline: Path | None = None
    recommendation: Path | None = None
    choice: Choice = field(default_factory=Choice)
    allow_undecided: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        thresholds = (self.min_acceptance_length, self.min_tokens_per_round, self.min_speedup, self.max_regression)
        if all(threshold is None for threshold in thresholds):
            raise SpecprobeError(
                "gate: no threshold; give --min-acceptance-length, --min-tokens-per-round, --min-speedup or "
                "--max-regression, or name them in specprobe.toml"
            )
        for option, threshold in zip(
            ("--min-acceptance-length", "--min-tokens-per-round", "--min-speedup"), thresholds, strict=False
        ):
            if threshold is not None and not (math.isfinite(threshold) and threshold > 0):
                raise SpecprobeError(f"{option} {threshold:g}: must be a number above 0")
        if self.max_regression is not None and not 0 <= self.max_regression < 1:
            raise SpecprobeError(f"--max-regression {self.max_regression:g}: must be from 0 to below 1, or 0% to 99%")
        for threshold, option, file, needed in (
            (self.max_regression, "--max-regression", self.baseline, "--baseline, a run to hold this one against"),
            (self.min_speedup, "--min-speedup", self.recommendation, "--recommendation, what `recommend --json` wrote"),
        ):
            if threshold is not None and file is None:
                raise SpecprobeError(f"{option}: needs {needed}")
            if threshold is None and file is not None:
                raise SpecprobeError(f"{needed.partition(',')[0]}: is for {option}; give that, or leave it out")


@dataclass(frozen=True, slots=True)
class Measured:
    """The figure of a gate: over so many prompts, and None where it is not defined.

    `log_deviation`: the part of its error that no prompts lessen, a standard deviation of the logarithm. `level`: that
    the interval was made at (see `Acceptance`).
    """

    point: float | None
    low: float | None
    high: float | None
    prompts: int
    log_deviation: float = 0.0
    level: float = LEVEL


@dataclass(frozen=True, slots=True)
class Gate:
    """One threshold and what was measured. `at`: where there are several of a name, such as `concurrency 8`.

    `of`: the drafter and depth that a recommendation's speed-up is of, which need not be the result of the other gates.
    `is_maximum`: whether the figure must stay below the threshold. `blocked`: why nothing can be decided, whatever the
    figures say.
    """

    name: str
    threshold: float
    measured: Measured
    is_maximum: bool = False
    at: str | None = None
    of: str | None = None
    blocked: str | None = None
    allow_undecided: bool = False

    @property
    def verdict(self) -> Verdict:
        """As the interval says; a figure that is not defined fails."""
        low, high = self.measured.low, self.measured.high
        if self.measured.point is None:
            return "failed"
        if self.blocked or self.measured.prompts < MIN_PROMPTS or low is None or high is None:
            return "undecided"
        if self.is_maximum:
            low, high = -high, -low
        threshold = -self.threshold if self.is_maximum else self.threshold
        if low >= threshold:
            return "passed"
        return "failed" if high < threshold else "undecided"

    @property
    def passed(self) -> bool:
        """What the exit code goes by."""
        return self.verdict == "passed" or (self.verdict == "undecided" and self.allow_undecided)

    @property
    def enough_data(self) -> bool:
        """Whether the sample decides."""
        return self.verdict != "undecided" and self.measured.point is not None

    @property
    def prompts_needed(self) -> int | None:
        """About how many prompts like these would decide 9 times out of 10, were the true figure the one measured.

        The distance from the point to the end of the interval on the threshold's side, L standard errors, falls with
        the root of the number of prompts; with z_POWER standard errors more it must fit between point and threshold.
        None where the sample decides, and where no number of prompts could: at the threshold itself, or where the
        source of a speed-up's cost errs by more than that.
        """
        measured = self.measured
        if self.enough_data or self.blocked or measured.point is None or measured.low is None or measured.high is None:
            return None
        gap = abs(self.threshold - measured.point)
        end = measured.low if self.threshold < measured.point else measured.high
        sampled = abs(end - measured.point)
        tail = float(ndtri((1 + measured.level) / 2))
        if measured.log_deviation:
            gap = abs(math.log(self.threshold / measured.point))
            sampled, gap = _without_fixed_error(abs(math.log(end / measured.point)), gap, tail * measured.log_deviation)
        if gap <= 0:
            return None
        needed = math.ceil(measured.prompts * (_power_factor(tail) * sampled / gap) ** 2)
        return max(needed, MIN_PROMPTS)

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "name": self.name,
            "at": self.at,
            "of": self.of,
            "threshold": self.threshold,
            "point": self.measured.point,
            "low": self.measured.low,
            "high": self.measured.high,
            "level": LEVEL,
            "passed": self.passed,
            "verdict": self.verdict,
            "enough_data": self.enough_data,
            "prompts": self.measured.prompts,
            "prompts_needed": self.prompts_needed,
            "undecided_because": self.blocked,
        }


@dataclass(frozen=True, slots=True, eq=False)
class GateResult:
    """All gates of one result of a run; `differences`: what makes the baseline incomparable, passed over."""

    run: Run
    chosen: ChosenResult
    gates: tuple[Gate, ...]
    allow_undecided: bool
    differences: tuple[Difference, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every gate did."""
        return all(gate.passed for gate in self.gates)

    def to_json(self) -> dict[str, Any]:
        """The `specprobe.gate/1` document."""
        acceptance = self.chosen.acceptance
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "drafter": acceptance.drafter,
            "label": self.chosen.name,
            "config": dict(acceptance.config),
            "temperature": acceptance.temperature,
            "draft_sampling": acceptance.draft_sampling,
            "depth": self.chosen.depth,
            "engine_profile": self.run.engine_profile,
            "allow_undecided": self.allow_undecided,
            "baseline_differences": [{"what": one.what, "baseline": one.a, "run": one.b} for one in self.differences],
            "gates": [gate.to_json() for gate in self.gates],
        }


def run_gate(run: Run, settings: GateSettings, stages: Stages = SILENT) -> GateResult:
    """Hold one result of a run against its thresholds. Raises SpecprobeError where that makes no sense."""
    chosen = choose_result(run, settings.choice)
    acceptance, depth = chosen.acceptance, chosen.depth
    gates: list[Gate] = []
    differences: tuple[Difference, ...] = ()
    if settings.min_acceptance_length is not None:
        gates.append(
            Gate("min_acceptance_length", settings.min_acceptance_length, acceptance_length(acceptance, depth))
        )
    if settings.min_tokens_per_round is not None:
        gates.append(Gate("min_tokens_per_round", settings.min_tokens_per_round, tokens_per_round(acceptance, depth)))
    if settings.min_speedup is not None and settings.recommendation is not None:
        gates += _speedup_gates(run, chosen, settings.min_speedup, settings.recommendation, settings.choice)
    if settings.max_regression is not None and settings.baseline is not None:
        baseline = load_run(settings.baseline, stages)
        differences = check_comparable(
            baseline, run, force=settings.force, what="gate: --baseline", named=("it", "the run")
        )
        measured = _regression(baseline, run, chosen)
        gates.append(Gate("max_regression", settings.max_regression, measured, is_maximum=True))
    if sums := next((notice for notice in run.notices if notice.code == ENGINE_SUMS), None):
        gates = [replace(gate, blocked=gate.blocked or inert(sums.message, 300)) for gate in gates]
    gates = [replace(gate, allow_undecided=settings.allow_undecided) for gate in gates]
    return GateResult(run, chosen, tuple(gates), settings.allow_undecided, differences)


def tokens_per_round(acceptance: Acceptance, depth: int) -> Measured:
    """Tokens per round with the interval that the run's report shows."""
    (interval,) = intervals_at(acceptance, [depth])
    return _measured(acceptance, acceptance.totals(depth).tokens_per_round, interval, acceptance.num_prompts)


def acceptance_length(acceptance: Acceptance, depth: int) -> Measured:
    """Mean acceptance length, 1 + accepted / drafted rounds: as tokens per round, over drafted rounds alone."""
    drafted = acceptance.by_prompt(acceptance.drafted_rounds[:, depth - 1, None].astype(np.float64))
    accepted = acceptance.by_prompt(acceptance.accepted_tokens[:, depth - 1, None].astype(np.float64))
    (interval,) = tokens_per_round_intervals(accepted + drafted, drafted, level=acceptance.interval_level)
    point = acceptance.totals(depth).mean_acceptance_length
    return _measured(acceptance, point, within_bounds(interval, point, depth), int((drafted > 0).sum()))


def _regression(baseline: Run, run: Run, chosen: ChosenResult) -> Measured:
    """By which share of the baseline's tokens per round the run's are fewer, paired by prompt; below 0 a gain."""
    acceptance, depth = chosen.acceptance, chosen.depth
    temperatures = [pair for pair in pair_temperatures(baseline, run) if pair[1] == acceptance.temperature]
    for before, now in temperatures:
        prompts = pair_prompts(baseline.responses_at(before), run.responses_at(now))
        pairs = pair_results(
            [result for result in baseline.results if result.temperature == before],
            [result for result in run.results if result.temperature == now],
        )
        for one, other in pairs:
            if other is not acceptance:
                continue
            if one.depth < depth:
                raise SpecprobeError(
                    f"gate: the baseline has depths 1 to {one.depth}, not {depth}; choose with --depth"
                )
            contrast = contrast_results(one, other, prompts)
            figures = contrast.depths[depth - 1].tokens_per_round
            if figures.a is None or figures.b is None:
                raise SpecprobeError("gate: the baseline has rounds for no prompt of the run; analyze both alike")
            point = 1 - figures.b / figures.a
            if figures.ratio is None:
                return Measured(point, None, None, contrast.prompts)
            low, high = 1 - figures.ratio.high, 1 - figures.ratio.low
            return Measured(point, low, high, contrast.prompts, level=contrast.level)
    raise SpecprobeError(
        f"gate: the baseline has no {inert(chosen.name, 60)} at temperature {acceptance.temperature:g}; "
        "choose another result with --drafter, or analyze the baseline again"
    )


def _speedup_gates(run: Run, chosen: ChosenResult, threshold: float, path: Path, choice: Choice) -> list[Gate]:
    """One gate for each concurrency of a recommendation made from this run."""
    document = read_own_document(path, RECOMMENDATION_SCHEMA, "name what `recommend --json` wrote", "recommend again")
    try:
        return [_speedup_gate(run, chosen, threshold, document, entry, choice) for entry in document["by_concurrency"]]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SpecprobeError(
            f"{path}: damaged recommendation ({type(error).__name__}: {inert(str(error), 80)}); recommend again"
        ) from None


def _speedup_gate(
    run: Run,
    chosen: ChosenResult,
    threshold: float,
    document: Mapping[str, Any],
    entry: Mapping[str, Any],
    choice: Choice,
) -> Gate:
    acceptance = chosen.acceptance
    of_run = (run.engine_profile, acceptance.temperature)
    if (document["engine_profile"], document["temperature"]) != of_run:
        raise SpecprobeError(
            f"--recommendation: is for {inert(str(document['engine_profile']))} at temperature "
            f"{document['temperature']}, the run for {of_run[0]} at {of_run[1]:g}; recommend from this run"
        )
    if document.get("run_digest") not in (None, run.digest):
        raise SpecprobeError("--recommendation: was made from another run; recommend from this one")
    option = entry["options"][0]
    if choice.drafter is not None or choice.depth is not None:
        options = [option for option in entry["options"] if _is_chosen(option, acceptance, choice, chosen.depth)]
        if not options:
            raise SpecprobeError(
                f"--recommendation: has no {inert(chosen.name, 60)} at depth {chosen.depth}; its cost may not know it"
            )
        option = max(options, key=lambda one: one["speedup"])
    point, (low, high) = option["speedup"], option["interval"]["speedup"]
    # Sums of an engine's counters, and single prompts, have no interval.
    if not all(value is None or value > 0 for value in (point, low, high)):
        raise ValueError("speed-up out of range")
    return Gate(
        "min_speedup",
        threshold,
        Measured(
            point,
            low,
            high,
            acceptance.num_prompts,
            log_deviation=float(document["cost"]["log_deviation"]),
            level=acceptance.interval_level,
        ),
        at=_traffic(entry),
        of=f"{drafter_label(option['drafter'], option['config'], option['draft_sampling'])} {option['depth']}",
        blocked=_why_nothing_is_decided(document, entry),
    )


def _traffic(entry: Mapping[str, Any]) -> str:
    """What a verdict of a recommendation is for."""
    if not entry["by_clock"]:
        return f"concurrency {int(entry['concurrency'])}"
    coming = entry.get("arrivals")
    return Arrivals(coming["rate"], coming["trace"]).in_words if coming else "these arrivals"


def _why_nothing_is_decided(document: Mapping[str, Any], entry: Mapping[str, Any]) -> str | None:
    """What keeps a verdict of a recommendation from being one, whatever its interval says; None where nothing does."""
    if document["undecided"]:
        return inert(str(document["undecided"]["message"]), 300)
    batches, together = document["cost"]["batches"], entry["concurrency"]
    if entry["by_clock"]:
        together = max(entry["baseline"]["mean_batch"], entry["options"][0]["mean_batch"], batches[0])
    if not batches[0] <= together <= batches[-1]:
        return f"the cost covers batches {batches[0]} to {batches[-1]}, so this speed-up is a guess: add points there"
    is_overloaded = any(warning["code"] == OVERLOADED for warning in document["warnings"])
    if entry["by_clock"] and entry["verdict"] == "close" and is_overloaded:
        return "the server does not keep up with these arrivals, and latencies depend on how long that lasts"
    return None


def _is_chosen(option: Mapping[str, Any], acceptance: Acceptance, choice: Choice, depth: int) -> bool:
    """Whether an option is the drafter named, at the depth named; what is not named may be any."""
    label = drafter_label(option["drafter"], option["config"], option["draft_sampling"])
    is_drafter = choice.drafter is None or (label == acceptance.label and option["config"] == dict(acceptance.config))
    return is_drafter and (choice.depth is None or option["depth"] == depth)


def _measured(acceptance: Acceptance, point: float | None, interval: Interval | None, prompts: int) -> Measured:
    if interval is None:
        return Measured(point, None, None, prompts)
    return Measured(point, interval.low, interval.high, prompts, level=acceptance.interval_level)


def _without_fixed_error(distance: float, gap: float, fixed: float) -> tuple[float, float]:
    """Parts of a distance and a gap that prompts have a say in; errors add up in quadrature."""
    sampled = math.sqrt(max(distance**2 - fixed**2, 0.0))
    left = math.sqrt(gap**2 - fixed**2) if gap > fixed else 0.0
    return sampled, left


def _power_factor(tail: float) -> float:
    """What an interval's half-width, `tail` standard errors, is stretched by for POWER."""
    return (tail + float(ndtri(POWER))) / tail
