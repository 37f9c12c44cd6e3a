"""Answers a question about placement: reads the workload, runs the method, has the checker judge what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.arrays import IntArray
from costmodel.tolerances import EQUAL
from planner.core.errors import InputFileError, LimitReached, NoFeasiblePlan, UsageError
from planner.core.search_errors import SearchInterrupted
from planner.files.json_file import JsonFile, read_workload
from planner.files.resources import bundled_name
from planner.placement.answers import LatencyAnswer, PiperAnswer, PlaceAnswer
from planner.placement.check import check_throughput
from planner.placement.check_piper import check_piper
from planner.placement.expert_file import expert_placement
from planner.placement.latency_run import before_judging, place_for_latency
from planner.placement.methods import BASELINES, BEST
from planner.placement.piper_file import PiperOverrides, is_piper, piper_from
from planner.placement.placement_file import assignment_of, piper_stages
from planner.placement.request import PlaceRequest
from planner.placement.workload_file import LoadedWorkload, Overrides, loaded_workload
from strategies.limits import Clock
from strategies.placement.baselines import one_device_time
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.loads import device_loads
from strategies.placement.piper import solve_piper
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult, without_spare_devices

__all__ = ["place"]

# Of the time limit, for a baseline; the best contiguous placement that it is compared with gets the rest.
_BASELINE_SHARE = 0.5


def place(
    request: PlaceRequest, report: Callable[[str, float, float], None]
) -> PlaceAnswer | LatencyAnswer | PiperAnswer:
    """Place a workload.

    Parameters
    ----------
    request : PlaceRequest
    report : callable
        Takes the stage, the best objective so far and the best bound.

    Raises
    ------
    InputFileError
        The workload or the expert's file cannot be used.
    NoFeasiblePlan
        Provably no placement exists, or the chosen baseline has none.
    LimitReached
        The time limit came before any placement.
    """
    clock = Clock(limit_s=request.time_limit_s, report=report)
    file = _workload_file(request.workload) if request.cluster is None else _of_model(request, request.cluster)
    if is_piper(file.content):
        return _place_piper(file, request, clock)
    if request.bandwidth_bytes_per_s is not None or request.num_micro_batches is not None:
        raise UsageError("--bandwidth, --micro-batches: only have a meaning for workloads of Piper's format")
    if request.objective == "latency":
        return place_for_latency(file, request, clock)
    if request.num_subgraphs is not None:
        raise UsageError("--subgraphs: only has a meaning with --objective latency")
    overrides = Overrides(
        num_accelerators=request.num_devices, num_cpus=request.num_cpus, memory_bytes=request.memory_bytes
    )
    loaded = loaded_workload(file, overrides, is_model=request.cluster is not None)
    problem = loaded.problem
    if problem.types and (request.method not in ("auto", "expert") or request.contiguity == "convex"):
        raise UsageError(
            "--method, --contiguity convex: not for workloads with deviceTypes (chain and --non-contiguous are)"
        )
    result, contiguity = _solved(loaded, request, before_judging(clock))
    if result.placement is None:
        raise _nothing_found(result, problem, contiguity, request)
    found = _judge(loaded, result, contiguity)
    return PlaceAnswer(
        request=replace(request, contiguity=found if request.method != "auto" else contiguity),
        problem=problem,
        result=result,
        loads=device_loads(problem, result.placement.device),
        one_device=one_device_time(problem),
        contiguous=result.chain,
        sha256=loaded.sha256,
        content=loaded.content,
    )


def _workload_file(path: Path) -> JsonFile:
    """Read an operator graph; a network's name where no file is says what it takes to place one."""
    try:
        return read_workload(path)
    except InputFileError:
        if path.exists() or bundled_name("models", str(path)) is None:
            raise
        raise UsageError(
            f"{path} is no operator graph but a network of the planner: add the cluster to place it on, as in --cluster dgx-h100"
        ) from None


def _of_model(request: PlaceRequest, cluster: str) -> JsonFile:
    """Operator graph of a network on a cluster."""
    from planner.placement.model_workload import ModelQuestion, workload_of_model

    if request.objective == "latency" and request.mode != "inference":
        raise UsageError("--objective latency is of inference: add --mode inference")
    if request.num_cpus:
        raise UsageError(
            "--cpus: clusters name no CPU that could run layers; --export-workload writes a file to add times to"
        )
    return workload_of_model(
        ModelQuestion(
            model=str(request.workload),
            cluster=cluster,
            mode="training" if request.mode == "training" else "inference",
            batch=request.batch,
            assume_free=request.assume_free,
            calibration=request.calibration,
            num_devices=request.num_devices,
        )
    )


