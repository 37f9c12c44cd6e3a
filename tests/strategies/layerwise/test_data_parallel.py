"""Plain data parallelism: the best of all worker counts and micro-batches, against trying them all."""

from __future__ import annotations

import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.hardware.device import Device
from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.plan import Plan
from costmodel.layerwise.splits import Split, divisors
from costmodel.layerwise.tables import CostCache
from costmodel.workload import Workload
from strategies.layerwise.candidates import best_data_parallel
from tests.cases import mostly
from tests.networks import network, roofline_workload

DEVICE = Device(name="d", peak_flop_per_s={"fp32": 10e12}, memory_bytes=16e9, memory_bandwidth_bytes_per_s=500e9)
CLUSTER = Cluster(
    name="c",
    groups=(DeviceGroup(device=DEVICE),),
    levels=(Level(name="flat", size=None, bandwidth_bytes_per_s=5e9, latency_s=8e-6),),
)
CONV = {"out_channels": 32, "kernel": 3, "padding": 1}
# Large images and few weights: the samples decide.
IMAGES = network((32, 96, 96), ("conv1", "convolution", ("data",), CONV), ("conv2", "convolution", ("conv1",), CONV))


def by_hand(case: Workload, workers: int, m: int) -> tuple[float, float]:
    layers = len(case.graph.layers)
    plan = Plan(
        workers=workers, num_micro_batches=m, splits=(Split(batch=workers),) * layers, collectives=(None,) * layers
    )
    cost = evaluate(case, CLUSTER, [plan])
    return float(cost.step_time_s[0]), float(cost.memory_bytes[0])


# The capacities let few, some and all of the plans fit. 36 samples on 5 workers: 3 x 3 fit in 547 MB, and 4 x 2 are faster.
@mostly("exact", "batch", [12, 20, 36], quick=1)
@mostly("exact", "capacity", [0.542e9, 0.5472e9, 0.555e9, 16e9], quick=2)
@mostly("exact", "most", [1, 5, 8], quick=1)
def test_best_of_all_micro_batches_and_workers(batch: int, capacity: float, most: int) -> None:
    case = roofline_workload(IMAGES, DEVICE, batch, collectives=tuple(ALL_REDUCE_NAMES))
    found: dict[int, float] = {}
    for w in range(1, most + 1):
        for m in divisors(batch):
            if w <= batch // m:
                step, memory = by_hand(case, w, m)
                if memory <= capacity:
                    found[w] = min(step, found.get(w, step))
    on_all, best = best_data_parallel(CostCache(case, CLUSTER), most, capacity)
    assert (on_all is not None) == (most in found)
    assert (best is not None) == bool(found)
    if on_all is not None:
        assert on_all.workers == most
        assert evaluate(case, CLUSTER, [on_all]).step_time_s[0] == pytest.approx(found[most], rel=1e-9)
    if best is not None:
        assert evaluate(case, CLUSTER, [best]).step_time_s[0] == pytest.approx(min(found.values()), rel=1e-9)
        assert all(split == Split(batch=best.workers) for split in best.splits)
