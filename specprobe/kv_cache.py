"""Keys and values of a batch that is being decoded. Imports torch, and transformers for the models of transformers."""

from __future__ import annotations

from typing import Any

import torch

from specprobe.embedded import LlamaConfig

# Room added at a time: the copies then cost less than a hundredth of a decode step each.
ROOM_TOKENS = 256


class RoomyLayer:
    """The keys and values of a layer with spare room: appending a token does not copy all tokens before it.

    `keys` and `values` [batch, heads, tokens, dim] are views into larger buffers, with `room` for more tokens.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, room: int = ROOM_TOKENS) -> None:
        super().__init__()
        self._room = room
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        self.is_initialized = False

    def get_seq_length(self) -> int:
        """How many tokens it holds."""
        return self.keys.shape[-2] if self.is_initialized else 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [batch, heads, new tokens, dim]; returns all keys and values."""
        if not self.is_initialized:
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
            self.is_initialized = True
        length = self.get_seq_length()
        total = length + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < total:
            self._buffers = (
                _with_room(self.keys, key_states, total + self._room),
                _with_room(self.values, value_states, total + self._room),
            )
        keys, values = self._buffers
        keys[:, :, length:total] = key_states
        values[:, :, length:total] = value_states
        self.keys, self.values = keys[:, :, :total], values[:, :, :total]
        return self.keys, self.values

    def crop(self, minus_tokens: int) -> None:
        """Take the last tokens out again, their number given with a minus."""
        length = self.get_seq_length() + minus_tokens
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row so many times."""
        if self._buffers is not None:
            self._buffers = None
            self.keys = self.keys.repeat_interleave(repeats, dim=0)
            self.values = self.values.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows of the batch."""
        if self._buffers is not None:
            length = self.get_seq_length()
            keys, values = self._buffers = (self._buffers[0][indices], self._buffers[1][indices])
            self.keys, self.values = keys[:, :, :length], values[:, :, :length]


class RoomyCache:
    """A RoomyLayer for each layer of a model."""

    def __init__(self, num_layers: int, room: int = ROOM_TOKENS) -> None:
        self.layers = [RoomyLayer(room) for _ in range(num_layers)]

    def get_seq_length(self) -> int:
        """How many tokens it holds."""
        return self.layers[0].get_seq_length()

    def crop(self, minus_tokens: int) -> None:
        """Take the last tokens out again, their number given with a minus."""
        for layer in self.layers:
            layer.crop(minus_tokens)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row so many times."""
        for layer in self.layers:
            layer.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows of the batch."""
        for layer in self.layers:
            layer.batch_select_indices(indices)


def new_cache(config: Any, room: int = ROOM_TOKENS) -> Any:
    """A cache for a model's config: roomy where its layers attend to everything, transformers' own elsewhere.

    `room`: of how many tokens, for a batch that is not decoded token by token.
    """
    if isinstance(config, LlamaConfig):
        return RoomyCache(config.num_hidden_layers, room)
    from specprobe.dynamic_cache import new_dynamic_cache

    return new_dynamic_cache(config, room)


def kv_token_bytes(config: Any, itemsize: int) -> int:
    """Keys and values of one token in all layers, in bytes, where every layer has heads of one size."""
    config = config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size: int = 2 * config.num_hidden_layers * heads * width * itemsize
    return size


def _with_room(old: torch.Tensor, like: torch.Tensor, capacity: int) -> torch.Tensor:
    batch, heads, _, dim = like.shape
    buffer = like.new_empty(batch, heads, capacity, dim)
    buffer[:, :, : old.shape[-2]] = old
    return buffer
