"""Pipelines over every worker count at one number of micro-batches, by passes over all labels with falling thresholds.

`strategies.layerwise.pipeline.sweep` has the states and bounds of one pass, which finds the plans of least lower bound; as many as it
takes to prove that no other costs less than those wanted. Its bounds are the stronger the lower the threshold is. Together with
a table of `strategies.layerwise.pipeline.completion`, a cutoff from other plans mostly leaves no label at all. Where it leaves too many, a
beam looks for better plans, and the search then guesses the best cost from below (`_Search.solve`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.layerwise.evaluate import PipelineArrays, pipeline_arrays
from costmodel.layerwise.plan import Plan, Stage
from costmodel.layerwise.splits import Split, SplitTable, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.network.graph import Graph
from costmodel.tolerances import EQUAL, ROUNDING
from costmodel.workload import Workload
from strategies.layerwise.per_layer.problem import Limits, Status
from strategies.layerwise.pipeline.completion import UpstreamTable, build_upstream
from strategies.layerwise.pipeline.problem import (
    SAFETY,
    PartitionProblem,
    PipelinePlan,
    PipelineSolution,
    distinct_replicas,
    in_units,
    pipeline_lower_bound,
    proves_none_below,
    without_dominated,
)
from strategies.layerwise.pipeline.sweep import Sweep
from strategies.limits import Clock
from strategies.score import STEP_TIME, Score

__all__ = [
    "UPSTREAM_LEVELS",
    "PipelineOutcome",
    "least_computing_s",
    "quick_bounds",
    "replica_table",
    "search_pipelines",
    "solve_pipeline",
]


_BEAM = 48  # labels per cut in the first pass, which only looks for good plans
_FIRST = 10_000  # pairs of label and stage after which the first pass gives up and asks for a better bound
_PROBE = 1_000_000  # pairs after which a pass gives up and asks for a better bound or a better plan first
_LONG = 20_000_000  # same, before the guesses begin
_STEP = 0.2  # how far the first guess of the cost lies above the bound; later ones rise faster
_GUESSES = 8
_MORE_COPIES = (
    8  # times as many for the next pass, where plans that were not evaluated may be better than those that were
)
_MOST_COPIES = 1 << 15
_STALE = 1e-3  # an upstream table for a threshold so little higher is as good as a new one
UPSTREAM_LEVELS = 64  # depths that the upstream table tells apart, memory permitting


class _Search(Sweep):
    """Passes of one call."""

    def run(self, beam: int | None = None, most_pairs: int | None = None) -> float | None:
        """Pass from the last cut to the first.

        Returns +inf when every label was looked at, a bound on what is left when a limit stopped it, None when it looked
        at more than `most_pairs` pairs of a label and a stage. As long as no plan is known, labels are kept for the best plan
        only: mostly there is none, and otherwise a second pass keeps them for all that are wanted. Passes with more and more copies of each
        label follow until no plan that was not evaluated can be wanted.
        """
        self.copies = self.limits.num_solutions if self.plans else 1
        while True:
            open_s = self.sweep(beam, most_pairs)
            unseen_s = self.unseen_s
            if open_s != float("inf") or beam is not None or unseen_s >= self.threshold_s * SAFETY:
                return open_s
            self.floor_s = max(self.floor_s, unseen_s * SAFETY)
            if self.copies >= _MOST_COPIES:
                return unseen_s
            self.copies = max(self.limits.num_solutions, _MORE_COPIES * self.copies)

    def solve(self) -> float:
        """Look at every label that may lead to a plan of interest.

        A low threshold makes for strong bounds; where it leaves no plan it has become a bound itself. So where the cutoff is too
        high to finish soon, the search goes on with rising guesses of what the best plans cost.

        Returns +inf, or a bound on what is left when a limit stopped the search.
        """
        open_s = self.run(most_pairs=_PROBE if self.upstream is not None else _FIRST)
        if open_s is not None:
            return open_s
        if np.isfinite(self.wanted_s):
            open_s = self.attempt(_LONG)
            if open_s is not None:
                return open_s
        elif self.run(beam=_BEAM) != float("inf"):  # any plan, should time run out
            return 0.0
        self.floor_s = max(self.floor_s, pipeline_lower_bound(self.problem))
        ratio = 1.0 + _STEP
        for guess in range(_GUESSES, -1, -1):
            self.guess_s = self.floor_s * ratio if guess and self.floor_s > 0 else float("inf")
            open_s = self.attempt()
            assert open_s is not None
            if open_s != float("inf"):
                return open_s
            self.floor_s = max(self.floor_s, self.threshold_s)
            if self.guess_s >= self.wanted_s:
                break
            ratio *= 1.0 + _STEP
        return float("inf")

    def attempt(self, most_pairs: int | None = None) -> float | None:
        """Look at every label below the current threshold, by a beam first if they are many; None past `most_pairs`."""
        while True:
            self.prepare()
            if not self.possible:
                return float("inf")
            threshold_s = self.threshold_s
            if not self.is_fresh:
                self.build()
                open_s = self.run(most_pairs=_PROBE)
                if open_s is not None:
                    return open_s
            if self.run(beam=_BEAM) != float("inf"):
                return 0.0
            if self.threshold_s >= threshold_s / (1 + _STALE):
                return self.run(most_pairs=most_pairs)

    @property
    def is_fresh(self) -> bool:
        """Whether the table of fronts is this problem's own and for this threshold, or one hardly higher."""
        if self.upstream is None or self.upstream.problem is not self.problem:
            return False
        return self.threshold_s <= self.upstream.threshold_s <= self.threshold_s * (1 + _STALE)

    def build(self) -> None:
        """A table of fronts for the plans below the threshold."""
        self.upstream = build_upstream(
            self.problem, self.threshold_s, most_levels=UPSTREAM_LEVELS, clock=self.clock, tables=self.tables
        )


