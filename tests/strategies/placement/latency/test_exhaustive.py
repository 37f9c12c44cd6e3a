"""The search of all placements for latency, with several subgraphs per accelerator, against trying everything."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.limits import Clock, OutOfTimeError
from strategies.placement.latency.evaluate import evaluate
from strategies.placement.latency.solve import search_all, solve_latency
from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementProblem
from tests.cases import mostly
from tests.strategies.placement.latency.small_latency import Everything, random_latency_problem


@pytest.mark.parametrize("num_subgraphs", [1, 2, 4])
@mostly("exact", "seeds", [range(3), *(range(start, start + 8) for start in range(0, 32, 8))], quick=1)
def test_equals_trying_everything(seeds: range, num_subgraphs: int) -> None:
    for seed in seeds:
        problem = random_latency_problem(seed, num_subgraphs=num_subgraphs)
        everything = Everything(problem, num_subgraphs)
        answer = search_all(
            problem, num_subgraphs=num_subgraphs, limit=np.inf, most_states=200_000, clock=Clock(limit_s=60)
        )
        assert answer.is_complete
        assert answer.placement is not None
        assert answer.latency == pytest.approx(everything.best, rel=1e-9, abs=1e-12), seed
        assert evaluate(problem, answer.placement).latency == pytest.approx(answer.latency, rel=1e-9, abs=1e-12)
        assert answer.placement.subgraph is not None
        value = everything.of(answer.placement.device, answer.placement.subgraph)
        assert value == pytest.approx(everything.best, rel=1e-9, abs=1e-12), seed


@pytest.mark.exact
@pytest.mark.parametrize("num_subgraphs", [2, 4])
def test_small_graphs_are_closed(num_subgraphs: int) -> None:
    """Whatever the relaxation leaves open."""
    for seed in range(200, 225):
        problem = random_latency_problem(seed, num_subgraphs=num_subgraphs)
        result = solve_latency(problem, num_subgraphs=num_subgraphs, clock=Clock(limit_s=60))
        best = Everything(problem, num_subgraphs).best
        assert result.proven_optimal, seed
        assert result.objective == pytest.approx(best, rel=1e-9, abs=1e-12), seed


def _row(count: int) -> PlacementProblem:
    nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=3.0, size_bytes=1.0) for i in range(count)]
    edges = [EdgeSpec(i, i + 1, 0.5) for i in range(count - 1)]
    return PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=1, memory_bytes=3.0)


def test_what_is_not_below_the_limit_is_not_found() -> None:
    # Two calls of an accelerator each hold 3 in all: 4 operators take 4 and one cut between accelerators, paid twice.
    found = search_all(_row(4), num_subgraphs=2, limit=100.0, most_states=10_000, clock=Clock())
    assert found.latency == pytest.approx(5.0)
    nothing = search_all(_row(4), num_subgraphs=2, limit=5.0, most_states=10_000, clock=Clock())
    assert (nothing.placement, nothing.is_complete) == (None, True)


def test_limits_are_kept() -> None:
    assert not search_all(_row(8), num_subgraphs=2, limit=100.0, most_states=50, clock=Clock()).is_complete
    with pytest.raises(OutOfTimeError):
        search_all(_row(10), num_subgraphs=3, limit=100.0, most_states=10**9, clock=Clock(limit_s=0.0))
