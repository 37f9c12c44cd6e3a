"""Training by pipeline, data and tensor parallelism over an operator graph: Piper's problem, and its exact solution.

Stages S_1 .. S_l cut the graph by a chain of down-sets. Stage i runs on d_i copies of t_i devices; every operator in it chooses one of
its ways to run on t_i devices (with or without recomputation of activations, for instance). Per micro-batch it takes

    T_i = (1/d_i) (sum_v p_v + X_i / B) + 4 (d_i - 1) W_i / (d_i N B)

where p_v is forward and backward time, X_i counts twice the bytes of every edge that leaves or enters the stage and of the layout
change that the way demands for it, W_i are the bytes of parameters, N micro-batches make a batch and B is the bandwidth. A device holds

    sum_v (a_v y_i + b_v) <= M,   y_i = ceil((d_i + d_{i+1} + ... + d_l) / d_i)

with y_i micro-batches in flight. All d_i divide N, sum_i d_i <= N, sum_i d_i t_i <= K. The largest T_i is minimised.

Fronts
------
Choosing ways is a multiple-choice knapsack for every y: least sum of times with sum of (a y + b) within the memory. All y are treated
at once by the points (time, a, b) that no other point beats in all three; adding an operator adds every way to every point. Operators
of one kind have equal differences of a and b, so that a set of n of them leaves n + 1 points; what is kept in the end is the
staircase of time against the most micro-batches in flight.

Times are kept as sums that copies divide: what does not depend on the choice of ways apart from the staircase of what does.

Search
------
Whether all stages can be done within T is decided by dynamic programming from the sink: g[I][s] is the least number of devices that
run everything outside of the down-set I with s copies in all. A stage between J and I with d copies of t devices continues s when
ceil((s + d) / d) micro-batches in flight are within what it can hold at time T, which is s <= (Y - 1) d; then
g[J][s + d] = min(g[I][s] + d t). T is found by bisection, and in the end among the stages' own times, so that the answer is exact.

What is left to do needs at least sum_v min_t(t p_v) / T devices, which prunes most states.

References
----------
Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import EQUAL, PROOF_SLACK, ROUNDING
from strategies.limits import Clock, OutOfTimeError
from strategies.placement.chain import TooManyIdealsError, enumerate_ideals
from strategies.placement.contraction import BlockGraph, topological_rank
from strategies.placement.problem import NodeId

__all__ = [
    "UNLIMITED",
    "Front",
    "PiperOption",
    "PiperPlan",
    "PiperProblem",
    "PiperResult",
    "PiperStage",
    "StageTables",
    "TooManyPointsError",
    "add_operator",
    "best_ways",
    "empty_front",
    "solve_piper",
    "stage_time",
    "staircase",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperOption:
    """One way to run an operator on a number of devices."""

    name: str
    time_s: float  # forward and backward of one micro-batch
    parameter_bytes: float
    stash_bytes: float  # per micro-batch in flight, on every device
    fixed_bytes: float  # weights, optimizer, working buffers, on every device
    sync_in_bytes: Mapping[int, float]  # edge (its number) -> more bytes where the edge enters the stage here
    sync_out_bytes: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperProblem:
    """Nodes in the order of their ids; ``options[v][t]`` are the ways to run node v on t devices."""

    node_ids: tuple[NodeId, ...]
    names: tuple[str, ...]
    options: tuple[Mapping[int, tuple[PiperOption, ...]], ...]
    edge_source: IntArray
    edge_target: IntArray
    edge_bytes: FloatArray
    num_devices: int
    memory_bytes: float
    num_micro_batches: int  # of one batch
    bandwidth_bytes_per_s: float

    @property
    def num_nodes(self) -> int:
        """Operators."""
        return len(self.node_ids)

    @property
    def capacity_bytes(self) -> float:
        """Memory of a device with the room for rounding that every solver grants."""
        return self.memory_bytes * (1.0 + ROUNDING)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor-parallel degrees that some operator has ways for, ascending."""
        return tuple(sorted({t for ways in self.options for t in ways}))

    @property
    def copies(self) -> tuple[int, ...]:
        """Data-parallel degrees: divisors of the number of micro-batches, ascending, within the devices."""
        most = min(self.num_devices, self.num_micro_batches)
        return tuple(d for d in range(1, most + 1) if self.num_micro_batches % d == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperStage:
    """One stage of a plan, from the source side."""

    nodes: tuple[int, ...]
    ways: tuple[int, ...]  # per node: which of options[v][tensor_parallel]
    data_parallel: int
    tensor_parallel: int
    in_flight: int  # y: micro-batches whose activations a device keeps
    time_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperPlan:
    """Stages in the order of the data."""

    stages: tuple[PiperStage, ...]

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return sum(stage.data_parallel * stage.tensor_parallel for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperResult:
    """The best plan and how good it can be at most."""

    plan: PiperPlan | None
    objective: float  # seconds per micro-batch; infinite without a plan
    bound: float
    method: str
    proof: str
    wall_s: float = 0.0
    stopped: str = ""

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; infinite when nothing was found but something may exist."""
        if not np.isfinite(self.objective):
            return 0.0 if not np.isfinite(self.bound) else float("inf")
        return max(0.0, (self.objective - self.bound) / self.objective) if self.objective > 0 else 0.0

    @property
    def proven_optimal(self) -> bool:
        """Whether no plan is better, but for rounding."""
        return self.gap <= PROOF_SLACK


def stage_time(
    problem: PiperProblem, nodes: tuple[int, ...], ways: tuple[int, ...], data_parallel: int, tensor_parallel: int
) -> float:
    """Time of one stage per micro-batch: T_i of the module's notes, term by term."""
    inside = set(nodes)
    busy = moved = parameters = 0.0
    for v, way in zip(nodes, ways, strict=True):
        option = problem.options[v][tensor_parallel][way]
        busy += option.time_s
        parameters += option.parameter_bytes
        for e in np.flatnonzero(problem.edge_target == v).tolist():
            if int(problem.edge_source[e]) not in inside:
                moved += 2 * (problem.edge_bytes[e] + option.sync_in_bytes.get(e, 0.0))
        for e in np.flatnonzero(problem.edge_source == v).tolist():
            if int(problem.edge_target[e]) not in inside:
                moved += 2 * (problem.edge_bytes[e] + option.sync_out_bytes.get(e, 0.0))
    bandwidth, d = problem.bandwidth_bytes_per_s, data_parallel
    resync = 4 * (d - 1) * parameters / (d * problem.num_micro_batches * bandwidth)
    return float((busy + moved / bandwidth) / d + resync)


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


METHOD = "dynamic programming over down-sets, devices and copies"
MAX_IDEALS = 2_000
# First limits above the bound of the compute; then twice as much each time.
_RISE = (1.02, 1.06, 1.12, 1.25, 1.5)
# Bisection ends here, relatively; what is left are single stages' times.
_CLOSE = 2e-4
_NOTHING = np.int64(1) << 40


def solve_piper(problem: PiperProblem, *, clock: Clock | None = None, max_ideals: int = MAX_IDEALS) -> PiperResult:
    """Find the stages, copies, tensor-parallel degrees and ways with the fastest slowest stage.

    Parameters
    ----------
    problem : PiperProblem
    clock : Clock, optional
    max_ideals : int
        Graphs with more down-sets are refused.

    Returns
    -------
    PiperResult
        Without a plan and with an infinite bound where provably nothing fits.
    """
    clock = clock or Clock()
    search = _Search(problem, clock)
    try:
        search.run(max_ideals)
    except (TooManyIdealsError, TooManyPointsError) as error:
        return search.result(f"{error}; {search.proof}")
    except OutOfTimeError:
        return search.result(f"stopped by the time limit; {search.proof}", stopped="time limit")
    except KeyboardInterrupt:
        return search.result(f"interrupted; {search.proof}", stopped="interrupted")
    return search.result(search.proof)


class _Search:
    """Best plan and bound so far."""

    def __init__(self, problem: PiperProblem, clock: Clock) -> None:
        self._problem, self._clock = problem, clock
        work = sum(min(t * option.time_s for t, ways in node.items() for option in ways) for node in problem.options)
        self._bound = work / problem.num_devices
        self._plan: PiperPlan | None = None
        self._value = np.inf
        self.proof = "compute divided evenly"

    def run(self, max_ideals: int) -> None:
        """Bracket, bisect, and finish among the stages' own times."""
        stages = StageTables.build(self._problem, max_ideals, self._clock)
        self.proof = (
            f"exhaustive: every stage between {stages.num_ideals:,} down-sets, every number of copies and devices"
        )
        longest = float(np.max(stages.all_times(), initial=0.0))
        limits = [self._bound * rise for rise in _RISE]
        while limits[-1] < longest:
            limits.append(max(limits[-1] * 2, longest * 2**-20))
        for limit in limits:
            if self._try(stages, limit * (1 + ROUNDING)):
                break
        else:
            self._bound = np.inf
            return
        while self._value - self._bound > _CLOSE * self._value:
            self._try(stages, (self._value + self._bound) / 2)
        times = stages.all_times()
        times = np.unique(times[(times > self._bound) & (times < self._value * (1 - ROUNDING))])
        while len(times):
            middle = len(times) // 2
            self._try(stages, float(times[middle]) * (1 + ROUNDING))
            times = times[(times > self._bound) & (times < self._value * (1 - ROUNDING))]
        self._bound = self._value

    def _try(self, stages: StageTables, limit: float) -> bool:
        self._clock.check()
        self._clock.report("stages within a limit", self._value, self._bound)
        found = _decide(stages, limit, self._clock)
        if found is None:
            self._bound = max(self._bound, limit)
            return False
        plan = _plan(self._problem, stages, found)
        value = max(stage.time_s for stage in plan.stages)
        assert value <= limit * (1 + EQUAL), "a plan is slower than its limit"
        if value < self._value:
            self._plan, self._value = plan, value
        return True

    def result(self, proof: str, *, stopped: str = "") -> PiperResult:
        """What was found, for the caller."""
        return PiperResult(
            plan=self._plan,
            objective=self._value,
            bound=min(self._bound, self._value),
            method=METHOD,
            proof=proof,
            wall_s=self._clock.elapsed_s,
            stopped=stopped,
        )


@dataclass(frozen=True, slots=True)
class _Choice:
    """A stage of a plan that was found: its number, degree, copies and micro-batches in flight."""

    stage: int
    degree: int
    copies: int
    in_flight: int


def _decide(stages: StageTables, limit: float, clock: Clock) -> list[_Choice] | None:
    """Find stages that are all within the limit, from the source side; None where there are none."""
    problem = stages.problem
    most_copies = min(problem.num_micro_batches, problem.num_devices)
    with np.errstate(invalid="ignore"):
        steps = np.sum(stages.stage_times() <= limit, axis=3)
    flight = np.broadcast_to(stages.most, (*steps.shape, stages.most.shape[3]))
    held = np.take_along_axis(flight, np.maximum(steps - 1, 0)[..., None], axis=3)[..., 0] * (steps > 0)
    need = stages.work / max(limit, 1e-300) * (1 - EQUAL)
    devices = np.full((stages.num_ideals, most_copies + 1), _NOTHING)
    origin = np.full((stages.num_ideals, most_copies + 1), -1, dtype=np.int64)
    devices[-1, 0] = 0
    combos = [(k, t, c, d) for k, t in enumerate(stages.degrees) for c, d in enumerate(stages.copies)]
    code = {(k, c): i for i, (k, _, c, _) in enumerate(combos)}
    for stage in np.flatnonzero(np.any(held > 0, axis=(1, 2))).tolist():
        clock.check()
        j, i = int(stages.inner[stage]), int(stages.outer[stage])
        room = problem.num_devices - need[j]
        least = int(devices[i].min())
        if least > room:
            continue
        last = int(np.flatnonzero(devices[i] < _NOTHING)[-1])
        for k, c in np.argwhere(held[stage] > 0).tolist():
            t, d = stages.degrees[k], stages.copies[c]
            if least + d * t > room:
                continue
            reach = min((int(held[stage, k, c]) - 1) * d, most_copies - d, last)
            if reach < 0:
                continue
            value = devices[i, : reach + 1] + d * t
            target = devices[j, d : d + reach + 1]
            better = (value < target) & (value <= room)
            target[better] = value[better]
            origin[j, d : d + reach + 1][better] = stage * len(combos) + code[k, c]
    if devices[0].min() >= _NOTHING:
        return None
    return _walk(stages, origin, int(np.argmin(devices[0])), combos)


def _walk(stages: StageTables, origin: IntArray, copies: int, combos: list[tuple[int, int, int, int]]) -> list[_Choice]:
    """Follow the stages from the source to the sink."""
    found = []
    ideal, s = 0, copies
    while ideal != stages.num_ideals - 1:
        stage, combo = divmod(int(origin[ideal, s]), len(combos))
        _, t, _, d = combos[combo]
        found.append(_Choice(stage, t, d, -(-s // d)))
        ideal, s = int(stages.outer[stage]), s - d
    return found


def _plan(problem: PiperProblem, stages: StageTables, found: list[_Choice]) -> PiperPlan:
    """Choose the fastest ways of each stage for its micro-batches in flight."""
    made = []
    for choice in found:
        members = stages.inside[stages.outer[choice.stage]] & ~stages.inside[stages.inner[choice.stage]]
        nodes = tuple(np.flatnonzero(members).tolist())
        t, d, y = choice.degree, choice.copies, choice.in_flight
        options = [problem.options[v][t] for v in nodes]
        memories = [np.array([o.stash_bytes * y + o.fixed_bytes for o in ways]) for ways in options]
        # Time of a way by the difference that it makes to the whole stage: independent of how the program adds up.
        base = (0,) * len(nodes)
        least = stage_time(problem, nodes, base, d, t)
        times = [
            np.array([_with_way(problem, nodes, n, way, d, t) - least for way in range(len(ways))])
            for n, ways in enumerate(options)
        ]
        ways = best_ways([time - time.min() for time in times], memories, problem.capacity_bytes)
        assert ways is not None, "a stage does not fit"
        made.append(
            PiperStage(
                nodes=nodes,
                ways=ways,
                data_parallel=d,
                tensor_parallel=t,
                in_flight=y,
                time_s=stage_time(problem, nodes, ways, d, t),
                memory_bytes=float(sum(memories[n][way] for n, way in enumerate(ways))),
            )
        )
    return PiperPlan(stages=tuple(made))


def _with_way(problem: PiperProblem, nodes: tuple[int, ...], position: int, way: int, d: int, t: int) -> float:
    ways = tuple(way if n == position else 0 for n in range(len(nodes)))
    return stage_time(problem, nodes, ways, d, t)


assert UNLIMITED <= _NOTHING