def solve_pipeline(
    problem: PartitionProblem, limits: Limits | None = None, *, upstream: UpstreamTable | None = None
) -> PipelineSolution:
    """Best pipelines of at least two stages that use all workers, within memory and below the cutoff.

    Parameters
    ----------
    problem : PartitionProblem
    limits : Limits, optional
        `cutoff_s`: only plans below it are of interest. `num_solutions`: the K best different plans. `gap`: plans less than
        this share better than the K-th are not looked for.
    upstream : UpstreamTable, optional
        Of `build_upstream`, for this problem or one with the same layers and more workers, and no lower a cutoff: saves building
        one. Not looked at if it does not fit.

    Returns
    -------
    PipelineSolution
        OPTIMAL with plans; CUT_OFF: proved that no plan is below the cutoff; INFEASIBLE: no plan at all; FEASIBLE or LIMIT
        when time ran out with or without a plan. Optimal and bound hold up to 1e-11 relative (rounding).

    Examples
    --------
    >>> row, cut = np.ones((1, 4)), np.zeros((1, 1, 5))
    >>> p = PartitionProblem(num_layers=4, num_workers=2, num_micro_batches=4, replica_counts=np.array([1]),
    ...                      forward_s=row, backward_s=2 * row, cut_forward_s=cut, cut_backward_s=cut, update_s=0 * row,
    ...                      exchange_s=0 * row, static_bytes=row, activation_bytes=row)
    >>> solution = solve_pipeline(p)
    >>> solution.best, solution.objective_s, solution.status.value
    (PipelinePlan(cuts=(2,), replicas=(1, 1)), 30.0, 'optimal')
    """
    limits = limits or Limits()
    if upstream is not None and not upstream.serves(problem, limits.cutoff_s):
        upstream = None
    search = _Search(problem, limits, upstream)
    return _report(search, search.solve() if search.possible else float("inf"))


def _report(search: _Search, open_s: float) -> PipelineSolution:
    """Solution from the plans found and a bound on what was not looked at."""
    complete = open_s == float("inf")
    if not complete:
        open_s = max(min(open_s, search.threshold_s), search.floor_s, pipeline_lower_bound(search.problem))
    rest_s = min(open_s, search.wanted_s)
    best_s = search.plans[0][0] if search.plans else float("inf")
    if search.plans:
        status = Status.OPTIMAL if complete or rest_s >= search.wanted_s else Status.FEASIBLE
    elif not complete and rest_s < search.wanted_s:
        status = Status.LIMIT
    else:
        status = Status.CUT_OFF
        if proves_none_below(search.problem, search.tables, float("inf")):
            status, rest_s = Status.INFEASIBLE, float("inf")
        elif np.isinf(search.limits.cutoff_s):
            status = Status.INFEASIBLE
    return PipelineSolution(
        status=status,
        plans=tuple(plan for _, plan in search.plans),
        objectives_s=tuple(cost for cost, _ in search.plans),
        bound_s=min(best_s, rest_s),
        rest_bound_s=rest_s,
        wall_s=search.clock.elapsed_s,
        num_labels=search.num_labels,
    )


