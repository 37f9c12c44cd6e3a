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
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import PROOF_SLACK, ROUNDING
from strategies.limits import Clock, OutOfTimeError, why_stopped
from strategies.placement.bounds import (
    Kind,
    best_time_per_byte,
    kinds_of,
    mixed_bound,
    simple_bound,
    spread_bound,
)
from strategies.placement.columns import (
    PRICED_PROOF,
    ColumnBound,
    Cover,
    KindColumns,
    KindCover,
    KindPrices,
    Pricing,
    priced_bounds,
    whole_frontier,
)
from strategies.placement.contiguous import LARGE, LargeChains, solve_contiguous
from strategies.placement.contraction import BlockGraph, contract, contract_classes
from strategies.placement.device_program import improved_by_program
from strategies.placement.exchange import Exchange
from strategies.placement.frontier import Frontier
from strategies.placement.loads import Devices
from strategies.placement.orders import coarse_graph, segments_along
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = [
    "CLOSE",
    "Decider",
    "FreeSearch",
    "close_in",
    "run_to_the_end",
    "solve_free",
    "solve_large",
    "solve_mixed_free",
]


# The chain is only a start here.
_CHAIN_SHARE = 0.35
# A block on a device without room counts as so many times the largest load.
_OVERFULL = 1e6


class FreeSearch:
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
        self.problem, self.gap, self.clock = problem, gap, clock
        self.graph = contract_classes(problem)
        self.devices = Devices.of(problem, self.graph)
        self.exchange = Exchange(self.devices)
        self.random = np.random.default_rng(seed)
        self.bound, self.proof = mixed_bound(problem)
        self.place: IntArray | None = None
        self.value = np.inf
        self.seen: list[IntArray] = []
        self.chain: PlacementResult | None = None
        self._seed = seed
        self._times = np.stack([self.devices.time(d) for d in range(self.devices.count)])
        self._room = np.array([self.devices.capacity(d) for d in range(self.devices.count)])

    def is_done(self) -> bool:
        """Whether bound and value are close enough."""
        return self.bound >= self.value * (1 - max(self.gap, PROOF_SLACK))

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
            chained = np.zeros(self.graph.num_blocks, dtype=np.int64)
            chained[self.graph.block] = self.chain.placement.device
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

    def keep(self, place: IntArray, loads: FloatArray | None = None) -> bool:
        """Take over a placement as it is; whether it is the best."""
        worst = float((self.devices.loads(place) if loads is None else loads).max())
        if not worst < self.value * (1 - ROUNDING):
            return False
        self.place, self.value = place, worst
        self.report("exchange")
        return True

    def _found(self, place: IntArray, loads: FloatArray) -> None:
        self.keep(place, loads)

    def offer(self, place: IntArray, clock: Clock | None = None) -> bool:
        """Improve a placement by exchange; whether the best one is better now."""
        before = self.value
        place, _ = self.exchange.improve(place, clock or self.clock, self._found)
        self.seen.append(place)
        return self.value < before

    def raise_bound(self, bound: float, proof: str) -> None:
        """Take over a better bound."""
        if bound > self.bound:
            self.bound, self.proof = min(bound, self.value), proof
            self.report("covers")

    def report(self, stage: str) -> None:
        """Tell whoever listens."""
        self.clock.report(stage, self.value, min(self.bound, self.value))

    def completed(self, place: IntArray) -> IntArray:
        """A placement whose blocks without a device (-1) are placed, those of the longest time first."""
        rest = np.flatnonzero(place < 0)
        rest = rest[np.argsort(-self.graph.accelerator_time[rest], kind="stable")]
        return self.filled(rest, np.where(place < 0, 0, place))

    def filled(self, order: IntArray, into: IntArray | None = None) -> IntArray:
        """Give the blocks of ``order``, one by one, to the device that is loaded least afterwards, communication aside."""
        place = np.zeros(self.graph.num_blocks, dtype=np.int64) if into is None else into.copy()
        given = np.ones(self.graph.num_blocks, dtype=np.bool_)
        given[order] = False
        load, used = np.zeros(self.devices.count), np.zeros(self.devices.count)
        np.add.at(load, place[given], self._times[place[given], np.flatnonzero(given)])
        np.add.at(used, place[given], self.graph.size_bytes[given])
        for b in order.tolist():
            full = used + self.graph.size_bytes[b] > self._room
            after = load + self._times[:, b] + np.where(full, _OVERFULL * (1 + load.max()), 0.0)
            d = int(np.argmin(after))
            place[b] = d
            load[d] += self._times[d, b] if np.isfinite(self._times[d, b]) else 0.0
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
        place = self.place
        return PlacementResult(
            placement=None if place is None else Placement(device=place[self.graph.block]),
            objective=float(self.value),
            bound=float(min(self.bound, self.value)),
            method=method,
            proof=self.proof,
            wall_s=self.clock.elapsed_s,
            stopped=stopped,
            chain=self.chain,
        )


