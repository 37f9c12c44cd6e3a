"""Pipeline stages as plain arrays: what the solver receives and returns, the objective, and bounds.

A plan cuts a chain of L layers (topological order) into 2 <= S <= m contiguous stages; stage s runs on ``r_s`` replicas
(data parallel inside the stage) and the replicas add up to W. With fewer micro-batches m than stages a pipeline never fills, so
such plans are not part of the space. Stage s spends, per micro-batch,

    F_s = sum of forward_s over its layers  + cut_forward_s[r_{s-1}, r_s] of the cut before it
    B_s = sum of backward_s over its layers + cut_backward_s[r_s, r_{s+1}] of the cut after it
    t_s = F_s + B_s

The receiver of activations pays for their transfer in its forward time, the receiver of gradients (the earlier stage) in
its backward time; both block the stage that pays.

**Schedule.** 1F1B with a flush (PipeDream-Flush: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training",
ICML 2021, section 2.2; Megatron-LM, SC21, section 2.2): stage s runs ``S-1-s`` forwards, then one forward and one
backward in turn, then the remaining backwards. It holds at most ``min(m, S-s)`` micro-batches at a time.

**Step.** Stage s exchanges and updates after its last backward pass, for ``X_s = sum exchange_s + update_s``. With the last backward pass
of stage s at ``E_s``, the longest path through the schedule in closed form (`costmodel.layerwise.evaluate.last_backward_s`, exact),

    T = max_s [ E_s + X_s ]

``sum_s t_s + (m-1) max_s t_s``, the usual formula, is another thing: no bound in general, and too high whenever an early stage is the
slowest (its idle time between forwards and backwards is counted although it works then).

**Bounds.** The search builds plans from the last stage to the first, and E_s depends on all stages at once, so it works with lengths of
some paths, which never exceed T. The bounds of this package follow one: reach stage s with the first micro-batch, stay there for all m,
and come back with the last one; while there, follow the first and the last micro-batch down to the last stage and back where that takes
longer. With

    D_s = sum_{j>s} t_j,    w = S-1-s,    G_s(x) = max(0, D_s - w x)

    T >= max_s [ sum_{j<s} t_j + m t_s + g_s ] + X_0
    g_s = G_s(F_s) + G_s(B_s)                                 if m >= w + 2
    g_s = max(0, D_s - (m-1) min(F_s, B_s))                   otherwise

For stages of equal F and equal B this is exact. `strategies.layerwise.pipeline.sweep` follows more of them, and the cost model has the last
word.

Bounds from prefix sums
-----------------------
Cheap proofs that no pipeline beats a cutoff: with ``T`` the objective, every stage s of every plan satisfies

    T >= m t_s + X_s + sum_{j<s} F_j                (1)
    T >= m t_s + sum_{j<s} t_j + X_0                (2)

because the last backward pass of stage s ends ``sum_{j<s} F_j + m t_s`` after the start at the earliest, and that of the first stage
``sum_{j<s} t_j + m t_s``. Both are sums over the layers of the stage plus a sum over the layers before it. So for a threshold C the
longest stage that ends before layer i with given replicas starts at one position ``first_start[k, i]``, and the fewest workers that the
layers before i need are

    N[0] = 0,   N[i] = min_k N[first_start[k, i]] + r_k

(N does not decrease with i: cutting layers off the end of a partition leaves a partition). ``N[L] > W`` proves ``T >= C``
for every plan. Transfers are left out and memory counts the fewest micro-batches in flight, so the proof is valid.
Comparisons shrink the left side by 1e-11 relative, more than prefix sums can be off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.layerwise.evaluate import PipelineArrays, last_backward_s
from costmodel.tolerances import LONG_SUM_ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProblem(PipelineArrays):
    """Cut a chain of layers into pipeline stages, for one number of workers and one number of micro-batches.

    Row k of an array stands for ``replica_counts[k]`` replicas of the stage that a layer is in. Entries are >= 0; a
    time of +inf marks a layer that cannot run, or a cut that cannot be crossed, with these replica counts. ``cut_forward_s`` has
    activations over the cut before layer i, ``cut_backward_s`` gradients over the same cut from the later stage to the earlier one.
    """

    num_layers: int
    num_workers: int
    num_micro_batches: int
    memory_capacity_bytes: float = float("inf")
    uses_all_workers: bool = (
        True  # the replicas add up to W; otherwise to at most W, which is every smaller problem in one
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """Where the chain is cut and how many replicas each stage has."""

    cuts: tuple[int, ...]  # first layer of every stage but the first; increasing, within 1..L-1
    replicas: tuple[int, ...]  # per stage, one more than cuts


def _rows(problem: PartitionProblem, plan: PipelinePlan) -> list[tuple[int, int, int]]:
    """Row, first layer and end of every stage."""
    bounds, counts = (0, *plan.cuts, problem.num_layers), problem.replica_counts.tolist()
    return [(counts.index(r), a, b) for r, a, b in zip(plan.replicas, bounds[:-1], bounds[1:], strict=True)]


def stage_times_s(problem: PartitionProblem, plan: PipelinePlan) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Forward and backward time per micro-batch of every stage, transfers included, and its exchange plus update.

    Parameters
    ----------
    problem : PartitionProblem
    plan : PipelinePlan

    Returns
    -------
    tuple of array of float, shape (stages,)
        Seconds: F, B and X as the module defines them.
    """
    rows = _rows(problem, plan)
    forward_s, backward_s, after_s = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
    for s, (k, first, end) in enumerate(rows):
        forward_s[s] = np.sum(problem.forward_s[k, first:end])
        backward_s[s] = np.sum(problem.backward_s[k, first:end])
        after_s[s] = np.sum(problem.exchange_s[k, first:end]) + np.sum(problem.update_s[k, first:end])
        if s > 0:
            forward_s[s] += problem.cut_forward_s[rows[s - 1][0], k, first]
        if s + 1 < len(rows):
            backward_s[s] += problem.cut_backward_s[k, rows[s + 1][0], end]
    return forward_s, backward_s, after_s


