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
from costmodel.tolerances import EQUAL, ROUNDING
from strategies.layerwise.dominance import undominated
from strategies.limits import Clock, why_stopped
from strategies.placement.chain import TooManyIdealsError, enumerate_ideals, holding
from strategies.placement.contraction import BlockGraph, topological_rank
from strategies.placement.problem import BestSoFar, NodeId, SearchResult


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
class PiperResult(SearchResult):
    """The best plan and how good it can be at most; the objective is seconds per micro-batch."""

    plan: PiperPlan | None


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


def data_parallel_time(problem: PiperProblem) -> float:
    """Time of all operators as one stage, each in its first way on one device, with as many copies as there can be; memory aside."""
    nodes = tuple(range(problem.num_nodes))
    is_given = all(1 in ways for ways in problem.options)
    return stage_time(problem, nodes, (0,) * len(nodes), max(problem.copies), 1) if is_given else float("inf")


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
    """Points that no other point beats: times, stashed bytes per micro-batch, fixed bytes, and the way of each operator."""

    time: FloatArray
    stash: FloatArray
    fixed: FloatArray
    ways: IntArray  # (points, operators)


def empty_front() -> Front:
    """Trade-off of a stage without operators."""
    zero = np.zeros(1)
    return Front(zero, zero, zero, np.zeros((1, 0), dtype=np.int64))


def add_operator(front: Front, time: FloatArray, stash: FloatArray, fixed: FloatArray, capacity: float) -> Front:
    """Add an operator with some ways to run; points that do not fit with one micro-batch are left out.

    Examples
    --------
    >>> ways = np.array([1.0, 3.0]), np.array([4.0, 1.0]), np.zeros(2)
    >>> two = add_operator(add_operator(empty_front(), *ways, 100.0), *ways, 100.0)
    >>> two.time.tolist(), two.stash.tolist(), two.ways.tolist()
    ([2.0, 4.0, 6.0], [8.0, 5.0, 2.0], [[0, 0], [0, 1], [1, 1]])
    """
    times = (front.time[:, None] + time).ravel()
    stashes = (front.stash[:, None] + stash).ravel()
    fixes = (front.fixed[:, None] + fixed).ravel()
    fits = np.flatnonzero(stashes + fixes <= capacity)
    keep = fits[undominated(np.zeros_like(fits), np.column_stack((times, stashes, fixes))[fits])]
    if len(keep) > MAX_POINTS:
        raise TooManyPointsError
    before, way = np.divmod(keep, len(time))
    return Front(times[keep], stashes[keep], fixes[keep], np.column_stack((front.ways[before], way)))


