"""The K best different plans found so far, and plain data parallelism, the common baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.layerwise.evaluate import CHEAPEST, CostBatch, PlanBatch, batch_of, evaluate, evaluate_on
from costmodel.layerwise.plan import Plan, Split, divisors, factorisations, family_of_plan, plan_key, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.network.graph import Graph
from costmodel.tolerances import EQUAL
from strategies.layerwise.per_layer.search import Method
from strategies.layerwise.space import Restriction
from strategies.score import STEP_TIME, Outcome, Score, SearchLimits


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

    def __init__(self, cache: CostCache, settings: SearchSettings) -> None:
        self._cache, self._settings = cache, settings
        self._found: dict[tuple[object, ...], Candidate] = {}
        self._work: dict[tuple[object, ...], tuple[object, ...]] = {}  # of the plans found
        self.nearest_miss: Candidate | None = None
        self.pipeline: Candidate | None = None  # the best with stages

    def add(self, plans: Sequence[Plan], tables: CostTables | None = None) -> int:
        """Evaluate plans, keep those that fit the memory, the family and the list, and count those that are of the family.

        Plans without stages may bring the tables that they came from, which saves the cost model from building them again.
        """
        if not plans:
            return 0
        accepted, settings = 0, self._settings
        graph = self._cache.workload.graph
        costs = (
            evaluate(self._cache.workload, self._cache.cluster, plans, self._cache)
            if tables is None
            else evaluate_on(tables, batch_of(tables, plans))
        )
        scores = settings.score.of(costs.step_time_s, costs.computing_s, [plan.workers for plan in plans])
        for n, plan in enumerate(plans):
            step, memory = float(costs.step_time_s[n]), float(costs.memory_bytes[n])
            family = family_of_plan(graph, plan)
            if not np.isfinite(step) or settings.restriction.family not in (None, family):
                continue
            accepted += 1
            candidate = Candidate(
                plan=plan, step_time_s=step, score=float(scores[n]), memory_bytes=memory, family=family
            )
            if memory > settings.capacity_bytes:
                if self.nearest_miss is None or memory < self.nearest_miss.memory_bytes:
                    self.nearest_miss = candidate
                continue
            if plan.is_pipeline and (self.pipeline is None or _order(candidate) < _order(self.pipeline)):
                self.pipeline = candidate
            key = plan_key(graph, plan)
            if key not in self._found or _order(candidate) < _order(self._found[key]):
                self._found[key] = candidate
                self._work[key] = _work(graph, plan, costs, n)
        different: dict[tuple[object, ...], tuple[object, ...]] = {}
        for key in sorted(self._found, key=lambda key: _order(self._found[key])):
            different.setdefault(self._work[key], key)
        kept = list(different.values())[: settings.top]
        self._found = {key: self._found[key] for key in kept}
        self._work = {key: self._work[key] for key in kept}
        return accepted

    def best(self) -> list[Candidate]:
        """At most K candidates, best first; ties go to fewer workers."""
        return list(self._found.values())

    @property
    def cutoff(self) -> float:
        """What a further plan must beat: the score of the K-th plan, or a limit on scores."""
        ranked, most = self.best(), self._settings.cutoff
        return min(ranked[-1].score, most) if len(ranked) == self._settings.top else most

    @property
    def pipeline_cutoff(self) -> float:
        """What a further pipeline must beat: it may be the best one near the best plan, too."""
        ranked = self.best()
        near = ranked[0].score * (1.0 + self._settings.near) if ranked else float("inf")
        if self.pipeline is not None:
            near = min(near, self.pipeline.score)
        return max(self.cutoff, min(near, self._settings.cutoff))


def _work(graph: Graph, plan: Plan, costs: CostBatch, n: int) -> tuple[object, ...]:
    """Equal for plans in which every rank has equal kernels, messages and memory: blocks that are alike may change places."""
    if plan.is_pipeline:
        return plan_key(graph, plan)
    layers = ((graph.layers[i].signature, plan.splits[i].degrees, plan.collectives[i]) for i in graph.weighted)
    # Resharding has the messages that layers without weights take part in; digits that depend on the order of a sum are left out.
    sums = (costs.forward_s, costs.backward_s, costs.update_s, costs.reshard_s, costs.exchange_s, costs.memory_bytes)
    return (plan.workers, frozenset(Counter(layers).items()), *(f"{float(array[n]):.9e}" for array in sums))


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
class SearchSettings(SearchLimits):
    """What to search and when to stop."""

    top: int = 10
    restriction: Restriction = field(default_factory=Restriction)
    micro_batches: tuple[int, ...] | None = None  # None: the divisors of the batch
    solver: Method = "auto"
    near: float = 0.0  # the best pipeline is found, too, if it scores at most this share more than the best plan
    has_pipelines: bool = True


_WAYS_TO_CLOSE = ("solved", "bounded", "dominated", "infeasible", "open")


@dataclass(slots=True, kw_only=True)
class LayerwiseOutcome(Outcome[Candidate, Candidate]):
    """Best plans, each of other work than the rest of the list, and what was proved about all others."""

    searched: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_WAYS_TO_CLOSE, 0))
    rest_bound: float = float("inf")  # no plan of other work than the candidates' has a lower score
    pipeline: Candidate | None = None  # the best with stages that was found
    pipelines_bound: float = 0.0  # no other pipeline has a lower score
    methods: tuple[str, ...] = ()

    def bound(self, score: float, rest: float | None = None) -> None:
        """Take in what bounds the scores of some plans: of all of them, and of those that were not found."""
        self.bound_score = min(self.bound_score, score)
        self.rest_bound = min(self.rest_bound, score if rest is None else rest)

    def knows_pipelines(self, cutoff: float) -> bool:
        """Whether the best pipeline below a limit is known, or that there is none."""
        best = float("inf") if self.pipeline is None else self.pipeline.score
        return min(best, cutoff) * (1 - EQUAL) <= self.pipelines_bound

    def pipeline_within(self, cutoff: float) -> Candidate | None:
        """The best pipeline, if it scores at most a limit."""
        return self.pipeline if self.pipeline is not None and self.pipeline.score <= cutoff else None

    def close(self, how: str, bounds: FloatArray) -> None:
        """Record (worker count, micro-batches) that are done with, and what bounds their plans."""
        self.searched[how] += len(bounds)
        self.bound(float(np.min(bounds, initial=np.inf)))
        self.out_of_time |= how == "open" and len(bounds) > 0


# Worker counts are costed in blocks of about this many splits, so that memory stays flat however many GPUs there are.
_BLOCK_SPLITS = 24_000


def blocks(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Cut worker counts into blocks of bounded size, each when it is asked for: a search may stop long before the last."""
    current: list[int] = []
    size = 0
    for w in counts:
        current.append(w)
        size += len(factorisations(w, 4))
        if size >= _BLOCK_SPLITS:
            yield tuple(current)
            current, size = [], 0
    if current:
        yield tuple(current)


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
    cache: CostCache, max_workers: int, capacity_bytes: float, score: Score = STEP_TIME
) -> tuple[Plan | None, Plan | None]:
    """Plain data parallelism on exactly ``max_workers``, and on the number up to it with the best score.

    Micro-batches are as many as is fastest within the memory. More take no less time than one, nor than a number that divides
    the batch evenly over the workers; others are tried further: 6 samples on 2 workers take 2 x 2 in 2 micro-batches, 3 x 1 in 3.

    Returns
    -------
    on_all, best : Plan or None
        None where it does not fit, or the batch is smaller than the workers.
    """
    best = _data_parallel(cache, max_workers, capacity_bytes, score)
    on_all = data_parallel_plan(best[max_workers][1], max_workers) if max_workers in best else None
    if not best:
        return on_all, None
    first = min(best, key=lambda w: best[w][0])
    return on_all, data_parallel_plan(best[first][1], first)


