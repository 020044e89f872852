"""Tables of published results: rows of text to cells that can be judged, each refusal with its reason.

The columns are those of docs/validation.md. Nothing here predicts.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specprobe.csv_text import dict_reader, read_text
from specprobe.errors import SpecprobeError
from specprobe.hardware import Hardware, find_hardware
from specprobe.roofline import Draft, Drafter, engine_overhead, find_drafter, method_kind
from specprobe.roofline_constants import Overhead
from specprobe.shapes import Quantisation, Shape, find_shape, quantisation_of

COLUMNS = ("engine", "model", "hardware", "method", "depth", "concurrency", "acceptance_length", "speedup")
# Rows with one of these flags are no measurement of what is predicted.
REFUSED_FLAGS = ("suspect", "headline", "no_baseline", "acceptance_only")
LEGACY_FLAG = "legacy_engine"
# vLLM's V1 engine is the default from here on.
FIRST_V1 = (0, 8)
# A figure outside is a slip, whatever it stands for.
SMALLEST, LARGEST = 1e-6, 1e9
MOST_BYTES = 256 * 2**20

Group = Literal["modern", "legacy", "anchored"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured cell whose facts are known. Unknown optional figures are None."""

    line: int
    group: Group
    source: str
    engine: str
    model: str
    method: str
    overhead: Overhead
    shape: Shape
    quantisation: Quantisation
    hardware: Hardware
    devices: int | None
    drafter: Drafter
    draft: Draft
    concurrency: float
    prompt_tokens: float | None
    output_tokens: float | None
    includes_prefill: bool
    acceptance_length: float
    speedup: float
    baseline_round_seconds: float | None
    baseline_tokens_per_second: float | None
    setting: tuple[str, ...]
    """What names the workload and set-up of the row, depth, tree and concurrency left out."""
    setup: tuple[str, ...]
    """What was served where: the part of the setting that decides how long a step without speculation takes."""
    likely_devices: int | None = None
    """For an anchored row, the number of devices that its baseline points to."""

    @property
    def batch(self) -> float:
        """Sequences that really ran together without speculation, by Little's law, else the nominal concurrency."""
        if self.baseline_tokens_per_second and self.baseline_round_seconds:
            running = self.baseline_tokens_per_second * self.baseline_round_seconds
            return min(max(running, 1.0), self.concurrency)
        return self.concurrency

    @property
    def measured_baseline_seconds(self) -> float | None:
        """Of a step without speculation, as the row has it."""
        if self.baseline_round_seconds:
            return self.baseline_round_seconds
        if self.baseline_tokens_per_second:
            return self.concurrency / self.baseline_tokens_per_second
        return None


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of a file and why its other rows were refused."""

    cells: tuple[Cell, ...]
    refused: Mapping[str, int]


def read_table(path: Path) -> Table:
    """Read a CSV of results. Raises SpecprobeError where it is none, or lacks a column that judging needs."""
    rows = _rows(path)
    cells: list[Cell] = []
    refused: Counter[str] = Counter()
    for line, row in rows:
        cell = _cell(line, row)
        if isinstance(cell, str):
            refused[cell] += 1
        else:
            cells.append(cell)
    if not cells:
        reasons = ", ".join(f"{reason} {count}" for reason, count in refused.most_common(5)) or "it has no rows"
        raise SpecprobeError(f"{path}: no row can be judged ({reasons}); see docs/validation.md for what a row needs")
    return Table(tuple(cells), dict(sorted(refused.items())))


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    text = read_text(path, most_bytes=MOST_BYTES, what="a table of results", instead="a CSV file of results")
    reader = dict_reader(text)
    try:
        header = [(name or "").strip().lower() for name in reader.fieldnames or ()]
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise SpecprobeError(f"{path}: no column {', '.join(missing)}; see docs/validation.md for the columns")
        reader.fieldnames = header
        return [
            # A short row has None for what it lacks, a long one a list under None.
            (reader.line_num, {name: (row[name] or "").strip() for name in header})
            for row in reader
        ]
    except csv.Error as error:
        raise SpecprobeError(f"{path}:{reader.line_num}: not CSV ({error}); mend or delete the line") from None


def _cell(line: int, row: Mapping[str, str]) -> Cell | str:
    """The cell of a row, or the reason why it has none."""
    flags = {flag.strip().lower() for flag in re.split(r"[;,|\s]+", row.get("flags", "")) if flag}
    for flag in REFUSED_FLAGS:
        if flag in flags:
            return flag
    try:
        legacy = LEGACY_FLAG in flags or _is_legacy(row["engine"], row.get("engine_version", ""))
        overhead = engine_overhead(row["engine"], legacy=legacy)
    except SpecprobeError:
        return "missing_engine"
    numbers = {name: _number(row.get(name, "")) for name in NUMBERS}
    if reason := _missing(row, numbers):
        return reason
    try:
        shape = find_shape(row["model"])
        quantisation = _quantisation(row.get("quantization", ""), shape)
        drafter = find_drafter(row["method"], row.get("drafter", ""), shape, quantisation)
    except SpecprobeError:
        return "missing_model_shape"
    try:
        hardware = find_hardware(row["hardware"])
    except SpecprobeError:
        return "missing_hardware"
    devices = numbers["num_gpus"]
    baseline_ms, baseline_rate = numbers["baseline_round_ms"], numbers["baseline_tokens_per_s"]
    if "per_user_throughput" in flags and baseline_rate:
        baseline_rate *= numbers["concurrency"] or 1
    if devices is None and not (baseline_ms or baseline_rate):
        return "missing_num_gpus"
    return Cell(
        line=line,
        group="legacy" if legacy else "modern" if devices else "anchored",
        source=row.get("source", ""),
        engine=row["engine"],
        model=row["model"],
        method=row["method"],
        overhead=overhead,
        shape=shape,
        quantisation=quantisation,
        hardware=hardware,
        devices=round(devices) if devices else None,
        drafter=drafter,
        draft=_draft(numbers),
        concurrency=numbers["concurrency"] or 1.0,
        prompt_tokens=numbers["prompt_tokens"],
        output_tokens=numbers["output_tokens"],
        includes_prefill="includes_prefill" in flags,
        acceptance_length=numbers["acceptance_length"] or 1.0,
        speedup=numbers["speedup"] or 1.0,
        baseline_round_seconds=baseline_ms / 1e3 if baseline_ms else None,
        baseline_tokens_per_second=baseline_rate,
        setting=tuple(row.get(name, "") for name in SETTING),
        setup=tuple(row.get(name, "") for name in SETUP),
    )


NUMBERS = (
    *("num_gpus", "depth", "draft_tokens", "topk", "concurrency", "prompt_tokens", "output_tokens"),
    *("acceptance_length", "speedup", "baseline_round_ms", "baseline_tokens_per_s"),
)
SETUP = ("source", "engine", "engine_version", "model", "quantization", "hardware", "num_gpus")
SETTING = (*SETUP, "method", "drafter", "temperature", "task", "prompt_tokens")


def _quantisation(name: str, shape: Shape) -> Quantisation:
    """As the row says, as the checkpoint says where the row's word is not known: it is no fact that must be there."""
    try:
        return quantisation_of(name, shape)
    except SpecprobeError:
        return quantisation_of("", shape)


def _missing(row: Mapping[str, str], numbers: Mapping[str, float | None]) -> str | None:
    if method_kind(row["method"]) is None:
        return "missing_method"
    for name in ("depth", "concurrency", "acceptance_length", "speedup"):
        if numbers[name] is None:
            return f"missing_{name}"
    return None


def _draft(numbers: Mapping[str, float | None]) -> Draft:
    depth = max(1, round(numbers["depth"] or 1))
    tokens = max(1.0, numbers["draft_tokens"] or depth)
    # A tree whose width is not published is as wide as its tokens spread over its depth.
    width = numbers["topk"] or max(1.0, tokens / depth)
    return Draft(depth, tokens, max(1, round(width)))


def _number(text: str) -> float | None:
    """A sensible positive number, None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and SMALLEST < value < LARGEST else None


def _is_legacy(engine: str, version: str) -> bool:
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return engine.strip().lower() == "vllm" and match is not None and (int(match[1]), int(match[2])) < FIRST_V1
