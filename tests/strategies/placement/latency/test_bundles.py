"""Calls that a torn colour class ties to one accelerator: bounds compared with trying everything, and a case by hand."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.limits import Clock
from strategies.placement.chain import enumerate_ideals
from strategies.placement.latency import solve
from strategies.placement.latency.atoms import atom_graph
from strategies.placement.latency.packing import Bundled, bundled
from strategies.placement.latency.solve import solve_latency
from strategies.placement.latency.steps import arcs_of, build_steps, membership
from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementProblem
from tests.cases import mostly
from tests.strategies.placement.latency.small_latency import Everything, random_latency_problem


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
