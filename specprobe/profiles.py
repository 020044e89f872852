"""Acceptance profiles: what a named engine, at a named version, does with drafts.

A profile is data. It fixes which drafters the engine offers and how its n-gram lookup copies, how it makes the
target's distribution, whether models draft greedily or draw their drafts, and by which rule drafts are accepted.
`resolve_profile("vllm@0.32")` picks the newest known profile that is not above the version asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from specprobe.defaults import ENGINE
from specprobe.errors import SpecprobeError
from specprobe.processors import ProcessingRule, Step

DraftSampling = Literal["greedy", "sampled"]
SampledRule = Literal["rejection", "exact_match"]


@dataclass(frozen=True, slots=True)
class NgramRule:
    """How an engine's n-gram drafter (prompt lookup) chooses the tokens to copy.

    Of the lengths `max_n` down to `min_n`, the longest one that has an earlier occurrence is used.
    `match`: the earliest or the latest of its occurrences. `pad`: whether the draft is filled up to the depth
    with the last sampled token. `skip_newest`: how many of the newest tokens neither end an occurrence nor are
    copied (an occurrence always ends before the newest token). `first_start`: the first start that is tried.
    `copy_limit`: the most tokens copied, whatever the depth. `min_copied`: fewer available means no draft.
    `min_history`: no draft while the history is shorter than this. `stop_at_end_token`: the copy is cut
    before an end-of-text token. `depth_is_copied`: whether the depth is the number of tokens copied, at most
    `copy_limit`, and no limit beside it, so that what a draft and a history must have at least depends on the depth.
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
    depth_is_copied: bool = False

    def at_depth(self, depth: int) -> NgramRule:
        """The rule of a server that drafts at most so many tokens.

        llama.cpp's ngram-simple (b11434, common/ngram-map.cpp) drafts size-m tokens whatever --spec-draft-n-max says
        (common_speculative_n_max), and looks nothing up in a history of size-n + size-m + 2 tokens or fewer, the newest
        included.
        """
        if not self.depth_is_copied or self.copy_limit is None:
            return self
        copied = min(depth, self.copy_limit)
        return replace(self, copy_limit=copied, min_history=self.max_n + copied + 3)


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine at one version.

    `drafters`: what it offers and specprobe replays; `not_replayed`: what it offers under a name of ours but by rules
    that are not replayed, with the reason. `ngram`: None where prompt lookup is not among them. `processing`: how the
    target's distribution is made.

    Greedy drafts are one-hot: p(draft) is the chance to accept one, be it by a coin or by sampling the target and
    comparing, which is the same. `sampled_drafts`: the rule for drafts that are drawn from the draft distribution,
    min(1, p/q) or exact match with what the target samples; None where the engine always drafts greedily.
    `greedy_drafts`: whether models can draft greedily above temperature 0. `draft_order`: what is done to a
    drafter's logits before a draft is drawn, `draft_orders` where a method differs. `caveats`: what users should know
    above temperature 0; `own_truncation`: how the engine cuts where a request does not say. `lossy`: settings that
    change what is written, which are therefore not replayed.

    `has_ngram_min`: whether users can set the shortest lookup. `has_depth_by_batch`: whether it takes a table of
    depths by batch size. `mtp_feeds_back`: what DeepSeek's module hands to the next position.
    `drafts_within_request`: whether drafts are cut at the request's token limit. `source` says where the rules were
    read.
    """

    engine: str
    version: str
    ngram: NgramRule | None
    drafters: tuple[str, ...]
    source: str
    processing: ProcessingRule
    sampled_drafts: SampledRule | None = None
    greedy_drafts: bool = True
    draft_order: tuple[Step, ...] = ("temperature",)
    draft_orders: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    own_truncation: str | None = None
    lossy: tuple[str, ...] = ()
    not_replayed: Mapping[str, str] = field(default_factory=dict)
    has_ngram_min: bool = True
    has_depth_by_batch: bool = False
    mtp_feeds_back: Literal["pre_norm", "post_norm"] = "pre_norm"
    drafts_within_request: bool = False

    @property
    def name(self) -> str:
        """The name that results carry, for example `vllm@0.30`."""
        return f"{self.engine}@{self.version}"

    @property
    def draft_samplings(self) -> tuple[DraftSampling, ...]:
        """How models may draft above temperature 0."""
        offered: list[DraftSampling] = ["greedy"] if self.greedy_drafts else []
        return (*offered, "sampled") if self.sampled_drafts else tuple(offered)


_VLLM_V1 = NgramRule(min_n=5, max_n=5, match="earliest")
_VLLM_V2 = NgramRule(min_n=5, max_n=5, match="latest", pad="last_token")
_VLLM_V1_SOURCE = "vllm {} vllm/v1/spec_decode/ngram_proposer.py, vllm/v1/sample/rejection_sampler.py"
_VLLM_V2_SOURCE = "vllm {} vllm/v1/worker/gpu/spec_decode: {}rejection_sampler.py (model runner V2)"
# vllm/sampling_params.py _validate_spec_decode, 0.18.1 to 0.33.
_VLLM_PROCESSING = ProcessingRule(
    order=("temperature", "min_p", "top_k", "top_p"),
    without={"min_p": "vLLM refuses such requests while it speculates"},
)

_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_HF_ORDER: tuple[Step, ...] = ("temperature", "top_k", "top_p", "min_p")

_VLLM_METHODS = ("ngram", "suffix", "draft", "pard", "eagle", "eagle3", "mtp", "dflash")
# It left vLLM after 0.32. The MLP speculator's name stayed until then without code that drafts.
_VLLM_METHODS_TO_0_32 = (*_VLLM_METHODS, "medusa")
_VLLM_LOSSY = ("rejection_sample_method fly", "rejection_sample_method synthetic")


def _vllm(engine: str, version: str, *, v2: bool = False) -> Profile:
    number = tuple(map(int, version.split(".")))
    return Profile(
        engine,
        version,
        ngram=_VLLM_V2 if v2 else _VLLM_V1,
        drafters=_VLLM_METHODS if number > (0, 32) else _VLLM_METHODS_TO_0_32,
        source=_VLLM_V2_SOURCE.format(version, "ngram/speculator.py, ") if v2 else _VLLM_V1_SOURCE.format(version),
        processing=_VLLM_PROCESSING,
        # draft_sample_method probabilistic; in 0.13 every draft is the argmax.
        sampled_drafts="rejection" if number >= (0, 22) else None,
        lossy=_VLLM_LOSSY if number >= (0, 26) else (),
        has_depth_by_batch=number >= (0, 24),
        mtp_feeds_back="post_norm" if number >= (0, 26) else "pre_norm",
    )


# Oldest first within an engine: the newest one not above the version asked for applies.
PROFILES: tuple[Profile, ...] = (
    *(_vllm("vllm", version) for version in ("0.13", "0.22", "0.26", "0.30")),
    _vllm("vllm", "0.33", v2=True),
    _vllm("vllm-v1", "0.32"),
    _vllm("vllm-v1", "0.33"),
    Profile(
        "vllm-v2",
        "0.18",
        ngram=None,
        drafters=("eagle", "eagle3", "mtp"),
        source=_VLLM_V2_SOURCE.format("0.18", ""),
        processing=_VLLM_PROCESSING,
        sampled_drafts="exact_match",
        not_replayed={"ngram": "this runner serves it from 0.32 on; 0.18 falls back to V1: --engine vllm-v1"},
    ),
    replace(
        _vllm("vllm-v2", "0.32", v2=True),
        # vllm/config/vllm.py _get_v2_model_runner_unsupported_features, 0.32: medusa falls back to V1.
        drafters=_VLLM_METHODS,
    ),
    _vllm("vllm-v2", "0.33", v2=True),
    Profile(
        "sglang",
        "0.5.23",
        ngram=None,
        drafters=("draft", "eagle", "eagle3", "mtp", "dflash"),
        source="sglang 0.5.23 srt/speculative/eagle_utils.py, spec_utils.py (chains: speculative-eagle-topk 1)",
        processing=ProcessingRule(
            order=("temperature", "top_k", "top_p"),
            without={
                "min_p": "SGLang ignores it while it speculates",
                **dict.fromkeys(_PENALTIES, "SGLang counts one token of each verified round, which is not replayed"),
            },
        ),
        sampled_drafts="rejection",
        lossy=("speculative-accept-threshold-single below 1", "speculative-accept-threshold-acc below 1"),
        not_replayed={"ngram": "its NGRAM is a trie over the tokens of all requests, not a lookup in the own context"},
    ),
    Profile(
        "tensorrt-llm",
        "1.2",
        ngram=None,
        drafters=("draft", "pard", "eagle3", "mtp", "dflash"),
        source="tensorrt-llm 1.2 _torch/pyexecutor/sampling_utils.py, _torch/speculative/interface.py",
        processing=ProcessingRule(
            order=("temperature", "top_k", "top_p"),
            without=dict.fromkeys((*_PENALTIES, "min_p"), "TensorRT-LLM 1.2 ignores it"),
        ),
        caveats=(
            "eagle3, mtp and pard in one engine sample only with allow_advanced_sampling; without it they write and "
            "accept as at temperature 0",
            "draft in an engine of its own accepts with min(1, p/q) of a greedy draft where its logits are handed on, "
            "which changes the output; replayed is p(draft), as with the overlap scheduler",
        ),
        lossy=("use_relaxed_acceptance_for_thinking",),
        not_replayed={"ngram": "its n-gram pool is shared over requests and filled in the order they run"},
    ),
    Profile(
        "hf",
        "5.24",
        ngram=NgramRule(min_n=1, max_n=2, match="earliest", stop_at_end_token=True),
        drafters=("ngram", "draft", "mtp", "dflash", "early-exit"),
        source="transformers 5.24 generation/candidate_generator.py, generation/utils.py",
        processing=ProcessingRule(
            order=_HF_ORDER,
            without={
                "frequency_penalty": "transformers has no such setting",
                "presence_penalty": "transformers has no such setting",
                "repetition_penalty": "transformers applies it to drafts, too, which is not replayed",
            },
        ),
        sampled_drafts="rejection",
        # do_sample is the target's: drafts are drawn whenever it samples.
        greedy_drafts=False,
        draft_order=_HF_ORDER,
        # The target's processors are handed to the assistant, which puts its own behind them.
        draft_orders={"draft": _HF_ORDER * 2, "early-exit": _HF_ORDER * 2},
        own_truncation="the 50 likeliest tokens: --top-k 50",
        lossy=("assistant_ensemble_weight",),
        has_ngram_min=False,
        mtp_feeds_back="post_norm",
    ),
    Profile(
        "llama.cpp",
        "2026-10",
        ngram=NgramRule(
            min_n=12,
            max_n=12,
            match="latest",
            skip_newest=1,
            first_start=1,
            copy_limit=48,
            min_copied=12,
            depth_is_copied=True,
        ),
        drafters=("ngram", "draft", "eagle3", "mtp", "dflash"),
        source="llama.cpp 2026-10 common/ngram-map.cpp (ngram-simple), common/sampling.cpp",
        processing=ProcessingRule(order=("top_k", "top_p", "min_p", "temperature"), penalty_window=64),
        own_truncation="--top-k 40 --top-p 0.95 --min-p 0.05",
        drafts_within_request=True,
    ),
)

LONGEST_VERSION = 40
ENGINE_ALIASES = {
    "transformers": "hf",
    "llamacpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
    "trtllm": "tensorrt-llm",
    "trt-llm": "tensorrt-llm",
}


def known_engines() -> tuple[str, ...]:
    """The names that `resolve_profile` takes, aliases left out."""
    return tuple(dict.fromkeys(profile.engine for profile in PROFILES))


def is_known_engine(name: str) -> bool:
    """Whether this is the name of an engine, without a version."""
    return ENGINE_ALIASES.get(name.strip().lower(), name.strip().lower()) in known_engines()


def resolve_profile(engine: str = ENGINE) -> Profile:
    """The profile for `NAME` or `NAME@VERSION`.

    Raises SpecprobeError for an engine that is not known, and for a version that is not a number.
    """
    name, _, version = engine.strip().partition("@")
    name = ENGINE_ALIASES.get(name.lower(), name.lower())
    known = [profile for profile in PROFILES if profile.engine == name]
    if not known:
        raise SpecprobeError(
            f"--engine: {engine!r} is not a known engine; use one of {', '.join(known_engines())}, with or without "
            "@VERSION"
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


def other_ngram_runner(engine: str) -> str | None:
    """The profile whose n-gram lookup a vLLM of this version may have instead; None where there is no doubt.

    vLLM 0.32 has both: model runner V2 wherever Triton is installed, which is on every GPU, and V1 elsewhere, as on a
    CPU (vllm/config/vllm.py use_v2_model_runner).
    """
    name, _, version = engine.strip().partition("@")
    if name.lower() != "vllm" or not version:
        return None
    return "vllm-v2@0.32" if (0, 30) < _version_key(version, engine)[:2] < (0, 33) else None


def _version_key(version: str, engine: str) -> tuple[int, ...]:
    numbers = re.findall(r"\d+", version)
    if not re.match(r"[vb]?\d", version) or len(version) > LONGEST_VERSION:
        raise SpecprobeError(f"--engine: {engine!r} has no version number after '@'; write for example vllm@0.30")
    return tuple(int(number) for number in numbers)
