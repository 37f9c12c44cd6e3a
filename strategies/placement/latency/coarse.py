"""A coarser graph for a first solution and a first flow: operators in series become one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.placement.contraction import contract
from strategies.placement.latency.atoms import AtomGraph
from strategies.placement.latency.steps import Arcs
from strategies.placement.problem import PlacementProblem

__all__ = ["coarse_graph", "lifted"]

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
