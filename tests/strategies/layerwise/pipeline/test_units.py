"""Workers counted by the unit: a relaxation, against brute force over the pipelines of small problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategies.layerwise.pipeline.problem import PartitionProblem, in_units
from tests.strategies.layerwise.pipeline.test_solve import brute_force, random_problem


def least(problem: PartitionProblem) -> float:
    """Least step of the pipelines that fit."""
    return min((cost for cost, _ in brute_force(problem)), default=float("inf"))


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


@pytest.mark.exact
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
