"""Pipelines: the cost model against the solver's own objective, cuts against the tensors that cross them, parts that add up."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, Level
from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.layerwise.detail import layer_tracks
from costmodel.layerwise.evaluate import CostBatch, PipelineArrays, evaluate, last_backward_s, pipeline_arrays
from costmodel.layerwise.plan import Plan, Split, Stage, split_table
from costmodel.layerwise.tables import CostTables
from costmodel.network.graph import Graph
from costmodel.timeline import TimelineInput, Tracks, simulate
from costmodel.workload import Workload
from planner.core.errors import PlannerError
from planner.core.request import Request
from planner.importers.networks import load_model
from planner.question.resolve import Resolved, resolve
from planner.spaces.layers.space import layerwise_space
from strategies.layerwise.pipeline.problem import PartitionProblem, PipelinePlan, objective_s
from tests.cases import mostly
from tests.costmodel.layerwise.evaluate_cases import CLUSTER, DEVICE, PARTS, build
from tests.networks import roofline_workload
from tests.strategies.layerwise.pipeline.test_solve import stage_memory_bytes

FLAT = replace(CLUSTER, levels=(Level(name="flat", size=None, bandwidth_bytes_per_s=1e9, latency_s=1e-6),))


def workload(graph: Graph, **changes: Any) -> Workload:
    base = roofline_workload(graph, DEVICE, 48, optimizer="adam", collectives=tuple(ALL_REDUCE_NAMES))
    return replace(base, **changes)


def tables_of(case: Workload, most: int, m: int, cluster: Cluster = CLUSTER) -> CostTables:
    return CostTables(case, cluster, split_table(range(1, most + 1), batch_only=True), m)


def problem_of(arrays: PipelineArrays, workers: int, m: int) -> PartitionProblem:
    return PartitionProblem(
        num_layers=arrays.forward_s.shape[1],
        num_workers=workers,
        num_micro_batches=m,
        replica_counts=arrays.replica_counts,
        forward_s=arrays.forward_s,
        backward_s=arrays.backward_s,
        cut_forward_s=arrays.cut_forward_s,
        cut_backward_s=arrays.cut_backward_s,
        update_s=arrays.update_s,
        exchange_s=arrays.exchange_s,
        static_bytes=arrays.static_bytes,
        activation_bytes=arrays.activation_bytes,
    )


def plan_of(graph: Graph, cuts: tuple[int, ...], replicas: tuple[int, ...], m: int) -> Plan:
    bounds = (0, *cuts, len(graph.layers))
    stages = tuple(
        Stage(first=a, last=b - 1, replicas=r) for a, b, r in zip(bounds[:-1], bounds[1:], replicas, strict=True)
    )
    return Plan(
        workers=sum(replicas),
        num_micro_batches=m,
        splits=tuple(Split(batch=s.replicas) for s in stages for _ in range(s.first, s.last + 1)),
        collectives=(None,) * len(graph.layers),
        stages=stages,
    )


CHAIN = build(
    ("conv1", "convolution", ("data",), {"out_channels": 16, "kernel": 3, "padding": 1, "activation": "relu"}),
    ("conv2", "convolution", ("conv1",), {"out_channels": 16, "kernel": 3, "padding": 1, "norm": "batch"}),
    ("join", "add", ("conv2", "conv1"), {}),
    ("pool", "pool", ("join",), {"kernel": 2, "stride": 2}),
    ("fc", "linear", ("pool",), {"out_features": 10}),
    ("loss", "softmax", ("fc",), {}),
)


@pytest.mark.parametrize("name", ["chain", "alexnet", "googlenet"])
@pytest.mark.parametrize("training", [True, False])
def test_the_cost_model_and_the_solver_agree_on_random_plans(name: str, training: bool) -> None:
    graph = CHAIN if name == "chain" else load_model(name).graph
    case = workload(graph, training=training)
    rng = np.random.default_rng(1)
    layers = len(graph.layers)
    for m in (1, 3, 8):
        most = min(6, case.micro_batch(m))
        problem = problem_of(pipeline_arrays(tables_of(case, most, m)), 64, m)
        plans, solver_plans = [], []
        for _ in range(25):
            stages = int(rng.integers(2, min(layers, 6) + 1))
            cuts = tuple(sorted(int(c) for c in rng.choice(np.arange(1, layers), size=stages - 1, replace=False)))
            replicas = tuple(int(r) for r in rng.integers(1, most + 1, size=stages))
            plans.append(plan_of(graph, cuts, replicas, m))
            solver_plans.append(PipelinePlan(cuts=cuts, replicas=replicas))
        costs = evaluate(case, CLUSTER, plans)
        np.testing.assert_allclose(costs.step_time_s, [objective_s(problem, plan) for plan in solver_plans], rtol=1e-9)
        memory = [stage_memory_bytes(problem, plan).max() + case.context_bytes for plan in solver_plans]
        np.testing.assert_allclose(costs.memory_bytes, memory, rtol=1e-12)
        np.testing.assert_allclose(costs.step_time_s, sum(getattr(costs, part) for part in PARTS), rtol=1e-12)
        assert all(np.all(getattr(costs, part) >= -1e-12) for part in PARTS)
        assert np.all(costs.exposed_exchange_s <= costs.exchange_s * layers + 1e-15)


@pytest.mark.parametrize("spread", ["similar", "wide", "independent", "whole"])
def test_every_stage_ends_when_the_simulation_says(spread: str) -> None:
    """The closed form against a simulation that shares nothing with it, for any stages, pipelines that never fill included."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        stages, m = int(rng.integers(1, 9)), int(rng.integers(1, 17))
        forward = rng.uniform(0.85, 1.15, stages) if spread == "similar" else rng.random(stages) ** rng.choice([1, 4])
        backward = rng.random(stages) if spread == "independent" else 2 * forward
        if spread == "whole":  # ties, and stages that cost nothing
            forward, backward = rng.integers(0, 4, stages) * 1.0, rng.integers(0, 4, stages) * 1.0
        case = TimelineInput(
            schedule="1f1b",
            pp=stages,
            num_micro_batches=m,
            forward_s=tuple(forward.tolist()),
            backward_s=tuple(backward.tolist()),
        )
        ends = np.zeros(stages)
        for span in simulate(case).spans:
            ends[span.rank] = max(ends[span.rank], span.start_s + span.duration_s)
        np.testing.assert_allclose(last_backward_s(forward, backward, m), ends, rtol=1e-9, atol=1e-12)


