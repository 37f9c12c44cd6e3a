"""Pipeline x data x tensor parallel training with the choice of recomputation: exact minimum of the slowest stage.

Notes
-----
Whether all stages can be done within T is decided by dynamic programming from the sink: g[I][s] is the least number of devices that
run everything outside of the down-set I with s copies in all. A stage between J and I with d copies of t devices continues s when
ceil((s + d) / d) micro-batches in flight are within what it can hold at time T, which is s <= (Y - 1) d; then
g[J][s + d] = min(g[I][s] + d t). T is found by bisection, and in the end among the stages' own times, so that the answer is exact.

What is left to do needs at least sum_v min_t(t p_v) / T devices, which prunes most states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.placement.clock import Clock, OutOfTimeError
from strategies.placement.contraction import BlockGraph, topological_rank
from strategies.placement.ideals import TooManyIdealsError, enumerate_ideals
from strategies.placement.piper_fronts import (
    UNLIMITED,
    Front,
    TooManyPointsError,
    add_operator,
    best_ways,
    empty_front,
    staircase,
)
from strategies.placement.piper_problem import PiperPlan, PiperProblem, PiperResult, PiperStage, stage_time
from strategies.placement.problem import FloatArray, IntArray

__all__ = ["solve_piper"]

METHOD = "dynamic programming over down-sets, devices and copies"
MAX_IDEALS = 2_000
# First limits above the bound of the compute; then twice as much each time.
_RISE = (1.02, 1.06, 1.12, 1.25, 1.5)
# Bisection ends here, relatively; what is left are single stages' times.
_CLOSE = 2e-4
_TINY = 1e-12
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
        work = sum(
            min(t * option.time_s for t, ways in node.items() for option in ways) for node in problem.options
        )
        self._bound = work / problem.num_devices
        self._plan: PiperPlan | None = None
        self._value = np.inf
        self.proof = "compute divided evenly"

    def run(self, max_ideals: int) -> None:
        """Bracket, bisect, and finish among the stages' own times."""
        stages = _Stages.build(self._problem, max_ideals, self._clock)
        self.proof = f"exhaustive: every stage between {stages.num_ideals:,} down-sets, every number of copies and devices"
        longest = float(np.max(stages.all_times(), initial=0.0))
        limits = [self._bound * rise for rise in _RISE]
        while limits[-1] < longest:
            limits.append(max(limits[-1] * 2, longest * 2**-20))
        for limit in limits:
            if self._try(stages, limit * (1 + _TINY)):
                break
        else:
            self._bound = np.inf
            return
        while self._value - self._bound > _CLOSE * self._value:
            self._try(stages, (self._value + self._bound) / 2)
        times = stages.all_times()
        times = np.unique(times[(times > self._bound) & (times < self._value * (1 - _TINY))])
        while len(times):
            middle = len(times) // 2
            self._try(stages, float(times[middle]) * (1 + _TINY))
            times = times[(times > self._bound) & (times < self._value * (1 - _TINY))]
        self._bound = self._value

    def _try(self, stages: _Stages, limit: float) -> bool:
        self._clock.check()
        self._clock.report("stages within a limit", self._value, self._bound)
        found = _decide(stages, limit, self._clock)
        if found is None:
            self._bound = max(self._bound, limit)
            return False
        plan = _plan(self._problem, stages, found)
        value = max(stage.time_s for stage in plan.stages)
        assert value <= limit * (1 + 1e-9), "a plan is slower than its limit"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    """Every stage between two down-sets, with its staircase of time against micro-batches in flight.

    The staircases have an axis for the number of copies of length 1 where the choice of ways does not depend on it.
    """

    problem: PiperProblem
    inside: NDArray[np.bool_]  # (ideals, nodes)
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
    def build(cls, problem: PiperProblem, max_ideals: int, clock: Clock) -> _Stages:
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


def _is_simple(ways: object) -> bool:
    """Whether an operator's ways differ in time and memory only, for every degree."""
    assert isinstance(ways, dict)
    return all(
        len({(o.parameter_bytes, tuple(sorted(o.sync_in_bytes.items())), tuple(sorted(o.sync_out_bytes.items()))) for o in options}) == 1
        for options in ways.values()
    )


class _Tables:
    """What stages pay for edges and parameters, by the part that depends on the ways and the part that does not."""

    def __init__(self, problem: PiperProblem, members: NDArray[np.bool_], simple: NDArray[np.bool_]) -> None:
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
    by_block: NDArray[np.bool_],
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


@dataclass(frozen=True, slots=True)
class _Choice:
    """A stage of a plan that was found: its number, degree, copies and micro-batches in flight."""

    stage: int
    degree: int
    copies: int
    in_flight: int


def _decide(stages: _Stages, limit: float, clock: Clock) -> list[_Choice] | None:
    """Find stages that are all within the limit, from the source side; None where there are none."""
    problem = stages.problem
    most_copies = min(problem.num_micro_batches, problem.num_devices)
    with np.errstate(invalid="ignore"):
        steps = np.sum(stages.stage_times() <= limit, axis=3)
    flight = np.broadcast_to(stages.most, (*steps.shape, stages.most.shape[3]))
    held = np.take_along_axis(flight, np.maximum(steps - 1, 0)[..., None], axis=3)[..., 0] * (steps > 0)
    need = stages.work / max(limit, 1e-300) * (1 - 1e-9)
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


def _walk(
    stages: _Stages, origin: IntArray, copies: int, combos: list[tuple[int, int, int, int]]
) -> list[_Choice]:
    """Follow the stages from the source to the sink."""
    found = []
    ideal, s = 0, copies
    while ideal != stages.num_ideals - 1:
        stage, combo = divmod(int(origin[ideal, s]), len(combos))
        _, t, _, d = combos[combo]
        found.append(_Choice(stage, t, d, -(-s // d)))
        ideal, s = int(stages.outer[stage]), s - d
    return found


def _plan(problem: PiperProblem, stages: _Stages, found: list[_Choice]) -> PiperPlan:
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
