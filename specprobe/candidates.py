"""Candidates for a server: each drafter at each depth, with what it gains, costs and needs at one traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specprobe.acceptance import Acceptance, drafter_label
from specprobe.cost import CostTable
from specprobe.interval import MIN_PROMPTS
from specprobe.run import ResponseRecord
from specprobe.serving import Served, Serving, Traffic
from specprobe.speedup import cost_keys, speedup_counts, speedups

# Lengths of prompts and outputs, as multiples of the log's own, that the gain is also given for.
LENGTH_FACTORS = (0.25, 1.0, 4.0)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The speed-up with all prompts and outputs longer by these factors, acceptance unchanged."""

    scale_prompt: float
    scale_output: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Option:
    """One drafter at one depth and traffic. Times are in seconds.

    `speedup`: the ratio of output tokens per second to those without speculation, while all slots are full; for
    requests that arrive by the clock the ratio of mean latencies. `low`, `high`: its interval over prompts, repeated
    timings and the known error of the cost, None where there is none; `enough_prompts`: whether it rests on
    MIN_PROMPTS prompts. `round_seconds`: the mean of a speculative round. `break_even_tokens_per_round`: the ratio of
    the round times with and without; speculation pays above it. `losing_share`: of requests that take longer than
    without. `drafter_bytes`: what its weights take, None where the cost does not say. `free_drafting_speedup`: were the
    drafter's steps to take no time, its prefill aside; None where they take none.
    """

    drafter: str
    config: Mapping[str, Any]
    draft_sampling: str
    adoption: int
    depth: int
    tokens_per_round: float
    coverage: float
    speedup: float
    low: float | None
    high: float | None
    enough_prompts: bool
    round_seconds: float
    break_even_tokens_per_round: float
    losing_share: float
    drafter_bytes: float | None
    served: Served
    sensitivity: tuple[Sensitivity, ...]
    free_drafting_speedup: float | None = None

    @property
    def label(self) -> str:
        """See `drafter_label`."""
        return drafter_label(self.drafter, self.config, self.draft_sampling)

    @property
    def break_even_acceptance_length(self) -> float | None:
        """The mean acceptance length (drafted rounds only, bonus included) above which it pays."""
        if not self.coverage:
            return None
        return 1 + (self.break_even_tokens_per_round - 1) / self.coverage


def is_of(acceptance: Acceptance, option: Option) -> bool:
    """Whether the option is a depth of this result."""
    return (acceptance.drafter, acceptance.config, acceptance.draft_sampling) == (
        option.drafter,
        option.config,
        option.draft_sampling,
    )


def candidates(
    acceptance: Acceptance,
    lengths: ResponseRecord,
    cost: CostTable,
    traffic: Traffic,
    serving: Serving,
    plain: Served,
) -> list[Option]:
    """Every depth of one drafter. `plain`: the same traffic without speculation.

    The point is what the simulation gives; the interval is that of the closed form, moved to it. For arrivals by the
    clock, where latency moves by more than the time of a round, both ends are simulated: with rounds slower or faster
    by as much as the closed form's ends lie from its point. Depths that the cost does not cover are left out.
    """
    # Memory, or the clock, may let fewer run together than are in flight.
    batch = traffic.concurrency or max(1.0, plain.batch)
    if plain.memory_bound:
        batch = max(1.0, plain.batch)
    (closed,) = speedups(acceptance, lengths, cost, [batch])
    counts = speedup_counts(acceptance, lengths, cost)
    sums = counts.sum(axis=0)
    closed_points, round_seconds = closed(sums), closed.round_seconds(sums)
    intervals = closed.intervals(acceptance.by_prompt(counts), acceptance.interval_level)
    lengthened = _lengthened(acceptance, lengths, cost, batch)
    free_drafting = replace(closed, drafting_seconds=np.zeros_like(closed.drafting_seconds))(sums)
    options = []
    for row, interval in enumerate(intervals[: cost.deepest]):
        if row + 1 < acceptance.first_depth:
            continue
        emitted, _, _, _, rounds, first_drafted = sums[row, :6].tolist()
        served = serving.speculative(acceptance, row + 1)
        point, closed_point = _gain(traffic, plain, served), float(closed_points[row])
        moved = point / closed_point
        low = high = None
        if interval and traffic.arrival_seconds is None:
            low, high = interval.low * moved, interval.high * moved
        elif interval:
            low, high = (
                _gain(traffic, plain, serving.speculative(acceptance, row + 1, slower=closed_point / end))
                for end in (interval.low, interval.high)
            )
        options.append(
            Option(
                drafter=acceptance.drafter,
                config=acceptance.config,
                draft_sampling=acceptance.draft_sampling,
                adoption=acceptance.adoption,
                depth=row + 1,
                tokens_per_round=emitted / rounds,
                coverage=first_drafted / rounds,
                speedup=point,
                low=low,
                high=high,
                enough_prompts=acceptance.num_prompts >= MIN_PROMPTS,
                round_seconds=float(round_seconds[row]),
                break_even_tokens_per_round=float(round_seconds[row]) / closed.baseline_seconds,
                losing_share=float((served.latency_seconds > plain.latency_seconds).mean()),
                drafter_bytes=cost.memory.drafter_bytes(cost_keys(acceptance))[0] if cost.memory else None,
                served=served,
                sensitivity=tuple(
                    Sensitivity(*factors, float(points[row]) * moved) for factors, points in lengthened.items()
                ),
                free_drafting_speedup=float(free_drafting[row]) * moved if closed.drafting_seconds[row] else None,
            )
        )
    return options


def _gain(traffic: Traffic, plain: Served, served: Served) -> float:
    if traffic.concurrency is None:
        return plain.mean_latency_seconds / served.mean_latency_seconds
    with_it, without = served.steady_output_tokens_per_second, plain.steady_output_tokens_per_second
    if with_it and without:
        return with_it / without
    return served.whole_output_tokens_per_second / plain.whole_output_tokens_per_second


def _lengthened(
    acceptance: Acceptance, lengths: ResponseRecord, cost: CostTable, batch: float
) -> dict[tuple[float, float], np.ndarray[Any, np.dtype[np.float64]]]:
    """Speed-ups [K] in closed form for other lengths of prompts and outputs, as far as the cost covers them."""
    found = {}
    for scale_prompt in LENGTH_FACTORS:
        sums = speedup_counts(acceptance, lengths, cost, scale_prompt=scale_prompt).sum(axis=0)
        for scale_output in LENGTH_FACTORS:
            context = lengths.mean_context_scaled(scale_prompt, scale_output)
            if not cost.contexts[0] <= context <= cost.contexts[-1]:
                continue
            scaled = {"scale_prompt": scale_prompt, "scale_output": scale_output}
            (longer,) = speedups(acceptance, lengths, cost, [batch], **scaled)
            found[scale_prompt, scale_output] = longer(sums)
    return found