# A load is a bound as good as another within this.
CLOSE = 2e-4
# Share of the way from the bound to the best placement where the next load is decided.
_STEP = 0.6
# With so many pairs of block and device the integer program closes what is left in seconds, mostly.
_MOST_ASSIGNMENTS = 250

CoverT_co = TypeVar("CoverT_co", covariant=True)


class Decider(Protocol[CoverT_co]):
    """Says whether fractions of sets within a load cover all blocks."""

    bound: float  # proven so far: no placement has less

    @property
    def width(self) -> float:
        """Loads that are closer than this are not distinguished."""

    def decide(self, load: float, clock: Clock) -> CoverT_co | None:
        """A cover within the load; None where there seems to be none."""


def close_in(
    search: FreeSearch, decider: Decider[CoverT_co], rounded: Callable[[CoverT_co], IntArray], *, proof: str
) -> None:
    """Find the least load that has a cover, within the width of a bin; every cover is rounded to a placement.

    Parameters
    ----------
    search : FreeSearch
    decider : Decider
    rounded : function of a cover
        Device of every block.
    proof : str
        What its bounds are called.
    """
    low, high = search.bound, search.value  # loads that seem to have no cover, and that have one
    while not search.is_done():
        high = min(high, search.value)
        if high - low <= max(decider.width, CLOSE * high):
            break
        load = low + _STEP * (high - low)
        try:
            cover = decider.decide(load, search.clock)
        finally:
            search.raise_bound(decider.bound, proof)
        if cover is None:
            low = max(load, decider.bound)
        else:
            high = load
            search.offer(rounded(cover))


def run_to_the_end(search: FreeSearch, run: Callable[[], None], method: str) -> PlacementResult:
    """Run a search until it ends or is stopped; what is open of a small graph is closed by the integer program."""
    stopped = why_stopped(run) if np.isfinite(search.bound) else ""
    result = search.result(method, stopped)
    cells = search.graph.num_blocks * search.problem.num_devices
    if stopped or search.is_done() or not np.isfinite(search.bound) or cells > _MOST_ASSIGNMENTS:
        return result
    return improved_by_program(search.problem, result, is_legal=None, relative_gap=search.gap, clock=search.clock)


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


KINDS_METHOD = "exchange between devices of several kinds and covers by sets"
KINDS_PROOF = "covering by sets of priced blocks, for each kind its own"
# Of the time after the chain, for improving the starts; the covers get the rest.
_START_SHARE = 0.3
# Bins of the loads for finding prices, which keeps two bytes per state, bin and kind, and for proving with them, which keeps none.
# Few bins are fast, and leave sets and prices that are nearly right to those with more.
_KIND_BINS = (200, 1_000, 4_000)
_MOST_KIND_CELLS = 30_000_000
_KIND_FINE_BINS = (500, 32_000)
_MOST_KIND_FINE_CELLS = 600_000_000


def solve_mixed_free(
    problem: PlacementProblem, *, seed: int = 0, gap: float = 0.0, clock: Clock | None = None
) -> PlacementResult:
    """Place operators of a problem with `types` on any devices so that the largest load is least."""
    clock = clock or Clock()
    search = FreeSearch(problem, seed=seed, gap=gap, clock=clock)
    return run_to_the_end(search, lambda: _run(search), KINDS_METHOD)


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
        _close_kinds(search, kinds, frontier)
        for _ in range(_SHAKES):
            if search.is_done():
                return
            search.offer(search.shaken())
        if search.value >= before * (1 - CLOSE):
            return


