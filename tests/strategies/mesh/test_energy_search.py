"""The search for the least energy against brute force: every legal plan of a small question, evaluated one list at a time."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.host import Power
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel, computing_s, least_computing_s
from costmodel.mesh.plan import MeshBatch
from strategies.mesh.plans import key_of
from strategies.mesh.search import search_mesh
from strategies.mesh.settings import MeshSettings
from strategies.score import Score
from tests.cases import mostly
from tests.strategies.mesh.brute_force import all_plans
from tests.strategies.mesh.networks import random_case


def energies(model: MeshModel, plans: MeshBatch, power: Power) -> np.ndarray:
    """Joules of a step over what a computing device and its host draw."""
    costs = model.evaluate(plans)
    computing = computing_s(model, plans, model.layouts(plans), costs)
    joules = plans.workers * (
        (power.idle_w + power.host_w) * costs.step_time_s + (power.busy_w - power.idle_w) * computing
    )
    return np.asarray(joules / (power.busy_w + power.host_w))


def _best(plans: MeshBatch, energy: np.ndarray, memory: np.ndarray, capacity: float, top: int) -> list[float]:
    best: dict[tuple[object, ...], float] = {}
    fitting = np.flatnonzero(memory <= capacity)
    for n in fitting[np.argsort(energy[fitting], kind="stable")].tolist():
        best.setdefault(key_of(plans.plan(n)), float(energy[n]))
        if len(best) == top:
            break
    return sorted(best.values())


@mostly("exact", "seed", range(500, 560))
def test_the_plans_of_least_energy_are_those_of_brute_force(seed: int) -> None:
    workload, cluster, workers = random_case(seed)
    rng = random.Random(seed)
    # Half of the cases have a quick host: else small networks wait for it, and nothing computes for long.
    assumptions = MeshAssumptions(host_bytes_per_s=rng.choice([2e9, 25e9, 200e9]))
    if seed % 2:
        assumptions = replace(assumptions, host_launch_s=0.0, host_collective_s=0.0)
    model = MeshModel.build(workload, cluster, assumptions)
    power = Power(
        busy_w=rng.choice([200.0, 700.0]), idle_w=rng.choice([1.0, 50.0, 200.0]), host_w=rng.choice([0.0, 400.0])
    )
    plans = all_plans(model, min(workers, 4))
    energy, memory = energies(model, plans, power), model.evaluate(plans).memory_bytes
    capacity = float(np.sort(memory)[int(rng.choice([0.005, 0.02, 0.2, 0.5, 0.99]) * (len(memory) - 1))])
    settings = MeshSettings(
        max_workers=min(workers, 4), capacity_bytes=capacity, top=3, score=Score.of_cost(power.cost)
    )
    outcome = search_mesh(workload, cluster, settings, None, assumptions)
    expected = _best(plans, energy, memory, capacity, 3)
    assert outcome.space_size == len(plans)
    assert [c.score for c in outcome.candidates] == pytest.approx(expected, rel=1e-9)
    assert outcome.bound_score == pytest.approx(expected[0], rel=1e-8)


@pytest.mark.parametrize("seed", range(560, 566))
def test_computing_time_without_recomputation_bounds_the_energy_of_every_plan(seed: int) -> None:
    workload, cluster, workers = random_case(seed)
    model = MeshModel.build(workload, cluster)
    plans = all_plans(model, min(workers, 4))
    power = Power(busy_w=300.0, idle_w=60.0, host_w=20.0)
    energy = energies(model, plans, power) * 320.0
    costs = model.evaluate(plans)
    computing = least_computing_s(model, plans)
    assert np.all(computing <= costs.step_time_s * (1 + 1e-9))
    assert np.all(power.cost.of_step(costs.step_time_s, computing, plans.workers) <= energy * (1 + 1e-9))
    most = power.cost.of_step(costs.step_time_s, costs.step_time_s, plans.workers)
    assert np.all(energy <= most * (1 + 1e-9))
