"""Loads of devices: what a set of operators costs an accelerator or a CPU.

Notes
-----
load(S) = sum_{v in S} p(v) + sum_u c(u) [h_u is cut by S] on an accelerator, where h_u = {u} + successors(u) and a hyperedge is
cut when it has pins inside and outside of S; sum_{v in S} q(v) on a CPU, which never pays for communication
(Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import ROUNDING
from strategies.placement.contraction import BlockGraph
from strategies.placement.problem import Placement, PlacementProblem, sums_by


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLoads:
    """What each device does, accelerators first."""

    compute: FloatArray  # (devices,)
    communication: FloatArray
    memory_bytes: FloatArray
    num_nodes: IntArray

    @property
    def load(self) -> FloatArray:
        """Compute and communication add up."""
        return self.compute + self.communication


def device_loads(problem: PlacementProblem, device: IntArray) -> DeviceLoads:
    """Load of every device of one placement; time and memory grow with the edges only.

    Parameters
    ----------
    problem : PlacementProblem
    device : int array (nodes,)
        Accelerators first, then CPUs.
    """
    count = problem.num_devices
    on_accelerator = device < problem.num_accelerators
    time = np.where(on_accelerator, problem.accelerator_time, problem.cpu_time)
    factor = np.where(np.arange(count) < problem.num_accelerators, 1.0, 0.0)
    first = 0
    for kind in problem.types:
        time = np.where((first <= device) & (device < first + kind.count), kind.time, time)
        factor[first : first + kind.count] = kind.link_factor
        first += kind.count
    edges = problem.hyperedges
    return DeviceLoads(
        compute=sums_by(device, time, count),
        communication=_cut_costs(edges.start, edges.pin, edges.cost, device, count) * factor,
        memory_bytes=sums_by(device, problem.size_bytes, count),
        num_nodes=np.bincount(device, minlength=count).astype(np.int64),
    )


def placement_faults(problem: PlacementProblem, placement: Placement) -> list[str]:
    """Constraints that every mode shares and a placement breaks: colocation, support, memory; empty when it is legal."""
    device = placement.device
    faults: list[str] = []
    first = np.full(problem.num_colors, -1, dtype=np.int64)
    first[problem.color[::-1]] = device[::-1]
    if np.any(first[problem.color] != device):
        faults.append("a colour class is on several devices")
    if np.any((device < problem.num_accelerators) & ~problem.supported):
        faults.append("an operator is on an accelerator that does not support it")
    used = sums_by(device, problem.size_bytes, problem.num_devices)[: problem.num_accelerators]
    room = np.array([problem.memory_of(d) for d in range(problem.num_accelerators)]) * (1.0 + ROUNDING)
    if np.any(used > room):
        faults.append("an accelerator holds more than its memory")
    return faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Devices that are alike, and what blocks cost one of them."""

    first: int  # device
    count: int
    is_cpu: bool
    time: FloatArray  # (blocks,); 0 where not allowed
    allowed: BoolArray
    capacity_bytes: float  # with room for rounding; CPUs have no limit
    link_factor: float  # transfers take so many times as long; CPUs pay for none

    def graph(self, graph: BlockGraph) -> BlockGraph:
        """A graph with the times and transfers of this kind."""
        return replace(
            graph,
            accelerator_time=self.time,
            supported=self.allowed,
            hyperedge_cost=graph.hyperedge_cost * self.link_factor,
        )


def kinds_of(problem: PlacementProblem, graph: BlockGraph) -> tuple[Kind, ...]:
    """Kinds of accelerators in the order of the devices, then the CPUs where there are some."""
    specs = [
        (kind.count, sums_by(graph.block, kind.time, graph.num_blocks), kind.memory_bytes, kind.link_factor)
        for kind in problem.types
    ] or [(problem.num_accelerators, graph.accelerator_time, problem.memory_bytes, 1.0)]
    found, first = [], 0
    for count, time, memory_bytes, link_factor in specs:
        capacity = memory_bytes * (1.0 + ROUNDING)
        allowed = graph.supported & (graph.size_bytes <= capacity)
        found.append(
            Kind(
                first=first,
                count=count,
                is_cpu=False,
                time=np.where(allowed, time, 0.0),
                allowed=allowed,
                capacity_bytes=capacity,
                link_factor=link_factor,
            )
        )
        first += count
    if problem.num_cpus:
        everything = np.ones(graph.num_blocks, dtype=np.bool_)
        found.append(
            Kind(
                first=first,
                count=problem.num_cpus,
                is_cpu=True,
                time=graph.cpu_time,
                allowed=everything,
                capacity_bytes=np.inf,
                link_factor=0.0,
            )
        )
    return tuple(found)


class Devices:
    """Accelerators, then CPUs, and what blocks cost each of them.

    Parameters
    ----------
    problem : PlacementProblem
    graph : BlockGraph
        Of the problem.
    """

    def __init__(self, problem: PlacementProblem, graph: BlockGraph) -> None:
        self.graph = graph
        self.kinds = kinds_of(problem, graph)
        self.kind_of = [t for t, kind in enumerate(self.kinds) for _ in range(kind.count)]
        self.count = len(self.kind_of)
        # Per device: time of every block, infinite where it is not allowed; memory; how many times as long transfers take.
        self.time = np.stack([np.where(kind.allowed, kind.time, np.inf) for kind in self.kinds])[self.kind_of]
        self.capacity_bytes = np.array([kind.capacity_bytes for kind in self.kinds])[self.kind_of]
        self.link_factor = np.array([kind.link_factor for kind in self.kinds])[self.kind_of]

    def loads(self, place: IntArray) -> FloatArray:
        """Load of every device; infinite where the placement is not legal there."""
        graph = self.graph
        load = sums_by(place, self.time[place, np.arange(graph.num_blocks)], self.count)
        load += _cut_costs(graph.pin_start, graph.pin, graph.hyperedge_cost, place, self.count) * self.link_factor
        used = sums_by(place, graph.size_bytes, self.count)
        return np.where(used > self.capacity_bytes, np.inf, load)


def _cut_costs(start: IntArray, pin: IntArray, cost: FloatArray, place: IntArray, count: int) -> FloatArray:
    """Cost of the hyperedges of which each device holds some pins, but not all."""
    edge = np.repeat(np.arange(len(cost)), np.diff(start))
    touched = np.unique(edge * count + place[pin])
    owner, where = touched // count, touched % count
    is_cut = np.bincount(owner, minlength=len(cost))[owner] > 1
    return sums_by(where[is_cut], cost[owner[is_cut]], count)
