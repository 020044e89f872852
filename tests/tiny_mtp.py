"""Tiny random checkpoints in the public layouts: targets with MTP modules, DFlash drafters, PARD models.

Every folder holds config.json, model.safetensors and the byte tokenizer (260 ids). A target with MTP modules is saved
by transformers with as many layers too many as it has modules; the extra layers then get the public MTP names.

Random modules are nearly always wrong. `agreeing` gives weights for which target and modules both depend mostly on the
newest token and in the same way, so that many drafts are accepted.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from toy_target import GENERATION_EOS, byte_backend
from transformers import AutoConfig, AutoModelForCausalLM

Tensors = dict[str, torch.Tensor]

SPREAD = 0.4  # of all random matrices: wide enough that the argmax differs from context to context
NORM_NOISE = 0.2
QUIET = 0.01  # in agreeing models: a factor on what layers add to the residual stream
CALM = 0.25  # and one on the noise of norms
MASK_TOKEN = 259

SIZES = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 3,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "initializer_range": SPREAD,
    "tie_word_embeddings": False,
}


def write_llama(folder: Path, *, seed: int = 0, num_hidden_layers: int = 2, **config_fields: Any) -> Path:
    """A plain Llama: a target with more layers than the toy target has, or an independent drafter."""
    fields = {"num_hidden_layers": num_hidden_layers, "num_key_value_heads": 2, **config_fields}
    return _save_causal_lm(folder, "llama", seed, **fields)


def write_pard(folder: Path, *, seed: int = 0, num_hidden_layers: int = 2, pard_token: int = MASK_TOKEN) -> Path:
    return write_llama(folder, seed=seed, num_hidden_layers=num_hidden_layers, pard_token=pard_token)


def write_deepseek_mtp(
    folder: Path,
    *,
    num_nextn: int = 1,
    seed: int = 0,
    num_hidden_layers: int = 2,
    agreeing: bool = False,
    **config_fields: Any,
) -> Path:
    fields = {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "kv_lora_rank": 16,
        "q_lora_rank": 12,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 6,
        "v_head_dim": 10,
        "first_k_dense_replace": 1,
    }
    fields |= config_fields
    return _write_nextn(folder, "deepseek_v3", num_nextn, seed, num_hidden_layers, agreeing, fields)


def write_glm4_moe_mtp(
    folder: Path,
    *,
    num_nextn: int = 1,
    seed: int = 0,
    num_hidden_layers: int = 2,
    agreeing: bool = False,
    **config_fields: Any,
) -> Path:
    fields = {
        "num_key_value_heads": 2,
        "head_dim": 12,
        "moe_intermediate_size": 24,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    }
    fields |= config_fields
    return _write_nextn(folder, "glm4_moe", num_nextn, seed, num_hidden_layers, agreeing, fields)


def write_qwen3_next_mtp(
    folder: Path,
    *,
    seed: int = 0,
    dense: bool = False,
    num_nextn: int | None = 1,
    agreeing: bool = False,
    **config_fields: Any,
) -> Path:
    """Layers 0 and 2 are linear attention, 1 and 3 full attention. `num_nextn` None leaves the count out of config."""
    kinds = ["linear_attention", "full_attention"] * 2
    fields = {
        "num_hidden_layers": len(kinds) + 1,
        "layer_types": [*kinds, "full_attention"],
        "num_key_value_heads": 2,
        "head_dim": 16,
        "partial_rotary_factor": 0.25,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 20,
        "num_experts": 0 if dense else 4,
        "num_experts_per_tok": 2,
    }
    _save_causal_lm(folder, "qwen3_next", seed, quiet=agreeing, **{**fields, **config_fields})
    tensors = _rename(_read(folder), {f"model.layers.{len(kinds)}.": "mtp.layers.0."})
    make = _Maker(seed + 1, norm_centre=0.0, agreeing=agreeing)
    tensors |= {
        "mtp.pre_fc_norm_embedding.weight": make.norm(),
        "mtp.pre_fc_norm_hidden.weight": make.norm(),
        "mtp.fc.weight": make.projection(),
        "mtp.norm.weight": make.norm(),
    }
    _write(folder, tensors)
    count = {} if num_nextn is None else {"num_nextn_predict_layers": num_nextn}
    _edit_config(folder, num_hidden_layers=len(kinds), layer_types=kinds, full_attention_interval=2, **count)
    return folder


def write_mimo_mtp(folder: Path, *, seed: int = 0, num_hidden_layers: int = 2, agreeing: bool = False) -> Path:
    """transformers has no class for it: load the folder with Qwen2ForCausalLM."""
    fields = {"num_hidden_layers": num_hidden_layers + 1, "num_key_value_heads": 2}
    _save_causal_lm(folder, "qwen2", seed, quiet=agreeing, **fields)
    tensors = _rename(_read(folder), {f"model.layers.{num_hidden_layers}.": "model.mtp_layers.0."})
    make = _Maker(seed + 1, agreeing=agreeing)
    tensors |= {
        "model.mtp_layers.0.token_layernorm.weight": make.norm(),
        "model.mtp_layers.0.hidden_layernorm.weight": make.norm(),
        "model.mtp_layers.0.input_proj.weight": make.projection(hidden_first=True),
        "model.mtp_layers.0.final_layernorm.weight": make.norm(),
    }
    _write(folder, tensors)
    _edit_config(
        folder,
        architectures=["MiMoForCausalLM"],
        model_type="mimo",
        num_hidden_layers=num_hidden_layers,
        num_nextn_predict_layers=1,
        attention_bias=True,
        head_dim=8,
        layer_types=None,
    )
    return folder


def write_dflash(
    folder: Path,
    target_config: Any,
    *,
    seed: int = 0,
    block_size: int = 8,
    layers: int = 2,
    causal: bool | None = None,
    target_layer_ids: Sequence[int] | None = (0,),
    num_taps: int | None = None,
    own_embedding: bool = False,
    own_lm_head: bool = False,
    draft_vocab_size: int | None = None,
    dialect: str = "plain",
    naming: str = "fc",
    mask_token_id: int = MASK_TOKEN,
) -> Path:
    """A Qwen3-like block drafter for a target with `target_config`.

    `target_layer_ids` are those of the plain dialect (the output of layer i); the speculators dialect stores i + 1.
    None leaves them out of the config (plain only): the loader then spreads one id a draft layer over the target.
    `dialect` is "plain" or "speculators"; `naming` "fc" (fc, hidden_norm) or "encoder" (encoder.fc,
    encoder.output_norm_enc). `draft_vocab_size` (speculators) prunes the own lm_head and adds d2t and t2d.
    """
    width, num_heads, num_kv_heads, head_dim = target_config.hidden_size, 4, 2, 16
    taps = len(target_layer_ids) if target_layer_ids is not None else num_taps or layers
    make = _Maker(seed, width=width)
    first, second = ("fc", "hidden_norm") if naming == "fc" else ("encoder.fc", "encoder.output_norm_enc")
    tensors = {f"{first}.weight": make.matrix(width, taps * width), f"{second}.weight": make.norm()}
    for i in range(layers):
        tensors |= {
            f"layers.{i}.self_attn.q_proj.weight": make.matrix(num_heads * head_dim, width),
            f"layers.{i}.self_attn.k_proj.weight": make.matrix(num_kv_heads * head_dim, width),
            f"layers.{i}.self_attn.v_proj.weight": make.matrix(num_kv_heads * head_dim, width),
            f"layers.{i}.self_attn.o_proj.weight": make.matrix(width, num_heads * head_dim),
            f"layers.{i}.self_attn.q_norm.weight": make.norm(head_dim),
            f"layers.{i}.self_attn.k_norm.weight": make.norm(head_dim),
            f"layers.{i}.mlp.gate_proj.weight": make.matrix(64, width),
            f"layers.{i}.mlp.up_proj.weight": make.matrix(64, width),
            f"layers.{i}.mlp.down_proj.weight": make.matrix(width, 64),
            f"layers.{i}.input_layernorm.weight": make.norm(),
            f"layers.{i}.post_attention_layernorm.weight": make.norm(),
        }
    tensors["norm.weight"] = make.norm()
    vocab = target_config.vocab_size
    if own_embedding:
        tensors["embed_tokens.weight"] = make.matrix(vocab, width)
    if own_lm_head or draft_vocab_size:
        tensors["lm_head.weight"] = make.matrix(draft_vocab_size or vocab, width)
    if draft_vocab_size:
        kept = torch.randperm(vocab, generator=make.generator)[:draft_vocab_size].sort().values
        tensors["d2t"] = kept - torch.arange(draft_vocab_size)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).scatter(0, kept, True)
    body = {
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    if dialect == "plain":
        if draft_vocab_size:
            raise ValueError("only the speculators dialect has a draft vocabulary")
        details: dict[str, Any] = {"mask_token_id": mask_token_id}
        if target_layer_ids is not None:
            details["target_layer_ids"] = list(target_layer_ids)
        if causal is not None:
            details["causal"] = causal
        config = {
            **body,
            "architectures": ["DFlashDraftModel"],
            "block_size": block_size,
            "num_target_layers": target_config.num_hidden_layers,
            "dflash_config": details,
        }
    else:
        if target_layer_ids is None or causal is not None:
            raise ValueError("the speculators dialect needs layer ids and has no key for causal attention")
        config = {
            "architectures": ["DFlashSpeculator"],
            "speculators_model_type": "dflash",
            "speculators_version": "0.3.0",
            "aux_hidden_state_layer_ids": [i + 1 for i in target_layer_ids],
            "mask_token_id": mask_token_id,
            "block_size": block_size,
            "draft_vocab_size": draft_vocab_size or vocab,
            "sample_from_anchor": False,
            "transformer_layer_config": body,
            "speculators_config": {
                "algorithm": "dflash",
                "default_proposal_method": "greedy",
                "proposal_methods": [
                    {"proposal_type": "greedy", "speculative_tokens": block_size - 1, "verifier_accept_k": 1}
                ],
                "verifier": {"name_or_path": "toy", "architectures": ["LlamaForCausalLM"]},
            },
        }
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, tensors)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    byte_backend().save_pretrained(folder)
    return folder


class _Maker:
    """Random weights, one after another."""

    def __init__(self, seed: int, *, width: int = 32, norm_centre: float = 1.0, agreeing: bool = False):
        self.generator = torch.Generator().manual_seed(seed)
        self.width = width
        self.norm_centre = norm_centre
        self.agreeing = agreeing

    def matrix(self, rows: int, columns: int) -> torch.Tensor:
        return SPREAD * torch.randn(rows, columns, generator=self.generator)

    def projection(self, *, hidden_first: bool = False) -> torch.Tensor:
        """Of [e ; h] or [h ; e]; the one that agrees passes the embedding on."""
        random = self.matrix(self.width, 2 * self.width)
        if not self.agreeing:
            return random
        nothing, same = torch.zeros(self.width, self.width), torch.eye(self.width)
        return 0.05 * random + torch.cat([nothing, same] if hidden_first else [same, nothing], dim=1)

    def norm(self, size: int | None = None) -> torch.Tensor:
        noise = NORM_NOISE * torch.randn(size or self.width, generator=self.generator)
        return self.norm_centre + (CALM * noise if self.agreeing else noise)


def _write_nextn(
    folder: Path, kind: str, modules: int, seed: int, layers: int, agreeing: bool, fields: dict[str, Any]
) -> Path:
    _save_causal_lm(folder, kind, seed, quiet=agreeing, num_hidden_layers=layers + modules, **fields)
    tensors = _read(folder)
    make = _Maker(seed + 1, agreeing=agreeing)
    for layer in range(layers, layers + modules):
        tensors |= {
            f"model.layers.{layer}.embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(),
            f"model.layers.{layer}.enorm.weight": make.norm(),
            f"model.layers.{layer}.hnorm.weight": make.norm(),
            f"model.layers.{layer}.eh_proj.weight": make.projection(),
            f"model.layers.{layer}.shared_head.norm.weight": make.norm(),
            f"model.layers.{layer}.shared_head.head.weight": tensors["lm_head.weight"].clone(),
        }
    _write(folder, tensors)
    _edit_config(folder, num_hidden_layers=layers, num_nextn_predict_layers=modules)
    return folder


def _save_causal_lm(folder: Path, kind: str, seed: int, *, quiet: bool = False, **fields: Any) -> Path:
    """A random model with noise on its norms and biases, too, under the names of public checkpoints."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **fields}))
    with torch.no_grad():
        for name, tensor in model.state_dict().items():  # which shares the model's memory
            if tensor.ndim == 1:
                tensor += NORM_NOISE * (CALM if quiet else 1) * torch.randn_like(tensor)
            elif quiet and any(part in name for part in ("o_proj", "out_proj", "down_proj")):
                tensor *= QUIET
    model.generation_config.eos_token_id = list(GENERATION_EOS)
    model.save_pretrained(folder)
    byte_backend().save_pretrained(folder)
    _edit_config(folder)
    return folder


def _edit_config(folder: Path, **changes: Any) -> None:
    """Set fields (None removes one) and write the rotary settings as public checkpoints do."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    rope = config.pop("rope_parameters", None)
    if rope:
        config["rope_theta"] = rope["rope_theta"]
        config["rope_scaling"] = None
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}, indent=1))


def _read(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


def _write(folder: Path, tensors: Tensors) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _rename(tensors: Tensors, prefixes: dict[str, str]) -> Tensors:
    def renamed(name: str) -> str:
        for old, new in prefixes.items():
            if name.startswith(old):
                return new + name.removeprefix(old)
        return name

    return {renamed(name): tensor for name, tensor in tensors.items()}
