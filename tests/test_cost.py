"""Cost tables: interpolation between points, and cost files that are not what they should be."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from specprobe.cost import CostPoint, CostTable, DraftingPoint, Memory
from specprobe.cost_files import cost_document, read_cost_file
from specprobe.errors import SpecprobeError


def table(seconds=lambda batch, query, context: batch * query + context / 100) -> CostTable:
    return CostTable(
        "file",
        tuple(CostPoint(b, q, c, seconds(b, q, c)) for b in (1, 4) for q in (1, 2, 5) for c in (100, 400)),
    )


def seconds(cost: CostTable, batch: float, query: float, context: float) -> float:
    surface = cost.at_context(context)
    return float(np.interp(query, surface.query_tokens, surface.at_batch(batch)[0]))


def test_measured_points_come_back_exactly():
    for point in table().points:
        assert seconds(table(), point.batch, point.query_tokens, point.context) == pytest.approx(point.seconds)


def test_between_points_it_is_linear_and_beyond_them_constant():
    cost = table()
    assert seconds(cost, 2, 3, 200) == pytest.approx(2 * 3 + 2)
    assert seconds(cost, 9, 99, 9999) == pytest.approx(4 * 5 + 4)
    assert cost.reaches(4, 5)
    assert not cost.reaches(5, 1)
    assert not cost.reaches(1, 6)


def test_a_step_between_kernels_is_kept_not_smoothed():
    faster_at_5 = table(lambda _b, query, _c: {1: 1.0, 2: 3.0, 5: 2.0}[query])
    assert faster_at_5.at_context(100).at_batch(1)[0] == pytest.approx([1, 3, 2])


def test_the_error_of_a_median_falls_with_repeats():
    def error(repeats: int) -> float:
        cost = CostTable("file", (CostPoint(1, 1, 0, 1.0, spread_seconds=0.1, repeats=repeats),))
        return float(cost.at_context(0).at_batch(1)[1][0])

    assert error(4) == pytest.approx(2 * error(16))


def test_the_quality_of_timings_is_told():
    points = tuple(CostPoint(1, q, 0, 1.0, spread_seconds=0.1 * q, repeats=5, outliers=q - 1) for q in (1, 2, 3))
    quality = CostTable("measured", points).quality()
    assert quality["relative_spread"] == pytest.approx(0.2)
    assert (quality["timings"], quality["outliers"]) == (15, 3)


def whole_table() -> CostTable:
    """A table that makes use of every field."""
    return CostTable(
        "file",
        table().points,
        drafting=tuple(
            DraftingPoint("draft", b, k, c, b * k + c / 100) for b in (1, 4) for k in (1, 3) for c in (100, 400)
        ),
        drafter_seconds={"ngram": 0.5, "eagle3": 0.25},
        drafter_prefill_seconds={"draft": 1e-6},
        prefill_token_seconds=1e-5,
        prefill_pair_seconds=1e-9,
        prefill_step_seconds=0.01,
        log_deviation=0.1,
        memory=Memory(80e9, 16e9, 131072.0, {"draft": (2e9, 32768.0)}),
        conditions={"gpu": "H100"},
    )


def test_a_cost_file_comes_back(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(cost_document(whole_table())))
    assert read_cost_file(path) == whole_table()
    path.write_text(json.dumps(cost_document(replace(whole_table(), source="engine"))))
    assert read_cost_file(path).source == "engine"
    path.write_text(json.dumps(cost_document(replace(whole_table(), source="measured"))))
    assert read_cost_file(path).source == "file"


def test_drafting_is_linear_between_points_and_by_sequence_or_token_in_the_short_form():
    at = np.array([2.0]), np.array([2.0]), np.array([200.0])
    cost = whole_table()
    assert cost.drafting_seconds(["draft"], *at, by_token=True).item() == pytest.approx(2 * 2 + 2.0)
    assert cost.drafting_seconds(["ngram"], *at, by_token=False).item() == pytest.approx(0.5 * 2)
    assert cost.drafting_seconds(["eagle3"], *at, by_token=True).item() == pytest.approx(0.25 * 2 * 2)
    assert cost.drafting_seconds(["other"], *at, by_token=True).item() == 0
    assert cost.knows(["other", "draft"])
    assert not cost.knows(["other"])
    with_drafts = cost.step_cost(["draft"], 2, by_token=True).drafting_seconds
    assert with_drafts == pytest.approx(np.array([[3.0, 6.0], [9.0, 12.0]]))


def test_what_does_not_fit_leaves_no_room_for_caches():
    memory = whole_table().memory
    assert memory.kv_capacity_tokens() == pytest.approx(64e9 / 131072)
    assert memory.kv_capacity_tokens(["draft"]) == pytest.approx(62e9 / (131072 + 32768))
    assert Memory(10e9, 16e9, 1.0).kv_capacity_tokens() == 0


def test_step_times_come_from_csv(tmp_path):
    path = tmp_path / "cost.csv"
    path.write_text(
        "\ufeffBatch,query_tokens,context,seconds,drafter,depth,note\n"
        "1,1,0,0.01,,,\n1,4,0,0.02,,,warm\n\n1,,0,0.003,ngram,3,\n"
    )
    cost = read_cost_file(path)
    assert [p.seconds for p in cost.points] == [0.01, 0.02]
    assert cost.drafting == (DraftingPoint("ngram", 1, 3, 0, 0.003),)
    path.write_text("batch,query_tokens,context\n1,1,1\n")
    with pytest.raises(SpecprobeError, match=r"cost\.csv: no column seconds"):
        read_cost_file(path)
    path.write_text("batch,query_tokens,context,seconds\n1,x,1,0.1\n")
    with pytest.raises(SpecprobeError, match="line 2: query_tokens 'x'"):
        read_cost_file(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "specprobe.cost/9"}, "schema"),
        ({"points": []}, "no points"),
        ({"points": 3}, "list"),
        ({"points": [1]}, "not an object"),
        ({"points": [{"batch": 1, "query_tokens": 1, "context": 0, "seconds": 0}]}, "positive"),
        ({"points": [{"batch": 0, "query_tokens": 1, "context": 0, "seconds": 1}]}, "start at 1"),
        ({"points": [{"batch": 1, "query_tokens": 1, "context": 0}]}, "seconds"),
        ({"points": [{"batch": True, "query_tokens": 1, "context": 0, "seconds": 1}]}, "batch"),
        (
            {"points": [{"batch": b, "query_tokens": q, "context": 0, "seconds": 1} for b, q in ((1, 1), (2, 2))]},
            "every",
        ),
        ({"points": [{"batch": 1, "query_tokens": 1, "context": 0, "seconds": 1}] * 2}, "twice"),
        ({"points": [{"batch": 1.9, "query_tokens": 1, "context": 0, "seconds": 1}]}, "whole"),
        ({"drafter_seconds": {"ngram": -1}}, "drafter_seconds"),
        ({"drafter_seconds": [1]}, "drafter_seconds"),
        ({"conditions": "H100"}, "conditions"),
        ({"prefill_token_seconds": 10**400}, "prefill"),
        ({"points": [{"batch": 1, "query_tokens": 2, "context": 0, "seconds": 1}]}, "no points with query_tokens 1"),
        (
            {"points": [{"batch": 1, "query_tokens": 1, "context": 0, "seconds": 1, "spread_seconds": 86400}]},
            "tells nothing",
        ),
        ({"points": [{"batch": 1, "query_tokens": 1, "context": 0, "seconds": 1e308}]}, "seconds"),
        ({"points": [{"batch": 1, "query_tokens": 1, "context": 0, "seconds": 5e-324}]}, "seconds"),
    ],
)
def test_a_wrong_cost_file_is_refused_by_what_is_wrong(change, said, tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(cost_document(table()) | change))
    with pytest.raises(SpecprobeError, match=said) as refused:
        read_cost_file(path)
    assert str(path) in str(refused.value)


def test_what_is_no_cost_file_at_all(tmp_path):
    for content in (b"", b"\xff", b"[]", b"{", b"[" * 100_000):
        path = tmp_path / "cost.json"
        path.write_bytes(content)
        with pytest.raises(SpecprobeError):
            read_cost_file(path)
    with pytest.raises(SpecprobeError, match="missing"):
        read_cost_file(tmp_path / "missing.json")
