"""Tables over (row, cut, level, workers) of which only the part that holds something takes memory."""

from __future__ import annotations

import numpy as np

from costmodel.arrays import FloatArray, IntArray

__all__ = ["RowTable", "TableFullError", "reduce_groups"]

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
