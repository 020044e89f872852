"""How acceptance moves with temperature on the bundled workloads, as the Markdown tables of docs/engines.md.

    python tests/benchmarks/temperature_table.py draft:DIR eagle3:DIR

n-gram and suffix always run; drafters that need a checkpoint are named as arguments, as for --drafter.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from specprobe.acceptance import Acceptance
from specprobe.analyze import analyze
from specprobe.options import AnalyzeOptions
from specprobe.progress import OnStderr
from specprobe.run import Run
from specprobe.store import TrajectoryStore

WORKLOADS = Path(__file__).parents[2] / "workloads"
NAMES = ("extraction.jsonl", "code_repair.jsonl", "summaries.jsonl", "chat.json", "creative.jsonl")


def cell(result: Acceptance, depth: int) -> str:
    totals = result.totals(depth)
    rate = totals.acceptance_rate
    return f"{totals.tokens_per_round or 1:.2f} ({'-' if rate is None else f'{100 * rate:.0f} %'})"


def labels(run: Run) -> list[str]:
    return list(dict.fromkeys(result.label for result in run.results))


def row(run: Run, label: str, temperature: float, depth: int) -> str:
    """At temperature 0 a sampled draft is the greedy one."""
    wanted = {label, label.removesuffix(" sampled")} if temperature == 0 else {label}
    return next((cell(r, depth) for r in run.results if r.temperature == temperature and r.label in wanted), "-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafters", nargs="*", help="such as draft:DIR eagle3:DIR")
    parser.add_argument("--temperatures", default="0,0.3,0.7,1")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    arguments = parser.parse_args()
    temperatures = tuple(float(text) for text in arguments.temperatures.split(","))
    runs = {}
    for name in NAMES:
        options = AnalyzeOptions(
            prompts=(str(WORKLOADS / name),),
            drafters=("ngram:min=2,max=4", "suffix", *arguments.drafters),
            depth=arguments.depth,
            temperatures=temperatures,
            responses="generate",
            max_new_tokens=arguments.max_new_tokens,
            engine="vllm-v1",
        )
        runs[name] = analyze(options, OnStderr(), TrajectoryStore())
    heads = "".join(f" T = {temperature:g} |" for temperature in temperatures)
    print(f"| workload | entropy, nats |{heads}\n|{' --- |' * (2 + len(temperatures))}")
    for label in labels(runs[NAMES[0]]):
        print(f"| **{label}** |{' |' * (1 + len(temperatures))}")
        for name, run in runs.items():
            cells = "".join(f" {row(run, label, t, arguments.depth)} |" for t in temperatures)
            entropy = ", ".join(f"{r.entropy.mean:.2f}" for r in run.responses if r.entropy)
            print(f"| {name.partition('.')[0]} | {entropy} |{cells}")


if __name__ == "__main__":
    main()
