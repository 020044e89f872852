"""What a page is made of: tables, figures, facts. All text in it is plain; the template escapes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from specprobe.notices import inert

LONGEST_NAME = 60


def shown(text: object, limit: int = LONGEST_NAME) -> str:
    """A name out of a log, a file or a document, as the page shows it."""
    return inert(str(text), limit)


def method_names(methods: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, ...]:
    """What the page calls methods, from their labels and settings: by settings too where labels are equal."""
    names = []
    for label, config in methods:
        alike = [other for same, other in methods if same == label]
        telling = [key for key in config if any(other.get(key) != config[key] for other in alike)]
        settings = ", ".join(f"{key} {config[key]}" for key in telling)
        names.append(shown(label) + (f" ({shown(settings)})" if settings else ""))
    return tuple(names)


@dataclass(frozen=True, slots=True)
class DataTable:
    """Rows of text. The first `num_text` columns hold words, the rest numbers; the first cell of a row is its head.

    `breaks`: whether words may be broken anywhere, as hashes have to be.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text: int = 1
    note: str = ""
    breaks: bool = False


@dataclass(frozen=True, slots=True)
class FigureView:
    """A drawing with its caption, and the numbers in it as a table."""

    caption: str
    svg: Markup
    table: DataTable
    note: str = ""


@dataclass(frozen=True, slots=True)
class FigureGroup:
    """Figures that belong together; `heading` is empty where the page has one group only."""

    heading: str
    figures: tuple[FigureView, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a list of facts: a word and what it is; `is_code`: a hash or a command."""

    name: str
    value: str
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class FactGroup:
    """Facts under a heading."""

    heading: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A speed-up: `step` from -5 to 5 says how far it is from none; `edges`: sides at which gain turns into loss."""

    text: str
    step: int
    is_best: bool
    edges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The speed-up of one drafter: rows by concurrency, columns by depth. `asked`: rows that a verdict is about."""

    label: str
    depths: tuple[int, ...]
    rows: tuple[tuple[int, bool, tuple[HeatCell, ...]], ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """Where an interval of speed-ups lies on a line from 0 to 100 percent of its length; None: no interval."""

    one: float
    point: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class VerdictCard:
    """The answer for one traffic: a word, a sentence, and the figures behind it."""

    traffic: str
    verdict: str
    word: str
    headline: str
    speedup: str
    interval: str
    scale: Scale
    columns: tuple[str, str]
    rows: tuple[tuple[str, str, str], ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """What to type, and for which traffic."""

    title: str
    line: str
