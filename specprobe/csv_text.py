"""Tables of figures that a user wrote: their text, and rows of CSV by the name of their column."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from specprobe.errors import SpecprobeError

# A longer cell is no figure; logs are read elsewhere and may have longer ones.
LONGEST_CELL = 2**17


def read_text(path: Path, *, most_bytes: int, what: str, instead: str) -> str:
    """The text of a file, in UTF-8. Raises SpecprobeError where it cannot be read, is no text or is too large, in words
    that say `what` it should have been and what to give `instead`.
    """
    try:
        with path.open("rb") as file:
            # Of a device or a pipe the size is not known before.
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise SpecprobeError(f"{path}: larger than {most_bytes >> 20} MiB; {what} is not")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise SpecprobeError(f"{path}: {error.strerror or 'cannot be read'}; give {instead}") from None
    except UnicodeDecodeError:
        raise SpecprobeError(f"{path}: not UTF-8 text; give {instead}, in UTF-8") from None


def dict_reader(text: str) -> csv.DictReader[str]:
    """Rows of a table of figures; raises csv.Error at a cell that is longer than any figure."""
    # The limit is the whole process's, and reading a log sets another.
    csv.field_size_limit(LONGEST_CELL)
    return csv.DictReader(io.StringIO(text, newline=""))
