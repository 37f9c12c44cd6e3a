"""Errors against numbers worked out by hand, and against searches that know nothing of the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.measurements.metrics import best_factor, error_summary

positive = st.floats(min_value=0.01, max_value=100.0)


def test_errors_by_hand() -> None:
    summary = error_summary([2.0, 3.0, 8.0], [1.0, 4.0, 10.0], [1.0, 4.0, 10.0])
    assert summary["mape"] == pytest.approx((1.0 + 0.25 + 0.2) / 3)
    assert summary["median_ape"] == pytest.approx(0.25)
    assert summary["p90_ape"] == pytest.approx(0.25 + 0.8 * 0.75)  # between the second and the third: 0.9 x 2 = 1.8
    assert summary["bias"] == pytest.approx((math.log(2) + math.log(0.75) + math.log(0.8)) / 3)
    assert summary["skill"] is None  # the baseline makes no error: nothing to be better than


def test_skill_is_zero_for_the_baseline_itself_and_one_for_perfection() -> None:
    measured, ideal = [1.0, 2.0, 5.0], [1.0, 1.0, 1.0]
    factor = best_factor(ideal, measured)
    assert error_summary([factor * x for x in ideal], measured, ideal)["skill"] == pytest.approx(0.0)
    assert error_summary(measured, measured, ideal)["skill"] == 1.0


def test_rows_without_flop_are_no_part_of_the_skill() -> None:
    with_view = error_summary([1.1, 1.8, 9.0], [1.0, 2.0, 1.0], [1.0, 1.0, 0.0])
    assert with_view["skill"] == pytest.approx(error_summary([1.1, 1.8], [1.0, 2.0], [1.0, 1.0])["skill"])


def test_the_baseline_of_a_part_may_come_from_the_whole() -> None:
    assert error_summary([1.5], [1.0], [1.0], factor=2.0)["skill"] == pytest.approx(0.5)  # the baseline says 2


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_rows(count: int) -> None:
    summary = error_summary([2.0] * count, [1.0] * count, [1.0] * count)
    assert (summary["mape"], summary["skill"]) == ((None, None) if count == 0 else (1.0, None))


def test_a_prediction_of_no_time_is_infinitely_biased() -> None:
    assert error_summary([0.0, 1.0], [1.0, 1.0], [1.0, 1.0])["bias"] == -math.inf


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=12))
def test_no_other_factor_of_the_baseline_is_better(rows: list[tuple[float, float]]) -> None:
    ideal, measured = np.array(rows).T

    def mean_error(factor: float) -> float:
        return sum(abs(factor * a - b) / b for a, b in rows) / len(rows)

    best = mean_error(best_factor(ideal, measured))
    # The mean is convex and bends where a row is met exactly: one of those points is the least.
    assert best <= min(mean_error(b / a) for a, b in rows) * (1 + 1e-12)
