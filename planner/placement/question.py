"""Questions about placement and their answers, and which solver answers which question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.core.request import Mode
from planner.files.documents import JsonFile
from planner.files.resources import InMemory
from strategies.limits import Clock
from strategies.placement.baselines import local_search, one_device, solve_chain, solve_greedy
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.device_program import solve_convex
from strategies.placement.free import solve_free
from strategies.placement.latency.evaluate import CPU, Timing, latency_greedy, latency_one_device
from strategies.placement.latency.solve import solve_latency
from strategies.placement.loads import device_loads
from strategies.placement.problem import PlacementProblem, PlacementResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """The options of ``planner place``; None leaves the workload's word."""

    workload: Path  # a network's name where a cluster is given
    content: InMemory | JsonFile | None = None  # of a workload that is no file
    cluster: str | None = None
    batch: int = 1  # samples of a micro-batch, with a cluster
    assume_free: tuple[str, ...] = ()  # with a cluster: operators that are not known and are taken to cost nothing
    mode: Mode = "training"  # with a cluster
    calibration: str | None = None  # with a cluster
    objective: str = "throughput"
    contiguity: str = "chain"  # chain, convex or none
    method: str = "auto"
    expert: Path | None = None
    num_devices: int | None = None
    num_subgraphs: int | None = None  # calls of an accelerator, for latency
    num_cpus: int | None = None
    memory_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None
    num_micro_batches: int | None = None
    time_limit_s: float = 60.0
    gap: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAnswer:
    """A placement, or a plan of Piper's problem.

    Attributes
    ----------
    objective : str
        throughput, latency or piper.
    request : PlaceRequest
        With the contiguity that the placement has.
    problem : PlacementProblem or PiperProblem
    result : PlacementResult or PiperResult
    sha256 : str
        Of the workload.
    content : mapping
        The workload as the checker reads it.
    one_device : float
        Objective of one device, memory aside; for latency of CPUs where operators are not supported; of Piper's problem that of data
        parallelism without recomputation.
    timing : Timing or None
        For latency: when each subgraph runs.
    made_with : tuple of str
        Of a network: what the times, transfers and sizes of its operators rest on.
    """

    objective: str
    request: PlaceRequest
    problem: Any
    result: Any
    sha256: str
    content: Mapping[str, Any]
    one_device: float = np.inf
    timing: Timing | None = None
    made_with: tuple[str, ...] = ()

    @property
    def cpu_nodes(self) -> list[Any]:
        """For latency: operators on CPUs."""
        on_cpu = [] if self.timing is None else np.flatnonzero(self.timing.unit == CPU).tolist()
        return [self.problem.node_ids[v] for v in on_cpu]


# With more devices than this those without operators are not listed one by one.
_MOST_LISTED = 10_000


def rows_of(answer: PlaceAnswer) -> list[dict[str, Any]]:
    """Devices; for latency subgraphs, by accelerator and order; of Piper's problem stages: as plain values, as `--json` has them."""
    problem, result, timing = answer.problem, answer.result, answer.timing
    if answer.objective == "piper":
        return [
            {
                "data_parallel": stage.data_parallel,
                "tensor_parallel": stage.tensor_parallel,
                "nodes": [problem.node_ids[v] for v in stage.nodes],
                "ways": list(stage.ways),
                "way_names": [
                    problem.options[v][stage.tensor_parallel][way].name
                    for v, way in zip(stage.nodes, stage.ways, strict=True)
                ],
                "in_flight": stage.in_flight,
                "time_s": stage.time_s,
                "memory_bytes": stage.memory_bytes,
            }
            for stage in result.plan.stages
        ]
    nodes: dict[int, list[Any]] = {}
    for v, place in enumerate((result.placement.device if timing is None else timing.unit).tolist()):
        nodes.setdefault(place, []).append(v)
    if timing is not None:
        return [
            {
                "device": f"acc{accelerator + 1}",
                "subgraph": int(timing.order[i]) + 1,
                "start": float(timing.start[i]),
                "finish": float(timing.finish[i]),
                "compute": float(timing.compute[i]),
                "communication": float(timing.communication[i]),
                "num_nodes": len(nodes[i]),
                "memory_bytes": float(problem.size_bytes[nodes[i]].sum()),
                "nodes": [problem.node_ids[v] for v in nodes[i]],
            }
            for i, accelerator in enumerate(timing.accelerator.tolist())
        ]
    loads = device_loads(problem, result.placement.device)
    kinds = {d: problem.type_of(d) for d in (range(problem.num_devices) if len(problem.types) else ())}
    return [
        {
            "name": problem.device_name(d),
            "num_nodes": int(loads.num_nodes[d]),
            "compute": float(loads.compute[d]),
            "communication": float(loads.communication[d]),
            "load": float(loads.compute[d] + loads.communication[d]),
            "type": None if kinds.get(d) is None else kinds[d].name,
            "memory_bytes": float(loads.memory_bytes[d]),
            "memory_capacity_bytes": problem.memory_of(d) if d < problem.num_accelerators else None,
            "nodes": [problem.node_ids[v] for v in nodes.get(d, ())],
        }
        for d in (range(problem.num_devices) if problem.num_devices <= _MOST_LISTED else sorted(nodes))
    ]


Solver = Callable[[PlacementProblem, PlaceRequest, Clock], PlacementResult]


# Contiguity -> the method that --method auto means.
BEST: dict[str, Solver] = {
    "chain": lambda problem, request, clock: solve_contiguous(problem, seed=request.seed, gap=request.gap, clock=clock),
    "convex": lambda problem, request, clock: solve_convex(
        problem, seed=request.seed, relative_gap=request.gap, clock=clock
    ),
    "none": lambda problem, request, clock: solve_free(problem, seed=request.seed, gap=request.gap, clock=clock),
}
# Simple methods, and the contiguity that their placements have at least.
BASELINES: dict[str, tuple[Solver, str]] = {
    "one-device": (lambda problem, _request, _clock: one_device(problem), "chain"),
    "greedy": (lambda problem, _request, clock: solve_greedy(problem, clock=clock), "chain"),
    "pipedream": (lambda problem, _request, clock: solve_chain(problem, clock=clock), "chain"),
    "local-search": (lambda problem, request, clock: local_search(problem, seed=request.seed, clock=clock), "none"),
}
LATENCY_METHODS: dict[str, Solver] = {
    "auto": lambda problem, request, clock: solve_latency(
        problem, num_subgraphs=request.num_subgraphs or 1, gap=request.gap, clock=clock
    ),
    "one-device": lambda problem, _request, _clock: latency_one_device(problem),
    "greedy": lambda problem, _request, clock: latency_greedy(problem, clock=clock),
}
METHODS = ("auto", *BASELINES, "expert")
