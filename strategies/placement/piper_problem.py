"""Training by pipeline, data and tensor parallelism over an operator graph: Piper's problem as plain types.

Stages S_1 .. S_l cut the graph by a chain of down-sets. Stage i runs on d_i copies of t_i devices; every operator in it chooses one of
its ways to run on t_i devices (with or without recomputation of activations, for instance). Per micro-batch it takes

    T_i = (1/d_i) (sum_v p_v + X_i / B) + 4 (d_i - 1) W_i / (d_i N B)

where p_v is forward and backward time, X_i counts twice the bytes of every edge that leaves or enters the stage and of the layout
change that the way demands for it, W_i are the bytes of parameters, N micro-batches make a batch and B is the bandwidth. A device holds

    sum_v (a_v y_i + b_v) <= M,   y_i = ceil((d_i + d_{i+1} + ... + d_l) / d_i)

with y_i micro-batches in flight. All d_i divide N, sum_i d_i <= N, sum_i d_i t_i <= K. The largest T_i is minimised.

References
----------
Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import PROOF_SLACK, ROUNDING
from strategies.placement.problem import NodeId

__all__ = ["PiperOption", "PiperPlan", "PiperProblem", "PiperResult", "PiperStage", "stage_time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperOption:
    """One way to run an operator on a number of devices."""

    name: str
    time_s: float  # forward and backward of one micro-batch
    parameter_bytes: float
    stash_bytes: float  # per micro-batch in flight, on every device
    fixed_bytes: float  # weights, optimizer, working buffers, on every device
    sync_in_bytes: Mapping[int, float]  # edge (its number) -> more bytes where the edge enters the stage here
    sync_out_bytes: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperProblem:
    """Nodes in the order of their ids; ``options[v][t]`` are the ways to run node v on t devices."""

    node_ids: tuple[NodeId, ...]
    names: tuple[str, ...]
    options: tuple[Mapping[int, tuple[PiperOption, ...]], ...]
    edge_source: IntArray
    edge_target: IntArray
    edge_bytes: FloatArray
    num_devices: int
    memory_bytes: float
    num_micro_batches: int  # of one batch
    bandwidth_bytes_per_s: float

    @property
    def num_nodes(self) -> int:
        """Operators."""
        return len(self.node_ids)

    @property
    def capacity_bytes(self) -> float:
        """Memory of a device with the room for rounding that every solver grants."""
        return self.memory_bytes * (1.0 + ROUNDING)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor-parallel degrees that some operator has ways for, ascending."""
        return tuple(sorted({t for ways in self.options for t in ways}))

    @property
    def copies(self) -> tuple[int, ...]:
        """Data-parallel degrees: divisors of the number of micro-batches, ascending, within the devices."""
        most = min(self.num_devices, self.num_micro_batches)
        return tuple(d for d in range(1, most + 1) if self.num_micro_batches % d == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperStage:
    """One stage of a plan, from the source side."""

    nodes: tuple[int, ...]
    ways: tuple[int, ...]  # per node: which of options[v][tensor_parallel]
    data_parallel: int
    tensor_parallel: int
    in_flight: int  # y: micro-batches whose activations a device keeps
    time_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperPlan:
    """Stages in the order of the data."""

    stages: tuple[PiperStage, ...]

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return sum(stage.data_parallel * stage.tensor_parallel for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperResult:
    """The best plan and how good it can be at most."""

    plan: PiperPlan | None
    objective: float  # seconds per micro-batch; infinite without a plan
    bound: float
    method: str
    proof: str
    wall_s: float = 0.0
    stopped: str = ""

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; infinite when nothing was found but something may exist."""
        if not np.isfinite(self.objective):
            return 0.0 if not np.isfinite(self.bound) else float("inf")
        return max(0.0, (self.objective - self.bound) / self.objective) if self.objective > 0 else 0.0

    @property
    def proven_optimal(self) -> bool:
        """Whether no plan is better, but for rounding."""
        return self.gap <= PROOF_SLACK


def stage_time(
    problem: PiperProblem, nodes: tuple[int, ...], ways: tuple[int, ...], data_parallel: int, tensor_parallel: int
) -> float:
    """Time of one stage per micro-batch: T_i of the module's notes, term by term."""
    inside = set(nodes)
    busy = moved = parameters = 0.0
    for v, way in zip(nodes, ways, strict=True):
        option = problem.options[v][tensor_parallel][way]
        busy += option.time_s
        parameters += option.parameter_bytes
        for e in np.flatnonzero(problem.edge_target == v).tolist():
            if int(problem.edge_source[e]) not in inside:
                moved += 2 * (problem.edge_bytes[e] + option.sync_in_bytes.get(e, 0.0))
        for e in np.flatnonzero(problem.edge_source == v).tolist():
            if int(problem.edge_target[e]) not in inside:
                moved += 2 * (problem.edge_bytes[e] + option.sync_out_bytes.get(e, 0.0))
    bandwidth, d = problem.bandwidth_bytes_per_s, data_parallel
    resync = 4 * (d - 1) * parameters / (d * problem.num_micro_batches * bandwidth)
    return float((busy + moved / bandwidth) / d + resync)
