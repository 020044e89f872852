"""Points of a calibration: rows of CSV or JSON, and results of `vllm bench serve`, to timings with every fact checked.

The forms are those of docs/cost.md. Nothing here predicts.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specprobe.bench.points import bench_rows, is_bench
from specprobe.cost import LONGEST_SECONDS, SHORTEST_SECONDS
from specprobe.csv_text import dict_reader, read_text
from specprobe.engine_numbers.benchmarks import is_bench_result
from specprobe.errors import SpecprobeError
from specprobe.json_rows import json_rows
from specprobe.notices import inert
from specprobe.roofline import METHODS, method_kind

MOST_BYTES = 64 * 2**20
LARGEST_BATCH, LARGEST_CONTEXT, DEEPEST = 2**20, 2**27, 64
# Standard deviations of a logarithm: one's own timing of a step repeats to a few per cent; a rate or a speed-up over
# whole requests holds some prefill and idle time besides.
TIMING_DEVIATION = 0.03
RATE_DEVIATION = 0.05
# Words of the method column that mean a run without speculation.
NO_METHOD = ("", "none", "off", "baseline")
# What a row without a method must not have: it would be a run whose method was forgotten.
OF_A_METHOD = ("drafter", "depth", "acceptance_length", "tokens_per_round", "coverage", "speedup")
# Below this share of the nominal concurrency a result says nothing of that batch.
LEAST_SHARE_RUNNING = 0.5


@dataclass(frozen=True, slots=True)
class StepTiming:
    """A step without drafts over `batch` sequences, `query_tokens` new tokens each.

    `deviation`: the standard deviation of log(seconds). `from_engine`: a server told it, or its benchmark.
    """

    where: str
    batch: float
    query_tokens: float
    context: float
    seconds: float
    deviation: float = TIMING_DEVIATION
    from_engine: bool = False


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """A speculative round, by its `seconds` or, where `measured` says so, by the speed-up of the run.

    `coverage`: share of rounds with a draft. `tokens_per_round`: 0 where a time of rounds makes it needless.
    """

    where: str
    batch: float
    context: float
    method: str
    drafter: str
    depth: int
    coverage: float
    measured: Literal["seconds", "speedup"]
    value: float
    tokens_per_round: float = 0.0
    deviation: float = TIMING_DEVIATION
    from_engine: bool = False


Timing = StepTiming | RoundTiming


def read_points(paths: Sequence[Path]) -> tuple[Timing, ...]:
    """The timings of all files, in order.

    Raises SpecprobeError naming file, line and column where a fact is missing or wrong.
    """
    timings = tuple(timing for path in paths for timing in _timings(path))
    if not timings:
        raise SpecprobeError(f"{paths[0]}: no points; give rows of batch, context and seconds (docs/cost.md)")
    return timings


def _timings(path: Path) -> Iterator[Timing]:
    for where, row in _rows(path):
        if is_bench(row):
            yield from (timing_of_row(one, place) for place, one in bench_rows(row, where))
        else:
            yield _timing_of_result(row, where) if is_bench_result(row) else timing_of_row(row, where)


def timing_of_row(row: Mapping[str, Any], where: str) -> Timing:
    """The timing of one row of points; raises SpecprobeError naming `where` and the column."""
    cells = _Row({name: value for name, value in row.items() if value not in (None, "")}, where)
    method = cells.text("method").lower()
    batch = cells.whole("batch", 1, LARGEST_BATCH, alias="concurrency")
    context = cells.number("context", 0, LARGEST_CONTEXT)
    if method not in NO_METHOD:
        return _round_of_row(cells, method, batch, context)
    if not method and (forgotten := [name for name in OF_A_METHOD if cells.has(name)]):
        raise cells.wrong("method", f"missing in a row with {forgotten[0]}; name one, such as eagle3, or none")
    query_tokens = cells.whole("query_tokens", 1, LARGEST_BATCH, default=1)
    if cells.has("seconds"):
        seconds, deviation = cells.seconds(), cells.deviation()
    elif not cells.has("tokens_per_second"):
        raise cells.wrong("seconds", "missing; give it, or tokens_per_second of all requests together")
    elif query_tokens > 1:
        raise cells.wrong("seconds", "missing; a step of several query tokens needs its time, no rate stands for it")
    else:
        seconds, deviation = cells.sensible(batch / cells.rate(), "tokens_per_second"), RATE_DEVIATION
    from_engine = row.get("source") == "engine"
    return StepTiming(where, batch, query_tokens, context, seconds, deviation, from_engine)


def _round_of_row(cells: _Row, method: str, batch: int, context: float) -> RoundTiming:
    kind = method_kind(method)
    if kind is None:
        raise cells.wrong("method", f"{inert(method)!r} is not known; known are {', '.join(METHODS)}")
    drafter = cells.text("drafter")
    if kind == "model" and not drafter:
        raise cells.wrong("drafter", "missing; name the draft model or its folder")
    depth = cells.whole("depth", 1, DEEPEST)
    length = cells.number("acceptance_length", 1, depth + 1) if cells.has("acceptance_length") else None
    tokens = cells.number("tokens_per_round", 1, depth + 1) if cells.has("tokens_per_round") else None
    coverage = _coverage(cells, length, tokens, always=kind != "none")
    if tokens is None and length is not None:
        tokens = 1 + coverage * (length - 1)
    if cells.has("seconds"):
        measured, value, deviation = "seconds", cells.seconds(), cells.deviation()
    elif tokens is None:
        raise cells.wrong(
            "acceptance_length", "missing; without the seconds of a round it, or tokens_per_round, is needed"
        )
    elif cells.has("tokens_per_second"):
        # Each round of a batch brings tokens_per_round for each of its sequences.
        rounds = cells.sensible(tokens * batch / cells.rate(), "tokens_per_second")
        measured, value, deviation = "seconds", rounds, RATE_DEVIATION
    elif cells.has("speedup"):
        measured, value, deviation = "speedup", cells.number("speedup", 0.01, 100), RATE_DEVIATION
    else:
        raise cells.wrong("seconds", "missing; give it (of a round), tokens_per_second or speedup")
    return RoundTiming(
        where=cells.where,
        batch=batch,
        context=context,
        method=method,
        drafter=drafter,
        depth=depth,
        coverage=coverage,
        measured="speedup" if measured == "speedup" else "seconds",
        value=value,
        tokens_per_round=tokens or 0.0,
        deviation=deviation,
        from_engine=cells.text("source") == "engine",
    )


def _coverage(cells: _Row, length: float | None, tokens: float | None, *, always: bool) -> float:
    """The share of rounds with a draft: 1 for models; for n-gram and suffix as stated, or as the two lengths imply."""
    if always:
        return 1.0
    if cells.has("coverage"):
        return cells.number("coverage", 0, 1)
    if length is not None and tokens is not None and length > 1:
        return min(1.0, (tokens - 1) / (length - 1))
    raise cells.wrong(
        "coverage",
        "missing; rounds without a match have no draft: give the share that has one (1 where drafts are padded), or "
        "both acceptance_length and tokens_per_round",
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """The filled cells of a row, text or numbers, with errors that name the place."""

    values: Mapping[str, Any]
    where: str

    def has(self, column: str) -> bool:
        return column in self.values

    def wrong(self, column: str, what: str) -> SpecprobeError:
        return SpecprobeError(f"{self.where}: {column}: {what}")

    def text(self, column: str) -> str:
        value = self.values.get(column, "")
        if not isinstance(value, str):
            raise self.wrong(column, "must be text")
        return value.strip()

    def number(self, column: str, least: float, most: float) -> float:
        if column not in self.values:
            raise self.wrong(column, "missing")
        value = self.values[column]
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not least <= number <= most:
            raise self.wrong(column, f"{inert(str(value))!r} is no number from {least:g} to {most:g}")
        return number

    def whole(self, column: str, least: int, most: int, *, default: int | None = None, alias: str = "") -> int:
        name = alias if alias in self.values and column not in self.values else column
        if default is not None and name not in self.values:
            return default
        number = self.number(name, least, most)
        if number != round(number):
            raise self.wrong(name, f"{number:g} is no whole number")
        return round(number)

    def seconds(self) -> float:
        return self.number("seconds", SHORTEST_SECONDS, LONGEST_SECONDS)

    def rate(self) -> float:
        return self.number("tokens_per_second", 1e-6, 1e9)

    def sensible(self, seconds: float, column: str) -> float:
        if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
            raise self.wrong(column, f"would make a step of {seconds:g} s; check its unit")
        return seconds

    def deviation(self) -> float:
        """Of log(seconds): as far as repeats scatter, and never below what a timing repeats to on another day."""
        if not self.has("spread_seconds"):
            return TIMING_DEVIATION
        repeats = self.whole("repeats", 1, 10**9, default=1)
        spread = self.number("spread_seconds", 0, LONGEST_SECONDS)
        # 1.2533: the standard error of a median, in those of a mean.
        return max(TIMING_DEVIATION, 1.2533 * spread / math.sqrt(repeats) / self.seconds())


def _timing_of_result(row: Mapping[str, Any], where: str) -> Timing:
    """A benchmark of a server: the median gap between chunks is a round, its concurrency the batch."""
    cells = _Row({name: value for name, value in row.items() if value not in (None, "")}, where)
    if not cells.has("max_concurrency"):
        raise cells.wrong("max_concurrency", "missing, so the batch is not known; run with --max-concurrency")
    completed = cells.whole("completed" if cells.has("completed") else "num_prompts", 1, 10**9)
    concurrency = cells.whole("max_concurrency", 1, LARGEST_BATCH)
    batch = min(concurrency, completed)
    output = cells.number("total_output_tokens", 1, 1e15)
    context = cells.number("total_input_tokens", 0, 1e15) / completed + output / completed / 2
    _check_running(cells, batch, completed, output)
    seconds = cells.sensible(cells.number("median_itl_ms", 1e-6, 1e9) / 1e3, "median_itl_ms")
    drafts = cells.number("spec_decode_num_drafts", 0, 1e15) if cells.has("spec_decode_num_drafts") else 0.0
    if not drafts and not cells.has("spec_decode_acceptance_length"):
        return StepTiming(where, batch, 1, context, seconds, from_engine=True)
    method, drafter = cells.text("method").lower(), cells.text("drafter")
    kind = method_kind(method)
    if kind is None or (kind == "model" and not drafter):
        column = "method" if kind is None else "drafter"
        raise cells.wrong(column, "missing; the server speculated: run with --metadata method=draft_model drafter=NAME")
    drafted, accepted = (cells.number(f"spec_decode_{name}", 0, 1e15) for name in ("draft_tokens", "accepted_tokens"))
    if not drafts or not drafted:
        raise cells.wrong("spec_decode_num_drafts", "missing or 0; give rows of points instead (docs/cost.md)")
    rounds = max(drafts, output - completed - accepted)
    return RoundTiming(
        where=where,
        batch=batch,
        context=context,
        method=method,
        drafter=drafter,
        depth=max(1, round(drafted / drafts)),
        coverage=1.0 if kind != "none" else drafts / rounds,
        measured="seconds",
        value=seconds,
        tokens_per_round=(output - completed) / rounds,
        from_engine=True,
    )


def _check_running(cells: _Row, batch: int, completed: int, output: float) -> None:
    """Refuse a result whose requests came too slowly for its concurrency, by Little's law."""
    if not all(cells.has(name) for name in ("duration", "mean_ttft_ms", "mean_tpot_ms")):
        return
    request = cells.number("mean_ttft_ms", 0, 1e9) + (output / completed - 1) * cells.number("mean_tpot_ms", 0, 1e9)
    running = completed * request / 1e3 / cells.number("duration", 1e-9, 1e12)
    if running < LEAST_SHARE_RUNNING * batch:
        raise cells.wrong(
            "max_concurrency",
            f"only {running:.1f} of {batch} requests ran at once on average; send more, or without a request rate",
        )


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, row) of a file, CSV or JSON by its first character."""
    text = read_text(path, most_bytes=MOST_BYTES, what="a file of points", instead="a CSV or JSON file")
    if text.lstrip()[:1] in ("{", "["):
        return json_rows(path, text, advice="write rows as in docs/cost.md", list_key="points")
    return _csv_rows(path, text)


def _csv_rows(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = dict_reader(text)
    try:
        header = [(name or "").strip().lower() for name in reader.fieldnames or ()]
        if not {"batch", "concurrency"} & set(header):
            raise SpecprobeError(f"{path}: no column batch; the columns are in docs/cost.md")
        reader.fieldnames = header
        for row in reader:
            # A short row has None for what it lacks, a long one a list under None.
            yield f"{path}:{reader.line_num}", {name: (row[name] or "").strip() for name in header}
    except csv.Error as error:
        raise SpecprobeError(f"{path}:{reader.line_num}: not CSV ({error}); mend or delete the line") from None
