"""Documents that are read are held to their schemas: by the words of `jsonschema`, and as one line to the user."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from specprobe.cli import run_command
from specprobe.documents import read_document
from specprobe.errors import SpecprobeError
from specprobe.run_document import load_run, run_document
from specprobe.schema_check import first_fault
from specprobe.schemas import find_kind
from specprobe.summary import summarize_run

FIRST_RUN = Path(__file__).parent / "golden" / "run-1-first.json"
STRANGE = (None, True, -1, 0, 1.5, 10**30, "x", "<b>\x1b[31m", [], {}, [[]], ["x"])


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    run = load_run(FIRST_RUN)
    return json.loads(json.dumps(run_document(run, summarize_run(run))))


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key, and the first and the last entry of every list."""
    if above:
        yield above
    keys = value if isinstance(value, dict) else {0, len(value) - 1} if isinstance(value, list) and value else ()
    for key in keys:
        yield from places(value[key], (*above, key))


def changed(document: dict[str, Any], place: tuple[Any, ...], *, value: Any = None, gone: bool = False) -> dict:
    document = copy.deepcopy(document)
    inner: Any = document
    for key in place[:-1]:
        inner = inner[key]
    if gone:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return document


def test_faults_are_those_of_a_full_validator(document):
    validator = Draft202012Validator(find_kind("run").schema())
    outcomes = []
    for number, place in enumerate(places(document)):
        # Two values a place and its absence keep this short; all values come by turns.
        values = [STRANGE[(2 * number + i) % len(STRANGE)] for i in range(2)]
        for one in (*(changed(document, place, value=value) for value in values), changed(document, place, gone=True)):
            is_valid = validator.is_valid(one)
            assert (first_fault(one, "run") is None) == is_valid, (place, values)
            outcomes.append(is_valid)
    assert min(outcomes.count(True), outcomes.count(False)) > 100


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("results",), {}, "results: must be array"),
        (("results", 0, "per_prompt", 0, "id"), {}, "results[0].per_prompt[0].id: must be string or integer"),
        (("results", 0, "outside_share"), 2, "results[0].outside_share: must be at most 1"),
        (("workload", "columns"), 1.5, "workload.columns: must be object"),
        (("workload", "rows"), True, "workload.rows: must be integer"),
        (("warnings",), [{"code": "a"}], "warnings[0]: has no message"),
        (("settings", "tokenizer"), [[]], "settings.tokenizer: must be object or null"),
        (("settings", "processors"), {"min_p": "\x1b[31m"}, "settings.processors.min_p: must be number"),
        (("settings", "engine"), 1, "settings.engine: must be string"),
    ],
)
def test_a_damaged_run_is_one_line_that_names_the_place(document, place, value, told, tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(changed(document, place, value=value)))
    for command in ("report", "gate"):
        arguments = [command, str(path), *(["--min-tokens-per-round", "1"] if command == "gate" else [])]
        assert run_command(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err == f"error: {path}: damaged run ({told}); analyze again\n"


def test_keys_of_later_versions_are_let_pass(document):
    assert first_fault(changed(document, ("later",), value=1), "run") is None
    assert first_fault(changed(document, ("workload", "later"), value=1), "run") is None


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_refused_wherever_they_stand(text, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(f'{{"schema": "specprobe.run/1", "settings": {{"anything": {text}}}}}')
    with pytest.raises(SpecprobeError, match="not JSON"):
        read_document(path, "specprobe.run/1", "analyze again")
