"""The sets of blocks that a device can take within a load, and the dearest of them at given prices.

Notes
-----
Give every block a price. If no accelerator can take blocks worth more than A(T) within the load T, and no CPU more than C(T), then k
accelerators and l CPUs take at most k A(T) + l C(T), so T is below every placement as long as that is less than all blocks are worth:

    sum of prices > k A(T) + l C(T)    =>    every placement has a larger load than T

(the dual of covering the blocks with sets; Farley, Operations Research 38(5), 1990). Loads are counted in bins of equal width. With
times and transfers rounded down, which only lets sets take more, that is a proof; rounded to the nearest bin it is a good guess at
fewer bins. One sweep gives A for all T at once, hence the best T for its prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import EQUAL, ROUNDING
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph
from strategies.placement.free.frontier import MAX_STATES, Frontier, Sweep, build_frontier, frontier_order, sweep

__all__ = ["PricedSets", "Pricing", "pin_lists", "whole_frontier"]

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
        """Blocks of the dearest set within a load, in bins."""
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
        Loads up to this one are told apart.
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
