"""Cutting one topological order into stages greedily: fast enough for any graph, a first placement for the exact methods.

Notes
-----
The loads of all stages that begin at one position come from one pass over the hyperedges: a hyperedge is cut from its first pin at or
after the beginning on, and, unless it has pins before the beginning, up to its last pin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph
from strategies.placement.problem import Placement, PlacementProblem

__all__ = ["OrderedBlocks", "greedy_stages"]

# Halvings of the interval of limits; finer than any placement needs.
_HALVINGS = 24


@dataclass(frozen=True, slots=True)
class OrderedBlocks:
    """Prefix sums and sorted pins of a block graph along an order."""

    graph: BlockGraph
    order: IntArray
    time: FloatArray  # (blocks + 1,) prefix sums
    cpu: FloatArray
    size: FloatArray
    unsupported: IntArray
    position: IntArray  # (pins,) ascending within each hyperedge

    @classmethod
    def of(cls, graph: BlockGraph, order: IntArray) -> OrderedBlocks:
        """Lay a graph out along a topological order."""
        rank = np.empty(graph.num_blocks, dtype=np.int64)
        rank[order] = np.arange(graph.num_blocks)
        edge = np.repeat(np.arange(len(graph.hyperedge_cost)), np.diff(graph.pin_start))
        position = rank[graph.pin]
        position = position[np.lexsort((position, edge))]

        def prefix(values: FloatArray) -> FloatArray:
            return np.concatenate(([0.0], np.cumsum(values[order])))

        return cls(
            graph,
            order,
            prefix(graph.accelerator_time),
            prefix(graph.cpu_time),
            prefix(graph.size_bytes),
            prefix((~graph.supported).astype(np.float64)).astype(np.int64),
            position,
        )

    def accelerator_loads(self, begin: int) -> FloatArray:
        """Loads of the stages [begin, end) for end = begin + 1, ..., blocks.

        Examples
        --------
        >>> one, none = np.ones(3), np.zeros(0, dtype=np.int64)
        >>> graph = BlockGraph(block=none, accelerator_time=one, cpu_time=one, size_bytes=one, supported=one > 0,
        ...     edge_source=none, edge_target=none, hyperedge_cost=np.array([0.5]), pin_start=np.array([0, 2]), pin=np.array([0, 1]))
        >>> [OrderedBlocks.of(graph, np.arange(3)).accelerator_loads(i).tolist() for i in (0, 1)]
        [[1.5, 2.0, 3.0], [1.5, 2.5]]
        """
        blocks = self.graph.num_blocks
        start, cost = self.graph.pin_start, self.graph.hyperedge_cost
        edge = np.arange(len(cost))
        key = np.repeat(edge, np.diff(start)) * blocks + self.position
        first = np.searchsorted(key, edge * blocks + begin)
        touched = np.flatnonzero(first < start[1:])
        change = np.zeros(blocks + 2)
        np.add.at(change, self.position[first[touched]] + 1, cost[touched])
        whole = touched[first[touched] == start[touched]]
        np.add.at(change, self.position[start[whole + 1] - 1] + 1, -cost[whole])
        communication = np.cumsum(change)[begin + 1 : blocks + 1]
        return np.asarray(self.time[begin + 1 :] - self.time[begin] + communication)


def greedy_stages(
    problem: PlacementProblem, graph: BlockGraph, order: IntArray, *, low: float, high: float, clock: Clock
) -> tuple[Placement, float] | None:
    """Fill one device after the other as far as a limit allows, with the least limit that a bisection finds.

    Parameters
    ----------
    problem : PlacementProblem
    graph : BlockGraph
        Of the problem.
    order : int array
        Topological order of the blocks.
    low, high : float
        Limits to search between.
    clock : Clock

    Returns
    -------
    placement, value
        None when no limit lets everything fit.
    """
    blocks = OrderedBlocks.of(graph, order)
    loads: dict[int, FloatArray] = {}
    best: tuple[IntArray, float] | None = None
    best = _filled(problem, blocks, high, loads)
    if best is None:
        return None
    high = best[1]
    for _ in range(_HALVINGS):
        if high - low <= 1e-6 * high:
            break
        if clock.left_s == 0:
            break  # what was found is kept; whoever goes on looks at the clock first
        middle = (low + high) / 2
        found = _filled(problem, blocks, middle, loads)
        if found is None:
            low = middle
        else:
            best, high = found, min(found[1], middle)
    device_of_block, value = best
    return Placement(device=device_of_block[graph.block]), value


def _filled(
    problem: PlacementProblem, blocks: OrderedBlocks, limit: float, loads: dict[int, FloatArray]
) -> tuple[IntArray, float] | None:
    """Device of every block and the largest load; None when something is left over."""
    count = blocks.graph.num_blocks
    device = np.empty(count, dtype=np.int64)
    accelerator, cpu = 0, problem.num_accelerators
    begin, largest = 0, 0.0
    while begin < count:
        end, load = begin, 0.0
        if accelerator < problem.num_accelerators:
            # The last limits ask for the same few beginnings again; a graph has many, so not all are kept.
            if len(loads) > 200:
                loads.clear()
            if begin not in loads:
                loads[begin] = blocks.accelerator_loads(begin)
            fits = loads[begin] <= limit
            fits &= blocks.size[begin + 1 :] - blocks.size[begin] <= problem.capacity_bytes
            fits &= blocks.unsupported[begin + 1 :] == blocks.unsupported[begin]
            if np.any(fits):
                end = begin + 1 + int(np.flatnonzero(fits)[-1])
                load = float(loads[begin][end - begin - 1])
        where = accelerator
        if end == begin and cpu < problem.num_devices:
            where = cpu
            end = int(np.searchsorted(blocks.cpu, blocks.cpu[begin] + limit, "right")) - 1
            load = float(blocks.cpu[end] - blocks.cpu[begin])
            cpu += 1
        else:
            accelerator += 1
        if end <= begin:
            return None
        device[blocks.order[begin:end]] = where
        largest = max(largest, load)
        begin = end
    return device, largest
