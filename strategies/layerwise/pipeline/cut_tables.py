"""Tables over (row, cut, level, workers), and the steps that the bounds on both sides of a cut share.

The depth of a cut is the number of stages after it; the stage before the cut holds ``min(m, depth + 1)`` micro-batches.
A level is a range of depths. A bound that holds for a level takes the least memory (its first depth) and the least detour
(its last depth) of the range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray

__all__ = ["Levels", "RowTable", "TableFullError", "depth_levels", "most_downstream_s", "reduce_groups", "through_cut"]


_FIRST_ROWS = 1024
_MOST_ENTRIES = 1 << 24  # of one plane: 128 MiB


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
        if size * width > _MOST_ENTRIES:
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

    @property
    def wide(self) -> IntArray:
        """Levels of more than one depth: the next depth may be of the same level."""
        return np.flatnonzero(self.last > self.first)


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
