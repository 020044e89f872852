"""Keys and values of rows of different lengths, in memory that is there from the start.

A pass writes each row's new tokens at positions of its own and attends over the first `width` positions, masked by
row. Shapes and addresses stay the same from pass to pass, as a CUDA graph needs. Imports torch.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from specprobe.embedded import LlamaConfig


@dataclass(slots=True, eq=False)
class Places:
    """Where a pass puts its tokens: `rows` [R, 1] of the batch (None: all), `positions` [R, Q], keys up to `width`."""

    positions: torch.Tensor
    width: int
    rows: torch.Tensor | None = None


class RaggedLayer:
    """The keys and values of one layer, [batch, capacity, heads, dim] each; made when the first pass shows their shape.

    They begin as zeros: a masked key weighs nothing, but must be a number.
    """

    def __init__(self, batch: int, capacity: int) -> None:
        super().__init__()
        self.places: Places | None = None
        self._size = batch, capacity
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        self.is_initialized = True

    def get_seq_length(self) -> int:
        """Rows have no common length: masks and positions are always given."""
        return 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [R, heads, Q, dim] at their places; returns [R, heads, width, dim] of the same rows."""
        assert self.places is not None
        places = self.places
        rows = places.rows
        if rows is None:
            rows = torch.arange(self._size[0], device=key_states.device)[:, None]
        buffers = self.write(rows, places.positions, key_states.transpose(1, 2), value_states.transpose(1, 2))
        keys, values = (
            (buffer if places.rows is None else buffer[places.rows[:, 0]])[:, : places.width].transpose(1, 2)
            for buffer in buffers
        )
        return keys, values

    def write(
        self, rows: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put [..., heads, dim] where `rows` and `positions`, of a shape that broadcasts to [...], say.

        Returns all there is, [batch, capacity, heads, dim].
        """
        if self._buffers is None:
            self._buffers = (
                keys.new_zeros(*self._size, *keys.shape[-2:]),
                values.new_zeros(*self._size, *values.shape[-2:]),
            )
        self._buffers[0][rows, positions] = keys
        self._buffers[1][rows, positions] = values
        return self._buffers


class RaggedCache:
    """A RaggedLayer for each layer, as the model (or, without one, a stack of layers) takes them.

    `cache` is what a forward pass is given.
    """

    def __init__(self, batch: int, capacity: int, num_layers: int, *, for_transformers: bool) -> None:
        self.layers: list[Any]
        if for_transformers:
            from specprobe.dynamic_cache import new_ragged_cache

            self.cache: Any = new_ragged_cache(batch, capacity, num_layers)
            self.layers = self.cache.layers
        else:
            self.cache, self.layers = self, [RaggedLayer(batch, capacity) for _ in range(num_layers)]

    def get_seq_length(self) -> int:
        """Rows have no common length."""
        return 0

    def place(self, places: Places) -> torch.Tensor:
        """Take these places for the next pass; returns its mask [R, 1, Q, width]: a token sees what is not after it."""
        for layer in self.layers:
            layer.places = places
        keys = torch.arange(places.width, device=places.positions.device)
        return (keys <= places.positions[..., None])[:, None]


class RaggedModel:
    """A causal language model over rows of different lengths."""

    def __init__(self, model: Any, batch: int, capacity: int) -> None:
        self.model = model
        config = model.config.get_text_config()
        self.cache = RaggedCache(
            batch, capacity, config.num_hidden_layers, for_transformers=not isinstance(config, LlamaConfig)
        )
        taken = inspect.signature(model.forward).parameters
        self._cache_input = "cache" if "cache" in taken else "past_key_values"

    def forward(self, ids: torch.Tensor, places: Places) -> torch.Tensor:
        """Logits [R, Q, V] after every one of `ids` [R, Q]."""
        logits: torch.Tensor = self._run(self.model, ids, places).logits
        return logits

    def last_logits(self, ids: torch.Tensor, places: Places, num_logits: int) -> torch.Tensor:
        """Logits [R, num_logits, V] after the last of `ids` [R, Q], as the head has them: scaled or capped ones have
        the same order.
        """
        hidden = self._run(self.model.get_decoder(), ids, places).last_hidden_state[:, -num_logits:]
        # Over a slice a matrix product would read the matrix once for each row.
        logits: torch.Tensor = self.model.get_output_embeddings()(hidden.contiguous())
        return logits

    def _run(self, module: Any, ids: torch.Tensor, places: Places) -> Any:
        return module(
            input_ids=ids,
            attention_mask=self.cache.place(places),
            position_ids=places.positions,
            use_cache=True,
            **{self._cache_input: self.cache.cache},
        )


def can_be_ragged(model: Any) -> bool:
    """Whether a model takes any masks and positions: its layers attend to everything, by PyTorch's kernels."""
    config = model.config.get_text_config()
    if isinstance(config, LlamaConfig):
        return True
    from specprobe.dynamic_cache import attends_to_everything

    taken = inspect.signature(model.forward).parameters
    is_sdpa = getattr(config, "_attn_implementation", None) == "sdpa"
    return is_sdpa and "position_ids" in taken and attends_to_everything(model.config)
