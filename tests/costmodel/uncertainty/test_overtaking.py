"""Where plans overtake one another, on curves that can be solved by hand."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.arrays import FloatArray
from costmodel.uncertainty.rankings import overtaking


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
