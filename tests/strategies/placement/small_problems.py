"""Random placement problems small enough to try everything, and trying everything, by definitions of its own."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.arrays import BoolArray, FloatArray, IntArray
from planner.files.documents import read_workload
from planner.placement.check import check_throughput
from planner.placement.placement_file import assignment_of
from planner.placement.workload_file import workload_from
from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementProblem, PlacementResult


def random_problem(seed: int, *, max_nodes: int = 9, inference: bool = False) -> PlacementProblem:
    """Draw a problem with everything that can be special: colours, training, zero times, unsupported operators, scarce memory."""
    rng = random.Random(seed)
    while True:
        nodes, edges = _random_graph(rng, max_nodes, inference=inference)
        accelerators, cpus = rng.choice([(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (2, 2), (1, 2)])
        total = sum(node.size_bytes for node in nodes)
        memory = rng.choice([total, total * 0.7, total * 0.5, total / accelerators])
        try:
            problem = PlacementProblem.build(
                nodes, edges, num_accelerators=accelerators, num_cpus=cpus, memory_bytes=memory
            )
        except ValueError:  # drawn with an operator that fits no device
            continue
        if problem.num_devices**problem.num_colors <= 300_000:
            return problem


def _random_graph(rng: random.Random, max_nodes: int, *, inference: bool) -> tuple[list[NodeSpec], list[EdgeSpec]]:
    training = not inference and rng.random() < 0.5
    forward = rng.randint(1, max_nodes if not training else max(1, max_nodes // 2))
    backward = rng.randint(0, max_nodes - forward) if training else 0
    count = forward + backward
    ids = rng.sample(range(100), count)  # the numbers say nothing about the order
    colored = rng.random() < 0.6
    can_fail = rng.random() < 0.3
    nodes = []
    for i in range(count):
        zero = rng.random() < 0.25
        is_backward = i >= forward
        color = rng.randint(0, max(1, count // 2)) if colored and rng.random() < 0.5 else None
        if is_backward and rng.random() < 0.7:  # the backward operator of a forward one
            color = 1000 + rng.randrange(forward)
        nodes.append(
            NodeSpec(
                id=ids[i],
                accelerator_time=0.0 if zero else round(rng.uniform(0.5, 5), 2),
                cpu_time=0.0 if zero else round(rng.uniform(1, 30), 2),
                size_bytes=float(rng.choice([0, 0, 1, 2, 3, 5])),
                supported=not (can_fail and rng.random() < 0.2),
                backward=is_backward,
                color=color,
            )
        )
    for i in range(forward):
        if nodes[i].color is None and any(node.color == 1000 + i for node in nodes):
            nodes[i] = nodes[i]._replace(color=1000 + i)
    density = rng.choice([0.15, 0.3, 0.5])
    cost = [rng.choice([0.0, 0.1, 0.7, 2.0, 4.0]) for _ in range(count)]
    edges = [
        EdgeSpec(ids[i], ids[j], cost[i]) for i, j in itertools.combinations(range(count), 2) if rng.random() < density
    ]
    rng.shuffle(nodes)
    rng.shuffle(edges)
    return nodes, edges


@dataclass(frozen=True, slots=True, kw_only=True)
class BruteForce:
    """Every assignment of colour classes to devices, with its value and what it satisfies."""

    devices: IntArray  # (assignments, nodes)
    value: FloatArray  # largest load
    legal: BoolArray  # support and memory
    chain: BoolArray
    convex: BoolArray

    def best(self, mode: str = "none") -> float:
        """Least largest load of a mode; infinite where nothing is legal."""
        allowed = self.legal & {"none": np.ones_like(self.legal), "chain": self.chain, "convex": self.convex}[mode]
        return float(np.min(self.value[allowed], initial=np.inf))


def brute_force(problem: PlacementProblem) -> BruteForce:
    """Try everything."""
    per_class = np.array(
        list(itertools.product(range(problem.num_devices), repeat=problem.num_colors)), dtype=np.int64
    ).reshape(-1, problem.num_colors)
    device = per_class[:, problem.color]
    value = np.zeros(len(device))
    legal = np.ones(len(device), dtype=bool)
    for d in range(problem.num_devices):
        inside = device == d
        if d >= problem.num_accelerators:
            value = np.maximum(value, inside @ problem.cpu_time)
            continue
        legal &= ~np.any(inside & ~problem.supported, axis=1)
        legal &= inside @ problem.size_bytes <= problem.memory_bytes * (1 + 1e-12)
        value = np.maximum(value, inside @ problem.accelerator_time + _communication(problem, inside))
    return BruteForce(
        devices=device, value=value, legal=legal, chain=_chain(problem, device), convex=_convex(problem, device)
    )


def _communication(problem: PlacementProblem, inside: BoolArray) -> FloatArray:
    cost = np.zeros(len(inside))
    for u in range(problem.num_nodes):
        successors = problem.edge_target[problem.edge_source == u]
        if len(successors):
            some, every = inside[:, successors].any(axis=1), inside[:, successors].all(axis=1)
            cost += problem.transfer_time[u] * np.where(inside[:, u], ~every, some)
    return cost


def _chain(problem: PlacementProblem, device: IntArray) -> BoolArray:
    """No cycle among devices, by transitive closure."""
    count = problem.num_devices
    has_forward = {int(c) for c in problem.color[~problem.backward]}
    reach = np.zeros((len(device), count, count), dtype=bool)
    rows = np.arange(len(device))
    for u, v in zip(problem.edge_source, problem.edge_target, strict=True):
        if not problem.backward[u] and not problem.backward[v]:
            first, second = u, v
        elif problem.backward[u] and not {int(problem.color[u]), int(problem.color[v])} <= has_forward:
            first, second = v, u
        else:
            continue
        apart = device[:, first] != device[:, second]
        reach[rows[apart], device[apart, first], device[apart, second]] = True
    for m in range(count):
        reach |= reach[:, :, m, None] & reach[:, m, None, :]
    return ~np.any(reach[:, range(count), range(count)], axis=1)


def _convex(problem: PlacementProblem, device: IntArray) -> BoolArray:
    """No forward operator of another device lies on a path between two of a device."""
    forward = np.flatnonzero(~problem.backward)
    path = np.zeros((problem.num_nodes, problem.num_nodes), dtype=bool)
    for u, v in zip(problem.edge_source, problem.edge_target, strict=True):
        if not problem.backward[u] and not problem.backward[v]:
            path[u, v] = True
    for m in range(problem.num_nodes):
        path |= path[:, m, None] & path[m]
    good = np.ones(len(device), dtype=bool)
    for u, m, v in itertools.permutations(forward, 3):
        if path[u, m] and path[m, v]:
            good &= (device[:, u] != device[:, v]) | (device[:, u] == device[:, m])
    return good


def members_of(bits: IntArray) -> tuple[int, ...]:
    """Blocks of a set that is written as the bits of whole numbers."""
    return tuple(b for b in range(64 * len(bits)) if int(bits[b // 64]) >> (b % 64) & 1)


def content_of(problem: PlacementProblem) -> dict[str, Any]:
    """The problem in the public JSON format; extended where accelerators are of several kinds."""
    content: dict[str, Any] = {
        "maxFPGAs": problem.num_accelerators,
        "maxCPUs": problem.num_cpus,
        "maxSizePerFPGA": problem.memory_bytes,
        "nodes": [
            {
                "id": problem.node_ids[v],
                "supportedOnFpga": int(problem.supported[v]),
                "cpuLatency": float(problem.cpu_time[v]),
                "fpgaLatency": float(problem.accelerator_time[v]),
                "size": float(problem.size_bytes[v]),
                "isBackwardNode": int(problem.backward[v]),
                "colorClass": int(problem.color[v]),
            }
            for v in range(problem.num_nodes)
        ],
        "edges": [
            {"sourceId": problem.node_ids[u], "destId": problem.node_ids[v], "cost": float(problem.transfer_time[u])}
            for u, v in zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True)
        ],
    }
    if problem.types:
        del content["maxFPGAs"], content["maxSizePerFPGA"]
        content["deviceTypes"] = [
            {
                "name": kind.name,
                "count": kind.count,
                "memory": kind.memory_bytes,
                "timeKey": f"time_{kind.name}",
                "linkFactor": kind.link_factor,
            }
            for kind in problem.types
        ]
    for v, node in enumerate(content["nodes"]):
        node.update({f"time_{kind.name}": float(kind.time[v]) for kind in problem.types})
    return content


def checked_objective(problem: PlacementProblem, result: PlacementResult, contiguity: str = "none") -> float:
    """Largest load by the checker, which finds no rule that is broken."""
    assert result.placement is not None
    checked = check_throughput(content_of(problem), assignment_of(problem, result.placement), contiguity=contiguity)
    assert checked.violations == ()
    return checked.objective


def public_problem(reference_data: Path, name: str) -> PlacementProblem:
    """A public workload by its path below ``workloads``; the test is skipped where it is not among the reference data."""
    path = reference_data / "placement" / "workloads" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no {path}")
    return workload_from(read_workload(path), {}).problem


def accelerator_loads(problem: PlacementProblem, members: BoolArray) -> FloatArray:
    """Load of an accelerator for sets of operators, (sets, nodes): compute, and what crosses its border, once per source."""
    load = np.asarray(members @ problem.accelerator_time)
    edges = problem.hyperedges
    for h, cost in enumerate(edges.cost.tolist()):
        held = members[:, edges.pin[edges.start[h] : edges.start[h + 1]]]
        load = load + cost * (held.any(axis=1) & ~held.all(axis=1))
    return load
