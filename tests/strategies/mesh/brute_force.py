"""Every legal mesh plan of a small question, by trying every combination of values; and the best of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.host import Power
from costmodel.layerwise.plan import divisors
from costmodel.mesh.framework_rules import order_in_effect
from costmodel.mesh.model import MeshModel, computing_s
from costmodel.mesh.plan import CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, MeshBatch, MeshCosts, MeshPlan
from costmodel.mesh.rules import NetworkShape, columns_of, holds
from strategies.mesh.plans import key_of
from strategies.mesh.search import search_mesh
from strategies.mesh.settings import MeshOutcome, MeshSettings

_DEGREES = ("tp", "cp", "pp", "dp_replicate", "dp_shard")


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Ordered sums of so many positive numbers."""
    for bars in itertools.combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *bars, total)))


def _orders_that_differ(cp: int, dp: int, pp: int) -> list[int]:
    seen: dict[tuple[str, ...], int] = {}
    for number, order in enumerate(ORDERS):
        present = tuple(n for n in order.split("-") if {"cp": cp, "dp": dp, "pp": pp}.get(n, 1) > 1)
        seen.setdefault(present, number)
    return list(seen.values())


def _shares(cluster: Cluster, workers: int) -> list[int]:
    """Devices used of every domain that are tried, of clusters whose innermost level is one; 0 where nothing can be chosen."""
    size, node = cluster.levels[0].size or workers, cluster.host.devices if cluster.host else workers
    if workers <= size or node >= size:
        return [0]
    most = cluster.levels[1].size or workers
    even = [g for g in range(size // 2 + 1, size + 1) if workers % g == 0 and g % node == 0 and workers // g <= most]
    return sorted({*even, size})


def all_plans(
    model: MeshModel, most_workers: int, shares_of: Callable[[Cluster, int], list[int]] = _shares
) -> MeshBatch:
    """Every legal plan, by trying every combination of values; ``shares_of`` says what workers may use of the domains of a cluster."""
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
        "schedule": [SCHEDULES.index(name) for name in workload.framework.rules.schedules],
        "zero_stage": range(4),
        "micro_batch": divisors(batch),
    }
    # Hundreds of thousands of rows, most of them illegal: half as wide takes half as long.
    columns = {name: np.zeros(1, dtype=np.int32) for name in ("recompute", "recompute_blocks", "order", "domain_gpus")}
    columns |= {name: np.zeros(1, dtype=np.int32) for name in ("offload_optimizer", "offload_activations")}
    for name, candidates in values.items():
        size, count = len(columns["order"]), len(candidates)
        columns = {key: np.repeat(column, count) for key, column in columns.items()}
        columns[name] = np.tile(np.array(list(candidates), dtype=np.int32), size)
        if name in _DEGREES:
            workers = np.prod([columns[n] for n in _DEGREES if n in columns], axis=0)
            columns = {key: column[workers <= most_workers] for key, column in columns.items()}
    samples = columns["dp_replicate"] * columns["dp_shard"] * columns["micro_batch"]
    columns["num_micro_batches"] = batch // np.maximum(samples, 1)
    shape = NetworkShape.of(workload.graph, model.modules, batch, workload.framework)
    place = np.flatnonzero(holds(shape, columns_of(MeshBatch(**columns))))
    legal = MeshBatch(**{name: column[place].astype(np.int64) for name, column in columns.items()})
    rows: list[tuple[int, ...]] = []
    for n in range(len(legal)):
        longest = max(model.blocks_of(int(legal.pp[n] * legal.vpp[n])))
        tuned = [(0, 0), (1, 0), *((2, k) for k in range(1, longest + 1))]
        for order in _orders_that_differ(int(legal.cp[n]), int(legal.dp[n]), int(legal.pp[n])):
            shares = shares_of(model.cluster, int(legal.workers[n]))
            rows += [(n, order, *kind, o, a, g) for kind in tuned for o in (0, 1) for a in (0, 1) for g in shares]
    table = np.array(rows, dtype=np.int64)
    names = ("order", "recompute", "recompute_blocks", "offload_optimizer", "offload_activations", "domain_gpus")
    return replace(legal.take(table[:, 0]), **{name: table[:, k + 1] for k, name in enumerate(names)})


def run_by_framework(model: MeshModel, plans: MeshBatch) -> MeshBatch:
    """The plans that break no rule of the framework, condition by condition over all of them."""
    facts = model.facts
    size = len(plans)
    legal = np.ones(size, dtype=np.bool_)
    longest = np.array([max(model.blocks_of(int(n))) for n in plans.pp * plans.vpp])
    node = model.cluster.devices_of_node
    in_groups = np.isin(
        plans.schedule, [SCHEDULES.index(name) for name in ("interleaved", "combined_1f1b", "interleaved_zb")]
    )
    derived = {
        "partial_recompute": (plans.recompute == RECOMPUTE.index("full")) & (plans.recompute_blocks < longest),
        "part_nodes": (plans.workers > node) & (plans.workers % node > 0),
        "few_micro_batches": (plans.schedule == SCHEDULES.index("1f1b")) & (plans.num_micro_batches < plans.pp - 1),
        "no_whole_groups": in_groups & (plans.num_micro_batches % plans.pp > 0),
        "no_equal_groups": in_groups
        & (plans.num_micro_batches % np.maximum(plans.num_micro_batches // plans.pp, 1) > 0),
        "odd_pieces": (plans.cp > 1) & (facts.positions % (2 * plans.cp) > 0),
        "repeated_kv_heads": np.any([heads % plans.tp > 0 for heads in facts.kv_heads], axis=0),
        **dict.fromkeys(("own_stages", "block_splits", "unequal_recompute"), np.zeros(size, dtype=np.bool_)),
        **dict.fromkeys(("layer_splits", "unequal_ranks"), np.zeros(size, dtype=np.bool_)),  # of other spaces
    }
    orders = {name: np.array([_same_orders(name, plans.plan(n)) for n in range(size)]) for name in ORDERS}
    names = {"schedule": SCHEDULES, "recompute": RECOMPUTE, "cp_kind": CP_KINDS}
    for refusal in model.workload.framework.rules.of():
        met = np.ones(size, dtype=np.bool_)
        for name, wanted in refusal.when.items():
            if name in derived:
                met &= derived[name] == wanted
            elif name == "order":
                # Refused only if every order that numbers the ranks alike is.
                met &= ~np.any([orders[other] for other in ORDERS if other not in wanted], axis=0)
            elif name in names:
                met &= np.isin(getattr(plans, name), [names[name].index(value) for value in wanted])
            elif name in facts.values:
                met &= facts.values[name] == wanted if isinstance(wanted, bool) else facts.values[name] in wanted
            elif isinstance(wanted, bool):
                met &= getattr(plans, name) == int(wanted)
            else:
                value = getattr(plans, name)
                met &= (value >= wanted.low) & (value <= wanted.high)
        legal &= ~met
    return plans.take(np.flatnonzero(legal))


def _same_orders(name: str, plan: MeshPlan) -> bool:
    return order_in_effect(name, plan) == order_in_effect(plan.order, plan)


_last: list[tuple[MeshModel, MeshBatch, MeshCosts]] = []


def costs_of(model: MeshModel, plans: MeshBatch) -> MeshCosts:
    """What all plans take; kept until other plans are asked for, since a test asks several times."""
    if not (_last and _last[0][0] is model and _last[0][1] is plans):
        _last[:] = [(model, plans, model.evaluate(plans))]
    return _last[0][2]


def best_scores(model: MeshModel, plans: MeshBatch, settings: MeshSettings, power: Power | None = None) -> list[float]:
    """Of the best plans that differ and fit: time, time x devices, or joules over what a computing device and its host draw."""
    costs = costs_of(model, plans)
    score = costs.step_time_s * (plans.workers if settings.score.per_device else 1)
    if power is not None:
        score = energies(model, plans, power)
    best: dict[tuple[object, ...], float] = {}
    fitting = np.flatnonzero(costs.memory_bytes <= settings.capacity_bytes)
    for n in fitting[np.argsort(score[fitting], kind="stable")].tolist():
        best.setdefault(key_of(plans.plan(n)), float(score[n]))
        if len(best) == settings.top:
            break
    return sorted(best.values())


def energies(model: MeshModel, plans: MeshBatch, power: Power) -> np.ndarray:
    """Joules of a step over what a computing device and its host draw."""
    costs = costs_of(model, plans)
    computing = computing_s(model, plans, model.layouts(plans), costs)
    joules = plans.workers * (
        (power.idle_w + power.host_w) * costs.step_time_s + (power.busy_w - power.idle_w) * computing
    )
    return np.asarray(joules / (power.busy_w + power.host_w))


def capacity_of(model: MeshModel, plans: MeshBatch, share: float) -> float:
    """Memory in which about that share of the plans fits."""
    memory = np.sort(costs_of(model, plans).memory_bytes)
    return float(memory[int(share * (len(memory) - 1))])


def check_search(model: MeshModel, plans: MeshBatch, settings: MeshSettings, power: Power | None = None) -> MeshOutcome:
    """Search, and compare what is found, its bound and the size of the space with all plans that the settings allow."""
    outcome = search_mesh(model.workload, model.cluster, settings, None, model.assumptions)
    expected = best_scores(model, plans, settings, power)
    assert outcome.space_size == len(plans)
    assert [c.score for c in outcome.candidates] == pytest.approx(expected, rel=1e-9)
    if expected:
        assert outcome.bound_score <= expected[0] * (1 + 1e-9)
        assert outcome.bound_score == pytest.approx(expected[0], rel=1e-8)
        evaluated = model.evaluate_plans([c.plan for c in outcome.candidates])
        assert np.all(evaluated.memory_bytes <= settings.capacity_bytes)
    return outcome