def staircase(front: Front, capacity: float) -> tuple[FloatArray, IntArray]:
    """Ascending times and the most micro-batches in flight that fit at each; both rise.

    Examples
    --------
    >>> front = Front(np.array([1.0, 2.0]), np.array([4.0, 1.0]), np.zeros(2), np.array([[0], [1]]))
    >>> times, most = staircase(front, 9.0)
    >>> times.tolist(), most.tolist()
    ([1.0, 2.0], [2, 9])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.floor((capacity - front.fixed) / front.stash)
    most = np.where(front.stash > 0, np.minimum(most, UNLIMITED), UNLIMITED).astype(np.int64)
    best = np.maximum.accumulate(most) if len(most) else most
    rises = np.flatnonzero((most >= 1) & (np.concatenate(([0], best[:-1])) < best)) if len(most) else most
    return front.time[rises], best[rises]


class StageTables:
    """Every stage between two down-sets, with its staircase of time against micro-batches in flight.

    The staircases have an axis for the number of copies of length 1 where the choice of ways does not depend on it.

    Parameters
    ----------
    problem : PiperProblem
    max_ideals : int
        Most down-sets.
    clock : Clock

    Raises
    ------
    TooManyIdealsError
        The graph has more down-sets than allowed.
    TooManyPointsError
        A stage has too many trade-offs of time against memory.
    """

    def __init__(self, problem: PiperProblem, max_ideals: int, clock: Clock) -> None:
        self.problem = problem
        graph = _block_graph(problem)
        family = enumerate_ideals(graph, limit=max_ideals)
        self.num_ideals = len(family)
        by_block = np.stack([holding(family.bits, b) for b in range(problem.num_nodes)], axis=1)
        nested = [np.flatnonzero(~np.any(by_block & ~row, axis=1)) for row in by_block]
        # Down-sets of the stages, (stages,): ordered by outer, from everything down.
        self.outer = np.concatenate([np.full(len(js) - 1, i) for i, js in reversed(list(enumerate(nested)))])
        self.inner = np.concatenate([js[js != i] for i, js in reversed(list(enumerate(nested)))])
        inside = by_block[:, graph.block]
        least = [min(t * o.time_s for t, ways in node.items() for o in ways) for node in problem.options]
        self.work = inside @ np.array(least)  # (ideals,) least device time of what a down-set holds
        self._node_of_block = np.argsort(graph.block)
        self._members = by_block[self.outer] & ~by_block[self.inner]  # (stages, blocks)
        self._simple = np.array([_is_simple(ways) for ways in problem.options], dtype=np.bool_)
        self._charge(inside[self.outer] & ~inside[self.inner])
        # (stages, degrees, copies or 1, steps): sums of times, ascending, padded by infinity; micro-batches in flight, padded by 0.
        self.times, self.most = self._staircases(by_block, clock)

    def stage_times(self) -> FloatArray:
        """Time of every step (stages, degrees, copies, steps)."""
        d = np.array(self.problem.copies, dtype=np.float64)[:, None]
        total = (self.times + self._shared[:, :, None, None]) / d
        return np.asarray(total + self._resync[:, :, None, None] * (d - 1) / d)

    def all_times(self) -> FloatArray:
        """Finite times of all steps, in no order."""
        times = self.stage_times()
        return times[np.isfinite(times)]

    def front(self, stage: int, t: int, d: int) -> tuple[list[int], Front]:
        """Operators of a stage, and their trade-offs on d copies of t devices."""
        nodes = self._node_of_block[self._members[stage]].tolist()
        front = empty_front()
        for v in nodes:
            front = self._with(front, stage, v, t, d)
        return nodes, front

    def _charge(self, members: BoolArray) -> None:
        """What stages pay for edges and parameters, as far as it does not depend on the ways."""
        problem, degrees = self.problem, self.problem.degrees
        self._enters = ~members[:, problem.edge_source] & members[:, problem.edge_target]
        self._leaves = members[:, problem.edge_source] & ~members[:, problem.edge_target]
        moved = np.repeat((2 * (self._enters | self._leaves) @ problem.edge_bytes)[:, None], len(degrees), axis=1)
        parameters = np.zeros_like(moved)
        self._allowed = np.ones(moved.shape, dtype=np.bool_)
        for k, t in enumerate(degrees):
            for v, ways in enumerate(problem.options):
                if t not in ways:
                    self._allowed[members[:, v], k] = False
                elif self._simple[v]:
                    way = ways[t][0]
                    parameters[:, k] += members[:, v] * way.parameter_bytes
                    for e, size in way.sync_in_bytes.items():
                        moved[:, k] += 2 * size * self._enters[:, e]
                    for e, size in way.sync_out_bytes.items():
                        moved[:, k] += 2 * size * self._leaves[:, e]
        self._shared = moved / problem.bandwidth_bytes_per_s  # (stages, degrees) seconds to be divided by d
        self._resync = 4 * parameters / (problem.num_micro_batches * problem.bandwidth_bytes_per_s)

    def _with(self, front: Front, stage: int, v: int, t: int, d: int) -> Front:
        """Add an operator to the front of a stage; times are those of d copies together, with everything that depends on the way."""
        ways = self.problem.options[v][t]
        times = np.array([way.time_s for way in ways])
        if not self._simple[v]:
            bandwidth = self.problem.bandwidth_bytes_per_s
            for i, way in enumerate(ways):
                moved = sum(2 * size for e, size in way.sync_in_bytes.items() if self._enters[stage, e])
                moved += sum(2 * size for e, size in way.sync_out_bytes.items() if self._leaves[stage, e])
                times[i] += moved / bandwidth
                times[i] += 4 * (d - 1) * way.parameter_bytes / (self.problem.num_micro_batches * bandwidth)
        stash = np.array([way.stash_bytes for way in ways])
        fixed = np.array([way.fixed_bytes for way in ways])
        return add_operator(front, times, stash, fixed, self.problem.capacity_bytes)

    def _staircases(self, by_block: BoolArray, clock: Clock) -> tuple[FloatArray, IntArray]:
        """Staircase of every stage, degree and (where ways depend on it) number of copies."""
        problem = self.problem
        depends = not bool(np.all(self._simple))
        copies = problem.copies if depends else (1,)
        index = {row.tobytes(): i for i, row in enumerate(by_block)}
        fronts: dict[tuple[int, int, int], Front] = {}
        steps: dict[tuple[int, int, int], tuple[FloatArray, IntArray]] = {}
        for stage in range(len(self.inner) - 1, -1, -1):  # smaller down-sets first
            clock.check()
            last = int(np.flatnonzero(self._members[stage])[-1])
            without = by_block[self.outer[stage]].copy()
            without[last] = False
            inner, outer, before = int(self.inner[stage]), int(self.outer[stage]), index[without.tobytes()]
            for k in np.flatnonzero(self._allowed[stage]).tolist():
                t = problem.degrees[k]
                for c, d in enumerate(copies):
                    if depends:
                        _, front = self.front(stage, t, d)
                    else:
                        known = fronts.get((inner, before, t), empty_front())
                        front = self._with(known, stage, int(self._node_of_block[last]), t, d)
                        fronts[inner, outer, t] = front
                    steps[stage, k, c] = staircase(front, problem.capacity_bytes)
        width = max((len(times) for times, _ in steps.values()), default=0)
        all_times = np.full((len(self.inner), len(problem.degrees), len(copies), max(1, width)), np.inf)
        all_most = np.zeros(all_times.shape, dtype=np.int64)
        for place, (times, most) in steps.items():
            all_times[place][: len(times)] = times
            all_most[place][: len(times)] = most
        return all_times, all_most


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


METHOD = "dynamic programming over predecessor-closed sets, devices and copies"
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
        return search.result(why_stopped(lambda: search.run(max_ideals)))
    except (TooManyIdealsError, TooManyPointsError) as error:
        search.proof = f"{error}; {search.proof}"
        return search.result("")


class _Search(BestSoFar):
    """Best plan and bound so far."""

    def __init__(self, problem: PiperProblem, clock: Clock) -> None:
        work = sum(min(t * option.time_s for t, ways in node.items() for option in ways) for node in problem.options)
        super().__init__(clock, 0.0, work / problem.num_devices, "compute divided evenly", METHOD)
        self._problem = problem
        self._plan: PiperPlan | None = None

    def run(self, max_ideals: int) -> None:
        """Bracket, bisect, and finish among the stages' own times."""
        stages = StageTables(self._problem, max_ideals, self.clock)
        self.proof = f"exhaustive: every stage between {stages.num_ideals:,} predecessor-closed sets, every number of copies and devices"
        longest = float(np.max(stages.all_times(), initial=0.0))
        limits = [self.bound * rise for rise in _RISE]
        while limits[-1] < longest:
            limits.append(max(limits[-1] * 2, longest * 2**-20))
        for limit in limits:
            if self._try(stages, limit * (1 + ROUNDING)):
                break
        else:
            self.bound = np.inf
            return
        while self.value - self.bound > _CLOSE * self.value:
            self._try(stages, (self.value + self.bound) / 2)
        times = stages.all_times()
        times = np.unique(times[(times > self.bound) & (times < self.value * (1 - ROUNDING))])
        while len(times):
            middle = len(times) // 2
            self._try(stages, float(times[middle]) * (1 + ROUNDING))
            times = times[(times > self.bound) & (times < self.value * (1 - ROUNDING))]
        self.bound = self.value

    def _try(self, stages: StageTables, limit: float) -> bool:
        self.clock.check()
        self.clock.report("stages within a limit", self.value, self.bound)
        plan = _decide(stages, limit, self.clock)
        if plan is None:
            self.bound = max(self.bound, limit)
            return False
        value = max(stage.time_s for stage in plan.stages)
        assert value <= limit * (1 + EQUAL), "a plan is slower than its limit"
        if value < self.value:
            self._plan, self.value = plan, value
        return True

    def result(self, stopped: str) -> PiperResult:
        return PiperResult(
            plan=self._plan,
            objective=self.value,
            bound=min(self.bound, self.value),
            method=self.method,
            proof=self.proof,
            wall_s=self.clock.elapsed_s,
            stopped=stopped,
        )


