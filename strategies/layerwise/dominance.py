"""Partial choices that no others dominate: what dynamic programs with several values keep."""

from __future__ import annotations

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.limits import UNLIMITED, Clock


def undominated(key: IntArray, values: FloatArray, copies: int = 1, clock: Clock = UNLIMITED) -> IntArray:
    """Rows that fewer than `copies` other rows with the same key beat or equal in every column.

    Works on all keys at once: in lexicographic order the first undecided row of a key is beaten by none of the later ones,
    so it is kept, and every row it beats is counted. There are as many rounds as rows are kept for the largest key.
    Of equal rows the earlier ones are kept.

    Parameters
    ----------
    key : array of int, shape (rows,)
    values : array of float, shape (rows, columns)
        Smaller is better.
    copies : int
        With K copies, the K best completions of all rows are completions of the rows that are kept.
    clock : Clock
        Past its limit the undecided rows are kept unchecked.

    Returns
    -------
    array of int
        Indices of the rows that are kept, sorted by key.

    Examples
    --------
    >>> undominated(np.array([0, 0, 0, 1]), np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [9.0, 9.0]])).tolist()
    [0, 1, 3]
    """
    order = np.lexsort((*values.T[::-1], key))
    key, values = key[order], values[order]
    beaten_by = np.zeros(len(key), dtype=np.int64)
    kept = np.zeros(len(key), dtype=bool)
    open_rows = np.arange(len(key))
    while open_rows.size:
        if clock.is_over:
            kept[open_rows] = True
            break
        open_key = key[open_rows]
        first = np.concatenate([[True], open_key[1:] != open_key[:-1]])
        leaders = open_rows[first]
        kept[leaders] = True
        leader_of = leaders[np.cumsum(first) - 1]
        beaten_by[open_rows] += np.all(values[open_rows] >= values[leader_of], axis=1)
        open_rows = open_rows[~first & (beaten_by[open_rows] < copies)]
    return order[kept]
