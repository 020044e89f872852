"""What engines count while they speculate: of one request, or of all since they started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specprobe.engine_numbers.prometheus import parse_scrape
from specprobe.engine_numbers.responses import read_answer
from specprobe.errors import SpecprobeError

Engine = Literal["vllm", "llama.cpp"]
# What the names of an engine's metrics begin with.
PREFIXES: Mapping[Engine, str] = {"vllm": "vllm:", "llama.cpp": "llamacpp:"}


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

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> SpecCounters:
        """What `to_json` gave."""
        at = told["accepted_at"]
        return cls(
            told["drafted_tokens"], told["accepted_tokens"], told["drafted_rounds"], None if at is None else tuple(at)
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
    llama.cpp (2026-10: tools/server/server-task.cpp). Raises SpecprobeError for what cannot be counters.
    """
    scrape = parse_scrape("/metrics", text)
    engine = next((one for one, prefix in PREFIXES.items() if any(n.startswith(prefix) for n in scrape.values)), None)
    if engine is None:
        return ServerCounters(None, None, None, None)
    prefix = PREFIXES[engine]
    speculation = None
    rounds = scrape.total(f"{prefix}spec_decode_num_drafts")
    if rounds is not None:
        speculation = SpecCounters(
            scrape.total(f"{prefix}spec_decode_num_draft_tokens") or 0,
            scrape.total(f"{prefix}spec_decode_num_accepted_tokens") or 0,
            rounds,
            scrape.by_position(f"{prefix}spec_decode_num_accepted_tokens_per_pos"),
        )
    if engine == "vllm":
        asked, cached = (scrape.total(f"vllm:prefix_cache_{name}") for name in ("queries", "hits"))
    else:
        cached = scrape.total("llamacpp:prompt_tokens_cached")
        # What was found in the cache is not among what was processed.
        asked = None if cached is None else (scrape.total("llamacpp:prompt_tokens") or 0) + cached
    return ServerCounters(engine, speculation, asked, cached)


def counters_of_request(event: Mapping[str, Any]) -> SpecCounters | None:
    """What the last event of a stream tells of its own request (see `engine_numbers.responses`); None where it tells
    nothing, or nothing that adds up.
    """
    try:
        _, answer = read_answer(event, "an answer")
    except SpecprobeError:
        return None
    if answer is None:
        # llama.cpp leaves its counters out where nothing was drafted.
        timings = event.get("timings")
        return SpecCounters(0, 0) if isinstance(timings, Mapping) and "predicted_n" in timings else None
    counts = answer.counts
    if counts.drafted_tokens is None or counts.accepted_tokens is None:
        return None
    return SpecCounters(counts.drafted_tokens, counts.accepted_tokens, counts.drafted_rounds, counts.accepted_at)
