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

Several kinds of accelerators
-----------------------------
The kinds may come in any order along the chain. For a load T let reach(n) be the down-sets that n(t) devices of each kind t can do,
every stage within T:

    reach(n) = union over t of { I : a J in reach(n - e(t)), J within I, I - J within T on kind t }  and  reach(n - e(t))

T is feasible when reach of all devices holds everything. That is exact, and cheap while kinds are few: one bit per down-set and
combination of counts. T is bisected until nothing lies between the best chain and a load that is proven to be too small.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import ROUNDING
from strategies.limits import Clock, why_stopped
from strategies.placement.bounds import Kind, kind_graph, kinds_of, largest_load, mixed_bound, simple_bound
from strategies.placement.chain import (
    ChainLimits,
    ChainSolution,
    IdealFamily,
    StagePairs,
    TooManyIdealsError,
    best_chain,
    chain_within,
    enumerate_ideals,
    ideals_from_orders,
)
from strategies.placement.columns import PRICED_PROOF, priced_bounds
from strategies.placement.contraction import BlockGraph, contract, topological_rank
from strategies.placement.loads import device_loads
from strategies.placement.orders import (
    coarse_graph,
    greedy_stages,
    late_order,
    orders_around,
    sample_orders,
    segments_along,
    topological_order,
)
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = [
    "LARGE",
    "MAX_IDEALS",
    "LargeChains",
    "chain_placement",
    "coarse_along",
    "solve_contiguous",
    "solve_mixed_chain",
    "solve_orders",
]


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
        stage = family.members(chain.ideals[i + 1], graph.num_blocks) & ~family.members(
            chain.ideals[i], graph.num_blocks
        )
        device_of_block[stage] = next_device[on_cpu]
        next_device[on_cpu] += 1
    device: IntArray = device_of_block[graph.block]
    return Placement(device=device)


# Blocks from which on down-sets are not sampled any more but coarse graphs are cut.
LARGE = 2_500

# Segments per accelerator of the coarse graphs: the second time only along the best orders.
_SEGMENTS = (50, 150)
_MOST_SEGMENTS = 6_000
_BEST_ORDERS = 3
# Random orders besides the fixed ones; strengths of their noise, in stages.
_RANDOM_ORDERS = 6
_NOISE = (0.003, 0.3)
# Greedy cuts up to so many times the best value are worth cutting exactly.
_PROMISING = 1.02
# Limits above the bound, as multiples of it, that are tried in turn while they are below the best value.
_LARGE_RISE = (1.003, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.2, 1.35)


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
        limits = [factor * self._bound for factor in _LARGE_RISE if 0 < factor * self._bound < last]
        for limit in [*limits, last]:
            self._clock.check()
            found = best_chain(family, coarse, self._limits, limit=limit, clock=self._clock)
            if found is not None:
                if found.value < self.value:
                    self.placement, self.value = chain_placement(self._problem, coarse, family, found), found.value
                    self.order = order
                    self._clock.report("coarse graph cut exactly", self.value, self._bound)
                return found.value
        return float("inf")


KINDS_METHOD = "reachable down-sets, kinds of accelerators in any order"
_MAX_IDEALS = 50_000
_MAX_PAIRS = 20_000_000
# Down-sets x combinations of counts.
_MAX_CELLS = 400_000_000
_KIND_ORDERS = 12
_KINDS_CLOSE = 2e-7
_KINDS_RISE = (1.0, 1.003, 1.01, 1.03, 1.08, 1.2, 1.5, 2.0, 4.0, 10.0, 100.0)


class _TooManyPairsError(RuntimeError):
    """The stages of one limit do not fit into memory."""