# The solver compares with the cutoff in its own order of summation.
# Transfers are tabulated by replicas before it, replicas after and cut; beyond so many entries (64 MB each way) the pipelines are
# left open, with their bound.
_MOST_CUTS = 5_000_000
# Workers are counted by one part in so many first, and then in so many.
_UNITS = (16, 64)
_ANY_PLAN = 0.99  # gap at which one plan is as good as the best
# Pipelines of one worker count that are looked at where the order of the steps is not that of the scores.
_MOST_SOLUTIONS = 1280


@dataclass(slots=True, kw_only=True)
class PipelineOutcome:
    """Bounds of the scores of all pipelines looked at, and how they were closed."""

    bound: float = float("inf")
    rest_bound: float = float("inf")
    searched: dict[str, int] = field(default_factory=dict)

    def bounded(self, bound: float, rest_bound: float | None = None) -> None:
        """Take in what is known of some pipelines: of all of them, and of those that were not found."""
        self.bound = min(self.bound, bound)
        self.rest_bound = min(self.rest_bound, bound if rest_bound is None else rest_bound)

    def count(self, how: str) -> None:
        """Count one (worker count, micro-batches) closed in this way."""
        self.searched[how] = self.searched.get(how, 0) + 1


def search_pipelines(
    cache: CostCache,
    *,
    num_micro_batches: int,
    worker_counts: Sequence[int],
    capacity_bytes: float,
    cutoff: Callable[[], float],
    top: int,
    wall_s: float,
    found: Callable[[Sequence[Plan]], object],
    score: Score = STEP_TIME,
    floor_s: float = 0.0,
) -> PipelineOutcome:
    """Search the pipelines of every worker count that could beat the cutoff.

    Parameters
    ----------
    cache : CostCache
        Of the workload on the cluster.
    num_micro_batches : int
    worker_counts : sequence of int
        Each >= 2.
    capacity_bytes : float
    cutoff : callable
        Current score to beat; asked again before every worker count.
    top : int
        How many different plans are wanted.
    wall_s : float
    found : callable
        Receives plans to evaluate.
    score : Score
        What is minimised.
    floor_s : float
        No step takes less: the bound where there is no time for tables.

    Returns
    -------
    PipelineOutcome
    """
    clock = Clock(limit_s=wall_s)
    outcome = PipelineOutcome()
    if not worker_counts or num_micro_batches < 2:
        return outcome
    # No more stages than micro-batches or layers, and no more replicas of a stage than its micro-batch has samples.
    limit = min(num_micro_batches, len(_chain(cache.workload.graph))) * cache.workload.micro_batch(num_micro_batches)
    possible = [w for w in worker_counts if w <= limit]
    if len(possible) < len(worker_counts):
        outcome.searched["infeasible"] = len(worker_counts) - len(possible)
        worker_counts = possible
    if not worker_counts:
        return outcome
    if not clock.left_s:
        outcome.searched["open"] = len(worker_counts)
        outcome.bounded(float(np.min(score.of(floor_s, 0.0, worker_counts))))
        return outcome
    table = replica_table(cache.workload, max(worker_counts))
    tables = cache.tables(table, num_micro_batches)
    least_s = least_computing_s(tables, worker_counts) if score.computing_weight else np.zeros(len(worker_counts))
    floors = score.of(quick_bounds(tables, worker_counts), least_s, worker_counts)
    hopeful = floors <= cutoff() * (1 + EQUAL)
    promising = [w for w, keep in zip(worker_counts, hopeful, strict=True) if keep]
    if len(promising) < len(worker_counts):
        outcome.searched["bounded"] = len(worker_counts) - len(promising)
        outcome.bounded(float(np.min(floors[~hopeful])))
    if not promising:
        return outcome
    exact = score.per_device or list(worker_counts) != list(range(2, max(worker_counts) + 1))
    replicas = list(range(1, min(len(table.workers), tables.micro_batch, max(promising)) + 1))
    tensors_bytes = capacity_bytes - cache.workload.context_bytes
    kept = replicas if exact else distinct_replicas(tables, replicas, max(promising), tensors_bytes)
    if _has_too_many_cuts(tables, kept) or not clock.left_s:
        outcome.searched["open"] = len(promising)
        outcome.bounded(float(np.min(floors)))
        return outcome
    if exact:
        sizes = sorted(promising, reverse=not score.per_device)
    else:
        # "At most W workers" is every smaller count in one problem.
        sizes = [max(promising)]
        outcome.searched["solved"] = len(promising) - 1
    computing_s = dict(zip(worker_counts, least_s.tolist(), strict=True))
    arrays = pipeline_arrays(tables, kept)
    one = _WorkerCounts(
        tables, arrays, replicas, outcome, cutoff, found, score, top, clock, capacity_bytes, exact=exact
    )
    for n, workers in enumerate(sizes):
        if exact and n and not clock.left_s:
            outcome.searched["open"] = outcome.searched.get("open", 0) + len(sizes) - n
            outcome.bounded(float(np.min(floors[hopeful])))
            break
        one.search(workers, computing_s[workers])
    return outcome


