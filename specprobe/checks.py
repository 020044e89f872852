"""What a careful reader of a result would ask: checks that return notices, with the reason for each threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance
from specprobe.drafters.base import Adoption
from specprobe.interval import MIN_PROMPTS
from specprobe.ladder import BROKEN_ACCEPTANCE
from specprobe.notices import Notice, inert
from specprobe.trajectory import Trajectory, num_distinct_prompts, prompt_numbers
from specprobe.units import format_plural

# The standard error of a rate near 1/2 is 5 % at 100 rounds; below that depths cannot be told apart.
MIN_DRAFTED_ROUNDS = 100
# Where most drafted rounds accept all of the deepest draft, the best depth lies beyond what was replayed.
CENSORED_SHARE = 0.5
# A loop of period up to 32 that fills the last 48 tokens is a stuck model, not a list.
LOOP_MAX_PERIOD = 32
LOOP_MIN_TOKENS = 48
# A tenth of the responses is enough to move an acceptance rate by more than its interval.
NOTABLE_SHARE = 0.1
# Where most responses are cut, what is measured is the beginning of what would be served.
CUT_SHARE = 0.5


def check_responses(trajectories: Sequence[Trajectory], where: str = "") -> list[Notice]:
    """Notices about the responses themselves: too few, stuck in a loop, cut short. `where`: begins each of them."""
    notices = []
    num_responses = len(trajectories)
    num_prompts = int(prompt_numbers(trajectories).max(initial=-1)) + 1
    distinct = num_distinct_prompts(trajectories)
    if num_prompts < distinct:
        notices.append(
            Notice(
                "conversations",
                f"{where}{distinct} prompts are of {format_plural(num_prompts, 'conversation')}, whose turns are no "
                "independent evidence: intervals, verdicts and numbers of prompts take each conversation for one",
            )
        )
    if num_prompts < MIN_PROMPTS:
        notices.append(
            Notice(
                "too_few_prompts",
                f"{where}{format_plural(num_prompts, 'prompt')}: intervals over fewer than {MIN_PROMPTS} different "
                "prompts are too narrow or missing; use more prompts before you decide",
            )
        )
    looping = sum(is_degenerate_loop(trajectory.output_ids) for trajectory in trajectories)
    if looping and looping >= NOTABLE_SHARE * num_responses:
        notices.append(
            Notice(
                "degenerate_loops",
                f"{where}{looping} of {num_responses} responses end in a loop, so acceptance is too high; drafts from "
                "the text guess nearly all of what repeats the same tokens: check model, template, token limit",
            )
        )
    ends = Counter(trajectory.finish_reason for trajectory in trajectories if trajectory.source == "generated")
    cut, generated = ends["length"], ends.total()
    if generated and cut >= CUT_SHARE * generated:
        notices.append(
            Notice(
                "responses_cut",
                f"{where}{cut} of {generated} responses were cut at the token limit; late text often drafts "
                "better than early text: raise --max-new-tokens towards what you serve",
            )
        )
    return notices


def check_acceptance(acceptance: Acceptance, *, temperature_is_known: bool = True) -> list[Notice]:
    """Notices about one result: too few drafted rounds, everything censored at the depth."""
    totals = acceptance.totals(acceptance.depth)
    label = inert(acceptance.label, 100)
    if temperature_is_known:
        label += f" at temperature {acceptance.temperature:g}"
    if not totals.drafted_rounds:
        return [
            Notice(
                "nothing_drafted",
                f"{label}: no round had a draft, so this drafter does nothing on this traffic with these settings",
            )
        ]
    notices = []
    if is_broken(acceptance):
        first = totals.conditional[0] or 0.0
        notices.append(
            Notice(
                "near_nothing_accepted",
                f"{label}: {first:.1%} accepted at the first position, which is seldom weakness; likely a drafter "
                f"for another target or chat template{_layer_cause(acceptance)}: check before you blame the traffic",
            )
        )
    if totals.drafted_rounds < MIN_DRAFTED_ROUNDS:
        notices.append(
            Notice(
                "too_few_rounds",
                f"{label}: {format_plural(round(totals.drafted_rounds), 'drafted round')} cannot tell depths apart; "
                "use more or longer responses",
            )
        )
    if totals.accepted_at[-1] > CENSORED_SHARE * totals.drafted_rounds:
        notices.append(
            Notice(
                "censored_at_depth",
                f"{label}: {totals.accepted_at[-1] / totals.drafted_rounds:.0%} of drafted rounds accept all "
                f"{acceptance.depth} tokens, so the best depth may be larger: raise --depth",
            )
        )
    return notices


def is_broken(acceptance: Acceptance) -> bool:
    """Whether a model accepts so little that it is likely one for another target, or damaged."""
    if acceptance.adoption <= Adoption.FLAG:
        return False
    first = acceptance.totals(acceptance.depth).conditional[0]
    return first is not None and first < BROKEN_ACCEPTANCE


def _layer_cause(acceptance: Acceptance) -> str:
    """Heads that read inner layers come in two conventions of counting them."""
    if acceptance.drafter != "eagle3":
        return ""
    other = "output_of" if acceptance.config.get("capture") == "input_of" else "input_of"
    layers = ", ".join(map(str, acceptance.config.get("layer_ids", ())))
    return f", or layers off by one (read {layers} as {acceptance.config['capture']}; try capture={other})"


@njit(cache=True, nogil=True)
def is_degenerate_loop(tokens: NDArray[np.int32]) -> bool:
    """Whether the last LOOP_MIN_TOKENS tokens, and three periods, repeat with a period up to LOOP_MAX_PERIOD."""
    for period in range(1, LOOP_MAX_PERIOD + 1):
        length = max(LOOP_MIN_TOKENS, 3 * period)
        if length >= tokens.size:
            continue
        repeats = True
        # The end token, and a cut in mid-loop, may differ: the loop is looked for up to the last token but one.
        for position in range(tokens.size - 1 - length + period, tokens.size - 1):
            if tokens[position] != tokens[position - period]:
                repeats = False
                break
        if repeats:
            return True
    return False
