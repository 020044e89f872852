"""How much all drafters together add to generating the responses once.

    python tests/benchmarks/drafters_cost.py draft:DIR pard:DIR eagle3:DIR

Two runs of `analyze` over the same 32 prompts with the embedded target, both from nothing: one generates and replays
n-gram only, one replays every drafter named, too, depths 1..8. Drafters that need a checkpoint are named as
arguments, as for --drafter; n-gram (by two rules), suffix and early exit always run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from specprobe.analyze import analyze
from specprobe.options import AnalyzeOptions
from specprobe.progress import Silent
from specprobe.scan import ReadOptions
from specprobe.store import TrajectoryStore

WORKLOADS = Path(__file__).parents[2] / "workloads"


def seconds(options: AnalyzeOptions, store: TrajectoryStore) -> float:
    begin = time.perf_counter()
    analyze(options, Silent(), store)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafters", nargs="*", help="such as draft:DIR pard:DIR eagle3:DIR")
    parser.add_argument("--workload", default="chat.json")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    arguments = parser.parse_args()

    def options(*drafters: str) -> AnalyzeOptions:
        return AnalyzeOptions(
            prompts=(str(WORKLOADS / arguments.workload),),
            drafters=drafters,
            responses="generate",
            engine="vllm@0.30",
            max_new_tokens=arguments.max_new_tokens,
            read=ReadOptions(max_prompts=arguments.prompts),
        )

    always = ("ngram", "ngram:min=2,max=4", "suffix", "early-exit:layers=8")
    with tempfile.TemporaryDirectory() as folder:
        alone = seconds(options("ngram"), TrajectoryStore(Path(folder) / "alone"))
        whole = seconds(options(*always, *arguments.drafters), TrajectoryStore(Path(folder) / "whole"))
    print(f"generating alone {alone:.1f} s, with all drafters {whole:.1f} s: {whole / alone:.2f} times")


if __name__ == "__main__":
    main()