def objective_s(problem: PartitionProblem, plan: PipelinePlan) -> float:
    """Step time of one plan, by the definition above, in seconds; +inf if a stage cannot run.

    Memory and the sum of the replicas are not looked at.

    Parameters
    ----------
    problem : PartitionProblem
    plan : PipelinePlan

    Returns
    -------
    float
        Seconds.

    Examples
    --------
    Two layers of 1 + 2 s, one worker each, 4 micro-batches: (4 + 1) x 3 = 15. The update of the second stage (3) outlives
    the last backward of the first (2) by 1, but the first stage's own update (3) ends last.

    >>> row, cut = np.ones((1, 2)), np.zeros((1, 1, 3))
    >>> p = PartitionProblem(num_layers=2, num_workers=2, num_micro_batches=4, replica_counts=np.array([1]),
    ...                      forward_s=row, backward_s=2 * row, cut_forward_s=cut, cut_backward_s=cut, update_s=3 * row,
    ...                      exchange_s=0 * row, static_bytes=row, activation_bytes=row)
    >>> objective_s(p, PipelinePlan(cuts=(1,), replicas=(1, 1)))
    18.0
    """
    forward_s, backward_s, after_s = stage_times_s(problem, plan)
    if not np.all(np.isfinite(forward_s + backward_s + after_s)):
        return float("inf")
    return float(np.max(last_backward_s(forward_s, backward_s, problem.num_micro_batches) + after_s))


