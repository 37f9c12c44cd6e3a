"""Judges a plan of Piper's problem from its stages and the workload's JSON alone; shares no code with the solver.

References
----------
Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.tolerances import EQUAL

__all__ = ["CheckedPiper", "CheckedStage", "check_piper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStage:
    """Time per micro-batch of one stage, and what a device of it holds."""

    time_s: float
    memory_bytes: float
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPiper:
    """Slowest stage and everything that is wrong."""

    objective: float
    stages: tuple[CheckedStage, ...]
    violations: tuple[str, ...]


def check_piper(content: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> CheckedPiper:
    """Recompute the time and memory of every stage and every constraint.

    Parameters
    ----------
    content : mapping
        A valid workload of Piper's format, as parsed from JSON.
    stages : sequence of mappings
        From the source side, each with ``nodes`` (ids), ``ways`` (positions in the lists of the workload, per node),
        ``data_parallel`` and ``tensor_parallel``.
    """
    nodes = {node["id"]: node for node in content["nodes"]}
    batches = int(content.get("mbsInBatch", content.get("maxBatchSize", 1)))
    violations: list[str] = []
    stage_of: dict[Any, int] = {}
    for i, stage in enumerate(stages):
        for v in stage["nodes"]:
            if v in stage_of or v not in nodes:
                violations.append(f"node {v!r} is {'in two stages' if v in stage_of else 'not in the workload'}")
            stage_of[v] = i
    missing = [v for v in nodes if v not in stage_of]
    if missing:
        violations.append(f"{len(missing)} operators are in no stage, {missing[0]!r} first")
    for edge in content["edges"]:
        u, v = edge["sourceId"], edge["destId"]
        if u in stage_of and v in stage_of and stage_of[u] > stage_of[v]:
            violations.append(
                f"the edge from {u!r} to {v!r} leads back, from stage {stage_of[u] + 1} to {stage_of[v] + 1}"
            )
    used = sum(stage["data_parallel"] * stage["tensor_parallel"] for stage in stages)
    if used > int(content["maxDevices"]):
        violations.append(f"{used} devices are used, {content['maxDevices']} are there")
    if sum(stage["data_parallel"] for stage in stages) > batches:
        violations.append(f"more copies than the {batches} micro-batches of a batch")
    checked = []
    for i, stage in enumerate(stages):
        d = stage["data_parallel"]
        if batches % d:
            violations.append(f"stage {i + 1}: {d} copies do not divide {batches} micro-batches")
        in_flight = math.ceil(sum(later["data_parallel"] for later in stages[i:]) / d)
        checked.append(_stage(content, nodes, stage, i, stage_of, in_flight, batches, violations))
        if checked[-1].memory_bytes > float(content["maxMemoryPerDevice"]) * (1 + EQUAL):
            violations.append(
                f"stage {i + 1} holds {checked[-1].memory_bytes:,.0f} bytes per device, more than there are"
            )
    return CheckedPiper(
        objective=max((stage.time_s for stage in checked), default=0.0),
        stages=tuple(checked),
        violations=tuple(violations),
    )


def _stage(
    content: Mapping[str, Any],
    nodes: Mapping[Any, Mapping[str, Any]],
    stage: Mapping[str, Any],
    number: int,
    stage_of: Mapping[Any, int],
    in_flight: int,
    batches: int,
    violations: list[str],
) -> CheckedStage:
    d, t = stage["data_parallel"], str(stage["tensor_parallel"])
    bandwidth = float(content["bandwidth"])
    time = memory = 0.0
    for v, way in zip(stage["nodes"], stage["ways"], strict=True):
        ways = nodes.get(v, {}).get("TMPCs", {}).get(t, ())
        if not 0 <= way < len(ways):
            violations.append(f"stage {number + 1}: node {v!r} has no way {way} to run on {t} devices")
            continue
        chosen = ways[way]
        time += chosen["timePerSample"] / d
        time += 4 * (d - 1) * chosen["parameterSize"] / (d * batches) / bandwidth
        memory += chosen["memoryUsageA"] * in_flight + chosen["memoryUsageB"]
        for edge in content["edges"]:
            u, x, size = edge["sourceId"], edge["destId"], edge["communicationCost"]
            if x == v and stage_of.get(u) != number:
                time += 2 * (size + chosen.get("syncTimeFw", {}).get(str(u), 0.0)) / (d * bandwidth)
            if u == v and stage_of.get(x) != number:
                time += 2 * (size + chosen.get("syncTimeBw", {}).get(str(x), 0.0)) / (d * bandwidth)
    return CheckedStage(time_s=time, memory_bytes=memory, in_flight=in_flight)
