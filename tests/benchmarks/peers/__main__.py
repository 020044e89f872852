"""specprobe against what people would use instead, and against its own goals, measured side by side.

    python -m tests.benchmarks.peers [NAME ...] [--target FOLDER --draft FOLDER --pard FOLDER] [--arctic FOLDER]
        [--vllm PYTHON] [--small]

Names: grid, assisted, suffix, ngram, scoring, start, inspect, memory; by default all. A comparison whose model or peer
is not named is left out, and said. Prints the table of docs/benchmarks.md; the last line is JSON. One thread, the
processor's time: see `side_by_side`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from tests.benchmarks.peers.commands import compare_inspect, compare_memory, compare_start
from tests.benchmarks.peers.grid import compare_assisted, compare_grid
from tests.benchmarks.peers.logged import compare_ngram, compare_scoring, compare_suffix
from tests.benchmarks.peers.side_by_side import HEADER, Row, Settings

Comparison = Callable[[Settings], Iterator[Row]]
COMPARISONS: dict[str, Comparison] = {
    "grid": compare_grid,
    "assisted": compare_assisted,
    "suffix": compare_suffix,
    "ngram": compare_ngram,
    "scoring": compare_scoring,
    "start": compare_start,
    "inspect": compare_inspect,
    "memory": compare_memory,
}


def run(names: Sequence[str], settings: Settings) -> dict[str, list[Row]]:
    """The rows of each comparison, printed as they come."""
    print(HEADER, flush=True)
    found: dict[str, list[Row]] = {}
    for name in names:
        found[name] = []
        for row in COMPARISONS[name](settings):
            found[name].append(row)
            print(row.to_markdown(), flush=True)
        if not found[name]:
            print(f"{name}: left out, its peer or model is not named", file=sys.stderr)
    return found


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMPARISONS))
    for name in ("target", "draft", "pard", "arctic", "vllm"):
        found.add_argument(f"--{name}", type=lambda text: Path(text).absolute())
    found.add_argument("--small", action="store_true")
    return found


def main() -> None:
    asked = parser().parse_args()
    if unknown := set(asked.names) - set(COMPARISONS):
        parser().error(f"unknown: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    settings = Settings(asked.target, asked.draft, asked.pard, asked.arctic, asked.vllm, asked.small)
    found = run(asked.names or list(COMPARISONS), settings)
    print(json.dumps({name: [{"what": r.what, "values": r.values} for r in rows] for name, rows in found.items()}))


if __name__ == "__main__":
    main()
