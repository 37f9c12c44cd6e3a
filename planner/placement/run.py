"""Answers a question about placement: reads the workload, runs the method, checks what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.tolerances import EQUAL
from planner.core.blocks import Report
from planner.core.errors import (
    FileProblem,
    InputFileError,
    LimitReached,
    NoFeasiblePlan,
    PlannerError,
    SearchInterrupted,
    UsageError,
)
from planner.files.documents import JsonFile, read_workload
from planner.files.resources import bundled_name
from planner.placement.check import Checked, check_latency, check_piper, check_throughput
from planner.placement.piper_file import is_piper, piper_from
from planner.placement.placement_file import Claim, claim_of, expert_placement, read_placement_file
from planner.placement.question import BASELINES, BEST, LATENCY_METHODS, PlaceAnswer, PlaceRequest
from planner.placement.report import check_report
from planner.placement.workload_file import Loaded, loaded_workload, workload_from
from strategies.limits import Clock
from strategies.placement.baselines import one_device_time
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.latency.evaluate import evaluate, one_device_latency
from strategies.placement.piper import data_parallel_time, solve_piper
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult, without_spare_devices

# An operator on a CPU that does not exist takes so many times the time of everything.
_PROHIBITIVE = 1e3
# Of the time that is left when the workload has been read, what is kept for the checker and the report at most.
_CHECKING_SHARE = 0.3
# Of the time limit, for a baseline; the best contiguous placement that it is compared with gets the rest.
_BASELINE_SHARE = 0.5


def place(request: PlaceRequest, report: Callable[[str, float, float], None]) -> PlaceAnswer:
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
    file = _workload_file(request) if request.cluster is None else _of_model(request)
    objective = "piper" if is_piper(file.content) else request.objective
    loaded = _loaded(file, request, objective)
    _refuse_options(request, objective, loaded)
    problem, asked = loaded.problem, request
    if objective == "latency":
        _refuse_training(file, loaded)
        asked = replace(request, contiguity="convex", num_subgraphs=request.num_subgraphs or 1)
    elif request.method != "auto":
        asked = replace(request, contiguity=BASELINES[request.method][1] if request.method in BASELINES else "none")
    result: Any = _SOLVERS[objective](problem, request, leaving_time_to_check(clock))
    if (result.plan if objective == "piper" else result.placement) is None:
        raise _nothing_found(result, problem, asked, objective)
    answer = PlaceAnswer(
        objective=objective,
        request=asked,
        problem=problem,
        result=result,
        sha256=loaded.sha256,
        content=loaded.content,
        one_device=_ONE_DEVICE[objective](problem),
        timing=evaluate(problem, result.placement) if objective == "latency" else None,
        made_with=file.made_with,
    )
    # The checker has the last word on every placement that is shown; a baseline's may be more contiguous than it has to be.
    checked = _checked(loaded.content, claim_of(answer))
    assert not checked.violations, checked.violations[0]
    assert np.isclose(checked.objective, result.objective, rtol=EQUAL), "the checker computes another objective"
    if objective == "throughput" and request.method != "auto":
        found = "chain" if checked.is_chain else "convex" if checked.is_convex else "none"
        return replace(answer, request=replace(request, contiguity=found))
    return answer


def leaving_time_to_check(clock: Clock) -> Clock:
    """A clock for the search, so that the checker and the report end within the limit: they take about as long as reading did."""
    return clock.leaving(min(clock.elapsed_s, _CHECKING_SHARE * clock.left_s))


# -- the workload


def _workload_file(request: PlaceRequest) -> JsonFile:
    """Read an operator graph; a network's name where no file is says what it takes to place one."""
    if isinstance(request.content, JsonFile):
        return request.content
    path = request.workload
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


def _loaded(file: JsonFile, request: PlaceRequest, objective: str) -> Loaded[Any]:
    if objective == "piper":
        limits = {"maxDevices": request.num_devices, "maxMemoryPerDevice": request.memory_bytes}
        more = {"bandwidth": request.bandwidth_bytes_per_s, "mbsInBatch": request.num_micro_batches}
        return piper_from(file, {**limits, **more})
    given = {"maxFPGAs": request.num_devices, "maxSizePerFPGA": request.memory_bytes}
    cpus = {} if objective == "latency" else {"maxCPUs": request.num_cpus}
    return loaded_workload(file, {**given, **cpus}, is_model=request.cluster is not None)


