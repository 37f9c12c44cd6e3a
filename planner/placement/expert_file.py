"""Reads splits that experts made: JSON with ``fpgas`` and ``cpus``, each a list of objects with ``nodes`` (ids).

Operators that a file leaves out follow their colour class, as in the published evaluator, which lists forward operators only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from planner.core.errors import InputFileError
from planner.files.documents import Location
from planner.files.json_file import read_workload
from planner.placement.reader import JsonReader
from strategies.placement.bounds import simple_bound
from strategies.placement.loads import device_loads, placement_faults
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult

__all__ = ["expert_placement"]

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
