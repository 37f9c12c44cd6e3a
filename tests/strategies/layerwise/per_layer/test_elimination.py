"""Elimination against brute force: minima, choices and min-marginals, on every shape of graph."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from costmodel.arrays import FloatArray
from strategies.layerwise.per_layer import elimination
from strategies.layerwise.per_layer.elimination import Elimination, Partition, TooWideError, min_plus
from strategies.layerwise.per_layer.problem import ChoiceProblem, Structure
from tests.cases import mostly
from tests.strategies.layerwise.per_layer.choice_problems import TOLERANCE, random_problem


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
