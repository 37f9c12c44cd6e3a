"""The search against brute force: every combination of values, filtered by the rules one plan at a time, evaluated one list at a time."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from dataclasses import replace

import numpy as np
import pytest

from costmodel.framework import Framework
from costmodel.hardware.cluster import Cluster, DeviceGroup
from costmodel.hardware.host import Host, Power, host_rates
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.framework_rules import Rules
from costmodel.mesh.model import MeshModel, least_computing_s
from costmodel.mesh.plan import RECOMPUTE, SCHEDULES, MeshPlan
from costmodel.network.layers.attention import Documents
from costmodel.schedules import PIPELINE_SCHEDULES
from costmodel.workload import Workload
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.spaces.mesh.space import mesh_space
from strategies import limits
from strategies.mesh.search import search_corner, search_mesh, search_model
from strategies.mesh.settings import DISTINCT, Bounds, MeshRestriction, MeshSettings
from strategies.score import STEP_TIME, Score
from tests.cases import mostly
from tests.strategies.mesh.brute_force import all_plans, capacity_of, check_search, energies
from tests.strategies.mesh.networks import decoder, random_case, two_level_cluster, workload_of

SCORES = {"step_time": STEP_TIME, "gpu_hours": Score(per_device=True)}


@mostly("exact", "seed", range(200), every=100)
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
    capacity = capacity_of(model, plans, rng.choice([0.02, 0.2, 0.5, 0.99]))
    score = SCORES[rng.choice(["step_time", "gpu_hours"])]
    settings = MeshSettings(max_workers=workers, capacity_bytes=capacity, top=3, restriction=restriction, score=score)
    check_search(model, plans, settings)


@mostly("exact", "seed", range(700, 724), quick=3)
def test_the_best_plans_are_those_of_brute_force_with_schedules_that_are_asked_for(seed: int) -> None:
    """Those of a framework that names them all, or of a user who names one."""
    rng = random.Random(seed)
    workload, cluster, _ = random_case(seed)
    rules = Rules(schedules=SCHEDULES, groups=rng.choice(["any", "equal"]))
    workload = replace(workload, framework=Framework(name="all", rules=rules))
    model = MeshModel.build(workload, cluster, MeshAssumptions(host_launch_s=0.0))
    restriction = MeshRestriction(degrees={"cp": Bounds(high=1), "pp": Bounds(low=2), "micro_batch": Bounds(high=2)})
    plans = all_plans(model, 4)
    plans = plans.take(np.flatnonzero((plans.cp == 1) & (plans.pp >= 2) & (plans.micro_batch <= 2)))
    if seed % 2:
        name = rng.choice([schedule.name for schedule in PIPELINE_SCHEDULES if schedule.on_request])
        restriction = replace(restriction, names={"schedule": (name,)})
        plans = plans.take(np.flatnonzero(plans.schedule == SCHEDULES.index(name)))
        if not len(plans):
            return
    capacity = capacity_of(model, plans, rng.choice([0.1, 0.5, 0.99]))
    check_search(model, plans, MeshSettings(max_workers=4, capacity_bytes=capacity, top=3, restriction=restriction))


@mostly("exact", "seed", range(600, 624), quick=6)
def test_the_best_plans_are_those_of_brute_force_on_racks(seed: int) -> None:
    """Whatever is used of a rack: every share that is tried, one that is given, or several; also of two racks and no more."""
    rng = random.Random(seed)
    workload, nodes, _ = random_case(seed)
    size, given = rng.choice([(3, ()), (4, ()), (5, ()), (4, (3,)), (4, (2, 4)), (6, (4,))])
    rack, fabric = dataclasses.replace(nodes.levels[0], size=size), nodes.levels[1]
    host = Host(devices=1 if size % 2 or 3 in given else rng.choice([1, 2]), memory_bytes=1e15)
    levels = rack, dataclasses.replace(fabric, size=rng.choice([2, None]))
    model = MeshModel.build(
        workload, dataclasses.replace(nodes, levels=levels, host=host), MeshAssumptions(host_launch_s=0.0)
    )
    degrees = {
        "tp": Bounds(high=rng.choice([3, 4])),
        "cp": Bounds(high=rng.choice([1, 2])),
        "micro_batch": Bounds(high=2),
    }
    if given:
        degrees["domain_gpus"] = Bounds(values=given)
        # Two racks hold no more than twice what is used of them.
        plans = all_plans(model, 6, lambda _, n: [g for g in given if levels[1].size is None or n <= 2 * g])
    else:
        plans = all_plans(model, 6)
    for name, bounds in degrees.items():
        plans = plans.take(np.flatnonzero([bounds.allows(int(v)) for v in getattr(plans, name)]))
    capacity = capacity_of(model, plans, rng.choice([0.2, 0.5, 0.99]))
    restriction = MeshRestriction(degrees=degrees)
    check_search(model, plans, MeshSettings(max_workers=6, capacity_bytes=capacity, top=3, restriction=restriction))


@mostly("exact", "seed", range(200, 260), every=30)
def test_the_best_plans_are_those_of_brute_force_where_next_to_nothing_fits(seed: int) -> None:
    workload, cluster, _ = random_case(seed)
    rng = random.Random(seed)
    # Small networks wait for their host, so that nothing else shows: half of the cases have a quick one.
    assumptions = MeshAssumptions(host_bytes_per_s=rng.choice([2e9, 25e9, 200e9]))
    if seed % 2:
        assumptions = replace(assumptions, host_launch_s=0.0, host_collective_s=0.0)
    if seed % 3 == 0:
        assumptions = replace(assumptions, gather_overlap=0.0)
    if seed % 5 in (0, 1):
        assumptions = replace(assumptions, loss_chunks=0.0, mlp_chunks=4.0 * (seed % 5), hosted_gradients=1.0)
    model = MeshModel.build(workload, cluster, assumptions)
    plans = all_plans(model, 4)
    memory = np.sort(model.evaluate(plans).memory_bytes)
    # The capacity is the memory of a plan, to the last bit or a little less: that plan fits, or just not.
    capacity = float(memory[rng.randrange(0, max(len(memory) // 100, 4))]) * rng.choice([1.0, 1 - 1e-6])
    outcome = check_search(model, plans, MeshSettings(max_workers=4, capacity_bytes=capacity, top=3))
    if not outcome.candidates:
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
    free = MeshModel.build(workload, plain)
    capacity = capacity_of(free, all_plans(free, 4), rng.choice([0.0, 0.05, 0.3]))
    cluster = replace(plain, host=Host(devices=2, memory_bytes=rng.choice([0.1, 0.5, 2.0]) * capacity))
    model = MeshModel.build(workload, cluster)
    score = SCORES[rng.choice(["step_time", "gpu_hours"])]
    settings = MeshSettings(max_workers=4, capacity_bytes=capacity, top=3, score=score)
    outcome = check_search(model, all_plans(model, 4), settings)
    corner = search_corner(model, settings)
    assert not corner.candidates or corner.candidates[0].score >= outcome.candidates[0].score * (1 - 1e-9)


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
        captured=rng.choice([0.0, 1.0]),
        host_launch_s=rng.choice([0.0, 1e-5]),
        host_collective_s=0.0,
    )
    model = MeshModel.build(workload, cluster, assumptions)
    plans = all_plans(model, 4)
    capacity = capacity_of(model, plans, rng.choice([0.05, 0.3, 0.99]))
    check_search(model, plans, MeshSettings(max_workers=4, capacity_bytes=capacity, top=3))


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
    check_search(model, plans, settings)


@mostly("exact", "seed", range(800, 812))
def test_the_best_plans_are_those_of_brute_force_where_documents_are_packed(seed: int) -> None:
    """The fullest context-parallel rank and the slowest replica decide."""
    workload, cluster, _ = random_case(seed)
    rng = random.Random(seed)
    positions = workload.graph.layers[0].output_shape[1]
    documents = Documents.of([rng.choice([2, 3, 6])], positions, rng.choice([0.0, 0.5, 2.0]))
    layers = [replace(e, documents=documents) if e.kind == "self_attention" else e for e in workload.graph.layers]
    workload = replace(workload, graph=replace(workload.graph, layers=tuple(layers)))
    assumptions = MeshAssumptions(cp_balance=rng.choice([0.0, 1.0]), host_launch_s=0.0, host_collective_s=0.0)
    model = MeshModel.build(workload, cluster, assumptions)
    plans = all_plans(model, 4)
    capacity = capacity_of(model, plans, rng.choice([0.05, 0.3, 0.99]))
    check_search(model, plans, MeshSettings(max_workers=4, capacity_bytes=capacity, top=3))


def test_nothing_fits_names_the_plan_of_least_memory() -> None:
    cluster = two_level_cluster()
    workload = workload_of(decoder(blocks=3), cluster, 4)
    model = MeshModel.build(workload, cluster)
    plans = all_plans(model, 4)
    least = float(np.min(model.evaluate(plans).memory_bytes))
    outcome = search_mesh(workload, cluster, MeshSettings(max_workers=4, capacity_bytes=0.5 * least))
    assert not outcome.candidates
    assert outcome.nearest_miss.memory_bytes == pytest.approx(least, rel=1e-9)
    assert float(model.evaluate_plans([outcome.nearest_miss.plan]).memory_bytes[0]) == pytest.approx(least, rel=1e-9)


def test_degrees_that_need_more_workers_than_there_are_find_no_plan() -> None:
    cluster = two_level_cluster()
    restriction = MeshRestriction(degrees={"tp": Bounds(values=(2,)), "pp": Bounds(values=(2,))})
    settings = MeshSettings(max_workers=1, capacity_bytes=1e12, restriction=restriction)
    outcome = search_mesh(workload_of(decoder(blocks=3), cluster, 4), cluster, settings)
    assert not outcome.candidates
    assert outcome.nearest_miss is None


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


# --- The search for the least energy against brute force: every legal plan of a small question, evaluated one list at a time --------------


@mostly("exact", "seed", range(500, 560), every=30)
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
    capacity = capacity_of(model, plans, rng.choice([0.005, 0.02, 0.2, 0.5, 0.99]))
    score = Score.of_cost(power.cost)
    settings = MeshSettings(max_workers=min(workers, 4), capacity_bytes=capacity, top=3, score=score)
    check_search(model, plans, settings, power)


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


# The optimizer on the host may be the quicker of the two, also where everything fits on the device: the search against brute force


def assumptions_of(rng: random.Random, host: Host) -> MeshAssumptions:
    launches = rng.choice([0.0, 0.0, 4.0])
    return replace(
        MeshAssumptions(), **host_rates(host), host_launch_s=rng.choice([3e-6, 1e-5]), update_launches=launches
    )


def cluster_of_hosts(rng: random.Random, per_node: int, host: Host) -> Cluster:
    """Devices with the memory of an L4 or of an A100, and what one of them takes to start a kernel."""
    cluster = two_level_cluster(per_node=per_node, outside=rng.choice([2e9, 25e9]))
    device = replace(
        cluster.device,
        memory_bandwidth_bytes_per_s=rng.choice([300e9, 1.5e12]),
        launch_overhead_s=rng.choice([2e-6, 1e-5]),
    )
    return replace(cluster, groups=(DeviceGroup(device=device),), host=host)


@mostly("exact", "seed", range(300), quick=40, every=100)
def test_the_best_plans_are_those_of_brute_force_with_a_quick_host(seed: int) -> None:
    """Tiny networks on ordinary clusters: hosts of PCIe 4 to NVLink-C2C with the memory of one to two sockets; some have no room."""
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
        memory_bytes=rng.choice([64e9, 480e9, *([10 ** rng.uniform(5, 8)] if seed % 3 == 2 else [])]),
        memory_bandwidth_bytes_per_s=rng.choice([400e9, 1200e9]) * rng.choice([1, per_node]),
        link_bytes_per_s=rng.choice([32e9, 64e9, 450e9]),
    )
    cluster = cluster_of_hosts(rng, per_node, host)
    assumptions = assumptions_of(rng, host)
    workload = workload_of(graph, cluster, rng.choice([2, 4]))
    model = MeshModel.build(workload, cluster, assumptions)
    plans = all_plans(model, 3 if seed % 4 else 4)
    restriction = MeshRestriction()
    if seed % 8 == 7:
        restriction = MeshRestriction(flags={"offload_optimizer": True})
        plans = plans.take(np.flatnonzero(plans.offload_optimizer == 1))
    capacity = capacity_of(model, plans, rng.choice([0.1, 0.5, 1.0]))
    objective = rng.choice(["step_time", "step_time", "gpu_hours", "energy"])
    power = Power(busy_w=rng.choice([200.0, 700.0]), idle_w=rng.choice([50.0, 200.0]), host_w=0.0)
    scores = {"step_time": STEP_TIME, "gpu_hours": Score(per_device=True), "energy": Score.of_cost(power.cost)}
    settings = MeshSettings(
        max_workers=3 if seed % 4 else 4,
        capacity_bytes=capacity,
        top=4,
        restriction=restriction,
        score=scores[objective],
    )
    check_search(model, plans, settings, power if objective == "energy" else None)


# --- The search over a device mesh looks at the clock, and says what holds for the plans that it did not reach ----------------------------


FOUR_WORKERS = MeshSettings(max_workers=4, capacity_bytes=1e12, top=1)


def small_model(blocks: int, experts: int = 0) -> MeshModel:
    cluster = two_level_cluster(per_node=2)
    return MeshModel.build(workload_of(decoder(blocks=blocks, experts=experts), cluster, 4), cluster)


@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize("score", [STEP_TIME, Score(per_device=True)])
def test_a_search_without_time_has_a_bound_all_the_same(score: Score, experts: int) -> None:
    model, settings = small_model(3, experts), replace(FOUR_WORKERS, score=score)
    stopped, done = search_model(model, replace(settings, wall_s=-1.0)), search_model(model, settings)
    assert stopped.out_of_time
    assert not stopped.is_counted
    assert not stopped.candidates
    assert done.is_counted
    assert 0.0 < stopped.bound_score <= done.bound_score


def test_the_clock_is_looked_at_for_every_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes forward by looks: a pipeline of 400 blocks can be cut in hundreds of ways, of which few are laid out in 40 looks."""
    model, start_s, ticks = small_model(400), time.monotonic(), itertools.count(step=1000)
    monkeypatch.setattr(limits.time, "monotonic", lambda: start_s + next(ticks))
    laid_out: list[tuple[int, int]] = []
    layout = MeshModel.layout

    def count(self: MeshModel, pp: int, vpp: int, schedule: str) -> object:
        laid_out.append((pp, vpp))
        return layout(self, pp, vpp, schedule)

    monkeypatch.setattr(MeshModel, "layout", count)
    outcome = search_model(model, replace(FOUR_WORKERS, wall_s=40_000.0))
    assert outcome.out_of_time
    assert len(set(laid_out)) <= 40
    assert outcome.bound_score > 0.0


