"""Text for terminals: pictures and signs in ASCII where it lacks them; what it lacks otherwise, and what would move its
cursor or change its colours, escaped.
"""

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
    """One line of `text` with nothing that `encoding` lacks, and nothing that controls a terminal, a line end included.

    It is as wide as it will be on the screen.

    Names out of logs, checkpoints and servers are escaped where they are put into a sentence; this holds for all else.
    """
    if text.isascii() and text.isprintable():
        return text
    for cells, in_ascii in PICTURES:
        if any(cell in text for cell in cells.strip()) and not _can_show(cells, encoding):
            text = text.translate(in_ascii)
    return "".join(_shown(c, encoding) for c in text)


def _shown(character: str, encoding: str) -> str:
    if not character.isprintable():
        return character.encode("unicode_escape").decode("ascii")
    return character if _can_show(character, encoding) else IN_ASCII.get(character) or _escaped(character)


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _escaped(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode("ascii")
