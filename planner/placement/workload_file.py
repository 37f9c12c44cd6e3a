"""Reads operator graphs in the public JSON format of the device placement papers.

An object with ``maxFPGAs`` (accelerators), ``maxCPUs``, ``maxSizePerFPGA`` (bytes), ``nodes`` (``id``, ``supportedOnFpga``,
``cpuLatency``, ``fpgaLatency``, ``size``, ``isBackwardNode``, ``colorClass``) and ``edges`` (``sourceId``, ``destId``, ``cost``).
Accelerators of several kinds are an extension, ``deviceTypes``, see `planner.placement.device_types`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem, InputFileError, NoFeasiblePlan, UsageError
from planner.files.documents import Location
from planner.files.json_file import JsonFile
from planner.placement.columns import edges_at_once, nodes_at_once
from planner.placement.device_types import read_types
from planner.placement.reader import JsonReader
from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementFault, PlacementFaultsError, PlacementProblem

__all__ = ["LoadedWorkload", "Overrides", "loaded_workload", "workload_from"]

_MIXED_TOP_KEYS = ("maxCPUs", "deviceTypes", "nodes", "edges")
_TOP_KEYS = ("maxFPGAs", "maxCPUs", "maxSizePerFPGA", "nodes", "edges")
_NODE_KEYS = ("id", "supportedOnFpga", "cpuLatency", "fpgaLatency")
# Layers too large for a device that are named before the rest is counted.
_SHOWN_LAYERS = 5
_EDGE_KEYS = ("sourceId", "destId", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What the command line says in place of the file; None leaves the file's word."""

    num_accelerators: int | None = None
    num_cpus: int | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWorkload:
    """A workload as a problem, and as the (overridden) content that the checker judges by."""

    problem: PlacementProblem
    content: Mapping[str, Any]
    path: Path
    sha256: str


def loaded_workload(file: JsonFile, overrides: Overrides, *, is_model: bool) -> LoadedWorkload:
    """Make a problem of a parsed file, or of the operator graph of a network, which no file holds.

    Raises
    ------
    InputFileError
        Everything that is wrong with the file.
    NoFeasiblePlan
        Layers of the network fit no device.
    """
    try:
        return workload_from(file, overrides)
    except InputFileError as error:
        if not is_model:
            raise
        # The graph is ours: what is wrong with it is that the layers are too much for the devices.
        raise NoFeasiblePlan(
            "\n".join(f"{file.path}: {problem.message}" for problem in error.problems[:_SHOWN_LAYERS])
            + (f"\n... and {len(error.problems) - _SHOWN_LAYERS} more" if len(error.problems) > _SHOWN_LAYERS else "")
        ) from None


def workload_from(file: JsonFile, overrides: Overrides) -> LoadedWorkload:
    """Make a problem of a parsed file."""
    reader = JsonReader(file)
    content = reader.object(file.content, ())
    reader.check()
    given = {
        "maxFPGAs": overrides.num_accelerators,
        "maxCPUs": overrides.num_cpus,
        "maxSizePerFPGA": overrides.memory_bytes,
    }
    content = {**content, **{key: value for key, value in given.items() if value is not None}}
    has_types = "deviceTypes" in content
    if has_types and (overrides.num_accelerators is not None or overrides.memory_bytes is not None):
        raise UsageError(
            "--devices, --memory: the workload has deviceTypes, which say how many accelerators there are, and of what memory"
        )
    reader.require(content, _MIXED_TOP_KEYS if has_types else _TOP_KEYS, ())
    reader.check()
    nodes = nodes_at_once(content["nodes"])
    if nodes is None:
        nodes = reader.list_of(content["nodes"], ("nodes",), lambda value, at: _node(reader, value, at))
    edges = edges_at_once(content["edges"])
    if edges is None:
        edges = reader.list_of(content["edges"], ("edges",), lambda value, at: _edge(reader, value, at))
    types = read_types(reader, content) if has_types else []
    accelerators = reader.count(content["maxFPGAs"], ("maxFPGAs",), least=1) if not has_types else 0
    cpus = reader.count(content["maxCPUs"], ("maxCPUs",), least=0)
    memory = reader.number(content["maxSizePerFPGA"], ("maxSizePerFPGA",)) if not has_types else 0.0
    reader.check()
    try:
        problem = PlacementProblem.build(
            nodes, edges, num_accelerators=accelerators, num_cpus=cpus, memory_bytes=memory, types=types
        )
    except PlacementFaultsError as error:
        raise InputFileError([_located(file, fault) for fault in error.faults[:60]]) from None
    return LoadedWorkload(problem=problem, content=content, path=file.path, sha256=file.sha256)


def _located(file: JsonFile, fault: PlacementFault) -> FileProblem:
    location: Location = (fault.part,) if fault.part else ()
    location += (fault.index,) if fault.index >= 0 else ()
    location += (fault.key,) if fault.key else ()
    return file.problem(location, fault.message)


def _node(reader: JsonReader, value: Any, location: Location) -> NodeSpec:
    entry = reader.object(value, location)
    if entry and reader.require(entry, _NODE_KEYS, location):
        supported = reader.flag(entry["supportedOnFpga"], (*location, "supportedOnFpga"))
        time = entry["fpgaLatency"]
        color = entry.get("colorClass")
        return NodeSpec(
            id=reader.identity(entry["id"], (*location, "id")),
            # Where an operator cannot run its time there means nothing, and files have null or infinity for it.
            accelerator_time=reader.number(time, (*location, "fpgaLatency")) if supported else 0.0,
            cpu_time=reader.number(entry["cpuLatency"], (*location, "cpuLatency")),
            size_bytes=reader.number(entry.get("size", 0.0), (*location, "size")),
            supported=supported,
            backward=reader.flag(entry.get("isBackwardNode", 0), (*location, "isBackwardNode")),
            color=None if color is None else reader.identity(color, (*location, "colorClass")),
            name=str(entry.get("name", "")),
        )
    return NodeSpec(id="", accelerator_time=0.0, cpu_time=0.0)


def _edge(reader: JsonReader, value: Any, location: Location) -> EdgeSpec:
    entry = reader.object(value, location)
    if entry and reader.require(entry, _EDGE_KEYS, location):
        return EdgeSpec(
            source=reader.identity(entry["sourceId"], (*location, "sourceId")),
            target=reader.identity(entry["destId"], (*location, "destId")),
            transfer_time=reader.number(entry["cost"], (*location, "cost")),
        )
    return EdgeSpec("", "", 0.0)
