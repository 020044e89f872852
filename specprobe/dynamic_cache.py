"""Roomy layers in the cache that the models of transformers take. Imports transformers."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from specprobe.kv_cache import ROOM_TOKENS, RoomyLayer
from specprobe.ragged_cache import RaggedLayer


class RoomyDynamicLayer(RoomyLayer, DynamicLayer):  # type: ignore[misc]
    """A RoomyLayer with what else transformers asks of a layer."""


class RaggedDynamicLayer(RaggedLayer, DynamicLayer):  # type: ignore[misc]
    """A RaggedLayer with what else transformers asks of a layer."""


def new_dynamic_cache(config: Any, room: int = ROOM_TOKENS) -> Any:
    """transformers' cache for a model's config, roomy where its layers attend to everything."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyDynamicLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def new_round_cache(num_layers: int) -> Any:
    """A cache of roomy layers for layers outside of a model."""
    cache = DynamicCache()
    cache.layers = [RoomyDynamicLayer() for _ in range(num_layers)]
    return cache


def new_ragged_cache(batch: int, capacity: int, num_layers: int) -> Any:
    """A cache of ragged layers."""
    cache = DynamicCache()
    cache.layers = [RaggedDynamicLayer(batch, capacity) for _ in range(num_layers)]
    return cache


def attends_to_everything(config: Any) -> bool:
    """Whether each layer of a model keeps the keys and values of all tokens, and nothing else."""
    layers = DynamicCache(config=config).layers
    return all(type(layer) is DynamicLayer for layer in layers)


def cache_argument(module: torch.nn.Module) -> str:
    """What a layer of transformers calls its cache; it was renamed within version 5."""
    return "cache" if "cache" in inspect.signature(_unwrapped(module)).parameters else "past_key_values"


def _unwrapped(module: torch.nn.Module) -> Any:
    return inspect.unwrap(type(module).forward)
