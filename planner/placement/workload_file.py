"""Reads operator graphs in the public JSON format of the device placement papers.

An object with ``maxFPGAs`` (accelerators), ``maxCPUs``, ``maxSizePerFPGA`` (bytes), ``nodes`` (``id``, ``supportedOnFpga``,
``cpuLatency``, ``fpgaLatency``, ``size``, ``isBackwardNode``, ``colorClass``) and ``edges`` (``sourceId``, ``destId``, ``cost``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import FileProblem, InputFileError, did_you_mean
from planner.files.documents import Location
from planner.placement.json_file import JsonFile, read_json_file
from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementFault, PlacementFaultsError, PlacementProblem

__all__ = ["LoadedWorkload", "Overrides", "load_workload", "workload_from"]

_MAX_DEVICES = 1_000_000
_TOP_KEYS = ("maxFPGAs", "maxCPUs", "maxSizePerFPGA", "nodes", "edges")
_NODE_KEYS = ("id", "supportedOnFpga", "cpuLatency", "fpgaLatency")
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


def load_workload(path: Path, overrides: Overrides | None = None) -> LoadedWorkload:
    """Load and check a workload.

    Parameters
    ----------
    path : Path
    overrides : Overrides, optional

    Raises
    ------
    InputFileError
        Everything that is wrong with the file, with line and column.
    """
    return workload_from(read_json_file(path), overrides or Overrides())


def workload_from(file: JsonFile, overrides: Overrides) -> LoadedWorkload:
    """Make a problem of a parsed file."""
    reader = _Reader(file)
    content = reader.object(file.content, ())
    reader.check()
    given = {
        "maxFPGAs": overrides.num_accelerators,
        "maxCPUs": overrides.num_cpus,
        "maxSizePerFPGA": overrides.memory_bytes,
    }
    content = {**content, **{key: value for key, value in given.items() if value is not None}}
    reader.require(content, _TOP_KEYS, ())
    reader.check()
    nodes = reader.list_of(content["nodes"], ("nodes",), reader.node)
    edges = reader.list_of(content["edges"], ("edges",), reader.edge)
    accelerators = reader.count(content["maxFPGAs"], ("maxFPGAs",), least=1)
    cpus = reader.count(content["maxCPUs"], ("maxCPUs",), least=0)
    memory = reader.number(content["maxSizePerFPGA"], ("maxSizePerFPGA",))
    reader.check()
    try:
        problem = PlacementProblem.build(
            nodes, edges, num_accelerators=accelerators, num_cpus=cpus, memory_bytes=memory
        )
    except PlacementFaultsError as error:
        raise InputFileError([_located(file, fault) for fault in error.faults[:60]]) from None
    return LoadedWorkload(problem=problem, content=content, path=file.path, sha256=file.sha256)


def _located(file: JsonFile, fault: PlacementFault) -> FileProblem:
    location: Location = (fault.part,) if fault.part else ()
    location += (fault.index,) if fault.index >= 0 else ()
    location += (fault.key,) if fault.key else ()
    return file.problem(location, fault.message)


class _Reader:
    """Checks types and ranges of values; collects what is wrong, up to a limit."""

    _MOST = 60  # more lines help nobody, and each costs a walk through the file

    def __init__(self, file: JsonFile) -> None:
        self._file = file
        self._problems: list[FileProblem] = []

    def check(self) -> None:
        """Raise what was found so far."""
        if self._problems:
            raise InputFileError(self._problems)

    def add(self, location: Location, message: str) -> None:
        if len(self._problems) < self._MOST:
            self._problems.append(self._file.problem(location, message))

    def object(self, value: Any, location: Location) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return value
        self.add(location, f"must be an object with keys, not {_kind(value)}")
        return {}

    def require(self, value: Mapping[str, Any], keys: tuple[str, ...], location: Location) -> bool:
        missing = [key for key in keys if key not in value]
        for key in missing:
            self.add(location, f"the key '{key}' is missing{did_you_mean(key, [k for k in value if k not in keys])}")
        return not missing

    def list_of(self, value: Any, location: Location, read: Callable[[Any, Location], Any]) -> list[Any]:
        if not isinstance(value, list):
            self.add(location, f"must be a list, not {_kind(value)}")
            return []
        return [read(item, (*location, i)) for i, item in enumerate(value)]

    def node(self, value: Any, location: Location) -> NodeSpec:
        entry = self.object(value, location)
        if entry and self.require(entry, _NODE_KEYS, location):
            supported = self.flag(entry["supportedOnFpga"], (*location, "supportedOnFpga"))
            time = entry["fpgaLatency"]
            color = entry.get("colorClass")
            return NodeSpec(
                id=self.identity(entry["id"], (*location, "id")),
                # Where an operator cannot run its time there means nothing, and files have null or infinity for it.
                accelerator_time=self.number(time, (*location, "fpgaLatency")) if supported else 0.0,
                cpu_time=self.number(entry["cpuLatency"], (*location, "cpuLatency")),
                size_bytes=self.number(entry.get("size", 0.0), (*location, "size")),
                supported=supported,
                backward=self.flag(entry.get("isBackwardNode", 0), (*location, "isBackwardNode")),
                color=None if color is None else self.identity(color, (*location, "colorClass")),
                name=str(entry.get("name", "")),
            )
        return NodeSpec(id="", accelerator_time=0.0, cpu_time=0.0)

    def edge(self, value: Any, location: Location) -> EdgeSpec:
        entry = self.object(value, location)
        if entry and self.require(entry, _EDGE_KEYS, location):
            return EdgeSpec(
                source=self.identity(entry["sourceId"], (*location, "sourceId")),
                target=self.identity(entry["destId"], (*location, "destId")),
                transfer_time=self.number(entry["cost"], (*location, "cost")),
            )
        return EdgeSpec("", "", 0.0)

    def identity(self, value: Any, location: Location) -> int | str:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            self.add(location, f"must be a whole number or a name, not {_kind(value)}")
            return ""
        return value

    def flag(self, value: Any, location: Location) -> bool:
        if value not in (0, 1) or not isinstance(value, (bool, int)):
            self.add(location, f"must be 0 or 1, not {_kind(value)}")
            return False
        return bool(value)

    def number(self, value: Any, location: Location) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.add(location, f"must be a number, not {_kind(value)}")
        elif not math.isfinite(value):
            self.add(location, f"must be a finite number, not {_kind(value)}")
        elif value < 0:
            self.add(location, f"must be at least 0, not {_kind(value)}")
        else:
            return float(value)
        return 0.0

    def count(self, value: Any, location: Location, *, least: int) -> int:
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer()
        if not whole or not least <= value <= _MAX_DEVICES:
            self.add(location, f"must be a whole number from {least} to {_MAX_DEVICES:,}, not {_kind(value)}")
            return least
        return int(value)


def _kind(value: Any) -> str:
    """Write a value for a message, short."""
    if value is None:
        return "null"
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)[:40]
