"""Speculation in earnest: a batch of rows of different lengths that the target verifies, round by round, greedily.

What a measured round consists of. Every tensor of a round stays in place and is of a shape that depends on the number
of drafts alone, so that on a GPU a round can be one CUDA graph. Imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from specprobe.ragged_cache import Places, RaggedModel

if TYPE_CHECKING:
    from specprobe.target import Target


class Rows:
    """Rows that are being decoded.

    `ids` [B, capacity]: the tokens of each row, `lengths` [B] their number; what lies behind is whatever was there. The
    target has processed all but the newest. `accepted` [B] and `states` (by tap, [B, 1 + K, hidden], as in `Features`)
    are of the last verification, which began at position `lengths` - 2 - `accepted`.
    """

    def __init__(self, target: Target, batch: int, capacity: int, taps: Sequence[int] = ()) -> None:
        device = target.device
        self.target, self.device = target, device
        self.verifier = RaggedModel(target.model, batch, capacity)
        self.ids = torch.zeros(batch, capacity, dtype=torch.long, device=device)
        self.lengths = torch.ones(batch, dtype=torch.long, device=device)
        self.accepted = torch.zeros(batch, dtype=torch.long, device=device)
        self.states: Mapping[int, torch.Tensor] = {}
        self._taps = taps
        # The same numbers on the host, which decides how many keys a pass reads.
        self.host_lengths = np.ones(batch, dtype=np.int64)

    def begin_at(self, length: int) -> None:
        """Take every row to be of this length, whatever its tokens, keys and values are."""
        self.lengths.fill_(length)
        self.accepted.zero_()
        self.host_lengths[:] = length

    def prefill(self, row: int, ids: torch.Tensor) -> Mapping[int, torch.Tensor]:
        """A new sequence [T] in place of a row, and its first token; returns the prompt's states [1, T, hidden]."""
        num_tokens = len(ids)
        places = prompt_places(row, num_tokens, self.device)
        with _recorded(self.target, self._taps) as recorded:
            logits = self.verifier.last_logits(ids[None], places, 1)
            states = dict(recorded)
        self.ids[row, :num_tokens] = ids
        self.ids[row, num_tokens] = logits[0, -1].argmax()
        self.lengths[row] = num_tokens + 1
        self.host_lengths[row] = num_tokens + 1
        # As after a verification of the prompt's last token alone.
        self.accepted[row] = 0
        for tap, found in states.items():
            if tap not in self.states:
                self.states = {**self.states, tap: found.new_zeros(len(self.ids), 1, found.shape[-1])}
            self.states[tap][row, 0] = found[0, -1]
        return states

    def verify(self, drafts: torch.Tensor) -> torch.Tensor:
        """Let the target judge drafts [B, K], and write what follows; K = 0 is a round without speculation.

        Returns [B, 2 + K] on the device: the number of accepted drafts, and the target's choice at every position.
        """
        depth = drafts.shape[1]
        positions = self.positions(1 + depth)
        inputs = torch.cat([self.ids.gather(1, positions[:, :1]), drafts], dim=1)
        with _recorded(self.target, self._taps) as states:
            logits = self.verifier.forward(inputs, Places(positions, self.reach(depth)))
            self.states = dict(states)
        return self.accept(positions, drafts, logits.argmax(dim=-1))

    def positions(self, num_tokens: int) -> torch.Tensor:
        """[B, num_tokens] from the newest token on."""
        return (self.lengths - 1)[:, None] + torch.arange(num_tokens, device=self.device)

    def accept(self, positions: torch.Tensor, drafts: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        """Write the target's choices [B, 1 + K] up to the first that no draft [B, K] met; returns as `verify`.

        An accepted draft is the target's choice, so the choices are the text.
        """
        self.ids.scatter_(1, positions + 1, choices)
        self.accepted.copy_((choices[:, :-1] == drafts).cumprod(dim=1).sum(dim=1))
        self.lengths.add_(self.accepted + 1)
        return torch.cat([self.accepted[:, None], choices], dim=1)

    def reach(self, depth: int) -> int:
        """How many keys a pass may need to see that drafts or verifies `depth` tokens."""
        return int(self.host_lengths.max()) + depth

    def finish(self, verified: torch.Tensor) -> NDArray[np.int64]:
        """Wait for a verification and take note of it; what `verify` returned, on the host."""
        host: NDArray[np.int64] = verified.cpu().numpy()
        self.host_lengths += host[:, 0] + 1
        return host


class LiveDrafter(Protocol):
    """A drafter for the rows of `Rows`, with a cache of its own where it needs one.

    `taps`: the states of the target that it reads.
    """

    @property
    def taps(self) -> Sequence[int]:
        """See `Features`."""

    @property
    def cache_token_bytes(self) -> int:
        """Keys and values of one token of one row."""

    @property
    def max_positions(self) -> int | None:
        """The longest row that it can read, in tokens; None without a limit."""

    def allocate(self, batch: int, capacity: int) -> None:
        """Get ready for so many rows and tokens."""

    def prefill(self, rows: Rows, row: int, states: Mapping[int, torch.Tensor]) -> None:
        """Read a row's prompt, which the target has read before; `states` [1, T, hidden] are the target's."""

    def draft(self, rows: Rows, depth: int) -> torch.Tensor:
        """The target's ids [B, depth] of greedy drafts after the newest token of each row."""


def prompt_places(row: int, num_tokens: int, device: torch.device) -> Places:
    """The first tokens of a row."""
    return Places(torch.arange(num_tokens, device=device)[None], num_tokens, rows=torch.tensor([[row]], device=device))


@contextmanager
def _recorded(target: Target, taps: Sequence[int]) -> Iterator[Mapping[int, torch.Tensor]]:
    if not taps:
        yield {}
        return
    from specprobe.features import recording

    with recording(target, taps, stops=False) as states:
        yield states
