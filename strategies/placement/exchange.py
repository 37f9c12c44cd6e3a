"""A placement of blocks on devices that need not be contiguous, and its improvement by dividing the blocks of two devices again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import EQUAL
from strategies.limits import UNLIMITED, Clock
from strategies.placement.columns import pin_lists
from strategies.placement.frontier import Frontier, build_frontier, frontier_order, sweep
from strategies.placement.loads import Devices

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
        self._pins = pin_lists(devices.graph)
        self._of_block: list[list[int]] = [[] for _ in range(devices.graph.num_blocks)]
        for i, edge in enumerate(self._pins):
            for b in edge:
                self._of_block[b].append(i)

    def improve(
        self, place: IntArray, clock: Clock, found: Callable[[IntArray, FloatArray], object] | None = None
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
        devices = self._devices
        loads = devices.loads(place)
        while True:
            worst = int(np.argmax(loads))
            if found is not None:
                found(place, loads)
            better = None
            is_used = np.bincount(place, minlength=len(loads)) > 0
            empty: set[int] = set()
            for other in np.argsort(loads, kind="stable").tolist():
                # One empty device is as good as another of its kind.
                if other != worst and (is_used[other] or devices.kind_of[other] not in empty):
                    empty.update(() if is_used[other] else (devices.kind_of[other],))
                    better = self.pair(place, loads, worst, other, clock)
                if better is not None:
                    break
            if better is None:
                return place, loads
            place, loads = better

    def pair(
        self, place: IntArray, loads: FloatArray, a: int, b: int, clock: Clock = UNLIMITED
    ) -> tuple[IntArray, FloatArray] | None:
        """Best division of the blocks of ``a`` and ``b``; None where it does not lower the larger of their loads."""
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
        transfer = devices.graph.hyperedge_cost[ids]
        weight = frontier.charge(
            1, _rounded(devices.time[b], unit, bins), _rounded(transfer * devices.link_factor[b], unit, bins)
        )
        gain = -frontier.charge(0, devices.time[a], transfer * devices.link_factor[a]).astype(np.float64)
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


def _rounded(time: FloatArray, unit: float, most: int) -> IntArray:
    """Times in bins, to the nearest; above the most where there is no such time."""
    return np.minimum(np.rint(time / unit), most + 1).astype(np.int64)
