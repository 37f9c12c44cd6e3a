"""Completion bounds: the least time of the stages before and after a cut.

Stages after a cut
------------------
With D the sum of t after cut i and c the backward transfer over it, ``y = D + c`` is bounded from below by a dynamic program from the
last layer to the first, over (cut i, replicas k of the stage before it, workers u after, stages after d):

    Q[i, k, u, d] = min_k' R[i, k', u, d] + cut_forward[k, k', i] + cut_backward[k, k', i]
    R[i, k', u, d] = min_e t_k'(i, e) + Q[e, k', u - r, d - 1]          Q[L, k, 0, 0] = 0

over the stages of layers i..e-1 that fit the memory with ``min(m, d)`` micro-batches in flight and that on their own leave the plan below
a threshold C:

    sum of t before it + m t_s + g_s + X_0 < C

The stages before it count at their least (G of an upstream table with a single level), and so do the transfers that are not known yet. As
``m t_s + g_s`` does not fall with c while D + c stays the same (`strategies.layerwise.pipeline.sweep`), Q and the least transfer c stand
for D and c.

Depths are put together in levels (`strategies.layerwise.pipeline.cut_tables`).

Stages before a cut
-------------------
A plan whose stages after a cut are known has ``T >= V + c + sum of t before it + X_0`` (see `strategies.layerwise.pipeline.sweep`). The
last two terms are bounded from below by a dynamic program from the first layer to the last, over (cut i, replicas k of the
stage that ends there, workers w before it, stages after d):

    H[i, k, w, d] = min_j  t_k(j, i) + G[j, k, w - r_k, d + 1]        t_k(j, i) = sum of F + B of layers j..i-1
    G[j, k, w, d] = min_k' H[j, k', w, d] + cut_forward[k', k, j] + cut_backward[k', k, j]

and ``X_k(0, i)``, the first stage's own exchange and update, in place of G for j = 0. A stage takes part only if its layers fit the memory
with ``min(m, d + 1)`` micro-batches in flight, and if on its own it leaves the plan below a threshold C:

    sum of t before it + m t_s + X_0 < C       (2) of `strategies.layerwise.pipeline.bounds`

There the transfer into the stage before it (known in the minimum only) and the gradient over cut i (not known yet) count at
their least.

What the stages before it leave to those after is bounded by the same recursion. Stage s needs

    g_s(D_s) < C - X_0 - sum of t before it - m t_s

and g increases with D, so ``D + c`` of a cut is at most (`strategies.layerwise.pipeline.cut_tables` solves for D)

    Y[i, k, w, d] = max_j  min( D_s + c at their most,  Z[j, k, w - r_k, d + 1] - t_k(j, i) )
    Z[j, k, w, d] = max_k' Y[j, k', w, d] - cut_forward[k', k, j] - cut_backward[k', k, j]

Stages for which this is not above the least ``D + c`` that layers i.. can have (`strategies.layerwise.pipeline.completion`) take part in
neither. A stage before it is late if those after it take long, so both together exclude far more than ``m t_s`` alone. Since Y falls at
least half as fast as C, ``T >= C - 2 (Y - D - c)``.

Depths may be put together in a few levels (`strategies.layerwise.pipeline.cut_tables`), which only lowers H and raises Y.

Q counts at most so many workers after, so one table serves every smaller cluster, and every lower threshold.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import LONG_SUM_ROUNDING
from strategies.layerwise.pipeline.bounds import (
    SAFETY,
    Tables,
    build_tables,
    stage_starts,
    workers_downstream,
    workers_needed,
)
from strategies.layerwise.pipeline.cut_tables import (
    Levels,
    RowTable,
    TableFullError,
    depth_levels,
    most_downstream_s,
    reduce_groups,
    through_cut,
)
from strategies.layerwise.pipeline.problem import PartitionProblem

__all__ = ["DownstreamTable", "UpstreamTable", "build_downstream", "build_upstream"]


_CHUNK = 1 << 17  # entries looked at together: 1 MiB each


class DownstreamTable:
    """The array of one dynamic program, filled from the last cut to the first."""

    def __init__(
        self,
        problem: PartitionProblem,
        tables: Tables,
        starts: IntArray,
        levels: Levels,
        threshold_s: float,
        entered: RowTable,
    ) -> None:
        self.tables, self.starts, self.levels, self.threshold_s = tables, starts, levels, threshold_s
        self.m, self.layers, self.workers = problem.num_micro_batches, problem.num_layers, problem.num_workers
        used = np.searchsorted(problem.replica_counts, tables.counts)
        forward_s = problem.cut_forward_s[np.ix_(used, used)]
        backward_s = problem.cut_backward_s[np.ix_(used, used)]
        self.cut_s = np.ascontiguousarray((forward_s + backward_s).transpose(2, 1, 0))  # cut, row after, row before it
        self.least_back_s, self.least_in_s = backward_s.min(axis=1), forward_s.min(axis=0)
        self.once_s = np.where(np.isfinite(self.least_in_s), self.least_in_s, 0.0)
        self.stage_s = tables.forward_s + tables.backward_s
        in_flight = np.minimum(self.m, levels.first + 1)[:, None, None]
        self.used = (tables.static_bytes + in_flight * tables.activation_bytes).transpose(1, 0, 2)  # (K, D, L + 1)
        self.used_last = tables.static_bytes + tables.activation_bytes
        self.capacity = problem.memory_capacity_bytes * (1 + LONG_SUM_ROUNDING)
        self.entered = entered
        self.least_u = np.minimum(workers_downstream(tables, starts), self.workers + 1)
        self.most_u = self.workers - np.maximum.accumulate(workers_needed(tables, starts)[:-1])
        # Q by the row k of the stage before it and the workers from its start on, u + r_k.
        rows = len(tables.counts)
        self.downstream = RowTable(rows, self.layers + 1, len(levels), num_workers=self.workers, planes=1)
        self.least_s = np.full((len(tables.counts), len(levels), self.layers + 1), np.inf)  # least over u

    def fill(self, i: int) -> None:
        """Q of the cut before layer i."""
        counts = self.tables.counts
        here = np.full((len(counts), len(self.levels), self.workers + 1), np.inf)  # R
        ahead_s = self.ahead(i)
        self.last_stage(i, ahead_s, here)
        self.stages(i, ahead_s, here)
        low, high = int(self.least_u[i]), int(self.most_u[i]) + 1
        if low >= high or not np.isfinite(here[:, :, low:high]).any():
            return
        (into,) = through_cut(self.cut_s[i], here[:, :, low:high])
        self.least_s[:, :, i] = into.min(axis=2)
        self.downstream.put(i, [into], low, counts)

    def last_stage(self, i: int, ahead_s: FloatArray, here: FloatArray) -> None:
        """The stages of all layers from i on."""
        tables, counts = self.tables, self.tables.counts
        forward_s = tables.forward_s[:, -1] - tables.forward_s[:, i] + self.least_in_s[:, i]
        length_s = self.stage_s[:, -1] - self.stage_s[:, i]
        backward_s = tables.backward_s[:, -1] - tables.backward_s[:, i]
        ok = (self.starts[:, -1] <= i) & (self.used_last[:, -1] - self.used_last[:, i] <= self.capacity)
        rest_s = self.threshold_s - self.m * (forward_s + backward_s) + self.once_s[:, i]
        ok &= ahead_s[np.arange(len(counts)), counts] < rest_s
        here[ok, 0, counts[ok]] = length_s[ok]

    def stages(self, i: int, ahead_s: FloatArray, here: FloatArray) -> None:
        """R over the stages that start at layer i and have others after them."""
        tables, counts, levels = self.tables, self.tables.counts, self.levels
        open_ = self.starts[:, i + 1 : -1] <= i
        if not open_.any():
            return
        ends = slice(i + 1, i + 2 + int(np.flatnonzero(open_.any(axis=0))[-1]))
        open_ = open_[:, : ends.stop - ends.start]
        forward_s = tables.forward_s[:, ends] - tables.forward_s[:, i, None] + self.least_in_s[:, i, None]
        back_s = self.least_back_s[:, ends]
        backward_s = tables.backward_s[:, ends] - tables.backward_s[:, i, None] + back_s
        length_s = self.stage_s[:, ends] - self.stage_s[:, i, None]
        # What is left besides G, which has the transfer into the stage once.
        rest_s = self.threshold_s - self.m * (forward_s + backward_s) + self.once_s[:, i, None]
        most = np.minimum(counts[:, None] + self.least_u[ends], self.workers)
        least_ahead_s = np.take_along_axis(ahead_s, most, axis=1)
        open_ = open_ & (least_ahead_s < rest_s)
        single, both = most_downstream_s(forward_s[:, None], backward_s[:, None], levels.last[:, None], self.m)
        rest_s, back_s = rest_s[:, None], back_s[:, None]
        single, both = rest_s + single + back_s, rest_s + both + 2 * back_s
        least_s = self.least_s[:, :, ends] + least_ahead_s[:, None]
        ok = open_[:, None] & (least_s < single) & (least_s + self.least_s[:, :, ends] < both)
        if np.isfinite(self.capacity):
            ok &= self.used[:, :, ends] - self.used[:, :, i, None] <= self.capacity
        row, level, end = np.nonzero(ok)
        if not len(row):
            return
        single, both, rest_s, length_s = single[ok], both[ok], rest_s[row, 0, end], length_s[row, end]
        low = int((counts[row] + self.least_u[i + 1 + end]).min())
        workers = slice(low, int(self.most_u[i]) + 1)
        if low >= workers.stop:
            return
        ahead_s = ahead_s[:, workers]
        least = np.full((*here.shape[:2], workers.stop - low), np.inf)
        step = max(_CHUNK // (workers.stop - low), 1)
        for a in range(0, len(row), step):
            b = slice(a, a + step)
            (downstream_s,) = self.downstream.take(row[b], i + 1 + end[b], level[b], workers)
            upstream_s = ahead_s[row[b]]
            total_s = downstream_s + upstream_s
            taken = total_s < single[b, None]
            taken &= total_s + downstream_s < both[b, None]
            taken &= upstream_s < rest_s[b, None]
            values = np.where(taken, downstream_s + length_s[b, None], np.inf)
            reduce_groups(least, values, row[b], level[b])
        np.minimum(here[:, 1:, workers], least[:, :-1], out=here[:, 1:, workers])
        for x in levels.wide.tolist():
            np.minimum(here[:, x, workers], least[:, x], out=here[:, x, workers])

    def ahead(self, i: int) -> FloatArray:
        """G of the coarse table for a stage of row k that starts at layer i, (K, W + 1), by the workers from there on."""
        counts = self.tables.counts
        return reverse_workers(self.entered, np.arange(len(counts)), i, np.zeros_like(counts), counts)

    def by_upstream(self, i: int) -> FloatArray:
        """Q of the cut before layer i with at most so many workers after, (K, D, W + 1), by the workers before the cut."""
        result = np.full((len(self.tables.counts), len(self.levels), self.workers + 1), np.inf)
        row, level = np.nonzero(self.downstream.index[:, i])
        result[row, level] = reverse_workers(self.downstream, row, i, level, self.tables.counts[row])
        return result


def reverse_workers(table: RowTable, row: IntArray, i: int, level: IntArray, shifts: IntArray) -> FloatArray:
    """First plane of a table that is stored by w + shift, by W - w instead, (n, W + 1); for at most w workers."""
    values = np.minimum.accumulate(table.take(row, i, level)[0], axis=1)
    workers = values.shape[1] - 1
    place = workers - np.arange(workers + 1) + shifts[:, None]
    least = np.take_along_axis(values, np.minimum(place, workers), axis=1)
    return np.where(place <= workers, least, np.inf)


def build_downstream(
    problem: PartitionProblem,
    tables: Tables,
    starts: IntArray,
    levels: Levels,
    threshold_s: float,
    entered: RowTable,
    deadline: float = float("inf"),
) -> DownstreamTable | None:
    """Fill Q of the module's notes.

    Parameters
    ----------
    problem : PartitionProblem
    tables : Tables
    starts : array of int
        Of `stage_starts` for the threshold.
    levels : Levels
    threshold_s : float
        Seconds; plans at or above it are of no interest.
    entered : RowTable
        G of an upstream table with a single level.
    deadline : float
        On the clock of `time.perf_counter`.

    Returns
    -------
    DownstreamTable or None
        None if time ran out.
    """
    table = DownstreamTable(problem, tables, starts, levels, threshold_s, entered)
    with np.errstate(invalid="ignore"):
        for i in range(problem.num_layers - 1, 0, -1):
            if time.perf_counter() > deadline:
                return None
            table.fill(i)
    return table


_MOST_ENTRIES = 1 << 26  # replica counts, cuts, levels and workers: some seconds, and mostly one in ten is ever reached


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTable:
    """H and Y of the module's notes for the plans below a threshold."""

    problem: PartitionProblem
    threshold_s: float
    counts: IntArray  # (K,), replicas of the rows
    levels: Levels
    upstream: RowTable  # H and -Y by the workers before it
    # G and -Z by the workers before a stage of row k that starts at the cut, plus r_k; the level is 0 for a stage with none after
    # it, else 1 + the stage's own level.
    entered: RowTable

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

    def before(
        self, first: IntArray, counts: IntArray, depth: IntArray, left: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """G and Z for stages that start at layers `first`, their replicas, stages after them, workers before them."""
        level = np.searchsorted(self.levels.first, depth, side="right")
        upstream_s, downstream_s = self.entered.at(np.searchsorted(self.counts, counts), first, level, left + counts)
        return upstream_s, -downstream_s

    def at(self, first: IntArray, counts: IntArray, depth: IntArray, left: IntArray) -> tuple[FloatArray, FloatArray]:
        """H and Y for cuts before layers `first`, replicas of the stages that end there, stages after, workers before it."""
        upstream_s, downstream_s = self.upstream.at(
            np.searchsorted(self.counts, counts), first, self.levels.of(depth), left
        )
        return upstream_s, -downstream_s

    def least_s(self, downstream_s: FloatArray, most_s: FloatArray) -> FloatArray:
        """Bound on the step of plans with ``D + c = downstream_s`` where Y (or Z) is ``most_s``; inf for plans past the threshold."""
        if np.isinf(self.threshold_s):
            return np.where(most_s > downstream_s, -np.inf, np.inf)
        return np.where(most_s > downstream_s, self.threshold_s - 2.0 * (most_s - downstream_s), np.inf)


def build_upstream(
    problem: PartitionProblem,
    threshold_s: float,
    *,
    most_levels: int = 1,
    deadline: float = float("inf"),
    tables: Tables | None = None,
) -> UpstreamTable | None:
    """Fill H and Y for the plans of a problem below a threshold.

    Parameters
    ----------
    problem : PartitionProblem
    threshold_s : float
        Seconds; plans at or above it are of no interest.
    most_levels : int
        How many depths are distinguished. More bound the memory better and take longer.
    deadline : float
        On the clock of `time.perf_counter`.
    tables : Tables, optional
        Of `build_tables`, if they are there already.

    Returns
    -------
    UpstreamTable or None
        None if time ran out or the table would be too large.
    """
    tables = build_tables(problem) if tables is None else tables
    most_depth = max(min(problem.num_micro_batches, problem.num_workers) - 1, 1)
    entries = (problem.num_layers + 1) * max(len(tables.counts), 1) * (problem.num_workers + 1)
    most_levels = min(most_levels, most_depth, _MOST_ENTRIES // entries)
    while most_levels > 0:
        try:
            return _build(problem, tables, threshold_s, depth_levels(most_depth, most_levels), deadline)
        except TableFullError:
            most_levels //= 2
    return None


def _build(
    problem: PartitionProblem, tables: Tables, threshold_s: float, levels: Levels, deadline: float
) -> UpstreamTable | None:
    """The table with these levels; None if time ran out."""
    limit_s = threshold_s / SAFETY
    starts = stage_starts(problem, tables, limit_s)
    # A coarse table without Q keeps Q small, and Q the fine one.
    coarse = _Builder(problem, tables, depth_levels(int(levels.last[-1]), 1), limit_s, starts)
    if not coarse.run(None, deadline):
        return None
    downstream = build_downstream(problem, tables, starts, levels, limit_s, coarse.entered, deadline)
    if downstream is None:
        return None
    builder = _Builder(problem, tables, levels, limit_s, starts)
    if not builder.run(downstream, deadline):
        return None
    if not problem.uses_all_workers:
        builder.upstream.accumulate()
        builder.entered.accumulate()
    return UpstreamTable(
        problem=problem,
        threshold_s=threshold_s,
        counts=tables.counts,
        levels=levels,
        upstream=builder.upstream,
        entered=builder.entered,
    )


class _Builder:
    """The arrays of one dynamic program; Y and Z with the opposite sign, so that all are at their least."""

    def __init__(
        self, problem: PartitionProblem, tables: Tables, levels: Levels, threshold_s: float, starts: IntArray
    ) -> None:
        self.tables, self.levels, self.threshold_s, self.starts = tables, levels, threshold_s, starts
        self.m, self.workers = problem.num_micro_batches, problem.num_workers
        rows = np.searchsorted(problem.replica_counts, tables.counts)
        forward_s = problem.cut_forward_s[np.ix_(rows, rows)]
        backward_s = problem.cut_backward_s[np.ix_(rows, rows)]
        self.cut_s = np.ascontiguousarray((forward_s + backward_s).transpose(2, 0, 1))
        # Least transfers that a stage pays for: into it, by the rows before it, and back to it, by the rows after.
        self.least_back_s, self.least_in_s = backward_s.min(axis=1), forward_s.min(axis=0)
        self.least_in_s[:, 0] = 0.0  # nothing is received before the first layer, whatever the entry says
        self.stage_s = tables.forward_s + tables.backward_s
        in_flight = np.minimum(self.m, levels.first + 1)[:, None, None]
        self.used = (tables.static_bytes + in_flight * tables.activation_bytes).transpose(1, 0, 2)  # (K, D, L + 1)
        self.capacity = problem.memory_capacity_bytes * (1 + LONG_SUM_ROUNDING)
        self.needed = np.maximum.accumulate(workers_needed(tables, self.starts)[:-1])
        self.most = problem.num_workers - workers_downstream(tables, self.starts)
        size = (len(tables.counts), problem.num_layers + 1, len(levels))
        self.upstream = RowTable(*size, num_workers=self.workers, planes=2)  # H, -Y
        # As `UpstreamTable` describes it. No stage can stand before the greatest depth.
        self.entered = RowTable(*size[:2], size[2] + 1, num_workers=self.workers, planes=2)
        # Least over the workers, (K, D + 1, L + 1).
        self.least_entered_s = np.full((2, size[0], size[2] + 1, size[1]), np.inf)

    def run(self, downstream: DownstreamTable | None, deadline: float) -> bool:
        """Fill all cuts; False if time ran out."""
        none_s = np.full((len(self.tables.counts), len(self.levels), self.workers + 1), -np.inf)
        with np.errstate(invalid="ignore"):
            for i in range(1, len(self.needed)):
                if time.perf_counter() > deadline:
                    return False
                self.fill(i, none_s if downstream is None else downstream.by_upstream(i))
        return True

    def fill(self, i: int, downstream_s: FloatArray) -> None:
        """All four of the cut before layer i, where Q is downstream_s, (K, D, W + 1)."""
        low, high = int(self.needed[i]), int(self.most[i])
        if low > high:
            return
        counts, workers = self.tables.counts, slice(low, high + 1)
        here = [np.full((len(counts), len(self.levels), self.workers + 1), np.inf) for _ in range(2)]
        self.first_stage(i, downstream_s, here)
        self.stages(i, downstream_s, here)
        here = [value[:, :, workers] for value in here]
        if not self.upstream.put(i, here, low):
            return
        entered = through_cut(self.cut_s[i], *here)
        for x, (value, least) in enumerate(zip(entered, self.least_entered_s, strict=True)):
            deeper = np.concatenate([value, np.full((len(value), 1, value.shape[2]), np.inf)], axis=1)
            for level in self.levels.wide.tolist():
                np.minimum(deeper[:, level + 1], value[:, level], out=deeper[:, level + 1])
            least[:, :, i] = deeper.min(axis=2)
            entered[x] = deeper
        self.entered.put(i, entered, low, counts)

    def first_stage(self, i: int, least_s: FloatArray, here: list[FloatArray]) -> None:
        """The stages of all layers before i."""
        tables, counts = self.tables, self.tables.counts
        back_s = self.least_back_s[:, i]
        forward_s, backward_s, after_s = tables.forward_s[:, i], tables.backward_s[:, i] + back_s, tables.after_s[:, i]
        slack_s = (self.threshold_s - self.m * (forward_s + backward_s) - after_s)[:, None]
        single, both = most_downstream_s(forward_s[:, None], backward_s[:, None], self.levels.last, self.m)
        downstream_s = np.minimum(slack_s + single, 0.5 * (slack_s + both)) + back_s[:, None]
        row, level = np.nonzero(
            (self.used[:, :, i] <= self.capacity)
            & (downstream_s > least_s[np.arange(len(counts)), :, counts])
            & (slack_s > 0)
            & (self.starts[:, i, None] == 0)
        )
        here[0][row, level, counts[row]] = self.stage_s[row, i] + after_s[row]
        here[1][row, level, counts[row]] = -downstream_s[row, level]

    def stages(self, i: int, least_s: FloatArray, here: list[FloatArray]) -> None:
        """H and Y over the stages that end before layer i and have others before them; least_s is Q there."""
        tables, counts = self.tables, self.tables.counts
        first = max(int(self.starts[:, i].min()), 1)
        if first >= i:
            return
        begins = slice(first, i)
        open_ = np.arange(first, i) >= self.starts[:, i, None]
        back_s, in_s = self.least_back_s[:, i, None], self.least_in_s[:, begins]
        forward_s = tables.forward_s[:, i, None] - tables.forward_s[:, begins] + in_s
        backward_s = tables.backward_s[:, i, None] - tables.backward_s[:, begins] + back_s
        length_s = self.stage_s[:, i, None] - self.stage_s[:, begins]
        # What must stay below the threshold besides G, which has the transfer into the stage once.
        slack_s = self.threshold_s - self.m * (forward_s + backward_s) + np.where(np.isfinite(in_s), in_s, 0.0)
        single, both = most_downstream_s(forward_s[:, None], backward_s[:, None], self.levels.last[:, None], self.m)
        slack_s, back_s = slack_s[:, None], back_s[:, None]
        single, both = slack_s + single + back_s, 0.5 * (slack_s + both) + back_s
        before_s, most_s = self.least_entered_s[:, :, 1:, begins]
        downstream_s = np.minimum(np.minimum(single - before_s, both - 0.5 * before_s), -most_s - length_s[:, None])
        ok = (downstream_s > least_s.min(axis=2)[:, :, None]) & (before_s < slack_s) & open_[:, None]
        if np.isfinite(self.capacity):
            ok &= self.used[:, :, i, None] - self.used[:, :, begins] <= self.capacity
        row, level, begin = np.nonzero(ok)
        if not len(row):
            return
        single, both, slack_s, length_s = single[ok], both[ok], slack_s[row, 0, begin], length_s[row, begin]
        low = int((counts[row] + self.needed[first + begin]).min())
        workers = slice(low, int(self.most[i]) + 1)
        if low >= workers.stop:
            return
        into = [value[:, :, workers] for value in here]
        step = max(_CHUNK // (workers.stop - low), 1)
        for a in range(0, len(row), step):
            b = slice(a, a + step)
            before_s, most_s = self.entered.take(row[b], first + begin[b], level[b] + 1, workers)
            downstream_s = np.minimum(single[b, None] - before_s, both[b, None] - 0.5 * before_s)
            np.minimum(downstream_s, -most_s - length_s[b, None], out=downstream_s)
            taken = (downstream_s > least_s[row[b], level[b], workers]) & (before_s < slack_s[b, None])
            reduce_groups(into[0], np.where(taken, before_s + length_s[b, None], np.inf), row[b], level[b])
            reduce_groups(into[1], np.where(taken, -downstream_s, np.inf), row[b], level[b])
