"""The layered graph and the label search, layer by layer, against brute force and elimination."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.layerwise.per_layer.elimination import Elimination
from strategies.layerwise.per_layer.k_best import (
    CompletionBound,
    LabelSet,
    LayeredGraph,
    best_choices,
    pareto,
    search_labels,
)
from strategies.layerwise.per_layer.lagrangian import Multipliers
from strategies.layerwise.per_layer.problem import ChoiceProblem, FlatTables, Structure, objective_s
from strategies.limits import UNLIMITED, Clock, OutOfTimeError
from tests.cases import mostly
from tests.strategies.layerwise.per_layer.choice_problems import TOLERANCE, best_by_key, brute_force, random_problem

ROUNDING = 1e-12


def labels_below(
    problem: ChoiceProblem, limit: float, *, max_labels: int = 10_000, clock: Clock = UNLIMITED
) -> tuple[LayeredGraph, FlatTables, list[LabelSet], bool]:
    graph, tables = LayeredGraph(problem), FlatTables(problem)
    weight = np.full(problem.num_nodes, 1.0 / problem.num_nodes)
    bound = CompletionBound(graph, tables, Multipliers(weight, 0.01), problem.memory_capacity_bytes)
    if np.isinf(problem.memory_capacity_bytes):
        bound = CompletionBound(graph, tables, Multipliers(weight, 0.0), problem.memory_capacity_bytes)
    labels, complete = search_labels(
        graph,
        tables,
        bound,
        limit=limit + 1e-12,
        capacity=problem.memory_capacity_bytes * (1.0 + ROUNDING),
        max_labels=max_labels,
        beam=1,
        clock=clock,
    )
    return graph, tables, labels, complete


@pytest.mark.parametrize("shape", ["chain", "branching", "dense"])
@mostly("exact", "seed", range(15))
def test_graph_has_the_same_minimum_as_elimination(shape: str, seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), shape=shape)
    structure = Structure(problem.num_nodes, [(e.producer, e.consumer) for e in problem.edges])
    expected, _ = Elimination(structure, problem).minimise(problem.base_s)
    assert LayeredGraph(problem).fronts(problem.base_s)[-1] == pytest.approx([expected], abs=TOLERANCE)


@pytest.mark.parametrize("memory", ["none", "loose", "binding"])
@mostly("exact", "seed", range(30))
def test_labels_are_exact_up_to_the_limit(memory: str, seed: int) -> None:
    problem = random_problem(
        np.random.default_rng(seed), shape=("chain", "branching", "dense")[seed % 3], memory=memory
    )
    values = [v for v, _ in brute_force(problem)]
    for limit in (values[0], values[len(values) // 2]):
        graph, tables, labels, complete = labels_below(problem, limit)
        assert complete
        end = labels[0]
        assert float((end.additive_s + end.lag_s).min()) == pytest.approx(values[0], abs=TOLERANCE)
        found = best_choices(
            graph,
            tables,
            labels,
            problem.key_class,
            num_solutions=5,
            limit=limit + 1e-12,
            capacity=problem.memory_capacity_bytes * (1.0 + ROUNDING),
        )
        expected = [v for v in best_by_key(problem) if v <= limit][:5]
        assert [objective_s(problem, c) for c in found] == pytest.approx(expected, abs=TOLERANCE)
    if values[0] > 0.0:
        assert not len(labels_below(problem, values[0] * (1.0 - 1e-9))[2][0].state)


@mostly("exact", "seed", range(10))
def test_a_beam_says_that_it_is_incomplete(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), shape="branching")
    values = [v for v, _ in brute_force(problem)]
    _, _, labels, complete = labels_below(problem, values[-1], max_labels=1)
    assert max(len(cut.state) for cut in labels[:-2]) == 1
    if not complete:
        assert float(labels[0].additive_s[0] + labels[0].lag_s[0]) >= values[0] - TOLERANCE


def test_deadline() -> None:
    problem = random_problem(np.random.default_rng(0), shape="chain")
    with pytest.raises(OutOfTimeError):
        labels_below(problem, 1e9, clock=Clock(limit_s=-1.0))


@pytest.mark.parametrize("flat", [True, False])
@mostly("exact", "seed", range(10))
def test_pareto_keeps_a_point_for_every_point(flat: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, size=60)
    points = rng.integers(0, 6, size=(60, 3)).astype(np.float64)
    if flat:
        points[:, 2] = 1.0
    kept = pareto(group, *points.T)
    assert (np.diff(group[kept]) >= 0).all()
    for g, point in zip(group, points, strict=True):
        rivals = points[kept[group[kept] == g]]
        assert (rivals <= point).all(axis=1).any()
    if flat:
        for k in kept:
            others = np.array([m for m in kept if m != k and group[m] == group[k]], dtype=int)
            assert not (points[others] <= points[k]).all(axis=1).any()


def test_pareto_of_nothing() -> None:
    empty = np.zeros(0)
    assert not len(pareto(np.zeros(0, dtype=np.int64), empty, empty, empty))
