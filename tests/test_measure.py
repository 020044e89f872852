"""Timing and what `recommend` does with it, on toy targets: no figure is checked, only what is timed, kept and told."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference import make_trajectory
from test_run import make_run
from tiny_heads import write_eagle3
from toy_target import toy_target, write_checkpoint

from specprobe import cost_sources, timings
from specprobe.advise import advise
from specprobe.causal_lm import LoadOptions
from specprobe.cost import CostPoint, CostTable, DraftingPoint
from specprobe.cost_sources import CostOptions
from specprobe.drafters import parse_drafter
from specprobe.errors import SpecprobeError
from specprobe.features import CarriedFeatures
from specprobe.hardware import find_hardware
from specprobe.live_drafters import live_drafter
from specprobe.measure import (
    CostGrid,
    Prefill,
    _summary,
    check_memory,
    fit_prefill,
    forward_kind,
    measure_block,
    measure_drafting_block,
    plan_grid,
)
from specprobe.measure_drafters import drafting_depths, open_timed
from specprobe.profiles import resolve_profile
from specprobe.progress import Silent
from specprobe.target import load_target
from specprobe.timings import measured_cost

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
    assert cost.conditions["forward"] == "eager forward"
    assert cost.prefill_token_seconds > 0
    assert cost.prefill_step_seconds >= 0
    (path,) = (tmp_path / ".specprobe" / "costs").glob("*.json")
    assert path.stat().st_mode & 0o077 == 0
    # A second time nothing is timed, and the same comes out.
    monkeypatch.setattr("specprobe.measure.measure_block", None)
    monkeypatch.setattr("specprobe.measure.measure_drafter", None)
    assert measured_cost(target, GRID, DRAFTERS, 3, Silent()) == cost


def test_an_interruption_keeps_finished_blocks(target, monkeypatch):
    timed = []

    def interrupted(target, batch, context, query_tokens, forward):
        if len(timed) == 2:
            raise KeyboardInterrupt
        timed.append((batch, context))
        return measure_block(target, batch, context, query_tokens, forward)

    monkeypatch.setattr("specprobe.measure.measure_block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured_cost(target, GRID, DRAFTERS, 3, Silent())
    rest = []
    monkeypatch.setattr(
        "specprobe.measure.measure_block", lambda t, b, c, q, f: rest.append((b, c)) or measure_block(t, b, c, q, f)
    )
    measured_cost(target, GRID, DRAFTERS, 3, Silent())
    assert sorted(timed + rest) == sorted(GRID.blocks)


def test_damaged_timings_are_taken_again(target, tmp_path):
    measured_cost(target, GRID, DRAFTERS, 3, Silent())
    (path,) = (tmp_path / ".specprobe" / "costs").glob("*.json")
    for content in ("", "[]", "{", json.dumps({"schema": timings.TIMINGS_SCHEMA, "points": [{"batch": 1}]})):
        path.write_text(content)
        assert measured_cost(target, GRID, DRAFTERS, 3, Silent()).source == "measured"


def test_a_sliding_window_can_be_timed(tmp_path):
    target = toy_target(tmp_path, kind="mistral", sliding_window=16)
    forward = forward_kind(target)
    assert forward == "eager forward, growing cache"
    points = measure_block(target, 2, 32, [1, 3], forward)
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


@pytest.mark.parametrize("depth", [1, 2, 3, 8, 11])
def test_drafting_is_timed_at_powers_of_two_and_the_depth(depth):
    depths = drafting_depths(depth)
    assert depths[0] == 1
    assert depths[-1] == depth
    assert all(after <= 2 * before for before, after in pairwise(depths))


def test_a_prefill_is_a_line_that_does_not_begin_below_zero():
    line = fit_prefill([32, 128, 512], [0.01 + 1e-4 * n for n in (32, 128, 512)])
    assert line.token_seconds == pytest.approx(1e-4)
    assert line.step_seconds == pytest.approx(0.01)
    # Attention makes long prompts dearer than a line has it.
    bent = fit_prefill([32, 128, 512], [0.001, 0.004, 0.03])
    assert bent.step_seconds == 0
    assert 3e-5 < bent.token_seconds < 6e-5
    assert fit_prefill([64], [0.5]) == Prefill(0.5 / 64, 0.0)


class Listening(Silent):
    def __init__(self):
        self.said = []

    def say(self, message):
        self.said.append(message)


def timed(target, specs, stages=None, depth=3):
    profile = resolve_profile("vllm@0.30")
    return open_timed(specs, target, profile, depth, LoadOptions(device="cpu"), stages or Silent())


def test_drafters_with_models_are_timed_as_whole_rounds(target, tmp_path, monkeypatch):
    draft = write_checkpoint(tmp_path / "draft", seed=1)
    specs = [f"draft:{draft}", "early-exit:layers=1"]
    models = timed(target, specs)
    cost = measured_cost(target, GRID, DRAFTERS, 3, Silent(), models=models)
    assert cost.drafters == {"ngram", "suffix", *specs}
    assert {(p.batch, p.depth, p.context) for p in cost.drafting} == set(product((1, 3), (1, 2, 3), (8, 32)))
    assert all(p.repeats >= 3 for p in cost.drafting)
    batches, depths, contexts = (np.array(values, dtype=float) for values in ((1, 3), (1, 3), (8, 32)))
    seconds = cost.drafting_seconds((f"draft:{draft}",), batches, depths, contexts, by_token=True)
    # Three steps of a model of the target's size take longer than one.
    assert (seconds[:, 1] > seconds[:, 0]).all()
    # A second time nothing is timed; another depth needs its own points.
    monkeypatch.setattr("specprobe.measure_drafters.measure_drafting_block", None)
    assert measured_cost(target, GRID, DRAFTERS, 3, Silent(), models=models) == cost


def test_a_drafter_that_cannot_be_timed_is_left_out_and_said(target, tmp_path):
    stages = Listening()
    assert timed(target, ["draft:/gone/away", "python:my.module:Class", "ngram", "mtp"], stages) == []
    assert len(stages.said) == 1
    assert "draft:/gone/away: its drafting is not timed" in stages.said[0]
    short = write_checkpoint(tmp_path / "short", seed=1, max_position_embeddings=16)
    cost = measured_cost(target, GRID, [], 3, stages, models=timed(target, [f"draft:{short}"]))
    assert cost.drafters == set()
    assert "knows 16 positions" in stages.said[-1]


def test_an_interrupted_drafter_is_no_half_grid(target, tmp_path, monkeypatch):
    models = timed(target, ["early-exit:layers=1"])
    blocks = []

    def once(*arguments):
        if blocks:
            raise SpecprobeError("--concurrency 3: does not fit")
        blocks.append(measure_drafting_block(*arguments))
        return blocks[0]

    monkeypatch.setattr("specprobe.measure_drafters.measure_drafting_block", once)
    assert measured_cost(target, GRID, [], 3, Silent(), models=models).drafting == ()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert set(blocks[0]) <= {
        replace(point, drafter=models[0].key)
        for point in measured_cost(target, GRID, [], 3, Silent(), models=models).drafting
    }


def test_a_head_is_timed_and_its_memory_looked_at(tmp_path, monkeypatch):
    target = toy_target(tmp_path / "deep", num_hidden_layers=7)
    head = write_eagle3(tmp_path / "head", target.model.config)
    models = timed(target, [f"eagle3:{head}"])
    asked = []
    monkeypatch.setattr("specprobe.measure_drafters.check_memory", lambda *_a, **options: asked.append(options))
    cost = measured_cost(target, CostGrid((2,), (1, 4), (8,)), [], 3, Silent(), models=models)
    assert [(p.drafter, p.depth) for p in cost.drafting] == [(f"eagle3:{head}", depth) for depth in (1, 2, 3)]
    # Two key-value heads of 8 in one layer, keys and values, float32.
    assert asked[-1] == {"drafter_cache_bytes": 2 * 2 * 8 * 4}
    with pytest.raises(SpecprobeError, match="--concurrency 2: timing it takes about"):
        check_memory(target, CostGrid((2,), (1, 4), (8,)), drafter_bytes=10**15)


def captured_here(work):
    """In place of a CUDA graph: what can be one does the same however often it runs."""
    first, *others = (work().clone() for _ in range(3))
    assert all(torch.equal(first, other) for other in others)
    return work


@pytest.mark.parametrize("method", ["draft", "early-exit", "eagle3"])
def test_what_a_cuda_graph_records_is_repeatable(method, tmp_path, monkeypatch):
    target = toy_target(tmp_path / "deep", num_hidden_layers=7)
    model = {
        "draft": lambda: write_checkpoint(tmp_path / "draft", seed=1),
        "early-exit": lambda: "layers=2",
        "eagle3": lambda: write_eagle3(tmp_path / "head", target.model.config),
    }[method]()
    (found,) = timed(target, [f"{method}:{model}"])
    drafter = live_drafter(found.opened.load(CarriedFeatures()), target)
    monkeypatch.setattr("specprobe.cuda_graph.captured", captured_here)
    points = measure_block(target, 2, 8, [1, 4], "CUDA graph")
    assert [(p.batch, p.query_tokens, p.context) for p in points] == [(2, 1, 8), (2, 4, 8)]
    drafting = measure_drafting_block(target, drafter, "it", 2, 8, [1, 3], "CUDA graph")
    assert [(p.drafter, p.batch, p.depth, p.context) for p in drafting] == [("it", 2, 1, 8), ("it", 2, 3, 8)]
    # Verification must be captured, once some of it was; a drafter need not.
    monkeypatch.setattr("specprobe.cuda_graph.captured", lambda _work: None)
    with pytest.raises(SpecprobeError, match="not of one that is to be timed"):
        measure_block(target, 2, 8, [1, 4], "CUDA graph")


def test_recommend_times_the_runs_own_target(target, monkeypatch):
    run = make_run([make_trajectory([1, 2, 3, 1, 2], [3, 1, 2, 3, 9, 1, 2, 3], name=i) for i in range(20)])
    asked = []

    def load(name, *, device=None, dtype=None):
        asked.append((name, device, dtype))
        return target

    models = []

    def measured(_target, grid, *_arguments, **options):
        models.append([model.name for model in options["models"]])
        return table(grid)

    monkeypatch.setattr("specprobe.target.load_target", load)
    monkeypatch.setattr(cost_sources, "measured_cost", measured)
    drafters = ["ngram:min=1,max=3", "suffix", "early-exit:layers=1", "python:os:system", "draft:/gone"]
    run = replace(run, target={"name": "my/model", "dtype": "float32"}, settings={"drafters": drafters})

    def ask(**options):
        arguments = {"concurrencies": (1,), "temperature": None, "engine": None, "stages": Silent()}
        return advise(run, cost_options=CostOptions(**options), **arguments)

    assert ask().recommendation.cost.source == "measured"
    ask(target="other/model")
    ask(target="other/model", dtype="bfloat16", device="cpu")
    assert models == [["early-exit:layers=1"]] * 3
    assert asked == [("my/model", None, "float32"), ("other/model", None, None), ("other/model", "cpu", "bfloat16")]


def table(grid):
    return CostTable("measured", tuple(CostPoint(b, q, c, 0.01) for b, c in grid.blocks for q in grid.query_tokens))


@pytest.fixture
def _repository(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))


@pytest.mark.usefixtures("_repository")
def test_the_gpu_check_goes_through_on_a_cpu(monkeypatch, capsys):
    from tests import gpu_check

    monkeypatch.setattr("sys.argv", ["gpu_check", "--device", "cpu", "--tiny"])
    assert gpu_check.main() == 0
    *_, last = capsys.readouterr().out.splitlines()
    lines = json.loads(last)["lines"]
    assert {line["drafter"] for line in lines} == {"", "draft", "one layer"}
    assert len(lines) == 2 * (2 + 1 + 1)
    # Two batches, of which the time is enough for none.
    monkeypatch.setattr("sys.argv", ["gpu_check", "--device", "cpu", "--tiny", "--seconds", "-1"])
    assert gpu_check.main() == 0
    assert capsys.readouterr().out.count("no time left") == 2


@pytest.mark.usefixtures("_repository")
def test_the_gpu_check_without_a_gpu_says_so(monkeypatch, capsys):
    from tests import gpu_check

    monkeypatch.setattr("sys.argv", ["gpu_check"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_check.main() == 2
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.usefixtures("_repository")
def test_the_gpu_check_predicts_for_the_gpu_it_finds():
    from tests import gpu_check

    target = SimpleNamespace(record=SimpleNamespace(name="llama-8b"))
    check = gpu_check.Check(target, gpu_check.LLAMA_8B, find_hardware("NVIDIA H100 80GB HBM3"), 0.0)
    # 16 GB of weights at 3.35 TB/s take 4.8 ms at least.
    line = check._round(CostPoint(1, 1, 512, 0.006), "CUDA graph")
    assert 0.0048 < line.predicted_seconds < 0.009
    draft, layer = (check._drafting(DraftingPoint(n, 1, 4, 512, 0.001), "CUDA graph") for n in ("draft", "one layer"))
    assert draft.predicted_seconds > 0
    assert layer.predicted_seconds > 0
    assert check._round(CostPoint(1, 1, 512, 0.006), "eager forward").predicted_seconds > line.predicted_seconds


@pytest.mark.slow
@pytest.mark.usefixtures("_repository")
@pytest.mark.parametrize("batch", [1, 4])
def test_real_speculation_is_as_fast_as_predicted(batch):
    """Within a quarter: machines that run tests are noisy. docs/validation.md has figures of a longer run."""
    from tests.benchmarks import real_speculation

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    target = load_target(dtype="float32", device="cpu")
    prompts = real_speculation.golden_prompts(2 * batch)
    (result,) = real_speculation.run(target, prompts, [batch], new_tokens=24, repeats=2)
    torch.set_num_threads(threads)
    assert result.arm == "ngram"
    assert result.other_texts == 0
    assert abs(result.error) < 0.25
