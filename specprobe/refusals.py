"""Input on which no verdict is worth giving, and why."""

from __future__ import annotations

from collections.abc import Sequence

from specprobe.acceptance import Acceptance
from specprobe.drafters.base import Adoption
from specprobe.ladder import BROKEN_ACCEPTANCE
from specprobe.notices import Notice, inert
from specprobe.profiles import resolve_profile
from specprobe.run import ResponseRecord

# Drafts from a loop are accepted nearly whole: a quarter of such text can turn any verdict.
LOOPING_SHARE = 0.25
# Of a shorter response the prefill is nearly all, and what is measured is how responses begin.
SHORTEST_MEAN_OUTPUT = 8.0


def undecidable(lengths: ResponseRecord, acceptances: Sequence[Acceptance], engine_profile: str) -> Notice | None:
    """Why nothing should be decided on these responses and results; None where it can be."""
    num_responses = len(lengths.ids)
    if lengths.looping >= LOOPING_SHARE * num_responses and lengths.looping:
        return Notice(
            "undecided_loops",
            f"not decided: {lengths.looping} of {num_responses} responses end in a loop of the same tokens, which any "
            "drafter guesses; mend model, template or settings, or leave these prompts out, and analyze again",
        )
    mean_output = float(lengths.output_tokens.mean())
    if mean_output < SHORTEST_MEAN_OUTPUT:
        return Notice(
            "undecided_too_short",
            f"not decided: responses have {mean_output:.1f} tokens on average, too few rounds to judge drafting by; "
            "analyze longer ones",
        )
    if all(is_broken(acceptance) for acceptance in acceptances):
        names = ", ".join(inert(acceptance.label, 60) for acceptance in acceptances)
        return Notice(
            "undecided_nothing_accepted",
            f"not decided: next to nothing of {names} was accepted, which is seldom weakness; check that the "
            "checkpoint is for this target, its template and quantisation",
        )
    if all(matches_exactly(acceptance, engine_profile) for acceptance in acceptances):
        return Notice(
            "undecided_exact_match",
            f"not decided: {engine_profile} keeps a sampled draft only where the target draws the same token, so "
            "acceptance above temperature 0 is that of the rule, not of the drafter; analyze with "
            "--draft-sampling greedy, or with a version that accepts by min(1, p/q)",
        )
    return None


def is_broken(acceptance: Acceptance) -> bool:
    """Whether a model accepts so little that it is likely one for another target, or damaged."""
    if acceptance.adoption <= Adoption.FLAG:
        return False
    first = acceptance.totals(acceptance.depth).conditional[0]
    return first is not None and first < BROKEN_ACCEPTANCE


def matches_exactly(acceptance: Acceptance, engine_profile: str) -> bool:
    """Whether the engine accepts this result's sampled drafts by exact match with a sampled token."""
    sampled = acceptance.draft_sampling == "sampled" and acceptance.temperature > 0
    return sampled and resolve_profile(engine_profile).sampled_drafts == "exact_match"
