"""Times of one placement for latency, placements that need no search, and their improvement by moving one colour class at a time.

Subgraphs are atomic calls, operators on CPUs run as soon as they can:

    start(S)  = max of available(u) over u outside S that feed S, and of finish of the accelerator's subgraph before S
    finish(S) = start(S) + load(S);  available(v) = finish(S) for v in S
    available(v) = cpu_time(v) + max of available(u) over predecessors u, for v on a CPU

with load(S) = compute + what crosses the border of S, once per source. The latency is the largest available(v).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import EQUAL
from strategies.limits import Clock
from strategies.placement.contraction import BlockGraph, contract
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult, adjacent, sums_by

# Unit number of operators on CPUs.
CPU = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When everything happens; ``latency`` is infinite where subgraphs wait for each other in a circle."""

    latency: float
    available: FloatArray  # (nodes,) when each output is there
    unit: IntArray  # (nodes,) subgraph of each operator, CPU where it runs on one
    accelerator: IntArray  # (units,) of each subgraph
    order: IntArray  # (units,) position among its accelerator's subgraphs
    start: FloatArray  # (units,)
    compute: FloatArray
    communication: FloatArray

    @property
    def finish(self) -> FloatArray:
        """End of each subgraph."""
        return self.start + self.compute + self.communication


def evaluate(problem: PlacementProblem, placement: Placement) -> Timing:
    """Time a placement; constraints are not looked at, but for circles.

    Parameters
    ----------
    problem : PlacementProblem
    placement : Placement
        Subgraphs of an accelerator run in the order of their numbers, whatever these are.

    Examples
    --------
    Two operators of 2 each on two accelerators, with an output of 0.5: 2 + 0.5, then 0.5 + 2.

    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=2.0, cpu_time=9.0) for i in range(2)]
    >>> problem = PlacementProblem.build(nodes, [EdgeSpec(0, 1, 0.5)], num_accelerators=2, num_cpus=0, memory_bytes=1.0)
    >>> timing = evaluate(problem, Placement(device=np.array([0, 1])))
    >>> timing.latency, timing.start.tolist()
    (5.0, [0.0, 2.5])
    """
    device = placement.device
    subgraph = np.zeros_like(device) if placement.subgraph is None else placement.subgraph
    inside = device < problem.num_accelerators
    keys, unit_of = np.unique(np.stack((device[inside], subgraph[inside])), axis=1, return_inverse=True)
    unit = np.full(problem.num_nodes, CPU, dtype=np.int64)
    unit[inside] = unit_of.reshape(-1)
    count = keys.shape[1]
    compute = sums_by(unit[inside], problem.accelerator_time[inside], count)
    communication = _communication(problem, unit, count)
    accelerator = keys[0].astype(np.int64)
    first = np.searchsorted(accelerator, accelerator, side="left")
    start, available = _times(problem, unit, accelerator, compute + communication)
    return Timing(
        latency=float(available.max(initial=0.0)),
        available=available,
        unit=unit,
        accelerator=accelerator,
        order=np.arange(count) - first,
        start=start,
        compute=compute,
        communication=communication,
    )


def _communication(problem: PlacementProblem, unit: IntArray, count: int) -> FloatArray:
    """What crosses each subgraph's border: a source pays once for each subgraph that holds some but not all of its pins."""
    source, target = problem.edge_source, problem.edge_target
    crosses = (unit[source] != unit[target]) | (unit[source] == CPU)
    pairs = np.concatenate(
        (np.stack((source, unit[source]))[:, crosses], np.stack((source, unit[target]))[:, crosses]), axis=1
    )
    pairs = np.unique(pairs[:, pairs[1] != CPU], axis=1)
    return sums_by(pairs[1], problem.transfer_time[pairs[0]], count)


