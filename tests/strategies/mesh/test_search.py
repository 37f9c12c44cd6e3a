"""The search against brute force: every combination of values, filtered by the rules one plan at a time, evaluated one list at a time."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.host import Host
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE
from costmodel.workload import Workload
from strategies.mesh.search import search_corner, search_mesh
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings
from strategies.score import STEP_TIME, Score
from tests.cases import mostly
from tests.strategies.mesh.brute_force import all_plans, best_scores
from tests.strategies.mesh.networks import decoder, random_case, two_level_cluster, workload_of

SCORES = {"step_time": STEP_TIME, "gpu_hours": Score(per_device=True)}


@mostly("exact", "seed", range(200))
def test_the_best_plans_are_those_of_brute_force(seed: int) -> None:
    workload, cluster, workers = random_case(seed)
    rng = random.Random(seed)
    model = MeshModel.build(workload, cluster)
    restriction = MeshRestriction()
    if seed % 2:  # half of the cases look at a corner of the space, to keep brute force small
        restriction = MeshRestriction(
            degrees={"cp": Bounds(high=rng.choice([1, 2])), "tp": Bounds(high=rng.choice([1, 2, 4]))}
        )
    workers = min(workers, 4 if seed % 10 else 6)
    plans = all_plans(model, workers)
    for name, bounds in restriction.degrees.items():
        plans = plans.take(np.flatnonzero([bounds.allows(int(v)) for v in getattr(plans, name)]))
    costs = model.evaluate(plans)
    memory = np.sort(costs.memory_bytes)
    capacity = float(memory[int(rng.choice([0.02, 0.2, 0.5, 0.99]) * (len(memory) - 1))])
    objective = rng.choice(["step_time", "gpu_hours"])
    settings = MeshSettings(
        max_workers=workers, capacity_bytes=capacity, top=3, restriction=restriction, score=SCORES[objective]
    )
    outcome = search_mesh(workload, cluster, settings)
    expected = best_scores(costs, plans, capacity, 3, objective == "gpu_hours")
    assert outcome.space_size == len(plans)
    assert [c.score for c in outcome.candidates] == pytest.approx(expected, rel=1e-9)
    assert outcome.bound_score <= expected[0] * (1 + 1e-9)
    assert outcome.bound_score == pytest.approx(expected[0], rel=1e-8)
    evaluated = model.evaluate_plans([c.plan for c in outcome.candidates])
    assert np.all(evaluated.memory_bytes <= capacity)


@mostly("exact", "seed", range(200, 260))
def test_the_best_plans_are_those_of_brute_force_where_next_to_nothing_fits(seed: int) -> None:
    workload, cluster, _ = random_case(seed)
    rng = random.Random(seed)
    # Small networks wait for their host, so that nothing else shows: half of the cases have a quick one.
    assumptions = MeshAssumptions(host_bytes_per_s=rng.choice([2e9, 25e9, 200e9]))
    if seed % 2:
        assumptions = replace(assumptions, host_launch_s=0.0, host_collective_s=0.0)
    if seed % 3 == 0:
        assumptions = replace(assumptions, gather_overlap=0.0)
    model = MeshModel.build(workload, cluster, assumptions)
    plans = all_plans(model, 4)
    costs = model.evaluate(plans)
    memory = np.sort(costs.memory_bytes)
    # The capacity is the memory of a plan, to the last bit or a little less: that plan fits, or just not.
    capacity = float(memory[rng.randrange(0, max(len(memory) // 100, 4))]) * rng.choice([1.0, 1 - 1e-6])
    settings = MeshSettings(max_workers=4, capacity_bytes=capacity, top=3)
    outcome = search_mesh(workload, cluster, settings, None, assumptions)
    expected = best_scores(costs, plans, capacity, 3, per_device=False)
    assert [c.score for c in outcome.candidates] == pytest.approx(expected, rel=1e-9)
    assert outcome.space_size == len(plans)
    if not expected:
        assert outcome.nearest_miss is not None
        assert outcome.nearest_miss.memory_bytes == pytest.approx(float(memory[0]), rel=1e-9)


@pytest.mark.exact
@mostly("exact", "seed", range(300, 312))
def test_the_best_plans_are_those_of_brute_force_with_experts_and_a_small_host(seed: int) -> None:
    """What should wait on the host and finds no room there stays on the device."""
    rng = random.Random(seed)
    experts, blocks = rng.choice([2, 4]), rng.choice([2, 3])
    graph = decoder(
        blocks=blocks, features=256, ffn=512, positions=64, experts=experts, dense_blocks=rng.choice([0, 1])
    )
    plain = two_level_cluster(per_node=2, outside=rng.choice([2e9, 25e9]))
    workload = workload_of(graph, plain, 4)
    free = all_plans(MeshModel.build(workload, plain), 4)
    memory = np.sort(MeshModel.build(workload, plain).evaluate(free).memory_bytes)
    capacity = float(memory[int(rng.choice([0.0, 0.05, 0.3]) * (len(memory) - 1))])
    cluster = replace(plain, host=Host(devices=2, memory_bytes=rng.choice([0.1, 0.5, 2.0]) * capacity))
    model = MeshModel.build(workload, cluster)
    plans = all_plans(model, 4)
    objective = rng.choice(["step_time", "gpu_hours"])
    settings = MeshSettings(max_workers=4, capacity_bytes=capacity, top=3, score=SCORES[objective])
    outcome = search_mesh(workload, cluster, settings)
    expected = best_scores(model.evaluate(plans), plans, capacity, 3, objective == "gpu_hours")
    assert outcome.space_size == len(plans)
    assert [c.score for c in outcome.candidates] == pytest.approx(expected, rel=1e-9)
    corner = search_corner(model, settings)
    assert not corner.candidates or corner.candidates[0].score >= expected[0] * (1 - 1e-9)


@mostly("exact", "seed", range(500, 512))
def test_the_best_plans_are_those_of_brute_force_where_tokens_travel_behind_other_micro_batches(seed: int) -> None:
    """The more micro-batches a pipeline has, the less shows."""
    rng = random.Random(seed)
    features = rng.choice([256, 1024])
    cluster = two_level_cluster(per_node=2, inside=rng.choice([5e9, 50e9]), outside=rng.choice([1e9, 5e9]))
    graph = decoder(
        blocks=rng.choice([2, 3]), features=features, ffn=2 * features, positions=64, experts=rng.choice([2, 4])
    )
    workload = workload_of(graph, cluster, 4)
    assumptions = MeshAssumptions(
        ep_overlap=rng.choice([0.3, 1.0]),
        interference=rng.choice([0.0, 0.16]),
        dispatch_width=rng.choice([0.5, 1.0]),
        captured=rng.choice([0.0, 1.0]),
        host_launch_s=rng.choice([0.0, 1e-5]),
        host_collective_s=0.0,
    )
    model = MeshModel.build(workload, cluster, assumptions)
    plans = all_plans(model, 4)
    costs = model.evaluate(plans)
    memory = np.sort(costs.memory_bytes)
    capacity = float(memory[int(rng.choice([0.05, 0.3, 0.99]) * (len(memory) - 1))])
    outcome = search_mesh(
        workload, cluster, MeshSettings(max_workers=4, capacity_bytes=capacity, top=3), None, assumptions
    )
    expected = best_scores(costs, plans, capacity, 3, per_device=False)
    assert outcome.space_size == len(plans)
    assert [c.score for c in outcome.candidates] == pytest.approx(expected, rel=1e-9)


@mostly("exact", "seed", range(400, 412))
def test_the_best_plans_are_those_of_brute_force_where_zero_1_adds_up_whole_gradients(seed: int) -> None:
    """ZeRO-2, which scatters them, can then be the faster of the two."""
    rng = random.Random(seed)
    features = rng.choice([512, 1024])
    cluster = two_level_cluster(per_node=2, inside=5e9, outside=rng.choice([1e9, 5e9]))
    graph = decoder(blocks=2, features=features, ffn=2 * features, positions=16, experts=rng.choice([0, 2]))
    workload = workload_of(graph, cluster, 4)
    assumptions = MeshAssumptions(host_launch_s=0.0, host_collective_s=0.0, zero_whole=1.0)
    model = MeshModel.build(workload, cluster, assumptions)
    restriction = MeshRestriction(degrees={"zero_stage": Bounds(values=(1, 2)), "tp": Bounds(high=2)})
    plans = all_plans(model, 4)
    plans = plans.take(np.flatnonzero((plans.tp <= 2) & np.isin(plans.zero_stage, (1, 2))))
    capacity = float(np.quantile(model.evaluate(plans).memory_bytes, rng.choice([0.1, 0.5, 1.0])))
    settings = MeshSettings(max_workers=4, capacity_bytes=capacity, top=5, restriction=restriction)
    outcome = search_mesh(workload, cluster, settings, None, assumptions)
    expected = best_scores(model.evaluate(plans), plans, capacity, 5, per_device=False)
    assert [c.score for c in outcome.candidates] == pytest.approx(expected, rel=1e-9)


def test_nothing_fits_names_the_plan_of_least_memory() -> None:
    cluster = two_level_cluster()
    workload = workload_of(decoder(blocks=3), cluster, 4)
    model = MeshModel.build(workload, cluster)
    plans = all_plans(model, 4)
    least = float(np.min(model.evaluate(plans).memory_bytes))
    outcome = search_mesh(workload, cluster, MeshSettings(max_workers=4, capacity_bytes=0.5 * least))
    assert not outcome.candidates
    assert outcome.nearest_miss is not None
    assert outcome.nearest_miss.memory_bytes == pytest.approx(least, rel=1e-9)
    assert float(model.evaluate_plans([outcome.nearest_miss.plan]).memory_bytes[0]) == pytest.approx(least, rel=1e-9)


def _best(workload: Workload, cluster: object, **more: object) -> float:
    settings = MeshSettings(**{"max_workers": 8, "capacity_bytes": 2e9, "top": 1, **more})  # type: ignore[arg-type]
    return search_mesh(workload, cluster, settings).candidates[0].step_time_s  # type: ignore[arg-type]


@pytest.mark.exact
@mostly("exact", "seed", range(20), quick=2)
def test_better_hardware_never_makes_the_best_plan_slower(seed: int) -> None:
    rng = random.Random(seed)
    graph = decoder(blocks=4, features=512, ffn=1024, positions=256, experts=rng.choice([0, 4]))
    base = {"peak": 50e12, "inside": rng.choice([20e9, 100e9]), "outside": rng.choice([2e9, 20e9]), "memory": 2e9}

    def best(**better: float) -> float:
        cluster = two_level_cluster(**{**base, **better})
        return _best(workload_of(graph, cluster, 16), cluster, capacity_bytes={**base, **better}["memory"] / 4)

    plain = best()
    for name, value in base.items():
        assert best(**{name: value * rng.choice([1.5, 4.0])}) <= plain * (1 + 1e-9), name


@pytest.mark.exact
@mostly("exact", "seed", range(8), quick=1)
def test_better_hardware_never_makes_the_best_plan_with_experts_slower(seed: int) -> None:
    """Where hardly anything fits, so that recomputation and offloading matter."""
    rng = random.Random(seed)
    experts = rng.choice([4, 8])
    graph = decoder(blocks=4, features=512, ffn=1024, positions=512, experts=experts, dense_blocks=rng.choice([0, 1]))
    base = {"peak": 50e12, "inside": rng.choice([20e9, 200e9]), "outside": rng.choice([2e9, 20e9]), "memory": 16e9}
    plain = two_level_cluster(**base)
    workload = workload_of(graph, plain, 12)
    least = search_mesh(workload, plain, MeshSettings(max_workers=8, capacity_bytes=1.0)).nearest_miss
    assert least is not None
    capacity = least.memory_bytes * rng.choice([1.01, 1.3])

    def best(capacity_bytes: float = capacity, **better: float) -> float:
        cluster = two_level_cluster(**{**base, **better})
        return _best(workload_of(graph, cluster, 12), cluster, capacity_bytes=capacity_bytes)

    slowest = best()
    for name in ("peak", "inside", "outside"):
        assert best(**{name: base[name] * rng.choice([1.5, 4.0])}) <= slowest * (1 + 1e-9), name
    assert best(1.5 * capacity) <= slowest * (1 + 1e-9)


def test_recomputing_more_than_needed_can_save_moving_activations() -> None:
    """Activations that stay away cost no memory, but time to move: what is run again need not be moved."""
    cluster = two_level_cluster(per_node=2)
    workload = workload_of(decoder(blocks=4, features=1024, ffn=2048, positions=2048), cluster, 4)
    assumptions = MeshAssumptions(host_launch_s=0.0, host_collective_s=0.0, host_bytes_per_s=25e9)
    model = MeshModel.build(workload, cluster, assumptions)
    plans = all_plans(model, 2)
    full = plans.take(np.flatnonzero((plans.recompute == RECOMPUTE.index("full")) & (plans.offload_activations == 1)))
    costs = model.evaluate(full)
    n = int(np.argmin(np.where(full.recompute_blocks > 1, costs.step_time_s, np.inf)))
    one = replace(full.take(np.array([n])), recompute_blocks=np.array([1]))
    assert model.evaluate(one).step_time_s[0] > costs.step_time_s[n]
    restriction = MeshRestriction(names={"recompute": ("full",)}, flags={"offload_activations": True})
    restriction = replace(restriction, degrees={"recompute_blocks": Bounds(low=1)})
    settings = MeshSettings(max_workers=2, capacity_bytes=1e12, top=1, restriction=restriction)
    found = search_mesh(workload, cluster, settings, None, assumptions).candidates[0]
    assert found.score == pytest.approx(float(np.min(costs.step_time_s)), rel=1e-9)
