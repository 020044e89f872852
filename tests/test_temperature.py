"""Acceptance by temperature: which results make a curve, what lies between its anchors, and how it reads."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from specprobe.acceptance import Acceptance
from specprobe.summary import summarize
from specprobe.temperature import (
    Anchor,
    TemperatureCurve,
    break_even_temperatures,
    interpolate_tokens_per_round,
    interpolation_error,
    intervals_at,
    temperature_curves,
)
from specprobe.temperature_report import render_temperatures


def acceptance(
    temperature: float,
    accepted: Sequence[Sequence[int]],
    *,
    output: int = 101,
    drafter: str = "draft",
    sampling: str = "greedy",
    **config,
) -> Acceptance:
    """One accepted token in so many rounds, [prompts, depths], all drafts of one token; `output` tokens a response."""
    kind = np.int32 if sampling == "greedy" else np.float64
    table = np.array(accepted, dtype=kind)
    num_prompts, depth = table.shape
    rounds = (output - 1 - table).astype(kind)
    drafted_at, accepted_at = np.zeros((2, num_prompts, depth, depth), dtype=kind)
    drafted_at[:, :, 0], accepted_at[:, :, 0] = rounds, table
    return Acceptance(
        drafter=drafter,
        config=config,
        fixed_length=True,
        temperature=temperature,
        draft_sampling=sampling,
        ids=tuple(range(num_prompts)),
        output_tokens=np.full(num_prompts, output, dtype=np.int32),
        rounds=rounds,
        drafted_at=drafted_at,
        at_risk_at=drafted_at,
        accepted_at=accepted_at,
    )


def curve(points: Sequence[tuple[float, float]], rate: float | None = 0.5) -> TemperatureCurve:
    return TemperatureCurve("draft", {}, "greedy", 3, tuple(Anchor(t, value, rate, None) for t, value in points))


def printed(renderable: RenderableType) -> str:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def test_results_of_one_drafter_make_a_curve_at_each_depth():
    results = [
        acceptance(0.7, [[40, 50], [20, 30]]),
        acceptance(0.0, [[50, 60], [40, 40]]),
        acceptance(0.0, [[10, 10], [10, 10]], drafter="ngram"),
        acceptance(0.7, [[1, 1], [1, 1]], model="another"),
    ]
    curves = temperature_curves(results)
    # n-gram and the other draft model have one temperature each.
    assert [(one.label, one.depth) for one in curves] == [("draft", 1), ("draft", 2)]
    low, high = curves[0].anchors
    assert (low.temperature, low.tokens_per_round, low.acceptance_rate) == (0.0, 200 / 110, 90 / 110)
    assert (high.temperature, high.tokens_per_round, high.acceptance_rate) == (0.7, 200 / 140, 60 / 140)
    assert [anchor.interval for anchor in curves[1].anchors] == [
        summarize(results[1]).tokens_per_round[1],
        summarize(results[0]).tokens_per_round[1],
    ]
    assert low.interval.low < low.tokens_per_round < low.interval.high == 2


def test_the_greedy_result_at_temperature_0_belongs_to_both_ways_of_drafting():
    results = [
        acceptance(0.0, [[50], [40]]),
        acceptance(1.0, [[30], [30]]),
        acceptance(1.0, [[35.5], [35]], sampling="sampled"),
        acceptance(0.5, [[40], [41]]),
    ]
    greedy, sampled = temperature_curves(results)
    assert (greedy.label, [anchor.temperature for anchor in greedy.anchors]) == ("draft", [0.0, 0.5, 1.0])
    assert (sampled.label, [anchor.temperature for anchor in sampled.anchors]) == ("draft sampled", [0.0, 1.0])
    assert greedy.anchors[0] == sampled.anchors[0]
    assert sampled.anchors[1].tokens_per_round == pytest.approx(200 / 129.5)
    # Sampled only, above 0: the order of results does not matter.
    assert [one.label for one in temperature_curves([results[2], results[0]])] == ["draft sampled"]


def test_nothing_to_draw_a_curve_through():
    assert temperature_curves([]) == ()
    assert temperature_curves([acceptance(0.0, [[1]])]) == ()
    # One-token responses have no round.
    assert temperature_curves([acceptance(0.0, [[0]], output=1), acceptance(1.0, [[1]])]) == ()
    assert intervals_at(acceptance(0.0, [[3, 4]]), [2]) == (None,)


def test_the_grid_has_round_steps_and_the_anchors_as_measured():
    dense = curve([(0.0, 2.5), (0.33, 2.1), (0.6, 1.3)]).dense
    steps = [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.33, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6]
    assert [point.temperature for point in dense] == steps
    assert [point.temperature for point in dense if not point.interpolated] == [0.0, 0.33, 0.6]
    assert [point.tokens_per_round for point in dense if not point.interpolated] == [2.5, 2.1, 1.3]
    assert all(point.acceptance_rate == 0.5 for point in dense)


def test_with_two_anchors_the_log_of_the_accepted_tokens_is_linear_and_the_error_unknown():
    two = curve([(0.0, 3.0), (1.0, 1.5)])
    assert [point.tokens_per_round for point in two.dense] == pytest.approx(
        [1 + 2 * (0.5 / 2) ** point.temperature for point in two.dense]
    )
    assert two.left_out == ()
    assert two.to_json()["left_out"] is None
    assert interpolation_error([two]) is None


def test_interpolation_is_exact_on_an_exponential():
    exact = curve([(t, 1 + 1.7 * math.exp(-1.3 * t)) for t in (0.0, 0.3, 0.7, 1.2)])
    assert [left_out.temperature for left_out in exact.left_out] == [0.3, 0.7]
    assert [left_out.relative_error for left_out in exact.left_out] == pytest.approx([0, 0], abs=1e-12)
    for point in exact.dense:
        assert point.tokens_per_round == pytest.approx(1 + 1.7 * math.exp(-1.3 * point.temperature))


def test_a_left_out_anchor_is_held_against_the_line_through_its_neighbours():
    (left_out,) = curve([(0.0, 3.0), (0.5, 2.5), (1.0, 1.5)]).left_out
    assert left_out.interpolated == pytest.approx(1 + math.sqrt(2 * 0.5))
    assert left_out.measured == 2.5
    assert left_out.relative_error == pytest.approx(2 / 2.5 - 1)
    one_off = curve([(0.0, 3.0), (0.5, 2.5), (1.0, 1.5)])
    # Of the gain: half a token of one and a half is a third.
    assert left_out.gain_error == pytest.approx(-1 / 3)
    assert interpolation_error([one_off, curve([(0, 2), (0.5, 2), (1, 2)])]) == pytest.approx((1 / 6, 1 / 3))


def test_where_nothing_is_accepted_tokens_per_round_itself_is_interpolated():
    (left_out,) = curve([(0.0, 2.0), (0.5, 1.4), (1.0, 1.0)]).left_out
    assert left_out.interpolated == pytest.approx(1.5)
    dense = curve([(0.0, 1.0), (1.0, 1.0)], rate=None).dense
    assert {(point.tokens_per_round, point.acceptance_rate) for point in dense} == {(1.0, None)}


@given(
    anchors=st.dictionaries(st.integers(0, 40), st.floats(1, 9), min_size=2, max_size=6).map(
        lambda found: [Anchor(t / 20, value, (value - 1) / 8, None) for t, value in sorted(found.items())]
    )
)
def test_what_is_interpolated_lies_between_its_neighbours(anchors: list[Anchor]):
    dense = TemperatureCurve("draft", {}, "greedy", 8, tuple(anchors)).dense
    by_temperature = {point.temperature: point for point in dense}
    for before, after in pairwise(anchors):
        between = [point for t, point in by_temperature.items() if before.temperature <= t <= after.temperature]
        for key in ("tokens_per_round", "acceptance_rate"):
            low, high = sorted((getattr(before, key), getattr(after, key)))
            assert all(low - 1e-9 <= getattr(point, key) <= high + 1e-9 for point in between)
    assert interpolate_tokens_per_round(anchors, [a.temperature for a in anchors]) == pytest.approx(
        [a.tokens_per_round for a in anchors]
    )


def test_the_document_of_a_curve():
    results = [acceptance(t, [[accepted], [accepted + 2]]) for t, accepted in ((0, 60), (0.05, 50), (0.1, 45))]
    (document,) = [one.to_json() for one in temperature_curves(results)]
    assert json.loads(json.dumps(document)) == document
    assert (document["drafter"], document["draft_sampling"], document["depth"]) == ("draft", "greedy", 1)
    assert [entry["interpolated"] for entry in document["dense"]] == [False] * 3
    assert set(document["left_out"][0]) == {"temperature", "interpolated", "measured", "relative_error", "gain_error"}
    assert document["anchors"][0]["interval"]["level"] == 0.9


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(0, 2.0), (1, 0.5)], [0.5]),
        ([(1, 0.5), (0, 2.0)], [0.5]),
        ([(0, 4.0), (1, 0.5)], [2 / 3]),
        ([(0, 1.5), (0.5, 1.2), (1, 1.1)], []),
        ([(0, 1.5), (0.5, 1.0), (1, 1.1)], [0.5]),
        ([(0, 1.5), (0.5, 1.0), (1, 0.9)], [0.5]),
        ([(0, 2.0), (0.5, 0.5), (1, 2.0)], [0.25, 0.75]),
        ([(0, 1.0), (1, 2.0)], [0]),
        ([(0.7, 1.3)], []),
        ([], []),
    ],
)
def test_where_speculation_begins_or_stops_to_pay(points, expected):
    assert break_even_temperatures(points) == pytest.approx(expected)


def test_the_table_reads_in_80_columns_and_shows_labels_as_they_are():
    temperatures = [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    results = [
        acceptance(t, [[50 - 20 * t] * 8, [49 - 20 * t] * 8], sampling="sampled", model="a/[red]b\x1b[0m")
        for t in temperatures
    ]
    text = printed(render_temperatures(temperature_curves(results)))
    assert "[red]b\\x1b[0m" in text
    assert "\x1b" not in text
    assert "T = 0.8" in text
    assert "T = 1" in text
    assert [line.split()[0] for line in text.splitlines() if "(98 %)" in line] == ["1", "2", "3", "4", "6", "8"]
    assert "1.98 (98 %)" in text
    assert "of that in the median" in text
    assert "is not known" in printed(render_temperatures(temperature_curves(results[:2])))
