"""Timing the target's rounds on this device: the only place where a cost is measured."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from specprobe.cost import CostPoint, DraftingPoint, timing_spread
from specprobe.drafters.base import Drafter, Limits
from specprobe.errors import SpecprobeError
from specprobe.memory import free_bytes
from specprobe.replay import replay
from specprobe.trajectory import Trajectory, token_ids

if TYPE_CHECKING:
    import torch

    from specprobe.cuda_graph import Work
    from specprobe.speculation import LiveDrafter, Rows
    from specprobe.target import Target

WARMUPS = 1
MIN_REPEATS = 3
MAX_REPEATS = 15
# Per batch and context: enough repeats for a stable median of fast rounds, not minutes for slow ones.
SECONDS_PER_BLOCK = 4.0
OUTLIER_SPREADS = 5.0
PREFILL_LENGTHS = (32, 128, 512)

Forward = Literal["CUDA graph", "eager forward", "eager forward, growing cache"]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prefill:
    """Seconds of a step that prefills: of each prompt token, and of the step besides."""

    token_seconds: float
    step_seconds: float


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


def forward_kind(target: Target) -> Forward:
    """How rounds can be timed on the target's device; on a GPU this captures a small round to see."""
    import torch

    from specprobe.cuda_graph import captured
    from specprobe.ragged_cache import can_be_ragged

    if not can_be_ragged(target.model):
        return "eager forward, growing cache"
    if target.device.type != "cuda":
        return "eager forward"
    with torch.inference_mode():
        rows = _new_rows(target, 1, 1, 1)
        rows.begin_at(2)
        launch = captured(_verification(rows, _random_tokens(target, 1, 0)))
    return "eager forward" if launch is None else "CUDA graph"


def timing_conditions(target: Target, forward: Forward) -> dict[str, Any]:
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
        "forward": forward,
    }


def check_memory(target: Target, grid: CostGrid, drafter_bytes: int = 0, drafter_cache_bytes: int = 0) -> None:
    """Refuse a grid whose largest block does not fit in the memory that is free, before a minute is spent on it.

    `drafter_bytes`: of a drafter's weights that are yet to be loaded; `drafter_cache_bytes`: of its cache, by token.
    """
    from specprobe.kv_cache import kv_token_bytes

    free = _free_bytes(target)
    batch, query, context = grid.batches[-1], grid.query_tokens[-1], grid.contexts[-1]
    itemsize = target.model.dtype.itemsize
    per_token = kv_token_bytes(target.model.config, itemsize) + drafter_cache_bytes
    # Keys and values; logits, once in the model's precision and once more while the token is chosen.
    vocab_size = target.model.config.get_text_config().vocab_size
    needed = batch * ((context + query) * per_token + 2 * query * vocab_size * itemsize) + drafter_bytes
    if free is not None and needed > free:
        raise SpecprobeError(
            f"--concurrency {batch}: timing it takes about {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            "lower it, or give --cost FILE"
        )


def _free_bytes(target: Target) -> int | None:
    """Memory that is free on the target's device; None where nobody says."""
    import torch

    if target.device.type == "cuda":
        # Blocks that torch holds without using them are free to it.
        held = torch.cuda.memory_reserved(target.device) - torch.cuda.memory_allocated(target.device)
        return int(torch.cuda.mem_get_info(target.device)[0]) + held
    return free_bytes()


def measure_block(
    target: Target, batch: int, context: int, query_tokens: Sequence[int], forward: Forward
) -> list[CostPoint]:
    """Time rounds of `batch` sequences with `context` tokens each in the cache, for each number of query tokens.

    The numbers of query tokens take turns, so that a drift of the machine falls on all of them alike. A round here is
    one forward pass with logits at every query position, the choice of the tokens, and which drafts they accept, until
    the host knows. What is in the cache costs nothing, so it is left empty. Raises SpecprobeError where the memory does
    not suffice.
    """
    import torch

    with _memory_errors(target, batch, context), torch.inference_mode():
        if forward == "eager forward, growing cache":
            caches = _Caches(target, _random_tokens(target, 1, context), batch)
            inputs = {query: _random_tokens(target, batch, query) for query in query_tokens}
            return _timed_rounds(target, caches, inputs)
        rows = _new_rows(target, batch, context, max(query_tokens))
        works = {}
        for query in query_tokens:
            rows.begin_at(1 + context)
            verify = _verification(rows, _random_tokens(target, batch, query - 1))
            works[query] = _timed(rows, 1 + context, _launched(target, verify, forward))
        return [_summary(batch, query, context, found) for query, found in take_turns(works).items()]


