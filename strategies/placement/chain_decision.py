"""Whether a chain of down-sets stays within a limit, for placements with several CPUs.

Notes
-----
The program of `strategies.placement.chain` has a table for every pair of counts (accelerators, CPUs). For a fixed limit T one table per
count of accelerators is enough:

    f[a, I] = least number of CPUs that, with a accelerators, reach the down-set I with every load at most T

f[a, I] is the least f[a - 1, J] over stages I - J that an accelerator does within T, or f[a, J] + 1 over those that a CPU does. A down-set
that is reached with fewer accelerators and as few CPUs need not be extended, and neither must one whose rest is too much for the
devices that are left, by accelerator time, by size, or by a sum of both in their own units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import EQUAL
from strategies.placement.chain import ChainLimits, ChainSolution, StagePairs
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph
from strategies.placement.ideals import IdealFamily

__all__ = ["chain_within"]

_UNREACHED = 1 << 30
# Weights of size against time in the mixed measure of what is left to do, where a capacity counts as much as a limit.
_MIXTURES = (0.0, 0.3, 1.0, 3.0, np.inf)


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one count of accelerators reaches."""

    cpus: IntArray  # (ideals,)
    parent: NDArray[np.int32]
    by_cpu: BoolArray


def chain_within(
    family: IdealFamily, graph: BlockGraph, limits: ChainLimits, *, limit: float, clock: Clock | None = None
) -> ChainSolution | None:
    """Find a chain whose loads are all at most ``limit``; None when the family has none.

    Parameters
    ----------
    family : IdealFamily
    graph : BlockGraph
    limits : ChainLimits
    limit : float
    clock : Clock, optional

    Returns
    -------
    ChainSolution or None
        Its value is its largest load, which may be below the limit, not the least possible one.
    """
    return _Decision(family, graph, limits, limit, clock or Clock()).solve()


class _Decision:
    def __init__(self, family: IdealFamily, graph: BlockGraph, limits: ChainLimits, limit: float, clock: Clock) -> None:
        self._family, self._clock = family, clock
        self._pairs = StagePairs(family, graph, limits, limit)
        self._accelerators = min(limits.num_accelerators, graph.num_blocks)
        self._cpus = min(limits.num_cpus, graph.num_blocks)
        self._needs = [_need(family, graph, limits, limit, mixture) for mixture in _MIXTURES]
        self._layers: list[_Layer] = []

    def solve(self) -> ChainSolution | None:
        """Add accelerators one by one until everything is reached."""
        count = len(self._family)
        fewest = np.full(count, _UNREACHED)  # CPUs needed with any smaller number of accelerators
        for a in range(self._accelerators + 1):
            layer = _Layer(
                np.full(count, _UNREACHED), np.full(count, -1, dtype=np.int32), np.zeros(count, dtype=np.bool_)
            )
            if a == 0:
                layer.cpus[0] = 0
            else:
                before = self._layers[-1].cpus
                for cpus in range(self._cpus + 1):
                    self._extend(np.flatnonzero(before == cpus), layer, cpus, on_cpu=False)
            self._layers.append(layer)
            for cpus in range(self._cpus + 1):
                starts = self._worth(np.flatnonzero(layer.cpus == cpus), fewest, a, cpus)
                layer.cpus[(layer.cpus == cpus) & ~starts] = _UNREACHED
                if cpus < self._cpus:
                    self._extend(np.flatnonzero(starts), layer, cpus + 1, on_cpu=True)
            if layer.cpus[-1] <= self._cpus:
                return self._trace()
            np.minimum(fewest, layer.cpus, out=fewest)
        return None

    def _worth(self, reached: IntArray, fewest: IntArray, a: int, cpus: int) -> BoolArray:
        """Of some down-sets, those that must be extended."""
        keep = fewest[reached] > cpus
        for rest, most in self._needs:
            keep &= rest[reached] <= most(self._accelerators - a, self._cpus - cpus)
        worth = np.zeros(len(fewest), dtype=np.bool_)
        worth[reached[keep]] = True
        return worth

    def _extend(self, starts: IntArray, layer: _Layer, cpus: int, *, on_cpu: bool) -> None:
        """Reach the ends of all stages that begin at ``starts`` with this many CPUs."""
        for inner, outer in self._pairs.within_limit(starts, on_cpu=on_cpu, check=self._clock.check):
            better = layer.cpus[outer] > cpus
            ends, first = np.unique(outer[better], return_index=True)
            layer.cpus[ends] = cpus
            layer.parent[ends] = inner[better][first]
            layer.by_cpu[ends] = on_cpu

    def _trace(self) -> ChainSolution:
        ideal, a = len(self._family) - 1, len(self._layers) - 1
        chain, on_cpu = [ideal], []
        while ideal or a:
            layer = self._layers[a]
            on_cpu.append(bool(layer.by_cpu[ideal]))
            a -= not layer.by_cpu[ideal]
            ideal = int(layer.parent[ideal])
            chain.append(ideal)
        chain, on_cpu = chain[::-1], on_cpu[::-1]
        inner, outer = np.array(chain[:-1]), np.array(chain[1:])
        loads = np.where(on_cpu, self._pairs.cpu_loads(inner, outer), self._pairs.accelerator_loads(inner, outer))
        return ChainSolution(value=float(loads.max()), ideals=tuple(chain), on_cpu=tuple(on_cpu))


def _need(
    family: IdealFamily, graph: BlockGraph, limits: ChainLimits, limit: float, mixture: float
) -> tuple[FloatArray, Callable[[int, int], float]]:
    """What is left to do after each down-set, and what some accelerators and CPUs can do of it, in one measure.

    A block weighs ``time / limit + mixture * size / capacity``; an accelerator does at most ``1 + mixture`` of that.
    """
    with_time = 0.0 if mixture == np.inf else 1.0
    with_size = 1.0 if mixture == np.inf else mixture
    scale_time = with_time / max(limit, 1e-300)
    scale_size = with_size / max(limits.capacity_bytes, 1e-300)
    time = np.where(graph.supported, graph.accelerator_time, 0.0)
    size = np.where(graph.supported, graph.size_bytes, 0.0)
    weight = time * scale_time + size * scale_size
    useful = np.flatnonzero(weight > 0)
    order = useful[np.argsort(graph.cpu_time[useful] / weight[useful], kind="stable")]
    spent = np.concatenate(([0.0], np.cumsum(graph.cpu_time[order])))
    gained = np.concatenate(([0.0], np.cumsum(weight[order])))
    inside = np.zeros(len(family))
    for b in useful.tolist():
        inside += weight[b] * ((family.bits[:, b // 64] >> np.uint64(b % 64)) & np.uint64(1) > 0)
    rest = gained[-1] - inside
    slack = EQUAL * (gained[-1] + 1.0)
    per_accelerator = with_time + with_size

    def most(accelerators: int, cpus: int) -> float:
        return float(accelerators * per_accelerator + np.interp(cpus * limit, spent, gained) + slack)

    return rest, most
