"""`compare`: what changed between two runs, paired by prompt, and what these prompts could not have shown.

Both runs' counts of one prompt are one unit of the bootstrap (see `specprobe.interval`), so what makes prompts easy or
hard in both runs cancels. The verdict is on tokens per round at one depth: the one at which both runs together take
the fewest rounds, a choice that favours neither.

A difference is called where swapping both runs' counts of a prompt, each prompt by the toss of a coin, puts them as
many standard errors apart in at most 10 % of draws (Fisher's randomisation test, The Design of Experiments, 1935,
section 21, studentised). Between runs that are alike swaps change nothing, so this errs no more often than it says,
whatever prompts are like. Measured on simulated pairs of 100 prompts (2,500 each, standard error 0.6 points; of the
interval 1,200 to 1,500, 0.8 points), equal ones, and such that differ by 3 standard errors:

                      equal: swaps   the interval leaves out 0   3 standard errors: swaps
    chat                   9.6              10.3                       90.6
    copy-heavy            10.2              10.8                       91.0
    low acceptance        10.7              11.7                       92.6

A paired t-test on normal data would find 90.9 % of the latter. Swaps and interval disagree in borderline cases only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from specprobe.acceptance import Acceptance
from specprobe.errors import SpecprobeError
from specprobe.interval import LEVEL, MIN_PROMPTS, Interval, bootstrap_t_columns
from specprobe.notices import inert
from specprobe.pairing import (
    Difference,
    PairedPrompts,
    find_differences,
    pair_prompts,
    pair_results,
    pair_temperatures,
)
from specprobe.progress import SILENT, Stages, counting, where_long
from specprobe.run import Run

SCHEMA = "specprobe.compare/1"
# How often a difference of the size that is called detectable would have been found.
POWER = 0.9
# Draws of the test by swapping: its p-value is known to 0.7 points at 0.1.
SWAPS = 2000
# At once, which bounds the memory.
SWAPS_AT_ONCE = 200
# Differences that a message names; the document has all.
MOST_NAMED = 4

Floats = NDArray[np.float64]
Standing = Literal["higher", "lower", "not significant", "too few prompts"]

# Prompts times results of which contrasts may take a second or more.
MANY_PAIRS = 500


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure in runs A and B over the same prompts: B - A and B / A with intervals.

    `smallest_detectable`: the true difference that such a sample shows as significant 9 times out of 10. None where
    the figure is not defined, or prompts are fewer than two.
    """

    a: float | None
    b: float | None
    difference: Interval | None
    ratio: Interval | None
    smallest_detectable: float | None

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "a": self.a,
            "b": self.b,
            "difference": _interval_json(self.difference),
            "ratio": _interval_json(self.ratio),
            "smallest_detectable": self.smallest_detectable,
        }


