"""Workloads, a cluster and random plans for the tests of the cost model."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.hardware.device import Device
from costmodel.layerwise.evaluate import PlanBatch
from costmodel.layerwise.tables import CostTables
from costmodel.network.graph import Graph
from costmodel.workload import Workload
from planner.importers.networks import load_model
from tests.networks import network, roofline_workload

DEVICE = Device(
    name="d", peak_flop_per_s={"fp32": 10e12}, memory_bytes=16e9, memory_bandwidth_bytes_per_s=500e9, clock_hz=1e9
)
CLUSTER = Cluster(
    name="c",
    groups=(DeviceGroup(device=DEVICE),),
    levels=(
        Level(name="node", size=4, bandwidth_bytes_per_s=50e9, latency_s=3e-6),
        Level(name="fabric", size=None, bandwidth_bytes_per_s=5e9, latency_s=8e-6),
    ),
)
PARTS = ("forward_s", "backward_s", "update_s", "reshard_s", "exposed_exchange_s", "bubble_s")


build = functools.partial(network, (4, 12, 12))


CONV: dict[str, Any] = {"out_channels": 16, "kernel": 3, "padding": 1, "norm": "batch", "activation": "relu"}


SMALL = build(
    ("stem", "convolution", ("data",), CONV),
    ("left", "convolution", ("stem",), CONV),
    ("right", "convolution", ("stem",), {**CONV, "kernel": 1, "padding": 0}),
    ("join", "add", ("left", "right", "stem"), {}),
    ("group", "convolution", ("join",), {**CONV, "groups": 4}),
    ("cat", "concat", ("group", "stem"), {}),
    ("pool", "pool", ("cat",), {"kernel": 2, "stride": 2}),
    ("fc1", "linear", ("pool",), {"out_features": 64, "activation": "relu"}),
    ("drop", "dropout", ("fc1",), {}),
    ("fc2", "linear", ("drop",), {"out_features": 12}),
    ("loss", "softmax", ("fc2",), {}),
)


@functools.cache
def graph(name: str) -> Graph:
    return SMALL if name == "small" else load_model(name).graph


def workload(name: str = "small", device: Device = DEVICE, **changes: Any) -> Workload:
    base = roofline_workload(graph(name), device, 48, collectives=tuple(ALL_REDUCE_NAMES))
    return replace(base, **changes)


def random_batch(tables: CostTables, rng: np.random.Generator, workers: int, count: int) -> PlanBatch:
    """Legal splits of every layer, drawn alike, and any collective."""
    rows = tables.table.rows(workers)
    layers = tables.layers
    options = [rows.start + np.flatnonzero(costs.legal[rows]) for costs in layers]
    row = np.stack([rng.choice(o, size=count) for o in options], axis=1)
    collective = rng.integers(-1, len(tables.workload.collectives), size=row.shape)
    return PlanBatch(row=row, collective=collective)