@dataclass(slots=True)
class _WorkerCounts:
    """The search of one worker count after the other, at one number of micro-batches."""

    tables: CostTables
    arrays: PipelineArrays  # of all replicas, or of those that no others dominate
    replicas: Sequence[int]
    outcome: PipelineOutcome
    cutoff: Callable[[], float]
    found: Callable[[Sequence[Plan]], object]
    score: Score
    top: int
    clock: Clock
    capacity_bytes: float
    exact: bool
    upstream: UpstreamTable | None = None
    least_s: float = 0.0  # that any plan takes, as far as smaller problems say

    def search(self, workers: int, computing_s: float) -> None:
        """Find what beats the cutoff, and record what is proved of the rest.

        Where the time that devices compute counts, the solver's order is not that of the scores: more plans are asked for until the steps
        of the others are too long, whatever they compute.

        Parameters
        ----------
        workers : int
        computing_s : float
            That devices compute at least, of every plan.
        """
        problem = _problem(self.tables, self.arrays, workers, self.capacity_bytes, exact=self.exact)
        if self._is_settled(problem, workers):
            return
        if len(self.arrays.replicas) < len(self.replicas):
            if _has_too_many_cuts(self.tables, self.replicas):
                # What the numbers of replicas that are kept cost at least, all do.
                self.outcome.count("open")
                self.outcome.bounded(
                    self._score(max(self.least_s, pipeline_lower_bound(problem)), computing_s, workers)
                )
                return
            self.arrays = pipeline_arrays(self.tables, self.replicas)
            problem = _problem(self.tables, self.arrays, workers, self.capacity_bytes, exact=self.exact)
        if not self.clock.left_s:
            self.outcome.count("open")
            self.outcome.bounded(self._score(pipeline_lower_bound(problem), computing_s, workers))
            return
        wanted = self.top
        while True:
            goal_s = max(self.score.step_s(self.cutoff() * (1 + EQUAL), computing_s, workers), 0.0)
            limits = Limits(wall_s=self.clock.left_s, cutoff_s=goal_s, num_solutions=wanted)
            solution = solve_pipeline(problem, limits, upstream=self._upstream(problem, goal_s))
            self.found([_plan(self.tables, plan) for plan in solution.plans])
            if solution.status is Status.INFEASIBLE:
                self.outcome.count("infeasible")
                return
            rest = self._score(solution.rest_bound_s, computing_s, workers)
            is_whole = not self.score.computing_weight or len(solution.plans) < wanted or rest >= self.cutoff()
            if is_whole or solution.status is not Status.OPTIMAL or wanted >= _MOST_SOLUTIONS:
                break
            wanted *= 4
        settled = solution.status in (Status.OPTIMAL, Status.CUT_OFF) and is_whole
        self.outcome.count("solved" if settled else "open")
        # Plans that were found count by themselves; with the least computing they only would be a weaker bound.
        bound = rest if self.score.computing_weight else self._score(solution.bound_s, computing_s, workers)
        self.outcome.bounded(bound, rest)

    def _is_settled(self, problem: PartitionProblem, workers: int) -> bool:
        """Whether smaller problems prove that no plan beats the cutoff: relaxed ones, then that without dominated replica counts.

        The plans of the latter are plans of the problem; they lower the cutoff for the others.
        """
        goal_s = self.score.step_s(self.cutoff() * (1 + EQUAL), 0.0, workers)
        if self.exact:
            return False
        for parts in _UNITS if np.isfinite(goal_s) else ():
            unit = workers // parts
            if unit > 1 and self._is_proven(in_units(problem, unit), Limits(cutoff_s=goal_s, gap=_ANY_PLAN), workers):
                return True
        lean = without_dominated(problem)
        if lean is problem and len(self.arrays.replicas) == len(self.replicas):
            return False
        return self._is_proven(lean, Limits(cutoff_s=goal_s, num_solutions=self.top), workers, are_plans=True)

    def _is_proven(self, problem: PartitionProblem, limits: Limits, workers: int, *, are_plans: bool = False) -> bool:
        """Whether a smaller problem has no plan below the cutoff; what it proves in any case is kept."""
        solution = solve_pipeline(problem, dataclasses.replace(limits, wall_s=self.clock.left_s))
        self.least_s = max(self.least_s, solution.bound_s)
        if are_plans:
            self.found([_plan(self.tables, plan) for plan in solution.plans])
        if solution.status is Status.INFEASIBLE:
            self.outcome.count("infeasible")
        elif solution.status is Status.CUT_OFF:
            self.outcome.count("solved")
            self.outcome.bounded(self._score(solution.bound_s, 0.0, workers))
        else:
            return False
        return True

    def _score(self, step_s: float, computing_s: float, workers: int) -> float:
        return float(self.score.of(step_s, computing_s, workers))

    def _upstream(self, problem: PartitionProblem, goal_s: float) -> UpstreamTable | None:
        """A table that serves every smaller worker count and every lower cutoff; cutoffs of devices' seconds rise as workers get fewer."""
        is_wanted = self.upstream is None and self.exact and not self.score.per_device
        if is_wanted and pipeline_lower_bound(problem, enough_s=goal_s) < goal_s:
            self.upstream = build_upstream(problem, goal_s, most_levels=UPSTREAM_LEVELS, clock=self.clock)
        return self.upstream


