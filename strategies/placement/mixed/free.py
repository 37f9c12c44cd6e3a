"""Placement without contiguity on accelerators of several kinds: exchange from above, evenly divided and priced work from below."""

from __future__ import annotations

import numpy as np

from strategies.placement.clock import Clock, why_stopped
from strategies.placement.contraction import contract_classes
from strategies.placement.device_program import improved_by_program
from strategies.placement.free.assignment import Devices
from strategies.placement.free.exchange import Exchange
from strategies.placement.free.pricing import whole_frontier
from strategies.placement.mixed.bounds import kinds_of, mixed_bound, priced_bound, spread_bound
from strategies.placement.mixed.chain import solve_mixed_chain
from strategies.placement.problem import IntArray, Placement, PlacementProblem, PlacementResult

__all__ = ["solve_mixed_free"]

METHOD = "exchange between devices of several kinds"
_CHAIN_SHARE = 0.2
_SHAKES = 60
_STATES = (4, 1024)
_MOST_STATES = 400_000
_MOST_CELLS = 1_000_000_000
_BINS = (500, 32_000)
# With so many pairs of block and device the integer program closes what is left in seconds, mostly.
_MOST_ASSIGNMENTS = 250


def solve_mixed_free(
    problem: PlacementProblem, *, seed: int = 0, gap: float = 0.0, clock: Clock | None = None
) -> PlacementResult:
    """Place operators of a problem with `types` on any devices so that the largest load is least."""
    clock = clock or Clock()
    search = _Search(problem, seed=seed, gap=gap, clock=clock)
    stopped = why_stopped(lambda: search.run(seed)) if np.isfinite(search.bound) else ""
    result = PlacementResult(
        placement=None if search.place is None else Placement(device=search.place[search.graph.block]),
        objective=float(search.value),
        bound=float(min(search.bound, search.value)),
        method=METHOD,
        proof=search.proof,
        wall_s=clock.elapsed_s,
        stopped=stopped,
    )
    cells = search.graph.num_blocks * problem.num_devices
    if stopped or search.is_done() or not np.isfinite(search.bound) or cells > _MOST_ASSIGNMENTS:
        return result
    return improved_by_program(problem, result, is_legal=None, relative_gap=gap, clock=clock)


class _Search:
    def __init__(self, problem: PlacementProblem, *, seed: int, gap: float, clock: Clock) -> None:
        self.problem, self._gap, self.clock = problem, gap, clock
        self.graph = contract_classes(problem)
        self.devices = Devices.of(problem, self.graph)
        self._exchange = Exchange(self.devices)
        self._random = np.random.default_rng(seed)
        self.bound, self.proof = mixed_bound(problem)
        self.place: IntArray | None = None
        self.value = np.inf

    def is_done(self) -> bool:
        """Whether bound and value are close enough."""
        return self.bound >= self.value * (1 - max(self._gap, 1e-9))

    def run(self, seed: int) -> None:
        """Starts, bound, then shaken starts."""
        # As it is, so that there is something however short the time.
        filled = self._filled(np.argsort(-self.graph.size_bytes, kind="stable"))
        if float(self.devices.loads(filled).max()) < self.value:
            self.place, self.value = filled, float(self.devices.loads(filled).max())
        share = Clock(limit_s=self.clock.left_s * _CHAIN_SHARE)
        chain = solve_mixed_chain(self.problem, seed=seed, clock=share)
        if chain.placement is not None:
            place = np.zeros(self.graph.num_blocks, dtype=np.int64)
            place[self.graph.block] = chain.placement.device
            self._offer(place)
        for weight in (self.graph.size_bytes, self.graph.accelerator_time):
            self._offer(self._filled(np.argsort(-weight, kind="stable")))
        if np.isfinite(self.value) and not self.is_done():
            self._price()
        for _ in range(_SHAKES):
            if self.place is None or self.is_done():
                return
            self._offer(self._shaken(self.place))

    def _offer(self, place: IntArray) -> None:
        place, loads = self._exchange.improve(place, self.clock)
        if float(loads.max()) < self.value * (1 - 1e-12):
            self.place, self.value = place, float(loads.max())
            self.clock.report("exchange", self.value, self.bound)

    def _price(self) -> None:
        kinds = kinds_of(self.problem, self.graph)
        prices = spread_bound(kinds, self.graph)[1]
        states = int(np.clip(_MOST_STATES // self.graph.num_blocks, *_STATES))
        frontier = whole_frontier(self.graph, max_states=states)
        bins = int(np.clip(_MOST_CELLS // int(frontier.num_states.sum()), *_BINS))
        self.clock.check()
        bound = priced_bound(kinds, self.graph, frontier, prices, largest=self.value, bins=bins)
        if bound > self.bound:
            self.bound, self.proof = (
                min(bound, self.value),
                "what each kind can take at the prices of evenly divided work",
            )
            self.clock.report("prices", self.value, self.bound)

    def _filled(self, order: IntArray) -> IntArray:
        """Give blocks, one by one, to the device that is loaded least afterwards, communication aside."""
        times = np.stack([self.devices.time(d) for d in range(self.devices.count)])
        room = np.array([self.devices.capacity(d) for d in range(self.devices.count)])
        load, used = np.zeros(len(room)), np.zeros(len(room))
        place = np.zeros(self.graph.num_blocks, dtype=np.int64)
        for b in order.tolist():
            size = float(self.graph.size_bytes[b])
            after = load + times[:, b]
            full = used + size > room
            d = int(np.argmin(np.where(full, np.inf, after))) if not np.all(full) else int(np.argmin(after))
            place[b], load[d], used[d] = d, after[d], used[d] + size
        return place

    def _shaken(self, place: IntArray) -> IntArray:
        """Move a random neighbourhood of blocks to two random devices."""
        blocks = self.graph.num_blocks
        count = int(self._random.integers(2, max(3, blocks // 10)))
        first = int(self._random.integers(blocks))
        two = self._random.permutation(self.devices.count)[:2]
        result = place.copy()
        end = min(first + count, blocks)
        result[first:end] = two[self._random.integers(0, len(two), end - first)]
        return result
