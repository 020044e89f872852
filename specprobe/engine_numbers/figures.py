"""Figures of a JSON object, checked one by one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specprobe.errors import SpecprobeError
from specprobe.notices import inert

# More than any server counts; a larger number is none, and beyond it a sum of whole numbers in floats is no longer one.
LARGEST_COUNT = 2**53
# Of a histogram: no engine drafts more tokens.
_PLACE = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Figures:
    """The values of an object, with errors that name the place; what is absent or null is None."""

    values: Mapping[str, Any]
    where: str

    def count(self, *names: str) -> int | None:
        """A whole number from 0, under the first of these names that there is."""
        for name in names:
            if self.values.get(name) is not None:
                return self._whole(self.values[name], name)
        return None

    def needed(self, *names: str) -> int:
        """The same; raises SpecprobeError where it is missing."""
        value = self.count(*names)
        if value is None:
            raise SpecprobeError(f"{self.where}: {names[0]}: missing; keep the whole answer of the engine")
        return value

    def number(self, name: str, least: float = 0.0, most: float = 1e15) -> float | None:
        """A number within bounds."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self._wrong(name, value, f"no number from {least:g} to {most:g}")
        return float(value)

    def numbers(self, name: str, least: float = 0.0, most: float = 1e15) -> tuple[float, ...] | None:
        """A list of such numbers."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong(name, value, "no list")
        return tuple(Figures({name: one}, self.where).number(name, least, most) or 0.0 for one in value)

    def counts(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers from 0; an object of them by their place, such as {"0": 39, "3": 1}, is one, too."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, dict):
            value = self._dense(name, value)
        if not isinstance(value, list):
            raise self._wrong(name, value, "no list")
        return tuple(self._whole(one, name) for one in value)

    def inside(self, name: str) -> Figures | None:
        """The object under this name."""
        value = self.values.get(name)
        return Figures(value, self.where) if isinstance(value, dict) else None

    def _dense(self, name: str, value: Mapping[str, Any]) -> list[Any]:
        if not all(_PLACE.fullmatch(key) for key in value):
            raise self._wrong(name, value, "no histogram")
        counts: list[Any] = [0] * (1 + max(map(int, value), default=-1))
        for key, count in value.items():
            counts[int(key)] = count
        return counts

    def _whole(self, value: Any, name: str) -> int:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= LARGEST_COUNT or value != int(value):
            raise self._wrong(name, value, "no count")
        return int(value)

    def _wrong(self, name: str, value: Any, what: str) -> SpecprobeError:
        return SpecprobeError(f"{self.where}: {name}: {inert(str(value))!r} is {what}; keep the engine's own figures")


def at_least(histogram: Sequence[int]) -> tuple[int, ...]:
    """From rounds that accepted exactly 0, 1, .. K tokens, those that accepted at least 1, .. K."""
    return tuple(sum(histogram[i:]) for i in range(1, len(histogram)))
