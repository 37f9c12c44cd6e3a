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

from costmodel.arrays import IntArray
from costmodel.tolerances import EQUAL, ROUNDING
from strategies.placement.clock import Clock, OutOfTimeError
from strategies.placement.ideals import TooManyIdealsError
from strategies.placement.piper_problem import PiperPlan, PiperProblem, PiperResult, PiperStage, stage_time
from strategies.placement.piper_stages import UNLIMITED, StageTables, TooManyPointsError, best_ways

__all__ = ["solve_piper"]

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
