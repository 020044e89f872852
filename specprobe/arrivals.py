"""When requests arrive: traces that serving systems published, and a Poisson process.

Traces hold times and lengths, no text. Three formats are told by their columns, whatever the container:

    mooncake    {"timestamp": ms, "input_length": n, "output_length": n}, JSON lines (Mooncake, FAST'25)
    azure       TIMESTAMP,ContextTokens,GeneratedTokens, CSV, dates with 7 fractional digits (Azure 2023, 2024)
    burstgpt    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type, CSV, seconds
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specprobe.containers import Row, Skip, plain_name, read_rows
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.sources import Source, open_source

MOST_TOKENS = 2**31 - 1
# From 1970 or from the start of a trace, in any unit that a clock has; beyond it differences are no numbers any more.
FARTHEST_SECONDS = 1e15


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests come by the clock: so many a second on average, at random or at the times of a trace.

    `rate`: None of a trace whose requests all come at once. `trace`: the name of its file.
    """

    rate: float | None
    trace: str | None = None

    @property
    def in_words(self) -> str:
        """`4 requests a second`, `arrivals of trace.csv, 0.9 requests a second`."""
        rate = "" if self.rate is None else f"{self.rate:.4g} {'request' if self.rate == 1 else 'requests'} a second"
        if self.trace is None:
            return rate
        return f"arrivals of {inert(self.trace, 60)}{f', {rate}' if rate else ''}"


def mean_rate(seconds: NDArray[np.float64]) -> float | None:
    """Requests a second between the first and the last of `seconds` [R], rising; None where they come at once."""
    span = float(seconds[-1] - seconds[0])
    return (seconds.size - 1) / span if span > 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """R requests by time of arrival: `arrival_seconds` float64 [R] from 0, rising; lengths int32 [R] in tokens.

    `skipped`: rows left out, by reason: those of docs/formats.md for rows that cannot be read, missing_field,
    bad_timestamp, bad_length, no_prompt (0 tokens), no_output (0 tokens: how BurstGPT records a failed request).
    """

    format: str
    arrival_seconds: NDArray[np.float64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    skipped: Mapping[str, int]


class _Format(NamedTuple):
    """Plain names of the columns, and how a timestamp becomes seconds."""

    timestamp: str
    prompt: str
    output: str
    seconds: Callable[[Any], float]


class _Request(NamedTuple):
    seconds: float
    prompt_tokens: int
    output_tokens: int


def _number(value: Any) -> float:
    """A number, or text that is one; ValueError for anything else, NaN and infinities included."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("no number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("too large") from None
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


def _milliseconds(value: Any) -> float:
    return _number(value) / 1000


def _date(value: Any) -> float:
    """Seconds since 1970 of a date and time; without a zone it is UTC. Digits beyond microseconds are dropped."""
    if not isinstance(value, str):
        raise ValueError("no date")
    moment = datetime.fromisoformat(value.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


FORMATS = {
    "mooncake": _Format("timestamp", "inputlength", "outputlength", _milliseconds),
    "azure": _Format("timestamp", "contexttokens", "generatedtokens", _date),
    "burstgpt": _Format("timestamp", "requesttokens", "responsetokens", _number),
}


def read_trace(path: Path) -> Trace:
    """The requests of a trace, sorted by time; rows that are no request are counted by reason.

    The first row with the columns of a format decides for the file. Raises SpecprobeError where the file cannot be
    read or has no usable row.
    """
    shown = inert(str(path), 200)
    skipped: Counter[str] = Counter()
    requests: list[_Request] = []
    name = None
    with open_source(Source(str(path))) as stream:
        for row in read_rows(stream, frozenset({"timestamp"})).rows:
            fields = _fields(row)
            if isinstance(fields, Skip):
                skipped[fields.reason] += 1
                continue
            name = name or next((name for name in FORMATS if _has_columns(FORMATS[name], fields)), None)
            request = _request(FORMATS[name], fields) if name else Skip("missing_field")
            if isinstance(request, Skip):
                skipped[request.reason] += 1
            else:
                requests.append(request)
    if name is None or not requests:
        raise SpecprobeError(_nothing(shown, name, skipped))
    seconds, prompt_tokens, output_tokens = (np.array(column) for column in zip(*requests, strict=True))
    order = np.argsort(seconds, kind="stable")
    return Trace(
        name,
        seconds[order].astype(np.float64) - seconds.min(),
        prompt_tokens[order].astype(np.int32),
        output_tokens[order].astype(np.int32),
        dict(skipped),
    )


def _nothing(shown: str, name: str | None, skipped: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items())) or "no rows"
    if name is None:
        return (
            f"{shown}: no trace ({reasons}); Mooncake (timestamp, input_length, output_length), Azure (TIMESTAMP, "
            "ContextTokens, GeneratedTokens) and BurstGPT (Timestamp, Request tokens, Response tokens) are read"
        )
    return f"{shown}: no usable row in this {name} trace ({reasons}); check the file"


def _fields(row: Row) -> dict[str, Any] | Skip:
    """A row by plain column names."""
    if isinstance(row.value, Skip):
        return row.value
    if not isinstance(row.value, dict):
        return Skip("not_object")
    return {plain_name(key): value for key, value in row.value.items() if isinstance(key, str)}


def _has_columns(trace_format: _Format, fields: Mapping[str, Any]) -> bool:
    return {trace_format.timestamp, trace_format.prompt, trace_format.output} <= fields.keys()


def _request(trace_format: _Format, fields: Mapping[str, Any]) -> _Request | Skip:
    if not _has_columns(trace_format, fields):
        return Skip("missing_field")
    try:
        seconds = trace_format.seconds(fields[trace_format.timestamp])
    except (ValueError, OverflowError):
        return Skip("bad_timestamp")
    if abs(seconds) > FARTHEST_SECONDS:
        return Skip("bad_timestamp")
    try:
        prompt_tokens, output_tokens = _lengths(fields[trace_format.prompt], fields[trace_format.output])
    except ValueError:
        return Skip("bad_length")
    if not prompt_tokens:
        return Skip("no_prompt")
    if not output_tokens:
        return Skip("no_output")
    return _Request(seconds, prompt_tokens, output_tokens)


def _lengths(*values: Any) -> Iterator[int]:
    for value in values:
        number = _number(value)
        if number != int(number) or not 0 <= number <= MOST_TOKENS:
            raise ValueError("no length")
        yield int(number)


def poisson_arrivals(rate: float, num_requests: int, seed: int = 0) -> NDArray[np.float64]:
    """Seconds at which requests of a Poisson process of `rate` per second arrive, the first after a gap, too."""
    if not (math.isfinite(rate) and rate > 0):
        raise SpecprobeError(f"request rate {rate}: must be a number of requests per second above 0")
    gaps = np.random.default_rng(seed).exponential(1 / rate, num_requests)
    return np.cumsum(gaps)
