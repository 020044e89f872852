"""What reports are made of: blocks that lay themselves out for any width, and say the same in lines without layout.

`Block.lines` is for people who see a screen: tables where they fit, else one paragraph for each row; words are never
broken. `Block.facts` is for screen readers and logs: a name and a value for each fact, in a fixed order, no pictures.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from specprobe.legible import legible
from specprobe.terminal import ReportConsole

GAP = 2
# Where a header may be broken into lines: at spaces, and after a slash.
HEADER_PART = re.compile(r"[^\s/]+(?: %)?/?|/")
# A word with the unit that belongs to it.
WORD = re.compile(r"\S+(?: (?:%|ms|s|min|GB|MB)(?!\w)\S*)*")
Fact = tuple[str, str]
# Has every character: a line to be copied is not spelled otherwise, but for what controls terminals.
ANY = "utf-8"


@dataclass(frozen=True, slots=True)
class Medium:
    """What lines are laid out for: columns of the screen, and the encoding that it shows."""

    width: int
    encoding: str = "utf-8"


class Block(ABC):
    """One part of a report."""

    __slots__ = ()

    @abstractmethod
    def lines(self, medium: Medium) -> list[Text]:
        """Laid out; nothing wider than the medium, but for words that are."""

    @abstractmethod
    def facts(self) -> list[Fact]:
        """(name, value) pairs, each a line of plain output."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if isinstance(console, ReportConsole) and console.is_plain:
            shown = [legible_text(Text(f"{name}: {value}"), "ascii") for name, value in self.facts()]
        else:
            shown = self.lines(Medium(options.max_width, options.encoding))
        for line in shown:
            line.no_wrap, line.overflow = True, "ignore"
            yield line


@dataclass(frozen=True, slots=True)
class Cell:
    """What is drawn, and what it says in words; `shorter`: drawn instead where the table would be too wide."""

    drawn: Text | str
    said: str
    shorter: str = ""

    def followed_by(self, text: str) -> Cell:
        """With the same text after every form."""
        return Cell(f"{self.drawn}{text}", f"{self.said}{text}", f"{self.shorter}{text}" if self.shorter else "")


AnyCell = Cell | Text | str


@dataclass(frozen=True, slots=True)
class Sentence(Block):
    """A paragraph. `name`: what it tells, empty where other facts do; `lead`: how only the laid-out form begins."""

    name: str
    text: Text | str
    lead: Text | str = ""

    def lines(self, medium: Medium) -> list[Text]:
        """Wrapped at words."""
        return wrap(legible_text(Text.assemble(self.lead, self.text), medium.encoding), medium.width)

    def facts(self) -> list[Fact]:
        """One, on one line."""
        return [(self.name, " ".join(str(self.text).split()))] if self.name else []


@dataclass(frozen=True, slots=True)
class Copyable(Block):
    """A line to be copied: never wrapped, whatever the width. `comment`: what it is for."""

    comment: str
    line: str

    def lines(self, medium: Medium) -> list[Text]:  # noqa: ARG002
        """As it is, below its comment; for some engines it has several lines."""
        return [Text(legible(line, ANY)) for line in (f"# {self.comment}", *self.line.split("\n"))]

    def facts(self) -> list[Fact]:
        """One."""
        return [(f"{self.comment}, command", self.line)]


@dataclass(frozen=True, slots=True)
class Said(Block):
    """What a title or a picture nearby shows already, for those who do not see it."""

    name: str
    value: str

    def lines(self, medium: Medium) -> list[Text]:  # noqa: ARG002
        """None."""
        return []

    def facts(self) -> list[Fact]:
        """One."""
        return [(self.name, self.value)]


@dataclass(frozen=True, slots=True)
class Pairs(Block):
    """Names, and beside them what they stand for."""

    rows: Sequence[tuple[str, str]]

    def lines(self, medium: Medium) -> list[Text]:
        """Names in a column, values wrapped beside it; on a narrow screen below each other."""
        margin = max((cell_len(name) for name, _ in self.rows), default=0) + GAP
        if medium.width < 2 * margin:
            return Section([Sentence(name, value, lead=f"{name}: ") for name, value in self.rows]).lines(medium)
        shown = []
        for name, value in self.rows:
            wrapped = wrap(legible_text(Text(value), medium.encoding), medium.width - margin)
            for number, line in enumerate(wrapped):
                shown.append(Text.assemble(((name if number == 0 else "").ljust(margin), "dim"), line))
        return shown

    def facts(self) -> list[Fact]:
        """One for each."""
        return list(self.rows)