def _refuse_options(request: PlaceRequest, objective: str, loaded: Loaded[Any]) -> None:
    """Options that have no meaning for a problem are not passed over."""
    is_piper, is_latency = objective == "piper", objective == "latency"
    has_types = not is_piper and bool(loaded.problem.types)
    chooses = request.method != "auto" or request.contiguity != "chain"
    refused = {
        "--method, --contiguity, --cpus: have no meaning for workloads of Piper's format": is_piper
        and (chooses or request.num_cpus is not None),
        "--objective latency, --subgraphs: have no meaning for workloads of Piper's format": is_piper
        and (request.objective != "throughput" or request.num_subgraphs is not None),
        "--bandwidth, --micro-batches: only have a meaning for workloads of Piper's format": not is_piper
        and (request.bandwidth_bytes_per_s is not None or request.num_micro_batches is not None),
        "--subgraphs: only has a meaning with --objective latency": not is_latency
        and request.num_subgraphs is not None,
        f"--method {request.method}: is for throughput; for --objective latency: {', '.join(LATENCY_METHODS)}": is_latency
        and request.method not in LATENCY_METHODS,
        "--cpus: has no meaning for --objective latency, whose CPUs are unlimited": is_latency
        and request.num_cpus is not None,
        "--objective latency: not for workloads with deviceTypes": is_latency and has_types,
        "--method, --contiguity convex: not for workloads with deviceTypes (chain and --non-contiguous are)": has_types
        and (request.method not in ("auto", "expert") or request.contiguity == "convex"),
    }
    for message, is_refused in refused.items():
        if is_refused:
            raise UsageError(message)


def _refuse_training(file: JsonFile, loaded: Loaded[PlacementProblem]) -> None:
    backward = [i for i, node in enumerate(loaded.content["nodes"]) if node.get("isBackwardNode", 0)]
    if backward:
        message = (
            f"latency is of inference; {len(backward):,} operators are backward (--objective throughput takes them)"
        )
        raise InputFileError([file.problem(("nodes", backward[0], "isBackwardNode"), message)])


# -- the search


def _for_throughput(problem: PlacementProblem, request: PlaceRequest, clock: Clock) -> PlacementResult:
    """Run the method; what a baseline or an expert found is compared with the best contiguous placement."""
    few, device = without_spare_devices(problem)
    if request.method == "auto":
        result = BEST[request.contiguity](few, request, clock)
    elif request.expert is None:
        result = BASELINES[request.method][0](few, request, clock.within(_BASELINE_SHARE))
    else:
        result, device = expert_placement(problem, request.expert), np.arange(problem.num_devices)
    placement = result.placement
    if placement is None:
        return result
    if request.method != "auto" and not result.is_interrupted:
        result = replace(result, chain=solve_contiguous(few, seed=request.seed, clock=clock))
    return replace(result, placement=Placement(device=device[placement.device]))


def _for_latency(problem: PlacementProblem, request: PlaceRequest, clock: Clock) -> PlacementResult:
    """Place a workload of inference for the least latency; without a placement where that cannot run."""
    few, _ = without_spare_devices(problem)
    if not few.num_cpus:  # so slow that nothing is there if there is another way
        worst = float(problem.accelerator_time.sum() + 2 * problem.num_nodes * problem.transfer_time.sum())
        few = replace(few, cpu_time=np.full(problem.num_nodes, _PROHIBITIVE * max(worst, 1e-300)))
    result = LATENCY_METHODS[request.method](few, request, clock)
    if result.placement is None:
        return result
    # Accelerators come first, and operators on CPUs carry the first CPU's number.
    on_cpu = result.placement.device >= few.num_accelerators
    if not np.isfinite(result.objective) or (np.any(on_cpu) and not problem.num_cpus):
        return replace(result, placement=None)
    device = np.where(on_cpu, problem.num_accelerators, result.placement.device)
    return replace(result, placement=replace(result.placement, device=device))


