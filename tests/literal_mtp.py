"""What one round of an MTP, DFlash or PARD drafter proposes, computed token by token as an engine does it.

A second opinion for tests: plain torch on single vectors, a Python list as KV cache, weights straight from the files.
Only the target comes from outside: a transformers model in eval mode (float32, CPU), whose hidden states, embedding and
lm_head are used.

Notation: tokens x_0..x_n are committed, the target has run on x_0..x_{n-1}, h_t is its last hidden state (after the
final norm) at input x_t, drafts are d_1..d_K. Row i - 1 of a round is q_i, the distribution from which d_i is drawn at
temperature 1; position i sees d_1..d_{i-1} from the arguments, whatever its own argmax would have been.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import silu

Config = dict[str, Any]
Cache = list[tuple[torch.Tensor, torch.Tensor]]  # one (key, value) a token, each [heads, width]

MASK_TOKEN_KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
ZEROES_FIRST = ("deepseek_v3", "glm4_moe", "mimo")


class Weights:
    """The tensors of a checkpoint, looked up under a prefix."""

    def __init__(self, tensors: dict[str, torch.Tensor], prefix: str = ""):
        self.tensors = tensors
        self.prefix = prefix

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self.tensors[self.prefix + name]
        return tensor.float() if tensor.is_floating_point() else tensor

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def get(self, name: str, default: torch.Tensor) -> torch.Tensor:
        if name in self:
            return self[name]
        return default

    def under(self, prefix: str) -> "Weights":
        return Weights(self.tensors, self.prefix + prefix)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = self[f"{name}.weight"] @ x
        return y + self[f"{name}.bias"] if f"{name}.bias" in self else y


def read_checkpoint(folder: Path | str) -> tuple[Config, Weights]:
    folder = Path(folder)
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return json.loads((folder / "config.json").read_text()), Weights(tensors)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, zero_centred: bool = False) -> torch.Tensor:
    x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return x * (1 + weight) if zero_centred else x * weight


def angles(config: Config, size: int, position: int) -> torch.Tensor:
    """The rotation of each of the size / 2 pairs."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default" or config.get("rope_scaling"):
        raise NotImplementedError("scaled rotary positions")
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    return position / theta ** (torch.arange(0, size, 2) / size)


