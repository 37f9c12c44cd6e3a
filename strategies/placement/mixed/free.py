"""Placement without contiguity on accelerators of several kinds: exchange from above, evenly divided work and covers by sets from below.

Covering
--------
For a load T, the least share s of the devices that covers all blocks, sets S of kind t within T taken in fractions x:

    min s:  sum_t sum_{S of t with b} x(t, S) >= 1 for each block b,   sum_S x(t, S) <= k(t) s for each kind t

With more than s = 1 no placement is within T. Sets are generated as in `strategies.placement.free.columns`: the prices of the blocks (the
dual) ask for the most valuable set of each kind. Prices p prove every T at which the devices together take less than all blocks are worth,

    sum_b p(b) > sum_t k(t) A(t, T),   A(t, T) the worth of the most valuable set of kind t within T

because every placement divides all of the worth among the devices. `Pricing` finds A(t, T) for all T in one sweep for each kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import EQUAL, REDUCED_COST
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph
from strategies.placement.free.columns import (
    SMOOTHING,
    Covering,
    PricedSets,
    Pricing,
    longest_intervals,
    whole_frontier,
)
from strategies.placement.free.frontier import Frontier
from strategies.placement.free.search import CLOSE, FreeSearch, close_in, run_to_the_end
from strategies.placement.mixed.bounds import Kind, kind_graph, kinds_of, spread_bound
from strategies.placement.problem import PlacementProblem, PlacementResult
from strategies.solvers import LinearProgram, solve_relaxation

__all__ = ["KindColumns", "KindCover", "KindPrices", "solve_mixed_free"]


# Leaving a block uncovered counts as so many times all devices; covers are always cheaper.
_UNCOVERED = 2.0


class KindPrices:
    """The most valuable sets of every kind at given prices, loads counted in the same bins.

    Parameters
    ----------
    kinds : sequence of Kind
    graph : BlockGraph
    frontier : Frontier
        Divisions of all blocks, see `whole_frontier`.
    largest : float
        Loads up to this one are distinguished.
    bins : int
        How finely.
    is_proof : bool
        Round down, so that bounds hold.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        graph: BlockGraph,
        frontier: Frontier,
        *,
        largest: float,
        bins: int,
        is_proof: bool,
    ) -> None:
        self.kinds, self.bins = tuple(kinds), bins
        self.kind_pricing = tuple(
            _pricing(kind, graph, frontier, largest=largest, bins=bins, is_proof=is_proof) for kind in kinds
        )
        self.unit = self.kind_pricing[0].unit

    def price(
        self, prices: FloatArray, *, remember: bool = True, clock: Clock | None = None
    ) -> tuple[float, list[PricedSets]]:
        """Bound that prices of at least 0 prove (seem to prove, where loads are rounded to the nearest bin), and each kind's best sets."""
        found = [pricing.price(prices, remember=remember, clock=clock) for pricing in self.kind_pricing]
        most = np.zeros(self.bins + 1)
        for kind, priced in zip(self.kinds, found, strict=True):
            most += kind.count * priced.accelerator_best
        enough = np.flatnonzero(most >= float(prices.sum()) * (1 - EQUAL))
        return float(enough[0] if len(enough) else self.bins) * self.unit, found

    def bin_of(self, load: float) -> int:
        """Bin of a load."""
        return self.kind_pricing[0].bin_of(load)

    def intervals(self, t: int, target: int) -> list[IntArray]:
        """Sets of a kind that are easy to find, within a bin."""
        pricing = self.kind_pricing[t]
        return longest_intervals(pricing.graph, pricing.frontier.order, (target + 0.5) * self.unit)

    def bins_on(self, t: int, members: IntArray) -> int:
        """Load of a set on a kind in bins, above all bins where the kind cannot take it."""
        return self.kind_pricing[t].accelerator_bins(members)


