"""Ways to cut a row of blocks into chunks none of which is slower than a limit: whether there is one, how many, which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from costmodel.arrays import FloatArray, IntArray

__all__ = ["all_shares", "count_cuts", "cuts", "least_bottleneck"]


def count_cuts(loads: FloatArray, limit: float) -> FloatArray:
    """Number of ways to cut the blocks from i on into chunks c, c + 1, ... within a limit.

    Parameters
    ----------
    loads : array (C, N + 1, N + 1)
        Time of chunk c if it holds blocks i ... j - 1; infinite if it cannot.
    limit : float

    Returns
    -------
    array (C + 1, N + 1)
        By chunk c and block i; ``[0, 0]`` counts all. Floats, since there may be very many.

    Examples
    --------
    Three blocks of 1 on two chunks, at most 2 each: two ways.

    >>> i, j = np.meshgrid(np.arange(4), np.arange(4), indexing="ij")
    >>> each = np.where(j > i, j - i, np.inf)
    >>> float(count_cuts(np.stack([each, each]), 2.0)[0, 0])
    2.0
    """
    chunks, size, _ = loads.shape
    ways = np.zeros((chunks + 1, size))
    ways[chunks, size - 1] = 1.0
    for c in reversed(range(chunks)):
        ways[c] = (loads[c] <= limit) @ ways[c + 1]
    return ways


def least_bottleneck(loads: FloatArray) -> float:
    """Least time of the slowest chunk, by dynamic programming over (blocks so far, chunk); infinite if there is no way.

    >>> i, j = np.meshgrid(np.arange(4), np.arange(4), indexing="ij")
    >>> each = np.where(j > i, j - i, np.inf)
    >>> float(least_bottleneck(np.stack([each, each])))
    2.0
    """
    slowest = loads[0, 0].copy()
    for load in loads[1:]:
        slowest = np.min(np.maximum(slowest[:, None], load), axis=0)
    return float(slowest[-1])


def cuts(loads: FloatArray, limit: float, *, piece: int = 4096) -> Iterator[IntArray]:
    """All ways within a limit, in pieces of (n, C + 1): where every chunk starts, and the end.

    Parameters
    ----------
    loads : array (C, N + 1, N + 1)
    limit : float
    piece : int
        Ways per piece, about.

    Examples
    --------
    >>> i, j = np.meshgrid(np.arange(4), np.arange(4), indexing="ij")
    >>> each = np.where(j > i, j - i, np.inf)
    >>> [way.tolist() for way in cuts(np.stack([each, each]), 2.0)]
    [[[0, 1, 3], [0, 2, 3]]]
    """
    within = loads <= limit
    possible = count_cuts(loads, limit) > 0
    chunks = len(loads)
    # Partial ways in depth-first order, so that memory stays small however many there are.
    stack = [np.zeros((1, 1), dtype=np.int64)]
    while stack:
        partial = stack.pop()
        c = partial.shape[1] - 1
        if c == chunks:
            yield partial
            continue
        if len(partial) > piece:
            middle = len(partial) // 2
            stack += [partial[middle:], partial[:middle]]
            continue
        row, end = np.nonzero(within[c][partial[:, -1]] & possible[c + 1])
        if len(row):
            stack.append(np.column_stack([partial[row], end]))


def all_shares(blocks: Sequence[Sequence[int]], totals: Sequence[Sequence[int]]) -> Iterator[list[tuple[int, ...]]]:
    """Ways to choose, on every rank, one of its totals and to divide it over its chunks; one at a time, for there may be very many.

    Parameters
    ----------
    blocks : sequence (ranks, chunks per rank)
        The most that a chunk takes.
    totals : sequence (ranks, any)
        What the chunks of a rank may take together.

    Examples
    --------
    >>> [way for way in all_shares([(2, 1), (1, 1)], [[2], [0, 1]])]
    [[(1, 1), (0, 0)], [(1, 1), (0, 1)], [(1, 1), (1, 0)], [(2, 0), (0, 0)], [(2, 0), (0, 1)], [(2, 0), (1, 0)]]
    """
    if not blocks:
        yield []
        return
    for total in totals[0]:
        for own in _shares(tuple(blocks[0]), total):
            for rest in all_shares(blocks[1:], totals[1:]):
                yield [own, *rest]


def _shares(blocks: tuple[int, ...], total: int) -> Iterator[tuple[int, ...]]:
    """Ways to divide a total over chunks, as a rank's share of the above."""
    if len(blocks) == 1:
        yield (total,)
        return
    for first in range(max(total - sum(blocks[1:]), 0), min(total, blocks[0]) + 1):
        for rest in _shares(blocks[1:], total - first):
            yield (first, *rest)
