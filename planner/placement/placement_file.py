"""Placements to files and back: YAML with the devices' operators, the limits that were used and the claim that was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import FileProblem, InputFileError
from planner.files.documents import Document, Location, parse_document
from planner.placement.answers import LatencyAnswer, PiperAnswer, PlaceAnswer
from planner.report.yaml_text import yaml_text
from strategies.placement.latency.evaluate import CPU
from strategies.placement.piper_problem import PiperPlan, PiperProblem
from strategies.placement.problem import Placement, PlacementProblem

__all__ = [
    "SCHEMA_VERSION",
    "PlacementFile",
    "assignment_of",
    "piper_stages",
    "placement_text",
    "read_placement_file",
    "subgraphs_of",
]

SCHEMA_VERSION = 1
_OBJECTIVES = ("throughput", "latency", "piper")
_CONTIGUITIES = ("chain", "convex", "none")
# Keys of ``limits`` -> keys of the workload that they replace.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFile:
    """A placement as its file says it."""

    path: Path
    objective: str
    contiguity: str
    limits: Mapping[str, float]
    device_of: Mapping[Any, str]  # node id -> device name; empty for Piper's plans
    subgraph_of: Mapping[Any, int]  # node id -> number of the accelerator's subgraph, for latency
    stages: Sequence[Mapping[str, Any]]  # of Piper's plans
    claimed: float | None


def assignment_of(problem: PlacementProblem, placement: Placement) -> dict[Any, str]:
    """Name of every node's device."""
    names = problem.device_names()
    return {problem.node_ids[v]: names[d] for v, d in enumerate(placement.device.tolist())}


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
    devices: dict[str, list[Any]] = {name: [] for name in problem.device_names()}
    for node, name in assignment_of(problem, answer.result.placement).items():
        devices[name].append(node)
    body = {
        "objective": answer.request.objective,
        "contiguity": answer.request.contiguity,
        "limits": limits,
        **claim,
        # Devices without operators say nothing.
        "devices": {name: _in_rows(nodes) for name, nodes in devices.items() if nodes},
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
    contiguity = reader.choice(content, "contiguity", _CONTIGUITIES) if objective == "throughput" else "none"
    device_of: dict[Any, str] = {}
    subgraph_of: dict[Any, int] = {}
    stages: list[Mapping[str, Any]] = []
    if objective == "piper":
        stages = reader.stages(content.get("stages"))
    else:
        reader.devices(content.get("devices"), device_of, subgraph_of, nested=objective == "latency")
    limits = reader.limits(content.get("limits", {}))
    claimed = content.get("objective_value")
    reader.check()
    return PlacementFile(
        path=path,
        objective=objective,
        contiguity=contiguity,
        limits=limits,
        device_of=device_of,
        subgraph_of=subgraph_of,
        stages=stages,
        claimed=float(claimed) if isinstance(claimed, (int, float)) and not isinstance(claimed, bool) else None,
    )


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._problems: list[FileProblem] = []

    def add(self, location: Location, message: str) -> None:
        self._problems.append(self._document.problem(location, message))

    def check(self) -> None:
        if self._problems:
            raise InputFileError(self._problems)

    def choice(self, content: Mapping[str, Any], key: str, allowed: tuple[str, ...]) -> str:
        value = content.get(key)
        if value not in allowed:
            self.add((key,), f"{key} must be one of {', '.join(allowed)}, not {value!r}")
            return allowed[0]
        return str(value)

    def limits(self, value: Any) -> dict[str, float]:
        if not isinstance(value, dict):
            self.add(("limits",), "must be a mapping")
            return {}
        result = {}
        for key, number in value.items():
            if key not in LIMIT_KEYS:
                self.add(("limits", key), f"unknown limit '{key}' (known: {', '.join(LIMIT_KEYS)})")
            elif isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0:
                self.add(("limits", key), "must be a number of at least 0")
            else:
                result[LIMIT_KEYS[key]] = number
        return result

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
                    if isinstance(node, bool) or not isinstance(node, (int, str)):
                        self.add(("devices", name, i), f"{node!r} is no node id")
                    elif node in device_of:
                        self.add(("devices", name, i), f"node {node!r} is placed twice")
                    else:
                        device_of[node] = name
                        if nested and isinstance(entry, list) and name.startswith("acc"):
                            subgraph_of[node] = i

    def stages(self, value: Any) -> list[Mapping[str, Any]]:
        if not isinstance(value, list) or not value:
            self.add(("stages",), "must be a list of stages")
            return []
        for i, stage in enumerate(value):
            if not isinstance(stage, dict):
                self.add(("stages", i), "must be a mapping")
                continue
            for key in ("data_parallel", "tensor_parallel"):
                number = stage.get(key)
                if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                    self.add(("stages", i), f"{key} must be a whole number of at least 1")
            nodes, ways = stage.get("nodes"), stage.get("ways")
            whole = isinstance(nodes, list) and isinstance(ways, list) and len(nodes) == len(ways)
            if not whole or not all(isinstance(way, int) for way in ways):  # type: ignore[union-attr]
                self.add(("stages", i), "needs nodes and ways, lists of the same length")
        return value
