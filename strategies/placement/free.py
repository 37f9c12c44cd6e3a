"""Placement for throughput without contiguity: heuristics from above, covers by sets from below, until they meet or time is up.

Notes
-----
1. The best chain of down-sets is a placement; exchanging blocks between pairs of devices improves it (`Exchange`).
2. A load T between the bound and the best placement is decided by column generation: either no fractions of sets of load up to T cover
   the blocks, and T is a bound; or they do, and the cover, rounded and improved by exchange, often is a better placement.
3. T closes in on the least load that has a cover. What remains between it and the best placement is attacked by exchange from other
   starts and, where the graph is small, by an integer program.

With more than `LARGE` blocks the best chain is exchanged on coarse graphs, and the bound takes a few guessed prices.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import PROOF_SLACK, ROUNDING
from strategies.limits import Clock, OutOfTimeError, why_stopped
from strategies.placement.bounds import best_time_per_byte, simple_bound, spread_bound
from strategies.placement.columns import PRICED_PROOF, Columns, Cover, Pricing, priced_bounds, whole_frontier
from strategies.placement.contiguous import LARGE, ChainSearch, solve_contiguous
from strategies.placement.contraction import BlockGraph, contract_classes
from strategies.placement.device_program import improved_by_program
from strategies.placement.exchange import Exchange
from strategies.placement.frontier import Frontier
from strategies.placement.loads import Devices, Kind
from strategies.placement.orders import coarse_graph, segments_along
from strategies.placement.problem import BestSoFar, Placement, PlacementProblem, PlacementResult

# The chain is only a start here.
_CHAIN_SHARE = 0.35
# A block on a device without room counts as so many times the largest load.
_OVERFULL = 1e6


class FreeSearch(BestSoFar):
    """The best placement and the best bound so far, for accelerators of one kind or of several.

    Parameters
    ----------
    problem : PlacementProblem
    seed : int
    gap : float
        Relative distance of value and bound that is asked for.
    clock : Clock
    """

    def __init__(self, problem: PlacementProblem, *, seed: int, gap: float, clock: Clock) -> None:
        super().__init__(clock, max(gap, PROOF_SLACK), *simple_bound(problem))
        self.problem, self.graph = problem, contract_classes(problem)
        self.devices = Devices(problem, self.graph)
        self.exchange = Exchange(self.devices)
        self.random = np.random.default_rng(seed)
        self.place: IntArray | None = None
        self.seen: list[IntArray] = []
        self.chain: PlacementResult | None = None
        self._seed = seed

    def start(self, *, share: float = 1.0) -> None:
        """A chain and simple fillings, improved; each as it is comes first, so that there is something however short the time.

        ``share`` of the time that is left after the chain is for improving them.
        """
        by_size = np.argsort(-self.graph.size_bytes, kind="stable")
        self.keep(self.filled(by_size))
        chaining = self.clock.within(_CHAIN_SHARE)
        self.chain = solve_contiguous(self.problem, seed=self._seed, clock=chaining)
        chained: IntArray | None = None
        if self.chain.placement is not None:
            chained = self.place_of(self.chain.placement.device)
            self.keep(chained)
        if self.chain.is_interrupted:
            raise KeyboardInterrupt
        improving = self.clock if share >= 1 else self.clock.within(share)
        with contextlib.suppress(OutOfTimeError):
            if chained is not None:
                self.offer(chained, improving)
            for weight in (self.graph.size_bytes, self.graph.accelerator_time):
                if not self.is_done():
                    self.offer(self.filled(np.argsort(-weight, kind="stable")), improving)
        self.clock.check()

    def place_of(self, of_node: IntArray) -> IntArray:
        """Value of each block from those of its operators, which are alike."""
        place = np.zeros(self.graph.num_blocks, dtype=np.int64)
        place[self.graph.block] = of_node
        return place

    def keep(self, place: IntArray, loads: FloatArray | None = None, *, stage: str = "exchange") -> bool:
        """Take over a placement as it is; whether it is the best."""
        worst = float((self.devices.loads(place) if loads is None else loads).max())
        if not worst < self.value * (1 - ROUNDING):
            return False
        self.place, self.value = place, worst
        self.report(stage)
        return True

    def offer(self, place: IntArray, clock: Clock | None = None) -> bool:
        """Improve a placement by exchange; whether the best one is better now."""
        before = self.value
        place, _ = self.exchange.improve(place, clock or self.clock, self.keep)
        self.seen.append(place)
        return self.value < before

    def filled(self, order: IntArray, into: IntArray | None = None) -> IntArray:
        """Give the blocks of ``order``, one by one, to the device that is loaded least afterwards, communication aside."""
        place = np.zeros(self.graph.num_blocks, dtype=np.int64) if into is None else into.copy()
        given = np.ones(self.graph.num_blocks, dtype=np.bool_)
        given[order] = False
        load, used = np.zeros(self.devices.count), np.zeros(self.devices.count)
        np.add.at(load, place[given], self.devices.time[place[given], np.flatnonzero(given)])
        np.add.at(used, place[given], self.graph.size_bytes[given])
        for b in order.tolist():
            full = used + self.graph.size_bytes[b] > self.devices.capacity_bytes
            after = load + self.devices.time[:, b] + np.where(full, _OVERFULL * (1 + load.max()), 0.0)
            d = int(np.argmin(after))
            place[b] = d
            load[d] += self.devices.time[d, b] if np.isfinite(self.devices.time[d, b]) else 0.0
            used[d] += self.graph.size_bytes[b]
        return place

    def shaken(self) -> IntArray:
        """The best placement with a random neighbourhood of blocks moved to two random devices."""
        assert self.place is not None
        place = self.place.copy()
        count = int(self.random.integers(2, max(3, self.graph.num_blocks // 10)))
        first = int(self.random.integers(self.graph.num_blocks))
        two = self.random.permutation(self.devices.count)[:2]
        end = min(first + count, self.graph.num_blocks)
        place[first:end] = two[self.random.integers(0, len(two), end - first)]
        return place

    def result(self, method: str, stopped: str) -> PlacementResult:
        """What was found."""
        self.method = method
        placement = None if self.place is None else Placement(device=self.place[self.graph.block])
        return self.result_with(placement, stopped, chain=self.chain)


# A load is a bound as good as another within this.
_CLOSE = 2e-4
# Share of the way from the bound to the best placement where the next load is decided.
_STEP = 0.6
# With so many pairs of block and device the integer program closes what is left in seconds, mostly.
_MOST_ASSIGNMENTS = 250


# Of accelerators of one kind, and of several: what their answers and bounds are called.
_METHODS = (
    "exchange between pairs of devices and set covering",
    "exchange between pairs of devices of several kinds and set covering",
)
_PROOFS = ("set-covering linear program", "set-covering linear program with sets for each kind of device")
# Of the time after the chain, for improving the starts where there are several kinds; the covers get the rest.
_START_SHARE = 0.3
# Bins of the loads for finding prices, which keeps two bytes per state, bin and kind, and for proving with them, which keeps none.
# Few bins are fast, and leave sets and prices that are nearly right to those with more.
_BINS = (200, 1_000, 4_000, 8_000)
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
    if not problem.types and problem.num_colors > LARGE:
        return solve_large(problem, seed=seed, gap=gap, clock=clock)
    search = FreeSearch(problem, seed=seed, gap=gap, clock=clock)
    stopped = why_stopped(lambda: _run(search)) if np.isfinite(search.bound) else ""
    result = search.result(_METHODS[bool(problem.types)], stopped)
    cells = search.graph.num_blocks * problem.num_devices
    if stopped or search.is_done() or not np.isfinite(search.bound) or cells > _MOST_ASSIGNMENTS:
        return result
    return improved_by_program(problem, result, is_legal=None, relative_gap=gap, clock=clock)


def _run(search: FreeSearch) -> None:
    """Starts, covers, then shaken starts; again while they lower the value, which makes the bins of the loads finer."""
    search.start(share=_START_SHARE if search.problem.types else 1.0)
    if not np.isfinite(search.value) or search.is_done():
        return
    kinds = search.devices.kinds
    states = int(np.clip(_MOST_STATES // search.graph.num_blocks, *_STATES))
    frontier = whole_frontier(search.graph, max_states=states, clock=search.clock)
    while not search.is_done():
        before = search.value
        _close(search, kinds, frontier)
        for _ in range(_SHAKES):
            if search.is_done():
                return
            search.offer(search.shaken())
        if search.value >= before * (1 - _CLOSE):
            return


def _close(search: FreeSearch, kinds: tuple[Kind, ...], frontier: Frontier) -> None:
    """Find the least load that has a cover, in bins that become finer; every cover is rounded to a placement."""
    cells = int(frontier.num_states.sum()) * len(kinds)
    finest = int(np.clip(_MOST_CELLS // cells, _BINS[0], _BINS[-1]))
    time_per_byte = 0.0 if search.problem.types else best_time_per_byte(search.problem)

    def priced(bins: int, *, is_proof: bool) -> Pricing:
        """Sets within the largest load of the best placement."""
        return Pricing(
            kinds,
            search.graph,
            frontier,
            largest=search.value,
            bins=bins,
            is_proof=is_proof,
            time_per_byte=time_per_byte,
        )

    proof = priced(int(np.clip(_MOST_FINE_CELLS // cells, *_FINE_BINS)), is_proof=True)
    columns: Columns | None = None
    for bins in (*(b for b in _BINS if b < finest), finest):
        columns = Columns(priced(bins, is_proof=False), proof, spread_bound(kinds, search.graph)[1], columns)
        assert search.place is not None
        for place in (*search.seen, search.place):
            for t, kind in enumerate(kinds):
                for d in range(kind.first, kind.first + kind.count):
                    columns.add(t, np.flatnonzero(place == d))
        _close_in(search, columns, kinds)


def _close_in(search: FreeSearch, columns: Columns, kinds: tuple[Kind, ...]) -> None:
    """Find the least load that has a cover, within the width of a bin; every cover is rounded to a placement."""
    low, high = search.bound, search.value  # loads that seem to have no cover, and that have one
    while not search.is_done():
        high = min(high, search.value)
        if high - low <= max(columns.width, _CLOSE * high):
            break
        load = low + _STEP * (high - low)
        try:
            cover = columns.decide(load, search.clock)
        finally:
            search.raise_bound(columns.bound, _PROOFS[bool(search.problem.types)], "covers")
        if cover is None:
            low = max(load, columns.bound)
        else:
            high = load
            search.offer(_rounded(search, kinds, cover))


def _rounded(search: FreeSearch, kinds: tuple[Kind, ...], cover: Cover) -> IntArray:
    """Sets of the largest shares first, each on a device of its kind, taking what is left of its blocks; then the rest, longest first."""
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


LARGE_METHOD = "coarsened graphs, cut exactly, and exchange between pairs of devices"
# Segments per device of the coarse graphs that are exchanged, one after the other.
_SEGMENTS = (20, 60)
# The exchange may take this share of the time that is left, the bound the rest.
_EXCHANGE_SHARE = 0.4


def solve_large(problem: PlacementProblem, *, seed: int = 0, gap: float = 0.0, clock: Clock) -> PlacementResult:
    """Place operators on any devices; the bound is that of the exact graph.

    Parameters
    ----------
    problem : PlacementProblem
    seed : int
    gap : float
        The search may stop at this (value - bound) / value.
    clock : Clock
    """
    search = FreeSearch(problem, seed=seed, gap=gap, clock=clock)
    stopped = why_stopped(lambda: _run_large(search, seed)) if np.isfinite(search.bound) else ""
    return search.result(LARGE_METHOD, stopped)


def _run_large(search: FreeSearch, seed: int) -> None:
    problem = search.problem
    chains = ChainSearch(problem, search.clock, is_large=True)
    try:
        chains.sample(seed=seed)
    finally:
        chain = chains.result()
        if chain.placement is not None:
            search.keep(search.place_of(chain.placement.device), stage="coarse graph cut exactly")
            search.chain = replace(chain, method=LARGE_METHOD)
    if search.place is None:  # no chain within the memory
        search.keep(search.filled(np.argsort(-search.graph.size_bytes, kind="stable")))
    for per_device in _SEGMENTS:
        if search.place is not None and not search.is_done():
            _exchange_segments(search, chains.graph, chains.order, per_device * problem.num_devices)
    if not search.is_done():
        # Price the classes, in the order of the blocks that they are in.
        rank = np.argsort(chains.order)
        order = np.argsort(search.place_of(rank[chains.graph.block]), kind="stable").astype(np.int64)
        for bound in priced_bounds(
            problem, search.graph, order, value=search.value, bound=search.bound, clock=search.clock
        ):
            search.raise_bound(bound, PRICED_PROOF, "covers")


def _exchange_segments(search: FreeSearch, graph: BlockGraph, order: IntArray, segments: int) -> None:
    """Divide segments of the order, none of them on two devices, between pairs of devices again."""
    assert search.place is not None
    of_node = search.place[search.graph.block]
    device = np.empty(graph.num_blocks, dtype=np.int64)
    device[graph.block] = of_node
    if np.any(device[graph.block] != of_node):
        return  # the first placement does not keep the blocks whole
    segment = segments_along(graph, order, segments)
    pairs, whole = np.unique(segment * search.problem.num_devices + device, return_inverse=True)
    coarse = coarse_graph(graph, whole.astype(np.int64))
    start = pairs % search.problem.num_devices

    def found(place: IntArray, loads: FloatArray) -> None:
        search.keep(search.place_of(place[coarse.block]), loads, stage="exchange of segments")

    try:
        Exchange(Devices(search.problem, coarse)).improve(start, search.clock.within(_EXCHANGE_SHARE), found)
    except OutOfTimeError:
        search.clock.check()
