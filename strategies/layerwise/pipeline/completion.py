"""Completion bounds: the least time of the stages before a cut, and the most that they leave to those after it.

Tables
------
The bounds are tables over (row, cut, level, workers). The depth of a cut is the number of stages after it; the stage before the cut
holds ``min(m, depth + 1)`` micro-batches. A level is a range of depths. A bound that holds for a level takes the least memory (its
first depth) and the least detour (its last depth) of the range.

Stages before a cut
-------------------
A plan whose stages after a cut are known has ``T >= V + c + sum of t before it + X_0`` (see `strategies.layerwise.pipeline.sweep`). The
last two terms are bounded from below by a dynamic program from the first layer to the last, over (cut i, replicas k of the
stage that ends there, workers w before it, stages after d):

    H[i, k, w, d] = min_j  t_k(j, i) + G[j, k, w - r_k, d + 1]        t_k(j, i) = sum of F + B of layers j..i-1
    G[j, k, w, d] = min_k' H[j, k', w, d] + cut_forward[k', k, j] + cut_backward[k', k, j]

and ``X_k(0, i)``, the first stage's own exchange and update, in place of G for j = 0. A stage takes part only if its layers fit the memory
with ``min(m, d + 1)`` micro-batches in flight, and if on its own it leaves the plan below a threshold C:

    sum of t before it + m t_s + X_0 < C       (2) of `strategies.layerwise.pipeline.problem`

There the transfer into the stage before it (known in the minimum only) and the gradient over cut i (not known yet) count at
their least.

What the stages before it leave to those after is bounded by the same recursion. Stage s needs

    g_s(D_s) < C - X_0 - sum of t before it - m t_s

and g increases with D, so ``D + c`` of a cut is at most (`most_downstream_s` solves for D)

    Y[i, k, w, d] = max_j  min( D_s + c at their most,  Z[j, k, w - r_k, d + 1] - t_k(j, i) )
    Z[j, k, w, d] = max_k' Y[j, k', w, d] - cut_forward[k', k, j] - cut_backward[k', k, j]

A stage before it is late if those after it take long, so both together exclude far more than ``m t_s`` alone. Since Y falls at
least half as fast as C, ``T >= C - 2 (Y - D - c)``.

Depths may be put together in a few levels, which only lowers H and raises Y. A table serves every lower threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import LONG_SUM_ROUNDING
from strategies.layerwise.pipeline.problem import (
    SAFETY,
    PartitionProblem,
    Tables,
    build_tables,
    stage_starts,
    workers_downstream,
    workers_needed,
)
from strategies.limits import UNLIMITED, Clock

_FIRST_ROWS = 1024
_MOST_PLANE_ENTRIES = 1 << 24  # of one plane: 128 MiB


class TableFullError(MemoryError):
    """A table would take more memory than it may."""


class RowTable:
    """Several values over the workers for each (row k, cut i, level l); +inf where nothing was put.

    Examples
    --------
    >>> table = RowTable(2, 5, 3, num_workers=4, planes=1)
    >>> table.put(3, [np.full((2, 3, 2), 7.0)], low=1, shifts=np.array([0, 3]))
    True
    >>> rows, level = np.array([0, 1]), np.array([2, 2])
    >>> table.take(rows, 3, level)[0].tolist()
    [[inf, 7.0, 7.0, inf, inf], [inf, inf, inf, inf, 7.0]]
    >>> float(table.take(rows, 2, level)[0].min())
    inf
    """

    def __init__(self, num_rows: int, num_cuts: int, num_levels: int, *, num_workers: int, planes: int) -> None:
        self.index = np.zeros((num_rows, num_cuts, num_levels), dtype=np.int64)  # 0: nothing
        self.values = [np.full((_FIRST_ROWS, num_workers + 1), np.inf) for _ in range(planes)]
        self.size = 1

    def put(self, i: int, values: list[FloatArray], low: int, shifts: IntArray | None = None) -> bool:
        """Store values of cut i, (rows, levels, n) each and finite in the same places, for the workers from `low` on.

        With shifts, those of row k are stored for `shifts[k]` workers more, and left out past the last. False if there is nothing.
        """
        row, level = np.nonzero(np.isfinite(values[0]).any(axis=2))
        if not len(row):
            return False
        self.grow(self.size + len(row))
        new = slice(self.size, self.size + len(row))
        self.index[row, i, level] = np.arange(new.start, new.stop)
        self.size = new.stop
        width, count = self.values[0].shape[1], values[0].shape[2]
        begin = low + (np.zeros(len(row), dtype=np.int64) if shifts is None else shifts[row])
        place = begin[:, None] + np.arange(count)
        for into, value in zip(self.values, values, strict=True):
            block = np.full((len(row), max(width, int(place.max()) + 1)), np.inf)
            np.put_along_axis(block, place, value[row, level], axis=1)
            into[new] = block[:, :width]
        return True

    def grow(self, size: int) -> None:
        """Make room for so many rows; raises TableFullError past the limit."""
        capacity, width = self.values[0].shape
        if size * width > _MOST_PLANE_ENTRIES:
            raise TableFullError
        if size > capacity:
            for plane, old in enumerate(self.values):
                self.values[plane] = np.empty((max(2 * capacity, size), width))
                self.values[plane][: self.size] = old[: self.size]

    def take(self, row: IntArray, i: IntArray | int, level: IntArray, workers: slice = slice(None)) -> list[FloatArray]:
        """Values over the workers, (n, workers), of each plane."""
        where = self.index[row, i, level]
        return [value[where, workers] for value in self.values]

    def at(self, row: IntArray, i: IntArray, level: IntArray, workers: IntArray) -> list[FloatArray]:
        """One value of each plane for all arguments, which are broadcast."""
        where = self.index[row, i, level]
        return [value[where, workers] for value in self.values]

    def accumulate(self) -> None:
        """Make every value the least for at most so many workers."""
        for value in self.values:
            np.minimum.accumulate(value[: self.size], axis=1, out=value[: self.size])


def reduce_groups(least: FloatArray, values: FloatArray, row: IntArray, level: IntArray) -> None:
    """Lower ``least[row, level]`` to the values, (n, ...), that are in order of row and level.

    >>> least = np.full((1, 2, 1), 5.0)
    >>> reduce_groups(least, np.array([[4.0], [3.0], [9.0]]), np.array([0, 0, 0]), np.array([0, 0, 1]))
    >>> least.tolist()
    [[[3.0], [5.0]]]
    """
    begins = np.flatnonzero(np.concatenate([[True], (row[1:] != row[:-1]) | (level[1:] != level[:-1])]))
    where = row[begins], level[begins]
    least[where] = np.minimum(least[where], np.minimum.reduceat(values, begins, axis=0))


@dataclass(frozen=True, slots=True)
class Levels:
    """Ranges of depths from 1 to the greatest."""

    first: IntArray  # (D,), increasing, from 1
    last: IntArray  # (D,)

    def __len__(self) -> int:
        return len(self.first)

    def of(self, depth: IntArray) -> IntArray:
        """Level of each depth; depths past the greatest count as the greatest."""
        return np.searchsorted(self.first, depth, side="right") - 1


def depth_levels(most_depth: int, most_levels: int) -> Levels:
    """Each depth its own level, but the last of at most so many levels has all that are left.

    >>> levels = depth_levels(7, 3)
    >>> levels.first.tolist(), levels.last.tolist()
    ([1, 2, 3], [1, 2, 7])
    """
    first = np.arange(1, max(min(most_depth, most_levels), 1) + 1)
    return Levels(first, np.append(first[:-1], max(most_depth, 1)))


def most_downstream_s(
    forward_s: FloatArray, backward_s: FloatArray, depth: IntArray, num_micro_batches: int
) -> tuple[FloatArray, FloatArray]:
    """Offsets (a, b) with which a stage leaves ``D <= min(slack + a, (slack + b) / 2)`` to the sum of t after it.

    The detour ``g(D) <= slack`` of `strategies.layerwise.pipeline.problem` solved for D, where slack is what ``m t`` and the stages before
    it leave of the step. With w = depth, lo and t the smaller and the sum of F and B:

        m >= w + 2:  g = max(0, D - w F) + max(0, D - w B)   D <= min(slack + w lo, (slack + w t) / 2)
        otherwise:   g = max(0, D - (m - 1) lo)              D <= slack + (m - 1) lo

    Examples
    --------
    Equal stages of 1 + 2 s, one after, m = 4: g = max(0, D - 1) + max(0, D - 2), so a slack of 3 admits D = 3.

    >>> a, b = most_downstream_s(np.array([1.0]), np.array([2.0]), np.array([1]), 4)
    >>> float(min(3 + a[0], (3 + b[0]) / 2))
    3.0
    """
    long = depth <= num_micro_batches - 2
    single = np.where(long, depth, num_micro_batches - 1) * np.minimum(forward_s, backward_s)
    return single, np.where(long, depth * (forward_s + backward_s), np.inf)


def through_cut(cut_s: FloatArray, *values: FloatArray) -> list[FloatArray]:
    """Least of each value plus a transfer: ``min_k values[k] + cut_s[k, k']`` for every k'.

    Parameters
    ----------
    cut_s : array, shape (K, K')
    *values : arrays, shape (K, ...)
        Finite in the same places, which may be few: the time goes by their number.

    Returns
    -------
    list of array, shape (K', ...)

    Examples
    --------
    >>> through_cut(np.array([[1.0, 5.0], [2.0, 1.0]]), np.array([[10.0], [8.0]]))[0].tolist()
    [[10.0], [9.0]]
    """
    flat = [value.reshape(len(value), -1) for value in values]
    place, row = np.nonzero(np.isfinite(flat[0]).T)
    results = [np.full((cut_s.shape[1], part.shape[1]), np.inf) for part in flat]
    if len(place):
        begins = np.flatnonzero(np.concatenate([[True], place[1:] != place[:-1]]))
        transfer_s = cut_s[row]
        closed = ~np.isfinite(transfer_s)
        for part, result in zip(flat, results, strict=True):
            with np.errstate(invalid="ignore"):
                sums = transfer_s + part[row, place][:, None]
            sums[closed] = np.inf  # a value of -inf does not open a cut that cannot be crossed
            result[:, place[begins]] = np.minimum.reduceat(sums, begins, axis=0).T
    return [result.reshape(-1, *values[0].shape[1:]) for result in results]


_CHUNK = 1 << 17  # entries looked at together: 1 MiB each


_MOST_ENTRIES = 1 << 26  # replica counts, cuts, levels and workers: some seconds, and mostly one in ten is ever reached


def build_upstream(
    problem: PartitionProblem,
    threshold_s: float,
    *,
    most_levels: int = 1,
    clock: Clock = UNLIMITED,
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
    clock : Clock
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
        table = UpstreamTable(problem, tables, depth_levels(most_depth, most_levels), threshold_s)
        try:
            return table if table.fill_all(clock) else None
        except TableFullError:
            most_levels //= 2
    return None


class UpstreamTable:
    """H and Y of the module's notes for the plans below a threshold; Y and Z with the opposite sign, so that all are at their least."""

    def __init__(self, problem: PartitionProblem, tables: Tables, levels: Levels, threshold_s: float) -> None:
        self.tables, self.levels, self.threshold_s, self.limit_s = tables, levels, threshold_s, threshold_s / SAFETY
        self.uses_all_workers = problem.uses_all_workers
        self.m, self.workers = problem.num_micro_batches, problem.num_workers
        self.starts = stage_starts(problem, tables, self.limit_s)
        rows = np.searchsorted(problem.replica_counts, tables.counts)
        forward_s = problem.cut_forward_s[np.ix_(rows, rows)]
        backward_s = problem.cut_backward_s[np.ix_(rows, rows)]
        self.cut_s = np.ascontiguousarray((forward_s + backward_s).transpose(2, 0, 1))  # cut, row before it, row after
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
        self.upstream = RowTable(*size, num_workers=self.workers, planes=2)  # H and -Y by the workers before it
        # G and -Z by the workers before a stage of row k that starts at the cut, plus r_k; the level is 0 for a stage with none after
        # it, else 1 + the stage's own level. No stage can stand before the greatest depth.
        self.entered = RowTable(*size[:2], size[2] + 1, num_workers=self.workers, planes=2)
        # Least G over the workers, (K, D + 1, L + 1).
        self.least_entered_s = np.full((size[0], size[2] + 1, size[1]), np.inf)

    def before(
        self, first: IntArray, counts: IntArray, depth: IntArray, left: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """G and Z for stages that start at layers `first`, their replicas, stages after them, workers before them."""
        level = np.searchsorted(self.levels.first, depth, side="right")
        upstream_s, downstream_s = self.entered.at(
            np.searchsorted(self.tables.counts, counts), first, level, left + counts
        )
        return upstream_s, -downstream_s

    def at(self, first: IntArray, counts: IntArray, depth: IntArray, left: IntArray) -> tuple[FloatArray, FloatArray]:
        """H and Y for cuts before layers `first`, replicas of the stages that end there, stages after, workers before it."""
        upstream_s, downstream_s = self.upstream.at(
            np.searchsorted(self.tables.counts, counts), first, self.levels.of(depth), left
        )
        return upstream_s, -downstream_s

    def least_s(self, downstream_s: FloatArray, most_s: FloatArray) -> FloatArray:
        """Bound on the step of plans with ``D + c = downstream_s`` where Y (or Z) is ``most_s``; inf for plans past the threshold."""
        if np.isinf(self.threshold_s):
            return np.where(most_s > downstream_s, -np.inf, np.inf)
        return np.where(most_s > downstream_s, self.threshold_s - 2.0 * (most_s - downstream_s), np.inf)

    def fill_all(self, clock: Clock) -> bool:
        """Fill all cuts; False if time ran out."""
        with np.errstate(invalid="ignore"):
            for i in range(1, len(self.needed)):
                if clock.is_over:
                    return False
                self.fill(i)
        if not self.uses_all_workers:
            self.upstream.accumulate()
            self.entered.accumulate()
        return True

    def fill(self, i: int) -> None:
        """All four of the cut before layer i."""
        low, high = int(self.needed[i]), int(self.most[i])
        if low > high:
            return
        counts, workers = self.tables.counts, slice(low, high + 1)
        here = [np.full((len(counts), len(self.levels), self.workers + 1), np.inf) for _ in range(2)]
        self.first_stage(i, here)
        self.stages(i, here)
        here = [value[:, :, workers] for value in here]
        if not self.upstream.put(i, here, low):
            return
        entered = through_cut(self.cut_s[i], *here)
        for x, value in enumerate(entered):
            deeper = np.concatenate([value, np.full((len(value), 1, value.shape[2]), np.inf)], axis=1)
            if self.levels.last[-1] > self.levels.first[-1]:  # the next depth may be of the same level
                np.minimum(deeper[:, -1], value[:, -1], out=deeper[:, -1])
            entered[x] = deeper
        self.least_entered_s[:, :, i] = entered[0].min(axis=2)
        self.entered.put(i, entered, low, counts)

    def first_stage(self, i: int, here: list[FloatArray]) -> None:
        """The stages of all layers before i."""
        tables, counts = self.tables, self.tables.counts
        back_s = self.least_back_s[:, i]
        forward_s, backward_s, after_s = tables.forward_s[:, i], tables.backward_s[:, i] + back_s, tables.after_s[:, i]
        slack_s = (self.limit_s - self.m * (forward_s + backward_s) - after_s)[:, None]
        single, both = most_downstream_s(forward_s[:, None], backward_s[:, None], self.levels.last, self.m)
        downstream_s = np.minimum(slack_s + single, 0.5 * (slack_s + both)) + back_s[:, None]
        row, level = np.nonzero((self.used[:, :, i] <= self.capacity) & (slack_s > 0) & (self.starts[:, i, None] == 0))
        here[0][row, level, counts[row]] = self.stage_s[row, i] + after_s[row]
        here[1][row, level, counts[row]] = -downstream_s[row, level]

    def stages(self, i: int, here: list[FloatArray]) -> None:
        """H and Y over the stages that end before layer i and have others before them."""
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
        slack_s = self.limit_s - self.m * (forward_s + backward_s) + np.where(np.isfinite(in_s), in_s, 0.0)
        single, both = most_downstream_s(forward_s[:, None], backward_s[:, None], self.levels.last[:, None], self.m)
        slack_s, back_s = slack_s[:, None], back_s[:, None]
        single, both = slack_s + single + back_s, 0.5 * (slack_s + both) + back_s
        ok = (self.least_entered_s[:, 1:, begins] < slack_s) & open_[:, None]
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
            taken = before_s < slack_s[b, None]  # not where before_s is inf: nothing leads there, and Z is -inf
            reduce_groups(into[0], np.where(taken, before_s + length_s[b, None], np.inf), row[b], level[b])
            reduce_groups(into[1], np.where(taken, -downstream_s, np.inf), row[b], level[b])
