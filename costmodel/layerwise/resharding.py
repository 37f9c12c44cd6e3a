"""Moving a tensor from the layout its producer leaves to the layout its consumer needs.

A producer split (batch b, out o, in i, height h) leaves every worker one block of a (b, o i, h) grid. A consumer that is not
channelwise needs, on each worker, a block of a (b', i', h') grid, whole along what its output channels split: o' copies. The move is
an all-to-all into a (b', i', h')-grid share followed by an all-gather over the o' copies; the gradient comes back by the adjoint, a
reduce-scatter over the copies and an all-to-all.

A worker receives what it needs and does not hold. Ranks are in the order of `costmodel.layerwise.plan` in every layout: samples and rows
in pieces of neighbouring indices, so that of W workers the one that is worst off already has

    k = 1 / (lcm(b, b') lcm(h, h') n)   of the tensor, and nothing if b != b' and both heights are split,
    n = c i' / max(1, gcd(c, o' i') / o')   with c = o i

of what it needs: n counts the pairs of a channel share held and one needed that meet on some rank. (Which channels make up a share is
free, since weights lie where they are used; so every such pair can have as much in common as any other. That holds edge by edge; where
branches meet again, their shares may not all agree.) The all-to-all therefore brings every worker ``1/W - k``, from about ``1 / (W k)``
others, and the all-gather the rest of the block. Batch is the outermost index of the ranks in every layout, so the exchange stays inside
blocks of ``W / gcd(b, b')`` neighbouring ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from costmodel.arrays import FloatArray, IntArray, StructOfArrays
from costmodel.hardware.cluster import Cluster, GroupSpan, span
from costmodel.hardware.collectives import cheapest_s
from costmodel.layerwise.plan import SplitTable
from costmodel.network.layers import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPairs(StructOfArrays):
    """Pairs of a layout that is held and a layout that is needed; arrays of shape (pairs,) unless said."""

    source: FloatArray  # (pairs, 3) degrees (batch, channels, height) of the block a worker holds
    target: FloatArray  # (pairs, 3) degrees of the block a worker needs
    copies: FloatArray  # workers that need the same block
    workers: FloatArray
    exchange_group: FloatArray  # workers that an all-to-all involves
    moved: FloatArray  # of what a worker holds, the share that the all-to-all moves, over (group - 1) / group
    exchange_stride: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeGeometry:
    """All (producer layout, consumer need) pairs of every worker count, one after the other.

    ``layout_of[row]`` and ``need_of[kind][row]`` map a split to its layout or need inside its worker count; pair
    ``pair_offset[w] + layout * needs[w] + need`` is their cost.
    """

    layout_of: IntArray  # (splits,) class of the output layout within the worker count
    need_of: tuple[IntArray, IntArray]  # (splits,) class of the needed layout: for ordinary and channelwise consumers
    pair_offset: IntArray  # (worker counts,)
    layouts: IntArray  # (worker counts,) number of layouts
    needs: IntArray  # (worker counts,) number of needs
    pairs: LayoutPairs

    def pair(self, count: int | IntArray, layout: IntArray, need: IntArray) -> IntArray:
        """Index of pairs of classes of the count-th worker count."""
        return np.asarray(self.pair_offset[count] + layout * self.needs[count] + need)


@lru_cache(maxsize=4)
def edge_geometry(table: SplitTable) -> EdgeGeometry:
    """Work out every pair of layouts once; it does not depend on the tensor.

    Parameters
    ----------
    table : SplitTable

    Returns
    -------
    EdgeGeometry
    """
    layout_of = np.zeros(len(table.workers), dtype=np.int64)
    ordinary, channelwise = layout_of.copy(), layout_of.copy()
    pieces: list[tuple[IntArray, IntArray, int]] = []
    for workers in table.worker_counts:
        rows = table.rows(workers)
        b, o, i, h = (a[rows] for a in (table.batch, table.out_channels, table.in_channels, table.height))
        layouts, layout_of[rows] = np.unique(np.stack([b, o * i, h], axis=1), axis=0, return_inverse=True)
        needs = np.concatenate([np.stack([b, i, h, o], axis=1), np.stack([b, o, h, np.ones_like(b)], axis=1)])
        need_classes, inverse = np.unique(needs, axis=0, return_inverse=True)
        ordinary[rows], channelwise[rows] = inverse[: len(b)], inverse[len(b) :]
        pieces.append((layouts, need_classes, workers))
    counts = [len(layouts) * len(needs) for layouts, needs, _ in pieces]
    source = np.concatenate([np.repeat(layouts, len(needs), axis=0) for layouts, needs, _ in pieces])
    target = np.concatenate([np.tile(needs, (len(layouts), 1)) for layouts, needs, _ in pieces])
    workers_of = np.repeat(np.array([w for _, _, w in pieces], dtype=np.int64), counts)
    block = workers_of // np.gcd(source[:, 0], target[:, 0])
    cells = _cells(source, target)
    kept = workers_of / cells  # of what a worker holds
    # Uneven pairs (2 against 3) can have more cells than workers; a worker never talks to more than all of its block.
    group = np.clip(np.rint(cells / workers_of), np.where(kept < 1.0, 2.0, 1.0), block)
    return EdgeGeometry(
        layout_of=layout_of,
        need_of=(ordinary, channelwise),
        pair_offset=np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64),
        layouts=np.array([len(layouts) for layouts, _, _ in pieces], dtype=np.int64),
        needs=np.array([len(needs) for _, needs, _ in pieces], dtype=np.int64),
        pairs=LayoutPairs(
            source=source * 1.0,
            target=target[:, :3] * 1.0,
            copies=target[:, 3] * 1.0,
            workers=workers_of.astype(np.float64),
            exchange_group=group,
            moved=(1.0 - kept) * group / np.maximum(group - 1.0, 1.0),
            exchange_stride=np.maximum(block // group, 1.0),
        ),
    )


def _cells(source: IntArray, target: IntArray) -> FloatArray:
    """Into how many pieces the tensor falls if the worker that is worst off holds one of what it needs: 1 / k of the module's notes.

    Parameters
    ----------
    source, target : array (pairs, 3) and (pairs, 4)
        Degrees (batch, channels, height), and the copies of the block that is needed.

    Returns
    -------
    array (pairs,)
        Infinity where some worker holds nothing of what it needs.

    Examples
    --------
    Channels in quarters to a 2 x 2 grid of samples and channels: every worker has half of its quarter. Rows in quarters to a 2 x 2 grid of
    samples and rows: the second worker holds the second quarter, and needs rows of the second half.

    >>> _cells(np.array([[1, 4, 1], [1, 1, 4]]), np.array([[2, 2, 1, 1], [2, 1, 2, 1]])).tolist()
    [8.0, inf]
    """
    (b, c, h), (b2, i2, h2, o2) = source.T, target.T
    meeting = c * i2 / np.maximum(np.gcd(c, i2 * o2) / o2, 1.0)
    return np.where((b != b2) & (h > 1) & (h2 > 1), np.inf, np.lcm(b, b2) * np.lcm(h, h2) * np.rint(meeting))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPairs:
    """Pairs of layouts with the levels that their groups span on a cluster."""

    pairs: LayoutPairs
    cluster: Cluster
    exchange: GroupSpan
    gather: GroupSpan


def place(pairs: LayoutPairs, cluster: Cluster) -> PlacedPairs:
    """Lay the groups of every pair over the levels of a cluster."""
    return PlacedPairs(
        pairs=pairs,
        cluster=cluster,
        exchange=span(cluster, pairs.exchange_group, pairs.exchange_stride, pairs.workers),
        gather=span(cluster, pairs.copies, np.ones_like(pairs.copies), pairs.workers),
    )


def edge_times(
    producers: Sequence[Layer], placed: PlacedPairs, micro_batch: int, element_bytes: float
) -> tuple[FloatArray, FloatArray]:
    """Time to move each producer's output, for every pair of layouts.

    Parameters
    ----------
    producers : sequence of Layer
        Only their output shapes matter.
    placed : PlacedPairs
    micro_batch : int
        Samples over all workers.
    element_bytes : float

    Returns
    -------
    forward_s, backward_s : arrays of shape (producers, pairs)
        0 where nothing moves.
    """
    held = _blocks(producers, micro_batch, placed.pairs.source.T) * element_bytes
    exchange = cheapest_s("all_to_all", held * placed.pairs.moved, placed.exchange, placed.cluster)
    needed = _blocks(producers, micro_batch, placed.pairs.target.T) * element_bytes
    gather, scatter = _gather_s(needed, placed.gather, placed.cluster)
    return exchange + gather, exchange + scatter


def gather_times(
    producers: Sequence[Layer], table: SplitTable, cluster: Cluster, micro_batch: int, element_bytes: float
) -> tuple[FloatArray, FloatArray]:
    """Part of a move that the consumer decides alone: the all-gather over what its output channels split, and its adjoint.

    A consumer that is not channelwise pays it wherever its input comes from, so it bounds `edge_times` from below whatever the producer's
    split is.

    Parameters
    ----------
    producers : sequence of Layer
        Whose outputs are moved; only their shapes matter.
    table : SplitTable
        Of the consumer.
    cluster : Cluster
    micro_batch : int
        Samples over all workers.
    element_bytes : float

    Returns
    -------
    forward_s, backward_s : arrays of shape (producers, splits)
    """
    batch, copies, inner, height = (
        degrees.astype(np.float64) for degrees in (table.batch, table.out_channels, table.in_channels, table.height)
    )
    needed = _blocks(producers, micro_batch, np.stack([batch, inner, height]))
    return _gather_s(needed * element_bytes, span(cluster, copies, np.ones_like(copies), table.workers), cluster)


def _gather_s(needed_bytes: FloatArray, group: GroupSpan, cluster: Cluster) -> tuple[FloatArray, FloatArray]:
    """Gather a block over its copies, and reduce and scatter its gradient over them."""
    return cheapest_s("all_gather", needed_bytes, group, cluster), cheapest_s(
        "reduce_scatter", needed_bytes, group, cluster
    )


def _blocks(producers: Sequence[Layer], micro_batch: int, degrees: FloatArray) -> FloatArray:
    """Elements of the largest block of each producer's output under grids of degrees (batch, channels, height), (producers, grids)."""
    shapes = [layer.output_shape for layer in producers]
    # Channels, rows, and the rest, which is never split.
    images = [shape if len(shape) == 3 else (shape[0], 1, int(np.prod(shape[1:]))) for shape in shapes]
    channels, rows, rest = np.array(images, dtype=np.float64).reshape(-1, 3, 1).swapaxes(0, 1)
    batch = np.ceil(micro_batch / degrees[0])
    return np.asarray(batch * np.ceil(channels / degrees[1]) * np.ceil(rows / degrees[2]) * rest)
