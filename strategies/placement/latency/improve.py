"""Improves a placement for latency by moving one colour class at a time, evaluated by its exact times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from costmodel.arrays import IntArray
from costmodel.tolerances import EQUAL
from strategies.placement.clock import Clock
from strategies.placement.latency.evaluate import CPU, evaluate, placement_of
from strategies.placement.problem import Placement, PlacementProblem, sums_by

__all__ = ["improve"]


def improve(
    problem: PlacementProblem,
    placement: Placement,
    *,
    num_subgraphs: int,
    clock: Clock,
    found: Callable[[Placement, float], None],
    effort: int = 4,
) -> None:
    """Move colour classes to CPUs, to subgraphs of their neighbours or to new subgraphs, and unite subgraphs, while it helps.

    Parameters
    ----------
    problem : PlacementProblem
    placement : Placement
        A legal one.
    num_subgraphs : int
    clock : Clock
    found : callable
        Takes every better placement with its latency.
    effort : int
        Most rounds over all classes.

    Raises
    ------
    OutOfTimeError
    """
    state = _State(problem, placement, num_subgraphs)
    by_color = np.argsort(problem.color, kind="stable")
    members = np.split(by_color, np.flatnonzero(np.diff(problem.color[by_color])) + 1)
    near = _neighbours(problem)
    for _ in range(effort):
        before = state.latency
        for nodes in members:
            here = {(int(state.device[v]), int(state.subgraph[v])) for u in nodes.tolist() for v in near[u]}
            here |= {(CPU, 0)} | {(a, state.free_number(a)) for a in range(problem.num_accelerators)}
            for device, subgraph in sorted(here):
                clock.check()
                if state.move(nodes, device, subgraph):
                    found(state.placement(), state.latency)
        for first, second in state.unions():
            clock.check()
            nodes = np.flatnonzero((state.device == first[0]) & (state.subgraph == first[1]))
            if len(nodes) and state.move(nodes, *second):
                found(state.placement(), state.latency)
        if state.latency >= before * (1 - EQUAL):
            return


class _State:
    """A legal placement: each operator's accelerator or CPU, and its subgraph, numbered in the order of running."""

    def __init__(self, problem: PlacementProblem, placement: Placement, num_subgraphs: int) -> None:
        self._problem, self._most = problem, num_subgraphs
        _, first, color = np.unique(problem.color, return_index=True, return_inverse=True)
        self._first = first[color]  # first operator of each one's class
        on_cpu = placement.device >= problem.num_accelerators
        self.device = np.where(on_cpu, CPU, placement.device)
        subgraph = np.zeros_like(placement.device) if placement.subgraph is None else placement.subgraph
        self.subgraph = np.where(on_cpu, 0, subgraph)
        self.latency = evaluate(problem, placement).latency

    def placement(self) -> Placement:
        return placement_of(self._problem, self.device, self.subgraph)

    def free_number(self, accelerator: int) -> int:
        """Number of a subgraph that does not exist yet; the last one where none is left."""
        used = set(self.subgraph[self.device == accelerator].tolist())
        return next((i for i in range(self._most) if i not in used), self._most - 1)

    def unions(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Pairs of subgraphs."""
        inside = self.device != CPU
        units = sorted(set(zip(self.device[inside].tolist(), self.subgraph[inside].tolist(), strict=True)))
        return [(a, b) for a in units for b in units if a != b]

    def move(self, nodes: IntArray, device: int, subgraph: int) -> bool:
        """Move operators if the placement stays legal and gets better."""
        problem = self._problem
        if device != CPU and not bool(problem.supported[nodes].all()):
            return False
        there, number = self.device.copy(), self.subgraph.copy()
        there[nodes], number[nodes] = device, subgraph
        inside = there != CPU
        size = sums_by(there[inside], problem.size_bytes[inside], problem.num_accelerators)
        if bool(np.any(size > problem.capacity_bytes)) or not self._is_together(there):
            return False
        latency = evaluate(problem, placement_of(problem, there, number)).latency
        if latency >= self.latency * (1 - EQUAL):
            return False
        self.device, self.subgraph, self.latency = there, number, latency
        return True

    def _is_together(self, device: IntArray) -> bool:
        """Whether colour classes are whole; those of a moved subgraph may not be."""
        return bool(np.all(device == device[self._first]))


def _neighbours(problem: PlacementProblem) -> list[list[int]]:
    near: list[list[int]] = [[] for _ in range(problem.num_nodes)]
    for u, v in zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True):
        near[u].append(v)
        near[v].append(u)
    return near
