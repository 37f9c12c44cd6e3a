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
their least.

What the stages in front leave to those behind is bounded by the same recursion. Stage s needs ``g_s(D_s) < C - X_0 - sum of t in front - m t_s``,
and g increases with D, so ``D + c`` of a cut is at most (`strategies.pipeline.levels` solves for D)

    Y[i, k, w, d] = max_j  min( D_s + c at their most,  Z[j, k, w - r_k, d + 1] - t_k(j, i) )
    Z[j, k, w, d] = max_k' Y[j, k', w, d] - cut_forward[k', k, j] - cut_backward[k', k, j]

Stages for which this is not above the least ``D + c`` that layers i.. can have (`strategies.pipeline.behind`) take part in neither. A stage
in front is late if those behind it take long, so both together exclude far more than ``m t_s`` alone. Since Y falls at least half as
fast as C, ``T >= C - 2 (Y - D - c)``.

Depths may be put together in a few levels (`strategies.pipeline.levels`), which only lowers H and raises Y.

H does not depend on how many workers there are behind the cut, so one table serves every smaller cluster, and every lower threshold.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from strategies.pipeline.behind import least_behind
from strategies.pipeline.bounds import SAFETY, Tables, build_tables, stage_starts, workers_behind, workers_needed
from strategies.pipeline.levels import Levels, depth_levels, most_behind_s
from strategies.pipeline.problem import FloatArray, IntArray, PartitionProblem

__all__ = ["FrontTable", "build_front"]

