"""Contiguous placement for throughput: the best chain of down-sets, proven by exact dynamic programming.

Notes
-----
The search first finds some chain among the prefixes of a few topological orders. Its value, and the compute that must be done at
least, enclose the optimum. The exact program is then run with limits that rise from below: a run that finds nothing proves its
limit as a bound, a run that finds a chain proves that chain, and a tight limit makes the windows narrow and the run short.

Large graphs
------------
Where down-sets are too many to enumerate, chains are found by cheap cuts along many orders and by exact programs on coarse graphs: see
`strategies.placement.orders`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from costmodel.arrays import IntArray
from costmodel.tolerances import ROUNDING
from strategies.limits import Clock, why_stopped
from strategies.placement.bounds import largest_load, simple_bound
from strategies.placement.chain import (
    IdealFamily,
    Stages,
    TooManyIdealsError,
    enumerate_ideals,
    ideals_from_orders,
)
from strategies.placement.columns import PRICED_PROOF, priced_bounds
from strategies.placement.contraction import BlockGraph, contract
from strategies.placement.loads import kinds_of
from strategies.placement.orders import (
    coarse_graph,
    greedy_stages,
    late_order,
    orders_around,
    sample_orders,
    segments_along,
    topological_order,
)
from strategies.placement.problem import BestSoFar, Placement, PlacementProblem, PlacementResult

METHOD = "dynamic programming over predecessor-closed sets"
ORDERS_METHOD = "dynamic programming over sampled topological orders"
# Most down-sets, and most entries of their largest table (two bytes each), about 300 MB; most values of all counts of devices together.
MAX_IDEALS = 1_000_000
_MAX_ENTRIES = 150_000_000
_MAX_CELLS = 40_000_000
# Orders that are sampled for the first chain, and where there are too many down-sets.
_FEW_ORDERS = 4
_MANY_ORDERS = 24
_PREFIXES = 20_000
# Rounds of more orders, in a row and without gain, after which the search gives up where there are too many down-sets for a proof.
_PATIENCE = 25
# Limits above the first bound, as multiples of it: each is run when those before it found nothing.
_RISE = (1.003, 1.01, 1.03, 1.08, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 4.0, 10.0)
# Blocks from which on down-sets are not sampled any more but coarse graphs are cut.
LARGE = 2_500
# Segments per accelerator of the coarse graphs: the second time only along the best of the best orders.
_SEGMENTS = (50, 150)
_MOST_SEGMENTS = 6_000
_BEST_ORDERS = 3
# Random orders besides the fixed ones of a large graph; strengths of the noise of orders near the best one, in stages.
_RANDOM_ORDERS = 6
_NOISE = (0.003, 0.3)
# Greedy cuts up to so many times the best value are worth cutting exactly.
_PROMISING = 1.02


def solve_contiguous(
    problem: PlacementProblem,
    *,
    seed: int = 0,
    gap: float = 0.0,
    clock: Clock | None = None,
    max_ideals: int = MAX_IDEALS,
) -> PlacementResult:
    """Place operators so that the largest load is least, every stage being what one down-set adds to another.

    Parameters
    ----------
    problem : PlacementProblem
        Kinds of accelerators may follow each other in any order.
    seed : int
        Of the orders sampled for the first chain; does not change a proven value.
    gap : float
        The search may stop at this (value - bound) / value.
    clock : Clock, optional
    max_ideals : int
        With more down-sets only sampled chains are searched, and the bound is one for all placements.

    Returns
    -------
    PlacementResult
        Without a placement, and with an infinite bound, where provably none exists.

    Examples
    --------
    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=4.0, cpu_time=40.0) for i in range(4)]
    >>> edges = [EdgeSpec(i, i + 1, 0.5) for i in range(3)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=1, memory_bytes=1.0)
    >>> result = solve_contiguous(problem)
    >>> result.objective, result.proven_optimal, result.placement.device.tolist()
    (8.5, True, [0, 0, 1, 1])
    """
    search = ChainSearch(problem, clock or Clock(), gap)
    stopped = why_stopped(lambda: search.run(seed, max_ideals)) if np.isfinite(search.bound) else ""
    return search.result(stopped or search.gave_up)


class ChainSearch(BestSoFar):
    """The best chain, an order of the blocks that it can be cut from, and the best bound so far.

    Parameters
    ----------
    problem : PlacementProblem
    clock : Clock
    gap : float
        Relative distance of value and bound that is asked for.
    is_large : bool
        Cut coarse graphs, as if there were more than `LARGE` blocks.
    """

    def __init__(self, problem: PlacementProblem, clock: Clock, gap: float = 0.0, *, is_large: bool = False) -> None:
        super().__init__(clock, max(gap, ROUNDING), *simple_bound(problem), METHOD)
        self.problem, self.graph = problem, contract(problem)
        self._kinds = kinds_of(problem, self.graph)
        self._is_large = is_large or (self.graph.num_blocks > LARGE and not problem.types)
        self.device = np.zeros(self.graph.num_blocks, dtype=np.int64)
        self.order = np.arange(self.graph.num_blocks)
        self.gave_up = ""  # why the search ended without a proof before its time was up

    def run(self, seed: int, max_ideals: int) -> None:
        """Fill devices along a few orders; then all down-sets, or where these are too many more orders as long as that helps."""
        graph = self.graph
        for order in sample_orders(graph, 1 if self._is_large else self._count(_FEW_ORDERS), seed):
            self._greedy(order)
        if self.is_done():
            return
        # Words of bits and a row of pin counts per down-set, and a value for each count of devices; a chain alone has a down-set per block.
        width = len(graph.hyperedge_cost) + 4 * (1 + graph.num_blocks // 64)
        cells = float(np.prod([kind.count + 1.0 for kind in self._kinds]))
        most = min(max_ideals, max(1000, _MAX_ENTRIES // width), max(1000, int(_MAX_CELLS / cells)))
        try:
            family = enumerate_ideals(graph, limit=most, clock=self.clock)
        except TooManyIdealsError as error:
            self.method = ORDERS_METHOD
            self.sample(seed=seed)
            self._price()
            self._sample_on(seed, str(error))
            return
        self._prove(family)

    def _count(self, orders: int) -> int:
        """How many of so many orders have few enough prefixes together."""
        return max(1, min(orders, _PREFIXES // self.graph.num_blocks))

    def sample(self, num_orders: int = _MANY_ORDERS, *, seed: int = 0) -> None:
        """Look for a chain among the prefixes of some orders; in a large graph greedily, order by order."""
        if self._is_large:
            self._sample_large(num_orders, seed)
        else:
            orders = sample_orders(self.graph, self._count(num_orders), seed)
            for order in orders:
                self._greedy(order)
            self._cut(self.graph, orders)

    def _sample_large(self, num_orders: int, seed: int) -> None:
        """Cut some orders greedily, then the best of them exactly, coarsely first."""
        fixed = (late_order(self.graph, order) for order in sample_orders(self.graph, 3, seed))
        orders = itertools.chain(fixed, self._near(_RANDOM_ORDERS, seed))
        tried = [(self._greedy(order), order) for order in itertools.islice(orders, num_orders)]
        for per_device, count in zip(_SEGMENTS, (_BEST_ORDERS, 1), strict=True):
            best = sorted(tried, key=lambda item: item[0])[:count]
            tried = [(self._cut_coarsely(order, per_device), order) for _, order in best]

    def _sample_on(self, seed: int, reason: str) -> None:
        """Cut more orders, drawn around the best chain, until many in a row gain nothing."""
        fruitless = 0
        while fruitless < _PATIENCE and not self.is_done():
            before = self.value
            seed += 1
            self.report("stages along sampled orders")
            if self._is_large:
                for order in self._near(1, seed):
                    if self._greedy(order) < self.value * _PROMISING:
                        self._cut_coarsely(order, _SEGMENTS[0])
            else:
                count = self._count(_MANY_ORDERS)
                held = self.device[self.order]
                stage = np.empty(len(held), dtype=np.int64)
                stage[self.order] = np.cumsum(np.diff(held, prepend=held[0]) != 0)
                near = orders_around(self.graph, stage, count // 2, seed)
                self._cut(self.graph, np.concatenate((sample_orders(self.graph, count, seed)[3:], near)))
            fruitless = 0 if self.value < before * (1 - ROUNDING) else fruitless + 1
        if not self.is_done():
            self.gave_up = f"{reason}, too many for a proof; {_PATIENCE} more rounds of orders found nothing better"

    def _near(self, count: int, seed: int) -> Iterator[IntArray]:
        """Orders near the best one, with noise of a strength drawn between small and large shares of a stage."""
        graph, random = self.graph, np.random.default_rng(seed)
        base = np.argsort(self.order)  # where every block is
        for _ in range(count):
            noise = graph.num_blocks / self.problem.num_devices * float(np.exp(random.uniform(*np.log(_NOISE))))
            yield late_order(graph, topological_order(graph, base + noise * random.random(graph.num_blocks)))

    def _greedy(self, order: IntArray) -> float:
        """Fill device after device; returns a measure of the order."""
        self.report("first placement")
        self.clock.check()
        high = largest_load(self.problem)
        found = greedy_stages(self._kinds, self.graph, order, low=self.bound, high=high, clock=self.clock)
        if found is None:
            return float("inf")
        device, value = found
        self._keep(device, value, order, "orders cut greedily")
        return value

    def _cut_coarsely(self, order: IntArray, per_device: int) -> float:
        segments = int(min(per_device * self.problem.num_devices, _MOST_SEGMENTS, self.graph.num_blocks))
        segment = segments_along(self.graph, order, segments)
        coarse = coarse_graph(self.graph, segment)
        return self._cut(coarse, np.arange(coarse.num_blocks)[None], segment, order)

    def _cut(
        self, graph: BlockGraph, orders: IntArray, segment: IntArray | None = None, order: IntArray | None = None
    ) -> float:
        """Best chain of the prefixes of some orders of a graph, whose blocks are segments of an order where one is given."""
        self.clock.check()
        stages = Stages(ideals_from_orders(graph, orders), graph, kinds_of(self.problem, graph))
        for limit in self._limits():
            found = stages.best_chain(limit, self.clock)
            if found is not None:
                if segment is None or order is None:
                    self._keep(found.device, found.value, found.order, "stages between predecessor-closed sets")
                else:
                    self._keep(found.device[segment], found.value, order, "coarse graph cut exactly")
                return found.value
        return float("inf")

    def _limits(self) -> list[float]:
        last = min(self.value, largest_load(self.problem))
        rise = [self.bound * factor for factor in _RISE]
        # Room for rounding: the best chain so far must be found again.
        return [limit for limit in rise if limit < last * 0.98] + [last * (1 + ROUNDING)]

    def _keep(self, device: IntArray, value: float, order: IntArray, stage: str) -> None:
        if value < self.value:
            self.device, self.value, self.order = device, value, order
            self.report(stage)

    def _price(self) -> None:
        for bound in priced_bounds(
            self.problem, self.graph, self.order, value=self.value, bound=self.bound, clock=self.clock
        ):
            self.raise_bound(bound, PRICED_PROOF, "priced blocks")

    def _prove(self, family: IdealFamily) -> None:
        """Run the exact program with rising limits until it finds a chain or the last limit finds none."""
        stages = Stages(family, self.graph, self._kinds)
        exhaustive = f"exhaustive: dynamic programming over all {len(family):,} predecessor-closed sets"
        for limit in self._limits():
            self.report("stages between predecessor-closed sets")
            found = stages.best_chain(limit, self.clock)
            if found is not None:
                self._keep(found.device, found.value, found.order, "stages between predecessor-closed sets")
                break
            if limit > self.bound:  # what a run does not find is above its limit
                self.bound = limit
                self.proof = (
                    f"no stages between any of the {len(family):,} predecessor-closed sets have a smaller largest load"
                )
            if self.is_done():
                return
        self.bound, self.proof = self.value, exhaustive

    def result(self, stopped: str = "") -> PlacementResult:
        """What was found."""
        found = np.isfinite(self.value)
        return self.result_with(Placement(device=self.device[self.graph.block]) if found else None, stopped)
