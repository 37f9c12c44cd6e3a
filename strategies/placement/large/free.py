"""Placement without contiguity for graphs of ten thousand blocks and more: the best chain, exchanged on coarse graphs, and a bound.

Bound
-----
Every price per block proves a bound (`strategies.placement.free.columns`); here there is no time to find the best prices, so a few are
guessed from what the best prices of long and thin graphs look like:

1. A block is worth its time, rounded down to bins of load as the sweep counts it. A device that takes a part from the middle pays two
   cuts, so it takes less than its load, and that is the bound.
2. At both ends of the graph a device pays one cut only. The first and last blocks are worth less, by the cost of a cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import PROOF_SLACK, ROUNDING
from strategies.placement.bounds import simple_bound
from strategies.placement.clock import Clock, OutOfTimeError, why_stopped
from strategies.placement.contraction import BlockGraph, contract, contract_classes
from strategies.placement.free.columns import Pricing, pin_lists
from strategies.placement.free.exchange import Devices, Exchange
from strategies.placement.free.frontier import Frontier, build_frontier
from strategies.placement.large.chains import LargeChains, coarse_graph, segments_along
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = ["PRICED_PROOF", "priced_bounds", "solve_large"]


PRICED_PROOF = "what a device can take at the best of a few prices"

# States at a time of the sweep, and transitions x bins of one sweep: about five seconds.
_STATES = 64
_MOST_WORK = 4_000_000_000
_BINS = (500, 20_000)
# Widths of a bin that are tried for the least loss by rounding, relative to the narrowest.
_WIDTHS = np.linspace(1.0, 1.25, 251)
# Shares of the cost of a cut that are taken off the prices at the ends: a cut may be paid at one side of an end or at both.
_END_SHARES = (0.5, 1.0)


def priced_bounds(
    problem: PlacementProblem, graph: BlockGraph, order: IntArray, *, value: float, bound: float, clock: Clock
) -> Iterator[float]:
    """Bounds on the largest load of any placement, each from other prices.

    Parameters
    ----------
    problem : PlacementProblem
    graph : BlockGraph
        Of the problem, of either kind; a bound for the placements that keep its blocks whole.
    order : int array
        Blocks in an order with cheap cuts.
    value : float
        Of the best placement.
    bound : float
        Known so far; where rounding alone loses more than is between it and the value, there is nothing to yield.
    clock : Clock
    """
    if not 0 < bound < value < np.inf:
        return
    # Too much rounding with even half of the transitions that are to be expected: not worth a frontier.
    likely = _MOST_WORK // (graph.num_blocks * _STATES // 2)
    if _finest(graph, value, int(np.clip(likely, *_BINS)))[1] > 1 - bound / value:
        return
    clock.check()
    frontier = _frontier(graph, order, value / _BINS[1], clock)
    bins = int(np.clip(_MOST_WORK // max(1, frontier.num_transitions), *_BINS))
    unit, _ = _finest(graph, value, bins)
    clock.check()
    pricing = Pricing(
        graph,
        num_accelerators=problem.num_accelerators,
        num_cpus=problem.num_cpus,
        memory_bytes=problem.capacity_bytes,
        frontier=frontier,
        largest=value,
        bins=int(np.ceil(value / unit)),
        is_proof=True,
    )
    worth = np.where(pricing.block_bins <= pricing.bins, pricing.block_bins, 0).astype(np.float64)
    priced = pricing.price(worth, remember=False, clock=clock)
    yield priced.bound
    cut = float(pricing.bins - priced.accelerator_best[-1])
    for share in _END_SHARES if cut > 0 else ():
        clock.check()
        yield pricing.price(_cheaper_ends(worth, order, share * cut), remember=False, clock=clock).bound


def _finest(graph: BlockGraph, value: float, bins: int) -> tuple[float, float]:
    """Width of a bin with the least loss by rounding, and that loss."""
    time = graph.accelerator_time
    units = value / bins * _WIDTHS
    losses = [float(np.sum(time - np.floor(time / unit * (1 - ROUNDING)) * unit)) for unit in units]
    best = int(np.argmin(losses))
    return float(units[best]), losses[best] / max(float(time.sum()), 1e-300)


def _frontier(graph: BlockGraph, order: IntArray, unit: float, clock: Clock) -> Frontier:
    """Divisions along an order; hyperedges that round to nothing are never watched for."""
    cost = graph.hyperedge_cost
    pins = [edge if c >= unit else [] for edge, c in zip(pin_lists(graph), cost.tolist(), strict=True)]
    return build_frontier(pins, cost, np.zeros(len(cost), dtype=np.bool_), order=order, max_states=_STATES, clock=clock)


def _cheaper_ends(prices: FloatArray, order: IntArray, cut: float) -> FloatArray:
    """Take the cost of a cut off the prices at either end of an order."""
    result = prices.copy()
    for blocks in (order, order[::-1]):
        before = np.concatenate(([0.0], np.cumsum(result[blocks])[:-1]))
        result[blocks] -= np.minimum(result[blocks], np.maximum(0.0, cut - before))
    return result


METHOD = "coarse graphs, cut and exchanged"
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
        method=METHOD,
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
                    method=METHOD,
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
