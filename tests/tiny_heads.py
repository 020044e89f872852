"""Tiny random drafter checkpoints in the public layouts: config.json and weights, for the target of toy_target.

A tensor's values depend on the seed and its name alone (midlayer is layers.0), so that two checkpoints differ only
where their options do.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")
EAGLE3_NORMS = ("hidden_norm", *LLAMA_NORMS)
SPECULATORS_CLASS = {"eagle3": "Eagle3Speculator", "peagle": "PEagleSpeculator"}


class RandomWeights:
    """The tensors of one checkpoint, of a size that keeps the drafter's choices varied."""

    def __init__(self, seed: int):
        self.seed = seed
        self.tensors: dict[str, torch.Tensor] = {}

    def normal(self, name: str, *shape: int) -> torch.Tensor:
        key = f"{self.seed} {name.replace('midlayer', 'layers.0')}"
        generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
        return torch.randn(shape, generator=generator)

    def matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        self.tensors[name] = self.normal(name, rows, columns) * gain / math.sqrt(columns)

    def bias(self, name: str, size: int) -> None:
        self.tensors[name] = 0.5 * self.normal(name, size)

    def norm(self, name: str, size: int) -> None:
        self.tensors[name] = 1 + 0.3 * self.normal(name, size)

    def decoder_layer(
        self, prefix: str, config: dict[str, Any], norms: Sequence[str], width: int | None = None
    ) -> None:
        """A Llama or Qwen3 layer, whose attention reads `width` features (without it the hidden size)."""
        hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
        head_dim = config.get("head_dim") or hidden // heads
        query, key_value = heads * head_dim, config["num_key_value_heads"] * head_dim
        for name, rows, columns in (
            ("self_attn.q_proj", query, width or hidden),
            ("self_attn.k_proj", key_value, width or hidden),
            ("self_attn.v_proj", key_value, width or hidden),
            ("self_attn.o_proj", hidden, query),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            self.matrix(f"{prefix}{name}.weight", rows, columns)
            if config["attention_bias"] and name.startswith("self_attn"):
                self.bias(f"{prefix}{name}.bias", rows)
        if config["model_type"] == "qwen3":
            self.norm(f"{prefix}self_attn.q_norm.weight", head_dim)
            self.norm(f"{prefix}self_attn.k_norm.weight", head_dim)
        for name in norms:
            self.norm(f"{prefix}{name}.weight", hidden)

    def eagle3(
        self,
        first_prefix: str,
        layer_config: dict[str, Any],
        target_config: Any,
        *,
        num_taps: int,
        draft_vocab_size: int | None,
        norm_before_fc: bool,
        fc_norm: bool,
        own_embed: bool,
        own_lm_head: bool,
    ) -> None:
        """What the EAGLE-3 dialects have in common; num_taps 0: one hidden state comes in, and no fc."""
        hidden, vocab, tapped = layer_config["hidden_size"], target_config.vocab_size, target_config.hidden_size
        if num_taps:
            # A small gain: the tapped states are large, and would drown the token's embedding.
            self.matrix("fc.weight", hidden, num_taps * tapped, gain=0.1)
        if norm_before_fc:
            self.norm("input_norm.weight", num_taps * tapped)
        if fc_norm:
            for j in range(num_taps):
                self.norm(f"fc_norm.{j}.weight", tapped)
        self.decoder_layer(first_prefix, layer_config, EAGLE3_NORMS, width=2 * hidden)
        for layer in range(1, layer_config["num_hidden_layers"]):
            self.decoder_layer(f"layers.{layer}.", layer_config, LLAMA_NORMS)
        self.norm("norm.weight", hidden)
        if own_embed:
            self.matrix("embed_tokens.weight", vocab, hidden)
        if own_lm_head:
            self.matrix("lm_head.weight", draft_vocab_size or vocab, hidden, gain=3)
        if draft_vocab_size:
            self.draft_vocabulary(draft_vocab_size, vocab)

    def draft_vocabulary(self, size: int, vocab: int) -> None:
        target_ids = self.normal("draft vocabulary", vocab).argsort()[:size].sort().values
        self.tensors["d2t"] = target_ids - torch.arange(size)
        self.tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, target_ids, True)

    def save(
        self, folder: Path, config: dict[str, Any], config_fields: dict[str, Any] | None, weights_file: str
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config | (config_fields or {}), indent=1), encoding="utf-8")
        if weights_file.endswith(".safetensors"):
            save_file(self.tensors, folder / weights_file, metadata={"format": "pt"})
        else:
            torch.save(self.tensors, folder / weights_file)
        return folder


