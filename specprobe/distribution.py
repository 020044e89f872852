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
    """The settings of each row of a batch, or one for all rows, on a device."""

    def __init__(self, rows: Sequence[Processors], rule: ProcessingRule, device: torch.device) -> None:
        self._rows, self._rule, self._device = list(rows), rule, device
        self.penalizes = any(row.penalizes for row in rows)
        # [R or 1, 1] each, of what any row asks for.
        self._columns = {
            name: torch.tensor([[getattr(row, name)] for row in rows], device=device)
            for name in {name for row in rows for name in row.changed}
        }
        self._most_top_k = max(row.top_k for row in rows)

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
            elif step in self._columns:
                logits = self._cut(step, logits, self._columns[step])
        return logits

    def _cut(self, step: Step, logits: torch.Tensor, setting: torch.Tensor) -> torch.Tensor:
        if step == "top_k":
            return _top_k(logits, setting, self._most_top_k)
        return _top_p(logits, setting) if step == "top_p" else _min_p(logits, setting)

    def _penalized(self, logits: torch.Tensor, history: History) -> torch.Tensor:
        """vLLM 0.33 model_executor/layers/utils.py apply_penalties; the same formulas in all engines."""
        vocab_size = logits.shape[-1]
        window = self._rule.penalty_window
        newest = history.prompt_end if window is None else torch.maximum(history.first, history.end - window)
        counted = history.counts(vocab_size, newest)
        if (repetition := self._columns.get("repetition_penalty")) is not None:
            seen = (history.counts(vocab_size, history.first) if window is None else counted) > 0
            logits = torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
        if (frequency := self._columns.get("frequency_penalty")) is not None:
            logits = logits - frequency * counted
        if (presence := self._columns.get("presence_penalty")) is not None:
            logits = logits - presence * (counted > 0).float()
        return logits


def _top_k(logits: torch.Tensor, top_k: torch.Tensor, most: int) -> torch.Tensor:
    """What is below the k-th largest goes; equals of it stay, as in vLLM. 0 keeps all."""
    vocab_size = logits.shape[-1]
    largest = logits.topk(min(most, vocab_size), dim=-1).values
    smallest = largest.gather(-1, (top_k - 1).clamp(0, largest.shape[-1] - 1).expand(len(logits), 1))
    return logits.masked_fill((logits < smallest) & (top_k > 0), -torch.inf)


def _top_p(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The smallest set of tokens that holds `top_p` stays: a token is in it where the likelier ones hold less."""
    vocab_size = logits.shape[-1]
    log_total = logits.logsumexp(-1, keepdim=True)
    for candidates in (min(_TOP_P_CANDIDATES, vocab_size), vocab_size):
        largest, index = logits.topk(candidates, dim=-1)
        share = (largest - log_total).exp()
        before = share.cumsum(-1) - share
        # The last candidate is beyond the set in every row, or all there is.
        if candidates == vocab_size or bool(((before[:, -1:] >= top_p) | (top_p >= 1)).all()):
            break
    kept = largest.masked_fill(before >= top_p, -torch.inf)
    # The likeliest stays however small the share.
    kept[:, 0] = largest[:, 0]
    cut = torch.full_like(logits, -torch.inf).scatter_(-1, index, kept)
    return torch.where(top_p < 1, cut, logits)


def _min_p(logits: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """What has less than `min_p` times the largest probability goes."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + min_p.log(), -torch.inf)


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
