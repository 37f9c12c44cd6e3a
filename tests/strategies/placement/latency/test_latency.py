"""Claims about latency compared with trying everything, and known values of the public workloads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.files.json_file import read_workload
from planner.placement.check import check_latency
from planner.placement.placement_file import assignment_of
from planner.placement.workload_file import workload_from
from strategies.limits import Clock
from strategies.placement.latency import solve
from strategies.placement.latency.evaluate import evaluate, latency_greedy, latency_one_device
from strategies.placement.latency.solve import solve_latency
from strategies.placement.problem import EdgeSpec, NodeSpec, Placement, PlacementProblem
from tests.cases import mostly
from tests.strategies.placement.latency.small_latency import Everything, random_latency_problem
from tests.strategies.placement.small_problems import content_of


def _checked(problem: PlacementProblem, placement: Placement, num_subgraphs: int) -> float:
    assert placement.subgraph is not None
    subgraph = {problem.node_ids[v]: int(s) for v, s in enumerate(placement.subgraph)}
    checked = check_latency(
        content_of(problem), assignment_of(problem, placement), subgraph, num_subgraphs=num_subgraphs
    )
    assert not checked.violations
    return checked.objective


@pytest.mark.exact
@mostly("exact", "seeds", [range(4), *(range(start, start + 15) for start in range(0, 300, 15))], quick=1)
def test_one_subgraph_is_proven_optimal(seeds: range) -> None:
    for seed in seeds:
        problem = random_latency_problem(seed)
        best = Everything(problem).best
        result = solve_latency(problem)
        assert result.placement is not None
        assert result.objective == pytest.approx(best, rel=1e-9, abs=1e-9), seed
        assert result.bound <= best * (1 + 1e-9)
        assert result.proven_optimal, seed
        assert _checked(problem, result.placement, 1) == pytest.approx(result.objective)


@pytest.mark.parametrize("num_subgraphs", [2, 3])
@mostly("exact", "seeds", [range(1000, 1001), *(range(start, start + 10) for start in range(1000, 1150, 10))], quick=1)
def test_several_subgraphs_are_bounded(seeds: range, num_subgraphs: int) -> None:
    for seed in seeds:
        problem = random_latency_problem(seed, num_subgraphs=num_subgraphs)
        best = Everything(problem, num_subgraphs).best
        result = solve_latency(problem, num_subgraphs=num_subgraphs)
        assert result.placement is not None
        assert result.objective >= best * (1 - 1e-9)
        assert result.bound <= best * (1 + 1e-9), seed
        assert not result.proven_optimal or result.objective == pytest.approx(best)
        assert _checked(problem, result.placement, num_subgraphs) == pytest.approx(result.objective)


@pytest.mark.exact
@mostly("exact", "num_subgraphs", [1, 2], quick=1)
def test_evaluation_equals_the_definition(num_subgraphs: int) -> None:
    rng = np.random.default_rng(5)
    for seed in range(60):
        problem = random_latency_problem(seed, num_subgraphs=num_subgraphs)
        everything = Everything(problem, num_subgraphs)
        legal = np.flatnonzero(np.isfinite(everything.latency))
        for row in rng.choice(legal, size=min(8, len(legal)), replace=False):
            place = everything.place[row]
            device = np.where(place == 0, problem.num_accelerators, (place - 1) // num_subgraphs)
            subgraph = np.where(place == 0, 0, (place - 1) % num_subgraphs)
            timing = evaluate(problem, Placement(device=device, subgraph=subgraph))
            assert timing.latency == pytest.approx(everything.latency[row])
            assert timing.latency == pytest.approx(
                _checked(problem, Placement(device=device, subgraph=subgraph), num_subgraphs)
            )


@pytest.mark.exact
def test_far_steps_and_a_coarse_graph_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What large graphs are searched with, on small ones."""
    monkeypatch.setattr(solve, "_LARGE", 0)
    for seed in range(150):
        problem = random_latency_problem(seed)
        best = Everything(problem).best
        result = solve_latency(problem)
        assert result.objective == pytest.approx(best, rel=1e-9, abs=1e-9), seed
        assert result.proven_optimal, seed
        assert result.bound <= best * (1 + 1e-9)


