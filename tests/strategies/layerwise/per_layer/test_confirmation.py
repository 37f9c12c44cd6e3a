"""The second opinion agrees with brute force, and shouts where the first one was wrong."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.layerwise.per_layer import search
from strategies.layerwise.per_layer.search import is_confirmed
from tests.cases import mostly
from tests.strategies.layerwise.per_layer.choice_problems import brute_force, random_problem


@mostly("exact", "seed", range(12))
def test_the_cheapest_is_confirmed_and_nothing_dearer(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), shape="dense", memory="binding")
    costs = [value for value, _ in brute_force(problem)]
    assert is_confirmed(problem, costs[0], 60.0)
    if costs[-1] > costs[0] * 1.01:
        with pytest.raises(AssertionError, match="elimination found"):
            is_confirmed(problem, costs[-1], 60.0)


def test_what_would_take_long_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(np.random.default_rng(0), shape="dense", memory="none")
    least = brute_force(problem)[0][0]
    assert not is_confirmed(problem, least, 0.5)
    monkeypatch.setattr(search, "_CONFIRMED_PAIRS", 1)
    assert not is_confirmed(problem, least, 60.0)
