"""Answers a question about latency: the limits that it has, the method, the checker's word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from costmodel.tolerances import EQUAL
from planner.core.errors import InputFileError, LimitReached, NoFeasiblePlan, UsageError
from planner.core.search_errors import SearchInterrupted
from planner.files.json_file import JsonFile
from planner.placement.answers import LatencyAnswer
from planner.placement.check import check_latency
from planner.placement.placement_file import assignment_of, subgraphs_of
from planner.placement.request import PlaceRequest
from planner.placement.workload_file import LoadedWorkload, Overrides, loaded_workload
from strategies.limits import Clock
from strategies.placement.latency.evaluate import evaluate, latency_greedy, latency_one_device, one_device_latency
from strategies.placement.latency.solve import solve_latency
from strategies.placement.problem import PlacementProblem, PlacementResult, without_spare_devices

__all__ = ["before_judging", "place_for_latency"]

# An operator on a CPU that does not exist takes so many times the time of everything.
_PROHIBITIVE = 1e3
_HINT = "; raise --time-limit"
# Of the time that is left when the workload has been read, what is kept for the checker and the report at most.
_JUDGING_SHARE = 0.3
Solver = Callable[[PlacementProblem, PlaceRequest, Clock], PlacementResult]


def _best(problem: PlacementProblem, request: PlaceRequest, clock: Clock) -> PlacementResult:
    return solve_latency(problem, num_subgraphs=request.num_subgraphs or 1, gap=request.gap, clock=clock)


_METHODS: dict[str, Solver] = {
    "auto": _best,
    "one-device": lambda problem, _request, _clock: latency_one_device(problem),
    "greedy": lambda problem, _request, clock: latency_greedy(problem, clock=clock),
}


def before_judging(clock: Clock) -> Clock:
    """A clock for the search, so that the checker and the report end within the limit: they take about as long as reading did."""
    return clock.leaving(min(clock.elapsed_s, _JUDGING_SHARE * clock.left_s))


def place_for_latency(file: JsonFile, request: PlaceRequest, clock: Clock) -> LatencyAnswer:
    """Place a workload for the least latency.

    Raises
    ------
    InputFileError
        The workload cannot be used, or is of training.
    UsageError
        A method that knows no latency, or a limit that latency has not.
    NoFeasiblePlan
        There is provably none.
    LimitReached
        None was found.
    """
    solver = _METHODS.get(request.method)
    if solver is None:
        raise UsageError(
            f"--method {request.method}: is for throughput; for --objective latency: {', '.join(_METHODS)}"
        )
    if request.num_cpus is not None:
        raise UsageError("--cpus: has no meaning for --objective latency, whose CPUs are unlimited")
    overrides = Overrides(num_accelerators=request.num_devices, memory_bytes=request.memory_bytes)
    loaded = loaded_workload(file, overrides, is_model=request.cluster is not None)
    problem = loaded.problem
    _refuse_training(file, loaded)
    if problem.types:
        raise UsageError("--objective latency: not for workloads with deviceTypes")
    few, _ = without_spare_devices(
        problem
    )  # accelerators come first, and operators on CPUs carry the first CPU's number
    result = solver(few if few.num_cpus else _without_cpus(few), request, before_judging(clock))
    if result.placement is not None:
        on_cpu = result.placement.device >= few.num_accelerators
        device = np.where(on_cpu, problem.num_accelerators, result.placement.device)
        result = replace(result, placement=replace(result.placement, device=device))
    _refuse_nothing(problem, result)
    assert result.placement is not None
    _judge(loaded, result, request)
    return LatencyAnswer(
        request=replace(request, contiguity="convex", num_subgraphs=request.num_subgraphs or 1),
        problem=problem,
        result=result,
        timing=evaluate(problem, result.placement),
        one_device=one_device_latency(problem),
        sha256=loaded.sha256,
        content=loaded.content,
    )


def _without_cpus(problem: PlacementProblem) -> PlacementProblem:
    """Operators take longer on a CPU than everything together elsewhere, so that none is there if there is another way."""
    worst = float(problem.accelerator_time.sum() + 2 * problem.num_nodes * problem.transfer_time.sum())
    never = np.full(problem.num_nodes, _PROHIBITIVE * max(worst, 1e-300))
    return replace(problem, cpu_time=never)


def _refuse_nothing(problem: PlacementProblem, result: PlacementResult) -> None:
    """Raise where there is no placement to show."""
    placement = result.placement
    if placement is not None and np.isfinite(result.objective):
        if problem.num_cpus or not bool(np.any(placement.device >= problem.num_accelerators)):
            return
        if result.proven_optimal:
            raise NoFeasiblePlan(
                f"no placement exists: the {problem.num_accelerators} accelerators of {problem.memory_bytes:,.0f} bytes"
                f" cannot hold the operators, which need {float(problem.size_bytes.sum()):,.0f} bytes, in so few parts,"
                " and there are no CPUs (more --devices, --memory or --subgraphs)"
            )
    if result.stopped == "interrupted":
        raise SearchInterrupted(None)
    raise LimitReached(f"{result.method}: found no placement that can run{_HINT if result.stopped else ''}")


def _refuse_training(file: JsonFile, loaded: LoadedWorkload) -> None:
    backward = [i for i, node in enumerate(loaded.content["nodes"]) if node.get("isBackwardNode", 0)]
    if backward:
        message = (
            f"latency is of inference; {len(backward):,} operators are backward (--objective throughput takes them)"
        )
        raise InputFileError([file.problem(("nodes", backward[0], "isBackwardNode"), message)])


def _judge(loaded: LoadedWorkload, result: PlacementResult, request: PlaceRequest) -> None:
    """The checker has the last word on every placement that is shown."""
    assert result.placement is not None
    checked = check_latency(
        loaded.content,
        assignment_of(loaded.problem, result.placement),
        subgraphs_of(loaded.problem, result.placement),
        num_subgraphs=request.num_subgraphs or 1,
    )
    assert not checked.violations, checked.violations[0]
    assert np.isclose(checked.objective, result.objective, rtol=EQUAL), "the checker computes another objective"
