"""Timing the target's rounds on this device: the only place where a cost is measured."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specprobe.cost import CostPoint
from specprobe.drafters.base import Drafter, Limits
from specprobe.errors import SpecprobeError
from specprobe.replay import replay
from specprobe.trajectory import Trajectory, token_ids

if TYPE_CHECKING:
    from specprobe.target import Target

WARMUPS = 1
MIN_REPEATS = 3
MAX_REPEATS = 15
# Per batch and context: enough repeats for a stable median of fast rounds, not minutes for slow ones.
SECONDS_PER_BLOCK = 4.0
OUTLIER_SPREADS = 5.0
PREFILL_TOKENS = 256


@dataclass(frozen=True, slots=True)
class CostGrid:
    """What to time: every combination of these."""

    batches: tuple[int, ...]
    query_tokens: tuple[int, ...]
    contexts: tuple[int, ...]

    @staticmethod
    def weight(batch: int) -> float:
        """How long a block takes, roughly and relative to others: a fixed share, and its sequences."""
        return 8.0 + batch

    @property
    def total_weight(self) -> float:
        """Of all blocks."""
        return sum(self.weight(batch) for batch, _ in self.blocks)

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """(batch, context) pairs; the query tokens of a block share one KV cache."""
        return [(batch, context) for context in self.contexts for batch in self.batches]


def plan_grid(concurrencies: Sequence[int], depth: int, mean_context: float, max_context: int | None) -> CostGrid:
    """The grid that answers for these concurrencies up to this depth, around a workload's mean context.

    Batches: 1, 4, 16, ... and every concurrency asked for. Query tokens: 1, 2, 3, 5, 9, ... and 1 + depth.
    Contexts: the powers of four around the mean, so that workloads share measurements.
    """
    largest = max(concurrencies)
    batches = {4**i for i in range(32) if 4**i <= largest} | set(concurrencies)
    queries = {1, 1 + depth} | {1 + 2**i for i in range(32) if 2**i <= depth}
    below = 4 ** int(np.log2(max(mean_context, 1)) / 2)
    contexts = {below} if mean_context <= below else {below, 4 * below}
    if max_context is not None:
        contexts = {max(1, min(context, max_context - 1 - depth)) for context in contexts}
    return CostGrid(tuple(sorted(batches)), tuple(sorted(queries)), tuple(sorted(contexts)))


def timing_conditions(target: Target) -> dict[str, Any]:
    """What timings depend on beside the grid; timings under other conditions are not mixed."""
    import platform

    import torch

    device = target.model.device
    return {
        "target": target.record.name,
        "fingerprint": target.record.fingerprint,
        "dtype": target.record.dtype,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type} {platform.machine()}",
        "threads": f"{torch.get_num_threads()} threads",
        "torch": f"torch {torch.__version__}",
        # Eager launches cost the same for one query token as for nine, which flatters speculation on a GPU.
        "forward": "eager forward",
    }


def check_memory(target: Target, grid: CostGrid) -> None:
    """Refuse a grid whose largest block does not fit in the memory that is free, before a minute is spent on it."""
    free = _free_bytes(target)
    batch, query, context = grid.batches[-1], grid.query_tokens[-1], grid.contexts[-1]
    config = target.model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # Keys and values; logits, once in the model's precision and once more while the token is chosen.
    per_token = 2 * config.num_hidden_layers * heads * width * target.model.dtype.itemsize
    needed = batch * ((context + query) * per_token + 2 * query * config.vocab_size * target.model.dtype.itemsize)
    if free is not None and needed > free:
        raise SpecprobeError(
            f"--concurrency {batch}: timing it takes about {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            "lower it, or give --cost FILE"
        )


def _free_bytes(target: Target) -> int | None:
    """Memory that is free on the target's device; None where nobody says."""
    import torch

    if target.device.type == "cuda":
        return int(torch.cuda.mem_get_info(target.device)[0])
    try:
        # What could be had, caches given up; sysconf's free pages leave those out.
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.M)
    return 1024 * int(found.group(1)) if found else None


