"""Drafters with weights: opened and checked before anything is generated, loaded one at a time afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from specprobe.drafters.base import Drafter
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice
from specprobe.profiles import Profile

if TYPE_CHECKING:
    from specprobe.causal_lm import LoadOptions
    from specprobe.features import Features
    from specprobe.served_states import ServedStates
    from specprobe.target import Target
    from specprobe.target_distribution import TargetDistribution
    from specprobe.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a drafter with weights is opened for.

    `target`: None where responses come from a log and no target is named. `greedy`, `sampled`: whether drafts are
    the likeliest tokens, and whether they are drawn from the draft distribution, above temperature 0. `depth`: the
    most tokens per round. `temperatures`: of the responses, where known. `distribution`: p of the target while it
    wrote, for estimates of lower variance; filled with the responses. `elsewhere`: whether the target writes elsewhere;
    `states`: the server that does, where it gives its states.
    """

    target: Target | None
    tokenizer: Tokenizer | None
    options: LoadOptions
    profile: Profile
    depth: int
    sampled: bool
    greedy: bool = True
    temperatures: tuple[float, ...] = ()
    distribution: TargetDistribution | None = None
    elsewhere: bool = False
    states: ServedStates | None = None

    @property
    def may_be_warm(self) -> bool:
        """Whether a temperature is above 0, as far as is known."""
        return not self.temperatures or max(self.temperatures) > 0

    def positions_heeded(self, config: Any) -> int | None:
        """The context of a drafter's config, where the engine stops drafting at it."""
        limit = getattr(config, "max_position_embeddings", None)
        return limit if isinstance(limit, int) and self.profile.engine.startswith("vllm") else None

    def context_notices(self, label: str, config: Any) -> tuple[Notice, ...]:
        """A warning where the drafter's context ends before the target's."""
        limit = self.positions_heeded(config)
        target = self._known_target
        whole = getattr(target.text_config, "max_position_embeddings", None) if target else None
        if limit is None or whole is None or limit >= whole:
            return ()
        return (
            Notice(
                "drafter_context",
                f"{label}: knows {limit} positions, the target {whole}; where a sequence gets longer vLLM drafts "
                "nothing, and for no other request of its batch either: replayed request by request",
            ),
        )

    def needed_target(self, name: str) -> Target:
        """The target, without layers where a server gives its states; or a SpecprobeError why it is needed."""
        target = self._known_target
        if target is not None:
            return target
        if self.elsewhere:
            raise SpecprobeError(
                f"--drafter {name}: drafts from the target's hidden states, which another engine keeps to itself; "
                "leave --backend out where the checkpoint fits, or replay ngram, suffix or draft:MODEL"
            )
        raise SpecprobeError(
            f"--drafter {name}: reads the target's hidden states or weights; name the target with --target"
        )

    @property
    def _known_target(self) -> Target | None:
        return self.states.frame if self.states is not None else self.target


class OpenDrafter(Protocol):
    """A drafter whose checkpoint was found and fits the target, but whose weights are not loaded yet.

    `taps`: the states of the target that it reads, see `Features`. `notices`: what the user should know of it.
    `has_model`: whether a model drafts, so that there is something to load.
    """

    @property
    def name(self) -> str:
        """As the user wrote it, without options."""

    @property
    def has_model(self) -> bool:
        """Whether a model drafts."""

    @property
    def can_sample(self) -> bool:
        """Whether engines can draw its drafts from its distribution."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The states of the target that it reads."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What was odd about the checkpoint."""

    def load(self, features: Features | None) -> Drafter:
        """The drafter, ready to draft; `features` hold its taps."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """`NAME:MODEL[,key=value...]` as the user wrote it."""

    name: str
    model: str
    options: Mapping[str, str]

    @property
    def label(self) -> str:
        """Name and model."""
        return f"{self.name}:{self.model}" if self.model else self.name


@dataclass(frozen=True, slots=True)
class ModelFree:
    """A drafter without weights, as one that is loaded already."""

    drafter: Drafter
    taps: tuple[int, ...] = ()
    notices: tuple[Notice, ...] = ()
    has_model: bool = False
    can_sample: bool = False

    @property
    def name(self) -> str:
        """The drafter's."""
        return self.drafter.name

    def load(self, features: Features | None) -> Drafter:  # noqa: ARG002
        """The drafter itself."""
        return self.drafter


class OpenModel:
    """What drafters with weights have in common."""

    spec: ModelSpec
    has_model = True
    taps: tuple[int, ...] = ()
    notices: tuple[Notice, ...] = ()

    @property
    def name(self) -> str:
        """Name and model."""
        return self.spec.label

    @property
    def can_sample(self) -> bool:
        """Whether engines can draw its drafts from its distribution."""
        return True


def describe_model(spec: ModelSpec, **facts: Any) -> dict[str, Any]:
    """The record of a drafter with weights: which model, the options given, and what was found out."""
    return {**({"model": spec.model} if spec.model else {}), **spec.options, **facts}
