"""The real and hostile files that are kept beside the repository, against counts made independently of the reader."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specprobe.workload import inspect_workload, read_workload

SHARED = Path(os.environ.get("SPECPROBE_SHARED") or Path(__file__).parents[2] / "shared")
GIVEN = SHARED / "data" / "given"

pytestmark = pytest.mark.skipif(not (GIVEN / "counts.json").exists(), reason="the shared data folder is not here")


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


@pytest.mark.parametrize("name", load(GIVEN / "counts.json"))
def test_given_file(name: str) -> None:
    truth = load(GIVEN / "counts.json")[name]
    inspection = inspect_workload([str(GIVEN / name)])
    (file,) = inspection.files
    assert (file.rows, file.first_turns, file.answers) == (truth["rows"], truth["a"], truth["b"])
    rows_skipped = {reason: n for reason, n in file.skipped.items() if reason not in ("empty_answer", "error_answer")}
    assert rows_skipped == truth["skip"]
    if truth["a"]:
        workload = read_workload([str(GIVEN / name)], first_turn=True)
        texts = {
            tuple((m.role, m.content) for m in p.messages if m.role in ("system", "user")) for p in workload.prompts
        }
        assert len(texts) == truth["a_uniq"]


@pytest.mark.parametrize("name", load(GIVEN / "hostile" / "expected.json"))
def test_hostile_file(name: str) -> None:
    expected = load(GIVEN / "hostile" / "expected.json")[name]
    source = str(GIVEN / "hostile" / name)
    inspection = inspect_workload([source])
    files = inspection.files
    assert sum(file.first_turns for file in files) == expected["usable"]
    assert sum(file.answers for file in files) == expected["answers"]
    assert dict(sum((Counter(file.skipped) for file in files), Counter())) == expected["skipped"]
    assert (expected["error"] or "") in (inspection.error or "")
    assert (inspection.error is None) == (expected["error"] is None)
    if "lines" in expected:
        assert sorted(line for lines in files[0].lines.values() for line in lines) == expected["lines"]
    if "repaired" in expected:
        assert sum(file.repaired for file in files) == expected["repaired"]
    if inspection.error is None:
        workload = read_workload([source], first_turn=True)
        if "duplicates" in expected:
            assert (workload.duplicates, workload.distinct) == (expected["duplicates"], expected["distinct"])
        if "texts" in expected:
            texts = [prompt.messages[-1].content if prompt.messages else prompt.text for prompt in workload.prompts]
            assert texts == expected["texts"]
