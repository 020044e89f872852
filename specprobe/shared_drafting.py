"""Drafters with models whose work a crew does: opened here, loaded by each of the crew, batch by batch replayed there.

What a drafter says of a response depends on the responses of its batch alone, and that only by rounding. Imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specprobe.batches import text_windows
from specprobe.crew import Bench
from specprobe.drafters import DraftContext, ModelSpec, open_drafter
from specprobe.drafters.base import Adoption, Drafter, Limits, Proposals
from specprobe.drafters.models import OpenDrafter
from specprobe.features import LAST, CarriedFeatures, Features, carried
from specprobe.processors import ProcessingRule
from specprobe.target import Target
from specprobe.target_distribution import TargetDistribution
from specprobe.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class _Order:
    """Which drafter to load, and for what: `context` without what each process has of its own.

    `rule`: how the engine processes the target's logits, where p of the target is known.
    """

    spec: ModelSpec
    context: DraftContext
    rule: ProcessingRule | None


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Responses of one batch, with the target's states at their tokens."""

    order: _Order
    works: Sequence[Trajectory]
    depth: int
    limits: Limits
    features: CarriedFeatures


@dataclass(frozen=True, slots=True)
class _Description:
    """A drafter without its weights."""

    name: str
    config: Mapping[str, Any]
    fixed_length: bool
    adoption: Adoption


class OpenShared:
    """A drafter that was opened and checked here, to be loaded by the crew of its target."""

    has_model = True

    def __init__(self, inner: OpenDrafter, spec: ModelSpec, context: DraftContext) -> None:
        self.name, self.can_sample = inner.name, inner.can_sample
        self.taps, self.notices = inner.taps, inner.notices
        self._spec, self._context = spec, context

    def load(self, features: Features | None) -> SharedDrafter:
        """One of the crew loads it and says what it is; the others follow when they are given work."""
        target, distribution = self._context.needed_target(self._spec.name), self._context.distribution
        order = _Order(
            self._spec,
            replace(self._context, target=None, tokenizer=None, distribution=None),
            distribution.rule if distribution is not None and distribution.is_known else None,
        )
        ((_, description),) = target.each(_describe, [order])
        return SharedDrafter(description, order, target, features, self.taps)


class SharedDrafter:
    """A drafter that is loaded elsewhere."""

    def __init__(
        self,
        description: _Description,
        order: _Order,
        target: Target,
        features: Features | None,
        taps: Sequence[int],
    ) -> None:
        self.name, self.config = description.name, description.config
        self.fixed_length, self.adoption = description.fixed_length, description.adoption
        self._order, self._target, self._features, self._taps = order, target, features, taps

    def proposals(self, trajectories: Iterable[Trajectory], depth: int, limits: Limits) -> Iterator[Proposals]:
        """In the order given, whoever is done first."""
        works = list(trajectories)
        batches = [batch for window in text_windows(works) for batch in window]
        pieces = (self._piece([works[i] for i in batch], depth, limits) for batch in batches)
        found: dict[int, Proposals] = {}
        turn = 0
        for number, proposals in self._target.each(_draft, pieces):
            found |= zip(batches[number], proposals, strict=True)
            while turn in found:
                yield found.pop(turn)
                turn += 1

    def _piece(self, works: Sequence[Trajectory], depth: int, limits: Limits) -> _Piece:
        taps = set(self._taps)
        if self._order.rule is not None and works[0].temperature > 0:
            taps.add(LAST)
        states = CarriedFeatures() if self._features is None else carried(self._features, sorted(taps), works)
        return _Piece(self._order, works, depth, limits, states)


@dataclass(slots=True)
class _Loaded:
    """The drafter that one of the crew holds, and where it reads states."""

    order: _Order
    drafter: Drafter
    features: _Current


class _Current:
    """The states that came with the piece that is worked on."""

    def __init__(self) -> None:
        self.carried = CarriedFeatures()

    def read(self, tap: int, trajectory: Trajectory) -> Any:
        """See `Features`."""
        return self.carried.read(tap, trajectory)


def _describe(bench: Bench, order: _Order) -> _Description:
    drafter = _loaded(bench, order).drafter
    return _Description(drafter.name, drafter.config, drafter.fixed_length, drafter.adoption)


def _draft(bench: Bench, piece: _Piece) -> list[Proposals]:
    loaded = _loaded(bench, piece.order)
    loaded.features.carried = piece.features
    return list(loaded.drafter.proposals(piece.works, piece.depth, piece.limits))


def _loaded(bench: Bench, order: _Order) -> _Loaded:
    if bench.drafter is None or bench.drafter.order != order:
        # Gone before the next one is loaded, and so are the target's layers: nobody runs them any more.
        bench.drafter = None
        bench.target.park_layers()
        bench.drafter = _load(bench.target, order)
    loaded: _Loaded = bench.drafter
    return loaded


def _load(target: Target, order: _Order) -> _Loaded:
    features, distribution = _Current(), None
    if order.rule is not None:
        distribution = TargetDistribution(target, order.rule)
        distribution.use(features)
    context = replace(order.context, target=target, tokenizer=target.tokenizer, distribution=distribution)
    return _Loaded(order, open_drafter(order.spec, context).load(features), features)
