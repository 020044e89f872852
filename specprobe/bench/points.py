"""The rounds that a bench timed, as points for `calibrate`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specprobe.cost import timing_spread
from specprobe.errors import SpecprobeError

SCHEMA = "specprobe.bench/1"


def is_bench(row: Mapping[str, Any]) -> bool:
    """Whether an object is what `bench` writes."""
    return row.get("schema") == SCHEMA


def bench_rows(document: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) for each arm and concurrency that was timed while all slots were busy, as docs/cost.md has rows.

    Raises SpecprobeError where none was, where the document is damaged, or where its engine garbles what it writes.
    """
    if document.get("speculation_broken"):
        raise SpecprobeError(f"{where}: this engine's speculative output is broken, so its rounds say nothing")
    rows = []
    try:
        for level in document["by_concurrency"]:
            at = f"{where}: concurrency {level['concurrency']}"
            base = {"batch": level["concurrency"], "context": document["mean_context"], "source": "engine"}
            if level["plain_round_seconds_by_repeat"]:
                rows.append((f"{at} without", {**base, **_seconds(level["plain_round_seconds_by_repeat"])}))
            if level["speculative_round_seconds_by_repeat"] and document["drafter"]:
                timed = _seconds(level["speculative_round_seconds_by_repeat"])
                if (facts := _facts(level, document["drafter"])) is not None:
                    rows.append((f"{at} with", {**base, **timed, **facts}))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise SpecprobeError(f"{where}: a damaged bench; write it again with `specprobe bench --out`") from None
    if not rows:
        raise SpecprobeError(
            f"{where}: no rounds with all slots busy; bench with more prompts, or longer answers, than slots"
        )
    yield from rows


def _seconds(by_repeat: Sequence[float]) -> dict[str, Any]:
    return {
        "seconds": statistics.median(by_repeat),
        "spread_seconds": timing_spread(by_repeat),
        "repeats": len(by_repeat),
    }


def _facts(level: Mapping[str, Any], drafter: Mapping[str, Any]) -> dict[str, Any] | None:
    """The method and what its rounds brought; None where the server told no counters."""
    counters = level["acceptance"]["measured"] if level["acceptance"] else None
    if counters is None:
        return None
    method, _, rest = drafter["spec"].partition(":")
    model = rest.split(",")[0]
    requests = level["acceptance"]["requests"]
    emitted = level["speculative"]["output_tokens"] - requests
    rounds = max(emitted - counters["accepted_tokens"], counters["drafted_rounds"] or 0)
    facts: dict[str, Any] = {
        "method": method,
        "depth": drafter["depth"],
        "tokens_per_round": max(1.0, emitted / rounds),
        "coverage": min(1.0, (counters["drafted_rounds"] or rounds) / rounds),
    }
    if model and "=" not in model:
        facts["drafter"] = model
    return facts
