"""Decoder layers of transformers outside of a whole model, as heads have them. Imports torch and transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from specprobe.checkpoint import Checkpoint
from specprobe.dynamic_cache import cache_argument
from specprobe.errors import SpecprobeError
from specprobe.notices import inert

DEFAULT_TYPE = "llama"


class LayerStack(torch.nn.Module):
    """Layers and their rotary positions. Made without memory for weights (meta device) until they are filled in."""

    def __init__(self, layers: torch.nn.ModuleList, rotary_type: type[torch.nn.Module], config: Any) -> None:
        super().__init__()
        self.layers = layers
        for number, layer in enumerate(layers):
            for module in layer.modules():
                if hasattr(module, "layer_idx"):
                    setattr(module, "layer_idx", number)  # noqa: B010
        self._rotary_type, self.config = rotary_type, config
        self._rotary: torch.nn.Module | None = None
        self._cache_argument = cache_argument(layers[0])

    def rotary(self, states: torch.Tensor, positions: torch.Tensor) -> Any:
        """cos and sin of positions [B, A], in the precision of `states`."""
        if self._rotary is None:
            # Made on first use: its table is no weight, so no checkpoint fills it.
            self._rotary = self._rotary_type(config=self.config).to(states.device)
        return self._rotary(states, position_ids=positions)

    def run_layer(
        self,
        layer: torch.nn.Module,
        states: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: Any,
    ) -> torch.Tensor:
        """One layer over [B, A, H]; without a mask it is causal."""
        output = layer(states, **self.arguments(states, positions, mask, cache))
        result: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return result

    def arguments(
        self, states: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: Any
    ) -> dict[str, Any]:
        """What a layer, or its attention, is called with."""
        return {
            "attention_mask": mask,
            "position_ids": positions,
            "position_embeddings": self.rotary(states, positions),
            self._cache_argument: cache,
        }

    def forward(
        self, states: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        """All layers, one after the other."""
        for layer in self.layers:
            states = self.run_layer(layer, states, positions, mask, cache)
        return states


def decoder_config(checkpoint: Checkpoint, fields: Mapping[str, Any]) -> Any:
    """The transformers configuration that these fields of a checkpoint's config.json describe."""
    checkpoint.check_layers(fields)
    kind = fields.get("model_type", DEFAULT_TYPE)
    known = {key: value for key, value in fields.items() if key not in ("model_type", "architectures", "auto_map")}
    try:
        config = AutoConfig.for_model(kind if kind in SUPPORTED_TYPES else DEFAULT_TYPE, **known)
        # Bools as masks, and causal without one: every version of PyTorch that is supported has it.
        config._attn_implementation = "sdpa"
    except Exception as error:  # transformers checks some fields, and trips over others
        raise SpecprobeError(
            f"drafter {checkpoint.name}: its config.json does not describe a decoder "
            f"({type(error).__name__}: {inert(str(error).splitlines()[0] if str(error) else '', 120)})"
        ) from error
    return config


# Types whose layers take states, mask, positions and cache alike; a head of another type is built as a Llama's.
SUPPORTED_TYPES = ("llama", "qwen2", "qwen3", "mistral")


def decoder_stack(checkpoint: Checkpoint, config: Any) -> tuple[LayerStack, torch.nn.Module]:
    """The layers that `config` describes, and a norm of the kind that follows them; without weights."""
    try:
        with torch.device("meta"):
            model = AutoModel.from_config(config)
    except Exception as error:  # sizes that do not divide, negative ones, ...
        raise SpecprobeError(
            f"drafter {checkpoint.name}: its config.json does not make a decoder "
            f"({type(error).__name__}: {inert(str(error).splitlines()[0] if str(error) else '', 120)})"
        ) from error
    return LayerStack(model.layers, type(model.rotary_emb), config), model.norm
