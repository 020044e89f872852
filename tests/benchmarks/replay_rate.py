"""Marginal speed of `specprobe analyze --responses logged --json`: 400 prompts of 800 tokens against one.

    python tests/benchmarks/replay_rate.py

Whole processes are timed, reading, intervals and output included; what a process costs anyway (start, imports,
loading compiled code, curve fits) is in both and cancels. The two take turns, and medians count. Two texts: tokens
that do not repeat, and pieces of the golden prompts and responses, so that nearly everything repeats. The last line
is JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

NUM_PROMPTS, OUTPUT_TOKENS, PROMPT_TOKENS, REPEATS = 400, 800, 100, 5
GOLDEN = Path(__file__).parents[1] / "golden" / "baseline_t0.jsonl"


def golden_text() -> list[int]:
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    return [token for row in rows for token in row["prompt_token_ids"] + row["output_token_ids"]]


def write_log(path: Path, num_prompts: int, kind: str) -> None:
    rng = np.random.default_rng(0)
    text, size = golden_text(), PROMPT_TOKENS + OUTPUT_TOKENS
    with path.open("w") as file:
        for number in range(num_prompts):
            if kind == "random":
                tokens = rng.integers(0, 49_152, size).tolist()
            else:
                start = int(rng.integers(0, len(text) - size))
                tokens = text[start : start + size]
            row = {"id": number, "prompt_token_ids": tokens[:PROMPT_TOKENS], "output_token_ids": tokens[PROMPT_TOKENS:]}
            file.write(json.dumps(row) + "\n")


def seconds(log: Path, drafter: str, folder: Path) -> float:
    command = [sys.executable, "-m", "specprobe", "analyze", str(log), "--responses", "logged", "--json"]
    begin = time.perf_counter()
    subprocess.run([*command, "--drafter", drafter, "--depth", "8"], cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("random", "repeating"):
            many, one = folder / f"{kind}-many.jsonl", folder / f"{kind}-one.jsonl"
            write_log(many, NUM_PROMPTS, kind)
            write_log(one, 1, kind)
            for drafter in ("ngram", "ngram:min=2,max=4", "suffix"):
                seconds(one, drafter, folder)
                pairs = [(seconds(one, drafter, folder), seconds(many, drafter, folder)) for _ in range(REPEATS)]
                base, full = (statistics.median(column) for column in zip(*pairs, strict=True))
                rate = (NUM_PROMPTS - 1) * OUTPUT_TOKENS / (full - base)
                results[f"{drafter} {kind}"] = round(rate)
                print(
                    f"{drafter:18} {kind:10} {full:6.2f} s against {base:5.2f} s: {rate:12,.0f} tokens/s, depths 1..8"
                )
    print(json.dumps({"output_tokens_per_second": results}))


if __name__ == "__main__":
    main()