@pytest.mark.exact
@mostly("exact", ("name", "plans"), [("chain", 150), ("alexnet", 80), ("googlenet", 40)], quick=1)
@pytest.mark.parametrize("training", [True, False])
def test_random_plans_take_as_long_as_their_timeline(name: str, plans: int, training: bool) -> None:
    """Uneven stages of uneven replicas: transfers, exchanges and updates included, the event by event simulation ends with the step."""
    case = workload(CHAIN if name == "chain" else load_model(name).graph, training=training)
    rng = np.random.default_rng(7)
    layers = len(case.graph.layers)
    drawn, uneven = [], 0
    for _ in range(plans):
        m = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16]))
        stages = int(rng.integers(2, min(layers, 7) + 1))
        cuts = tuple(sorted(int(c) for c in rng.choice(np.arange(1, layers), size=stages - 1, replace=False)))
        replicas = tuple(int(r) for r in rng.integers(1, min(6, case.micro_batch(m)) + 1, size=stages))
        drawn.append(plan_of(case.graph, cuts, replicas, m))
        uneven += len(set(replicas)) > 1
    costs = evaluate(case, CLUSTER, drawn)
    ends = [layer_tracks(case, CLUSTER, plan).end_s for plan in drawn]
    np.testing.assert_allclose(ends, costs.step_time_s, rtol=1e-9)
    assert uneven > plans / 2


