"""What engines count while they speculate: of one request, or of all since they started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# NAME{labels} VALUE of the Prometheus text format; a time may follow.
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})?\s+([0-9.eE+-]+)(?:\s+\d+)?$", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')
_DRAFTS, _DRAFTED, _ACCEPTED, _ACCEPTED_AT = (
    f"spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
)
Engine = Literal["vllm", "llamacpp"]


@dataclass(frozen=True, slots=True)
class SpecCounters:
    """An engine's counters. `drafted_rounds` and `accepted_at` (rounds that accepted positions 1..i) are None where it
    does not tell them.
    """

    drafted_tokens: int
    accepted_tokens: int
    drafted_rounds: int | None = None
    accepted_at: tuple[int, ...] | None = None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafted rounds."""
        return 1 + self.accepted_tokens / self.drafted_rounds if self.drafted_rounds else None

    def __add__(self, other: SpecCounters) -> SpecCounters:
        return self._combined(other, 1)

    def __sub__(self, other: SpecCounters) -> SpecCounters:
        return self._combined(other, -1)

    def _combined(self, other: SpecCounters, sign: int) -> SpecCounters:
        at, others, rounds = self.accepted_at, other.accepted_at, None
        if self.drafted_rounds is not None and other.drafted_rounds is not None:
            rounds = self.drafted_rounds + sign * other.drafted_rounds
        combined = None
        if at is not None and others is not None:
            size = max(len(at), len(others))
            padded = [(*values, *(0,) * (size - len(values))) for values in (at, others)]
            combined = tuple(a + sign * b for a, b in zip(*padded, strict=True))
        return SpecCounters(
            self.drafted_tokens + sign * other.drafted_tokens,
            self.accepted_tokens + sign * other.accepted_tokens,
            rounds,
            combined,
        )

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "drafted_rounds": self.drafted_rounds,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "accepted_at": None if self.accepted_at is None else list(self.accepted_at),
        }


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """A server's counters since it started. `speculation`: None where there are none; vLLM has them only of a server
    that speculates, llama.cpp (with --metrics) always.

    `prompt_tokens_asked`, `prompt_tokens_cached`: looked up and found in the prefix cache, None where not told.
    """

    engine: Engine | None
    speculation: SpecCounters | None
    prompt_tokens_asked: int | None
    prompt_tokens_cached: int | None


def parse_metrics(text: str) -> ServerCounters:
    """Counters of vLLM (0.9 to 0.33: v1/spec_decode/metrics.py, v1/metrics/loggers.py), summed over its engines, and of
    llama.cpp (2026-10: tools/server/server-task.cpp).
    """
    engine: Engine | None = None
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for full_name, labels, value in _SAMPLE.findall(text):
        prefix, _, name = full_name.partition(":")
        if prefix not in ("vllm", "llamacpp"):
            continue
        engine = "vllm" if prefix == "vllm" else "llamacpp"
        try:
            number = float(value)
        except ValueError:
            continue
        if name == _ACCEPTED_AT and (found := _POSITION.search(labels)):
            positions[int(found[1])] = positions.get(int(found[1]), 0.0) + number
        else:
            sums[name] = sums.get(name, 0.0) + number
    speculation = None
    if _DRAFTS in sums:
        at = tuple(round(positions.get(i, 0.0)) for i in range(max(positions) + 1)) if positions else None
        drafted, accepted = (round(sums.get(name, 0.0)) for name in (_DRAFTED, _ACCEPTED))
        speculation = SpecCounters(drafted, accepted, round(sums[_DRAFTS]), at)
    if engine == "llamacpp":
        cached = sums.get("prompt_tokens_cached_total")
        # What was found in the cache is not among what was processed.
        asked = None if cached is None else sums.get("prompt_tokens_total", 0.0) + cached
    else:
        asked, cached = (sums.get(f"prefix_cache_{name}_total") for name in ("queries", "hits"))
    return ServerCounters(engine, speculation, *(None if one is None else round(one) for one in (asked, cached)))


def counters_of_request(event: Mapping[str, Any]) -> SpecCounters | None:
    """What the last event of a stream tells of its own request: vLLM under `metrics` (where it was started with
    --per-request-spec-decode-metrics), llama.cpp under `timings`; None where it tells nothing.
    """
    metrics = event.get("metrics")
    told = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
    if isinstance(told, Mapping):
        histogram = told.get("acceptance_histogram")
        drafted, accepted, rounds = (
            _count(told, key) for key in ("num_draft_tokens", "num_accepted_draft_tokens", "num_spec_steps")
        )
        if drafted is None or accepted is None:
            return None
        at = None
        if isinstance(histogram, list) and all(isinstance(count, int) for count in histogram):
            at = tuple(sum(histogram[i:]) for i in range(1, len(histogram)))
        return SpecCounters(drafted, accepted, rounds, at)
    timings = event.get("timings")
    if isinstance(timings, Mapping) and "predicted_n" in timings:
        # Left out where nothing was drafted.
        drafted, accepted = (_count(timings, key) for key in ("draft_n", "draft_n_accepted"))
        return SpecCounters(drafted or 0, accepted or 0)
    return None


def _count(told: Mapping[str, Any], key: str) -> int | None:
    value = told.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
