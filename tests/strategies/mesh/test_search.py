"""The search against brute force: every combination of values, filtered by the rules one plan at a time, judged one list at a time."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, MeshBatch, MeshPlan
from costmodel.mesh.rules import NetworkShape, columns_of, holds
from costmodel.splits import divisors
from costmodel.workload import Workload
from strategies.mesh.incumbents import key_of
from strategies.mesh.search import search_mesh
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings

from tests.strategies.mesh.networks import decoder, random_case, two_level_cluster, workload_of


def _orders_that_differ(cp: int, dp: int, pp: int) -> list[str]:
    seen = {}
    for order in ORDERS:
        present = tuple(n for n in order.split("-") if {"cp": cp, "dp": dp, "pp": pp}.get(n, 1) > 1)
        seen.setdefault(present, order)
    return list(seen.values())


def _all_plans(model: MeshModel, most_workers: int) -> MeshBatch:
    """Every legal plan, by trying every combination of values."""
    workload = model.workload
    batch, blocks = workload.global_batch, model.num_blocks
    plans = []
    for tp, cp, pp, dp in itertools.product(range(1, most_workers + 1), repeat=4):
        if tp * cp * pp * dp > most_workers:
            continue
        for sp, kind, ep, etp in itertools.product((False, True), CP_KINDS, range(1, 5), range(1, 5)):
            for micro, schedule, vpp in itertools.product(divisors(batch), SCHEDULES, range(1, blocks + 1)):
                if batch % (dp * micro):
                    continue
                for zero, shard in itertools.product(range(4), divisors(dp)):
                    plans.append(
                        (tp, sp, cp, kind, ep, etp, pp, vpp, schedule, dp // shard, shard, zero, micro, batch // dp // micro)
                    )
    names = (
        "tp sequence_parallel cp cp_kind ep etp pp vpp schedule dp_replicate dp_shard zero_stage micro_batch num_micro_batches"
    ).split()
    bare = MeshBatch.from_plans([MeshPlan(**dict(zip(names, row, strict=True))) for row in plans])
    shape = NetworkShape.of(workload.graph, model.units, batch)
    legal = bare.take(np.flatnonzero(holds(shape, columns_of(bare))))
    full = []
    for n in range(len(legal)):
        plan = legal.plan(n)
        longest = max(model.blocks_of(plan.pp * plan.vpp))
        for order in _orders_that_differ(plan.cp, plan.dp, plan.pp):
            for optimizer, activations in itertools.product((False, True), repeat=2):
                tuned = replace(plan, order=order, offload_optimizer=optimizer, offload_activations=activations)
                full += [replace(tuned, recompute=kind) for kind in RECOMPUTE if kind != "full"]
                full += [replace(tuned, recompute="full", recompute_blocks=k) for k in range(1, longest + 1)]
    return MeshBatch.from_plans(full)


def _best_scores(model: MeshModel, plans: MeshBatch, capacity: float, top: int, per_device: bool) -> list[float]:
    costs = model.evaluate(plans)
    score = costs.step_time_s * (plans.workers if per_device else 1)
    best: dict[tuple[object, ...], float] = {}
    for n in np.flatnonzero(costs.memory_bytes <= capacity):
        key = key_of(plans.plan(int(n)))
        best[key] = min(best.get(key, np.inf), float(score[n]))
    return sorted(best.values())[:top]


@pytest.mark.parametrize("seed", range(200))
def test_the_best_plans_are_those_of_brute_force(seed: int) -> None:
    workload, cluster, workers = random_case(seed)
    rng = random.Random(seed)
    model = MeshModel.build(workload, cluster)
    restriction = MeshRestriction()
    if seed % 2:  # half of the cases look at a corner of the space, to keep brute force small
        restriction = MeshRestriction(
            degrees={"cp": Bounds(high=rng.choice([1, 2])), "tp": Bounds(high=rng.choice([1, 2, 4]))}
        )
    plans = _all_plans(model, min(workers, 4 if seed % 10 else 6))
    workers = min(workers, 4 if seed % 10 else 6)
    for name, bounds in restriction.degrees.items():
        plans = plans.take(np.flatnonzero([bounds.allows(int(v)) for v in getattr(plans, name)]))
    memory = np.sort(model.evaluate(plans).memory_bytes)
    capacity = float(memory[int(rng.choice([0.02, 0.2, 0.5, 0.99]) * (len(memory) - 1))])
    objective = rng.choice(["step_time", "gpu_hours"])
    settings = MeshSettings(
        max_workers=workers, capacity_bytes=capacity, top=3, restriction=restriction, objective=objective
    )
    outcome = search_mesh(workload, cluster, settings)
    expected = _best_scores(model, plans, capacity, 3, objective == "gpu_hours")
    assert outcome.space_size == len(plans)
    assert [c.score for c in outcome.candidates] == pytest.approx(expected, rel=1e-9)
    assert outcome.bound_score <= expected[0] * (1 + 1e-9)
    assert outcome.bound_score == pytest.approx(expected[0], rel=1e-8)
    judged = model.evaluate_plans([c.plan for c in outcome.candidates])
    assert np.all(judged.memory_bytes <= capacity)


def test_nothing_fits_names_the_plan_of_least_memory() -> None:
    cluster = two_level_cluster()
    workload = workload_of(decoder(blocks=3), cluster, 4)
    model = MeshModel.build(workload, cluster)
    plans = _all_plans(model, 4)
    least = float(np.min(model.evaluate(plans).memory_bytes))
    outcome = search_mesh(workload, cluster, MeshSettings(max_workers=4, capacity_bytes=0.5 * least))
    assert not outcome.candidates
    assert outcome.nearest_miss is not None
    assert outcome.nearest_miss.memory_bytes == pytest.approx(least, rel=1e-9)
    assert float(model.evaluate_plans([outcome.nearest_miss.plan]).memory_bytes[0]) == pytest.approx(least, rel=1e-9)


def _best(workload: Workload, cluster: object, **more: object) -> float:
    settings = MeshSettings(**{"max_workers": 8, "capacity_bytes": 2e9, "top": 1, **more})  # type: ignore[arg-type]
    return search_mesh(workload, cluster, settings).candidates[0].step_time_s  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_better_hardware_never_makes_the_best_plan_slower(seed: int) -> None:
    rng = random.Random(seed)
    graph = decoder(blocks=4, features=512, ffn=1024, positions=256, experts=rng.choice([0, 4]))
    base = {"peak": 50e12, "inside": rng.choice([20e9, 100e9]), "outside": rng.choice([2e9, 20e9]), "memory": 2e9}

    def best(**better: float) -> float:
        cluster = two_level_cluster(**{**base, **better})
        return _best(workload_of(graph, cluster, 16), cluster, capacity_bytes={**base, **better}["memory"] / 4)

    plain = best()
    for name in base:
        assert best(**{name: base[name] * rng.choice([1.5, 4.0])}) <= plain * (1 + 1e-9), name
