"""Contiguous placement for throughput: the best chain of down-sets, proven by exact dynamic programming.

Notes
-----
The search first finds some chain among the prefixes of a few topological orders. Its value, and the compute that must be done at
least, enclose the optimum. The exact program is then run with limits that rise from below: a run that finds nothing proves its
limit as a bound, a run that finds a chain proves that chain, and a tight limit makes the windows narrow and the run short.
"""

from __future__ import annotations

import numpy as np

from costmodel.arrays import BoolArray, IntArray
from costmodel.tolerances import ROUNDING
from strategies.placement.bounds import largest_load, simple_bound
from strategies.placement.chain import ChainLimits, ChainSolution, best_chain, chain_within
from strategies.placement.clock import Clock, why_stopped
from strategies.placement.contraction import BlockGraph, contract, topological_rank
from strategies.placement.ideals import (
    IdealFamily,
    TooManyIdealsError,
    enumerate_ideals,
    ideals_from_orders,
    orders_around,
    sample_orders,
)
from strategies.placement.large.chains import LARGE, LargeChains
from strategies.placement.large.free import PRICED_PROOF, priced_bounds
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult
from strategies.placement.segments import greedy_stages

__all__ = ["MAX_IDEALS", "chain_placement", "solve_contiguous", "solve_orders"]

METHOD = "dynamic programming over down-sets"
ORDERS_METHOD = "dynamic programming over sampled orders"
# Most down-sets, and most entries of their largest table (two bytes each): about 300 MB.
MAX_IDEALS = 1_000_000
_MAX_ENTRIES = 150_000_000
# Orders that are sampled for the first chain, and where there are too many down-sets.
_FEW_ORDERS = 4
_MANY_ORDERS = 24
_PREFIXES = 20_000
# Rounds of more orders, in a row and without gain, after which the search gives up where there are too many down-sets for a proof.
_PATIENCE = 25
# With so many CPUs a table per count of both kinds of devices is too much; limits are decided one by one instead.
_SEVERAL_CPUS = 2
_CLOSE = 1e-5
# Limits above the first bound, as multiples of it: each is run when those before it found nothing.
_RISE = (1.003, 1.01, 1.03, 1.08, 1.2, 1.5, 2.0, 4.0)


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
    clock = clock or Clock()
    if problem.types:
        from strategies.placement.mixed.chain import solve_mixed_chain

        return solve_mixed_chain(problem, seed=seed, gap=gap, clock=clock)
    search = _Search(problem, contract(problem), clock, gap)
    if not np.isfinite(search.bound):
        return search.result(METHOD, search.proof)
    stopped = why_stopped(lambda: search.run(seed, max_ideals))
    return search.result(search.method, search.proof, stopped=stopped or search.gave_up)


def solve_orders(problem: PlacementProblem, *, clock: Clock | None = None) -> PlacementResult:
    """Cut one topological order into stages: a chain partition such as PipeDream's, exact for that order."""
    clock = clock or Clock()
    search = _Search(problem, contract(problem), clock)
    if not np.isfinite(search.bound):
        return search.result(ORDERS_METHOD, search.proof)
    stopped = why_stopped(lambda: search.sample(1, 0))
    return search.result(ORDERS_METHOD, search.proof, stopped=stopped)


