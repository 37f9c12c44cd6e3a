"""Reads operator graphs in Piper's JSON format: ways to run every operator on 1, 2, 4, ... devices.

An object with ``maxDevices``, ``maxMemoryPerDevice`` (bytes), ``bandwidth`` (bytes/s), ``mbsInBatch`` (micro-batches of a batch; also
called ``maxBatchSize``), ``nodes`` (``id``, ``TMPCs``: degree to a list of ways) and ``edges`` (``sourceId``, ``destId``,
``communicationCost`` in bytes). A way has ``timePerSample`` (s), ``parameterSize``, ``memoryUsageA`` and ``memoryUsageB`` (bytes),
``syncTimeFw`` and ``syncTimeBw`` (neighbour to bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.files.documents import Location
from planner.files.json_file import JsonFile
from planner.placement.workload_file import JsonReader, Loaded
from strategies.placement.piper import PiperOption, PiperProblem
from strategies.placement.problem import find_cycle

__all__ = ["is_piper", "piper_from"]

_NODE_KEYS = ("id", "TMPCs")
_EDGE_KEYS = ("sourceId", "destId", "communicationCost")
_WAY_KEYS = ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")
_BATCH_KEYS = ("mbsInBatch", "maxBatchSize")
_MOST_DEGREE = 1 << 20


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
    reader = JsonReader(file)
    content = dict(reader.object(file.content, ()))
    reader.check()
    batch = next((key for key in _BATCH_KEYS if key in content), _BATCH_KEYS[0])
    content |= {batch if key == _BATCH_KEYS[0] else key: value for key, value in given.items() if value is not None}
    reader.require(content, ("maxDevices", "maxMemoryPerDevice", "bandwidth", batch, "nodes", "edges"), ())
    reader.check()
    nodes = reader.list_of(content["nodes"], ("nodes",), lambda value, at: _node(reader, value, at))
    edges = reader.list_of(content["edges"], ("edges",), lambda value, at: _edge(reader, value, at))
    devices = reader.count(content["maxDevices"], ("maxDevices",), least=1)
    batches = reader.count(content[batch], (batch,), least=1)
    memory = reader.number(content["maxMemoryPerDevice"], ("maxMemoryPerDevice",))
    bandwidth = reader.number(content["bandwidth"], ("bandwidth",))
    if bandwidth == 0:
        reader.add(("bandwidth",), "must be above 0")
    reader.check()
    order = _checked_order(reader, nodes, edges)
    problem = _problem(reader, [nodes[i] for i in order], edges, devices, batches, memory, bandwidth, order)
    reader.check()
    return Loaded(problem=problem, content=content, sha256=file.sha256)


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    numbers: tuple[float, ...]
    sync_in: Mapping[str, float]
    sync_out: Mapping[str, float]
    location: Location


@dataclass(frozen=True, slots=True)
class _Node:
    id: int | str
    name: str
    ways: Mapping[int, tuple[_Way, ...]]


def _node(reader: JsonReader, value: Any, location: Location) -> _Node:
    entry = reader.object(value, location)
    if not entry or not reader.require(entry, _NODE_KEYS, location):
        return _Node("", "", {})
    ways: dict[int, tuple[_Way, ...]] = {}
    for degree, options in reader.object(entry["TMPCs"], (*location, "TMPCs")).items():
        at = (*location, "TMPCs", degree)
        if not degree.isascii() or not degree.isdecimal() or not 1 <= int(degree) <= _MOST_DEGREE:
            reader.add(at, f"'{degree[:20]}' is no number of devices")
            continue
        read = reader.list_of(options, at, lambda way, place: _way(reader, way, place))
        if read:
            ways[int(degree)] = tuple(read)
    if not ways:
        reader.add((*location, "TMPCs"), "holds no way to run the operator")
    return _Node(reader.identity(entry["id"], (*location, "id")), str(entry.get("name", "")), ways)


def _way(reader: JsonReader, value: Any, location: Location) -> _Way:
    entry = reader.object(value, location)
    if not entry or not reader.require(entry, _WAY_KEYS, location):
        return _Way("", (0.0,) * 4, {}, {}, location)
    sync = []
    for key in ("syncTimeFw", "syncTimeBw"):
        extra = reader.object(entry.get(key, {}), (*location, key))
        sync.append({k: reader.number(v, (*location, key, k)) for k, v in extra.items()})
    numbers = tuple(reader.number(entry[key], (*location, key)) for key in _WAY_KEYS)
    return _Way(str(entry.get("id", "")), numbers, sync[0], sync[1], location)


def _edge(reader: JsonReader, value: Any, location: Location) -> tuple[int | str, int | str, float]:
    entry = reader.object(value, location)
    if not entry or not reader.require(entry, _EDGE_KEYS, location):
        return "", "", 0.0
    return (
        reader.identity(entry["sourceId"], (*location, "sourceId")),
        reader.identity(entry["destId"], (*location, "destId")),
        reader.number(entry["communicationCost"], (*location, "communicationCost")),
    )


def _checked_order(
    reader: JsonReader, nodes: list[_Node], edges: list[tuple[int | str, int | str, float]]
) -> list[int]:
    """Order of the nodes by id; raises on duplicate or unknown ids, edges given twice and cycles."""
    if not nodes:
        reader.add(("nodes",), "the graph is empty: it has no nodes")
    first: dict[int | str, int] = {}
    for i, node in enumerate(nodes):
        if node.id in first:
            message = f"node id {node.id!r} is used twice (first by nodes[{first[node.id]}])"
            reader.add(("nodes", i, "id"), message)
        first.setdefault(node.id, i)
    seen: dict[tuple[int | str, int | str], int] = {}
    for i, (source, target, _) in enumerate(edges):
        for key, end in (("sourceId", source), ("destId", target)):
            if end not in first:
                reader.add(("edges", i, key), f"the edge names node {end!r}, which is not in the list of nodes")
        if (source, target) in seen:
            reader.add(
                ("edges", i),
                f"the edge from {source!r} to {target!r} is given twice (first by edges[{seen[source, target]}])",
            )
        seen.setdefault((source, target), i)
    reader.check()
    order = sorted(range(len(nodes)), key=lambda i: (isinstance(nodes[i].id, str), nodes[i].id))
    rank = {nodes[i].id: r for r, i in enumerate(order)}
    cycle = find_cycle(len(nodes), [rank[edge[0]] for edge in edges], [rank[edge[1]] for edge in edges])
    if cycle:
        ids = [repr(nodes[order[v]].id) for v in cycle]
        ends = (nodes[order[cycle[0]]].id, nodes[order[cycle[1 % len(cycle)]]].id)
        shown = ids if len(ids) <= 8 else [*ids[:4], "...", *ids[-3:]]
        reader.add(("edges", seen[ends]), f"the graph has a cycle of {len(ids)} nodes: {' -> '.join([*shown, ids[0]])}")
        reader.check()
    return order


def _problem(
    reader: JsonReader,
    nodes: list[_Node],
    edges: list[tuple[int | str, int | str, float]],
    devices: int,
    batches: int,
    memory: float,
    bandwidth: float,
    order: list[int],
) -> PiperProblem:
    rank = {node.id: r for r, node in enumerate(nodes)}
    text_rank = {str(node.id): r for r, node in enumerate(nodes)}  # keys of JSON objects are text
    ranked = sorted((rank[source], rank[target], size) for source, target, size in edges)
    number = {(u, v): e for e, (u, v, _) in enumerate(ranked)}

    def sync(v: int, extra: Mapping[str, float], way: _Way, key: str) -> dict[int, float]:
        result = {}
        for neighbour, size in extra.items():
            u = text_rank.get(neighbour, -1)
            edge = number.get((u, v) if key == "syncTimeFw" else (v, u))
            if edge is None:
                reader.add((*way.location, key, neighbour), f"there is no such edge of node {nodes[v].id!r}")
            elif size:
                result[edge] = size
        return result

    def option(v: int, way: _Way) -> PiperOption:
        time, parameters, stash, fixed = way.numbers
        return PiperOption(
            name=way.name,
            time_s=time,
            parameter_bytes=parameters,
            stash_bytes=stash,
            fixed_bytes=fixed,
            sync_in_bytes=sync(v, way.sync_in, way, "syncTimeFw"),
            sync_out_bytes=sync(v, way.sync_out, way, "syncTimeBw"),
        )

    assert len(order) == len(nodes)
    return PiperProblem(
        node_ids=tuple(node.id for node in nodes),
        names=tuple(node.name for node in nodes),
        options=tuple(
            {t: tuple(option(v, way) for way in ways) for t, ways in sorted(node.ways.items())}
            for v, node in enumerate(nodes)
        ),
        edge_source=np.array([edge[0] for edge in ranked], dtype=np.int64),
        edge_target=np.array([edge[1] for edge in ranked], dtype=np.int64),
        edge_bytes=np.array([edge[2] for edge in ranked], dtype=np.float64),
        num_devices=devices,
        memory_bytes=memory,
        num_micro_batches=batches,
        bandwidth_bytes_per_s=bandwidth,
    )
