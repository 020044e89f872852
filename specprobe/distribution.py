"""The distribution that the target samples from: its logits, processed in the order of an engine. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specprobe.processors import ProcessingRule, Processors, Step
from specprobe.trajectory import Trajectory

# Candidates looked at for top-p before all of the vocabulary is sorted, which takes tens of times as long.
_TOP_P_CANDIDATES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """What penalties see at each row: columns `first` up to `end` of `ids`, the output's from `prompt_end` on.

    `ids` [R or 1, L]; the others [R]. What lies outside may be any id.
    """

    ids: torch.Tensor
    first: torch.Tensor
    prompt_end: torch.Tensor
    end: torch.Tensor

    def counts(self, vocab_size: int, start: torch.Tensor) -> torch.Tensor:
        """How often each token occurs from column `start` [R] on, [R, V] float32."""
        columns = torch.arange(self.ids.shape[1], device=self.ids.device)
        seen = (columns >= start[:, None]) & (columns < self.end[:, None])
        ids = self.ids.clamp(0, vocab_size - 1).expand(len(seen), -1)
        return torch.zeros(len(seen), vocab_size, device=ids.device).scatter_add_(1, ids, seen.float())


class RowProcessors:
    """The settings of each row of a batch, or one for all rows."""

    def __init__(self, rows: Sequence[Processors], rule: ProcessingRule, device: torch.device) -> None:
        self._rows, self._rule, self._device = list(rows), rule, device
        self.penalizes = any(row.penalizes for row in rows)
        self.truncates = any(row.truncates for row in rows)

    def select(self, index: Sequence[int]) -> RowProcessors:
        """Some of the rows."""
        return RowProcessors([self._rows[i] for i in index], self._rule, self._device)

    def process(self, logits: torch.Tensor, temperature: float, history: History | None = None) -> torch.Tensor:
        """Logits [R, V] float32 whose softmax is what the target samples from; -inf for what is cut off.

        At temperature 0 they are penalised only: the largest is the one that is chosen. `history` is needed where
        there are penalties.
        """
        if self.penalizes:
            assert history is not None
            logits = self._penalized(logits, history)
        return self.cut(logits, temperature, self._rule.order) if temperature else logits

    def cut(self, logits: torch.Tensor, temperature: float, order: Sequence[Step]) -> torch.Tensor:
        """Without penalties, and in this order."""
        for step in order:
            if step == "temperature":
                logits = logits / temperature
            elif self.truncates:
                logits = _keep(logits, _CUTOFFS[step](logits, self._column(step)))
        return logits

    def _column(self, name: str) -> torch.Tensor:
        """A setting of all rows, [R or 1, 1]."""
        return torch.tensor([[getattr(row, name)] for row in self._rows], device=self._device)

    def _penalized(self, logits: torch.Tensor, history: History) -> torch.Tensor:
        """vLLM 0.33 model_executor/layers/utils.py apply_penalties; the same formulas in all engines."""
        vocab_size = logits.shape[-1]
        window = self._rule.penalty_window
        if window is None:
            output = history.counts(vocab_size, history.prompt_end)
            seen = history.counts(vocab_size, history.first) > 0
        else:
            output = history.counts(vocab_size, torch.maximum(history.first, history.end - window))
            seen = output > 0
        repetition = self._column("repetition_penalty")
        logits = torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
        return (
            logits
            - self._column("frequency_penalty") * output
            - self._column("presence_penalty") * (output > 0).float()
        )


def _keep(logits: torch.Tensor, cutoff: torch.Tensor) -> torch.Tensor:
    """What lies below the cutoff [R, 1] goes; equals of the last one kept stay, as in vLLM's top-k."""
    return logits.masked_fill(logits < cutoff, -torch.inf)


def _top_k_cutoff(logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """The k-th largest of each row."""
    vocab_size = logits.shape[-1]
    wanted = torch.where(top_k > 0, top_k, vocab_size).clamp(max=vocab_size).expand(len(logits), 1)
    limited = wanted < vocab_size
    if not limited.any():
        return torch.full_like(logits[:, :1], -torch.inf)
    largest = logits.topk(int(wanted[limited].max()), dim=-1).values
    cutoff = largest.gather(-1, (wanted - 1).clamp(max=largest.shape[-1] - 1))
    return torch.where(limited, cutoff, -torch.inf)


def _top_p_cutoff(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The smallest logit of the smallest set that holds `top_p` of the probability: a token is in it where the
    tokens before it hold less."""
    log_total = logits.logsumexp(-1, keepdim=True)
    for candidates in (min(_TOP_P_CANDIDATES, logits.shape[-1]), logits.shape[-1]):
        largest = logits.topk(candidates, dim=-1).values
        share = (largest - log_total).exp()
        # Never the whole: rounding must not let the tail in, nor cut where nothing is to be cut.
        before = share.cumsum(-1) - share
        enough = (before[:, -1:] + share[:, -1:] >= top_p) | (top_p >= 1)
        if enough.all():
            break
    kept = (before < top_p).sum(-1, keepdim=True)
    cutoff = largest.gather(-1, (kept - 1).clamp(min=0))
    return torch.where(top_p < 1, cutoff, -torch.inf)


def _min_p_cutoff(logits: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """The logit of `min_p` times the largest probability."""
    return torch.where(min_p > 0, logits.amax(-1, keepdim=True) + min_p.log(), -torch.inf)


_CUTOFFS = {"top_k": _top_k_cutoff, "top_p": _top_p_cutoff, "min_p": _min_p_cutoff}


def entropy(log_p: torch.Tensor) -> torch.Tensor:
    """-sum p log p [R] in nats, of log p [R, V]; what has probability 0 adds nothing."""
    return torch.special.entr(log_p.exp()).sum(-1)


def processed_logits(
    logits: torch.Tensor, trajectory: Trajectory, positions: torch.Tensor, rule: ProcessingRule
) -> torch.Tensor:
    """`RowProcessors.process` of logits [R, V] that lead to output tokens `positions` [R] of a response."""
    processors = RowProcessors([trajectory.processors], rule, logits.device)
    history = None
    if processors.penalizes:
        known = np.concatenate([trajectory.prompt_ids, trajectory.output_ids]).astype(np.int64)
        num_prompt = torch.full_like(positions, trajectory.prompt_ids.size)
        history = History(
            ids=torch.from_numpy(known).to(logits.device)[None],
            first=torch.zeros_like(positions),
            prompt_end=num_prompt,
            end=num_prompt + positions,
        )
    return processors.process(logits, trajectory.temperature, history)
