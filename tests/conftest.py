"""Shared by all tests: no network, no cache of the developer's, the tests' own modules on the path, and every document
that anything writes is held against its published schema.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, ValidationError

from specprobe import documents, run_document, schemas
from specprobe.run import Run
from specprobe.summary import RunSummary

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    # torch, which is not imported yet, takes all processors in each process else, and waits for them in a busy loop.
    threads = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))


@cache
def validator_of(identifier: str) -> Draft202012Validator:
    published = {kind.identifier: kind for kind in schemas.document_kinds()}
    assert identifier in published, f"{identifier}: has no schema in specprobe/schemas, so nobody can rely on it"
    return Draft202012Validator(published[identifier].schema())


def check_document(document: Mapping[str, Any]) -> None:
    """Fail where a document is not what its schema says."""
    validator_of(document["schema"]).validate(json.loads(json.dumps(document)))


violations: list[str] = []


def checked_dump(document: Mapping[str, Any]) -> str:
    text = dump_document(document)
    try:
        check_document(document)
    except (AssertionError, ValidationError) as error:
        # The command line turns every error into a status, which a test may not look at.
        violations.append(str(error))
    return text


@pytest.fixture(autouse=True)
def _documents_are_as_published():
    violations.clear()
    yield
    assert not violations, violations


def checked_pieces(run: Run, summary: RunSummary) -> Iterator[str]:
    pieces = list(run_text(run, summary))
    checked_dump(json.loads("".join(pieces)))
    return iter(pieces)


# Before anything imports the functions by their names: all documents pass through them.
dump_document = documents.dump_document
documents.dump_document = checked_dump
run_text = run_document.run_text
run_document.run_text = checked_pieces
