"""Warnings as data: the code that measures decides which one, whoever prints decides how it looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know although the work went on.

    `code` is a stable snake_case word that scripts may match; `message` is one sentence saying what was seen, why
    it matters and what to do. Neither ever holds text from a prompt or an answer.
    """

    code: str
    message: str


def inert(text: str, limit: int = 40) -> str:
    """`text` (a key or a name out of a log) with control and invisible characters escaped, cut to `limit`."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