def replica_table(workload: Workload, max_workers: int) -> SplitTable:
    """Numbers of replicas that a stage can have: it leaves a worker to another one, and the largest micro-batch has so many samples."""
    most = min(max_workers - 1, workload.micro_batch(2))
    return split_table(range(1, most + 1), batch_only=True)


def _has_too_many_cuts(tables: CostTables, replicas: Sequence[int]) -> bool:
    return len(replicas) ** 2 * len(tables.workload.graph.layers) > _MOST_CUTS


def _chain(graph: Graph) -> list[int]:
    """Layers that can start a stage: inputs belong to whoever reads them."""
    return [i for i, layer in enumerate(graph.layers) if layer.kind != "input"]


def quick_bounds(tables: CostTables, worker_counts: Sequence[int]) -> FloatArray:
    """Bound the pipelines of every worker count from below, without transfers and exchanges.

    A stage handles m micro-batches, the first of which passed the layers before it: bound (2) of `strategies.layerwise.pipeline.problem`. A
    stage slows down for all of its layers, and the slowest of W workers has at least their mean, since
    ``sum_s r_s t_s >= sum_l min_r r t_l(r)`` and ``sum_s r_s = W``:

        step >= max_l [ sum_{i<=l} t_i + (m - 1) t_l ],   t_l = min over r < W of t_l(r)
        step >= m (sum_l min_r r t_l(r)) / W

    (The familiar ``sum t + (m - 1) max t`` is no bound: a slow first stage works while the later ones do.)

    Returns
    -------
    array, shape (worker counts,)
        Seconds.
    """
    m = tables.num_micro_batches
    replicas = np.array(tables.table.workers, dtype=np.float64)
    before, work, path = (np.zeros(len(replicas)) for _ in range(3))
    for costs in tables.layers:
        time_s = np.where(costs.legal, costs.forward_s + costs.backward_input_s + costs.backward_weight_s, np.inf)
        fastest = np.minimum.accumulate(time_s)
        before += fastest
        path = np.maximum(path, before + (m - 1) * fastest)
        work += np.minimum.accumulate(replicas * time_s)
    most = np.minimum(np.array(worker_counts), len(replicas) + 1) - 2  # row of the most replicas that a stage can have
    mean = work[most] / np.array(worker_counts, dtype=np.float64)
    return np.asarray(np.maximum(path[most], m * mean) * (1 - ROUNDING))


