"""Drafters: each says, for every place a round can start, what it would have proposed.

A drafter is a name in `DRAFTERS` and a factory; `parse_drafter("ngram:min=2,max=4", profile)` makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specprobe.drafters.base import Drafter, Limits, Proposals
from specprobe.drafters.ngram import make_ngram
from specprobe.drafters.suffix import make_suffix
from specprobe.errors import SpecprobeError
from specprobe.profiles import Profile

DRAFTERS: Mapping[str, Callable[[Mapping[str, str], Profile], Drafter]] = {
    "ngram": make_ngram,
    "suffix": make_suffix,
}

__all__ = ["DRAFTERS", "Drafter", "Limits", "Proposals", "parse_drafter"]


def parse_drafter(spec: str, profile: Profile) -> Drafter:
    """A drafter from `NAME` or `NAME:key=value,key=value`, with the profile's defaults for the rest.

    Raises SpecprobeError for an unknown name, one that the engine does not offer, or an option that is not
    `key=value`, unknown, or out of range.
    """
    name, _, rest = spec.strip().partition(":")
    if name not in DRAFTERS:
        raise SpecprobeError(f"--drafter: {spec!r} is not a known drafter; use one of {', '.join(DRAFTERS)}")
    if name not in profile.drafters:
        raise SpecprobeError(
            f"--drafter: {profile.name} does not offer {name!r}; it offers {', '.join(profile.drafters)}, "
            f"or name another --engine"
        )
    options: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise SpecprobeError(f"--drafter: {spec!r}: {part!r} is not key=value")
        options[key.strip()] = value.strip()
    return DRAFTERS[name](options, profile)
