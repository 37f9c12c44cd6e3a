"""Pipelines over every worker count at one number of micro-batches, by passes over all labels with falling thresholds.

`strategies.layerwise.pipeline.sweep` has the states and bounds of one pass, which finds the plans of least lower bound; as many as it
takes to prove that no other costs less than those wanted. Its bounds are the stronger the lower the threshold is. Together with
a table of `strategies.layerwise.pipeline.completion`, a cutoff from other plans mostly leaves no label at all. Where it leaves too many, a
beam looks for better plans, and the search then guesses the best cost from below (`_Search.solve`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.layerwise.evaluate import PipelineArrays, farther_takes_longer, pipeline_arrays, stage_arrays
from costmodel.layerwise.plan import Plan, Split, SplitTable, Stage, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.network.graph import Graph
from costmodel.tolerances import EQUAL, ROUNDING
from costmodel.workload import Workload
from strategies.layerwise.candidates import LayerwiseOutcome, Pool, SearchSettings
from strategies.layerwise.per_layer.problem import Limits, Solution, Status
from strategies.layerwise.pipeline.completion import build_upstream
from strategies.layerwise.pipeline.problem import (
    SAFETY,
    PartitionProblem,
    PipelinePlan,
    pipeline_lower_bound,
    proves_none_below,
)
from strategies.layerwise.pipeline.sweep import Sweep
from strategies.limits import Clock

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
            # No plan below the threshold that a whole pass did not evaluate costs less.
            unseen_s = self.least_s[-1] if len(self.least_s) == self.copies else float("inf")
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
        open_s = self.run(most_pairs=_FIRST)
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
            table = self.upstream
            # A table for a threshold that is hardly higher is as good as a new one.
            if table is None or not threshold_s <= table.threshold_s <= threshold_s * (1 + _STALE):
                self.upstream = build_upstream(
                    self.problem, threshold_s, most_levels=UPSTREAM_LEVELS, clock=self.clock, tables=self.tables
                )
                open_s = self.run(most_pairs=_PROBE)
                if open_s is not None:
                    return open_s
            if self.run(beam=_BEAM) != float("inf"):
                return 0.0
            if self.threshold_s >= threshold_s / (1 + _STALE):
                return self.run(most_pairs=most_pairs)


def solve_pipeline(problem: PartitionProblem, limits: Limits | None = None) -> Solution[PipelinePlan]:
    """Best pipelines of at least two stages that use all workers, within memory and below the cutoff.

    Parameters
    ----------
    problem : PartitionProblem
    limits : Limits, optional
        `cutoff_s`: only plans below it are of interest. `num_solutions`: the K best different plans. `gap`: plans less than
        this share better than the K-th are not looked for.

    Returns
    -------
    Solution
        OPTIMAL with plans; CUT_OFF: proved that no plan is below the cutoff; INFEASIBLE: no plan at all; FEASIBLE or LIMIT
        when time ran out with or without a plan. Optimal and bound hold up to 1e-11 relative (rounding).

    Examples
    --------
    >>> row, cut = np.ones((1, 4)), np.zeros((1, 1, 5))
    >>> p = PartitionProblem(num_layers=4, num_workers=2, num_micro_batches=4, replica_counts=np.array([1]),
    ...                      forward_s=row, backward_s=2 * row, cut_forward_s=cut, cut_backward_s=cut, update_s=0 * row,
    ...                      exchange_s=0 * row, static_bytes=row, activation_bytes=row)
    >>> solution = solve_pipeline(p)
    >>> solution.choices[0], solution.objective_s, solution.status.value
    (PipelinePlan(cuts=(2,), replicas=(1, 1)), 30.0, 'optimal')
    """
    search = _Search(problem, limits or Limits())
    return _report(search, search.solve() if search.possible else float("inf"))


def _report(search: _Search, open_s: float) -> Solution[PipelinePlan]:
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
    return Solution(
        status=status,
        choices=tuple(plan for _, plan in search.plans),
        objectives_s=tuple(cost for cost, _ in search.plans),
        bound_s=min(best_s, rest_s),
        rest_bound_s=rest_s,
    )


# Transfers are tabulated by replicas before it, replicas after and cut; beyond so many entries (64 MB each way) the pipelines are
# left open, with their bound.
_MOST_CUTS = 5_000_000
# Pipelines of one worker count that are looked at where the order of the steps is not that of the scores.
_MOST_SOLUTIONS = 1280


class PipelineSearch:
    """The pipelines of every worker count that could beat the plans found so far, one number of micro-batches after the other.

    Parameters
    ----------
    cache : CostCache
        Of the workload on the cluster.
    settings : SearchSettings
    pool : Pool
        Receives the plans that are found, and says what is to be beaten.
    outcome : LayerwiseOutcome
        Receives what is proved.
    clock : Clock
    worker_counts : sequence of int
        Ascending, each >= 2.
    floor_scores : array, shape (worker counts,)
        No pipeline on so many workers scores less.
    """

    def __init__(
        self,
        cache: CostCache,
        settings: SearchSettings,
        pool: Pool,
        outcome: LayerwiseOutcome,
        clock: Clock,
        worker_counts: Sequence[int],
        floor_scores: FloatArray,
    ) -> None:
        self.cache, self.settings, self.pool, self.outcome, self.clock = cache, settings, pool, outcome, clock
        self.worker_counts, self.floor_scores = np.array(worker_counts), floor_scores

    def search(self, num_micro_batches: int) -> None:
        """Search at one number of micro-batches, 2 or more."""
        cache, score, outcome = self.cache, self.settings.score, self.outcome
        # No more stages than micro-batches or layers, and no more replicas of a stage than its micro-batch has samples.
        stages = min(num_micro_batches, len(_chain(cache.workload.graph)))
        possible = self.worker_counts <= stages * cache.workload.micro_batch(num_micro_batches)
        counts, floors = self.worker_counts[possible], self.floor_scores[possible]
        outcome.searched["infeasible"] += int(np.sum(~possible))
        if not len(counts) or not self.clock.left_s:
            outcome.close("open", floors)
            return
        tables = cache.tables(replica_table(cache.workload, int(self.worker_counts[-1])), num_micro_batches)
        least_s = least_computing_s(tables, counts) if score.computing_weight else np.zeros(len(counts))
        floors = np.maximum(floors, score.of(quick_bounds(tables, counts), least_s, counts))
        hopeful = floors <= self.pool.pipeline_cutoff * (1 + EQUAL)
        outcome.close("bounded", floors[~hopeful])
        counts, floors, least_s = counts[hopeful], floors[hopeful], least_s[hopeful]
        if not len(counts):
            return
        if not score.per_device and np.array_equal(self.worker_counts, np.arange(2, len(self.worker_counts) + 2)):
            outcome.searched["solved"] += len(counts) - 1
            self._all_in_one(tables, int(counts[-1]), float(np.min(floors)))
        else:
            self._one_by_one(tables, counts, floors, least_s)

    def _replicas(self, tables: CostTables, workers: int) -> list[int]:
        return list(range(1, min(len(tables.table.workers), tables.micro_batch, workers) + 1))

    def _all_in_one(self, tables: CostTables, workers: int, floor_score: float) -> None:
        """Search "at most W workers", which is every smaller count in one problem.

        First without numbers of replicas that others dominate, which mostly proves that no pipeline is of interest. Its plans lower the
        cutoff otherwise.
        """
        replicas, capacity_bytes = self._replicas(tables, workers), self.settings.capacity_bytes
        together = _OneProblem(self, tables, floor_score, 0.0)
        tensors_bytes = capacity_bytes - self.cache.workload.context_bytes
        for some in (distinct_replicas(tables, replicas, workers, tensors_bytes), replicas):
            if self._has_no_room(len(some)):
                self.outcome.close("open", np.array([floor_score]))
                return
            arrays = pipeline_arrays(tables, some)
            problem = pipeline_problem(tables, arrays, workers, capacity_bytes, exact=False)
            if together.search(problem, has_all=len(some) == len(replicas)):
                return

    def _one_by_one(self, tables: CostTables, counts: IntArray, floors: FloatArray, least_s: FloatArray) -> None:
        """Search one worker count after the other."""
        replicas = self._replicas(tables, int(counts[-1]))
        if self._has_no_room(len(replicas)):
            self.outcome.close("open", floors)
            return
        arrays = pipeline_arrays(tables, replicas)
        for k in range(len(counts)):
            if not self.clock.left_s:
                self.outcome.close("open", floors[k:])
                return
            problem = pipeline_problem(tables, arrays, int(counts[k]), self.settings.capacity_bytes, exact=True)
            _OneProblem(self, tables, float(floors[k]), float(least_s[k])).search(problem)

    def _has_no_room(self, replicas: int) -> bool:
        return not self.clock.left_s or replicas**2 * len(self.cache.workload.graph.layers) > _MOST_CUTS


@dataclass(frozen=True, slots=True)
class _OneProblem:
    """The search of one worker count, or of all up to one."""

    of: PipelineSearch
    tables: CostTables
    floor_score: float
    computing_s: float  # that devices compute at least, of every plan

    def goal_s(self, workers: int) -> float:
        """Steps that take longer are of no interest."""
        cutoff = self.of.pool.pipeline_cutoff * (1 + EQUAL)  # the solver adds up in an order of its own
        return max(self.of.settings.score.step_s(cutoff, self.computing_s, workers), 0.0)

    def search(self, problem: PartitionProblem, *, has_all: bool = True) -> bool:
        """Find what beats the cutoff, and record what is proved of the rest; False where dominated plans may still be wanted.

        Where the time that devices compute counts, the solver's order is not that of the scores: more plans are asked for until the steps
        of the others are too long, whatever they compute.
        """
        score, pool, outcome = self.of.settings.score, self.of.pool, self.of.outcome
        workers, wanted = problem.num_workers, self.of.settings.top
        while True:
            limits = Limits(wall_s=self.of.clock.left_s, cutoff_s=self.goal_s(workers), num_solutions=wanted)
            solution = solve_pipeline(problem, limits)
            pool.add([_plan(self.tables, plan) for plan in solution.choices])
            if solution.status is Status.INFEASIBLE:
                outcome.searched["infeasible"] += 1
                return True
            if not has_all and solution.status is not Status.CUT_OFF:
                return False
            rest = max(self.floor_score, float(score.of(solution.rest_bound_s, self.computing_s, workers)))
            is_enough = not score.computing_weight or len(solution.choices) < wanted or rest >= pool.pipeline_cutoff
            if is_enough or solution.status is not Status.OPTIMAL or wanted >= _MOST_SOLUTIONS:
                break
            wanted *= 4
        settled = solution.status in (Status.OPTIMAL, Status.CUT_OFF) and is_enough
        outcome.searched["solved" if settled else "open"] += 1
        outcome.out_of_time |= not settled
        # Plans that were found count by themselves; with the least computing they only would be a weaker bound.
        bound = float(score.of(solution.bound_s, self.computing_s, workers))
        outcome.bound(rest if score.computing_weight else max(self.floor_score, bound), rest)
        return True


def replica_table(workload: Workload, max_workers: int) -> SplitTable:
    """Numbers of replicas that a stage can have: it leaves a worker to another one, and the largest micro-batch has so many samples."""
    most = min(max_workers - 1, workload.micro_batch(2))
    return split_table(range(1, most + 1), batch_only=True)


def distinct_replicas(
    tables: CostTables, replicas: Sequence[int], num_workers: int, capacity_bytes: float
) -> list[int]:
    """Numbers of replicas that are left if, of those with equal shares of a micro-batch, dominated ones go.

    Samples are dealt out whole, so with 128 samples in a micro-batch a stage on 65 replicas takes as long as one on 64, and exchanges its
    gradients over more of them. A number is dominated by a smaller one if no time and no bytes of any layer are larger with that. (Bytes do
    not matter where all layers in one stage fit with it.) A transfer takes the share of the side with fewer replicas, over as many ranks as
    the other side has: of two numbers with equal shares the smaller one has no longer transfers, wherever messages take no less time over
    more ranks. Then every stage on the larger number of any plan can have the smaller one instead: the objective is the longest path
    through a schedule, so it does not grow, and the stages fit.

    This proves that no plan is below a cutoff if none without dominated numbers is. The best plans, and all of the K best, may still have
    such numbers, where they cost the same or hardly more.

    Parameters
    ----------
    tables : CostTables
        Of pure batch splits.
    replicas : sequence of int
        Ascending.
    num_workers : int
    capacity_bytes : float
        For tensors.

    Returns
    -------
    list of int
    """
    if not farther_takes_longer(tables.cluster, max(replicas)):
        return list(replicas)
    share, arrays = np.ceil(tables.micro_batch / np.array(replicas)), stage_arrays(tables, replicas)
    in_flight = min(tables.num_micro_batches, num_workers)
    needed = arrays["static_bytes"].sum(axis=1) + in_flight * arrays["activation_bytes"].sum(axis=1)
    times, sizes = (
        np.concatenate([arrays[name] for name in names], axis=1)
        for names in (("forward_s", "backward_s", "update_s", "exchange_s"), ("static_bytes", "activation_bytes"))
    )
    left = []
    for k, r in enumerate(replicas):
        no_slower = (times[:k] <= times[k]).all(axis=1)
        no_larger = (needed[:k] <= capacity_bytes) | (sizes[:k] <= sizes[k]).all(axis=1)
        if not np.any(no_slower & no_larger & (share[:k] == share[k])):
            left.append(r)
    return left


def _chain(graph: Graph) -> list[int]:
    """Layers that can start a stage: inputs belong to whoever reads them."""
    return [i for i, layer in enumerate(graph.layers) if layer.kind != "input"]


def quick_bounds(tables: CostTables, worker_counts: Sequence[int] | IntArray) -> FloatArray:
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


def least_computing_s(tables: CostTables, worker_counts: Sequence[int] | IntArray) -> FloatArray:
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


def pipeline_problem(
    tables: CostTables, arrays: PipelineArrays, workers: int, capacity_bytes: float, *, exact: bool
) -> PartitionProblem:
    """Stages on up to so many workers, or on exactly so many."""
    chain = _chain(tables.workload.graph)
    # A stage leaves at least one worker to another, and has no more replicas than a micro-batch has samples.
    keep = int(np.searchsorted(arrays.replica_counts, min(workers, tables.micro_batch + 1)))
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
        replica_counts=arrays.replica_counts[:keep],
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
