"""JSON documents: how they are read and written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from specprobe import __version__
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.schema_check import first_fault


def read_document(path: Path, schema: str, remedy: str) -> dict[str, Any]:
    """A JSON object of this schema. Raises SpecprobeError with the path, what is wrong, and the remedy."""
    try:
        document = json.loads(path.read_bytes(), parse_constant=_refuse, parse_float=_finite)
    except OSError as error:
        raise SpecprobeError(f"{path}: {error.strerror or 'cannot be read'}; {remedy}") from None
    except (ValueError, RecursionError):
        raise SpecprobeError(f"{path}: not JSON; {remedy}") from None
    found = document.get("schema") if isinstance(document, dict) else None
    if found != schema:
        raise SpecprobeError(f"{path}: {_what_is_wrong(found, schema, remedy)}")
    return dict(document)


def read_own_document(path: Path, schema: str, remedy: str, again: str) -> dict[str, Any]:
    """A document that specprobe wrote, held to its published schema; `again`: what writes it anew, for the message."""
    document = read_document(path, schema, remedy)
    name = schema.removeprefix("specprobe.").partition("/")[0]
    fault = first_fault(document, name)
    if fault is not None:
        raise SpecprobeError(f"{path}: damaged {name} ({fault}); {again}")
    return document


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


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number too large to compute with")
    return number


def dump_document(document: Mapping[str, Any]) -> str:
    """One line of JSON in ASCII, so that no terminal, encoding or control character can spoil it; NaN never gets in."""
    return dump_value(document)


def dump_value(value: Any) -> str:
    """A part of a document, as `dump_document` writes it."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
