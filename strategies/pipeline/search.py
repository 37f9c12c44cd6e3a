"""Pipelines over every worker count at one number of micro-batches: arrays from the cost tables in, judged plans out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodel.known_costs import KnownCosts
from costmodel.pipeline_cost import PipelineArrays, pipeline_arrays
from costmodel.plan import Plan, Stage
from costmodel.splits import Split, split_table
from costmodel.tables import CostTables
from strategies.per_layer.problem import Limits, Status
from strategies.pipeline.bounds import pipeline_lower_bound
from strategies.pipeline.front import FrontTable, build_front
from strategies.pipeline.problem import FloatArray, PartitionProblem, PipelinePlan
from strategies.pipeline.solve import FRONT_LEVELS, solve_pipeline

__all__ = ["PipelineOutcome", "search_pipelines"]

# The solver compares with the cutoff in its own order of summation.
_SLACK = 1 + 1e-9
# Transfers are tabulated by replicas in front, replicas behind and cut; beyond so many entries (64 MB each way) the pipelines are
# left open, with their bound.
_MOST_CUTS = 5_000_000


@dataclass(slots=True, kw_only=True)
class PipelineOutcome:
    """Bounds of all pipelines looked at, and how they were closed."""

    bound_s: float = float("inf")
    rest_bound_s: float = float("inf")
    searched: dict[str, int] = field(default_factory=dict)

    def count(self, how: str) -> None:
        """Count one (worker count, micro-batches) closed in this way."""
        self.searched[how] = self.searched.get(how, 0) + 1


def search_pipelines(
    known: KnownCosts,
    *,
    num_micro_batches: int,
    worker_counts: Sequence[int],
    capacity_bytes: float,
    cutoff_s: Callable[[], float],
    top: int,
    wall_s: float,
    found: Callable[[Sequence[Plan]], object],
) -> PipelineOutcome:
    """Search the pipelines of every worker count that could beat the cutoff.

    Parameters
    ----------
    known : KnownCosts
        Of the workload on the cluster.
    num_micro_batches : int
    worker_counts : sequence of int
        Each >= 2.
    capacity_bytes : float
    cutoff_s : callable
        Current cost to beat; asked again before every worker count.
    top : int
        How many different plans are wanted.
    wall_s : float
    found : callable
        Receives plans to judge.

    Returns
    -------
    PipelineOutcome
    """
    deadline = time.monotonic() + wall_s
    outcome = PipelineOutcome()
    if not worker_counts or num_micro_batches < 2:
        return outcome
    # A stage leaves a worker to another one, and has no more replicas than the largest micro-batch of the space has samples.
    most = min(max(worker_counts) - 1, known.workload.micro_batch(2))
    tables = known.tables(split_table(range(1, most + 1), batch_only=True), num_micro_batches)
    floors = _quick_bounds(tables, worker_counts)
    promising = [w for w, floor in zip(worker_counts, floors, strict=True) if floor <= cutoff_s() * _SLACK]
    if len(promising) < len(worker_counts):
        outcome.searched["bounded"] = len(worker_counts) - len(promising)
        outcome.bound_s = outcome.rest_bound_s = float(np.min(floors[floors > cutoff_s() * _SLACK]))
    if not promising:
        return outcome
    rows = min(most, tables.micro_batch, max(promising))
    if rows * rows * len(known.workload.graph.layers) > _MOST_CUTS or deadline <= time.monotonic():
        least = float(np.min(floors))
        outcome.searched["open"] = len(promising)
        outcome.bound_s, outcome.rest_bound_s = min(outcome.bound_s, least), min(outcome.rest_bound_s, least)
        return outcome
    arrays = pipeline_arrays(tables, rows)
    if list(worker_counts) == list(range(2, max(worker_counts) + 1)):
        # "At most W workers" is every smaller count in one problem.
        sizes, exact = [max(promising)], False
        outcome.searched["solved"] = len(promising) - 1
    else:
        sizes, exact = sorted(promising, reverse=True), True
    front: FrontTable | None = None
    for workers in sizes:
        problem = _problem(tables, arrays, workers, capacity_bytes, exact=exact)
        if deadline <= time.monotonic():
            bound = pipeline_lower_bound(problem)
            outcome.count("open")
            outcome.bound_s = min(outcome.bound_s, bound)
            outcome.rest_bound_s = min(outcome.rest_bound_s, bound)
            continue
        limits = Limits(wall_s=deadline - time.monotonic(), cutoff_s=cutoff_s() * _SLACK, num_solutions=top)
        if front is None and exact and pipeline_lower_bound(problem, enough_s=limits.cutoff_s) < limits.cutoff_s:
            # One table serves every smaller worker count and every lower cutoff.
            left_s = deadline - time.monotonic()
            front = build_front(
                problem, limits.cutoff_s, most_levels=FRONT_LEVELS, deadline=time.perf_counter() + left_s
            )
        solution = solve_pipeline(problem, limits, front=front)
        found([_plan(tables, plan) for plan in solution.plans])
        if solution.status is Status.INFEASIBLE:
            outcome.count("infeasible")
            continue
        outcome.count("solved" if solution.status in (Status.OPTIMAL, Status.CUT_OFF) else "open")
        outcome.bound_s = min(outcome.bound_s, solution.bound_s)
        outcome.rest_bound_s = min(outcome.rest_bound_s, solution.rest_bound_s)
    return outcome


def _chain(tables: CostTables) -> list[int]:
    """Layers that can start a stage: inputs belong to whoever reads them."""
    return [i for i, layer in enumerate(tables.workload.graph.layers) if layer.kind != "input"]


def _quick_bounds(tables: CostTables, worker_counts: Sequence[int]) -> FloatArray:
    """Bound the pipelines of every worker count from below, without transfers and exchanges.

    One micro-batch passes through every layer, and the slowest stage handles the other m - 1 meanwhile. With W workers that stage
    has ``t >= max(max_l t_l, (sum_l min_r r t_l(r)) / W)``, since ``sum_s r_s t_s >= sum_l min_r r t_l(r)`` and ``sum_s r_s = W``:

        step >= sum_l t_l + (m - 1) t,   t_l = min over r < W of t_l(r)

    Returns
    -------
    array, shape (worker counts,)
        Seconds.
    """
    m = tables.num_micro_batches
    replicas = np.array(tables.table.workers, dtype=np.float64)
    once, work, largest = (np.zeros(len(replicas)) for _ in range(3))
    for costs in tables.layers:
        time_s = np.where(costs.legal, costs.forward_s + costs.backward_input_s + costs.backward_weight_s, np.inf)
        fastest = np.minimum.accumulate(time_s)
        once += fastest
        largest = np.maximum(largest, fastest)
        work += np.minimum.accumulate(replicas * time_s)
    most = np.minimum(np.array(worker_counts), len(replicas) + 1) - 2  # row of the most replicas that a stage can have
    slowest = np.maximum(largest[most], work[most] / np.array(worker_counts, dtype=np.float64))
    return np.asarray((once[most] + (m - 1) * slowest) * (1 - 1e-12))


def _problem(
    tables: CostTables, arrays: PipelineArrays, workers: int, capacity_bytes: float, *, exact: bool
) -> PartitionProblem:
    chain = _chain(tables)
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
    workload, chain = tables.workload, _chain(tables)
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
