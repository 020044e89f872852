"""Drafters with models as they draft in earnest: rows of a batch side by side, each from its own newest token.

The networks are those that are replayed; here they keep keys and values from round to round and read their own
drafts. How much of the last round a drafter catches up on is given a fixed width, as engines do it for a batch
(vLLM 0.33 v1/spec_decode/llm_base_proposer.py): what was rejected is fed with the rest, and overwritten later. Imports
torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from specprobe.kv_cache import kv_token_bytes
from specprobe.ragged_cache import Places, RaggedCache, RaggedModel, can_be_ragged
from specprobe.speculation import LiveDrafter, Rows, prompt_places

if TYPE_CHECKING:
    from specprobe.drafters import Drafter
    from specprobe.drafters.heads import Head
    from specprobe.drafters.scores import DraftVocabulary
    from specprobe.drafters.vocabularies import VocabularyMatch
    from specprobe.target import Target


def live_drafter(drafter: Drafter, target: Target) -> LiveDrafter | None:
    """A drafter that was loaded for replay, made to draft in earnest; None for kinds that cannot."""
    from specprobe.drafters.draft import DraftModel, EarlyExit, PrefixDrafter
    from specprobe.drafters.eagle import EagleNetwork
    from specprobe.drafters.eagle3 import Eagle3Network
    from specprobe.drafters.heads import HeadDrafter
    from specprobe.drafters.medusa import MedusaNetwork
    from specprobe.drafters.mlp import MlpNetwork
    from specprobe.drafters.pard import PardNetwork

    size = target.record.vocab_size
    if isinstance(drafter, PrefixDrafter):
        if isinstance(drafter.score, DraftModel) and can_be_ragged(drafter.score.model):
            return LiveDraftModel(drafter.score.model, drafter.score.match, size)
        if isinstance(drafter.score, EarlyExit):
            return LiveEarlyExit(target, drafter.score.tap)
    if isinstance(drafter, HeadDrafter):
        head = drafter.head
        if isinstance(head, PardNetwork) and can_be_ragged(head.model):
            return LivePard(head.model, head.match, head.mask_token, size)
        if isinstance(head, EagleNetwork) or (isinstance(head, Eagle3Network) and not head.settings.is_parallel):
            return LiveChain(head, drafter.taps, drafter.vocabulary, size, drafter.dtype.itemsize)
        if isinstance(head, MedusaNetwork | MlpNetwork):
            return LiveStateless(head, drafter.taps, drafter.vocabulary, size)
    return None


class LiveDraftModel:
    """A second model: K sequential steps, the first over the last two tokens.

    Where all drafts of the last round were accepted, it has not read the last of them yet.
    """

    taps: Sequence[int] = ()

    def __init__(self, model: Any, match: VocabularyMatch, target_size: int) -> None:
        self._model, self._match, self._target_size = model, match, target_size
        self._num_embeddings = model.get_input_embeddings().num_embeddings
        self._ragged: RaggedModel | None = None

    @property
    def cache_token_bytes(self) -> int:
        """Keys and values of one token of one row."""
        return kv_token_bytes(self._model.config, self._model.dtype.itemsize)

    @property
    def max_positions(self) -> int | None:
        """The model's context in tokens."""
        limit = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return limit if isinstance(limit, int) else None

    def allocate(self, batch: int, capacity: int) -> None:
        """A cache of its own."""
        self._ragged = RaggedModel(self._model, batch, capacity)

    def prefill(self, rows: Rows, row: int, states: Mapping[int, torch.Tensor]) -> None:  # noqa: ARG002
        """The prompt through the draft model."""
        num_tokens = int(rows.host_lengths[row]) - 1
        self._logits(rows.ids[row : row + 1, :num_tokens], prompt_places(row, num_tokens, rows.device), 1)

    def draft(self, rows: Rows, depth: int) -> torch.Tensor:
        """[B, depth] of the target's ids."""
        newest = rows.lengths[:, None] - 1
        positions = (newest + torch.arange(-1, 1, device=rows.device)).clamp(min=0)
        tokens = rows.ids.gather(1, positions)
        drafts = []
        for step in range(depth):
            logits = self._logits(tokens, Places(positions, rows.reach(step)), 1)
            tokens = _target_ids(logits, self._match.mapping, self._target_size)
            drafts.append(tokens)
            positions = newest + step + 1
        return torch.cat(drafts, dim=1)

    def _logits(self, tokens: torch.Tensor, places: Places, num_logits: int) -> torch.Tensor:
        assert self._ragged is not None
        return self._ragged.last_logits(self._match.draft_ids(tokens, self._num_embeddings), places, num_logits)


