"""The chance that limits are kept, against draws and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.uncertainty.limits import chance_of_all, deviates

_CORRELATIONS = (-0.7, 0.0, 0.3, 0.9, 0.999)


@pytest.mark.parametrize("correlation", _CORRELATIONS)
@pytest.mark.parametrize("limits", [(0.0, 0.0), (0.5, -0.3), (1.3, 1.2), (-1.5, 0.2)])
def test_two_limits_against_draws(limits: tuple[float, float], correlation: float) -> None:
    first, second = np.random.default_rng(7).standard_normal((2, 400_000))
    other = correlation * first + math.sqrt(1.0 - correlation**2) * second
    share = float(np.mean((first <= limits[0]) & (other <= limits[1])))
    assert chance_of_all(list(limits), correlation) == pytest.approx(share, abs=3e-3)


@pytest.mark.parametrize("correlation", _CORRELATIONS)
def test_two_limits_at_their_medians(correlation: float) -> None:
    """Sheppard's quarter: 1/4 + asin(r) / (2 pi)."""
    expected = 0.25 + math.asin(correlation) / (2.0 * math.pi)
    assert chance_of_all([0.0, 0.0], correlation) == pytest.approx(expected, abs=1e-9)


@given(st.floats(-5.0, 5.0), st.floats(-5.0, 5.0), st.floats(-1.0, 1.0))
def test_two_limits_are_kept_no_more_often_than_either(x: float, y: float, correlation: float) -> None:
    """Frechet's bounds."""
    first, second, both = chance_of_all([x]), chance_of_all([y]), chance_of_all([x, y], correlation)
    assert max(first + second - 1.0, 0.0) - 1e-6 <= both <= min(first, second)


@given(st.floats(1.01, 2.0), st.floats(1.01, 2.0), st.floats(0.3, 3.0), st.floats(0.3, 3.0))
def test_a_later_limit_is_kept_more_often(below: float, above: float, one: float, other: float) -> None:
    first, second = (deviates(1.0, 1.0 / below, above, limit) for limit in sorted((one, other)))
    assert first <= second


def test_a_time_without_an_error_keeps_what_is_above_it() -> None:
    assert chance_of_all([deviates(1.0, 1.0, 1.0, 1.1)]) > 0.999
    assert chance_of_all([deviates(1.0, 1.0, 1.0, 0.9)]) < 0.001
