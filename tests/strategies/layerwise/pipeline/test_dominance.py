"""Replica counts that are left out, against brute force over the pipelines of small problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, Level
from costmodel.layerwise.evaluate import farther_takes_longer
from costmodel.layerwise.tables import CostCache
from strategies.layerwise.candidates import Pool
from strategies.layerwise.pipeline.problem import (
    PartitionProblem,
    PipelinePlan,
    distinct_replicas,
    in_units,
    objective_s,
    stage_memory_bytes,
    undominated_rows,
    without_dominated,
)
from strategies.layerwise.pipeline.search import PipelineOutcome, replica_table, search_pipelines
from tests.cases import mostly
from tests.strategies.layerwise.pipeline.test_solve import random_problem
from tests.strategies.layerwise.test_build import CLUSTER, bundled, random_graph, workload


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


@pytest.mark.parametrize("unit", [1, 2, 3, 5])
def test_counting_by_the_unit_loses_no_plan(unit: int) -> None:
    rng = np.random.default_rng(unit)
    smaller = found = 0
    for trial in range(60):
        problem = uneven(rng) if trial % 2 else replace(random_problem(rng, most_layers=5), uses_all_workers=False)
        relaxed = in_units(problem, unit)
        smaller += len(relaxed.replica_counts) < len(problem.replica_counts)
        best = least(problem)
        found += np.isfinite(best)
        assert least(relaxed) <= best * (1 + 1e-12)
    assert found >= 20
    assert unit == 1 or smaller >= 10


def test_units_by_hand() -> None:
    """Seven workers by twos: 1 replica takes one unit, 2 and 3 take two, 4 three, of three and one more for each of two stages."""
    row, cut = np.arange(4.0)[::-1, None] + np.ones((4, 3)), np.arange(16.0).reshape(4, 4, 1) + np.zeros(4)
    problem = PartitionProblem(
        num_layers=3,
        num_workers=7,
        num_micro_batches=2,
        replica_counts=np.array([1, 2, 3, 4]),
        forward_s=row,
        backward_s=row,
        cut_forward_s=cut,
        cut_backward_s=cut,
        update_s=row,
        exchange_s=row,
        static_bytes=row,
        activation_bytes=row,
        uses_all_workers=False,
    )
    relaxed = in_units(problem, 2)
    assert relaxed.replica_counts.tolist() == [1, 2, 3]
    assert relaxed.num_workers == 3 + 2
    assert relaxed.forward_s[:, 0].tolist() == [4.0, 2.0, 1.0]
    assert relaxed.cut_forward_s[:, :, 1].tolist() == [[0.0, 1.0, 3.0], [4.0, 5.0, 7.0], [12.0, 13.0, 15.0]]


PORTS = replace(
    CLUSTER,
    levels=(CLUSTER.levels[0], Level(name="fabric", size=None, bandwidth_bytes_per_s=5e9, latency_s=8e-6, shared_by=4)),
)


@pytest.mark.exact
@mostly("exact", "cluster", [CLUSTER, PORTS], quick=1)
@mostly("exact", "seed", range(5), quick=1)
def test_smaller_problems_first_change_no_answer(seed: int, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines of random networks: the same best plans and bounds with and without what is left out, units of two and three workers."""
    case = workload(random_graph(np.random.default_rng(seed)))
    closed = 0
    for m in (2, 3, 4):

        def run(cutoff: float, m: int = m) -> tuple[list[float], PipelineOutcome]:
            pool = Pool(CostCache(case, cluster), top=3, capacity_bytes=16e9, family=None)
            outcome = search_pipelines(
                CostCache(case, cluster),
                num_micro_batches=m,
                worker_counts=list(range(2, 13)),
                capacity_bytes=16e9,
                cutoff=lambda: min(cutoff, pool.cutoff),
                top=3,
                wall_s=100.0,
                found=pool.add,
            )
            return [c.step_time_s for c in pool.best() if c.step_time_s < cutoff], outcome

        with monkeypatch.context() as plain:
            plain.setattr("strategies.layerwise.pipeline.search._UNITS", ())
            plain.setattr(
                "strategies.layerwise.pipeline.search.distinct_replicas", lambda tables, replicas, *_: list(replicas)
            )
            plain.setattr("strategies.layerwise.pipeline.search.without_dominated", lambda problem: problem)
            whole, proof = run(float("inf"))
        assert len(whole) == 3
        for cutoff in (0.9 * whole[0], 1.0001 * whole[0], 1.0001 * whole[2], float("inf")):
            with monkeypatch.context() as units:
                units.setattr("strategies.layerwise.pipeline.search._UNITS", (4, 6))
                found, outcome = run(cutoff)
            expected = [step_s for step_s in whole if step_s < cutoff]
            assert found[: len(expected)] == pytest.approx(expected, rel=1e-9)
            assert outcome.searched.get("open", 0) == 0
            if not expected:
                closed += 1
                assert outcome.bound >= min(cutoff, proof.bound) * (1 - 1e-9)
            assert outcome.bound <= max(whole[0], cutoff) * (1 + 1e-9)
    assert closed


def test_replicas_of_equal_shares_that_no_others_dominate() -> None:
    """24 samples in two micro-batches: 7 to 11 replicas have shares of two, as 6 have."""
    case = workload(bundled("alexnet"))
    tables = CostCache(case, CLUSTER).tables(replica_table(case, 13), 2)
    kept = distinct_replicas(tables, list(range(1, 13)), 13, 16e9)
    assert set(kept) >= {1, 2, 3, 4, 6, 12}
    assert len(kept) < 12
    assert farther_takes_longer(CLUSTER, 64)
    nearer = replace(CLUSTER, levels=(replace(CLUSTER.levels[0], latency_s=1.0), CLUSTER.levels[1]))
    assert not farther_takes_longer(nearer, 64)  # in a node it takes longer
    far = CostCache(case, nearer).tables(replica_table(case, 13), 2)
    assert distinct_replicas(far, list(range(1, 13)), 13, 16e9) == list(range(1, 13))
