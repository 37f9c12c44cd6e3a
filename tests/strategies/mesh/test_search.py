"""The search against brute force: every combination of values, filtered by the rules one plan at a time, judged one list at a time."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import CP_KINDS, ORDERS, SCHEDULES, MeshBatch
from costmodel.mesh.rules import NetworkShape, columns_of, holds
from costmodel.splits import divisors
from costmodel.workload import Workload
from strategies.mesh.incumbents import key_of
from strategies.mesh.search import search_mesh
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings
from tests.strategies.mesh.networks import decoder, random_case, two_level_cluster, workload_of


def _orders_that_differ(cp: int, dp: int, pp: int) -> list[int]:
    seen: dict[tuple[str, ...], int] = {}
    for number, order in enumerate(ORDERS):
        present = tuple(n for n in order.split("-") if {"cp": cp, "dp": dp, "pp": pp}.get(n, 1) > 1)
        seen.setdefault(present, number)
    return list(seen.values())


def _all_plans(model: MeshModel, most_workers: int) -> MeshBatch:
    """Every legal plan, by trying every combination of values."""
    workload = model.workload
    batch, blocks = workload.global_batch, model.num_blocks
    degrees = range(1, most_workers + 1)
    values = {
        "tp": degrees,
        "cp": degrees,
        "pp": degrees,
        "dp_replicate": degrees,
        "dp_shard": degrees,
        "sequence_parallel": range(2),
        "cp_kind": range(len(CP_KINDS)),
        "ep": range(1, 5),
        "etp": range(1, 5),
        "vpp": range(1, blocks + 1),
        "schedule": range(len(SCHEDULES)),
        "zero_stage": range(4),
        "micro_batch": divisors(batch),
    }
    columns = {name: np.zeros(1, dtype=np.int64) for name in ("recompute", "recompute_blocks", "order")}
    columns |= {name: np.zeros(1, dtype=np.int64) for name in ("offload_optimizer", "offload_activations")}
    for name, candidates in values.items():
        size, count = len(columns["order"]), len(candidates)
        columns = {key: np.repeat(column, count) for key, column in columns.items()}
        columns[name] = np.tile(np.array(list(candidates), dtype=np.int64), size)
        workers = np.prod([columns[n] for n in ("tp", "cp", "pp", "dp_replicate", "dp_shard") if n in columns], axis=0)
        columns = {key: column[workers <= most_workers] for key, column in columns.items()}
    rest = batch // np.maximum(columns["dp_replicate"] * columns["dp_shard"] * columns["micro_batch"], 1)
    bare = MeshBatch(**columns, num_micro_batches=rest)
    shape = NetworkShape.of(workload.graph, model.units, batch)
    legal = bare.take(np.flatnonzero(holds(shape, columns_of(bare))))
    rows: list[tuple[int, int, int, int, int, int]] = []
    for n in range(len(legal)):
        longest = max(model.blocks_of(int(legal.pp[n] * legal.vpp[n])))
        tuned = [(0, 0), (1, 0), *((2, k) for k in range(1, longest + 1))]
        for order in _orders_that_differ(int(legal.cp[n]), int(legal.dp[n]), int(legal.pp[n])):
            rows += [(n, order, *kind, o, a) for kind in tuned for o in (0, 1) for a in (0, 1)]
    table = np.array(rows, dtype=np.int64)
    names = ("order", "recompute", "recompute_blocks", "offload_optimizer", "offload_activations")
    return replace(legal.take(table[:, 0]), **{name: table[:, k + 1] for k, name in enumerate(names)})


def _best_scores(model: MeshModel, plans: MeshBatch, capacity: float, top: int, per_device: bool) -> list[float]:
    costs = model.evaluate(plans)
    score = costs.step_time_s * (plans.workers if per_device else 1)
    best: dict[tuple[object, ...], float] = {}
    fitting = np.flatnonzero(costs.memory_bytes <= capacity)
    for n in fitting[np.argsort(score[fitting], kind="stable")].tolist():
        best.setdefault(key_of(plans.plan(n)), float(score[n]))
        if len(best) == top:
            break
    return sorted(best.values())


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
    workers = min(workers, 4 if seed % 10 else 6)
    plans = _all_plans(model, workers)
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
    for name, value in base.items():
        assert best(**{name: value * rng.choice([1.5, 4.0])}) <= plain * (1 + 1e-9), name
