"""Acceptance profiles: what a named engine, at a named version, does with drafts.

A profile is data. It fixes which occurrence an n-gram lookup copies, whether a short draft is padded, and which
model-free drafters the engine offers. `resolve_profile("vllm@0.32")` picks the newest known profile that is
not above the version asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from specprobe.defaults import ENGINE
from specprobe.errors import SpecprobeError


@dataclass(frozen=True, slots=True)
class NgramRule:
    """How an engine's n-gram drafter (prompt lookup) chooses the tokens to copy.

    Of the lengths `max_n` down to `min_n`, the longest one that has an earlier occurrence is used.
    `match`: the earliest or the latest of its occurrences. `pad`: whether the draft is filled up to the depth
    with the last sampled token. `skip_newest`: how many of the newest tokens neither end an occurrence nor are
    copied (an occurrence always ends before the newest token). `first_start`: the first start that is tried.
    `copy_limit`: the most tokens copied, whatever the depth. `min_copied`: fewer available means no draft.
    `min_history`: no draft while the history is shorter than this. `stop_at_end_token`: the copy is cut
    before an end-of-text token.
    """

    min_n: int
    max_n: int
    match: Literal["earliest", "latest"]
    pad: Literal["none", "last_token"] = "none"
    skip_newest: int = 0
    first_start: int = 0
    copy_limit: int | None = None
    min_copied: int = 1
    min_history: int = 0
    stop_at_end_token: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine at one version.

    `has_ngram_min`: whether its users can set the shortest lookup. `has_depth_by_batch`: whether it takes a table of
    depths by batch size. `samples_drafts`: whether drafts can be drawn from the draft distribution. `mtp_feeds_back`:
    what DeepSeek's module hands to the next position. `source` says where the rules were read.
    """

    engine: str
    version: str
    ngram: NgramRule
    drafters: tuple[str, ...]
    source: str
    has_ngram_min: bool = True
    has_depth_by_batch: bool = False
    samples_drafts: bool = False
    mtp_feeds_back: Literal["pre_norm", "post_norm"] = "pre_norm"

    @property
    def name(self) -> str:
        """The name that results carry, for example `vllm@0.30`."""
        return f"{self.engine}@{self.version}"


_VLLM_V1 = NgramRule(min_n=5, max_n=5, match="earliest")
_VLLM_V2 = NgramRule(min_n=5, max_n=5, match="latest", pad="last_token")
_VLLM_V1_SOURCE = "vllm {} vllm/v1/spec_decode/ngram_proposer.py"

_VLLM_METHODS = ("ngram", "suffix", "draft", "pard", "eagle", "eagle3", "mtp", "dflash")
# It left vLLM between 0.30 and 0.33. The MLP speculator's name stayed until then without code that drafts.
_VLLM_METHODS_TO_0_30 = (*_VLLM_METHODS, "medusa")

# Oldest first within an engine: the newest one not above the version asked for applies.
PROFILES: tuple[Profile, ...] = (
    *(
        Profile(
            "vllm",
            version,
            _VLLM_V1,
            _VLLM_METHODS_TO_0_30,
            _VLLM_V1_SOURCE.format(version),
            has_depth_by_batch=version in ("0.26", "0.30"),  # documented since 0.24
            samples_drafts=version != "0.13",
            mtp_feeds_back="post_norm" if version in ("0.26", "0.30") else "pre_norm",
        )
        for version in ("0.13", "0.22", "0.26", "0.30")
    ),
    Profile(
        "vllm",
        "0.33",
        _VLLM_V2,
        _VLLM_METHODS,
        "vllm 0.33 vllm/v1/worker/gpu/spec_decode/ngram/speculator.py (model runner V2)",
        has_depth_by_batch=True,
        samples_drafts=True,
        mtp_feeds_back="post_norm",
    ),
    Profile(
        "vllm-v1",
        "0.33",
        _VLLM_V1,
        _VLLM_METHODS,
        _VLLM_V1_SOURCE.format("0.33"),
        has_depth_by_batch=True,
        samples_drafts=True,
        mtp_feeds_back="post_norm",
    ),
    Profile(
        "hf",
        "5.24",
        NgramRule(min_n=1, max_n=2, match="earliest", stop_at_end_token=True),
        ("ngram", "draft", "mtp", "dflash", "early-exit"),
        "transformers 5.24 generation/candidate_generator.py, PromptLookupCandidateGenerator",
        has_ngram_min=False,
        samples_drafts=True,
        mtp_feeds_back="post_norm",
    ),
    Profile(
        "llama.cpp",
        "2026-10",
        NgramRule(
            min_n=12,
            max_n=12,
            match="latest",
            skip_newest=1,
            first_start=1,
            copy_limit=48,
            min_copied=12,
            min_history=12 + 48 + 3,
        ),
        ("ngram", "draft", "eagle3", "mtp", "dflash"),
        "llama.cpp 2026-10 common/ngram-map.cpp, ngram-simple",
    ),
)

LONGEST_VERSION = 40
ENGINE_ALIASES = {"transformers": "hf", "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp"}


def resolve_profile(engine: str = ENGINE) -> Profile:
    """The profile for `NAME` or `NAME@VERSION`.

    Raises SpecprobeError for an engine that is not known, and for a version that is not a number.
    """
    name, _, version = engine.strip().partition("@")
    name = ENGINE_ALIASES.get(name.lower(), name.lower())
    known = [profile for profile in PROFILES if profile.engine == name]
    if not known:
        names = ", ".join(dict.fromkeys(profile.engine for profile in PROFILES))
        raise SpecprobeError(
            f"--engine: {engine!r} is not a known engine; use one of {names}, with or without @VERSION"
        )
    if not version:
        return known[-1]
    wanted = _version_key(version, engine)
    not_above = [profile for profile in known if _version_key(profile.version, engine) <= wanted]
    return not_above[-1] if not_above else known[0]


def outside_known_versions(engine: str) -> Literal["older", "newer"] | None:
    """Whether the version asked for lies outside those whose rules were read, which may then be wrong for it."""
    version = engine.partition("@")[2]
    # llama.cpp's build numbers (b9999) and the dates of its profiles cannot be compared.
    if not version or version.startswith("b"):
        return None
    known = [_version_key(p.version, engine) for p in PROFILES if p.engine == resolve_profile(engine).engine]
    asked = _version_key(version, engine)
    if asked < known[0]:
        return "older"
    # A patch release of the newest known version is that version.
    return "newer" if asked[: len(known[-1])] > known[-1] else None


def _version_key(version: str, engine: str) -> tuple[int, ...]:
    numbers = re.findall(r"\d+", version)
    if not re.match(r"[vb]?\d", version) or len(version) > LONGEST_VERSION:
        raise SpecprobeError(f"--engine: {engine!r} has no version number after '@'; write for example vllm@0.30")
    return tuple(int(number) for number in numbers)
