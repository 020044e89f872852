"""Drafters run literally: one round at a time, token by token, from the checkpoint's tensors and the target's states.

The tests' second opinion on the batched drafters. Only the target itself is a transformers model; everything else is
written out. Each class has round(tokens, drafts): tokens are x_0..x_n, of which the target has not processed x_n;
row i-1 of what it returns is q_i over the target's vocabulary at temperature 1, given the earlier drafts[:i-1].
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

MASK_TOKEN_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")


def read_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def read_weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.iterdir()):
        if file.suffix == ".safetensors":
            weights |= load_file(file)
        elif file.suffix in (".bin", ".pt"):
            weights |= torch.load(file, weights_only=True)
    return {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}


def rope_theta(config: dict[str, Any]) -> float:
    parameters = config.get("rope_parameters") or {}
    assert parameters.get("rope_type", "default") == "default"
    assert not config.get("rope_scaling")
    return parameters.get("rope_theta") or config.get("rope_theta") or 10000.0


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (x * torch.rsqrt(x.square().mean() + eps))


def rotate(heads: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of [heads, head_dim]: feature j turns together with feature j + head_dim / 2."""
    size = heads.shape[-1]
    angles = position * theta ** -(torch.arange(0, size, 2, dtype=torch.float32) / size)
    cos, sin = angles.cos(), angles.sin()
    first, second = heads[:, : size // 2], heads[:, size // 2 :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Layer:
    """The attention and the MLP of a Llama or Qwen3 layer, with the keys and values of one round."""

    def __init__(self, weights: dict[str, Tensor], prefix: str, config: dict[str, Any]):
        self.weights, self.prefix = weights, prefix
        self.num_heads = config["num_attention_heads"]
        self.num_kv_heads = config.get("num_key_value_heads") or self.num_heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.num_heads
        self.theta = rope_theta(config)
        self.eps = config["rms_norm_eps"]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = self.weights[f"{self.prefix}{name}.weight"] @ x
        bias = self.weights.get(f"{self.prefix}{name}.bias")
        return y if bias is None else y + bias

    def norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, self.weights[f"{self.prefix}{name}.weight"], self.eps)

    def head_norm(self, name: str, heads: Tensor) -> Tensor:
        """Qwen3 norms every head of the queries and keys, Llama none."""
        if f"{self.prefix}self_attn.{name}.weight" not in self.weights:
            return heads
        return torch.stack([self.norm(f"self_attn.{name}", head) for head in heads])

    def attention(self, x: Tensor, position: int) -> Tensor:
        query = self.linear("self_attn.q_proj", x).view(self.num_heads, self.head_dim)
        key = self.linear("self_attn.k_proj", x).view(self.num_kv_heads, self.head_dim)
        value = self.linear("self_attn.v_proj", x).view(self.num_kv_heads, self.head_dim)
        query = rotate(self.head_norm("q_norm", query), position, self.theta)
        key = rotate(self.head_norm("k_norm", key), position, self.theta)
        self.keys.append(key)
        self.values.append(value)
        outputs = []
        for head in range(self.num_heads):
            group = head // (self.num_heads // self.num_kv_heads)
            scores = torch.stack([query[head] @ past[group] for past in self.keys]) / math.sqrt(self.head_dim)
            shares = torch.softmax(scores, dim=0)
            outputs.append(sum(share * past[group] for share, past in zip(shares, self.values, strict=True)))
        return self.linear("self_attn.o_proj", torch.cat(outputs))

    def mlp(self, x: Tensor) -> Tensor:
        gate = self.linear("mlp.gate_proj", x)
        return self.linear("mlp.down_proj", gate * torch.sigmoid(gate) * self.linear("mlp.up_proj", x))

    def finish(self, y: Tensor) -> Tensor:
        return y + self.mlp(self.norm("post_attention_layernorm", y))

    def ordinary(self, x: Tensor, position: int) -> Tensor:
        """The whole layer as in a language model: norm, attention, norm, MLP."""
        return self.finish(x + self.attention(self.norm("input_layernorm", x), position))


