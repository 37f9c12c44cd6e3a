"""A placement of blocks on devices that need not be contiguous, and its improvement by dividing the blocks of two devices again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import EQUAL, ROUNDING
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph
from strategies.placement.free.columns import pin_lists
from strategies.placement.free.frontier import Frontier, build_frontier, frontier_order, sweep
from strategies.placement.problem import PlacementProblem, sums_by

__all__ = ["Devices", "Exchange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Accelerators, then CPUs, and what blocks cost them."""

    graph: BlockGraph
    num_accelerators: int
    num_cpus: int
    memory_bytes: float
    # Where accelerators differ: time of every block, capacity, and how many times as long transfers take, per accelerator.
    times: FloatArray | None = None
    capacities: FloatArray | None = None
    link_factors: FloatArray | None = None

    @classmethod
    def of(cls, problem: PlacementProblem, graph: BlockGraph) -> Devices:
        """Devices of a problem for its blocks."""
        kinds = [kind for kind in problem.types for _ in range(kind.count)]
        own = {kind.name: sums_by(graph.block, kind.time, graph.num_blocks) for kind in problem.types}
        return cls(
            graph=graph,
            num_accelerators=problem.num_accelerators,
            num_cpus=problem.num_cpus,
            memory_bytes=problem.capacity_bytes,
            times=np.stack([own[kind.name] for kind in kinds]) if kinds else None,
            capacities=np.array([kind.memory_bytes for kind in kinds]) * (1.0 + ROUNDING) if kinds else None,
            link_factors=np.array([kind.link_factor for kind in kinds]) if kinds else None,
        )

    @property
    def count(self) -> int:
        """All devices."""
        return self.num_accelerators + self.num_cpus

    def is_cpu(self, device: int) -> bool:
        """Whether a device pays no communication and has its own times."""
        return device >= self.num_accelerators

    def capacity(self, device: int) -> float:
        """Memory of a device; CPUs have no limit."""
        if self.is_cpu(device):
            return np.inf
        return self.memory_bytes if self.capacities is None else float(self.capacities[device])

    def transfer(self, device: int) -> FloatArray:
        """What cut hyperedges cost a device."""
        cost = self.graph.hyperedge_cost
        if self.is_cpu(device):
            return np.zeros_like(cost)
        return cost if self.link_factors is None else cost * self.link_factors[device]

    def time(self, device: int) -> FloatArray:
        """Time of every block; infinite where it is not supported."""
        if self.is_cpu(device):
            return self.graph.cpu_time
        own = self.graph.accelerator_time if self.times is None else self.times[device]
        allowed = self.graph.supported & (self.graph.size_bytes <= self.capacity(device))
        return np.where(allowed, own, np.inf)

    def loads(self, place: IntArray) -> FloatArray:
        """Load of every device; infinite where the placement is not legal there."""
        graph = self.graph
        blocks = np.arange(graph.num_blocks)
        table = np.stack([self.time(d) for d in range(self.count)])
        load = sums_by(place, table[place, blocks], self.count)
        edge = np.repeat(np.arange(len(graph.hyperedge_cost)), np.diff(graph.pin_start))
        touched = np.unique(edge * self.count + place[graph.pin])
        owner, where = touched // self.count, touched % self.count
        pays = (np.bincount(owner, minlength=len(graph.hyperedge_cost))[owner] > 1) & (where < self.num_accelerators)
        paid = sums_by(where[pays], graph.hyperedge_cost[owner[pays]], self.count)
        if self.link_factors is not None:
            paid[: self.num_accelerators] *= self.link_factors
        used = sums_by(place, graph.size_bytes, self.count)
        room = np.array([self.capacity(d) for d in range(self.count)])
        return np.where(used > room, np.inf, load + paid)


# Most divisions whose true loads are looked at, best first by rounded load: memory may rule out the first ones.
_TRIED = 40
# Loads are distinguished to the larger of the two over so many bins; fewer where the table would be large. True loads decide.
_BINS = (100, 1000)
_MOST_CELLS = 40_000_000
# States at a time, and in all steps together. Where more would be needed, some communication is overlooked until the true loads are
# computed.
_STATES = (4, 512)
_MOST_STATES = 200_000


