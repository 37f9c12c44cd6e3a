"""Placement without contiguity for graphs of ten thousand blocks and more: the best chain, exchanged on coarse graphs."""

from __future__ import annotations

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import PROOF_SLACK
from strategies.placement.bounds import simple_bound
from strategies.placement.clock import Clock, OutOfTimeError, why_stopped
from strategies.placement.contraction import BlockGraph, contract, contract_classes
from strategies.placement.free.assignment import Devices
from strategies.placement.free.exchange import Exchange
from strategies.placement.large.chains import LargeChains
from strategies.placement.large.coarsening import coarse_graph, segments_along
from strategies.placement.large.priced import PRICED_PROOF, priced_bounds
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = ["solve_large"]

METHOD = "coarse graphs, cut and exchanged"
# Segments per device of the coarse graphs that are exchanged, one after the other.
_SEGMENTS = (20, 60)
# The exchange may take this share of the time that is left, the bound the rest.
_EXCHANGE_SHARE = 0.4


def solve_large(problem: PlacementProblem, *, seed: int = 0, gap: float = 0.0, clock: Clock) -> PlacementResult:
    """Place operators on any devices; the bound is that of the exact graph.

    Parameters
    ----------
    problem : PlacementProblem
    seed : int
    gap : float
        The search may stop at this (value - bound) / value.
    clock : Clock
    """
    search = _LargeSearch(problem, gap=gap, clock=clock)
    stopped = why_stopped(lambda: search.run(seed)) if np.isfinite(search.bound) else ""
    return PlacementResult(
        placement=search.placement,
        objective=float(search.value),
        bound=float(min(search.bound, search.value)),
        method=METHOD,
        proof=search.proof,
        wall_s=clock.elapsed_s,
        stopped=stopped,
        chain=search.chain,
    )


class _LargeSearch:
    def __init__(self, problem: PlacementProblem, *, gap: float, clock: Clock) -> None:
        self.problem, self._gap, self._clock = problem, gap, clock
        self.bound, self.proof = simple_bound(problem)
        self.placement: Placement | None = None
        self.chain: PlacementResult | None = None
        self.value = np.inf

    def run(self, seed: int) -> None:
        """Chain, exchange, bound."""
        graph = contract(self.problem)
        chains = LargeChains(self.problem, graph, bound=self.bound, clock=self._clock)
        try:
            chains.search(seed)
        finally:
            if chains.value < self.value:
                self.placement, self.value = chains.placement, chains.value
                self.chain = PlacementResult(
                    placement=self.placement,
                    objective=self.value,
                    bound=min(self.bound, self.value),
                    method=METHOD,
                    proof=self.proof,
                )
        if self.placement is None:
            self._fill()
        for per_device in _SEGMENTS:
            if self.placement is not None and not self._is_done():
                self._exchange(graph, chains.order, per_device * self.problem.num_devices)
        if not self._is_done():
            self._raise_bound(graph, chains.order)

    def _is_done(self) -> bool:
        return self.bound >= self.value * (1 - max(self._gap, PROOF_SLACK))

    def _fill(self) -> None:
        """Without a chain within the memory: largest blocks first, each where it makes the least load."""
        problem = self.problem
        classes = contract_classes(problem)
        devices = _devices(problem, classes)
        limit = np.where(np.arange(devices.count) < devices.num_accelerators, devices.memory_bytes, np.inf)
        times = np.stack([devices.time(d) for d in (0, devices.count - 1)])
        load, used = np.zeros(devices.count), np.zeros(devices.count)
        place = np.zeros(classes.num_blocks, dtype=np.int64)
        kind = (np.arange(devices.count) >= devices.num_accelerators).astype(np.int64)
        for b in np.argsort(-classes.size_bytes, kind="stable").tolist():
            size = float(classes.size_bytes[b])
            after = np.where(used + size > limit, np.inf, load + times[kind, b])
            d = int(np.argmin(after))
            place[b], load[d], used[d] = d, after[d], used[d] + size
        worst = float(devices.loads(place).max())
        if worst < self.value:
            self.placement, self.value = Placement(device=place[classes.block]), worst

    def _exchange(self, graph: BlockGraph, order: IntArray, segments: int) -> None:
        """Divide segments of the order, none of them on two devices, between pairs of devices again."""
        assert self.placement is not None
        device = np.empty(graph.num_blocks, dtype=np.int64)
        device[graph.block] = self.placement.device
        if np.any(device[graph.block] != self.placement.device):
            return  # the first placement does not keep the blocks whole
        segment = segments_along(graph, order, segments)
        pairs, whole = np.unique(segment * self.problem.num_devices + device, return_inverse=True)
        coarse = coarse_graph(graph, whole.astype(np.int64))
        start = pairs % self.problem.num_devices
        share = self._clock.within(_EXCHANGE_SHARE)

        def found(place: IntArray, loads: FloatArray) -> None:
            if float(loads.max()) < self.value:
                self.placement, self.value = Placement(device=place[coarse.block]), float(loads.max())
                self._clock.report("exchange of segments", self.value, self.bound)

        try:
            Exchange(_devices(self.problem, coarse)).improve(start, share, found)
        except OutOfTimeError:
            self._clock.check()

    def _raise_bound(self, graph: BlockGraph, order: IntArray) -> None:
        """Price the classes, in the order of the blocks that they are in."""
        classes = contract_classes(self.problem)
        rank = np.empty(graph.num_blocks, dtype=np.int64)
        rank[order] = np.arange(graph.num_blocks)
        of_class = np.empty(classes.num_blocks, dtype=np.int64)
        of_class[classes.block] = rank[graph.block]
        ordered = np.argsort(of_class, kind="stable").astype(np.int64)
        found = priced_bounds(self.problem, classes, ordered, value=self.value, bound=self.bound, clock=self._clock)
        for bound in found:
            if bound > self.bound:
                self.bound, self.proof = min(bound, self.value), PRICED_PROOF
                self._clock.report("priced blocks", self.value, self.bound)


def _devices(problem: PlacementProblem, graph: BlockGraph) -> Devices:
    return Devices(
        graph=graph,
        num_accelerators=problem.num_accelerators,
        num_cpus=problem.num_cpus,
        memory_bytes=problem.capacity_bytes,
    )
