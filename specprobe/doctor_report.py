"""A Checkup as something rich can print."""

from __future__ import annotations

from rich.text import Text

from specprobe.blocks import Block, Column, Figures, Gap, Section, Sentence
from specprobe.doctor import Checkup
from specprobe.notices import inert
from specprobe.units import format_plural

STYLES = {"ok": "green", "note": "yellow", "missing": "bold red"}
LONGEST = 200


def render_checkup(checkup: Checkup) -> Block:
    """One row for each check, then what to do, then whether the main job can run."""
    missing = sum(check.standing == "missing" for check in checkup.checks)
    verdict = (
        Text("Ready: specprobe analyze PROMPTS")
        if checkup.is_ready
        else Text(f"Not ready: {format_plural(missing, 'thing')} missing", style=STYLES["missing"])
    )
    columns = [
        Column("", "standing", is_number=False),
        Column("", "check", is_number=False),
        Column("", "found", is_number=False, wraps=True),
    ]
    rows = [
        (Text(check.standing, style=STYLES[check.standing]), check.name, inert(check.found, LONGEST))
        for check in checkup.checks
    ]
    remedies = [
        Sentence(f"{check.name}, what to do", check.remedy, lead=f"{check.name}: ")
        for check in checkup.checks
        if check.remedy
    ]
    told = [Gap(), *remedies] if remedies else []
    return Section([Figures(columns, rows, num_keys=2, repeats_keys=True), *told, Gap(), Sentence("verdict", verdict)])
