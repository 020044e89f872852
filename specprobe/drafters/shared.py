"""What heads take from the target: its token embeddings and its output matrix. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from specprobe.checkpoint import Checkpoint
from specprobe.errors import SpecprobeError
from specprobe.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class SharedParts:
    """`embed`: token ids [...] to [..., H]; `head`: states [R, H] to logits [R, vocabulary]."""

    embed: Callable[[torch.Tensor], torch.Tensor]
    head: Callable[[torch.Tensor], torch.Tensor]


class SharingNetwork(torch.nn.Module):
    """A head that takes embeddings and output matrix from the target, or from its own checkpoint, when it is loaded."""

    _shared: SharedParts | None = None

    def share(self, shared: SharedParts) -> None:
        """Take them; they are no weights of this module."""
        self._shared = shared

    @property
    def shared(self) -> SharedParts:
        """What was taken."""
        assert self._shared is not None
        return self._shared


def own_or_shared(
    checkpoint: Checkpoint,
    target: Target,
    *,
    check_only: bool = False,
    embedding_name: str = "embed_tokens.weight",
    head_name: str = "lm_head.weight",
    head_rows: int | None = None,
    hidden_size: int | None = None,
) -> SharedParts:
    """The checkpoint's own embeddings and output matrix where it has them, the target's elsewhere (as vLLM's loader).

    `head_rows`: the size of the draft vocabulary, by default the target's; `hidden_size`: the width of the drafter,
    which without parts of its own is the target's. With `check_only` shapes are checked and nothing is read. Raises
    SpecprobeError where a shape does not fit.
    """
    embed: Callable[[torch.Tensor], torch.Tensor] = target.model.get_input_embeddings()
    head: Callable[[torch.Tensor], torch.Tensor] = target.model.get_output_embeddings()
    hidden = hidden_size or target.text_config.hidden_size
    differs = hidden != target.text_config.hidden_size
    if embedding_name in checkpoint or differs:
        # Padded to more rows than the target's is fine, fewer is not.
        rows = checkpoint.rows(embedding_name) if embedding_name in checkpoint else 0
        checkpoint.check_shape(embedding_name, [max(rows, target.text_config.vocab_size), hidden])
        if not check_only:
            weight = _weight(checkpoint, embedding_name, target)

            def embed(tokens: torch.Tensor) -> torch.Tensor:
                return torch.nn.functional.embedding(tokens, weight)

    if head_name in checkpoint or head_rows is not None or differs:
        checkpoint.check_shape(head_name, [head_rows or target.text_config.vocab_size, hidden])
        if not check_only:
            matrix = _weight(checkpoint, head_name, target)

            def head(states: torch.Tensor) -> torch.Tensor:
                return torch.nn.functional.linear(states, matrix)

    return SharedParts(embed, head)


def check_mask_token(checkpoint: Checkpoint, token: int, target: Target) -> None:
    """Raise SpecprobeError for a mask token that the embeddings in use do not have."""
    own = "embed_tokens.weight"
    rows = checkpoint.rows(own) if own in checkpoint else target.model.get_input_embeddings().num_embeddings
    if not 0 <= token < rows:
        raise SpecprobeError(
            f"drafter {checkpoint.name}: the mask token {token} in config.json is outside the embeddings ({rows} rows)"
        )


def _weight(checkpoint: Checkpoint, name: str, target: Target) -> torch.Tensor:
    return checkpoint.tensor(name).to(target.device, target.model.dtype)
