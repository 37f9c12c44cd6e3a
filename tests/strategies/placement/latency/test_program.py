"""The search of all placements for latency, with several subgraphs per accelerator, against trying everything."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.limits import Clock
from strategies.placement.chain import enumerate_ideals
from strategies.placement.latency import solve
from strategies.placement.latency.atoms import atom_graph
from strategies.placement.latency.evaluate import evaluate
from strategies.placement.latency.packing import Bundled, bundled
from strategies.placement.latency.program import search_all
from strategies.placement.latency.solve import solve_latency
from strategies.placement.latency.steps import arcs_of, build_steps, membership
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
    assert placement.device.tolist() == [1, 0]
    assert bound == pytest.approx(3.0)


# --- Calls that a torn colour class ties to one accelerator: bounds compared with trying everything, and a case by hand -------------------


def _taken_apart(problem: PlacementProblem, num_subgraphs: int) -> tuple[Bundled, int]:
    """All steps of a problem, taken apart by bundles, and how many there were before."""
    atoms = atom_graph(problem, num_subgraphs=num_subgraphs)
    family = enumerate_ideals(atoms.graph, limit=100_000)
    steps = build_steps(
        atoms.graph,
        family,
        arcs_of(atoms.graph),
        capacity_bytes=problem.capacity_bytes,
        most_time=np.inf,
        most_steps=10**6,
        clock=Clock(),
    )
    assert steps is not None
    found = bundled(
        steps,
        family,
        membership(atoms.graph, family),
        atoms.torn,
        capacity_bytes=problem.capacity_bytes,
        num_subgraphs=num_subgraphs,
        most_steps=10**6,
        clock=Clock(),
    )
    assert found is not None
    return found, len(steps)


def _pair(memory_bytes: float) -> PlacementProblem:
    """Two operators of one class and 3 bytes each, between which nothing is moved, and a third of another class."""
    nodes = [
        NodeSpec(id=i, accelerator_time=1.0, cpu_time=9.0, size_bytes=s, color=c)
        for i, (s, c) in enumerate(((3.0, "a"), (3.0, "a"), (1.0, "b")))
    ]
    return PlacementProblem.build(
        nodes, [EdgeSpec(0, 1, 0.0), EdgeSpec(1, 2, 0.5)], num_accelerators=3, num_cpus=1, memory_bytes=memory_bytes
    )


def _ways(found: Bundled) -> int:
    """Paths from nothing to everything."""
    count = [0] * (len(found.steps.first) - 1)
    count[0] = 1
    for inner, outer in zip(found.steps.inner.tolist(), found.steps.outer.tolist(), strict=True):
        count[outer] += count[inner]
    return count[-1]


def test_ways_through_a_torn_class_counted_by_hand() -> None:
    """Operators 0 and 1 are of one class; the calls that hold them share an accelerator, or both are on CPUs."""
    # All three in one call: 1. The two in one call, the third in another or on a CPU: 2. The two in two calls: 2, and 1 with the third in
    # the second call. Both on CPUs: 2.
    assert _ways(_taken_apart(_pair(7.0), 2)[0]) == 1 + 2 + 2 + 1 + 2
    # With 6 bytes neither all three fit together nor calls of 3 and 4 bytes on one accelerator.
    assert _ways(_taken_apart(_pair(6.0), 2)[0]) == 2 + 2 + 2


def test_bundles_of_more_calls_than_an_accelerator_runs_are_left_out() -> None:
    nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=9.0, size_bytes=1.0, color="a") for i in range(3)]
    edges = [EdgeSpec(0, 1, 0.0), EdgeSpec(1, 2, 0.0)]
    problem = PlacementProblem.build(nodes, edges, num_accelerators=3, num_cpus=0, memory_bytes=9.0)
    # In one call, in two (cut at either place), in three; and all on CPUs.
    assert _ways(_taken_apart(problem, 2)[0]) == 1 + 2 + 1
    assert _ways(_taken_apart(problem, 3)[0]) == 1 + 2 + 1 + 1


@pytest.mark.parametrize("num_subgraphs", [2, 3])
@mostly("exact", "seeds", [range(5000, 5002), *(range(start, start + 10) for start in range(5000, 5100, 10))], quick=1)
def test_bounds_hold_without_the_search_of_all_placements(
    seeds: range, num_subgraphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but paths of down-sets proves these; with 3 calls accelerators are one or two, and operators fewer."""
    monkeypatch.setattr(solve, "_FEW", 0)
    for seed in seeds:
        problem = random_latency_problem(seed, num_subgraphs=num_subgraphs)
        best = Everything(problem, num_subgraphs).best
        result = solve_latency(problem, num_subgraphs=num_subgraphs)
        assert result.bound <= best * (1 + 1e-9), seed
        assert result.objective >= best * (1 - 1e-9), seed


@pytest.mark.parametrize(("seed", "num_subgraphs"), [(7095, 2), (7154, 2)])
def test_operators_without_time_stay_with_their_class(
    seed: int, num_subgraphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one whose class is divided was once united with its only neighbour, of another class: the bound was above the optimum."""
    monkeypatch.setattr(solve, "_FEW", 0)
    monkeypatch.setattr(solve, "_LARGE", 0)
    problem = random_latency_problem(seed, num_subgraphs=num_subgraphs)
    best = Everything(problem, num_subgraphs).best
    assert solve_latency(problem, num_subgraphs=num_subgraphs).bound <= best * (1 + 1e-9)


@pytest.mark.exact
def test_bundles_raise_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds with and without them, over problems that tear classes: never lower, often higher."""
    monkeypatch.setattr(solve, "_FEW", 0)
    higher = 0
    for seed in range(5000, 5100):
        problem = random_latency_problem(seed, num_subgraphs=2)
        if not atom_graph(problem, num_subgraphs=2).torn:
            continue
        tied = solve_latency(problem, num_subgraphs=2)
        with monkeypatch.context() as context:
            context.setattr(solve, "bundled", lambda *_args, **_options: None)
            loose = solve_latency(problem, num_subgraphs=2)
        assert tied.bound >= loose.bound * (1 - 1e-9), seed
        higher += tied.bound > loose.bound * (1 + 1e-6)
    assert higher >= 5
