"""EAGLE (1, and 2 as a chain): one decoder layer that continues the target's last hidden states.

The layer reads fc([embedding of x_{t+1} ; f_t]), f_t the state that the target's head reads at t, and its output is
both read by the target's head and fed back as the next feature (arXiv 2401.15077; SafeAILab/EAGLE
eagle/model/cnets1.py, vLLM llama_eagle.py). EAGLE-2 differs in its draft tree only. Imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from specprobe.checkpoint import Checkpoint, open_checkpoint
from specprobe.drafters.base import refuse_unknown_options
from specprobe.drafters.chain import ChainState, read_context
from specprobe.drafters.heads import Batch, HeadCache, HeadDrafter, OpenHead
from specprobe.drafters.models import DraftContext, ModelSpec
from specprobe.drafters.shared import SharingNetwork, own_or_shared
from specprobe.drafters.stack import decoder_config, decoder_stack
from specprobe.features import LAST, Features
from specprobe.notices import Notice


class EagleNetwork(SharingNetwork):
    """fc, layers, and what it shares with the target."""

    nested = True
    fc: Any

    def __init__(self, checkpoint: Checkpoint, config: Any, target_hidden: int) -> None:
        super().__init__()
        self.stack, _ = decoder_stack(checkpoint, config)
        self.stack.layers[0].input_layernorm = torch.nn.Identity()
        with torch.device("meta"):
            self.fc = torch.nn.Linear(
                config.hidden_size + target_hidden, config.hidden_size, bias="fc.bias" in checkpoint
            )

    def begin(self, batch: Batch, depth: int) -> ChainState:  # noqa: ARG002
        """The context: every token with the state before it."""
        return read_context(batch, len(self.stack.layers), (LAST,), self.read)

    def read(
        self,
        tokens: torch.Tensor,
        states: Mapping[int, torch.Tensor],
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: HeadCache,
    ) -> torch.Tensor:
        """Outputs [B, T, H] over tokens [B, T] of the text, from the target's state before each, by tap."""
        return self._step(tokens, states[LAST], positions, mask, cache)

    def go_on(
        self,
        tokens: torch.Tensor,
        outputs: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: HeadCache,
    ) -> torch.Tensor:
        """Outputs [B, A, H] after drafts [B, A], from its own outputs before them."""
        return self._step(tokens, outputs, positions, mask, cache)

    def draft(self, state: ChainState, position: int, starts: torch.Tensor) -> torch.Tensor:
        """Position 1 is the context's; later ones continue it with the text's tokens and its own outputs."""
        if position == 1:
            outputs = state.first(starts)
        else:
            tokens = state.batch.tokens(state.batch.newest(starts) + position - 1)
            outputs = self.go_on(
                tokens, state.before(starts), state.positions(starts, position), state.mask(starts), state.cache
            )
        state.keep(starts, outputs)
        return outputs

    def rewind(self, state: ChainState) -> None:
        """The rounds' keys and values go."""
        state.cache.forget_rounds()

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:  # noqa: ARG002
        """The target's head, straight on the output."""
        return self.shared.head(states)

    def _step(
        self,
        tokens: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: HeadCache,
    ) -> torch.Tensor:
        entries = self.fc(torch.cat([self.shared.embed(tokens).to(features.dtype), features], dim=-1))
        output: torch.Tensor = self.stack(entries, positions, mask, cache.cache)
        return output


@dataclass(frozen=True)
class OpenEagle(OpenHead):
    """An EAGLE checkpoint that fits the target."""

    spec: ModelSpec
    context: DraftContext
    checkpoint: Checkpoint
    network: EagleNetwork
    taps: tuple[int, ...] = (LAST,)
    notices: tuple[Notice, ...] = ()

    def load(self, features: Features | None) -> HeadDrafter:
        """Weights in the target's precision, on its device."""
        assert features is not None
        target = self.context.needed_target(self.spec.name)
        self.checkpoint.fill_module(self.network, eagle_name, target.device, target.model.dtype)
        self.network.share(own_or_shared(self.checkpoint, target))
        return self.head_drafter(
            self.network,
            features,
            {"layers": len(self.network.stack.layers)},
            max_positions=self.context.positions_heeded(self.network.stack.config),
        )


def open_eagle(spec: ModelSpec, context: DraftContext) -> OpenEagle:
    """`eagle:MODEL`: the EAGLE repository's checkpoints for EAGLE and EAGLE-2."""
    refuse_unknown_options(spec.options, (), spec.name)
    target = context.needed_target(spec.name)
    checkpoint = open_checkpoint(spec.model)
    config = decoder_config(checkpoint, {"num_hidden_layers": 1, **checkpoint.config})
    network = EagleNetwork(checkpoint, config, target.text_config.hidden_size)
    checkpoint.check_module(network, eagle_name)
    own_or_shared(checkpoint, target, check_only=True)
    return OpenEagle(spec, context, checkpoint, network, notices=context.context_notices(spec.label, config))


def eagle_name(name: str) -> str:
    """A weight's name in the checkpoint."""
    return name.removeprefix("stack.")