@dataclass(frozen=True, slots=True)
class Gap(Block):
    """An empty line between parts."""

    def lines(self, medium: Medium) -> list[Text]:  # noqa: ARG002
        """One, empty."""
        return [Text()]

    def facts(self) -> list[Fact]:
        """None."""
        return []


@dataclass(frozen=True, slots=True)
class Section(Block):
    """Blocks under a title; `name` is put before the names of their facts."""

    blocks: Sequence[Block]
    title: Text | str = ""
    name: str = ""
    indent: int = 0

    def lines(self, medium: Medium) -> list[Text]:
        """The title, then the blocks, indented."""
        inner = replace(medium, width=medium.width - self.indent)
        margin = " " * self.indent
        shown = wrap(legible_text(Text.assemble(self.title), medium.encoding), medium.width) if self.title else []
        for line in chain.from_iterable(block.lines(inner) for block in self.blocks):
            shown.append(Text(margin).append_text(line) if line.plain else line)
        return shown

    def facts(self) -> list[Fact]:
        """Those of the blocks."""
        before = f"{self.name}, " if self.name else ""
        return [(f"{before}{name}", value) for block in self.blocks for name, value in block.facts()]


@dataclass(frozen=True, slots=True)
class Column:
    """`header`: above the cells; `name`: in full, for facts."""

    header: str
    name: str = ""
    is_number: bool = True
    wraps: bool = False

    @property
    def full_name(self) -> str:
        """Of a value that stands alone."""
        return self.name or self.header


