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
            and problem.memory_capacity_bytes <= own.memory_capacity_bytes
            and all(np.array_equal(a, b) for a, b in pairs)
        )

    def at(self, first: IntArray, counts: IntArray, depth: IntArray, left: IntArray) -> FloatArray:
        """H for cuts before layers `first`, replicas of the stages that end there, stages behind, and workers in front."""
        level = np.searchsorted(self.levels, depth, side="right") - 1
        return np.asarray(self.front_s[first, np.searchsorted(self.counts, counts), level, left])


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
    return FrontTable(
        problem=problem, threshold_s=threshold_s, counts=tables.counts, levels=levels, front_s=builder.front_s
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
        self.least_back_s = backward_s.min(axis=1)
        least_in_s = forward_s.min(axis=0)
        self.more_in_s = np.where(np.isfinite(least_in_s), least_in_s, 0.0) * (self.m - 1)  # G has them once
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
        self.before_s = np.full(size, np.inf)  # G, at the depth of the stage behind
        self.least_before_s = np.full(size[:2], np.inf)
        self.front_s = np.full((size[1], size[0], *size[2:]), np.inf)

    def fill(self, i: int) -> None:
        """H and G of the cut before layer i."""
        low, high = int(self.needed[i]), int(self.most[i])
        if low > high:
            return
        reached = [k for k in np.flatnonzero(self.starts[:, i] < i).tolist() if self.stages(k, i)]
        after_s = np.full((len(self.tables.counts), self.front_s.shape[2], high + 1 - low), np.inf)
        for k in reached:
            np.minimum(after_s, self.front_s[i, k, :, low : high + 1] + self.cut_s[i, k][:, None, None], out=after_s)
        self.before_s[:, i, :, low : high + 1] = after_s[:, self.deeper]
        self.least_before_s[:, i] = after_s.min(axis=(1, 2))

    def stages(self, k: int, i: int) -> bool:
        """H over the stages of row k that end before layer i; False if there are none."""
        replicas, first = int(self.tables.counts[k]), int(self.starts[k, i])
        most = int(self.most[i]) - replicas  # workers in front of the stage
        if most < 0:
            return False
        front_s, m = self.front_s[i, k], self.m
        length_s = self.stage_s[k, i] - self.stage_s[k, first:i]
        back_s = self.least_back_s[k, i]
        if first == 0:
            after_s = self.tables.after_s[k, i]
            if m * (length_s[0] + back_s) + after_s < self.threshold_s:
                front_s[self.used[:, k, i] <= self.capacity, replicas] = length_s[0] + after_s
        # What must stay below the threshold besides G.
        rest_s = m * (length_s + back_s) + self.more_in_s[k, first:i]
        open_ = np.flatnonzero(self.least_before_s[k, first:i] + rest_s < self.threshold_s)
        low = int(self.needed[first + open_[0]]) if len(open_) else 1
        if len(open_) and low <= most:
            a, b = int(open_[0]), int(open_[-1]) + 1
            part = slice(first + a, first + b)
            before_s = self.before_s[k, part, :, low : most + 1]
            possible = np.isfinite(rest_s[a:b])
            limit_s = np.where(possible, self.threshold_s - np.where(possible, rest_s[a:b], 0.0), -np.inf)[:, None]
            if np.isfinite(self.capacity):
                fits = self.used[:, k, i, None] - self.used[:, k, part] <= self.capacity
                limit_s = np.where(fits.T, limit_s, -np.inf)
            total_s = np.where(before_s < limit_s[:, :, None], before_s + length_s[a:b, None, None], np.inf).min(axis=0)
            target = front_s[:, replicas + low : replicas + most + 1]
            np.minimum(target, total_s, out=target)
        return bool(np.isfinite(front_s).any())