class Exchange:
    """Pairs of devices, optimised one after the other.

    Parameters
    ----------
    devices : Devices
    """

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._alike = _alike(devices)
        self._pins = pin_lists(devices.graph)
        self._of_block: list[list[int]] = [[] for _ in range(devices.graph.num_blocks)]
        for i, edge in enumerate(self._pins):
            for b in edge:
                self._of_block[b].append(i)

    def improve(
        self, place: IntArray, clock: Clock, found: Callable[[IntArray, FloatArray], None] | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Exchange until no pair with the largest load gains.

        Parameters
        ----------
        place : int array (blocks,)
        clock : Clock
        found : callable, optional
            Takes every placement on the way, with its loads: what is reached holds whenever the time is up.

        Returns
        -------
        place, loads : int array (blocks,), float array (devices,)
        """
        loads = self._devices.loads(place)
        while True:
            worst = int(np.argmax(loads))
            if found is not None:
                found(place, loads)
            better = None
            is_used = np.bincount(place, minlength=len(loads)) > 0
            empty: set[int] = set()
            for other in np.argsort(loads, kind="stable").tolist():
                # One empty device is as good as another of its kind.
                if other != worst and (is_used[other] or self._alike[other] not in empty):
                    empty.update(() if is_used[other] else (self._alike[other],))
                    better = self.pair(place, loads, worst, other, clock)
                if better is not None:
                    break
            if better is None:
                return place, loads
            place, loads = better

    def pair(
        self, place: IntArray, loads: FloatArray, a: int, b: int, clock: Clock | None = None
    ) -> tuple[IntArray, FloatArray] | None:
        """Best division of the blocks of ``a`` and ``b``; None where it does not lower the larger of their loads."""
        clock = clock or Clock()
        clock.check()
        devices = self._devices
        blocks = np.flatnonzero((place == a) | (place == b))
        if not len(blocks):
            return None
        now = float(max(loads[a], loads[b]))
        scale = (
            now
            if np.isfinite(now)
            else float(np.sum(devices.graph.accelerator_time) + np.sum(devices.graph.hyperedge_cost))
        )
        frontier, ids = self._frontier(place, blocks, clock)
        bins = int(np.clip(_MOST_CELLS // max(1, int(frontier.num_states.sum())), *_BINS))
        unit = max(scale, 1e-300) / bins
        time_b, time_a = devices.time(b), devices.time(a)
        weight = frontier.charge(1, _rounded(time_b, unit, bins), _rounded(devices.transfer(b)[ids], unit, bins))
        gain = -frontier.charge(0, time_a, devices.transfer(a)[ids]).astype(np.float64)
        result = sweep(frontier, weight.astype(np.int64), gain, bins, clock=clock)
        reached = np.maximum(-result.value, np.arange(bins + 1) * unit)
        for load in np.argsort(reached, kind="stable")[:_TRIED].tolist():
            if reached[load] >= now * (1 - EQUAL):
                return None
            trial = place.copy()
            trial[blocks] = a
            trial[result.side_one(load)] = b
            after = devices.loads(trial)
            if max(after[a], after[b]) < now * (1 - EQUAL):
                return trial, after
        return None

    def _frontier(self, place: IntArray, blocks: IntArray, clock: Clock) -> tuple[Frontier, IntArray]:
        """Divisions of some blocks, and the hyperedges that matter to them."""
        inside = np.zeros(len(place), dtype=np.bool_)
        inside[blocks] = True
        ids = np.array(sorted({i for b in blocks.tolist() for i in self._of_block[b]}), dtype=np.int64)
        pins = [[b for b in self._pins[i] if inside[b]] for i in ids.tolist()]
        outer = np.array(
            [len(kept) < len(self._pins[i]) for kept, i in zip(pins, ids.tolist(), strict=True)], dtype=np.bool_
        )
        order = frontier_order(len(place), pins, blocks.tolist(), clock=clock)
        cost = self._devices.graph.hyperedge_cost[ids]
        states = int(np.clip(_MOST_STATES // len(blocks), *_STATES))
        return build_frontier(pins, cost, outer, order=order, max_states=states, clock=clock), ids


def _alike(devices: Devices) -> list[int]:
    """Number of each device's kind: what it costs to run and to move anything, and its memory."""
    kinds: dict[tuple[object, ...], int] = {}
    return [
        kinds.setdefault(
            (devices.is_cpu(d), devices.capacity(d), devices.time(d).tobytes(), devices.transfer(d).tobytes()),
            len(kinds),
        )
        for d in range(devices.count)
    ]


def _rounded(time: FloatArray, unit: float, most: int) -> IntArray:
    """Times in bins, to the nearest; above the most where there is no such time."""
    return np.where(
        np.isfinite(time), np.minimum(np.rint(np.where(np.isfinite(time), time, 0.0) / unit), most + 1), most + 1
    ).astype(np.int64)
