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

from strategies.placement.bounds import best_time_per_byte, simple_bound
from strategies.placement.clock import Clock, why_stopped
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.contraction import contract_classes
from strategies.placement.device_program import improved_by_program
from strategies.placement.free.assignment import Devices
from strategies.placement.free.columns import ColumnBound, Cover
from strategies.placement.free.exchange import Exchange
from strategies.placement.free.frontier import Frontier
from strategies.placement.free.pricing import Pricing, whole_frontier
from strategies.placement.large.chains import LARGE
from strategies.placement.large.free import solve_large
from strategies.placement.mixed.free import solve_mixed_free
from strategies.placement.problem import IntArray, Placement, PlacementProblem, PlacementResult

__all__ = ["solve_free"]

METHOD = "exchange between devices and covers by sets"
PROOF = "covering by sets of priced blocks"
# The chain is only a start here.
_CHAIN_SHARE = 0.2
# Bins of the loads for finding prices, which keeps two bytes per state and bin, and for proving with them, which keeps none.
_BINS = (200, 8_000)
_MOST_CELLS = 50_000_000
_FINE_BINS = (1_000, 64_000)
_MOST_FINE_CELLS = 1_000_000_000
# States at a time, and in all steps together.
_STATES = (4, 1024)
_MOST_STATES = 400_000
# With so many pairs of block and device the integer program closes what is left in seconds, mostly.
_MOST_ASSIGNMENTS = 250
# Random neighbourhoods tried when the bound cannot be raised any more.
_SHAKES = 60
# A load is a bound as good as another within this.
_CLOSE = 2e-4
# Share of the way from the bound to the best placement where the next load is decided.
_STEP = 0.6