def _times(
    problem: PlacementProblem, unit: IntArray, accelerator: IntArray, load: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Start of each subgraph and availability of each operator; infinite for what waits in a circle."""
    count, nodes = len(load), problem.num_nodes
    call = np.where(unit == CPU, count + np.arange(nodes), unit)  # calls: subgraphs, then operators on CPUs
    busy = np.concatenate((load, problem.cpu_time)).tolist()
    source, target = call[problem.edge_source], call[problem.edge_target]
    apart = source != target
    same = np.flatnonzero(accelerator[1:] == accelerator[:-1])
    edges = np.unique(
        np.concatenate((np.stack((source, target))[:, apart], np.stack((same, same + 1))), axis=1), axis=1
    )
    waits = np.bincount(edges[1], minlength=len(busy)).tolist()
    after = adjacent(len(busy), *edges)
    begin = [0.0] * len(busy)
    end = [np.inf] * len(busy)
    ready = [c for c in sorted(set(call.tolist())) if waits[c] == 0]
    while ready:
        c = ready.pop()
        end[c] = begin[c] + busy[c]
        for other in after[c]:
            begin[other] = max(begin[other], end[c])
            waits[other] -= 1
            if waits[other] == 0:
                ready.append(other)
    return np.array(begin[:count]), np.array(end)[call]


def placement_of(problem: PlacementProblem, accelerator: IntArray, subgraph: IntArray) -> Placement:
    """Make a placement of each operator's accelerator, or CPU, and its subgraph."""
    device = np.where(accelerator == CPU, problem.num_accelerators, accelerator)
    return Placement(device=device, subgraph=np.where(accelerator == CPU, 0, subgraph))


PATH_PROOF = "critical path, each operator at the faster of its times"


def all_on_cpus(problem: PlacementProblem) -> Placement:
    """Every operator on a CPU of its own, which is always allowed."""
    nothing = np.zeros(problem.num_nodes, dtype=np.int64)
    return placement_of(problem, nothing + CPU, nothing)


def critical_path(problem: PlacementProblem) -> float:
    """Longest path where every operator takes the faster of its times: a bound, because an output waits for all on its path.

    An operator in a subgraph takes at least its own time of the subgraph's, and those of a path are disjoint.
    """
    least = np.where(
        problem.supported & (problem.num_accelerators > 0),
        np.minimum(problem.accelerator_time, problem.cpu_time),
        problem.cpu_time,
    )
    # An evaluation in which every operator runs on a CPU of its own.
    timed = replace(problem, cpu_time=least)
    return evaluate(timed, all_on_cpus(timed)).latency


def one_device_latency(problem: PlacementProblem) -> float:
    """Latency on one accelerator, memory aside, or on CPUs where operators are not supported."""
    if problem.num_accelerators and bool(problem.supported.all()):
        return float(problem.accelerator_time.sum())
    return evaluate(problem, all_on_cpus(problem)).latency


def latency_one_device(problem: PlacementProblem) -> PlacementResult:
    """Everything on one accelerator if it fits, else on CPUs."""
    placement = on_one_accelerator(problem)
    return _result(problem, all_on_cpus(problem) if placement is None else placement, "one device")


def on_one_accelerator(problem: PlacementProblem) -> Placement | None:
    """Everything in one subgraph; None where it does not fit."""
    fits = bool(problem.supported.all()) and float(problem.size_bytes.sum()) <= problem.capacity_bytes
    if not fits or not problem.num_accelerators:
        return None
    nothing = np.zeros(problem.num_nodes, dtype=np.int64)
    return placement_of(problem, nothing, nothing)


def latency_greedy(problem: PlacementProblem, *, clock: Clock | None = None) -> PlacementResult:
    """Fill accelerators in topological order; what is too big, not supported or left runs on CPUs.

    References
    ----------
    The baseline of Tarnawski et al., NeurIPS 2020.
    """
    return _result(problem, fill(problem, contract(problem)), "greedy", clock)


def fill(problem: PlacementProblem, graph: BlockGraph) -> Placement:
    """Fill one accelerator after the other with blocks in topological order.

    A block that needs something from a CPU that needs something from the accelerator being filled begins the next one.
    """
    accelerator = np.full(graph.num_blocks, CPU, dtype=np.int64)
    before = adjacent(graph.num_blocks, graph.edge_target, graph.edge_source)
    current, room = 0, problem.capacity_bytes
    behind: BoolArray = np.zeros(graph.num_blocks, dtype=np.bool_)  # waits for the current one, from outside
    for b in range(graph.num_blocks):
        size = float(graph.size_bytes[b])
        usable = bool(graph.supported[b]) and size <= problem.capacity_bytes
        if usable and current < problem.num_accelerators and (size > room or behind[before[b]].any()):
            current, room = current + 1, problem.capacity_bytes
            behind[:] = False
        if usable and current < problem.num_accelerators:
            accelerator[b] = current
            room -= size
        else:
            behind[b] = bool(behind[before[b]].any()) or bool(np.any(accelerator[before[b]] == current))
    device: IntArray = accelerator[graph.block]
    return placement_of(problem, device, np.zeros_like(device))


def _result(
    problem: PlacementProblem, placement: Placement, method: str, clock: Clock | None = None
) -> PlacementResult:
    value = evaluate(problem, placement).latency
    return PlacementResult(
        placement=placement,
        objective=value,
        bound=min(critical_path(problem), value),
        method=method,
        proof=PATH_PROOF,
        wall_s=clock.elapsed_s if clock is not None else 0.0,
    )


def improve(
    problem: PlacementProblem,
    placement: Placement,
    *,
    num_subgraphs: int,
    clock: Clock,
    found: Callable[[Placement, float], None],
    effort: int = 4,
) -> None:
    """Move colour classes to CPUs, to subgraphs of their neighbours or to new subgraphs, and unite subgraphs, while it helps.

    Parameters
    ----------
    problem : PlacementProblem
    placement : Placement
        A legal one.
    num_subgraphs : int
    clock : Clock
    found : callable
        Takes every better placement with its latency.
    effort : int
        Most rounds over all classes.

    Raises
    ------
    OutOfTimeError
    """
    state = _State(problem, placement, num_subgraphs)
    by_color = np.argsort(problem.color, kind="stable")
    members = np.split(by_color, np.flatnonzero(np.diff(problem.color[by_color])) + 1)
    source, target = problem.edge_source, problem.edge_target
    ends = np.concatenate((source, target)), np.concatenate((target, source))
    near = adjacent(problem.num_nodes, *ends)
    for _ in range(effort):
        before = state.latency
        for nodes in members:
            here = {(int(state.device[v]), int(state.subgraph[v])) for u in nodes.tolist() for v in near[u]}
            here |= {(CPU, 0)} | {(a, state.free_number(a)) for a in range(problem.num_accelerators)}
            for device, subgraph in sorted(here):
                clock.check()
                if state.move(nodes, device, subgraph):
                    found(state.placement(), state.latency)
        for first, second in state.unions():
            clock.check()
            nodes = np.flatnonzero((state.device == first[0]) & (state.subgraph == first[1]))
            if len(nodes) and state.move(nodes, *second):
                found(state.placement(), state.latency)
        if state.latency >= before * (1 - EQUAL):
            return


class _State:
    """A legal placement: each operator's accelerator or CPU, and its subgraph, numbered in the order of running."""

    def __init__(self, problem: PlacementProblem, placement: Placement, num_subgraphs: int) -> None:
        self._problem, self._most = problem, num_subgraphs
        _, first, color = np.unique(problem.color, return_index=True, return_inverse=True)
        self._first = first[color]  # first operator of each one's class
        on_cpu = placement.device >= problem.num_accelerators
        self.device = np.where(on_cpu, CPU, placement.device)
        subgraph = np.zeros_like(placement.device) if placement.subgraph is None else placement.subgraph
        self.subgraph = np.where(on_cpu, 0, subgraph)
        self.latency = evaluate(problem, placement).latency

    def placement(self) -> Placement:
        return placement_of(self._problem, self.device, self.subgraph)

    def free_number(self, accelerator: int) -> int:
        """Number of a subgraph that does not exist yet; the last one where none is left."""
        used = set(self.subgraph[self.device == accelerator].tolist())
        return next((i for i in range(self._most) if i not in used), self._most - 1)

    def unions(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        inside = self.device != CPU
        units = sorted(set(zip(self.device[inside].tolist(), self.subgraph[inside].tolist(), strict=True)))
        return [(a, b) for a in units for b in units if a != b]

    def move(self, nodes: IntArray, device: int, subgraph: int) -> bool:
        problem = self._problem
        if device != CPU and not bool(problem.supported[nodes].all()):
            return False
        there, number = self.device.copy(), self.subgraph.copy()
        there[nodes], number[nodes] = device, subgraph
        inside = there != CPU
        size = sums_by(there[inside], problem.size_bytes[inside], problem.num_accelerators)
        if bool(np.any(size > problem.capacity_bytes)) or bool(np.any(there != there[self._first])):
            return False
        latency = evaluate(problem, placement_of(problem, there, number)).latency
        if latency >= self.latency * (1 - EQUAL):
            return False
        self.device, self.subgraph, self.latency = there, number, latency
        return True
