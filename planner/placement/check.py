"""Checks placements and plans of Piper's problem from their files and the workload's JSON alone, by the words of the definitions.

Nothing here is shared with the solvers: plain loops over plain dictionaries, the in- and out-communication of a set written as two
cases instead of a hyperedge cut, contiguity decided on the quotient graph instead of by down-sets. Slow, and meant to be.

References
----------
Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020.
Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from costmodel.tolerances import EQUAL

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDevice:
    """What one device does; compute and communication add up to its load."""

    name: str
    nodes: tuple[Any, ...]
    compute: float
    communication: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStage:
    """Time per micro-batch of one stage of Piper's problem, and what a device of it holds."""

    time_s: float
    memory_bytes: float
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Objective, devices with operators or stages, everything that is wrong, and which contiguity holds."""

    objective: float
    violations: tuple[str, ...]
    devices: tuple[CheckedDevice, ...] = ()
    stages: tuple[CheckedStage, ...] = ()
    is_chain: bool = False
    is_convex: bool = False


class _Workload:
    """The JSON's nodes and edges, by id."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.kinds: list[Mapping[str, Any]] = []  # of each accelerator; empty where all are alike
        for kind in content.get("deviceTypes", ()):
            self.kinds += [kind] * int(kind["count"])
        self.accelerators = len(self.kinds) or int(content["maxFPGAs"])
        self.cpus = int(content["maxCPUs"])
        self.memory = float(content.get("maxSizePerFPGA", 0.0))
        self.nodes: dict[Any, Mapping[str, Any]] = {node["id"]: node for node in content["nodes"]}
        self.backward = {v for v, node in self.nodes.items() if node.get("isBackwardNode", 0)}
        self.edges = [(edge["sourceId"], edge["destId"]) for edge in content["edges"]]
        self.cost: dict[Any, float] = {}
        for edge in content["edges"]:
            self.cost[edge["sourceId"]] = max(float(edge["cost"]), self.cost.get(edge["sourceId"], 0.0))
        self.successors: dict[Any, list[Any]] = {v: [] for v in self.nodes}
        before: dict[Any, list[Any]] = {v: [] for v in self.nodes}
        for u, v in self.edges:
            self.successors[u].append(v)
            before[v].append(u)
        # Longest path to each operator, in edges: a path goes through greater and greater depths.
        self.depth: dict[Any, int] = {}
        for v in TopologicalSorter(before).static_order():
            self.depth[v] = max((self.depth[u] + 1 for u in before[v]), default=0)

    def kind_of(self, name: str) -> Mapping[str, Any]:
        """What is special about an accelerator, by its name."""
        return self.kinds[int(name[3:]) - 1] if self.kinds and name.startswith("acc") else {}

    def time_on(self, v: Any, name: str) -> float:
        node, kind = self.nodes[v], self.kind_of(name)
        own = node.get(kind["timeKey"]) if "timeKey" in kind else None
        if own is not None:
            return float(own)
        time = node.get("cpuLatency" if name.startswith("cpu") else "fpgaLatency") or 0.0
        return float(time) * float(kind.get("timeFactor", 1.0))

    def color(self, v: Any) -> Hashable:
        color = self.nodes[v].get("colorClass")
        return ("alone", v) if color is None else ("color", color)

    def communication(self, unit_of: Mapping[Any, Hashable]) -> dict[Hashable, float]:
        """In- and out-communication of the sets that share a unit: each source once per set."""
        total: dict[Hashable, float] = {}
        for u, successors in self.successors.items():
            here = unit_of.get(u)
            readers = {unit_of.get(v) for v in successors} - {here}
            if readers:  # the source's own set writes once, however many read
                total[here] = total.get(here, 0.0) + self.cost[u]
            for reader in readers:  # every other set reads once, for all its operators
                total[reader] = total.get(reader, 0.0) + self.cost[u]
        return total


