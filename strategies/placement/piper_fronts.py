"""What a stage can trade: least time for every number of micro-batches in flight, over all choices of its operators' ways.

Notes
-----
Choosing ways is a multiple-choice knapsack for every y: least sum of times with sum of (a y + b) within the memory. All y are treated
at once by the points (time, a, b) that no other point beats in all three; adding an operator adds every way to every point. Operators
of one kind have equal differences of a and b, so that a set of n of them leaves n + 1 points; what is kept in the end is the
staircase of time against the most micro-batches in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray

__all__ = ["UNLIMITED", "Front", "TooManyPointsError", "add_operator", "best_ways", "empty_front", "staircase"]

# More micro-batches in flight than any plan has.
UNLIMITED = 1 << 40
# Points of one front; graphs of many different operators would have exponentially many.
MAX_POINTS = 4000


class TooManyPointsError(RuntimeError):
    """A front has more points than `MAX_POINTS`."""

    def __init__(self) -> None:
        super().__init__(f"a stage has more than {MAX_POINTS:,} trade-offs of time against memory")


@dataclass(frozen=True, slots=True)
class Front:
    """Points that no other point beats: times, stashed bytes per micro-batch, fixed bytes."""

    time: FloatArray
    stash: FloatArray
    fixed: FloatArray


def empty_front() -> Front:
    """Trade-off of a stage without operators."""
    zero = np.zeros(1)
    return Front(zero, zero, zero)


def add_operator(front: Front, time: FloatArray, stash: FloatArray, fixed: FloatArray, capacity: float) -> Front:
    """Add an operator with some ways to run; points that do not fit with one micro-batch are left out.

    Examples
    --------
    >>> one = Front(np.array([1.0, 3.0]), np.array([4.0, 1.0]), np.array([0.0, 0.0]))
    >>> two = add_operator(one, np.array([1.0, 3.0]), np.array([4.0, 1.0]), np.zeros(2), 100.0)
    >>> two.time.tolist(), two.stash.tolist()
    ([2.0, 4.0, 6.0], [8.0, 5.0, 2.0])
    """
    times = (front.time[:, None] + time).ravel()
    stashes = (front.stash[:, None] + stash).ravel()
    fixes = (front.fixed[:, None] + fixed).ravel()
    fits = np.flatnonzero(stashes + fixes <= capacity)
    order = fits[np.lexsort((fixes[fits], stashes[fits], times[fits]))]
    times, stashes, fixes = times[order], stashes[order], fixes[order]
    keep = _undominated(stashes, fixes)
    if len(keep) > MAX_POINTS:
        raise TooManyPointsError
    return Front(times[keep], stashes[keep], fixes[keep])


def _undominated(stashes: FloatArray, fixes: FloatArray) -> IntArray:
    """Points, ordered by time, of which no earlier one needs at most as much of both memories."""
    kept: list[int] = []
    for i in range(len(stashes)):
        before = np.array(kept, dtype=np.int64)
        if not kept or not np.any((stashes[before] <= stashes[i]) & (fixes[before] <= fixes[i])):
            kept.append(i)
    return np.array(kept, dtype=np.int64)


def staircase(front: Front, capacity: float) -> tuple[FloatArray, IntArray]:
    """Ascending times and the most micro-batches in flight that fit at each; both rise.

    Examples
    --------
    >>> times, most = staircase(Front(np.array([1.0, 2.0]), np.array([4.0, 1.0]), np.zeros(2)), 9.0)
    >>> times.tolist(), most.tolist()
    ([1.0, 2.0], [2, 9])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.floor((capacity - front.fixed) / front.stash)
    most = np.where(front.stash > 0, np.minimum(most, UNLIMITED), UNLIMITED).astype(np.int64)
    best = np.maximum.accumulate(most) if len(most) else most
    rises = np.flatnonzero((most >= 1) & (np.concatenate(([0], best[:-1])) < best)) if len(most) else most
    return front.time[rises], best[rises]


def best_ways(times: Sequence[FloatArray], memories: Sequence[FloatArray], capacity: float) -> tuple[int, ...] | None:
    """Ways of least total time within a capacity, for a fixed number of micro-batches in flight.

    Parameters
    ----------
    times, memories : sequence of float arrays
        Per operator, one entry per way.
    capacity : float

    Returns
    -------
    tuple of int or None
        None when nothing fits.

    Examples
    --------
    >>> best_ways([np.array([1.0, 2.0]), np.array([1.0, 5.0])], [np.array([3.0, 1.0])] * 2, 4.0)
    (1, 0)
    """
    time, memory = np.zeros(1), np.zeros(1)
    trail: list[tuple[IntArray, int]] = []
    rest = np.cumsum([0.0, *(float(m.min()) for m in reversed(memories))])[::-1]
    for i, (more_time, more_memory) in enumerate(zip(times, memories, strict=True)):
        total_time = (time[:, None] + more_time).ravel()
        total_memory = (memory[:, None] + more_memory).ravel()
        fits = np.flatnonzero(total_memory + rest[i + 1] <= capacity)
        order = fits[np.lexsort((total_memory[fits], total_time[fits]))]
        if not len(order):
            return None
        least = np.minimum.accumulate(total_memory[order])
        keep = order[np.concatenate(([True], total_memory[order][1:] < least[:-1]))]
        trail.append((keep, len(more_time)))
        time, memory = total_time[keep], total_memory[keep]
    ways = []
    position = 0
    for keep, count in reversed(trail):
        position, way = divmod(int(keep[position]), count)
        ways.append(way)
    return tuple(ways[::-1])
