"""Drafters: each says, for every place a round can start, what it would have proposed.

A drafter is a name in `MODEL_FREE` and a factory, or, where it has weights, a name in `WITH_MODEL` and a function that
opens it; `parse_drafter("ngram:min=2,max=4", profile)` reads what the user wrote, `open_drafter` finds the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from specprobe.drafters.base import Adoption, Drafter, Limits, Proposals
from specprobe.drafters.models import DraftContext, ModelFree, ModelSpec, OpenDrafter
from specprobe.drafters.ngram import make_ngram
from specprobe.drafters.suffix import make_suffix
from specprobe.errors import SpecprobeError
from specprobe.profiles import Profile

DEFAULT_DRAFTERS = ("ngram", "suffix")
"""What is replayed where nobody names a drafter, of those that the engine offers."""

MODEL_FREE: Mapping[str, Callable[[Mapping[str, str], Profile], Drafter]] = {
    "ngram": make_ngram,
    "suffix": make_suffix,
}
# The module below this package and its function; imported when asked for, since they import torch.
WITH_MODEL: Mapping[str, tuple[str, str]] = {
    "draft": ("draft", "open_draft"),
    "pard": ("pard", "open_pard"),
    "eagle": ("eagle", "open_eagle"),
    "eagle3": ("eagle3", "open_eagle3"),
    "mtp": ("mtp", "open_mtp"),
    "medusa": ("medusa", "open_medusa"),
    "mlp": ("mlp", "open_mlp"),
    "dflash": ("dflash", "open_dflash"),
    "early-exit": ("draft", "open_early_exit"),
}
# Those of them that read the target's text and nothing else of it.
BESIDE_TARGET = ("draft", "pard")
# Those that need no model named: it is the target itself.
OF_THE_TARGET = ("mtp", "early-exit")
NAMES = (*MODEL_FREE, *WITH_MODEL, "hybrid", "python")

__all__ = [
    "DEFAULT_DRAFTERS",
    "MODEL_FREE",
    "NAMES",
    "WITH_MODEL",
    "Adoption",
    "DraftContext",
    "Drafter",
    "HybridSpec",
    "Limits",
    "ModelSpec",
    "OpenDrafter",
    "Parsed",
    "Proposals",
    "is_model_free",
    "open_drafter",
    "parse_drafter",
    "reads_states",
]


@dataclass(frozen=True, slots=True)
class HybridSpec:
    """`hybrid:FIRST+SECOND`."""

    first: Drafter
    second: Parsed

    @property
    def name(self) -> str:
        """Both names."""
        return f"hybrid:{self.first.name}+{self.second.name}"


Parsed = Drafter | ModelSpec | HybridSpec


def parse_drafter(spec: str, profile: Profile) -> Parsed:
    """A drafter from `NAME`, `NAME:key=value,...` or `NAME:MODEL,key=value,...`, without touching a model.

    Raises SpecprobeError for an unknown name, one that the engine does not offer, or an option that is not
    `key=value`, unknown, or out of range.
    """
    name, _, rest = spec.strip().partition(":")
    if name not in NAMES:
        raise SpecprobeError(f"--drafter: {spec!r} is not a known drafter; use one of {', '.join(NAMES)}")
    if name == "python":
        from specprobe.drafters.custom import make_custom

        return make_custom(rest)
    if name == "hybrid":
        return _parse_hybrid(spec, rest, profile)
    if name in MODEL_FREE and name not in profile.drafters:
        why = f" ({profile.not_replayed[name]})" if name in profile.not_replayed else ""
        raise SpecprobeError(
            f"--drafter: {profile.name} does not offer {name!r}{why}; use one of {', '.join(profile.drafters)}, "
            f"or name another --engine"
        )
    model, options = _model_and_options(spec, rest)
    if name in MODEL_FREE:
        if model:
            raise SpecprobeError(f"--drafter: {spec!r}: {model!r} is not key=value")
        return MODEL_FREE[name](options, profile)
    if not model and name not in OF_THE_TARGET:
        raise SpecprobeError(f"--drafter {name}: needs a model; write {name}:MODEL, a folder or a Hub id")
    return ModelSpec(name, model, options)


def is_model_free(drafter: Parsed) -> bool:
    """Whether it drafts from the text alone, so that an answered log is all it needs."""
    if isinstance(drafter, HybridSpec):
        return is_model_free(drafter.second)
    return not isinstance(drafter, ModelSpec)


def reads_states(drafter: Parsed) -> bool:
    """Whether it drafts from the target's hidden states."""
    if isinstance(drafter, HybridSpec):
        return reads_states(drafter.second)
    return isinstance(drafter, ModelSpec) and drafter.name not in BESIDE_TARGET


def open_drafter(
    parsed: Parsed, context: DraftContext, open_half: Callable[[Parsed], OpenDrafter] | None = None
) -> OpenDrafter:
    """Find and check what the drafter needs, without loading weights. Raises SpecprobeError for what does not fit.

    `open_half` opens the second half of a hybrid, by default as any other.
    """
    if isinstance(parsed, HybridSpec):
        from specprobe.drafters.hybrid import OpenHybrid

        second = open_half(parsed.second) if open_half else open_drafter(parsed.second, context)
        return OpenHybrid(parsed.name, ModelFree(parsed.first), second)
    if isinstance(parsed, ModelSpec):
        module, function = WITH_MODEL[parsed.name]
        opened: OpenDrafter = getattr(import_module(f"{__name__}.{module}"), function)(parsed, context)
        return opened
    return ModelFree(parsed)


def _parse_hybrid(spec: str, rest: str, profile: Profile) -> HybridSpec:
    before, plus, after = rest.partition("+")
    if not plus:
        raise SpecprobeError(f"--drafter: {spec!r}: write hybrid:suffix+draft:MODEL")
    for half in (before, after):
        if half.strip().startswith("python:"):
            # It is only asked where its own rounds start, and a hybrid's start elsewhere.
            raise SpecprobeError(
                f"--drafter: {spec!r}: your own drafter cannot be half of a hybrid; put both into its class"
            )
    first = parse_drafter(before, profile)
    second = parse_drafter(after, profile)
    if isinstance(first, ModelSpec | HybridSpec):
        raise SpecprobeError(f"--drafter: {spec!r}: the first drafter must be one without a model, such as suffix")
    if isinstance(second, HybridSpec):
        raise SpecprobeError(f"--drafter: {spec!r}: a hybrid has two drafters")
    return HybridSpec(first, second)


def _model_and_options(spec: str, rest: str) -> tuple[str, dict[str, str]]:
    """`MODEL,key=value,...`: what comes before the first key=value is the model (a folder may hold a comma)."""
    pieces = rest.split(",")
    while pieces and "=" not in pieces[0]:
        pieces.pop(0)
    model = rest[: len(rest) - len(",".join(pieces))].rstrip(",").strip()
    options: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in pieces)):
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise SpecprobeError(f"--drafter: {spec!r}: {part!r} is not key=value")
        options[key.strip()] = value.strip()
    return model, options
