"""The methods for large graphs: on small ones against trying everything, on a generated one against time and what chains cost."""

from __future__ import annotations

import time

import numpy as np
import pytest

from strategies.limits import Clock
from strategies.placement.bounds import simple_bound
from strategies.placement.chain import enumerate_ideals
from strategies.placement.columns import priced_bounds
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.contraction import _strong_components, contract, contract_classes
from strategies.placement.free import solve_free, solve_large
from strategies.placement.orders import coarse_graph, cut_costs, late_order, sample_orders, segments_along
from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementProblem
from tests.cases import mostly
from tests.strategies.placement.small_problems import brute_force, checked_objective, members_of, random_problem


@pytest.mark.exact
@mostly("exact", "seeds", [range(3), *(range(start, start + 20) for start in range(0, 120, 20))], quick=1)
def test_placements_are_legal_and_bounds_hold(seeds: range) -> None:
    for seed in seeds:
        problem = random_problem(seed)
        best = brute_force(problem).best("none")
        result = solve_large(problem, clock=Clock())
        assert result.bound <= best * (1 + 1e-9)
        if result.placement is not None:
            assert checked_objective(problem, result) == pytest.approx(result.objective, rel=1e-12)
            assert result.objective >= best * (1 - 1e-9)


@mostly("exact", "seed", range(80))
def test_priced_bounds_are_below_every_placement(seed: int) -> None:
    problem = random_problem(seed)
    best = brute_force(problem).best("none")
    if not 0 < best < np.inf:
        pytest.skip("nothing to bound")
    graph = contract_classes(problem)
    order = np.random.default_rng(seed).permutation(graph.num_blocks)
    found = list(priced_bounds(problem, graph, order, value=1.5 * best, bound=0.1 * best, clock=Clock()))
    assert found
    assert max(found) <= best * (1 + 1e-9)


@mostly("exact", "seed", range(60))
def test_orders_stay_topological_and_cuts_are_those_of_their_prefixes(seed: int) -> None:
    graph = contract(random_problem(seed))
    for order in sample_orders(graph, 4, seed):
        late = late_order(graph, order)
        rank = np.argsort(late)
        assert np.all(rank[graph.edge_source] < rank[graph.edge_target])
        costs = cut_costs(graph, late)
        for i in range(graph.num_blocks + 1):
            inside = np.isin(graph.pin, late[:i])
            cost = 0.0
            for h, price in enumerate(graph.hyperedge_cost):
                pins = inside[graph.pin_start[h] : graph.pin_start[h + 1]]
                cost += price * (pins.any() and not pins.all())
            assert costs[i] == pytest.approx(cost)


@mostly("exact", "seed", range(60))
def test_coarse_graph_costs_what_the_graph_costs(seed: int) -> None:
    """Down-sets of the coarse graph are down-sets of the graph, with the same work and the same cuts."""
    graph = contract(random_problem(seed))
    order = sample_orders(graph, 1, seed)[0]
    segment = segments_along(graph, order, 3)
    coarse = coarse_graph(graph, segment)
    family, whole = enumerate_ideals(coarse, limit=10_000), enumerate_ideals(graph, limit=10_000)
    fine = {members_of(row): i for i, row in enumerate(whole.bits)}
    for i, row in enumerate(family.bits):
        members = np.flatnonzero(np.isin(segment, members_of(row)))
        j = fine[tuple(members.tolist())]
        assert family.accelerator_time[i] == pytest.approx(whole.accelerator_time[j])
        assert family.split_cost[i] == pytest.approx(whole.split_cost[j])


def unrolled(cells: int, width: int = 3, *, accelerators: int = 8) -> PlacementProblem:
    """Cells of parallel branches between single operators; only there a cut is cheap."""
    random = np.random.default_rng(7)
    nodes, edges, last = [], [], 0
    nodes.append(NodeSpec(id=0, accelerator_time=1.0, cpu_time=20.0, size_bytes=1.0))
    for _ in range(cells):
        ends = []
        for _ in range(width):
            before = last
            for _ in range(4):
                time_ = float(random.uniform(0.1, 2.0))
                nodes.append(NodeSpec(len(nodes), time_, 20 * time_, 1.0))
                edges.append(EdgeSpec(before, len(nodes) - 1, 1.0 if before == last else 3.0))
                before = len(nodes) - 1
            ends.append(before)
        nodes.append(NodeSpec(len(nodes), 0.5, 10.0, 1.0))
        last = len(nodes) - 1
        edges += [EdgeSpec(end, last, 3.0) for end in ends]
    return PlacementProblem.build(
        nodes, edges, num_accelerators=accelerators, num_cpus=1, memory_bytes=2.0 * len(nodes) / accelerators
    )


@pytest.mark.exact
def test_large_graph_in_seconds_within_five_percent() -> None:
    problem = unrolled(400)
    assert problem.num_nodes > 5_000
    for result in (solve_contiguous(problem), solve_free(problem)):
        assert result.bound >= 0.95 * result.objective
        assert checked_objective(problem, result) == pytest.approx(result.objective)


@pytest.mark.exact
def test_pricing_sees_the_cuts_that_no_division_of_the_work_sees() -> None:
    """Transfers as dear as an eighth of a device's work: the bound must be above the compute divided evenly."""
    problem = unrolled(300, accelerators=40)
    result = solve_contiguous(problem)
    assert result.bound > 1.01 * simple_bound(problem).value
    assert "Lagrangian" in result.proof


@pytest.mark.exact
def test_time_limit_is_kept_and_the_best_so_far_returned() -> None:
    problem = unrolled(800)
    for solve in (solve_contiguous, solve_free):
        begin = time.monotonic()
        result = solve(problem, clock=Clock(limit_s=1.0))
        assert time.monotonic() - begin < 15.0  # slow machines need seconds for a single step
        assert result.bound <= result.objective
        if result.stopped:
            assert result.stopped == "time limit"


@pytest.mark.exact
def test_the_same_for_the_same_seed() -> None:
    problem = unrolled(250)
    first, second = (solve_large(problem, seed=3, clock=Clock()) for _ in range(2))
    assert np.array_equal(first.placement.device, second.placement.device)
    assert first.bound == second.bound


# --- The steps of contraction against their definitions -----------------------------------------------------------------------------------


@mostly("exact", "seed", range(60))
def test_components_are_those_that_reach_each_other(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 12))
    edges = random.integers(0, count, (int(random.integers(0, 2 * count)), 2))
    source, target = edges[edges[:, 0] != edges[:, 1]].T
    if seed % 3 == 0:  # no cycle
        source, target = np.minimum(source, target), np.maximum(source, target)
    reach = np.eye(count, dtype=np.bool_)
    reach[source, target] = True
    for _ in range(count):
        reach = reach | (reach @ reach)
    expected = [int(np.flatnonzero(reach[v] & reach[:, v])[0]) for v in range(count)]
    assert _strong_components(count, source, target).tolist() == expected


def test_what_hangs_on_a_cycle_stays_apart() -> None:
    """0 -> (1 <-> 2) -> 3, numbered so that no shortcut applies."""
    source, target = np.array([3, 1, 2, 2]), np.array([1, 2, 1, 0])
    assert _strong_components(4, source, target).tolist() == [0, 1, 1, 3]
