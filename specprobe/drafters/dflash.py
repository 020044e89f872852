"""DFlash: a small decoder that fills a block of masks in one pass, attending to the target's states as its context.

Context: c_t = hidden_norm(fc(states of the tapped layers at t)), which only gives keys and values. Block: the newest
token and K masks at positions n..n+K; attention inside it goes both ways unless the config says causal, so depth K is
not a part of a deeper one and every depth is drafted by itself (z-lab/dflash; vLLM 0.33 qwen3_dflash.py).

Imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specprobe.checkpoint import Checkpoint, open_checkpoint
from specprobe.drafters.base import refuse_unknown_options
from specprobe.drafters.heads import Batch, HeadDrafter, OpenHead, rows_at
from specprobe.drafters.models import DraftContext, ModelSpec
from specprobe.drafters.shared import SharingNetwork, check_mask_token, own_or_shared
from specprobe.drafters.stack import decoder_config, decoder_stack
from specprobe.errors import SpecprobeError
from specprobe.features import Features
from specprobe.notices import Notice

# Rounds whose blocks go through the layers together: the mask is (rounds x block) x (context + rounds x block).
ROUNDS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class DflashSettings:
    """What a config.json says. `block_size`: the newest token and the most masks behind it."""

    taps: tuple[int, ...]
    mask_token: int
    block_size: int
    is_causal: bool


@dataclass(slots=True)
class DflashState:
    """`keys`, `values`: the context's, by layer, [B, heads, T, dim]. `blocks` [B, N, K, H]: outputs at the masks."""

    batch: Batch
    depth: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    blocks: torch.Tensor | None = None


class DflashNetwork(SharingNetwork):
    """fc and norm of the context, layers, final norm."""

    fc: Any
    hidden_norm: Any
    norm: Any

    def __init__(self, checkpoint: Checkpoint, config: Any, settings: DflashSettings, target_hidden: int) -> None:
        super().__init__()
        self.settings = settings
        self.nested = settings.is_causal
        self.stack, self.norm = decoder_stack(checkpoint, config)
        with torch.device("meta"):
            self.fc = torch.nn.Linear(len(settings.taps) * target_hidden, config.hidden_size, bias=False)
            self.hidden_norm = type(self.norm)(config.hidden_size, eps=config.rms_norm_eps)

    def begin(self, batch: Batch, depth: int) -> DflashState:
        """Keys and values of the context, for every layer."""
        states = self.hidden_norm(self.fc(torch.cat([batch.features[tap] for tap in self.settings.taps], dim=-1)))
        positions = torch.arange(states.shape[1], device=batch.device)[None].expand(len(states), -1)
        pairs = [self._keys_and_values(layer.self_attn, states, positions) for layer in self.stack.layers]
        return DflashState(batch, depth, [keys for keys, _ in pairs], [values for _, values in pairs])

    def draft(self, state: DflashState, position: int, starts: torch.Tensor) -> torch.Tensor:
        """All positions come from one pass over the block, at the first."""
        if state.blocks is None:
            width = int(state.batch.num_output.max())
            state.blocks = self.norm.weight.new_zeros(len(starts), width, state.depth, self.norm.weight.numel())
        if position == 1:
            for chunk in torch.split(starts, ROUNDS_AT_ONCE, dim=1):
                index = chunk.clamp(min=0)[..., None, None].expand(-1, -1, state.depth, state.blocks.shape[-1])
                # Padding goes to column 0, where no round starts.
                state.blocks.scatter_(1, index, self._block(state, chunk))
        return rows_at(state.blocks[:, :, position - 1], starts)

    def rewind(self, state: DflashState) -> None:
        """Rounds have their own columns."""

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:  # noqa: ARG002
        """The target's head, unless the checkpoint has its own."""
        return self.shared.head(self.norm(states))

    def _block(self, state: DflashState, starts: torch.Tensor) -> torch.Tensor:
        """[B, A, K, H]: the last layer's output at the masks of the rounds `starts` [B, A]."""
        batch, size = state.batch, state.depth + 1
        rows, rounds = starts.shape
        newest = batch.newest(starts)
        masks = torch.full((rows, rounds, state.depth), self.settings.mask_token, device=batch.device)
        tokens = torch.cat([batch.tokens(newest)[..., None], masks], dim=-1).reshape(rows, rounds * size)
        offsets = torch.arange(size, device=batch.device)
        positions = (newest[..., None] + offsets).clamp(min=0).reshape(rows, rounds * size)
        # [B, 1, A x size, T + A x size]
        context = torch.arange(state.keys[0].shape[2], device=batch.device)
        sees_context = (context < newest[..., None, None]).expand(-1, -1, size, -1).reshape(rows, rounds * size, -1)
        owner = torch.arange(rounds, device=batch.device).repeat_interleave(size)
        sees_block = owner[:, None] == owner[None]
        if self.settings.is_causal:
            offset = offsets.repeat(rounds)
            sees_block = sees_block & (offset[:, None] >= offset[None])
        mask = torch.cat([sees_context, sees_block.expand(rows, -1, -1)], dim=-1)[:, None]
        states = self.shared.embed(tokens).to(self.norm.weight.dtype)
        for layer, keys, values in zip(self.stack.layers, state.keys, state.values, strict=True):
            states = self._layer(layer, states, positions, mask, keys, values)
        return states.reshape(rows, rounds, size, -1)[:, :, 1:]

    def _layer(
        self,
        layer: Any,
        states: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        context_keys: torch.Tensor,
        context_values: torch.Tensor,
    ) -> torch.Tensor:
        attention = layer.self_attn
        normed = layer.input_layernorm(states)
        queries = _heads(attention.q_proj(normed), attention.head_dim)
        queries = self._rotated(attention.q_norm(queries), states, positions)
        keys, values = self._keys_and_values(attention, normed, positions)
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries.transpose(1, 2),
            torch.cat([context_keys, keys], dim=2).repeat_interleave(attention.num_key_value_groups, dim=1),
            torch.cat([context_values, values], dim=2).repeat_interleave(attention.num_key_value_groups, dim=1),
            attn_mask=mask,
        )
        states = states + attention.o_proj(attended.transpose(1, 2).flatten(2))
        output: torch.Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
        return output

    def _keys_and_values(
        self, attention: Any, states: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, heads, T, dim] each."""
        keys = self._rotated(attention.k_norm(_heads(attention.k_proj(states), attention.head_dim)), states, positions)
        values = _heads(attention.v_proj(states), attention.head_dim)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def _rotated(self, vectors: torch.Tensor, like: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[B, T, heads, dim] turned by their positions."""
        cos, sin = self.stack.rotary(like, positions)
        first, second = vectors.chunk(2, dim=-1)
        return vectors * cos[:, :, None] + torch.cat([-second, first], dim=-1) * sin[:, :, None]


