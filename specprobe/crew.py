"""A crew: processes that each hold the target and take work from this one, piece by piece.

Pieces are the batches that one process would make, since rounding depends on who is in a batch. So results are the
same whoever computes, as long as all compute alike (the same hardware, libraries and number of threads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from specprobe.target import Target

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True)
class Bench:
    """What work finds where it is done: the target, and the drafter that was loaded last."""

    target: Target
    drafter: Any = None

    def running_target(self) -> Target:
        """The target with its layers where they run; a drafter that took their place goes."""
        self.drafter = None
        self.target.fetch_layers()
        return self.target


Work = Callable[[Bench, Item], Result]
"""A function of a module, which other processes can import; items and results are sent as they are."""


class Crew(Protocol):
    """Who does the work."""

    @property
    def size(self) -> int:
        """How many are at work."""

    def each(self, work: Work[Item, Result], items: Iterable[Item]) -> Iterator[tuple[int, Result]]:
        """The number of each item and what `work` made of it, in the order in which they end.

        Items are taken as somebody is free to work on them. What `work` raises is raised here.
        """

    def close(self) -> None:
        """Let them go; nothing is done any more."""
