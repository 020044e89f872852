"""The settings of an engine that switch on a drafter, as data and as what to type.

Which keys and flags there are, and what an engine refuses: vLLM's config/speculative.py (read at 0.32, whose own parser
`tests/engines` asks), SGLang 0.5.23 srt/arg_groups/fields/spec.py, TensorRT-LLM 1.2 llmapi/llm_args.py, llama.cpp
common/arg.cpp (2026-10), transformers 5.24 generation/candidate_generator.py.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.profiles import Profile

Schedule = tuple[tuple[int, int, int], ...]
Settings = dict[str, Any]

# By which version a key of --speculative-config is there; older versions stop at a key that they do not know.
_VLLM_KEYS_SINCE: Mapping[str, tuple[int, ...]] = {
    "parallel_drafting": (0, 16),
    "draft_sample_method": (0, 22),
    "use_heterogeneous_vocab": (0, 26),
    "synthetic_acceptance_rates": (0, 26),
}


class EngineRefusesError(SpecprobeError):
    """The engine, at this version, does not take such a drafter or such settings of it."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """What is to be switched on: a drafter as a result records it, its depth, and that by batch where known."""

    drafter: str
    config: Mapping[str, Any]
    depth: int
    schedule: Schedule = ()
    draft_sampling: str = "greedy"

    @property
    def has_own_vocabulary(self) -> bool:
        """Whether its token ids have to be mapped to the target's."""
        return self.config.get("vocabulary") == "mapped"


Writer = Callable[[Speculation], Settings]


def engine_family(engine: str) -> str:
    """The engine whose settings a profile's engine takes: vLLM's two runners have the same."""
    return engine.removesuffix("-v1").removesuffix("-v2")


def engine_config(
    profile: Profile,
    drafter: str,
    config: Mapping[str, Any],
    depth: int,
    schedule: Schedule,
    draft_sampling: str = "greedy",
) -> dict[str, Settings]:
    """`{engine: settings}` for the engine whose rules were replayed; empty where it takes no such drafter."""
    try:
        settings = engine_settings(profile, Speculation(drafter, config, depth, schedule, draft_sampling))
    except EngineRefusesError:
        return {}
    return {engine_family(profile.engine): settings}


def engine_settings(
    profile: Profile,
    wanted: Speculation,
    *,
    version: str | None = None,
    synthetic_rates: Callable[[int], Sequence[float]] | None = None,
) -> Settings:
    """The settings by name, in the order to write them.

    `version`: the engine's own where it is not the profile's. `synthetic_rates`, vLLM's only: for a depth, P(positions
    1..i accepted) [depth], by which drafts are accepted whatever they are, so that throughput can be measured. A
    schedule of several depths is passed on where the engine, at this version, takes one. Raises EngineRefusesError.
    """
    engine = engine_family(profile.engine)
    writer = WRITERS.get((engine, wanted.drafter))
    if writer is None or wanted.drafter not in profile.drafters:
        raise EngineRefusesError(_not_offered(profile, wanted))
    if wanted.draft_sampling == "sampled" and profile.sampled_drafts is None:
        raise EngineRefusesError(f"{profile.name} does not sample its drafts; choose the result with greedy drafts")
    if engine != "vllm" and wanted.has_own_vocabulary:
        raise EngineRefusesError(
            f"{profile.name} takes no drafter with a vocabulary of its own that specprobe knows of; vllm does"
        )
    if not profile.has_depth_by_batch and engine == "vllm":
        wanted = replace(wanted, schedule=())
    try:
        settings = writer(wanted)
    except KeyError as error:
        raise EngineRefusesError(
            f"the result does not record {inert(str(error.args[0]))} of its {inert(wanted.drafter)}, which "
            f"{profile.name} needs; analyze with --engine {profile.name}"
        ) from None
    if engine == "vllm":
        if synthetic_rates is not None:
            rates = synthetic_rates(settings["num_speculative_tokens"])
            settings |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": list(rates)}
        _check_keys(settings, version or profile.version)
    return settings


def command_line(engine: str, settings: Mapping[str, Any]) -> str:
    """What to type for these settings; for TensorRT-LLM what its YAML file holds, for transformers Python."""
    if engine == "vllm":
        return f"vllm serve MODEL --speculative-config {shlex.quote(json.dumps(settings))}"
    if engine == "sglang":
        return "python -m sglang.launch_server --model-path MODEL " + _flags(settings)
    if engine == "llama.cpp":
        return "llama-server -m MODEL " + _flags(settings)
    if engine == "tensorrt-llm":
        # A scalar or a flow mapping of JSON is one of YAML, too.
        return "speculative_config:\n" + "\n".join(f"  {name}: {json.dumps(v)}" for name, v in settings.items())
    if "assistant_model" not in settings:
        return f"model.generate(..., {_arguments(settings)})"
    own = {name: value for name, value in settings.items() if name != "assistant_model"}
    return (
        f"assistant = AutoModelForCausalLM.from_pretrained({settings['assistant_model']!r})\n"
        f"assistant.generation_config.update({_arguments(own)})\n"
        "model.generate(..., assistant_model=assistant)"
    )


