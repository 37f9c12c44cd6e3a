"""Contiguity device by device: the forward operators of every device are convex, but devices may feed each other both ways.

An integer program through OR-Tools, started from the best chain of down-sets, whose placements are all of this kind.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.arrays import IntArray
from strategies.placement.bounds import simple_bound
from strategies.placement.clock import Clock
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.device_program import improved_by_program, program_size
from strategies.placement.problem import PlacementProblem, PlacementResult

__all__ = ["is_convex", "solve_convex"]

METHOD = "integer program (every device convex)"
# The chain is only a start here.
_CHAIN_SHARE = 0.4
# Entries of the program's rows; with more it takes longer to write than any time limit that helps it.
_MOST_ENTRIES = 1_500_000


def solve_convex(
    problem: PlacementProblem, *, seed: int = 0, relative_gap: float = 0.0, clock: Clock | None = None
) -> PlacementResult:
    """Place operators so that the largest load is least, the forward operators of every device being convex.

    Parameters
    ----------
    problem : PlacementProblem
    seed : int
    relative_gap : float
        The program may stop when its bound is this near.
    clock : Clock, optional
        Without a deadline a large graph takes very long.
    """
    clock = clock or Clock()
    simple = simple_bound(problem)
    is_small = program_size(problem, convex=True) <= _MOST_ENTRIES
    chain = solve_contiguous(problem, seed=seed, clock=clock.within(_CHAIN_SHARE if is_small else 1.0))
    start = replace(chain, chain=chain)
    if not np.isfinite(simple.value):
        return replace(start, method=METHOD)
    # A bound for chains of down-sets is none for devices that may feed each other both ways.
    start = replace(start, bound=min(simple.value, chain.objective), proof=simple.proof)
    if chain.is_interrupted:
        return start
    if not is_small:
        return replace(start, stopped=start.stopped or "the integer program of such a graph is too large to be of use")
    start = replace(start, method=METHOD, stopped="")
    return improved_by_program(
        problem, start, is_legal=lambda device: is_convex(problem, device), relative_gap=relative_gap, clock=clock
    )


def is_convex(problem: PlacementProblem, device: IntArray) -> bool:
    """Whether no path of forward operators leaves a device and comes back."""
    forward = ~problem.backward[problem.edge_source] & ~problem.backward[problem.edge_target]
    source, target = problem.edge_source[forward], problem.edge_target[forward]
    order = np.argsort(_levels(problem.num_nodes, source, target)[source], kind="stable")
    for d in np.unique(device[~problem.backward]).tolist():
        left = np.zeros(problem.num_nodes, dtype=np.bool_)  # reached by a path that has left the device
        for u, v in zip(source[order].tolist(), target[order].tolist(), strict=True):
            if device[v] == d:
                if left[u]:
                    return False
            elif left[u] or device[u] == d:
                left[v] = True
    return True


def _levels(count: int, source: IntArray, target: IntArray) -> IntArray:
    from strategies.placement.contraction import topological_rank

    return topological_rank(count, source, target)
