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
best[a, c, I] = min over J within I of max(best[a - 1, c, J], load(I - J)) or max(best[a, c - 1, J], q(I - J)).

Only values of at most a given limit T matter, which gives windows: a accelerators and c CPUs together reach I within T only if
P(I) <= a T + W(c T), and the devices that are left finish only if P(all) - P(I) is within theirs. P is accelerator time and W(x)
the most of it that CPUs can take over in x of their time (fractional knapsack). Down-sets are ordered by P, so windows are slices.

Whether a chain stays within a limit
------------------------------------
The program above has a table for every pair of counts (accelerators, CPUs). For a fixed limit T one table per
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
from strategies.limits import Clock
from strategies.placement.bounds import cpu_relief
from strategies.placement.contraction import BlockGraph

__all__ = [
    "ChainLimits",
    "ChainSolution",
    "IdealFamily",
    "StagePairs",
    "TooManyIdealsError",
    "best_chain",
    "chain_within",
    "enumerate_ideals",
    "ideals_from_orders",
]


BitRows = NDArray[np.uint64]
# The bits of all down-sets together; but so many down-sets are always allowed.
_MOST_BYTES = 200 * 2**20
_LEAST_LIMIT = 1_000


class TooManyIdealsError(RuntimeError):
    """The graph has more down-sets than allowed; ``reached`` says how many were found before that."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"more than {limit:,} down-sets")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealFamily:
    """Down-sets ordered by accelerator time, then size: a set comes before every other set that holds it.

    The first is empty, the last is everything.
    """

    bits: BitRows  # (ideals, words), block b is bit b % 64 of word b // 64
    num_blocks: IntArray  # (ideals,)
    accelerator_time: FloatArray  # of supported blocks; exactly monotone under inclusion
    cpu_time: FloatArray
    size_bytes: FloatArray
    num_unsupported: IntArray
    split_cost: FloatArray  # F(I)
    pins_inside: NDArray[np.uint16]  # (hyperedges + 1, ideals) pins inside; the last row is all zeros, for padding
    split_list: NDArray[np.int32]  # (ideals, most) hyperedges that the set splits, padded by the last row's number
    split_price: FloatArray  # (hyperedges + 1,) cost of each, 0 for padding

    def __len__(self) -> int:
        """Down-sets."""
        return len(self.num_blocks)

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
            both = inside < self._sizes(which)
            cost[active] -= self.split_price[which] * np.where(both, 1.0 + same, 0.0)
        return cost

    def _sizes(self, edges: NDArray[np.int32]) -> NDArray[np.uint16]:
        return np.asarray(self.pins_inside[edges, -1])  # the last down-set holds every pin


def enumerate_ideals(graph: BlockGraph, *, limit: int, clock: Clock | None = None) -> IdealFamily:
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
    before = _predecessor_masks(graph, words)
    for b in range(graph.num_blocks):
        if clock is not None:
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


def _predecessor_masks(graph: BlockGraph, words: int) -> BitRows:
    masks = np.zeros((graph.num_blocks, words), dtype=np.uint64)
    bit = np.uint64(1) << (graph.edge_source % 64).astype(np.uint64)
    np.bitwise_or.at(masks, (graph.edge_target, graph.edge_source // 64), bit)
    return masks


def _family(graph: BlockGraph, rows: BitRows) -> IdealFamily:
    """Order the rows and sum up what each holds, block by block in one order: such sums keep the order of inclusion exactly."""
    time = np.zeros(len(rows))
    cpu, size = np.zeros(len(rows)), np.zeros(len(rows))
    count, unsupported = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    for b in range(graph.num_blocks):
        has = _has(rows, b)
        time += has * (graph.accelerator_time[b] if graph.supported[b] else 0.0)
        cpu += has * graph.cpu_time[b]
        size += has * graph.size_bytes[b]
        count += has
        unsupported += has * (not graph.supported[b])
    order = np.lexsort((*rows.T, count, time))
    rows = rows[order]
    inside = _pins_inside(graph, rows)
    full = inside[:, -1:]
    split = (inside > 0) & (inside < full)
    price = np.append(graph.hyperedge_cost, 0.0)
    split_list = _padded_lists(split)
    split_cost = np.zeros(len(rows))
    for column in range(split_list.shape[1]):
        split_cost += price[split_list[:, column]]
    return IdealFamily(
        bits=rows,
        num_blocks=count[order],
        accelerator_time=time[order],
        cpu_time=cpu[order],
        size_bytes=size[order],
        num_unsupported=unsupported[order],
        split_cost=split_cost,
        pins_inside=inside,
        split_list=split_list,
        split_price=price,
    )


def _has(rows: BitRows, block: int) -> BoolArray:
    return (rows[:, block // 64] >> np.uint64(block % 64)) & np.uint64(1) > 0


def _pins_inside(graph: BlockGraph, rows: BitRows) -> NDArray[np.uint16]:
    inside = np.zeros((len(graph.hyperedge_cost) + 1, len(rows)), dtype=np.uint16)
    edge_of_pin = np.repeat(np.arange(len(graph.hyperedge_cost)), np.diff(graph.pin_start))
    order = np.argsort(graph.pin, kind="stable")
    last, has = -1, np.zeros(0, dtype=np.bool_)
    for i in order.tolist():
        if graph.pin[i] != last:
            last = int(graph.pin[i])
            has = _has(rows, last)
        inside[edge_of_pin[i]] += has
    return inside


def _padded_lists(split: BoolArray) -> NDArray[np.int32]:
    """Hyperedges that each down-set splits, as rows filled from the left."""
    edges, ideals = split.shape
    number = split.sum(axis=0)
    most = int(number.max()) if ideals else 0
    lists = np.full((ideals, most), edges - 1, dtype=np.int32)
    edge, ideal = np.nonzero(split)
    order = np.argsort(ideal, kind="stable")
    edge, ideal = edge[order], ideal[order]
    position = np.arange(len(edge)) - np.repeat(np.cumsum(number) - number, number)
    lists[ideal, position] = edge
    return lists


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


class StagePairs:
    """Stages as pairs (start, end) of down-sets of a family."""

    def __init__(self, family: IdealFamily, graph: BlockGraph, limits: ChainLimits, limit: float) -> None:
        self._family, self._limits, self._limit = family, limits, limit
        self.relief = cpu_relief(np.where(graph.supported, graph.accelerator_time, 0.0), graph.cpu_time)

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
        most = (self.relief(self._limit) if on_cpu else self._limit) * (1 + EQUAL) + EQUAL * time[-1]
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
        Its deadline ends the search with `strategies.limits.OutOfTimeError`.

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
        self._relief = self._pairs.relief
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
    relief = cpu_relief(weight, graph.cpu_time)
    total = relief(np.inf)
    inside = np.zeros(len(family))
    for b in np.flatnonzero(weight > 0).tolist():
        inside += weight[b] * ((family.bits[:, b // 64] >> np.uint64(b % 64)) & np.uint64(1) > 0)
    rest = total - inside
    slack = EQUAL * (total + 1.0)
    per_accelerator = with_time + with_size

    def most(accelerators: int, cpus: int) -> float:
        return float(accelerators * per_accelerator + relief(cpus * limit) + slack)

    return rest, most
