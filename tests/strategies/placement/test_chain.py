"""The two programs over chains of down-sets check each other and everything tried."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.placement.bounds import cpu_relief
from strategies.placement.chain import ChainLimits, best_chain, chain_within, enumerate_ideals
from strategies.placement.contiguous import chain_placement
from strategies.placement.contraction import contract
from strategies.placement.loads import device_loads, placement_faults
from tests.strategies.placement.small_problems import brute_force, random_problem


@pytest.mark.exact
def test_a_limit_can_be_kept_exactly_from_the_optimum_on() -> None:
    found_any = 0
    for seed in range(250):
        problem = random_problem(seed)
        graph = contract(problem)
        family = enumerate_ideals(graph, limit=10_000)
        limits = ChainLimits(
            num_accelerators=problem.num_accelerators,
            num_cpus=problem.num_cpus,
            capacity_bytes=problem.capacity_bytes,
        )
        best = brute_force(problem).best("chain")
        if not np.isfinite(best):
            assert chain_within(family, graph, limits, limit=1e9) is None, seed
            assert best_chain(family, graph, limits, limit=1e9) is None, seed
            continue
        if best == 0:
            continue
        found_any += 1
        for run in (chain_within, best_chain):
            assert run(family, graph, limits, limit=best * (1 - 1e-9)) is None, seed
            for factor in (1 + 1e-9, 1.3, 10.0):
                found = run(family, graph, limits, limit=best * factor)
                assert found is not None, (seed, factor)
                assert best * (1 - 1e-9) <= found.value <= best * factor * (1 + 1e-9)
                placement = chain_placement(problem, graph, family, found)
                assert not placement_faults(problem, placement)
                assert np.isclose(device_loads(problem, placement.device).load.max(), found.value)
                if run is best_chain:
                    assert np.isclose(found.value, best)
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
