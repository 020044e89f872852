"""The state of rounds whose head feeds its own output back: EAGLE, EAGLE-3, MTP. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from specprobe.drafters.heads import Batch, HeadCache, RoundCache, put_rows, rows_at


@dataclass(slots=True)
class ChainState:
    """Rounds of a head that feeds its own output back.

    `context` [B, T, H]: its outputs over the context, entry t from token t + 1 and the target's state at t.
    `previous` [B, N, H]: of each round, the output at the position before.
    """

    batch: Batch
    cache: RoundCache
    context: torch.Tensor
    previous: torch.Tensor

    def first(self, starts: torch.Tensor) -> torch.Tensor:
        """Outputs [B, A, H] for position 1: those at the last context entry of each round."""
        return rows_at(self.context, self.batch.newest(starts) - 1)

    def before(self, starts: torch.Tensor) -> torch.Tensor:
        """Outputs [B, A, H] of the position before."""
        return rows_at(self.previous, starts)

    def keep(self, starts: torch.Tensor, outputs: torch.Tensor) -> None:
        """Outputs [B, A, H] of this position, for the next."""
        put_rows(self.previous, starts, outputs)

    def mask(self, starts: torch.Tensor) -> torch.Tensor:
        """Of a pass over these rounds."""
        return self.cache.add_round(starts, self.batch.newest(starts) - 1)

    def positions(self, starts: torch.Tensor, position: int) -> torch.Tensor:
        """Rotary positions [B, A]: those of the last context entry, and on."""
        return (self.batch.newest(starts) - 1 + position - 1).clamp(min=0)


ReadText = Callable[
    [torch.Tensor, Mapping[int, torch.Tensor], torch.Tensor, torch.Tensor | None, HeadCache], torch.Tensor
]
"""A pass of a head over tokens [B, T] of the text, from the target's states before each (by tap), with positions, mask
and cache; its outputs [B, T, H]."""


def read_context(batch: Batch, num_layers: int, taps: Sequence[int], read: ReadText) -> ChainState:
    """The context pass: every token with the target's states before it."""
    states = {tap: batch.features[tap][:, :-1] for tap in taps}
    num_rows, num_tokens, _ = states[taps[0]].shape
    cache = RoundCache(num_layers, batch.device)
    cache.add_context(num_tokens)
    positions = torch.arange(num_tokens, device=batch.device)[None].expand(num_rows, -1)
    context = read(batch.ids[:, 1 : num_tokens + 1], states, positions, None, cache)
    return begin_chain(batch, cache, context)


def begin_chain(batch: Batch, cache: RoundCache, context: torch.Tensor) -> ChainState:
    """After the context pass."""
    rows, width = batch.ids.shape[0], int(batch.num_output.max())
    return ChainState(batch, cache, context, context.new_zeros(rows, width, context.shape[-1]))
