"""Good chains of down-sets in graphs that are too large to enumerate: cheap cuts along many orders, exact programs on coarse graphs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.placement.bounds import largest_load
from strategies.placement.chain import ChainLimits, ChainSolution, best_chain
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph
from strategies.placement.ideals import IdealFamily, ideals_from_orders
from strategies.placement.large.coarsening import coarse_graph, late_order, segments_along
from strategies.placement.orders import sample_orders, topological_order
from strategies.placement.problem import Placement, PlacementProblem
from strategies.placement.segments import greedy_stages

__all__ = ["LARGE", "LargeChains", "coarse_along"]

# Blocks from which on down-sets are not sampled any more but coarse graphs are cut.
LARGE = 2_500

# Segments per accelerator of the coarse graphs: the second time only along the best orders.
_SEGMENTS = (50, 150)
_MOST_SEGMENTS = 6_000
_BEST_ORDERS = 3
# Random orders beside the fixed ones; strengths of their noise, in stages.
_RANDOM_ORDERS = 6
_NOISE = (0.003, 0.3)
# Greedy cuts up to so many times the best value are worth cutting exactly.
_PROMISING = 1.02
# Limits above the bound, as multiples of it, that are tried in turn while they are below the best value.
_RISE = (1.003, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.2, 1.35)


def coarse_along(graph: BlockGraph, order: IntArray, segments: int) -> BlockGraph:
    """Segments of an order between cheap cuts as a graph."""
    return coarse_graph(graph, segments_along(graph, order, segments))


class LargeChains:
    """The best chain so far, and the order it was cut from.

    Parameters
    ----------
    problem : PlacementProblem
    graph : BlockGraph
        Of the problem, see `contract`.
    bound : float
        No chain is below it.
    clock : Clock
    """

    def __init__(self, problem: PlacementProblem, graph: BlockGraph, *, bound: float, clock: Clock) -> None:
        self.placement: Placement | None = None
        self.value = np.inf
        self.order = np.arange(graph.num_blocks)
        self._problem, self._graph, self._bound, self._clock = problem, graph, bound, clock
        self._limits = ChainLimits(
            num_accelerators=problem.num_accelerators,
            num_cpus=problem.num_cpus,
            capacity_bytes=problem.capacity_bytes,
        )

    def search(self, seed: int, *, num_orders: int = 10) -> None:
        """Cut some orders greedily, then the best of them exactly, coarsely first."""
        found: list[tuple[float, int, IntArray]] = []
        for number, order in enumerate(islice(self._orders(seed), num_orders)):
            found.append((self._greedy(order), number, order))
        found.sort(key=lambda item: item[:2])
        stages = self._problem.num_devices
        for per_stage, count in zip(_SEGMENTS, (_BEST_ORDERS, 1), strict=True):
            segments = int(min(per_stage * stages, _MOST_SEGMENTS, self._graph.num_blocks))
            kept = [(self._exact(order, segments), number, order) for _, number, order in found[:count]]
            found = sorted(kept, key=lambda item: item[:2])

    def search_around(self, seed: int) -> None:
        """Cut one more order, near the best so far: greedily, then exactly where that is promising."""
        graph = self._graph
        random = np.random.default_rng(seed)
        base = np.empty(graph.num_blocks)
        base[self.order] = np.arange(graph.num_blocks)
        order = late_order(graph, topological_order(graph, self._shaken(base, random)))
        if self._greedy(order) < self.value * _PROMISING:
            self._exact(order, int(min(_SEGMENTS[0] * self._problem.num_devices, _MOST_SEGMENTS, graph.num_blocks)))

    def _shaken(self, base: FloatArray, random: np.random.Generator) -> FloatArray:
        """Positions with noise, of a strength drawn between small and large shares of a stage."""
        stage = self._graph.num_blocks / self._problem.num_devices
        noise = stage * float(np.exp(random.uniform(*np.log(_NOISE))))
        return base + noise * random.random(self._graph.num_blocks)

    def _orders(self, seed: int) -> Iterator[IntArray]:
        graph = self._graph
        for order in sample_orders(graph, 3, seed):
            yield late_order(graph, order)
        random = np.random.default_rng(seed)
        base = np.empty(graph.num_blocks)
        base[self.order] = np.arange(graph.num_blocks)
        for _ in range(_RANDOM_ORDERS):
            yield late_order(graph, topological_order(graph, self._shaken(base, random)))

    def _greedy(self, order: IntArray) -> float:
        """Fill device after device; returns a measure of the order."""
        self._clock.check()
        found = greedy_stages(
            self._problem,
            self._graph,
            order,
            low=self._bound,
            high=largest_load(self._problem),
            clock=self._clock,
        )
        if found is None:
            return float("inf")
        if found[1] < self.value:
            self.placement, self.value = found
            self.order = order
            self._clock.report("orders cut greedily", self.value, self._bound)
        return found[1]

    def _exact(self, order: IntArray, segments: int) -> float:
        """Best chain of segments of an order."""
        coarse = coarse_along(self._graph, order, segments)
        family = ideals_from_orders(coarse, np.arange(coarse.num_blocks)[None])
        last = min(self.value, largest_load(self._problem))
        limits = [factor * self._bound for factor in _RISE if 0 < factor * self._bound < last]
        for limit in [*limits, last]:
            self._clock.check()
            found = best_chain(family, coarse, self._limits, limit=limit, clock=self._clock)
            if found is not None:
                if found.value < self.value:
                    self.placement, self.value = _placed(self._problem, coarse, family, found), found.value
                    self.order = order
                    self._clock.report("coarse graph cut exactly", self.value, self._bound)
                return found.value
        return float("inf")


def _placed(problem: PlacementProblem, coarse: BlockGraph, family: IdealFamily, found: ChainSolution) -> Placement:
    from strategies.placement.contiguous import chain_placement

    return chain_placement(problem, coarse, family, found)
