"""The best placement and bound so far, starts and exchange, and how searches without contiguity end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import PROOF_SLACK, ROUNDING
from strategies.placement.clock import Clock, OutOfTimeError, why_stopped
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.contraction import contract_classes
from strategies.placement.device_program import improved_by_program
from strategies.placement.free.exchange import Devices, Exchange
from strategies.placement.mixed.bounds import mixed_bound
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = ["CLOSE", "Decider", "FreeSearch", "close_in", "run_to_the_end"]


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