_SOLVERS: dict[str, Callable[[Any, PlaceRequest, Clock], Any]] = {
    "throughput": _for_throughput,
    "latency": _for_latency,
    "piper": lambda problem, _request, clock: solve_piper(problem, clock=clock),
}
_ONE_DEVICE: dict[str, Callable[[Any], float]] = {
    "throughput": one_device_time,
    "latency": one_device_latency,
    "piper": data_parallel_time,
}


def _nothing_found(result: Any, problem: Any, request: PlaceRequest, objective: str) -> Exception:
    """Why there is no placement to show."""
    if result.stopped == "interrupted":
        return SearchInterrupted(None)
    memory = f"{problem.memory_bytes:,.0f} bytes"
    if objective == "piper":
        if result.stopped or np.isfinite(result.bound):
            return LimitReached(f"no plan was found: {result.stopped or result.proof}")
        text = f"no stages on {problem.num_devices} devices of {memory} hold all operators (more --devices or --memory)"
        return NoFeasiblePlan(f"no plan exists: {text}")
    need, room = float(problem.size_bytes.sum()), problem.memory_bytes * problem.num_accelerators
    is_latency, is_chain = objective == "latency", request.contiguity == "chain"
    cpus = "" if request.cluster else f" and {problem.num_cpus} CPUs"
    # The first that holds.
    cases: tuple[tuple[bool, type[PlannerError], str], ...] = (
        (
            is_latency and result.proven_optimal and bool(np.isfinite(result.objective)),
            NoFeasiblePlan,
            (
                f"no placement exists: the {problem.num_accelerators} accelerators of {memory} cannot hold the operators, which need"
                f" {need:,.0f} bytes, in so few parts, and there are no CPUs (more --devices, --memory or --subgraphs)"
            ),
        ),
        (
            is_latency,
            LimitReached,
            f"{result.method}: found no placement that can run{'; raise --time-limit' if result.stopped else ''}",
        ),
        (
            result.stopped == "time limit",
            LimitReached,
            "the time limit came before a placement was found; raise --time-limit",
        ),
        (
            bool(np.isfinite(result.bound)),  # a baseline, or a graph too large for a proof
            NoFeasiblePlan,
            f"{result.method}: found no placement within the memory ({result.proof})",
        ),
        (
            True,
            NoFeasiblePlan,
            (
                f"no placement exists: {'no contiguous cut' if is_chain else 'nothing'} fits the {problem.num_accelerators} accelerators"
                f" of {memory}{cpus}; the operators need {need:,.0f} bytes in all, the accelerators have {room:,.0f}"
                f" (more --devices or --memory{', or --non-contiguous' if is_chain and need <= room else ''})"
            ),
        ),
    )
    return next(kind(text) for holds, kind, text in cases if holds)


# -- the checker


def _checked(content: Mapping[str, Any], claim: Claim) -> Checked:
    if claim.objective == "piper":
        return check_piper(content, claim.stages)
    if claim.objective == "latency":
        subgraphs = int(claim.limits.get("subgraphs", 1))
        return check_latency(content, claim.device_of, claim.subgraph_of, num_subgraphs=subgraphs)
    return check_throughput(content, claim.device_of, contiguity=claim.contiguity)


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
    content = (piper_from(file, {}) if piper else workload_from(file, {})).content
    limits = {key: value for key, value in claim.limits.items() if piper or key in content}
    report = check_report(placement.name, claim, _checked({**content, **limits}, claim), sha256=file.sha256)
    return report, bool(report.data()["ok"])


def _model_of_claim(request: PlaceRequest, cluster: str, claim: Claim) -> JsonFile:
    """The operator graph for as many devices as the placement was made for: their number decides on the links."""
    from planner.files.loading import load_cluster
    from planner.placement.model_workload import workload_of_model

    devices = claim.limits.get("maxFPGAs")
    several = len(load_cluster(cluster).cluster.groups) > 1  # all of whose devices are used
    return workload_of_model(replace(request, num_devices=None if several or not devices else int(devices)))