@pytest.mark.exact
def test_outputs_that_nobody_reads_bypass_far_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls of which neither reads the other run at once, whatever down-sets are between them."""
    monkeypatch.setattr(solve, "_LARGE", 0)
    for seed in (7193, *range(7200, 7260)):
        problem = random_latency_problem(seed)
        best = Everything(problem).best
        result = solve_latency(problem)
        assert result.bound <= best * (1 + 1e-9), seed
        assert result.objective == pytest.approx(best, rel=1e-9, abs=1e-9), seed


def _chain(blocks: int, seed: int) -> PlacementProblem:
    """Blocks of three branches that meet again, four operators each, with outputs and sizes drawn at random."""
    rng = np.random.default_rng(seed)
    nodes, edges, last = [NodeSpec(id=0, accelerator_time=1.0, cpu_time=5.0, size_bytes=1.0)], [], 0
    for _ in range(blocks):
        ends = []
        for _ in range(3):
            here = last
            for _ in range(2):
                time = float(rng.uniform(0.5, 2))
                new = len(nodes)
                nodes.append(
                    NodeSpec(id=new, accelerator_time=time, cpu_time=6 * time, size_bytes=float(rng.integers(1, 4)))
                )
                edges.append((here, new))
                here = new
            ends.append(here)
        last = len(nodes)
        nodes.append(NodeSpec(id=last, accelerator_time=0.0, cpu_time=0.0))
        edges += [(end, last) for end in ends]
    cost = rng.uniform(0.5, 3, len(nodes))
    size = sum(node.size_bytes for node in nodes)
    return PlacementProblem.build(
        nodes,
        [EdgeSpec(u, v, float(cost[u])) for u, v in edges],
        num_accelerators=4,
        num_cpus=1,
        memory_bytes=size / 3,
    )


@pytest.mark.exact
@pytest.mark.parametrize("seed", range(4))
def test_both_ways_agree_on_graphs_with_chokes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _chain(3, seed)
    plain = solve_latency(problem)
    assert plain.proven_optimal
    monkeypatch.setattr(solve, "_LARGE", 0)
    far = solve_latency(problem)
    assert far.proven_optimal
    assert far.objective == pytest.approx(plain.objective, rel=1e-9)


@pytest.mark.exact
def test_stops_with_the_best_so_far() -> None:
    """Whenever the time ends, there is a placement that can run and a bound below the optimum."""
    problem = _chain(3, 0)
    best = solve_latency(problem).objective
    for limit_s in (0.0, 0.01, 0.05, 0.2):
        result = solve_latency(problem, clock=Clock(limit_s=limit_s))
        assert result.placement is not None
        assert result.bound <= best * (1 + 1e-9) <= result.objective * (1 + 2e-9)
        assert _checked(problem, result.placement, 1) == pytest.approx(result.objective)
    seen: list[tuple[float, float]] = []

    def interrupt(_stage: str, value: float, bound: float) -> None:
        seen.append((value, bound))
        if len(seen) == 3:
            raise KeyboardInterrupt

    result = solve_latency(problem, clock=Clock(report=interrupt))
    assert result.stopped == "interrupted"
    assert (result.objective, result.bound) == seen[-1]


@pytest.mark.exact
def test_baselines_can_run() -> None:
    for seed in range(120):
        problem = random_latency_problem(seed)
        best = Everything(problem).best
        for result in (latency_one_device(problem), latency_greedy(problem)):
            assert result.placement is not None
            assert _checked(problem, result.placement, 1) == pytest.approx(result.objective)
            assert result.bound <= best * (1 + 1e-9) <= result.objective * (1 + 2e-9)


# Optimal values; the shared prototypes had 414.4 and 765.3 for the last two.
_PUBLIC = {
    "LayerGraphs/bert24_inference": 100.2185,
    "LayerGraphs/resnet50_inference": 1156.88128125,
    "OperatorGraphs/bert_l-3_inference": 408.474408186,
}


@pytest.mark.published
@pytest.mark.parametrize("name", _PUBLIC)
def test_public_workloads(name: str, reference_data: Path) -> None:
    file = read_workload(reference_data / "placement" / "workloads" / "latency" / f"{name}.json")
    problem = workload_from(file, {}).problem
    result = solve_latency(problem)
    assert result.proven_optimal
    assert result.objective == pytest.approx(_PUBLIC[name], rel=1e-9)
    assert result.placement is not None
    assert _checked(problem, result.placement, 1) == pytest.approx(result.objective, rel=1e-9)
