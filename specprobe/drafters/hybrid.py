"""Hybrid drafting: a model-free drafter first, a model where it has nothing to propose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specprobe.drafters.base import Adoption, Drafter, Limits, Proposals
from specprobe.drafters.models import OpenDrafter
from specprobe.notices import Notice
from specprobe.rounds import one_hot_survival
from specprobe.trajectory import Trajectory

if TYPE_CHECKING:
    from specprobe.features import Features


@dataclass(frozen=True, slots=True)
class HybridDrafter:
    """`first` where it drafts at all, else `second`, round by round and depth by depth."""

    first: Drafter
    second: Drafter
    name: str
    fixed_length: bool = False

    @property
    def config(self) -> Mapping[str, Any]:
        """Both drafters'."""
        return {self.first.name: dict(self.first.config), self.second.name: dict(self.second.config)}

    @property
    def adoption(self) -> Adoption:
        """That of the dearer one."""
        return max(self.first.adoption, self.second.adoption)

    def proposals(self, trajectories: Iterable[Trajectory], depth: int, limits: Limits) -> Iterator[Proposals]:
        """One of the two at each place a round can start."""
        works = list(trajectories)
        firsts = self.first.proposals(works, depth, limits)
        for ours, theirs in zip(firsts, self.second.proposals(works, depth, limits), strict=True):
            drafts = ours.drafted > 0
            survival = None
            if theirs.survival is not None:
                one_hot = ours.survival if ours.survival is not None else one_hot_survival(ours.accepted, depth)
                survival = np.where(drafts[:, None], one_hot, theirs.survival)
            missed = None
            if ours.missed is not None and theirs.missed is not None:
                missed = np.where(drafts, ours.missed, theirs.missed)
            yield Proposals(
                np.where(drafts, ours.drafted, theirs.drafted),
                np.where(drafts, ours.accepted, theirs.accepted),
                survival,
                missed=missed,
            )


@dataclass(frozen=True, slots=True)
class OpenHybrid:
    """Both drafters, opened."""

    name: str
    first: OpenDrafter
    second: OpenDrafter

    @property
    def has_model(self) -> bool:
        """Whether the second drafter is a model."""
        return self.second.has_model

    @property
    def can_sample(self) -> bool:
        """Whether the second drafter can."""
        return self.second.can_sample

    @property
    def taps(self) -> tuple[int, ...]:
        """What either reads."""
        return tuple(dict.fromkeys((*self.first.taps, *self.second.taps)))

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Of either."""
        return (*self.first.notices, *self.second.notices)

    def load(self, features: Features | None) -> HybridDrafter:
        """Both, loaded."""
        return HybridDrafter(self.first.load(features), self.second.load(features), self.name)