def measure_drafting_block(
    target: Target,
    drafter: LiveDrafter,
    name: str,
    batch: int,
    context: int,
    depths: Sequence[int],
    forward: Forward,
) -> list[DraftingPoint]:
    """Time whole rounds, drafting and verification, beside the verification alone, which takes turns with them.

    The drafter's caches are left empty like the target's. On a GPU where verification is a CUDA graph drafting is
    another; it runs eagerly where it cannot be captured.
    """
    import torch

    from specprobe.cuda_graph import captured

    with _memory_errors(target, batch, context), torch.inference_mode():
        rows = _new_rows(target, batch, context, 1 + max(depths), drafter.taps)
        drafter.allocate(batch, rows.ids.shape[1])
        works: dict[tuple[str, int], Callable[[], float]] = {}
        for depth in depths:
            drafts = _random_tokens(target, batch, depth)
            rows.begin_at(1 + context)
            verify = _launched(target, _verification(rows, drafts), forward)
            # Drafters read what the verification before left behind: here always one of the same depth.
            verify()
            rows.begin_at(1 + context)
            draft = _drafting(rows, drafter, drafts)
            if forward == "CUDA graph":
                draft = captured(draft) or draft
            works["verification", depth] = _timed(rows, 1 + context, verify)
            works["round", depth] = _timed(rows, 1 + context, _in_turn(draft, verify))
        found = take_turns(works)
    points = []
    for depth in depths:
        added = _summary(batch, 1 + depth, context, found["round", depth] - found["verification", depth])
        points.append(
            DraftingPoint(
                drafter=name,
                batch=batch,
                depth=depth,
                context=context,
                seconds=max(0.0, added.seconds),
                spread_seconds=added.spread_seconds,
                repeats=added.repeats,
            )
        )
    return points


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


def _new_rows(target: Target, batch: int, context: int, query: int, taps: Sequence[int] = ()) -> Rows:
    """Rows of random tokens, with room for a context, a round, and what a drafter catches up on after it."""
    from specprobe.speculation import Rows

    rows = Rows(target, batch, 2 + context + 2 * query, taps)
    rows.ids.copy_(_random_tokens(target, batch, rows.ids.shape[1]))
    return rows


def _random_tokens(target: Target, rows: int, columns: int) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(0)
    vocab = int(target.model.config.get_text_config().vocab_size)
    return torch.randint(vocab, (rows, columns), generator=generator).to(target.device)


def _verification(rows: Rows, drafts: torch.Tensor) -> Work:
    """A verification that leaves every length as it found it but for the host's, which `Rows.finish` moves on."""
    length = int(rows.host_lengths[0])

    def work() -> torch.Tensor:
        rows.lengths.fill_(length)
        return rows.verify(drafts)

    return work


def _drafting(rows: Rows, drafter: LiveDrafter, drafts: torch.Tensor) -> Work:
    """Fill `drafts` [B, K], which a verification reads."""
    return lambda: drafts.copy_(drafter.draft(rows, drafts.shape[1]))


def _in_turn(first: Work, second: Work) -> Work:
    def work() -> torch.Tensor:
        first()
        return second()

    return work


def _launched(target: Target, work: Work, forward: Forward) -> Work:
    if forward != "CUDA graph":
        return work
    from specprobe.cuda_graph import captured

    launch = captured(work)
    if launch is None:
        raise SpecprobeError(
            f"target {target.record.name}: a CUDA graph of a small round was made on {target.device}, but not of one "
            "that is to be timed; give --cost FILE"
        )
    return launch


def _timed(rows: Rows, length: int, work: Work) -> Callable[[], float]:
    """Seconds of one round over rows of this length."""
    import torch

    def seconds() -> float:
        rows.begin_at(length)
        _synchronize(torch, rows.device.type)
        begin = time.perf_counter()
        rows.finish(work())
        return time.perf_counter() - begin

    return seconds


