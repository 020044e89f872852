"""JSON documents: how they are read and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specprobe.errors import SpecprobeError


def read_document(path: Path, schema: str, remedy: str) -> dict[str, Any]:
    """A JSON object of this schema. Raises SpecprobeError with the path, what is wrong, and the remedy."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise SpecprobeError(f"{path}: {error.strerror or 'cannot be read'}; {remedy}") from None
    except (ValueError, RecursionError):
        raise SpecprobeError(f"{path}: not JSON; {remedy}") from None
    found = document.get("schema") if isinstance(document, dict) else None
    if found != schema:
        raise SpecprobeError(f"{path}: schema is {found!r}; this version reads {schema!r}")
    return dict(document)


def dump_document(document: Mapping[str, Any]) -> str:
    """One line of JSON in ASCII, so that no terminal, encoding or control character can spoil it; NaN never gets in."""
    return json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
