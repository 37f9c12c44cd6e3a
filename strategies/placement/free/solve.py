"""Placement for throughput without contiguity: heuristics from above, covers by sets from below, until they meet or time is up.

Notes
-----
1. The best chain of down-sets is a placement; exchanging blocks between pairs of devices improves it (`Exchange`).
2. A load T between the bound and the best placement is decided by column generation: either no fractions of sets of load up to T cover
   the blocks, and T is a bound; or they do, and the cover, rounded and improved by exchange, often is a better placement.
3. T closes in on the least load that has a cover. What remains between it and the best placement is attacked by exchange from other
   starts and, where the graph is small, by an integer program.
"""

from __future__ import annotations

import numpy as np

from costmodel.arrays import IntArray
from strategies.placement.bounds import best_time_per_byte
from strategies.placement.clock import Clock
from strategies.placement.free.columns import ColumnBound, Cover, Pricing, whole_frontier
from strategies.placement.free.frontier import Frontier
from strategies.placement.free.search import CLOSE, FreeSearch, close_in, run_to_the_end
from strategies.placement.large.chains import LARGE
from strategies.placement.large.free import solve_large
from strategies.placement.mixed.free import solve_mixed_free
from strategies.placement.problem import PlacementProblem, PlacementResult

__all__ = ["solve_free"]

METHOD = "exchange between devices and covers by sets"
PROOF = "covering by sets of priced blocks"
# Bins of the loads for finding prices, which keeps two bytes per state and bin, and for proving with them, which keeps none.
_BINS = (200, 8_000)
_MOST_CELLS = 50_000_000
_FINE_BINS = (1_000, 64_000)
_MOST_FINE_CELLS = 1_000_000_000
# States at a time, and in all steps together.
_STATES = (4, 1024)
_MOST_STATES = 400_000
# Random neighbourhoods tried when the bound cannot be raised any more.
_SHAKES = 60


def solve_free(
    problem: PlacementProblem, *, seed: int = 0, gap: float = 0.0, clock: Clock | None = None
) -> PlacementResult:
    """Place operators on any devices so that the largest load is least.

    Parameters
    ----------
    problem : PlacementProblem
    seed : int
        Of the random starts; does not change a proven value.
    gap : float
        The search may stop at this (value - bound) / value.
    clock : Clock, optional
    """
    clock = clock or Clock()
    if problem.types:
        return solve_mixed_free(problem, seed=seed, gap=gap, clock=clock)
    if problem.num_colors > LARGE:
        return solve_large(problem, seed=seed, gap=gap, clock=clock)
    search = FreeSearch(problem, seed=seed, gap=gap, clock=clock)

    def run() -> None:
        search.start()
        _close(search)

    return run_to_the_end(search, run, METHOD)


def _close(search: FreeSearch) -> None:
    """Raise the bound and lower the value until they meet, or nothing helps any more."""
    if not np.isfinite(search.value) or search.is_done():
        return
    states = int(np.clip(_MOST_STATES // search.graph.num_blocks, *_STATES))
    frontier = whole_frontier(search.graph, max_states=states, clock=search.clock)
    cells = int(frontier.num_states.sum())
    bounder: ColumnBound | None = None
    while not search.is_done():
        before = search.value
        bins = int(np.clip(_MOST_CELLS // cells, *_BINS))
        fine = int(np.clip(_MOST_FINE_CELLS // cells, *_FINE_BINS))
        bounder = ColumnBound(
            _pricing(search, frontier, bins, is_proof=False), _pricing(search, frontier, fine, is_proof=True), bounder
        )
        for place in search.seen:
            for d in range(search.devices.num_accelerators):
                bounder.add(np.flatnonzero(place == d))
        close_in(search, bounder, lambda cover: _rounded(search, cover), proof=PROOF)
        for _ in range(_SHAKES):
            if search.is_done():
                break
            search.offer(search.shaken())
        if search.value >= before * (1 - CLOSE):
            break


def _pricing(search: FreeSearch, frontier: Frontier, bins: int, *, is_proof: bool) -> Pricing:
    """Sets within the largest load of the best placement."""
    return Pricing(
        search.graph,
        num_accelerators=search.problem.num_accelerators,
        num_cpus=search.problem.num_cpus,
        memory_bytes=search.problem.capacity_bytes,
        frontier=frontier,
        largest=search.value,
        bins=bins,
        is_proof=is_proof,
        time_per_byte=best_time_per_byte(search.problem),
    )


def _rounded(search: FreeSearch, cover: Cover) -> IntArray:
    """Sets of the largest shares first, each taking what is left of its blocks."""
    place = np.full(search.graph.num_blocks, -1, dtype=np.int64)
    order = np.argsort(-cover.shares, kind="stable")[: search.devices.num_accelerators]
    for d, i in enumerate(order.tolist()):
        members = cover.sets[i]
        place[members[place[members] < 0]] = d
    cpus = np.argsort(-cover.cpu_shares, kind="stable")[: search.devices.num_cpus]
    for d, i in enumerate(cpus.tolist()):
        if cover.cpu_shares[i] > 0.5:
            members = cover.cpu_sets[i]
            place[members[place[members] < 0]] = search.devices.num_accelerators + d
    return search.completed(place)