def _close_kinds(search: FreeSearch, kinds: tuple[Kind, ...], frontier: Frontier) -> None:
    """Find the least load that has a cover, in bins that become finer; every cover is rounded to a placement."""
    cells = int(frontier.num_states.sum()) * len(kinds)
    finest = int(np.clip(_MOST_KIND_CELLS // cells, _KIND_BINS[0], _KIND_BINS[-1]))
    proof = _prices(
        search, kinds, frontier, int(np.clip(_MOST_KIND_FINE_CELLS // cells, *_KIND_FINE_BINS)), is_proof=True
    )
    columns: KindColumns | None = None
    for bins in (*(b for b in _KIND_BINS if b < finest), finest):
        guess = _prices(search, kinds, frontier, bins, is_proof=False)
        columns = KindColumns(guess, proof, spread_bound(kinds, search.graph)[1], columns)
        assert search.place is not None
        for place in (*search.seen, search.place):
            for t, kind in enumerate(kinds):
                for d in range(kind.first, kind.first + kind.count):
                    columns.add(t, np.flatnonzero(place == d))
        close_in(search, columns, lambda cover: _rounded_kinds(search, kinds, cover), proof=KINDS_PROOF)


def _prices(
    search: FreeSearch, kinds: tuple[Kind, ...], frontier: Frontier, bins: int, *, is_proof: bool
) -> KindPrices:
    """Sets within the largest load of the best placement."""
    return KindPrices(kinds, search.graph, frontier, largest=search.value, bins=bins, is_proof=is_proof)


def _rounded_kinds(search: FreeSearch, kinds: tuple[Kind, ...], cover: KindCover) -> IntArray:
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


LARGE_METHOD = "coarse graphs, cut and exchanged"
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
    search = _LargeSearch(problem, gap=gap, clock=clock)
    stopped = why_stopped(lambda: search.run(seed)) if np.isfinite(search.bound) else ""
    return PlacementResult(
        placement=search.placement,
        objective=float(search.value),
        bound=float(min(search.bound, search.value)),
        method=LARGE_METHOD,
        proof=search.proof,
        wall_s=clock.elapsed_s,
        stopped=stopped,
        chain=search.chain,
    )


class _LargeSearch:
    def __init__(self, problem: PlacementProblem, *, gap: float, clock: Clock) -> None:
        self.problem, self._gap, self._clock = problem, gap, clock
        self.bound, self.proof = simple_bound(problem)
        self.placement: Placement | None = None
        self.chain: PlacementResult | None = None
        self.value = np.inf

    def run(self, seed: int) -> None:
        """Chain, exchange, bound."""
        graph = contract(self.problem)
        chains = LargeChains(self.problem, graph, bound=self.bound, clock=self._clock)
        try:
            chains.search(seed)
        finally:
            if chains.value < self.value:
                self.placement, self.value = chains.placement, chains.value
                self.chain = PlacementResult(
                    placement=self.placement,
                    objective=self.value,
                    bound=min(self.bound, self.value),
                    method=LARGE_METHOD,
                    proof=self.proof,
                )
        if self.placement is None:
            self._fill()
        for per_device in _SEGMENTS:
            if self.placement is not None and not self._is_done():
                self._exchange(graph, chains.order, per_device * self.problem.num_devices)
        if not self._is_done():
            self._raise_bound(graph, chains.order)

    def _is_done(self) -> bool:
        return self.bound >= self.value * (1 - max(self._gap, PROOF_SLACK))

    def _fill(self) -> None:
        """Without a chain within the memory: largest blocks first, each where it makes the least load."""
        problem = self.problem
        classes = contract_classes(problem)
        devices = _devices(problem, classes)
        limit = np.where(np.arange(devices.count) < devices.num_accelerators, devices.memory_bytes, np.inf)
        times = np.stack([devices.time(d) for d in (0, devices.count - 1)])
        load, used = np.zeros(devices.count), np.zeros(devices.count)
        place = np.zeros(classes.num_blocks, dtype=np.int64)
        kind = (np.arange(devices.count) >= devices.num_accelerators).astype(np.int64)
        for b in np.argsort(-classes.size_bytes, kind="stable").tolist():
            size = float(classes.size_bytes[b])
            after = np.where(used + size > limit, np.inf, load + times[kind, b])
            d = int(np.argmin(after))
            place[b], load[d], used[d] = d, after[d], used[d] + size
        worst = float(devices.loads(place).max())
        if worst < self.value:
            self.placement, self.value = Placement(device=place[classes.block]), worst

    def _exchange(self, graph: BlockGraph, order: IntArray, segments: int) -> None:
        """Divide segments of the order, none of them on two devices, between pairs of devices again."""
        assert self.placement is not None
        device = np.empty(graph.num_blocks, dtype=np.int64)
        device[graph.block] = self.placement.device
        if np.any(device[graph.block] != self.placement.device):
            return  # the first placement does not keep the blocks whole
        segment = segments_along(graph, order, segments)
        pairs, whole = np.unique(segment * self.problem.num_devices + device, return_inverse=True)
        coarse = coarse_graph(graph, whole.astype(np.int64))
        start = pairs % self.problem.num_devices
        share = self._clock.within(_EXCHANGE_SHARE)

        def found(place: IntArray, loads: FloatArray) -> None:
            if float(loads.max()) < self.value:
                self.placement, self.value = Placement(device=place[coarse.block]), float(loads.max())
                self._clock.report("exchange of segments", self.value, self.bound)

        try:
            Exchange(_devices(self.problem, coarse)).improve(start, share, found)
        except OutOfTimeError:
            self._clock.check()

    def _raise_bound(self, graph: BlockGraph, order: IntArray) -> None:
        """Price the classes, in the order of the blocks that they are in."""
        classes = contract_classes(self.problem)
        rank = np.empty(graph.num_blocks, dtype=np.int64)
        rank[order] = np.arange(graph.num_blocks)
        of_class = np.empty(classes.num_blocks, dtype=np.int64)
        of_class[classes.block] = rank[graph.block]
        ordered = np.argsort(of_class, kind="stable").astype(np.int64)
        found = priced_bounds(self.problem, classes, ordered, value=self.value, bound=self.bound, clock=self._clock)
        for bound in found:
            if bound > self.bound:
                self.bound, self.proof = min(bound, self.value), PRICED_PROOF
                self._clock.report("priced blocks", self.value, self.bound)


def _devices(problem: PlacementProblem, graph: BlockGraph) -> Devices:
    return Devices(
        graph=graph,
        num_accelerators=problem.num_accelerators,
        num_cpus=problem.num_cpus,
        memory_bytes=problem.capacity_bytes,
    )
