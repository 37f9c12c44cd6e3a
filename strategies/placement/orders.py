"""Topological orders of blocks, and where to cut them: greedily into stages, or at cheap places into the segments of a coarse graph.

Greedy stages
-------------
The loads of all stages that begin at one position come from one pass over the hyperedges: a hyperedge is cut from its first pin at or
after the beginning on, and, unless it has pins before the beginning, up to its last pin.

Coarsening
----------
What a stage pays is decided at its two ends, so a stage may as well end at the cheapest place nearby. Along an order the cost of a
cut after each position is a sum over hyperedges that are open there. In every window of equal work the cheapest position is kept;
segments between them are the blocks of a coarse graph, whose chains of prefixes are placements of the whole graph with the same loads.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.limits import Clock
from strategies.placement.contraction import BlockGraph, merged_hyperedges
from strategies.placement.loads import Kind
from strategies.placement.problem import adjacent, sums_by


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
    successors = adjacent(graph.num_blocks, graph.edge_source, graph.edge_target)
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
    level = _levels(graph.num_blocks, graph.edge_source, graph.edge_target)
    end = graph.num_blocks - 1
    last = _levels(graph.num_blocks, end - graph.edge_target, end - graph.edge_source)[::-1]
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
    level = _levels(graph.num_blocks, graph.edge_source, graph.edge_target)
    inside = level / max(1.0, float(level.max()))
    orders = []
    for _ in range(count):
        mix, noise = random.random(), float(np.exp(random.uniform(np.log(0.05), np.log(2.0))))
        orders.append(topological_order(graph, stage + mix * inside + noise * random.random(graph.num_blocks)))
    return np.stack(orders) if orders else np.zeros((0, graph.num_blocks), dtype=np.int64)


def _levels(count: int, source: IntArray, target: IntArray) -> FloatArray:
    """Longest path to each block, in edges; blocks are numbered topologically."""
    level = [0] * count
    order = np.argsort(source, kind="stable")
    for u, v in zip(source[order].tolist(), target[order].tolist(), strict=True):
        level[v] = max(level[v], level[u] + 1)
    return np.array(level, dtype=np.float64)


# Halvings of the interval of limits; finer than any placement needs.
_HALVINGS = 24
# Beginnings whose loads are kept.
_MOST_KNOWN = 200


class OrderedBlocks:
    """Prefix sums and sorted pins of a block graph along a topological order.

    Parameters
    ----------
    graph : BlockGraph
        With the times and transfers of a device.
    order : int array (blocks,)
    capacity_bytes : float
        Of the device.
    """

    def __init__(self, graph: BlockGraph, order: IntArray, capacity_bytes: float = np.inf) -> None:
        self._graph, self._capacity_bytes = graph, capacity_bytes
        rank = np.argsort(order)  # where every block is
        edge = np.repeat(np.arange(len(graph.hyperedge_cost)), np.diff(graph.pin_start))
        position = rank[graph.pin]
        self._position = position[np.lexsort((position, edge))]  # (pins,) ascending within each hyperedge
        self._key = edge * graph.num_blocks + self._position  # ascends over all
        rows = np.stack((graph.accelerator_time, graph.size_bytes, ~graph.supported))
        self._time, self._size, self._unsupported = np.cumsum(np.pad(rows[:, order], ((0, 0), (1, 0))), axis=1)
        self._known: dict[int, FloatArray] = {}

    def loads(self, begin: int) -> FloatArray:
        """Loads of the stages [begin, end) for end = begin + 1, ..., blocks; infinite where they are not legal.

        Examples
        --------
        >>> one, none = np.ones(3), np.zeros(0, dtype=np.int64)
        >>> graph = BlockGraph(block=none, accelerator_time=one, cpu_time=one, size_bytes=one, supported=one > 0,
        ...     edge_source=none, edge_target=none, hyperedge_cost=np.array([0.5]), pin_start=np.array([0, 2]), pin=np.array([0, 1]))
        >>> [OrderedBlocks(graph, np.arange(3)).loads(i).tolist() for i in (0, 1)]
        [[1.5, 2.0, 3.0], [1.5, 2.5]]
        """
        # The last limits of a bisection ask for the same few beginnings again; a graph has many, so not all are kept.
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        if begin not in self._known:
            self._known[begin] = self._loads(begin)
        return self._known[begin]

    def _loads(self, begin: int) -> FloatArray:
        blocks, start, cost = self._graph.num_blocks, self._graph.pin_start, self._graph.hyperedge_cost
        first = np.searchsorted(self._key, np.arange(len(cost)) * blocks + begin)
        touched = np.flatnonzero(first < start[1:])
        change = np.zeros(blocks + 2)
        np.add.at(change, self._position[first[touched]] + 1, cost[touched])
        whole = touched[first[touched] == start[touched]]
        np.add.at(change, self._position[start[whole + 1] - 1] + 1, -cost[whole])
        load = self._time[begin + 1 :] - self._time[begin] + np.cumsum(change)[begin + 1 : blocks + 1]
        fits = self._size[begin + 1 :] - self._size[begin] <= self._capacity_bytes
        return np.where(fits & (self._unsupported[begin + 1 :] == self._unsupported[begin]), load, np.inf)


def greedy_stages(
    kinds: Sequence[Kind], graph: BlockGraph, order: IntArray, *, low: float, high: float, clock: Clock
) -> tuple[IntArray, float] | None:
    """Fill one device after the other as far as a limit allows, with the least limit that a bisection finds.

    Parameters
    ----------
    kinds : sequence of Kind
        The devices; those of a later kind take what no device of an earlier one can.
    graph : BlockGraph
    order : int array
        Topological order of the blocks.
    low, high : float
        Limits to search between.
    clock : Clock

    Returns
    -------
    device, value : int array (blocks,), float
        None when no limit lets everything fit.
    """
    blocks = [OrderedBlocks(kind.graph(graph), order, kind.capacity_bytes) for kind in kinds]
    best = _filled(kinds, blocks, order, high)
    if best is None:
        return None
    high = best[1]
    for _ in range(_HALVINGS):
        # What was found is kept when the time is up; whoever goes on looks at the clock first.
        if high - low <= 1e-6 * high or clock.left_s == 0:
            break
        middle = (low + high) / 2
        found = _filled(kinds, blocks, order, middle)
        if found is None:
            low = middle
        else:
            best, high = found, min(found[1], middle)
    return best


def _filled(
    kinds: Sequence[Kind], blocks: Sequence[OrderedBlocks], order: IntArray, limit: float
) -> tuple[IntArray, float] | None:
    """Device of every block and the largest load; None when something is left over."""
    device = np.empty(len(order), dtype=np.int64)
    used = [0] * len(kinds)
    begin, largest = 0, 0.0
    while begin < len(order):
        for t, kind in enumerate(kinds):
            loads = blocks[t].loads(begin) if used[t] < kind.count else np.zeros(0)
            fitting = np.flatnonzero(loads <= limit)
            if len(fitting):
                end = begin + 1 + int(fitting[-1])
                device[order[begin:end]] = kind.first + used[t]
                used[t] += 1
                largest = max(largest, float(loads[fitting[-1]]))
                begin = end
                break
        else:
            return None
    return device, largest


def cut_costs(graph: BlockGraph, order: IntArray) -> FloatArray:
    """Cost of all hyperedges that have pins among the first i blocks of an order and after them, for i = 0, ..., blocks.

    >>> one, none = np.ones(3), np.zeros(0, dtype=np.int64)
    >>> graph = BlockGraph(block=none, accelerator_time=one, cpu_time=one, size_bytes=one, supported=one > 0, edge_source=none,
    ...     edge_target=none, hyperedge_cost=np.array([0.5, 2.0]), pin_start=np.array([0, 2, 4]), pin=np.array([0, 1, 0, 2]))
    >>> cut_costs(graph, np.arange(3)).tolist()
    [0.0, 2.5, 2.0, 0.0]
    """
    change = np.zeros(graph.num_blocks + 1)
    if len(graph.hyperedge_cost):
        position = np.argsort(order)[graph.pin]
        np.add.at(change, np.minimum.reduceat(position, graph.pin_start[:-1]) + 1, graph.hyperedge_cost)
        np.subtract.at(change, np.maximum.reduceat(position, graph.pin_start[:-1]) + 1, graph.hyperedge_cost)
    costs = np.cumsum(change)
    # What is left of opened and closed hyperedges at the end is rounding.
    return np.maximum(costs, 0.0)


def late_order(graph: BlockGraph, order: IntArray) -> IntArray:
    """Delay blocks to just before their first reader where that opens their output later and keeps nothing more expensive open.

    Weights and masks, ready from the start, come where they are needed.

    >>> one, none = np.ones(4), np.zeros(0, dtype=np.int64)
    >>> graph = BlockGraph(block=none, accelerator_time=one, cpu_time=one, size_bytes=one, supported=one > 0,
    ...     edge_source=np.array([0, 1, 2]), edge_target=np.array([3, 2, 3]), hyperedge_cost=np.ones(3),
    ...     pin_start=np.array([0, 2, 4, 6]), pin=np.array([0, 3, 1, 2, 2, 3]))
    >>> late_order(graph, np.arange(4)).tolist()  # block 0 is read by block 3 alone
    [1, 2, 0, 3]
    """
    count = graph.num_blocks
    rank = np.argsort(order)
    opened, closed = _opened_and_closed(graph, rank)
    movable = ((opened > closed) & (np.bincount(graph.edge_source, minlength=count) > 0)).tolist()
    # A movable block comes right before the first of its readers, where that is itself after it has moved.
    place = rank.tolist()
    first = [count] * count
    backwards = np.argsort(-rank[graph.edge_source], kind="stable")
    sources, targets = graph.edge_source[backwards].tolist(), graph.edge_target[backwards].tolist()
    for i, (u, v) in enumerate(zip(sources, targets, strict=True)):
        first[u] = min(first[u], place[v])
        is_last = i + 1 == len(sources) or sources[i + 1] != u
        if is_last and movable[u]:
            place[u] = first[u]
    return np.lexsort((rank, np.array(place))).astype(np.int64)


def _opened_and_closed(graph: BlockGraph, rank: IntArray) -> tuple[FloatArray, FloatArray]:
    """Cost of the hyperedges that begin and end with each block."""
    if not len(graph.hyperedge_cost):
        return np.zeros(graph.num_blocks), np.zeros(graph.num_blocks)
    order = np.argsort(rank)
    position = rank[graph.pin]
    first = order[np.minimum.reduceat(position, graph.pin_start[:-1])]
    last = order[np.maximum.reduceat(position, graph.pin_start[:-1])]
    return (
        sums_by(first, graph.hyperedge_cost, graph.num_blocks),
        sums_by(last, graph.hyperedge_cost, graph.num_blocks),
    )


def cut_positions(graph: BlockGraph, order: IntArray, count: int) -> IntArray:
    """Cheapest position to cut in each of ``count`` windows of equal work, and where support changes; 0 and the end included.

    >>> one, none = np.ones(4), np.zeros(0, dtype=np.int64)
    >>> graph = BlockGraph(block=none, accelerator_time=one, cpu_time=one, size_bytes=one, supported=one > 0, edge_source=none,
    ...     edge_target=none, hyperedge_cost=np.array([2.0, 1.0, 2.0]), pin_start=np.array([0, 2, 4, 6]),
    ...     pin=np.array([0, 1, 1, 2, 2, 3]))
    >>> cut_positions(graph, np.arange(4), 1).tolist()
    [0, 2, 4]
    """
    costs = cut_costs(graph, order)
    inner = np.arange(1, graph.num_blocks)
    if not len(inner):
        return np.array([0, graph.num_blocks], dtype=np.int64)
    # Blocks count as work too, in part: long stretches without time may be full of memory.
    work = np.cumsum(_share(graph.accelerator_time[order]) + _share(graph.size_bytes[order]) / 4)
    window = np.minimum((work[inner - 1] / max(float(work[-1]), 1e-300) * count).astype(np.int64), count - 1)
    best = np.lexsort((inner, costs[inner], window))
    first = np.unique(window[best], return_index=True)[1]
    supported = graph.supported[order]
    changes = inner[supported[inner] != supported[inner - 1]]
    ends = np.array([0, graph.num_blocks])
    return np.unique(np.concatenate((ends, inner[best[first]], changes[: 2 * count]))).astype(np.int64)


def segments_along(graph: BlockGraph, order: IntArray, count: int) -> IntArray:
    """Segment of every block where an order is cut at `cut_positions`."""
    positions = cut_positions(graph, order, count)
    segment = np.empty(graph.num_blocks, dtype=np.int64)
    segment[order] = np.repeat(np.arange(len(positions) - 1), np.diff(positions))
    return segment


def _share(values: FloatArray) -> FloatArray:
    total = float(values.sum())
    return values / total if total > 0 else np.full(len(values), 1.0 / len(values))


def coarse_graph(graph: BlockGraph, segment: IntArray) -> BlockGraph:
    """Unite blocks of equal segment; segments must be numbered along a topological order.

    ``block`` of the result maps the operators of the problem, as it does in the graph.

    >>> one, none = np.ones(3), np.zeros(0, dtype=np.int64)
    >>> graph = BlockGraph(block=np.arange(3), accelerator_time=one, cpu_time=one, size_bytes=one, supported=one > 0,
    ...     edge_source=np.array([0, 1]), edge_target=np.array([1, 2]), hyperedge_cost=np.array([0.5, 2.0]),
    ...     pin_start=np.array([0, 2, 4]), pin=np.array([0, 1, 1, 2]))
    >>> coarse = coarse_graph(graph, np.array([0, 0, 1]))
    >>> coarse.accelerator_time.tolist(), coarse.hyperedge_cost.tolist(), coarse.pin.tolist()
    ([2.0, 1.0], [2.0], [0, 1])
    """
    count = int(segment.max()) + 1
    cost, start, pin = merged_hyperedges(graph.pin_start, graph.pin, graph.hyperedge_cost, segment)
    edges = np.unique(segment[graph.edge_source] * count + segment[graph.edge_target])
    edges = edges[edges // count != edges % count]
    return BlockGraph(
        block=segment[graph.block],
        accelerator_time=sums_by(segment, graph.accelerator_time, count),
        cpu_time=sums_by(segment, graph.cpu_time, count),
        size_bytes=sums_by(segment, graph.size_bytes, count),
        supported=np.bincount(segment, weights=~graph.supported, minlength=count) == 0,
        edge_source=edges // count,
        edge_target=edges % count,
        hyperedge_cost=cost,
        pin_start=start,
        pin=pin,
    )