def _heads(states: torch.Tensor, head_dim: int) -> torch.Tensor:
    return states.reshape(*states.shape[:-1], -1, head_dim)


@dataclass(frozen=True)
class OpenDflash(OpenHead):
    """A DFlash checkpoint that fits the target."""

    spec: ModelSpec
    context: DraftContext
    checkpoint: Checkpoint
    network: DflashNetwork
    taps: tuple[int, ...]
    notices: tuple[Notice, ...] = ()

    def load(self, features: Features | None) -> HeadDrafter:
        """Weights in the target's precision, on its device."""
        assert features is not None
        target = self.context.needed_target(self.spec.name)
        self.checkpoint.fill_module(self.network, _renamed(self.checkpoint), target.device, target.model.dtype)
        self.network.share(own_or_shared(self.checkpoint, target))
        settings = self.network.settings
        return self.head_drafter(
            self.network,
            features,
            {
                "layer_ids": [tap - 1 for tap in settings.taps],
                "capture": "output_of",
                "block_size": settings.block_size,
                "causal": settings.is_causal,
            },
            max_positions=self.context.positions_heeded(self.network.stack.config),
        )


def open_dflash(spec: ModelSpec, context: DraftContext) -> OpenDflash:
    """`dflash:MODEL`, in z-lab's layout or that of speculators."""
    refuse_unknown_options(spec.options, (), spec.name)
    target = context.needed_target(spec.name)
    checkpoint = open_checkpoint(spec.model)
    fields = checkpoint.settings.section("transformer_layer_config").values or checkpoint.config
    # Layers are Qwen3's, whatever the checkpoint calls itself.
    config = decoder_config(checkpoint, {**fields, "model_type": "qwen3"})
    settings = _settings(checkpoint, target.text_config.num_hidden_layers, config.num_hidden_layers)
    if context.depth >= settings.block_size:
        raise SpecprobeError(
            f"--drafter dflash:{spec.model}: fills blocks of {settings.block_size}, the newest token included; "
            f"use --depth {settings.block_size - 1} at most"
        )
    network = DflashNetwork(checkpoint, config, settings, target.text_config.hidden_size)
    checkpoint.check_module(network, _renamed(checkpoint))
    own_or_shared(checkpoint, target, check_only=True)
    check_mask_token(checkpoint, settings.mask_token, target)
    taps = tuple(dict.fromkeys(settings.taps))
    return OpenDflash(spec, context, checkpoint, network, taps, context.context_notices(spec.label, config))


def _settings(checkpoint: Checkpoint, num_layers: int, draft_layers: int) -> DflashSettings:
    config = checkpoint.settings
    nested = config.section("dflash_config")
    for key in ("use_swa", "attention_sink_bias", "sample_from_anchor"):
        if nested.values.get(key, checkpoint.config.get(key)):
            raise SpecprobeError(
                f"drafter {checkpoint.name}: {key} is set in config.json; specprobe does not draft that way yet"
            )
    ids = nested.layers("target_layer_ids") or config.layers("target_layer_ids")
    if entering := config.layers("aux_hidden_state_layer_ids"):
        # Speculators name what enters a layer, z-lab what leaves it.
        ids = [layer - 1 for layer in entering]
    ids = _spread(num_layers, draft_layers) if ids is None else ids
    mask_token = nested.whole("mask_token_id", config.whole("mask_token_id", -1, least=0), least=0)
    block_size = config.whole("block_size", nested.whole("block_size", 0, least=2), least=2)
    if mask_token < 0 or not block_size:
        raise SpecprobeError(f"drafter {checkpoint.name}: config.json lacks mask_token_id or block_size")
    for layer in ids:
        if not -1 <= layer < num_layers:
            raise SpecprobeError(
                f"drafter {checkpoint.name}: reads the output of layer {layer}, the target has {num_layers} layers; "
                "it was trained for another target"
            )
    return DflashSettings(tuple(layer + 1 for layer in ids), mask_token, block_size, nested.flag("causal", False))


def _spread(num_layers: int, count: int) -> list[int]:
    """Without ids in the config: from layer 1 to the third last, evenly."""
    if count == 1:
        return [num_layers // 2]
    first, last = 1, num_layers - 3
    return [round(first + i * (last - first) / (count - 1)) for i in range(count)]


def _renamed(checkpoint: Checkpoint) -> Any:
    """A weight's name in the checkpoint; some call the context's part an encoder."""
    encoder = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}

    def rename(name: str) -> str:
        name = name.removeprefix("stack.")
        return encoder[name] if encoder.get(name, "") in checkpoint else name

    return rename
