"""The whole search against brute force over the whole space, on networks small enough, with memory caps."""

from __future__ import annotations

import dataclasses
import itertools
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.hardware.device import Device
from costmodel.hardware.host import Host
from costmodel.layerwise.evaluate import CHEAPEST, CostBatch, PlanBatch, evaluate, evaluate_on
from costmodel.layerwise.plan import Plan, Split, Stage, divisors, factorisations, plan_key, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.workload import Workload
from strategies import limits
from strategies.layerwise import search as module
from strategies.layerwise.candidates import best_data_parallel
from strategies.layerwise.pipeline import search as pipelines
from strategies.layerwise.pipeline.search import least_computing_s, quick_bounds
from strategies.layerwise.search import SearchSettings, search
from strategies.layerwise.space import Restriction
from strategies.score import score_of
from tests.cases import mostly
from tests.networks import network, roofline_workload

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
# Waiting: 40 W and 50 W of the host; computing: 180 W more.
PRICED = dataclasses.replace(DEVICE, busy_power_w=220.0, idle_power_w=40.0, price_per_hour=2.0)
HOST = Host(devices=1, memory_bytes=1e12, power_w=50.0)


NETWORKS = {
    "images": network(
        (8, 64, 64),
        ("conv1", "convolution", ("data",), {"out_channels": 8, "kernel": 3, "padding": 1}),
        ("conv2", "convolution", ("conv1",), {"out_channels": 4, "kernel": 3, "padding": 1}),
        ("twice", "add", ("conv2", "conv2"), {}),
    ),
    "perceptron": network(
        (108,),
        ("fc1", "linear", ("data",), {"out_features": 2000}),
        ("fc2", "linear", ("fc1",), {"out_features": 2000}),
        ("fc3", "linear", ("fc2",), {"out_features": 8}),
    ),
    "both": network(
        (3, 6, 6),
        ("conv1", "convolution", ("data",), {"out_channels": 4, "kernel": 3, "padding": 1}),
        ("pool", "pool", ("conv1",), {"kernel": 2, "stride": 2}),
        ("fc1", "linear", ("pool",), {"out_features": 64}),
    ),
}


