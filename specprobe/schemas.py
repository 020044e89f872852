"""The JSON Schemas (draft 2020-12) of the documents that commands print, one for each kind and version.

They lie beside this module as `schemas/NAME-VERSION.json`; what several of them have in common is in `parts.json` and
is put into each that refers to it, so that every schema stands alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from specprobe.errors import SpecprobeError
from specprobe.notices import inert

DIALECT = "https://json-schema.org/draft/2020-12/schema"
LIST_SCHEMA = "specprobe.schemas/1"
_FILE_NAME = re.compile(r"([a-z]+)-(\d+)\.json")
_REFERENCE = re.compile(r"#/\$defs/(\w+)")


@dataclass(frozen=True, slots=True, order=True)
class DocumentKind:
    """A kind of document in one version. `identifier` is what a document says under `schema`."""

    name: str
    version: int

    @property
    def identifier(self) -> str:
        """Such as `specprobe.run/1`."""
        return f"specprobe.{self.name}/{self.version}"

    def to_json(self) -> dict[str, Any]:
        """For the list of kinds."""
        return {
            "name": self.name,
            "version": self.version,
            "schema": self.identifier,
            "description": self.schema()["description"],
        }

    def schema(self) -> dict[str, Any]:
        """The JSON Schema, complete in itself."""
        own = _read(f"{self.name}-{self.version}.json")
        parts = {**_read("parts.json")["$defs"], **own.get("$defs", {})}
        needed = {name: parts[name] for name in sorted(_reached(own, parts))}
        return {"$schema": DIALECT, **own, **({"$defs": needed} if needed else {})}


@cache
def document_kinds() -> tuple[DocumentKind, ...]:
    """The newest version of every kind, by name."""
    found = (_FILE_NAME.fullmatch(path.name) for path in (files("specprobe") / "schemas").iterdir())
    newest = {kind.name: kind for kind in sorted(DocumentKind(m[1], int(m[2])) for m in found if m)}
    return tuple(newest.values())


def find_kind(name: str) -> DocumentKind:
    """The newest version of the kind of this name. Raises SpecprobeError where there is none."""
    for kind in document_kinds():
        if kind.name == name:
            return kind
    known = ", ".join(kind.name for kind in document_kinds())
    raise SpecprobeError(f"schema {inert(name)}: no such document; known are {known}")


def list_document() -> dict[str, Any]:
    """The `specprobe.schemas/1` document: every kind there is."""
    return {"schema": LIST_SCHEMA, "documents": [kind.to_json() for kind in document_kinds()]}


def _read(name: str) -> dict[str, Any]:
    return dict(json.loads((files("specprobe") / "schemas" / name).read_text("utf-8")))


def _reached(schema: dict[str, Any], parts: dict[str, Any]) -> set[str]:
    """The parts that a schema refers to, and those that these refer to."""
    reached: set[str] = set()
    waiting = list(_references({key: value for key, value in schema.items() if key != "$defs"}))
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += _references(parts[name])
    return reached


def _references(value: Any) -> Iterator[str]:
    return (match[1] for match in _REFERENCE.finditer(json.dumps(value)))
