"""How much all drafters together add to generating the responses once.

    python tests/benchmarks/drafters_cost.py draft:DIR pard:DIR eagle3:DIR

Two runs of `analyze` over the same 32 prompts with the embedded target: one that generates and replays n-gram only, and
one that finds the responses stored and replays every drafter named, depths 1..8. Drafters that need a checkpoint are
named as arguments, as for --drafter; n-gram, suffix and early exit always run.
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

    with tempfile.TemporaryDirectory() as folder:
        store = TrajectoryStore(Path(folder))
        generating = seconds(options("ngram"), store)
        layers = "early-exit:layers=8"
        replaying = seconds(options("ngram", "ngram:min=2,max=4", "suffix", layers, *arguments.drafters), store)
    print(f"generating {generating:.1f} s, everything else {replaying:.1f} s")
    print(f"all together / generating alone: {(generating + replaying) / generating:.2f}")


if __name__ == "__main__":
    main()
