"""What a bench measured, raw: every pass with every request. All figures follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specprobe.bench.client import Served
from specprobe.bench.counters import ServerCounters, SpecCounters
from specprobe.bench.plan import ARMS, Arm, BenchPlan, Pass
from specprobe.completion_server import ServedModel


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One pass: its requests in the order in which they were begun, and what the server's counters rose by.

    `prompt_tokens_asked`, `prompt_tokens_cached`: of its prefix cache. None where the server does not tell. `reused`:
    whether an earlier, interrupted sitting measured it.
    """

    key: Pass
    requests: tuple[Served, ...]
    counters: SpecCounters | None
    prompt_tokens_asked: int | None
    prompt_tokens_cached: int | None
    reused: bool = False

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> PassRecord:
        """What `to_json` gave."""
        return cls(
            key=Pass(told["repeat"], told["concurrency"], told["arm"]),
            requests=tuple(Served.from_json(one) for one in told["requests"]),
            counters=None if told["counters"] is None else SpecCounters.from_json(told["counters"]),
            prompt_tokens_asked=told["prompt_tokens_asked"],
            prompt_tokens_cached=told["prompt_tokens_cached"],
            reused=told["reused"],
        )

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "arm": self.key.arm,
            "concurrency": self.key.concurrency,
            "repeat": self.key.repeat,
            "counters": self.counters.to_json() if self.counters else None,
            "prompt_tokens_asked": self.prompt_tokens_asked,
            "prompt_tokens_cached": self.prompt_tokens_cached,
            "reused": self.reused,
            "requests": [one.to_json() for one in self.requests],
        }


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Every pass so far. `prompts`: ids by number; `models`: what the servers say of themselves; `restarts`: whether
    one server was restarted between arms. `seconds_after`: how long after the last pass that is reused this sitting
    began; None where none is.
    """

    plan: BenchPlan
    sources: tuple[str, ...]
    prompts: tuple[str | int, ...]
    models: Mapping[Arm, ServedModel]
    passes: tuple[PassRecord, ...]
    restarts: bool
    seconds_after: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every pass of the plan is there."""
        return len(self.passes) == len(self.plan.passes(restarts=self.restarts))

    def of(self, arm: Arm, concurrency: int) -> list[PassRecord]:
        """The passes of an arm at a concurrency, by repeat."""
        found = [one for one in self.passes if one.key.arm == arm and one.key.concurrency == concurrency]
        return sorted(found, key=lambda one: one.key.repeat)

    def pairs(self, concurrency: int) -> tuple[list[PassRecord], list[PassRecord]]:
        """The passes of both arms in the repeats that both have finished."""
        arms = [self.of(arm, concurrency) for arm in ARMS]
        both = {one.key.repeat for one in arms[0]} & {one.key.repeat for one in arms[1]}
        plain, speculative = ([one for one in arm if one.key.repeat in both] for arm in arms)
        return plain, speculative

    @property
    def mean_context(self) -> float:
        """KV tokens of a request halfway through its answer."""
        requests = [one for record in self.passes for one in record.requests]
        return sum(one.prompt_tokens + one.output_tokens / 2 for one in requests) / len(requests)


def rise(before: ServerCounters | None, after: ServerCounters | None) -> ServerCounters:
    """What counters rose by between two looks."""
    if before is None or after is None:
        return ServerCounters(None, None, None, None)
    speculation = None
    if before.speculation is not None and after.speculation is not None:
        speculation = after.speculation - before.speculation
    return ServerCounters(
        after.engine,
        speculation,
        _less(after.prompt_tokens_asked, before.prompt_tokens_asked),
        _less(after.prompt_tokens_cached, before.prompt_tokens_cached),
    )


def _less(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
