"""Good chains of down-sets in graphs that are too large to enumerate: cheap cuts along many orders, exact programs on coarse graphs.

Coarsening
----------
What a stage pays is decided at its two ends, so a stage may as well end at the cheapest place nearby. Along an order the cost of a
cut after each position is a sum over hyperedges that are open there. In every window of equal work the cheapest position is kept;
segments between them are the blocks of a coarse graph, whose chains of prefixes are placements of the whole graph with the same loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.placement.bounds import largest_load
from strategies.placement.chain import ChainLimits, ChainSolution, best_chain
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph, packed_hyperedges
from strategies.placement.ideals import IdealFamily, ideals_from_orders, sample_orders, topological_order
from strategies.placement.problem import Placement, PlacementProblem, sums_by
from strategies.placement.segments import greedy_stages

__all__ = [
    "LARGE",
    "LargeChains",
    "coarse_along",
    "coarse_graph",
    "cut_costs",
    "cut_positions",
    "late_order",
    "segments_along",
]


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
        rank = np.empty(graph.num_blocks, dtype=np.int64)
        rank[order] = np.arange(graph.num_blocks)
        position = rank[graph.pin]
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
    rank = np.empty(count, dtype=np.int64)
    rank[order] = np.arange(count)
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
    order = np.empty_like(rank)
    order[rank] = np.arange(len(rank))
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
    cost, start, pin = _merged(graph, segment, count)
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


def _merged(graph: BlockGraph, segment: IntArray, count: int) -> tuple[FloatArray, IntArray, IntArray]:
    """Hyperedges over segments: those of one segment vanish, equal ones add up."""
    edge = np.repeat(np.arange(len(graph.hyperedge_cost)), np.diff(graph.pin_start))
    touched = np.unique(edge * count + segment[graph.pin])
    size = np.bincount(touched // count, minlength=len(graph.hyperedge_cost))
    touched = touched[size[touched // count] > 1]
    total: dict[tuple[int, ...], float] = {}
    owners, first = np.unique(touched // count, return_index=True)
    bounds = [*first.tolist(), len(touched)]
    pins = (touched % count).tolist()
    for i, owner in enumerate(owners.tolist()):
        key = tuple(pins[bounds[i] : bounds[i + 1]])
        total[key] = total.get(key, 0.0) + float(graph.hyperedge_cost[owner])
    return packed_hyperedges(total)


# Blocks from which on down-sets are not sampled any more but coarse graphs are cut.
LARGE = 2_500

# Segments per accelerator of the coarse graphs: the second time only along the best orders.
_SEGMENTS = (50, 150)
_MOST_SEGMENTS = 6_000
_BEST_ORDERS = 3
# Random orders besides the fixed ones; strengths of their noise, in stages.
_RANDOM_ORDERS = 6
_NOISE = (0.003, 0.3)
# Greedy cuts up to so many times the best value are worth cutting exactly.
_PROMISING = 1.02
# Limits above the bound, as multiples of it, that are tried in turn while they are below the best value.
_RISE = (1.003, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.2, 1.35)


def coarse_along(graph: BlockGraph, order: IntArray, segments: int) -> BlockGraph:
    """Segments of an order between cheap cuts as a graph."""
    return coarse_graph(graph, segments_along(graph, order, segments))


class LargeChains:
    """The best chain so far, and the order it was cut from.

    Parameters
    ----------
    problem : PlacementProblem
    graph : BlockGraph
        Of the problem, see `contract`.
    bound : float
        No chain is below it.
    clock : Clock
    """

    def __init__(self, problem: PlacementProblem, graph: BlockGraph, *, bound: float, clock: Clock) -> None:
        self.placement: Placement | None = None
        self.value = np.inf
        self.order = np.arange(graph.num_blocks)
        self._problem, self._graph, self._bound, self._clock = problem, graph, bound, clock
        self._limits = ChainLimits(
            num_accelerators=problem.num_accelerators,
            num_cpus=problem.num_cpus,
            capacity_bytes=problem.capacity_bytes,
        )

    def search(self, seed: int, *, num_orders: int = 10) -> None:
        """Cut some orders greedily, then the best of them exactly, coarsely first."""
        found: list[tuple[float, int, IntArray]] = []
        for number, order in enumerate(islice(self._orders(seed), num_orders)):
            found.append((self._greedy(order), number, order))
        found.sort(key=lambda item: item[:2])
        stages = self._problem.num_devices
        for per_stage, count in zip(_SEGMENTS, (_BEST_ORDERS, 1), strict=True):
            segments = int(min(per_stage * stages, _MOST_SEGMENTS, self._graph.num_blocks))
            kept = [(self._exact(order, segments), number, order) for _, number, order in found[:count]]
            found = sorted(kept, key=lambda item: item[:2])

    def search_around(self, seed: int) -> None:
        """Cut one more order, near the best so far: greedily, then exactly where that is promising."""
        graph = self._graph
        random = np.random.default_rng(seed)
        base = np.empty(graph.num_blocks)
        base[self.order] = np.arange(graph.num_blocks)
        order = late_order(graph, topological_order(graph, self._shaken(base, random)))
        if self._greedy(order) < self.value * _PROMISING:
            self._exact(order, int(min(_SEGMENTS[0] * self._problem.num_devices, _MOST_SEGMENTS, graph.num_blocks)))

    def _shaken(self, base: FloatArray, random: np.random.Generator) -> FloatArray:
        """Positions with noise, of a strength drawn between small and large shares of a stage."""
        stage = self._graph.num_blocks / self._problem.num_devices
        noise = stage * float(np.exp(random.uniform(*np.log(_NOISE))))
        return base + noise * random.random(self._graph.num_blocks)

    def _orders(self, seed: int) -> Iterator[IntArray]:
        graph = self._graph
        for order in sample_orders(graph, 3, seed):
            yield late_order(graph, order)
        random = np.random.default_rng(seed)
        base = np.empty(graph.num_blocks)
        base[self.order] = np.arange(graph.num_blocks)
        for _ in range(_RANDOM_ORDERS):
            yield late_order(graph, topological_order(graph, self._shaken(base, random)))

    def _greedy(self, order: IntArray) -> float:
        """Fill device after device; returns a measure of the order."""
        self._clock.check()
        found = greedy_stages(
            self._problem,
            self._graph,
            order,
            low=self._bound,
            high=largest_load(self._problem),
            clock=self._clock,
        )
        if found is None:
            return float("inf")
        if found[1] < self.value:
            self.placement, self.value = found
            self.order = order
            self._clock.report("orders cut greedily", self.value, self._bound)
        return found[1]

    def _exact(self, order: IntArray, segments: int) -> float:
        """Best chain of segments of an order."""
        coarse = coarse_along(self._graph, order, segments)
        family = ideals_from_orders(coarse, np.arange(coarse.num_blocks)[None])
        last = min(self.value, largest_load(self._problem))
        limits = [factor * self._bound for factor in _RISE if 0 < factor * self._bound < last]
        for limit in [*limits, last]:
            self._clock.check()
            found = best_chain(family, coarse, self._limits, limit=limit, clock=self._clock)
            if found is not None:
                if found.value < self.value:
                    self.placement, self.value = _placed(self._problem, coarse, family, found), found.value
                    self.order = order
                    self._clock.report("coarse graph cut exactly", self.value, self._bound)
                return found.value
        return float("inf")


def _placed(problem: PlacementProblem, coarse: BlockGraph, family: IdealFamily, found: ChainSolution) -> Placement:
    from strategies.placement.contiguous import chain_placement

    return chain_placement(problem, coarse, family, found)
