"""Chances and lists to benchmark against all the lists that there are."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.arrays import FloatArray
from costmodel.uncertainty.rankings import overtaking, probability_best, shortest_list

times = st.integers(2, 6).flatmap(
    lambda n: st.lists(st.lists(st.floats(0.5, 2.0), min_size=n, max_size=n), min_size=1, max_size=30)
)


@given(times)
def test_chances_add_up_to_one(rows: list[list[float]]) -> None:
    chances = probability_best(np.log(np.array(rows)))
    assert chances.sum() == pytest.approx(1.0)
    assert np.all(chances >= 0)


@given(times, st.floats(0.05, 1.0), st.sampled_from([0.0, 0.05, 0.3]))
def test_the_list_holds_the_share_and_none_shorter_does(
    rows: list[list[float]], share: float, tolerance: float
) -> None:
    log_times = np.log(np.array(rows))
    chosen = shortest_list(log_times, share, tolerance).tolist()

    def held(plans: tuple[int, ...]) -> float:
        if tolerance == 0:  # ties go to the earlier
            ties = log_times <= log_times.min(axis=1, keepdims=True) + 1e-12
            return float(np.isin(ties.argmax(axis=1), plans).mean())
        return float((log_times[:, plans].min(axis=1) <= log_times.min(axis=1) + math.log1p(tolerance)).mean())

    assert len(set(chosen)) == len(chosen)
    assert held(tuple(chosen)) >= share - 1e-9
    # Exact without a tolerance; with one, single plans and pairs are not missed.
    for size in range(1, len(chosen) if tolerance == 0 else min(len(chosen), 3)):
        assert all(held(plans) < share - 1e-9 for plans in combinations(range(log_times.shape[1]), size))


def test_a_list_holds_the_recommended_plan_where_that_costs_nothing() -> None:
    """Two plans that are first in turn: either pair with a third that never is would do no better, so the first stays on."""
    times = np.log(np.array([[1.0, 1.0, 9.0], [1.0, 1.0, 9.0], [1.2, 1.0, 9.0], [1.0, 1.0, 1.0]]))
    assert shortest_list(times, 1.0, tolerance=0.01).tolist() == [1]
    assert shortest_list(times, 1.0, tolerance=0.01, holding=0).tolist() == [1]  # it would need both
    assert shortest_list(times, 0.75, tolerance=0.01, holding=0).tolist() == [0]


# --- Where plans overtake one another, on curves that can be solved by hand ---------------------------------------------------------------


def test_overtaking_is_where_the_curves_cross() -> None:
    """1 + 1/f and 1.5 + 0.75/f cross at f = 1/2; the third plan stays behind."""

    def curve(factor: float) -> FloatArray:
        return np.array([1 + 1 / factor, 1.5 + 0.75 / factor, 30.0])

    found = overtaking(curve, [0.7, 0.3, 1.5, 4.0])
    assert found.winner == 1
    assert found.factor == pytest.approx(0.5, rel=2e-3)


def test_overtaking_takes_the_nearer_side_and_the_nearest_winner() -> None:
    """f > 1: plan 1 from 3; f < 1: plan 2 from 1/1.25, though plan 1 would win at 1/8."""

    def curve(factor: float) -> FloatArray:
        return np.array([1.0, 3.0 / factor, 0.9 * (factor / 0.72)])

    found = overtaking(curve, [0.5, 0.9, 1.5, 2.0, 4.0])
    assert found.winner == 2
    assert found.factor == pytest.approx(0.8, rel=2e-3)


def test_what_changes_all_plans_alike_overtakes_nothing() -> None:
    assert overtaking(lambda f: np.array([1.0, 1.1]) * f, [0.1, 0.5, 2.0, 10.0]) is None
