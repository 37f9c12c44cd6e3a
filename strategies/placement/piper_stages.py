"""Every stage between two down-sets of Piper's problem, with its times for every degree and number of copies.

Fronts
------
Choosing ways is a multiple-choice knapsack for every y: least sum of times with sum of (a y + b) within the memory. All y are treated
at once by the points (time, a, b) that no other point beats in all three; adding an operator adds every way to every point. Operators
of one kind have equal differences of a and b, so that a set of n of them leaves n + 1 points; what is kept in the end is the
staircase of time against the most micro-batches in flight.

Times are kept as sums that copies divide: what does not depend on the choice of ways apart from the staircase of what does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph, topological_rank
from strategies.placement.ideals import enumerate_ideals
from strategies.placement.piper_problem import PiperOption, PiperProblem

__all__ = [
    "UNLIMITED",
    "Front",
    "StageTables",
    "TooManyPointsError",
    "add_operator",
    "best_ways",
    "empty_front",
    "staircase",
]


# More micro-batches in flight than any plan has.
UNLIMITED = 1 << 40
# Points of one front; graphs of many different operators would have exponentially many.
MAX_POINTS = 4000


class TooManyPointsError(RuntimeError):
    """A front has more points than `MAX_POINTS`."""

    def __init__(self) -> None:
        super().__init__(f"a stage has more than {MAX_POINTS:,} trade-offs of time against memory")


@dataclass(frozen=True, slots=True)
class Front:
    """Points that no other point beats: times, stashed bytes per micro-batch, fixed bytes."""

    time: FloatArray
    stash: FloatArray
    fixed: FloatArray


def empty_front() -> Front:
    """Trade-off of a stage without operators."""
    zero = np.zeros(1)
    return Front(zero, zero, zero)


def add_operator(front: Front, time: FloatArray, stash: FloatArray, fixed: FloatArray, capacity: float) -> Front:
    """Add an operator with some ways to run; points that do not fit with one micro-batch are left out.

    Examples
    --------
    >>> one = Front(np.array([1.0, 3.0]), np.array([4.0, 1.0]), np.array([0.0, 0.0]))
    >>> two = add_operator(one, np.array([1.0, 3.0]), np.array([4.0, 1.0]), np.zeros(2), 100.0)
    >>> two.time.tolist(), two.stash.tolist()
    ([2.0, 4.0, 6.0], [8.0, 5.0, 2.0])
    """
    times = (front.time[:, None] + time).ravel()
    stashes = (front.stash[:, None] + stash).ravel()
    fixes = (front.fixed[:, None] + fixed).ravel()
    fits = np.flatnonzero(stashes + fixes <= capacity)
    order = fits[np.lexsort((fixes[fits], stashes[fits], times[fits]))]
    times, stashes, fixes = times[order], stashes[order], fixes[order]
    keep = _undominated(stashes, fixes)
    if len(keep) > MAX_POINTS:
        raise TooManyPointsError
    return Front(times[keep], stashes[keep], fixes[keep])


def _undominated(stashes: FloatArray, fixes: FloatArray) -> IntArray:
    """Points, ordered by time, of which no earlier one needs at most as much of both memories."""
    kept: list[int] = []
    for i in range(len(stashes)):
        before = np.array(kept, dtype=np.int64)
        if not kept or not np.any((stashes[before] <= stashes[i]) & (fixes[before] <= fixes[i])):
            kept.append(i)
    return np.array(kept, dtype=np.int64)


def staircase(front: Front, capacity: float) -> tuple[FloatArray, IntArray]:
    """Ascending times and the most micro-batches in flight that fit at each; both rise.

    Examples
    --------
    >>> times, most = staircase(Front(np.array([1.0, 2.0]), np.array([4.0, 1.0]), np.zeros(2)), 9.0)
    >>> times.tolist(), most.tolist()
    ([1.0, 2.0], [2, 9])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.floor((capacity - front.fixed) / front.stash)
    most = np.where(front.stash > 0, np.minimum(most, UNLIMITED), UNLIMITED).astype(np.int64)
    best = np.maximum.accumulate(most) if len(most) else most
    rises = np.flatnonzero((most >= 1) & (np.concatenate(([0], best[:-1])) < best)) if len(most) else most
    return front.time[rises], best[rises]


