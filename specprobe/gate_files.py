"""Where `gate` leaves its results for CI: a JUnit file, and the summary of the step."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specprobe.gate import GateResult
from specprobe.gate_report import junit_xml, step_summary
from specprobe.paths import file_errors, write_shared
from specprobe.run_files import check_out

# GitHub Actions names the file that a step's summary is appended to.
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True)
class GateFiles:
    """`junit` is written anew; `summary` is appended to, as GitHub's is."""

    junit: Path | None
    summary: Path | None

    def check(self, inputs: Iterable[Path | None] = ()) -> None:
        """Refuse what cannot become a file, or is read, before anything is decided."""
        for path, option in ((self.junit, "--junit"), (self.summary, "--summary")):
            if path is not None:
                check_out(path, option, inputs)

    def write(self, result: GateResult) -> None:
        """Leave the result in both."""
        if self.junit is not None:
            write_shared(self.junit.resolve(), junit_xml(result))
        if self.summary is not None:
            with file_errors(self.summary):
                self.summary.parent.mkdir(parents=True, exist_ok=True)
                with self.summary.open("a", encoding="utf-8") as file:
                    file.write(step_summary(result))


def gate_files(junit: Path | None, summary: Path | None) -> GateFiles:
    """The files asked for; without a summary, GitHub's where its variable is set."""
    given = os.environ.get(SUMMARY_VARIABLE)
    return GateFiles(junit, summary or (Path(given) if given else None))
