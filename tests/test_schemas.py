"""Published schemas: that they are schemas, that documents of every command meet them, and what versions do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import conftest
import pytest
from jsonschema_rs import Draft202012Validator, ValidationError, meta

from specprobe.cli import run_command
from specprobe.cost_files import cost_document, read_cost_file
from specprobe.errors import SpecprobeError
from specprobe.run_document import load_run, run_document
from specprobe.schemas import document_kinds, find_kind
from specprobe.summary import summarize_run

ROOT = Path(__file__).parents[1]
FIRST_RUN = ROOT / "tests" / "golden" / "run-1-first.json"
KINDS = {kind.name: kind for kind in document_kinds()}
# The keys that scripts may rely on, whatever else a document comes to hold.
FIXED = {
    "inspect": {"": {"files", "prompts"}, "files": {"path", "container", "format", "rows", "first_turns", "answers"}},
    "run": {
        "": {"schema", "specprobe_version", "workload", "target", "engine_profile", "results"},
        "workload": {"sources", "format", "rows", "prompts", "skipped"},
        "results": {"drafter", "config", "temperature", "draft_sampling", "depths", "curve", "per_prompt"},
        "results/depths": {
            *("depth", "responses", "emitted_tokens", "rounds", "drafted_rounds", "drafted_tokens", "accepted_tokens"),
            *("accepted_at", "acceptance_rate", "mean_acceptance_length", "tokens_per_round", "interval"),
        },
        "results/per_prompt": {"id", "depth", "rounds", "drafted_rounds", "drafted_tokens", "accepted_at"},
    },
    "recommendation": {
        "": {"cost_source", "by_concurrency", "crossover_concurrency", "schedule", "export"},
        "by_concurrency": {
            *("concurrency", "verdict", "drafter", "depth", "speedup", "break_even_acceptance_length", "options"),
        },
    },
    "backtest": {"": {"mode", "groups", "rows_refused", "by_source", "by_engine"}, "groups": {"name"}},
}


def at(schema: dict, place: str) -> dict:
    """The part of a schema for the objects at a place such as results/depths."""
    for key in filter(None, place.split("/")):
        schema = schema["properties"][key]
        schema = schema.get("items", schema)
    return schema


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = run_command(arguments)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("name", KINDS)
def test_a_schema_is_one_stands_alone_and_says_what_it_is_for(name, capsys):
    status, out, _ = run(capsys, "schema", name)
    schema = json.loads(out)
    assert status == 0
    meta.validate(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == schema["properties"]["schema"]["const"] == f"specprobe.{name}/1"
    assert schema["description"]
    references = set(re.findall(r'"#/\$defs/(\w+)"', out))
    assert references == set(schema.get("$defs", {}))
    assert run(capsys, "schema", name, "--json")[1] == json.dumps(schema, separators=(",", ":")) + "\n"


@pytest.mark.parametrize("name", FIXED)
def test_keys_that_scripts_rely_on_are_required(name):
    for place, keys in FIXED[name].items():
        assert keys <= set(at(KINDS[name].schema(), place)["required"]), place


def objects(schema: object):
    """Every part of a schema that says what keys an object has."""
    if isinstance(schema, dict):
        if "object" in str(schema.get("type")) and "properties" in schema:
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


@pytest.mark.parametrize("name", KINDS)
def test_no_object_takes_keys_that_nobody_described(name):
    schema = KINDS[name].schema()
    # These are joined with others, and closed where they are.
    joined = [schema.get("$defs", {}).get(part) for part in ("fit", "served", "score", "unfitted")]
    for part in objects(schema):
        closed = part.get("additionalProperties") is False or part.get("unevaluatedProperties") is False
        assert closed or part in joined, part


def test_without_a_name_all_are_listed(capsys):
    status, out, _ = run(capsys, "schema", "--json")
    assert status == 0
    listed = {entry["name"]: entry for entry in json.loads(out)["documents"]}
    assert {"inspect", "run", "recommendation", "fit", "backtest", "cost", "calibration"} <= set(listed)
    assert listed["run"]["schema"] == "specprobe.run/1"
    status, out, _ = run(capsys, "schema")
    assert status == 0
    assert all(f"{name}: {entry['description']}\n" in out for name, entry in listed.items())


def test_a_kind_that_is_not_there_is_refused_by_name(capsys):
    status, _, err = run(capsys, "schema", "timings")
    assert status == 2
    assert err.count("\n") == 1
    assert "timings" in err
    assert "recommendation, run" in err


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.pop("engine_profile"),
        lambda run: run.update(further=1),
        lambda run: run.update(schema="specprobe.run/2"),
        lambda run: run["results"][0].update(draft_sampling="beam"),
        lambda run: run["results"][0]["depths"][0].update(rounds=-1),
        lambda run: run["results"][0]["curve"].update(further=1),
        lambda run: run["results"][0]["curve"]["models"][0].update(name="cubic"),
        lambda run: run["results"][1]["curve"].update(best="geometric"),
        lambda run: run["results"][0]["per_prompt"][0].pop("accepted_at"),
        lambda run: run["warnings"][0].update(code="Not a word"),
    ],
)
def test_what_is_not_as_published_is_noticed(change):
    document = json.loads(FIRST_RUN.read_text())
    validator = Draft202012Validator(find_kind("run").schema())
    validator.validate(document)
    change(document)
    with pytest.raises(ValidationError):
        validator.validate(document)


def test_a_document_without_a_published_schema_is_noticed():
    conftest.documents.dump_document({"schema": "specprobe.invented/1"})
    assert "specprobe.invented/1" in conftest.violations.pop()


def test_the_cost_file_of_the_docs_is_as_published(tmp_path):
    (shown,) = re.findall(r"^```json\n(.*?)^```", (ROOT / "docs" / "cost.md").read_text(), re.M | re.S)
    conftest.check_document(json.loads(shown))
    (tmp_path / "cost.json").write_text(shown)
    conftest.check_document(cost_document(read_cost_file(tmp_path / "cost.json")))


def test_the_first_run_that_was_ever_written_is_still_read():
    document = json.loads(FIRST_RUN.read_text())
    loaded = load_run(FIRST_RUN)
    written = run_document(loaded, summarize_run(loaded))
    conftest.check_document(written)
    for old, new in zip(document["results"], written["results"], strict=True):
        assert new["depths"] == old["depths"]
        assert new["adoption"] == "flag"
        assert [{**row, "sample": 0} for row in old["per_prompt"]] == new["per_prompt"]
    assert written["responses"][0]["prompts"] == [0, 1, 2]


def test_recommend_takes_the_first_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    points = [
        {"batch": b, "query_tokens": q, "context": c, "seconds": 0.01} for b in (1, 8) for q in (1, 3) for c in (1, 64)
    ]
    # As of a model whose state does not grow with the text.
    memory = {"available_bytes": 1e9, "weight_bytes": 1e8, "kv_token_bytes": 0}
    Path("cost.json").write_text(json.dumps({"schema": "specprobe.cost/1", "points": points, "memory": memory}))
    status, out, err = run(capsys, "recommend", str(FIRST_RUN), "--cost", "cost.json", "--json")
    assert status == 0, err
    document = json.loads(out)
    assert document["by_concurrency"][0]["concurrency"] == 1
    assert document["cost"]["memory"]["kv_capacity_tokens"] is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ('"specprobe.run/2"', "version 2 of run is not known to specprobe 0.1.0, which reads version 1"),
        ('"specprobe.run/"', "is not known"),
        ('"specprobe.cost/1"', "schema is specprobe.cost/1, and specprobe.run/1 is needed"),
        ('"run/1"', "and specprobe.run/1 is needed"),
        ('"\\u001b[31m"', r"schema is \\x1b\[31m"),
        ("3", "names no schema"),
        ("null", "names no schema"),
    ],
)
def test_another_version_or_kind_is_refused_by_name(tmp_path, found, said):
    path = tmp_path / "run.json"
    path.write_text(f'{{"schema": {found}}}')
    with pytest.raises(SpecprobeError, match=said) as refused:
        load_run(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "\x1b" not in str(refused.value)


def test_another_version_of_a_cost_file_is_refused_by_name(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text('{"schema": "specprobe.cost/9", "points": []}')
    with pytest.raises(SpecprobeError, match=r"version 9 of cost is not known .* reads version 1"):
        read_cost_file(path)
