"""Elimination against brute force: minima, choices and min-marginals, on every shape of graph."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from costmodel.arrays import FloatArray
from strategies.layerwise.per_layer import elimination
from strategies.layerwise.per_layer.elimination import Elimination, Partition, TooWideError, min_plus
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


def pair_cost(problem: ChoiceProblem, choice: tuple[int, ...]) -> float:
    return sum(
        float(e.cost_s[e.producer_class[choice[e.producer]], e.consumer_class[choice[e.consumer]]])
        for e in problem.edges
    )


def brute_marginals(problem: ChoiceProblem, cost: list[FloatArray]) -> list[FloatArray]:
    out = [np.full(len(c), np.inf) for c in cost]
    for choice in itertools.product(*(range(len(c)) for c in cost)):
        total = sum(float(c[o]) for c, o in zip(cost, choice, strict=True)) + pair_cost(problem, choice)
        for i, o in enumerate(choice):
            out[i][o] = min(out[i][o], total)
    return out


def structure_of(problem: ChoiceProblem) -> Structure:
    return Structure(problem.num_nodes, [(e.producer, e.consumer) for e in problem.edges])


@pytest.mark.parametrize("shape", ["chain", "branching", "dense"])
@mostly("exact", "seed", range(30))
def test_equals_brute_force(shape: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, shape=shape)
    cost = [b - rng.random(len(b)) * 5.0 for b in problem.base_s]
    run = Elimination(structure_of(problem), problem)
    value, choice, marginals = run.marginals(cost)
    expected = brute_marginals(problem, cost)
    assert value == pytest.approx(min(float(m.min()) for m in expected), abs=TOLERANCE)
    total = sum(float(c[o]) for c, o in zip(cost, choice, strict=True)) + pair_cost(problem, tuple(choice.tolist()))
    assert total == pytest.approx(value, abs=TOLERANCE)
    for got, want in zip(marginals, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=0.0, atol=TOLERANCE)
    again, same = run.minimise(cost)
    assert (again, same.tolist()) == (value, choice.tolist())


@mostly("exact", "seed", range(10))
def test_run_leaves_costs_alone_and_can_be_repeated(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), shape="dense")
    run = Elimination(structure_of(problem), problem)
    before = [b.copy() for b in problem.base_s]
    first = run.minimise(problem.base_s)[0]
    run.marginals([2.0 * b for b in problem.base_s])
    assert run.minimise(problem.base_s)[0] == first
    assert all((a == b).all() for a, b in zip(before, problem.base_s, strict=True))


def test_widths() -> None:
    chain = Structure(5, [(i, i + 1) for i in range(4)])
    blocks = Structure(7, [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (4, 5), (5, 6), (3, 6)])
    module = Structure(6, [(0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (2, 5), (3, 5), (4, 5)])
    clique = Structure(5, list(itertools.combinations(range(5), 2)))
    assert [s.width for s in (chain, blocks, module, clique)] == [1, 2, 2, 4]


def test_single_node_and_no_edges() -> None:
    problem = random_problem(np.random.default_rng(3), shape="chain")
    lonely = replace(problem, edges=())
    value, _ = Elimination(structure_of(lonely), lonely).minimise(lonely.base_s)
    assert value == pytest.approx(sum(float(b.min()) for b in lonely.base_s))


def test_wide_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "MAX_TABLE_ENTRIES", 3)
    for seed in range(100):
        problem = random_problem(np.random.default_rng(seed), shape="dense")
        if min(len(b) for b in problem.base_s) > 1 and structure_of(problem).width > 2:
            with pytest.raises(TooWideError):
                Elimination(structure_of(problem), problem)
            return
    pytest.fail("no wide problem drawn")


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 5), (90, 40, 60)])
def test_min_plus(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.random(shape[:2]), rng.random((shape[0], shape[2]))
    expected = [[min(left[:, a] + right[:, b]) for b in range(shape[2])] for a in range(shape[1])]
    np.testing.assert_array_equal(min_plus(left, right), expected)


def test_partition() -> None:
    coarse, other = Partition(np.array([0, 0, 1, 1]), 2), Partition(np.array([0, 1, 1, 1]), 3)
    joint = Partition.joint([coarse, other], 4)
    assert joint.classes.tolist() == [0, 1, 2, 2]
    assert other.classes[joint.representative].tolist() == [0, 1, 1]
    assert other.reduce(np.array([4.0, 3.0, 2.0, 5.0])).tolist() == [4.0, 2.0, np.inf]
    assert Partition.joint([], 3).classes.tolist() == [0, 0, 0]


# --- The layered graph and the label search, layer by layer, against brute force and elimination ------------------------------------------


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
