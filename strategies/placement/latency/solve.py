"""Placement for latency: the least time from the first input to the last output, with a bound at any time.

Notes
-----
1. Simple placements and the critical path enclose the latency.
2. Down-sets of the graph of atoms and all steps between them (`steps`). Flows (`Flows`) give bounds, and their shortest paths solutions.
3. Steps with which no solution is below the best one are left out: few are left.
4. Labels (`labels`) with a cap find better solutions, without one they prove limits that rise from the bound to the best value.

With several subgraphs per accelerator the same search allows as many calls as all accelerators have together, each within an
accelerator's memory. That is a relaxation: the calls of an accelerator may overlap in time or exceed its memory together, but for those
that share a colour class (`bundles`). Its solutions are packed into accelerators (`packing`) and improved by moves (`improve`); where
the best one fits, it is optimal. With few operators all placements are tried (`search_all`).

All placements
--------------
A search of every solution of a small problem, with accelerators distinguished, closes what relaxed searches leave open. Order the calls
of a solution and the operators on CPUs so that each follows what it waits for, an accelerator's own calls included. After each a
down-set has been run, so a solution is a path of steps between down-sets; a step is one operator on a CPU, or what the next down-set
adds as one call of one accelerator. A state is what the rest depends on: the down-set, which torn colour class is where, and for every
accelerator its calls left, its room and when it is free; and the times of the outputs that are still read. States that another one
beats in everything are dropped, as are those that cannot end below the best latency: an operator that has not been run starts no
earlier than its inputs are there, and the longest path after it follows. Accelerators that were not used yet are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costmodel.tolerances import EQUAL, PROOF_SLACK
from strategies.limits import Clock, why_stopped
from strategies.placement.contraction import contract
from strategies.placement.latency.evaluate import (
    CPU,
    PATH_PROOF,
    all_on_cpus,
    critical_path,
    evaluate,
    fill,
    improve,
    on_one_accelerator,
    placement_of,
)
from strategies.placement.latency.lattice import search_lattices
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = ["ExhaustiveAnswer", "search_all", "solve_latency"]


MOVES_METHOD = "moves of operators"
EXHAUSTIVE_METHOD = "all placements of few operators"
EXHAUSTIVE_PROOF = "exhaustive: all placements"
# With more down-sets than this the bound is the critical path's.
MAX_IDEALS = 100_000
# With more operators than this not all placements are tried; nor more states than so many, some seconds.
_FEW = 16
_MOST_STATES = 150_000


def solve_latency(
    problem: PlacementProblem,
    *,
    num_subgraphs: int = 1,
    gap: float = 0.0,
    clock: Clock | None = None,
) -> PlacementResult:
    """Place operators so that the last output is there as soon as possible.

    Parameters
    ----------
    problem : PlacementProblem
        Of forward operators; CPUs are unlimited.
    num_subgraphs : int
        Most calls of an accelerator.
    gap : float
        Stop when the bound is this near, relatively.
    clock : Clock, optional

    Examples
    --------
    Two branches of 4 after an operator of 1; an accelerator holds two of the three:

    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=t, cpu_time=9 * t, size_bytes=1.0) for i, t in enumerate((1.0, 4.0, 4.0))]
    >>> edges = [EdgeSpec(0, 1, 0.5), EdgeSpec(0, 2, 0.5)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=1, memory_bytes=2.0)
    >>> result = solve_latency(problem)
    >>> result.objective, result.proven_optimal, result.placement.device.tolist()
    (10.0, True, [0, 0, 1])
    """
    search = _Search(problem, num_subgraphs, gap, clock or Clock())
    return search.result(why_stopped(search.run))


class _Search:
    """Best placement and best bound so far."""

    def __init__(self, problem: PlacementProblem, num_subgraphs: int, gap: float, clock: Clock) -> None:
        self.problem, self.num_subgraphs, self._gap, self._clock = problem, num_subgraphs, gap, clock
        self.best = all_on_cpus(problem)
        self.value = evaluate(problem, self.best).latency
        self.bound, self.proof = critical_path(problem), PATH_PROOF
        self.method = "everything on CPUs"
        self.stage = "first placement"

    def run(self) -> None:
        """Search until the gap is closed or every means is used up."""
        problem = self.problem
        self.offer(on_one_accelerator(problem), "one device")
        self._clock.check()
        self.offer(fill(problem, contract(problem)), "greedy")
        if problem.num_accelerators == 0:
            self.raise_bound(self.value, "there are no accelerators")
        if self.is_done():
            return
        self.stage = "chains of down-sets"
        self._clock.check()
        search_lattices(self, MAX_IDEALS)
        if not self.is_done() and problem.num_nodes <= _FEW:
            self.close()
        if not self.is_done():
            self.stage = "moves"
            improve(
                problem,
                self.best,
                num_subgraphs=self.num_subgraphs,
                clock=self._clock,
                found=lambda placement, _: self.offer(placement, MOVES_METHOD),
            )

    def close(self) -> None:
        """Try everything, where there are few operators, within a number of states."""
        self.stage = "all placements"
        answer = search_all(
            self.problem,
            num_subgraphs=self.num_subgraphs,
            limit=self.value,
            most_states=_MOST_STATES,
            clock=self._clock,
        )
        self.offer(answer.placement, EXHAUSTIVE_METHOD)
        if answer.is_complete:
            self.raise_bound(self.value, EXHAUSTIVE_PROOF)

    def offer(self, placement: Placement | None, method: str) -> None:
        """Take a legal placement if it is better."""
        if placement is None:
            return
        value = evaluate(self.problem, placement).latency
        if value < self.value:
            self.best, self.value, self.method = placement, value, method
            self.report()

    def raise_bound(self, bound: float, proof: str) -> None:
        """Take a bound if it is better."""
        if bound > self.bound:
            self.bound, self.proof = bound, proof
            self.report()

    def is_done(self) -> bool:
        """Whether the bound is as near as was asked."""
        return self.bound >= self.value * (1 - max(self._gap, PROOF_SLACK))

    def report(self) -> None:
        """Tell whoever watches."""
        self._clock.report(self.stage, self.value, min(self.bound, self.value))

    @property
    def clock(self) -> Clock:
        """Of this search."""
        return self._clock

    def result(self, stopped: str) -> PlacementResult:
        """What was found."""
        return PlacementResult(
            placement=self.best,
            objective=self.value,
            bound=min(self.bound, self.value),
            method=self.method,
            proof=self.proof,
            wall_s=self._clock.elapsed_s,
            stopped=stopped,
        )


# States between looks at the clock.
_CHECKED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhaustiveAnswer:
    """The best placement below the limit, if any; ``is_complete`` tells that nothing better exists."""

    placement: Placement | None
    latency: float
    is_complete: bool


@dataclass(frozen=True, slots=True)
class _State:
    """What has been run, and when; ``before`` and ``step`` lead back."""

    done: int  # bits of operators
    colors: tuple[int, ...]  # device of each torn class: number of an accelerator, CPU, or _NOWHERE
    calls: tuple[int, ...]  # used by each accelerator
    used: tuple[float, ...]  # bytes
    free: tuple[float, ...]  # when each accelerator has finished
    times: tuple[float, ...]  # of outputs, by operator; 0 where nothing reads them any more
    latest: float
    before: _State | None
    step: tuple[int, int]  # operators (bits) and accelerator, or CPU


_NOWHERE = -2


def search_all(
    problem: PlacementProblem, *, num_subgraphs: int, limit: float, most_states: int, clock: Clock
) -> ExhaustiveAnswer:
    """Search all solutions with a latency below a limit.

    Parameters
    ----------
    problem : PlacementProblem
        Of few operators: at most 62.
    num_subgraphs : int
        Most calls of an accelerator.
    limit : float
    most_states : int
        Give up, and be incomplete, after so many.
    clock : Clock

    Raises
    ------
    OutOfTimeError

    Examples
    --------
    One accelerator with room for two of three operators in a row, in one call: the last runs on a CPU.

    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=3.0, size_bytes=1.0) for i in range(3)]
    >>> edges = [EdgeSpec(0, 1, 0.5), EdgeSpec(1, 2, 0.5)]
    >>> problem = PlacementProblem.build(nodes, edges, num_accelerators=1, num_cpus=1, memory_bytes=2.0)
    >>> answer = search_all(problem, num_subgraphs=1, limit=9.0, most_states=1000, clock=Clock())
    >>> answer.latency, answer.is_complete
    (5.5, True)
    """
    search = _AllPlacements(problem, num_subgraphs, limit)
    made = 0
    for size in range(problem.num_nodes):
        layer = search.layers[size]
        for state in search.undominated(layer):
            for after in search.steps(state):
                search.take(after)
                made += 1
                if made % _CHECKED == 0:
                    clock.check()
                if made > most_states:
                    return search.answer(is_complete=False)
        layer.clear()
    return search.answer(is_complete=True)


class _AllPlacements:
    """Tables of a problem as bits, and the states by number of operators run."""

    def __init__(self, problem: PlacementProblem, num_subgraphs: int, limit: float) -> None:
        self._problem, self._most, self._limit = problem, num_subgraphs, limit
        count = problem.num_nodes
        self._all = (1 << count) - 1
        self._before, self._after = [0] * count, [0] * count
        for u, v in zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True):
            self._before[v] |= 1 << u
            self._after[u] |= 1 << v
        self._fast: list[float] = problem.accelerator_time.tolist()
        self._slow: list[float] = problem.cpu_time.tolist()
        self._size: list[float] = problem.size_bytes.tolist()
        self._cost: list[float] = problem.transfer_time.tolist()
        self._supported = sum(1 << v for v in range(count) if problem.supported[v])
        members: dict[int, int] = {}
        for v, c in enumerate(problem.color.tolist()):
            members[c] = members.get(c, 0) | 1 << v
        self._classes = [bits for bits in members.values() if bits.bit_count() > 1]
        self._rest = self._longest_rest()
        self.layers: list[dict[tuple[object, ...], list[_State]]] = [{} for _ in range(count + 1)]
        none = (0,) * problem.num_accelerators
        zero = (0.0,) * problem.num_accelerators
        first = _State(0, (_NOWHERE,) * len(self._classes), none, zero, zero, (0.0,) * count, 0.0, None, (0, CPU))
        self._best: _State | None = None
        self.take(first)

    def _longest_rest(self) -> list[float]:
        """Least time from each output to the end."""
        count = self._problem.num_nodes
        rest = [-1.0] * count

        def of(v: int) -> float:
            if rest[v] < 0:
                rest[v] = max((self._least(w) + of(w) for w in _bits(self._after[v])), default=0.0)
            return rest[v]

        return [of(v) for v in range(count)]

    def _least(self, v: int) -> float:
        can = self._supported >> v & 1 and self._problem.num_accelerators
        return min(self._fast[v], self._slow[v]) if can else self._slow[v]

    def take(self, state: _State) -> None:
        """Keep a state for its turn, or as the best end."""
        if state.done == self._all:
            if state.latest < self._limit * (1 - EQUAL):
                self._limit, self._best = state.latest, state
            return
        key = (state.done, state.colors, state.calls, state.used)
        self.layers[state.done.bit_count()].setdefault(key, []).append(state)

    def undominated(self, layer: dict[tuple[object, ...], list[_State]]) -> Iterator[_State]:
        """States that may still end below the limit and that no other of the same key beats."""
        for states in layer.values():
            states.sort(key=lambda s: (s.latest, s.free, s.times))
            kept: list[tuple[float, ...]] = []
            for state in states:
                row = (*state.free, *state.times, state.latest)
                if any(all(a <= b for a, b in zip(other, row, strict=True)) for other in kept):
                    continue
                kept.append(row)
                if self._bound(state) < self._limit * (1 - EQUAL):
                    yield state

    def _bound(self, state: _State) -> float:
        bound = state.latest
        for v in _bits(self._all & ~state.done):  # all after it are not done either
            ready = max((state.times[u] for u in _bits(self._before[v] & state.done)), default=0.0)
            bound = max(bound, ready + self._least(v) + self._rest[v])
        return bound

    def steps(self, state: _State) -> Iterator[_State]:
        """All that may be run next."""
        ready = [v for v in _bits(self._all & ~state.done) if not self._before[v] & ~state.done]
        for v in ready:
            colors = self._colored(state, 1 << v, CPU)
            if colors is not None:
                start = max((state.times[u] for u in _bits(self._before[v])), default=0.0)
                yield self._next(state, 1 << v, CPU, colors, start + self._slow[v])
        fresh = False
        open_accelerators = []
        for a, calls in enumerate(state.calls):
            if calls == 0:
                if fresh:
                    continue
                fresh = True  # one of those that are unused stands for all
            if calls < self._most:
                open_accelerators.append(a)
        if not open_accelerators:
            return
        room = self._problem.capacity_bytes - min(state.used[a] for a in open_accelerators)
        for part in self._parts(state.done, room):
            size = sum(self._size[v] for v in _bits(part))
            inputs, load = self._load(part)
            ready_s = max((state.times[u] for u in inputs), default=0.0)
            for a in open_accelerators:
                if state.used[a] + size > self._problem.capacity_bytes:
                    continue
                colors = self._colored(state, part, a)
                if colors is not None:
                    yield self._next(state, part, a, colors, max(ready_s, state.free[a]) + load)

    def _parts(self, done: int, room: float) -> Iterator[int]:
        """Supported operators that can follow a down-set as one call: what a larger down-set adds, each once."""
        stack = [(0, [v for v in range(len(self._fast)) if not done >> v & 1 and self._supported >> v & 1], 0.0)]
        seen = {0}
        while stack:
            part, candidates, size = stack.pop()
            for v in candidates:
                if part >> v & 1 or self._before[v] & ~(done | part) or size + self._size[v] > room:
                    continue
                grown = part | 1 << v
                if grown not in seen:
                    seen.add(grown)
                    yield grown
                    stack.append((grown, candidates, size + self._size[v]))

    def _load(self, part: int) -> tuple[list[int], float]:
        """Sources outside that a part reads, and its load."""
        inside = list(_bits(part))
        read = 0
        for v in inside:
            read |= self._before[v]
        inputs = list(_bits(read & ~part))
        load = sum(self._fast[v] for v in inside)
        load += sum(self._cost[u] for u in inputs)
        return inputs, load + sum(self._cost[v] for v in inside if self._after[v] & ~part)

    def _colored(self, state: _State, part: int, device: int) -> tuple[int, ...] | None:
        """Where torn classes are after a step; None where one would be in two places."""
        colors = state.colors
        for i, bits in enumerate(self._classes):
            if bits & part:
                if colors[i] not in (_NOWHERE, device):
                    return None
                colors = (*colors[:i], device, *colors[i + 1 :])
        return colors

    def _next(self, state: _State, part: int, device: int, colors: tuple[int, ...], end: float) -> _State:
        done = state.done | part
        times = tuple(
            (end if part >> v & 1 else time) if done >> v & 1 and self._after[v] & ~done else 0.0
            for v, time in enumerate(state.times)
        )
        calls, used, free = state.calls, state.used, state.free
        if device != CPU:
            size = sum(self._size[v] for v in _bits(part))
            calls = (*calls[:device], calls[device] + 1, *calls[device + 1 :])
            used = (*used[:device], used[device] + size, *used[device + 1 :])
            last = end if calls[device] < self._most else 0.0  # one without calls left is never waited for
            free = (*free[:device], last, *free[device + 1 :])
        return _State(done, colors, calls, used, free, times, max(state.latest, end), state, (part, device))

    def answer(self, *, is_complete: bool) -> ExhaustiveAnswer:
        """Follow the best end back."""
        if self._best is None:
            return ExhaustiveAnswer(placement=None, latency=np.inf, is_complete=is_complete)
        count = self._problem.num_nodes
        accelerator = np.full(count, CPU, dtype=np.int64)
        subgraph = np.zeros(count, dtype=np.int64)
        state = self._best
        while state.before is not None:
            part, device = state.step
            for v in _bits(part):
                accelerator[v] = device
                subgraph[v] = 0 if device == CPU else state.before.calls[device]
            state = state.before
        placement = placement_of(self._problem, accelerator, subgraph)
        return ExhaustiveAnswer(placement=placement, latency=self._best.latest, is_complete=is_complete)


def _bits(mask: int) -> Iterator[int]:
    """Positions of the ones."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