def measure_block(target: Target, batch: int, context: int, query_tokens: Sequence[int]) -> list[CostPoint]:
    """Time rounds of `batch` sequences with `context` tokens each in the cache, for each number of query tokens.

    The numbers of query tokens take turns, so that a drift of the machine falls on all of them alike. A round here is
    one forward pass with logits at every query position, and the choice of the tokens, as a verification needs.
    Raises SpecprobeError where the memory does not suffice.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    vocab = int(target.model.config.get_text_config().vocab_size)

    def tokens(rows: int, columns: int) -> torch.Tensor:
        return torch.randint(vocab, (rows, columns), generator=generator).to(target.device)

    try:
        with torch.inference_mode():
            caches = _Caches(target, tokens(1, context), batch)
            inputs = {query: tokens(batch, query) for query in query_tokens}
            return _timed_rounds(target, caches, inputs)
    except torch.OutOfMemoryError as error:
        raise SpecprobeError(
            f"--concurrency {batch}: rounds with {context} tokens of context do not fit on {target.device}; "
            "lower it, or give --cost FILE"
        ) from error


class _Caches:
    """Keys and values of one prompt [1, context], the same in every row of the batch: what is in them costs nothing."""

    def __init__(self, target: Target, ids: Any, batch: int) -> None:
        from specprobe.kv_cache import RoomyLayer, new_cache

        self.input_name, _ = target.forward_inputs()
        self._filled = new_cache(target.model.config)
        target.model(input_ids=ids, use_cache=True, **{self.input_name: self._filled})
        self._filled.batch_repeat_interleave(batch)
        self._can_shorten = all(isinstance(layer, RoomyLayer) for layer in self._filled.layers)
        self.batch, self.context = batch, ids.shape[1]

    def fresh(self) -> Any:
        """A cache that holds the context and no more; a sliding window cannot go back, so there it is a copy."""
        return self._filled if self._can_shorten else copy.deepcopy(self._filled)

    def put_back(self, num_tokens: int) -> None:
        """Take the tokens of the last round out again."""
        if self._can_shorten:
            self._filled.crop(-num_tokens)


def _timed_rounds(target: Target, caches: _Caches, inputs: Mapping[int, Any]) -> list[CostPoint]:
    import torch

    def round_seconds(query: int) -> float:
        cache = caches.fresh()
        _synchronize(torch, target.device.type)
        begin = time.perf_counter()
        logits = target.model(input_ids=inputs[query], use_cache=True, **{caches.input_name: cache}).logits
        logits.argmax(dim=-1).cpu()
        elapsed = time.perf_counter() - begin
        caches.put_back(query)
        return elapsed

    for _ in range(WARMUPS):
        # The largest round warms up all: it touches the most memory, and kernels are chosen by then.
        round_seconds(max(inputs))
    timings: dict[int, list[float]] = {query: [] for query in inputs}
    begin = time.perf_counter()
    for repeat in range(MAX_REPEATS):
        if repeat >= MIN_REPEATS and time.perf_counter() - begin > SECONDS_PER_BLOCK:
            break
        for query in inputs:
            timings[query].append(round_seconds(query))
    return [_summary(caches.batch, query, caches.context, np.array(seconds)) for query, seconds in timings.items()]


def measure_prefill(target: Target) -> float:
    """Seconds per prompt token of a prefill of one sequence."""
    import torch

    with torch.inference_mode():
        ids = torch.zeros((1, PREFILL_TOKENS), dtype=torch.long, device=target.model.device)
        seconds = []
        for _ in range(WARMUPS + MIN_REPEATS):
            _synchronize(torch, target.model.device.type)
            begin = time.perf_counter()
            target.model(input_ids=ids, use_cache=True).logits[:, -1].cpu()
            seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[WARMUPS:])) / PREFILL_TOKENS


def measure_drafter(drafter: Drafter, depth: int) -> float:
    """Seconds per draft of a model-free drafter, on tokens that repeat here and there."""
    rng = np.random.default_rng(0)
    num_tokens = 2048
    tokens = rng.zipf(1.3, num_tokens) % 32_000
    trajectory = Trajectory("cost", token_ids(tokens[:1024]), token_ids(tokens[1024:]), "logged", 0.0, token_ids())
    seconds = []
    for _ in range(WARMUPS + MIN_REPEATS):
        begin = time.perf_counter()
        replay(drafter, [trajectory], depth, limits=Limits())
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[WARMUPS:])) / (num_tokens // 2)


def measure_grid(
    target: Target, grid: CostGrid, known: Sequence[CostPoint], on_block: Callable[[float], None] | None = None
) -> Iterator[list[CostPoint]]:
    """Points block by block, those in `known` left out, so that a caller can keep each block as it comes."""
    have = {(p.batch, p.query_tokens, p.context) for p in known}
    done = 0.0
    for batch, context in grid.blocks:
        missing = [query for query in grid.query_tokens if (batch, query, context) not in have]
        if missing:
            yield measure_block(target, batch, context, missing)
        done += grid.weight(batch)
        if on_block is not None:
            on_block(done)


def _summary(batch: int, query: int, context: int, seconds: np.ndarray[Any, np.dtype[np.float64]]) -> CostPoint:
    median = float(np.median(seconds))
    deviation = np.abs(seconds - median)
    spread = 1.4826 * float(np.median(deviation))
    return CostPoint(
        batch=batch,
        query_tokens=query,
        context=context,
        seconds=median,
        spread_seconds=spread,
        repeats=len(seconds),
        outliers=int((deviation > OUTLIER_SPREADS * spread).sum()) if spread else 0,
    )


def _synchronize(torch: Any, device_type: str) -> None:
    """Wait for the device: a launched kernel is not a finished one."""
    if device_type == "cuda":
        torch.cuda.synchronize()
    elif device_type == "mps":
        torch.mps.synchronize()