def rotate(x: torch.Tensor, angle: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Rotates the first 2 * len(angle) entries of every row; pairs are (j, j + half) or, interleaved, (2j, 2j + 1)."""
    size = 2 * len(angle)
    x, rest = x[..., :size], x[..., size:]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : size // 2], x[..., size // 2 :])
    a, b = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    turned = torch.stack([a, b], dim=-1).flatten(-2) if interleaved else torch.cat([a, b], dim=-1)
    return torch.cat([turned, rest], dim=-1)


def attend(queries: torch.Tensor, cache: Cache, scale: float) -> torch.Tensor:
    """One token's attention: queries [heads, width] over everything in the cache, heads joined."""
    group = len(queries) // len(cache[0][0])
    joined = []
    for head, query in enumerate(queries):
        keys = torch.stack([key[head // group] for key, _ in cache])
        values = torch.stack([value[head // group] for _, value in cache])
        joined.append(torch.softmax(keys @ query * scale, dim=0) @ values)
    return torch.cat(joined)


def gated_mlp(weights: Weights, x: torch.Tensor) -> torch.Tensor:
    return weights.linear("down_proj", silu(weights.linear("gate_proj", x)) * weights.linear("up_proj", x))


class Layer:
    """A pre-norm decoder layer of Llama, Qwen2, Qwen3, GLM-4.5 or Qwen3-Next, as its tensors and config say."""

    def __init__(self, config: Config, weights: Weights):
        self.config = config
        self.weights = weights
        self.eps = config["rms_norm_eps"]
        self.zero_centred = config["model_type"] == "qwen3_next"
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weights[f"{name}.weight"], self.eps, zero_centred=self.zero_centred)

    def step(self, x: torch.Tensor, position: int, cache: Cache) -> torch.Tensor:
        """One token through the layer; its key and value join the cache."""
        normed = self.norm("input_layernorm", x)
        cache.append(self.key_value(normed, position))
        return self.finish(x, self.attention(normed, position, cache))

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        x = x + attended
        return x + self.feed_forward(self.norm("post_attention_layernorm", x))

    def rotary(self, x: torch.Tensor, position: int) -> torch.Tensor:
        rope = self.config.get("rope_parameters") or {}
        part = rope.get("partial_rotary_factor", self.config.get("partial_rotary_factor", 1.0))
        return rotate(x, angles(self.config, int(self.head_dim * part), position))

    def key_value(self, normed: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        key = self.weights.linear("self_attn.k_proj", normed).view(self.kv_heads, self.head_dim)
        value = self.weights.linear("self_attn.v_proj", normed).view(self.kv_heads, self.head_dim)
        if "self_attn.k_norm.weight" in self.weights:
            key = self.norm("self_attn.k_norm", key)
        return self.rotary(key, position), value

    def attention(self, normed: torch.Tensor, position: int, cache: Cache) -> torch.Tensor:
        query = self.weights.linear("self_attn.q_proj", normed).view(self.heads, -1)
        query, gate = query[:, : self.head_dim], query[:, self.head_dim :]  # the gate is Qwen3-Next's, else empty
        if "self_attn.q_norm.weight" in self.weights:
            query = self.norm("self_attn.q_norm", query)
        out = attend(self.rotary(query, position), cache, self.head_dim**-0.5)
        if gate.numel():
            out = out * torch.sigmoid(gate.flatten())
        return self.weights.linear("self_attn.o_proj", out)

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        mlp = self.weights.under("mlp.")
        if "gate.weight" not in mlp:
            return gated_mlp(mlp, x)
        if "shared_expert.up_proj.weight" in mlp:
            return self.softmax_experts(mlp, x)
        return self.sigmoid_experts(mlp, x)

    def softmax_experts(self, mlp: Weights, x: torch.Tensor) -> torch.Tensor:
        """Qwen3-Next: softmax over all experts, the best few, and a gated shared expert."""
        shares = torch.softmax(mlp["gate.weight"] @ x, dim=0)
        chosen = shares.argsort(descending=True)[: self.config["num_experts_per_tok"]].tolist()
        total = sum(shares[e] for e in chosen) if self.config.get("norm_topk_prob", True) else 1.0
        out = torch.sigmoid(mlp["shared_expert_gate.weight"] @ x) * gated_mlp(mlp.under("shared_expert."), x)
        for e in chosen:
            out = out + shares[e] / total * gated_mlp(mlp.under(f"experts.{e}."), x)
        return out

    def sigmoid_experts(self, mlp: Weights, x: torch.Tensor) -> torch.Tensor:
        """DeepSeek-V3 and GLM-4.5: choice by score + bias within the best groups, weight by score alone."""
        scores = torch.sigmoid(mlp["gate.weight"] @ x)
        biased = scores + mlp["gate.e_score_correction_bias"]
        groups = biased.view(self.config.get("n_group") or 1, -1)
        worth = groups.topk(2, dim=1).values.sum(dim=1)
        best = worth.argsort(descending=True)[: self.config.get("topk_group") or 1].tolist()
        size = groups.shape[1]
        allowed = [g * size + j for g in best for j in range(size)]
        allowed.sort(key=lambda e: -biased[e].item())
        chosen = allowed[: self.config["num_experts_per_tok"]]
        total = sum(scores[e] for e in chosen) + 1e-20 if self.config.get("norm_topk_prob", True) else 1.0
        out = gated_mlp(mlp.under("shared_experts."), x)
        for e in chosen:
            share = scores[e] / total * self.config.get("routed_scaling_factor", 1.0)
            out = out + share * gated_mlp(mlp.under(f"experts.{e}."), x)
        return out


class LatentLayer(Layer):
    """DeepSeek-V3: keys and values from one latent vector a token, and one rotary key that all heads share."""

    LATENT_EPS = 1e-6  # transformers' default for the two latent norms, not rms_norm_eps

    def key_value(self, normed: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        rank, plain = self.config["kv_lora_rank"], self.config["qk_nope_head_dim"]
        both = self.weights.linear("self_attn.kv_a_proj_with_mqa", normed)
        latent = rms_norm(both[:rank], self.weights["self_attn.kv_a_layernorm.weight"], self.LATENT_EPS)
        expanded = self.weights.linear("self_attn.kv_b_proj", latent).view(self.heads, -1)
        turned = self.rotary(both[rank:], position).expand(self.heads, -1)
        return torch.cat([expanded[:, :plain], turned], dim=1), expanded[:, plain:]

    def attention(self, normed: torch.Tensor, position: int, cache: Cache) -> torch.Tensor:
        plain = self.config["qk_nope_head_dim"]
        query = normed
        if "self_attn.q_proj.weight" in self.weights:
            query = self.weights.linear("self_attn.q_proj", query)
        else:
            query = self.weights.linear("self_attn.q_a_proj", query)
            query = rms_norm(query, self.weights["self_attn.q_a_layernorm.weight"], self.LATENT_EPS)
            query = self.weights.linear("self_attn.q_b_proj", query)
        query = query.view(self.heads, -1)
        query = torch.cat([query[:, :plain], self.rotary(query[:, plain:], position)], dim=1)
        out = attend(query, cache, query.shape[1] ** -0.5)
        return self.weights.linear("self_attn.o_proj", out)

    def rotary(self, x: torch.Tensor, position: int) -> torch.Tensor:
        angle = angles(self.config, self.config["qk_rope_head_dim"], position)
        return rotate(x, angle, interleaved=self.config.get("rope_interleave", True))


class Module:
    """One MTP module: two norms, the projection of [e ; h] (MiMo: [h ; e]), a decoder layer, a final norm."""

    def __init__(self, config: Config, weights: Weights, index: int):
        self.eps = config["rms_norm_eps"]
        self.hidden_first = False
        self.zero_centred = False
        self.weights = weights
        if config["model_type"] in ("deepseek_v3", "glm4_moe"):
            layer = f"model.layers.{config['num_hidden_layers'] + index}."
            names = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
            self.enorm, self.hnorm, self.project, self.post = (layer + name for name in names)
        elif config["model_type"] == "qwen3_next":
            layer = f"mtp.layers.{index}."
            names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
            self.enorm, self.hnorm, self.project, self.post = (f"mtp.{name}" for name in names)
            self.zero_centred = True
        elif config["model_type"] == "mimo":
            layer = f"model.mtp_layers.{index}."
            names = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
            self.enorm, self.hnorm, self.project, self.post = (layer + name for name in names)
            self.hidden_first = True
        else:
            raise NotImplementedError(config["model_type"])
        kind = LatentLayer if config["model_type"] == "deepseek_v3" else Layer
        self.layer = kind(config, weights.under(layer))

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weights[f"{name}.weight"], self.eps, zero_centred=self.zero_centred)

    def step(self, embedding: torch.Tensor, hidden: torch.Tensor, position: int, cache: Cache) -> torch.Tensor:
        """The decoder layer's output, before the final norm."""
        pair = [self.norm(self.enorm, embedding), self.norm(self.hnorm, hidden)]
        if self.hidden_first:
            pair.reverse()
        return self.layer.step(self.weights.linear(self.project, torch.cat(pair)), position, cache)


class LiteralMtp:
    """Multi-token prediction with one or several modules.

    Position i uses module m = (i - 1) mod M. Every module has a KV cache of its own, rebuilt in every round:

    - Module m's context entries are t = 0..n-1, made of e(x_{t+1+m}) and a hidden state: h_t for module 0, what module
      m - 1 fed back at the same t for the others. Where t + 1 + m > n the token is a draft of this round. transformers'
      MtpModel does that (it rolls tokens and hidden states from module to module and recomputes the entries whose
      drafts were rejected), and so does vLLM's multi-module speculator. An engine that runs module 0 over the context
      and the others on one token a step leaves the other modules' context out; with one module all agree.
    - q_i comes from the entry t = n-1 of module m while i <= M. Then the modules are used again: position i > M adds
      one entry to its module's cache, made of e(d_{i-1}) and what position i - 1 fed back.
    - The rotary position of an entry is its token's place in the sequence, minus one. A module only compares its own
      entries, so that a constant shift (none in transformers, t itself in vLLM's multi-module one) changes nothing.

    `feeds_back` says whether the next position gets the module's output after or before the module's final norm; logits
    always come from the normed output through the target's lm_head. `zero_first` replaces the embedding of the entry
    t = 0 by zeros in the families where vLLM does that (not Qwen3-Next; transformers never does).
    """

    def __init__(
        self, folder: Path | str, target: Any, *, feeds_back: str = "post_norm", zero_first: bool = True
    ) -> None:
        if feeds_back not in ("post_norm", "pre_norm"):
            raise ValueError(feeds_back)
        config, weights = read_checkpoint(folder)
        self.target = target
        self.post_norm = feeds_back == "post_norm"
        self.zero_first = zero_first and config["model_type"] in ZEROES_FIRST
        self.modules = [Module(config, weights, index) for index in range(config.get("num_nextn_predict_layers", 1))]

    @torch.no_grad()
    def round(self, tokens: list[int], drafts: list[int]) -> torch.Tensor:
        embeddings = self.target.get_input_embeddings().weight
        head = self.target.get_output_embeddings().weight
        known = [*tokens, *drafts]
        n = len(tokens) - 1
        hidden = list(last_hidden(self.target, tokens[:n]))
        caches: list[Cache] = [[] for _ in self.modules]
        rows = []
        for i in range(1, len(drafts) + 1):
            m = (i - 1) % len(self.modules)
            module = self.modules[m]
            first_use = i <= len(self.modules)
            fed_back = []
            for t in range(n) if first_use else [n - 1]:
                embedding = embeddings[known[t + i]]
                if self.zero_first and first_use and t == 0:
                    embedding = torch.zeros_like(embedding)
                output = module.step(embedding, hidden[t] if first_use else hidden[-1], t + i - 1, caches[m])
                normed = module.norm(module.post, output)
                fed_back.append(normed if self.post_norm else output)
            rows.append(torch.softmax(head @ normed, dim=0))
            hidden = fed_back
        return torch.stack(rows)


class LiteralDflash:
    """A block drafter: x_n and K masks at positions n..n+K see the target's context and, unless causal, each other."""

    def __init__(self, folder: Path | str, target: Any) -> None:
        config, weights = read_checkpoint(folder)
        self.target = target
        details = config.get("dflash_config") or {}
        body = config.get("transformer_layer_config") or config
        if config.get("sample_from_anchor") or details.get("sample_from_anchor") or details.get("use_swa"):
            raise NotImplementedError("drafting from the anchor, or a sliding window")
        self.weights = weights
        self.eps = body["rms_norm_eps"]
        self.block_size = config["block_size"]
        self.causal = bool(details.get("causal", False))
        self.mask = details.get("mask_token_id", config.get("mask_token_id"))
        if "aux_hidden_state_layer_ids" in config:
            self.states = list(config["aux_hidden_state_layer_ids"])
        else:
            ids = details.get("target_layer_ids", config.get("target_layer_ids"))
            if ids is None:
                ids = spread_ids(config["num_target_layers"], body["num_hidden_layers"])
            self.states = [i + 1 for i in ids]
        encoder = "encoder.fc.weight" in weights
        self.project, self.project_norm = (
            ("encoder.fc", "encoder.output_norm_enc") if encoder else ("fc", "hidden_norm")
        )
        self.layers = [Layer(body, weights.under(f"layers.{i}.")) for i in range(body["num_hidden_layers"])]

    @torch.no_grad()
    def round(self, tokens: list[int], drafts: list[int]) -> torch.Tensor:
        n, k = len(tokens) - 1, len(drafts)
        if k > self.block_size - 1:
            raise ValueError("a block holds the newest token and block_size - 1 masks")
        tapped = tapped_states(self.target, tokens[:n], self.states)
        context = [
            rms_norm(self.weights.linear(self.project, row), self.weights[f"{self.project_norm}.weight"], self.eps)
            for row in tapped
        ]
        embeddings = self.weights.get("embed_tokens.weight", self.target.get_input_embeddings().weight)
        block = [embeddings[token] for token in [tokens[n], *[self.mask] * k]]
        for layer in self.layers:
            normed = [layer.norm("input_layernorm", x) for x in block]
            cache = [layer.key_value(c, t) for t, c in enumerate(context)]
            cache += [layer.key_value(x, n + j) for j, x in enumerate(normed)]
            block = [
                layer.finish(x, layer.attention(normed[j], n + j, cache[: n + j + 1] if self.causal else cache))
                for j, x in enumerate(block)
            ]
        outputs = [rms_norm(x, self.weights["norm.weight"], self.eps) for x in block[1:]]
        return torch.stack([torch.softmax(self.logits(x), dim=0) for x in outputs])

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        target_head = self.target.get_output_embeddings().weight
        if "lm_head.weight" not in self.weights:
            return target_head @ x
        logits = self.weights["lm_head.weight"] @ x
        if "d2t" not in self.weights:
            return logits
        places = torch.arange(len(logits)) + self.weights["d2t"]
        return torch.full((len(target_head),), -torch.inf).scatter(0, places, logits)


class LiteralPard:
    """An ordinary causal model that reads K - 1 mask tokens after x_n and drafts K tokens in one pass."""

    def __init__(self, folder: Path | str) -> None:
        config, self.weights = read_checkpoint(folder)
        self.eps = config["rms_norm_eps"]
        places = [(config.get("dflash_config") or {}), config]
        self.mask = next(place[key] for key in MASK_TOKEN_KEYS for place in places if key in place)
        self.layers = [
            Layer(config, self.weights.under(f"model.layers.{i}.")) for i in range(config["num_hidden_layers"])
        ]

    @torch.no_grad()
    def round(self, tokens: list[int], drafts: list[int]) -> torch.Tensor:
        embeddings = self.weights["model.embed_tokens.weight"]
        head = self.weights.get("lm_head.weight", embeddings)
        caches: list[Cache] = [[] for _ in self.layers]
        outputs = []
        for position, token in enumerate([*tokens, *[self.mask] * (len(drafts) - 1)]):
            x = embeddings[token]
            for layer, cache in zip(self.layers, caches, strict=True):
                x = layer.step(x, position, cache)
            outputs.append(rms_norm(x, self.weights["model.norm.weight"], self.eps))
        return torch.stack([torch.softmax(head @ x, dim=0) for x in outputs[-len(drafts) :]])


def spread_ids(num_target_layers: int, count: int) -> list[int]:
    """The target layers that a DFlash drafter taps when its config names none."""
    if count == 1:
        return [num_target_layers // 2]
    step = (num_target_layers - 4) / (count - 1)
    return [round(1 + i * step) for i in range(count)]


def last_hidden(target: Any, tokens: list[int]) -> torch.Tensor:
    """h_0..h_{n-1}: the target's last hidden states after its final norm."""
    return target.get_decoder()(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]


def tapped_states(target: Any, tokens: list[int], states: list[int]) -> torch.Tensor:
    """The residual stream after so many layers, joined: never normed, not even after the last layer."""
    before_norm = []
    decoder = target.get_decoder()
    hook = decoder.norm.register_forward_pre_hook(lambda _, inputs: before_norm.append(inputs[0]))
    out = decoder(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    hook.remove()
    stream = [*out.hidden_states[:-1], before_norm[0]]
    return torch.cat([stream[k][0] for k in states], dim=-1)
