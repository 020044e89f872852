"""A pass over texts of which some begin with the same prompt: each prompt is run over once. Imports torch.

A second pass runs over what follows the prompts, on copies of their keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from specprobe.batches import padded_ids
from specprobe.kv_cache import new_cache
from specprobe.ragged_cache import can_be_ragged
from specprobe.target import Target
from specprobe.trajectory import TokenIds

# A prompt, and what follows it.
Text = tuple[TokenIds, TokenIds]
# Runs the decoder with these inputs; returns states [B, L, H] by tap.
Run = Callable[..., dict[int, torch.Tensor]]


def states_of_texts(target: Target, texts: Sequence[Text], run: Run) -> list[dict[int, torch.Tensor]]:
    """States [tokens, H] by tap of each text, in as few passes as the target allows."""
    prompts = {prompt.tobytes(): prompt for prompt, _ in texts}
    if len(prompts) < len(texts) and can_be_ragged(target.model) and any(rest.size for _, rest in texts):
        return _shared(target, texts, list(prompts.values()), list(prompts), run)
    ids = [np.concatenate(text) for text in texts]
    found = run(input_ids=_on(target, ids), use_cache=False)
    return [{tap: states[row, : len(text)] for tap, states in found.items()} for row, text in enumerate(ids)]


def _shared(
    target: Target, texts: Sequence[Text], prompts: Sequence[TokenIds], keys: Sequence[bytes], run: Run
) -> list[dict[int, torch.Tensor]]:
    cache_input, _ = target.forward_inputs()
    cache: Any = new_cache(target.model.config, room=0)
    # On the CPU: layers may be on several devices.
    own = torch.tensor([keys.index(prompt.tobytes()) for prompt, _ in texts])
    ids = _on(target, prompts)
    before = run(input_ids=ids, use_cache=True, **{cache_input: cache})
    cache.batch_select_indices(own)
    rests = _on(target, [rest for _, rest in texts])
    lengths = torch.tensor([len(prompt) for prompt, _ in texts], device=target.device)[:, None]
    prompt_columns, columns = (torch.arange(one.shape[1], device=target.device) for one in (ids, rests))
    # Padding stands where the last token of its text does: beyond it a model may know no position.
    ends = lengths + torch.tensor([[len(rest)] for _, rest in texts], device=target.device) - 1
    # [B, rest, prompt and rest]: the whole prompt without its padding, and of the rest what is not later.
    seen = (prompt_columns < lengths)[:, None].expand(-1, len(columns), -1)
    causal = (columns <= columns[:, None]).expand(len(texts), -1, -1)
    after = run(
        input_ids=rests,
        attention_mask=torch.cat([seen, causal], dim=-1)[:, None],
        position_ids=torch.minimum(lengths + columns, ends.clamp(min=0)),
        use_cache=True,
        **{cache_input: cache},
    )
    return [
        {
            tap: torch.cat([before[tap][prompt, : len(texts[row][0])], after[tap][row, : len(texts[row][1])]])
            for tap in after
        }
        for row, prompt in enumerate(own.tolist())
    ]


def _on(target: Target, rows: Sequence[TokenIds]) -> torch.Tensor:
    return torch.from_numpy(padded_ids(rows)).to(target.device)