# --- Lists of plans that really differ: the best of each of the best groups, against the whole ranking of the plain search ----------------


QUESTIONS = [
    {"model": "bert-large", "gpus": 16, "batch": 64},
    {"model": "llama3-8b", "gpus": 24, "batch": 48, "seq": 2048},
    {"model": "mixtral-8x7b", "gpus": 32, "batch": 32, "cluster": "dgx-a100"},
]


def group_of(plan: MeshPlan) -> tuple[object, ...]:
    return tuple(getattr(plan, name) for name in DISTINCT)


@pytest.mark.exact
@mostly("exact", "question", QUESTIONS, quick=1)
@mostly("exact", "top", [3, 8], quick=1)
def test_the_best_of_the_best_groups(question: dict[str, object], top: int) -> None:
    """A plain list, long enough to hold that many groups, names them all."""
    resolved = resolve(Request(**question, top=top))  # type: ignore[arg-type]
    space = mesh_space(resolved)
    settings = space.settings()
    assert settings.distinct == DISTINCT
    found = search_model(space.model, settings).candidates
    plain = search_model(space.model, dataclasses.replace(settings, distinct=None, top=400)).candidates
    expected: dict[tuple[object, ...], float] = {}
    for candidate in plain:
        expected.setdefault(group_of(candidate.plan), candidate.score)
    assert len(expected) >= top
    assert len({group_of(candidate.plan) for candidate in found}) == len(found) == top
    assert [candidate.score for candidate in found] == pytest.approx(list(expected.values())[:top], rel=1e-8)
    assert found[0].plan == plain[0].plan  # the best is the best


