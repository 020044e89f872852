"""Tokens per second of the embedded target's generation, one prompt at a time against batches.

    python tests/benchmarks/generation_rate.py

Greedy, 64 new tokens, the 16 shortest golden prompts, prefill included; the sizes take turns. The last line is JSON.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from specprobe.generate import generate
from specprobe.target import load_target
from specprobe.trajectory import token_ids
from specprobe.writing import Request, Sampling

BATCH_SIZES, NUM_PROMPTS, NEW_TOKENS, REPEATS = (1, 4, 16), 16, 64, 3
GOLDEN = Path(__file__).parents[1] / "golden" / "baseline_t0.jsonl"


def main() -> None:
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    prompts = sorted((row["prompt_token_ids"] for row in rows), key=len)[:NUM_PROMPTS]
    requests = [Request(token_ids(ids)) for ids in prompts]
    target = load_target()
    rates: dict[int, list[float]] = {size: [] for size in BATCH_SIZES}
    for _ in range(REPEATS):
        for size in BATCH_SIZES:
            begin = time.perf_counter()
            found = generate(target, requests, Sampling(0.0, max_new_tokens=NEW_TOKENS, batch_size=size))
            tokens = sum(response.output_ids.size for response in found.responses)
            rates[size].append(tokens / (time.perf_counter() - begin))
    medians = {size: round(statistics.median(values), 1) for size, values in rates.items()}
    for size, rate in medians.items():
        print(f"batch {size:2}: {rate:7.1f} tokens/s, {rate / medians[1]:.1f} x batch 1")
    print(json.dumps({"tokens_per_second": medians}))


if __name__ == "__main__":
    main()
