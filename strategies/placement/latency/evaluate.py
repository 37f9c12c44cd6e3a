"""Times of one placement, by the definition: subgraphs are atomic calls, CPU operators run as soon as they can.

    start(S)  = max of available(u) over u outside S that feed S, and of finish of the accelerator's subgraph before S
    finish(S) = start(S) + load(S);  available(v) = finish(S) for v in S
    available(v) = cpu_time(v) + max of available(u) over predecessors u, for v on a CPU

with load(S) = compute + what crosses the border of S, once per source. The latency is the largest available(v).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.placement.problem import Placement, PlacementProblem, sums_by

__all__ = ["CPU", "Timing", "evaluate", "placement_of"]

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
    after: list[list[int]] = [[] for _ in busy]
    waits = np.bincount(edges[1], minlength=len(busy)).tolist()
    for first, second in edges.T.tolist():
        after[first].append(second)
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
