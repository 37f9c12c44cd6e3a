"""Least time of the stages behind a cut: what every plan leaves at least to the stages in front of it.

Notes
-----
With D the sum of t behind cut i and c the backward transfer over it, ``y = D + c`` is bounded from below by a dynamic program from the
last layer to the first, over (cut i, replicas k of the stage in front of it, workers u behind, stages behind d):

    Q[i, k, u, d] = min_k' R[i, k', u, d] + cut_forward[k, k', i] + cut_backward[k, k', i]
    R[i, k', u, d] = min_e t_k'(i, e) + Q[e, k', u - r, d - 1]          Q[L, k, 0, 0] = 0

over the stages of layers i..e-1 that fit the memory with ``min(m, d)`` micro-batches in flight and that on their own leave the plan below
a threshold C:

    sum of t in front + m t_s + g_s + X_0 < C

The stages in front count at their least (G of a front table with a single level), and so do the transfers that are not known yet. As
``m t_s + g_s`` does not fall with c while D + c stays the same (`strategies.layerwise.pipeline.sweep`), Q and the least transfer c stand
for D and c.

Depths are put together in levels (`strategies.layerwise.pipeline.levels`).
"""

from __future__ import annotations

import time

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import LONG_SUM_ROUNDING
from strategies.layerwise.pipeline.bounds import Tables, workers_behind, workers_needed
from strategies.layerwise.pipeline.levels import Levels, most_behind_s, through_cut
from strategies.layerwise.pipeline.problem import PartitionProblem
from strategies.layerwise.pipeline.rows import RowTable, reduce_groups

__all__ = ["BehindTable", "build_behind"]

_CHUNK = 1 << 17  # entries looked at together: 1 MiB each


class BehindTable:
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
        self.cut_s = np.ascontiguousarray((forward_s + backward_s).transpose(2, 1, 0))  # cut, row behind, row in front
        self.least_back_s, self.least_in_s = backward_s.min(axis=1), forward_s.min(axis=0)
        self.once_s = np.where(np.isfinite(self.least_in_s), self.least_in_s, 0.0)
        self.stage_s = tables.forward_s + tables.backward_s
        in_flight = np.minimum(self.m, levels.first + 1)[:, None, None]
        self.used = (tables.static_bytes + in_flight * tables.activation_bytes).transpose(1, 0, 2)  # (K, D, L + 1)
        self.used_last = tables.static_bytes + tables.activation_bytes
        self.capacity = problem.memory_capacity_bytes * (1 + LONG_SUM_ROUNDING)
        self.entered = entered
        self.least_u = np.minimum(workers_behind(tables, starts), self.workers + 1)
        self.most_u = self.workers - np.maximum.accumulate(workers_needed(tables, starts)[:-1])
        # Q by the row k of the stage in front and the workers from its start on, u + r_k.
        rows = len(tables.counts)
        self.behind = RowTable(rows, self.layers + 1, len(levels), num_workers=self.workers, planes=1)
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
        self.behind.put(i, [into], low, counts)

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
        """R over the stages that start at layer i and have others behind them."""
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
        single, both = most_behind_s(forward_s[:, None], backward_s[:, None], levels.last[:, None], self.m)
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
            (behind_s,) = self.behind.take(row[b], i + 1 + end[b], level[b], workers)
            front_s = ahead_s[row[b]]
            total_s = behind_s + front_s
            taken = total_s < single[b, None]
            taken &= total_s + behind_s < both[b, None]
            taken &= front_s < rest_s[b, None]
            values = np.where(taken, behind_s + length_s[b, None], np.inf)
            reduce_groups(least, values, row[b], level[b])
        np.minimum(here[:, 1:, workers], least[:, :-1], out=here[:, 1:, workers])
        for x in levels.wide.tolist():
            np.minimum(here[:, x, workers], least[:, x], out=here[:, x, workers])

    def ahead(self, i: int) -> FloatArray:
        """G of the coarse table for a stage of row k that starts at layer i, (K, W + 1), by the workers from there on."""
        counts = self.tables.counts
        return reverse_workers(self.entered, np.arange(len(counts)), i, np.zeros_like(counts), counts)

    def by_front(self, i: int) -> FloatArray:
        """Q of the cut before layer i with at most so many workers behind, (K, D, W + 1), by the workers in front of the cut."""
        result = np.full((len(self.tables.counts), len(self.levels), self.workers + 1), np.inf)
        row, level = np.nonzero(self.behind.index[:, i])
        result[row, level] = reverse_workers(self.behind, row, i, level, self.tables.counts[row])
        return result


def reverse_workers(table: RowTable, row: IntArray, i: int, level: IntArray, shifts: IntArray) -> FloatArray:
    """First plane of a table that is stored by w + shift, by W - w instead, (n, W + 1); for at most w workers."""
    values = np.minimum.accumulate(table.take(row, i, level)[0], axis=1)
    workers = values.shape[1] - 1
    place = workers - np.arange(workers + 1) + shifts[:, None]
    least = np.take_along_axis(values, np.minimum(place, workers), axis=1)
    return np.where(place <= workers, least, np.inf)


def build_behind(
    problem: PartitionProblem,
    tables: Tables,
    starts: IntArray,
    levels: Levels,
    threshold_s: float,
    entered: RowTable,
    deadline: float = float("inf"),
) -> BehindTable | None:
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
        G of a front table with a single level.
    deadline : float
        On the clock of `time.perf_counter`.

    Returns
    -------
    BehindTable or None
        None if time ran out.
    """
    table = BehindTable(problem, tables, starts, levels, threshold_s, entered)
    with np.errstate(invalid="ignore"):
        for i in range(problem.num_layers - 1, 0, -1):
            if time.perf_counter() > deadline:
                return None
            table.fill(i)
    return table
