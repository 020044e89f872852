"""Predicted against measured: vLLM on one CPU core, with constants fitted to a few of its own cells.

    python -m tests.benchmarks.vllm_cpu_speed

prints Markdown. Fitted to one cell: the step without speculation and the draft model, both at concurrency 4. Everything
else is predicted from the cost table that `calibrate` saves. "Full slots" is the formula of `recommend`; "as run" lets
the 16 requests run out as they did: those that accept more end earlier, and the last steps run with fewer sequences.
A second table calibrates on each cell in turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from specprobe.calibrate import Calibration, calibrate_points, find_setup
from specprobe.cost import CostTable
from specprobe.measured_points import Timing, timing_of_row

GOLDEN = Path(__file__).parents[1] / "golden"
MODEL, GPU, DTYPE, ENGINE = "SmolLM2-135M", "cpu", "float32", "vllm"
METHODS = {"ngram_k3": "ngram", "draft_k3": "draft"}
FITTED = (("baseline", 4), ("draft_k3", 4))
# What a speed-up must be within, unless its repeats scatter more.
BOUND = 0.1


@dataclass(frozen=True, slots=True)
class Cell:
    """One speculative cell: speed-ups as measured, and as predicted for full slots and for the requests as they end.

    `spread`: the largest less the smallest of the speed-ups that the repeats allow, as a share of the measured one.
    """

    label: str
    concurrency: int
    measured: float
    spread: float
    steady: float
    as_run: float
    is_fitted: bool

    @property
    def error(self) -> float:
        """Of the prediction for the requests as they end."""
        return self.as_run / self.measured - 1

    @property
    def is_within(self) -> bool:
        """Within a tenth, or the spread of the repeats where that is larger."""
        return abs(self.error) <= max(BOUND, self.spread)


def load() -> dict[str, Any]:
    """What was measured."""
    return json.loads((GOLDEN / "vllm_cpu_speed.json").read_text())


def context(data: dict[str, Any]) -> float:
    """KV tokens of a request halfway through its answer."""
    return data["prompt_tokens"] / data["requests"] + data["output_tokens_each"] / 2


def timing(data: dict[str, Any], label: str, concurrency: int) -> Timing:
    """A cell as a row of points: the mean rate of its repeats."""
    rate = mean(data["decode_tokens_per_s"][label][str(concurrency)])
    row: dict[str, Any] = {"batch": concurrency, "context": context(data), "tokens_per_second": rate}
    if label in METHODS:
        row |= {"method": METHODS[label], "depth": data["depth"], **facts(data, label)}
    if label == "draft_k3":
        row["drafter"] = str(GOLDEN / "draft-3l")
    return timing_of_row(row, f"{label} at {concurrency}")


def facts(data: dict[str, Any], label: str) -> dict[str, float]:
    """Tokens per round and the share of rounds with a draft, from the engine's counters."""
    rounds = sum(data["rounds_of_requests"][label])
    decoded = data["requests"] * (data["output_tokens_each"] - 1)
    return {"tokens_per_round": decoded / rounds, "coverage": data["counters"][label]["drafts"] / rounds}


def calibrate_on(data: dict[str, Any], cells: Sequence[tuple[str, int]] = FITTED) -> Calibration:
    """The calibration on some cells."""
    setup = find_setup(MODEL, GPU, devices=1, dtype=DTYPE, engine=ENGINE)
    drafter = f"draft:{GOLDEN / 'draft-3l'}"
    return calibrate_points([timing(data, *cell) for cell in cells], setup, depth=data["depth"], drafters=[drafter])


def round_seconds(cost: CostTable, at: float, method: str, depth: int, coverage: float) -> Callable[[float], float]:
    """Seconds of a round by batch, out of the cost table; of a plain step at depth 0."""

    @cache
    def seconds(batch: float) -> float:
        surface = cost.at_context(at)
        verify = float(np.interp(1 + coverage * depth, surface.query_tokens, surface.at_batch(batch)[0]))
        if not depth:
            return verify
        one = np.array([float(batch)]), np.array([float(depth)]), np.array([at])
        return verify + cost.drafting_seconds([method], *one, by_token=False).item()

    return seconds


def run_seconds(rounds: Sequence[int], concurrency: int, seconds: Callable[[float], float]) -> float:
    """All requests in a closed loop, each with its number of rounds; the next begins where one ends."""
    waiting, running, total = list(reversed(rounds)), [], 0.0
    while waiting or running:
        while waiting and len(running) < concurrency:
            running.append(waiting.pop())
        total += seconds(len(running))
        running = [left - 1 for left in running if left > 1]
    return total


def compare(data: dict[str, Any], fitted_to: Sequence[tuple[str, int]] = FITTED) -> Iterator[Cell]:
    """Every speculative cell, predicted with constants fitted to the given ones."""
    cost, at, rates = calibrate_on(data, fitted_to).cost, context(data), data["decode_tokens_per_s"]
    plain = round_seconds(cost, at, "", 0, 0.0)
    plain_rounds = [data["output_tokens_each"] - 1] * data["requests"]
    for label, method in METHODS.items():
        known = facts(data, label)
        speculative = round_seconds(cost, at, method, data["depth"], known["coverage"])
        for name, repeats in rates[label].items():
            concurrency, base = int(name), rates["baseline"][name]
            measured = mean(repeats) / mean(base)
            as_run = run_seconds(plain_rounds, concurrency, plain) / run_seconds(
                data["rounds_of_requests"][label], concurrency, speculative
            )
            yield Cell(
                label=label,
                concurrency=concurrency,
                measured=measured,
                spread=(max(repeats) / min(base) - min(repeats) / max(base)) / measured,
                steady=known["tokens_per_round"] * plain(concurrency) / speculative(concurrency),
                as_run=as_run,
                is_fitted=(label, concurrency) in fitted_to,
            )


def main() -> None:
    """Print the factors and the tables."""
    data = load()
    print("| method | concurrency | measured | spread of repeats | full slots | as run | error | within |")
    print("| --- | --: | --: | --: | --: | --: | --: | --- |")
    for cell in compare(data):
        within = "fitted" if cell.is_fitted else "yes" if cell.is_within else "no"
        figures = f"{cell.measured:.2f} | {100 * cell.spread:.0f} % | {cell.steady:.2f} | {cell.as_run:.2f}"
        print(f"| {cell.label} | {cell.concurrency} | {figures} | {100 * cell.error:+.0f} % | {within} |")
    print()
    print("| calibrated on | host | memory | compute | drafting | others within | largest error |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for label in METHODS:
        for concurrency in (1, 4, 16):
            fitted_to = (("baseline", concurrency), (label, concurrency))
            others = [cell for cell in compare(data, fitted_to) if not cell.is_fitted]
            worst = max((cell.error for cell in others), key=abs)
            factors = " | ".join(f"{factor:.1f}" for factor in calibrate_on(data, fitted_to).factors.values())
            within = sum(cell.is_within for cell in others)
            print(f"| {label} at {concurrency} | {factors} | {within} of {len(others)} | {100 * worst:+.0f} % |")


if __name__ == "__main__":
    main()
