"""The best chain of down-sets, for stages on accelerators and CPUs.

Exact dynamic programming over a family of down-sets
----------------------------------------------------
best[a, c, I] = min over J within I of max(best[a - 1, c, J], load(I - J)) or max(best[a, c - 1, J], q(I - J)).

Only values of at most a given limit T matter, which gives windows: a accelerators and c CPUs together reach I within T only if
P(I) <= a T + W(c T), and the devices that are left finish only if P(all) - P(I) is within theirs. P is accelerator time and W(x)
the most of it that CPUs can take over in x of their time (fractional knapsack). Down-sets are ordered by P, so windows are slices.

Whether a chain stays within a limit
------------------------------------
The program of `strategies.placement.chain` has a table for every pair of counts (accelerators, CPUs). For a fixed limit T one table per
count of accelerators is enough:

    f[a, I] = least number of CPUs that, with a accelerators, reach the down-set I with every load at most T

f[a, I] is the least f[a - 1, J] over stages I - J that an accelerator does within T, or f[a, J] + 1 over those that a CPU does. A down-set
that is reached with fewer accelerators and as few CPUs need not be extended, and neither must one whose rest is too much for the
devices that are left, by accelerator time, by size, or by a sum of both in their own units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import EQUAL
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph
from strategies.placement.ideals import IdealFamily

__all__ = ["ChainLimits", "ChainSolution", "StagePairs", "best_chain", "chain_within", "cpu_relief"]


# Pairs of down-sets that are compared at a time.
_TILE = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLimits:
    """Devices and capacity of a placement."""

    num_accelerators: int
    num_cpus: int
    capacity_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSolution:
    """A chain of down-sets: stage i is what ``ideals[i + 1]`` adds to ``ideals[i]``."""

    value: float  # largest load
    ideals: tuple[int, ...]  # rows of the family, from empty to everything
    on_cpu: tuple[bool, ...]  # per stage


@dataclass(frozen=True, slots=True)
class _Cell:
    """Values of one count of devices over a slice of the family."""

    begin: int
    value: FloatArray
    parent: NDArray[np.int32]  # row of the stage's start; -1: none
    by_cpu: BoolArray


def cpu_relief(graph: BlockGraph) -> Callable[[float], float]:
    """Most accelerator time that CPUs take over in a given time of theirs: W of the module's notes.

    Examples
    --------
    >>> one = np.ones(2)
    >>> none = np.zeros(0, dtype=np.int64)
    >>> graph = BlockGraph(block=none, accelerator_time=2 * one, cpu_time=4 * one, size_bytes=one, supported=one > 0,
    ...     edge_source=none, edge_target=none, hyperedge_cost=none, pin_start=none, pin=none)
    >>> cpu_relief(graph)(6.0)
    3.0
    """
    time = np.where(graph.supported, graph.accelerator_time, 0.0)
    useful = np.flatnonzero(time > 0)
    order = useful[np.argsort(graph.cpu_time[useful] / time[useful], kind="stable")]
    spent = np.concatenate(([0.0], np.cumsum(graph.cpu_time[order])))
    gained = np.concatenate(([0.0], np.cumsum(time[order])))
    return lambda budget: float(np.interp(budget, spent, gained, left=0.0)) if len(order) else 0.0


class StagePairs:
    """Stages as pairs (start, end) of down-sets of a family."""

    def __init__(self, family: IdealFamily, graph: BlockGraph, limits: ChainLimits, limit: float) -> None:
        self._family, self._limits, self._limit = family, limits, limit
        self._relief = cpu_relief(graph)

    def accelerator_loads(self, inner: IntArray, outer: IntArray) -> FloatArray:
        """Compute and communication of the stages ``outer - inner``."""
        compute = self._family.accelerator_time[outer] - self._family.accelerator_time[inner]
        return np.asarray(compute + self._family.communication(inner, outer))

    def cpu_loads(self, inner: IntArray, outer: IntArray) -> FloatArray:
        """Compute of the stages ``outer - inner`` on a CPU."""
        return np.asarray(self._family.cpu_time[outer] - self._family.cpu_time[inner])

    def within_limit(
        self, starts: IntArray, *, on_cpu: bool, check: Callable[[], None]
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Legal stages from the given starts whose load is within the limit."""
        for inner, outer in self.nested(starts, (0, len(self._family)), on_cpu=on_cpu):
            check()
            load = self.cpu_loads(inner, outer) if on_cpu else self.accelerator_loads(inner, outer)
            keep = load <= self._limit
            yield inner[keep], outer[keep]

    def nested(self, starts: IntArray, window: tuple[int, int], *, on_cpu: bool) -> Iterator[tuple[IntArray, IntArray]]:
        """Legal stages that end within a window and are within the limit by compute alone; starts must ascend."""
        time = self._family.accelerator_time
        # No stage takes over more accelerator time than this.
        most = (self._relief(self._limit) if on_cpu else self._limit) * (1 + EQUAL) + EQUAL * time[-1]
        position = 0
        while position < len(starts):
            first = max(int(starts[position]) + 1, window[0])
            near = int(np.searchsorted(time, time[starts[position]] + most, "right"))
            rows = starts[position : position + max(1, _TILE // max(1, min(window[1], near) - first))]
            stop = min(window[1], int(np.searchsorted(time, time[rows[-1]] + most, "right")))
            # A tile whose last row reaches much further than its first would be too large.
            while len(rows) > 1 and len(rows) * (stop - first) > 2 * _TILE:
                rows = rows[: len(rows) // 2]
                stop = min(window[1], int(np.searchsorted(time, time[rows[-1]] + most, "right")))
            position += len(rows)
            if first < stop:
                yield self._nested(rows, first, stop, on_cpu=on_cpu)

    def _nested(self, rows: IntArray, first: int, stop: int, *, on_cpu: bool) -> tuple[IntArray, IntArray]:
        family = self._family
        columns = slice(first, stop)
        budget = self._limit * (1 + EQUAL)
        if on_cpu:
            good = family.cpu_time[columns] - family.cpu_time[rows, None] <= budget
        else:
            good = family.accelerator_time[columns] - family.accelerator_time[rows, None] <= budget
            good &= family.num_unsupported[columns] == family.num_unsupported[rows, None]
            good &= family.size_bytes[columns] - family.size_bytes[rows, None] <= self._limits.capacity_bytes
        for w in range(family.bits.shape[1]):
            good &= (family.bits[rows, w, None] & ~family.bits[columns, w]) == 0
        row, column = np.nonzero(good)
        inner, outer = rows[row], column + first
        proper = inner < outer  # a start of the tile may lie after its first column
        return inner[proper], outer[proper]


def best_chain(
    family: IdealFamily,
    graph: BlockGraph,
    limits: ChainLimits,
    *,
    limit: float,
    clock: Clock | None = None,
) -> ChainSolution | None:
    """Find the chain with the smallest largest load, if that is at most ``limit``.

    Parameters
    ----------
    family : IdealFamily
        The chain is made of these down-sets.
    graph : BlockGraph
    limits : ChainLimits
    limit : float
        Chains above it are not looked at.
    clock : Clock, optional
        Its deadline ends the search with `strategies.placement.clock.OutOfTimeError`.

    Returns
    -------
    ChainSolution or None
        None when no chain of the family is within the limit.
    """
    program = _Program(family, graph, limits, limit, clock or Clock())
    return program.solve()


class _Program:
    def __init__(self, family: IdealFamily, graph: BlockGraph, limits: ChainLimits, limit: float, clock: Clock) -> None:
        self._family, self._limit, self._clock = family, limit, clock
        self._pairs = StagePairs(family, graph, limits, limit)
        self._relief = cpu_relief(graph)
        # More devices than blocks stay empty.
        self._accelerators = min(limits.num_accelerators, graph.num_blocks)
        self._cpus = min(limits.num_cpus, graph.num_blocks)
        self._cells: dict[tuple[int, int], _Cell] = {}

    def solve(self) -> ChainSolution | None:
        """Fill the cells in the order of their devices and read the best chain off the last."""
        for c in range(self._cpus + 1):
            for a in range(self._accelerators + 1):
                self._cells[a, c] = self._cell(a, c)
        last = len(self._family) - 1
        found = [(self._value(key, last), key) for key in self._cells]
        value, key = min(found, key=lambda item: (item[0], sum(item[1]), item[1]))
        return self._trace(key, last, value) if value <= self._limit else None

    def _value(self, key: tuple[int, int], ideal: int) -> float:
        cell = self._cells[key]
        position = ideal - cell.begin
        return float(cell.value[position]) if 0 <= position < len(cell.value) else np.inf

    def _window(self, a: int, c: int) -> tuple[int, int]:
        """Slice of the down-sets that ``a`` accelerators and ``c`` CPUs can reach, and from where the others can finish."""
        time = self._family.accelerator_time
        slack = EQUAL * (time[-1] + 1e-300)
        most = a * self._limit + self._relief(c * self._limit) + slack
        rest = (self._accelerators - a) * self._limit + self._relief((self._cpus - c) * self._limit) + slack
        return int(np.searchsorted(time, time[-1] - rest, "left")), int(np.searchsorted(time, most, "right"))

    def _cell(self, a: int, c: int) -> _Cell:
        begin, end = self._window(a, c)
        end = max(begin, end)
        cell = _Cell(
            begin=begin,
            value=np.full(end - begin, np.inf),
            parent=np.full(end - begin, -1, dtype=np.int32),
            by_cpu=np.zeros(end - begin, dtype=np.bool_),
        )
        if a == 0 and c == 0:
            if begin == 0 and end:
                cell.value[0] = 0.0
            return cell
        if a:
            self._extend(self._cells[a - 1, c], cell, on_cpu=False)
        if c:
            self._extend(self._cells[a, c - 1], cell, on_cpu=True)
        return cell

    def _extend(self, before: _Cell, cell: _Cell, *, on_cpu: bool) -> None:
        """Try every stage that starts where ``before`` is reached and ends in ``cell``."""
        starts = np.flatnonzero(before.value <= self._limit) + before.begin
        window = (cell.begin, cell.begin + len(cell.value))
        for inner, outer in self._pairs.nested(starts, window, on_cpu=on_cpu):
            self._clock.check()
            loads = self._pairs.cpu_loads if on_cpu else self._pairs.accelerator_loads
            value = np.maximum(loads(inner, outer), before.value[inner - before.begin])
            keep = value <= self._limit
            _improve(cell, inner[keep], outer[keep] - cell.begin, value[keep], on_cpu=on_cpu)

    def _trace(self, key: tuple[int, int], ideal: int, value: float) -> ChainSolution:
        chain, on_cpu = [ideal], []
        while key != (0, 0):
            cell = self._cells[key]
            position = ideal - cell.begin
            by_cpu = bool(cell.by_cpu[position])
            ideal = int(cell.parent[position])
            key = (key[0], key[1] - 1) if by_cpu else (key[0] - 1, key[1])
            chain.append(ideal)
            on_cpu.append(by_cpu)
        return ChainSolution(value=value, ideals=tuple(chain[::-1]), on_cpu=tuple(on_cpu[::-1]))


def _improve(cell: _Cell, inner: IntArray, outer: IntArray, value: FloatArray, *, on_cpu: bool) -> None:
    """Keep the least value of each end; the earliest start wins a tie."""
    if not len(outer):
        return
    order = np.lexsort((inner, value, outer))
    outer = outer[order]
    first = np.flatnonzero(np.concatenate(([True], outer[1:] != outer[:-1])))
    target, best, start = outer[first], value[order][first], inner[order][first]
    better = best < cell.value[target]
    target = target[better]
    cell.value[target] = best[better]
    cell.parent[target] = start[better]
    cell.by_cpu[target] = on_cpu


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
