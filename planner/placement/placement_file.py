"""Placement files: YAML with the devices' operators, the limits that were used and the claim that was made; and splits made by experts.

Every key, type and range of a file is checked, and what is wrong is said with its line and column. An expert's split is JSON with
``fpgas`` and ``cpus``, each a list of objects with ``nodes`` (ids). Operators that it leaves out follow their colour class, as in the
published evaluator, which lists forward operators only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.core.errors import InputFileError, did_you_mean
from planner.files.documents import Location, parse_document
from planner.files.json_file import read_workload
from planner.files.yaml_text import yaml_text
from planner.placement.question import LatencyAnswer, PiperAnswer, PlaceAnswer
from planner.placement.workload_file import MAX_DEVICES, JsonReader, ProblemReader
from strategies.placement.bounds import simple_bound
from strategies.placement.latency.evaluate import CPU
from strategies.placement.loads import device_loads, placement_faults
from strategies.placement.piper import PiperPlan, PiperProblem
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = [
    "LIMIT_KEYS",
    "SCHEMA_VERSION",
    "PlacementFile",
    "assignment_of",
    "expert_placement",
    "piper_stages",
    "placement_text",
    "read_placement_file",
    "subgraphs_of",
]


def assignment_of(problem: PlacementProblem, placement: Placement) -> dict[Any, str]:
    """Name of every node's device."""
    return {problem.node_ids[v]: problem.device_name(d) for v, d in enumerate(placement.device.tolist())}


def subgraphs_of(problem: PlacementProblem, placement: Placement) -> dict[Any, int]:
    """Number of every node's subgraph on its accelerator."""
    numbers = [0] * problem.num_nodes if placement.subgraph is None else placement.subgraph.tolist()
    return dict(zip(problem.node_ids, numbers, strict=True))


def piper_stages(problem: PiperProblem, plan: PiperPlan) -> list[Mapping[str, Any]]:
    """Stages as plain values, in the order of the data."""
    return [
        {
            "data_parallel": stage.data_parallel,
            "tensor_parallel": stage.tensor_parallel,
            "nodes": [problem.node_ids[v] for v in stage.nodes],
            "ways": list(stage.ways),
        }
        for stage in plan.stages
    ]


def placement_text(answer: PlaceAnswer | LatencyAnswer | PiperAnswer) -> str:
    """Write an answer as a placement file."""
    head: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "workload": answer.request.workload.name,
        "workload_sha256": answer.sha256,
    }
    if answer.request.assume_free:
        head["assumed_free"] = list(answer.request.assume_free)
    claim = {
        "objective_value": answer.result.objective,
        "bound": answer.result.bound,
        "method": answer.result.method,
        "proof": answer.result.proof,
    }
    if isinstance(answer, PiperAnswer):
        limits = {
            "devices": answer.problem.num_devices,
            "device_memory_bytes": answer.problem.memory_bytes,
            "bandwidth_bytes_per_s": answer.problem.bandwidth_bytes_per_s,
            "micro_batches": answer.problem.num_micro_batches,
        }
        assert answer.result.plan is not None
        stages = piper_stages(answer.problem, answer.result.plan)
        return yaml_text({**head, "objective": "piper", "limits": limits, **claim, "stages": stages})
    assert answer.result.placement is not None
    problem = answer.problem
    limits = {
        "accelerators": problem.num_accelerators,
        "cpus": problem.num_cpus,
        "memory_bytes": problem.memory_bytes,
    }
    if isinstance(answer, LatencyAnswer):
        return yaml_text({**head, **_latency_body(answer, limits, claim)})
    on_device: dict[int, list[Any]] = {}
    for v, d in enumerate(answer.result.placement.device.tolist()):
        on_device.setdefault(d, []).append(problem.node_ids[v])
    body = {
        "objective": answer.request.objective,
        "contiguity": answer.request.contiguity,
        "limits": limits,
        **claim,
        # Devices without operators say nothing.
        "devices": {problem.device_name(d): _in_rows(nodes) for d, nodes in sorted(on_device.items())},
    }
    return yaml_text({**head, **body})


