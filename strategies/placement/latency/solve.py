"""Placement for latency: the least time from the first input to the last output, with a bound at any time.

Notes
-----
1. Simple placements and the critical path enclose the latency.
2. Down-sets of the graph of atoms and all steps between them (`steps`). Flows (`Flows`) give bounds, and their shortest paths solutions.
3. Steps with which no solution is below the best one are left out: few are left.
4. Labels (`labels`) with a cap find better solutions, without one they prove limits that rise from the bound to the best value.

With several subgraphs per accelerator the same search allows as many calls as all accelerators have together, each within an
accelerator's memory. That is a relaxation: the calls of an accelerator may overlap in time or exceed its memory together, but for those
that share a colour class (`bundles`). Its solutions are packed into accelerators (`packing`) and improved by moves (`improve`); where
the best one fits, it is optimal. Of few operators a constraint program (`program`) searches all placements first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import EQUAL, PROOF_SLACK
from strategies.limits import Clock, why_stopped
from strategies.placement.chain import IdealFamily, TooManyIdealsError, enumerate_ideals
from strategies.placement.contraction import contract
from strategies.placement.latency.atoms import AtomGraph, atom_graph, coarse_graph, lifted
from strategies.placement.latency.evaluate import (
    PATH_PROOF,
    all_on_cpus,
    critical_path,
    evaluate,
    fill,
    improve,
    on_one_accelerator,
)
from strategies.placement.latency.labels import LabelAnswer, LabelSearch
from strategies.placement.latency.packing import bundled, placement_of_path
from strategies.placement.latency.program import search_all
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
from strategies.placement.problem import BestSoFar, Placement, PlacementProblem, PlacementResult

MOVES_METHOD = "moves of operators"
PROGRAM_METHOD = "all placements of few operators"
PROGRAM_PROOF = "constraint program over all placements"
# With more operators than this not all placements are searched, nor with more work than this, some seconds.
_FEW = 16
_EFFORT = 5.0
# With more down-sets than this the bound is the critical path's.
MAX_IDEALS = 100_000
METHOD = "label setting over predecessor-closed sets"
_FLOW_PROOF = "linear program over the critical paths of all sequences of predecessor-closed sets"
_LABEL_PROOF = "exhaustive: label setting over all sequences of predecessor-closed sets"
_LIMIT_PROOF = "label setting over all sequences of predecessor-closed sets found nothing faster"
_RELAXED_PROOF = (
    "label setting over all sequences of predecessor-closed sets, with accelerators that may run several calls at once"
)
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


def solve_latency(
    problem: PlacementProblem,
    *,
    num_subgraphs: int = 1,
    gap: float = 0.0,
    clock: Clock | None = None,
) -> PlacementResult:
    """Place operators so that the last output is there as soon as possible.

    Parameters
    ----------
    problem : PlacementProblem
        Of forward operators; CPUs are unlimited.
    num_subgraphs : int
        Most calls of an accelerator.
    gap : float
        Stop when the bound is this near, relatively.
    clock : Clock, optional

    Examples
    --------
    Two branches of 4 after an operator of 1; an accelerator holds two of the three:

    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=t, cpu_time=9 * t, size_bytes=1.0) for i, t in enumerate((1.0, 4.0, 4.0))]
    >>> edges = [EdgeSpec(0, 1, 0.5), EdgeSpec(0, 2, 0.5)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=1, memory_bytes=2.0)
    >>> result = solve_latency(problem)
    >>> result.objective, result.proven_optimal, result.placement.device.tolist()
    (10.0, True, [0, 0, 1])
    """
    search = _Search(problem, num_subgraphs, gap, clock or Clock())
    stopped = why_stopped(search.run)
    return search.result_with(search.best, stopped)


class _Search(BestSoFar):
    """Best placement and best bound so far."""

    def __init__(self, problem: PlacementProblem, num_subgraphs: int, gap: float, clock: Clock) -> None:
        super().__init__(clock, max(gap, PROOF_SLACK), critical_path(problem), PATH_PROOF, "everything on CPUs")
        self.problem, self.num_subgraphs = problem, num_subgraphs
        self.best = all_on_cpus(problem)
        self.value = evaluate(problem, self.best).latency
        self.stage = "first placement"

    def run(self) -> None:
        problem = self.problem
        self.offer(on_one_accelerator(problem), "one device")
        self.clock.check()
        self.offer(fill(problem, contract(problem)), "greedy")
        if problem.num_accelerators == 0:
            self.raise_bound(self.value, "there are no accelerators", self.stage)
        if self.is_done():
            return
        if self.num_subgraphs > 1 and problem.num_nodes <= _FEW:
            self._close()
            if self.is_done():
                return
        self.stage = "sequences of predecessor-closed sets"
        self.clock.check()
        _search_lattices(self)
        if not self.is_done():
            self.stage = "moves"
            improve(
                problem,
                self.best,
                num_subgraphs=self.num_subgraphs,
                clock=self.clock,
                found=lambda placement, _: self.offer(placement, MOVES_METHOD),
            )

    def _close(self) -> None:
        self.stage = "all placements"
        self.clock.check()
        placement, bound = search_all(
            self.problem, num_subgraphs=self.num_subgraphs, limit=self.value, effort=_EFFORT, clock=self.clock
        )
        self.offer(placement, PROGRAM_METHOD)
        self.raise_bound(bound, PROGRAM_PROOF, self.stage)

    def offer(self, placement: Placement | None, method: str) -> None:
        if placement is None:
            return
        value = evaluate(self.problem, placement).latency
        if value < self.value:
            self.best, self.value, self.method = placement, value, method
            self.report(self.stage)


def _search_lattices(best: _Search) -> None:
    """Search with one call per accelerator, then with more.

    What one call per accelerator finds is a solution for any number of them; it is a bound for one only. A class may be in two
    subgraphs of an accelerator, so with more calls colours are ignored for the bound at first; what that allows too much is left out when
    few steps are left (`bundles`).
    """
    problem, several = best.problem, best.num_subgraphs
    atoms = atom_graph(problem)
    # Of a large graph one call per accelerator takes minutes and is no bound for more: that comes last then.
    is_last = _search(best, atoms, problem.num_accelerators, is_bound=several == 1, is_quick=several > 1)
    if several == 1 or best.is_done():
        return
    calls = problem.num_accelerators * several
    whole = atom_graph(problem, num_subgraphs=several)
    relaxed = AtomGraph(graph=whole.graph, torn=())
    _search(best, relaxed, calls, is_bound=True, loose=whole.torn)
    if is_last and not best.is_done():
        _search(best, atoms, problem.num_accelerators, is_bound=False)
    if atoms.torn and not best.is_done():
        _search(best, atoms, calls, is_bound=False)


def _search(
    best: _Search,
    atoms: AtomGraph,
    calls: int,
    *,
    is_bound: bool,
    loose: Sequence[IntArray] = (),
    is_quick: bool = False,
) -> bool:
    """Search on a coarse graph first where there are many down-sets.

    ``loose`` are classes that were left out of account, to be looked at when few steps are left. With ``is_quick`` the coarse graph is
    enough where there is one; returns whether it was.
    """
    family = _ideals(best, atoms)
    start: tuple[FloatArray, Arcs, IntArray] | None = None
    if family is None or len(family) > _LARGE:
        best.clock.check()
        coarse, piece = coarse_graph(best.problem, atoms)
        small = _Lattice.build(best, coarse, _ideals(best, coarse))
        if small is not None and coarse.graph.num_blocks < atoms.graph.num_blocks:
            start = (small.search(best, calls, is_bound=False), small.arcs, piece)
            if is_quick:
                return True
    lattice = _Lattice.build(best, atoms, family)
    if lattice is None:
        return False
    flow = None if start is None else lifted(start[0], start[1], lattice.arcs, start[2])
    lattice.search(best, calls, is_bound=is_bound, flow=flow, loose=loose)
    return False


def _ideals(best: _Search, atoms: AtomGraph) -> IdealFamily | None:
    try:
        return enumerate_ideals(atoms.graph, limit=MAX_IDEALS, clock=best.clock)
    except TooManyIdealsError:
        return None


class _Lattice:
    """Down-sets, steps and labels of one graph."""

    def __init__(self, atoms: AtomGraph, family: IdealFamily, arcs: Arcs, steps: Steps, far: FarSteps | None) -> None:
        self.atoms, self.family, self.arcs, self.steps, self.far = atoms, family, arcs, steps, far
        self._has = membership(atoms.graph, family)

    @classmethod
    def build(cls, best: _Search, atoms: AtomGraph, family: IdealFamily | None) -> _Lattice | None:
        if family is None:
            return None
        problem = best.problem
        capacity = problem.capacity_bytes
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
        best: _Search,
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
                best.raise_bound(min(flows.bound, best.value), _FLOW_PROOF, best.stage)
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

    def _tied(self, best: _Search, flows: Flows, torn: Sequence[IntArray]) -> _Lattice | None:
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

    def _narrow(self, best: _Search, flows: Flows) -> bool:
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

    def _label(self, best: _Search, flows: Flows, calls: int, is_bound: bool) -> None:
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
            best.raise_bound(proven, _LABEL_PROOF if proven >= best.value * (1 - EQUAL) else words, best.stage)
            if answer.path is not None:
                return

    def _run(
        self, best: _Search, labels: LabelSearch, flows: Flows, calls: int, limit: float, known: float, cap: int | None
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

    def _offer(self, best: _Search, path: list[Move]) -> None:
        if path:
            placement = placement_of_path(best.problem, self.atoms.graph, self.family, path, best.num_subgraphs)
            if placement is not None:
                # A relaxation may tear colour classes apart; such a solution is none.
                color = np.unique(np.stack((best.problem.color, placement.device)), axis=1)[0]
                if len(color) == len(np.unique(color)):
                    best.offer(placement, METHOD)
