"""Values of a file of settings, as what they must be; each raises TypeError, with what is needed, for another kind."""

from __future__ import annotations

from typing import Any


def as_yes_no(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise TypeError("must be true or false")
    return value


def as_number(value: Any) -> float:
    """Any number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("must be a number")
    return float(value)


def as_whole(value: Any) -> int:
    """A number written without a point."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("must be a whole number")
    return value


def as_text(value: Any) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise TypeError("must be text")
    return value
