"""Lower bounds on the latency from flows: every path through the graph is a bound, and so is every mixture of paths.

Notes
-----
A path from the beginning to the end is on its way for at most the latency, and it spends the whole time of every step that takes it in
(a subgraph is convex, so a path enters it once). Let a flow of 1 from the beginning to the end mix paths. Then

    latency >= sum over steps of time(step) * (flow that enters the step)

for every solution, and the least right side over all solutions is a bound: a shortest path in the graph of down-sets, with one layer
per accelerator's call. The flow that a step from J takes in is 1 less what bypasses it, because all of the flow crosses J.

The best flow is the mixed strategy of one player, the mixture of solutions that of another, in a game of value max over flows of
min over solutions; both are found with a linear program that grows by one solution at a time (Kelley's cutting planes), each
evaluated between the best flow so far and the program's, because the program's own jump about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.placement.latency.steps import Arcs, FarSteps, Move, Steps
from strategies.solvers import LinearProgram, solve_relaxation

__all__ = ["Flows", "Reach", "least_after", "least_before", "shortest_path", "survivors"]

# Of the program's flow in the next one that is tried: at first, and at least.
_SHARE = 0.3
_LEAST_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Least priced time from each down-set to the end, for every number of calls that may be used."""

    least: FloatArray  # (ideals, calls + 1)
    price: FloatArray  # (steps,) time of each step times the flow that it takes in

    def keep(self, kept: BoolArray) -> Reach:
        """Leave out what was found not to matter below some limit; bounds below it stay."""
        return Reach(least=self.least, price=self.price[kept])

    @property
    def bound(self) -> float:
        """Of the whole problem."""
        return float(self.least[0, -1])


def least_after(steps: Steps, flow: FloatArray, num_calls: int, far: FarSteps | None = None) -> Reach:
    """Price all steps with a flow and find the shortest ways to the end.

    Parameters
    ----------
    steps : Steps
    flow : float array (arcs,)
        A flow of 1.
    num_calls : int
        Of accelerators, all subgraphs together.
    far : FarSteps, optional
        More steps, of price and time alike.
    """
    price = _prices(steps, flow)
    least = np.full((len(steps.first) - 1, num_calls + 1), np.inf)
    least[-1] = 0.0
    first = steps.first.tolist()
    groups = {} if far is None else far.groups()
    for ideal in range(len(least) - 2, -1, -1):
        if far is not None and ideal + 1 in groups:
            members = groups[ideal + 1]
            least[members] = far.after(ideal + 1, members, least)
        here = slice(first[ideal], first[ideal + 1])
        if here.start == here.stop:
            continue
        after = least[steps.outer[here]]
        shifted = np.where(steps.on_cpu[here][:, None], after, _one_less(after))
        least[ideal] = np.minimum(least[ideal], (price[here][:, None] + shifted).min(axis=0))
    return Reach(least=least, price=price)


def least_before(steps: Steps, reach: Reach, far: FarSteps | None = None) -> FloatArray:
    """Least priced time from the beginning to each down-set, for every number of calls that may be used before."""
    least = np.full_like(reach.least, np.inf)
    least[0] = 0.0
    order = np.argsort(steps.outer, kind="stable")
    first = np.searchsorted(steps.outer[order], np.arange(len(least) + 1)).tolist()
    groups = {} if far is None else far.groups()
    for ideal in range(1, len(least)):
        if far is not None and ideal in groups:
            np.minimum(least[ideal:], far.before(ideal, groups[ideal], least), out=least[ideal:])
        here = order[first[ideal] : first[ideal + 1]]
        if not len(here):
            continue
        before = least[steps.inner[here]]
        shifted = np.where(steps.on_cpu[here][:, None], before, _one_less(before))
        least[ideal] = np.minimum(least[ideal], (reach.price[here][:, None] + shifted).min(axis=0))
    return least


def survivors(steps: Steps, reach: Reach, limit: float, before: FloatArray | None = None) -> BoolArray:
    """Steps that solutions below a limit may take: the bound with the step forced is below it."""
    before = least_before(steps, reach) if before is None else before
    after = reach.least
    calls = after.shape[1] - 1
    best = np.full(len(steps), np.inf)
    for used in range(calls + 1):
        head = before[steps.inner, used]
        left = calls - used
        tail = after[steps.outer, left]
        called = after[steps.outer, left - 1] if left > 0 else np.inf
        tail = np.where(steps.on_cpu, tail, called)
        np.minimum(best, head + tail, out=best)
    return best + reach.price < limit


def _one_less(least: FloatArray) -> FloatArray:
    """Shift by one call; with none left there is no way."""
    shifted = np.empty_like(least)
    shifted[:, 0] = np.inf
    shifted[:, 1:] = least[:, :-1]
    return shifted


def _prices(steps: Steps, flow: FloatArray) -> FloatArray:
    taken = np.maximum(1.0 - steps.bypassed(flow), 0.0)
    return steps.time * taken[steps.group]