class LivePard(LiveDraftModel):
    """A parallel draft model: one pass over what the last round may have accepted, and K - 1 masks."""

    def __init__(self, model: Any, match: VocabularyMatch, mask_token: int, target_size: int) -> None:
        super().__init__(model, match, target_size)
        self._mask_token = mask_token

    def draft(self, rows: Rows, depth: int) -> torch.Tensor:
        """[B, depth] of the target's ids."""
        steps = torch.arange(-depth, depth, device=rows.device)
        positions = (rows.lengths[:, None] - 1 + steps).clamp(min=0)
        tokens = torch.where(steps > 0, self._mask_token, rows.ids.gather(1, positions))
        logits = self._logits(tokens, Places(positions, rows.reach(depth - 1)), depth)
        return _target_ids(logits, self._match.mapping, self._target_size)


class LiveEarlyExit:
    """The target's first layers: K sequential steps on its own keys and values, which verification rewrites."""

    taps: Sequence[int] = ()
    cache_token_bytes = 0
    max_positions = None

    def __init__(self, target: Target, num_layers: int) -> None:
        self._target, self._num_layers = target, num_layers

    def allocate(self, batch: int, capacity: int) -> None:
        """The cache is the target's."""

    def prefill(self, rows: Rows, row: int, states: Mapping[int, torch.Tensor]) -> None:
        """The target's layers have read the prompt."""

    def draft(self, rows: Rows, depth: int) -> torch.Tensor:
        """[B, depth]."""
        newest = rows.lengths[:, None] - 1
        tokens = rows.ids.gather(1, newest)
        drafts = []
        with _first_layers(self._target.decoder, self._num_layers):
            for step in range(depth):
                logits = rows.verifier.forward(tokens, Places(newest + step, rows.reach(step)))
                tokens = logits.argmax(dim=-1)
                drafts.append(tokens)
        return torch.cat(drafts, dim=1)


class ChainHead(Protocol):
    """A head that reads the target's states and goes on from its own outputs."""

    stack: Any

    def read(
        self, tokens: torch.Tensor, states: Mapping[int, torch.Tensor], positions: torch.Tensor, mask: Any, cache: Any
    ) -> torch.Tensor:
        """Outputs [B, T, H] over tokens of the text."""

    def go_on(
        self, tokens: torch.Tensor, outputs: torch.Tensor, positions: torch.Tensor, mask: Any, cache: Any
    ) -> torch.Tensor:
        """Outputs [B, 1, H] after drafts."""

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:
        """[R, draft vocabulary] from rows [R, H]."""


