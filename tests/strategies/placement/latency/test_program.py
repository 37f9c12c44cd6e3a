"""The search of all placements for latency, with several subgraphs per accelerator, against trying everything."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.limits import Clock
from strategies.placement.latency.evaluate import evaluate
from strategies.placement.latency.program import search_all
from strategies.placement.latency.solve import solve_latency
from strategies.placement.problem import EdgeSpec, NodeSpec, Placement, PlacementProblem
from tests.cases import mostly
from tests.strategies.placement.latency.small_latency import Everything, random_latency_problem


def _found(
    problem: PlacementProblem, num_subgraphs: int, limit: float, effort: float = 60.0
) -> tuple[Placement | None, float]:
    return search_all(problem, num_subgraphs=num_subgraphs, limit=limit, effort=effort, clock=Clock())


@pytest.mark.parametrize("num_subgraphs", [1, 2, 4])
@mostly("exact", "seeds", [range(3), *(range(start, start + 8) for start in range(0, 32, 8))], quick=1)
def test_equals_trying_everything(seeds: range, num_subgraphs: int) -> None:
    for seed in seeds:
        problem = random_latency_problem(seed, num_subgraphs=num_subgraphs)
        everything = Everything(problem, num_subgraphs)
        placement, bound = _found(problem, num_subgraphs, 1.0 + 2 * everything.best)
        assert placement is not None
        assert bound == pytest.approx(everything.best, rel=1e-9, abs=1e-12), seed
        assert evaluate(problem, placement).latency == pytest.approx(everything.best, rel=1e-9, abs=1e-12), seed
        assert placement.subgraph is not None
        value = everything.of(placement.device, placement.subgraph)
        assert value == pytest.approx(everything.best, rel=1e-9, abs=1e-12), seed


@pytest.mark.parametrize("num_subgraphs", [2, 4])
@mostly(
    "exact", "seeds", [range(200, 201), range(201, 225), *(range(s, s + 25) for s in range(5000, 5100, 25))], quick=1
)
def test_small_graphs_are_closed(seeds: range, num_subgraphs: int) -> None:
    """Whatever the relaxation leaves open."""
    for seed in seeds:
        problem = random_latency_problem(seed, num_subgraphs=num_subgraphs)
        result = solve_latency(problem, num_subgraphs=num_subgraphs)
        best = Everything(problem, num_subgraphs).best
        assert result.proven_optimal, seed
        assert result.objective == pytest.approx(best, rel=1e-9, abs=1e-12), seed


def _row(count: int) -> PlacementProblem:
    nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=3.0, size_bytes=1.0) for i in range(count)]
    edges = [EdgeSpec(i, i + 1, 0.5) for i in range(count - 1)]
    return PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=1, memory_bytes=3.0)


def test_what_is_not_below_the_limit_is_not_found() -> None:
    # An accelerator holds 3 in all: 4 operators take 4 and one cut between accelerators, paid twice.
    placement, bound = _found(_row(4), 2, 100.0)
    assert placement is not None
    assert (evaluate(_row(4), placement).latency, bound) == pytest.approx((5.0, 5.0))
    assert _found(_row(4), 2, 5.0) == (None, 5.0)


def test_limits_are_kept() -> None:
    assert _found(_row(16), 3, 100.0, effort=0.0) == (None, -np.inf)
    late = search_all(_row(16), num_subgraphs=3, limit=100.0, effort=60.0, clock=Clock(limit_s=0.0))
    assert late == (None, -np.inf)
    assert solve_latency(_row(10), num_subgraphs=3, clock=Clock(limit_s=0.0)).stopped == "time limit"


def test_sizes_from_nothing_to_the_largest() -> None:
    nodes = [
        NodeSpec(id=0, accelerator_time=0.0, cpu_time=2.0, size_bytes=1e-30),
        NodeSpec(id=1, accelerator_time=1.0, cpu_time=2.0),
    ]
    nothing = PlacementProblem.build(nodes, [EdgeSpec(0, 1, 0.0)], num_accelerators=1, num_cpus=1, memory_bytes=0.0)
    placement, bound = _found(nothing, 2, 100.0)
    assert placement is not None
    assert placement.device.tolist() == [1, 0]
    assert bound == pytest.approx(3.0)
