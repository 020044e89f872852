"""How fast a target writes here, from a probe of seconds: what the estimates of a dry run rest on. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specprobe.distribution import RowProcessors
from specprobe.generate import BatchForward, PlannedBatch, choose_tokens
from specprobe.processors import DEFAULT_RULE, PLAIN
from specprobe.target import Target
from specprobe.trajectory import TokenIds

WARMUPS = 1
REPEATS = 3
# Of each token while a prompt is read, beside keys and values: the widest layer and the residual stream, a few copies.
_COPIES = 4


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of each prompt token, and of a step that writes one token for each of so many rows."""

    prefill_token_seconds: float
    step_seconds: dict[int, float]

    def step(self, rows: int) -> float:
        """Seconds of a step of this many rows, between those that were timed in proportion."""
        sizes = sorted(self.step_seconds)
        return float(np.interp(rows, sizes, [self.step_seconds[size] for size in sizes]))

    def seconds(self, batch: PlannedBatch) -> float:
        """To write a batch in which every response runs to its limit; 0 where all of it is stored."""
        if batch.num_kept == batch.size:
            return 0.0
        prefill = max(batch.prompt_tokens) * batch.size * self.prefill_token_seconds
        return prefill + max(batch.limits) * self.step(batch.size)


@torch.inference_mode()
def probe_pace(target: Target, prompt_ids: TokenIds, sizes: Sequence[int]) -> Pace:
    """Time one prompt's prefill and a few steps after it, with as many copies of it as `sizes` say."""
    dtype = torch.float32
    steps = {}
    prefill_seconds = []
    for size in sorted(set(sizes)):
        forward = BatchForward(target, [prompt_ids], WARMUPS + REPEATS + 1)
        begin = time.perf_counter()
        logits = forward.prefill()
        logits[0, 0].item()
        prefill_seconds.append(time.perf_counter() - begin)
        forward.keep(torch.zeros(size, dtype=torch.int64, device=target.device))
        logits = logits.expand(size, -1)
        draws = torch.zeros(size, dtype=dtype, device=target.device)
        seconds = []
        for _ in range(WARMUPS + REPEATS):
            begin = time.perf_counter()
            tokens, _facts = choose_tokens(_plain(target, size), logits, 0.0, draws, None)
            tokens.cpu()
            logits = forward.extend(tokens)
            logits[0, 0].item()
            seconds.append(time.perf_counter() - begin)
        steps[size] = float(np.median(seconds[WARMUPS:]))
    # The first one also does what is done only once.
    return Pace(min(prefill_seconds) / len(prompt_ids), steps)


def _plain(target: Target, size: int) -> RowProcessors:
    return RowProcessors([PLAIN] * size, DEFAULT_RULE, target.device)


def batch_bytes(target: Target, batch: PlannedBatch) -> int:
    """Keys, values, logits and the widest activations of a batch, in bytes, at its largest."""
    from specprobe.kv_cache import kv_token_bytes

    config, itemsize = target.text_config, target.model.dtype.itemsize
    width = max(batch.prompt_tokens)
    widest = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    cache = batch.size * (width + max(batch.limits)) * kv_token_bytes(target.model.config, itemsize)
    activations = batch.size * width * (widest + config.hidden_size) * itemsize * _COPIES
    # Logits in float32, their log-probabilities and probabilities.
    logits = 3 * 4 * batch.size * target.record.vocab_size
    return int(cache + max(activations, logits))
