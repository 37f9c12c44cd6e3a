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

The stages in front count at their least (`Tables.prefix_s`), and so do the transfers that are not known yet. As ``m t_s + g_s`` does not fall
with c while D + c stays the same (`strategies.pipeline.solve`), Q and the least transfer c stand for D and c.

Depths are put together in levels (`strategies.pipeline.levels`).
"""

from __future__ import annotations

import time

import numpy as np

from strategies.pipeline.bounds import Tables, workers_behind, workers_needed
from strategies.pipeline.levels import Levels, most_behind_s, through_cut
from strategies.pipeline.problem import FloatArray, IntArray, PartitionProblem

__all__ = ["BehindTable", "build_behind"]

_CHUNK = 1 << 19  # entries looked at together


class BehindTable:
    """The array of one dynamic program, filled from the last cut to the first."""

    def __init__(
        self, problem: PartitionProblem, tables: Tables, starts: IntArray, levels: Levels, threshold_s: float
    ) -> None:
        self.tables, self.starts, self.levels, self.threshold_s = tables, starts, levels, threshold_s
        self.m, self.layers, self.workers = problem.num_micro_batches, problem.num_layers, problem.num_workers
        rows = np.searchsorted(problem.replica_counts, tables.counts)
        forward_s = problem.cut_forward_s[np.ix_(rows, rows)]
        backward_s = problem.cut_backward_s[np.ix_(rows, rows)]
        self.cut_s = np.ascontiguousarray((forward_s + backward_s).transpose(2, 1, 0))  # (cut, row behind, row in front)
        self.least_back_s, self.least_in_s = backward_s.min(axis=1), forward_s.min(axis=0)
        self.stage_s = tables.forward_s + tables.backward_s
        in_flight = np.minimum(self.m, levels.first + 1)[:, None, None]
        self.used = (tables.static_bytes + in_flight * tables.activation_bytes).transpose(1, 0, 2)  # (K, D, L + 1)
        self.used_last = tables.static_bytes + tables.activation_bytes
        self.capacity = problem.memory_capacity_bytes * (1 + 1e-11)
        # Least time in front of cut i with u workers behind it.
        self.ahead_s = tables.prefix_s[:, ::-1] + tables.first_after_s
        self.least_u = np.minimum(workers_behind(tables, starts), self.workers + 1)
        self.most_u = self.workers - np.maximum.accumulate(workers_needed(tables, starts)[:-1])
        # Q by the row k of the stage in front and the workers behind that stage's own start: u + r_k.
        self.behind_s = np.full((len(tables.counts), self.layers + 1, len(levels), self.workers + 1), np.inf)
        self.least_s = np.full((len(tables.counts), len(levels), self.layers + 1), np.inf)  # least over u

    def fill(self, i: int) -> None:
        """Q of the cut before layer i."""
        counts = self.tables.counts
        here = np.full((len(counts), len(self.levels), self.workers + 1), np.inf)  # R
        self.last_stage(i, here)
        self.stages(i, here)
        low, high = int(self.least_u[i]), int(self.most_u[i]) + 1
        if low >= high or not np.isfinite(here[:, :, low:high]).any():
            return
        (into,) = through_cut(self.cut_s[i], here[:, :, low:high])
        self.least_s[:, :, i] = into.min(axis=2)
        for k, r in enumerate(counts.tolist()):
            stop = min(high, self.workers + 1 - r)
            if low < stop:
                self.behind_s[k, i, :, low + r : stop + r] = into[k, :, : stop - low]

    def last_stage(self, i: int, here: FloatArray) -> None:
        """The stages of all layers from i on."""
        tables, counts = self.tables, self.tables.counts
        forward_s = tables.forward_s[:, -1] - tables.forward_s[:, i] + self.least_in_s[:, i]
        length_s = self.stage_s[:, -1] - self.stage_s[:, i]
        backward_s = tables.backward_s[:, -1] - tables.backward_s[:, i]
        ok = (self.starts[:, -1] <= i) & (self.used_last[:, -1] - self.used_last[:, i] <= self.capacity)
        ok &= self.ahead_s[i, counts] + self.m * (forward_s + backward_s) < self.threshold_s
        here[ok, 0, counts[ok]] = length_s[ok]

    def stages(self, i: int, here: FloatArray) -> None:
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
        rest_s = self.threshold_s - self.m * (forward_s + backward_s)
        ahead_s = self.ahead_s[i, np.minimum(counts[:, None] + self.least_u[ends], self.workers)]
        open_ = open_ & (ahead_s < rest_s)
        single, both = most_behind_s(forward_s[:, None], backward_s[:, None], levels.last[:, None], self.m)
        rest_s, back_s = rest_s[:, None], back_s[:, None]
        single, both = rest_s + single + back_s, rest_s + both + 2 * back_s
        least_s = self.least_s[:, :, ends] + ahead_s[:, None]
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
        front_s = self.ahead_s[i, workers]
        least = np.full((*here.shape[:2], workers.stop - low), np.inf)
        step = max(_CHUNK // (workers.stop - low), 1)
        for a in range(0, len(row), step):
            b = slice(a, a + step)
            behind_s = self.behind_s[row[b], i + 1 + end[b], level[b], workers]
            total_s = behind_s + front_s
            taken = total_s < single[b, None]
            taken &= total_s + behind_s < both[b, None]
            taken &= front_s < rest_s[b, None]
            values = np.where(taken, behind_s + length_s[b, None], np.inf)
            reduce_groups(least, values, row[b], level[b])
        np.minimum(here[:, 1:, workers], least[:, :-1], out=here[:, 1:, workers])
        for x in levels.wide.tolist():
            np.minimum(here[:, x, workers], least[:, x], out=here[:, x, workers])

    def by_front(self, i: int) -> FloatArray:
        """Q of the cut before layer i with at most so many workers behind, (K, D, W + 1), by the workers in front of the cut."""
        result = np.full((len(self.tables.counts), len(self.levels), self.workers + 1), np.inf)
        for k, r in enumerate(self.tables.counts.tolist()):
            result[k, :, r:] = np.minimum.accumulate(self.behind_s[k, i, :, r:], axis=-1)[:, ::-1]
        return result


def reduce_groups(least: FloatArray, values: FloatArray, row: IntArray, level: IntArray) -> None:
    """Lower ``least[row, level]`` to the values, (n, ...), that are in order of row and level."""
    begins = np.flatnonzero(np.concatenate([[True], (row[1:] != row[:-1]) | (level[1:] != level[:-1])]))
    where = row[begins], level[begins]
    least[where] = np.minimum(least[where], np.minimum.reduceat(values, begins, axis=0))


def build_behind(
    problem: PartitionProblem,
    tables: Tables,
    starts: IntArray,
    levels: Levels,
    threshold_s: float,
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
    deadline : float
        On the clock of `time.perf_counter`.

    Returns
    -------
    BehindTable or None
        None if time ran out.
    """
    table = BehindTable(problem, tables, starts, levels, threshold_s)
    with np.errstate(invalid="ignore"):
        for i in range(problem.num_layers - 1, 0, -1):
            if time.perf_counter() > deadline:
                return None
            table.fill(i)
    return table
