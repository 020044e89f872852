"""Objects of a JSON text: an array's, a document's own, or one a line; each with the place it stands at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specprobe.errors import SpecprobeError

Located = tuple[str, Mapping[str, Any]]


def json_rows(path: Path, text: str, *, advice: str, list_key: str | None = None) -> Iterator[Located]:
    """(place, object) for each row; `list_key`: where an object keeps its rows. `advice` ends the error for no JSON.

    Raises SpecprobeError naming the place of what is no JSON or no object.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise SpecprobeError(f"{path}: not JSON that can be read; {advice}") from None
    except ValueError:
        yield from _json_lines(path, text, advice)
        return
    is_object = isinstance(document, dict)
    rows = document.get(list_key, [document]) if is_object and list_key else [document] if is_object else document
    if not isinstance(rows, list):
        raise SpecprobeError(f"{path}: {list_key or 'the document'}: must be a list of rows")
    for number, row in enumerate(rows, 1):
        where = str(path) if rows == [document] else f"{path}: row {number}"
        yield where, _object(row, where, advice)


def _json_lines(path: Path, text: str, advice: str) -> Iterator[Located]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise SpecprobeError(f"{path}:{number}: not JSON; mend or delete the line") from None
            yield f"{path}:{number}", _object(row, f"{path}:{number}", advice)


def _object(row: Any, where: str, advice: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise SpecprobeError(f"{where}: is no object; {advice}")
    return row
