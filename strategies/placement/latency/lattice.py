"""Searches chains of down-sets for latency: flows for bounds, labels for solutions and proofs, on a coarse graph first.

The graph is one of atoms, which lose nothing; the coarse graph gives a first solution and a first flow.

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
`bundles` tightens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import EQUAL
from strategies.limits import Clock
from strategies.placement.chain import IdealFamily, TooManyIdealsError, enumerate_ideals
from strategies.placement.contraction import BlockGraph, contract
from strategies.placement.latency.labels import LabelAnswer, LabelSearch
from strategies.placement.latency.packing import bundled, placement_of_path
from strategies.placement.latency.steps import (
    Arcs,
    FarSteps,
    Flows,
    Move,
    Steps,
    arcs_of,
    build_steps,
    crossing_arcs,
    far_steps,
    least_after,
    least_before,
    membership,
    survivors,
)
from strategies.placement.problem import Placement, PlacementProblem, adjacent

__all__ = ["METHOD", "AtomGraph", "Best", "atom_graph", "coarse_graph", "lifted", "search_lattices"]


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
    anchors = _anchors(problem)
    for anchor in anchors:
        for near, back, one_sided in ((before, after, several), (after, before, several)):
            inside, waiting = {anchor}, list(near[anchor])
            while waiting:
                z = waiting.pop()
                if z in inside or atom[z] != z or color[z] != color[anchor] or not free[z] or z in anchors:
                    continue
                if not set(back[z]) <= inside or (one_sided and near[z]):
                    continue
                inside.add(z)
                atom[z] = anchor
                waiting.extend(near[z])
    _, numbers = np.unique(np.array(atom), return_inverse=True)
    return numbers.astype(np.int64)


def _anchors(problem: PlacementProblem) -> dict[int, None]:
    """Operators that take time on CPUs."""
    return dict.fromkeys(np.flatnonzero(problem.cpu_time > 0).tolist())


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


METHOD = "labels over down-sets"
_FLOW_PROOF = "mixture of paths over all chains of down-sets"
_LABEL_PROOF = "exhaustive: labels over all chains of down-sets"
_LIMIT_PROOF = "labels over all chains of down-sets: none below it"
_RELAXED_PROOF = "labels over all chains of down-sets, on accelerators that may run several calls at once"
# With more down-sets than this a coarse graph comes first, and steps across chokes are not made one by one.
_LARGE = 8_000
_MAX_STEPS = 30_000_000
_MOST_SURVIVORS = 12_000_000
_MOST_LABELS = 3_000_000
# Flows that are tried, and the relative distance of the program's ceiling at which they are as good as they get.
_FLOWS = 40
_CLOSE = 1e-6
# Flows between attempts to make the far steps that are left.
_NARROWED = 4
_CAPS = (3, 30, 300)
# Limits, as shares of the way from the bound to the best value.
_RISE = (0.1, 0.3, 0.6, 1.0)


class Best(Protocol):
    """Best placement and best bound so far."""

    problem: PlacementProblem
    num_subgraphs: int
    value: float

    @property
    def clock(self) -> Clock:
        """Of the search."""

    def offer(self, placement: Placement | None, method: str) -> None:
        """Take a legal placement if it is better."""

    def raise_bound(self, bound: float, proof: str) -> None:
        """Take a bound if it is better."""

    def is_done(self) -> bool:
        """Whether the bound is as near as was asked."""


def search_lattices(best: Best, max_ideals: int) -> None:
    """Search with one call per accelerator, then with more.

    What one call per accelerator finds is a solution for any number of them; it is a bound for one only. A class may be in two
    subgraphs of an accelerator, so with more calls colours are ignored for the bound at first; what that allows too much is left out when
    few steps are left (`bundles`).
    """
    problem, several = best.problem, best.num_subgraphs
    atoms = atom_graph(problem)
    # Of a large graph one call per accelerator takes minutes and is no bound for more: that comes last then.
    is_last = _search(best, atoms, problem.num_accelerators, max_ideals, is_bound=several == 1, is_quick=several > 1)
    if several == 1 or best.is_done():
        return
    calls = problem.num_accelerators * several
    whole = atom_graph(problem, num_subgraphs=several)
    relaxed = AtomGraph(graph=whole.graph, torn=())
    _search(best, relaxed, calls, max_ideals, is_bound=True, loose=whole.torn)
    if is_last and not best.is_done():
        _search(best, atoms, problem.num_accelerators, max_ideals, is_bound=False)
    if atoms.torn and not best.is_done():
        _search(best, atoms, calls, max_ideals, is_bound=False)


def _search(
    best: Best,
    atoms: AtomGraph,
    calls: int,
    max_ideals: int,
    *,
    is_bound: bool,
    loose: Sequence[IntArray] = (),
    is_quick: bool = False,
) -> bool:
    """Search on a coarse graph first where there are many down-sets.

    ``loose`` are classes that were left out of account, to be looked at when few steps are left. With ``is_quick`` the coarse graph is
    enough where there is one; returns whether it was.
    """
    try:
        family = enumerate_ideals(atoms.graph, limit=max_ideals, clock=best.clock)
    except TooManyIdealsError:
        family = None
    start: tuple[FloatArray, Arcs, IntArray] | None = None
    if family is None or len(family) > _LARGE:
        best.clock.check()
        coarse, piece = coarse_graph(best.problem, atoms)
        small = _Lattice.build(best, coarse, max_ideals)
        if small is not None and coarse.graph.num_blocks < atoms.graph.num_blocks:
            start = (small.search(best, calls, is_bound=False), small.arcs, piece)
            if is_quick:
                return True
    if family is None:
        return False
    lattice = _Lattice.build(best, atoms, max_ideals, family)
    if lattice is None:
        return False
    flow = None if start is None else lifted(start[0], start[1], lattice.arcs, start[2])
    lattice.search(best, calls, is_bound=is_bound, flow=flow, loose=loose)
    return False


class _Lattice:
    """Down-sets, steps and labels of one graph."""

    def __init__(self, atoms: AtomGraph, family: IdealFamily, arcs: Arcs, steps: Steps, far: FarSteps | None) -> None:
        self.atoms, self.family, self.arcs, self.steps, self.far = atoms, family, arcs, steps, far
        self._has = membership(atoms.graph, family)

    @classmethod
    def build(cls, best: Best, atoms: AtomGraph, max_ideals: int, family: IdealFamily | None = None) -> _Lattice | None:
        """Make the tables; None where they are too large."""
        problem = best.problem
        capacity = problem.capacity_bytes
        if family is None:
            try:
                family = enumerate_ideals(atoms.graph, limit=max_ideals, clock=best.clock)
            except TooManyIdealsError:
                return None
        arcs = arcs_of(atoms.graph)
        is_large = len(family) > _LARGE and not atoms.torn
        far = far_steps(atoms.graph, family, capacity) if is_large else None
        steps = build_steps(
            atoms.graph,
            family,
            arcs,
            capacity_bytes=capacity,
            most_time=best.value,
            most_steps=_MAX_STEPS,
            clock=best.clock,
            accelerators=problem.num_accelerators > 0,
            together=atoms.torn,
            until=None if far is None else far.until,
        )
        return None if steps is None else cls(atoms, family, arcs, steps, far)

    def search(
        self,
        best: Best,
        calls: int,
        *,
        is_bound: bool,
        flow: FloatArray | None = None,
        loose: Sequence[IntArray] = (),
    ) -> FloatArray:
        """Search solutions with so many calls; return the best flow.

        ``is_bound`` tells that every solution is one of these, so that a bound on them is one; ``loose`` are classes that these
        solutions may tear apart and no placement may.
        """
        graph = self.atoms.graph
        least = np.where(graph.supported, np.minimum(graph.accelerator_time, graph.cpu_time), graph.cpu_time)
        flows = Flows(self.arcs, least, calls, flow)
        for i in range(_FLOWS):
            best.clock.check()
            self._offer(best, flows.improve(self.steps, self.far, self._crossing))
            if is_bound:
                best.raise_bound(min(flows.bound, best.value), _FLOW_PROOF)
            if best.is_done() or flows.ceiling - flows.bound <= _CLOSE * flows.bound:
                break
            if self.far is not None and i % _NARROWED == 1:
                self._narrow(best, flows)
        if not best.is_done() and (self.far is None or self._narrow(best, flows)):
            tied = self._tied(best, flows, loose) if loose else None
            if tied is not None:
                return tied.search(best, calls, is_bound=is_bound, flow=flows.flow)
            self._label(best, flows, calls, is_bound)
        return flows.flow

    def _tied(self, best: Best, flows: Flows, torn: Sequence[IntArray]) -> _Lattice | None:
        """The same solutions, but for those in which calls of a torn class cannot share an accelerator."""
        assert flows.reach is not None
        found = bundled(
            self.steps.keep(survivors(self.steps, flows.reach, best.value)),
            self.family,
            self._has,
            torn,
            capacity_bytes=best.problem.capacity_bytes,
            num_subgraphs=best.num_subgraphs,
            most_steps=_MOST_SURVIVORS,
            clock=best.clock,
        )
        return None if found is None else _Lattice(self.atoms, found.family, self.arcs, found.steps, None)

    def _crossing(self, ideal: int) -> IntArray:
        return crossing_arcs(self.arcs, self._has, ideal)

    def _narrow(self, best: Best, flows: Flows) -> bool:
        """Make the far steps that solutions below the best value may take, and leave out all others; False: too many."""
        assert self.far is not None
        assert flows.reach is not None
        reach, limit = flows.reach, best.value
        before = least_before(self.steps, reach, self.far)
        kept = survivors(self.steps, reach, limit, before)
        self.steps = self.steps.keep(kept)
        flows.reach = reach.keep(kept)
        found = self.far.below(before, reach.least, limit, _MOST_SURVIVORS, best.clock)
        if found is None:
            return False
        inner, outer = found
        time = self.far.leaving[inner] + self.far.entering[outer]
        self.steps = self.steps.with_far(inner, outer, time, self._crossing)
        self.far = None
        flows.restart(self.steps)
        return True

    def _label(self, best: Best, flows: Flows, calls: int, is_bound: bool) -> None:
        known = flows.bound
        labels = LabelSearch(self.atoms.graph, self.family, self.arcs)
        for cap in _CAPS:
            if best.is_done():
                return
            self._run(best, labels, flows, calls, best.value, known, cap)
        for share in _RISE if is_bound else ():
            if best.is_done():
                return
            limit = known + share * (best.value - known)
            answer = self._run(best, labels, flows, calls, limit, known, None)
            if not answer.is_exact:
                return
            proven = min(limit, answer.latency)
            words = _LIMIT_PROOF if best.num_subgraphs == 1 else _RELAXED_PROOF
            best.raise_bound(proven, _LABEL_PROOF if proven >= best.value * (1 - EQUAL) else words)
            if answer.path is not None:
                return

    def _run(
        self, best: Best, labels: LabelSearch, flows: Flows, calls: int, limit: float, known: float, cap: int | None
    ) -> LabelAnswer:
        assert flows.reach is not None
        steps = self.steps.keep(survivors(self.steps, flows.reach, limit))
        reach = least_after(steps, flows.flow, calls)
        answer = labels.run(
            steps, flows.flow, reach, limit=limit, known=known, cap=cap, most_labels=_MOST_LABELS, clock=best.clock
        )
        if answer.path is not None:
            self._offer(best, steps.moves(answer.path))
        return answer

    def _offer(self, best: Best, path: list[Move]) -> None:
        if path:
            placement = placement_of_path(best.problem, self.atoms.graph, self.family, path, best.num_subgraphs)
            if placement is not None and _is_together(best.problem, placement):
                best.offer(placement, METHOD)


def _is_together(problem: PlacementProblem, placement: Placement) -> bool:
    """A relaxation may tear colour classes apart; such a solution is none."""
    pairs = np.unique(np.stack((problem.color, placement.device)), axis=1)
    return bool(pairs.shape[1] == len(np.unique(pairs[0])))
