"""Cost files: a `CostTable` as JSON, or step times as CSV, with every number checked (docs/cost.md)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specprobe.cost import LONGEST_SECONDS, SHORTEST_SECONDS, CostPoint, CostTable, DraftingPoint, Memory
from specprobe.csv_text import dict_reader, read_text
from specprobe.documents import read_document
from specprobe.errors import SpecprobeError

SCHEMA = "specprobe.cost/1"
CSV_COLUMNS = ("batch", "query_tokens", "context", "seconds")
MOST_BYTES = 64 * 2**20


def read_cost_file(path: Path) -> CostTable:
    """The cost table of a file, JSON or (by its name) CSV; its source is `file`, or `engine` where the file was fitted
    to what a server was seen to do.

    Raises SpecprobeError where the file cannot be read, or holds no full grid of sensible times.
    """
    try:
        if path.suffix.lower() == ".csv":
            return CostTable("file", *_points_of_csv(path))
        return _cost_from_json(read_document(path, SCHEMA, "see 'Cost files' in docs/cost.md"))
    except SpecprobeError as error:
        message = str(error)
        raise SpecprobeError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def cost_document(cost: CostTable) -> dict[str, Any]:
    """The `specprobe.cost/1` document, which `read_cost_file` reads."""
    memory = cost.memory
    return {
        "schema": SCHEMA,
        "source": cost.source,
        "conditions": dict(cost.conditions),
        "log_deviation": cost.log_deviation,
        "prefill_token_seconds": cost.prefill_token_seconds,
        "prefill_pair_seconds": cost.prefill_pair_seconds,
        "prefill_step_seconds": cost.prefill_step_seconds,
        "memory": None
        if memory is None
        else {
            "available_bytes": memory.available_bytes,
            "weight_bytes": memory.weight_bytes,
            "kv_token_bytes": memory.kv_token_bytes,
            "drafters": {name: list(sizes) for name, sizes in memory.drafters.items()},
        },
        "drafter_seconds": dict(cost.drafter_seconds),
        "drafter_prefill_seconds": dict(cost.drafter_prefill_seconds),
        "drafting": [asdict(point) for point in cost.drafting],
        "points": [asdict(point) for point in cost.points],
    }


def _cost_from_json(document: Mapping[str, Any]) -> CostTable:
    floor = document.get("prefill_step_seconds")
    return CostTable(
        source="engine" if document.get("source") == "engine" else "file",
        points=tuple(read_point(row, number) for number, row in enumerate(_list(document, "points"), 1)),
        drafting=tuple(read_drafting(row, number) for number, row in enumerate(_list(document, "drafting", []), 1)),
        drafter_seconds=_seconds_by_name(document, "drafter_seconds"),
        drafter_prefill_seconds=_seconds_by_name(document, "drafter_prefill_seconds"),
        prefill_token_seconds=read_seconds(document.get("prefill_token_seconds", 0.0), "prefill_token_seconds"),
        prefill_pair_seconds=read_seconds(document.get("prefill_pair_seconds", 0.0), "prefill_pair_seconds"),
        prefill_step_seconds=None if floor is None else read_seconds(floor, "prefill_step_seconds"),
        log_deviation=_number(document.get("log_deviation", 0.0), "log_deviation", 10.0),
        memory=_memory(document.get("memory")),
        conditions=_object(document, "conditions"),
    )


def read_point(row: Any, number: int) -> CostPoint:
    """One point of a cost file; raises SpecprobeError naming the `number` of the point and what is wrong."""
    if not isinstance(row, dict):
        raise SpecprobeError(f"cost: point {number} is not an object")
    seconds = read_seconds(row.get("seconds"), f"point {number}: 'seconds'")
    if seconds < SHORTEST_SECONDS:
        raise SpecprobeError(f"cost: point {number}: 'seconds' must be positive, and those of a round")
    return CostPoint(
        batch=_whole(row.get("batch"), f"point {number}: 'batch'"),
        query_tokens=_whole(row.get("query_tokens"), f"point {number}: 'query_tokens'"),
        context=_whole(row.get("context"), f"point {number}: 'context'"),
        seconds=seconds,
        spread_seconds=read_seconds(row.get("spread_seconds", 0.0), f"point {number}: 'spread_seconds'"),
        repeats=max(1, _whole(row.get("repeats", 1), f"point {number}: 'repeats'")),
        outliers=_whole(row.get("outliers", 0), f"point {number}: 'outliers'"),
    )


def read_drafting(row: Any, number: int) -> DraftingPoint:
    """One drafting time of a cost file; raises SpecprobeError as `read_point` does."""
    if not isinstance(row, dict):
        raise SpecprobeError(f"cost: drafting {number} is not an object")
    name = row.get("drafter")
    if not isinstance(name, str) or not name:
        raise SpecprobeError(f"cost: drafting {number}: 'drafter' must name one")
    return DraftingPoint(
        drafter=name,
        batch=_whole(row.get("batch"), f"drafting {number}: 'batch'"),
        depth=_whole(row.get("depth"), f"drafting {number}: 'depth'"),
        context=_whole(row.get("context"), f"drafting {number}: 'context'"),
        seconds=read_seconds(row.get("seconds"), f"drafting {number}: 'seconds'"),
        spread_seconds=read_seconds(row.get("spread_seconds", 0.0), f"drafting {number}: 'spread_seconds'"),
        repeats=max(1, _whole(row.get("repeats", 1), f"drafting {number}: 'repeats'")),
    )


def read_seconds(value: Any, what: str) -> float:
    """A number that can be a time in seconds: from 0, and not so large that arithmetic on it overflows."""
    return _number(value, what, LONGEST_SECONDS)


def _points_of_csv(path: Path) -> tuple[tuple[CostPoint, ...], tuple[DraftingPoint, ...]]:
    """Rounds of the target and, in rows that name a drafter and a depth, what it adds to a round."""
    rows = _csv_rows(path)
    points: list[CostPoint] = []
    drafting: list[DraftingPoint] = []
    for line, row in rows:
        values: dict[str, Any] = {}
        for name, text in row.items():
            if name == "drafter" or not text:
                continue
            try:
                values[name] = float(text) if "seconds" in name else int(text)
            except ValueError:
                raise SpecprobeError(f"line {line}: {name} {text[:40]!r} is no number") from None
        if row.get("drafter"):
            drafting.append(read_drafting({**values, "drafter": row["drafter"]}, line))
        else:
            points.append(read_point(values, line))
    return tuple(points), tuple(drafting)


def _csv_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    text = read_text(path, most_bytes=MOST_BYTES, what="a table of step times", instead="step times as JSON or CSV")
    reader = dict_reader(text)
    try:
        header = [(name or "").strip().lower() for name in reader.fieldnames or ()]
        if missing := [name for name in CSV_COLUMNS if name not in header]:
            raise SpecprobeError(f"no column {', '.join(missing)}; see 'Cost files' in docs/cost.md")
        known = {*CSV_COLUMNS, "drafter", "depth", "spread_seconds", "repeats", "outliers"}
        reader.fieldnames = header
        return [
            (reader.line_num, {name: (row[name] or "").strip() for name in header if name in known}) for row in reader
        ]
    except csv.Error as error:
        raise SpecprobeError(f"line {reader.line_num}: not CSV ({error}); mend or delete it") from None


def _memory(value: Any) -> Memory | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise SpecprobeError("cost: 'memory' must be an object")
    drafters = _object(value, "drafters")
    for name, sizes in drafters.items():
        if not isinstance(sizes, list) or len(sizes) != 2:
            raise SpecprobeError(f"cost: memory: drafters[{name!r}] must be [weight bytes, bytes of a token's cache]")
    return Memory(
        available_bytes=_bytes(value.get("available_bytes"), "memory: 'available_bytes'"),
        weight_bytes=_bytes(value.get("weight_bytes"), "memory: 'weight_bytes'"),
        kv_token_bytes=_bytes(value.get("kv_token_bytes"), "memory: 'kv_token_bytes'"),
        drafters={
            str(name): (_bytes(sizes[0], "memory: drafters"), _bytes(sizes[1], "memory: drafters"))
            for name, sizes in drafters.items()
        },
    )


def _seconds_by_name(document: Mapping[str, Any], key: str) -> dict[str, float]:
    return {str(name): read_seconds(value, f"{key}[{name!r}]") for name, value in _object(document, key).items()}


def _object(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    if value is not None and not isinstance(value, dict):
        raise SpecprobeError(f"cost: {key!r} must be an object")
    return value or {}


def _list(document: Mapping[str, Any], key: str, default: list[Any] | None = None) -> list[Any]:
    value = document.get(key, default)
    if not isinstance(value, list):
        raise SpecprobeError(f"cost: {key!r} must be a list")
    return value


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise SpecprobeError(f"cost: {what} must be a whole number that is not negative")
    return value


def _bytes(value: Any, what: str) -> float:
    return _number(value, what, 1e18)


def _number(value: Any, what: str, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise SpecprobeError(f"cost: {what} must be a number from 0 to {most:g}")
    return float(value)
