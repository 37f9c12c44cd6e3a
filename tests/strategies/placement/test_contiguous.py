"""The best chain of down-sets against trying everything, published values and another way to count."""

from __future__ import annotations

import numpy as np
import pytest

from planner.placement.check import check_throughput
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.loads import device_loads, placement_faults
from tests.strategies.placement.small_problems import brute_force, content_of, random_problem


@pytest.mark.parametrize("block", range(10))
def test_equals_brute_force(block: int) -> None:
    infeasible = 0
    for seed in range(block * 40, block * 40 + 40):
        problem = random_problem(seed)
        expected = brute_force(problem).best("chain")
        result = solve_contiguous(problem)
        assert result.proven_optimal, seed
        if not np.isfinite(expected):
            infeasible += 1
            assert result.placement is None, seed
            assert result.bound == np.inf
            continue
        assert result.objective == pytest.approx(expected, rel=1e-12), seed
        assert result.placement is not None
        assert not placement_faults(problem, result.placement)
        names = problem.device_names()
        device_of = {problem.node_ids[v]: names[d] for v, d in enumerate(result.placement.device.tolist())}
        checked = check_throughput(content_of(problem), device_of, contiguity="chain")
        assert checked.violations == (), seed
        assert checked.objective == pytest.approx(expected, rel=1e-12), seed
        assert device_loads(problem, result.placement.device).load.max() == pytest.approx(expected, rel=1e-12)
    assert infeasible < 20