def check_throughput(content: Mapping[str, Any], device_of: Mapping[Any, str], *, contiguity: str = "none") -> Checked:
    """Recompute the largest load and every constraint of the throughput problem.

    Parameters
    ----------
    content : mapping
        A valid workload, as parsed from JSON.
    device_of : mapping
        Node id to device name (acc1, acc2, ..., cpu1, ...).
    contiguity : {"none", "convex", "chain"}
        What is demanded of every device's forward operators.

    Examples
    --------
    >>> content = {"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 1, "edges": [{"sourceId": 1, "destId": 2, "cost": 0.5}],
    ...     "nodes": [{"id": i, "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 2} for i in (1, 2)]}
    >>> checked = check_throughput(content, {1: "acc1", 2: "acc2"}, contiguity="chain")
    >>> checked.objective, checked.violations
    (2.5, ())
    """
    workload = _Workload(content)
    names = [f"acc{i + 1}" for i in range(workload.accelerators)] + [f"cpu{i + 1}" for i in range(workload.cpus)]
    violations = _assignment_violations(workload, device_of, names)
    devices = _devices(workload, names, device_of, device_of, workload.communication(device_of))
    violations += _memory_violations(workload, devices)
    known = {v: device_of[v] for v in workload.nodes if v in device_of}
    is_chain = _is_chain(workload, known)
    # In a chain nothing comes back.
    forward = {} if is_chain else {device.name: set(device.nodes) - workload.backward for device in devices}
    torn = [name for name, nodes in forward.items() if not _is_convex(workload, nodes)]
    if contiguity == "chain" and not is_chain:
        violations.append("not contiguous: the devices cannot be put in an order in which every forward edge leads on")
    if contiguity == "convex":
        violations += [f"not contiguous: a path leaves {name} and comes back" for name in torn]
    return Checked(
        objective=max((device.compute + device.communication for device in devices), default=0.0),
        devices=tuple(devices),
        violations=tuple(violations),
        is_chain=is_chain,
        is_convex=not torn,
    )


def check_latency(
    content: Mapping[str, Any],
    device_of: Mapping[Any, str],
    subgraph_of: Mapping[Any, int],
    *,
    num_subgraphs: int = 1,
) -> Checked:
    """Recompute when every operator's result is there, and every constraint of the latency problem.

    An accelerator runs its subgraphs one after the other in the order of their numbers; each waits for all that it reads, takes its
    in-communication, compute and out-communication, and gives everything at its end. CPU operators run as soon as they can.

    Parameters
    ----------
    content : mapping
        A valid workload of forward operators.
    device_of : mapping
        Node id to device name; every name that begins with "cpu" is the CPUs, which are unlimited here, but where there are none.
    subgraph_of : mapping
        Node id to number of the accelerator's subgraph, from 0; 0 where absent.
    num_subgraphs : int
        Most subgraphs of an accelerator.
    """
    workload = _Workload(content)
    names = [f"acc{i + 1}" for i in range(workload.accelerators)]
    folded = {v: "cpu" if str(name).startswith("cpu") else name for v, name in device_of.items()}
    violations = _assignment_violations(workload, folded, [*names, "cpu"] if workload.cpus else names)
    units: dict[Any, tuple[Any, ...]] = {}
    for v in workload.nodes:
        on_cpu = folded.get(v) in (None, "cpu")
        units[v] = ("cpu", v) if on_cpu else (folded[v], int(subgraph_of.get(v, 0)))
    members: dict[tuple[Any, ...], list[Any]] = {}
    for v, unit in units.items():
        members.setdefault(unit, []).append(v)
    for unit, inside in members.items():
        if unit[0] == "cpu":
            continue
        if not 0 <= unit[1] < num_subgraphs:
            violations.append(f"{unit[0]} runs subgraph {unit[1]}; only 0 to {num_subgraphs - 1} are allowed")
        if not _is_convex(workload, set(inside)):
            violations.append(f"not contiguous: a path leaves subgraph {unit[1]} of {unit[0]} and comes back")
    moved = workload.communication(units)
    devices = _devices(workload, (*names, "cpu"), folded, units, moved)
    violations += _memory_violations(workload, devices)
    latency = _finish(workload, units, members, moved)
    if math.isinf(latency):
        violations.append("subgraphs wait for each other in a circle")
    return Checked(
        objective=latency,
        devices=tuple(devices),
        violations=tuple(violations),
        is_chain=math.isfinite(latency),
        is_convex=not any("not contiguous" in text for text in violations),
    )


def _finish(
    workload: _Workload,
    units: Mapping[Any, tuple[Any, ...]],
    members: Mapping[tuple[Any, ...], Sequence[Any]],
    moved: Mapping[Hashable, float],
) -> float:
    """Time when the last result is there; infinite where something waits for itself."""
    before: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {unit: set() for unit in members}
    for u, v in workload.edges:
        before[units[v]] |= {units[u]} - {units[v]}
    for first, second in pairwise(sorted(unit for unit in members if unit[0] != "cpu")):
        if first[0] == second[0]:
            before[second].add(first)
    end: dict[tuple[Any, ...], float] = {}
    try:
        for unit in TopologicalSorter(before).static_order():
            busy = sum(workload.time_on(v, unit[0]) for v in members[unit])
            busy += 0.0 if unit[0] == "cpu" else moved.get(unit, 0.0)
            end[unit] = max((end[other] for other in before[unit]), default=0.0) + busy
    except CycleError:
        return math.inf
    return max(end.values(), default=0.0)