def _latency_body(answer: LatencyAnswer, limits: dict[str, Any], claim: dict[str, Any]) -> dict[str, Any]:
    """Accelerators have a list of operators for each subgraph, in the order in which they run."""
    problem, timing = answer.problem, answer.timing
    devices: dict[str, list[Any]] = {}
    for i, accelerator in enumerate(timing.accelerator.tolist()):
        nodes = [problem.node_ids[v] for v in np.flatnonzero(timing.unit == i).tolist()]
        devices.setdefault(f"acc{accelerator + 1}", []).append(nodes)
    on_cpu = [problem.node_ids[v] for v in np.flatnonzero(timing.unit == CPU).tolist()]
    if on_cpu:
        devices["cpu1"] = _in_rows(on_cpu)
    limits = {**limits, "subgraphs": answer.request.num_subgraphs}
    return {"objective": "latency", "limits": limits, **claim, "devices": devices}


def _in_rows(nodes: list[Any]) -> list[Any]:
    """Nest long lists, so that a line of the file holds some operators and not one."""
    return nodes if len(nodes) <= 12 else [nodes[i : i + 16] for i in range(0, len(nodes), 16)]


SCHEMA_VERSION = 1
_OBJECTIVES = ("throughput", "latency", "piper")
_CONTIGUITIES = ("chain", "convex", "none")
# Keys of ``limits`` -> keys of the workload that they replace, for operator graphs and for workloads of Piper's format.
LIMIT_KEYS = {
    "accelerators": "maxFPGAs",
    "cpus": "maxCPUs",
    "memory_bytes": "maxSizePerFPGA",
    "devices": "maxDevices",
    "device_memory_bytes": "maxMemoryPerDevice",
    "bandwidth_bytes_per_s": "bandwidth",
    "micro_batches": "mbsInBatch",
    "subgraphs": "subgraphs",
}
# Limits that count something, with their ranges; the others are amounts.
_COUNTS = {
    "accelerators": (0, MAX_DEVICES),
    "cpus": (0, MAX_DEVICES),
    "devices": (1, MAX_DEVICES),
    "micro_batches": (1, MAX_DEVICES),
    "subgraphs": (1, MAX_DEVICES),
}
_HEAD_KEYS = (
    "schema_version",
    "workload",
    "workload_sha256",
    "assumed_free",
    "objective",
    "limits",
    "objective_value",
    "bound",
    "method",
    "proof",
)
_BODY_KEYS = {"throughput": ("contiguity", "devices"), "latency": ("devices",), "piper": ("stages",)}
_STAGE_KEYS = ("data_parallel", "tensor_parallel", "nodes", "ways")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFile:
    """A placement as its file says it."""

    path: Path
    objective: str
    contiguity: str
    limits: Mapping[str, float]  # by the workload's keys
    device_of: Mapping[Any, str]  # node id -> device name; empty for Piper's plans
    subgraph_of: Mapping[Any, int]  # node id -> number of the accelerator's subgraph, for latency
    stages: Sequence[Mapping[str, Any]]  # of Piper's plans
    claimed: float | None
    bound: float | None
    workload_sha256: str | None