def _pricing(
    kind: Kind, graph: BlockGraph, frontier: Frontier, *, largest: float, bins: int, is_proof: bool
) -> Pricing:
    """Sets of one kind; a CPU pays for no transfers, so that its sets need no frontier."""
    own = replace(kind_graph(graph, kind), accelerator_time=kind.time, supported=kind.allowed)
    if kind.is_cpu:
        none = np.zeros(0, dtype=np.int64)
        own = replace(own, hyperedge_cost=np.zeros(0), pin_start=np.zeros(1, dtype=np.int64), pin=none)
        frontier = whole_frontier(own)
    return Pricing(
        own,
        num_accelerators=kind.count,
        num_cpus=0,
        memory_bytes=float(graph.size_bytes.sum()) if kind.is_cpu else kind.capacity_bytes,
        frontier=frontier,
        largest=largest,
        bins=bins,
        is_proof=is_proof,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCover:
    """Sets in fractions that cover all blocks with no more devices of each kind than there are."""

    sets: tuple[tuple[IntArray, ...], ...]  # by kind
    shares: tuple[FloatArray, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Master:
    """An optimum of the covering program."""

    share: float  # of all devices
    is_cover: bool
    cover: KindCover
    prices: FloatArray
    device_prices: FloatArray  # (kinds,) what one more device would be worth


class KindColumns(Covering[KindCover]):
    """Column generation that remembers its sets and its best prices from one load to the next.

    Parameters
    ----------
    guess : KindPrices
        Few bins.
    proof : KindPrices
        Many bins, rounded down.
    prices : float array (blocks,)
        To begin with.
    before : KindColumns, optional
        Another of the same graph, whose sets, prices and bound are taken over.
    """

    def __init__(
        self, guess: KindPrices, proof: KindPrices, prices: FloatArray, before: KindColumns | None = None
    ) -> None:
        super().__init__(guess.unit, before)
        self._prices: FloatArray = _whole(prices) if before is None else before._prices
        self._guess, self._proof = guess, proof
        self._sets: list[list[IntArray]] = [[] for _ in guess.kinds] if before is None else before._sets

    def add(self, t: int, members: IntArray) -> bool:
        """Offer the program a set for a kind; whether it is new there."""
        is_new = self._is_new(t, members)
        if is_new:
            self._sets[t].append(members)
        return is_new

    def _decide(self, load: float, clock: Clock) -> KindCover | None:
        target = self._guess.bin_of(load)
        for t in range(len(self._sets)):
            for members in self._guess.intervals(t, target):
                self.add(t, members)
        if self._claim < 0:
            self._try(self._prices, target, clock, None)
        while self._claim <= load:
            clock.check()
            master = self._master(target)
            if master.is_cover:
                return master.cover
            for weight in (SMOOTHING, 0.0):
                gains = self._try(weight * self._prices + (1 - weight) * _whole(master.prices), target, clock, master)
                if self._claim > load or gains:
                    break
            else:
                return None  # the program is solved and needs more devices than there are
        return None

    def _try(self, prices: FloatArray, target: int, clock: Clock, master: _Master | None) -> bool:
        """Find the most valuable sets at some prices; whether the program gains by them."""
        clock.check()
        claim, found = self._guess.price(prices, clock=clock)
        if claim > self._claim:
            self._claim, self._prices = claim, prices
        gains = False
        for t, priced in enumerate(found):
            members = priced.accelerator_set(target)
            is_new = self.add(t, members)
            if is_new and master is not None:
                gains |= float(master.prices[members].sum()) > float(master.device_prices[t]) + REDUCED_COST
        return gains

    def _proven(self, clock: Clock) -> float:
        return self._proof.price(self._prices, remember=False, clock=clock)[0]

    def _master(self, target: int) -> _Master:
        """Solve the covering program with the sets within a load."""
        sets = [[s for s in known if self._guess.bins_on(t, s) <= target] for t, known in enumerate(self._sets)]
        blocks, kinds = len(self._prices), len(sets)
        columns = [s for own in sets for s in own]
        kind_of = np.repeat(np.arange(kinds), [len(own) for own in sets])
        sizes = np.array([len(s) for s in columns], dtype=np.int64)
        first = len(columns)  # then one column per block that stays uncovered, and the share
        count = first + blocks + 1
        counts = np.array([kind.count for kind in self._guess.kinds], dtype=np.float64)
        everything = np.arange(blocks)
        row = np.concatenate([*columns, everything, blocks + kind_of, blocks + np.arange(kinds)])
        column = np.concatenate(
            (np.repeat(np.arange(first), sizes), first + everything, np.arange(first), np.full(kinds, count - 1))
        )
        result = solve_relaxation(
            LinearProgram(
                cost=np.concatenate((np.zeros(first), np.full(blocks, _UNCOVERED), [1.0])),
                lower=np.zeros(count),
                upper=np.full(count, np.inf),
                integer=np.zeros(count, dtype=np.bool_),
                row_lower=np.concatenate((np.ones(blocks), np.full(kinds, -np.inf))),
                row_upper=np.concatenate((np.full(blocks, np.inf), np.zeros(kinds))),
                entry_row=row.astype(np.int64),
                entry_column=column.astype(np.int64),
                entry_value=np.concatenate((np.ones(len(row) - kinds), -counts)),
            )
        )
        assert result is not None, "everything may stay uncovered"
        shares = [result.values[:first][kind_of == t] for t in range(kinds)]
        used = [own > REDUCED_COST for own in shares]
        return _Master(
            share=float(result.values[-1]),
            is_cover=bool(result.objective <= 1 + EQUAL and result.values[first:-1].max(initial=0.0) <= REDUCED_COST),
            cover=KindCover(
                sets=tuple(tuple(s for s, u in zip(o, k, strict=True) if u) for o, k in zip(sets, used, strict=True)),
                shares=tuple(own[k] for own, k in zip(shares, used, strict=True)),
            ),
            prices=np.maximum(result.row_duals[:blocks], 0.0),
            device_prices=-result.row_duals[blocks:],
        )


def _whole(prices: FloatArray) -> FloatArray:
    """Prices that add up to 1."""
    total = float(prices.sum())
    return prices / total if total > 0 else np.full(len(prices), 1.0 / max(1, len(prices)))


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
    return search.completed(place)
