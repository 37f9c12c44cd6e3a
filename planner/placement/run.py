"""Answers a question about placement: reads the workload, runs the method, has the checker judge what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.arrays import IntArray
from costmodel.tolerances import EQUAL
from planner.core.blocks import Report
from planner.core.errors import FileProblem, InputFileError, LimitReached, NoFeasiblePlan, SearchInterrupted, UsageError
from planner.files.json_file import JsonFile, read_workload
from planner.files.resources import bundled_name
from planner.placement.check import CheckedPiper, CheckedPlacement, check_latency, check_piper, check_throughput
from planner.placement.piper_file import is_piper, piper_from
from planner.placement.placement_file import (
    PlacementFile,
    assignment_of,
    expert_placement,
    piper_stages,
    read_placement_file,
    subgraphs_of,
)
from planner.placement.question import (
    BASELINES,
    BEST,
    LATENCY_METHODS,
    LatencyAnswer,
    PiperAnswer,
    PlaceAnswer,
    PlaceRequest,
)
from planner.placement.report import check_report
from planner.placement.workload_file import Loaded, loaded_workload, workload_from
from strategies.limits import Clock
from strategies.placement.baselines import one_device_time
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.latency.evaluate import evaluate, one_device_latency
from strategies.placement.loads import device_loads
from strategies.placement.piper import PiperResult, solve_piper
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult, without_spare_devices

__all__ = ["before_judging", "check_files", "place"]

# An operator on a CPU that does not exist takes so many times the time of everything.
_PROHIBITIVE = 1e3
# Of the time that is left when the workload has been read, what is kept for the checker and the report at most.
_JUDGING_SHARE = 0.3
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
    file = _workload_file(request.workload) if request.cluster is None else _of_model(request)
    if is_piper(file.content):
        return _place_piper(file, request, clock)
    if request.bandwidth_bytes_per_s is not None or request.num_micro_batches is not None:
        raise UsageError("--bandwidth, --micro-batches: only have a meaning for workloads of Piper's format")
    if request.objective == "latency":
        return _place_for_latency(file, request, clock)
    if request.num_subgraphs is not None:
        raise UsageError("--subgraphs: only has a meaning with --objective latency")
    given = {
        "maxFPGAs": request.num_devices,
        "maxCPUs": request.num_cpus,
        "maxSizePerFPGA": request.memory_bytes,
    }
    loaded = loaded_workload(file, given, is_model=request.cluster is not None)
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


def _of_model(request: PlaceRequest) -> JsonFile:
    """Operator graph of a network on a cluster."""
    from planner.placement.model_workload import workload_of_model

    if request.objective == "latency" and request.mode != "inference":
        raise UsageError("--objective latency is of inference: add --mode inference")
    if request.num_cpus:
        raise UsageError(
            "--cpus: clusters name no CPU that could run layers; --export-workload writes a file to add times to"
        )
    return workload_of_model(request)


def _solved(loaded: Loaded[PlacementProblem], request: PlaceRequest, clock: Clock) -> tuple[PlacementResult, str]:
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
        result = BEST[request.contiguity](problem, request, clock)
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


def _judge(loaded: Loaded[PlacementProblem], result: PlacementResult, contiguity: str) -> str:
    """The checker has the last word on every placement that is shown; it returns the contiguity that there is."""
    assert result.placement is not None
    device_of = assignment_of(loaded.problem, result.placement)
    checked = check_throughput(loaded.content, device_of, contiguity=contiguity)
    _assert_agreed(checked, result)
    return "chain" if checked.is_chain else "convex" if checked.is_convex else "none"


def _place_piper(file: JsonFile, request: PlaceRequest, clock: Clock) -> PiperAnswer:
    loaded = piper_from(
        file,
        {
            "maxDevices": request.num_devices,
            "maxMemoryPerDevice": request.memory_bytes,
            "bandwidth": request.bandwidth_bytes_per_s,
            "mbsInBatch": request.num_micro_batches,
        },
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
    _assert_agreed(check_piper(loaded.content, stages), result)
    return PiperAnswer(
        request=request, problem=loaded.problem, result=result, sha256=loaded.sha256, content=loaded.content
    )


def before_judging(clock: Clock) -> Clock:
    """A clock for the search, so that the checker and the report end within the limit: they take about as long as reading did."""
    return clock.leaving(min(clock.elapsed_s, _JUDGING_SHARE * clock.left_s))


def _place_for_latency(file: JsonFile, request: PlaceRequest, clock: Clock) -> LatencyAnswer:
    """Place a workload of inference for the least latency."""
    solver = LATENCY_METHODS.get(request.method)
    if solver is None:
        raise UsageError(
            f"--method {request.method}: is for throughput; for --objective latency: {', '.join(LATENCY_METHODS)}"
        )
    if request.num_cpus is not None:
        raise UsageError("--cpus: has no meaning for --objective latency, whose CPUs are unlimited")
    given = {"maxFPGAs": request.num_devices, "maxSizePerFPGA": request.memory_bytes}
    loaded = loaded_workload(file, given, is_model=request.cluster is not None)
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
    checked = check_latency(
        loaded.content,
        assignment_of(problem, result.placement),
        subgraphs_of(problem, result.placement),
        num_subgraphs=request.num_subgraphs or 1,
    )
    _assert_agreed(checked, result)
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
    raise LimitReached(
        f"{result.method}: found no placement that can run{'; raise --time-limit' if result.stopped else ''}"
    )


def _refuse_training(file: JsonFile, loaded: Loaded[PlacementProblem]) -> None:
    backward = [i for i, node in enumerate(loaded.content["nodes"]) if node.get("isBackwardNode", 0)]
    if backward:
        message = (
            f"latency is of inference; {len(backward):,} operators are backward (--objective throughput takes them)"
        )
        raise InputFileError([file.problem(("nodes", backward[0], "isBackwardNode"), message)])


def _assert_agreed(checked: CheckedPlacement | CheckedPiper, result: PlacementResult | PiperResult) -> None:
    """The checker has the last word on every placement that is shown."""
    assert not checked.violations, checked.violations[0]
    assert np.isclose(checked.objective, result.objective, rtol=EQUAL), "the checker computes another objective"


def check_files(request: PlaceRequest, placement: Path) -> tuple[Report, bool]:
    """Recompute objective and constraints from scratch.

    Parameters
    ----------
    request : PlaceRequest
        What names the workload: a file of the public JSON format, or of Piper's; a network with its cluster.
    placement : Path
        As written by ``planner place --export``; its limits replace those of the workload.

    Returns
    -------
    report : Report
    ok : bool

    Raises
    ------
    PlannerError
        A file cannot be used, or a name is not known.
    """
    claim = read_placement_file(placement)
    file = (
        read_workload(request.workload) if request.cluster is None else _model_of_claim(request, request.cluster, claim)
    )
    piper = is_piper(file.content)
    if piper != (claim.objective == "piper"):
        words = ("is of Piper's format", "is an operator graph")
        message = f"is a placement for {claim.objective}, but {file.path.name} {words[0] if piper else words[1]}"
        raise InputFileError([FileProblem(path=placement, message=message)])
    if piper:
        content = {**piper_from(file, {}).content, **claim.limits}
        judged = check_piper(content, claim.stages)
        objective, violations = judged.objective, judged.violations
    else:
        graph = workload_from(file, {}).content
        limits = {key: value for key, value in claim.limits.items() if key in graph}
        objective, violations = _judged({**graph, **limits}, claim)
    report = check_report(claim, objective, violations, sha256=file.sha256)
    return report, bool(report.data()["ok"])


def _model_of_claim(request: PlaceRequest, cluster: str, claim: PlacementFile) -> JsonFile:
    """The operator graph for as many devices as the placement was made for: their number decides on the links."""
    from planner.files.loading import load_cluster
    from planner.placement.model_workload import workload_of_model

    devices = claim.limits.get("maxFPGAs")
    several = len(load_cluster(cluster).cluster.groups) > 1  # all of whose devices are used
    return workload_of_model(replace(request, num_devices=None if several or not devices else int(devices)))


def _judged(content: Mapping[str, Any], claim: PlacementFile) -> tuple[float, tuple[str, ...]]:
    if claim.objective == "latency":
        subgraphs = int(claim.limits.get("subgraphs", 1))
        latency = check_latency(content, claim.device_of, claim.subgraph_of, num_subgraphs=subgraphs)
        return latency.objective, latency.violations
    judged = check_throughput(content, claim.device_of, contiguity=claim.contiguity)
    return judged.objective, judged.violations