def read_placement_file(path: Path) -> PlacementFile:
    """Read a placement file.

    Raises
    ------
    InputFileError
        Everything that is wrong with it, with line and column.
    """
    document = parse_document(path)
    reader = _Reader(document)
    content = document.value
    if not isinstance(content, dict):
        raise InputFileError([document.problem((), "must be a mapping with the keys of a placement file")])
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        reader.add(("schema_version",), f"must be {SCHEMA_VERSION}, not {version!r}")
    objective = reader.choice(content, "objective", _OBJECTIVES)
    reader.known(content, (), (*_HEAD_KEYS, *_BODY_KEYS[objective]))
    contiguity = reader.choice(content, "contiguity", _CONTIGUITIES) if objective == "throughput" else "none"
    device_of: dict[Any, str] = {}
    subgraph_of: dict[Any, int] = {}
    stages: list[Mapping[str, Any]] = []
    if objective == "piper":
        stages = reader.stages(content.get("stages"))
    else:
        reader.devices(content.get("devices"), device_of, subgraph_of, nested=objective == "latency")
    limits = reader.limits(content.get("limits", {}))
    claimed = reader.amount(content.get("objective_value"), ("objective_value",))
    bound = reader.amount(content.get("bound"), ("bound",))
    digest = content.get("workload_sha256")
    if digest is not None and not isinstance(digest, str):
        reader.add(("workload_sha256",), "must be a text in quotes, the SHA-256 of the workload")
    reader.check()
    return PlacementFile(
        path=path,
        objective=objective,
        contiguity=contiguity,
        limits=limits,
        device_of=device_of,
        subgraph_of=subgraph_of,
        stages=stages,
        claimed=claimed,
        bound=bound,
        workload_sha256=digest,
    )


class _Reader(ProblemReader):
    def known(self, content: Mapping[str, Any], location: Location, allowed: Sequence[str]) -> None:
        """Refuse keys that mean nothing."""
        for key in content:
            if key not in allowed:
                message = f"unknown key '{key}'{did_you_mean(str(key), allowed)} (known: {', '.join(allowed)})"
                self.add((*location, key), message, at_key=True)

    def choice(self, content: Mapping[str, Any], key: str, allowed: tuple[str, ...]) -> str:
        value = content.get(key)
        if value not in allowed:
            self.add((key,), f"{key} must be one of {', '.join(allowed)}, not {value!r}")
            return allowed[0]
        return str(value)

    def amount(self, value: Any, location: Location) -> float | None:
        """Read a finite number of at least 0 that may be left out."""
        if value is None:
            return None
        if not _is_number(value) or not math.isfinite(value) or value < 0:
            self.add(location, f"must be a finite number of at least 0, not {_short(value)}")
            return None
        return float(value)

    def count(self, value: Any, location: Location, least: int, most: int) -> int:
        """Read a whole number within its range."""
        if not _is_number(value) or not least <= value <= most or float(value) != int(value):
            self.add(location, f"must be a whole number from {least} to {most:,}, not {_short(value)}")
            return least
        return int(value)

    def limits(self, value: Any) -> dict[str, float]:
        if not isinstance(value, dict):
            self.add(("limits",), "must be a mapping")
            return {}
        result: dict[str, float] = {}
        for key, number in value.items():
            at = ("limits", key)
            if key not in LIMIT_KEYS:
                known = ", ".join(LIMIT_KEYS)
                self.add(at, f"unknown limit '{key}'{did_you_mean(str(key), LIMIT_KEYS)} (known: {known})", at_key=True)
            elif key in _COUNTS:
                result[LIMIT_KEYS[key]] = self.count(number, at, *_COUNTS[key])
            elif number is None:
                self.add(at, "must be a finite number of at least 0, not null")
            else:
                amount = self.amount(number, at)
                if amount == 0 and key == "bandwidth_bytes_per_s":
                    self.add(at, "must be above 0")
                result[LIMIT_KEYS[key]] = amount or 0.0
        return result

    def node(self, value: Any, location: Location) -> bool:
        """Whether a value can be the id of an operator."""
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            self.add(location, f"{_short(value)} is no node id (a whole number or a name)")
            return False
        return True

    def devices(self, value: Any, device_of: dict[Any, str], subgraph_of: dict[Any, int], *, nested: bool) -> None:
        if not isinstance(value, dict):
            self.add(("devices",), "must map device names to lists of operators")
            return
        for name, nodes in value.items():
            if not isinstance(nodes, list):
                self.add(("devices", name), "must be a list of operators")
                continue
            for i, entry in enumerate(nodes):
                inner = entry if isinstance(entry, list) else [entry]
                for node in inner:
                    if not self.node(node, ("devices", name, i)):
                        continue
                    if node in device_of:
                        self.add(("devices", name, i), f"node {node!r} is placed twice")
                        continue
                    device_of[node] = name
                    if nested and isinstance(entry, list) and name.startswith("acc"):
                        subgraph_of[node] = i

    def stages(self, value: Any) -> list[Mapping[str, Any]]:
        if not isinstance(value, list) or not value:
            self.add(("stages",), "must be a list of stages")
            return []
        for i, stage in enumerate(value):
            at = ("stages", i)
            if not isinstance(stage, dict):
                self.add(at, "must be a mapping")
                continue
            self.known(stage, at, _STAGE_KEYS)
            for key in ("data_parallel", "tensor_parallel"):
                self.count(stage.get(key), (*at, key), 1, MAX_DEVICES)
            nodes, ways = stage.get("nodes"), stage.get("ways")
            if not isinstance(nodes, list) or not isinstance(ways, list) or len(nodes) != len(ways):
                self.add(at, "needs nodes and ways, lists of the same length")
                continue
            for j, (node, way) in enumerate(zip(nodes, ways, strict=True)):
                self.node(node, (*at, "nodes", j))
                self.count(way, (*at, "ways", j), 0, MAX_DEVICES)
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    """Write a value for a message."""
    return "null" if value is None else repr(value)[:40]


