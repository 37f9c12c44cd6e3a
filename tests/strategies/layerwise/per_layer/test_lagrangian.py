"""Lagrangian bounds never pass the optimum, whatever the multipliers, and the master program is exact."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.layerwise.per_layer.elimination import Elimination
from strategies.layerwise.per_layer.lagrangian import DualAscent, Multipliers, solve_master
from strategies.layerwise.per_layer.problem import FlatTables, Structure, memory_bytes, objective_s, restrict
from tests.cases import mostly
from tests.strategies.layerwise.per_layer.choice_problems import TOLERANCE, brute_force, random_problem


@mostly("exact", "seed", range(40))
def test_any_multipliers_bound_the_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, shape=("chain", "branching", "dense")[seed % 3], memory="binding")
    optimum = brute_force(problem)[0][0]
    run = Elimination(Structure(problem.num_nodes, [(e.producer, e.consumer) for e in problem.edges]), problem)
    ascent = DualAscent(FlatTables(problem), run, problem.memory_capacity_bytes)
    for _ in range(10):
        multipliers = Multipliers(rng.dirichlet(np.ones(problem.num_nodes)), float(rng.random()))
        assert ascent.bound_at(multipliers) <= optimum + TOLERANCE
    before = ascent.bound_s
    for _ in range(15):
        ascent.step()
    assert before <= ascent.bound_s <= optimum + TOLERANCE
    assert ascent.best.weight.min() >= 0.0
    assert ascent.best.weight.sum() == pytest.approx(1.0)


@mostly("exact", "seed", range(20))
def test_evaluation_equals_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, shape="dense", memory="loose")
    tables = FlatTables(problem)
    for _, choice in brute_force(problem)[:20]:
        seen = tables.evaluate(choice)
        assert seen.objective_s == pytest.approx(objective_s(problem, choice), abs=TOLERANCE)
        assert seen.memory == pytest.approx(memory_bytes(problem, choice))


@mostly("exact", "seed", range(10))
def test_restricted_problem_costs_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, shape="branching")
    keep = [np.sort(rng.choice(len(b), size=int(rng.integers(1, len(b) + 1)), replace=False)) for b in problem.base_s]
    small = restrict(problem, keep)
    for value, choice in brute_force(small)[:20]:
        whole = np.array([k[o] for k, o in zip(keep, choice, strict=True)])
        assert objective_s(problem, whole) == value


@mostly("exact", "seed", range(30))
def test_master_beats_every_sample_and_is_attained(seed: int) -> None:
    rng = np.random.default_rng(seed)
    choices, terms = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    value, excess = rng.normal(size=(choices, terms)), rng.normal(size=choices)
    weights, price, best = solve_master(value, excess, 2.0)
    assert best == pytest.approx(float((value @ weights + price * excess).min()))
    assert weights.min() >= 0.0
    assert weights.sum() == pytest.approx(1.0)
    assert 0.0 <= price <= 2.0
    samples = rng.dirichlet(np.ones(terms), size=500)
    prices = np.append(rng.random(498) * 2.0, [0.0, 2.0])
    assert (samples @ value.T + prices[:, None] * excess).min(axis=1).max() <= best + 1e-9
