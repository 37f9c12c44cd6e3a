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
the best one fits, it is optimal.
"""

from __future__ import annotations

from costmodel.tolerances import PROOF_SLACK
from strategies.limits import Clock, why_stopped
from strategies.placement.contraction import contract
from strategies.placement.latency.evaluate import (
    PATH_PROOF,
    all_on_cpus,
    critical_path,
    evaluate,
    fill,
    improve,
    on_one_accelerator,
)
from strategies.placement.latency.lattice import search_lattices
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = ["solve_latency"]


MOVES_METHOD = "moves of operators"
# With more down-sets than this the bound is the critical path's.
MAX_IDEALS = 100_000


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
    return search.result(why_stopped(search.run))


class _Search:
    """Best placement and best bound so far."""

    def __init__(self, problem: PlacementProblem, num_subgraphs: int, gap: float, clock: Clock) -> None:
        self.problem, self.num_subgraphs, self._gap, self._clock = problem, num_subgraphs, gap, clock
        self.best = all_on_cpus(problem)
        self.value = evaluate(problem, self.best).latency
        self.bound, self.proof = critical_path(problem), PATH_PROOF
        self.method = "everything on CPUs"
        self.stage = "first placement"

    def run(self) -> None:
        """Search until the gap is closed or every means is used up."""
        problem = self.problem
        self.offer(on_one_accelerator(problem), "one device")
        self._clock.check()
        self.offer(fill(problem, contract(problem)), "greedy")
        if problem.num_accelerators == 0:
            self.raise_bound(self.value, "there are no accelerators")
        if self.is_done():
            return
        self.stage = "chains of down-sets"
        self._clock.check()
        search_lattices(self, MAX_IDEALS)
        if not self.is_done():
            self.stage = "moves"
            improve(
                problem,
                self.best,
                num_subgraphs=self.num_subgraphs,
                clock=self._clock,
                found=lambda placement, _: self.offer(placement, MOVES_METHOD),
            )

    def offer(self, placement: Placement | None, method: str) -> None:
        """Take a legal placement if it is better."""
        if placement is None:
            return
        value = evaluate(self.problem, placement).latency
        if value < self.value:
            self.best, self.value, self.method = placement, value, method
            self.report()

    def raise_bound(self, bound: float, proof: str) -> None:
        """Take a bound if it is better."""
        if bound > self.bound:
            self.bound, self.proof = bound, proof
            self.report()

    def is_done(self) -> bool:
        """Whether the bound is as near as was asked."""
        return self.bound >= self.value * (1 - max(self._gap, PROOF_SLACK))

    def report(self) -> None:
        """Tell whoever watches."""
        self._clock.report(self.stage, self.value, min(self.bound, self.value))

    @property
    def clock(self) -> Clock:
        """Of this search."""
        return self._clock

    def result(self, stopped: str) -> PlacementResult:
        """What was found."""
        return PlacementResult(
            placement=self.best,
            objective=self.value,
            bound=min(self.bound, self.value),
            method=self.method,
            proof=self.proof,
            wall_s=self._clock.elapsed_s,
            stopped=stopped,
        )