def by_hand(objective: str, costs: CostBatch, workers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Seconds, device-seconds, or joules over what a device and its share of the host draw at most."""
    if objective == "step_time":
        return costs.step_time_s
    if objective in ("money", "gpu_hours"):
        return np.asarray(workers * costs.step_time_s)
    joules = workers * (90.0 * costs.step_time_s + 180.0 * costs.computing_s)
    return joules / 270.0


def workload_of(name: str, batch: int, *, training: bool) -> Workload:
    return roofline_workload(
        NETWORKS[name],
        DEVICE,
        batch,
        training=training,
        collectives=("ring", "tree", "butterfly"),
        context_bytes=0,
    )


def every_layer_plan(case: Workload, workers: int, m: int, cluster: Cluster = CLUSTER) -> tuple[CostBatch, int]:
    """Costs of every combination of legal splits, with the cheapest collectives, and how many plans there are with any."""
    tables = CostTables(case, cluster, split_table([workers]), m)
    options = [
        np.flatnonzero(costs.legal)[: 1 if layer.kind == "input" else None]  # its layout costs nothing
        for layer, costs in zip(case.graph.layers, tables.layers, strict=True)
    ]
    rows = np.array(list(itertools.product(*options)))
    batch = PlanBatch(row=rows, collective=np.full_like(rows, CHEAPEST))
    costs = evaluate_on(tables, batch)
    exchanges = (tables.table.batch * tables.table.height)[rows[:, list(case.graph.weighted)]] > 1
    plans = np.sum(len(case.collectives) ** exchanges.sum(axis=1)) if case.training else len(rows)
    return costs, int(plans)


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


def every_plan(case: Workload, most: int, cluster: Cluster = CLUSTER) -> tuple[CostBatch, np.ndarray[Any, Any], int]:
    """Costs and workers of the plans of both kinds on up to ``most`` workers, and how many there are with any collectives."""
    micro_batches = divisors(case.global_batch)
    counts = [(w, m) for m in micro_batches for w in range(1, most + 1)]
    costs, sizes = zip(*(every_layer_plan(case, w, m, cluster) for w, m in counts), strict=True)
    pipelines = [plan for m in micro_batches for plan in every_pipeline(case, most, m)]
    workers = [np.full(len(some.step_time_s), w) for some, (w, _) in zip(costs, counts, strict=True)]
    together = CostBatch.joined([*costs, evaluate(case, cluster, pipelines)])
    return together, np.concatenate([*workers, [p.workers for p in pipelines]]), sum(sizes) + len(pipelines)


@lru_cache
def every_plan_of(name: str, batch: int, training: bool, most: int) -> tuple[CostBatch, np.ndarray[Any, Any], int]:
    """As `every_plan`, once for all objectives."""
    return every_plan(workload_of(name, batch, training=training), most)


@pytest.mark.exact
@mostly("exact", "name", NETWORKS, quick=1)
@mostly(
    "exact",
    ("training", "batch", "objective"),
    [
        *((training, batch, "step_time") for training in (True, False) for batch in (4, 6)),
        (True, 4, "money"),
        (False, 6, "money"),
        (True, 6, "energy"),
        (False, 4, "energy"),
    ],
    quick=2,
)
def test_the_search_finds_and_proves_the_best_of_the_whole_space(
    name: str, training: bool, batch: int, objective: str
) -> None:
    case = workload_of(name, batch, training=training)
    for most in (2, 3):
        costs, workers, size = every_plan_of(name, batch, training, most)
        scores, memory = by_hand(objective, costs, workers), costs.memory_bytes
        for quantile in (0.0, 0.01, 0.1, 0.5, 1.0):
            capacity = float(np.quantile(memory, quantile)) * (1 + 1e-9)
            best = float(scores[memory <= capacity].min())
            settings = SearchSettings(
                max_workers=most, capacity_bytes=capacity, top=2, score=score_of(objective, PRICED, HOST)
            )
            outcome = search(case, CLUSTER, settings)
            first = outcome.candidates[0]
            assert first.score == pytest.approx(best, rel=1e-9)
            assert first.memory_bytes <= capacity
            assert outcome.space_size == size
            assert outcome.bound_score == pytest.approx(best, rel=1e-9)
            evaluated = evaluate(case, CLUSTER, [first.plan])
            assert by_hand(objective, evaluated, np.array([first.plan.workers]))[0] == pytest.approx(best, rel=1e-9)


@pytest.mark.exact
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("objective", ["step_time", "gpu_hours", "energy"])
@pytest.mark.parametrize("top", [1, 7])
def test_the_best_pipelines_by_every_objective(name: str, objective: str, top: int) -> None:
    case, most = workload_of(name, 6, training=True), 4
    pipelines = [plan for m in divisors(6) for plan in every_pipeline(case, most, m)]
    costs = evaluate(case, CLUSTER, pipelines)
    scores = by_hand(objective, costs, np.array([plan.workers for plan in pipelines]))
    for quantile in (0.1, 1.0):
        capacity = float(np.quantile(costs.memory_bytes, quantile)) * (1 + 1e-9)
        best: dict[object, float] = {}  # plans that differ only in layers without weights are one
        for plan, value, memory in zip(pipelines, scores.tolist(), costs.memory_bytes.tolist(), strict=True):
            if memory <= capacity:
                key = plan_key(case.graph, plan)
                best[key] = min(value, best.get(key, np.inf))
        fitting = sorted(best.values())
        settings = SearchSettings(
            max_workers=most,
            capacity_bytes=capacity,
            top=top,
            score=score_of(objective, PRICED, HOST),
            restriction=Restriction(family="pipeline"),
        )
        outcome = search(case, CLUSTER, settings)
        found = [one.score for one in outcome.candidates]
        proven = [value for value in found if value <= outcome.rest_bound * (1 + 1e-9)]
        assert proven
        assert proven == pytest.approx(fitting[: len(proven)], rel=1e-9)
        assert found == sorted(found)
        assert outcome.bound_score == pytest.approx(fitting[0], rel=1e-9)
        assert outcome.searched["open"] == 0


def test_what_stages_compute_is_averaged_over_their_devices() -> None:
    case = workload_of("perceptron", 4, training=True)
    stages = (Stage(first=0, last=1, replicas=1), Stage(first=2, last=3, replicas=2))
    splits = (Split(batch=1), Split(batch=1), Split(batch=2), Split(batch=2))
    plan = Plan(workers=3, num_micro_batches=2, splits=splits, collectives=(None,) * 4, stages=stages)
    one, two = (CostTables(case, CLUSTER, split_table([r], batch_only=True), 2) for r in (1, 2))
    total = 0.0
    for i, (tables, replicas) in enumerate([(one, 1), (one, 1), (two, 2), (two, 2)]):
        layer = tables.layers[i]
        kernels = layer.forward_s[0] + layer.backward_input_s[0] + layer.backward_weight_s[0]
        total += replicas * (2 * kernels + layer.update_s[0])
    costs = evaluate(case, CLUSTER, [plan])
    assert costs.computing_s[0] == pytest.approx(total / 3)
    assert costs.computing_s[0] < costs.step_time_s[0]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("m", [2, 3, 6])
def test_quick_bounds_of_pipelines_are_bounds(name: str, m: int) -> None:
    case, most = workload_of(name, 6, training=True), 4
    pipelines = every_pipeline(case, most, m)
    costs = evaluate(case, CLUSTER, pipelines)
    counts = range(2, most + 1)
    tables = CostTables(case, CLUSTER, split_table(range(1, most), batch_only=True), m)
    bounds = dict(zip(counts, quick_bounds(tables, counts), strict=True))
    computing = dict(zip(counts, least_computing_s(tables, counts), strict=True))
    for plan, step_s, computing_s in zip(pipelines, costs.step_time_s, costs.computing_s, strict=True):
        assert bounds[plan.workers] <= step_s
        assert computing[plan.workers] <= computing_s


# --- Past its time limit the search looks at no more worker counts, says that it was stopped, and still has a bound -----------------------


class Clock:
    """Tells the time in looks at it."""

    def __init__(self) -> None:
        self.ticks = itertools.count()

    def monotonic(self) -> float:
        return float(next(self.ticks))


def settings_of(**changed: Any) -> SearchSettings:
    return SearchSettings(max_workers=200_000, capacity_bytes=1e12, top=1, **changed)


@pytest.mark.exact
def test_past_the_time_limit_no_more_worker_counts_are_factorised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "replica_table", lambda *_: pytest.fail("there is no time for tables"))
    factorisations.cache_clear()
    outcome = search(workload_of("images", 8, training=True), PLAIN_CLUSTER, settings_of(wall_s=0.0))
    assert outcome.out_of_time
    assert outcome.candidates
    # Those of the first block whose bounds are asked for, of 200,000 worker counts.
    assert factorisations.cache_info().misses < 2_000


def test_a_search_that_is_stopped_has_a_bound_and_the_size_of_the_whole_space() -> None:
    case = workload_of("both", 4, training=True)
    stopped = search(case, PLAIN_CLUSTER, SearchSettings(max_workers=24, capacity_bytes=1e12, top=1, wall_s=0.0))
    done = search(case, PLAIN_CLUSTER, SearchSettings(max_workers=24, capacity_bytes=1e12, top=1))
    assert stopped.out_of_time
    assert not done.out_of_time
    assert 0.0 < stopped.bound_score <= done.bound_score
    assert stopped.space_size == done.space_size


@pytest.mark.exact
def test_the_clock_is_looked_at_for_every_block_of_worker_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes forward when it is looked at, so the number of looks is that of the blocks at least."""
    clock = Clock()
    monkeypatch.setattr(limits.time, "monotonic", clock.monotonic)
    screened: list[int] = []
    screen = module.screened_bounds

    def count(*arguments: Any) -> Any:
        screened.append(len(arguments[1].worker_counts))
        return screen(*arguments)

    monkeypatch.setattr(module, "screened_bounds", count)
    outcome = search(workload_of("perceptron", 64, training=True), PLAIN_CLUSTER, settings_of(wall_s=40.0))
    assert outcome.out_of_time
    assert 0 < len(screened) < 40
    assert np.isfinite(outcome.bound_score)


# --- Plain data parallelism: the best of all worker counts and micro-batches, against trying them all -------------------------------------


PLAIN = Device(name="d", peak_flop_per_s={"fp32": 10e12}, memory_bytes=16e9, memory_bandwidth_bytes_per_s=500e9)
PLAIN_CLUSTER = Cluster(
    name="c",
    groups=(DeviceGroup(device=PLAIN),),
    levels=(Level(name="flat", size=None, bandwidth_bytes_per_s=5e9, latency_s=8e-6),),
)
CONV = {"out_channels": 32, "kernel": 3, "padding": 1}
# Large images and few weights: the samples decide.
IMAGES = network((32, 96, 96), ("conv1", "convolution", ("data",), CONV), ("conv2", "convolution", ("conv1",), CONV))


def of_data_parallelism(case: Workload, workers: int, m: int) -> tuple[float, float]:
    layers = len(case.graph.layers)
    plan = Plan(
        workers=workers, num_micro_batches=m, splits=(Split(batch=workers),) * layers, collectives=(None,) * layers
    )
    cost = evaluate(case, PLAIN_CLUSTER, [plan])
    return float(cost.step_time_s[0]), float(cost.memory_bytes[0])


# The capacities let few, some and all of the plans fit. 36 samples on 5 workers: 3 x 3 fit in 547 MB, and 4 x 2 are faster.
@mostly("exact", "batch", [12, 20, 36], quick=1)
@mostly("exact", "capacity", [0.542e9, 0.5472e9, 0.555e9, 16e9], quick=2)
@mostly("exact", "most", [1, 5, 8], quick=1)
def test_best_of_all_micro_batches_and_workers(batch: int, capacity: float, most: int) -> None:
    case = roofline_workload(IMAGES, PLAIN, batch, collectives=tuple(ALL_REDUCE_NAMES))
    found: dict[int, float] = {}
    for w in range(1, most + 1):
        for m in divisors(batch):
            if w <= batch // m:
                step, memory = of_data_parallelism(case, w, m)
                if memory <= capacity:
                    found[w] = min(step, found.get(w, step))
    on_all, best = best_data_parallel(CostCache(case, PLAIN_CLUSTER), most, capacity)
    assert (on_all is not None) == (most in found)
    assert (best is not None) == bool(found)
    if on_all is not None:
        assert on_all.workers == most
        assert evaluate(case, PLAIN_CLUSTER, [on_all]).step_time_s[0] == pytest.approx(found[most], rel=1e-9)
    if best is not None:
        assert evaluate(case, PLAIN_CLUSTER, [best]).step_time_s[0] == pytest.approx(min(found.values()), rel=1e-9)
        assert all(split == Split(batch=best.workers) for split in best.splits)