def _assignment_violations(workload: _Workload, device_of: Mapping[Any, str], names: Sequence[str]) -> list[str]:
    """Operators that are nowhere, twice, on unknown devices, unsupported, or apart from their colour."""
    missing = [v for v in workload.nodes if v not in device_of]
    extra = [v for v in device_of if v not in workload.nodes]
    there = set(names)
    unknown = sorted({str(name) for name in device_of.values() if name not in there})
    refused = [
        v
        for v, node in workload.nodes.items()
        if str(device_of.get(v, "")).startswith("acc") and not node["supportedOnFpga"]
    ]
    places: dict[Hashable, set[str]] = {}
    for v in workload.nodes:
        if v in device_of:
            places.setdefault(workload.color(v), set()).add(device_of[v])
    torn = [color[1] for color, where in places.items() if len(where) > 1 and isinstance(color, tuple)]
    devices = f"(there are {workload.accelerators} accelerators and {workload.cpus} CPUs)"
    found = (
        (missing, f"{len(missing)} operators have no device: {_listed(missing)}"),
        (extra, f"{len(extra)} operators are not in the workload: {_listed(extra)}"),
        (unknown, f"there are no devices {_listed(unknown)} {devices}"),
        (refused, f"{len(refused)} operators are not supported on accelerators: {_listed(refused)}"),
        (torn, f"{len(torn)} colour classes are on several devices: {_listed(torn)}"),
    )
    return [text for items, text in found if items]


def _memory_violations(workload: _Workload, devices: Iterable[CheckedDevice]) -> list[str]:
    found = []
    for device in devices:
        memory = float(workload.kind_of(device.name).get("memory", workload.memory))
        if device.name.startswith("acc") and device.memory_bytes > memory * (1 + EQUAL):
            found.append(f"{device.name} holds {device.memory_bytes:,.0f} bytes, its memory {memory:,.0f}")
    return found


def _devices(
    workload: _Workload,
    names: Sequence[str],
    device_of: Mapping[Any, str],
    unit_of: Mapping[Any, Hashable],
    moved: Mapping[Hashable, float],
) -> list[CheckedDevice]:
    """Sum up the devices that hold operators; communication ``moved`` is that of the units on each: the device itself, or its subgraphs."""
    held = set(device_of.values())
    names = [name for name in names if name in held]
    nodes: dict[str, list[Any]] = {name: [] for name in names}
    units: dict[str, dict[Hashable, None]] = {name: {} for name in names}  # in order, for sums
    for v in workload.nodes:
        name = device_of.get(v)
        if name in nodes:
            nodes[name].append(v)
            units[name][unit_of[v]] = None
    return [
        CheckedDevice(
            name=name,
            nodes=tuple(nodes[name]),
            compute=sum(workload.time_on(v, name) for v in nodes[name]),
            communication=0.0
            if name.startswith("cpu")
            else sum(moved.get(unit, 0.0) for unit in units[name])
            * float(workload.kind_of(name).get("linkFactor", 1.0)),
            memory_bytes=sum(float(workload.nodes[v].get("size", 0.0)) for v in nodes[name]),
        )
        for name in names
    ]


def _is_convex(workload: _Workload, inside: set[Any]) -> bool:
    """Whether no path of forward operators leaves the set and comes back."""
    deepest = max((workload.depth[v] for v in inside), default=0)
    outside = [w for v in inside for w in workload.successors[v] if w not in inside and w not in workload.backward]
    seen = set(outside)
    while outside:
        v = outside.pop()
        for w in workload.successors[v]:
            if w in inside:
                return False
            if w not in seen and w not in workload.backward and workload.depth[w] < deepest:
                seen.add(w)
                outside.append(w)
    return True


def _is_chain(workload: _Workload, device_of: Mapping[Any, str]) -> bool:
    """Whether the quotient of the forward graph by the devices has no cycle.

    Backward edges that touch a colour class without forward operators count in reverse: they are what orders such a class.
    """
    has_forward = {workload.color(v) for v in workload.nodes if v not in workload.backward}
    before: dict[str, set[str]] = {}
    for u, v in workload.edges:
        first, second = device_of.get(u), device_of.get(v)
        if first is None or second is None or first == second:
            continue
        if u not in workload.backward and v not in workload.backward:
            before.setdefault(second, set()).add(first)
        elif u in workload.backward and not {workload.color(u), workload.color(v)} <= has_forward:
            before.setdefault(first, set()).add(second)
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        return False
    return True


def _listed(items: Sequence[Any]) -> str:
    shown = ", ".join(str(item) for item in items[:_SHOWN])
    return shown + (", ..." if len(items) > _SHOWN else "")


def check_piper(content: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> Checked:
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
    return Checked(
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
