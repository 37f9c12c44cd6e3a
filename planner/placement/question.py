"""Questions about placement, their answers, and which solver answers which question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.core.request import Mode
from strategies.limits import Clock
from strategies.placement.baselines import local_search, one_device, solve_chain, solve_greedy
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.device_program import solve_convex
from strategies.placement.free import solve_free
from strategies.placement.latency.evaluate import Timing, latency_greedy, latency_one_device
from strategies.placement.latency.solve import solve_latency
from strategies.placement.loads import DeviceLoads
from strategies.placement.piper import PiperProblem, PiperResult
from strategies.placement.problem import PlacementProblem, PlacementResult

__all__ = [
    "BASELINES",
    "BEST",
    "LATENCY_METHODS",
    "METHODS",
    "OBJECTIVES",
    "Baseline",
    "LatencyAnswer",
    "PiperAnswer",
    "PlaceAnswer",
    "PlaceRequest",
    "PlacementAnswer",
    "Solver",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """The options of ``planner place``; None leaves the workload's word."""

    workload: Path  # a network's name where a cluster is given
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
class PlacementAnswer:
    """What every answer has; ``content`` is the workload that the checker judges by."""

    request: PlaceRequest
    sha256: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAnswer(PlacementAnswer):
    """A placement with its devices and what it is compared with."""

    problem: PlacementProblem
    result: PlacementResult
    loads: DeviceLoads
    one_device: float  # time of everything on one device, memory aside
    contiguous: PlacementResult | None  # the best contiguous placement, where another kind was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyAnswer(PlacementAnswer):
    """A placement for latency, with the times of its subgraphs."""

    problem: PlacementProblem
    result: PlacementResult
    timing: Timing
    one_device: float  # latency of one accelerator, memory aside, or of CPUs where operators are not supported


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperAnswer(PlacementAnswer):
    """A plan of Piper's problem."""

    problem: PiperProblem
    result: PiperResult


Solver = Callable[[PlacementProblem, PlaceRequest, Clock], PlacementResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A simple method and the contiguity that its placements have at least."""

    solve: Solver
    contiguity: str


# Contiguity -> the method that --method auto means.
BEST: dict[str, Solver] = {
    "chain": lambda problem, request, clock: solve_contiguous(problem, seed=request.seed, gap=request.gap, clock=clock),
    "convex": lambda problem, request, clock: solve_convex(
        problem, seed=request.seed, relative_gap=request.gap, clock=clock
    ),
    "none": lambda problem, request, clock: solve_free(problem, seed=request.seed, gap=request.gap, clock=clock),
}
BASELINES: dict[str, Baseline] = {
    "one-device": Baseline(solve=lambda problem, _request, _clock: one_device(problem), contiguity="chain"),
    "greedy": Baseline(solve=lambda problem, _request, clock: solve_greedy(problem, clock=clock), contiguity="chain"),
    "pipedream": Baseline(solve=lambda problem, _request, clock: solve_chain(problem, clock=clock), contiguity="chain"),
    "local-search": Baseline(
        solve=lambda problem, request, clock: local_search(problem, seed=request.seed, clock=clock), contiguity="none"
    ),
}
LATENCY_METHODS: dict[str, Solver] = {
    "auto": lambda problem, request, clock: solve_latency(
        problem, num_subgraphs=request.num_subgraphs or 1, gap=request.gap, clock=clock
    ),
    "one-device": lambda problem, _request, _clock: latency_one_device(problem),
    "greedy": lambda problem, _request, clock: latency_greedy(problem, clock=clock),
}
OBJECTIVES = ("throughput", "latency")
METHODS = ("auto", *BASELINES, "expert")
