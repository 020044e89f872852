"""CSV text that a user wrote: rows by the name of their column."""

from __future__ import annotations

import csv
import io

# A longer cell is no figure; logs are read elsewhere and may have longer ones.
LONGEST_CELL = 2**17


def dict_reader(text: str) -> csv.DictReader[str]:
    """Rows of a table of figures; raises csv.Error at a cell that is longer than any figure."""
    # The limit is the whole process's, and reading a log sets another.
    csv.field_size_limit(LONGEST_CELL)
    return csv.DictReader(io.StringIO(text, newline=""))
