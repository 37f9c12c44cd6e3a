"""Array types: what an annotation says about the numbers in an array; its shape stands in the docstring. Structs of such arrays.

All arrays of figures are of 64 bits: a sum of times in 32 bits would already differ between plans that are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoolArray", "FloatArray", "IntArray", "StructOfArrays", "combined", "rows_of", "stacked"]


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


_T = TypeVar("_T", bound=np.generic)

_LARGEST = 2**62


def combined(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """Find the distinct rows of some columns.

    Parameters
    ----------
    *columns : arrays (n,)
        Not negative.

    Returns
    -------
    first, inverse : arrays
        Where each distinct row occurs first, and for every row which of them it is.

    Examples
    --------
    >>> first, inverse = combined(np.array([1, 2, 1]), np.array([5, 5, 5]))
    >>> first.tolist(), inverse.tolist()
    ([0, 1], [0, 1, 0])
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for column in columns:
        radix = int(column.max(initial=0)) + 1
        if size > _LARGEST // radix:
            _, key = np.unique(key, return_inverse=True)
            size = int(key.max(initial=0)) + 1
        key = key * radix + column
        size *= radix
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def rows_of(values: NDArray[_T], index: NDArray[Any]) -> NDArray[_T]:
    """Select rows of an array with few columns, as ``values[index]`` but with the columns contiguous in memory.

    What follows then works along the rows, thousands at a time, and not along a handful of columns.

    Parameters
    ----------
    values : array (c, ...)
    index : array (n,)

    Returns
    -------
    array (n, ...)

    Examples
    --------
    >>> rows_of(np.array([[1, 2], [3, 4]]), np.array([1, 1, 0])).tolist()
    [[3, 4], [3, 4], [1, 2]]
    """
    return np.take(values.T, index, axis=-1).T


def stacked(columns: Sequence[NDArray[_T]]) -> NDArray[_T]:
    """Stack arrays of as many rows along a new second axis, each column contiguous in memory as `rows_of` has it.

    Parameters
    ----------
    columns : k arrays (n, ...)

    Returns
    -------
    array (n, k, ...)

    Examples
    --------
    >>> stacked([np.array([1, 2, 3]), np.array([4, 5, 6])]).tolist()
    [[1, 4], [2, 5], [3, 6]]
    """
    return np.stack([column.T for column in columns], axis=-2).T


class StructOfArrays:
    """Base of a dataclass whose fields are arrays with a row for each item.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Points(StructOfArrays):
    ...     x: FloatArray
    >>> points = Points(x=np.array([1.0, 2.0, 3.0]))
    >>> points.take(np.array([2, 0])).x.tolist(), Points.joined([points, points.take(slice(1))]).x.tolist()
    ([3.0, 1.0], [1.0, 2.0, 3.0, 1.0])
    """

    __slots__ = ()

    def take(self, index: NDArray[Any] | slice | Sequence[int]) -> Self:
        """A selection of the rows; columns of it are contiguous in memory, as `rows_of` has them."""
        return type(self)(**{name: _selected(getattr(self, name), index) for name in _names(type(self))})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """All rows of several, one after the other."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _names(cls)})


def _names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def _selected(values: NDArray[_T], index: NDArray[Any] | slice | Sequence[int]) -> NDArray[_T]:
    is_plain = values.ndim == 1 or not isinstance(index, np.ndarray) or index.dtype == np.bool_
    return values[index] if is_plain else rows_of(values, np.asarray(index))
