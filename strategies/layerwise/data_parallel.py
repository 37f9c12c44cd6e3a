"""Plain data parallelism on every worker count at once: the baseline that every answer is compared with."""

from __future__ import annotations

import numpy as np

from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.evaluate import CHEAPEST, PlanBatch, evaluate_on
from costmodel.layerwise.plan import Plan
from costmodel.layerwise.splits import Split, divisors, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.workload import Workload
from strategies.layerwise.score import STEP_TIME, Score

__all__ = ["best_data_parallel", "data_parallel_plan"]


def data_parallel_plan(tables: CostTables, workers: int) -> Plan:
    """Write out plain data parallelism: every layer split by the batch, the cheapest collective per exchange."""
    workload = tables.workload
    row = tables.table.row_of(Split(batch=workers))
    return Plan(
        workers=workers,
        num_micro_batches=tables.num_micro_batches,
        splits=(Split(batch=workers),) * len(workload.graph.layers),
        collectives=tuple(tables.collective_at(i, row) for i in range(len(workload.graph.layers))),
    )


def best_data_parallel(
    workload: Workload,
    cluster: Cluster,
    max_workers: int,
    capacity_bytes: float,
    cache: CostCache | None = None,
    score: Score = STEP_TIME,
) -> tuple[Plan | None, Plan | None]:
    """Plain data parallelism on exactly ``max_workers``, and on the number up to it with the best score.

    Micro-batches are as many as is fastest within the memory. More take no less time than one, nor than a number that divides
    the batch evenly over the workers; others are tried further: 6 samples on 2 workers take 2 x 2 in 2 micro-batches, 3 x 1 in 3.

    Returns
    -------
    on_all, best : Plan or None
        None where it does not fit, or the batch is smaller than the workers.
    """
    cache = CostCache(workload, cluster) if cache is None else cache
    most = min(max_workers, workload.global_batch)
    open_counts = list(range(1, most + 1))
    best: dict[int, tuple[float, CostTables]] = {}  # worker count -> score, and tables of its micro-batches
    for m in divisors(workload.global_batch):
        counts = [w for w in open_counts if w <= workload.micro_batch(m)]
        if not counts:
            break
        tables = cache.tables(split_table(counts, batch_only=True), m)
        rows = np.arange(len(counts))[:, None]
        layers = len(workload.graph.layers)
        costs = evaluate_on(
            tables, PlanBatch(row=rows, collective=np.full_like(rows, CHEAPEST), column_of_layer=(0,) * layers)
        )
        scores = score.of(costs.step_time_s, costs.computing_s, counts)
        fits = (costs.memory_bytes <= capacity_bytes) & np.isfinite(costs.step_time_s)
        for k in np.flatnonzero(fits):
            value, w = float(scores[k]), counts[k]
            if w not in best or value < best[w][0]:
                best[w] = (value, tables)
        open_counts = [
            w for w, fit in zip(counts, fits, strict=True) if not fit or (m > 1 and workload.global_batch % (m * w))
        ]
    on_all = data_parallel_plan(best[max_workers][1], max_workers) if max_workers in best else None
    if not best:
        return on_all, None
    first = min(best, key=lambda w: best[w][0])
    return on_all, data_parallel_plan(best[first][1], first)
