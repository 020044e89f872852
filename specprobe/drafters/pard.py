"""PARD: a draft model that was trained to draft several tokens in one pass, from mask tokens after the newest token.

Round input: x_0..x_n, then K-1 masks at positions n+1.. with plain causal attention; the logits at x_n and at the masks
are q_1..q_K (arXiv 2504.18583; AMD-AIG-AIMA/PARD; vLLM parallel_drafting). Position i depends on the context and on i
alone. Imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specprobe.causal_lm import choose_device, load_causal_lm
from specprobe.checkpoint import Checkpoint, open_checkpoint
from specprobe.drafters.base import Adoption, refuse_unknown_options
from specprobe.drafters.draft import OpenDraftModel, open_draft
from specprobe.drafters.heads import Batch, HeadDrafter, RoundCache, rows_at
from specprobe.drafters.models import DraftContext, ModelSpec, OpenModel, describe_model
from specprobe.drafters.scores import drawing
from specprobe.drafters.vocabularies import VocabularyMatch
from specprobe.dynamic_cache import cache_argument
from specprobe.errors import SpecprobeError
from specprobe.features import Features
from specprobe.notices import Notice
from specprobe.quiet import quick_imports, quiet_transformers

# In vLLM 0.33's order.
MASK_TOKEN_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")


@dataclass(frozen=True, slots=True)
class PardState:
    """`context` [B, T, H]: what the head reads after every token."""

    batch: Batch
    cache: RoundCache
    context: torch.Tensor


class PardNetwork:
    """The draft model over the context, then over the masks of all rounds, one position at a time."""

    nested = True

    def __init__(self, model: Any, mask_token: int, match: VocabularyMatch) -> None:
        self.model, self.mask_token, self.match = model, mask_token, match
        self._decoder, self._head = model.get_decoder(), model.get_output_embeddings()
        self._rows = model.get_input_embeddings().num_embeddings
        self._cache_argument = cache_argument(self._decoder)

    def begin(self, batch: Batch, depth: int) -> PardState:  # noqa: ARG002
        """The context is every token; no round starts after the last, but its state does no harm."""
        num_tokens = batch.ids.shape[1]
        cache = RoundCache(self._decoder.config.num_hidden_layers, batch.device)
        cache.add_context(num_tokens)
        positions = torch.arange(num_tokens, device=batch.device)[None].expand(len(batch.ids), -1)
        ids = self.match.draft_ids(batch.ids, self._rows)
        return PardState(batch, cache, self._run(ids, positions, None, cache))

    def draft(self, state: PardState, position: int, starts: torch.Tensor) -> torch.Tensor:
        """At x_n for position 1, then at one mask after the other."""
        newest = state.batch.newest(starts)
        if position == 1:
            return rows_at(state.context, newest)
        mask = state.cache.add_round(starts, newest)
        positions = (newest + position - 1).clamp(min=0)
        return self._run(torch.full_like(starts, self.mask_token), positions, mask, state.cache)

    def rewind(self, state: PardState) -> None:
        """The rounds' keys and values go."""
        state.cache.forget_rounds()

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:  # noqa: ARG002
        """The draft model's own head."""
        logits: torch.Tensor = self._head(states)
        return logits

    def _run(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: RoundCache
    ) -> torch.Tensor:
        output = self._decoder(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **{self._cache_argument: cache.cache},
        )
        states: torch.Tensor = output.last_hidden_state
        return states


@dataclass(frozen=True)
class OpenPard(OpenModel):
    """A PARD checkpoint whose vocabulary is the target's."""

    spec: ModelSpec
    context: DraftContext
    draft: OpenDraftModel
    mask_token: int
    notices: tuple[Notice, ...] = ()
    taps: tuple[int, ...] = ()

    def load(self, features: Features | None) -> HeadDrafter:  # noqa: ARG002
        """The model, on the target's device where there is one."""
        place = self.context.target.device if self.context.target else choose_device(self.context.options.device)
        with quick_imports(), quiet_transformers():
            model, _ = load_causal_lm("drafter", self.spec.model, place, self.context.options)
        return HeadDrafter(
            name=self.spec.name,
            config=describe_model(
                self.spec,
                parameters=sum(p.numel() for p in model.parameters()),
                mask_token=self.mask_token,
                **self.draft.match.record,
            ),
            adoption=Adoption.SECOND_MODEL,
            head=PardNetwork(model, self.mask_token, self.draft.match),
            features=None,
            taps=(),
            device=place,
            dtype=model.dtype,
            drawing=drawing(self.context, self.spec.name),
            max_positions=self.context.positions_heeded(model.config.get_text_config()),
        )


def open_pard(spec: ModelSpec, context: DraftContext) -> OpenPard:
    """`pard:MODEL`: a causal language model with `pard_token` in its config.json."""
    refuse_unknown_options(spec.options, (), spec.name)
    checkpoint = open_checkpoint(spec.model)
    draft = open_draft(spec, context)
    if draft.match.mapping is not None:
        raise SpecprobeError(
            f"--drafter pard:{spec.model}: its tokenizer is not the target's; name a PARD model of the target's family"
        )
    return OpenPard(spec, context, draft, _mask_token(checkpoint), draft.notices)


def _mask_token(checkpoint: Checkpoint) -> int:
    token = next((checkpoint.config[key] for key in MASK_TOKEN_KEYS if checkpoint.config.get(key) is not None), None)
    rows = checkpoint.config.get("vocab_size", 0)
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < rows:
        raise SpecprobeError(
            f"drafter {checkpoint.name}: config.json has no mask token ({', '.join(MASK_TOKEN_KEYS)}) within its "
            "vocabulary; an ordinary draft model is draft:MODEL"
        )
    return token
