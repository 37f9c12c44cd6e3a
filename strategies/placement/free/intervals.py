"""Sets of neighbours along an order of the blocks: what most sets of good placements look like, to begin with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.placement.contraction import BlockGraph

__all__ = ["longest_intervals"]


def longest_intervals(graph: BlockGraph, order: IntArray, load: float) -> list[IntArray]:
    """From every position of an order the longest row of supported blocks within a load, those within another one left out.

    Parameters
    ----------
    graph : BlockGraph
        With the times and transfers of the device.
    order : int array (blocks,)
    load : float
        Compute and communication, at most.

    Returns
    -------
    list of int array
        Blocks of each, ascending.

    Examples
    --------
    Four operators in a row, outputs of 1: the first or last two take 2 + 1, a pair in the middle 2 + 2.

    >>> from strategies.placement.contraction import contract_classes
    >>> from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementProblem
    >>> nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=9.0) for i in range(4)]
    >>> edges = [EdgeSpec(i, i + 1, 1.0) for i in range(3)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=0, memory_bytes=1.0)
    >>> [members.tolist() for members in longest_intervals(contract_classes(problem), np.arange(4), 3.5)]
    [[0, 1], [2, 3]]
    """
    supported = graph.supported[order]
    found: list[IntArray] = []
    reached = 0
    for first, loads in enumerate(_interval_loads(graph, order)):
        refused = np.flatnonzero(~supported[first:])
        most = int(refused[0]) if len(refused) else len(order) - first
        within = np.flatnonzero(loads[:most] <= load)
        end = first + int(within[-1]) + 1 if len(within) else first
        if end > reached:
            reached = end
            found.append(np.sort(order[first:end]))
    return found


def _interval_loads(graph: BlockGraph, order: IntArray) -> Iterator[FloatArray]:
    """For every first position the loads of the rows that begin there, by length."""
    count = len(order)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    number = np.repeat(np.arange(len(graph.hyperedge_cost)), np.diff(graph.pin_start))
    by_place = np.lexsort((place[graph.pin], number))
    pins = place[graph.pin][by_place]
    at = graph.pin_start[:-1].copy()  # of each hyperedge's first pin that is not before the row
    last = pins[graph.pin_start[1:] - 1]
    time = graph.accelerator_time[order]
    for first in range(count):
        alive = np.flatnonzero(at < graph.pin_start[1:])
        change = np.zeros(count)
        np.add.at(change, pins[at[alive]], graph.hyperedge_cost[alive])
        whole = alive[at[alive] == graph.pin_start[alive]]
        np.add.at(change, last[whole], -graph.hyperedge_cost[whole])
        yield np.cumsum(time[first:]) + np.cumsum(change[first:])
        at[alive[pins[at[alive]] == first]] += 1