SAFETY = (
    1.0 - LONG_SUM_ROUNDING
)  # a bound is only trusted after this shrink: prefix sums round differently from the cost model
_BISECTIONS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Prefix sums over the layers, and least costs of the layers before a cut."""

    counts: IntArray  # (K,), replicas; only those that leave a worker for another stage
    forward_s: FloatArray  # (K, L + 1) prefix sums; illegal layers count 0 here and 1 in `illegal`
    backward_s: FloatArray
    after_s: FloatArray  # exchange + update
    illegal: IntArray
    static_bytes: FloatArray
    activation_bytes: FloatArray
    prefix_s: FloatArray  # (L + 1, W + 1): least sum of t over stages that cover the layers before i with w workers
    prefix_forward_s: FloatArray  # same, sum of F
    prefix_backward_s: FloatArray  # same, sum of B
    prefix_work_s: FloatArray  # (L + 1,): least worker-seconds of m t + X of the layers before i
    first_after_s: float  # least X_0


def build_tables(problem: PartitionProblem) -> Tables:
    """Sum up a problem; replica counts that leave no worker for a second stage are dropped."""
    usable = problem.replica_counts <= problem.num_workers - problem.replica_counts[0]
    counts = problem.replica_counts[usable]
    forward_s, backward_s = problem.forward_s[usable], problem.backward_s[usable]
    after_s = problem.exchange_s[usable] + problem.update_s[usable]
    legal = np.isfinite(forward_s) & np.isfinite(backward_s) & np.isfinite(after_s)
    stage_s = np.where(legal, forward_s + backward_s, np.inf)
    prefix_s, prefix_forward_s, prefix_backward_s = (
        _least_prefix(counts, np.where(legal, cost, np.inf), problem.num_workers)
        for cost in (stage_s, forward_s, backward_s)
    )
    # sum r_s t_s >= work, so w workers need at least work / w in their slowest stage, and in the sum over the stages.
    work_s, work_after_s = (
        np.concatenate([[0.0], np.cumsum((counts[:, None] * cost).min(axis=0, initial=np.inf))])
        for cost in (stage_s, problem.num_micro_batches * stage_s + after_s)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        share_s = np.nan_to_num(work_s[:, None] / np.arange(problem.num_workers + 1), nan=0.0, posinf=np.inf)
    return Tables(
        counts=counts,
        forward_s=_prefix(np.where(legal, forward_s, 0.0)),
        backward_s=_prefix(np.where(legal, backward_s, 0.0)),
        after_s=_prefix(np.where(legal, after_s, 0.0)),
        illegal=_prefix((~legal).astype(np.float64)).astype(np.int64),
        static_bytes=_prefix(problem.static_bytes[usable]),
        activation_bytes=_prefix(problem.activation_bytes[usable]),
        prefix_s=np.maximum(prefix_s, share_s),
        prefix_forward_s=prefix_forward_s,
        prefix_backward_s=prefix_backward_s,
        prefix_work_s=work_after_s,
        first_after_s=float(np.where(legal[:, 0], after_s[:, 0], np.inf).min(initial=np.inf)),
    )


def _prefix(values: FloatArray) -> FloatArray:
    return np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)


def _least_prefix(counts: IntArray, cost_s: FloatArray, num_workers: int) -> FloatArray:
    """(L + 1, W + 1): sum of the layers' least costs with at most w replicas."""
    least = np.vstack([np.full((1, cost_s.shape[1]), np.inf), np.minimum.accumulate(cost_s, axis=0)])
    sums = _prefix(least)
    allowed = np.searchsorted(counts, np.arange(num_workers + 1), side="right")
    return np.ascontiguousarray(sums[allowed].T)


def stage_starts(problem: PartitionProblem, tables: Tables, threshold_s: float) -> IntArray:
    """(K, L + 1): first layer of the longest stage that ends before layer i and may belong to a plan below a threshold.

    A stage that ends before layer i and starts earlier than this breaks (1), (2) or the memory capacity, or has an illegal
    layer. Where no stage is possible at all the entry is i.
    """
    m, num_layers = problem.num_micro_batches, problem.num_layers
    threshold_s /= SAFETY
    micro_s = m * (tables.forward_s + tables.backward_s)
    ahead_s, ahead_forward_s = tables.prefix_s[:, -1], tables.prefix_forward_s[:, -1]
    in_flight = np.full(num_layers + 1, min(m, 2))
    in_flight[-1] = 1
    starts = np.zeros((len(tables.counts), num_layers + 1), dtype=np.int64)
    capacity = problem.memory_capacity_bytes
    for k in range(len(tables.counts)):
        starts[k] = np.searchsorted(tables.illegal[k], tables.illegal[k])  # after the last illegal layer
        if np.isfinite(threshold_s):
            both = micro_s[k] + tables.after_s[k]
            for sums, upstream, limit in (
                (both, ahead_forward_s, threshold_s),
                (micro_s[k], ahead_s, threshold_s - tables.first_after_s),
            ):
                key = (
                    sums - upstream
                )  # increases: upstream grows by no more than sums does, or an illegal layer stands there
                ok = np.isfinite(key)
                key = np.maximum.accumulate(np.where(ok, key, -np.inf))
                starts[k] = np.maximum(starts[k], np.searchsorted(key, sums - limit, side="right"))
        if np.isfinite(capacity):
            fixed, moving = tables.static_bytes[k], tables.activation_bytes[k]
            for n in sorted(set(in_flight.tolist())):  # np.unique would load numpy.ma
                sums = fixed + n * moving
                first = np.searchsorted(sums, sums - capacity * (1 + LONG_SUM_ROUNDING), side="left")
                starts[k] = np.maximum(starts[k], np.where(in_flight == n, first, 0))
    return np.minimum(starts, np.arange(num_layers + 1))


