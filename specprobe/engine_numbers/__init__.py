"""Acceptance as engines counted it themselves: files that engines and benchmarks write, read into one record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from specprobe.csv_text import read_text
from specprobe.engine_numbers.benchmarks import read_results
from specprobe.engine_numbers.logs import is_log, read_logs
from specprobe.engine_numbers.numbers import DEEPEST, EngineCounts, EngineNumbers, RequestCounts, checked
from specprobe.engine_numbers.prometheus import is_prometheus, read_scrapes
from specprobe.engine_numbers.responses import read_answers
from specprobe.errors import SpecprobeError
from specprobe.json_rows import Located, json_rows

__all__ = ["EngineCounts", "EngineNumbers", "RequestCounts", "read_engine_numbers"]

MOST_BYTES = 512 * 2**20
ADVICE = "give answers, /metrics text, log lines or benchmark results of an engine (docs/engine-numbers.md)"

Texts = Sequence[tuple[Path, str]]


def read_engine_numbers(paths: Sequence[Path], depth: int | None = None) -> EngineNumbers:
    """What these files say together, by what is in them; two of Prometheus text are before and after.

    `depth`: the most draft tokens of a round, for engines that do not say. Raises SpecprobeError, naming file and
    place, for what is of no engine, of several, contradicts itself or `depth`, or counts no draft.
    """
    if depth is not None and not 1 <= depth <= DEEPEST:
        raise SpecprobeError(f"--depth {depth}: from 1 to {DEEPEST}")
    texts = [(path, _text(path)) for path in paths]
    kinds = {_kind(path, text) for path, text in texts}
    if len(kinds) > 1:
        raise SpecprobeError(f"numbers of an engine: files of {' and '.join(sorted(kinds))}; read each by itself")
    numbers = READERS[kinds.pop()](texts)
    return _at_depth(_counted(numbers, texts), depth)


def _text(path: Path) -> str:
    text = read_text(path, most_bytes=MOST_BYTES, what="what an engine says of itself", instead="a text or JSON file")
    if not text.strip():
        raise SpecprobeError(f"{path}: empty; {ADVICE}")
    return text


def _kind(path: Path, text: str) -> str:
    start = text.lstrip()[:1]
    if start == "<":
        raise SpecprobeError(f"{path}: HTML, perhaps an error page; ask the engine itself, at its own port")
    if start in ("{", "[") or text.lstrip().startswith("data: {"):
        # A log may begin with a bracket, too.
        return "log lines" if is_log(text) and not _begins_with_json(text) else "JSON"
    if is_prometheus(text):
        return "Prometheus text"
    if is_log(text):
        return "log lines"
    raise SpecprobeError(f"{path}: no numbers of an engine; {ADVICE}")


def _begins_with_json(text: str) -> bool:
    try:
        json.JSONDecoder().raw_decode(text.lstrip().removeprefix("data: "))
    except (ValueError, RecursionError):
        return False
    return True


def _read_json(texts: Texts) -> EngineNumbers:
    rows = [row for path, text in texts for row in _rows(path, text)]
    numbers = read_answers(rows)
    found = read_results(rows) if numbers is None else numbers
    if found is None:
        raise SpecprobeError(
            f"{texts[0][0]}: no counters of speculative decoding; start vLLM with --per-request-spec-decode-metrics "
            f"detailed and ask for one answer a request, or {ADVICE}"
        )
    return found


def _rows(path: Path, text: str) -> Iterator[Located]:
    """Rows of JSON; of a recorded stream, its chunks."""
    if text.lstrip().startswith("data: "):
        chunks = (line.strip().removeprefix("data: ") for line in text.split("\n"))
        text = "\n".join(chunk for chunk in chunks if chunk.startswith("{"))
    return json_rows(path, text, advice=ADVICE)


READERS = {"Prometheus text": read_scrapes, "log lines": read_logs, "JSON": _read_json}
"""What a file is -> its reader, for all files together."""


def _counted(numbers: EngineNumbers, texts: Texts) -> EngineNumbers:
    counts = numbers.counts
    nothing = counts.drafted_tokens == 0 or (counts.drafted_rounds == 0)
    unknown = counts.drafted_tokens is None and counts.drafted_rounds is None and numbers.stated_length is None
    if nothing or unknown:
        raise SpecprobeError(
            f"{texts[-1][0]}: no draft was counted; the server may have run without speculation, without requests, or "
            "n-gram found no match"
        )
    return numbers


def _at_depth(numbers: EngineNumbers, depth: int | None) -> EngineNumbers:
    if depth is None:
        return numbers
    if numbers.depth is not None and numbers.depth != depth:
        raise SpecprobeError(f"--depth {depth}: the engine says {numbers.depth}; leave the option out")
    requests = tuple(replace(one, counts=checked(one.counts, one.id, depth)) for one in numbers.requests)
    return replace(
        numbers, depth=depth, counts=checked(numbers.counts, "numbers of an engine", depth), requests=requests
    )
