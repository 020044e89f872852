"""The simulation study of docs/statistics.md: a quick one finds again what the page shows, and what it says of that."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.studies import statistics
from tests.studies.tables import share_error
from tests.studies.workloads import Kind, Traffic, populate

PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"
# Standard errors that some cell of five hundred may be off by.
BOUND = 4.5

Table = dict[tuple[str, str], list[str]]


def cells(markdown: str) -> Table:
    """Cells of a table by the first cell of their row, with the second where it is a size, and by their header."""
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown.splitlines()]
    has_size = header[1] in ("units", "prompts")
    found: Table = {}
    for row in rows:
        for name, cell in zip(header[2 if has_size else 1 :], row[2 if has_size else 1 :], strict=True):
            found[f"{row[0]}, {row[1]}" if has_size else row[0], name] = [cell]
    return found


def tables(page: str) -> dict[str, Table]:
    """Every table below a title of the third level."""
    found = re.findall(r"^### (.+?)\n\n(\|.*?)(?:\n\n|\Z)", page, re.M | re.S)
    return {title: cells(markdown) for title, markdown in found}


@pytest.fixture(scope="module")
def quick() -> list[statistics.Section]:
    return list(statistics.report(statistics.run(statistics.QUICK)))


@pytest.mark.slow
def test_a_quick_study_finds_what_the_page_shows(quick):
    shown = tables(PAGE.read_text())
    assert list(shown) == [section.title for section in quick]
    compared = 0
    for section in quick:
        for key, (cell,) in cells(section.table).items():
            if key not in shown[section.title] or not cell:
                continue
            (on_page,) = shown[section.title][key]
            if "±" in cell:
                (now, error), (then, other) = (map(float, one.split(" ± ")) for one in (cell, on_page))
                # The last digit is rounded.
                assert abs(now - then) <= BOUND * np.hypot(error + 0.05, other + 0.05), (section.title, key)
            elif section.draws and re.fullmatch(r"\d+\.\d", cell):
                now, then = float(cell) / 100, float(on_page) / 100
                # A share near 0 or 1 is known no better than by a few draws.
                error = share_error(np.clip(then, 2 / section.draws, 1 - 2 / section.draws), section.draws)
                assert abs(now - then) <= BOUND * error, (section.title, key)
            else:
                continue
            compared += 1
    assert compared > 250


def test_a_walk_counts_what_its_chances_say():
    rng = np.random.default_rng(0)
    traffic = Traffic(4, (Kind(7e6, 3e6, 60, 0.5, drafted=0.6),))
    counts = populate(rng, traffic, 2000).counts
    at_risk, accepted = counts.at_risk_at.sum(axis=0), counts.accepted_at.sum(axis=0)
    assert (np.abs(accepted / at_risk - 0.7) < 4 * np.sqrt(0.21 / at_risk)).all()
    assert counts.drafted_rounds.sum() / counts.rounds.sum() == pytest.approx(0.6, abs=0.01)
    # What a round emits: what it accepted and one token, but for a last one that drafts fill up.
    population = populate(rng, traffic, 500)
    filled = population.counts.rounds + population.counts.accepted_at.sum(axis=1) - population.emitted
    assert set(filled.tolist()) == {0, 1}