def workers_needed(tables: Tables, starts: IntArray) -> IntArray:
    """N of the module's notes, (L + 1,); 2^62 where the layers before it cannot be covered."""
    impossible = np.int64(1) << 62
    needed = np.zeros(starts.shape[1], dtype=np.int64)
    for i in range(1, starts.shape[1]):
        first = starts[:, i]
        options = np.where(first < i, needed[first] + tables.counts, impossible)
        needed[i] = min(int(options.min(initial=impossible)), int(impossible))
    return needed


def workers_downstream(tables: Tables, starts: IntArray) -> IntArray:
    """(L + 1,): fewest workers that the layers from i on need; 2^62 where they cannot be covered."""
    impossible = np.int64(1) << 62
    num_layers = starts.shape[1] - 1
    needed = np.full(num_layers + 1, impossible)
    needed[-1] = 0
    for end in range(num_layers, 0, -1):
        # Cutting layers off the start of a partition leaves one, so the fewest for a late end are the fewest from its start on.
        for k in np.flatnonzero(starts[:, end] < end).tolist():
            part = needed[starts[k, end] : end]
            np.minimum(part, min(int(needed[end] + tables.counts[k]), int(impossible)), out=part)
    return needed


def proves_none_below(problem: PartitionProblem, tables: Tables, threshold_s: float) -> bool:
    """Whether the cheap bound proves that no plan of two or more stages within memory costs less than a threshold."""
    if problem.num_layers < 2 or len(tables.counts) == 0:
        return True
    starts = stage_starts(problem, tables, threshold_s)
    return bool(workers_needed(tables, starts)[-1] > problem.num_workers)


def pipeline_lower_bound(problem: PartitionProblem) -> float:
    """Seconds that no pipeline of at least two stages within memory can beat; +inf proves that there is none.

    Bisects for the largest threshold that ``N[L] > W`` proves (see the module's notes), from the
    bound by worker-seconds ``sum_l min_k r_k (m t[k, l] + X[k, l]) / W`` to four times that.

    Parameters
    ----------
    problem : PartitionProblem

    Returns
    -------
    float
        Seconds.

    Examples
    --------
    Two layers of 1 + 2 s on two workers with one replica each: every stage takes at least 4 x 3, and the second one starts
    after a forward of the first (1).

    >>> row, cut = np.ones((1, 2)), np.zeros((1, 1, 3))
    >>> p = PartitionProblem(num_layers=2, num_workers=2, num_micro_batches=4, replica_counts=np.array([1]),
    ...                      forward_s=row, backward_s=2 * row, cut_forward_s=cut, cut_backward_s=cut, update_s=0 * row,
    ...                      exchange_s=0 * row, static_bytes=row, activation_bytes=row)
    >>> 12.0 <= pipeline_lower_bound(p) <= 15.0
    True
    """
    tables = build_tables(problem)
    if proves_none_below(problem, tables, float("inf")):
        return float("inf")
    low_s = float(tables.prefix_work_s[-1]) / problem.num_workers * SAFETY
    high_s = 4.0 * low_s
    for _ in range(_BISECTIONS):
        if high_s - low_s <= 1e-3 * low_s:
            break
        middle_s = (low_s + high_s) / 2
        if proves_none_below(problem, tables, middle_s):
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s
