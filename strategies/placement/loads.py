"""Loads of devices: what a set of operators costs an accelerator or a CPU.

Notes
-----
load(S) = sum_{v in S} p(v) + sum_u c(u) [h_u is cut by S] on an accelerator, where h_u = {u} + successors(u) and a hyperedge is
cut when it has pins inside and outside of S; sum_{v in S} q(v) on a CPU, which never pays for communication
(Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import ROUNDING
from strategies.placement.contraction import BlockGraph
from strategies.placement.problem import Placement, PlacementProblem, sums_by

__all__ = ["DeviceLoads", "Devices", "device_loads", "placement_faults"]


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
    factor = np.ones(count)
    for d in range(problem.num_accelerators if problem.types else 0):
        kind = problem.type_of(d)
        assert kind is not None
        time = np.where(device == d, kind.time, time)
        factor[d] = kind.link_factor
    edges = problem.hyperedges
    touched = np.unique(np.repeat(np.arange(len(edges.cost)), edges.size) * count + device[edges.pin])
    edge, where = touched // count, touched % count
    cut = np.bincount(edge, minlength=len(edges.cost))[edge] > 1
    pays = cut & (where < problem.num_accelerators)
    return DeviceLoads(
        compute=sums_by(device, time, count),
        communication=sums_by(where[pays], edges.cost[edge[pays]], count) * factor,
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
class Devices:
    """Accelerators, then CPUs, and what blocks cost them."""

    graph: BlockGraph
    num_accelerators: int
    num_cpus: int
    memory_bytes: float
    # Where accelerators differ: time of every block, capacity, and how many times as long transfers take, per accelerator.
    times: FloatArray | None = None
    capacities: FloatArray | None = None
    link_factors: FloatArray | None = None

    @classmethod
    def of(cls, problem: PlacementProblem, graph: BlockGraph) -> Devices:
        """Devices of a problem for its blocks."""
        kinds = [kind for kind in problem.types for _ in range(kind.count)]
        own = {kind.name: sums_by(graph.block, kind.time, graph.num_blocks) for kind in problem.types}
        return cls(
            graph=graph,
            num_accelerators=problem.num_accelerators,
            num_cpus=problem.num_cpus,
            memory_bytes=problem.capacity_bytes,
            times=np.stack([own[kind.name] for kind in kinds]) if kinds else None,
            capacities=np.array([kind.memory_bytes for kind in kinds]) * (1.0 + ROUNDING) if kinds else None,
            link_factors=np.array([kind.link_factor for kind in kinds]) if kinds else None,
        )

    @property
    def count(self) -> int:
        """All devices."""
        return self.num_accelerators + self.num_cpus

    def is_cpu(self, device: int) -> bool:
        """Whether a device pays no communication and has its own times."""
        return device >= self.num_accelerators

    def capacity(self, device: int) -> float:
        """Memory of a device; CPUs have no limit."""
        if self.is_cpu(device):
            return np.inf
        return self.memory_bytes if self.capacities is None else float(self.capacities[device])

    def transfer(self, device: int) -> FloatArray:
        """What cut hyperedges cost a device."""
        cost = self.graph.hyperedge_cost
        if self.is_cpu(device):
            return np.zeros_like(cost)
        return cost if self.link_factors is None else cost * self.link_factors[device]

    def time(self, device: int) -> FloatArray:
        """Time of every block; infinite where it is not supported."""
        if self.is_cpu(device):
            return self.graph.cpu_time
        own = self.graph.accelerator_time if self.times is None else self.times[device]
        allowed = self.graph.supported & (self.graph.size_bytes <= self.capacity(device))
        return np.where(allowed, own, np.inf)

    def loads(self, place: IntArray) -> FloatArray:
        """Load of every device; infinite where the placement is not legal there."""
        graph = self.graph
        blocks = np.arange(graph.num_blocks)
        table = np.stack([self.time(d) for d in range(self.count)])
        load = sums_by(place, table[place, blocks], self.count)
        edge = np.repeat(np.arange(len(graph.hyperedge_cost)), np.diff(graph.pin_start))
        touched = np.unique(edge * self.count + place[graph.pin])
        owner, where = touched // self.count, touched % self.count
        pays = (np.bincount(owner, minlength=len(graph.hyperedge_cost))[owner] > 1) & (where < self.num_accelerators)
        paid = sums_by(where[pays], graph.hyperedge_cost[owner[pays]], self.count)
        if self.link_factors is not None:
            paid[: self.num_accelerators] *= self.link_factors
        used = sums_by(place, graph.size_bytes, self.count)
        room = np.array([self.capacity(d) for d in range(self.count)])
        return np.where(used > room, np.inf, load + paid)
