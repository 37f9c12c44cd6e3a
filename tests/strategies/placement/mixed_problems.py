"""Random small problems with accelerators of several kinds, trying everything, and the problem as a workload."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np

from strategies.placement.problem import EdgeSpec, NodeSpec, PlacementProblem, TypeSpec
from tests.strategies.placement.small_problems import content_of, random_problem

__all__ = ["best_by_trying", "mixed_content", "mixed_problem"]


def mixed_problem(seed: int) -> PlacementProblem:
    """A random problem with two or three kinds: times by a factor or of their own, scarce memory on some, slow links on some."""
    rng = random.Random(seed)
    while True:
        base = random_problem(rng.randrange(10**6), max_nodes=7)
        nodes = [
            NodeSpec(
                id=base.node_ids[v],
                accelerator_time=0.0,
                cpu_time=float(base.cpu_time[v]),
                size_bytes=float(base.size_bytes[v]),
                supported=bool(base.supported[v]),
                backward=bool(base.backward[v]),
                color=int(base.color[v]),
            )
            for v in range(base.num_nodes)
        ]
        edges = [
            EdgeSpec(base.node_ids[u], base.node_ids[v], float(base.transfer_time[u]))
            for u, v in zip(base.edge_source.tolist(), base.edge_target.tolist(), strict=True)
        ]
        total = float(base.size_bytes.sum())
        kinds = []
        for i, count in enumerate(rng.choice([(1, 1), (2, 1), (1, 2), (1, 1, 1)])):
            factor = rng.choice([0.5, 1.0, 2.0, 3.7])
            own = rng.random() < 0.5
            times = [round(float(t) * (rng.uniform(0.3, 4) if own else factor), 3) for t in base.accelerator_time]
            memory = rng.choice([total, total, 0.6 * total, 0.3 * total])
            kinds.append(TypeSpec(f"kind{i}", count, memory, times, rng.choice([1.0, 0.25, 3.0])))
        try:
            problem = PlacementProblem.build(
                nodes,
                edges,
                num_accelerators=0,
                num_cpus=rng.choice([0, 1, 1]),
                memory_bytes=0.0,
                types=kinds,
            )
        except ValueError:
            continue
        if problem.num_devices**problem.num_colors <= 20_000:
            return problem


def mixed_content(problem: PlacementProblem) -> dict[str, Any]:
    """The problem in the extended JSON format."""
    content: dict[str, Any] = content_of(problem)
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
        for kind in problem.types:
            node[f"time_{kind.name}"] = float(kind.time[v])
    return content


def best_by_trying(problem: PlacementProblem) -> tuple[float, float]:
    """Least largest load of any placement, and of those along a chain, by the words of the definition."""
    from planner.placement.check import check_throughput

    content = mixed_content(problem)
    names = problem.device_names()
    best = chain = np.inf
    for choice in itertools.product(names, repeat=problem.num_colors):
        device_of = {node: choice[int(c)] for node, c in zip(problem.node_ids, problem.color, strict=True)}
        checked = check_throughput(content, device_of)
        if not checked.violations:
            best = min(best, checked.objective)
            chain = min(chain, checked.objective) if checked.is_chain else chain
    return best, chain
