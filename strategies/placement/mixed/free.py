"""Placement without contiguity on accelerators of several kinds: exchange from above, evenly divided work and covers by sets from below."""

from __future__ import annotations

import numpy as np

from costmodel.arrays import IntArray
from strategies.placement.clock import Clock
from strategies.placement.free.closing import CLOSE, close_in, run_to_the_end
from strategies.placement.free.frontier import Frontier
from strategies.placement.free.pricing import whole_frontier
from strategies.placement.free.search import FreeSearch
from strategies.placement.mixed.bounds import Kind, kinds_of, spread_bound
from strategies.placement.mixed.columns import KindColumns, KindCover, KindPrices
from strategies.placement.problem import PlacementProblem, PlacementResult

__all__ = ["solve_mixed_free"]

METHOD = "exchange between devices of several kinds and covers by sets"
PROOF = "covering by sets of priced blocks, for each kind its own"
_SHAKES = 60
# Of the time after the chain, for improving the starts; the covers get the rest.
_START_SHARE = 0.3
_STATES = (4, 1024)
_MOST_STATES = 400_000
# Bins of the loads for finding prices, which keeps two bytes per state, bin and kind, and for proving with them, which keeps none.
# Few bins are fast, and leave sets and prices that are nearly right to those with more.
_BINS = (200, 1_000, 4_000)
_MOST_CELLS = 30_000_000
_FINE_BINS = (500, 32_000)
_MOST_FINE_CELLS = 600_000_000


def solve_mixed_free(
    problem: PlacementProblem, *, seed: int = 0, gap: float = 0.0, clock: Clock | None = None
) -> PlacementResult:
    """Place operators of a problem with `types` on any devices so that the largest load is least."""
    clock = clock or Clock()
    search = FreeSearch(problem, seed=seed, gap=gap, clock=clock)
    return run_to_the_end(search, lambda: _run(search), METHOD)


def _run(search: FreeSearch) -> None:
    """Starts, covers, then shaken starts; again while they lower the value, which makes the bins of the loads finer."""
    search.start(share=_START_SHARE)
    if not np.isfinite(search.value) or search.is_done():
        return
    kinds = kinds_of(search.problem, search.graph)
    states = int(np.clip(_MOST_STATES // search.graph.num_blocks, *_STATES))
    frontier = whole_frontier(search.graph, max_states=states, clock=search.clock)
    while not search.is_done():
        before = search.value
        _close(search, kinds, frontier)
        for _ in range(_SHAKES):
            if search.is_done():
                return
            search.offer(search.shaken())
        if search.value >= before * (1 - CLOSE):
            return


def _close(search: FreeSearch, kinds: tuple[Kind, ...], frontier: Frontier) -> None:
    """Find the least load that has a cover, in bins that become finer; every cover is rounded to a placement."""
    cells = int(frontier.num_states.sum()) * len(kinds)
    finest = int(np.clip(_MOST_CELLS // cells, _BINS[0], _BINS[-1]))
    proof = _prices(search, kinds, frontier, int(np.clip(_MOST_FINE_CELLS // cells, *_FINE_BINS)), is_proof=True)
    columns: KindColumns | None = None
    for bins in (*(b for b in _BINS if b < finest), finest):
        guess = _prices(search, kinds, frontier, bins, is_proof=False)
        columns = KindColumns(guess, proof, spread_bound(kinds, search.graph)[1], columns)
        assert search.place is not None
        for place in (*search.seen, search.place):
            for t, kind in enumerate(kinds):
                for d in range(kind.first, kind.first + kind.count):
                    columns.add(t, np.flatnonzero(place == d))
        close_in(search, columns, lambda cover: _rounded(search, kinds, cover), proof=PROOF)


def _prices(
    search: FreeSearch, kinds: tuple[Kind, ...], frontier: Frontier, bins: int, *, is_proof: bool
) -> KindPrices:
    """Sets within the largest load of the best placement."""
    return KindPrices(kinds, search.graph, frontier, largest=search.value, bins=bins, is_proof=is_proof)


def _rounded(search: FreeSearch, kinds: tuple[Kind, ...], cover: KindCover) -> IntArray:
    """Sets of the largest shares first, each on a device of its kind and taking what is left of its blocks."""
    place = np.full(search.graph.num_blocks, -1, dtype=np.int64)
    ranked = sorted((-share, t, i) for t, shares in enumerate(cover.shares) for i, share in enumerate(shares.tolist()))
    used = [0] * len(kinds)
    for _, t, i in ranked:
        if used[t] < kinds[t].count:
            members = cover.sets[t][i]
            place[members[place[members] < 0]] = kinds[t].first + used[t]
            used[t] += 1
    rest = np.flatnonzero(place < 0)
    rest = rest[np.argsort(-search.graph.accelerator_time[rest], kind="stable")]
    return search.filled(rest, np.where(place < 0, 0, place))
