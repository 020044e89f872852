"""A matplotlib figure as SVG inside a page: colours from the page's style sheet, text as text, no ids to clash.

A figure is drawn in stand-in colours (`INK`, `SERIES`, ...); each becomes a CSS variable, so that one drawing serves
light, dark and print.
"""

from __future__ import annotations

import io
import re
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import style
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, MUTED, GRID, SURFACE = "#000001", "#000002", "#000003", "#000004"
SERIES = ("#000011", "#000012", "#000013", "#000014", "#000015", "#000016")
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    SURFACE: "var(--surface)",
    **{color: f"var(--series-{number})" for number, color in enumerate(SERIES, 1)},
}

# User units of the drawing are CSS pixels.
PIXELS_PER_INCH = 72
_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.size": 12.5,
    # A dollar sign in a name is no formula.
    "text.parse_math": False,
    "axes.unicode_minus": False,
}
_COLOR = re.compile(r"#0000(?:0[1-4]|1[1-6])\b")
_DECIMALS = re.compile(r"-?\d+\.\d{3,}")
_FONT = re.compile(r"font:\s*([\d.]+)px[^;]*;?")


def drawing_settings(key: str) -> Any:
    """The context in which a figure is to be drawn and written; `key`: its name on the page, which seeds its ids."""
    # Whatever a reader's own matplotlibrc says.
    return style.context(["default", {**_SETTINGS, "svg.hashsalt": key}])


def to_svg(figure: Figure, key: str, title: str, description: str) -> Markup:
    """The `<svg>` element, an image to assistive technology, named by `title` and described by `description`.

    Same figure, same key, same bytes.
    """
    written = io.StringIO()
    FigureCanvasSVG(figure)
    with drawing_settings(key):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    # Its own writer made this text a moment ago: nothing of it comes from outside but escaped text.
    root = ElementTree.fromstring(written.getvalue().encode("utf-8"))
    _tidy(root, key)
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    root.attrib = {
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{width:g}",
        "height": f"{height:g}",
        "role": "img",
        "aria-labelledby": f"{key}-title {key}-description",
    }
    for position, (name, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(
            f"{{{_SVG}}}{name}", {"id": f"{key}-{'title' if name == 'title' else 'description'}"}
        )
        element.text = text
        root.insert(position, element)
    ElementTree.register_namespace("", _SVG)
    # Markup, since its text has been escaped by the writer.
    return Markup(ElementTree.tostring(root, encoding="unicode").replace(f' xmlns="{_SVG}"', ""))


def _tidy(root: ElementTree.Element, key: str) -> None:
    """Drop what belongs to a file of its own, name what is referred to by the page's key, set the page's colours."""
    text = ElementTree.tostring(root, encoding="unicode")
    referred = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    kept = {name for pair in referred for name in pair if name}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
        attributes = parent.attrib
        name = attributes.pop("id", None)
        if name in kept:
            attributes["id"] = f"{key}-{name}"
        if link := attributes.pop(_LINK, None):
            attributes["href"] = f"#{key}-{link.removeprefix('#')}"
        if "clip-path" in attributes:
            attributes["clip-path"] = attributes["clip-path"].replace("url(#", f"url(#{key}-")
        if "style" in attributes:
            styled = _COLOR.sub(lambda match: _VARIABLES[match[0]], attributes["style"])
            attributes["style"] = _FONT.sub(r"font-size: \1px;", styled)
        for attribute in ("d", "x", "y", "transform", "width", "height"):
            if attribute in attributes:
                attributes[attribute] = _DECIMALS.sub(lambda match: f"{float(match[0]):.2f}", attributes[attribute])
