"""A Llama in plain torch for the embedded target, which so starts without transformers: importing that takes seconds.

It computes what transformers' LlamaForCausalLM does, operation by operation, so that the logits are the same to the
last bit, and has the part of its interface that specprobe uses. The head is tied to the embeddings. Imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from specprobe.embedded import LlamaConfig
from specprobe.kv_cache import RoomyCache, RoomyLayer

Rotary = tuple[torch.Tensor, torch.Tensor]


class DecoderOutput(NamedTuple):
    """Hidden states [batch, tokens, hidden], normalised."""

    last_hidden_state: torch.Tensor
    cache: RoomyCache | None


class CausalOutput(NamedTuple):
    """Logits [batch, tokens, vocabulary]."""

    logits: torch.Tensor
    cache: RoomyCache | None


class RmsNorm(nn.Module):
    """Divides by the root of the mean square, in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self._epsilon = epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Same shape as `hidden` [..., size]."""
        wide = hidden.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._epsilon)
        return self.weight * wide.to(hidden.dtype)


class RotaryEmbedding(nn.Module):
    """Cosines and sines of the angles by which queries and keys are turned."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        # On the CPU, where weights on the meta device are none yet; float32 in every precision.
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu") / config.head_dim
        self.register_buffer("inv_freq", 1.0 / (config.rope_theta**exponents), persistent=False)

    def forward(self, position_ids: torch.Tensor, dtype: torch.dtype) -> Rotary:
        """Both [batch, 1, tokens, head_dim]."""
        angles = position_ids[..., None].float() * self.get_buffer("inv_freq")
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)


class Attention(nn.Module):
    """Several query heads share one head of keys and values."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self._head_dim = config.head_dim
        self._group = config.num_attention_heads // config.num_key_value_heads
        query_size, key_size = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)

    def forward(
        self, hidden: torch.Tensor, rotary: Rotary, mask: torch.Tensor | None, cache: RoomyLayer | None
    ) -> torch.Tensor:
        """[batch, tokens, hidden] like `hidden`; `mask`: see _mask."""
        query, key, value = (
            projection(hidden).view(*hidden.shape[:2], -1, self._head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = _rotated(query, rotary), _rotated(key, rotary)
        if cache is not None:
            key, value = cache.update(key, value)
        return self.o_proj(self._attend(query, key, value, mask).transpose(1, 2).flatten(2))

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """By the kernel that transformers would take: the fast ones know grouped heads only without a mask."""
        shape = query.shape
        # Apple's kernels know no grouped heads at all.
        is_grouped = mask is None and query.device.type != "mps"
        if not is_grouped and shape[2] == 1:
            # The queries of a group stand like successive tokens of one head.
            query = query.view(shape[0], -1, self._group, self._head_dim)
        elif not is_grouped:
            key, value = (states.repeat_interleave(self._group, dim=1) for states in (key, value))
        heads = scaled_dot_product_attention(
            query, key, value,
            attn_mask=mask,
            is_causal=mask is None and shape[2] > 1,
            scale=self._head_dim**-0.5,
            enable_gqa=is_grouped and self._group > 1,
        )  # fmt: skip
        return heads.reshape(shape)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden] like `hidden`."""
        return self.down_proj(silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class DecoderLayer(nn.Module):
    """Attention and SwiGLU, each added to what it was given."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, hidden: torch.Tensor, rotary: Rotary, mask: torch.Tensor | None, cache: RoomyLayer | None
    ) -> torch.Tensor:
        """[batch, tokens, hidden] like `hidden`; `mask`: see _mask."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, mask, cache)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class LlamaModel(nn.Module):
    """The decoder: everything but the head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        # Given a matrix: the random one that it would make imports half of torch where the device is "meta".
        matrix = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens: nn.Embedding = nn.Embedding.from_pretrained(matrix)  # type: ignore[no-untyped-call]
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: RoomyCache | None = None,
        use_cache: bool = True,
    ) -> DecoderOutput:
        """The arguments are those of LlamaForCausalLM."""
        if cache is None and use_cache:
            cache = RoomyCache(self.config.num_hidden_layers)
        past, tokens = cache.get_seq_length() if cache is not None else 0, input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(past, past + tokens, device=input_ids.device)[None]
        mask = _mask(attention_mask, past, tokens, input_ids.device)
        hidden = self.embed_tokens(input_ids)
        rotary = self.rotary_emb(position_ids, hidden.dtype)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, rotary, mask, cache.layers[index] if cache is not None else None)
        return DecoderOutput(self.norm(hidden), cache)


class LlamaForCausalLM(nn.Module):
    """The decoder and its head; what transformers' class of this name gives."""

    generation_config = None

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: RoomyCache | None = None,
        use_cache: bool = True,
        logits_to_keep: int = 0,
    ) -> CausalOutput:
        """Logits after the last `logits_to_keep` of `input_ids` [batch, tokens], after all where it is 0.

        `attention_mask`: [batch, cached and new tokens], 0 where there is padding, or a boolean mask [batch or 1, 1,
        tokens, cached and new tokens], which is then taken as it is. `cache` grows by the new tokens.
        """
        output = self.model(input_ids, attention_mask, position_ids, cache, use_cache)
        return CausalOutput(self.lm_head(output.last_hidden_state[:, -logits_to_keep:]), output.cache)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take these tensors for parameters, as they are."""
        self.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}, assign=True)
        self.lm_head.weight = self.model.embed_tokens.weight

    def get_decoder(self) -> LlamaModel:
        """Everything but the head."""
        return self.model

    def get_input_embeddings(self) -> nn.Embedding:
        """From ids to hidden states."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        """From hidden states to logits."""
        return self.lm_head

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return self.lm_head.weight.dtype


def load_llama(folder: Path, dtype: torch.dtype) -> LlamaForCausalLM:
    """The model of a checkpoint folder, on the CPU."""
    weights = load_file(folder / "model.safetensors")
    # Without memory of their own, and so without a random start: the weights take the parameters' places.
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig.read(folder))
    model.load_weights({name: weight.to(dtype) for name, weight in weights.items()})
    return model


def _rotated(states: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """`states` [batch, heads, tokens, head_dim], turned by their positions."""
    cos, sin = rotary
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


def _mask(attention_mask: torch.Tensor | None, past: int, tokens: int, device: torch.device) -> torch.Tensor | None:
    """[batch or 1, 1, tokens, keys], true where a new token sees a key.

    None where a kernel needs no mask: the tokens are all there are, or there is one, which sees all.
    """
    if attention_mask is not None and attention_mask.dim() == 4:
        return attention_mask
    is_padded = attention_mask is not None and not attention_mask.all()
    if not is_padded and (past == 0 or tokens == 1):
        return None
    keys = torch.arange(past + tokens, device=device)
    causal = (keys <= keys[past:, None])[None, None]
    return causal if attention_mask is None else causal & attention_mask[:, None, None].to(torch.bool)
