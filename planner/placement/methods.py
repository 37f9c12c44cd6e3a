"""Which solver answers which question: one line per objective and contiguity, one per baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.placement.request import PlaceRequest
from strategies.limits import Clock
from strategies.placement.baselines import local_search, one_device, solve_chain, solve_greedy
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.device_program import solve_convex
from strategies.placement.free import solve_free
from strategies.placement.problem import PlacementProblem, PlacementResult

__all__ = ["BASELINES", "BEST", "METHODS", "OBJECTIVES", "Baseline", "Solver"]

Solver = Callable[[PlacementProblem, PlaceRequest, Clock], PlacementResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A simple method and the contiguity that its placements have at least."""

    solve: Solver
    contiguity: str


def _chain(problem: PlacementProblem, request: PlaceRequest, clock: Clock) -> PlacementResult:
    return solve_contiguous(problem, seed=request.seed, gap=request.gap, clock=clock)


def _convex(problem: PlacementProblem, request: PlaceRequest, clock: Clock) -> PlacementResult:
    return solve_convex(problem, seed=request.seed, relative_gap=request.gap, clock=clock)


def _free(problem: PlacementProblem, request: PlaceRequest, clock: Clock) -> PlacementResult:
    return solve_free(problem, seed=request.seed, gap=request.gap, clock=clock)


# (objective, contiguity) -> the method that --method auto means.
BEST: dict[tuple[str, str], Solver] = {
    ("throughput", "chain"): _chain,
    ("throughput", "convex"): _convex,
    ("throughput", "none"): _free,
}
BASELINES: dict[str, Baseline] = {
    "one-device": Baseline(solve=lambda problem, _request, _clock: one_device(problem), contiguity="chain"),
    "greedy": Baseline(solve=lambda problem, _request, clock: solve_greedy(problem, clock=clock), contiguity="chain"),
    "pipedream": Baseline(solve=lambda problem, _request, clock: solve_chain(problem, clock=clock), contiguity="chain"),
    "local-search": Baseline(
        solve=lambda problem, request, clock: local_search(problem, seed=request.seed, clock=clock), contiguity="none"
    ),
}
# Latency has limits and methods of its own: `planner.placement.latency_run`.
OBJECTIVES = (*dict.fromkeys(objective for objective, _ in BEST), "latency")
METHODS = ("auto", *BASELINES, "expert")