def solve_mixed_chain(
    problem: PlacementProblem, *, seed: int = 0, gap: float = 0.0, clock: Clock | None = None
) -> PlacementResult:
    """Place operators of a problem with `types`, every stage being what one down-set adds to another.

    Parameters
    ----------
    problem : PlacementProblem
    seed : int
        Of the orders that are searched where there are too many down-sets.
    gap : float
        The search may stop at this (value - bound) / value.
    clock : Clock, optional

    Examples
    --------
    >>> from strategies.placement.problem import EdgeSpec, NodeSpec, TypeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=0.0, cpu_time=90.0) for i in range(4)]
    >>> kinds = [TypeSpec("fast", 1, 9.0, [1.0] * 4), TypeSpec("slow", 1, 9.0, [3.0] * 4)]
    >>> edges = [EdgeSpec(i, i + 1, 0.0) for i in range(3)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=0, num_cpus=0, memory_bytes=0.0, types=kinds)
    >>> result = solve_mixed_chain(problem)
    >>> result.objective, result.proven_optimal
    (3.0, True)
    """
    clock = clock or Clock()
    search = _KindSearch(problem, clock, gap)
    stopped = why_stopped(lambda: search.run(seed)) if np.isfinite(search.bound) else ""
    return PlacementResult(
        placement=search.best,
        objective=float(search.value),
        bound=float(min(search.bound, search.value)),
        method=KINDS_METHOD,
        proof=search.proof,
        wall_s=clock.elapsed_s,
        stopped=stopped,
    )


