"""The `specprobe.bench/1` document: every figure of a bench, and under `passes` the raw requests they follow from."""

from __future__ import annotations

from typing import Any

from specprobe import __version__
from specprobe.bench.conclusions import AcceptanceCheck, Bench, Level
from specprobe.bench.counters import SpecCounters

SCHEMA = "specprobe.bench/1"


def bench_document(bench: Bench) -> dict[str, Any]:
    """No text of a prompt or an answer: digests and token counts only."""
    result, replay = bench.result, bench.replay
    return {
        "schema": SCHEMA,
        "specprobe_version": __version__,
        "complete": result.is_complete,
        "sources": list(result.sources),
        "prompts": list(result.prompts),
        "plan": result.plan.to_json(),
        "restarts": result.restarts,
        "servers": {arm: {"model": one.name, "version": one.version} for arm, one in result.models.items()},
        "drafter": {"spec": replay.drafter, "depth": replay.depth, "engine": replay.engine} if replay else None,
        "mean_context": result.mean_context,
        "speculation_broken": bool(bench.broken),
        "broken": list(bench.broken),
        "by_concurrency": [_level_json(bench, level) for level in bench.levels],
        "likelihood": bench.likelihood.to_json() if bench.likelihood else None,
        "greedy_probe": bench.greedy.agreement.to_json() if bench.greedy else None,
        "warnings": [{"code": notice.code, "message": notice.message} for notice in bench.notices],
        "passes": [record.to_json() for record in result.passes],
    }


def _level_json(bench: Bench, level: Level) -> dict[str, Any]:
    return {
        **level.measured.to_json(),
        # Of an engine whose output is broken no verdict stands.
        "verdict": None if bench.broken else level.measured.verdict,
        "plain_round_seconds_by_repeat": list(level.plain_round_seconds),
        "speculative_round_seconds_by_repeat": list(level.speculative_round_seconds),
        "acceptance": _acceptance_json(level.acceptance) if level.acceptance else None,
        "greedy": level.agreement.to_json() if level.agreement else None,
        "predicted": level.predicted.to_json() if level.predicted else None,
        "prediction_error": level.error,
        "prediction_within": level.is_within,
    }


def _acceptance_json(check: AcceptanceCheck) -> dict[str, Any]:
    return {
        "measured": _counters_json(check.measured),
        "expected": _counters_json(check.expected),
        "requests": check.requests,
        "agreeing": check.agreeing,
        "compared": check.compared,
        "exact": check.exact,
        "totals_exact": check.totals_exact,
    }


def _counters_json(counters: SpecCounters | None) -> dict[str, Any] | None:
    if counters is None:
        return None
    return {
        **counters.to_json(),
        "acceptance_rate": counters.acceptance_rate,
        "mean_acceptance_length": counters.mean_acceptance_length,
    }
