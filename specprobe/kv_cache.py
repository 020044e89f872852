"""Keys and values of a batch that is being decoded. Imports torch and transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

# Room added at a time: the copies then cost less than a hundredth of a decode step each.
_ROOM_TOKENS = 256


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A DynamicLayer with spare room, which appends a token without copying all tokens before it.

    `keys` and `values` [batch, heads, tokens, dim] are views into larger buffers.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [batch, heads, new tokens, dim]; returns all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length = self.get_seq_length()
        total = length + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < total:
            self._buffers = (
                _with_room(self.keys, key_states, total + _ROOM_TOKENS),
                _with_room(self.values, value_states, total + _ROOM_TOKENS),
            )
        keys, values = self._buffers
        keys[:, :, length:total] = key_states
        values[:, :, length:total] = value_states
        self.keys, self.values = keys[:, :, :total], values[:, :, :total]
        return self.keys, self.values

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


def new_cache(config: Any) -> Any:
    """A cache for a model's config: roomy where its layers attend to everything, transformers' own elsewhere."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _with_room(old: torch.Tensor, like: torch.Tensor, capacity: int) -> torch.Tensor:
    batch, heads, _, dim = like.shape
    buffer = like.new_empty(batch, heads, capacity, dim)
    if old.dim() == like.dim():
        buffer[:, :, : old.shape[-2]] = old
    return buffer
