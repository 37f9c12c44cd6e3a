"""Steps that the tables in front of and behind a cut share: levels of depth, what a stage leaves to others, transfers.

Notes
-----
The depth of a cut is the number of stages behind it; the stage in front of the cut holds ``min(m, depth + 1)`` micro-batches.
A level is a range of depths. A bound that holds for a level takes the least memory (its first depth) and the least detour
(its last depth) of the range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray

__all__ = ["Levels", "depth_levels", "most_behind_s", "through_cut"]


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


def most_behind_s(
    forward_s: FloatArray, backward_s: FloatArray, depth: IntArray, num_micro_batches: int
) -> tuple[FloatArray, FloatArray]:
    """Offsets (a, b) with which a stage leaves ``D <= min(slack + a, (slack + b) / 2)`` to the sum of t behind it.

    The detour ``g(D) <= slack`` of `strategies.layerwise.pipeline.problem` solved for D, where slack is what ``m t`` and the stages in
    front leave of the step. With w = depth, lo and t the smaller and the sum of F and B:

        m >= w + 2:  g = max(0, D - w F) + max(0, D - w B)   D <= min(slack + w lo, (slack + w t) / 2)
        otherwise:   g = max(0, D - (m - 1) lo)              D <= slack + (m - 1) lo

    Examples
    --------
    Equal stages of 1 + 2 s, one behind, m = 4: g = max(0, D - 1) + max(0, D - 2), so a slack of 3 admits D = 3.

    >>> a, b = most_behind_s(np.array([1.0]), np.array([2.0]), np.array([1]), 4)
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
