"""The whole search against brute force over the whole stated space, on networks small enough, with memory caps."""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from costmodel.device import Device
from costmodel.evaluate import CHEAPEST, PlanBatch, evaluate, evaluate_on
from costmodel.graph import Graph, LayerSpec
from costmodel.layers.base import params_from
from costmodel.network import Cluster, DeviceGroup, Level
from costmodel.plan import Plan, Stage
from costmodel.precision import OPTIMIZERS, PRECISIONS
from costmodel.roofline import RooflineCompute
from costmodel.splits import Split, divisors, split_table
from costmodel.tables import CostTables
from costmodel.workload import Workload
from strategies.search import SearchSettings, search

# Slow arithmetic: the samples decide, and memory caps bite in all regions of the space.
DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 1e11},
    memory_bytes=16e9,
    memory_bandwidth_bytes_per_s=500e9,
    launch_overhead_s=1e-7,
)
CLUSTER = Cluster(
    name="c",
    groups=(DeviceGroup(device=DEVICE),),
    levels=(Level(name="flat", size=None, bandwidth_bytes_per_s=5e9, latency_s=8e-6),),
)


def build(shape: tuple[int, ...], *layers: tuple[str, str, tuple[str, ...], dict[str, Any]]) -> Graph:
    specs = [LayerSpec(name="data", kind="input", params=params_from("input", {"shape": shape}))]
    specs += [LayerSpec(name=n, kind=k, params=params_from(k, v), inputs=i) for n, k, i, v in layers]
    return Graph.build("net", specs)


NETWORKS = {
    "images": build(
        (8, 64, 64),
        ("conv1", "convolution", ("data",), {"out_channels": 8, "kernel": 3, "padding": 1}),
        ("conv2", "convolution", ("conv1",), {"out_channels": 4, "kernel": 3, "padding": 1}),
        ("twice", "add", ("conv2", "conv2"), {}),
    ),
    "perceptron": build(
        (108,),
        ("fc1", "linear", ("data",), {"out_features": 2000}),
        ("fc2", "linear", ("fc1",), {"out_features": 2000}),
        ("fc3", "linear", ("fc2",), {"out_features": 8}),
    ),
    "both": build(
        (3, 6, 6),
        ("conv1", "convolution", ("data",), {"out_channels": 4, "kernel": 3, "padding": 1}),
        ("pool", "pool", ("conv1",), {"kernel": 2, "stride": 2}),
        ("fc1", "linear", ("pool",), {"out_features": 64}),
    ),
}


def every_layer_plan(case: Workload, workers: int, m: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
    """Time and memory of every combination of legal splits, with the cheapest collectives, and how many plans with any."""
    tables = CostTables(case, CLUSTER, split_table([workers]), m)
    options = [
        np.flatnonzero(costs.legal)[: 1 if layer.kind == "input" else None]  # its layout costs nothing
        for layer, costs in zip(case.graph.layers, tables.layers, strict=True)
    ]
    rows = np.array(list(itertools.product(*options)))
    batch = PlanBatch(row=rows, collective=np.full_like(rows, CHEAPEST), column_of_layer=tuple(range(len(options))))
    costs = evaluate_on(tables, batch)
    exchanges = (tables.table.batch * tables.table.height)[rows[:, list(case.graph.weighted)]] > 1
    plans = np.sum(len(case.collectives) ** exchanges.sum(axis=1)) if case.training else len(rows)
    return costs.step_time_s, costs.memory_bytes, int(plans)


def every_pipeline(case: Workload, most: int, m: int) -> list[Plan]:
    layers, plans = len(case.graph.layers), []
    for stages in range(2, min(layers - 1, most, m) + 1):
        for cuts in itertools.combinations(range(2, layers), stages - 1):  # no stage holds the input alone
            for replicas in itertools.product(range(1, min(case.micro_batch(m), most) + 1), repeat=stages):
                if sum(replicas) > most:
                    continue
                cut = tuple(
                    Stage(first=a, last=b - 1, replicas=r)
                    for (a, b), r in zip(pairwise((0, *cuts, layers)), replicas, strict=True)
                )
                splits = tuple(Split(batch=s.replicas) for s in cut for _ in range(s.first, s.last + 1))
                plans.append(
                    Plan(
                        workers=sum(replicas),
                        num_micro_batches=m,
                        splits=splits,
                        collectives=(None,) * layers,
                        stages=cut,
                    )
                )
    return plans


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch", [4, 6])
def test_the_search_finds_and_proves_the_best_of_the_whole_space(name: str, training: bool, batch: int) -> None:
    precision, optimizer = PRECISIONS["fp32"], OPTIMIZERS["momentum"]
    case = Workload(
        graph=NETWORKS[name],
        global_batch=batch,
        precision=precision,
        optimizer=optimizer,
        compute=RooflineCompute(device=DEVICE, precision=precision, optimizer=optimizer),
        training=training,
        collectives=("ring", "tree", "butterfly"),
        context_bytes=0,
    )
    for most in (2, 3):
        parts = [every_layer_plan(case, w, m) for m in divisors(batch) for w in range(1, most + 1)]
        pipelines = [plan for m in divisors(batch) for plan in every_pipeline(case, most, m)]
        costs = evaluate(case, CLUSTER, pipelines)
        times = np.concatenate([*(t for t, _, _ in parts), costs.step_time_s])
        memory = np.concatenate([*(b for _, b, _ in parts), costs.memory_bytes])
        size = sum(n for _, _, n in parts) + len(pipelines)
        for quantile in (0.0, 0.01, 0.1, 0.5, 1.0):
            capacity = float(np.quantile(memory, quantile)) * (1 + 1e-9)
            best = float(times[memory <= capacity].min())
            outcome = search(case, CLUSTER, SearchSettings(max_workers=most, capacity_bytes=capacity, top=2))
            assert outcome.candidates[0].step_time_s == pytest.approx(best, rel=1e-9)
            assert outcome.candidates[0].memory_bytes <= capacity
            assert outcome.space_size == size
            assert outcome.bound_s == pytest.approx(best, rel=1e-9)
            judged = evaluate(case, CLUSTER, [outcome.candidates[0].plan])
            assert judged.step_time_s[0] == pytest.approx(best, rel=1e-9)