@dataclass(frozen=True, slots=True)
class Figures(Block):
    """A table, whose first `num_keys` columns say what a row is about.

    `repeats_keys`: whether a table shows a key again that is that of the row above. `styles`: of the rows.

    Where it does not fit, cells get shorter, headers are broken into lines, columns that may wrap get narrower, and at
    last each row becomes a paragraph.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[AnyCell]]
    num_keys: int = 1
    repeats_keys: bool = False
    styles: Sequence[str] = ()

    def lines(self, medium: Medium) -> list[Text]:
        """A table, or a paragraph for each row."""
        headers = [[column.header] for column in self.columns]
        rows = list(self._without_repeats())
        cells = [[_drawn(cell, medium) for cell in row] for row in rows]
        if _total(_widest(headers, cells)) > medium.width:
            cells = [[_drawn(cell, medium, is_short=True) for cell in row] for row in rows]
        widths = _widest(headers, cells)
        if _total(widths) > medium.width:
            headers = [HEADER_PART.findall(column.header) or [""] for column in self.columns]
            widths = self._narrowed(_widest(headers, cells), cells, medium.width)
        if _total(widths) > medium.width:
            return self._paragraphs(medium)
        return self._table(headers, cells, widths)

    def facts(self) -> list[Fact]:
        """One for each cell that is no key."""
        return [
            (f"{self._subject(row)}, {column.full_name}", said) for row in self.rows for column, said in self._said(row)
        ]

    def _without_repeats(self) -> Iterator[Sequence[AnyCell]]:
        above: list[str] = []
        for row in self.rows:
            keys = [_said(cell) for cell in row[: self.num_keys]]
            same = 0
            while not self.repeats_keys and same < min(len(above), self.num_keys - 1) and keys[same] == above[same]:
                same += 1
            yield [*([""] * same), *row[same:]]
            above = keys

    def _narrowed(self, widths: list[int], cells: Sequence[Sequence[Text]], limit: int) -> list[int]:
        """Columns that wrap give what is missing, down to their longest word."""
        narrowed = list(widths)
        for number, column in enumerate(self.columns):
            if column.wraps:
                words = chain.from_iterable(row[number].plain.split() for row in cells)
                longest = max(map(cell_len, [*column.header.split(), *words]), default=0)
                narrowed[number] = min(widths[number], max(longest, widths[number] + limit - _total(narrowed)))
        return narrowed

    def _table(self, headers: list[list[str]], cells: list[list[Text]], widths: list[int]) -> list[Text]:
        shown: list[Text] = []
        if any(map(any, headers)):
            height = max(map(len, headers))
            padded = [[""] * (height - len(header)) + header for header in headers]
            for parts in zip(*padded, strict=True):
                shown.append(self._row([Text(part, style="dim") for part in parts], widths))
        for number, row in enumerate(cells):
            wrapped = [wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
            for line in range(max(map(len, wrapped), default=0)):
                text = self._row([cell[line] if line < len(cell) else Text() for cell in wrapped], widths)
                if number < len(self.styles) and self.styles[number]:
                    text.stylize(self.styles[number])
                shown.append(text)
        return shown

    def _row(self, parts: Sequence[Text], widths: Sequence[int]) -> Text:
        line = Text()
        for column, part, width in zip(self.columns, parts, widths, strict=True):
            space = " " * (width - cell_len(part.plain))
            line.append(space if column.is_number else "").append_text(part)
            line.append(("" if column.is_number else space) + " " * GAP)
        line.rstrip()
        return line

    def _paragraphs(self, medium: Medium) -> list[Text]:
        shown: list[Text] = []
        for row in self.rows:
            values = [Text(f"{column.header or column.name} {said}") for column, said in self._said(row)]
            shown += Section([_Packed(values)], title=self._subject(row), indent=GAP).lines(medium)
        return shown

    def _subject(self, row: Sequence[AnyCell]) -> str:
        keys = zip(self.columns, row, strict=False)
        named = (f"{column.full_name} {_said(cell)}" if column.is_number else _said(cell) for column, cell in keys)
        return ", ".join([*named][: self.num_keys])

    def _said(self, row: Sequence[AnyCell]) -> list[tuple[Column, str]]:
        pairs = zip(self.columns[self.num_keys :], row[self.num_keys :], strict=True)
        return [(column, said) for column, said in ((column, _said(cell)) for column, cell in pairs) if said]


@dataclass(frozen=True, slots=True)
class _Packed(Block):
    """Short texts beside each other; one goes to the next line rather than be broken."""

    texts: Sequence[Text]

    def lines(self, medium: Medium) -> list[Text]:
        """Separated by semicolons."""
        shown: list[Text] = []
        for number, text in enumerate(self.texts):
            item = legible_text(text, medium.encoding).append(";" if number + 1 < len(self.texts) else "")
            if shown and cell_len(shown[-1].plain) + 1 + cell_len(item.plain) <= medium.width:
                shown[-1].append(" ").append_text(item)
            else:
                shown += wrap(item, medium.width)
        return shown

    def facts(self) -> list[Fact]:
        """None: the table tells them."""
        return []


def legible_text(text: Text, encoding: str) -> Text:
    """See `legible`; styles stay where they were."""
    if legible(text.plain, encoding) == text.plain:
        return text
    ends = sorted({0, len(text.plain), *(end for span in text.spans for end in (span.start, span.end))})
    shown = Text(style=text.style)
    for start, end in pairwise(ends):
        part = Text(legible(text.plain[start:end], encoding))
        for span in text.spans:
            if span.start <= start and end <= span.end:
                part.stylize(span.style)
        shown.append_text(part)
    return shown


def wrap(text: Text, width: int) -> list[Text]:
    """Lines of at most `width` cells, broken between words; a longer word has a line of its own."""
    lines: list[Text] = []
    for paragraph in text.split("\n", allow_blank=True):
        breaks, start, end = [], 0, 0
        for word in WORD.finditer(paragraph.plain):
            if end and cell_len(paragraph.plain[start : word.end()]) > width:
                breaks.append(word.start())
                start = word.start()
            end = word.end()
        for line in paragraph.divide(breaks):
            line.rstrip()
            lines.append(line)
    return lines


def _drawn(cell: AnyCell, medium: Medium, *, is_short: bool = False) -> Text:
    drawn = ((is_short and cell.shorter) or cell.drawn) if isinstance(cell, Cell) else cell
    return legible_text(drawn if isinstance(drawn, Text) else Text(drawn), medium.encoding)


def _said(cell: AnyCell) -> str:
    return " ".join((cell.said if isinstance(cell, Cell) else str(cell)).split())


def _widest(headers: Sequence[Sequence[str]], cells: Sequence[Sequence[Text]]) -> list[int]:
    columns = [[*header, *(row[number].plain for row in cells)] for number, header in enumerate(headers)]
    return [max(map(cell_len, column)) for column in columns]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
