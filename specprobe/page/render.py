"""From what a page shows to the bytes of one HTML file."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from specprobe import __version__
from specprobe.page.comparison_page import ComparisonPage
from specprobe.page.glossary import GLOSSARY
from specprobe.page.run_page import RunPage


def render_page(page: RunPage | ComparisonPage) -> str:
    """One self-contained HTML file. Same page, same bytes."""
    template = "run.html.j2" if isinstance(page, RunPage) else "comparison.html.j2"
    style = Markup(_read("style.css").strip())
    rendered = (
        _environment().get_template(template).render(page=page, style=style, glossary=GLOSSARY, version=__version__)
    )
    # The lines that hold nothing but a template's statements.
    return "\n".join(line.rstrip() for line in rendered.splitlines() if line.strip()) + "\n"


@cache
def _environment() -> Environment:
    """Everything is escaped, and a name that does not exist is an error."""
    return Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_keep_percents,
    )


def _keep_percents(value: object) -> object:
    """No line breaks between a number and its percent sign; markup, such as figures and code, stays as it is."""
    return value.replace(" %", "\u00a0%") if isinstance(value, str) and not isinstance(value, Markup) else value


def _read(name: str) -> str:
    return (files("specprobe.page") / "templates" / name).read_text("utf-8")
