"""Replica counts that are left out, against brute force over the pipelines of small problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from strategies.pipeline.dominance import undominated_rows, without_dominated
from strategies.pipeline.problem import PartitionProblem, PipelinePlan, objective_s, stage_memory_bytes
from tests.strategies.pipeline.test_solve import random_problem


def least(problem: PartitionProblem) -> float:
    """Least step of the pipelines on at most all workers that fit."""
    best = float("inf")
    for stages in range(2, min(problem.num_layers, problem.num_workers, problem.num_micro_batches) + 1):
        for replicas in itertools.product(problem.replica_counts.tolist(), repeat=stages):
            if sum(replicas) > problem.num_workers:
                continue
            for cuts in itertools.combinations(range(1, problem.num_layers), stages - 1):
                plan = PipelinePlan(cuts=cuts, replicas=replicas)
                if np.all(stage_memory_bytes(problem, plan) <= problem.memory_capacity_bytes):
                    best = min(best, objective_s(problem, plan))
    return best


def uneven(rng: np.random.Generator) -> PartitionProblem:
    """Samples dealt out whole, transfers by the side with fewer replicas, exchanges that grow with them, here and there less."""
    problem = random_problem(rng, most_layers=5, most_workers=6)
    counts = problem.replica_counts
    share = np.ceil(int(rng.integers(1, 9)) / counts)[:, None]
    layers = rng.random((4, 1, problem.num_layers)) + 0.1
    fewer = np.minimum(share, share.T)[:, :, None]
    cuts = fewer * rng.random(problem.num_layers + 1) * rng.choice([0.0, 0.5])
    noise = rng.random((2, len(counts), problem.num_layers)) < 0.05
    exchange = layers[2] * np.log2(counts)[:, None] * np.where(noise[0], 0.5, 1.0)
    return replace(
        problem,
        forward_s=layers[0] * share,
        backward_s=layers[1] * share,
        cut_forward_s=cuts,
        cut_backward_s=cuts,
        exchange_s=exchange,
        update_s=layers[3] * np.ones_like(share),
        static_bytes=problem.static_bytes[:1] * np.ones_like(share),
        activation_bytes=np.maximum(problem.activation_bytes[:1] * share - noise[1], 0.0),
        uses_all_workers=False,
    )


@pytest.mark.parametrize("block", range(4))
def test_the_least_step_stays(block: int) -> None:
    rng = np.random.default_rng(block)
    fewer = 0
    for trial in range(40):
        problem = uneven(rng) if trial % 4 else replace(random_problem(rng, most_layers=5), uses_all_workers=False)
        lean = without_dominated(problem)
        fewer += len(lean.replica_counts) < len(problem.replica_counts)
        assert lean.replica_counts.tolist() == problem.replica_counts[undominated_rows(problem)].tolist()
        assert least(lean) == pytest.approx(least(problem), rel=1e-12)
    assert fewer >= 6


def test_a_cheaper_exchange_or_less_memory_keeps_a_row() -> None:
    row, cut = np.ones((2, 3)), np.zeros((2, 2, 4))
    problem = PartitionProblem(
        num_layers=3,
        num_workers=4,
        num_micro_batches=2,
        replica_counts=np.array([1, 2]),
        forward_s=row,
        backward_s=row,
        cut_forward_s=cut,
        cut_backward_s=cut,
        update_s=0 * row,
        exchange_s=row,
        static_bytes=row,
        activation_bytes=row,
        uses_all_workers=False,
    )
    less = np.array([[1.0, 1.0, 1.0], [1.0, 0.9, 1.0]])
    assert undominated_rows(problem).tolist() == [0]
    assert undominated_rows(replace(problem, exchange_s=less)).tolist() == [0, 1]
    assert undominated_rows(replace(problem, activation_bytes=less)).tolist() == [0]  # there is room
    assert undominated_rows(replace(problem, activation_bytes=less, memory_capacity_bytes=8.9)).tolist() == [0, 1]
    faster = cut.copy()
    faster[0, 0, 1] = 1.0  # from one replica to one: two to two are faster
    assert undominated_rows(replace(problem, cut_backward_s=faster)).tolist() == [0, 1]


def test_all_workers_or_nothing_dominated_is_the_problem_itself() -> None:
    rng = np.random.default_rng(3)
    problem = uneven(rng)
    exact = replace(problem, uses_all_workers=True)
    assert without_dominated(exact) is exact
    lean = without_dominated(problem)
    assert without_dominated(lean) is lean
