"""The program over chains of down-sets against everything tried."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.limits import Clock
from strategies.placement.bounds import cpu_relief
from strategies.placement.chain import Stages, enumerate_ideals
from strategies.placement.contraction import contract
from strategies.placement.loads import device_loads, kinds_of, placement_faults
from strategies.placement.problem import Placement
from tests.strategies.placement.small_problems import brute_force, random_problem


@pytest.mark.exact
def test_a_limit_can_be_kept_exactly_from_the_optimum_on() -> None:
    found_any = 0
    for seed in range(250):
        problem = random_problem(seed)
        graph = contract(problem)
        stages = Stages(enumerate_ideals(graph, limit=10_000), graph, kinds_of(problem, graph))
        best = brute_force(problem).best("chain")
        if not np.isfinite(best):
            assert stages.best_chain(1e9, Clock()) is None, seed
            continue
        if best == 0:
            continue
        found_any += 1
        assert stages.best_chain(best * (1 - 1e-9), Clock()) is None, seed
        for factor in (1 + 1e-9, 1.3, 10.0):
            found = stages.best_chain(best * factor, Clock())
            assert found is not None, (seed, factor)
            assert np.isclose(found.value, best)
            placement = Placement(device=found.device[graph.block])
            assert not placement_faults(problem, placement)
            assert np.isclose(device_loads(problem, placement.device).load.max(), found.value)
            rank = np.argsort(found.order)
            assert np.all(rank[graph.edge_source] < rank[graph.edge_target])
    assert found_any > 150


def test_cpus_relieve_accelerators_of_what_they_are_least_bad_at() -> None:
    for seed in range(40):
        problem = random_problem(seed)
        graph = contract(problem)
        relief = cpu_relief(np.where(graph.supported, graph.accelerator_time, 0.0), graph.cpu_time)
        useful = graph.supported & (graph.accelerator_time > 0)
        total = float(graph.accelerator_time[useful].sum())
        assert relief(float(graph.cpu_time.sum())) >= total * (1 - 1e-12)
        values = [relief(x) for x in np.linspace(0, float(graph.cpu_time.sum()) + 1, 9)]
        assert values == sorted(values)
        assert max(values) <= total * (1 + 1e-12)
        for b in np.flatnonzero(useful).tolist():  # at least any single block
            assert relief(float(graph.cpu_time[b])) >= graph.accelerator_time[b] * (1 - 1e-12)