def _flags(settings: Mapping[str, Any]) -> str:
    return " ".join(flag if value is True else f"{flag} {_quoted(str(value))}" for flag, value in settings.items())


def _quoted(text: str) -> str:
    """As one word of a shell; what does not print, a line end included, as bash and zsh spell it."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = text.encode("unicode_escape").decode("ascii").replace("'", "\\'")
    return f"$'{escaped}'"


def _arguments(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def _not_offered(profile: Profile, wanted: Speculation) -> str:
    drafter = inert(wanted.drafter, 60)
    if wanted.drafter in profile.not_replayed:
        return f"{profile.name} has no {drafter} like the one replayed: {profile.not_replayed[wanted.drafter]}"
    if wanted.drafter not in profile.drafters:
        return f"{profile.name} does not offer {drafter}; it offers {', '.join(profile.drafters)}"
    return f"specprobe knows no settings of {profile.name} for {drafter}"


def _check_keys(settings: Settings, version: str) -> None:
    number = tuple(int(part) for part in version.lstrip("v").split(".")[:2] if part.isdigit())
    for key, since in _VLLM_KEYS_SINCE.items():
        if key in settings and number < since:
            raise EngineRefusesError(f"vllm {version} has no {key}; name vllm@{'.'.join(map(str, since))} or newer")


def _vllm_ngram(wanted: Speculation) -> Settings:
    settings = {
        "method": "ngram",
        "num_speculative_tokens": wanted.depth,
        "prompt_lookup_min": wanted.config["min"],
        "prompt_lookup_max": wanted.config["max"],
    }
    return _with_schedule(settings, wanted.schedule)


def _vllm_suffix(wanted: Speculation) -> Settings:
    # vLLM's V1 runner, which serves suffix, keeps the depth whatever the batch: no table.
    return {
        "method": "suffix",
        "num_speculative_tokens": wanted.depth,
        "suffix_decoding_max_tree_depth": wanted.config["max_tree_depth"],
        "suffix_decoding_max_cached_requests": wanted.config["max_cached_requests"],
        "suffix_decoding_max_spec_factor": wanted.config["max_spec_factor"],
        "suffix_decoding_min_token_prob": wanted.config["min_token_prob"],
    }


def _vllm_model(method: str, *, takes_schedule: bool = True, **more: Any) -> Writer:
    """Settings that name a model; MTP's is the target itself."""

    def write(wanted: Speculation) -> Settings:
        settings: Settings = {"method": method}
        if method != "mtp" or "model" in wanted.config:
            settings["model"] = wanted.config["model"]
        settings["num_speculative_tokens"] = wanted.depth
        # vLLM takes equal ids in matrices of unequal size for different vocabularies.
        if wanted.has_own_vocabulary or wanted.config.get("equal_sizes") is False:
            if method != "draft_model" or more or wanted.draft_sampling == "sampled":
                raise EngineRefusesError(
                    "vllm takes a drafter with other token ids only where it is a plain draft model with greedy drafts"
                )
            settings["use_heterogeneous_vocab"] = True
        if wanted.config.get("parallel"):
            settings["parallel_drafting"] = True
        settings = {**_with_schedule(settings, wanted.schedule if takes_schedule else ()), **more}
        if method == "mtp":
            _check_reuse(settings["num_speculative_tokens"], wanted.config.get("modules", 1))
        if wanted.draft_sampling == "sampled":
            settings["draft_sample_method"] = "probabilistic"
        return settings

    return write


def _check_reuse(depth: int, modules: int) -> None:
    """vLLM runs the modules of MTP in whole turns (config/speculative.py: divisible by n_predict)."""
    if depth > modules and depth % modules:
        raise EngineRefusesError(
            f"vllm takes a depth of mtp above its {modules} modules only in multiples of {modules}, not {depth}; "
            f"use --depth {depth - depth % modules}"
        )


def _with_schedule(settings: Settings, schedule: Schedule) -> Settings:
    """With a depth by batch size, where the schedule has more than one."""
    if len({row[2] for row in schedule}) > 1:
        settings["num_speculative_tokens"] = max(settings["num_speculative_tokens"], *(row[2] for row in schedule))
        settings["num_speculative_tokens_per_batch_size"] = [list(row) for row in schedule]
    return settings


