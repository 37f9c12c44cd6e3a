"""Gives the subgraphs of a solution to accelerators: some number of calls each, within memory, colour classes together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.placement.contraction import BlockGraph
from strategies.placement.ideals import IdealFamily
from strategies.placement.latency.evaluate import CPU, evaluate, placement_of
from strategies.placement.latency.steps import Move
from strategies.placement.problem import Placement, PlacementProblem, sums_by

__all__ = ["packed", "placement_of_path"]


def placement_of_path(
    problem: PlacementProblem,
    graph: BlockGraph,
    family: IdealFamily,
    path: list[Move],
    num_subgraphs: int,
) -> Placement | None:
    """Make a placement of a path of steps; None where its subgraphs do not fit the accelerators."""
    stage = np.full(graph.num_blocks, CPU, dtype=np.int64)
    calls = 0
    for move in path:
        if move.on_cpu:
            continue
        stage[_held(family, move.outer, graph) & ~_held(family, move.inner, graph)] = calls
        calls += 1
    return packed(problem, stage[graph.block], num_subgraphs)


def packed(problem: PlacementProblem, stage: IntArray, num_subgraphs: int) -> Placement | None:
    """Give subgraphs, numbered in an order in which they can run, to accelerators.

    Where there are enough accelerators each has one. Else the largest comes first; it goes where the latency stays least, then
    where least room is left.

    Examples
    --------
    Three subgraphs of 2, 1 and 1 bytes on two accelerators of 2:

    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=9.0, size_bytes=s) for i, s in enumerate((1.0, 2.0, 1.0))]
    >>> edges = [EdgeSpec(0, 1, 0.5), EdgeSpec(1, 2, 0.5)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=0, memory_bytes=2.0)
    >>> placement = packed(problem, np.array([0, 1, 2]), 2)
    >>> placement.device.tolist(), placement.subgraph.tolist()
    ([1, 0, 1], [0, 0, 1])
    """
    used = stage != CPU
    count = int(stage.max(initial=-1)) + 1
    bundle = _bundles(problem, stage, count)
    size = sums_by(stage[used], problem.size_bytes[used], count)
    sizes = sums_by(bundle, size, count) if count else size
    calls = np.bincount(bundle, minlength=count)
    where = np.full(count, CPU, dtype=np.int64)  # of each stage
    if count <= problem.num_accelerators and bool(np.all(np.bincount(bundle, minlength=count) <= 1)):
        return _numbered(problem, stage, np.arange(count))  # one each
    room = np.full(problem.num_accelerators, problem.capacity_bytes)
    free = np.full(problem.num_accelerators, num_subgraphs)
    for b in np.lexsort((np.arange(count), -sizes)).tolist():
        if not calls[b]:
            continue
        best: tuple[float, float, int] | None = None
        options = np.flatnonzero((room >= sizes[b]) & (free >= calls[b])).tolist()
        empty = [a for a in options if free[a] == num_subgraphs]
        for a in [a for a in options if free[a] < num_subgraphs] + empty[:1]:
            where[bundle == b] = a
            key = (_latency(problem, stage, where), float(room[a]), a) if num_subgraphs > 1 else (0.0, 0.0, a)
            best = key if best is None or key < best else best
        if best is None:
            return None
        where[bundle == b] = best[2]
        room[best[2]] -= sizes[b]
        free[best[2]] -= calls[b]
    return _numbered(problem, stage, where)


def _bundles(problem: PlacementProblem, stage: IntArray, count: int) -> IntArray:
    """Stages that hold operators of one colour must share an accelerator: number of each stage's bundle."""
    bundle = np.arange(count)
    if not count:
        return bundle
    pairs = np.unique(np.stack((problem.color, stage))[:, stage != CPU], axis=1)
    for i in np.flatnonzero(pairs[0][1:] == pairs[0][:-1]).tolist():
        first, second = bundle[pairs[1][i]], bundle[pairs[1][i + 1]]
        bundle[bundle == max(first, second)] = min(first, second)
    return bundle


def _latency(problem: PlacementProblem, stage: IntArray, where: IntArray) -> float:
    """Latency with the stages so far on their accelerators and all others on ones of their own."""
    count = len(where)
    own = np.where(where == CPU, problem.num_accelerators + np.arange(count), where)
    unit = np.append(own, CPU)[stage]
    wide = replace(problem, num_accelerators=problem.num_accelerators + count)
    return evaluate(wide, placement_of(wide, unit, np.maximum(stage, 0))).latency


def _numbered(problem: PlacementProblem, stage: IntArray, where: IntArray) -> Placement:
    """Number each accelerator's subgraphs from 0, in the order of the stages."""
    position = np.zeros(len(where), dtype=np.int64)
    seen: FloatArray = np.zeros(problem.num_accelerators)
    for s, a in enumerate(where.tolist()):
        if a != CPU:
            position[s] = int(seen[a])
            seen[a] += 1
    return placement_of(problem, np.append(where, CPU)[stage], np.append(position, 0)[stage])


def _held(family: IdealFamily, ideal: int, graph: BlockGraph) -> BoolArray:
    block = np.arange(graph.num_blocks)
    words = family.bits[ideal, block // 64]
    return np.asarray((words >> (block % 64).astype(np.uint64)) & np.uint64(1) > 0)