_MOST_ENTRIES = 1 << 24  # of H: 128 MiB, and as much again for each of Y, G, Z and Q


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontTable:
    """H and Y of the module's notes for the plans below a threshold."""

    problem: PartitionProblem
    threshold_s: float
    counts: IntArray  # (K,), replicas of the rows
    levels: Levels
    front_s: FloatArray  # (L + 1, K, D, W + 1): H; inf where no plan below the threshold passes
    behind_s: FloatArray  # same axes: Y
    entered_s: FloatArray  # (K, L + 1, D, W + 1): G
    entered_behind_s: FloatArray  # same axes: Z

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
        """G and Z where a stage on so many replicas starts at layer `first`, `depth` stages from there on."""
        where = (np.searchsorted(self.counts, counts), first, self.levels.of(depth), left)
        return self.entered_s[where], self.entered_behind_s[where]

    def at(self, first: IntArray, counts: IntArray, depth: IntArray, left: IntArray) -> tuple[FloatArray, FloatArray]:
        """H and Y for cuts before layers `first`, replicas of the stages that end there, stages behind, workers in front."""
        where = (first, np.searchsorted(self.counts, counts), self.levels.of(depth), left)
        return self.front_s[where], self.behind_s[where]

    def least_s(self, behind_s: FloatArray, most_s: FloatArray) -> FloatArray:
        """Bound on the step of plans with ``D + c = behind_s`` where Y (or Z) is ``most_s``."""
        if np.isinf(self.threshold_s):
            return np.where(most_s > behind_s, -np.inf, np.inf)
        return self.threshold_s - 2.0 * np.maximum(most_s - behind_s, 0.0)


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
    most_depth = max(min(problem.num_micro_batches, problem.num_workers) - 1, 1)
    levels = depth_levels(most_depth, most_levels)
    entries = (problem.num_layers + 1) * len(tables.counts) * (problem.num_workers + 1)
    while entries * len(levels) > _MOST_ENTRIES and len(levels) > 1:
        levels = depth_levels(most_depth, len(levels) // 2)
    if entries * len(levels) > _MOST_ENTRIES:
        return None
    limit_s = threshold_s / SAFETY
    starts = stage_starts(problem, tables, limit_s)
    least_s = least_behind(problem, tables, starts, levels, limit_s, deadline)
    if least_s is None:
        return None
    builder = _Builder(problem, tables, levels, limit_s, starts)
    with np.errstate(invalid="ignore"):
        for i in range(1, problem.num_layers):
            if time.perf_counter() > deadline:
                return None
            builder.fill(i, least_s[i])
    if not problem.uses_all_workers:
        for array in (builder.front_s, builder.entered_s):
            np.minimum.accumulate(array, axis=-1, out=array)
        for array in (builder.behind_s, builder.entered_behind_s):
            np.maximum.accumulate(array, axis=-1, out=array)
    return FrontTable(
        problem=problem,
        threshold_s=threshold_s,
        counts=tables.counts,
        levels=levels,
        front_s=builder.front_s,
        behind_s=builder.behind_s,
        entered_s=builder.entered_s,
        entered_behind_s=builder.entered_behind_s,
    )

class _Builder:
    """The arrays of one dynamic program."""

    def __init__(
        self, problem: PartitionProblem, tables: Tables, levels: Levels, threshold_s: float, starts: IntArray
    ) -> None:
        self.tables, self.levels, self.threshold_s, self.starts = tables, levels, threshold_s, starts
        self.m, self.workers = problem.num_micro_batches, problem.num_workers
        rows = np.searchsorted(problem.replica_counts, tables.counts)
        forward_s = problem.cut_forward_s[np.ix_(rows, rows)]
        backward_s = problem.cut_backward_s[np.ix_(rows, rows)]
        self.cut_s = np.ascontiguousarray((forward_s + backward_s).transpose(2, 0, 1))
        # Least transfers that a stage pays for: into it, by the rows in front, and back to it, by the rows behind.
        self.least_back_s, self.least_in_s = backward_s.min(axis=1), forward_s.min(axis=0)
        self.least_in_s[:, 0] = 0.0  # nothing is received in front of the first layer, whatever the entry says
        self.stage_s = tables.forward_s + tables.backward_s
        in_flight = np.minimum(self.m, levels.first + 1)[:, None, None]
        self.used = tables.static_bytes + in_flight * tables.activation_bytes  # (D, K, L + 1)
        self.capacity = problem.memory_capacity_bytes * (1 + 1e-11)
        needed = workers_needed(tables, self.starts)
        self.needed = np.maximum.accumulate(needed[:-1])
        self.most = problem.num_workers - workers_behind(tables, self.starts)
        # G and Z have a last level in which there is nothing: no stage can stand in front of the greatest depth.
        size = (len(tables.counts), problem.num_layers + 1, len(levels) + 1, problem.num_workers + 1)
        self.entered_s = np.full(size, np.inf)  # G
        self.entered_behind_s = np.full(size, -np.inf)  # Z
        self.least_before_s = np.full(size[:2], np.inf)
        self.front_s = np.full((size[1], size[0], size[2] - 1, size[3]), np.inf)  # H
        self.behind_s = np.full_like(self.front_s, -np.inf)  # Y

    def fill(self, i: int, least_s: FloatArray) -> None:
        """All four of the cut before layer i; least_s, (K, D, W + 1), is Q there."""
        low, high = int(self.needed[i]), int(self.most[i])
        if low > high:
            return
        reached = [k for k in np.flatnonzero(self.starts[:, i] < i).tolist() if self.stages(k, i, least_s[k])]
        if not reached:
            return
        workers = slice(low, high + 1)
        shape = (len(self.tables.counts), len(self.levels), high + 1 - low)
        after_s, behind_s = np.full(shape, np.inf), np.full(shape, -np.inf)
        for k in reached:
            cut_s = self.cut_s[i, k][:, None, None]
            np.minimum(after_s, self.front_s[i, k, :, workers] + cut_s, out=after_s)
            np.maximum(behind_s, self.behind_s[i, k, :, workers] - cut_s, out=behind_s)
        self.entered_s[:, i, :-1, workers] = after_s
        self.entered_behind_s[:, i, :-1, workers] = behind_s
        self.least_before_s[:, i] = after_s.min(axis=(1, 2))

    def stages(self, k: int, i: int, least_s: FloatArray) -> bool:
        """H and Y over the stages of row k that end before layer i; False if there are none."""
        tables, replicas, first = self.tables, int(self.tables.counts[k]), int(self.starts[k, i])
        most = int(self.most[i]) - replicas  # workers in front of the stage
        if most < 0:
            return False
        begin, back_s = slice(first, i), self.least_back_s[k, i]
        length_s = self.stage_s[k, i] - self.stage_s[k, begin]
        forward_s = tables.forward_s[k, i] - tables.forward_s[k, begin] + self.least_in_s[k, begin]
        backward_s = tables.backward_s[k, i] - tables.backward_s[k, begin] + back_s
        # What must stay below the threshold besides G, which has the transfer into the stage once.
        rest_s = self.m * (forward_s + backward_s)
        if first == 0:
            self.first_stage(k, i, least_s, forward_s[0], backward_s[0])
        rest_s -= np.where(np.isfinite(rest_s), self.least_in_s[k, begin], 0.0)
        open_ = np.flatnonzero(self.least_before_s[k, begin] + rest_s < self.threshold_s)
        low = int(self.needed[first + open_[0]]) if len(open_) else most + 1
        if low <= most:
            a, b = int(open_[0]), int(open_[-1]) + 1
            part, workers = slice(first + a, first + b), slice(low, most + 1)
            slack_s = np.where(np.isfinite(rest_s[a:b]), self.threshold_s - rest_s[a:b], -np.inf)[:, None]
            single, both = most_behind_s(forward_s[a:b, None], backward_s[a:b, None], self.levels.last, self.m)
            single, both = slack_s + single + back_s, 0.5 * (slack_s + both) + back_s
            if np.isfinite(self.capacity):
                fits = self.used[:, k, i, None] - self.used[:, k, part] <= self.capacity
                slack_s = np.where(fits.T, slack_s, -np.inf)
            target = slice(replicas + low, replicas + most + 1)
            before_s, most_s = self.before(k, part, workers)
            behind_s = np.minimum(single[:, :, None] - before_s, both[:, :, None] - 0.5 * before_s)
            np.minimum(behind_s, most_s - length_s[a:b, None, None], out=behind_s)
            taken = (behind_s > least_s[:, target]) & (before_s < slack_s[:, :, None])
            self.front_s[i, k, :, target] = np.minimum(
                self.front_s[i, k, :, target],
                np.where(taken, before_s + length_s[a:b, None, None], np.inf).min(axis=0),
            )
            self.behind_s[i, k, :, target] = np.maximum(
                self.behind_s[i, k, :, target], np.where(taken, behind_s, -np.inf).max(axis=0)
            )
        return bool(np.isfinite(self.front_s[i, k]).any())

    def before(self, k: int, part: slice, workers: slice) -> tuple[FloatArray, FloatArray]:
        """G and Z one stage deeper than each level."""
        before_s, most_s = self.entered_s[k, part, 1:, workers], self.entered_behind_s[k, part, 1:, workers]
        wide = self.levels.wide
        if len(wide):
            before_s, most_s = before_s.copy(), most_s.copy()
            before_s[:, wide] = np.minimum(before_s[:, wide], self.entered_s[k, part, :-1, workers][:, wide])
            most_s[:, wide] = np.maximum(most_s[:, wide], self.entered_behind_s[k, part, :-1, workers][:, wide])
        return before_s, most_s

    def first_stage(self, k: int, i: int, least_s: FloatArray, forward_s: float, backward_s: float) -> None:
        """The stage of row k that has all layers before i."""
        after_s, replicas, back_s = self.tables.after_s[k, i], int(self.tables.counts[k]), self.least_back_s[k, i]
        slack_s = self.threshold_s - self.m * (forward_s + backward_s) - after_s
        if not slack_s > 0:
            return
        single, both = most_behind_s(np.array(forward_s), np.array(backward_s), self.levels.last, self.m)
        behind_s = np.minimum(slack_s + single, 0.5 * (slack_s + both)) + back_s
        fits = (self.used[:, k, i] <= self.capacity) & (behind_s > least_s[:, replicas])
        self.front_s[i, k, fits, replicas] = self.stage_s[k, i] + after_s
        self.behind_s[i, k, fits, replicas] = behind_s[fits]
