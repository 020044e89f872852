"""Runs and recommendations on disk for pages, over simulated prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from simulated_runs import acceptance, document_of, draw_prompts, run_of, shifted

from specprobe.cost import CostPoint, CostTable
from specprobe.documents import dump_document
from specprobe.recommend import recommend
from specprobe.recommendation_document import recommendation_document
from specprobe.run import Run
from specprobe.run_document import load_run
from specprobe.serving import Traffic
from specprobe.temperature_verdicts import by_temperature

NUM_PROMPTS, DEPTH = 24, 4
TARGET = {
    "name": "org/target-8b",
    "revision": "0123abcd",
    "fingerprint": "feedfacefeedface",
    "architecture": "LlamaForCausalLM",
    "dtype": "bfloat16",
    "device": "cuda",
    "tokenizer": {"name": "org/target-8b", "chat_template": "0011223344556677", "chat_template_kwargs": {}},
}
# Without a slash, after which labels begin.
HOSTILE = '<script>alert(1)<img src=x onerror=alert(2)>" onload="$a_b$ &amp; \u202e\x1b[31m'


def make_run(*, seed: int = 3, better: float = 0.0, name: str = "eagle3", **changes) -> Run:
    """Two methods at two temperatures over the same prompts; `better`: log-odds added to the second one's acceptance.

    `name`: of the prompts' ids and of the second method's model.
    """
    rng = np.random.default_rng(seed)
    p, output = draw_prompts(rng, NUM_PROMPTS)
    ids = tuple(f"{name}-{number}" for number in range(NUM_PROMPTS))
    results = []
    for temperature in (0.0, 0.8):
        for drafter, shift, config in (("ngram", -1.5, {"min": 2, "max": 4}), ("eagle3", better, {"model": name})):
            colder = shift - temperature
            found = acceptance(rng, shifted(p, colder), output, DEPTH, drafter, ids=ids, config=config,
                               temperature=temperature)  # fmt: skip
            results.append(replace(found, adoption=1 if drafter == "ngram" else 3))
    workload = {
        "sources": [f"{name}.jsonl"],
        "files": [{"name": f"{name}.jsonl", "sha256": "ab" * 32}],
        "rows": NUM_PROMPTS,
        "prompts": NUM_PROMPTS,
        "format": "messages",
        "skipped": {},
    }
    settings = {"depth": DEPTH, "drafters": ["ngram", f"eagle3:{name}"], "seed": 17, "responses": "generated"}
    return run_of(*results, workload=workload, settings=settings, target={**TARGET, "name": name}, **changes)


def grouped(run: Run) -> Run:
    """With a label for every row."""
    labels = tuple(("chat", "code")[number % 2] for number in range(NUM_PROMPTS))
    return replace(run, responses=tuple(replace(responses, groups=labels) for responses in run.responses))


def turning_cost(batch: int, query: int) -> float:
    """Drafts are free at small batches, and paid for at large ones."""
    return max(0.010, 0.0004 * batch * query)


def make_recommendation(run: Run) -> dict:
    """Verdicts at 1, 8 and 64, at both temperatures."""
    cost = CostTable(
        "file",
        tuple(CostPoint(b, q, c, turning_cost(b, q)) for b in (1, 8, 64) for q in (1, 2, 5) for c in (1, 4096)),
        prefill_step_seconds=0.0,
        drafter_seconds={"eagle3": 0.0002},
        conditions={"device": "made up"},
    )
    traffics = [Traffic(concurrency) for concurrency in (1, 8, 64)]
    found = [recommend(run, temperature, cost, traffics) for temperature in run.temperatures]
    return recommendation_document(found[0], by_temperature(found))


def write(path: Path, document: dict) -> Path:
    path.write_text(dump_document(document) + "\n")
    return path


def write_run(path: Path, run: Run) -> Path:
    return write(path, document_of(run))


def write_both(folder: Path, name: str, run: Run) -> tuple[Path, Path]:
    """The run's file and its recommendation's."""
    path = write_run(folder / f"{name}.json", run)
    return path, write(folder / f"{name}-advice.json", make_recommendation(load_run(path)))


def without(document: dict, *keys: str) -> dict:
    """As an older version wrote it."""
    older = json.loads(json.dumps(document))
    for key in keys:
        older.pop(key, None)
        for verdict in older["by_concurrency"]:
            verdict.pop(key, None)
    return older