class LiveChain:
    """A head of the EAGLE kind: one step over the tokens of the last verification, then K - 1 over its own drafts."""

    max_positions = None

    def __init__(
        self,
        head: ChainHead,
        taps: Sequence[int],
        vocabulary: DraftVocabulary | None,
        target_size: int,
        itemsize: int,
    ) -> None:
        self._head, self.taps = head, taps
        self._vocabulary, self._target_size = vocabulary, target_size
        self.cache_token_bytes = kv_token_bytes(head.stack.config, itemsize)
        self._cache: RaggedCache | None = None

    def allocate(self, batch: int, capacity: int) -> None:
        """A cache for its layers."""
        self._cache = RaggedCache(batch, capacity, len(self._head.stack.layers), for_transformers=True)

    def prefill(self, rows: Rows, row: int, states: Mapping[int, torch.Tensor]) -> None:
        """Every token after the first, with the target's states before it."""
        num_tokens = int(rows.host_lengths[row]) - 1
        places = prompt_places(row, num_tokens, rows.device)
        self._read(rows.ids[row : row + 1, 1 : num_tokens + 1], states, places)

    def draft(self, rows: Rows, depth: int) -> torch.Tensor:
        """[B, depth] of the target's ids."""
        assert self._cache is not None
        width = rows.states[self.taps[0]].shape[1]
        last = rows.lengths[:, None] - 2
        positions = last - rows.accepted[:, None] + torch.arange(width, device=rows.device)
        reach = rows.reach(max(width, depth))
        outputs = self._read(rows.ids.gather(1, positions + 1), rows.states, Places(positions, reach))
        outputs = outputs[torch.arange(len(outputs), device=rows.device), rows.accepted][:, None]
        drafts = []
        for step in range(1, depth + 1):
            tokens = _target_ids(self._head.logits(outputs[:, 0], step), self._vocabulary, self._target_size)[:, None]
            drafts.append(tokens)
            if step < depth:
                places = Places(last + step, reach)
                outputs = self._head.go_on(tokens, outputs, places.positions, self._cache.place(places), self._cache)
        return torch.cat(drafts, dim=1)

    def _read(self, tokens: torch.Tensor, states: Mapping[int, torch.Tensor], places: Places) -> torch.Tensor:
        assert self._cache is not None
        return self._head.read(tokens, states, places.positions, self._cache.place(places), self._cache)


class LiveStateless:
    """Heads that keep nothing from round to round (Medusa, MLP): they read the state before the newest token."""

    cache_token_bytes = 0
    max_positions = None

    def __init__(self, head: Head, taps: Sequence[int], vocabulary: DraftVocabulary | None, target_size: int) -> None:
        self._head, self.taps = head, taps
        self._vocabulary, self._target_size = vocabulary, target_size

    def allocate(self, batch: int, capacity: int) -> None:
        """There is no cache."""

    def prefill(self, rows: Rows, row: int, states: Mapping[int, torch.Tensor]) -> None:
        """Nothing to read."""

    def draft(self, rows: Rows, depth: int) -> torch.Tensor:
        """[B, depth] of the target's ids."""
        from specprobe.drafters.heads import Batch

        every = torch.arange(len(rows.ids), device=rows.device)
        # A text of the newest token, which a token without meaning precedes, and of its drafts.
        ids = rows.ids.new_zeros(len(rows.ids), 2 + depth)
        ids[:, 1] = rows.ids[every, rows.lengths - 1]
        one = torch.ones_like(rows.lengths)
        features = {tap: states[every, rows.accepted][:, None] for tap, states in rows.states.items()}
        state = self._head.begin(Batch(ids, one, 2 * one, (1 + depth) * one, features), depth)
        for position in range(1, depth + 1):
            outputs = self._head.draft(state, position, one[:, None])
            logits = self._head.logits(outputs[:, 0], position)
            ids[:, 1 + position] = _target_ids(logits, self._vocabulary, self._target_size)
        return ids[:, 2:]


def _target_ids(logits: torch.Tensor, vocabulary: DraftVocabulary | None, target_size: int) -> torch.Tensor:
    """[...] the likeliest tokens of logits [..., draft vocabulary], as the target's ids."""
    if vocabulary is None:
        return logits[..., :target_size].argmax(dim=-1)
    # A draft that the target does not know is rejected whatever stands for it.
    return vocabulary.to_target[logits.argmax(dim=-1)].clamp(min=0)


@contextmanager
def _first_layers(decoder: Any, num_layers: int) -> Iterator[None]:
    """While this lasts, the decoder has no more layers than these."""
    layers = decoder.layers
    decoder.layers = torch.nn.ModuleList(list(layers)[:num_layers])
    try:
        yield
    finally:
        decoder.layers = layers
