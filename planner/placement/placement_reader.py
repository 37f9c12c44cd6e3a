"""Reads placement files: every key, type and range is checked, and what is wrong is said with its line and column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem, InputFileError, did_you_mean
from planner.files.documents import Document, Location, parse_document
from planner.placement.reader import MAX_DEVICES

__all__ = ["LIMIT_KEYS", "SCHEMA_VERSION", "PlacementFile", "read_placement_file"]

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


class _Reader:
    _MOST = 60  # more lines help nobody

    def __init__(self, document: Document) -> None:
        self._document = document
        self._problems: list[FileProblem] = []

    def add(self, location: Location, message: str, *, at_key: bool = False) -> None:
        if len(self._problems) < self._MOST:
            self._problems.append(self._document.problem(location, message, at_key=at_key))

    def check(self) -> None:
        if self._problems:
            raise InputFileError(self._problems)

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