class _Search:
    """The best placement and the best bound so far."""

    def __init__(self, problem: PlacementProblem, *, seed: int, gap: float, clock: Clock) -> None:
        self.problem, self.gap, self.clock = problem, gap, clock
        self.graph = contract_classes(problem)
        self.devices = Devices(
            graph=self.graph,
            num_accelerators=problem.num_accelerators,
            num_cpus=problem.num_cpus,
            memory_bytes=problem.capacity_bytes,
        )
        self.exchange = Exchange(self.devices)
        self.random = np.random.default_rng(seed)
        simple = simple_bound(problem)
        self.bound, self.proof = simple.value, simple.proof
        self.place: IntArray | None = None
        self.value = np.inf
        self.seen: list[IntArray] = []

    def is_done(self) -> bool:
        """Whether bound and value are close enough."""
        return self.bound >= self.value * (1 - max(self.gap, 1e-9))

    def offer(self, place: IntArray) -> bool:
        """Improve a placement by exchange and keep it if it is the best."""
        place, loads = self.exchange.improve(place, self.clock)
        worst = float(loads.max())
        self.seen.append(place)
        if worst >= self.value * (1 - 1e-12):
            return False
        self.place, self.value = place, worst
        self.report("exchange")
        return True

    def keep(self, place: IntArray) -> None:
        """Take over a placement as it is, if it is the best."""
        worst = float(self.devices.loads(place).max())
        if worst < self.value:
            self.place, self.value = place, worst

    def raise_bound(self, bound: float) -> None:
        """Take over a better bound."""
        if bound > self.bound:
            self.bound, self.proof = min(bound, self.value), PROOF
            self.report("covers")

    def report(self, stage: str) -> None:
        """Tell whoever listens."""
        self.clock.report(stage, self.value, self.bound)

    def pricing(self, frontier: Frontier, bins: int, *, is_proof: bool) -> Pricing:
        """Sets within the largest load of the best placement."""
        return Pricing(
            self.graph,
            num_accelerators=self.problem.num_accelerators,
            num_cpus=self.problem.num_cpus,
            memory_bytes=self.problem.capacity_bytes,
            frontier=frontier,
            largest=self.value,
            bins=bins,
            is_proof=is_proof,
            time_per_byte=best_time_per_byte(self.problem),
        )

    def run(self, seed: int) -> None:
        """First placements, then both sides until they meet."""
        self.start(seed)
        _close(self)

    def start(self, seed: int) -> None:
        """A chain and simple fillings, improved; a filling as it is comes first, so that there is something however short the time."""
        self.keep(self.filled(np.argsort(-self.graph.size_bytes, kind="stable")))
        share = Clock(limit_s=self.clock.left_s * _CHAIN_SHARE)
        chain = solve_contiguous(self.problem, seed=seed, clock=share)
        if chain.placement is not None:
            place = np.zeros(self.graph.num_blocks, dtype=np.int64)
            place[self.graph.block] = chain.placement.device
            self.offer(place)
        self.offer(self.filled(np.argsort(-self.graph.size_bytes, kind="stable")))

    def filled(self, order: IntArray, into: IntArray | None = None) -> IntArray:
        """Give the blocks of ``order``, one by one, to the device that is loaded least afterwards, communication aside."""
        place = np.zeros(self.graph.num_blocks, dtype=np.int64) if into is None else into.copy()
        given = np.ones(self.graph.num_blocks, dtype=np.bool_)
        given[order] = False
        times = np.stack([self.devices.time(d) for d in range(self.devices.count)])
        load = np.zeros(self.devices.count)
        used = np.zeros(self.devices.count)
        np.add.at(load, place[given], times[place[given], np.flatnonzero(given)])
        np.add.at(used, place[given], self.graph.size_bytes[given])
        limit = np.where(
            np.arange(self.devices.count) < self.devices.num_accelerators, self.devices.memory_bytes, np.inf
        )
        for b in order.tolist():
            after = load + times[:, b] + np.where(used + self.graph.size_bytes[b] > limit, 1e6 * (1 + load.max()), 0.0)
            d = int(np.argmin(after))
            place[b] = d
            load[d] += times[d, b]
            used[d] += self.graph.size_bytes[b]
        return place

    def rounded(self, cover: Cover) -> IntArray:
        """Sets of the largest shares first, each taking what is left of its blocks."""
        place = np.full(self.graph.num_blocks, -1, dtype=np.int64)
        order = np.argsort(-cover.shares, kind="stable")[: self.devices.num_accelerators]
        for d, i in enumerate(order.tolist()):
            members = cover.sets[i]
            place[members[place[members] < 0]] = d
        cpus = np.argsort(-cover.cpu_shares, kind="stable")[: self.devices.num_cpus]
        for d, i in enumerate(cpus.tolist()):
            if cover.cpu_shares[i] > 0.5:
                members = cover.cpu_sets[i]
                place[members[place[members] < 0]] = self.devices.num_accelerators + d
        rest = np.flatnonzero(place < 0)
        rest = rest[np.argsort(-self.graph.accelerator_time[rest], kind="stable")]
        return self.filled(rest, np.where(place < 0, 0, place))

    def shaken(self) -> IntArray:
        """The best placement with a random neighbourhood of blocks moved to random devices."""
        assert self.place is not None
        place = self.place.copy()
        count = max(2, int(self.random.integers(2, max(3, self.graph.num_blocks // 10))))
        first = int(self.random.integers(self.graph.num_blocks))
        devices = self.random.permutation(self.devices.num_accelerators)[:2]
        if not len(devices):
            return place
        for b in range(first, min(first + count, self.graph.num_blocks)):
            place[b] = devices[int(self.random.integers(len(devices)))]
        return place


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
    search = _Search(problem, seed=seed, gap=gap, clock=clock)
    stopped = why_stopped(lambda: search.run(seed)) if np.isfinite(search.bound) else ""
    place = search.place
    result = PlacementResult(
        placement=None if place is None else Placement(device=place[search.graph.block]),
        objective=search.value,
        bound=min(search.bound, search.value),
        method=METHOD,
        proof=search.proof,
        wall_s=clock.elapsed_s,
        stopped=stopped,
    )
    cells = search.graph.num_blocks * problem.num_devices
    if stopped or search.is_done() or not np.isfinite(search.bound) or cells > _MOST_ASSIGNMENTS:
        return result
    return improved_by_program(problem, result, is_legal=None, relative_gap=gap, clock=clock)


def _close(search: _Search) -> None:
    """Raise the bound and lower the value until they meet, or nothing helps any more."""
    if not np.isfinite(search.value) or search.is_done():
        return
    states = int(np.clip(_MOST_STATES // search.graph.num_blocks, *_STATES))
    frontier = whole_frontier(search.graph, max_states=states)
    cells = int(frontier.num_states.sum())
    bounder: ColumnBound | None = None
    while not search.is_done():
        before = search.value
        bins = int(np.clip(_MOST_CELLS // cells, *_BINS))
        fine = int(np.clip(_MOST_FINE_CELLS // cells, *_FINE_BINS))
        bounder = ColumnBound(
            search.pricing(frontier, bins, is_proof=False), search.pricing(frontier, fine, is_proof=True), bounder
        )
        _bisect(search, bounder)
        for _ in range(_SHAKES):
            if search.is_done():
                break
            search.offer(search.shaken())
        if search.value >= before * (1 - _CLOSE):
            break


def _bisect(search: _Search, bounder: ColumnBound) -> None:
    """Find the least load that has a cover, within the width of a bin; every cover is rounded to a placement."""
    for place in search.seen:
        for d in range(search.devices.num_accelerators):
            bounder.add(np.flatnonzero(place == d))
    low, high = search.bound, search.value  # loads that seem to have no cover, and that have one
    while not search.is_done():
        high = min(high, search.value)
        width = max(bounder.width, _CLOSE * high)
        if high - low <= width:
            break
        load = low + _STEP * (high - low)
        cover = bounder.decide(load, search.clock)
        search.raise_bound(bounder.bound)
        if cover is None:
            low = max(load, bounder.bound)
        else:
            high = load
            search.offer(search.rounded(cover))