def least_computing_s(tables: CostTables, worker_counts: Sequence[int]) -> FloatArray:
    """Bound from below the time that devices compute in a step, averaged over them: (worker counts,).

    With r replicas a layer keeps r devices busy for ``m t(r) + update(r)``, whatever stage it is in.
    """
    m = tables.num_micro_batches
    replicas = np.array(tables.table.workers, dtype=np.float64)
    work = np.zeros(len(replicas))
    for costs in tables.layers:
        time_s = m * (costs.forward_s + costs.backward_input_s + costs.backward_weight_s) + costs.update_s
        work += np.minimum.accumulate(np.where(costs.legal, replicas * time_s, np.inf))
    most = np.minimum(np.array(worker_counts), len(replicas) + 1) - 2
    return np.asarray(work[most] / np.array(worker_counts, dtype=np.float64) * (1 - ROUNDING))


def _problem(
    tables: CostTables, arrays: PipelineArrays, workers: int, capacity_bytes: float, *, exact: bool
) -> PartitionProblem:
    chain = _chain(tables.workload.graph)
    # A stage leaves at least one worker to another, and has no more replicas than a micro-batch has samples.
    keep = int(np.searchsorted(arrays.replicas, min(workers, tables.micro_batch + 1)))
    edges = [*chain, len(tables.workload.graph.layers)]

    def layers(array: FloatArray) -> FloatArray:
        # An input lies with the layers before it, or with the first stage: what it keeps in memory counts there.
        return np.add.reduceat(array[:keep], [0, *chain[1:]], axis=1)

    def cuts(array: FloatArray) -> FloatArray:
        cut = array[:keep, :keep][:, :, edges].copy()
        cut[:, :, 0] = 0.0
        return cut

    return PartitionProblem(
        num_layers=len(chain),
        num_workers=workers,
        num_micro_batches=tables.num_micro_batches,
        replica_counts=arrays.replicas[:keep],
        forward_s=layers(arrays.forward_s),
        backward_s=layers(arrays.backward_s),
        cut_forward_s=cuts(arrays.cut_forward_s),
        cut_backward_s=cuts(arrays.cut_backward_s),
        update_s=layers(arrays.update_s),
        exchange_s=layers(arrays.exchange_s),
        static_bytes=layers(arrays.static_bytes),
        activation_bytes=layers(arrays.activation_bytes),
        memory_capacity_bytes=capacity_bytes - tables.workload.context_bytes,
        uses_all_workers=exact,
    )


def _plan(tables: CostTables, found: PipelinePlan) -> Plan:
    workload, chain = tables.workload, _chain(tables.workload.graph)
    starts = [0, *(chain[cut] for cut in found.cuts), len(workload.graph.layers)]
    stages = tuple(
        Stage(first=first, last=after - 1, replicas=int(r))
        for first, after, r in zip(starts[:-1], starts[1:], found.replicas, strict=True)
    )
    splits: list[Split] = []
    collectives: list[str | None] = []
    for stage in stages:
        row = tables.table.row_of(Split(batch=stage.replicas))
        for i in range(stage.first, stage.last + 1):
            splits.append(Split(batch=stage.replicas))
            collectives.append(tables.collective_at(i, row))
    return Plan(
        workers=sum(stage.replicas for stage in stages),
        num_micro_batches=tables.num_micro_batches,
        splits=tuple(splits),
        collectives=tuple(collectives),
        stages=stages,
    )
