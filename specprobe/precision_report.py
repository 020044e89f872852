"""`--precision` for people: how many prompts a run used, and how well tokens per round is known."""

from __future__ import annotations

from specprobe.notices import inert
from specprobe.precision import Precision, Reached
from specprobe.units import format_count, format_percent

# Of more results only the one that is known least is told.
MOST_TOLD = 4


def precision_in_words(precision: Precision) -> str:
    """Prompts, what is known, what was asked, and what it did to the intervals."""
    looks = len(precision.looks)
    widened = f" Intervals are widened for {looks} looks." if looks > 1 else ""
    used, there = format_count(precision.prompts_used), format_count(precision.prompts)
    return f"used {used} of {there} prompts: {_known(precision)}; asked {format_percent(precision.asked)}.{widened}"


def look_in_words(precision: Precision) -> str:
    """The line of progress after one of the looks but the last: the result that is known least."""
    used, there = format_count(precision.prompts_used), format_count(precision.prompts)
    then = "enough" if precision.is_reached else "going on"
    several = len({one.temperature for one in precision.reached}) > 1
    least = max(precision.reached, key=_distance)
    return f"{used} of {there} prompts: {_name(least, several)} known {_share(least)}: {then}"


def _known(precision: Precision) -> str:
    """`tokens per round of ngram is known within 4.6 %, of suffix within 3.9 %`."""
    several = len({one.temperature for one in precision.reached}) > 1
    if len(precision.reached) > MOST_TOLD:
        least = max(precision.reached, key=_distance)
        count = len(precision.reached)
        return f"tokens per round of {count} results is known {_share(least)}, of {_name(least, several)} least well"
    first, *others = precision.reached
    told = [f"tokens per round of {_name(first, several)} is known {_share(first)}"]
    return ", ".join([*told, *(f"of {_name(one, several)} {_share(one)}" for one in others)])


def _name(one: Reached, names_temperature: bool) -> str:
    return inert(one.label, 60) + (f" at temperature {one.temperature:g}" if names_temperature else "")


def _distance(one: Reached) -> float:
    return float("inf") if one.within is None else one.within


def _share(one: Reached) -> str:
    return "not at all" if one.within is None else f"within {format_percent(one.within)}"