def test_what_crosses_a_cut_is_what_is_still_needed() -> None:
    """Every cut of a network with a skip: the tensors made before it that a layer behind it reads; the input is loaded, not sent."""
    case = workload(CHAIN)
    m, rate, latency = 2, 1e9, 1e-6
    arrays = pipeline_arrays(tables_of(case, 3, m, FLAT))
    image, pooled = 16 * 144, 16 * 36
    elements = [
        0,
        0,
        image,
        2 * image,
        image,
        pooled,
        10,
        0,
    ]  # before data, conv1, conv2, join (conv1 and conv2), pool, fc, loss
    assert [layer.name for layer in CHAIN.layers] == ["data", "conv1", "conv2", "join", "pool", "fc", "loss"]
    for k1, k2 in np.ndindex(3, 3):
        fewer = min(k1, k2) + 1
        for cut, count in enumerate(elements):
            expected = latency + -(-24 // fewer) * count * 4 / rate if count else 0.0
            assert arrays.cut_forward_s[k1, k2, cut] == pytest.approx(expected), (k1, k2, cut)
            assert arrays.cut_backward_s[k1, k2, cut] == pytest.approx(expected)
    inference = pipeline_arrays(tables_of(workload(CHAIN, training=False), 3, m, FLAT))
    assert not inference.cut_backward_s.any()
    np.testing.assert_array_equal(inference.cut_forward_s, arrays.cut_forward_s)


def test_no_gradient_crosses_a_cut_before_the_first_weights() -> None:
    graph = build(
        ("pool", "pool", ("data",), {"kernel": 2, "stride": 2}),
        ("fc", "linear", ("pool",), {"out_features": 10}),
    )
    arrays = pipeline_arrays(tables_of(workload(graph), 2, 1))
    assert arrays.cut_forward_s[0, 0, 2] > 0
    assert arrays.cut_backward_s[0, 0, 2] == 0


def test_two_equal_stages_by_hand() -> None:
    """Two stages of one linear layer each: (m + S - 1) t without transfers, then the update of the first stage."""
    graph = build(
        ("fc1", "linear", ("data",), {"out_features": 576, "bias": False}),
        ("fc2", "linear", ("fc1",), {"out_features": 576, "bias": False}),
    )
    fast = replace(CLUSTER, levels=(Level(name="l", size=None, bandwidth_bytes_per_s=1e18, latency_s=0.0),))
    case = workload(graph)
    m = 8
    arrays = pipeline_arrays(tables_of(case, 1, m, fast))
    forward, backward = arrays.forward_s[0], arrays.backward_s[0]
    plan = plan_of(graph, (2,), (1, 1), m)
    cost = evaluate(case, fast, [plan])
    t1, t2 = forward[1] + backward[1], forward[2] + backward[2]
    assert t2 > t1 > 0  # the first stage needs no gradient of its input
    # The second stage is the slower: fill and drain through the first, then the first one's update, if the second's has not
    # ended later: it started earlier by the first stage's last backward pass.
    tail = max(arrays.update_s[0, 1], arrays.update_s[0, 2] - backward[1])
    assert cost.step_time_s[0] == pytest.approx(t1 + m * t2 + tail, rel=1e-9)
    assert cost.bubble_s[0] == pytest.approx(t1, rel=1e-9)
    assert cost.exchange_s[0] == 0.0
    # 1F1B keeps two micro-batches on the first stage, one on the last.
    weights = 576 * 576 * (4 + 4 + 8)
    activation = 6 * 576 * 4
    expected = weights + max(2 * (activation + 6 * 4 * 144 * 4), activation)
    assert cost.memory_bytes[0] == pytest.approx(expected + case.context_bytes)


def test_stages_obey_the_collectives_they_name() -> None:
    case = workload(CHAIN)
    plan = plan_of(CHAIN, (3,), (6, 2), 2)
    cheapest = evaluate(case, CLUSTER, [plan])
    tables = tables_of(case, 6, 2)
    seen = []
    for c, name in enumerate(ALL_REDUCE_NAMES):
        cost = evaluate(case, CLUSTER, [replace(plan, collectives=(name,) * len(CHAIN.layers))])
        first = sum(float(tables.layers[i].exchange_s[c, 5]) for i in range(3))
        second = sum(float(tables.layers[i].exchange_s[c, 1]) for i in range(3, 7))
        assert cost.exchange_s[0] == pytest.approx(max(first, second), rel=1e-12)
        assert cost.step_time_s[0] >= cheapest.step_time_s[0] * (1 - 1e-12)
        seen.append(cost.exchange_s[0])
    assert max(seen) > min(seen) * 1.01
    assert cheapest.exchange_s[0] <= min(seen) * (1 + 1e-12)


def test_more_replicas_than_samples_cost_infinity() -> None:
    case = workload(CHAIN)
    plans = [plan_of(CHAIN, (3,), (13, 2), 4), plan_of(CHAIN, (3,), (2, 13), 4), plan_of(CHAIN, (3,), (12, 2), 4)]
    costs: CostBatch = evaluate(case, CLUSTER, plans)
    assert [bool(np.isfinite(t)) for t in costs.step_time_s] == [False, False, True]
    assert not np.isnan(costs.step_time_s).any()


def test_one_stage_is_data_parallelism() -> None:
    """The arrays of a single stage are the tables of a pure batch split."""
    case = workload(CHAIN)
    arrays = pipeline_arrays(tables_of(case, 4, 2))
    for k, r in enumerate(arrays.replica_counts):
        layers = len(CHAIN.layers)
        plan = Plan(
            workers=int(r), num_micro_batches=2, splits=(Split(batch=int(r)),) * layers, collectives=(None,) * layers
        )
        cost = evaluate(case, CLUSTER, [plan])
        assert cost.compute_s[0] == pytest.approx(2 * (arrays.forward_s[k] + arrays.backward_s[k]).sum(), rel=1e-12)
        assert cost.exchange_s[0] == pytest.approx(arrays.exchange_s[k].sum(), rel=1e-12)
        assert cost.update_s[0] == pytest.approx(arrays.update_s[k].sum(), rel=1e-12)
        memory = (arrays.static_bytes[k] + arrays.activation_bytes[k]).sum() + case.context_bytes
        assert cost.memory_bytes[0] == pytest.approx(memory, rel=1e-12)


# Traces of plans with a split per layer: they end with the step of the cost model, and exchanges pause while activations travel


FAMILIES = ["data", "model", "hybrid", "mixed"]


def question(cluster: str, gpus: int, model: str = "alexnet") -> Resolved:
    return resolve(Request(model=model, gpus=gpus, cluster=cluster, space="layers"))


def costed(asked: Resolved, plan: Plan) -> tuple[Tracks, float]:
    step = float(evaluate(asked.workload, asked.cluster, [plan]).step_time_s[0])
    return layer_tracks(asked.workload, asked.cluster, plan), step


@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx1-p100", "ethernet-10g"])
@pytest.mark.parametrize(("gpus", "families"), [(1, ["one-device"]), (4, FAMILIES), (8, FAMILIES)])
def test_the_trace_ends_with_the_step(cluster: str, gpus: int, families: list[str]) -> None:
    asked = question(cluster, gpus)
    checked = 0
    for family in families:
        try:
            plan = layerwise_space(asked).best_on(gpus, family)
        except PlannerError:  # nothing of this family there
            continue
        tracks, step = costed(asked, plan)
        assert tracks.end_s == pytest.approx(step, rel=1e-9), family
        checked += 1
    assert checked >= min(len(families), 3)


@pytest.mark.parametrize("m", [1, 2, 8])
def test_micro_batches_follow_each_other(m: int) -> None:
    asked = question("dgx1-p100", 4)
    layers = asked.workload.graph.layers
    names = tuple("ring" if layer.has_weights else None for layer in layers)
    plan = Plan(workers=4, num_micro_batches=m, splits=(Split(batch=4),) * len(layers), collectives=names)
    tracks, step = costed(asked, plan)
    assert tracks.end_s == pytest.approx(step, rel=1e-9)
    forwards = [span for span in tracks.spans if span.name.startswith("conv1 forward")]
    assert len(forwards) == m


def test_exchanges_and_moves_share_the_links() -> None:
    """No instant has both, each is in order, and the pieces of an exchange add up to it."""
    asked = question("ethernet-10g", 8)
    plan = layerwise_space(asked).best_on(8, "hybrid")
    tracks, _ = costed(asked, plan)
    moves = [span for span in tracks.spans if span.stream == "network"]
    exchanges = [span for span in tracks.spans if span.stream == "exchange"]
    assert moves
    assert exchanges
    for span in exchanges:
        for move in moves:
            assert span.end_s <= move.start_s + 1e-12 or move.end_s <= span.start_s + 1e-12
    for before, after in itertools.pairwise(exchanges):
        assert before.end_s <= after.start_s + 1e-12
    total = float(evaluate(asked.workload, asked.cluster, [plan]).exchange_s[0])
    assert sum(span.duration_s for span in exchanges) == pytest.approx(total)


def test_without_overlap_exchanges_come_after_the_backward_pass() -> None:
    asked = resolve(Request(model="alexnet", gpus=4, cost_model="paleo", space="layers"))
    plan = layerwise_space(asked).best_on(4, "data")
    tracks, step = costed(asked, plan)
    assert tracks.end_s == pytest.approx(step, rel=1e-9)
    back = max(span.end_s for span in tracks.spans if span.kind == "backward")
    assert min(span.start_s for span in tracks.spans if span.kind == "exchange") >= back - 1e-12


@pytest.mark.parametrize(
    ("cluster", "gpus", "micro_batches"),
    [("dgx-h100", 4, 0), ("dgx-h100", 16, 0), ("ethernet-10g", 4, 0), ("dgx1-p100", 16, 0), ("dgx-h100", 2, 4)],
)
def test_pipelines_end_with_the_step(cluster: str, gpus: int, micro_batches: int) -> None:
    """The closed form of the cost model is exact, and both hold the receiver while it receives."""
    asked = question(cluster, gpus)
    plan = layerwise_space(asked).best_on(gpus, "pipeline")
    plan = replace(plan, num_micro_batches=micro_batches or plan.num_micro_batches)
    tracks, step = costed(asked, plan)
    assert len(tracks.names) == len(plan.stages)
    assert tracks.end_s == pytest.approx(step, rel=1e-9)
