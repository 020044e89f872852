"""Load: an engine's continuous batching, step by step, over requests whose rounds are known (docs/load.md).

Scheduling follows vLLM V1 (`v1/core/sched/scheduler.py`): running requests first, in the order in which they were
admitted, then waiting ones, within a token budget; prompts in chunks beside decoding sequences; where the KV cache
overflows, the request admitted last is preempted and computed anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specprobe.errors import SpecprobeError
from specprobe.request_rounds import Rounds
from specprobe.step_cost import CostArrays, Floats, StepCost, decode_step_seconds

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """R requests in the order in which they enter: `prompt_tokens`, `output_tokens` int32 [R] and their rounds.

    The prefill emits the first output token, each round its accepted drafts and one more; the last round may run past
    the end of the output. Raises ValueError where a length is below 1 or rounds and output tokens disagree.
    """

    prompt_tokens: NDArray[np.int32]
    rounds: Rounds
    output_tokens: NDArray[np.int32]

    def __post_init__(self) -> None:
        if not self.prompt_tokens.size == self.output_tokens.size == self.rounds.first.size - 1:
            raise ValueError("prompts, outputs and rounds of different numbers of requests")
        if not self.num_requests or min(self.prompt_tokens.min(), self.output_tokens.min()) < 1:
            raise ValueError("there must be requests, with at least one token of prompt and of output each")
        if (self.rounds.accepted > self.rounds.drafted).any():
            raise ValueError("more tokens accepted than drafted")
        left = self._left_after_rounds
        last = np.zeros(self.num_requests, dtype=np.int64)
        some = self.rounds.num_rounds > 0
        last[some] = self.rounds.accepted[self.rounds.first[1:][some] - 1]
        if (left > 0).any() or (left + last < 0).any():
            raise ValueError("rounds that do not emit the output tokens")

    @property
    def num_requests(self) -> int:
        """R."""
        return self.prompt_tokens.size

    @property
    def _left_after_rounds(self) -> Ints:
        """[R] output tokens that rounds leave over; negative where the last one runs past the end."""
        emitted = np.concatenate([[0], np.cumsum(self.rounds.accepted + np.int64(1))])
        return self.output_tokens.astype(np.int64) - 1 - np.diff(emitted[self.rounds.first])

    @property
    def written_before(self) -> Ints:
        """[rounds] output tokens that are written when each round begins."""
        emitted = np.concatenate([[0], np.cumsum(self.rounds.accepted + np.int64(1))])
        return 1 + emitted[:-1] - np.repeat(emitted[self.rounds.first[:-1]], self.rounds.num_rounds)

    @property
    def contexts(self) -> Ints:
        """[rounds] tokens in the KV cache when each round begins: all but the last that was written."""
        return np.repeat(self.prompt_tokens.astype(np.int64), self.rounds.num_rounds) + self.written_before - 1

    @property
    def largest_kv_tokens(self) -> Ints:
        """[R] the most KV tokens that a request ever needs: with the drafts of a round, accepted or not."""
        need = self.prompt_tokens.astype(np.int64)
        owner = np.repeat(np.arange(self.num_requests), self.rounds.num_rounds)
        np.maximum.at(need, owner, self.contexts + 1 + self.rounds.drafted)
        return need

    def take(self, requests: Ints) -> Workload:
        """Some requests, in the order named, as often as named."""
        return Workload(self.prompt_tokens[requests], self.rounds.take(requests), self.output_tokens[requests])


def repeated(workload: Workload, num_requests: int, seed: int = 0) -> Workload:
    """The requests over and over, each time in another order drawn by `seed`, up to `num_requests`."""
    rng = np.random.default_rng(seed)
    cycles = -(-num_requests // workload.num_requests)
    order = np.concatenate([rng.permutation(workload.num_requests) for _ in range(cycles)])
    return workload.take(order[:num_requests])


@dataclass(frozen=True, slots=True)
class Server:
    """Limits of the engine: vLLM's max_num_seqs and max_num_batched_tokens, and the tokens that its KV cache holds.

    `kv_capacity_tokens` None: as many as are asked for.
    """

    max_sequences: int
    max_batched_tokens: int
    kv_capacity_tokens: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepLog:
    """What each of S steps did; all [S].

    `end_seconds`: since the start; `decoding`: sequences that ran a round; `query_tokens`: theirs, in all;
    `prefill_tokens`: prompt tokens that were computed, again included; `emitted`: output tokens; `kv_tokens`: KV that
    running requests needed; `running`: requests that held a slot; `in_flight`: these and those waiting;
    `preempted`: requests that lost their slot; `full`: whether no waiting request could have been given a slot.
    """

    end_seconds: Floats
    decoding: Ints
    query_tokens: Ints
    prefill_tokens: Ints
    emitted: Ints
    kv_tokens: Ints
    running: Ints
    in_flight: Ints
    preempted: Ints
    full: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Times:
    """Mean and quantiles in seconds (numpy's linear interpolation)."""

    mean: float
    p50: float
    p95: float

    @classmethod
    def of(cls, seconds: Floats) -> Times | None:
        """None of nothing; what is not a number counts as absent."""
        known = seconds[~np.isnan(seconds)]
        if not known.size:
            return None
        p50, p95 = np.quantile(known, (0.5, 0.95))
        return cls(float(known.mean()), float(p50), float(p95))


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the run, and the output tokens that were emitted in it."""

    start_seconds: float
    end_seconds: float
    output_tokens: int

    @property
    def output_tokens_per_second(self) -> float | None:
        """None where the stretch has no length."""
        seconds = self.end_seconds - self.start_seconds
        return self.output_tokens / seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class LoadResult:
    """What R requests saw of a server, and what its steps were.

    `entry_seconds`, `first_token_seconds`, `end_seconds` [R]: when each request arrived, got its first token and its
    last, since the start. `gap_seconds`: between stream chunks, request after request, one for each round (inter-token
    latency). `steady`: from the beginning of the first step in which as many requests as `concurrency` allows are in
    flight and no waiting one could have been given a slot, until one leaves and none takes its place; None for
    arrivals in time, and where there is no such stretch.
    """

    output_tokens: NDArray[np.int32]
    entry_seconds: Floats
    first_token_seconds: Floats
    end_seconds: Floats
    gap_seconds: Floats
    steps: StepLog
    steady: Window | None

    @property
    def whole(self) -> Window:
        """From the first entry to the last token."""
        return Window(float(self.entry_seconds[0]), self.duration_seconds, int(self.output_tokens.sum(dtype=np.int64)))

    @property
    def duration_seconds(self) -> float:
        """When the last request ended; the clock starts at 0."""
        return float(self.steps.end_seconds[-1])

    @property
    def num_steps(self) -> int:
        """Steps of the engine."""
        return self.steps.end_seconds.size

    @property
    def num_preemptions(self) -> int:
        """How often a request lost its slot."""
        return int(self.steps.preempted.sum())

    @property
    def peak_kv_tokens(self) -> int:
        """The most KV tokens that running requests needed in a step."""
        return int(self.steps.kv_tokens.max())

    @property
    def mean_batch(self) -> float | None:
        """Sequences in a step that decodes; None where no step does."""
        decoding = self.steps.decoding[self.steps.decoding > 0]
        return float(decoding.mean()) if decoding.size else None

    @property
    def latency_seconds(self) -> Floats:
        """[R] from arrival to last token."""
        return self.end_seconds - self.entry_seconds

    @property
    def ttft_seconds(self) -> Floats:
        """[R] from arrival to first token."""
        return self.first_token_seconds - self.entry_seconds

    @property
    def tpot_seconds(self) -> Floats:
        """[R] time per output token after the first; NaN for a response of one token."""
        later = np.where(self.output_tokens > 1, self.output_tokens - 1.0, np.nan)
        return (self.end_seconds - self.first_token_seconds) / later

    @property
    def latency(self) -> Times:
        """Of requests."""
        times = Times.of(self.latency_seconds)
        assert times is not None
        return times

    @property
    def ttft(self) -> Times:
        """Time to first token, of requests."""
        times = Times.of(self.ttft_seconds)
        assert times is not None
        return times

    @property
    def itl(self) -> Times | None:
        """Gaps between stream chunks, of rounds; None where there was no round."""
        return Times.of(self.gap_seconds)

    @property
    def tpot(self) -> Times | None:
        """Time per output token, of requests; None where each has one token only."""
        return Times.of(self.tpot_seconds)


def simulate(
    workload: Workload,
    cost: StepCost,
    server: Server,
    *,
    concurrency: int | None = None,
    arrivals: Floats | None = None,
) -> LoadResult:
    """Serve all requests, in order of entry, and say what they and the server saw.

    Either `concurrency` C, a closed loop: C requests enter at once, and the next one when one ends. Or `arrivals`
    [R], an open loop: seconds, rising, at which requests arrive. Raises SpecprobeError where a limit of the server
    can never be met, ValueError where not exactly one of the two is given or it does not fit the workload.
    """
    if (concurrency is None) == (arrivals is None):
        raise ValueError("give concurrency or arrivals")
    if concurrency is not None and concurrency < 1:
        raise SpecprobeError(f"concurrency {concurrency}: must be at least 1")
    if arrivals is not None and not _rises(arrivals, workload.num_requests):
        raise ValueError("arrivals must be one time for each request, from 0, finite and rising")
    _check_server(workload, server)
    requests = _Requests(
        workload.prompt_tokens.astype(np.int64),
        workload.output_tokens.astype(np.int64),
        np.ascontiguousarray(workload.rounds.first, dtype=np.int64),
        np.ascontiguousarray(workload.rounds.drafted, dtype=np.uint8),
        np.ascontiguousarray(workload.rounds.accepted, dtype=np.uint8),
    )
    limits = _Limits(
        workload.num_requests if concurrency is None else int(concurrency),
        int(server.max_sequences),
        int(server.max_batched_tokens),
        np.inf if server.kv_capacity_tokens is None else float(server.kv_capacity_tokens),
    )
    entry, seen, ends, counts = _run(
        requests, cost.arrays, limits, np.empty(0) if arrivals is None else np.ascontiguousarray(arrivals, np.float64)
    )
    decoding, query_tokens, prefill_tokens, emitted, kv_tokens, running, in_flight, preempted, full = counts.T.copy()
    steps = StepLog(
        ends, decoding, query_tokens, prefill_tokens, emitted, kv_tokens, running, in_flight, preempted, full > 0
    )
    steady = None if concurrency is None else _steady(steps, int(concurrency))
    return LoadResult(workload.output_tokens, entry, seen.first_token, seen.last_chunk, seen.gaps, steps, steady)


def _rises(arrivals: Floats, num_requests: int) -> bool:
    if arrivals.shape != (num_requests,):
        return False
    return bool(np.isfinite(arrivals).all() and arrivals[0] >= 0 and (np.diff(arrivals) >= 0).all())


def _check_server(workload: Workload, server: Server) -> None:
    """Every request must be able to finish alone on this server."""
    if server.max_sequences < 1:
        raise SpecprobeError(f"server: max_sequences {server.max_sequences}; at least 1 is needed")
    longest = 1 + int(workload.rounds.drafted.max(initial=0))
    if server.max_batched_tokens < longest:
        raise SpecprobeError(
            f"server: max_batched_tokens {server.max_batched_tokens}: a round of one sequence takes {longest}; raise it"
        )
    if server.kv_capacity_tokens is None:
        return
    need = workload.largest_kv_tokens
    worst = int(need.argmax())
    if need[worst] > server.kv_capacity_tokens:
        raise SpecprobeError(
            f"server: request {worst} needs {need[worst]} KV tokens (prompt {workload.prompt_tokens[worst]}, output "
            f"{workload.output_tokens[worst]}), the cache holds {server.kv_capacity_tokens:.0f}: it can never be "
            "served; leave it out or enlarge the cache"
        )


def _steady(steps: StepLog, concurrency: int) -> Window | None:
    """See `LoadResult`."""
    all_in = steps.in_flight == concurrency
    starts = np.flatnonzero(all_in & steps.full)
    if not starts.size:
        return None
    # Once the requests run out, fewer are in flight for good.
    start, stop = int(starts[0]), int(np.flatnonzero(all_in)[-1]) + 1
    begin = float(steps.end_seconds[start - 1]) if start else 0.0
    return Window(begin, float(steps.end_seconds[stop - 1]), int(steps.emitted[start:stop].sum()))


class _Requests(NamedTuple):
    """A `Workload` as compiled code takes it."""

    prompt: Ints
    output: Ints
    first: Ints
    drafted: NDArray[np.uint8]
    accepted: NDArray[np.uint8]


class _Limits(NamedTuple):
    concurrency: int
    max_sequences: int
    max_batched_tokens: int
    kv_capacity: float


class _Progress(NamedTuple):
    """Where each request is, [R]: tokens written, its next round, and tokens to prefill until it can decode."""

    written: Ints
    next_round: Ints
    left: Ints


class _Seen(NamedTuple):
    """What requests see: first and latest chunk [R], and the gap before the chunk of each round [rounds]."""

    first_token: Floats
    last_chunk: Floats
    gaps: Floats


NUM_COUNTS = 9
"""Columns of the step log, in the order of `StepLog`'s fields from `decoding` on."""


@njit(cache=True, nogil=True)
def _kv_need(requests: _Requests, at: _Progress, r: int) -> int:
    """KV tokens of a request in a step: prompt, tokens written, and the drafts of its next round."""
    need = requests.prompt[r] + at.written[r]
    if at.next_round[r] < requests.first[r + 1]:
        need += requests.drafted[at.next_round[r]]
    return need


@njit(cache=True, nogil=True)
def _to_compute(requests: _Requests, at: _Progress, r: int) -> int:
    """Tokens to prefill on admission: the prompt and, after a preemption, what was in the cache besides."""
    return requests.prompt[r] + max(at.written[r] - 1, 0)


@njit(cache=True, nogil=True)
def _give_decodes(
    requests: _Requests, at: _Progress, running: Ints, tokens: Ints, budget: int
) -> tuple[int, int, int, int]:
    """Give each decoding sequence its 1 + drafted tokens: how many get some, their tokens, those in their cache.

    Last, what is left of the budget: nothing once it was too little for a sequence, since that one waits for its turn.
    """
    decoding, query_tokens, cached = 0, 0, 0
    for k in range(running.size):
        r = running[k]
        if at.left[r] > 0:
            continue
        wanted = int(1 + requests.drafted[at.next_round[r]])
        if wanted > budget:
            return decoding, query_tokens, cached, 0
        tokens[k] = wanted
        budget -= wanted
        decoding += 1
        query_tokens += wanted
        cached += requests.prompt[r] + at.written[r] - 1
    return decoding, query_tokens, cached, budget


@njit(cache=True, nogil=True)
def _give_prefill(requests: _Requests, at: _Progress, r: int, budget: int) -> tuple[int, int]:
    """Tokens of a prompt that go into this step, and the pairs they make with tokens of the sequence before them."""
    chunk = min(at.left[r], budget)
    before = _to_compute(requests, at, r) - at.left[r]
    return chunk, chunk * before + chunk * (chunk - 1) // 2


@njit(cache=True, nogil=True)
def _play(requests: _Requests, at: _Progress, seen: _Seen, r: int, tokens: int, now: float) -> int:
    """What a step that ends now does for a request that had so many tokens in it; the output tokens it emits."""
    if tokens == 0:
        return 0
    if at.left[r] > 0:
        at.left[r] -= tokens
        if at.left[r] > 0 or at.written[r] > 0:
            return 0
        seen.first_token[r] = seen.last_chunk[r] = now
        at.written[r] = 1
        return 1
    this_round = at.next_round[r]
    emitted = min(1 + np.int64(requests.accepted[this_round]), requests.output[r] - at.written[r])
    seen.gaps[this_round] = now - seen.last_chunk[r]
    seen.last_chunk[r] = now
    at.written[r] += emitted
    at.next_round[r] += 1
    return emitted


@njit(cache=True, nogil=True)
def _run(
    requests: _Requests, cost: CostArrays, limits: _Limits, arrivals: Floats
) -> tuple[Floats, _Seen, Floats, Ints]:
    """Times of entry [R], what requests saw, and of each step its end [S] and counts [S, 9].

    No `arrivals`: a closed loop.
    """
    num_requests = requests.prompt.size
    closed = arrivals.size == 0
    entry = np.zeros(num_requests) if closed else arrivals.copy()
    at = _Progress(
        np.zeros(num_requests, dtype=np.int64), requests.first[:-1].copy(), np.zeros(num_requests, dtype=np.int64)
    )
    seen = _Seen(np.zeros(num_requests), np.zeros(num_requests), np.zeros(requests.drafted.size))
    ends, counts = np.empty(1024), np.empty((1024, NUM_COUNTS), dtype=np.int64)
    # Running requests in order of admission; preempted ones wait before all others, the one that is next on top.
    running = np.empty(min(num_requests, limits.max_sequences), dtype=np.int64)
    tokens = np.empty(running.size, dtype=np.int64)
    preempted = np.empty(num_requests, dtype=np.int64)
    num_running = num_preempted = num_entered = num_begun = num_finished = num_steps = 0
    now = 0.0

    while num_finished < num_requests:
        if not closed and num_finished == num_entered:
            now = max(now, arrivals[num_entered])
        while num_entered < num_requests and num_entered - num_finished < limits.concurrency:
            if closed:
                entry[num_entered] = now
            elif arrivals[num_entered] > now:
                break
            num_entered += 1

        kv_tokens = 0
        for k in range(num_running):
            kv_tokens += _kv_need(requests, at, running[k])
        lost_slot = 0
        while kv_tokens > limits.kv_capacity:
            num_running -= 1
            preempted[num_preempted] = running[num_running]
            kv_tokens -= _kv_need(requests, at, running[num_running])
            num_preempted += 1
            lost_slot += 1

        tokens[:] = 0
        decoding, query_tokens, cached, budget = _give_decodes(
            requests, at, running[:num_running], tokens, limits.max_batched_tokens
        )
        prefill_tokens, prefill_pairs = 0, 0
        for k in range(num_running):
            if at.left[running[k]] > 0:
                tokens[k], pairs = _give_prefill(requests, at, running[k], budget)
                budget -= tokens[k]
                prefill_tokens += tokens[k]
                prefill_pairs += pairs

        full = True
        while num_running < limits.max_sequences and num_preempted + num_entered > num_begun:
            r = int(preempted[num_preempted - 1]) if num_preempted else num_begun
            if kv_tokens + _kv_need(requests, at, r) > limits.kv_capacity:
                break
            if budget == 0:
                full = False
                break
            if num_preempted:
                num_preempted -= 1
            else:
                num_begun += 1
            kv_tokens += _kv_need(requests, at, r)
            at.left[r] = _to_compute(requests, at, r)
            running[num_running] = r
            tokens[num_running], pairs = _give_prefill(requests, at, r, budget)
            budget -= tokens[num_running]
            prefill_tokens += tokens[num_running]
            prefill_pairs += pairs
            num_running += 1

        now += prefill_tokens * cost.prefill_token_seconds + prefill_pairs * cost.prefill_pair_seconds
        if decoding:
            now += decode_step_seconds(cost, decoding, query_tokens / decoding, cached / decoding)
        else:
            now += cost.prefill_step_seconds

        in_flight, held_slot = num_entered - num_finished, num_running
        emitted, num_running = 0, 0
        for k in range(held_slot):
            r = running[k]
            emitted += _play(requests, at, seen, r, tokens[k], now)
            if at.left[r] == 0 and at.next_round[r] == requests.first[r + 1]:
                num_finished += 1
            else:
                running[num_running] = r
                num_running += 1

        if num_steps == ends.size:
            ends = np.concatenate((ends, np.empty_like(ends)))
            counts = np.concatenate((counts, np.empty_like(counts)))
        ends[num_steps] = now
        row = (decoding, query_tokens, prefill_tokens, emitted, kv_tokens, held_slot, in_flight, lost_slot, int(full))
        for column in range(NUM_COUNTS):
            counts[num_steps, column] = row[column]
        num_steps += 1

    return entry, seen, ends[:num_steps].copy(), counts[:num_steps].copy()