def best_ways(times: Sequence[FloatArray], memories: Sequence[FloatArray], capacity: float) -> tuple[int, ...] | None:
    """Ways of least total time within a capacity, for a fixed number of micro-batches in flight.

    Parameters
    ----------
    times, memories : sequence of float arrays
        Per operator, one entry per way.
    capacity : float

    Returns
    -------
    tuple of int or None
        None when nothing fits.

    Examples
    --------
    >>> best_ways([np.array([1.0, 2.0]), np.array([1.0, 5.0])], [np.array([3.0, 1.0])] * 2, 4.0)
    (1, 0)
    """
    time, memory = np.zeros(1), np.zeros(1)
    trail: list[tuple[IntArray, int]] = []
    rest = np.cumsum([0.0, *(float(m.min()) for m in reversed(memories))])[::-1]
    for i, (more_time, more_memory) in enumerate(zip(times, memories, strict=True)):
        total_time = (time[:, None] + more_time).ravel()
        total_memory = (memory[:, None] + more_memory).ravel()
        fits = np.flatnonzero(total_memory + rest[i + 1] <= capacity)
        order = fits[np.lexsort((total_memory[fits], total_time[fits]))]
        if not len(order):
            return None
        least = np.minimum.accumulate(total_memory[order])
        keep = order[np.concatenate(([True], total_memory[order][1:] < least[:-1]))]
        trail.append((keep, len(more_time)))
        time, memory = total_time[keep], total_memory[keep]
    ways = []
    position = 0
    for keep, count in reversed(trail):
        position, way = divmod(int(keep[position]), count)
        ways.append(way)
    return tuple(ways[::-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTables:
    """Every stage between two down-sets, with its staircase of time against micro-batches in flight.

    The staircases have an axis for the number of copies of length 1 where the choice of ways does not depend on it.
    """

    problem: PiperProblem
    inside: BoolArray  # (ideals, nodes)
    work: FloatArray  # (ideals,) least device time of what a down-set holds
    inner: IntArray  # (stages,) down-sets; ordered by outer, from everything down
    outer: IntArray
    degrees: tuple[int, ...]
    copies: tuple[int, ...]
    shared: FloatArray  # (stages, degrees) seconds to be divided by d: communication that does not depend on ways
    resync: FloatArray  # (stages, degrees) seconds of 4 W / (N B) that do not depend on ways
    times: FloatArray  # (stages, degrees, copies or 1, steps) sums of times, ascending, padded by infinity
    most: IntArray  # the same shape: micro-batches in flight, padded by 0

    @property
    def num_ideals(self) -> int:
        """Down-sets."""
        return len(self.work)

    def stage_times(self) -> FloatArray:
        """Time of every step (stages, degrees, copies, steps)."""
        d = np.array(self.copies, dtype=np.float64)[:, None]
        total = (self.times + self.shared[:, :, None, None]) / d
        return np.asarray(total + self.resync[:, :, None, None] * (d - 1) / d)

    def all_times(self) -> FloatArray:
        """Finite times of all steps, in no order."""
        times = self.stage_times()
        return times[np.isfinite(times)]

    @classmethod
    def build(cls, problem: PiperProblem, max_ideals: int, clock: Clock) -> StageTables:
        """Make the tables.

        Raises
        ------
        TooManyIdealsError
            The graph has more down-sets than allowed.
        TooManyPointsError
            A stage has too many trade-offs of time against memory.
        """
        graph = _block_graph(problem)
        family = enumerate_ideals(graph, limit=max_ideals)
        rank = np.argsort(graph.block)  # block -> node
        block = np.arange(problem.num_nodes)
        words = family.bits[:, block // 64] >> (block % 64).astype(np.uint64)
        by_block = (words & np.uint64(1)).astype(np.bool_)
        inside = by_block[:, graph.block]
        nested = [np.flatnonzero(~np.any(by_block & ~by_block[i], axis=1)) for i in range(len(by_block))]
        outer = np.concatenate([np.full(len(js) - 1, i) for i, js in reversed(list(enumerate(nested)))])
        inner = np.concatenate([js[js != i] for i, js in reversed(list(enumerate(nested)))])
        least = [min(t * o.time_s for t, ways in node.items() for o in ways) for node in problem.options]
        is_simple = [_is_simple(ways) for ways in problem.options]
        tables = _Tables(problem, inside[outer] & ~inside[inner], np.array(is_simple, dtype=np.bool_))
        times, most = _staircases(problem, tables, by_block, inner, outer, rank, clock)
        return cls(
            problem=problem,
            inside=inside,
            work=inside @ np.array(least),
            inner=inner,
            outer=outer,
            degrees=problem.degrees,
            copies=problem.copies,
            shared=tables.shared,
            resync=tables.resync,
            times=times,
            most=most,
        )


def _block_graph(problem: PiperProblem) -> BlockGraph:
    rank = topological_rank(problem.num_nodes, problem.edge_source, problem.edge_target)
    zero, none = np.zeros(problem.num_nodes), np.zeros(0, dtype=np.int64)
    return BlockGraph(
        block=rank,
        accelerator_time=zero,
        cpu_time=zero,
        size_bytes=zero,
        supported=zero == 0,
        edge_source=rank[problem.edge_source],
        edge_target=rank[problem.edge_target],
        hyperedge_cost=zero[:0],
        pin_start=np.zeros(1, dtype=np.int64),
        pin=none,
    )


def _is_simple(ways: Mapping[int, Sequence[PiperOption]]) -> bool:
    """Whether an operator's ways differ in time and memory only, for every degree."""
    return all(
        len(
            {
                (o.parameter_bytes, tuple(sorted(o.sync_in_bytes.items())), tuple(sorted(o.sync_out_bytes.items())))
                for o in options
            }
        )
        == 1
        for options in ways.values()
    )


class _Tables:
    """What stages pay for edges and parameters, by the part that depends on the ways and the part that does not."""

    def __init__(self, problem: PiperProblem, members: BoolArray, simple: BoolArray) -> None:
        self.members, self.simple = members, simple
        bandwidth = problem.bandwidth_bytes_per_s
        degrees = problem.degrees
        enters = ~members[:, problem.edge_source] & members[:, problem.edge_target]
        leaves = members[:, problem.edge_source] & ~members[:, problem.edge_target]
        moved = np.repeat((2 * (enters | leaves) @ problem.edge_bytes)[:, None], len(degrees), axis=1)
        parameters = np.zeros_like(moved)
        self.allowed = np.ones(moved.shape, dtype=np.bool_)
        self.enters, self.leaves = enters, leaves
        for k, t in enumerate(degrees):
            for v, ways in enumerate(problem.options):
                if t not in ways:
                    self.allowed[members[:, v], k] = False
                elif simple[v]:
                    way = ways[t][0]
                    parameters[:, k] += members[:, v] * way.parameter_bytes
                    for e, size in way.sync_in_bytes.items():
                        moved[:, k] += 2 * size * enters[:, e]
                    for e, size in way.sync_out_bytes.items():
                        moved[:, k] += 2 * size * leaves[:, e]
        self.shared = moved / bandwidth
        self.resync = 4 * parameters / (problem.num_micro_batches * bandwidth)

    def way_times(self, problem: PiperProblem, stage: int, v: int, t: int, d: int) -> FloatArray:
        """Time of each way of an operator in a stage, with everything that depends on the way, times d."""
        ways = problem.options[v][t]
        times = np.array([way.time_s for way in ways])
        if self.simple[v]:
            return times
        bandwidth = problem.bandwidth_bytes_per_s
        for i, way in enumerate(ways):
            moved = sum(2 * size for e, size in way.sync_in_bytes.items() if self.enters[stage, e])
            moved += sum(2 * size for e, size in way.sync_out_bytes.items() if self.leaves[stage, e])
            times[i] += moved / bandwidth
            times[i] += 4 * (d - 1) * way.parameter_bytes / (problem.num_micro_batches * bandwidth)
        return times


def _staircases(
    problem: PiperProblem,
    tables: _Tables,
    by_block: BoolArray,
    inner: IntArray,
    outer: IntArray,
    node_of_block: IntArray,
    clock: Clock,
) -> tuple[FloatArray, IntArray]:
    """Staircase of every stage, degree and (where ways depend on it) number of copies."""
    depends = not bool(np.all(tables.simple))
    copies = problem.copies if depends else (1,)
    index = {row.tobytes(): i for i, row in enumerate(by_block)}
    fronts: dict[tuple[int, int, int], Front] = {}
    shape = (len(inner), len(problem.degrees), len(copies))
    steps: dict[tuple[int, int, int], tuple[FloatArray, IntArray]] = {}
    capacity = problem.capacity_bytes
    for stage in range(len(inner) - 1, -1, -1):  # smaller down-sets first
        clock.check()
        members = by_block[outer[stage]] & ~by_block[inner[stage]]
        last = int(np.flatnonzero(members)[-1])
        without = by_block[outer[stage]].copy()
        without[last] = False
        before = index[without.tobytes()]
        for k, t in enumerate(problem.degrees):
            if not tables.allowed[stage, k]:
                continue
            for c, d in enumerate(copies):
                if depends:
                    front = empty_front()
                    for v in node_of_block[np.flatnonzero(members)].tolist():
                        front = _with(problem, tables, front, stage, v, t, d)
                else:
                    known = fronts.get((int(inner[stage]), before, t), empty_front())
                    front = _with(problem, tables, known, stage, int(node_of_block[last]), t, d)
                    fronts[int(inner[stage]), int(outer[stage]), t] = front
                steps[stage, k, c] = staircase(front, capacity)
    width = max((len(times) for times, _ in steps.values()), default=0)
    all_times = np.full((*shape, max(1, width)), np.inf)
    all_most = np.zeros(all_times.shape, dtype=np.int64)
    for place, (times, most) in steps.items():
        all_times[place][: len(times)] = times
        all_most[place][: len(times)] = most
    return all_times, all_most


def _with(problem: PiperProblem, tables: _Tables, front: Front, stage: int, v: int, t: int, d: int) -> Front:
    ways = problem.options[v][t]
    return add_operator(
        front,
        tables.way_times(problem, stage, v, t, d),
        np.array([way.stash_bytes for way in ways]),
        np.array([way.fixed_bytes for way in ways]),
        problem.capacity_bytes,
    )
