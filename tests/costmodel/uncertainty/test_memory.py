"""P(fits) against tables of the normal distribution, and the limit that stands for it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from costmodel.uncertainty.limits import MemoryErrors


@pytest.mark.parametrize(
    ("deviations", "chance"),  # tables of the normal distribution
    [(0.0, 0.5), (1.0, 0.841345), (1.644854, 0.95), (2.326348, 0.99), (-1.0, 0.158655)],
)
def test_chance_is_that_of_tables(deviations: float, chance: float) -> None:
    errors = MemoryErrors(mean=0.05, log_sd=0.1)
    predicted = 80e9 * math.exp(-(0.05 + 0.1 * deviations))
    assert errors.probability(predicted, 80e9) == pytest.approx(chance, abs=1e-6)
    assert errors.limit_bytes(80e9, errors.probability(predicted, 80e9)) == pytest.approx(predicted, rel=1e-9)


def test_a_plan_within_the_limit_is_one_that_is_sure_enough() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        errors = MemoryErrors(mean=draw.normal(0.0, 0.2), log_sd=draw.uniform(0.005, 0.3))
        chance, capacity = draw.uniform(0.01, 0.999), draw.uniform(1e9, 1e12)
        limit = errors.limit_bytes(capacity, chance)
        needs = limit * np.exp(draw.normal(0.0, 0.2, 20))
        found = [errors.probability(need, capacity) >= chance for need in needs]
        assert found == (needs <= limit).tolist()


def test_more_memory_and_smaller_plans_are_surer() -> None:
    errors = MemoryErrors(mean=-0.02, log_sd=0.07)
    by_need = [errors.probability(need, 80e9) for need in np.linspace(50e9, 110e9, 50)]
    by_room = [errors.probability(70e9, room) for room in np.linspace(50e9, 110e9, 50)]
    assert by_need == sorted(by_need, reverse=True)
    assert by_room == sorted(by_room)


def test_nothing_needs_no_memory() -> None:
    errors = MemoryErrors(mean=0.0, log_sd=0.1)
    assert [errors.probability(0.0, 1.0), errors.probability(1.0, 0.0), errors.probability(1.0, math.inf)] == [1, 0, 1]
