"""A placement of blocks on devices that need not be contiguous: its loads, and whether it is legal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategies.placement.contraction import BlockGraph
from strategies.placement.problem import FloatArray, IntArray, sums_by

__all__ = ["Devices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Accelerators, then CPUs, and what blocks cost them."""

    graph: BlockGraph
    num_accelerators: int
    num_cpus: int
    memory_bytes: float

    @property
    def count(self) -> int:
        """All devices."""
        return self.num_accelerators + self.num_cpus

    def is_cpu(self, device: int) -> bool:
        """Whether a device pays no communication and has its own times."""
        return device >= self.num_accelerators

    def time(self, device: int) -> FloatArray:
        """Time of every block; infinite where it is not supported."""
        if self.is_cpu(device):
            return self.graph.cpu_time
        allowed = self.graph.supported & (self.graph.size_bytes <= self.memory_bytes)
        return np.where(allowed, self.graph.accelerator_time, np.inf)

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
        load = load + sums_by(where[pays], graph.hyperedge_cost[owner[pays]], self.count)
        used = sums_by(place, graph.size_bytes, self.count)
        return np.where((used > self.memory_bytes) & (np.arange(self.count) < self.num_accelerators), np.inf, load)