def fewest_data_parallel(cache: CostCache, settings: SearchSettings, cutoff: float) -> Candidate | None:
    """Plain data parallelism on the fewest workers on which it scores at most a limit; None where it does on none."""
    every = _data_parallel(cache, settings.max_workers, settings.capacity_bytes, settings.score)
    workers = min((w for w, (value, _) in every.items() if value <= cutoff), default=None)
    if workers is None:
        return None
    pool, tables = Pool(cache, settings), every[workers][1]
    pool.add([data_parallel_plan(tables, workers)], tables)
    return next(iter(pool.best()), None)


def _data_parallel(
    cache: CostCache, max_workers: int, capacity_bytes: float, score: Score
) -> dict[int, tuple[float, CostTables]]:
    """Scores of plain data parallelism by the number of workers, where it fits, and tables of the micro-batches."""
    workload = cache.workload
    most = min(max_workers, workload.global_batch)
    open_counts = list(range(1, most + 1))
    best: dict[int, tuple[float, CostTables]] = {}
    for m in divisors(workload.global_batch):
        counts = [w for w in open_counts if w <= workload.micro_batch(m)]
        if not counts:
            break
        tables = cache.tables(split_table(counts, batch_only=True), m)
        rows = np.repeat(np.arange(len(counts))[:, None], len(workload.graph.layers), axis=1)
        costs = evaluate_on(tables, PlanBatch(row=rows, collective=np.full_like(rows, CHEAPEST)))
        scores = score.of(costs.step_time_s, costs.computing_s, counts)
        fits = (costs.memory_bytes <= capacity_bytes) & np.isfinite(costs.step_time_s)
        for k in np.flatnonzero(fits):
            value, w = float(scores[k]), counts[k]
            if w not in best or value < best[w][0]:
                best[w] = (value, tables)
        open_counts = [
            w for w, fit in zip(counts, fits, strict=True) if not fit or (m > 1 and workload.global_batch % (m * w))
        ]
    return best
