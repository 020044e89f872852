"""JSON documents: how they are read and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specprobe import __version__
from specprobe.errors import SpecprobeError
from specprobe.notices import inert


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
        raise SpecprobeError(f"{path}: {_what_is_wrong(found, schema, remedy)}")
    return dict(document)


def _what_is_wrong(found: object, schema: str, remedy: str) -> str:
    """`found` is what a document says under `schema`, `schema` what is read here: specprobe.NAME/VERSION."""
    name, _, version = schema.removeprefix("specprobe.").partition("/")
    if not isinstance(found, str):
        return f"names no schema, so it is no document of specprobe; {remedy}"
    its_name, _, its_version = found.removeprefix("specprobe.").partition("/")
    if not found.startswith("specprobe.") or its_name != name:
        return f"schema is {inert(found)}, and {schema} is needed; {remedy}"
    return (
        f"schema is {inert(found)}: version {inert(its_version)} of {name} is not known to specprobe {__version__}, "
        f"which reads version {version}; use the specprobe that wrote it, or write it again with this one"
    )


def dump_document(document: Mapping[str, Any]) -> str:
    """One line of JSON in ASCII, so that no terminal, encoding or control character can spoil it; NaN never gets in."""
    return json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
