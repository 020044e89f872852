"""A run as a table: one row for each response, drafter, temperature, draft sampling and depth, as CSV or Parquet.

Rows are made and written block by block, so that only the run itself is in memory.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from specprobe.acceptance import Acceptance
from specprobe.errors import SpecprobeError
from specprobe.paths import private_file
from specprobe.progress import SILENT, Advance, Stages, where_long
from specprobe.run import Run
from specprobe.run_files import check_out

SCHEMA = "specprobe.export/1"
TEXT_COLUMNS = ("id", "group", "drafter", "config", "draft_sampling")
WHOLE_COLUMNS = ("prompt", "sample", "result", "depth", "prompt_tokens", "output_tokens")
BLOCK_ROWS = 16_384
# Writing so many takes a second or more.
MANY_ROWS = 100_000
# What makes a spreadsheet take a cell for a formula (also in full width, and after a tab or a line end), and quotes
# that stand before it already, so that removing one quote gives the text back.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """What a file of rows holds."""

    file: Path
    rows: int
    columns: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The `specprobe.export/1` document."""
        written = {"file": str(self.file), "rows": self.rows, "columns": list(self.columns)}
        return {"schema": SCHEMA, "rows": written}


def row_columns(run: Run) -> tuple[str, ...]:
    """The names of the columns, in order; `accepted_at_1`... reach to the run's largest depth."""
    deepest = max((acceptance.depth for acceptance in run.results), default=0)
    return (
        *("id", "prompt", "sample", "group", "result", "drafter", "config", "temperature", "draft_sampling", "depth"),
        *("prompt_tokens", "output_tokens", "rounds", "drafted_rounds", "drafted_tokens", "accepted_tokens"),
        *(f"accepted_at_{position}" for position in range(1, deepest + 1)),
    )


def run_rows(run: Run) -> Iterator[tuple[Cell, ...]]:
    """The rows under `row_columns`, results in the run's order, then responses, then depths.

    Counts are those of `per_prompt` in a run's document: whole numbers for one-hot drafts, expectations given the text
    for sampled ones. Positions beyond a row's depth are None.
    """
    width = sum(name.startswith("accepted_at_") for name in row_columns(run))
    for number, acceptance in enumerate(run.results, 1):
        yield from _result_rows(run, acceptance, number, width)


def write_rows(run: Run, path: Path, stages: Stages = SILENT) -> WrittenRows:
    """Write the rows to `path`, CSV or Parquet by its name. Raises SpecprobeError where that is neither, or is in use
    by something that is no file.
    """
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    writer = writers.get(path.suffix.lower())
    if writer is None:
        raise SpecprobeError(f"--rows {path}: name a file that ends in .csv or .parquet")
    check_out(path, "--rows")
    columns = row_columns(run)
    total = sum(len(a.ids) * (a.depth + 1 - a.first_depth) for a in run.results)
    told = where_long(stages, total >= MANY_ROWS)
    with private_file(path.absolute()) as file, told.track("writing the rows", total) as advance:
        count = writer(file, columns, _told(run_rows(run), advance))
    return WrittenRows(path, count, columns)


def _told(rows: Iterator[tuple[Cell, ...]], advance: Advance) -> Iterator[tuple[Cell, ...]]:
    """The rows, each block of them counted as done."""
    for number, row in enumerate(rows, 1):
        yield row
        if number % BLOCK_ROWS == 0:
            advance(number, f"{number:,} rows")


def safe_cell(cell: Cell) -> Cell:
    """Text that a spreadsheet would take for a formula with a quote before it; anything else as it is."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _result_rows(run: Run, acceptance: Acceptance, number: int, width: int) -> Iterator[tuple[Cell, ...]]:
    responses = run.responses_at(acceptance.temperature)
    config = json.dumps(dict(acceptance.config), sort_keys=True)
    result = (number, _text(acceptance.drafter), _text(config), acceptance.temperature, acceptance.draft_sampling)
    prompts, samples = responses.prompts.tolist(), responses.samples.tolist()
    prompt_tokens, output_tokens = responses.prompt_tokens.tolist(), responses.output_tokens.tolist()
    tables = (acceptance.rounds, acceptance.drafted_rounds, acceptance.drafted_tokens, acceptance.accepted_tokens)
    for p, identifier in enumerate(acceptance.ids):
        group = responses.groups[p] if responses.groups else None
        request = (_text(identifier), prompts[p], samples[p], None if group is None else _text(group))
        lengths = (prompt_tokens[p], output_tokens[p])
        by_depth = zip(*(table[p].tolist() for table in tables), acceptance.accepted_at[p].tolist(), strict=True)
        for depth, (*counts, accepted_at) in enumerate(by_depth, 1):
            if depth < acceptance.first_depth:
                continue
            beyond = (None,) * (width - depth)
            yield (*request, *result, depth, *lengths, *counts, *accepted_at[:depth], *beyond)


def _text(value: str | int) -> str:
    """As UTF-8 can hold it: a damaged run may bring halves of characters."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _write_csv(file: IO[bytes], columns: Sequence[str], rows: Iterator[tuple[Cell, ...]]) -> int:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    # With the line ends of RFC 4180, so that cells with any line end in them are quoted.
    writer = csv.writer(text)
    writer.writerow(columns)
    count = 0
    for row in rows:
        writer.writerow([safe_cell(cell) for cell in row])
        count += 1
    text.detach()
    return count


def _write_parquet(file: IO[bytes], columns: Sequence[str], rows: Iterator[tuple[Cell, ...]]) -> int:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    # Counts of sampled drafts are expectations; one type for both lets files of several runs be read as one.
    kinds = {**dict.fromkeys(TEXT_COLUMNS, pa.string()), **dict.fromkeys(WHOLE_COLUMNS, pa.int64())}
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in columns])
    count = 0
    with ParquetWriter(file, schema) as writer:
        while block := list(islice(rows, BLOCK_ROWS)):
            arrays = [pa.array(cells, kind) for cells, kind in zip(zip(*block, strict=True), schema.types, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(block)
    return count