def take_turns(works: Mapping[Any, Callable[[], float]]) -> dict[Any, Seconds]:
    """Repeat works that time themselves, one after the other; the seconds of each."""
    for _ in range(WARMUPS):
        # The last is the largest and warms up all: it touches the most memory, and kernels are chosen by then.
        works[list(works)[-1]]()
    timings: dict[Any, list[float]] = {key: [] for key in works}
    begin = time.perf_counter()
    for repeat in range(MAX_REPEATS):
        if repeat >= MIN_REPEATS and time.perf_counter() - begin > SECONDS_PER_BLOCK:
            break
        for key, work in works.items():
            timings[key].append(work())
    return {key: np.array(seconds) for key, seconds in timings.items()}


def _timed_rounds(target: Target, caches: _Caches, inputs: Mapping[int, Any]) -> list[CostPoint]:
    """With a cache that grows by what a round adds, and is cut back."""
    import torch

    def timed(query: int) -> Callable[[], float]:
        def seconds() -> float:
            cache = caches.fresh()
            _synchronize(torch, target.device.type)
            begin = time.perf_counter()
            logits = target.model(input_ids=inputs[query], use_cache=True, **{caches.input_name: cache}).logits
            logits.argmax(dim=-1).cpu()
            elapsed = time.perf_counter() - begin
            caches.put_back(query)
            return elapsed

        return seconds

    found = take_turns({query: timed(query) for query in inputs})
    return [_summary(caches.batch, query, caches.context, seconds) for query, seconds in found.items()]


def measure_prefill(target: Target) -> Prefill:
    """A prefill of one sequence at several lengths, fitted by a line that does not begin below 0."""
    import torch

    most = target.record.max_position_embeddings
    lengths = sorted({min(length, most) if most else length for length in PREFILL_LENGTHS})
    _, optional = target.forward_inputs()
    last = {"logits_to_keep": 1} if "logits_to_keep" in optional else {}

    def timed(length: int) -> Callable[[], float]:
        ids = _random_tokens(target, 1, length)

        def seconds() -> float:
            _synchronize(torch, target.device.type)
            begin = time.perf_counter()
            target.model(input_ids=ids, use_cache=True, **last).logits[:, -1].argmax().cpu()
            return time.perf_counter() - begin

        return seconds

    with torch.inference_mode():
        found = take_turns({length: timed(length) for length in lengths})
    return fit_prefill(lengths, [float(np.median(found[length])) for length in lengths])


def fit_prefill(lengths: Sequence[int], seconds: Sequence[float]) -> Prefill:
    """The line through prefill times; through the origin where it would begin below it, or there is one length."""
    tokens, times = np.array(lengths, dtype=np.float64), np.array(seconds)
    if len(tokens) > 1:
        slope, intercept = np.polyfit(tokens, times, 1)
        if intercept >= 0 and slope >= 0:
            return Prefill(float(slope), float(intercept))
    return Prefill(float(tokens @ times / (tokens @ tokens)), 0.0)


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
    target: Target,
    grid: CostGrid,
    known: Sequence[CostPoint],
    forward: Forward,
    on_block: Callable[[float], None] | None = None,
) -> Iterator[list[CostPoint]]:
    """Points block by block, those in `known` left out, so that a caller can keep each block as it comes."""
    have = {(p.batch, p.query_tokens, p.context) for p in known}
    done = 0.0
    for batch, context in grid.blocks:
        missing = [query for query in grid.query_tokens if (batch, query, context) not in have]
        if missing:
            yield measure_block(target, batch, context, missing, forward)
        done += grid.weight(batch)
        if on_block is not None:
            on_block(done)


@contextmanager
def _memory_errors(target: Target, batch: int, context: int) -> Iterator[None]:
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise SpecprobeError(
            f"--concurrency {batch}: rounds with {context} tokens of context do not fit on {target.device}; "
            "lower it, or give --cost FILE"
        ) from error


def _summary(batch: int, query: int, context: int, seconds: Seconds) -> CostPoint:
    median = float(np.median(seconds))
    spread = timing_spread(seconds)
    return CostPoint(
        batch=batch,
        query_tokens=query,
        context=context,
        seconds=median,
        spread_seconds=spread,
        repeats=len(seconds),
        outliers=int((np.abs(seconds - median) > OUTLIER_SPREADS * spread).sum()) if spread else 0,
    )


def _synchronize(torch: Any, device_type: str) -> None:
    """Wait for the device: a launched kernel is not a finished one."""
    if device_type == "cuda":
        torch.cuda.synchronize()
    elif device_type == "mps":
        torch.mps.synchronize()
