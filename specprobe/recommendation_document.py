"""The `specprobe.recommendation/1` document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from specprobe.candidates import Option
from specprobe.interval import LEVEL
from specprobe.recommend import Recommendation, Verdict
from specprobe.serving import QUANTILES, Floats, Served
from specprobe.temperature_verdicts import TemperatureVerdicts

SCHEMA = "specprobe.recommendation/1"


def recommendation_document(
    recommendation: Recommendation, temperatures: Sequence[TemperatureVerdicts] = ()
) -> dict[str, Any]:
    """Every figure of a recommendation, and the verdicts at other temperatures of the same run."""
    cost, undecided = recommendation.cost, recommendation.undecided
    memory = cost.memory
    capacity = memory.kv_capacity_tokens() if memory else 0.0
    return {
        "schema": SCHEMA,
        "cost_source": cost.source,
        "cost": {
            "conditions": dict(cost.conditions),
            "log_deviation": cost.log_deviation,
            **cost.quality(),
            "memory": None
            if memory is None
            else {
                "available_bytes": memory.available_bytes,
                "weight_bytes": memory.weight_bytes,
                "kv_token_bytes": memory.kv_token_bytes,
                # None where a token takes nothing, so that there is room for any number.
                "kv_capacity_tokens": capacity if math.isfinite(capacity) else None,
            },
        },
        "run_digest": recommendation.run_digest,
        "engine_profile": recommendation.engine_profile,
        "temperature": recommendation.temperature,
        "undecided": {"code": undecided.code, "message": undecided.message} if undecided else None,
        "by_concurrency": [_verdict_json(recommendation, verdict) for verdict in recommendation.by_concurrency],
        "crossover_concurrency": recommendation.crossover_concurrency,
        "speedup_grids": [grid.to_json() for grid in recommendation.grids],
        "schedule_drafter": recommendation.scheduled_drafter,
        "schedule": [list(row) for row in recommendation.schedule],
        "export": dict(recommendation.export),
        "by_temperature": [verdicts.to_json() for verdicts in temperatures],
        "warnings": [{"code": notice.code, "message": notice.message} for notice in recommendation.notices],
    }


def _verdict_json(recommendation: Recommendation, verdict: Verdict) -> dict[str, Any]:
    best = verdict.best
    return {
        "concurrency": verdict.concurrency,
        "by_clock": verdict.by_clock,
        "arrivals": asdict(verdict.arrivals) if verdict.arrivals else None,
        "verdict": verdict.verdict,
        "drafter": best.drafter,
        "draft_sampling": best.draft_sampling,
        "depth": best.depth,
        "speedup_of": "mean_request_latency" if verdict.by_clock else "output_tokens_per_second",
        "speedup": {"point": best.speedup, "low": best.low, "high": best.high, "level": LEVEL},
        "enough_prompts": best.enough_prompts,
        "export": dict(verdict.export),
        "break_even_acceptance_length": best.break_even_acceptance_length,
        "break_even_tokens_per_round": best.break_even_tokens_per_round,
        "losing_share": best.losing_share,
        "sensitivity": [
            {"prompt_factor": one.scale_prompt, "output_factor": one.scale_output, "speedup": one.speedup}
            for one in best.sensitivity
        ],
        "free_drafting_speedup": best.free_drafting_speedup,
        "distributions": _distributions_json(verdict),
        "baseline": _served_json(recommendation, verdict.plain),
        "options": [_option_json(recommendation, option) for option in verdict.options],
    }


def _distributions_json(verdict: Verdict) -> dict[str, Any]:
    """Quantiles without speculation and with the best option; both serve the same requests, so these are paired."""
    plain, served = verdict.plain, verdict.best.served
    return {
        "quantiles": list(QUANTILES),
        "baseline": _quantiles_json(plain),
        "best": _quantiles_json(served),
        "request_speedup": np.quantile(plain.latency_seconds / served.latency_seconds, QUANTILES).tolist(),
    }


def _quantiles_json(served: Served) -> dict[str, Any]:
    return {
        "request_latency_s": np.quantile(served.latency_seconds, QUANTILES).tolist(),
        "ttft_ms": _milliseconds_of(served.ttft_quantiles_seconds),
        "itl_ms": None if served.itl_quantiles_seconds is None else _milliseconds_of(served.itl_quantiles_seconds),
    }


def _option_json(recommendation: Recommendation, option: Option) -> dict[str, Any]:
    return {
        "drafter": option.drafter,
        "config": dict(option.config),
        "draft_sampling": option.draft_sampling,
        "depth": option.depth,
        "adoption": option.adoption,
        "speedup": option.speedup,
        "interval": {"speedup": [option.low, option.high], "level": LEVEL},
        "tokens_per_round": option.tokens_per_round,
        "losing_share": option.losing_share,
        "drafter_bytes": option.drafter_bytes,
        **_served_json(recommendation, option.served),
    }


def _served_json(recommendation: Recommendation, served: Served) -> dict[str, Any]:
    return {
        "output_tokens_per_second": served.output_tokens_per_second,
        "whole_run_output_tokens_per_second": served.whole_output_tokens_per_second,
        "mean_batch": served.batch,
        "preemptions": served.preemptions,
        "itl_p50_ms": _milliseconds(served.itl_p50_seconds),
        "itl_p95_ms": _milliseconds(served.itl_p95_seconds),
        "tpot_ms": _milliseconds(served.tpot_seconds),
        "ttft_p50_ms": _milliseconds(served.ttft_p50_seconds),
        "ttft_p95_ms": _milliseconds(served.ttft_p95_seconds),
        "request_latency_s": served.mean_latency_seconds,
        "request_latency_p95_s": served.p95_latency_seconds,
        "dollars_per_million_output_tokens": recommendation.dollars_per_million_tokens(served),
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _milliseconds_of(seconds: Floats) -> list[float]:
    return (1e3 * seconds).tolist()
