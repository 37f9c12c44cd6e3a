"""Atoms: operators that any placement for latency may keep together, and pieces of atoms in series for a first, coarse search.

Atoms
-----
CPUs are unlimited for latency, so the operators of a colour class on CPUs run independently, with anything between them. A class may
therefore not be contracted as for throughput. What may be contracted is an *anchor* operator with operators of its class
that take no time on a CPU and that are only there for it:

* before it: every successor is the anchor or before it (weights, most often);
* after it: every predecessor is the anchor or after it (its several outputs).

On a CPU such operators can be run immediately before or after their anchor without delay to anything. On an accelerator with one
subgraph the class is in that subgraph anyway. With several subgraphs an operator before its anchor can join the anchor's
subgraph if it has no predecessor (its accelerator is the same, its output need not move), one after its anchor if it has no
successor. Every solution thus becomes one, no slower, in which atoms are whole, and an atom on a CPU takes its anchor's time.

Colour classes of several atoms are *torn*. With one subgraph per accelerator a subgraph holds all atoms of a torn class or none of
them, and that is all that colocation says. With several it may hold some; what ignores their colour is a relaxation, which
`bundled` tightens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.placement.contraction import BlockGraph, contract
from strategies.placement.latency.steps import Arcs
from strategies.placement.problem import PlacementProblem, adjacent


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomGraph:
    """Atoms in a topological order, and the colour classes that consist of several."""

    graph: BlockGraph
    torn: tuple[IntArray, ...]


def atom_graph(problem: PlacementProblem, *, num_subgraphs: int = 1) -> AtomGraph:
    """Contract a problem without loss for the latency with some number of subgraphs per accelerator.

    Examples
    --------
    A weight (0) and the operator that reads it (1) share a class, and so does an operator two steps on (3):

    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=float(i > 0), cpu_time=9.0 * (i > 0), size_bytes=1.0, color="a" if i != 2 else None)
    ...     for i in range(4)]
    >>> edges = [EdgeSpec(0, 1, 0.5), EdgeSpec(1, 2, 0.5), EdgeSpec(2, 3, 0.5)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=1, num_cpus=0, memory_bytes=4.0)
    >>> atoms = atom_graph(problem)
    >>> atoms.graph.block.tolist(), [torn.tolist() for torn in atoms.torn]
    ([0, 0, 1, 2], [[0, 2]])
    """
    atom = _atoms(problem, several=num_subgraphs > 1)
    # Even an operator without time is no neighbour's if its class has other atoms, which may be elsewhere.
    pairs = np.unique(np.stack((problem.color, atom)), axis=1)
    divided = np.bincount(pairs[0]) > 1
    graph = contract(replace(problem, color=atom), kept=divided[problem.color])
    pairs = np.unique(np.stack((problem.color, graph.block)), axis=1)
    classes = np.split(pairs[1], np.flatnonzero(np.diff(pairs[0])) + 1)
    return AtomGraph(graph=graph, torn=tuple(atoms for atoms in classes if len(atoms) > 1))


def _atoms(problem: PlacementProblem, *, several: bool) -> IntArray:
    """Number of each operator's atom, by its first operator."""
    count = problem.num_nodes
    before = adjacent(count, problem.edge_target, problem.edge_source)
    after = adjacent(count, problem.edge_source, problem.edge_target)
    atom = list(range(count))
    color = problem.color.tolist()
    free = problem.cpu_time == 0
    for anchor in np.flatnonzero(~free).tolist():
        for near, back, one_sided in ((before, after, several), (after, before, several)):
            inside, waiting = {anchor}, list(near[anchor])
            while waiting:
                z = waiting.pop()
                if z in inside or atom[z] != z or color[z] != color[anchor] or not free[z]:
                    continue
                if not set(back[z]) <= inside or (one_sided and near[z]):
                    continue
                inside.add(z)
                atom[z] = anchor
                waiting.extend(near[z])
    _, numbers = np.unique(np.array(atom), return_inverse=True)
    return numbers.astype(np.int64)


_PIECE = 0.05  # of an accelerator's memory that operators in series take together at most


def coarse_graph(problem: PlacementProblem, atoms: AtomGraph) -> tuple[AtomGraph, IntArray]:
    """Unite atoms in series, if both are supported or not, and small; return the graph and the piece of each atom."""
    graph = atoms.graph
    count = graph.num_blocks
    outs = np.bincount(graph.edge_source, minlength=count)
    ins = np.bincount(graph.edge_target, minlength=count)
    piece = np.arange(count)
    size = graph.size_bytes.copy()
    bound_atoms = np.zeros(count, dtype=np.bool_)
    for torn in atoms.torn:
        bound_atoms[torn] = True
    for u, v in sorted(zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True)):
        first = piece[u]
        alike = graph.supported[u] == graph.supported[v] and not (bound_atoms[u] or bound_atoms[v])
        if outs[u] == 1 and ins[v] == 1 and alike and size[first] + size[v] <= _PIECE * problem.memory_bytes:
            piece[v] = first
            size[first] += size[v]
    _, piece = np.unique(piece, return_inverse=True)
    # What may go into a neighbour is in it already; flows are lifted arc by arc, so that nothing else may.
    as_they_are = np.ones(problem.num_nodes, dtype=np.bool_)
    coarse = contract(replace(problem, color=piece[graph.block].astype(np.int64)), kept=as_they_are)
    block_of_atom = np.zeros(count, dtype=np.int64)
    block_of_atom[graph.block] = coarse.block
    torn_blocks = tuple(np.unique(block_of_atom[torn]) for torn in atoms.torn)
    return AtomGraph(graph=coarse, torn=torn_blocks), block_of_atom


def lifted(flow: FloatArray, coarse: Arcs, arcs: Arcs, piece: IntArray) -> FloatArray:
    """A flow on the arcs of atoms that does what a flow on the arcs of pieces does.

    Between two pieces there is one arc of atoms, because atoms in series have no other neighbours; within a piece all that enters it flows.
    """
    ends = np.append(piece, coarse.num_atoms)
    through = np.zeros(coarse.num_atoms + 1)
    np.add.at(through, coarse.target, flow)
    number = {(u, v): i for i, (u, v) in enumerate(zip(coarse.source.tolist(), coarse.target.tolist(), strict=True))}
    result = np.zeros(arcs.size)
    for i, (u, v) in enumerate(zip(arcs.source.tolist(), arcs.target.tolist(), strict=True)):
        a, b = int(ends[u]), int(ends[v])
        result[i] = through[a] if a == b else flow[number[a, b]]
    return result
