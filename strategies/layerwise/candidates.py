"""The K best different plans found so far, and what is enumerated: uniform plans, and plain data parallelism, the common baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.evaluate import CHEAPEST, PlanBatch, batch_of, evaluate, evaluate_on, fold
from costmodel.layerwise.plan import Plan, family_of_plan, plan_key
from costmodel.layerwise.splits import Split, divisors, factorisations, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.workload import Workload
from strategies.layerwise.per_layer.search import Method
from strategies.layerwise.space import Restriction, uniform_batches, uniform_columns
from strategies.score import STEP_TIME, Score

__all__ = [
    "Candidate",
    "Outcome",
    "Pool",
    "SearchSettings",
    "UniformPlans",
    "best_data_parallel",
    "blocks",
    "data_parallel_plan",
    "enumerate_uniform",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan with the cost model's verdict."""

    plan: Plan
    step_time_s: float
    score: float  # what is compared; the step time, unless another objective is asked for
    memory_bytes: float
    family: str


class Pool:
    """The K best different plans so far."""

    def __init__(
        self, cache: CostCache, *, top: int, capacity_bytes: float, family: str | None, score: Score = STEP_TIME
    ) -> None:
        self._cache, self._workload = cache, cache.workload
        self._top, self._capacity_bytes, self._family, self._score = top, capacity_bytes, family, score
        self._found: dict[tuple[object, ...], Candidate] = {}
        self.nearest_miss: Candidate | None = None

    def add(self, plans: Sequence[Plan], tables: CostTables | None = None) -> int:
        """Evaluate plans, keep those that fit the memory, the family and the list, and count those that are of the family.

        Plans without stages may bring the tables that they came from, which saves the cost model from building them again.
        """
        if not plans:
            return 0
        accepted = 0
        graph = self._workload.graph
        costs = (
            evaluate(self._workload, self._cache.cluster, plans, self._cache)
            if tables is None
            else evaluate_on(tables, batch_of(tables, plans))
        )
        scores = self._score.of(costs.step_time_s, costs.computing_s, [plan.workers for plan in plans])
        for n, plan in enumerate(plans):
            step, memory = float(costs.step_time_s[n]), float(costs.memory_bytes[n])
            family = family_of_plan(graph, plan)
            if not np.isfinite(step) or self._family not in (None, family):
                continue
            accepted += 1
            candidate = Candidate(
                plan=plan, step_time_s=step, score=float(scores[n]), memory_bytes=memory, family=family
            )
            if memory > self._capacity_bytes:
                if self.nearest_miss is None or memory < self.nearest_miss.memory_bytes:
                    self.nearest_miss = candidate
                continue
            key = plan_key(graph, plan)
            if key not in self._found or _order(candidate) < _order(self._found[key]):
                self._found[key] = candidate
        ranked = sorted(self._found.items(), key=lambda item: _order(item[1]))
        self._found = dict(ranked[: self._top])
        return accepted

    def best(self) -> list[Candidate]:
        """At most K candidates, best first; ties go to fewer workers."""
        return list(self._found.values())

    @property
    def cutoff(self) -> float:
        """Score of the K-th plan: what a further plan must beat."""
        ranked = self.best()
        return ranked[-1].score if len(ranked) == self._top else float("inf")


def _order(candidate: Candidate) -> tuple[object, ...]:
    plan = candidate.plan
    # Rounding keeps equal times computed in another order equal, so that ties are broken the same way everywhere.
    return (
        float(f"{candidate.score:.11e}"),
        plan.workers,
        plan.num_micro_batches,
        plan.stages,
        tuple(split.degrees for split in plan.splits),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """What to search and when to stop."""

    max_workers: int
    capacity_bytes: float
    top: int = 10
    score: Score = STEP_TIME
    restriction: Restriction = field(default_factory=Restriction)
    worker_counts: tuple[int, ...] | None = None  # None: all up to max_workers
    micro_batches: tuple[int, ...] | None = None  # None: the divisors of the batch
    enumerate_uniform: bool = True  # evaluate the uniform plans first; the answer is the same without
    wall_s: float = 60.0
    gap: float = 0.0
    solver: Method = "auto"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Best plans with different keys, and what was proved about the rest."""

    candidates: list[Candidate]
    bound_score: float  # no plan of the space has a lower score (seconds, unless devices count)
    rest_bound: float  # no plan with another key than the candidates' has
    space_size: int
    searched: dict[str, int]
    nearest_miss: Candidate | None  # least memory over the capacity, when nothing fits
    interrupted: bool = False
    out_of_time: bool = False
    methods: tuple[str, ...] = ()


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
            if columns[i] == c and layer.kind != "input" and restriction.restricts(layer):
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
