"""Results that no verdict may rest on, input on which none is worth giving, and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specprobe.acceptance import Acceptance
from specprobe.checks import is_broken
from specprobe.cost import CostTable
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice, inert
from specprobe.profiles import resolve_profile
from specprobe.run import ResponseRecord
from specprobe.speedup import cost_keys

# Drafts from a loop are accepted nearly whole: a quarter of such text can turn any verdict.
LOOPING_SHARE = 0.25
# Of a shorter response the prefill is nearly all, and what is measured is how responses begin.
SHORTEST_MEAN_OUTPUT = 8.0


def judged(
    costed: Sequence[Acceptance], engine_profile: str, cost: CostTable, lengths: ResponseRecord
) -> tuple[list[Acceptance], list[Notice]]:
    """The results that a verdict may rest on, and why others are left out; all of them where none is left.

    Raises SpecprobeError where the memory does not hold the longest request, alone or with any drafter.
    """
    offered, memory = resolve_profile(engine_profile).drafters, cost.memory
    longest = int((lengths.prompt_tokens.astype(np.int64) + lengths.output_tokens).max())

    def is_offered(acceptance: Acceptance) -> bool:
        # A user's own class may be the engine's plugin.
        return acceptance.drafter in offered or acceptance.drafter == "python"

    def fits(acceptance: Acceptance) -> bool:
        return memory is None or memory.kv_capacity_tokens(cost_keys(acceptance)) >= longest + acceptance.depth

    if memory is not None and memory.kv_capacity_tokens() < longest:
        raise SpecprobeError(
            f"recommend: the longest request holds {longest:,} tokens, the caches have room for "
            f"{memory.kv_capacity_tokens():,.0f} beside the weights; give more with --tp, or fewer bits with --dtype"
        )
    if not any(fits(acceptance) for acceptance in costed):
        raise SpecprobeError(f"recommend: {_names(costed)}: no room beside the target; give more memory with --tp")
    found, notices = list(costed), []
    for code, why, is_kept in (
        ("does_not_fit_left_out", "since beside its weights and caches the longest request has no room", fits),
        ("not_offered_left_out", f"since {engine_profile} does not offer it", is_offered),
        ("broken_left_out", "since next to nothing was accepted: check the checkpoint", lambda a: not is_broken(a)),
        (
            "exact_match_left_out",
            f"since {engine_profile} keeps sampled drafts by exact match only",
            lambda a: not matches_exactly(a, engine_profile),
        ),
    ):
        kept = [acceptance for acceptance in found if is_kept(acceptance)]
        if kept and len(kept) < len(found):
            left_out = _names([acceptance for acceptance in found if not is_kept(acceptance)])
            notices.append(Notice(code, f"{left_out}: left out of the verdict, {why}"))
            found = kept
    return found, notices


def _names(acceptances: Sequence[Acceptance]) -> str:
    return ", ".join(dict.fromkeys(inert(acceptance.label, 60) for acceptance in acceptances))


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
        return Notice(
            "undecided_nothing_accepted",
            f"not decided: next to nothing of {_names(acceptances)} was accepted, which is seldom weakness; check that "
            "the checkpoint is for this target, its template and quantisation",
        )
    if all(matches_exactly(acceptance, engine_profile) for acceptance in acceptances):
        return Notice(
            "undecided_exact_match",
            f"not decided: {engine_profile} keeps a sampled draft only where the target draws the same token, so "
            "acceptance above temperature 0 is that of the rule, not of the drafter; analyze with "
            "--draft-sampling greedy, or with a version that accepts by min(1, p/q)",
        )
    return None


def matches_exactly(acceptance: Acceptance, engine_profile: str) -> bool:
    """Whether the engine accepts this result's sampled drafts by exact match with a sampled token."""
    sampled = acceptance.draft_sampling == "sampled" and acceptance.temperature > 0
    return sampled and resolve_profile(engine_profile).sampled_drafts == "exact_match"
