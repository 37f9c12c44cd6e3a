"""Every legal mesh plan of a small question, by trying every combination of values; and the best of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.layerwise.splits import divisors
from costmodel.mesh.framework_rules import order_in_effect
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, MeshBatch, MeshCosts, MeshPlan
from costmodel.mesh.rules import NetworkShape, columns_of, holds
from strategies.mesh.plans import key_of

_DEGREES = ("tp", "cp", "pp", "dp_replicate", "dp_shard")


def _orders_that_differ(cp: int, dp: int, pp: int) -> list[int]:
    seen: dict[tuple[str, ...], int] = {}
    for number, order in enumerate(ORDERS):
        present = tuple(n for n in order.split("-") if {"cp": cp, "dp": dp, "pp": pp}.get(n, 1) > 1)
        seen.setdefault(present, number)
    return list(seen.values())


def all_plans(model: MeshModel, most_workers: int) -> MeshBatch:
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
    # Hundreds of thousands of rows, most of them illegal: half as wide takes half as long.
    columns = {name: np.zeros(1, dtype=np.int32) for name in ("recompute", "recompute_blocks", "order")}
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
    rows: list[tuple[int, int, int, int, int, int]] = []
    for n in range(len(legal)):
        longest = max(model.blocks_of(int(legal.pp[n] * legal.vpp[n])))
        tuned = [(0, 0), (1, 0), *((2, k) for k in range(1, longest + 1))]
        for order in _orders_that_differ(int(legal.cp[n]), int(legal.dp[n]), int(legal.pp[n])):
            rows += [(n, order, *kind, o, a) for kind in tuned for o in (0, 1) for a in (0, 1)]
    table = np.array(rows, dtype=np.int64)
    names = ("order", "recompute", "recompute_blocks", "offload_optimizer", "offload_activations")
    return replace(legal.take(table[:, 0]), **{name: table[:, k + 1] for k, name in enumerate(names)})


def run_by_framework(model: MeshModel, plans: MeshBatch) -> MeshBatch:
    """The plans that break no rule of the framework, condition by condition over all of them."""
    facts = model.facts
    size = len(plans)
    legal = np.ones(size, dtype=np.bool_)
    longest = np.array([max(model.blocks_of(int(n))) for n in plans.pp * plans.vpp])
    node = model.cluster.devices_of_node
    derived = {
        "partial_recompute": (plans.recompute == RECOMPUTE.index("full")) & (plans.recompute_blocks < longest),
        "part_nodes": (plans.workers > node) & (plans.workers % node > 0),
        "few_micro_batches": (plans.schedule == SCHEDULES.index("1f1b")) & (plans.num_micro_batches < plans.pp - 1),
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


def best_scores(costs: MeshCosts, plans: MeshBatch, capacity: float, top: int, per_device: bool) -> list[float]:
    score = costs.step_time_s * (plans.workers if per_device else 1)
    best: dict[tuple[object, ...], float] = {}
    fitting = np.flatnonzero(costs.memory_bytes <= capacity)
    for n in fitting[np.argsort(score[fitting], kind="stable")].tolist():
        best.setdefault(key_of(plans.plan(n)), float(score[n]))
        if len(best) == top:
            break
    return sorted(best.values())