def _decide(stages: StageTables, limit: float, clock: Clock) -> PiperPlan | None:
    """Find stages that are all within the limit; None where there are none."""
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
    degrees, copies = problem.degrees, problem.copies
    for stage in np.flatnonzero(np.any(held > 0, axis=(1, 2))).tolist():
        clock.check()
        j, i = int(stages.inner[stage]), int(stages.outer[stage])
        room = problem.num_devices - need[j]
        least = int(devices[i].min())
        if least > room:
            continue
        last = int(np.flatnonzero(devices[i] < _NOTHING)[-1])
        for k, c in np.argwhere(held[stage] > 0).tolist():
            t, d = degrees[k], copies[c]
            if least + d * t > room:
                continue
            reach = min((int(held[stage, k, c]) - 1) * d, most_copies - d, last)
            if reach < 0:
                continue
            value = devices[i, : reach + 1] + d * t
            target = devices[j, d : d + reach + 1]
            better = (value < target) & (value <= room)
            target[better] = value[better]
            origin[j, d : d + reach + 1][better] = (stage * len(degrees) + k) * len(copies) + c
    if devices[0].min() >= _NOTHING:
        return None
    made = []
    ideal, s = 0, int(np.argmin(devices[0]))
    while ideal != stages.num_ideals - 1:  # from the source side
        rest, c = divmod(int(origin[ideal, s]), len(copies))
        stage, k = divmod(rest, len(degrees))
        made.append(_stage(stages, stage, degrees[k], copies[c], -(-s // copies[c])))
        ideal, s = int(stages.outer[stage]), s - copies[c]
    return PiperPlan(stages=tuple(made))


def _stage(stages: StageTables, stage: int, t: int, d: int, in_flight: int) -> PiperStage:
    """The fastest ways of a stage for its micro-batches in flight."""
    problem = stages.problem
    members, front = stages.front(stage, t, d)
    memory = front.stash * in_flight + front.fixed
    best = int(np.flatnonzero(memory <= problem.capacity_bytes)[0])
    chosen = sorted(zip(members, front.ways[best].tolist(), strict=True))
    nodes, ways = tuple(v for v, _ in chosen), tuple(way for _, way in chosen)
    return PiperStage(
        nodes=nodes,
        ways=ways,
        data_parallel=d,
        tensor_parallel=t,
        in_flight=in_flight,
        time_s=stage_time(problem, nodes, ways, d, t),
        memory_bytes=float(memory[best]),
    )


assert UNLIMITED <= _NOTHING
