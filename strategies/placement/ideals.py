"""Down-sets of a precedence graph as rows of bits, with what a stage between two of them costs, and orders to find them along.

A family of down-sets is enumerated without duplicates: with blocks in topological order, the down-sets of the first i blocks are
those of the first i - 1, and each of these that holds the predecessors of block i once more with it.

A stage is S = I - J for down-sets J within I. Compute is a difference of two numbers. For communication let F(I) be the cost of
the hyperedges that I splits; then

    communication(S) = F(I) + F(J) - sum over hyperedges h split by both of c_h (1 + [I and J hold the same pins of h])

because h is cut by S exactly when S takes some but not all of its pins: with none in J when I splits it (counted by F(I)), with some
in J when the stage takes at least one more (counted by F(J), and by F(I) again if pins are left, so once too often). Few hyperedges
are split by both, so the correction is a short sum.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph

__all__ = [
    "IdealFamily",
    "TooManyIdealsError",
    "enumerate_ideals",
    "ideals_from_orders",
    "orders_around",
    "sample_orders",
    "topological_order",
]


BitRows = NDArray[np.uint64]
# The bits of all down-sets together; but so many down-sets are always allowed.
_MOST_BYTES = 200 * 2**20
_LEAST_LIMIT = 1_000


class TooManyIdealsError(RuntimeError):
    """The graph has more down-sets than allowed; ``reached`` says how many were found before that."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"more than {limit:,} down-sets")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealFamily:
    """Down-sets ordered by accelerator time, then size: a set comes before every other set that holds it.

    The first is empty, the last is everything.
    """

    bits: BitRows  # (ideals, words), block b is bit b % 64 of word b // 64
    num_blocks: IntArray  # (ideals,)
    accelerator_time: FloatArray  # of supported blocks; exactly monotone under inclusion
    cpu_time: FloatArray
    size_bytes: FloatArray
    num_unsupported: IntArray
    split_cost: FloatArray  # F(I)
    pins_inside: NDArray[np.uint16]  # (hyperedges + 1, ideals) pins inside; the last row is all zeros, for padding
    split_list: NDArray[np.int32]  # (ideals, most) hyperedges that the set splits, padded by the last row's number
    split_price: FloatArray  # (hyperedges + 1,) cost of each, 0 for padding

    def __len__(self) -> int:
        """Down-sets."""
        return len(self.num_blocks)

    def communication(self, inner: IntArray, outer: IntArray) -> FloatArray:
        """Communication of the stages ``outer - inner``, pair by pair; each inner set must be within its outer set."""
        cost = self.split_cost[inner] + self.split_cost[outer]
        for column in range(self.split_list.shape[1]):
            edge = self.split_list[inner, column]
            active = np.flatnonzero(edge < len(self.split_price) - 1)
            if not len(active):
                break  # lists are filled from the left
            which = edge[active]
            inside = self.pins_inside[which, outer[active]]
            same = inside == self.pins_inside[which, inner[active]]
            # A hyperedge that the outer set holds whole is not split by it.
            both = inside < self._sizes(which)
            cost[active] -= self.split_price[which] * np.where(both, 1.0 + same, 0.0)
        return cost

    def _sizes(self, edges: NDArray[np.int32]) -> NDArray[np.uint16]:
        return np.asarray(self.pins_inside[edges, -1])  # the last down-set holds every pin