@mostly("exact", "question", QUESTIONS, quick=1)
@mostly("exact", "score", list(SCORES), quick=1)
def test_what_is_known_of_fewer_workers_is_not_searched_again(question: dict[str, object], score: str) -> None:
    """The best of all counts up to some, found in two parts, of which the second knows the first: the same plan, for less work."""
    space = mesh_space(resolve(Request(**question, top=1)))  # type: ignore[arg-type]
    settings = dataclasses.replace(space.settings(), score=SCORES[score])
    whole, most = search_model(space.model, settings), settings.max_workers
    for fewer in (1, most // 2, most - 1):
        first = search_model(space.model, dataclasses.replace(settings, max_workers=fewer))
        known = tuple(candidate.plan for candidate in first.candidates)
        rest = dataclasses.replace(settings, known=known, worker_counts=tuple(range(fewer + 1, most + 1)))
        found = search_model(space.model, rest)
        assert found.candidates[0].score == pytest.approx(whole.candidates[0].score, rel=1e-9)
        assert found.bound_score == found.candidates[0].score
        assert first.space_size + found.space_size == whole.space_size
    # All that is known of the best is that nothing beats it.
    again = search_model(space.model, dataclasses.replace(settings, known=(whole.candidates[0].plan,)))
    assert again.candidates[0].plan == whole.candidates[0].plan
    assert again.searched.get("pipelines", 0) <= whole.searched["pipelines"]


def test_the_plain_list_can_be_asked_for() -> None:
    for diverse, distinct in ((None, DISTINCT), (True, DISTINCT), (False, None)):
        space = mesh_space(resolve(Request(model="bert-large", gpus=8, diverse=diverse)))
        assert space.settings().distinct == distinct
