"""Rows that occur more than once in several integer columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["combined"]

IntArray = NDArray[np.int64]

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
