"""What `recommend` predicted for a drafter, depth and concurrency, and what it predicts for exactly these requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specprobe.acceptance import drafter_label
from specprobe.advise import advise
from specprobe.bench.replay import Replayed
from specprobe.cost import CostTable
from specprobe.cost_sources import CostOptions
from specprobe.documents import read_own_document
from specprobe.errors import SpecprobeError
from specprobe.load import LoadResult, Server, Workload, simulate
from specprobe.progress import Stages
from specprobe.recommendation_document import SCHEMA as RECOMMENDATION_SCHEMA
from specprobe.request_rounds import plain_rounds, request_rounds
from specprobe.speedup import MAX_BATCHED_TOKENS, cost_keys, drafts_by_token
from specprobe.step_cost import StepCost

# Figures of an arm that are put beside measured ones, as documents call them.
FIGURES = (
    "output_tokens_per_second",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "itl_p50_ms",
    "itl_p95_ms",
    "tpot_ms",
    "request_latency_s",
)


@dataclass(frozen=True, slots=True)
class Predicted:
    """A prediction for one concurrency. `speedup`, `low`, `high`: of full slots, as `recommend` gives them.

    `as_run`: of exactly these requests in this order, None where only a finished recommendation is known; `plain` and
    `speculative`: FIGURES of each arm, for the requests as they ran where that is known.
    """

    concurrency: int
    cost_source: str
    drafter: str
    depth: int
    speedup: float
    low: float | None
    high: float | None
    as_run: float | None
    plain: Mapping[str, float | None]
    speculative: Mapping[str, float | None]

    @property
    def nearest(self) -> float:
        """The prediction for what was run: of these requests where known, else of full slots."""
        return self.speedup if self.as_run is None else self.as_run

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "cost_source": self.cost_source,
            "drafter": self.drafter,
            "depth": self.depth,
            "speedup": {"point": self.speedup, "low": self.low, "high": self.high},
            "speedup_as_run": self.as_run,
            "plain": dict(self.plain),
            "speculative": dict(self.speculative),
        }


def read_recommendation(path: Path) -> dict[str, Any]:
    """What `recommend --json` wrote."""
    return read_own_document(
        path, RECOMMENDATION_SCHEMA, "name what `specprobe recommend --json` wrote", "recommend again"
    )


def recommended(
    document: Mapping[str, Any], concurrency: int, drafter: str | None, depth: int | None
) -> Predicted | None:
    """A recommendation's figures for a concurrency, with its best option or the one named; None where it has none."""
    for entry in document.get("by_concurrency", ()):
        if entry["concurrency"] != concurrency or entry.get("by_clock"):
            continue
        options = [
            one
            for one in entry["options"]
            if drafter is None or drafter in (one["drafter"], drafter_label(one["drafter"], one.get("config", {})))
        ]
        wanted = depth or (entry["depth"] if drafter is None else None)
        if wanted is not None:
            options = [one for one in options if one["depth"] == wanted]
        if not options:
            return None
        option = options[0]
        low, high = option.get("interval", {}).get("speedup", (None, None))
        return Predicted(
            concurrency=concurrency,
            cost_source=str(document.get("cost_source", "")),
            drafter=option["drafter"],
            depth=option["depth"],
            speedup=option["speedup"],
            low=low,
            high=high,
            as_run=None,
            plain={name: entry["baseline"].get(name) for name in FIGURES},
            speculative={name: option.get(name) for name in FIGURES},
        )
    return None


def predict(
    replayed: Replayed,
    temperature: float,
    cost_options: CostOptions,
    concurrencies: Sequence[int],
    orders: Sequence[Sequence[int]],
    stages: Stages,
) -> list[Predicted]:
    """`recommend` on the replay of these very answers, and the load simulation of the requests in their order.

    `orders`: the order of prompts of each repeat.
    """
    run, depth = replayed.run, replayed.depth
    advice = advise(
        run,
        concurrencies=concurrencies,
        temperature=temperature,
        engine=None,
        cost_options=cost_options,
        stages=stages,
        prefer="fast",
    )
    document = advice.to_json()
    cost = advice.recommendation.cost
    found = []
    for concurrency in concurrencies:
        one = recommended(document, concurrency, replayed.acceptance.drafter, depth)
        if one is None:
            raise SpecprobeError(
                f"--depth {depth}: the cost has no rounds of {depth + 1} query tokens; calibrate with --depth {depth}"
            )
        found.append(_as_run(one, replayed, temperature, cost, orders))
    return found


def _as_run(
    predicted: Predicted, replayed: Replayed, temperature: float, cost: CostTable, orders: Sequence[Sequence[int]]
) -> Predicted:
    acceptance, lengths = replayed.acceptance, replayed.run.responses_at(temperature)
    row = {int(identity): i for i, identity in enumerate(lengths.ids)}
    takes = [np.array([row[number] for number in order if number in row]) for order in orders]
    prompt_tokens = np.maximum(lengths.prompt_tokens, 1)
    keys = cost_keys(acceptance)
    plain = Workload(prompt_tokens, plain_rounds(lengths.output_tokens), lengths.output_tokens)
    rounds = request_rounds(acceptance, predicted.depth)
    speculative = Workload(prompt_tokens, rounds, lengths.output_tokens)
    plain_cost = cost.step_cost()
    spec_cost = cost.step_cost(keys, predicted.depth, by_token=drafts_by_token(acceptance))
    of_plain, of_speculative = (
        [_load(workload.take(take), step_cost, predicted.concurrency) for take in takes]
        for workload, step_cost in ((plain, plain_cost), (speculative, spec_cost))
    )
    figures = [_figures(results) for results in (of_plain, of_speculative)]
    rates = [one["output_tokens_per_second"] for one in figures]
    return Predicted(
        concurrency=predicted.concurrency,
        cost_source=predicted.cost_source,
        drafter=predicted.drafter,
        depth=predicted.depth,
        speedup=predicted.speedup,
        low=predicted.low,
        high=predicted.high,
        as_run=rates[1] / rates[0],
        plain=figures[0],
        speculative=figures[1],
    )


def _load(workload: Workload, cost: StepCost, concurrency: int) -> LoadResult:
    return simulate(workload, cost, Server(concurrency, MAX_BATCHED_TOKENS), concurrency=concurrency)


def _figures(results: Sequence[LoadResult]) -> dict[str, float]:
    """Means over repeats, of quantiles too."""

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    windows = [result.steady if result.steady else result.whole for result in results]
    figures = {
        "output_tokens_per_second": mean([window.output_tokens_per_second or 0.0 for window in windows]),
        "ttft_p50_ms": 1e3 * mean([result.ttft.p50 for result in results]),
        "ttft_p95_ms": 1e3 * mean([result.ttft.p95 for result in results]),
        "request_latency_s": mean([result.latency.mean for result in results]),
    }
    if all(result.itl for result in results):
        itls = [result.itl for result in results if result.itl]
        tpots = [result.tpot for result in results if result.tpot]
        figures |= {
            "itl_p50_ms": 1e3 * mean([one.p50 for one in itls]),
            "itl_p95_ms": 1e3 * mean([one.p95 for one in itls]),
            "tpot_ms": 1e3 * mean([one.mean for one in tpots]),
        }
    return figures
