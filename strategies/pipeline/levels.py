"""Depths of a pipeline, told apart exactly or in ranges, and how much time a stage leaves to the stages behind it.

Notes
-----
The depth of a cut is the number of stages behind it; the stage in front of the cut holds ``min(m, depth + 1)`` micro-batches.
A level is a range of depths. A bound that holds for a level takes the least memory (its first depth) and the least detour
(its last depth) of the range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategies.pipeline.problem import FloatArray, IntArray

__all__ = ["Levels", "depth_levels", "most_behind_s"]


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
    """At most so many levels, each depth its own if they suffice, else evenly spread.

    >>> levels = depth_levels(7, 3)
    >>> levels.first.tolist(), levels.last.tolist()
    ([1, 4, 7], [3, 6, 7])
    """
    first = np.unique(np.linspace(1, most_depth, max(most_levels, 1)).astype(np.int64))
    return Levels(first, np.append(first[1:] - 1, most_depth))


def most_behind_s(
    forward_s: FloatArray, backward_s: FloatArray, depth: IntArray, num_micro_batches: int
) -> tuple[FloatArray, FloatArray]:
    """Offsets (a, b) with which a stage leaves ``D <= min(slack + a, (slack + b) / 2)`` to the sum of t behind it.

    The detour ``g(D) <= slack`` of `strategies.pipeline.problem` solved for D, where slack is what ``m t`` and the stages in
    front leave of the step. With w = depth, lo and t the smaller and the sum of F and B:

        m >= w + 2:  g = max(0, D - w F) + max(0, D - w B)   D <= min(slack + w lo, (slack + w t) / 2)
        otherwise:   g = max(0, D - (m - 1) lo)              D <= slack + (m - 1) lo

    Examples
    --------
    Equal stages of 1 + 2 s, one behind, m = 4: g = max(0, D - 1) + max(0, D - 2), so a slack of 3 admits D = 3.

    >>> a, b = most_behind_s(np.array([1.0]), np.array([2.0]), np.array([1]), 4)
    >>> min(3 + a[0], (3 + b[0]) / 2)
    3.0
    """
    least_s = np.minimum(forward_s, backward_s)
    long = depth <= num_micro_batches - 2
    single = np.where(long, depth, num_micro_batches - 1) * least_s
    with np.errstate(invalid="ignore"):
        both = np.where(long, depth * (forward_s + backward_s), np.inf)
    return single, both
