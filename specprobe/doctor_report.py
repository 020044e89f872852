"""A Checkup as something rich can print."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specprobe.doctor import Checkup
from specprobe.notices import inert
from specprobe.units import format_plural

STYLES = {"ok": "green", "note": "yellow", "missing": "bold red"}
LONGEST = 200


def render_checkup(checkup: Checkup) -> RenderableType:
    """One row for each check, then what to do, then whether the main job can run."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in checkup.checks:
        standing = Text(check.standing, style=STYLES[check.standing])
        table.add_row(standing, Text(check.name), Text(inert(check.found, LONGEST), overflow="fold"))
    remedies = [Text(f"{check.name}: {check.remedy}") for check in checkup.checks if check.remedy]
    missing = sum(check.standing == "missing" for check in checkup.checks)
    verdict = (
        Text("Ready: specprobe analyze PROMPTS")
        if checkup.is_ready
        else Text(f"Not ready: {format_plural(missing, 'thing')} missing", style=STYLES["missing"])
    )
    return Group(table, *((Text(), *remedies) if remedies else ()), Text(), verdict)
