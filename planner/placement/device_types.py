"""Reads ``deviceTypes``, an extension of the public format for accelerators of several kinds.

A list of objects, in the order of the accelerators acc1, acc2, ...: ``name``, ``count``, ``memory`` (bytes) and, where they differ from 1,
``timeFactor`` (operators take ``fpgaLatency`` times this) and ``linkFactor`` (transfers take ``cost`` times this). ``timeKey`` names a
key of the nodes with their times on this kind; a node without the key takes ``fpgaLatency`` times ``timeFactor``.
``maxFPGAs`` and ``maxSizePerFPGA`` are not used then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.files.documents import Location
from planner.placement.reader import JsonReader
from strategies.placement.problem import TypeSpec

__all__ = ["read_types"]

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