class Flows:
    """Searches the flow with the best bound, one shortest path at a time.

    Parameters
    ----------
    arcs : Arcs
    atom_time : float array (atoms,)
        What an atom takes at least wherever it is; its longest path is the first flow.
    num_calls : int
    flow : float array (arcs,), optional
        Begin with this one instead.
    """

    def __init__(self, arcs: Arcs, atom_time: FloatArray, num_calls: int, flow: FloatArray | None = None) -> None:
        self._arcs, self._calls = arcs, num_calls
        self.flow = _longest_path(arcs, np.append(atom_time, 0.0)) if flow is None else flow
        self._next = self.flow
        self.bound = 0.0
        self.ceiling = np.inf  # of every flow, by the program
        self._cuts: list[FloatArray] = []
        self._share = _SHARE
        self.reach: Reach | None = None

    def improve(
        self, steps: Steps, far: FarSteps | None = None, crossing: Callable[[int], IntArray] | None = None
    ) -> list[Move]:
        """Try the next flow; return the solution that is shortest under it."""
        reach = least_after(steps, self._next, self._calls, far)
        path = shortest_path(steps, reach, far, crossing)
        better = reach.bound > self.bound or self.reach is None
        self._share = min(1.0, 2 * self._share) if better else max(_LEAST_SHARE, self._share / 2)
        if better:
            self.bound, self.flow, self.reach = reach.bound, self._next, reach
        if path:
            self.learn(path)
        return path

    def restart(self, steps: Steps) -> None:
        """Look at the best flow again, with other steps."""
        self.reach = least_after(steps, self.flow, self._calls)
        self.bound = max(self.bound, self.reach.bound)

    def learn(self, path: list[Move]) -> None:
        """Add a solution to the program and ask for the flow that is best against all so far."""
        taken = np.zeros(self._arcs.size)
        for move in path:
            taken[move.fed_arcs] += move.time
        self._cuts.append(taken)
        answer = solve_relaxation(self._program())
        if answer is None:
            return
        flow = np.maximum(answer.values[:-1], 0.0)
        self.ceiling = float(answer.values[-1])
        self._next = (1 - self._share) * self.flow + self._share * flow

    def _program(self) -> LinearProgram:
        """Maximise the least total over the solutions so far; variables are the arcs' flows and that total."""
        arcs, cuts = self._arcs, len(self._cuts)
        size, atoms = arcs.size, arcs.num_atoms
        inside = np.arange(size)
        leaves, enters = arcs.source < atoms, arcs.target < atoms
        begins = np.flatnonzero(arcs.source == atoms)
        rows = np.concatenate((arcs.source[leaves], arcs.target[enters], np.full(len(begins), atoms)))
        columns = np.concatenate((inside[leaves], inside[enters], begins))
        values = np.concatenate((-np.ones(leaves.sum()), np.ones(enters.sum()), np.ones(len(begins))))
        matrix = np.array(self._cuts)
        cut, arc = np.nonzero(matrix)
        return LinearProgram(
            cost=np.append(np.zeros(size), -1.0),
            lower=np.zeros(size + 1),
            upper=np.append(np.ones(size), np.inf),
            integer=np.zeros(size + 1, dtype=np.bool_),
            row_lower=np.concatenate((np.zeros(atoms), [1.0], np.zeros(cuts))),
            row_upper=np.concatenate((np.zeros(atoms), [1.0], np.full(cuts, np.inf))),
            entry_row=np.concatenate((rows, atoms + 1 + cut, atoms + 1 + np.arange(cuts))),
            entry_column=np.concatenate((columns, arc, np.full(cuts, size))),
            entry_value=np.concatenate((values, matrix[cut, arc], -np.ones(cuts))),
        )


def shortest_path(
    steps: Steps, reach: Reach, far: FarSteps | None = None, crossing: Callable[[int], IntArray] | None = None
) -> list[Move]:
    """Steps of the solution with the least priced time; empty where there is none.

    ``crossing`` lists the arcs that cross a down-set, for far steps.
    """
    least = reach.least
    ideal, left = 0, least.shape[1] - 1
    if not np.isfinite(least[0, left]):
        return []
    path: list[Move] = []
    while ideal < len(least) - 1:
        here = np.arange(steps.first[ideal], steps.first[ideal + 1])
        remaining = np.where(steps.on_cpu[here], left, left - 1)
        value = np.where(remaining >= 0, reach.price[here] + least[steps.outer[here], remaining], np.inf)
        near = float(value.min(initial=np.inf))
        if far is not None and crossing is not None and left > 0:
            outer, total, load = far.best_from(ideal, least[:, left - 1])
            if total < near:
                path.append(Move(inner=ideal, outer=outer, time=load, on_cpu=False, fed_arcs=crossing(ideal)))
                ideal, left = outer, left - 1
                continue
        path += steps.moves(here[[int(np.argmin(value))]])
        left -= int(not path[-1].on_cpu)
        ideal = path[-1].outer
    return path


def _longest_path(arcs: Arcs, time: FloatArray) -> FloatArray:
    """Flow along the path whose atoms take longest."""
    count = arcs.num_atoms
    order = np.argsort(arcs.source % count if count else arcs.source, kind="stable")
    begin = arcs.source == count
    best = np.full(count + 1, -np.inf)
    via = np.full(count + 1, -1)
    best[arcs.target[begin]] = 0.0
    via[arcs.target[begin]] = np.flatnonzero(begin)
    for arc in order.tolist():  # atoms are in a topological order
        u, v = int(arcs.source[arc]), int(arcs.target[arc])
        if u < count and best[u] + time[u] > best[v]:
            best[v], via[v] = best[u] + time[u], arc
    flow = np.zeros(arcs.size)
    at = count
    while True:
        arc = int(via[at])
        flow[arc] = 1.0
        at = int(arcs.source[arc])
        if at == count:
            return flow
