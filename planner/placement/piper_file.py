"""Reads operator graphs in Piper's JSON format: ways to run every operator on 1, 2, 4, ... devices.

An object with ``maxDevices``, ``maxMemoryPerDevice`` (bytes), ``bandwidth`` (bytes/s), ``mbsInBatch`` (micro-batches of a batch; also
called ``maxBatchSize``), ``nodes`` (``id``, ``TMPCs``: degree to a list of ways) and ``edges`` (``sourceId``, ``destId``,
``communicationCost`` in bytes). A way has ``timePerSample`` (s), ``parameterSize``, ``memoryUsageA`` and ``memoryUsageB`` (bytes),
``syncTimeFw`` and ``syncTimeBw`` (neighbour to bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, AliasChoices

from planner.core.errors import FileProblem, InputFileError
from planner.files.documents import JsonFile
from planner.placement.workload_file import Amount, Loaded, NodeId, Number, OpenModel, Positive, built, checked
from planner.schema.common import fail
from planner.schema.records import key, record, several
from strategies.placement.piper import PiperOption, PiperProblem
from strategies.placement.problem import EdgeSpec, NodeSpec

_MOST_DEGREE = 1 << 20


def _degree(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= _MOST_DEGREE:
        fail(f"'{text[:20]}' is no number of devices")
    return int(text)


def _some(ways: dict[int, Any]) -> dict[int, Any]:
    known = {degree: options for degree, options in sorted(ways.items()) if options}
    if not known:
        fail("holds no way to run the operator")
    return known


_Way = record(
    "_Way",
    "One way to run an operator.",
    OpenModel,
    id=key(Any, default=""),
    timePerSample=Amount,
    parameterSize=Amount,
    memoryUsageA=Amount,
    memoryUsageB=Amount,
    syncTimeFw=key(dict[str, Amount], default_factory=dict),
    syncTimeBw=key(dict[str, Amount], default_factory=dict),
)
_Ways: Any = several(_Way)
_Node = record(
    "_Node",
    "One operator.",
    OpenModel,
    id=NodeId,
    TMPCs=Annotated[dict[Annotated[str, AfterValidator(_degree)], _Ways], AfterValidator(_some)],
    name=key(Any, default=""),
)
_Edge = record("_Edge", "One dependency.", OpenModel, sourceId=NodeId, destId=NodeId, communicationCost=Amount)
_Workload = record(
    "_Workload",
    "Operators and devices.",
    OpenModel,
    maxDevices=Number,
    maxMemoryPerDevice=Amount,
    bandwidth=Positive,
    mbsInBatch=key(Number, validation_alias=AliasChoices("mbsInBatch", "maxBatchSize")),
    nodes=several(_Node),
    edges=several(_Edge),
)


def is_piper(content: Any) -> bool:
    """Whether parsed JSON is of this format.

    >>> is_piper({"nodes": [{"id": 0, "TMPCs": {}}]}), is_piper({"nodes": [{"id": 0}]}), is_piper([])
    (True, False, False)
    """
    if not isinstance(content, dict):
        return False
    nodes = content.get("nodes")
    some = isinstance(nodes, list) and any(isinstance(node, dict) and "TMPCs" in node for node in nodes)
    return some or "maxMemoryPerDevice" in content


def piper_from(file: JsonFile, given: Mapping[str, float | None]) -> Loaded[PiperProblem]:
    """Make a problem of a parsed file.

    Parameters
    ----------
    file : JsonFile
    given : mapping
        What the command line says in place of the file, by the file's keys; None leaves the file's word.

    Raises
    ------
    InputFileError
        Everything that is wrong with the file, with line and column.
    """
    workload, content = checked(_Workload, file, given)
    # Names, cycles and the order are those of any graph.
    graph = built(
        file,
        [NodeSpec(node.id, 0.0, 0.0) for node in workload.nodes],
        [EdgeSpec(edge.sourceId, edge.destId, 0.0) for edge in workload.edges],
        num_accelerators=1,
        num_cpus=1,
        memory_bytes=0.0,
    )
    rank = {node: v for v, node in enumerate(graph.node_ids)}
    text_rank = {str(node): v for node, v in rank.items()}  # keys of JSON objects are text
    number = {
        ends: e for e, ends in enumerate(zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True))
    }
    problems: list[FileProblem] = []
    edge_bytes = np.zeros(len(number))
    first: dict[int, int] = {}
    for i, edge in enumerate(workload.edges):
        e = number[rank[edge.sourceId], rank[edge.destId]]
        if first.setdefault(e, i) < i:
            message = f"the edge from {edge.sourceId!r} to {edge.destId!r} is given twice (first by edges[{first[e]}])"
            problems.append(file.problem(("edges", i), message))
        edge_bytes[e] = edge.communicationCost

    def sync(i: int, degree: int, n: int, name: str) -> dict[int, float]:
        """Bytes by the number of the edge from (Fw) or to (Bw) a neighbour."""
        node = workload.nodes[i]
        found = {}
        for neighbour, size in getattr(node.TMPCs[degree][n], name).items():
            u, v = text_rank.get(neighbour, -1), rank[node.id]
            e = number.get((u, v) if name == "syncTimeFw" else (v, u))
            if e is None:
                place = ("nodes", i, "TMPCs", str(degree), n, name, neighbour)
                problems.append(file.problem(place, f"there is no such edge of node {node.id!r}"))
            elif size:
                found[e] = size
        return found

    options: list[dict[int, tuple[PiperOption, ...]]] = [{} for _ in rank]
    for i, node in enumerate(workload.nodes):
        for degree, ways in node.TMPCs.items():
            options[rank[node.id]][degree] = tuple(
                PiperOption(
                    name=str(way.id),
                    time_s=way.timePerSample,
                    parameter_bytes=way.parameterSize,
                    stash_bytes=way.memoryUsageA,
                    fixed_bytes=way.memoryUsageB,
                    sync_in_bytes=sync(i, degree, n, "syncTimeFw"),
                    sync_out_bytes=sync(i, degree, n, "syncTimeBw"),
                )
                for n, way in enumerate(ways)
            )
    if problems:
        raise InputFileError(problems)
    names = {node.id: str(node.name) for node in workload.nodes}
    problem = PiperProblem(
        node_ids=graph.node_ids,
        names=tuple(names[node] for node in graph.node_ids),
        options=tuple(options),
        edge_source=graph.edge_source,
        edge_target=graph.edge_target,
        edge_bytes=edge_bytes,
        num_devices=workload.maxDevices,
        memory_bytes=workload.maxMemoryPerDevice,
        num_micro_batches=workload.mbsInBatch,
        bandwidth_bytes_per_s=workload.bandwidth,
    )
    return Loaded(problem=problem, content=content, sha256=file.sha256)
