"""Shares of the batch: how many micro-batches each kind of pipeline works on, by exact integer apportionment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.mesh.settings import Bounds

__all__ = ["Shape", "assign", "least_slowest", "num_vectors", "vectors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Equal replicas that take the batch in micro-batches of a size."""

    replicas: int
    micro_batch: int
    allowed: Bounds = Bounds()  # micro-batches of a replica

    def allows(self, count: int) -> bool:
        """Whether so many micro-batches, shared as evenly as can be, leave every replica an allowed number.

        >>> Shape(replicas=2, micro_batch=1, allowed=Bounds(values=(3, 4))).allows(7)
        True
        """
        each, longer = divmod(count, self.replicas)
        return self.allowed.allows(each) and not (longer and not self.allowed.allows(each + 1))


def assign(shapes: Sequence[Shape], most: Sequence[int], global_batch: int) -> tuple[int, ...] | None:
    """Micro-batches of each shape that add up to the batch, every replica having from one to ``most``; None if there are none.

    >>> assign([Shape(replicas=2, micro_batch=1), Shape(replicas=1, micro_batch=4)], [5, 3], 19)
    (7, 3)
    """
    # Sums that the later shapes can make, as bits, tell where a greedy choice is safe.
    reachable = [1]
    for shape, m in zip(reversed(shapes), reversed(most), strict=True):
        bits = reachable[-1] << (shape.replicas * shape.micro_batch)
        steps, width = shape.replicas * (m - 1), shape.micro_batch
        if not shape.allowed.is_free:
            bits = _chosen(reachable[-1], width, [n for n in _counts(shape, m, global_batch) if shape.allows(n)])
        elif steps >= 0:
            bits = _repeated(bits, width, steps)
        else:
            bits = 0
        reachable.append(bits & ((1 << (global_batch + 1)) - 1))
    reachable.reverse()
    if not reachable[0] >> global_batch & 1:
        return None
    left, counts = global_batch, []
    for i, (shape, m) in enumerate(zip(shapes, most, strict=True)):
        for count in reversed(_counts(shape, m, left)):
            rest = left - count * shape.micro_batch
            if reachable[i + 1] >> rest & 1 and shape.allows(count):
                counts.append(count)
                left = rest
                break
    return tuple(counts)


def _counts(shape: Shape, most: int, samples: int) -> range:
    """Micro-batches of a shape whose replicas have from one to ``most``, of so many samples."""
    return range(shape.replicas, min(shape.replicas * most, samples // shape.micro_batch) + 1)


def _chosen(bits: int, width: int, counts: Sequence[int]) -> int:
    """Bits shifted by some numbers of widths, together."""
    result = 0
    for count in counts:
        result |= bits << (width * count)
    return result


def _repeated(bits: int, width: int, steps: int) -> int:
    """Bits shifted by 0, 1, .. ``steps`` widths, together."""
    result, done = bits, 0
    while done < steps:
        jump = min(done + 1, steps - done)
        result |= result << (width * jump)
        done += jump
    return result


def vectors(shapes: Sequence[Shape], global_batch: int) -> IntArray:
    """Micro-batches of the busiest replica of each shape, the fewest of the last one that the others leave room for: array (n, shapes).

    Whether the counts add up exactly is for `assign` to find; where they do not, the last one needs more.

    >>> vectors([Shape(replicas=1, micro_batch=1), Shape(replicas=1, micro_batch=1)], 3).tolist()
    [[1, 2], [2, 1]]
    """
    units = [shape.replicas * shape.micro_batch for shape in shapes]
    if sum(units) > global_batch:
        return np.zeros((0, len(shapes)), dtype=np.int64)
    room = global_batch - sum(units)
    ranges = [np.arange(1, -(-(room + unit) // unit) + 1, dtype=np.int64) for unit in units[:-1]]
    grid = (
        np.stack([x.reshape(-1) for x in np.meshgrid(*ranges, indexing="ij")], axis=1)
        if ranges
        else np.zeros((1, 0), dtype=np.int64)
    )
    left = np.maximum(global_batch - grid @ np.array(units[:-1], dtype=np.int64), 1)
    return np.concatenate([grid, -(-left // units[-1])[:, None]], axis=1)


def num_vectors(shapes: Sequence[Shape], global_batch: int) -> int:
    """Length of `vectors`."""
    units = [shape.replicas * shape.micro_batch for shape in shapes]
    room = global_batch - sum(units)
    return int(np.prod([float(-(-(room + unit) // unit)) for unit in units[:-1]])) if room >= 0 else 0


def least_slowest(
    times_s: Sequence[FloatArray], shapes: Sequence[Shape], global_batch: int
) -> tuple[float, tuple[int, ...]] | None:
    """Shares with the least slowest replica; ``times_s[p][m]`` is the time of shape p with m micro-batches, growing in m.

    Returns
    -------
    tuple or None
        That time and the micro-batches of each shape; None where the batch cannot be shared.

    Examples
    --------
    One device twice as fast as the other gets twice as much.

    >>> fast, slow = np.arange(10.0), 2.0 * np.arange(10.0)
    >>> one = Shape(replicas=1, micro_batch=1)
    >>> least_slowest([fast, slow], [one, one], 9)
    (6.0, (6, 3))
    """
    candidates = np.unique(np.concatenate([t[1:][np.isfinite(t[1:])] for t in times_s]))
    low, high = 0, len(candidates)
    best: tuple[float, tuple[int, ...]] | None = None
    while low < high:
        middle = (low + high) // 2
        limit = candidates[middle]
        most = [int(np.searchsorted(t[1:], limit, side="right")) for t in times_s]
        counts = assign(shapes, most, global_batch) if min(most) >= 1 else None
        if counts is None:
            low = middle + 1
        else:
            best, high = (float(limit), counts), middle
    return best
