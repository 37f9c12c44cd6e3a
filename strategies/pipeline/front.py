"""Least time of the stages in front of a cut: completion bounds that know the transfers, the memory and the workers left.

Notes
-----
A plan whose stages behind a cut are known has ``T >= V + c + sum of t in front + X_0`` (see `strategies.pipeline.solve`). The
last two terms are bounded from below by a dynamic program from the first layer to the last, over (cut i, replicas k of the
stage that ends there, workers w in front, stages behind d):

    H[i, k, w, d] = min_j  t_k(j, i) + G[j, k, w - r_k, d + 1]        t_k(j, i) = sum of F + B of layers j..i-1
    G[j, k, w, d] = min_k' H[j, k', w, d] + cut_forward[k', k, j] + cut_backward[k', k, j]

and ``X_k(0, i)``, the first stage's own exchange and update, in place of G for j = 0. A stage takes part only if its layers fit the memory
with ``min(m, d + 1)`` micro-batches in flight, and if on its own it leaves the plan below a threshold C:

    sum of t in front + m t_s + X_0 < C       (2) of `strategies.pipeline.bounds`

There the transfer into the stage in front (known in the minimum only) and the gradient over cut i (not known yet) count at
their least. Depths may be rounded down to a few levels: fewer stages behind mean less memory, so this only lowers H.

A second table has the least possible slowest stage in front, ``M = min of max_s max(F_s, B_s)`` over the same stages. Since
``g_s >= D_s - (m-1) min(F_s, B_s)`` for both forms of g_s, every stage of a plan satisfies

    T_0 >= sum_j t_j + (m-1) max(F_s, B_s),    hence    T >= D + c + H + (m-1) M

with D the sum of t behind the cut.

H does not depend on how many workers there are behind the cut, so one table serves every smaller cluster, and every lower threshold.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from strategies.pipeline.bounds import SAFETY, Tables, build_tables, stage_starts, workers_behind, workers_needed
from strategies.pipeline.problem import FloatArray, IntArray, PartitionProblem

__all__ = ["FrontTable", "build_front"]

_MOST_ENTRIES = 1 << 24  # of H: 128 MiB, and as much again for G while it is built


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontTable:
    """H of the module's notes for the plans below a threshold."""

    problem: PartitionProblem
    threshold_s: float
    counts: IntArray  # (K,), replicas of the rows
    levels: IntArray  # (D,), increasing numbers of stages behind, from 1; a depth counts as the last level not above it
    front_s: FloatArray  # (L + 1, K, D, W + 1); inf where no plan below the threshold passes
    slowest_s: FloatArray  # same axes: M
    entered_s: FloatArray  # (K, L + 1, D, W + 1): G
    least_slowest_s: FloatArray  # (L + 1, D, W + 1): M, least over k

    def serves(self, problem: PartitionProblem, threshold_s: float) -> bool:
        """Whether the bounds hold for plans of a problem below a threshold.

        They do if the problem is this table's own, or has the same layers and fewer workers and replica counts.
        """
        own, size = self.problem, len(problem.replica_counts)
        if problem is own:
            return threshold_s <= self.threshold_s
        per_row = (
            "replica_counts",
            "forward_s",
            "backward_s",
            "update_s",
            "exchange_s",
            "static_bytes",
            "activation_bytes",
        )
        pairs = [(getattr(own, name)[:size], getattr(problem, name)) for name in per_row]
        pairs += [
            (getattr(own, name)[:size, :size], getattr(problem, name)) for name in ("cut_forward_s", "cut_backward_s")
        ]
        return (
            threshold_s <= self.threshold_s
            and problem.num_workers <= own.num_workers
            and problem.num_micro_batches == own.num_micro_batches
            and problem.uses_all_workers == own.uses_all_workers
            and problem.memory_capacity_bytes <= own.memory_capacity_bytes
            and all(np.array_equal(a, b) for a, b in pairs)
        )

    def entered(
        self, first: IntArray, counts: IntArray, depth: IntArray, left: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """G, and M at its least, where a stage on so many replicas starts at layer `first`, `depth` stages from there on."""
        level = np.searchsorted(self.levels, depth, side="right") - 1
        row = np.searchsorted(self.counts, counts)
        return self.entered_s[row, first, level, left], self.least_slowest_s[first, level, left]

    def all_rows(self, first: IntArray, counts: IntArray, depth: IntArray, left: IntArray) -> FloatArray:
        """H as `at` gives it, (n, counts), for each of the replica counts."""
        level = np.searchsorted(self.levels, depth, side="right") - 1
        where = (first[:, None], np.searchsorted(self.counts, counts), level[:, None], left[:, None])
        return np.asarray(self.front_s[where])

    def at(self, first: IntArray, counts: IntArray, depth: IntArray, left: IntArray) -> tuple[FloatArray, FloatArray]:
        """H and M for cuts before layers `first`, replicas of the stages that end there, stages behind, workers in front."""
        level = np.searchsorted(self.levels, depth, side="right") - 1
        where = (first, np.searchsorted(self.counts, counts), level, left)
        return self.front_s[where], self.slowest_s[where]


def depth_levels(most_depth: int, most_levels: int) -> IntArray:
    """At most so many depths, 1 and the greatest among them, evenly spread.

    >>> depth_levels(7, 3).tolist()
    [1, 4, 7]
    """
    return np.unique(np.linspace(1, most_depth, max(most_levels, 1)).astype(np.int64))


def build_front(
    problem: PartitionProblem,
    threshold_s: float,
    *,
    most_levels: int = 1,
    deadline: float = float("inf"),
    tables: Tables | None = None,
) -> FrontTable | None:
    """Fill H for the plans of a problem below a threshold.

    Parameters
    ----------
    problem : PartitionProblem
    threshold_s : float
        Seconds; plans at or above it are of no interest.
    most_levels : int
        How many depths are told apart. More bound the memory better and take longer.
    deadline : float
        On the clock of `time.perf_counter`.
    tables : Tables, optional
        Of `build_tables`, if they are there already.

    Returns
    -------
    FrontTable or None
        None if time ran out or the table would be too large.
    """
    tables = build_tables(problem) if tables is None else tables
    levels = depth_levels(max(min(problem.num_micro_batches, problem.num_workers) - 1, 1), most_levels)
    shape = (problem.num_layers + 1, len(tables.counts), len(levels), problem.num_workers + 1)
    while np.prod(shape, dtype=np.float64) > _MOST_ENTRIES and len(levels) > 1:
        levels = depth_levels(int(levels[-1]), len(levels) // 2)
        shape = (*shape[:2], len(levels), shape[3])
    if np.prod(shape, dtype=np.float64) > _MOST_ENTRIES:
        return None
    builder = _Builder(problem, tables, levels, threshold_s / SAFETY)
    for i in range(1, problem.num_layers):
        if time.perf_counter() > deadline:
            return None
        builder.fill(i)
    if not problem.uses_all_workers:
        for array in (builder.front_s, builder.slowest_s, builder.entered_s, builder.least_slowest_s):
            np.minimum.accumulate(array, axis=-1, out=array)
    return FrontTable(
        problem=problem,
        threshold_s=threshold_s,
        counts=tables.counts,
        levels=levels,
        front_s=builder.front_s,
        slowest_s=builder.slowest_s,
        entered_s=builder.entered_s,
        least_slowest_s=builder.least_slowest_s,
    )


class _Builder:
    """The arrays of one dynamic program."""

    def __init__(self, problem: PartitionProblem, tables: Tables, levels: IntArray, threshold_s: float) -> None:
        self.tables, self.threshold_s = tables, threshold_s
        self.m, self.workers = problem.num_micro_batches, problem.num_workers
        rows = np.searchsorted(problem.replica_counts, tables.counts)
        forward_s = problem.cut_forward_s[np.ix_(rows, rows)]
        backward_s = problem.cut_backward_s[np.ix_(rows, rows)]
        self.cut_s = np.ascontiguousarray((forward_s + backward_s).transpose(2, 0, 1))
        # Least transfers that a stage pays for: into it, by the rows in front, and back to it, by the rows behind.
        self.least_back_s, self.least_in_s = backward_s.min(axis=1), forward_s.min(axis=0)
        self.least_in_s[:, 0] = 0.0  # nothing is received in front of the first layer, whatever the entry says
        self.stage_s = tables.forward_s + tables.backward_s
        in_flight = np.minimum(self.m, levels + 1)[:, None, None]
        self.used = tables.static_bytes + in_flight * tables.activation_bytes  # (D, K, L + 1)
        self.capacity = problem.memory_capacity_bytes * (1 + 1e-11)
        self.starts = stage_starts(problem, tables, threshold_s)
        needed = workers_needed(tables, self.starts)
        self.needed = np.maximum.accumulate(needed[:-1])
        self.most = problem.num_workers - workers_behind(tables, self.starts)
        self.deeper = np.searchsorted(levels, levels + 1, side="right") - 1
        size = (len(tables.counts), problem.num_layers + 1, len(levels), problem.num_workers + 1)
        self.entered_s = np.full(size, np.inf)  # G
        self.least_before_s = np.full(size[:2], np.inf)
        self.front_s = np.full((size[1], size[0], *size[2:]), np.inf)
        self.slowest_s = np.full_like(self.front_s, np.inf)  # M
        self.least_slowest_s = np.full(size[1:], np.inf)

    def fill(self, i: int) -> None:
        """H and G of the cut before layer i."""
        low, high = int(self.needed[i]), int(self.most[i])
        if low > high:
            return
        reached = [k for k in np.flatnonzero(self.starts[:, i] < i).tolist() if self.stages(k, i)]
        after_s = np.full((len(self.tables.counts), self.front_s.shape[2], high + 1 - low), np.inf)
        for k in reached:
            np.minimum(after_s, self.front_s[i, k, :, low : high + 1] + self.cut_s[i, k][:, None, None], out=after_s)
        self.entered_s[:, i, :, low : high + 1] = after_s
        slowest_s = self.slowest_s[i, reached, :, low : high + 1]
        self.least_slowest_s[i, :, low : high + 1] = slowest_s.min(axis=0, initial=np.inf)
        self.least_before_s[:, i] = after_s.min(axis=(1, 2))

    def stages(self, k: int, i: int) -> bool:
        """H and M over the stages of row k that end before layer i; False if there are none."""
        tables, replicas, first = self.tables, int(self.tables.counts[k]), int(self.starts[k, i])
        most = int(self.most[i]) - replicas  # workers in front of the stage
        if most < 0:
            return False
        begin = slice(first, i)
        length_s = self.stage_s[k, i] - self.stage_s[k, begin]
        forward_s = tables.forward_s[k, i] - tables.forward_s[k, begin] + self.least_in_s[k, begin]
        backward_s = tables.backward_s[k, i] - tables.backward_s[k, begin] + self.least_back_s[k, i]
        slow_s = np.maximum(forward_s, backward_s)
        # What must stay below the threshold besides G, which has the transfer into the stage once.
        rest_s = self.m * (forward_s + backward_s)
        if first == 0:
            self.first_stage(k, i, length_s[0], slow_s[0], rest_s[0])
        rest_s -= np.where(np.isfinite(rest_s), self.least_in_s[k, begin], 0.0)
        open_ = np.flatnonzero(self.least_before_s[k, begin] + rest_s < self.threshold_s)
        low = int(self.needed[first + open_[0]]) if len(open_) else most + 1
        if low <= most:
            a, b = int(open_[0]), int(open_[-1]) + 1
            part, workers = slice(first + a, first + b), slice(low, most + 1)
            possible = np.isfinite(rest_s[a:b])
            limit_s = np.where(possible, self.threshold_s - np.where(possible, rest_s[a:b], 0.0), -np.inf)[:, None]
            if np.isfinite(self.capacity):
                fits = self.used[:, k, i, None] - self.used[:, k, part] <= self.capacity
                limit_s = np.where(fits.T, limit_s, -np.inf)
            before_s, slowest_s = self.entered_s[k, part, :, workers], self.least_slowest_s[part, :, workers]
            if len(self.deeper) > 1:
                before_s, slowest_s = before_s[:, self.deeper], slowest_s[:, self.deeper]
            target = slice(replicas + low, replicas + most + 1)
            taken = before_s < limit_s[:, :, None]
            for length, before, into, join in (
                (length_s, before_s, self.front_s, np.add),
                (slow_s, slowest_s, self.slowest_s, np.maximum),
            ):
                least = np.where(taken, join(before, length[a:b, None, None]), np.inf).min(axis=0)
                np.minimum(into[i, k, :, target], least, out=into[i, k, :, target])
        return bool(np.isfinite(self.front_s[i, k]).any())

    def first_stage(self, k: int, i: int, length_s: float, slow_s: float, rest_s: float) -> None:
        """The stage of row k that has all layers before i."""
        after_s, replicas = self.tables.after_s[k, i], self.tables.counts[k]
        if rest_s + after_s < self.threshold_s:
            fits = self.used[:, k, i] <= self.capacity
            self.front_s[i, k, fits, replicas] = length_s + after_s
            self.slowest_s[i, k, fits, replicas] = slow_s