def _sglang(algorithm: str, *, has_model: bool = True) -> Writer:
    """A chain: one candidate for each position, and the root beside the drafts in the width to verify."""

    def write(wanted: Speculation) -> Settings:
        settings: Settings = {"--speculative-algorithm": algorithm}
        if has_model:
            settings["--speculative-draft-model-path"] = wanted.config["model"]
        if algorithm == "DFLASH":
            settings["--speculative-dflash-block-size"] = wanted.depth + 1
        else:
            settings["--speculative-num-steps"] = wanted.depth
            settings["--speculative-eagle-topk"] = 1
            settings["--speculative-num-draft-tokens"] = wanted.depth + 1
        if wanted.draft_sampling == "sampled":
            settings["--speculative-use-rejection-sampling"] = True
        return settings

    return write


def _tensorrt(decoding_type: str) -> Writer:
    """`speculative_config` of the YAML file; `speculative_model_dir` is how all versions name the model."""

    def write(wanted: Speculation) -> Settings:
        settings: Settings = {"decoding_type": decoding_type}
        if decoding_type == "MTP":
            settings["num_nextn_predict_layers"] = wanted.depth
        else:
            settings["max_draft_len"] = wanted.depth
            settings["speculative_model_dir"] = wanted.config["model"]
        if most := _largest_batch_with_drafts(wanted.schedule):
            settings["max_concurrency"] = most
        return settings

    return write


def _largest_batch_with_drafts(schedule: Schedule) -> int | None:
    """From here on the schedule has no drafts; None where it never stops, or never starts."""
    drafting = [last for _, last, depth in schedule if depth]
    return drafting[-1] if drafting and drafting[-1] < schedule[-1][1] else None


def _llama_cpp_model(kind: str, *, has_model: bool = True) -> Writer:
    def write(wanted: Speculation) -> Settings:
        settings: Settings = {"--spec-type": kind}
        if has_model:
            settings["--spec-draft-model"] = wanted.config["model"]
        return {**settings, "--spec-draft-n-max": wanted.depth}

    return write


def _llama_cpp_ngram(wanted: Speculation) -> Settings:
    """It drafts size-m tokens; --spec-draft-n-max is for models (see `NgramRule.at_depth`)."""
    return {
        "--spec-type": "ngram-simple",
        "--spec-ngram-simple-size-n": wanted.config["max"],
        "--spec-ngram-simple-size-m": min(wanted.depth, wanted.config["copy"]),
    }


def _hf_ngram(wanted: Speculation) -> Settings:
    return {"prompt_lookup_num_tokens": wanted.depth, "max_matching_ngram_size": wanted.config["max"]}


def _hf_draft(wanted: Speculation) -> Settings:
    """Its defaults draft up to 20 tokens, as many as the assistant is sure of, which is not what is replayed."""
    return {
        "assistant_model": wanted.config["model"],
        "num_assistant_tokens": wanted.depth,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }


WRITERS: Mapping[tuple[str, str], Writer] = {
    ("vllm", "ngram"): _vllm_ngram,
    ("vllm", "suffix"): _vllm_suffix,
    ("vllm", "draft"): _vllm_model("draft_model"),
    ("vllm", "pard"): _vllm_model("draft_model", parallel_drafting=True),
    ("vllm", "eagle"): _vllm_model("eagle"),
    ("vllm", "eagle3"): _vllm_model("eagle3"),
    ("vllm", "mtp"): _vllm_model("mtp"),
    ("vllm", "dflash"): _vllm_model("dflash"),
    ("vllm", "medusa"): _vllm_model("medusa", takes_schedule=False),
    ("sglang", "draft"): _sglang("STANDALONE"),
    ("sglang", "eagle"): _sglang("EAGLE"),
    ("sglang", "eagle3"): _sglang("EAGLE3"),
    ("sglang", "mtp"): _sglang("NEXTN", has_model=False),
    ("sglang", "dflash"): _sglang("DFLASH"),
    ("tensorrt-llm", "draft"): _tensorrt("DraftTarget"),
    ("tensorrt-llm", "pard"): _tensorrt("PARD"),
    ("tensorrt-llm", "eagle3"): _tensorrt("Eagle3"),
    ("tensorrt-llm", "mtp"): _tensorrt("MTP"),
    ("tensorrt-llm", "dflash"): _tensorrt("DFlash"),
    ("llama.cpp", "ngram"): _llama_cpp_ngram,
    ("llama.cpp", "draft"): _llama_cpp_model("draft-simple"),
    ("llama.cpp", "eagle3"): _llama_cpp_model("draft-eagle3"),
    ("llama.cpp", "mtp"): _llama_cpp_model("draft-mtp", has_model=False),
    ("llama.cpp", "dflash"): _llama_cpp_model("draft-dflash"),
    ("hf", "ngram"): _hf_ngram,
    ("hf", "draft"): _hf_draft,
}
