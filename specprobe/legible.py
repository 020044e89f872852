"""Text for terminals that do not have every character: pictures and signs in ASCII, anything else escaped."""

from __future__ import annotations

# Cells of bars, by eighths of their width, and of curves, by eighths of their height.
BAR_CELLS = " ▏▎▍▌▋▊▉█"
CURVE_CELLS = "▁▂▃▄▅▆▇█"
# A picture is drawn in one alphabet: a code page that has half of the cells would mix two.
PICTURES = (
    (CURVE_CELLS, str.maketrans(CURVE_CELLS, "_.:-=+*#")),
    (BAR_CELLS, str.maketrans(BAR_CELLS, "     ####")),
)
IN_ASCII = {"…": "...", "×": "x", "÷": "/", "→": "->", "–": "-", "—": "-", "’": "'", "‘": "'", "“": '"', "”": '"'}


def legible(text: str, encoding: str) -> str:
    """`text` with nothing that `encoding` lacks, and as wide on the screen as it will be."""
    if text.isascii():
        return text
    for cells, in_ascii in PICTURES:
        if any(cell in text for cell in cells.strip()) and not _can_show(cells, encoding):
            text = text.translate(in_ascii)
    return "".join(c if _can_show(c, encoding) else IN_ASCII.get(c) or _escaped(c) for c in text)


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _escaped(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode("ascii")
