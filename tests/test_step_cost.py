"""The cost of a step: the grid, what lies between its points and beyond its ends."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from specprobe.step_cost import StepCost

BATCHES, QUERIES, CONTEXTS = np.array([1.0, 4, 32]), np.array([1.0, 3, 9, 17]), np.array([0.0, 1000])


def grid_cost() -> StepCost:
    rng = np.random.default_rng(0)
    return StepCost(BATCHES, QUERIES, CONTEXTS, rng.random((3, 4, 2)), rng.random((3, 2)), 1e-3, 1e-6, 0.5)


def test_is_trilinear_and_constant_beyond_the_ends() -> None:
    cost = grid_cost()
    rng = np.random.default_rng(1)
    points = rng.uniform([-3, -3, -500], [50, 25, 2000], (500, 3))
    inside = np.clip(points, [1, 1, 0], [32, 17, 1000])
    seconds = RegularGridInterpolator((BATCHES, QUERIES, CONTEXTS), cost.seconds)(inside)
    seconds += RegularGridInterpolator((BATCHES, CONTEXTS), cost.drafting_seconds)(inside[:, [0, 2]])
    assert cost.decode_seconds(*points.T) == pytest.approx(seconds, rel=1e-12)


def test_grid_points_are_kept() -> None:
    cost = grid_cost()
    found = cost.decode_seconds(BATCHES[:, None, None], QUERIES[:, None], CONTEXTS)
    assert found == pytest.approx(cost.seconds + cost.drafting_seconds[:, None, :], rel=1e-15)


def test_one_point_is_a_constant() -> None:
    one = np.array([7.0])
    cost = StepCost(one, one, one, np.array([[[2.0]]]), np.array([[0.5]]), 0.0, 0.0, 0.0)
    assert cost.decode_seconds([1, 7, 900], 3, 2).tolist() == [2.5, 2.5, 2.5]


def test_prefill_by_hand() -> None:
    """5 tokens with a budget of 2: three steps; each token counts those before it, whatever the chunks."""
    assert grid_cost().prefill_seconds(5, 2) == pytest.approx(3 * 0.5 + 5 * 1e-3 + (0 + 1 + 2 + 3 + 4) * 1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batches", np.array([1.0, 1, 2])),
        ("seconds", np.zeros((3, 4))),
        ("seconds", np.full((3, 4, 2), np.nan)),
        ("drafting_seconds", np.zeros(3)),
        ("prefill_step_seconds", -1.0),
    ],
)
def test_costs_that_are_none(field: str, value: object) -> None:
    cost = grid_cost()
    values = {name: getattr(cost, name) for name in StepCost.__slots__} | {field: value}
    with pytest.raises(ValueError):
        StepCost(**values)
