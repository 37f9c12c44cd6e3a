"""Sets of blocks that a device can take, the most valuable of them at given prices, and the bound of covering the blocks with them.

Pricing
-------
Give every block a price. If no device of kind t can take blocks worth more than A(t, T) within the load T, then k(t) devices of each kind
take at most the sum of k(t) A(t, T), so T is below every placement as long as that is less than all blocks are worth:

    sum_b p(b) > sum_t k(t) A(t, T)    =>    every placement has a larger load than T

(the dual of covering the blocks with sets; Farley, Operations Research 38(5), 1990). Loads are counted in bins of equal width. With
times and transfers rounded down, which only lets sets take more, that is a proof; rounded to the nearest bin it is a good guess at
fewer bins. One sweep for each kind gives A for all T at once, hence the best T for its prices. CPUs are one more kind.

Covering
--------
For a load T, the least share s of the devices that covers all blocks, sets S of kind t within T taken in fractions x:

    min s:  sum_t sum_{S of t with b} x(t, S) >= 1 for each block b,   sum_S x(t, S) <= k(t) s for each kind t

With more than s = 1 no placement is within T. Its sets are generated: the prices of the blocks (the dual) ask `Pricing` for the most
valuable set of each kind, which enters the program, until none is worth more than a device. Prices are smoothed between the best so far
and the newest, without which they swing (Wentges, International Transactions in Operational Research 4(2), 1997). The search runs on loads
in few bins, rounded to the nearest; what its prices prove is computed with many bins, rounded down.

Ten thousand blocks and more
----------------------------
There is no time to find the best prices, so a few are guessed from what the best prices of long and thin graphs look like:

1. A block is worth its time, rounded down to bins of load as the sweep counts it. A device that takes a part from the middle pays two
   cuts, so it takes less than its load, and that is the bound.
2. At both ends of the graph a device pays one cut only. The first and last blocks are worth less, by the cost of a cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import EQUAL, REDUCED_COST, ROUNDING
from strategies.limits import UNLIMITED, Clock, OutOfTimeError
from strategies.placement.contraction import BlockGraph
from strategies.placement.frontier import MAX_STATES, Frontier, Sweep, build_frontier, frontier_order, sweep
from strategies.placement.loads import Kind, kinds_of
from strategies.placement.orders import OrderedBlocks
from strategies.placement.problem import PlacementProblem
from strategies.solvers import LinearProgram, solve_relaxation


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
    blocks = OrderedBlocks(graph, order)
    found: list[IntArray] = []
    reached = 0
    for first in range(len(order)):
        within = np.flatnonzero(blocks.loads(first) <= load)
        end = first + int(within[-1]) + 1 if len(within) else first
        if end > reached:
            reached = end
            found.append(np.sort(order[first:end]))
    return found


_ALMOST = 1e-6


def pin_lists(graph: BlockGraph) -> list[list[int]]:
    """Blocks of each hyperedge."""
    starts = graph.pin_start.tolist()
    pins = graph.pin.tolist()
    return [pins[starts[i] : starts[i + 1]] for i in range(len(starts) - 1)]


def whole_frontier(graph: BlockGraph, *, max_states: int = MAX_STATES, clock: Clock = UNLIMITED) -> Frontier:
    """Divisions of all blocks of a graph into two sides."""
    pins = pin_lists(graph)
    order = frontier_order(graph.num_blocks, pins, range(graph.num_blocks), clock=clock)
    none = np.zeros(len(pins), dtype=np.bool_)
    return build_frontier(pins, graph.hyperedge_cost, none, order=order, max_states=max_states, clock=clock)


class _KindSets:
    """Sets of blocks that a device of one kind can take, by load in bins.

    A CPU pays for no transfers, so that its sets need no frontier.
    """

    def __init__(
        self,
        kind: Kind,
        graph: BlockGraph,
        frontier: Frontier,
        *,
        unit: float,
        bins: int,
        is_proof: bool,
        time_per_byte: float,
    ) -> None:
        self.graph = kind.graph(graph)
        if kind.is_cpu:
            none = np.zeros(0, dtype=np.int64)
            self.graph = replace(
                self.graph, hyperedge_cost=np.zeros(0), pin_start=np.zeros(1, dtype=np.int64), pin=none
            )
            frontier = whole_frontier(self.graph)
        self._bins, self.frontier = bins, frontier

        def rounded(time: FloatArray) -> IntArray:
            count = np.floor(time / unit * (1 - ROUNDING)) if is_proof else np.rint(time / unit)
            return np.minimum(count, bins + 1).astype(np.int64)

        own = kind.time if kind.is_cpu else kind.time + time_per_byte * graph.size_bytes
        self.room_bins = 0 if kind.is_cpu else int(np.ceil(time_per_byte * kind.capacity_bytes / unit))
        self.block_bins = np.where(kind.allowed, rounded(own), bins + 1)
        self._hyperedge_bins = rounded(self.graph.hyperedge_cost)
        self._weight = frontier.charge(1, self.block_bins, self._hyperedge_bins).astype(np.int64)

    def price(self, prices: FloatArray, *, remember: bool, clock: Clock) -> Sweep:
        gain = self.frontier.charge(1, prices, np.zeros(len(self._hyperedge_bins))).astype(np.float64)
        return sweep(self.frontier, self._weight, gain, self._bins, remember=remember, clock=clock)

    def bins_of(self, members: IntArray) -> int:
        """Load of a set, as `price` counts it; above all bins where the kind cannot take it."""
        inside = np.zeros(self.graph.num_blocks, dtype=np.int64)
        inside[members] = 1
        total = int(self.block_bins[members].sum())
        if len(self._hyperedge_bins):
            held = np.add.reduceat(inside[self.graph.pin], self.graph.pin_start[:-1])
            total += int(self._hyperedge_bins[(held > 0) & (held < np.diff(self.graph.pin_start))].sum())
        return total


class Pricing:
    """The most valuable sets of every kind at any prices, loads counted in the same bins.

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
    time_per_byte : float
        An accelerator that takes at most T of time and M bytes takes at most T + x M of time + x bytes. 0 ignores memory; any x of at
        least 0 is valid.
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
        time_per_byte: float = 0.0,
    ) -> None:
        self.kinds, self.bins = tuple(kinds), bins
        room = max((time_per_byte * kind.capacity_bytes for kind in kinds if not kind.is_cpu), default=0.0)
        self.unit = max((largest + room) / bins, 1e-300)
        self.sets = tuple(
            _KindSets(kind, graph, frontier, unit=self.unit, bins=bins, is_proof=is_proof, time_per_byte=time_per_byte)
            for kind in kinds
        )
        self.last_bin = bins - max(own.room_bins for own in self.sets)

    def price(
        self, prices: FloatArray, *, remember: bool = True, clock: Clock = UNLIMITED
    ) -> tuple[float, list[Sweep]]:
        """Bound that prices of at least 0 prove (seem to prove, where loads are rounded to the nearest bin), and each kind's best sets."""
        found = [own.price(prices, remember=remember, clock=clock) for own in self.sets]
        most = np.zeros(self.last_bin + 1)
        for kind, own, priced in zip(self.kinds, self.sets, found, strict=True):
            worth = np.maximum.accumulate(priced.value)  # most that fits a device, load (and memory) up to the bin
            most += kind.count * worth[own.room_bins : own.room_bins + len(most)]
        enough = np.flatnonzero(most >= float(prices.sum()) * (1 - EQUAL))
        return float(enough[0] if len(enough) else len(most)) * self.unit, found