@dataclass(frozen=True, slots=True)
class DepthContrast:
    """The figures of one depth; see `Acceptance` for what they are."""

    depth: int
    tokens_per_round: Contrast
    mean_acceptance_length: Contrast
    acceptance_rate: Contrast

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "depth": self.depth,
            "tokens_per_round": self.tokens_per_round.to_json(),
            "mean_acceptance_length": self.mean_acceptance_length.to_json(),
            "acceptance_rate": self.acceptance_rate.to_json(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class ResultContrast:
    """One drafter in both runs.

    `depth`: where it is judged; `prompts`: how many both runs have rounds for. `swapped_as_large`: the share of swaps
    (see the module) that make a difference as large there.
    """

    a: Acceptance
    b: Acceptance
    prompts: int
    only_a: int
    only_b: int
    depth: int
    depths: tuple[DepthContrast, ...]
    swapped_as_large: float

    @property
    def judged(self) -> Contrast:
        """Tokens per round at the depth of the verdict."""
        return self.depths[self.depth - 1].tokens_per_round

    @property
    def level(self) -> float:
        """At which differences are judged so that they hold at LEVEL: that of the run that was looked at more often."""
        return max(self.a.interval_level, self.b.interval_level)

    @property
    def standing(self) -> Standing:
        """Whether B writes more or fewer tokens per round than A, as far as these prompts say."""
        difference = self.judged.difference
        if self.prompts < MIN_PROMPTS or difference is None:
            return "too few prompts"
        if self.swapped_as_large > 1 - self.level:
            return "not significant"
        return "higher" if difference.point > 0 else "lower"

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "drafter": self.a.drafter,
            "label": self.a.label,
            "config": {"a": dict(self.a.config), "b": dict(self.b.config)},
            "draft_sampling": self.a.draft_sampling,
            "temperature": self.a.temperature,
            "prompts": self.prompts,
            "unpaired_prompts": {"a": self.only_a, "b": self.only_b},
            "depth": self.depth,
            "standing": self.standing.replace(" ", "_"),
            "significant": self.standing in ("higher", "lower"),
            "swapped_as_large": self.swapped_as_large,
            "depths": [contrast.to_json() for contrast in self.depths],
        }


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two runs; `differences`: what makes them incomparable, which the user chose to pass over.

    `left_out`: results that the other run lacks, as ("a" or "b", label, temperature).
    """

    a: Run
    b: Run
    differences: tuple[Difference, ...]
    results: tuple[ResultContrast, ...]
    left_out: tuple[tuple[str, str, float], ...]

    def to_json(self) -> dict[str, Any]:
        """The `specprobe.compare/1` document."""
        return {
            "schema": SCHEMA,
            "a": _run_json(self.a),
            "b": _run_json(self.b),
            "level": LEVEL,
            "differences": [asdict(difference) for difference in self.differences],
            "results": [result.to_json() for result in self.results],
            "left_out": [
                {"run": run, "label": label, "temperature": temperature} for run, label, temperature in self.left_out
            ],
        }


def compare(a: Run, b: Run, *, force: bool = False, seed: int = 0, stages: Stages = SILENT) -> Comparison:
    """Every drafter that both runs have, B against A.

    Raises SpecprobeError for runs that are not comparable, unless `force`, and for runs without a prompt or drafter
    in common.
    """
    differences = check_comparable(a, b, force=force)
    results, left_out = [], []
    for temperature_a, temperature_b in pair_temperatures(a, b):
        prompts = pair_prompts(a.responses_at(temperature_a), b.responses_at(temperature_b))
        of_a = [result for result in a.results if result.temperature == temperature_a]
        of_b = [result for result in b.results if result.temperature == temperature_b]
        pairs = pair_results(of_a, of_b)
        told = where_long(stages, prompts.count * len(pairs) >= MANY_PAIRS)
        with told.track("comparing", len(pairs)) as advance:
            one_more = counting(advance, len(pairs), "results")
            for one, other in pairs if prompts.count else []:
                results.append(contrast_results(one, other, prompts, seed=seed))
                one_more()
        paired = [result for pair in pairs for result in pair]
        for run, of_run in (("a", of_a), ("b", of_b)):
            left_out += [(run, r.label, r.temperature) for r in of_run if not any(r is other for other in paired)]
    if not results:
        raise SpecprobeError(_nothing_in_common(a, b))
    return Comparison(a, b, differences, tuple(results), tuple(left_out))


def check_comparable(
    a: Run, b: Run, *, force: bool = False, what: str = "compare", named: tuple[str, str] = ("A", "B")
) -> tuple[Difference, ...]:
    """What makes two runs incomparable; raises SpecprobeError where that is anything, unless `force`.

    `what` and `named` are the words for the command and the runs in its message.
    """
    differences = find_differences(a, b)
    if not differences or force:
        return differences
    told = "; ".join(f"{one.what}: {one.a} in {named[0]}, {one.b} in {named[1]}" for one in differences[:MOST_NAMED])
    more = f"; and {len(differences) - MOST_NAMED} more" if len(differences) > MOST_NAMED else ""
    raise SpecprobeError(
        f"{what}: the runs are not comparable ({told}{more}); analyze both alike, or go on all the same with --force"
    )


def contrast_results(a: Acceptance, b: Acceptance, prompts: PairedPrompts, *, seed: int = 0) -> ResultContrast:
    """Two results over the same prompts, at every depth that both have."""
    depth, first = min(a.depth, b.depth), max(a.first_depth, b.first_depth)
    if first > depth:
        raise SpecprobeError(
            f"compare: {inert(a.label, 60)} has depths {a.first_depth} to {a.depth} in A, {b.first_depth} to {b.depth} "
            f"in B; choose runs with a depth in common"
        )
    counts_a, counts_b = prompts.sums(_counts(a, depth), _counts(b, depth))  # [U, depth, 5]
    both = (counts_a[:, -1, _ROUNDS] > 0) & (counts_b[:, -1, _ROUNDS] > 0)
    counts_a, counts_b = counts_a[both], counts_b[both]
    rounds = counts_a[..., _ROUNDS].sum(axis=0) + counts_b[..., _ROUNDS].sum(axis=0)
    level = max(a.interval_level, b.interval_level)
    figures = {
        name: _contrasts(counts_a[..., columns], counts_b[..., columns], figure, level, seed)
        for name, (columns, figure) in _FIGURES.items()
    }
    judged = first - 1 + int(np.argmin(rounds[first - 1 :]))
    return ResultContrast(
        a=a,
        b=b,
        prompts=int(both.sum()),
        only_a=prompts.only_a,
        only_b=prompts.only_b,
        depth=1 + judged,
        depths=tuple(
            DepthContrast(depth=k + 1, **{name: contrasts[k] for name, contrasts in figures.items()})
            for k in range(depth)
        ),
        swapped_as_large=swapped_as_large(counts_a[:, judged, :2], counts_b[:, judged, :2], seed),
    )


def swapped_as_large(a: Floats, b: Floats, seed: int) -> float:
    """The share of swaps, the one that was observed included, with a difference as many standard errors from 0.

    `a`, `b` [U, 2]: emitted tokens and rounds of each prompt. In standard errors, since a true difference widens the
    spread of swapped ones, too.
    """
    rng = np.random.default_rng(seed)
    observed = _standard_errors_apart(a, b)
    if np.isnan(observed):
        return 1.0
    as_large = 1
    for _ in range(SWAPS // SWAPS_AT_ONCE):
        is_swapped = rng.integers(0, 2, (SWAPS_AT_ONCE, len(a), 1)).astype(bool)
        apart = _standard_errors_apart(np.where(is_swapped, b, a), np.where(is_swapped, a, b))
        # Sums in another order differ in their last bits.
        as_large += int((apart >= observed * (1 - 1e-9)).sum())
    return as_large / (1 + SWAPS)


def _standard_errors_apart(a: Floats, b: Floats) -> Floats:
    """How far tokens per round are apart, in linearised standard errors; `a`, `b` [..., U, 2]. NaN where they are equal
    in every prompt.
    """
    with np.errstate(all="ignore"):
        sums_a, sums_b = a.sum(axis=-2, keepdims=True), b.sum(axis=-2, keepdims=True)
        of_a, of_b = sums_a[..., 0] / sums_a[..., 1], sums_b[..., 0] / sums_b[..., 1]
        pulls = (b[..., 0] - of_b * b[..., 1]) / sums_b[..., 1] - (a[..., 0] - of_a * a[..., 1]) / sums_a[..., 1]
        apart: Floats = np.abs(of_b - of_a)[..., 0] / np.sqrt((pulls**2).sum(axis=-1))
    return apart


def _counts(acceptance: Acceptance, depth: int) -> Floats:
    """By response and depth: emitted tokens, rounds, accepted tokens, drafted rounds, drafted tokens; [P, depth, 5]."""
    rounds = acceptance.rounds[:, :depth]
    return np.stack(
        [
            np.broadcast_to(acceptance.emitted_tokens[:, None], rounds.shape),
            rounds,
            acceptance.accepted_tokens[:, :depth],
            acceptance.drafted_rounds[:, :depth],
            acceptance.drafted_tokens[:, :depth],
        ],
        axis=-1,
    ).astype(np.float64)


_ROUNDS = 1
# Which two counts a figure is made of, and how from their sums.
_FIGURES: Mapping[str, tuple[list[int], Callable[[Floats, Floats], Floats]]] = {
    "tokens_per_round": ([0, 1], lambda emitted, rounds: emitted / rounds),
    "mean_acceptance_length": ([2, 3], lambda accepted, drafted_rounds: 1 + accepted / drafted_rounds),
    "acceptance_rate": ([2, 4], lambda accepted, drafted_tokens: accepted / drafted_tokens),
}


def _contrasts(
    a: Floats, b: Floats, figure: Callable[[Floats, Floats], Floats], level: float, seed: int
) -> list[Contrast]:
    """By depth, from the counts [U, D, 2] of both runs."""
    counts = np.concatenate([a, b], axis=-1)

    def of_a(sums: Floats) -> Floats:
        return figure(sums[..., 0], sums[..., 1])

    def of_b(sums: Floats) -> Floats:
        return figure(sums[..., 2], sums[..., 3])

    differences = bootstrap_t_columns(
        counts, lambda sums: of_b(sums) - of_a(sums), level=level, seed=seed, scale="linear"
    )
    ratios = bootstrap_t_columns(counts, lambda sums: of_b(sums) / of_a(sums), level=level, seed=seed, scale="log")
    sums = counts.sum(axis=0)
    with np.errstate(all="ignore"):
        points_a, points_b = of_a(sums), of_b(sums)
    return [
        Contrast(
            a=_known(points_a[k]),
            b=_known(points_b[k]),
            difference=differences[k],
            ratio=ratios[k],
            smallest_detectable=_smallest_detectable(differences[k], len(counts)),
        )
        for k in range(counts.shape[1])
    ]


def _smallest_detectable(difference: Interval | None, num_prompts: int) -> float | None:
    """The true difference whose interval leaves out 0 with probability POWER, from the standard error.

    (t_(1 + level)/2 + t_POWER) x standard error, with num_prompts - 1 degrees of freedom: the usual power calculation
    of a paired t-test, at the level that the interval was made at.
    """
    if difference is None:
        return None
    quantiles = stdtrit(num_prompts - 1, np.array([(1 + difference.level) / 2, POWER]))
    return float(quantiles.sum()) * difference.standard_error


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {"point": interval.point, "low": interval.low, "high": interval.high, "level": LEVEL}


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "specprobe_version": run.version,
        "engine_profile": run.engine_profile,
        "target": run.target.get("name") if run.target else None,
        "sources": list(run.workload.get("sources", ())),
    }


def _nothing_in_common(a: Run, b: Run) -> str:
    of_a, of_b = (", ".join(dict.fromkeys(inert(r.label, 60) for r in run.results)) or "none" for run in (a, b))
    return f"compare: no prompt and drafter in common (drafters: {of_a} in A, {of_b} in B); analyze both alike"
