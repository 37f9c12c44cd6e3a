"""Topological orders of a block graph: where chains of down-sets are looked for when all of them are too many."""

from __future__ import annotations

import heapq

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.placement.contraction import BlockGraph

__all__ = ["orders_around", "sample_orders", "topological_order"]


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
