"""Configurations that are exported for vLLM, over folders with one config.json each (`checkpoints`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from simulated_runs import acceptance, draw_prompts

from specprobe.acceptance import Acceptance
from specprobe.configuration import synthetic_rates
from specprobe.export import EngineRefusesError, Speculation, command_line, engine_settings
from specprobe.profiles import resolve_profile

ENGINE = "vllm@0.32"
GOLDEN = Path(__file__).parents[1] / "golden" / "exported_vllm.json"
DEPTHS = (1, 3, 8)
DEEPEST = max(DEPTHS)
SCHEDULES = {"": (), "by batch": ((1, 4, 8), (5, 16, 2), (17, 64, 0))}
DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"min": 2, "max": 4, "match": "latest", "pad": "last_token"},
    "suffix": {
        "max_tree_depth": 24, "max_cached_requests": 10_000, "max_spec_factor": 1.0, "min_token_prob": 0.1,
    },
    "draft": {"model": "draft"},
    "draft, other vocabulary": {"model": "draft-other", "vocabulary": "mapped"},
    "pard": {"model": "pard"},
    "eagle": {"model": "eagle"},
    "eagle3": {"model": "eagle3"},
    "eagle3, parallel": {"model": "eagle3-parallel", "parallel": True},
    "mtp": {"modules": 1},
    "mtp, 2 modules": {"modules": 2},
    "dflash": {"model": "dflash"},
    "medusa": {"model": "medusa"},
}  # fmt: skip


def cases() -> Iterator[dict[str, Any]]:
    """`name`, `target` (a folder) and `text` of each, or `refused` with what specprobe says instead."""
    profile = resolve_profile(ENGINE)
    for name, config in DRAFTERS.items():
        drafter = name.partition(",")[0]
        result = _result(drafter, config)
        for depth in DEPTHS:
            for scheduled, schedule in SCHEDULES.items():
                for synthetic in (False, True):
                    for sampling in ("greedy",) if drafter in ("ngram", "suffix") else ("greedy", "sampled"):
                        wanted = Speculation(drafter, config, depth, schedule, sampling)
                        words = [f"{name}, depth {depth}", scheduled, "synthetic" if synthetic else "", sampling]
                        case = {"name": ", ".join(filter(None, words)), "target": _target(name)}
                        try:
                            rates = (lambda k, of=result: synthetic_rates(of, k)) if synthetic else None
                            settings = engine_settings(profile, wanted, version="0.32", synthetic_rates=rates)
                        except EngineRefusesError as refused:
                            yield case | {"refused": str(refused)}
                        else:
                            yield case | {"text": command_line("vllm", settings)}


def _result(drafter: str, config: dict[str, Any]) -> Acceptance:
    rng = np.random.default_rng(0)
    made = acceptance(rng, *draw_prompts(rng, 40), DEEPEST, drafter=drafter, config=config)
    return replace(made, fixed_length=drafter != "suffix")


def _target(name: str) -> str:
    return {"mtp": "target-mtp", "mtp, 2 modules": "target-mtp-2"}.get(name, "target")


def checkpoints() -> dict[str, dict[str, Any]]:
    """config.json by folder: a small Llama, a small GLM-4.5 with MTP, and drafters of theirs."""
    llama = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 2048, "vocab_size": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
    }  # fmt: skip
    one_layer = {**llama, "num_hidden_layers": 1}
    eagle3 = {**one_layer, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 128}
    glm = {
        **llama, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "moe_intermediate_size": 32,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": True,
    }  # fmt: skip
    return {
        "target": llama,
        "target-mtp": {**glm, "num_nextn_predict_layers": 1},
        "target-mtp-2": {**glm, "num_nextn_predict_layers": 2},
        "draft": {**llama, "num_hidden_layers": 2},
        "draft-other": {**llama, "num_hidden_layers": 2, "vocab_size": 600},
        "pard": {**llama, "num_hidden_layers": 2, "pard_token": 16},
        "eagle": one_layer,
        "eagle3": eagle3,
        "eagle3-parallel": {**eagle3, "ptd_token_id": 16},
        "dflash": {
            **llama, "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 2,
            "block_size": 16, "num_target_layers": 6, "dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 7},
        },
        "medusa": {
            "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": 64, "vocab_size": 512,
            "num_heads": 8, "num_hidden_layers": 1,
        },
    }  # fmt: skip