class TargetStates:
    """What the target computed on its processed tokens x_0..x_{n-1}."""

    def __init__(self, target: Any, tokens: list[int]):
        last_output: list[Tensor] = []
        hook = target.model.norm.register_forward_pre_hook(lambda _, inputs: last_output.append(inputs[0]))
        try:
            with torch.no_grad():
                hidden = target(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        finally:
            hook.remove()
        # entering[k][t]: the residual stream that enters layer k; k = N is the last layer's output, not normed.
        self.entering = [state[0] for state in (*hidden[:-1], *last_output)]
        # features[t]: what lm_head reads.
        self.features = hidden[-1][0]


class Literal:
    """A drafter's config and tensors, and the target's where the checkpoint shares them."""

    def __init__(self, folder: Path, target: Any):
        self.config = read_config(folder)
        self.weights = read_weights(folder)
        self.target = target
        self.vocab_size = target.config.vocab_size

    def embed(self, token: int) -> Tensor:
        own = self.weights.get("embed_tokens.weight")
        return (self.target.get_input_embeddings().weight.detach() if own is None else own)[token]

    def target_lm_head(self) -> Tensor:
        return self.target.get_output_embeddings().weight.detach()


class LiteralEagle(Literal):
    def round(self, tokens: list[int], drafts: list[int]) -> Tensor:
        features = TargetStates(self.target, tokens[:-1]).features
        layers = [
            Layer(self.weights, f"layers.{index}.", self.config) for index in range(self.config["num_hidden_layers"])
        ]
        n = len(tokens) - 1
        for t in range(n):
            output = self.step(layers, tokens[t + 1], features[t], t)
        rows = [self.distribution(output)]
        for i in range(2, len(drafts) + 1):
            output = self.step(layers, drafts[i - 2], output, n - 1 + (i - 1))
            rows.append(self.distribution(output))
        return torch.stack(rows)[: len(drafts)]

    def step(self, layers: list[Layer], token: int, feature: Tensor, position: int) -> Tensor:
        u = self.weights["fc.weight"] @ torch.cat([self.embed(token), feature])
        if self.config.get("bias", True) and "fc.bias" in self.weights:
            u = u + self.weights["fc.bias"]
        output = layers[0].finish(u + layers[0].attention(u, position))
        for layer in layers[1:]:
            output = layer.ordinary(output, position)
        return output

    def distribution(self, output: Tensor) -> Tensor:
        return torch.softmax(self.target_lm_head() @ output, dim=0)


class LiteralEagle3(Literal):
    """Both dialects: the EAGLE repository's and that of speculators."""

    def __init__(self, folder: Path, target: Any):
        super().__init__(folder, target)
        self.nested = self.config.get("eagle_config") or {}
        self.layer_config = self.config.get("transformer_layer_config") or self.config
        self.eps = self.layer_config["rms_norm_eps"]
        self.uses_taps = self.nested.get("use_aux_hidden_state", True)
        self.norm_before_fc = self.config.get("norm_before_fc") or self.nested.get("norm_before_fc")
        self.norm_before_residual = self.config.get("norm_before_residual")
        if self.norm_before_residual is None:
            # vLLM's loader: true for eagle3 of speculators alone.
            self.norm_before_residual = self.config.get("speculators_model_type") == "eagle3"

    def entering_layers(self) -> list[int]:
        """The tapped layers, each by the layer that the stream enters."""
        if (ids := self.config.get("eagle_aux_hidden_state_layer_ids")) is not None:
            return ids
        if (ids := self.nested.get("eagle_aux_hidden_state_layer_ids")) is not None:
            return [layer + 1 for layer in ids]
        if (ids := self.nested.get("layer_ids")) is not None:
            return ids
        num_layers = self.target.config.num_hidden_layers
        return [2, num_layers // 2, num_layers - 3]

    def context(self, tokens: list[int]) -> list[Tensor]:
        """g_0..g_{n-1}."""
        states = TargetStates(self.target, tokens)
        if not self.uses_taps:
            return list(states.features)
        ids = self.entering_layers()
        assert all(0 <= layer < len(states.entering) for layer in ids)
        return [self.fuse([states.entering[layer][t] for layer in ids]) for t in range(len(tokens))]

    def fuse(self, chunks: list[Tensor]) -> Tensor:
        assert not (self.norm_before_fc and self.config.get("fc_norm"))
        if self.config.get("fc_norm"):
            chunks = [rms_norm(chunk, self.weights[f"fc_norm.{j}.weight"], self.eps) for j, chunk in enumerate(chunks)]
        joined = torch.cat(chunks)
        if self.norm_before_fc:
            joined = rms_norm(joined, self.weights["input_norm.weight"], self.eps)
        return self.weights["fc.weight"] @ joined

    def new_layers(self) -> list[Layer]:
        first = "midlayer." if "midlayer.hidden_norm.weight" in self.weights else "layers.0."
        others = [f"layers.{index}." for index in range(1, self.layer_config["num_hidden_layers"])]
        return [Layer(self.weights, prefix, self.layer_config) for prefix in (first, *others)]

    def step(self, layers: list[Layer], token: int, g: Tensor, position: int) -> Tensor:
        first = layers[0]
        a = first.norm("input_layernorm", self.embed(token))
        b = first.norm("hidden_norm", g)
        residual = b if self.norm_before_residual else g
        output = first.finish(residual + first.attention(torch.cat([a, b]), position))
        for layer in layers[1:]:
            output = layer.ordinary(output, position)
        return output

    def final_norm(self, output: Tensor) -> Tensor:
        return rms_norm(output, self.weights["norm.weight"], self.eps)

    def distribution(self, output: Tensor) -> Tensor:
        lm_head = self.weights.get("lm_head.weight")
        logits = (self.target_lm_head() if lm_head is None else lm_head) @ self.final_norm(output)
        logits = logits * self.config.get("logit_scale", 1.0)
        target_ids = torch.arange(len(logits))
        if "d2t" in self.weights:
            target_ids = target_ids + self.weights["d2t"]
        row = torch.zeros(self.vocab_size)
        row[target_ids] = torch.softmax(logits, dim=0)
        return row

    def round(self, tokens: list[int], drafts: list[int]) -> Tensor:
        layers = self.new_layers()
        n = len(tokens) - 1
        for t, g in enumerate(self.context(tokens[:-1])):
            output = self.step(layers, tokens[t + 1], g, t)
        rows = [self.distribution(output)]
        for i in range(2, len(drafts) + 1):
            g = self.final_norm(output) if self.config.get("norm_output") else output
            output = self.step(layers, drafts[i - 2], g, n - 1 + (i - 1))
            rows.append(self.distribution(output))
        return torch.stack(rows)[: len(drafts)]


class LiteralPEagle(LiteralEagle3):
    """EAGLE-3 whose later positions hold a mask token and a mask state: of the drafts only the number counts."""

    def round(self, tokens: list[int], drafts: list[int]) -> Tensor:
        layers = self.new_layers()
        n = len(tokens) - 1
        for t, g in enumerate(self.context(tokens[:-1])):
            output = self.step(layers, tokens[t + 1], g, t)
        rows = [self.distribution(output)]
        mask_token = next(self.config[key] for key in MASK_TOKEN_KEYS if self.config.get(key) is not None)
        mask_g = self.fuse(list(self.weights["mask_hidden"].flatten().split(self.target.config.hidden_size)))
        for i in range(2, len(drafts) + 1):
            output = self.step(layers, mask_token, mask_g, n - 1 + (i - 1))
            rows.append(self.distribution(output))
        return torch.stack(rows)[: len(drafts)]


class LiteralMedusa(Literal):
    """The original layout and vLLM's; head i-1 reads the state that gave x_n and predicts x_{n+i}."""

    def round(self, tokens: list[int], drafts: list[int]) -> Tensor:
        feature = TargetStates(self.target, tokens[:-1]).features[-1]
        rows = torch.zeros(len(drafts), self.vocab_size)
        for head in range(len(drafts)):
            state, layer = feature, 0
            while (stem := self.stem(head, layer)) + ".weight" in self.weights:
                z = self.weights[f"{stem}.weight"] @ state
                if f"{stem}.bias" in self.weights:
                    z = z + self.weights[f"{stem}.bias"]
                state, layer = state + z * torch.sigmoid(z), layer + 1
            assert layer > 0, "more drafts than heads"
            lm_head, target_ids = self.lm_head(head, layer), torch.arange(self.vocab_size)
            if "token_map" in self.weights:
                target_ids = self.weights["token_map"]
                lm_head = lm_head if len(lm_head) == len(target_ids) else lm_head[target_ids]
            rows[head, target_ids] = torch.softmax(lm_head @ state, dim=0)
        return rows

    def stem(self, head: int, layer: int) -> str:
        return f"blocks.{head}.layers.{layer}" if "num_heads" in self.config else f"{head}.{layer}.linear"

    def lm_head(self, head: int, num_layers: int) -> Tensor:
        if self.config.get("original_lm_head"):
            shared = (self.weights.get(name) for name in ("lm_head.weight", "lm_heads.0.weight"))
            return next((weight for weight in shared if weight is not None), self.target_lm_head())
        return self.weights[f"lm_heads.{head}.weight" if "num_heads" in self.config else f"{head}.{num_layers}.weight"]


class LiteralMlpSpeculator(Literal):
    def round(self, tokens: list[int], drafts: list[int]) -> Tensor:
        n_predict = self.config["n_predict"]
        assert len(drafts) <= n_predict, "more drafts than n_predict"
        inner_dim = self.config["inner_dim"] or self.config["emb_dim"]
        a = 0.5 ** (0.5 / n_predict)
        w = math.sqrt((1 - a**2) * inner_dim / 2)
        state = TargetStates(self.target, tokens[:-1]).features[-1]
        if self.config["scale_input"]:
            state = state * torch.rsqrt(state.square().mean() + 1e-6) / math.sqrt(2)
        rows = torch.zeros(len(drafts), self.vocab_size)
        for i in range(len(drafts)):
            token = drafts[i - 1] if i else tokens[-1]
            z = self.tensor("proj", i, "weight") @ state + (w / a) * self.tensor("emb", i, "weight")[token]
            z = rms_norm(z, self.tensor("ln", i, "weight"), 1e-6) + self.tensor("ln", i, "bias")
            state = z * (1 + torch.erf(z / math.sqrt(2))) / 2
            rows[i] = torch.softmax(self.tensor("head", i, "weight") @ state, dim=0)
        return rows

    def tensor(self, name: str, i: int, kind: str) -> Tensor:
        if self.config["tie_weights"]:
            i = min(i, 1 if name == "proj" else 0)
        return self.weights[f"speculator.{name}.{i}.{kind}"]
