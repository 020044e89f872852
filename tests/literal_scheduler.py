"""A server with continuous batching, written out literally with Python objects: a witness for `specprobe.load`.

It shares no code with the package. The rules are those of docs/load.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Job:
    """One request: its prompt, and (drafted, emitted) of each of its rounds."""

    name: int
    prompt: int
    rounds: list[tuple[int, int]]
    arrival: float | None = None
    entered: float = 0.0
    chunks: list[tuple[float, int]] = field(default_factory=list)
    played: int = 0
    cached: int = 0
    wanted_in_cache: int = 0

    @property
    def written(self) -> int:
        return sum(size for _, size in self.chunks)

    @property
    def decodes(self) -> bool:
        return self.cached >= self.wanted_in_cache

    @property
    def done(self) -> bool:
        return bool(self.chunks) and self.decodes and self.played == len(self.rounds)

    @property
    def kv(self) -> int:
        drafted = self.rounds[self.played][0] if self.played < len(self.rounds) else 0
        return self.prompt + self.written + drafted


@dataclass
class Step:
    """What one step did."""

    decoding: int = 0
    query_tokens: int = 0
    prefill_tokens: int = 0
    emitted: int = 0
    kv_tokens: int = 0
    running: int = 0
    in_flight: int = 0
    preempted: int = 0
    end: float = 0.0


@dataclass
class Seconds:
    """The cost of a step: `decode` of sequences, query tokens per sequence and context."""

    decode: Callable[[int, float, float], float]
    prefill_token: float
    prefill_pair: float
    prefill_step: float


def serve(
    jobs: Sequence[Job], seconds: Seconds, slots: int, token_budget: int, capacity: float, concurrency: int | None
) -> list[Step]:
    """Run all jobs; times are written into them. `concurrency` None: they come at their `arrival`."""
    coming = deque(jobs)
    waiting: deque[Job] = deque()
    running: list[Job] = []
    steps: list[Step] = []
    now = 0.0
    while coming or waiting or running:
        if concurrency is None:
            if not waiting and not running:
                now = max(now, coming[0].arrival or 0.0)
            while coming and (coming[0].arrival or 0.0) <= now:
                coming[0].entered = coming[0].arrival or 0.0
                waiting.append(coming.popleft())
        else:
            while coming and len(waiting) + len(running) < concurrency:
                coming[0].entered = now
                waiting.append(coming.popleft())
        step = Step(in_flight=len(waiting) + len(running))
        work: dict[int, int] = {}

        while sum(job.kv for job in running) > capacity:
            victim = running.pop()
            victim.cached = 0
            waiting.appendleft(victim)
            step.preempted += 1

        left = token_budget
        contexts = []
        for job in running:
            if not job.decodes:
                continue
            query = 1 + job.rounds[job.played][0]
            if query > left:
                left = 0
                break
            work[job.name] = query
            left -= query
            contexts.append(job.prompt + job.written - 1)

        pairs = 0
        for job in running:
            if not job.decodes:
                chunk = min(left, job.wanted_in_cache - job.cached)
                work[job.name] = chunk
                pairs += sum(range(job.cached, job.cached + chunk))
                left -= chunk
        while waiting and len(running) < slots and left > 0 and not step.preempted:
            job = waiting[0]
            if sum(other.kv for other in running) + job.kv > capacity:
                break
            running.append(waiting.popleft())
            job.cached = 0
            job.wanted_in_cache = job.prompt + max(0, job.written - 1)
            chunk = min(left, job.wanted_in_cache)
            work[job.name] = chunk
            pairs += sum(range(chunk))
            left -= chunk

        step.kv_tokens = sum(job.kv for job in running)
        step.running = len(running)
        decoders = [job for job in running if job.decodes and job.name in work]
        step.decoding = len(decoders)
        step.query_tokens = sum(work[job.name] for job in decoders)
        step.prefill_tokens = sum(work.values()) - step.query_tokens
        now += seconds.prefill_token * step.prefill_tokens + seconds.prefill_pair * pairs
        if decoders:
            now += seconds.decode(len(decoders), step.query_tokens / len(decoders), sum(contexts) / len(decoders))
        else:
            now += seconds.prefill_step

        for job in running:
            if job in decoders:
                size = job.rounds[job.played][1]
                job.chunks.append((now, size))
                job.played += 1
                step.emitted += size
            elif not job.decodes and work.get(job.name):
                job.cached += work[job.name]
                if job.decodes and not job.chunks:
                    job.chunks.append((now, 1))
                    step.emitted += 1
                    # The token just written is a query token of the first round.
                    job.wanted_in_cache = job.cached
        running = [job for job in running if not job.done]
        step.end = now
        steps.append(step)
    return steps
