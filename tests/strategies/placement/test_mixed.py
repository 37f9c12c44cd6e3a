"""Accelerators of several kinds against trying everything."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from planner.placement.check import check_throughput
from strategies.limits import Clock
from strategies.placement.bounds import simple_bound, spread_bound
from strategies.placement.columns import Columns, Cover, Pricing, whole_frontier
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.contraction import contract_classes
from strategies.placement.free import solve_free
from strategies.placement.loads import Kind, kinds_of
from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementProblem, PlacementResult, TypeSpec
from tests.cases import mostly
from tests.strategies.placement.small_problems import checked_objective, content_of, random_problem


@pytest.mark.exact
@mostly("exact", "seeds", [range(1), *(range(start, start + 8) for start in range(0, 120, 8))], quick=1)
def test_equals_trying_everything(seeds: range) -> None:
    for seed in seeds:
        problem = mixed_problem(seed)
        best, chain = best_by_trying(problem)
        evaluator(problem, solve_free(problem, clock=Clock(limit_s=60.0)), best, "none")
        evaluator(problem, solve_contiguous(problem, clock=Clock(limit_s=60.0)), chain, "chain")


def evaluator(problem: PlacementProblem, result: PlacementResult, best: float, contiguity: str) -> None:
    if not np.isfinite(best):
        assert result.placement is None
        return
    assert checked_objective(problem, result, contiguity) == pytest.approx(result.objective, rel=1e-12)
    assert result.objective == pytest.approx(best, rel=1e-6)
    assert result.bound <= best * (1 + 1e-9)
    assert result.proven_optimal


@mostly("exact", "seed", range(60))
def test_bounds_are_below_every_placement(seed: int) -> None:
    problem = mixed_problem(1000 + seed)
    best, _ = best_by_trying(problem)
    if not 0 < best < np.inf:
        pytest.skip("nothing to bound")
    graph = contract_classes(problem)
    kinds = kinds_of(problem, graph)
    assert simple_bound(problem).value <= best * (1 + 1e-9)
    bound, prices = spread_bound(kinds, graph)
    assert bound <= best * (1 + 1e-9)
    random = np.random.default_rng(seed)
    for tried in (prices, random.random(graph.num_blocks)):
        for bins, states in ((11, 2), (400, 64)):
            frontier = whole_frontier(graph, max_states=states)
            found, _ = Pricing(kinds, graph, frontier, largest=2 * best, bins=bins, is_proof=True).price(tried)
            assert found <= best * (1 + 1e-9)


@mostly(
    "exact",
    "seeds",
    [range(2000, 2002), *(range(start, start + 10) for start in range(2000, 2200, 10))],
    quick=1,
    every=11,
)
def test_covers_bound_every_placement(seeds: range) -> None:
    """Two hundred graphs: a proof at any load is below the best of all placements, and at that load there is a cover."""
    tightest = []
    for seed in seeds:
        problem = mixed_problem(seed)
        best, _ = best_by_trying(problem)
        if not 0 < best < np.inf:
            continue
        graph = contract_classes(problem)
        kinds = kinds_of(problem, graph)
        frontier = whole_frontier(graph, max_states=(3, 64)[seed % 2])
        guess = Pricing(kinds, graph, frontier, largest=2 * best, bins=500, is_proof=False)
        proof = Pricing(kinds, graph, frontier, largest=2 * best, bins=5_000, is_proof=True)
        columns = Columns(guess, proof, spread_bound(kinds, graph)[1])
        for share in (0.5, 0.8, 0.95, 1.02):
            cover = columns.decide(share * best, Clock())
            assert columns.bound <= best * (1 + 1e-9)
            if cover is not None:
                assert_covers(cover, kinds, graph.num_blocks)
        assert cover is not None or not frontier.is_exact, "the best placement is a cover, but for bins"
        tightest.append(columns.bound / best)
    assert max(tightest) > 0.9


def assert_covers(cover: Cover, kinds: tuple[Kind, ...], num_blocks: int) -> None:
    held = np.zeros(num_blocks)
    for kind, sets, shares in zip(kinds, cover.sets, cover.shares, strict=True):
        assert float(shares.sum()) <= kind.count * (1 + 1e-6)
        for members, share in zip(sets, shares.tolist(), strict=True):
            assert kind.allowed[members].all()
            held[members] += share
    assert held.min() >= 1 - 1e-5


def test_by_hand() -> None:
    """Six operators of 1 on a fast and of 2 on a slow device: four and two, both busy for 4; the cut costs the slow link double."""
    nodes = [NodeSpec(id=i, accelerator_time=0.0, cpu_time=0.0) for i in range(6)]
    edges = [EdgeSpec(i, i + 1, 0.25) for i in range(5)]
    kinds = [TypeSpec("fast", 1, 9.0, [1.0] * 6), TypeSpec("slow", 1, 9.0, [2.0] * 6, 2.0)]
    problem = PlacementProblem.build(nodes, edges, num_accelerators=0, num_cpus=0, memory_bytes=0.0, types=kinds)
    assert simple_bound(problem).value == pytest.approx(4.0)
    for result in (solve_contiguous(problem), solve_free(problem)):
        assert result.objective == pytest.approx(4.5)
        assert result.proven_optimal


@pytest.mark.exact
def test_a_hundred_operators_on_six_devices_of_two_kinds() -> None:
    random = np.random.default_rng(1)
    times = random.uniform(0.2, 2.0, 120)
    nodes = [NodeSpec(id=i, accelerator_time=0.0, cpu_time=20.0, size_bytes=1.0) for i in range(120)]
    edges = [EdgeSpec(i, i + 1, 0.1) for i in range(119)] + [EdgeSpec(i, i + 4, 0.1) for i in range(0, 110, 5)]
    kinds = [
        TypeSpec("fast", 3, 40.0, times.tolist()),
        TypeSpec("slow", 3, 20.0, (times * random.uniform(1.5, 3, 120)).tolist(), 2.0),
    ]
    problem = PlacementProblem.build(nodes, edges, num_accelerators=0, num_cpus=1, memory_bytes=0.0, types=kinds)
    chain = solve_contiguous(problem, clock=Clock(limit_s=60.0))
    assert chain.proven_optimal
    free = solve_free(problem, clock=Clock(limit_s=6.0))
    assert free.objective <= chain.objective * (1 + 1e-9)
    assert free.gap < 0.04


# --- Random small problems with accelerators of several kinds, and trying everything ----------------------------------------------------


def mixed_problem(seed: int) -> PlacementProblem:
    """A random problem with two or three kinds: times by a factor or of their own, scarce memory on some, slow links on some."""
    rng = random.Random(seed)
    while True:
        base = random_problem(rng.randrange(10**6), max_nodes=7)
        nodes = [
            NodeSpec(
                id=base.node_ids[v],
                accelerator_time=0.0,
                cpu_time=float(base.cpu_time[v]),
                size_bytes=float(base.size_bytes[v]),
                supported=bool(base.supported[v]),
                backward=bool(base.backward[v]),
                color=int(base.color[v]),
            )
            for v in range(base.num_nodes)
        ]
        edges = [
            EdgeSpec(base.node_ids[u], base.node_ids[v], float(base.transfer_time[u]))
            for u, v in zip(base.edge_source.tolist(), base.edge_target.tolist(), strict=True)
        ]
        total = float(base.size_bytes.sum())
        kinds = []
        for i, count in enumerate(rng.choice([(1, 1), (2, 1), (1, 2), (1, 1, 1)])):
            factor = rng.choice([0.5, 1.0, 2.0, 3.7])
            own = rng.random() < 0.5
            times = [round(float(t) * (rng.uniform(0.3, 4) if own else factor), 3) for t in base.accelerator_time]
            memory = rng.choice([total, total, 0.6 * total, 0.3 * total])
            kinds.append(TypeSpec(f"kind{i}", count, memory, times, rng.choice([1.0, 0.25, 3.0])))
        try:
            problem = PlacementProblem.build(
                nodes,
                edges,
                num_accelerators=0,
                num_cpus=rng.choice([0, 1, 1]),
                memory_bytes=0.0,
                types=kinds,
            )
        except ValueError:
            continue
        if problem.num_devices**problem.num_colors <= 20_000:
            return problem


def best_by_trying(problem: PlacementProblem) -> tuple[float, float]:
    """Least largest load of any placement, and of those along a chain, by the words of the definition."""
    content = content_of(problem)
    names = [problem.device_name(d) for d in range(problem.num_devices)]
    best = chain = np.inf
    for choice in itertools.product(names, repeat=problem.num_colors):
        device_of = {node: choice[int(c)] for node, c in zip(problem.node_ids, problem.color, strict=True)}
        checked = check_throughput(content, device_of)
        if not checked.violations:
            best = min(best, checked.objective)
            chain = min(chain, checked.objective) if checked.is_chain else chain
    return best, chain
