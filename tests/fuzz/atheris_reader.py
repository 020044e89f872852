"""Coverage-guided fuzzing of all that reads a file, off CI: `python tests/fuzz/atheris_reader.py [SECONDS] [FOLDER]`.

Needs the package atheris and nothing else that the tests do not need. The first byte of an input chooses a reader, the
rest is the file. SpecprobeError is the only exception that may come out. The corpus grows in FOLDER, by default one
that is thrown away; an input that breaks something is left in the working directory as crash-*. Prints what libFuzzer
prints, at the end the number of executions.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

# Compiled by numba, which does not know what atheris puts in; none of it reads a file.
COMPILED = [
    *(f"specprobe.{name}" for name in ("load", "step_cost", "rounds", "request_rounds", "checks")),
    *(f"specprobe.drafters.{name}" for name in ("ngram", "suffix", "suffix_match", "suffix_tree", "suffix_in_flight")),
]

with atheris.instrument_imports(include=["specprobe"], exclude=COMPILED):
    from specprobe.arrivals import read_trace
    from specprobe.checkpoint import open_checkpoint
    from specprobe.cost_files import read_cost_file
    from specprobe.engine_numbers import read_engine_numbers
    from specprobe.errors import SpecprobeError
    from specprobe.measured_points import read_points
    from specprobe.model_shape import shape_of
    from specprobe.page.stored_advice import load_advice
    from specprobe.project_defaults import read_table
    from specprobe.published import read_table as read_published
    from specprobe.run_document import load_run
    from specprobe.store import SettingsStore
    from specprobe.workload import inspect_workload, read_workload

# Nothing here is large on purpose; what is, is in test_limits.py.
LONGEST_INPUT = 8192
SECONDS = 600


def readers() -> list[tuple[str, Callable[[Path], Any]]]:
    """The name that a file must have, and what reads it."""
    return [
        ("log.jsonl", lambda path: inspect_workload([str(path)])),
        ("log.json", lambda path: read_workload([str(path)])),
        ("log.csv", lambda path: read_workload([str(path)])),
        ("metrics.txt", lambda path: read_engine_numbers([path], 3)),
        ("trace", read_trace),
        ("cost.json", read_cost_file),
        ("cost.csv", read_cost_file),
        ("points.json", lambda path: read_points([path])),
        ("published.csv", read_published),
        ("run.json", load_run),
        ("recommendation.json", load_advice),
        ("specprobe.toml", lambda path: read_table(path.parent, "analyze")),
        ("config.json", lambda path: (shape_of(str(path.parent)), open_checkpoint(str(path.parent)))),
        ("batch.jsonl", lambda path: SettingsStore(path.parent, {}).read("batch")),
        ("model.safetensors", lambda path: open_checkpoint(str(path.parent)).names),
    ]


def seeds() -> list[tuple[str, bytes]]:
    """Good files, by the name of their reader."""
    import samples
    from page_inputs import make_recommendation, make_run
    from simulated_runs import document_of

    rows = [json.dumps(row).encode() for row in samples.ROWS]
    found = [(name, row) for name in ("log.jsonl", "log.json") for row in rows]
    found += [("log.json", json.dumps(samples.ROWS[:3]).encode()), ("log.csv", b'prompt,response\n"a\nb",c\n')]
    found += [("metrics.txt", text.encode()) for text in samples.ENGINE_TEXT]
    found += [("metrics.txt", json.dumps(row).encode()) for row in samples.ENGINE_JSON]
    found += [("trace", trace) for trace in samples.TRACES]
    found += [("cost.json", json.dumps(samples.COST).encode()), ("cost.csv", samples.COST_CSV.encode())]
    found += [
        ("points.json", json.dumps(samples.POINTS).encode()),
        ("published.csv", samples.PUBLISHED[:4000].encode()),
    ]
    found += [
        ("specprobe.toml", samples.SETTINGS.encode()),
        ("config.json", b'{"num_hidden_layers": 2, "hidden_size": 8}'),
    ]
    found += [("run.json", json.dumps(document_of(make_run())).encode())]
    found += [("recommendation.json", json.dumps(make_recommendation(make_run())).encode())]
    found += [("model.safetensors", b"\x10\0\0\0\0\0\0\0" + b'{"__metadata__":{')]
    return found


def main() -> None:
    """See the module."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryDirectory() as name:
        work, corpus = Path(name), Path(sys.argv[2]) if len(sys.argv) > 2 else Path(name) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        known = readers()
        numbers = {reader: number for number, (reader, _) in enumerate(known)}
        for number, (reader, content) in enumerate(seeds()):
            (corpus / f"seed-{number}").write_bytes(bytes([numbers[reader]]) + content)
        for reader, _ in known:
            (work / f"of-{reader}").mkdir()
        (work / "of-model.safetensors" / "config.json").write_text("{}")

        def one_input(content: bytes) -> None:
            reader, read = known[content[0] % len(known)] if content else known[0]
            path = work / f"of-{reader}" / reader
            path.write_bytes(content[1:])
            try:
                read(path)
            except SpecprobeError as error:
                if "\n" in str(error):
                    raise AssertionError("an error of several lines") from error

        limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST_INPUT}", "-timeout=20", "-rss_limit_mb=4096"]
        atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", str(corpus)], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
