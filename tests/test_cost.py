"""Cost tables: interpolation between points, and cost files that are not what they should be."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specprobe.cost import CostPoint, CostTable, read_cost_file
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


def test_a_cost_file_comes_back(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(table().to_json()))
    assert read_cost_file(path) == table()


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
        ({"points": [{"batch": 1, "query_tokens": 1, "context": 0, "seconds": 1e308}]}, "seconds"),
        ({"points": [{"batch": 1, "query_tokens": 1, "context": 0, "seconds": 5e-324}]}, "seconds"),
    ],
)
def test_a_wrong_cost_file_is_refused_by_what_is_wrong(change, said, tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(table().to_json() | change))
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
