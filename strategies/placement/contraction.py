"""Contracts a placement problem to blocks of operators that share a device in every contiguous placement, or may without loss.

Notes
-----
A contiguous placement cuts the forward graph by a chain of down-sets; backward operators follow their colour class. The steps:

1. every colour class is one block;
2. a class of backward operators only has no place in the forward graph, so each backward edge (a, b) that touches one becomes
   the precedence class(b) -> class(a): the mirror image that its forward operators would have had;
3. blocks on a cycle of precedences unite, because no chain of down-sets separates them;
4. a block without time, with one neighbour in all, joins it: moving it there cuts no further hyperedge and separates no path. This
   is left out where it could hurt: the block is unsupported and its neighbour is not, or it has a size and memory is scarce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.placement.problem import PlacementProblem, adjacent, behind_cycles, sums_by


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGraph:
    """Blocks in a topological order of their precedences, with hyperedges of equal pins merged and inner ones dropped."""

    block: IntArray  # (nodes,) of the problem -> block
    accelerator_time: FloatArray  # (blocks,)
    cpu_time: FloatArray
    size_bytes: FloatArray
    supported: BoolArray
    edge_source: IntArray  # precedences, no edge twice
    edge_target: IntArray
    hyperedge_cost: FloatArray  # (hyperedges,) above 0
    pin_start: IntArray  # (hyperedges + 1,)
    pin: IntArray  # blocks, ascending within a hyperedge, at least two of them

    @property
    def num_blocks(self) -> int:
        """Blocks."""
        return len(self.accelerator_time)


def contract(problem: PlacementProblem, *, kept: BoolArray | None = None) -> BlockGraph:
    """Make the blocks of a contiguous placement: all four steps.

    Parameters
    ----------
    problem : PlacementProblem
    kept : bool array (nodes,), optional
        Operators whose classes the last step leaves alone, though they take no time.

    Examples
    --------
    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=float(i > 0), cpu_time=9.0 * (i > 0)) for i in range(3)]
    >>> edges = [EdgeSpec(0, 1, 0.5), EdgeSpec(1, 2, 0.5)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=0, memory_bytes=1.0)
    >>> contract(problem).block.tolist()  # node 0 takes no time and feeds node 1 alone
    [0, 0, 1]
    """
    block = problem.color.copy()
    source, target = _precedences(problem)
    block = _strong_components(problem.num_colors, source, target)[block]
    block = _without_trivial(problem, block, source, target, kept)
    return _graph(problem, block, problem.color, source, target)


def contract_classes(problem: PlacementProblem) -> BlockGraph:
    """Make the blocks of a placement that need not be contiguous: colour classes (step 1), in an order of their own numbers."""
    none = np.zeros(0, dtype=np.int64)
    return _graph(problem, problem.color.copy(), problem.color, none, none)


def _precedences(problem: PlacementProblem) -> tuple[IntArray, IntArray]:
    """Precedences between colour classes: forward edges, and mirrored backward edges of classes without forward operators."""
    source, target = problem.edge_source, problem.edge_target
    forward = np.zeros(problem.num_colors, dtype=np.bool_)
    forward[problem.color[~problem.backward]] = True
    backward_edge = problem.backward[source] & problem.backward[target]
    forward_edge = ~problem.backward[source] & ~problem.backward[target]
    lonely = ~forward[problem.color]
    mirrored = backward_edge & (lonely[source] | lonely[target])
    first = np.concatenate((problem.color[source[forward_edge]], problem.color[target[mirrored]]))
    second = np.concatenate((problem.color[target[forward_edge]], problem.color[source[mirrored]]))
    return _unique_edges(first, second)


def _unique_edges(source: IntArray, target: IntArray) -> tuple[IntArray, IntArray]:
    """Edges without loops, each once, ordered."""
    keep = source != target
    if not np.any(keep):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    # One number per pair: sorting rows takes ten times as long.
    count = int(max(source.max(), target.max())) + 1
    pairs = np.unique(source[keep] * count + target[keep])
    return pairs // count, pairs % count


def _strong_components(count: int, source: IntArray, target: IntArray) -> IntArray:
    """Number of each vertex's strongly connected component, by smallest member."""
    component = np.arange(count, dtype=np.int64)
    left = [] if bool(np.all(source < target)) else behind_cycles(adjacent(count, source, target))
    if left:
        from networkx import DiGraph, strongly_connected_components

        cyclic = np.isin(source, left) & np.isin(target, left)
        graph = DiGraph(zip(source[cyclic].tolist(), target[cyclic].tolist(), strict=True))
        for members in strongly_connected_components(graph):
            component[list(members)] = min(members)
    return component


