"""The ladder: drafters in order of what they take to adopt, and what each step up bought over the cheaper ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from specprobe.acceptance import Acceptance
from specprobe.drafters.base import ADOPTION_WORDS, Adoption
from specprobe.interval import LEVEL, MIN_PROMPTS, Interval, ratio_intervals

# What a step must bring to be worth a model to load or a head to train: as for a verdict, a twentieth.
WORTHWHILE_STEP = 1.05
# A drafter that is wrong 19 times out of 20 at its first position is seldom weak and usually broken: another target,
# another template, a layer taken for its neighbour.
BROKEN_ACCEPTANCE = 0.05
Standing = Literal["first", "better", "no better", "open", "broken"]


@dataclass(frozen=True, slots=True)
class Rung:
    """One drafter at the depth where it writes most tokens per round.

    `step`: its tokens per round over those of the best rung before it, paired by prompt; None on the first. `standing`:
    whether it drafts better than all before it; of the first rung, nothing can be said.
    """

    drafter: str
    label: str
    draft_sampling: str
    adoption: Adoption
    depth: int
    tokens_per_round: float
    first_acceptance: float | None
    step: Interval | None
    over: str | None
    standing: Standing

    def to_json(self) -> dict[str, Any]:
        """For the run's document."""
        return {
            "drafter": self.drafter,
            "label": self.label,
            "draft_sampling": self.draft_sampling,
            "adoption": ADOPTION_WORDS[self.adoption],
            "depth": self.depth,
            "tokens_per_round": self.tokens_per_round,
            "first_acceptance": self.first_acceptance,
            "step_over": self.over,
            "step": {
                "point": self.step.point,
                "low": self.step.low,
                "high": self.step.high,
                "level": LEVEL,
            }
            if self.step
            else None,
            "standing": self.standing,
        }


def climb(acceptances: Sequence[Acceptance], *, seed: int = 0) -> tuple[Rung, ...]:
    """The rungs of one temperature, cheapest first; drafters without any round are left out.

    Tokens per round is a ratio with the same numerator for every drafter, so a step is the ratio of two numbers of
    rounds over the same prompts, and what prompts have in common cancels.
    """
    with_rounds = [acceptance for acceptance in acceptances if acceptance.rounds.any()]
    rungs: list[Rung] = []
    best: tuple[Acceptance, int] | None = None
    for acceptance in sorted(with_rounds, key=lambda a: a.adoption):
        depth = acceptance.depth_of_fewest_rounds
        totals = acceptance.totals(depth)
        step = _step(best, (acceptance, depth), seed) if best else None
        rungs.append(
            Rung(
                drafter=acceptance.drafter,
                label=acceptance.label,
                draft_sampling=acceptance.draft_sampling,
                adoption=Adoption(acceptance.adoption),
                depth=depth,
                tokens_per_round=totals.tokens_per_round or 1.0,
                first_acceptance=totals.conditional[0],
                step=step,
                over=best[0].label if best else None,
                standing=_standing(acceptance, totals.conditional[0], step, is_first=best is None),
            )
        )
        if best is None or _rounds(acceptance, depth).sum() < _rounds(*best).sum():
            best = acceptance, depth
    return tuple(rungs)


def _rounds(acceptance: Acceptance, depth: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return acceptance.rounds[:, depth - 1].astype(np.float64)


def _step(before: tuple[Acceptance, int], after: tuple[Acceptance, int], seed: int) -> Interval | None:
    """Rounds that were needed before over rounds that are needed now."""
    numerators = before[0].by_prompt(_rounds(*before)[:, None])
    denominators = after[0].by_prompt(_rounds(*after)[:, None])
    level = max(before[0].interval_level, after[0].interval_level)
    (interval,) = ratio_intervals(numerators, denominators, level=level, seed=seed, scale="log")
    return interval


def _standing(
    acceptance: Acceptance, first_acceptance: float | None, step: Interval | None, *, is_first: bool
) -> Standing:
    trained = acceptance.adoption > Adoption.FLAG
    if trained and first_acceptance is not None and first_acceptance < BROKEN_ACCEPTANCE:
        return "broken"
    if is_first:
        return "first"
    if step is None:
        return "open"
    if step.high < WORTHWHILE_STEP:
        return "no better"
    enough_prompts = acceptance.num_prompts >= MIN_PROMPTS
    return "better" if step.low > 1 and step.point >= WORTHWHILE_STEP and enough_prompts else "open"
