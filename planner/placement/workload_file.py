"""Reads operator graphs in the public JSON format of the device placement papers; says what is wrong with them, and where.

An object with ``maxFPGAs`` (accelerators), ``maxCPUs``, ``maxSizePerFPGA`` (bytes), ``nodes`` (``id``, ``supportedOnFpga``,
``cpuLatency``, ``fpgaLatency``, ``size``, ``isBackwardNode``, ``colorClass``) and ``edges`` (``sourceId``, ``destId``, ``cost``).

Accelerators of several kinds are an extension, ``deviceTypes``: a list of objects, in the order of the accelerators acc1, acc2, ...:
``name``, ``count``, ``memory`` (bytes) and, where they differ from 1, ``timeFactor`` (operators take ``fpgaLatency`` times this) and
``linkFactor`` (transfers take ``cost`` times this). ``timeKey`` names a key of the nodes with their times on this kind; a node without
the key takes ``fpgaLatency`` times ``timeFactor``. ``maxFPGAs`` and ``maxSizePerFPGA`` are not used then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from planner.core.errors import FileProblem, InputFileError, NoFeasiblePlan, UsageError, did_you_mean
from planner.files.documents import Location
from planner.files.json_file import JsonFile
from strategies.placement.problem import (
    EdgeSpec,
    NodeSpec,
    PlacementFault,
    PlacementFaultsError,
    PlacementProblem,
    TypeSpec,
)

__all__ = [
    "JsonReader",
    "Loaded",
    "ProblemReader",
    "edges_at_once",
    "loaded_workload",
    "nodes_at_once",
    "read_types",
    "workload_from",
]

MAX_DEVICES = 1_000_000


class _Parsed(Protocol):
    """A parsed file, JSON or YAML."""

    def problem(self, location: Location, message: str, *, at_key: bool = False) -> FileProblem: ...


class ProblemReader:
    """Collects what is wrong with a file, each with its place, up to a limit."""

    _MOST = 60  # more lines help nobody, and each costs a walk through the file

    def __init__(self, file: _Parsed) -> None:
        self._file = file
        self._problems: list[FileProblem] = []

    def check(self) -> None:
        """Raise what was found so far."""
        if self._problems:
            raise InputFileError(self._problems)

    def add(self, location: Location, message: str, *, at_key: bool = False) -> None:
        """Note a problem."""
        if len(self._problems) < self._MOST:
            self._problems.append(self._file.problem(location, message, at_key=at_key))


class JsonReader(ProblemReader):
    """Checks types and ranges of the values of a workload."""

    def object(self, value: Any, location: Location) -> Mapping[str, Any]:
        """Read an object; an empty one stands in for anything else."""
        if isinstance(value, dict):
            return value
        self.add(location, f"must be an object with keys, not {_kind(value)}")
        return {}

    def require(self, value: Mapping[str, Any], keys: tuple[str, ...], location: Location) -> bool:
        """Whether all keys are there."""
        missing = [key for key in keys if key not in value]
        for key in missing:
            self.add(location, f"the key '{key}' is missing{did_you_mean(key, [k for k in value if k not in keys])}")
        return not missing

    def list_of(self, value: Any, location: Location, read: Callable[[Any, Location], Any]) -> list[Any]:
        """Read every item of a list."""
        if not isinstance(value, list):
            self.add(location, f"must be a list, not {_kind(value)}")
            return []
        return [read(item, (*location, i)) for i, item in enumerate(value)]

    def identity(self, value: Any, location: Location) -> int | str:
        """Read a whole number or a name."""
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            self.add(location, f"must be a whole number or a name, not {_kind(value)}")
            return ""
        return value

    def flag(self, value: Any, location: Location) -> bool:
        """Read 0, 1, true or false."""
        if value not in (0, 1) or not isinstance(value, (bool, int)):
            self.add(location, f"must be 0 or 1, not {_kind(value)}")
            return False
        return bool(value)

    def number(self, value: Any, location: Location) -> float:
        """Read a finite number of at least 0."""
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
        """Read a whole number within its range."""
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer()
        if not whole or not least <= value <= MAX_DEVICES:
            self.add(location, f"must be a whole number from {least} to {MAX_DEVICES:,}, not {_kind(value)}")
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


_KEYS = ("name", "count", "memory")
_OPTIONAL_KEYS = ("timeFactor", "linkFactor", "timeKey")


def read_types(reader: JsonReader, content: Mapping[str, Any]) -> list[TypeSpec]:
    """Kinds of accelerators of a workload, with the times of all nodes on each.

    Problems are noted in the reader.
    """
    nodes = content["nodes"] if isinstance(content["nodes"], list) else []
    found = reader.list_of(
        content["deviceTypes"],
        ("deviceTypes",),
        lambda value, at: _type(reader, value, at, [n for n in nodes if isinstance(n, dict)]),
    )
    if isinstance(content["deviceTypes"], list) and not found:
        reader.add(("deviceTypes",), "must name at least one kind of accelerator")
    names = [kind.name for kind in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            reader.add(("deviceTypes", i, "name"), f"the name {name!r} is used twice")
    return found


def _type(reader: JsonReader, value: Any, at: Location, nodes: list[Mapping[str, Any]]) -> TypeSpec:
    entry = reader.object(value, at)
    if not entry or not reader.require(entry, _KEYS, at):
        return TypeSpec("", 1, 0.0, [])
    for key in entry:
        if key not in (*_KEYS, *_OPTIONAL_KEYS):
            reader.add((*at, key), f"unknown key '{key}'; allowed: {', '.join((*_KEYS, *_OPTIONAL_KEYS))}")
    factor = reader.number(entry.get("timeFactor", 1.0), (*at, "timeFactor"))
    own = entry.get("timeKey")
    if own is not None and not isinstance(own, str):
        reader.add((*at, "timeKey"), "must be the name of a key of the nodes")
        own = None
    times = []
    for i, node in enumerate(nodes):
        key = own if own is not None and own in node else "fpgaLatency"
        time = reader.number(node.get(key, 0.0), ("nodes", i, key)) if node.get("supportedOnFpga") in (1, True) else 0.0
        times.append(time if key == own else time * factor)
    link = reader.number(entry.get("linkFactor", 1.0), (*at, "linkFactor"))
    if link <= 0:
        reader.add((*at, "linkFactor"), "must be above 0")
    return TypeSpec(
        name=str(entry["name"]),
        num_devices=reader.count(entry["count"], (*at, "count"), least=1),
        memory_bytes=reader.number(entry["memory"], (*at, "memory")),
        times=times,
        link_factor=link or 1.0,
    )


_NAMES = {int, str}
_NUMBERS = {int, float}
_FLAGS = {int, bool}


def nodes_at_once(items: Any) -> list[NodeSpec] | None:
    """Read a list of operators; None where there is a fault.

    Examples
    --------
    >>> node = {"id": 7, "supportedOnFpga": 0, "fpgaLatency": None, "cpuLatency": 2}
    >>> nodes_at_once([node])[0].cpu_time, nodes_at_once([{**node, "cpuLatency": -2}])
    (2.0, None)
    """
    if not isinstance(items, list) or not all(type(item) is dict for item in items):
        return None
    try:
        ids = [item["id"] for item in items]
        supported = _flags([item["supportedOnFpga"] for item in items])
        times = [item["fpgaLatency"] for item in items]
        cpu_times = _numbers([item["cpuLatency"] for item in items])
    except KeyError:
        return None
    sizes = _numbers([item.get("size", 0.0) for item in items])
    backward = _flags([item.get("isBackwardNode", 0) for item in items])
    colors = [item.get("colorClass") for item in items]
    if supported is None or cpu_times is None or sizes is None or backward is None:
        return None
    # Where an operator cannot run its time there means nothing, and files have null or infinity for it.
    own_times = _numbers([time if usable else 0.0 for time, usable in zip(times, supported, strict=True)])
    if own_times is None or not set(map(type, ids)) <= _NAMES or not set(map(type, colors)) <= {*_NAMES, type(None)}:
        return None
    names = [str(item.get("name", "")) for item in items]
    return list(map(NodeSpec, ids, own_times, cpu_times, sizes, supported, backward, colors, names))


def edges_at_once(items: Any) -> list[EdgeSpec] | None:
    """Read a list of dependencies; None where there is a fault."""
    if not isinstance(items, list) or not all(type(item) is dict for item in items):
        return None
    try:
        sources = [item["sourceId"] for item in items]
        targets = [item["destId"] for item in items]
        costs = _numbers([item["cost"] for item in items])
    except KeyError:
        return None
    if costs is None or not set(map(type, sources)) | set(map(type, targets)) <= _NAMES:
        return None
    return list(map(EdgeSpec, sources, targets, costs))


def _numbers(values: Sequence[Any]) -> list[float] | None:
    """Finite numbers of at least 0."""
    if not set(map(type, values)) <= _NUMBERS:
        return None
    numbers = np.array(values, dtype=np.float64)
    return numbers.tolist() if bool(np.all((numbers >= 0) & (numbers < np.inf))) else None


def _flags(values: Sequence[Any]) -> list[bool] | None:
    """0, 1, true or false."""
    if not set(map(type, values)) <= _FLAGS or not set(values) <= {0, 1}:
        return None
    return list(map(bool, values))


_MIXED_TOP_KEYS = ("maxCPUs", "deviceTypes", "nodes", "edges")
_TOP_KEYS = ("maxFPGAs", "maxCPUs", "maxSizePerFPGA", "nodes", "edges")
_NODE_KEYS = ("id", "supportedOnFpga", "cpuLatency", "fpgaLatency")
# Layers too large for a device that are named before the rest is counted.
_SHOWN_LAYERS = 5
_EDGE_KEYS = ("sourceId", "destId", "cost")


Problem = TypeVar("Problem")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[Problem]):
    """A workload as a problem, and as the (overridden) content that the checker judges by."""

    problem: Problem
    content: Mapping[str, Any]
    sha256: str


def loaded_workload(file: JsonFile, given: Mapping[str, float | None], *, is_model: bool) -> Loaded[PlacementProblem]:
    """Make a problem of a parsed file, or of the operator graph of a network, which no file holds.

    Parameters
    ----------
    file : JsonFile
    given : mapping
        What the command line says in place of the file, by the file's keys; None leaves the file's word.
    is_model : bool

    Raises
    ------
    InputFileError
        Everything that is wrong with the file.
    NoFeasiblePlan
        Layers of the network fit no device.
    """
    try:
        return workload_from(file, given)
    except InputFileError as error:
        if not is_model:
            raise
        # The graph is ours: what is wrong with it is that the layers are too much for the devices.
        raise NoFeasiblePlan(
            "\n".join(f"{file.path}: {problem.message}" for problem in error.problems[:_SHOWN_LAYERS])
            + (f"\n... and {len(error.problems) - _SHOWN_LAYERS} more" if len(error.problems) > _SHOWN_LAYERS else "")
        ) from None


def workload_from(file: JsonFile, given: Mapping[str, float | None]) -> Loaded[PlacementProblem]:
    """Make a problem of a parsed file, as `loaded_workload`."""
    reader = JsonReader(file)
    content = reader.object(file.content, ())
    reader.check()
    given = {key: value for key, value in given.items() if value is not None}
    content = {**content, **given}
    has_types = "deviceTypes" in content
    if has_types and not given.keys().isdisjoint(("maxFPGAs", "maxSizePerFPGA")):
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
    return Loaded(problem=problem, content=content, sha256=file.sha256)


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
