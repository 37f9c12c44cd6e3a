"""The best chain of down-sets for accelerators of several kinds, in any order of the kinds along the chain.

Notes
-----
For a load T let reach(n) be the down-sets that n(t) devices of each kind t can do, every stage within T:

    reach(n) = union over t of { I : a J in reach(n - e(t)), J within I, I - J within T on kind t }  and  reach(n - e(t))

T is feasible when reach of all devices holds everything. That is exact, and cheap while kinds are few: one bit per down-set and
combination of counts. T is bisected until nothing lies between the best chain and a load that is proven to be too small.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, IntArray
from strategies.placement.chain import ChainLimits, StagePairs
from strategies.placement.clock import Clock, why_stopped
from strategies.placement.contraction import BlockGraph, contract
from strategies.placement.ideals import (
    IdealFamily,
    TooManyIdealsError,
    enumerate_ideals,
    ideals_from_orders,
    sample_orders,
)
from strategies.placement.loads import device_loads
from strategies.placement.mixed.bounds import Kind, kind_graph, kinds_of, mixed_bound
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = ["solve_mixed_chain"]

METHOD = "reachable down-sets, kinds of accelerators in any order"
_MAX_IDEALS = 50_000
_MAX_PAIRS = 20_000_000
# Down-sets x combinations of counts.
_MAX_CELLS = 400_000_000
_ORDERS = 12
_CLOSE = 2e-7
_RISE = (1.0, 1.003, 1.01, 1.03, 1.08, 1.2, 1.5, 2.0, 4.0, 10.0, 100.0)


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
    search = _Search(problem, clock, gap)
    stopped = why_stopped(lambda: search.run(seed)) if np.isfinite(search.bound) else ""
    return PlacementResult(
        placement=search.best,
        objective=float(search.value),
        bound=float(min(search.bound, search.value)),
        method=METHOD,
        proof=search.proof,
        wall_s=clock.elapsed_s,
        stopped=stopped,
    )


class _Search:
    def __init__(self, problem: PlacementProblem, clock: Clock, gap: float) -> None:
        self.problem, self._clock = problem, clock
        self._close = max(gap, _CLOSE)
        self.bound, self.proof = mixed_bound(problem)
        self.best: Placement | None = None
        self.value = np.inf
        self._graph = contract(problem)
        self._kinds = kinds_of(problem, self._graph)

    def run(self, seed: int) -> None:
        """Some orders first, for a value; then all down-sets, if they are few."""
        count = max(1, min(_ORDERS, 20_000 // self._graph.num_blocks))
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
        for rise in _RISE:
            limit = min(max(low, 1e-300) * rise, self.value)
            if self._decide(families, limit, proof) or limit >= self.value:
                break
            low = max(low, limit)
        else:
            found = self._decide(families, 1e300, proof)
            if not found and proof is not None:
                self.bound, self.proof = np.inf, proof
        close = _CLOSE if proof is None else self._close
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