def _solved(loaded: LoadedWorkload, request: PlaceRequest, clock: Clock) -> tuple[PlacementResult, str]:
    problem, device = without_spare_devices(loaded.problem)
    baseline = BASELINES.get(request.method)
    if request.method == "expert":
        assert request.expert is not None, "the command line checks this"
        result, contiguity = expert_placement(loaded.problem, request.expert), "none"
        return _compared(result, problem, request, clock), contiguity
    if baseline is not None:
        share = clock.within(_BASELINE_SHARE)
        result, contiguity = baseline.solve(problem, request, share), baseline.contiguity
        if result.placement is not None:
            result = _compared(result, problem, request, clock)
    else:
        result = BEST[request.objective, request.contiguity](problem, request, clock)
        contiguity = request.contiguity
    return _renumbered(result, device), contiguity


def _compared(
    result: PlacementResult, problem: PlacementProblem, request: PlaceRequest, clock: Clock
) -> PlacementResult:
    """Add the best contiguous placement to a baseline's, unless the user wants to stop."""
    if result.is_interrupted:
        return result
    return replace(result, chain=solve_contiguous(problem, seed=request.seed, clock=clock))


def _renumbered(result: PlacementResult, device: IntArray) -> PlacementResult:
    """Number devices as the workload does."""
    if result.placement is None:
        return result
    return replace(result, placement=Placement(device=device[result.placement.device]))


def _nothing_found(
    result: PlacementResult, problem: PlacementProblem, contiguity: str, request: PlaceRequest
) -> Exception:
    if result.is_interrupted:
        return SearchInterrupted(None)
    if result.stopped == "time limit":
        return LimitReached("the time limit came before a placement was found; raise --time-limit")
    if np.isfinite(result.bound):  # a baseline, or a graph too large for a proof
        return NoFeasiblePlan(f"{result.method}: found no placement within the memory ({result.proof})")
    need, room = float(problem.size_bytes.sum()), problem.memory_bytes * problem.num_accelerators
    kind = "no contiguous cut" if contiguity == "chain" else "nothing"
    cpus = "" if request.cluster else f" and {problem.num_cpus} CPUs"
    return NoFeasiblePlan(
        f"no placement exists: {kind} fits the {problem.num_accelerators} accelerators of {problem.memory_bytes:,.0f} bytes"
        f"{cpus}; the operators need {need:,.0f} bytes in all, the accelerators have {room:,.0f}"
        f" (more --devices or --memory{', or --non-contiguous' if contiguity == 'chain' and need <= room else ''})"
    )


def _judge(loaded: LoadedWorkload, result: PlacementResult, contiguity: str) -> str:
    """The checker has the last word on every placement that is shown; it returns the contiguity that there is."""
    assert result.placement is not None
    device_of = assignment_of(loaded.problem, result.placement)
    checked = check_throughput(loaded.content, device_of, contiguity=contiguity)
    assert not checked.violations, checked.violations[0]
    assert np.isclose(checked.objective, result.objective, rtol=EQUAL), "the checker computes another objective"
    return "chain" if checked.is_chain else "convex" if checked.is_convex else "none"


def _place_piper(file: JsonFile, request: PlaceRequest, clock: Clock) -> PiperAnswer:
    loaded = piper_from(
        file,
        PiperOverrides(
            num_devices=request.num_devices,
            memory_bytes=request.memory_bytes,
            bandwidth_bytes_per_s=request.bandwidth_bytes_per_s,
            num_micro_batches=request.num_micro_batches,
        ),
    )
    if request.method != "auto" or request.contiguity != "chain" or request.num_cpus is not None:
        raise UsageError("--method, --contiguity, --cpus: have no meaning for workloads of Piper's format")
    if request.objective != "throughput" or request.num_subgraphs is not None:
        raise UsageError("--objective latency, --subgraphs: have no meaning for workloads of Piper's format")
    result = solve_piper(loaded.problem, clock=before_judging(clock))
    if result.plan is None:
        if result.stopped == "interrupted":
            raise SearchInterrupted(None)
        if result.stopped or np.isfinite(result.bound):
            raise LimitReached(f"no plan was found: {result.proof}")
        raise NoFeasiblePlan(
            f"no plan exists: no stages on {loaded.problem.num_devices} devices of {loaded.problem.memory_bytes:,.0f} bytes"
            " hold all operators (more --devices or --memory)"
        )
    stages: list[Mapping[str, Any]] = piper_stages(loaded.problem, result.plan)
    checked = check_piper(loaded.content, stages)
    assert not checked.violations, checked.violations[0]
    assert np.isclose(checked.objective, result.objective, rtol=EQUAL), "the checker computes another objective"
    return PiperAnswer(
        request=request, problem=loaded.problem, result=result, sha256=loaded.sha256, content=loaded.content
    )
