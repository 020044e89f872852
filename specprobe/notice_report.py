"""Warnings as reports show them: in full, or one line each where there is one screen."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.text import Text

from specprobe.blocks import Block, Section, Sentence
from specprobe.notices import Notice, inert
from specprobe.units import format_plural

LONGEST = 1000
LEAD = Text("warning: ", style="yellow")
# More would push the answer off the screen.
MOST_SHORT = 4
# What a verdict must not be read without: nothing is decided, or the gain is known to be off.
WHOLE_CODES = frozenset(
    {
        "answers_not_used",
        "cost_batch_not_covered",
        "no_prefill_time",
        "noisy_timings",
        "other_target",
        "overloaded",
        "too_few_prompts",
        "undecided_exact_match",
        "undecided_loops",
        "undecided_nothing_accepted",
        "undecided_too_short",
    }
)

# Up to a semicolon, over those in parentheses.
_BEGINNING = re.compile(r"(?:\([^()]{0,500}\)|[^;])*")


def render_notices(notices: Sequence[Notice]) -> Block:
    """Warnings, each with what to do."""
    return Section([_in_full(notice) for notice in notices])


def render_notices_briefly(notices: Sequence[Notice]) -> Block:
    """Those that put a verdict in doubt in full, of the others what was seen, and how many more there are.

    What was seen mostly takes a line of 80 columns.
    """
    whole = [notice for notice in notices if notice.code in WHOLE_CODES]
    others = [notice for notice in notices if notice.code not in WHOLE_CODES]
    shown = [Sentence("warning", _what_was_seen(notice), lead=LEAD) for notice in others]
    left = len(shown) - MOST_SHORT
    if left > 0:
        more = f"{format_plural(left, 'more warning')}: --details"
        shown = [*shown[:MOST_SHORT], Sentence("warnings left out", more)]
    return Section([*map(_in_full, whole), *shown])


def _in_full(notice: Notice) -> Sentence:
    return Sentence("warning", inert(notice.message, LONGEST), lead=LEAD)


def _what_was_seen(notice: Notice) -> str:
    """A message begins with it, before the first semicolon that is in no parentheses (see `Notice`)."""
    found = _BEGINNING.match(notice.message)
    return inert(found[0] if found else notice.message, LONGEST)