def _without_trivial(
    problem: PlacementProblem, block: IntArray, source: IntArray, target: IntArray, kept: BoolArray | None
) -> IntArray:
    """Step 4; blocks are named by one of their colour classes."""
    count = problem.num_colors
    own = problem.accelerator_time + problem.cpu_time
    for kind in problem.types:
        own = own + kind.time
    time = sums_by(block, own, count)
    size = sums_by(block, problem.size_bytes, count)
    supported = np.ones(count, dtype=np.bool_)
    np.logical_and.at(supported, block, problem.supported)
    least = min((kind.memory_bytes for kind in problem.types), default=problem.memory_bytes)
    is_scarce = float(problem.size_bytes.sum()) > least
    if not np.any((time[block] == 0) & ~((size[block] > 0) & is_scarce)):
        return block
    name = np.full(count, -1, dtype=np.int64)
    name[problem.color] = block
    first = np.concatenate((block[problem.edge_source], name[source]))
    second = np.concatenate((block[problem.edge_target], name[target]))
    apart = first != second
    first, second = first[apart], second[apart]
    ends = np.concatenate((first, second)), np.concatenate((second, first))
    neighbours = [set(near) for near in adjacent(count, *ends)]
    into = np.arange(count)
    stays = (time > 0) | ((size > 0) & is_scarce)
    if kept is not None:
        stays[block[kept]] = True
    left = np.flatnonzero(~stays).tolist()
    while left:
        waiting = []
        for v in left:
            others = neighbours[v]
            if len(others) != 1:
                waiting.append(v)
                continue
            (u,) = others
            if supported[v] or not supported[u]:
                into[v] = u
                supported[u] &= supported[v]
                neighbours[u].discard(v)
                others.clear()
        if len(waiting) == len(left):
            break
        left = waiting
    while np.any(into != into[into]):
        into = into[into]
    return into[block]


def _graph(
    problem: PlacementProblem, block: IntArray, color: IntArray, source: IntArray, target: IntArray
) -> BlockGraph:
    """Number blocks topologically and collect what they cost; ``source`` and ``target`` are colour classes."""
    names, compact = np.unique(block, return_inverse=True)
    count = len(names)
    of_color = np.empty(int(color.max()) + 1, dtype=np.int64)
    of_color[color] = compact
    first, second = _unique_edges(of_color[source], of_color[target])
    rank = topological_rank(count, first, second)
    of_node = rank[compact]
    first, second = _unique_edges(rank[first], rank[second])
    supported = np.ones(count, dtype=np.bool_)
    np.logical_and.at(supported, of_node, problem.supported)
    edges = problem.hyperedges
    cost, start, pin = merged_hyperedges(edges.start, edges.pin, edges.cost, of_node)
    return BlockGraph(
        block=of_node,
        accelerator_time=sums_by(of_node, problem.accelerator_time, count),
        cpu_time=sums_by(of_node, problem.cpu_time, count),
        size_bytes=sums_by(of_node, problem.size_bytes, count),
        supported=supported,
        edge_source=first,
        edge_target=second,
        hyperedge_cost=cost,
        pin_start=start,
        pin=pin,
    )


def topological_rank(count: int, source: IntArray, target: IntArray) -> IntArray:
    """Position of every vertex in a topological order that keeps to one branch: the newest vertex that is ready comes next."""
    successors = adjacent(count, source, target)
    waiting = np.bincount(target, minlength=count).tolist()
    ready = [v for v in reversed(range(count)) if waiting[v] == 0]
    rank = np.full(count, -1, dtype=np.int64)
    position = 0
    while ready:
        u = ready.pop()
        rank[u] = position
        position += 1
        for v in reversed(successors[u]):
            waiting[v] -= 1
            if waiting[v] == 0:
                ready.append(v)
    assert position == count, "precedences have a cycle"
    return rank


def merged_hyperedges(
    start: IntArray, pin: IntArray, cost: FloatArray, block: IntArray
) -> tuple[FloatArray, IntArray, IntArray]:
    """Unite the pins of hyperedges into blocks: equal pin sets add up, those inside one block or without cost vanish.

    Returns
    -------
    cost, start, pin : float array, int array, int array
        Of the hyperedges over blocks; pins ascend within each.
    """
    count = int(block.max()) + 1
    edge = np.repeat(np.arange(len(cost)), np.diff(start))
    touched = np.unique(edge * count + block[pin])
    owner = touched // count
    kept = (np.bincount(owner, minlength=len(cost))[owner] > 1) & (cost[owner] > 0)
    owners, first = np.unique(owner[kept], return_index=True)
    pins = (touched[kept] % count).tolist()
    bounds = [*first.tolist(), len(pins)]
    total: dict[tuple[int, ...], float] = {}
    for i, price in enumerate(cost[owners].tolist()):
        key = tuple(pins[bounds[i] : bounds[i + 1]])
        total[key] = total.get(key, 0.0) + price
    keys = sorted(total)
    starts = np.concatenate(([0], np.cumsum([len(key) for key in keys]))).astype(np.int64)
    flat = np.array([b for key in keys for b in key], dtype=np.int64)
    return np.array([total[key] for key in keys], dtype=np.float64), starts, flat
