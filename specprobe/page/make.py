"""`report --html`: from files to a page."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.page.comparison_page import comparison_page
from specprobe.page.render import render_page
from specprobe.page.run_page import PageInput, run_page
from specprobe.page.stored_advice import StoredAdvice, load_advice
from specprobe.progress import SILENT, Stages
from specprobe.run_document import load_run
from specprobe.run_files import last_recommendation
from specprobe.summary import summarize_run
from specprobe.units import format_plural

SCHEMA = "specprobe.page/1"


@dataclass(frozen=True, slots=True)
class MadePage:
    """The bytes of a page as text, and what it was made from."""

    html: str
    given: tuple[PageInput, ...]

    def in_words(self, path: Path) -> str:
        """What was written, for people."""
        size = f"{len(self.html.encode('utf-8')) / 1000:,.0f} kB"
        verdicts = sum(one.advice is not None for one in self.given)
        without = len(self.given) - verdicts
        told = f"{inert(str(path), 200)}: {size}, {format_plural(len(self.given), 'run')}"
        if without:
            told += f", {without} without a verdict (specprobe recommend RUN adds one)"
        lines = [f"verdict of {inert(one.label, 80)}: {_of_file(one.advice)}" for one in self.given if one.advice]
        return "\n".join((told, *lines))

    def to_json(self, path: Path) -> dict[str, Any]:
        """The `specprobe.page/1` document: what was written where."""
        content = self.html.encode("utf-8")
        return {
            "schema": SCHEMA,
            "path": str(path),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "runs": [
                {
                    "label": one.label,
                    "sha256": one.sha256,
                    "digest": one.run.digest,
                    "recommendation_sha256": one.advice.sha256 if one.advice else None,
                    "recommendation": one.advice.file if one.advice else None,
                    "recommendation_kept_at": one.advice.kept_at if one.advice else None,
                }
                for one in self.given
            ],
        }


def make_page(
    paths: Sequence[Path], labels: Sequence[str], recommendations: Sequence[Path], stages: Stages = SILENT
) -> MadePage:
    """The page of one run, or of several side by side.

    `labels`: what several runs are called, in their order; none: by the names of their files. `recommendations`: whose
    verdicts to show, each with the run it was made from; none: of each run the newest that is kept.
    """
    if labels and len(labels) != len(paths):
        raise SpecprobeError(
            f"--label: {len(labels)} for {len(paths)} runs; give one for each, in their order, or none"
        )
    advices = [load_advice(path) for path in recommendations]
    names = _distinct(labels or [path.stem for path in paths])
    given = []
    with stages.track("reading the runs", len(paths)) as advance:
        for path, name in zip(paths, names, strict=True):
            given.append(_read(path, name, advices, stages))
            advance(len(given), "")
    digests = {one.run.digest for one in given}
    made_from: dict[str, Path] = {}
    for path, advice in zip(recommendations, advices, strict=True):
        if advice.run_digest not in digests:
            raise SpecprobeError(f"{path}: this recommendation was made from another run; recommend from this one")
        if (other := made_from.setdefault(advice.run_digest, path)) is not path:
            raise SpecprobeError(f"{path}: made from the same run as {other}, and a page shows one; leave one out")
    stages.say("drawing the figures")
    page = run_page(given[0]) if len(given) == 1 else comparison_page(given)
    return MadePage(render_page(page), tuple(given))


def _read(path: Path, label: str, advices: Sequence[StoredAdvice], stages: Stages) -> PageInput:
    """A run and what follows from it, with the recommendation made from it."""
    run = load_run(path, stages)
    digest = run.digest
    kept = None if advices else last_recommendation(digest)
    return PageInput(
        label=label,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        run=run,
        summary=summarize_run(run, stages),
        advice=load_advice(kept) if kept else next((a for a in advices if a.run_digest == digest), None),
    )


def _of_file(advice: StoredAdvice) -> str:
    when = f", kept {advice.kept_at}" if advice.kept_at else ""
    return f"{inert(advice.file, 200)} (made from this run{when})"


def _distinct(labels: Sequence[str]) -> list[str]:
    """Equal labels are numbered."""
    return [
        f"{label} ({1 + labels[:number].count(label)})" if labels.count(label) > 1 else label
        for number, label in enumerate(labels)
    ]