def layer_fields(
    target_config: Any,
    *,
    num_hidden_layers: int = 1,
    hidden_size: int | None = None,
    head_dim: int | None = None,
    attention_bias: bool = False,
    rope_parameters: bool = False,
    model_type: str = "llama",
) -> dict[str, Any]:
    """A Llama config; intermediate size, epsilon and rotary base are not the target's."""
    hidden, heads = hidden_size or target_config.hidden_size, target_config.num_attention_heads
    rope = (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}} if rope_parameters else {"rope_theta": 500.0}
    )
    fields = {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": 48,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": target_config.num_key_value_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-4,
        "attention_bias": attention_bias,
        "max_position_embeddings": target_config.max_position_embeddings,
        "vocab_size": target_config.vocab_size,
        "tie_word_embeddings": False,
        **rope,
    }
    # A Qwen3 config has its own default, 128.
    if head_dim or model_type == "qwen3":
        fields["head_dim"] = head_dim or hidden // heads
    return fields


def write_eagle(
    folder: Path,
    target_config: Any,
    *,
    seed: int = 0,
    bias: bool | None = False,
    num_hidden_layers: int = 1,
    own_embed: bool = True,
    head_dim: int | None = None,
    rope_parameters: bool = False,
    weights_file: str = "model.safetensors",
    config_fields: dict[str, Any] | None = None,
) -> Path:
    """EAGLE-1; bias None: no such key, which its own loader takes for true, so that fc.bias is there."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        **layer_fields(
            target_config, num_hidden_layers=num_hidden_layers, head_dim=head_dim, rope_parameters=rope_parameters
        ),
    }
    if bias is not None:
        config["bias"] = bias
    hidden = target_config.hidden_size
    weights = RandomWeights(seed)
    weights.matrix("fc.weight", hidden, 2 * hidden)
    if bias is not False:
        weights.bias("fc.bias", hidden)
    if own_embed:
        weights.matrix("embed_tokens.weight", target_config.vocab_size, hidden)
    weights.decoder_layer("layers.0.", config, LLAMA_NORMS[1:])
    for layer in range(1, num_hidden_layers):
        weights.decoder_layer(f"layers.{layer}.", config, LLAMA_NORMS)
    return weights.save(folder, config, config_fields, weights_file)


def write_eagle3(
    folder: Path,
    target_config: Any,
    *,
    seed: int = 0,
    draft_vocab_size: int | None = 100,
    entering_layers: Sequence[int] | None = None,
    output_of_layers: Sequence[int] | None = None,
    use_aux_hidden_state: bool = True,
    norm_before_residual: bool | None = None,
    norm_before_fc: bool = False,
    norm_before_fc_nested: bool = False,
    fc_norm: bool = False,
    norm_output: bool = False,
    logit_scale: float | None = None,
    own_embed: bool = False,
    own_lm_head: bool = True,
    num_hidden_layers: int = 1,
    hidden_size: int | None = None,
    head_dim: int | None = None,
    attention_bias: bool = False,
    rope_parameters: bool = False,
    first_prefix: str = "midlayer.",
    weights_file: str = "model.safetensors",
    config_fields: dict[str, Any] | None = None,
) -> Path:
    """EAGLE-3 in the EAGLE repository's dialect.

    entering_layers is the top-level list of vLLM, output_of_layers the list in eagle_config of SGLang. Values that are
    None or false leave no key; norm_before_fc_nested is norm_before_fc, said in eagle_config.
    """
    layer_config = layer_fields(
        target_config,
        num_hidden_layers=num_hidden_layers,
        hidden_size=hidden_size,
        head_dim=head_dim,
        attention_bias=attention_bias,
        rope_parameters=rope_parameters,
    )
    nested: dict[str, Any] = {}
    if not use_aux_hidden_state:
        nested["use_aux_hidden_state"] = False
    if output_of_layers is not None:
        nested["eagle_aux_hidden_state_layer_ids"] = list(output_of_layers)
    if norm_before_fc_nested:
        nested["norm_before_fc"] = True
    optional = {
        "draft_vocab_size": draft_vocab_size,
        "target_hidden_size": target_config.hidden_size if hidden_size else None,
        "eagle_aux_hidden_state_layer_ids": None if entering_layers is None else list(entering_layers),
        "eagle_config": nested or None,
        "norm_before_residual": norm_before_residual,
        "norm_before_fc": norm_before_fc or None,
        "fc_norm": fc_norm or None,
        "norm_output": norm_output or None,
        "logit_scale": logit_scale,
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer_config,
        **{key: value for key, value in optional.items() if value is not None},
    }
    weights = RandomWeights(seed)
    weights.eagle3(
        first_prefix,
        layer_config,
        target_config,
        num_taps=len(entering_layers or output_of_layers or range(3)) if use_aux_hidden_state else 0,
        draft_vocab_size=draft_vocab_size,
        norm_before_fc=norm_before_fc or norm_before_fc_nested,
        fc_norm=fc_norm,
        own_embed=own_embed,
        own_lm_head=own_lm_head,
    )
    return weights.save(folder, config, config_fields, weights_file)


def speculators_fields(kind: str, layer_config: dict[str, Any], verifier: str) -> dict[str, Any]:
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1}
    return {
        "architectures": [SPECULATORS_CLASS[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier, "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": layer_config,
    }


def write_speculators_eagle3(
    folder: Path,
    target_config: Any,
    *,
    seed: int = 0,
    model_type: str = "llama",
    draft_vocab_size: int | None = 100,
    entering_layers: Sequence[int] | None = None,
    norm_before_residual: bool | None = True,
    norm_before_fc: bool = False,
    fc_norm: bool = False,
    norm_output: bool = False,
    own_embed: bool = True,
    own_lm_head: bool = True,
    num_hidden_layers: int = 1,
    hidden_size: int | None = None,
    head_dim: int | None = None,
    attention_bias: bool = False,
    rope_parameters: bool = False,
    verifier: str = "toy",
    weights_file: str = "model.safetensors",
    config_fields: dict[str, Any] | None = None,
) -> Path:
    """EAGLE-3 in the speculators dialect; norm_before_residual None: no such key."""
    layer_config = layer_fields(
        target_config,
        num_hidden_layers=num_hidden_layers,
        hidden_size=hidden_size,
        head_dim=head_dim,
        attention_bias=attention_bias,
        rope_parameters=rope_parameters,
        model_type=model_type,
    )
    config = speculators_fields("eagle3", layer_config, verifier) | {
        "draft_vocab_size": draft_vocab_size or target_config.vocab_size,
        "target_hidden_size": target_config.hidden_size,
        "eagle_aux_hidden_state_layer_ids": None if entering_layers is None else list(entering_layers),
        "norm_before_fc": norm_before_fc,
        "fc_norm": fc_norm,
        "norm_output": norm_output,
        "embed_requires_grad": False,
    }
    if norm_before_residual is not None:
        config["norm_before_residual"] = norm_before_residual
    weights = RandomWeights(seed)
    weights.eagle3(
        "layers.0.",
        layer_config,
        target_config,
        num_taps=len(entering_layers or range(3)),
        draft_vocab_size=draft_vocab_size,
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        own_embed=own_embed,
        own_lm_head=own_lm_head,
    )
    return weights.save(folder, config, config_fields, weights_file)


def write_peagle(
    folder: Path,
    target_config: Any,
    *,
    seed: int = 0,
    layout: str = "speculators",
    mask_token_key: str = "mask_token_id",
    mask_token_id: int = 7,
    num_hidden_layers: int = 2,
    model_type: str = "llama",
    draft_vocab_size: int | None = 100,
    entering_layers: Sequence[int] | None = None,
    norm_before_residual: bool | None = None,
    norm_before_fc: bool = False,
    fc_norm: bool = False,
    own_embed: bool = True,
    own_lm_head: bool = True,
    first_prefix: str | None = None,
    verifier: str = "toy",
    weights_file: str = "model.safetensors",
    config_fields: dict[str, Any] | None = None,
) -> Path:
    """P-EAGLE: layout speculators, or plain, the EAGLE repository's; mask_token_key may be pard_token, ptd_token_id."""
    layer_config = layer_fields(target_config, num_hidden_layers=num_hidden_layers, model_type=model_type)
    if layout == "speculators":
        config = speculators_fields("peagle", layer_config, verifier)
    else:
        config = {"architectures": ["LlamaForCausalLMEagle3"], **layer_config}
    optional = {
        mask_token_key: mask_token_id,
        "draft_vocab_size": draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": None if entering_layers is None else list(entering_layers),
        "norm_before_residual": norm_before_residual,
        "norm_before_fc": norm_before_fc or None,
        "fc_norm": fc_norm or None,
    }
    config |= {key: value for key, value in optional.items() if value is not None}
    num_taps = len(entering_layers or range(3))
    weights = RandomWeights(seed)
    weights.eagle3(
        first_prefix or ("layers.0." if layout == "speculators" else "midlayer."),
        layer_config,
        target_config,
        num_taps=num_taps,
        draft_vocab_size=draft_vocab_size,
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        own_embed=own_embed,
        own_lm_head=own_lm_head,
    )
    size = num_taps * target_config.hidden_size
    weights.tensors["mask_hidden"] = weights.normal("mask_hidden", 1, size)
    return weights.save(folder, config, config_fields, weights_file)


