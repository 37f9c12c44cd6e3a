"""Placement files: YAML with the devices' operators, the limits that were used and the claim that was made; and splits made by experts.

Every key, type and range of a file is checked, and what is wrong is said with its line and column. An expert's split is JSON with
``fpgas`` and ``cpus``, each a list of objects with ``nodes`` (ids). Operators that it leaves out follow their colour class, as in the
published evaluator, which lists forward operators only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator

from planner.core.errors import FileProblem, InputFileError
from planner.files.documents import parse_document, read_workload
from planner.files.validation import validate
from planner.files.yaml_text import yaml_text
from planner.placement.question import PlaceAnswer, rows_of
from planner.placement.workload_file import Amount, Count, NodeId, Number, OpenModel, Positive, checked
from planner.schema.common import FileModel, Text, fail
from planner.schema.records import key, record, several
from strategies.placement.bounds import simple_bound
from strategies.placement.loads import device_loads, placement_faults
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult


def assignment_of(problem: PlacementProblem, placement: Placement) -> dict[Any, str]:
    """Name of every node's device."""
    return {problem.node_ids[v]: problem.device_name(d) for v, d in enumerate(placement.device.tolist())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is checked: a placement, as its file says it."""

    objective: str
    contiguity: str = "none"
    limits: Mapping[str, float]  # by the workload's keys
    device_of: Mapping[Any, str]  # node id -> device name; empty for Piper's plans
    subgraph_of: Mapping[Any, int]  # node id -> number of the accelerator's subgraph, for latency
    stages: Sequence[Mapping[str, Any]]  # of Piper's plans
    claimed: float | None = None
    bound: float | None = None
    workload_sha256: str | None = None


# -- writing

# Keys of ``limits`` -> the workload's key that they replace, what they are, and the attribute of the problem.
_LIMITS: dict[str, tuple[str, Any, str]] = {
    "accelerators": ("maxFPGAs", Count, "num_accelerators"),
    "cpus": ("maxCPUs", Count, "num_cpus"),
    "memory_bytes": ("maxSizePerFPGA", Amount, "memory_bytes"),
    "devices": ("maxDevices", Number, "num_devices"),
    "device_memory_bytes": ("maxMemoryPerDevice", Amount, "memory_bytes"),
    "bandwidth_bytes_per_s": ("bandwidth", Positive, "bandwidth_bytes_per_s"),
    "micro_batches": ("mbsInBatch", Number, "num_micro_batches"),
    "subgraphs": ("subgraphs", Number, ""),
}
_OF_GRAPH = ("accelerators", "cpus", "memory_bytes")
_OF_PIPER = ("devices", "device_memory_bytes", "bandwidth_bytes_per_s", "micro_batches")
_OF_STAGE = ("data_parallel", "tensor_parallel", "nodes", "ways")


def claim_of(answer: PlaceAnswer) -> Claim:
    """What an answer claims."""
    is_piper = answer.objective == "piper"
    placement = None if is_piper else answer.result.placement
    numbers = None if placement is None else placement.subgraph
    return Claim(
        objective=answer.objective,
        contiguity=answer.request.contiguity,
        limits={"subgraphs": answer.request.num_subgraphs or 1},
        device_of={} if placement is None else assignment_of(answer.problem, placement),
        subgraph_of={} if numbers is None else dict(zip(answer.problem.node_ids, numbers.tolist(), strict=True)),
        stages=rows_of(answer) if is_piper else [],
    )


def placement_text(answer: PlaceAnswer) -> str:
    """Write an answer as a placement file."""
    request, result, rows = answer.request, answer.result, rows_of(answer)
    names = _OF_PIPER if answer.objective == "piper" else _OF_GRAPH
    limits = {name: getattr(answer.problem, _LIMITS[name][2]) for name in names}
    body: dict[str, Any] = {}
    if answer.objective == "piper":
        body["stages"] = [{name: row[name] for name in _OF_STAGE} for row in rows]
    elif answer.timing is None:
        # Devices without operators say nothing.
        body["devices"] = {row["name"]: _in_rows(row["nodes"]) for row in rows if row["nodes"]}
    else:
        # Accelerators have a list of operators for each subgraph, in the order in which they run.
        limits["subgraphs"] = request.num_subgraphs
        devices: dict[str, list[Any]] = {}
        for row in rows:
            devices.setdefault(row["device"], []).append(row["nodes"])
        body["devices"] = {**devices, **({"cpu1": _in_rows(answer.cpu_nodes)} if answer.cpu_nodes else {})}
    return yaml_text(
        {
            "schema_version": 1,
            "workload": request.workload.name,
            "workload_sha256": answer.sha256,
            **({"assumed_free": list(request.assume_free)} if request.assume_free else {}),
            "objective": answer.objective,
            **({"contiguity": request.contiguity} if answer.objective == "throughput" else {}),
            "limits": limits,
            "objective_value": result.objective,
            "bound": result.bound,
            "method": result.method,
            "proof": result.proof,
            **body,
        }
    )


def _in_rows(nodes: list[Any]) -> list[Any]:
    """Nest long lists, so that a line of the file holds some operators and not one."""
    return nodes if len(nodes) <= 12 else [nodes[i : i + 16] for i in range(0, len(nodes), 16)]


# -- reading


def _as_list(entry: object) -> object:
    return entry if isinstance(entry, list) else [entry]


def _paired(stage: Any) -> Any:
    if len(stage.nodes) != len(stage.ways):
        fail("needs nodes and ways, lists of the same length")
    return stage


_Limits = record(
    "_Limits",
    "Limits in place of the workload's.",
    FileModel,
    **{name: key(kind, alias=written, default=0) for written, (name, kind, _) in _LIMITS.items()},
)
_File = record(
    "_File",
    "A placement file.",
    FileModel,
    schema_version=Literal[1],
    workload=key(Text, default=""),
    workload_sha256=key(Text | None, default=None),
    assumed_free=key(list[Text], default_factory=list),
    objective=Literal["throughput", "latency", "piper"],
    limits=key(_Limits, default_factory=_Limits),
    objective_value=key(Amount | None, default=None),
    bound=key(Amount | None, default=None),
    method=key(Text, default=""),
    proof=key(Text, default=""),
)
_Devices = dict[str, list[Annotated[list[NodeId], BeforeValidator(_as_list)]]]
_Stage = record(
    "_Stage",
    "One stage of a plan.",
    FileModel,
    data_parallel=Number,
    tensor_parallel=Number,
    nodes=list[NodeId],
    ways=list[Count],
)
_FILES = {
    "throughput": record("_Throughput", None, _File, contiguity=Literal["chain", "convex", "none"], devices=_Devices),
    "latency": record("_Latency", None, _File, devices=_Devices),
    "piper": record(
        "_Plan", None, _File, stages=key(several(Annotated[_Stage, AfterValidator(_paired)]), min_length=1)
    ),
}


def read_placement_file(path: Path) -> Claim:
    """Read a placement file.

    Raises
    ------
    InputFileError
        Everything that is wrong with it, with line and column.
    """
    document = parse_document(path, keep_faults=True)
    written = document.value if isinstance(document.value, dict) else {}
    if {"model", "cluster"} <= written.keys():
        text = f"is a plan of 'planner optimize', not a placement; 'planner estimate --plan {path}' predicts it"
        raise InputFileError([FileProblem(path=path, message=text)])
    objective = str(written.get("objective"))
    file = validate(_FILES.get(objective, _FILES["throughput"]), document)
    device_of: dict[Any, str] = {}
    subgraph_of: dict[Any, int] = {}
    problems: list[FileProblem] = []
    for name, entries in getattr(file, "devices", {}).items():
        for i, nodes in enumerate(entries):
            is_subgraph = (
                objective == "latency" and name.startswith("acc") and isinstance(written["devices"][name][i], list)
            )
            for node in nodes:
                if node in device_of:
                    problems.append(document.problem(("devices", name, i), f"node {node!r} is placed twice"))
                device_of[node] = name
                if is_subgraph:
                    subgraph_of[node] = i
    if problems:
        raise InputFileError(problems)
    return Claim(
        objective=objective,
        contiguity=getattr(file, "contiguity", "none"),
        limits=file.limits.model_dump(exclude_unset=True),
        device_of=device_of,
        subgraph_of=subgraph_of,
        stages=[stage.model_dump() for stage in getattr(file, "stages", ())],
        claimed=file.objective_value,
        bound=file.bound,
        workload_sha256=file.workload_sha256,
    )


# -- splits made by experts

# Unknown operators that are named before the rest is counted: a split of another workload has all unknown.
_SHOWN = 5
_Group = record("_Group", "Operators of a device.", OpenModel, nodes=key(list[NodeId], default_factory=list))
_Split = record("_Split", "A split.", OpenModel, fpgas=several(_Group), cpus=key(several(_Group), default_factory=list))


def expert_placement(problem: PlacementProblem, path: Path) -> PlacementResult:
    """Read a split and say what it is worth.

    Raises
    ------
    InputFileError
        The file cannot be read, does not place every operator once, or breaks a constraint of the problem.
    """
    file = read_workload(path)
    split, _ = checked(_Split, file, {})
    rank = {node: v for v, node in enumerate(problem.node_ids)}
    device = np.full(problem.num_nodes, -1, dtype=np.int64)
    problems: list[FileProblem] = []
    for name, first, count in (
        ("fpgas", 0, problem.num_accelerators),
        ("cpus", problem.num_accelerators, problem.num_cpus),
    ):
        groups = [(i, group.nodes) for i, group in enumerate(getattr(split, name)) if group.nodes]
        if len(groups) > count:
            problems.append(file.problem((name, groups[count][0]), f"there are only {count} such devices"))
        unknown: list[tuple[tuple[str, int, str, int], str]] = []
        for d, (i, nodes) in enumerate(groups[:count], start=first):
            for n, node in enumerate(nodes):
                if node not in rank:
                    unknown.append(((name, i, "nodes", n), f"node {str(node)[:40]} is not in the workload"))
                elif device[rank[node]] >= 0:
                    problems.append(file.problem((name, i, "nodes", n), f"node {node!r} is placed twice"))
                else:
                    device[rank[node]] = d
        problems += [file.problem(*place_and_text) for place_and_text in unknown[:_SHOWN]]
        if len(unknown) > _SHOWN:
            message = f"{len(unknown) - _SHOWN} more nodes are not in the workload; is this the split of another one?"
            problems.append(file.problem((name,), message))
    if problems:
        raise InputFileError(problems)
    owner = np.full(problem.num_colors, -1, dtype=np.int64)
    placed = device >= 0
    owner[problem.color[placed]] = device[placed]
    device = np.where(placed, device, owner[problem.color])
    missing = np.flatnonzero(device < 0)
    faults = [f"{len(missing)} operators have no device, node {problem.node_ids[v]!r} first" for v in missing[:1]]
    faults = faults or list(placement_faults(problem, Placement(device=device)))
    if faults:
        raise InputFileError([file.problem((), fault) for fault in faults])
    value = float(device_loads(problem, device).load.max())
    bound = simple_bound(problem)
    return PlacementResult(
        placement=Placement(device=device),
        objective=value,
        bound=min(value, bound.value),
        method=f"expert file {path.name}",
        proof=bound.proof,
    )