class _KindSearch:
    def __init__(self, problem: PlacementProblem, clock: Clock, gap: float) -> None:
        self.problem, self._clock = problem, clock
        self._close = max(gap, _KINDS_CLOSE)
        self.bound, self.proof = mixed_bound(problem)
        self.best: Placement | None = None
        self.value = np.inf
        self._graph = contract(problem)
        self._kinds = kinds_of(problem, self._graph)

    def run(self, seed: int) -> None:
        """Some orders first, for a value; then all down-sets, if they are few."""
        count = max(1, min(_KIND_ORDERS, 20_000 // self._graph.num_blocks))
        orders = sample_orders(self._graph, count, seed)
        self._bisect(_Families.of(self._graph, self._kinds, orders), None)
        combinations = int(np.prod([kind.count + 1 for kind in self._kinds]))
        try:
            families = _Families.of(self._graph, self._kinds, None, limit=min(_MAX_IDEALS, _MAX_CELLS // combinations))
        except TooManyIdealsError as error:
            self.proof = f"the graph has {error}, too many for a proof: {self.proof}"
            return
        try:
            self._bisect(
                families, f"exhaustive: all {families.size:,} down-sets, for every number of devices of each kind"
            )
        except _TooManyPairsError:
            self.proof = f"too many stages for a proof: {self.proof}"

    def _bisect(self, families: _Families, proof: str | None) -> None:
        """Close in on the least feasible load; ``proof`` is None where failing proves nothing."""
        low = self.bound
        for rise in _KINDS_RISE:
            limit = min(max(low, 1e-300) * rise, self.value)
            if self._decide(families, limit, proof) or limit >= self.value:
                break
            low = max(low, limit)
        else:
            found = self._decide(families, 1e300, proof)
            if not found and proof is not None:
                self.bound, self.proof = np.inf, proof
        close = _KINDS_CLOSE if proof is None else self._close
        while np.isfinite(self.value) and self.value - low > close * self.value:
            middle = (low + self.value) / 2
            if not self._decide(families, middle, proof):
                low = middle
        if proof is not None and np.isfinite(self.value):
            self.proof = proof

    def _decide(self, families: _Families, limit: float, proof: str | None) -> bool:
        self._clock.report("chains of several kinds", self.value, self.bound)
        device = families.decide(self.problem, limit, self._clock)
        if device is None:
            if proof is not None and limit > self.bound:
                self.bound, self.proof = limit, proof
            return False
        value = float(device_loads(self.problem, device).load.max())
        if value < self.value:
            self.best, self.value = Placement(device=device), value
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Families:
    """The same down-sets once per kind, because each sorts them by its own times; ``rank`` gives them common numbers."""

    graph: BlockGraph
    kinds: tuple[Kind, ...]
    graphs: tuple[BlockGraph, ...]
    families: tuple[IdealFamily, ...]
    rank: tuple[IntArray, ...]
    bits: NDArray[np.uint64]  # by common number
    empty: int
    full: int

    @property
    def size(self) -> int:
        """Down-sets."""
        return len(self.bits)

    @classmethod
    def of(cls, graph: BlockGraph, kinds: tuple[Kind, ...], orders: IntArray | None, *, limit: int = 0) -> _Families:
        """All down-sets, or the prefixes of some orders."""
        graphs = tuple(kind_graph(graph, kind) for kind in kinds)
        families = tuple(
            enumerate_ideals(g, limit=limit) if orders is None else ideals_from_orders(g, orders) for g in graphs
        )
        ranks = []
        for family in families:
            rank = np.empty(len(family), dtype=np.int64)
            rank[np.lexsort(family.bits.T)] = np.arange(len(family))
            ranks.append(rank)
        bits = families[0].bits[np.argsort(ranks[0])]
        sizes = families[0].num_blocks[np.argsort(ranks[0])]
        return cls(
            graph=graph,
            kinds=kinds,
            graphs=graphs,
            families=families,
            rank=tuple(ranks),
            bits=bits,
            empty=int(np.argmin(sizes)),
            full=int(np.argmax(sizes)),
        )

    def decide(self, problem: PlacementProblem, limit: float, clock: Clock) -> IntArray | None:
        """Device of every operator with all loads within a limit; None where no chain of these down-sets has it."""
        stages = [self._stages(t, limit, clock) for t in range(len(self.kinds))]
        reached: dict[tuple[int, ...], BoolArray] = {}
        parent: dict[tuple[int, ...], tuple[NDArray[np.int32], NDArray[np.int8]]] = {}
        for counts in itertools.product(*(range(min(k.count, self.graph.num_blocks) + 1) for k in self.kinds)):
            clock.check()
            here = np.zeros(self.size, dtype=np.bool_)
            here[self.empty] = True
            start = np.full(self.size, -1, dtype=np.int32)
            by = np.full(self.size, -1, dtype=np.int8)
            for t, used in enumerate(counts):
                if not used:
                    continue
                before = reached[_less(counts, t)]
                inner, outer = stages[t]
                good = before[inner] & ~here[outer]
                start[outer[good]] = inner[good]
                by[outer[good]] = t
                here[outer[good]] = True
                idle = before & ~here  # the device stays empty
                start[idle] = np.flatnonzero(idle)
                by[idle] = t
                here |= before
            reached[counts], parent[counts] = here, (start, by)
            if here[self.full]:
                return self._devices(problem, parent, counts)
        return None

    def _stages(self, t: int, limit: float, clock: Clock) -> tuple[IntArray, IntArray]:
        kind = self.kinds[t]
        limits = ChainLimits(
            num_accelerators=0 if kind.is_cpu else kind.count,
            num_cpus=kind.count if kind.is_cpu else 0,
            capacity_bytes=kind.capacity_bytes,
        )
        pairs = StagePairs(self.families[t], self.graphs[t], limits, limit)
        inner, outer, total = [], [], 0
        for first, second in pairs.within_limit(np.arange(self.size), on_cpu=kind.is_cpu, check=clock.check):
            inner.append(self.rank[t][first])
            outer.append(self.rank[t][second])
            total += len(first)
            if total > _MAX_PAIRS:
                raise _TooManyPairsError
        none = np.zeros(0, dtype=np.int64)
        return (np.concatenate(inner), np.concatenate(outer)) if inner else (none, none)

    def _devices(
        self,
        problem: PlacementProblem,
        parent: dict[tuple[int, ...], tuple[NDArray[np.int32], NDArray[np.int8]]],
        counts: tuple[int, ...],
    ) -> IntArray:
        block = np.arange(self.graph.num_blocks)
        device = np.zeros(self.graph.num_blocks, dtype=np.int64)
        ideal = self.full
        while ideal != self.empty:
            start, by = parent[counts]
            t, before = int(by[ideal]), int(start[ideal])
            words = (self.bits[ideal] & ~self.bits[before])[block // 64]
            stage = (words >> (block % 64).astype(np.uint64)) & np.uint64(1) > 0
            device[stage] = self.kinds[t].first + counts[t] - 1
            ideal, counts = before, _less(counts, t)
        assert problem.num_nodes == len(self.graph.block)
        return np.asarray(device[self.graph.block], dtype=np.int64)


def _less(counts: tuple[int, ...], t: int) -> tuple[int, ...]:
    return (*counts[:t], counts[t] - 1, *counts[t + 1 :])
