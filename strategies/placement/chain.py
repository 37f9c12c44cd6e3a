"""Down-sets of a precedence graph, what a stage between two of them costs, and the best chain of them.

Down-sets
---------
A family of down-sets is enumerated without duplicates: with blocks in topological order, the down-sets of the first i blocks are
those of the first i - 1, and each of these that holds the predecessors of block i once more with it.

A stage is S = I - J for down-sets J within I. Compute is a difference of two numbers. For communication let F(I) be the cost of
the hyperedges that I splits; then

    communication(S) = F(I) + F(J) - sum over hyperedges h split by both of c_h (1 + [I and J hold the same pins of h])

because h is cut by S exactly when S takes some but not all of its pins: with none in J when I splits it (counted by F(I)), with some
in J when the stage takes at least one more (counted by F(J), and by F(I) again if pins are left, so once too often). Few hyperedges
are split by both, so the correction is a short sum.

Exact dynamic programming over a family of down-sets
----------------------------------------------------
Devices are of one or more kinds t, which may follow each other in any order; CPUs are one more kind. For counts n of devices of each kind

    best[n, I] = min over kinds t and J within I of max(best[n - e(t), J], load(t, I - J))

Only values of at most a given limit T matter, which gives windows: a accelerators and c CPUs together reach I within T only if
P(I) <= a T + W(c T), and the devices that are left finish only if P(all) - P(I) is within theirs. P is accelerator time, of the fastest
kind, and W(x) the most of it that CPUs can take over in x of their time (fractional knapsack). Down-sets are ordered by P, so windows
are slices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray, ranges
from costmodel.tolerances import EQUAL
from strategies.limits import UNLIMITED, Clock
from strategies.placement.bounds import cpu_relief
from strategies.placement.contraction import BlockGraph
from strategies.placement.loads import Kind
from strategies.placement.problem import adjacent

BitRows = NDArray[np.uint64]
# The bits of all down-sets together; but so many down-sets are always allowed.
_MOST_BYTES = 200 * 2**20
_LEAST_LIMIT = 1_000


class TooManyIdealsError(RuntimeError):
    """The graph has more down-sets than allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit:,} predecessor-closed sets of operators")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealFamily:
    """Down-sets ordered by accelerator time, then size: a set comes before every other set that holds it.

    The first is empty, the last is everything.
    """

    bits: BitRows  # (ideals, words), block b is bit b % 64 of word b // 64
    accelerator_time: FloatArray  # of supported blocks; exactly monotone under inclusion
    size_bytes: FloatArray
    split_cost: FloatArray  # F(I)
    pins_inside: NDArray[np.uint16]  # (hyperedges + 1, ideals) pins inside; the last row is all zeros, for padding
    split_list: NDArray[np.int32]  # (ideals, most) hyperedges that the set splits, padded by the last row's number
    split_price: FloatArray  # (hyperedges + 1,) cost of each, 0 for padding

    def __len__(self) -> int:
        """Down-sets."""
        return len(self.bits)

    def members(self, ideal: int, num_blocks: int) -> BoolArray:
        """Which blocks a down-set holds."""
        block = np.arange(num_blocks)
        return np.asarray((self.bits[ideal, block // 64] >> (block % 64).astype(np.uint64)) & np.uint64(1) > 0)

    def communication(self, inner: IntArray, outer: IntArray) -> FloatArray:
        """Communication of the stages ``outer - inner``, pair by pair; each inner set must be within its outer set."""
        cost = self.split_cost[inner] + self.split_cost[outer]
        for column in range(self.split_list.shape[1]):
            edge = self.split_list[inner, column]
            active = np.flatnonzero(edge < len(self.split_price) - 1)
            if not len(active):
                break  # lists are filled from the left
            which = edge[active]
            inside = self.pins_inside[which, outer[active]]
            same = inside == self.pins_inside[which, inner[active]]
            # A hyperedge that the outer set holds whole is not split by it.
            both = inside < self.pins_inside[which, -1]  # the last down-set holds every pin
            cost[active] -= self.split_price[which] * np.where(both, 1.0 + same, 0.0)
        return cost


def enumerate_ideals(graph: BlockGraph, *, limit: int, clock: Clock = UNLIMITED) -> IdealFamily:
    """Find every down-set.

    Parameters
    ----------
    graph : BlockGraph
        Blocks in topological order.
    limit : int
        Most down-sets to make.
    clock : Clock, optional

    Raises
    ------
    TooManyIdealsError
    """
    words = -(-graph.num_blocks // 64)
    limit = min(limit, max(_LEAST_LIMIT, _MOST_BYTES // (8 * words)))
    if graph.num_blocks + 1 > limit:  # even a row of blocks has one for each, and nothing
        raise TooManyIdealsError(limit)
    rows = np.zeros((1, words), dtype=np.uint64)
    before = np.zeros((graph.num_blocks, words), dtype=np.uint64)
    bit = np.uint64(1) << (graph.edge_source % 64).astype(np.uint64)
    np.bitwise_or.at(before, (graph.edge_target, graph.edge_source // 64), bit)
    for b in range(graph.num_blocks):
        clock.check()
        mask = before[b]
        used = np.flatnonzero(mask)
        ready = np.ones(len(rows), dtype=np.bool_)
        for w in used:
            ready &= (rows[:, w] & mask[w]) == mask[w]
        grown = rows[ready]
        if len(rows) + len(grown) > limit:
            raise TooManyIdealsError(limit)
        grown[:, b // 64] |= np.uint64(1) << np.uint64(b % 64)
        rows = np.concatenate((rows, grown))
    return _family(graph, rows)


def ideals_from_orders(graph: BlockGraph, orders: IntArray) -> IdealFamily:
    """Make the family of all prefixes of some topological orders.

    Parameters
    ----------
    graph : BlockGraph
    orders : int array (orders, blocks)
    """
    words = -(-graph.num_blocks // 64)
    count, blocks = orders.shape
    rows = np.zeros((count, blocks + 1, words), dtype=np.uint64)
    step = np.zeros((count, blocks, words), dtype=np.uint64)
    bit = np.uint64(1) << (orders % 64).astype(np.uint64)
    np.put_along_axis(step, (orders // 64)[:, :, None], bit[:, :, None], axis=2)
    np.bitwise_or.accumulate(step, axis=1, out=rows[:, 1:])
    return _family(graph, np.unique(rows.reshape(-1, words), axis=0))


def _family(graph: BlockGraph, rows: BitRows) -> IdealFamily:
    """Order the rows and say what each holds."""
    time, size, count = sums(
        rows,
        np.stack((np.where(graph.supported, graph.accelerator_time, 0.0), graph.size_bytes, np.ones(graph.num_blocks))),
    )
    order = np.lexsort((*rows.T, count, time))
    rows = rows[order]
    edges = len(graph.hyperedge_cost)
    inside = np.zeros((edges + 1, len(rows)), dtype=np.uint16)
    for block, touched in enumerate(
        adjacent(graph.num_blocks, graph.pin, np.repeat(np.arange(edges), np.diff(graph.pin_start)))
    ):
        inside[touched] += holding(rows, block)
    price = np.append(graph.hyperedge_cost, 0.0)
    split_list = _padded_lists((inside > 0) & (inside < inside[:, -1:]))
    split_cost = np.zeros(len(rows))
    for column in range(split_list.shape[1]):
        split_cost += price[split_list[:, column]]
    return IdealFamily(
        bits=rows,
        accelerator_time=time[order],
        size_bytes=size[order],
        split_cost=split_cost,
        pins_inside=inside,
        split_list=split_list,
        split_price=price,
    )


def holding(rows: BitRows, block: int) -> BoolArray:
    """Which down-sets hold a block."""
    return (rows[:, block // 64] >> np.uint64(block % 64)) & np.uint64(1) > 0


def sums(rows: BitRows, values: FloatArray | BoolArray) -> FloatArray:
    """Sum up what each down-set holds: (rows, blocks) -> (rows, ideals); block by block in one order, which keeps that of inclusion."""
    total = np.zeros((len(values), len(rows)))
    for block in range(values.shape[1]):
        total += values[:, block, None] * holding(rows, block)
    return total


def _padded_lists(split: BoolArray) -> NDArray[np.int32]:
    """Hyperedges that each down-set splits, as rows filled from the left."""
    edges, ideals = split.shape
    number = split.sum(axis=0)
    most = int(number.max()) if ideals else 0
    lists = np.full((ideals, most), edges - 1, dtype=np.int32)
    edge, ideal = np.nonzero(split)
    order = np.argsort(ideal, kind="stable")
    edge, ideal = edge[order], ideal[order]
    _, position = ranges(np.zeros_like(number), number)
    lists[ideal, position] = edge
    return lists


# Pairs of down-sets that are compared at a time.
_TILE = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSolution:
    """A chain of down-sets, stage by stage."""

    value: float  # largest load
    device: IntArray  # (blocks,)
    order: IntArray  # blocks, stage by stage


class Stages:
    """What devices pay for the stages between the down-sets of a family.

    Parameters
    ----------
    family : IdealFamily
    graph : BlockGraph
    kinds : sequence of Kind
        The devices: those of a kind follow each other by number.
    """

    def __init__(self, family: IdealFamily, graph: BlockGraph, kinds: Sequence[Kind]) -> None:
        self.family, self.graph, self.kinds = family, graph, kinds
        self.time = sums(family.bits, np.stack([kind.time for kind in kinds]))  # (kinds, ideals)
        self.forbidden = sums(family.bits, np.stack([~kind.allowed for kind in kinds]))
        self.relief = cpu_relief(np.where(graph.supported, graph.accelerator_time, 0.0), graph.cpu_time)

    def best_chain(self, limit: float, clock: Clock) -> ChainSolution | None:
        """Find the chain with the smallest largest load, if that is at most ``limit``.

        Raises
        ------
        OutOfTimeError
        """
        return _Program(self, limit, clock).solve()


@dataclass(frozen=True, slots=True)
class _Cell:
    """Values of one count of devices over a slice of the family."""

    begin: int
    value: FloatArray
    parent: NDArray[np.int32]  # row of the stage's start; -1: none
    kind: NDArray[np.int8]  # of the stage's device

    def at(self, ideal: int) -> float:
        position = ideal - self.begin
        return float(self.value[position]) if 0 <= position < len(self.value) else np.inf


class _Program:
    """The cells of all counts of devices, for one limit."""

    def __init__(self, stages: Stages, limit: float, clock: Clock) -> None:
        self._stages, self._limit, self._clock = stages, limit, clock
        self._family, self._kinds = stages.family, stages.kinds
        # More devices than blocks stay empty.
        self._counts = tuple(min(kind.count, stages.graph.num_blocks) for kind in stages.kinds)
        self._cells: dict[tuple[int, ...], _Cell] = {}

    def solve(self) -> ChainSolution | None:
        """Fill the cells in the order of their devices and read the best chain off the last."""
        for counts in itertools.product(*(range(count + 1) for count in self._counts)):
            self._cells[counts] = self._cell(counts)
        last = len(self._family) - 1
        value, _, counts = min((cell.at(last), sum(counts), counts) for counts, cell in self._cells.items())
        return self._trace(counts, value) if value <= self._limit else None

    def _most(self, counts: Sequence[int]) -> float:
        """Accelerator time that so many devices of each kind do within the limit, at most."""
        cpus = sum(count for count, kind in zip(counts, self._kinds, strict=True) if kind.is_cpu)
        return (sum(counts) - cpus) * self._limit + self._stages.relief(cpus * self._limit)

    def _cell(self, counts: tuple[int, ...]) -> _Cell:
        """Least values of the down-sets that some devices reach and from where the others can finish."""
        time = self._family.accelerator_time
        slack = EQUAL * (time[-1] + 1e-300)
        rest = self._most([most - count for most, count in zip(self._counts, counts, strict=True)]) + slack
        begin = int(np.searchsorted(time, time[-1] - rest, "left"))
        end = max(begin, int(np.searchsorted(time, self._most(counts) + slack, "right")))
        cell = _Cell(
            begin=begin,
            value=np.full(end - begin, np.inf),
            parent=np.full(end - begin, -1, dtype=np.int32),
            kind=np.full(end - begin, -1, dtype=np.int8),
        )
        if not any(counts) and begin == 0 and end:
            cell.value[0] = 0.0
        for t, count in enumerate(counts):
            if count:
                self._extend(self._cells[_one_less(counts, t)], cell, t)
        return cell

    def _extend(self, before: _Cell, cell: _Cell, t: int) -> None:
        """Try every stage of a kind of device that starts where ``before`` is reached and ends in ``cell``."""
        starts = np.flatnonzero(before.value <= self._limit) + before.begin
        time = self._family.accelerator_time
        kind = self._kinds[t]
        # No stage takes over more accelerator time than this.
        most = (self._stages.relief(self._limit) if kind.is_cpu else self._limit) * (1 + EQUAL) + EQUAL * time[-1]
        position, last = 0, cell.begin + len(cell.value)
        while position < len(starts):
            self._clock.check()
            first = max(int(starts[position]) + 1, cell.begin)
            near = int(np.searchsorted(time, time[starts[position]] + most, "right"))
            rows = starts[position : position + max(1, _TILE // max(1, min(last, near) - first))]
            stop = min(last, int(np.searchsorted(time, time[rows[-1]] + most, "right")))
            # A tile whose last row reaches much further than its first would be too large.
            while len(rows) > 1 and len(rows) * (stop - first) > 2 * _TILE:
                rows = rows[: len(rows) // 2]
                stop = min(last, int(np.searchsorted(time, time[rows[-1]] + most, "right")))
            position += len(rows)
            if first >= stop:
                continue
            inner, outer = self._nested(t, rows, first, stop)
            load = self._stages.time[t][outer] - self._stages.time[t][inner]
            if kind.link_factor:
                load += kind.link_factor * self._family.communication(inner, outer)
            value = np.maximum(load, before.value[inner - before.begin])
            keep = value <= self._limit
            _improve(cell, inner[keep], outer[keep] - cell.begin, value[keep], t)

    def _nested(self, t: int, rows: IntArray, first: int, stop: int) -> tuple[IntArray, IntArray]:
        """Legal stages from some down-sets to a slice of them that are within the limit by compute alone."""
        family, kind = self._family, self._kinds[t]
        columns = slice(first, stop)
        good = self._stages.time[t][columns] - self._stages.time[t][rows, None] <= self._limit * (1 + EQUAL)
        if not kind.is_cpu:
            good &= self._stages.forbidden[t][columns] == self._stages.forbidden[t][rows, None]
            good &= family.size_bytes[columns] - family.size_bytes[rows, None] <= kind.capacity_bytes
        for w in range(family.bits.shape[1]):
            good &= (family.bits[rows, w, None] & ~family.bits[columns, w]) == 0
        row, column = np.nonzero(good)
        inner, outer = rows[row], column + first
        proper = inner < outer  # a start of the tile may lie after its first column
        return inner[proper], outer[proper]

    def _trace(self, counts: tuple[int, ...], value: float) -> ChainSolution:
        ideal, stages = len(self._family) - 1, []
        while any(counts):
            cell = self._cells[counts]
            t, before = int(cell.kind[ideal - cell.begin]), int(cell.parent[ideal - cell.begin])
            stages.append((t, before, ideal))
            counts, ideal = _one_less(counts, t), before
        blocks = self._stages.graph.num_blocks
        device, stage_of = np.zeros((2, blocks), dtype=np.int64)
        following = [itertools.count(kind.first) for kind in self._kinds]
        for stage, (t, inner, outer) in enumerate(reversed(stages)):
            members = self._family.members(outer, blocks) & ~self._family.members(inner, blocks)
            device[members], stage_of[members] = next(following[t]), stage
        return ChainSolution(value=value, device=device, order=np.argsort(stage_of, kind="stable"))


def _one_less(counts: tuple[int, ...], t: int) -> tuple[int, ...]:
    return (*counts[:t], counts[t] - 1, *counts[t + 1 :])


def _improve(cell: _Cell, inner: IntArray, outer: IntArray, value: FloatArray, t: int) -> None:
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
    cell.kind[target] = t
