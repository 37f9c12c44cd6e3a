"""What a placement problem must not contain; every fault of one kind is found at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from costmodel.arrays import IntArray
from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementFault, PlacementFaultsError

if TYPE_CHECKING:
    from strategies.placement.problem import NodeId

__all__ = ["check_devices", "check_edges", "check_nodes", "check_order", "find_cycle"]

# Times and sizes are added up, multiplied with numbers of devices and operators and compared; all of that stays a double.
LARGEST_SUM = 1e280

# Field of a node or an edge -> its key in the public format, for messages.
_NODE_KEYS = {"accelerator_time": "fpgaLatency", "cpu_time": "cpuLatency", "size_bytes": "size"}


def check_nodes(nodes: Sequence[NodeSpec]) -> None:
    """Refuse an empty graph, an id that comes twice and numbers that are negative or not finite."""
    if nodes and _are_sound(nodes):
        return
    faults: list[PlacementFault] = []
    if not nodes:
        faults.append(PlacementFault(part="nodes", index=-1, key="", message="the graph is empty: it has no nodes"))
    first: dict[NodeId, int] = {}
    for i, node in enumerate(nodes):
        if node.id in first:
            message = f"node id {node.id!r} is used twice (first by nodes[{first[node.id]}])"
            faults.append(PlacementFault(part="nodes", index=i, key="id", message=message))
        first.setdefault(node.id, i)
        for field, key in _NODE_KEYS.items():
            value = getattr(node, field)
            if not math.isfinite(value) or value < 0:
                message = f"{key} of node {node.id!r} is {value:g}; it must be a finite number of at least 0"
                faults.append(PlacementFault(part="nodes", index=i, key=key, message=message))
    _raise(faults)
    for field, key in _NODE_KEYS.items():
        values = [getattr(node, field) for node in nodes]
        if sum(values) > LARGEST_SUM:
            i = values.index(max(values))
            message = f"{key} adds up to more than {LARGEST_SUM:g} over all nodes, too much to calculate with; here is the largest"
            faults.append(PlacementFault(part="nodes", index=i, key=key, message=message))
    _raise(faults)


def _are_sound(nodes: Sequence[NodeSpec]) -> bool:
    """Whether `check_nodes` has nothing to say, which is far faster to see for all nodes together."""
    numbers = np.array([(node.accelerator_time, node.cpu_time, node.size_bytes) for node in nodes], dtype=np.float64)
    return (
        len({node.id for node in nodes}) == len(nodes)
        and bool(np.all((numbers >= 0) & (numbers < np.inf)))
        # Far from the limit: the order of a sum decides nothing.
        and float(numbers.max()) * len(nodes) < LARGEST_SUM / 2
    )


def check_edges(
    nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], number: Mapping[NodeId, int], same_cost: float
) -> None:
    """Refuse unknown ends, edges from backward to forward operators and costs of one source that differ."""
    if _are_sound_edges(nodes, edges, number, same_cost):
        return
    backward = {node.id: node.backward for node in nodes}
    faults: list[PlacementFault] = []
    cost_of: dict[NodeId, tuple[float, int]] = {}
    for i, edge in enumerate(edges):
        unknown = [(key, end) for key, end in (("sourceId", edge.source), ("destId", edge.target)) if end not in number]
        for key, end in unknown:
            message = f"the edge names node {end!r}, which is not in the list of nodes"
            faults.append(PlacementFault(part="edges", index=i, key=key, message=message))
        if unknown:
            continue
        cost = edge.transfer_time
        if not math.isfinite(cost) or cost < 0:
            message = f"cost is {cost:g}; it must be a finite number of at least 0"
            faults.append(PlacementFault(part="edges", index=i, key="cost", message=message))
            continue
        known, where = cost_of.setdefault(edge.source, (cost, i))
        if cost > LARGEST_SUM / (1 + len(edges)):
            message = f"cost is {cost:g}; costs may add up to {LARGEST_SUM:g}"
            faults.append(PlacementFault(part="edges", index=i, key="cost", message=message))
            continue
        if abs(known - cost) > same_cost:
            message = (
                f"costs of the edges that leave node {edge.source!r} differ: {cost!r} here, {known!r} in edges[{where}]; "
                "the cost is that of the source's one output"
            )
            faults.append(PlacementFault(part="edges", index=i, key="cost", message=message))
        if backward[edge.source] and not backward[edge.target]:
            message = f"the edge leads from backward node {edge.source!r} to forward node {edge.target!r}"
            faults.append(PlacementFault(part="edges", index=i, key="", message=message))
    _raise(faults)


def _are_sound_edges(
    nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], number: Mapping[NodeId, int], same_cost: float
) -> bool:
    """Whether `check_edges` has nothing to say."""
    try:
        ends = np.array([(number[edge.source], number[edge.target]) for edge in edges], dtype=np.int64).reshape(-1, 2)
    except KeyError:
        return False
    cost = np.array([edge.transfer_time for edge in edges], dtype=np.float64)
    least, most = np.full(len(nodes), np.inf), np.zeros(len(nodes))
    np.minimum.at(least, ends[:, 0], cost)
    np.maximum.at(most, ends[:, 0], cost)
    has_edges = np.isfinite(least)
    backward = np.zeros(len(nodes), dtype=np.bool_)
    backward[[number[node.id] for node in nodes]] = [node.backward for node in nodes]
    return (
        bool(np.all((cost >= 0) & (cost <= LARGEST_SUM / (1 + len(edges)))))
        and bool(np.all(most[has_edges] - least[has_edges] <= same_cost))
        and not bool(np.any(backward[ends[:, 0]] & ~backward[ends[:, 1]]))
    )


def check_order(
    order: Sequence[int],
    nodes: Sequence[NodeSpec],
    source: IntArray,
    target: IntArray,
    edges: Sequence[EdgeSpec],
    number: Mapping[NodeId, int],
) -> None:
    """Refuse cycles; the message spells one out."""
    if bool(np.all(source < target)):
        return
    cycle = find_cycle(len(nodes), source.tolist(), target.tolist())
    if not cycle:
        return
    ids = [nodes[order[v]].id for v in cycle]
    shown = [repr(i) for i in (ids if len(ids) <= 8 else [*ids[:4], "...", *ids[-3:]])]
    message = f"the graph has a cycle of {len(ids)} nodes: {' -> '.join([*shown, shown[0]])}"
    ends = (cycle[0], cycle[1 % len(cycle)])
    index = next(i for i, edge in enumerate(edges) if (number[edge.source], number[edge.target]) == ends)
    _raise([PlacementFault(part="edges", index=index, key="", message=message)])


def find_cycle(count: int, source: Sequence[int], target: Sequence[int]) -> list[int]:
    """Nodes of one cycle in the direction of the edges; empty where there is none."""
    successors: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for u, v in zip(source, target, strict=True):
        successors[u].append(v)
        waiting[v] += 1
    ready = [v for v in range(count) if waiting[v] == 0]
    left = set(range(count))
    while ready:
        u = ready.pop()
        left.discard(u)
        for v in successors[u]:
            waiting[v] -= 1
            if waiting[v] == 0:
                ready.append(v)
    if not left:
        return []
    # Every node that is left has a predecessor that is left: walking backwards must come round.
    before = {v: u for u, v in zip(source, target, strict=True) if u in left and v in left}
    seen: dict[int, int] = {}
    walk: list[int] = []
    node = min(left)
    while node not in seen:
        seen[node] = len(walk)
        walk.append(node)
        node = before[node]
    cycle = walk[seen[node] :][::-1]
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]


def check_devices(nodes: Sequence[NodeSpec], *, num_accelerators: int, num_cpus: int, memory_bytes: float) -> None:
    """Refuse impossible limits, and operators or colour classes that fit no device at all."""
    faults: list[PlacementFault] = []
    for key, value, least in (("maxFPGAs", num_accelerators, 1), ("maxCPUs", num_cpus, 0)):
        if value < least:
            faults.append(
                PlacementFault(part="", index=-1, key=key, message=f"{key} is {value}; at least {least} is needed")
            )
    if not memory_bytes >= 0:
        message = f"maxSizePerFPGA is {memory_bytes:g}; it must be at least 0"
        faults.append(PlacementFault(part="", index=-1, key="maxSizePerFPGA", message=message))
    _raise(faults)
    if num_cpus:
        return
    members: dict[tuple[bool, NodeId], list[int]] = {}
    for i, node in enumerate(nodes):
        members.setdefault((node.color is None, node.id if node.color is None else node.color), []).append(i)
    for (alone, _), indices in members.items():
        first = nodes[indices[0]]
        what = f"node {first.id!r}" if alone or len(indices) == 1 else f"colour class {first.color!r}"
        what = f"layer '{first.name}'" if first.name else what
        size = math.fsum(nodes[i].size_bytes for i in indices)
        bad = next((i for i in indices if not nodes[i].supported), None)
        if bad is not None:
            message = f"node {nodes[bad].id!r} fits no device: it is not supported on accelerators and there is no CPU"
            faults.append(PlacementFault(part="nodes", index=bad, key="supportedOnFpga", message=message))
        elif size > memory_bytes:
            message = f"{what} needs {size:,.0f} bytes, more than the {memory_bytes:,.0f} of an accelerator, and there is no CPU"
            faults.append(PlacementFault(part="nodes", index=indices[0], key="size", message=message))
    _raise(faults)


def _raise(faults: Sequence[PlacementFault]) -> None:
    if faults:
        raise PlacementFaultsError(faults)