def enumerate_ideals(graph: BlockGraph, *, limit: int, clock: Clock | None = None) -> IdealFamily:
    """Find every down-set.

    Parameters
    ----------
    graph : BlockGraph
        Blocks in topological order.
    limit : int
        Most down-sets to make.
    clock : Clock, optional

    Raises
    ------
    TooManyIdealsError
    """
    words = -(-graph.num_blocks // 64)
    limit = min(limit, max(_LEAST_LIMIT, _MOST_BYTES // (8 * words)))
    if graph.num_blocks + 1 > limit:  # even a row of blocks has one for each, and nothing
        raise TooManyIdealsError(limit)
    rows = np.zeros((1, words), dtype=np.uint64)
    before = _predecessor_masks(graph, words)
    for b in range(graph.num_blocks):
        if clock is not None:
            clock.check()
        mask = before[b]
        used = np.flatnonzero(mask)
        ready = np.ones(len(rows), dtype=np.bool_)
        for w in used:
            ready &= (rows[:, w] & mask[w]) == mask[w]
        grown = rows[ready]
        if len(rows) + len(grown) > limit:
            raise TooManyIdealsError(limit)
        grown[:, b // 64] |= np.uint64(1) << np.uint64(b % 64)
        rows = np.concatenate((rows, grown))
    return _family(graph, rows)


def ideals_from_orders(graph: BlockGraph, orders: IntArray) -> IdealFamily:
    """Make the family of all prefixes of some topological orders.

    Parameters
    ----------
    graph : BlockGraph
    orders : int array (orders, blocks)
    """
    words = -(-graph.num_blocks // 64)
    count, blocks = orders.shape
    rows = np.zeros((count, blocks + 1, words), dtype=np.uint64)
    step = np.zeros((count, blocks, words), dtype=np.uint64)
    bit = np.uint64(1) << (orders % 64).astype(np.uint64)
    np.put_along_axis(step, (orders // 64)[:, :, None], bit[:, :, None], axis=2)
    np.bitwise_or.accumulate(step, axis=1, out=rows[:, 1:])
    return _family(graph, np.unique(rows.reshape(-1, words), axis=0))


def _predecessor_masks(graph: BlockGraph, words: int) -> BitRows:
    masks = np.zeros((graph.num_blocks, words), dtype=np.uint64)
    bit = np.uint64(1) << (graph.edge_source % 64).astype(np.uint64)
    np.bitwise_or.at(masks, (graph.edge_target, graph.edge_source // 64), bit)
    return masks


def _family(graph: BlockGraph, rows: BitRows) -> IdealFamily:
    """Order the rows and sum up what each holds, block by block in one order: such sums keep the order of inclusion exactly."""
    time = np.zeros(len(rows))
    cpu, size = np.zeros(len(rows)), np.zeros(len(rows))
    count, unsupported = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    for b in range(graph.num_blocks):
        has = _has(rows, b)
        time += has * (graph.accelerator_time[b] if graph.supported[b] else 0.0)
        cpu += has * graph.cpu_time[b]
        size += has * graph.size_bytes[b]
        count += has
        unsupported += has * (not graph.supported[b])
    order = np.lexsort((*rows.T, count, time))
    rows = rows[order]
    inside = _pins_inside(graph, rows)
    full = inside[:, -1:]
    split = (inside > 0) & (inside < full)
    price = np.append(graph.hyperedge_cost, 0.0)
    split_list = _padded_lists(split)
    split_cost = np.zeros(len(rows))
    for column in range(split_list.shape[1]):
        split_cost += price[split_list[:, column]]
    return IdealFamily(
        bits=rows,
        num_blocks=count[order],
        accelerator_time=time[order],
        cpu_time=cpu[order],
        size_bytes=size[order],
        num_unsupported=unsupported[order],
        split_cost=split_cost,
        pins_inside=inside,
        split_list=split_list,
        split_price=price,
    )


def _has(rows: BitRows, block: int) -> BoolArray:
    return (rows[:, block // 64] >> np.uint64(block % 64)) & np.uint64(1) > 0


def _pins_inside(graph: BlockGraph, rows: BitRows) -> NDArray[np.uint16]:
    inside = np.zeros((len(graph.hyperedge_cost) + 1, len(rows)), dtype=np.uint16)
    edge_of_pin = np.repeat(np.arange(len(graph.hyperedge_cost)), np.diff(graph.pin_start))
    order = np.argsort(graph.pin, kind="stable")
    last, has = -1, np.zeros(0, dtype=np.bool_)
    for i in order.tolist():
        if graph.pin[i] != last:
            last = int(graph.pin[i])
            has = _has(rows, last)
        inside[edge_of_pin[i]] += has
    return inside


def _padded_lists(split: BoolArray) -> NDArray[np.int32]:
    """Hyperedges that each down-set splits, as rows filled from the left."""
    edges, ideals = split.shape
    number = split.sum(axis=0)
    most = int(number.max()) if ideals else 0
    lists = np.full((ideals, most), edges - 1, dtype=np.int32)
    edge, ideal = np.nonzero(split)
    order = np.argsort(ideal, kind="stable")
    edge, ideal = edge[order], ideal[order]
    position = np.arange(len(edge)) - np.repeat(np.cumsum(number) - number, number)
    lists[ideal, position] = edge
    return lists


def topological_order(graph: BlockGraph, priority: FloatArray) -> IntArray:
    """Order in which, of all blocks that are ready, the one of least priority comes next.

    Examples
    --------
    >>> one, none = np.ones(3), np.zeros(0, dtype=np.int64)
    >>> graph = BlockGraph(block=none, accelerator_time=one, cpu_time=one, size_bytes=one, supported=one > 0,
    ...     edge_source=np.array([0]), edge_target=np.array([1]), hyperedge_cost=none, pin_start=none, pin=none)
    >>> topological_order(graph, np.array([2.0, 0.0, 3.0])).tolist()
    [0, 1, 2]
    """
    successors: list[list[int]] = [[] for _ in range(graph.num_blocks)]
    for u, v in zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True):
        successors[u].append(v)
    waiting = np.bincount(graph.edge_target, minlength=graph.num_blocks).tolist()
    rank = priority.tolist()
    ready = [(rank[b], b) for b in range(graph.num_blocks) if waiting[b] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, u = heapq.heappop(ready)
        order.append(u)
        for v in successors[u]:
            waiting[v] -= 1
            if waiting[v] == 0:
                heapq.heappush(ready, (rank[v], v))
    return np.array(order, dtype=np.int64)


def sample_orders(graph: BlockGraph, count: int, seed: int) -> IntArray:
    """Branch by branch, level by level, latest first, then random mixtures of branches and levels.

    Returns
    -------
    int array (orders, blocks)
    """
    blocks = np.arange(graph.num_blocks, dtype=np.float64)
    level = _levels(graph)
    last = _levels_to_end(graph)
    orders = [blocks.astype(np.int64), topological_order(graph, level), topological_order(graph, -last)]
    random = np.random.default_rng(seed)
    while len(orders) < count:
        # Between branch order and level order, with noise of its own strength.
        mix, noise = random.random(), random.random() * graph.num_blocks / 4
        span = graph.num_blocks / max(1.0, float(level.max()))
        jitter = random.random(graph.num_blocks) * noise
        orders.append(topological_order(graph, mix * blocks + (1 - mix) * level * span + jitter))
    return np.stack(orders[:count])


def orders_around(graph: BlockGraph, stage: IntArray, count: int, seed: int) -> IntArray:
    """Orders that keep the stages of a chain together but for noise of their own strength, which lets blocks near an end cross it.

    Parameters
    ----------
    graph : BlockGraph
    stage : int array (blocks,)
        Number of each block's stage.
    count, seed : int

    Returns
    -------
    int array (orders, blocks)
    """
    random = np.random.default_rng(seed)
    level = _levels(graph)
    inside = level / max(1.0, float(level.max()))
    orders = []
    for _ in range(count):
        mix, noise = random.random(), float(np.exp(random.uniform(np.log(0.05), np.log(2.0))))
        orders.append(topological_order(graph, stage + mix * inside + noise * random.random(graph.num_blocks)))
    return np.stack(orders) if orders else np.zeros((0, graph.num_blocks), dtype=np.int64)


def _levels(graph: BlockGraph) -> FloatArray:
    """Longest path to each block, in edges; blocks are numbered topologically."""
    level = [0] * graph.num_blocks
    order = np.argsort(graph.edge_source, kind="stable")
    for u, v in zip(graph.edge_source[order].tolist(), graph.edge_target[order].tolist(), strict=True):
        level[v] = max(level[v], level[u] + 1)
    return np.array(level, dtype=np.float64)


def _levels_to_end(graph: BlockGraph) -> FloatArray:
    level = [0] * graph.num_blocks
    order = np.argsort(-graph.edge_target, kind="stable")
    for u, v in zip(graph.edge_source[order].tolist(), graph.edge_target[order].tolist(), strict=True):
        level[u] = max(level[u], level[v] + 1)
    return np.array(level, dtype=np.float64)
