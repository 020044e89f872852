"""The settings of an engine that switch on what was recommended, as data and as what to type."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from specprobe.profiles import Profile

Schedule = tuple[tuple[int, int, int], ...]


def engine_config(
    profile: Profile,
    drafter: str,
    config: Mapping[str, Any],
    depth: int,
    schedule: Schedule,
    draft_sampling: str = "greedy",
) -> dict[str, Any]:
    """`{engine: settings}` for the engine whose rules were replayed; empty where it has no such drafter.

    A schedule of several depths is passed on where the engine, at this version, takes one.
    """
    engine = profile.engine.removesuffix("-v1").removesuffix("-v2")
    writer = EXPORTS.get((engine, drafter))
    if writer is None:
        return {}
    try:
        settings = writer(config, depth, schedule if profile.has_depth_by_batch else ())
    except KeyError:
        # The settings of a run that was edited by hand.
        return {}
    if engine == "vllm" and draft_sampling == "sampled":
        settings["draft_sample_method"] = "probabilistic"
    return {engine: settings}


def command_line(engine: str, settings: Mapping[str, Any]) -> str:
    """What to type for these settings."""
    if engine == "vllm":
        return f"vllm serve MODEL --speculative-config {shlex.quote(json.dumps(settings))}"
    if engine == "llama.cpp":
        return "llama-server -m MODEL " + " ".join(f"{flag} {value}" for flag, value in settings.items())
    return "model.generate(..., " + ", ".join(f"{name}={value}" for name, value in settings.items()) + ")"


def _vllm_ngram(config: Mapping[str, Any], depth: int, schedule: Schedule) -> dict[str, Any]:
    settings = {
        "method": "ngram",
        "num_speculative_tokens": depth,
        "prompt_lookup_min": config["min"],
        "prompt_lookup_max": config["max"],
    }
    return _with_schedule(settings, schedule)


def _vllm_suffix(config: Mapping[str, Any], depth: int, _: Schedule) -> dict[str, Any]:
    # vLLM 0.33's V1 runner, which serves suffix, keeps the depth whatever the batch: no table.
    return {
        "method": "suffix",
        "num_speculative_tokens": depth,
        "suffix_decoding_max_tree_depth": config["max_tree_depth"],
        "suffix_decoding_max_cached_requests": config["max_cached_requests"],
        "suffix_decoding_max_spec_factor": config["max_spec_factor"],
        "suffix_decoding_min_token_prob": config["min_token_prob"],
    }


def _hf_ngram(config: Mapping[str, Any], depth: int, _: Schedule) -> dict[str, Any]:
    return {"prompt_lookup_num_tokens": depth, "max_matching_ngram_size": config["max"]}


def _llama_cpp_ngram(config: Mapping[str, Any], depth: int, _: Schedule) -> dict[str, Any]:
    return {
        "--spec-type": "ngram-simple",
        "--spec-draft-n-max": depth,
        "--spec-ngram-simple-size-n": config["max"],
        "--spec-ngram-simple-size-m": config["copy"],
    }


def _vllm_model(
    method: str, *, takes_schedule: bool = True, **more: Any
) -> Callable[[Mapping[str, Any], int, Schedule], dict[str, Any]]:
    """Settings that name a model; MTP's is the target itself."""

    def write(config: Mapping[str, Any], depth: int, schedule: Schedule) -> dict[str, Any]:
        settings: dict[str, Any] = {"method": method}
        if "model" in config:
            settings["model"] = config["model"]
        settings["num_speculative_tokens"] = depth
        # vLLM takes equal ids in matrices of unequal size for different vocabularies.
        if config.get("vocabulary") == "mapped" or config.get("equal_sizes") is False:
            settings["use_heterogeneous_vocab"] = True
        if config.get("parallel"):
            settings["parallel_drafting"] = True
        return {**_with_schedule(settings, schedule if takes_schedule else ()), **more}

    return write


def _with_schedule(settings: dict[str, Any], schedule: Schedule) -> dict[str, Any]:
    """With a depth by batch size, where the schedule has more than one."""
    if len({row[2] for row in schedule}) > 1:
        settings["num_speculative_tokens"] = max(settings["num_speculative_tokens"], *(row[2] for row in schedule))
        settings["num_speculative_tokens_per_batch_size"] = [list(row) for row in schedule]
    return settings


EXPORTS: Mapping[tuple[str, str], Callable[[Mapping[str, Any], int, Schedule], dict[str, Any]]] = {
    ("vllm", "ngram"): _vllm_ngram,
    ("vllm", "suffix"): _vllm_suffix,
    ("vllm", "draft"): _vllm_model("draft_model"),
    ("vllm", "pard"): _vllm_model("draft_model", parallel_drafting=True),
    ("vllm", "eagle"): _vllm_model("eagle"),
    ("vllm", "eagle3"): _vllm_model("eagle3"),
    ("vllm", "mtp"): _vllm_model("mtp"),
    ("vllm", "dflash"): _vllm_model("dflash"),
    ("vllm", "medusa"): _vllm_model("medusa", takes_schedule=False),
    ("hf", "ngram"): _hf_ngram,
    ("llama.cpp", "ngram"): _llama_cpp_ngram,
}