def write_medusa(
    folder: Path,
    target_config: Any,
    *,
    seed: int = 0,
    layout: str = "original",
    num_heads: int = 3,
    num_layers: int = 1,
    bias: bool = True,
    shared_head: str | None = None,
    truncated_vocab_size: int | None = None,
    weights_file: str | None = None,
    config_fields: dict[str, Any] | None = None,
) -> Path:
    """Medusa: layout original, or vllm.

    Only vllm has shared_head, with original_lm_head in the config: the name of the one head's tensor (lm_head.weight or
    lm_heads.0.weight) or "target", where the file has none; and truncated_vocab_size, with token_map.
    """
    hidden, vocab = target_config.hidden_size, target_config.vocab_size
    weights = RandomWeights(seed)
    for head in range(num_heads):
        for layer in range(num_layers):
            stem = f"{head}.{layer}.linear" if layout == "original" else f"blocks.{head}.layers.{layer}"
            weights.matrix(f"{stem}.weight", hidden, hidden)
            if bias:
                weights.bias(f"{stem}.bias", hidden)
        if not shared_head:
            own = f"{head}.{num_layers}.weight" if layout == "original" else f"lm_heads.{head}.weight"
            weights.matrix(own, truncated_vocab_size or vocab, hidden, gain=3)
    if layout == "original":
        config = {
            "base_model_name_or_path": "toy",
            "medusa_num_heads": num_heads,
            "medusa_num_layers": num_layers,
        }
        return weights.save(folder, config, config_fields, weights_file or "medusa_lm_head.pt")
    if shared_head and shared_head != "target":
        weights.matrix(shared_head, truncated_vocab_size or vocab, hidden, gain=3)
    if truncated_vocab_size:
        weights.tensors["token_map"] = weights.normal("token_map", vocab).argsort()[:truncated_vocab_size].contiguous()
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden,
        "vocab_size": vocab,
        "truncated_vocab_size": truncated_vocab_size or vocab,
        "num_heads": num_heads,
        "num_hidden_layers": num_layers,
        "medusa_fc_bias": bias,
        "original_lm_head": bool(shared_head),
    }
    return weights.save(folder, config, config_fields, weights_file or "model.safetensors")


