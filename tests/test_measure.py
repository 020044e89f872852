"""Timing and what `recommend` does with it, on toy targets: no figure is checked, only what is timed, kept and told."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from reference import make_trajectory
from test_run import make_run
from toy_target import toy_target

from specprobe import advise as advising
from specprobe.advise import CostOptions, advise, measured_cost
from specprobe.drafters import parse_drafter
from specprobe.errors import SpecprobeError
from specprobe.measure import CostGrid, _summary, check_memory, measure_block, plan_grid
from specprobe.profiles import resolve_profile
from specprobe.progress import Silent

GRID = CostGrid((1, 3), (1, 2, 4), (8, 32))
DRAFTERS = [
    parse_drafter("ngram:min=2,max=3", resolve_profile("vllm")),
    parse_drafter("suffix", resolve_profile("vllm")),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return toy_target(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize("mean_context", [1, 30, 63, 64, 700, 5000])
def test_a_plan_covers_what_is_asked_for(mean_context):
    grid = plan_grid([3, 40], 5, mean_context, None)
    assert {1, 3, 40} <= set(grid.batches)
    assert max(grid.batches) == 40
    assert {1, 6} <= set(grid.query_tokens)
    assert grid.contexts[0] <= mean_context <= grid.contexts[-1]


def test_a_plan_stays_inside_the_models_context():
    assert max(plan_grid([1], 8, 1000, 512).contexts) + 9 <= 512


def test_every_point_of_the_grid_is_timed_and_kept(target, tmp_path, monkeypatch):
    cost = measured_cost(target, GRID, DRAFTERS, 3, Silent())
    assert cost.source == "measured"
    assert (cost.batches, cost.query_tokens, cost.contexts) == ([1, 3], [1, 2, 4], [8, 32])
    assert all(point.seconds > 0 and point.repeats >= 3 for point in cost.points)
    assert set(cost.drafter_seconds) == {"ngram", "suffix"}
    (path,) = (tmp_path / ".specprobe" / "costs").glob("*.json")
    assert path.stat().st_mode & 0o077 == 0
    # A second time nothing is timed, and the same comes out.
    monkeypatch.setattr("specprobe.measure.measure_block", None)
    monkeypatch.setattr("specprobe.measure.measure_drafter", None)
    assert measured_cost(target, GRID, DRAFTERS, 3, Silent()) == cost


def test_an_interruption_keeps_finished_blocks(target, monkeypatch):
    timed = []

    def interrupted(target, batch, context, query_tokens):
        if len(timed) == 2:
            raise KeyboardInterrupt
        timed.append((batch, context))
        return measure_block(target, batch, context, query_tokens)

    monkeypatch.setattr("specprobe.measure.measure_block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured_cost(target, GRID, DRAFTERS, 3, Silent())
    rest = []
    monkeypatch.setattr(
        "specprobe.measure.measure_block", lambda t, b, c, q: rest.append((b, c)) or measure_block(t, b, c, q)
    )
    measured_cost(target, GRID, DRAFTERS, 3, Silent())
    assert sorted(timed + rest) == sorted(GRID.blocks)


def test_damaged_timings_are_taken_again(target, tmp_path):
    measured_cost(target, GRID, DRAFTERS, 3, Silent())
    (path,) = (tmp_path / ".specprobe" / "costs").glob("*.json")
    for content in ("", "[]", "{", json.dumps({"schema": "specprobe.timings/2", "points": [{"batch": 1}]})):
        path.write_text(content)
        assert measured_cost(target, GRID, DRAFTERS, 3, Silent()).source == "measured"


def test_a_sliding_window_can_be_timed(tmp_path):
    target = toy_target(tmp_path, kind="mistral", sliding_window=16)
    points = measure_block(target, 2, 32, [1, 3])
    assert [(point.batch, point.query_tokens, point.context) for point in points] == [(2, 1, 32), (2, 3, 32)]


def test_what_cannot_fit_is_refused_before_it_is_tried(target):
    with pytest.raises(SpecprobeError, match="--concurrency 100000000"):
        check_memory(target, CostGrid((10**8,), (9,), (1024,)))
    check_memory(target, GRID)


def test_a_timing_far_from_the_others_is_an_outlier_and_moves_nothing():
    calm = _summary(1, 1, 8, np.array([1.0, 1.01, 0.99, 1.0, 1.02]))
    disturbed = _summary(1, 1, 8, np.array([1.0, 1.01, 0.99, 1.0, 9.0]))
    assert (calm.outliers, disturbed.outliers) == (0, 1)
    assert disturbed.seconds == calm.seconds


def test_recommend_times_the_runs_own_target(target, monkeypatch):
    run = make_run([make_trajectory([1, 2, 3, 1, 2], [3, 1, 2, 3, 9, 1, 2, 3], name=i) for i in range(20)])
    asked = []

    def load(name, *, device=None, dtype=None):
        asked.append((name, device, dtype))
        return target

    monkeypatch.setattr("specprobe.target.load_target", load)
    monkeypatch.setattr(advising, "measured_cost", lambda _t, grid, *_a, **_k: table(grid))
    run = replace(
        run, target={"name": "my/model", "dtype": "float32"}, settings={"drafters": ["ngram:min=1,max=3", "suffix"]}
    )

    def ask(**options):
        arguments = {"concurrencies": (1,), "temperature": None, "engine": None, "stages": Silent()}
        return advise(run, cost_options=CostOptions(**options), **arguments)

    assert ask().recommendation.cost.source == "measured"
    ask(target="other/model")
    ask(target="other/model", dtype="bfloat16", device="cpu")
    assert asked == [("my/model", None, "float32"), ("other/model", None, None), ("other/model", "cpu", "bfloat16")]


def table(grid):
    from specprobe.cost import CostPoint, CostTable

    return CostTable("measured", tuple(CostPoint(b, q, c, 0.01) for b, c in grid.blocks for q in grid.query_tokens))