# Unknown operators of a group of devices that are named before the rest is counted: a split of another workload has all unknown.
_SHOWN = 5


def expert_placement(problem: PlacementProblem, path: Path) -> PlacementResult:
    """Read a split and say what it is worth.

    Raises
    ------
    InputFileError
        The file cannot be read, does not place every operator once, or breaks a constraint of the problem.
    """
    file = read_workload(path)
    reader = JsonReader(file)
    content = reader.object(file.content, ())
    reader.require(content, ("fpgas",), ())
    reader.check()
    rank = {node: v for v, node in enumerate(problem.node_ids)}
    device = np.full(problem.num_nodes, -1, dtype=np.int64)
    groups = (("fpgas", 0, problem.num_accelerators), ("cpus", problem.num_accelerators, problem.num_cpus))
    for key, first, count in groups:
        entries = content.get(key, [])
        _read_group(reader, entries, key, first, count, rank, device)
    reader.check()
    owner = np.full(problem.num_colors, -1, dtype=np.int64)
    placed = device >= 0
    owner[problem.color[placed]] = device[placed]
    device = np.where(placed, device, owner[problem.color])
    missing = np.flatnonzero(device < 0)
    if len(missing):
        first_id = problem.node_ids[int(missing[0])]
        raise InputFileError([file.problem((), f"{len(missing)} operators have no device, node {first_id!r} first")])
    faults = placement_faults(problem, Placement(device=device))
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


def _read_group(
    reader: JsonReader,
    entries: Any,
    key: str,
    first: int,
    count: int,
    rank: Mapping[Any, int],
    device: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> None:
    groups = reader.list_of(entries, (key,), lambda value, at: (reader.object(value, at), at))
    used = unknown = 0
    for group, at in groups:
        nodes = group.get("nodes", [])
        if not nodes:
            continue
        if used == count:
            reader.add(at, f"there are only {count} such devices")
            return
        for i, node in enumerate(nodes if isinstance(nodes, list) else ()):
            place: Location = (*at, "nodes", i)
            if isinstance(node, (list, dict)) or node not in rank:
                unknown += 1
                if unknown <= _SHOWN:
                    reader.add(place, f"node {str(node)[:40]} is not in the workload")
            elif device[rank[node]] >= 0:
                reader.add(place, f"node {node!r} is placed twice")
            else:
                device[rank[node]] = first + used
        used += 1
    if unknown > _SHOWN:
        reader.add((key,), f"{unknown - _SHOWN} more nodes are not in the workload; is this the split of another one?")