def write_mlp_speculator(
    folder: Path,
    target_config: Any,
    *,
    seed: int = 0,
    n_predict: int = 3,
    emb_dim: int | None = None,
    inner_dim: int = 0,
    tie_weights: bool = False,
    tied_copies: bool = False,
    scale_input: bool = False,
    weights_file: str = "model.safetensors",
    config_fields: dict[str, Any] | None = None,
) -> Path:
    """IBM's MLP speculator; emb_dim is the target's hidden size; tied_copies: shared tensors under every index."""
    emb_dim, vocab = emb_dim or target_config.hidden_size, target_config.vocab_size
    inner = inner_dim or emb_dim
    weights = RandomWeights(seed)
    for i in range(1 if tie_weights else n_predict):
        weights.matrix(f"speculator.emb.{i}.weight", vocab, inner, gain=2)
        weights.norm(f"speculator.ln.{i}.weight", inner)
        weights.bias(f"speculator.ln.{i}.bias", inner)
        weights.matrix(f"speculator.head.{i}.weight", vocab, inner, gain=4)
    for i in range(min(2, n_predict) if tie_weights else n_predict):
        weights.matrix(f"speculator.proj.{i}.weight", inner, inner if i else emb_dim)
    if tie_weights and tied_copies:
        for i in range(1, n_predict):
            for name in ("emb.{}.weight", "ln.{}.weight", "ln.{}.bias", "head.{}.weight"):
                weights.tensors["speculator." + name.format(i)] = weights.tensors[
                    "speculator." + name.format(0)
                ].clone()
            weights.tensors[f"speculator.proj.{i}.weight"] = weights.tensors["speculator.proj.1.weight"].clone()
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "n_predict": n_predict,
        "n_candidates": 5,
        "top_k_tokens_per_head": [5, 4, 3, 2, 1][:n_predict],
        "emb_dim": emb_dim,
        "inner_dim": inner_dim,
        "vocab_size": vocab,
        "tie_weights": tie_weights,
        "scale_input": scale_input,
    }
    return weights.save(folder, config, config_fields, weights_file)
