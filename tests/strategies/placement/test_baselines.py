"""Baselines are legal, worth what they say and never better than everything tried; the bounds hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from strategies.limits import Clock
from strategies.placement.baselines import local_search, one_device, one_device_time, solve_chain, solve_greedy
from strategies.placement.bounds import class_bound, largest_load, simple_bound, work_bound
from strategies.placement.device_program import is_convex, solve_convex
from strategies.placement.problem import PlacementResult
from tests.cases import mostly
from tests.strategies.placement.small_problems import brute_force, checked_objective, random_problem

CHAIN = {"greedy": solve_greedy, "chain": solve_chain}
FREE = {"one device": one_device, "local search": local_search}


@pytest.mark.exact
@mostly("exact", "name", [*CHAIN, *FREE], quick=1)
def test_baselines_are_what_they_say(name: str) -> None:
    found = 0
    for seed in range(80):
        problem = random_problem(seed)
        tried = brute_force(problem)
        result = (CHAIN | FREE)[name](problem)
        assert result.bound <= tried.best() * (1 + 1e-9)
        if result.placement is None:
            assert result.objective == np.inf
            continue
        found += 1
        mode = "chain" if name in CHAIN else "none"
        assert checked_objective(problem, result, mode) == pytest.approx(result.objective, rel=1e-12)
        assert result.objective >= tried.best(mode) * (1 - 1e-9)
    assert found > 30


@pytest.mark.exact
def test_bounds_hold_and_meet_where_nothing_moves() -> None:
    tight = 0
    for seed in range(200):
        problem = random_problem(seed)
        tried = brute_force(problem)
        best = tried.best()
        bound = simple_bound(problem).value
        assert bound >= max(work_bound(problem), class_bound(problem))
        assert bound <= best * (1 + 1e-9), seed
        tight += bound > best * 0.999
        assert np.max(tried.value[tried.legal], initial=0.0) <= largest_load(problem) * (1 + 1e-12)
    assert tight > 20


def test_one_device_time_is_the_better_of_both() -> None:
    for seed in range(50):
        problem = random_problem(seed)
        result = one_device(problem)
        assert one_device_time(problem) <= result.objective


@mostly("exact", "seeds", [range(4), *(range(start, start + 20) for start in range(0, 80, 20))], quick=1)
def test_convex_equals_brute_force(seeds: range) -> None:
    better = 0
    for seed in seeds:
        problem = random_problem(seed, max_nodes=8)
        tried = brute_force(problem)
        result = solve_convex(problem)
        expected = tried.best("convex")
        if expected == np.inf:
            assert result.placement is None, seed
            continue
        assert result.objective == pytest.approx(expected, rel=1e-6), seed
        assert result.bound <= expected * (1 + 1e-9), seed
        assert checked_objective(problem, result, "convex") == pytest.approx(result.objective, rel=1e-12)
        better += expected < tried.best("chain") * (1 - 1e-6)
        rows = np.random.default_rng(seed).integers(0, len(tried.devices), 50)
        for row in rows.tolist():
            assert is_convex(problem, tried.devices[row]) == tried.convex[row], seed


@pytest.mark.parametrize("solve", [solve_greedy, solve_chain, local_search])
def test_baselines_say_that_time_was_up(solve: Callable[..., PlacementResult]) -> None:
    """What was found until then is kept; nothing is blamed on the memory."""
    problem = random_problem(3)
    result = solve(problem, clock=Clock(limit_s=0.0))
    assert result.stopped == "time limit"
    if result.placement is not None:
        assert checked_objective(problem, result) == pytest.approx(result.objective, rel=1e-12)


def test_local_search_keeps_what_it_has_when_interrupted() -> None:
    seen: list[float] = []

    def interrupt(_stage: str, value: float, _bound: float) -> None:
        seen.append(value)
        raise KeyboardInterrupt

    result = local_search(random_problem(3), clock=Clock(report=interrupt))
    assert result.is_interrupted
    assert result.objective == seen[-1]
