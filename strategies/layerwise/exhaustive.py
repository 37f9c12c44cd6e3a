"""Exhaustive enumeration of the uniform plans, by the chunk, with the best kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.layerwise.evaluate import fold
from costmodel.layerwise.plan import Plan
from costmodel.layerwise.splits import divisors, factorisations
from costmodel.layerwise.tables import CostTables
from strategies.layerwise.score import STEP_TIME, Score
from strategies.layerwise.space import Restriction, uniform_batches, uniform_columns

__all__ = ["UniformPlans", "blocks", "enumerate_uniform"]

# Worker counts are costed in blocks of about this many splits, so that memory stays flat however many GPUs there are.
_BLOCK_SPLITS = 24_000


def blocks(counts: Sequence[int], *, grids: bool = False) -> Iterator[tuple[int, ...]]:
    """Cut worker counts into blocks of bounded size, each when it is asked for: a search may stop long before the last."""
    current: list[int] = []
    size = 0
    for w in counts:
        current.append(w)
        size += len(divisors(w)) ** 2 if grids else len(factorisations(w, 4))
        if size >= _BLOCK_SPLITS:
            yield tuple(current)
            current, size = [], 0
    if current:
        yield tuple(current)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformPlans:
    """What one enumeration found."""

    count: int
    plans: list[Plan]  # the best of the tables that fit the memory, with the cheapest collective per message
    too_large: tuple[int, ...]  # worker counts with a plan that does not fit


def enumerate_uniform(
    tables: CostTables, restriction: Restriction, capacity_bytes: float, top: int, score: Score = STEP_TIME
) -> UniformPlans:
    """Score every uniform plan of the tables, and keep the best ``top``."""
    columns = uniform_columns(tables.workload.graph)
    folded = fold(tables, columns)
    allowed = []
    for c in range(max(columns) + 1):
        mask = folded.columns[c].legal.copy()
        for i, layer in enumerate(tables.workload.graph.layers):
            if columns[i] == c and layer.kind != "input" and (layer.weight_count or layer.name in restriction.fixed):
                mask &= restriction.mask(layer, tables.table)
        allowed.append(mask)
    count = 0
    too_large: set[int] = set()
    best: list[tuple[float, tuple[int, ...]]] = []
    for batch in uniform_batches(tables, columns, allowed):
        costs = folded.score(batch)
        count += len(batch)
        workers = tables.table.workers[batch.row[:, 0]]
        scores = score.of(costs.step_time_s, costs.computing_s, workers)
        fits = costs.memory_bytes <= capacity_bytes
        too_large.update(workers[~fits].tolist())
        scores = np.where(fits & np.isfinite(costs.step_time_s), scores, np.inf)
        leading = np.argsort(scores, kind="stable")[: top * len(tables.workload.collectives)]
        best.extend((float(scores[n]), tuple(int(r) for r in batch.row[n])) for n in leading if np.isfinite(scores[n]))
    best.sort()
    chosen = list(dict.fromkeys(rows for _, rows in best))[:top]
    return UniformPlans(
        count=count,
        plans=[_uniform_plan(tables, columns, rows) for rows in chosen],
        too_large=tuple(sorted(too_large)),
    )


def _uniform_plan(tables: CostTables, columns: tuple[int, ...], rows: tuple[int, ...]) -> Plan:
    """Write a uniform plan out layer by layer, with the cheapest collective for every exchange."""
    chosen = [rows[column] for column in columns]
    return Plan(
        workers=int(tables.table.workers[rows[0]]),
        num_micro_batches=tables.num_micro_batches,
        splits=tuple(tables.table.split(row) for row in chosen),
        collectives=tuple(tables.collective_at(i, row) for i, row in enumerate(chosen)),
    )
