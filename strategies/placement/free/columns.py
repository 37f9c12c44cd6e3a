"""A lower bound for placements without contiguity: covering the blocks with sets that devices can take.

Notes
-----
For a load T, fewest accelerators that cover all blocks with sets of load up to T, sets taken in fractions: a linear program with one
variable per set. Its sets are generated: the prices of the blocks (the dual) ask `Pricing` for the dearest set, which enters the program,
until none is worth more than an accelerator. Prices are smoothed between the best so far and the newest, without which they swing (Wentges,
International Transactions in Operational Research 4(2), 1997). The search runs on loads in few bins, rounded to the nearest; what its
prices prove is computed with many bins, rounded down.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import EQUAL, REDUCED_COST
from strategies.placement.clock import Clock, OutOfTimeError
from strategies.placement.free.intervals import longest_intervals
from strategies.placement.free.pricing import PricedSets, Pricing
from strategies.solvers import LinearProgram, solve_relaxation

__all__ = ["ColumnBound", "Cover"]

# Weight of the best prices so far in the prices that are tried.
_SMOOTHING = 0.5
# A block may stay uncovered at this many accelerators; more than it can be worth where covers exist.
_UNCOVERED = 2.0
# What is still computed after the deadline, in seconds and as a share of the limit: without it the last prices would prove nothing.
_LATE_S = 2.0
_LATE_SHARE = 0.05


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


class ColumnBound:
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
        self.bound: float = before.bound if before is not None else 0.0  # proven
        self._claim = 0.0  # what the best prices seem to prove
        self._prices: FloatArray | None = before._prices if before is not None else None
        self._pricing, self._proving = pricing, proving
        self._sets: list[IntArray] = list(before._sets) if before is not None else []
        self._cpu_sets: list[IntArray] = list(before._cpu_sets) if before is not None else []
        self._known: set[tuple[int, ...]] = set(before._known) if before is not None else set()

    @property
    def width(self) -> float:
        """Loads nearer to each other are not told apart."""
        return self._pricing.unit

    def add(self, members: IntArray, *, cpu: bool = False) -> bool:
        """Offer a set of blocks to the program; whether it is new."""
        key = (int(cpu), *members.tolist())
        if not len(members) or key in self._known:
            return False
        self._known.add(key)
        (self._cpu_sets if cpu else self._sets).append(members)
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
            with contextlib.suppress(OutOfTimeError):
                self._prove(clock)

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
            for weight in (_SMOOTHING, 0.0):
                clock.check()
                assert self._prices is not None
                tried = weight * self._prices + (1 - weight) * master.prices
                gains = self._try(tried, target, clock, master)
                if self._claim > load or gains:
                    break
            if self._claim > load or not gains:
                return None  # ruled out, or the program is solved and needs more accelerators than there are

    def _try(self, prices: FloatArray, target: int, clock: Clock, master: _Master | None = None) -> bool:
        """Find the dearest sets at some prices; whether the program gains by them."""
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

    def _prove(self, clock: Clock) -> None:
        """Compute what the best prices prove; a sweep that has begun when the time is up may still end within a little more."""
        if self._prices is not None and self._claim > self.bound:
            little = Clock(limit_s=max(clock.left_s, min(_LATE_S, _LATE_SHARE * clock.limit_s)))
            self.bound = max(self.bound, self._proving.price(self._prices, remember=False, clock=little).bound)

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
