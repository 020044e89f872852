"""Logits processors: what besides temperature shapes the distribution that the target samples from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specprobe.errors import SpecprobeError

Step = Literal["temperature", "top_k", "top_p", "min_p"]


@dataclass(frozen=True, slots=True)
class Processors:
    """One request's settings, in vLLM's names; the defaults leave the distribution alone.

    `top_k`: tokens kept, 0 for all. `top_p`: the smallest set of tokens with this much probability is kept. `min_p`:
    tokens with less than this share of the largest probability go. `repetition_penalty`: logits of tokens seen
    before are divided by it, negative ones multiplied. `frequency_penalty`, `presence_penalty`: taken off a logit for
    each time its token was seen, and once if it was.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                option = f"--{name.replace('_', '-')} {str(value)[:40]}"
                raise SpecprobeError(f"{option}: must be from {_shown(low)} to {_shown(high)}")
        if self.top_k == -1:
            # vLLM's word for all.
            object.__setattr__(self, "top_k", 0)

    @property
    def penalizes(self) -> bool:
        """Whether tokens seen before count."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def truncates(self) -> bool:
        """Whether unlikely tokens are cut off."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def changed(self) -> Mapping[str, float]:
        """The settings that are not at their defaults."""
        return {name: value for name, value in asdict(self).items() if value != getattr(PLAIN, name)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], otherwise: Processors) -> Processors:
        """What a log row asks for (see `formats.request.SETTINGS`); what it leaves out is taken from `otherwise`."""
        said = {name: settings[name] for name in BOUNDS if name in settings}
        if not said:
            return otherwise
        asked = asdict(otherwise) | said
        return cls(**asked | {"top_k": int(asked["top_k"])})


# What an engine would take: of an option, and of a setting in a log.
BOUNDS: dict[str, tuple[float, float]] = {
    "top_k": (-1, 2**31),
    "top_p": (1e-6, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "frequency_penalty": (-10, 10),
    "presence_penalty": (-10, 10),
}
PLAIN = Processors()


@dataclass(frozen=True, slots=True)
class ProcessingRule:
    """How an engine makes the target's distribution from its logits: penalties first, then `order`.

    `penalty_window`: all penalties see that many of the newest tokens, the prompt's included; None: the repetition
    penalty sees prompt and output, the others the output alone. At draft position i they see the drafts before it.
    `without`: settings that the engine does not have, or does not heed while it speculates, with the reason.
    """

    order: tuple[Step, ...] = ("temperature", "min_p", "top_k", "top_p")
    penalty_window: int | None = None
    without: Mapping[str, str] = field(default_factory=dict)

    def obstacle(self, processors: Processors) -> Obstacle | None:
        """The first of these settings under which the engine would not speculate as replayed; None where it would."""
        for name, value in processors.changed.items():
            if name in self.without:
                return Obstacle(name, value, self.without[name])
        return None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A setting that an engine does not heed while it speculates, and why."""

    setting: str
    value: float
    reason: str


DEFAULT_RULE = ProcessingRule()


def _shown(bound: float) -> str:
    """Whole numbers with all their digits."""
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
