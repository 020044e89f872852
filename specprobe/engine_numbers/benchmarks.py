"""Results of benchmarks and statistics of an engine's steps, without single requests.

`vllm bench serve --save-result` (vLLM 0.13 to 0.33, benchmarks/serve.py): differences of the server's counters,
rates by position as survivals, the acceptance rate in per cent. AIPerf 0.13 and later (profile_export_aiperf.json):
the pooled histogram. TensorRT-LLM 1.2 (/metrics with enable_iter_perf_stats): `specDecodingStats` of each step, whose
acceptanceLength is 1 + accepted / requests with a draft, so each of these requests is a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from specprobe.engine_numbers.figures import Figures, at_least
from specprobe.engine_numbers.numbers import EngineCounts, EngineNumbers, checked, summed
from specprobe.errors import SpecprobeError
from specprobe.json_rows import Located
from specprobe.units import format_plural


def is_bench_result(row: Mapping[str, Any]) -> bool:
    """Whether an object is what `vllm bench serve --save-result` writes."""
    return "median_itl_ms" in row and "total_output_tokens" in row


def _bench_serve(row: Figures) -> EngineNumbers | None:
    if not is_bench_result(row.values) and "spec_decode_num_drafts" not in row.values:
        return None
    if "spec_decode_num_drafts" not in row.values:
        raise SpecprobeError(f"{row.where}: a benchmark without speculation; give one of a server that speculates")
    rounds = row.needed("spec_decode_num_drafts")
    survival = row.numbers("spec_decode_per_position_acceptance_rates", 0.0, 1.0)
    at = tuple(round(rate * rounds) for rate in survival) if survival else None
    counts = EngineCounts(
        drafted_rounds=rounds,
        drafted_tokens=row.needed("spec_decode_draft_tokens"),
        accepted_tokens=row.needed("spec_decode_accepted_tokens"),
        accepted_at=at,
        requests=row.count("completed"),
        prompt_tokens=row.count("total_input_tokens"),
        output_tokens=row.count("total_output_tokens"),
    )
    depth = len(survival) if survival else None
    counts = checked(counts, row.where, depth)
    return EngineNumbers(
        "vllm", "vllm bench serve", "one benchmark", counts, depth, seconds=row.number("duration", 0.0, 1e12)
    )


def _aiperf(row: Figures) -> EngineNumbers | None:
    histogram = row.counts("pooled_spec_decode_acceptance_histogram")
    if histogram is None:
        return None

    def total(*names: str) -> int | None:
        """A run's metric: its value is under `avg`."""
        return next((m.count("avg") for name in names if (m := row.inside(name))), None)

    at = at_least(histogram)
    counts = EngineCounts(
        drafted_rounds=sum(histogram),
        drafted_tokens=total("total_draft_tokens"),
        accepted_tokens=sum(at),
        accepted_at=at,
        requests=total("request_count"),
        prompt_tokens=total("total_isl", "total_input_tokens"),
        output_tokens=total("total_osl", "total_output_tokens"),
    )
    duration = row.inside("benchmark_duration")
    return EngineNumbers(
        "unknown",
        "AIPerf",
        "one benchmark",
        checked(counts, row.where),
        seconds=duration.number("avg", 0.0, 1e12) if duration else None,
    )


RESULTS: Mapping[str, Callable[[Figures], EngineNumbers | None]] = {
    "vllm bench serve": _bench_serve,
    "AIPerf": _aiperf,
}


def read_results(rows: Iterable[Located]) -> EngineNumbers | None:
    """The counters of one benchmark, or of all steps; None where none has any.

    Raises SpecprobeError for several benchmarks, which may have run on different servers.
    """
    found, steps = [], []
    for where, row in rows:
        figures = Figures(row, where)
        for read in RESULTS.values():
            if (numbers := read(figures)) is not None:
                found.append(numbers)
        if (step := figures.inside("specDecodingStats")) is not None:
            steps.append(_step(step))
    if len(found) > 1 or (found and steps):
        raise SpecprobeError("numbers of an engine: several benchmarks; give one, since each may be of another server")
    if steps:
        scope = format_plural(len(steps), "step")
        return EngineNumbers("tensorrt-llm", "statistics of steps", scope, summed(steps))
    return found[0] if found else None


def _step(step: Figures) -> EngineCounts:
    counts = EngineCounts(
        drafted_rounds=step.needed("numRequestsWithDraftTokens"),
        drafted_tokens=step.needed("numDraftTokens"),
        accepted_tokens=step.needed("numAcceptedTokens"),
    )
    return checked(counts, step.where)
