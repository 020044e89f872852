"""Seconds to simulate a server under load: 40 configurations of 1,000 requests at concurrency 200.

    python tests/benchmarks/load_rate.py

Each request has 500 prompt and 256 output tokens; half of the configurations speculate with 3 drafts of which each
is accepted with probability 0.7. Building the workload and the quantiles of the result are timed, too; compiling is
not. The last line is JSON.
"""

from __future__ import annotations

import json
import time

import numpy as np

from specprobe.load import LoadResult, Server, Workload, simulate
from specprobe.request_rounds import Rounds, plain_rounds
from specprobe.step_cost import StepCost

CONFIGURATIONS, REQUESTS, CONCURRENCY = 40, 1000, 200
PROMPT_TOKENS, OUTPUT_TOKENS, DEPTH, ACCEPTANCE = 500, 256, 3, 0.7


def cost() -> StepCost:
    batches, query_tokens, contexts = np.array([1.0, 256]), np.array([1.0, 9]), np.array([0.0, 8192])
    b, q, x = np.meshgrid(batches, query_tokens, contexts, indexing="ij")
    return StepCost(
        batches, query_tokens, contexts, 8e-3 + 2e-5 * b * q + 1e-10 * b * x, np.zeros((2, 2)), 1e-5, 1e-10, 8e-3
    )


def speculative_rounds(seed: int) -> Rounds:
    rng = np.random.default_rng(seed)
    accepted: list[int] = []
    first = [0]
    for _ in range(REQUESTS):
        left = OUTPUT_TOKENS - 1
        while left > 0:
            misses = np.flatnonzero(rng.random(DEPTH) > ACCEPTANCE)
            accepted.append(min(int(misses[0]) if misses.size else DEPTH, left))
            left -= accepted[-1] + 1
        first.append(len(accepted))
    return Rounds(np.array(first), np.full(len(accepted), DEPTH, dtype=np.uint8), np.array(accepted, dtype=np.uint8))


def run(rounds: Rounds) -> LoadResult:
    output_tokens = np.full(REQUESTS, OUTPUT_TOKENS, dtype=np.int32)
    workload = Workload(np.full(REQUESTS, PROMPT_TOKENS, dtype=np.int32), rounds, output_tokens)
    result = simulate(workload, cost(), Server(256, 8192, 400_000.0), concurrency=CONCURRENCY)
    for times in (result.ttft, result.itl, result.tpot, result.latency):
        assert times is not None
    return result


def main() -> None:
    plain = plain_rounds(np.full(REQUESTS, OUTPUT_TOKENS, dtype=np.int32))
    speculative = speculative_rounds(0)
    run(plain)
    begin = time.perf_counter()
    results = [run(rounds) for _ in range(CONFIGURATIONS // 2) for rounds in (plain, speculative)]
    seconds = time.perf_counter() - begin
    steps = sum(result.num_steps for result in results)
    print(f"{CONFIGURATIONS} configurations, {steps:,} steps: {seconds:.2f} s")
    print(json.dumps({"seconds": round(seconds, 2), "steps": steps}))


if __name__ == "__main__":
    main()
