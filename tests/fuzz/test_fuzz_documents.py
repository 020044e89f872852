"""All else that is read: engines' numbers, costs, traces, documents of specprobe, settings. One line or success."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from odd import bent, dumped, fuzz, one_line_or, spoilt
from page_inputs import make_recommendation, make_run
from samples import COST, COST_CSV, ENGINE_JSON, ENGINE_TEXT, POINTS, PUBLISHED, SETTINGS, TRACES
from simulated_runs import document_of

from specprobe.arrivals import read_trace
from specprobe.cli import app
from specprobe.command_group import describe_defaults
from specprobe.compare import compare
from specprobe.cost_files import read_cost_file
from specprobe.engine_numbers import read_engine_numbers
from specprobe.engine_numbers.as_run import Served, run_of
from specprobe.engine_numbers.fit import fit_engine_numbers
from specprobe.gate_settings import read_gate_table
from specprobe.measured_points import read_points
from specprobe.options import read_ladder
from specprobe.page.stored_advice import load_advice
from specprobe.profiles import resolve_profile
from specprobe.published import read_table
from specprobe.run_document import load_run, run_document
from specprobe.summary import summarize_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("documents")


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read_numbers(path: Path, depth: int | None) -> None:
    numbers = one_line_or(lambda: read_engine_numbers([path], depth))
    if numbers is None:
        return
    one_line_or(lambda: fit_engine_numbers(numbers))
    run = one_line_or(lambda: run_of(numbers, Served("draft:m", 0.0), resolve_profile("vllm"), [path.name]))
    if run is not None:
        one_line_or(lambda: json.dumps(run_document(run, summarize_run(run)), allow_nan=False))


@fuzz(120)
@given(st.lists(bent(ENGINE_JSON), min_size=1, max_size=3), st.sampled_from((None, 1, 3)), st.data())
def test_answers_and_results_of_engines(folder, rows, depth, data):
    content = data.draw(spoilt(b"\n".join(map(dumped, rows))))
    read_numbers(written(folder, "answers.json", content), depth)


NUMBERS = st.sampled_from(("0", "1", "-1", "1e15", "9" * 16, "NaN", "+Inf", "0.0", "1.000", "99999999999999", "3", "x"))


@st.composite
def other_figures(draw: Any, text: str) -> bytes:
    """Text in which some numbers are others."""
    found = list(re.finditer(r"[0-9]+(\.[0-9]+)?", text))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.sampled_from(found))
        text = text[: at.start()] + draw(NUMBERS) + text[at.end() :]
        found = list(re.finditer(r"[0-9]+(\.[0-9]+)?", text))
    return text.encode()


@fuzz(200)
@given(st.sampled_from(ENGINE_TEXT).flatmap(other_figures).flatmap(spoilt), st.sampled_from((None, 1, 3)))
def test_counters_and_log_lines_of_engines(folder, content, depth):
    read_numbers(written(folder, "metrics.txt", content), depth)


LONG = 200_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line",
    [
        "vllm:spec_decode_num_drafts_total{" + "a" * LONG + "} 1",
        "vllm:spec_decode_num_drafts_total{" + 'a="' * LONG + "} 1",
        "vllm:spec_decode_num_drafts_total" + "{}" * LONG,
        "vllm:spec_decode_num_drafts_total" + " \t" * LONG,
        "SpecDecoding metrics: Mean acceptance length: 1, " * (LONG // 50),
        "SpecDecoding metrics: Mean acceptance length: 1, " + "Accepted: 1 tokens, " * (LONG // 20),
        "SpecDecoding metrics: Mean acceptance length: " + "1" * LONG,
        "SpecDecoding metrics: Mean acceptance length: 2.0, Accepted: 1 tokens, Drafted: 1 tokens, Per-position "
        "acceptance rate: " + "0, " * LONG,
        "draft acceptance = 1 (" + " " * LONG,
        "draft acceptance = 1 (1 accepted / 1 generated), mean len = " + " " * LONG,
        "acc per pos = (" * LONG,
        "| task " * LONG,
    ],
    ids=lambda line: line[:60],
)
def test_a_long_line_takes_no_longer_than_it_is_long(folder, line):
    """Expressions that try every place of a line against every other would take hours for a few of them."""
    path = written(folder, "metrics.txt", f"{ENGINE_TEXT[0]}{line}\n{ENGINE_TEXT[4]}".encode())
    read_numbers(path, None)
    read_numbers(written(folder, "log.txt", f"{ENGINE_TEXT[4]}{line}\n".encode()), None)


@fuzz(120)
@given(bent([COST]), st.data())
def test_cost_files(folder, value, data):
    cost = one_line_or(lambda: read_cost_file(written(folder, "cost.json", data.draw(spoilt(dumped(value))))))
    if cost is not None:
        assert math.isfinite(cost.prefill_floor_seconds)
        one_line_or(lambda: cost.at_context(100.0))
        one_line_or(cost.quality)


@fuzz(60)
@given(other_figures(COST_CSV).flatmap(spoilt))
def test_cost_tables(folder, content):
    one_line_or(lambda: read_cost_file(written(folder, "cost.csv", content)))


FAR_APART = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n1e308,m,4,1,5,c\n-1e308,m,4,1,5,c\n"


@fuzz(120)
@given(st.sampled_from(TRACES).flatmap(lambda content: other_figures(content.decode())).flatmap(spoilt))
@example(FAR_APART)
def test_traces(folder, content):
    trace = one_line_or(lambda: read_trace(written(folder, "trace", content)))
    if trace is not None:
        assert np.isfinite(trace.arrival_seconds).all()
        assert (np.diff(trace.arrival_seconds) >= 0).all()


RUN = document_of(make_run())
RECOMMENDATION = make_recommendation(make_run())


@fuzz(120)
@given(bent([RUN], most=2))
def test_runs(folder, document):
    run = one_line_or(lambda: load_run(written(folder, "run.json", dumped(document))))
    if run is not None:
        one_line_or(lambda: summarize_run(run))
        one_line_or(lambda: compare(run, run, force=True))


@fuzz(100)
@given(bent([RECOMMENDATION], most=2))
def test_recommendations(folder, document):
    one_line_or(lambda: load_advice(written(folder, "recommendation.json", dumped(document))))


@fuzz(60)
@given(bent([POINTS]), st.data())
def test_points(folder, value, data):
    one_line_or(lambda: read_points([written(folder, "points.json", data.draw(spoilt(dumped(value))))]))


@fuzz(60)
@given(other_figures(PUBLISHED).flatmap(spoilt))
def test_tables_of_published_results(folder, content):
    one_line_or(lambda: read_table(written(folder, "published.csv", content)))


@fuzz(100)
@given(other_figures(SETTINGS).flatmap(spoilt), st.sampled_from(("specprobe.toml", "pyproject.toml")))
def test_settings_of_a_project(tmp_path_factory, content, name):
    folder = tmp_path_factory.mktemp("project")
    written(folder, name, content)
    one_line_or(lambda: read_gate_table(folder))
    _, fault = describe_defaults(typer.main.get_command(app), folder)
    assert fault is None or "\n" not in fault


@fuzz(40)
@given(st.one_of(st.binary(max_size=40), st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace"))))
def test_ladders(folder, content):
    one_line_or(lambda: read_ladder(written(folder, "ladder", content)))
