"""First placements for latency, which need no search: everything on CPUs, one accelerator, and filling one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph, contract
from strategies.placement.latency.evaluate import CPU, evaluate, placement_of
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = [
    "all_on_cpus",
    "critical_path",
    "fill",
    "latency_greedy",
    "latency_one_device",
    "on_one_accelerator",
    "one_device_latency",
]

PATH_PROOF = "critical path: operators at the faster of their times"


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
    return longest_path(problem, least)


def longest_path(problem: PlacementProblem, time: FloatArray) -> float:
    """Longest path of a problem's graph.

    >>> from strategies.placement.problem import EdgeSpec, NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=1.0, cpu_time=1.0) for i in range(3)]
    >>> problem = PlacementProblem.build(nodes, [EdgeSpec(2, 0, 0.5)], num_accelerators=1, num_cpus=0, memory_bytes=1.0)
    >>> longest_path(problem, np.array([1.0, 2.0, 4.0]))
    5.0
    """
    # An evaluation in which every operator runs on a CPU of its own.
    timed = replace(problem, cpu_time=time)
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
    before: list[list[int]] = [[] for _ in range(graph.num_blocks)]
    for u, v in zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True):
        before[v].append(u)
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