# Weight of the best prices so far in the prices that are tried.
_SMOOTHING = 0.5
# Leaving a block uncovered counts as so many times all devices; covers are always cheaper.
_UNCOVERED = 2.0
# What is still computed after the deadline, in seconds and as a share of the limit: without it the last prices would prove nothing.
_LATE_S = 2.0
_LATE_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """Sets in fractions that cover all blocks with no more devices of each kind than there are."""

    sets: tuple[tuple[IntArray, ...], ...]  # by kind
    shares: tuple[FloatArray, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Master:
    """An optimum of the covering program."""

    is_cover: bool
    cover: Cover
    prices: FloatArray
    device_prices: FloatArray  # (kinds,) what one more device would be worth


class Columns:
    """Column generation that remembers its sets and its best prices from one load to the next.

    Parameters
    ----------
    guess : Pricing
        Few bins. Loads nearer to each other than a bin are not distinguished.
    proof : Pricing
        Many bins, rounded down.
    prices : float array (blocks,)
        To begin with.
    before : Columns, optional
        Others of the same graph, whose sets, prices and bound are taken over.
    """

    def __init__(self, guess: Pricing, proof: Pricing, prices: FloatArray, before: Columns | None = None) -> None:
        self.width = guess.unit
        self.bound: float = 0.0 if before is None else before.bound  # proven: no placement has less
        self._claim = -1.0  # what the best prices seem to prove
        self._prices: FloatArray = _whole(prices) if before is None else before._prices
        self._guess, self._proof = guess, proof
        self._sets: list[list[IntArray]] = [[] for _ in guess.kinds] if before is None else before._sets
        self._offered: set[tuple[int, ...]] = set() if before is None else before._offered

    def add(self, t: int, members: IntArray) -> bool:
        """Offer the program a set for a kind; whether it is new there."""
        key = (t, *members.tolist())
        if not len(members) or key in self._offered:
            return False
        self._offered.add(key)
        self._sets[t].append(members)
        return True

    def decide(self, load: float, clock: Clock) -> Cover | None:
        """Find prices that seem to rule a load out, and what they prove, or a cover in fractions within the load.

        Returns
        -------
        Cover or None
            None when the load seems to be ruled out; `bound` says what is proven.

        Raises
        ------
        OutOfTimeError
        """
        try:
            return self._decide(load, clock)
        finally:
            if self._claim > self.bound:
                # A sweep that has begun when the time is up may still end within a little more.
                little = Clock(limit_s=max(clock.left_s, min(_LATE_S, _LATE_SHARE * clock.limit_s)))
                with contextlib.suppress(OutOfTimeError):
                    proven = self._proof.price(self._prices, remember=False, clock=little)[0]
                    self.bound = max(self.bound, proven)

    def _decide(self, load: float, clock: Clock) -> Cover | None:
        # Sets up to it are within the load.
        target = min(self._guess.last_bin, int(np.floor(load / self.width + _ALMOST)))
        for t, own in enumerate(self._guess.sets):
            for members in longest_intervals(own.graph, own.frontier.order, (target + 0.5) * self.width):
                self.add(t, members)
        if self._claim < 0:
            self._try(self._prices, target, clock, None)
        while self._claim <= load:
            clock.check()
            master = self._master(target)
            if master.is_cover:
                return master.cover
            for weight in (_SMOOTHING, 0.0):
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
            reached = target + self._guess.sets[t].room_bins
            members = priced.side_one(int(np.argmax(priced.value[: reached + 1])))
            is_new = self.add(t, members)
            if is_new and master is not None:
                gains |= float(master.prices[members].sum()) > float(master.device_prices[t]) + REDUCED_COST
        return gains

    def _master(self, target: int) -> _Master:
        guess = self._guess
        sets = [
            [s for s in known if own.bins_of(s) <= target + own.room_bins]
            for own, known in zip(guess.sets, self._sets, strict=True)
        ]
        blocks, kinds = len(self._prices), len(sets)
        columns = [s for own in sets for s in own]
        kind_of = np.repeat(np.arange(kinds), [len(own) for own in sets])
        sizes = np.array([len(s) for s in columns], dtype=np.int64)
        first = len(columns)  # then one column per block that stays uncovered, and the share
        count = first + blocks + 1
        counts = np.array([kind.count for kind in guess.kinds], dtype=np.float64)
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
            is_cover=bool(result.objective <= 1 + EQUAL and result.values[first:-1].max(initial=0.0) <= REDUCED_COST),
            cover=Cover(
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


PRICED_PROOF = "Lagrangian bound on the work that a device can do in a time"
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
    bins = int(np.clip(_MOST_WORK // max(1, len(frontier.target)), *_BINS))
    unit, _ = _finest(graph, value, bins)
    clock.check()
    pricing = Pricing(
        kinds_of(problem, graph), graph, frontier, largest=value, bins=int(np.ceil(value / unit)), is_proof=True
    )
    own_bins = pricing.sets[0].block_bins
    worth = np.where(own_bins <= pricing.bins, own_bins, 0).astype(np.float64)
    proven, found = pricing.price(worth, remember=False, clock=clock)
    yield proven
    cut = float(pricing.bins - found[0].value.max())
    for share in _END_SHARES if cut > 0 else ():
        clock.check()
        yield pricing.price(_cheaper_ends(worth, order, share * cut), remember=False, clock=clock)[0]


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
