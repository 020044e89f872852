"""Roomy layers in the cache that the models of transformers take. Imports transformers."""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import DynamicCache, DynamicLayer

from specprobe.kv_cache import RoomyLayer


class RoomyDynamicLayer(RoomyLayer, DynamicLayer):  # type: ignore[misc]
    """A RoomyLayer with what else transformers asks of a layer."""


def new_dynamic_cache(config: Any) -> Any:
    """transformers' cache for a model's config, roomy where its layers attend to everything."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyDynamicLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def new_round_cache(num_layers: int) -> Any:
    """A cache of roomy layers for layers outside of a model."""
    cache = DynamicCache()
    cache.layers = [RoomyDynamicLayer() for _ in range(num_layers)]
    return cache
