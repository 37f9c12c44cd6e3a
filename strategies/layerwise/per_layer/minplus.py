"""Partitions of options into classes, and products of tables in (min, +) algebra."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.arrays import FloatArray, IntArray

__all__ = ["Partition", "group_min", "min_plus"]

CHUNK_ENTRIES = 65_536  # temporaries of this size stay in a core's cache


class Partition:
    """Classes of the options of one node.

    Parameters
    ----------
    classes : array of int, shape (options,)
        Class of each option, below ``count``.
    count : int

    Examples
    --------
    >>> p = Partition(np.array([0, 1, 0]), 2)
    >>> p.reduce(np.array([3.0, 5.0, 2.0])).tolist()
    [2.0, 5.0]
    """

    __slots__ = ("_order", "_present", "_representative", "_starts", "classes", "count")

    def __init__(self, classes: IntArray, count: int, representative: IntArray | None = None) -> None:
        self.classes = classes
        self.count = count
        self._order: IntArray | None = None
        self._representative = representative

    @classmethod
    def joint(cls, parts: Sequence[Partition], size: int) -> Partition:
        """Coarsest partition that refines all the given ones, of ``size`` options; its classes are all in use."""
        if not parts:
            return cls(np.zeros(size, dtype=np.int64), 1, np.zeros(1, dtype=np.int64))
        code = parts[0].classes
        for part in parts[1:]:
            if part.classes is not parts[0].classes:
                code = code * part.count + part.classes
        values, first, classes = np.unique(code, return_index=True, return_inverse=True)
        return cls(classes, len(values), first)

    @property
    def representative(self) -> IntArray:
        """An option of every class."""
        assert self._representative is not None
        return self._representative

    def _sort(self) -> IntArray:
        order = self._order = np.argsort(self.classes, kind="stable")
        ordered = self.classes[order]
        self._starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        self._present = ordered[self._starts]
        return order

    def reduce(self, values: FloatArray, axis: int = 0) -> FloatArray:
        """Minimum over the options of each class along one axis; infinity for an empty class."""
        order = self._sort() if self._order is None else self._order
        least: FloatArray = np.minimum.reduceat(values.take(order, axis=axis), self._starts, axis=axis)
        if len(self._present) == self.count:
            return least
        shape = list(least.shape)
        shape[axis] = self.count
        out = np.full(shape, np.inf)
        out[(slice(None),) * axis + (self._present,)] = least
        return out


def group_min(table: FloatArray, part: Partition, axis: int) -> FloatArray:
    """Minimum over the entries of each class along ``axis``."""
    return part.reduce(table, axis)


def min_plus(left: FloatArray, right: FloatArray) -> FloatArray:
    """Product in (min, +) algebra, ``out[a, b] = min_k left[k, a] + right[k, b]``.

    Parameters
    ----------
    left, right : arrays, shape (terms, rows) and (terms, columns)

    Returns
    -------
    array, shape (rows, columns)

    Examples
    --------
    >>> min_plus(np.array([[1.0, 4.0], [3.0, 0.0]]), np.array([[10.0], [20.0]])).tolist()
    [[11.0], [14.0]]
    """
    terms = len(left)
    chunk = max(1, CHUNK_ENTRIES // (left.shape[1] * right.shape[1]))
    out: FloatArray = (left[:chunk, :, None] + right[:chunk, None, :]).min(axis=0)
    for start in range(chunk, terms, chunk):
        part = left[start : start + chunk, :, None] + right[start : start + chunk, None, :]
        np.minimum(out, part.min(axis=0), out=out)
    return out
