"""A drafter that several results of a run need, such as a draft model by itself and in a hybrid: it drafts once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specprobe.drafters.base import Adoption, Drafter, Limits, Proposals
from specprobe.drafters.models import OpenDrafter
from specprobe.trajectory import Trajectory

if TYPE_CHECKING:
    from specprobe.features import Features


class OpenRemembered:
    """An opened drafter whose proposals are kept, by trajectories, for the next time it is loaded."""

    def __init__(self, inner: OpenDrafter) -> None:
        self.name, self.has_model, self.can_sample = inner.name, inner.has_model, inner.can_sample
        self.taps, self.notices = inner.taps, inner.notices
        self._inner = inner
        self._kept: dict[tuple[Any, ...], list[Proposals]] = {}
        self._like: RememberedDrafter | None = None

    def load(self, features: Features | None) -> RememberedDrafter:
        """With weights the first time; after that what is kept is all there is to know."""
        if self._like is None:
            drafter = self._inner.load(features)
            self._like = RememberedDrafter(drafter, None, self._kept)
            return RememberedDrafter(drafter, drafter, self._kept)
        return self._like


class RememberedDrafter:
    """A drafter's description, what it has drafted so far, and the drafter itself while there is more to draft."""

    def __init__(self, like: Drafter, inner: Drafter | None, kept: dict[tuple[Any, ...], list[Proposals]]) -> None:
        self.name: str = like.name
        self.config: Mapping[str, Any] = like.config
        self.fixed_length: bool = like.fixed_length
        self.adoption: Adoption = like.adoption
        self._inner, self._kept = inner, kept

    def proposals(self, trajectories: Iterable[Trajectory], depth: int, limits: Limits) -> Iterator[Proposals]:
        """As the drafter's."""
        works = list(trajectories)
        key = (depth, limits, _digest(works))
        if self._inner is None:
            yield from self._kept[key]
            return
        kept = []
        for proposals in self._inner.proposals(works, depth, limits):
            kept.append(proposals)
            yield proposals
        self._kept[key] = kept


def _digest(works: Sequence[Trajectory]) -> bytes:
    """Of all that a draft depends on. Which objects they are tells nothing: they may be read anew each time."""
    digest = hashlib.blake2b(digest_size=16)
    for work in works:
        digest.update(repr((work.id, work.sample, work.temperature, work.processors)).encode("utf-8", "surrogatepass"))
        for ids in (work.prompt_ids, work.output_ids, work.tail_ids):
            digest.update(ids.size.to_bytes(8, "little"))
            digest.update(ids.tobytes())
    return digest.digest()
