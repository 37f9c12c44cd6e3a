"""Reads operator graphs in the public JSON format of the device placement papers; says what is wrong with them, and where.

An object with ``maxFPGAs`` (accelerators), ``maxCPUs``, ``maxSizePerFPGA`` (bytes), ``nodes`` (``id``, ``supportedOnFpga``,
``cpuLatency``, ``fpgaLatency``, ``size``, ``isBackwardNode``, ``colorClass``) and ``edges`` (``sourceId``, ``destId``, ``cost``).

Accelerators of several kinds are an extension, ``deviceTypes``: a list of objects, in the order of the accelerators acc1, acc2, ...:
``name``, ``count``, ``memory`` (bytes) and, where they differ from 1, ``timeFactor`` (operators take ``fpgaLatency`` times this) and
``linkFactor`` (transfers take ``cost`` times this). ``timeKey`` names a key of the nodes with their times on this kind; a node without
the key takes ``fpgaLatency`` times ``timeFactor``. ``maxFPGAs`` and ``maxSizePerFPGA`` are not used then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from planner.core.errors import FileProblem, InputFileError, NoFeasiblePlan, UsageError
from planner.files.documents import JsonFile
from planner.files.validation import error_text, validate
from planner.schema.common import FileModel, Text
from planner.schema.records import key, record, several
from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementFaultsError, PlacementProblem, TypeSpec

# More problems help nobody, and each costs a walk through the file.
_MOST_PROBLEMS = 60
# Layers too large for a device that are named before the rest is counted.
_SHOWN_LAYERS = 5
Problem = TypeVar("Problem")


class OpenModel(FileModel):
    """An object of a format that others extend: keys that are not known mean nothing."""

    model_config = ConfigDict(extra="ignore")


def _node_id(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise PydanticCustomError("node_id", "expected a whole number or a name")
    return value


def _number(value: object) -> object:
    if isinstance(value, (bool, str)):
        raise PydanticCustomError("int_type", "expected a whole number")
    return value


def _where_supported(value: object, info: ValidationInfo) -> object:
    """Where an operator cannot run its time there means nothing, and files have null or infinity for it."""
    return value if info.data.get("supportedOnFpga", True) else 0.0


NodeId = Annotated[Any, BeforeValidator(_node_id)]
Amount = Annotated[float, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(strict=True, gt=0)]
Count = Annotated[int, Field(ge=0, le=1_000_000), BeforeValidator(_number)]
Number = Annotated[Count, Field(ge=1)]
_Flag = Literal[0, 1]
_Time: TypeAdapter[float] = TypeAdapter(Amount, config=ConfigDict(allow_inf_nan=False))

_Operator = record(
    "_Operator",
    "One operator.",
    OpenModel,
    id=NodeId,
    supportedOnFpga=_Flag,
    fpgaLatency=Annotated[Amount, BeforeValidator(_where_supported)],
    cpuLatency=Amount,
    size=key(Amount, default=0.0),
    isBackwardNode=key(_Flag, default=0),
    colorClass=key(NodeId | None, default=None),
    name=key(Any, default=""),
)
_Edge = record("_Edge", "One dependency.", OpenModel, sourceId=NodeId, destId=NodeId, cost=Amount)
_Kind = record(
    "_Kind",
    "Accelerators of one kind.",
    FileModel,
    name=Text,
    count=Number,
    memory=Amount,
    timeFactor=key(Amount, default=1.0),
    linkFactor=key(Positive, default=1.0),
    timeKey=key(Text | None, default=None),
)
_Graph = record("_Graph", None, OpenModel, maxCPUs=Count, nodes=several(_Operator), edges=several(_Edge))
_EqualGraph = record(
    "_EqualGraph", "An operator graph and equal accelerators.", _Graph, maxFPGAs=Number, maxSizePerFPGA=Amount
)
_MixedGraph = record(
    "_MixedGraph",
    "An operator graph and accelerators of several kinds.",
    _Graph,
    deviceTypes=key(several(_Kind), min_length=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[Problem]):
    """A workload as a problem, and as the (overridden) content that the checker reads."""

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
    has_types = isinstance(file.content, dict) and "deviceTypes" in file.content
    if has_types and any(given.get(name) is not None for name in ("maxFPGAs", "maxSizePerFPGA")):
        raise UsageError(
            "--devices, --memory: the workload has deviceTypes, which say how many accelerators there are, and of what memory"
        )
    graph, content = checked(_MixedGraph if has_types else _EqualGraph, file, given)
    nodes = [
        NodeSpec(
            id=node.id,
            accelerator_time=node.fpgaLatency,
            cpu_time=node.cpuLatency,
            size_bytes=node.size,
            supported=bool(node.supportedOnFpga),
            backward=bool(node.isBackwardNode),
            color=node.colorClass,
            name=str(node.name),
        )
        for node in graph.nodes
    ]
    problem = built(
        file,
        nodes,
        [EdgeSpec(edge.sourceId, edge.destId, edge.cost) for edge in graph.edges],
        num_accelerators=0 if has_types else graph.maxFPGAs,
        num_cpus=graph.maxCPUs,
        memory_bytes=0.0 if has_types else graph.maxSizePerFPGA,
        types=_kinds(file, graph, nodes) if has_types else (),
    )
    return Loaded(problem=problem, content=content, sha256=file.sha256)


def checked(model: Any, file: JsonFile, given: Mapping[str, float | None]) -> tuple[Any, Mapping[str, Any]]:
    """A parsed file as a model, and its content with what the command line says in place of it.

    Raises
    ------
    InputFileError
        Keys that are missing, values of the wrong type or out of range.
    """
    content = file.content
    if isinstance(content, dict):
        content = {**content, **{key: value for key, value in given.items() if value is not None}}
    return validate(model, replace(file, content=content), most=_MOST_PROBLEMS), content


def built(file: JsonFile, nodes: list[NodeSpec], edges: list[EdgeSpec], **limits: Any) -> PlacementProblem:
    """Make a problem of a graph of a file; raises `InputFileError` where it is none."""
    try:
        return PlacementProblem.build(nodes, edges, **limits)
    except PlacementFaultsError as error:
        places = [(fault, (fault.part, fault.index, fault.key)) for fault in error.faults[:_MOST_PROBLEMS]]
        raise InputFileError(
            [file.problem(tuple(step for step in place if step not in ("", -1)), f.message) for f, place in places]
        ) from None


def _kinds(file: JsonFile, graph: Any, nodes: list[NodeSpec]) -> list[TypeSpec]:
    """Kinds of accelerators, with the times of all nodes on each."""
    kinds: list[TypeSpec] = []
    problems: list[FileProblem] = []
    for k, kind in enumerate(graph.deviceTypes):
        if any(kind.name == other.name for other in kinds):
            problems.append(file.problem(("deviceTypes", k, "name"), f"the name {kind.name!r} is used twice"))
        times = []
        for i, (node, entry) in enumerate(zip(nodes, file.content["nodes"], strict=True)):
            name = kind.timeKey if kind.timeKey in entry else "fpgaLatency"
            time = entry.get(kind.timeKey, node.accelerator_time * kind.timeFactor)
            try:
                times.append(_Time.validate_python(time if node.supported else 0.0))
            except ValidationError as error:
                problems.append(file.problem(("nodes", i, name), error_text(error.errors()[0]) or str(error)))
        kinds.append(TypeSpec(kind.name, kind.count, kind.memory, times, kind.linkFactor))
    if problems:
        raise InputFileError(problems[:_MOST_PROBLEMS])
    return kinds
