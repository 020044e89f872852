"""JSON documents: how they are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dump_document(document: Mapping[str, Any]) -> str:
    """One line of JSON in ASCII, so that no terminal, encoding or control character can spoil it; NaN never gets in."""
    return json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