class _Search:
    """Best chain and best bound so far."""

    def __init__(self, problem: PlacementProblem, graph: BlockGraph, clock: Clock, gap: float = 0.0) -> None:
        self.problem, self.graph, self._clock = problem, graph, clock
        self._gap = max(gap, ROUNDING)
        self._limits = ChainLimits(
            num_accelerators=problem.num_accelerators,
            num_cpus=problem.num_cpus,
            capacity_bytes=problem.capacity_bytes,
        )
        self._best: Placement | None = None
        self._value = np.inf
        self.bound, self.proof = simple_bound(problem)
        self._chains = LargeChains(problem, graph, bound=self.bound, clock=clock)
        self.method = METHOD
        self.gave_up = ""  # why the search ended without a proof before its time was up

    def run(self, seed: int, max_ideals: int) -> None:
        """Some orders first; then all down-sets, or where these are too many more orders as long as that helps."""
        graph = self.graph
        self.sample(_FEW_ORDERS if graph.num_blocks <= LARGE else _MANY_ORDERS, seed)
        if self._is_done():
            return
        try:
            # Words of bits and a row of pin counts per down-set; a chain alone has a down-set per block.
            width = len(graph.hyperedge_cost) + 4 * (1 + graph.num_blocks // 64)
            most = min(max_ideals, max(1000, _MAX_ENTRIES // width))
            family = enumerate_ideals(graph, limit=most, clock=self._clock)
        except TooManyIdealsError as error:
            self.method = ORDERS_METHOD
            self.price()
            self._sample_on(seed, str(error))
            return
        self.prove(family)

    def _is_done(self) -> bool:
        """Whether the bound is as near as was asked."""
        return self._value < np.inf and self._value * (1 - self._gap) <= self.bound

    def _sample_on(self, seed: int, reason: str) -> None:
        """Cut more orders, drawn around the best chain, until many in a row gain nothing."""
        fruitless = 0
        while fruitless < _PATIENCE and not self._is_done():
            before = self._value
            seed += 1
            if self.graph.num_blocks > LARGE:
                self._sample_large(1, seed, around=True)
            else:
                self.sample(_MANY_ORDERS, seed, around=True)
            fruitless = 0 if self._value < before * (1 - ROUNDING) else fruitless + 1
        if not self._is_done():
            self.gave_up = f"{reason}, too many for a proof; {_PATIENCE} more rounds of orders found nothing better"

    def sample(self, num_orders: int, seed: int, *, around: bool = False) -> None:
        """Look for a chain among the prefixes of some orders; in a large graph greedily, order by order.

        ``around`` draws them near the best chain so far.
        """
        self._clock.report("chains along sampled orders" if around else "first placement", self._value, self.bound)
        if self.graph.num_blocks > LARGE:
            self._sample_large(num_orders, seed)
            return
        count = max(1, min(num_orders, _PREFIXES // self.graph.num_blocks))
        orders = sample_orders(self.graph, count, seed)
        if around and self._best is not None:
            orders = np.concatenate((orders[3:], orders_around(self.graph, self._stage_of_block(), count // 2, seed)))
        for order in orders if self._best is None else orders[:0]:
            self._fill(order)
        self._clock.check()
        family = ideals_from_orders(self.graph, orders)
        for limit in self._limits_from(self.bound):
            found = best_chain(family, self.graph, self._limits, limit=limit, clock=self._clock)
            if found is not None:
                self._take(family, found)
                return

    def _fill(self, order: IntArray) -> None:
        """Cut an order greedily: a first chain takes no time even where tables of down-sets are large."""
        self._clock.check()
        high = min(self._value, largest_load(self.problem))
        found = greedy_stages(self.problem, self.graph, order, low=self.bound, high=high, clock=self._clock)
        if found is not None and found[1] < self._value:
            self._best, self._value = found
            self._clock.report("orders cut greedily", self._value, self.bound)

    def _stage_of_block(self) -> IntArray:
        """Position in the best chain of each block's stage."""
        assert self._best is not None
        device = np.empty(self.graph.num_blocks, dtype=np.int64)
        device[self.graph.block] = self._best.device
        # A chain of down-sets: a device without predecessors on devices that are not placed yet comes next.
        source, target = device[self.graph.edge_source], device[self.graph.edge_target]
        apart = source != target
        pairs = np.unique(np.stack((source[apart], target[apart])), axis=1) if np.any(apart) else np.zeros((2, 0), int)
        first = topological_rank(self.problem.num_devices, pairs[0], pairs[1])
        return np.asarray(first[device])

    def _sample_large(self, num_orders: int, seed: int, *, around: bool = False) -> None:
        try:
            if around:
                self._chains.search_around(seed)
            else:
                self._chains.search(seed, num_orders=num_orders)
        finally:
            if self._chains.value < self._value:
                self._best, self._value = self._chains.placement, self._chains.value

    def price(self) -> None:
        """Raise the bound of a large graph by pricing its blocks."""
        found = priced_bounds(
            self.problem, self.graph, self._chains.order, value=self._value, bound=self.bound, clock=self._clock
        )
        for bound in found:
            if bound > self.bound:
                self.bound, self.proof = min(bound, self._value), PRICED_PROOF
                self._clock.report("priced blocks", self._value, self.bound)

    def prove(self, family: IdealFamily) -> None:
        """Run the exact program with rising limits until it finds a chain or the last limit finds none."""
        several = self._limits.num_cpus >= _SEVERAL_CPUS
        for limit in self._limits_from(self.bound):
            self._clock.report("chains of down-sets", self._value, self.bound)
            run = chain_within if several else best_chain
            found = run(family, self.graph, self._limits, limit=limit, clock=self._clock)
            if found is not None:
                self._take(family, found)
                if several and not self._narrow(family):
                    return
                self.bound, self.proof = min(found.value, self._value), _exhaustive(family)
                return
            # What a run does not find is above its limit.
            self._prove_limit(limit, family)
            if self._is_done():
                return
        self.bound, self.proof = self._value, _exhaustive(family)

    def _prove_limit(self, limit: float, family: IdealFamily) -> None:
        if limit > self.bound:
            self.bound = limit
            self.proof = f"no chain of any of the {len(family):,} down-sets has a smaller largest load"

    def _narrow(self, family: IdealFamily) -> bool:
        """Bisect between bound and value until nothing is found just below the value; False: it stopped at the gap asked for."""
        while not self._is_done():
            close = self._value - self.bound <= _CLOSE * self._value
            limit = self._value * (1 - ROUNDING) if close else (self._value + self.bound) / 2
            self._clock.report("chains of down-sets", self._value, self.bound)
            found = chain_within(family, self.graph, self._limits, limit=limit, clock=self._clock)
            if found is not None:
                self._take(family, found)
            elif close:
                return True
            else:
                self._prove_limit(limit, family)
        return self._gap <= ROUNDING

    def _limits_from(self, bound: float) -> list[float]:
        last = min(self._value, largest_load(self.problem))
        rise = [bound * factor for factor in _RISE if np.isfinite(bound)]
        # Room for rounding: the best chain so far must be found again.
        return [limit for limit in rise if limit < last * 0.98] + [last * (1 + ROUNDING)]

    def _take(self, family: IdealFamily, found: ChainSolution) -> None:
        if found.value < self._value:
            self._best = chain_placement(self.problem, self.graph, family, found)
            self._value = found.value
            self._clock.report("chains of down-sets", self._value, self.bound)

    def result(self, method: str, proof: str, *, stopped: str = "") -> PlacementResult:
        """What was found, for the caller."""
        return PlacementResult(
            placement=self._best,
            objective=self._value,
            bound=min(self.bound, self._value),
            method=method,
            proof=proof,
            wall_s=self._clock.elapsed_s,
            stopped=stopped,
        )


def _exhaustive(family: IdealFamily) -> str:
    return f"exhaustive: dynamic programming over all {len(family):,} down-sets"


def chain_placement(
    problem: PlacementProblem, graph: BlockGraph, family: IdealFamily, chain: ChainSolution
) -> Placement:
    """Number the devices of a chain's stages in the order of the chain."""
    device_of_block = np.zeros(graph.num_blocks, dtype=np.int64)
    next_device = {False: 0, True: problem.num_accelerators}
    for i, on_cpu in enumerate(chain.on_cpu):
        stage = _blocks(family, chain.ideals[i + 1], graph.num_blocks) & ~_blocks(
            family, chain.ideals[i], graph.num_blocks
        )
        device_of_block[stage] = next_device[on_cpu]
        next_device[on_cpu] += 1
    device: IntArray = device_of_block[graph.block]
    return Placement(device=device)


def _blocks(family: IdealFamily, ideal: int, count: int) -> BoolArray:
    block = np.arange(count)
    words = family.bits[ideal, block // 64]
    return np.asarray((words >> (block % 64).astype(np.uint64)) & np.uint64(1) > 0)
