"""The optimizer on the host may be the quicker of the two, also where everything fits on the device: the search against brute force."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup
from costmodel.hardware.host import Host, Power, host_rates
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from strategies.mesh.search import search_mesh
from strategies.mesh.settings import MeshRestriction, MeshSettings
from strategies.score import STEP_TIME, Score
from tests.strategies.mesh.brute_force import all_plans, best_scores
from tests.strategies.mesh.networks import decoder, two_level_cluster, workload_of
from tests.strategies.mesh.test_energy_search import energies


def _assumptions(rng: random.Random, host: Host) -> MeshAssumptions:
    launches = rng.choice([0.0, 0.0, 4.0])
    return replace(
        MeshAssumptions(), **host_rates(host), host_launch_s=rng.choice([3e-6, 1e-5]), update_launches=launches
    )


def _cluster(rng: random.Random, per_node: int, host: Host) -> Cluster:
    """Devices with the memory of an L4 or of an A100, and what one of them takes to start a kernel."""
    cluster = two_level_cluster(per_node=per_node, outside=rng.choice([2e9, 25e9]))
    device = replace(
        cluster.device,
        memory_bandwidth_bytes_per_s=rng.choice([300e9, 1.5e12]),
        launch_overhead_s=rng.choice([2e-6, 1e-5]),
    )
    return replace(cluster, groups=(DeviceGroup(device=device),), host=host)


@pytest.mark.parametrize("seed", range(40))
def test_the_best_plans_are_those_of_brute_force_with_a_quick_host(seed: int) -> None:
    """Tiny networks on ordinary clusters: hosts of PCIe 4 to NVLink-C2C with the memory of one to two sockets."""
    rng = random.Random(seed)
    features = rng.choice([64, 128, 256])
    graph = decoder(
        blocks=rng.choice([2, 3]),
        features=features,
        ffn=2 * features,
        vocabulary=rng.choice([256, 512]),
        positions=rng.choice([8, 64]),
        experts=rng.choice([0, 0, 2]),
    )
    per_node = rng.choice([2, 4])
    host = Host(
        devices=per_node,
        memory_bytes=rng.choice([64e9, 480e9]),
        memory_bandwidth_bytes_per_s=rng.choice([400e9, 1200e9]) * rng.choice([1, per_node]),
        link_bytes_per_s=rng.choice([32e9, 64e9, 450e9]),
    )
    cluster = _cluster(rng, per_node, host)
    assumptions = _assumptions(rng, host)
    workload = workload_of(graph, cluster, rng.choice([2, 4]))
    model = MeshModel.build(workload, cluster, assumptions)
    plans = all_plans(model, 3 if seed % 4 else 4)
    restriction = MeshRestriction()
    if seed % 8 == 7:
        restriction = MeshRestriction(flags={"offload_optimizer": True})
        plans = plans.take(np.flatnonzero(plans.offload_optimizer == 1))
    costs = model.evaluate(plans)
    memory = np.sort(costs.memory_bytes)
    capacity = float(memory[int(rng.choice([0.1, 0.5, 1.0]) * (len(memory) - 1))])
    objective = rng.choice(["step_time", "step_time", "gpu_hours", "energy"])
    power = Power(busy_w=rng.choice([200.0, 700.0]), idle_w=rng.choice([50.0, 200.0]), host_w=0.0)
    scores = {"step_time": STEP_TIME, "gpu_hours": Score(per_device=True), "energy": Score.of_cost(power.cost)}
    if objective == "energy":
        costs = replace(costs, step_time_s=energies(model, plans, power))
    expected = best_scores(costs, plans, capacity, 4, per_device=objective == "gpu_hours")
    settings = MeshSettings(
        max_workers=3 if seed % 4 else 4,
        capacity_bytes=capacity,
        top=4,
        restriction=restriction,
        score=scores[objective],
    )
    outcome = search_mesh(workload, cluster, settings, None, assumptions)
    assert outcome.space_size == len(plans)
    assert [c.score for c in outcome.candidates] == pytest.approx(expected, rel=1e-9)
    assert outcome.bound_score == pytest.approx(expected[0], rel=1e-8)
