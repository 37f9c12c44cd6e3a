"""The search under every framework, with parameter servers and slow storage: it finds and proves what enumeration finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.framework import AS_RUN, LayerAssumptions
from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.kernels.roofline import RooflineCompute
from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.plan import Plan, Split, divisors, split_table
from costmodel.layerwise.tables import CostTables
from costmodel.precision import PRECISIONS
from costmodel.workload import Workload
from planner.files.loading import load_framework
from planner.files.resources import bundled
from strategies.layerwise.bounds import lower_bounds
from strategies.layerwise.search import SearchSettings, search
from strategies.layerwise.space import Restriction
from strategies.score import score_of
from tests.cases import mostly
from tests.strategies.layerwise import test_whole_space as whole

# Nodes of two, so that three workers stand on two of them.
CLUSTER = Cluster(
    name="nodes",
    groups=(DeviceGroup(device=whole.DEVICE),),
    levels=(
        Level(name="node", size=2, bandwidth_bytes_per_s=20e9, latency_s=2e-6),
        Level(name="network", size=None, bandwidth_bytes_per_s=2e9, latency_s=3e-5),
    ),
)


def _cases() -> dict[str, LayerAssumptions]:
    """What frameworks do to plans with a split per layer, the first of each kind; and what questions may add."""
    known: dict[LayerAssumptions, str] = {}
    for name in bundled("frameworks"):
        known.setdefault(load_framework(name).framework.layer_assumptions(PRECISIONS["fp16"]), name)
    cases = {name: assumptions for assumptions, name in known.items()}
    reading = replace(AS_RUN, real_input=1.0, stored_sample_bytes=1e5, storage_bytes_per_s=1e9)
    cases["slow storage"] = replace(reading, storage_bytes_per_s=1e6)
    cases["storage of many nodes"] = reading
    cases["servers and input"] = replace(reading, parameter_servers=1.0, update_call_s=1e-3)
    cases["very different devices"] = replace(AS_RUN, device_spread=0.5)
    return cases


CASES = _cases()


def workload_of(name: str, batch: int, assumptions: LayerAssumptions) -> Workload:
    case = whole.workload_of(name, batch, training=True)
    assert isinstance(case.compute, RooflineCompute)
    compute = replace(
        case.compute,
        device=assumptions.device_as_used(case.compute.device),
        software=assumptions.image_software(),
    )
    return replace(case, compute=compute, assumptions=assumptions)


@pytest.mark.exact
@mostly("exact", "name", whole.NETWORKS, quick=1)
@mostly("exact", "under", CASES, quick=4)
def test_the_search_finds_and_proves_what_enumeration_finds(name: str, under: str) -> None:
    most = 3
    case = workload_of(name, 6, CASES[under])
    costs, workers, _ = whole.every_plan(case, most, CLUSTER)
    total = costs.compute_s + costs.update_s + costs.reshard_s + costs.exposed_exchange_s + costs.bubble_s
    finite = np.isfinite(costs.step_time_s)
    assert costs.step_time_s[finite] == pytest.approx(total[finite], rel=1e-9)
    for objective, quantile in (("step_time", 0.01), ("step_time", 1.0), ("money", 0.5)):
        scores = whole.by_hand(objective, costs, workers)
        capacity = float(np.quantile(costs.memory_bytes, quantile)) * (1 + 1e-9)
        best = float(scores[costs.memory_bytes <= capacity].min())
        settings = SearchSettings(
            max_workers=most, capacity_bytes=capacity, top=2, score=score_of(objective, whole.PRICED, whole.HOST)
        )
        outcome = search(case, CLUSTER, settings)
        assert outcome.candidates[0].score == pytest.approx(best, rel=1e-9)
        assert outcome.bound_score == pytest.approx(best, rel=1e-9)


@mostly("exact", "under", CASES, quick=3)
def test_bounds_are_at_most_what_is_costed(under: str) -> None:
    case = workload_of("both", 6, CASES[under])
    for m in divisors(6):
        tables = CostTables(case, CLUSTER, split_table([1, 2, 3, 4]), m)
        bounds = lower_bounds(tables, Restriction())
        for k, workers in enumerate((1, 2, 3, 4)):
            costs, _ = whole.every_layer_plan(case, workers, m, CLUSTER)
            assert bounds[k] <= costs.step_time_s.min() * (1 + 1e-9)


@pytest.mark.parametrize("name", whole.NETWORKS)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_splits_of_the_batch_alone_are_the_best_of_all_data_parallel_plans(name: str, share: float) -> None:
    batch, most = 6, 4
    case = whole.workload_of(name, batch, training=True)
    layers = len(case.graph.layers)
    plans = [
        Plan(workers=w, num_micro_batches=m, splits=(Split(batch=w),) * layers, collectives=(None,) * layers)
        for m in divisors(batch)
        for w in range(1, most + 1)
    ]
    costs = evaluate(case, CLUSTER, plans)
    legal = np.isfinite(costs.step_time_s)
    capacity = float(np.quantile(costs.memory_bytes[legal], share)) * (1 + 1e-9)
    best = float(costs.step_time_s[legal & (costs.memory_bytes <= capacity)].min())
    settings = SearchSettings(
        max_workers=most,
        capacity_bytes=capacity,
        top=3,
        restriction=Restriction(by_batch=True),
    )
    outcome = search(case, CLUSTER, settings)
    assert outcome.candidates[0].step_time_s == pytest.approx(best, rel=1e-9)
    assert outcome.bound_score == pytest.approx(best, rel=1e-9)
    for candidate in outcome.candidates:
        plan = candidate.plan
        assert not plan.is_pipeline
        assert all(
            split.batch == plan.workers
            for layer, split in zip(case.graph.layers, plan.splits, strict=True)
            if layer.kind != "input"
        )
