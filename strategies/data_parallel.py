"""Plain data parallelism on every worker count at once: the baseline that every answer is compared with."""

from __future__ import annotations

import numpy as np

from costmodel.evaluate import CHEAPEST, PlanBatch, evaluate_on
from costmodel.network import Cluster
from costmodel.plan import Plan
from costmodel.splits import Split, divisors, split_table
from costmodel.tables import CostTables
from costmodel.workload import Workload

__all__ = ["best_data_parallel", "data_parallel_plan"]


def data_parallel_plan(tables: CostTables, workers: int) -> Plan:
    """Write out plain data parallelism: every layer split by the batch, the cheapest collective per exchange."""
    workload = tables.workload
    row = tables.table.row_of(Split(batch=workers))
    collectives = []
    for layer, costs in zip(workload.graph.layers, tables.layers, strict=True):
        exchanged = workload.training and workers > 1 and layer.weight_count + layer.norm_count > 0
        collectives.append(workload.collectives[int(costs.cheapest_collective[row])] if exchanged else None)
    return Plan(
        workers=workers,
        num_micro_batches=tables.num_micro_batches,
        splits=(Split(batch=workers),) * len(workload.graph.layers),
        collectives=tuple(collectives),
    )


def best_data_parallel(
    workload: Workload, cluster: Cluster, max_workers: int, capacity_bytes: float
) -> tuple[Plan | None, Plan | None]:
    """Plain data parallelism on exactly ``max_workers``, and on the best number up to it.

    The fewest micro-batches that fit are used; more take no less time.

    Returns
    -------
    on_all, best : Plan or None
        None where it does not fit, or the batch is smaller than the workers.
    """
    most = min(max_workers, workload.global_batch)
    open_counts = list(range(1, most + 1))
    best: tuple[float, Plan] | None = None
    on_all: Plan | None = None
    for m in divisors(workload.global_batch):
        counts = [w for w in open_counts if w <= workload.micro_batch(m)]
        if not counts:
            break
        tables = CostTables(workload, cluster, split_table(counts, batch_only=True), m)
        rows = np.arange(len(counts))[:, None]
        layers = len(workload.graph.layers)
        costs = evaluate_on(
            tables, PlanBatch(row=rows, collective=np.full_like(rows, CHEAPEST), column_of_layer=(0,) * layers)
        )
        fits = (costs.memory_bytes <= capacity_bytes) & np.isfinite(costs.step_time_s)
        for k in np.flatnonzero(fits):
            if best is None or costs.step_time_s[k] < best[0]:
                best = (float(costs.step_time_s[k]), data_parallel_plan(tables, counts[k]))
            if counts[k] == max_workers:
                on_all = data_parallel_plan(tables, max_workers)
        open_counts = [w for w, fit in zip(counts, fits, strict=True) if not fit]
    return on_all, None if best is None else best[1]
