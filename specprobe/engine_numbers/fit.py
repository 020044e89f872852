"""A curve of acceptance from what an engine counted: over requests where it tells them apart, else over its rates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from specprobe.curve import RATE_ROUNDING, CurveFit, fit_counts, fit_rates
from specprobe.engine_numbers.numbers import EngineCounts, EngineNumbers
from specprobe.errors import SpecprobeError
from specprobe.interval import MIN_PROMPTS
from specprobe.notices import Notice
from specprobe.units import format_plural


def fit_engine_numbers(numbers: EngineNumbers) -> CurveFit:
    """Curves over positions, from the best that the source holds.

    Counters by request and position: by quasi-likelihood, over prompts (`fit_counts`). Sums by position: by least
    squares on what the first i positions accept, to within the largest binomial standard error of a share of so many
    rounds, 1 / (2 sqrt(rounds)), or to the rounding of the figures (`fit_rates`). The rate at one depth: one parameter.
    No models where drafts are of several lengths. Raises SpecprobeError where the depth is needed and not known.
    """
    depth, counts = numbers.depth, numbers.counts
    if depth is None:
        raise SpecprobeError(
            f"numbers of an engine: {numbers.source} of {numbers.engine} do not say how many "
            "tokens a round may draft; add --depth"
        )
    if counts.has_full_drafts(depth) is False:
        return CurveFit((), None, depth, notices=(*numbers.notices, _own_length(counts, depth)))
    rows = [one.counts for one in numbers.requests]
    if rows and all(row.at_risk_at is not None for row in rows):
        fitted = _over_prompts(numbers)
        if fitted.prompts is not None and fitted.prompts < MIN_PROMPTS:
            said = f"{format_plural(fitted.prompts, 'prompt')} cannot tell models apart; give {MIN_PROMPTS} and more"
            return replace(fitted, notices=(*numbers.notices, Notice("too_few_prompts", said)))
        return replace(fitted, notices=numbers.notices)
    fitted = _over_rates(numbers, depth)
    notice = Notice(
        "no_interval",
        "the engine does not tell requests apart, so how far other requests would differ is not known",
    )
    notices = numbers.notices if rows else (*numbers.notices, notice)
    return replace(fitted, notices=(*notices, *fitted.notices))


def _over_prompts(numbers: EngineNumbers) -> CurveFit:
    """Answers to one prompt are no independent evidence, so they are summed."""
    units = {identity: unit for unit, identity in enumerate(dict.fromkeys(one.id for one in numbers.requests))}
    at_risk, accepted = np.zeros((2, len(units), numbers.depth or 0))
    for one in numbers.requests:
        at_risk[units[one.id]] += one.counts.at_risk_at or ()
        accepted[units[one.id]] += one.counts.accepted_at or ()
    return fit_counts(at_risk, accepted)


def _over_rates(numbers: EngineNumbers, depth: int) -> CurveFit:
    counts = numbers.counts
    # Without rounds the standard error is not known, and figures are taken as they are.
    rounding = (
        max(RATE_ROUNDING, 1 / (2 * math.sqrt(counts.drafted_rounds))) if counts.drafted_rounds else RATE_ROUNDING
    )
    if (survival := counts.survival) is not None:
        accepted = np.cumsum(survival)
        return fit_rates({i + 1: float(accepted[i]) / (i + 1) for i in range(depth)}, rounding=rounding)
    if (rate := counts.acceptance_rate) is not None:
        return fit_rates({depth: rate}, rounding=rounding)
    if numbers.stated_length is not None:
        return fit_rates({depth: _rate_of(numbers.stated_length, depth, numbers.source)}, rounding=rounding)
    raise SpecprobeError(f"numbers of an engine: {numbers.source} of {numbers.engine} hold neither counts nor a rate")


def _rate_of(length: float, depth: int, source: str) -> float:
    if not 1 <= length <= depth + 1:
        raise SpecprobeError(f"--depth {depth}: {source} say a mean acceptance length of {length:g}; mend --depth")
    return (length - 1) / depth


def _own_length(counts: EngineCounts, depth: int) -> Notice:
    mean = (counts.drafted_tokens or 0) / (counts.drafted_rounds or 1)
    return Notice(
        "own_draft_length",
        f"drafts had {mean:.2f} of {depth} tokens on average: the drafter ends them itself, so what it did not draft "
        "is missing for a reason, and no curve over depths is fitted",
    )
