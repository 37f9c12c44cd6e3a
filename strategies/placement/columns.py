"""Sets of blocks that a device can take, the most valuable of them at given prices, and the bound of covering the blocks with them.

Pricing
-------
Give every block a price. If no accelerator can take blocks worth more than A(T) within the load T, and no CPU more than C(T), then k
accelerators and l CPUs take at most k A(T) + l C(T), so T is below every placement as long as that is less than all blocks are worth:

    sum of prices > k A(T) + l C(T)    =>    every placement has a larger load than T

(the dual of covering the blocks with sets; Farley, Operations Research 38(5), 1990). Loads are counted in bins of equal width. With
times and transfers rounded down, which only lets sets take more, that is a proof; rounded to the nearest bin it is a good guess at
fewer bins. One sweep gives A for all T at once, hence the best T for its prices.

Covering
--------
For a load T, fewest accelerators that cover all blocks with sets of load up to T, sets taken in fractions: a linear program with one
variable per set. Its sets are generated: the prices of the blocks (the dual) ask `Pricing` for the most valuable set, which enters the
program, until none is worth more than an accelerator. Prices are smoothed between the best so far and the newest, without which they swing
(Wentges, International Transactions in Operational Research 4(2), 1997). The search runs on loads in few bins, rounded to the nearest;
what its prices prove is computed with many bins, rounded down.

Several kinds of devices
------------------------
For a load T, the least share s of the devices that covers all blocks, sets S of kind t within T taken in fractions x:

    min s:  sum_t sum_{S of t with b} x(t, S) >= 1 for each block b,   sum_S x(t, S) <= k(t) s for each kind t

With more than s = 1 no placement is within T. Sets are generated in the same way: the prices of the blocks (the dual) ask for the most
valuable set of each kind. Prices p prove every T at which the devices together take less than all blocks are worth,

    sum_b p(b) > sum_t k(t) A(t, T),   A(t, T) the worth of the most valuable set of kind t within T

because every placement divides all of the worth among the devices. `Pricing` finds A(t, T) for all T in one sweep for each kind.

Ten thousand blocks and more
----------------------------
There is no time to find the best prices, so a few are guessed from what the best prices of long and thin graphs look like:

1. A block is worth its time, rounded down to bins of load as the sweep counts it. A device that takes a part from the middle pays two
   cuts, so it takes less than its load, and that is the bound.
2. At both ends of the graph a device pays one cut only. The first and last blocks are worth less, by the cost of a cut.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import EQUAL, REDUCED_COST, ROUNDING
from strategies.limits import Clock, OutOfTimeError
from strategies.placement.bounds import Kind, kind_graph
from strategies.placement.contraction import BlockGraph
from strategies.placement.frontier import MAX_STATES, Frontier, Sweep, build_frontier, frontier_order, sweep
from strategies.placement.problem import PlacementProblem
from strategies.solvers import LinearProgram, solve_relaxation

__all__ = [
    "PRICED_PROOF",
    "SMOOTHING",
    "ColumnBound",
    "Cover",
    "Covering",
    "KindColumns",
    "KindCover",
    "KindPrices",
    "PricedSets",
    "Pricing",
    "longest_intervals",
    "pin_lists",
    "priced_bounds",
    "whole_frontier",
]


def longest_intervals(graph: BlockGraph, order: IntArray, load: float) -> list[IntArray]:
    """From every position of an order the longest row of supported blocks within a load, those within another one left out.

    Parameters
    ----------
    graph : BlockGraph
        With the times and transfers of the device.
    order : int array (blocks,)
    load : float
        Compute and communication, at most.

    Returns
    -------
    list of int array
        Blocks of each, ascending.

    Examples
    --------
    Four operators in a row, outputs of 1: the first or last two take 2 + 1, a pair in the middle 2 + 2.

    >>> from strategies.placement.contraction import contract_classes
    >>> from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementProblem
    >>> nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=9.0) for i in range(4)]
    >>> edges = [EdgeSpec(i, i + 1, 1.0) for i in range(3)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=0, memory_bytes=1.0)
    >>> [members.tolist() for members in longest_intervals(contract_classes(problem), np.arange(4), 3.5)]
    [[0, 1], [2, 3]]
    """
    supported = graph.supported[order]
    found: list[IntArray] = []
    reached = 0
    for first, loads in enumerate(_interval_loads(graph, order)):
        refused = np.flatnonzero(~supported[first:])
        most = int(refused[0]) if len(refused) else len(order) - first
        within = np.flatnonzero(loads[:most] <= load)
        end = first + int(within[-1]) + 1 if len(within) else first
        if end > reached:
            reached = end
            found.append(np.sort(order[first:end]))
    return found


def _interval_loads(graph: BlockGraph, order: IntArray) -> Iterator[FloatArray]:
    """For every first position the loads of the rows that begin there, by length."""
    count = len(order)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    number = np.repeat(np.arange(len(graph.hyperedge_cost)), np.diff(graph.pin_start))
    by_place = np.lexsort((place[graph.pin], number))
    pins = place[graph.pin][by_place]
    at = graph.pin_start[:-1].copy()  # of each hyperedge's first pin that is not before the row
    last = pins[graph.pin_start[1:] - 1]
    time = graph.accelerator_time[order]
    for first in range(count):
        alive = np.flatnonzero(at < graph.pin_start[1:])
        change = np.zeros(count)
        np.add.at(change, pins[at[alive]], graph.hyperedge_cost[alive])
        whole = alive[at[alive] == graph.pin_start[alive]]
        np.add.at(change, last[whole], -graph.hyperedge_cost[whole])
        yield np.cumsum(time[first:]) + np.cumsum(change[first:])
        at[alive[pins[at[alive]] == first]] += 1


_ALMOST = 1e-6


def pin_lists(graph: BlockGraph) -> list[list[int]]:
    """Blocks of each hyperedge."""
    starts = graph.pin_start.tolist()
    pins = graph.pin.tolist()
    return [pins[starts[i] : starts[i + 1]] for i in range(len(starts) - 1)]


def whole_frontier(graph: BlockGraph, *, max_states: int = MAX_STATES, clock: Clock | None = None) -> Frontier:
    """Divisions of all blocks of a graph into two sides."""
    pins = pin_lists(graph)
    order = frontier_order(graph.num_blocks, pins, range(graph.num_blocks), clock=clock)
    none = np.zeros(len(pins), dtype=np.bool_)
    return build_frontier(pins, graph.hyperedge_cost, none, order=order, max_states=max_states, clock=clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSets:
    """What the best sets are worth at some prices."""

    prices: FloatArray
    bound: float  # no placement has a smaller largest load; about, where loads are rounded to the nearest bin
    accelerator: Sweep
    cpu: Sweep | None
    accelerator_best: FloatArray  # (bins + 1,) most that fits an accelerator, load (and memory) up to the bin
    cpu_best: FloatArray

    def accelerator_set(self, load: int) -> IntArray:
        """Blocks of the most valuable set within a load, in bins."""
        return self.accelerator.side_one(_first_best(self.accelerator.value, load))

    def cpu_set(self, load: int) -> IntArray:
        """The same on a CPU."""
        assert self.cpu is not None
        return self.cpu.side_one(_first_best(self.cpu.value, load))


def _first_best(value: FloatArray, load: int) -> int:
    return int(np.argmax(value[: load + 1]))


class Pricing:
    """Sets of blocks by load, for any prices.

    Parameters
    ----------
    graph : BlockGraph
    num_accelerators, num_cpus : int
    memory_bytes : float
        Capacity of an accelerator.
    frontier : Frontier
        Divisions of all blocks, see `whole_frontier`.
    largest : float
        Loads up to this one are distinguished.
    bins : int
        How finely.
    is_proof : bool
        Round down, so that bounds hold.
    time_per_byte : float
        An accelerator that takes at most T of time and M bytes takes at most T + x M of time + x bytes. 0 ignores memory; any x of at
        least 0 is valid.
    """

    def __init__(
        self,
        graph: BlockGraph,
        *,
        num_accelerators: int,
        num_cpus: int,
        memory_bytes: float,
        frontier: Frontier,
        largest: float,
        bins: int,
        is_proof: bool,
        time_per_byte: float = 0.0,
    ) -> None:
        self.graph = graph
        self.num_accelerators, self.num_cpus = num_accelerators, num_cpus
        self.bins = bins
        self.frontier = frontier
        self._is_proof = is_proof
        room = time_per_byte * memory_bytes
        self.unit = max((largest + room) / bins, 1e-300)
        self.room_bins = int(np.ceil(room / self.unit))
        own = graph.accelerator_time + time_per_byte * graph.size_bytes
        allowed = graph.supported & (graph.size_bytes <= memory_bytes)
        self.block_bins = np.where(allowed, self._rounded(own), bins + 1)
        self.hyperedge_bins = self._rounded(graph.hyperedge_cost)
        self.cpu_bins = self._rounded(graph.cpu_time)
        none = np.zeros(0, dtype=np.int64)
        self._cpu_frontier = build_frontier(
            [], np.zeros(0), np.zeros(0, dtype=np.bool_), order=np.arange(graph.num_blocks)
        )
        self._weight = frontier.charge(1, self.block_bins, self.hyperedge_bins).astype(np.int64)
        self._cpu_weight = self._cpu_frontier.charge(1, self.cpu_bins, none).astype(np.int64)

    def _rounded(self, time: FloatArray) -> IntArray:
        bins = np.floor(time / self.unit * (1 - ROUNDING)) if self._is_proof else np.rint(time / self.unit)
        return np.minimum(bins, self.bins + 1).astype(np.int64)

    def bin_of(self, load: float) -> int:
        """Bin of a load; sets within the load are found up to it."""
        return min(self.bins - self.room_bins, int(np.floor(load / self.unit + _ALMOST)))

    def price(self, prices: FloatArray, *, remember: bool = True, clock: Clock | None = None) -> PricedSets:
        """Find the best sets at some prices, each at least 0."""
        none = np.zeros(len(self.graph.hyperedge_cost))
        gain = self.frontier.charge(1, prices, none).astype(np.float64)
        accelerator = sweep(self.frontier, self._weight, gain, self.bins, remember=remember, clock=clock)
        best = np.maximum.accumulate(accelerator.value)
        within = np.minimum(np.arange(self.bins + 1) + self.room_bins, self.bins)
        cpu, cpu_best = None, np.zeros(self.bins + 1)
        if self.num_cpus:
            cpu_gain = self._cpu_frontier.charge(1, prices, none[:0]).astype(np.float64)
            cpu = sweep(self._cpu_frontier, self._cpu_weight, cpu_gain, self.bins, remember=remember, clock=clock)
            cpu_best = np.maximum.accumulate(cpu.value)
        most = self.num_accelerators * best[within] + self.num_cpus * cpu_best
        enough = np.flatnonzero(most[: self.bins - self.room_bins + 1] >= float(prices.sum()) * (1 - EQUAL))
        first = int(enough[0]) if len(enough) else self.bins - self.room_bins + 1
        return PricedSets(
            prices=prices,
            bound=first * self.unit,
            accelerator=accelerator,
            cpu=cpu,
            accelerator_best=best,
            cpu_best=cpu_best,
        )

    def accelerator_bins(self, members: IntArray) -> int:
        """Load of a set in bins, as `price` counts it."""
        inside = np.zeros(self.graph.num_blocks, dtype=np.int64)
        inside[members] = 1
        total = int(self.block_bins[members].sum())
        if len(self.hyperedge_bins):
            held = np.add.reduceat(inside[self.graph.pin], self.graph.pin_start[:-1])
            total += int(self.hyperedge_bins[(held > 0) & (held < np.diff(self.graph.pin_start))].sum())
        return total


# Weight of the best prices so far in the prices that are tried.
SMOOTHING = 0.5
# A block may stay uncovered at this many accelerators; more than it can be worth where covers exist.
_UNCOVERED = 2.0
# What is still computed after the deadline, in seconds and as a share of the limit: without it the last prices would prove nothing.
_LATE_S = 2.0
_LATE_SHARE = 0.05


CoverT = TypeVar("CoverT")


class Covering(ABC, Generic[CoverT]):
    """Column generation over sets of blocks, for `strategies.placement.free.close_in`.

    Parameters
    ----------
    width : float
        Loads nearer to each other are not distinguished.
    before : Covering, optional
        Another of the same graph, whose sets and bound are taken over.
    """

    def __init__(self, width: float, before: Covering[CoverT] | None) -> None:
        self.width = width
        self.bound: float = 0.0 if before is None else before.bound  # proven
        self._claim = -1.0  # what the best prices seem to prove
        self._offered: set[tuple[int, ...]] = set() if before is None else set(before._offered)

    def decide(self, load: float, clock: Clock) -> CoverT | None:
        """Find prices that seem to rule a load out, and what they prove, or a cover in fractions within the load.

        Returns
        -------
        CoverT or None
            None when the load seems to be ruled out; `bound` says what is proven.

        Raises
        ------
        OutOfTimeError
        """
        try:
            return self._decide(load, clock)
        finally:
            with contextlib.suppress(OutOfTimeError):
                self._prove(clock)

    def _is_new(self, kind: int, members: IntArray) -> bool:
        """Whether a set of blocks was not offered for a kind of device before."""
        key = (kind, *members.tolist())
        if not len(members) or key in self._offered:
            return False
        self._offered.add(key)
        return True

    def _prove(self, clock: Clock) -> None:
        """Compute what the best prices prove; a sweep that has begun when the time is up may still end within a little more."""
        if self._claim > self.bound:
            little = Clock(limit_s=max(clock.left_s, min(_LATE_S, _LATE_SHARE * clock.limit_s)))
            self.bound = max(self.bound, self._proven(little))

    @abstractmethod
    def _decide(self, load: float, clock: Clock) -> CoverT | None:
        """`decide`, without the proof."""

    @abstractmethod
    def _proven(self, clock: Clock) -> float:
        """The bound that the best prices prove."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """Sets in fractions that cover all blocks with no more accelerators than there are."""

    sets: tuple[IntArray, ...]
    shares: FloatArray
    cpu_sets: tuple[IntArray, ...]
    cpu_shares: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Master:
    """An optimum of the covering program."""

    num_accelerators: float
    cover: Cover
    prices: FloatArray
    cpu_price: float  # what one more CPU would be worth


class ColumnBound(Covering[Cover]):
    """Column generation that remembers its sets and its best prices from one load to the next.

    Parameters
    ----------
    pricing : Pricing
        Few bins.
    proving : Pricing
        Many bins, rounded down.
    before : ColumnBound, optional
        Another of the same graph, whose sets, prices and bound are taken over.
    """

    def __init__(self, pricing: Pricing, proving: Pricing, before: ColumnBound | None = None) -> None:
        super().__init__(pricing.unit, before)
        self._claim = 0.0
        self._prices: FloatArray | None = before._prices if before is not None else None
        self._pricing, self._proving = pricing, proving
        self._sets: list[IntArray] = list(before._sets) if before is not None else []
        self._cpu_sets: list[IntArray] = list(before._cpu_sets) if before is not None else []

    def add(self, members: IntArray, *, cpu: bool = False) -> bool:
        """Offer a set of blocks to the program; whether it is new."""
        is_new = self._is_new(int(cpu), members)
        if is_new:
            (self._cpu_sets if cpu else self._sets).append(members)
        return is_new

    def _decide(self, load: float, clock: Clock) -> Cover | None:
        pricing = self._pricing
        target = pricing.bin_of(load)
        for members in longest_intervals(pricing.graph, pricing.frontier.order, load):
            self.add(members)
        if self._prices is None:
            self._try(self._first_prices(), target, clock)
        while True:
            clock.check()
            master = self._master(target)
            if master.num_accelerators <= pricing.num_accelerators * (1 + EQUAL):
                return master.cover
            for weight in (SMOOTHING, 0.0):
                clock.check()
                assert self._prices is not None
                tried = weight * self._prices + (1 - weight) * master.prices
                gains = self._try(tried, target, clock, master)
                if self._claim > load or gains:
                    break
            if self._claim > load or not gains:
                return None  # ruled out, or the program is solved and needs more accelerators than there are

    def _try(self, prices: FloatArray, target: int, clock: Clock, master: _Master | None = None) -> bool:
        """Find the most valuable sets at some prices; whether the program gains by them."""
        priced = self._pricing.price(prices, clock=clock)
        if self._prices is None or priced.bound > self._claim:
            self._claim, self._prices = priced.bound, prices
        return self._enter(priced, target, master)

    def _enter(self, priced: PricedSets, target: int, master: _Master | None) -> bool:
        members = priced.accelerator_set(target + self._pricing.room_bins)
        is_new = self.add(members)
        gains = master is not None and is_new and float(master.prices[members].sum()) > 1.0 + REDUCED_COST
        if priced.cpu is not None:
            taken = priced.cpu_set(target)
            if self.add(taken, cpu=True) and master is not None:
                gains = gains or float(master.prices[taken].sum()) > master.cpu_price + REDUCED_COST
        return gains

    def _proven(self, clock: Clock) -> float:
        assert self._prices is not None
        return self._proving.price(self._prices, remember=False, clock=clock).bound

    def _first_prices(self) -> FloatArray:
        graph = self._pricing.graph
        time = np.where(graph.supported, graph.accelerator_time, graph.cpu_time)
        return np.asarray(time / max(float(time.sum()), 1e-300) * max(1, self._pricing.num_accelerators))

    def _master(self, target: int) -> _Master:
        """Solve the covering program with the sets within a load."""
        pricing = self._pricing
        sets = [s for s in self._sets if pricing.accelerator_bins(s) <= target + pricing.room_bins]
        cpu_sets = [s for s in self._cpu_sets if int(pricing.cpu_bins[s].sum()) <= target]
        blocks = pricing.graph.num_blocks
        columns = [*sets, *cpu_sets]
        sizes = np.array([len(s) for s in columns], dtype=np.int64)
        on_cpu = np.arange(len(sets), len(columns))
        count = len(columns) + blocks
        row = np.concatenate([*columns, np.arange(blocks), np.full(len(cpu_sets), blocks)]).astype(np.int64)
        column = np.concatenate((np.repeat(np.arange(len(columns)), sizes), np.arange(len(columns), count), on_cpu))
        result = solve_relaxation(
            LinearProgram(
                cost=np.concatenate((np.ones(len(sets)), np.zeros(len(cpu_sets)), np.full(blocks, _UNCOVERED))),
                lower=np.zeros(count),
                upper=np.full(count, np.inf),
                integer=np.zeros(count, dtype=np.bool_),
                row_lower=np.concatenate((np.ones(blocks), [-np.inf])),
                row_upper=np.concatenate((np.full(blocks, np.inf), [float(pricing.num_cpus)])),
                entry_row=row,
                entry_column=column.astype(np.int64),
                entry_value=np.ones(len(row)),
            )
        )
        assert result is not None, "everything may stay uncovered"
        shares = result.values[: len(columns)]
        used = shares > REDUCED_COST
        first = len(sets)
        return _Master(
            num_accelerators=result.objective,
            cover=Cover(
                sets=tuple(s for s, u in zip(sets, used[:first], strict=True) if u),
                shares=shares[:first][used[:first]],
                cpu_sets=tuple(s for s, u in zip(cpu_sets, used[first:], strict=True) if u),
                cpu_shares=shares[first:][used[first:]],
            ),
            prices=np.maximum(result.row_duals[:blocks], 0.0),
            cpu_price=-float(result.row_duals[blocks]),
        )


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
    frontier = _cheap_frontier(graph, order, value / _BINS[1], clock)
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


def _cheap_frontier(graph: BlockGraph, order: IntArray, unit: float, clock: Clock) -> Frontier:
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


# Leaving a block uncovered counts as so many times all devices; covers are always cheaper.
_KIND_UNCOVERED = 2.0


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
class _KindMaster:
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

    def _try(self, prices: FloatArray, target: int, clock: Clock, master: _KindMaster | None) -> bool:
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

    def _master(self, target: int) -> _KindMaster:
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
                cost=np.concatenate((np.zeros(first), np.full(blocks, _KIND_UNCOVERED), [1.0])),
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
        return _KindMaster(
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
