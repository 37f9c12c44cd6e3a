"""Random pieces of the bundled networks, small enough for brute force: both exact methods and the cost model agree to the digit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.arrays import IntArray
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.layerwise.evaluate import CHEAPEST, PlanBatch, evaluate_on
from costmodel.layerwise.splits import split_table
from costmodel.layerwise.tables import CostTables
from costmodel.network.graph import Graph, LayerSpec
from costmodel.network.layers.base import Layer
from planner.files.loading import load_cluster
from planner.files.resources import bundled
from planner.importers.networks import load_model
from strategies.layerwise.build import LayerChoice, choice_problem
from strategies.layerwise.per_layer.problem import Limits, Solution, Status
from strategies.layerwise.per_layer.search import solve
from strategies.layerwise.space import Restriction
from tests.networks import roofline_workload, spec

MOST_PLANS = 40_000
CASES = 40  # per seed


def piece(graph: Graph, random: np.random.Generator) -> Graph:
    """Take 4 to 6 neighbouring layers; what they read from outside becomes an input of that shape."""
    body = [layer for layer in graph.layers if layer.kind != "input"]
    size = min(int(random.integers(4, 7)), len(body))
    start = int(random.integers(0, len(body) - size + 1))
    chosen = body[start : start + size]
    names = {layer.name for layer in chosen}
    outside = {
        name: shape
        for layer in chosen
        for name, shape in zip(layer.inputs, layer.input_shapes, strict=True)
        if name not in names
    }
    specs = [spec(name, "input", shape=shape) for name, shape in outside.items()]
    specs += [LayerSpec(name=x.name, kind=x.kind, params=_own_weights(x), inputs=x.inputs) for x in chosen]
    return Graph.build("piece", specs)


def _own_weights(layer: Layer) -> Any:
    """Parameters of a layer whose weights may be those of one outside the piece."""
    return replace(layer.params, tied=False) if getattr(layer.params, "tied", False) else layer.params


def brute_force(choice: LayerChoice, capacity: float, top: int) -> list[float]:
    """Cost of the best plans with different keys, by scoring every plan with the cost model."""
    graph, tables = choice.tables.workload.graph, choice.tables
    rows = np.array(list(itertools.product(*choice.rows)))
    batch = PlanBatch(row=rows, collective=np.full_like(rows, CHEAPEST))
    costs = evaluate_on(tables, batch)
    fits = costs.memory_bytes <= capacity
    best: dict[tuple[int, ...], float] = {}
    for row, step in zip(rows[fits][:, list(graph.weighted)], costs.step_time_s[fits], strict=True):
        key = tuple(row.tolist())
        best[key] = min(best.get(key, np.inf), float(step))
    return sorted(best.values())[:top]


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    return [load_model(name).graph for name in sorted(bundled("models"))]


@pytest.mark.exact
@pytest.mark.parametrize("seed", range(6))
def test_pieces_of_real_networks(seed: int, graphs: list[Graph]) -> None:
    random = np.random.default_rng(seed)
    cluster: Cluster = load_cluster(["dgx-h100", "k20-pcie", "ethernet-10g"][seed % 3]).cluster
    device = cluster.device
    assert device is not None
    solved = infeasible = 0
    while solved + infeasible < CASES:
        graph = piece(graphs[int(random.integers(len(graphs)))], random)
        workload = roofline_workload(
            graph, device, int(random.choice([4, 6, 16, 128, 512])), collectives=tuple(ALL_REDUCE_NAMES)
        )
        compute = replace(workload.compute, overlaps_exchange=bool(random.integers(4)))
        workload = replace(workload, compute=compute, training=bool(random.integers(8)))
        workers = int(random.choice([2, 3, 4, 6, 8]))
        tables = CostTables(workload, cluster, split_table([workers]), 1)
        free = choice_problem(tables, np.inf, Restriction())
        if free is None or np.prod([float(len(rows)) for rows in free.rows]) > MOST_PLANS:
            continue
        least = sum(float(need.min()) for need in free.problem.memory_bytes)
        most = sum(float(need.max()) for need in free.problem.memory_bytes)
        share = float(random.choice([-0.01, 0.05, 0.2, 0.5, 2.0]))
        capacity = workload.context_bytes + least + share * (most - least)
        choice = choice_problem(tables, capacity, Restriction())
        assert choice is not None
        wanted = brute_force(choice, capacity, 3)
        answers: dict[str, Solution[IntArray]] = {
            method: solve(choice.problem, Limits(num_solutions=top), method=method)
            for method, top in (("elimination", 3), ("program", 1))
        }
        if not wanted:
            infeasible += 1
            assert all(answer.status is Status.INFEASIBLE for answer in answers.values())
            continue
        solved += 1
        assert list(answers["elimination"].objectives_s) == pytest.approx(wanted, rel=1e-9)
        assert answers["program"].objectives_s[0] == pytest.approx(wanted[0], rel=1e-9)
        for answer in answers.values():
            assert answer.status is Status.OPTIMAL
            assert answer.bound_s <= wanted[0] * (1 + 1e-12)
    assert solved > infeasible
