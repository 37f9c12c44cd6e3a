"""The cost model: parts add up, folding changes nothing, the backward pass is simulated event by event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.kernels.roofline import RooflineCompute
from costmodel.layerwise.evaluate import (
    CHEAPEST,
    CostBatch,
    PlanBatch,
    evaluate,
    evaluate_on,
)
from costmodel.layerwise.plan import Plan, Split, Stage, split_table
from costmodel.layerwise.tables import CostTables
from costmodel.paleo.model import PaleoCompute
from costmodel.workload import Workload
from tests.costmodel.layerwise.evaluate_cases import CLUSTER, CONV, DEVICE, PARTS, SMALL, build, random_batch, workload


def written_out(tables: CostTables, batch: PlanBatch) -> list[Plan]:
    """The same plans as a user writes them."""
    names = tables.workload.collectives
    plans = []
    for rows, collectives in zip(batch.row, batch.collective, strict=True):
        splits = tuple(tables.table.split(int(rows[c])) for c in range(batch.row.shape[1]))
        chosen = tuple(None if collectives[c] == CHEAPEST else names[collectives[c]] for c in range(batch.row.shape[1]))
        plans.append(
            Plan(
                workers=splits[0].workers, num_micro_batches=tables.num_micro_batches, splits=splits, collectives=chosen
            )
        )
    return plans


def assert_same(a: CostBatch, b: CostBatch, rel: float = 1e-12) -> None:
    for name in CostBatch.__dataclass_fields__:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=rel, atol=0, err_msg=name)


@pytest.mark.parametrize("name", ["small", "alexnet", "nin"])
@pytest.mark.parametrize("m", [1, 4])
def test_parts_add_up_to_the_step(name: str, m: int) -> None:
    tables = CostTables(workload(name), CLUSTER, split_table([6]), m)
    costs = evaluate_on(tables, random_batch(tables, np.random.default_rng(1), 6, 200))
    assert np.all(np.isfinite(costs.step_time_s))
    parts = sum(getattr(costs, part) for part in PARTS)
    np.testing.assert_allclose(costs.step_time_s, parts, rtol=1e-12)
    np.testing.assert_allclose(
        costs.step_time_s, costs.compute_s + costs.update_s + costs.exposed_communication_s, rtol=1e-12
    )
    # What is exposed is part of what is exchanged, and at least the exchange of the first layer, which nothing can hide.
    assert np.all(costs.exposed_exchange_s <= costs.exchange_s * (1 + 1e-12))
    assert np.all(costs.memory_bytes > tables.workload.context_bytes)


def test_many_plans_cost_what_each_costs_alone_and_in_any_order() -> None:
    """Workers, micro-batches and pipelines mixed; one plan is a batch of length 1."""
    case = workload()
    rng = np.random.default_rng(2)
    plans: list[Plan] = []
    for workers, m in ((4, 1), (6, 2), (1, 3), (6, 1)):
        tables = CostTables(case, CLUSTER, split_table([workers]), m)
        plans += written_out(tables, random_batch(tables, rng, workers, 3))
    layers = len(SMALL.layers)
    plans.append(
        Plan(
            workers=3,
            num_micro_batches=2,
            splits=(Split(batch=2),) * 5 + (Split(),) * (layers - 5),
            collectives=(None,) * layers,
            stages=(Stage(first=0, last=4, replicas=2), Stage(first=5, last=layers - 1, replicas=1)),
        )
    )
    order = rng.permutation(len(plans))
    together = evaluate(case, CLUSTER, [plans[k] for k in order])
    alone = CostBatch.joined([evaluate(case, CLUSTER, [plans[k]]) for k in order])
    assert_same(together, alone, rel=0)


def test_illegal_plans_cost_infinity() -> None:
    case = workload()
    layers = len(SMALL.layers)
    for split in (Split(batch=13), Split(out_channels=13), Split(in_channels=13), Split(height=13)):
        plan = Plan(workers=13, num_micro_batches=4, splits=(split,) * layers, collectives=(None,) * layers)
        assert evaluate(case, CLUSTER, [plan]).step_time_s[0] == np.inf


def test_one_collective_for_all_is_each_collective_by_name() -> None:
    tables = CostTables(workload("alexnet"), CLUSTER, split_table([8]), 1)
    row = np.full((1, len(tables.layers)), tables.table.row_of(Split(batch=8)))
    times = []
    for index, name in enumerate(ALL_REDUCE_NAMES):
        cost = evaluate_on(tables, PlanBatch(row=row, collective=np.full_like(row, index)))
        plan = Plan(
            workers=8,
            num_micro_batches=1,
            splits=(Split(batch=8),) * len(tables.layers),
            collectives=(name,) * len(tables.layers),
        )
        assert_same(cost, evaluate(tables.workload, CLUSTER, [plan]), rel=1e-11)
        times.append(cost.exchange_s[0])
    cheapest = evaluate_on(tables, PlanBatch(row=row, collective=np.full_like(row, CHEAPEST)))
    assert cheapest.exchange_s[0] <= min(times) * (1 + 1e-12)


# -- the backward pass, event by event --------------------------------------------------------------------------------------


def simulate(hide: Sequence[float], exchange: Sequence[float]) -> float:
    """Clock of a worker that computes backwards layer by layer and hands each gradient to one serial channel.

    Returns how long after the last backward computation the channel falls silent. A layer without exchange hands over nothing.
    """
    clock, channel_free = 0.0, 0.0
    for h, x in zip(reversed(hide), reversed(exchange), strict=True):
        clock += h
        if x > 0:
            channel_free = max(channel_free, clock) + x
    return max(channel_free - clock, 0.0)


@pytest.mark.parametrize("name", ["small", "alexnet", "resnet50"])
@pytest.mark.parametrize("overlaps", [True, False])
def test_exposed_exchange_is_what_a_simulation_leaves(name: str, overlaps: bool) -> None:
    case = workload(name)
    assert isinstance(case.compute, RooflineCompute)
    case = replace(case, compute=replace(case.compute, overlaps_exchange=overlaps))
    tables = CostTables(case, CLUSTER, split_table([6]), 2)
    batch = random_batch(tables, np.random.default_rng(4), 6, 50)
    costs = evaluate_on(tables, batch)
    for n in range(len(batch)):
        hide, exchange = [], []
        for i, layer in enumerate(tables.layers):
            row, c = batch.row[n, i], batch.collective[n, i]
            # Only the last micro-batch has gradients to hide.
            hide.append(float(layer.backward_input_s[row] + layer.backward_weight_s[row]) if overlaps else 0.0)
            exchange.append(float(layer.exchange_s[:, row].min() if c == CHEAPEST else layer.exchange_s[c, row]))
        assert costs.exposed_exchange_s[n] == pytest.approx(simulate(hide, exchange), rel=1e-9, abs=1e-12)
        assert costs.exchange_s[n] == pytest.approx(sum(exchange), rel=1e-12)
        if not overlaps:
            assert costs.exposed_exchange_s[n] == pytest.approx(sum(exchange), rel=1e-12)


# --- The cost model obeys physics: better hardware is never slower, micro-batches never take less time or more memory than one ------------


MODELS = (
    "alexnet", "alexnet-cuda-convnet2", "alexnet-torchvision", "dcgan-discriminator", "dcgan-generator", "gnmt", "googlenet",
    "inception_v3", "mlp", "nin", "overfeat", "resnet50", "resnet152", "vgg-a", "vgg16",
)  # fmt: skip


def paleo(name: str, **changes: Any) -> Workload:
    base = workload(name, **changes)
    return replace(base, compute=PaleoCompute(device=DEVICE, ppp_comp=0.5, extensions=base.compute))


# -- physics ----------------------------------------------------------------------------------------------------------------


def test_one_worker_only_computes() -> None:
    for case in (workload("alexnet"), paleo("alexnet"), workload("gnmt"), workload("small", training=False)):
        layers = len(case.graph.layers)
        plan = Plan(workers=1, num_micro_batches=1, splits=(Split(),) * layers, collectives=(None,) * layers)
        cost = evaluate(case, CLUSTER, [plan])
        assert cost.reshard_s[0] == cost.exchange_s[0] == cost.exposed_exchange_s[0] == cost.bubble_s[0] == 0.0
        assert (cost.backward_s[0] == 0.0) == (not case.training)


def test_equal_layers_may_swap_their_splits() -> None:
    """Two equal branches between a fork and a join: exchanging what they do changes nothing."""
    twins = build(
        ("stem", "convolution", ("data",), CONV),
        ("a", "convolution", ("stem",), CONV),
        ("b", "convolution", ("stem",), CONV),
        ("join", "add", ("a", "b"), {}),
    )
    case = workload(graph=twins)
    tables = CostTables(case, CLUSTER, split_table([8]), 1)
    batch = random_batch(tables, np.random.default_rng(6), 8, 100)
    swap = [0, 1, 3, 2, 4]
    swapped = PlanBatch(row=batch.row[:, swap], collective=batch.collective[:, swap])
    a, b = evaluate_on(tables, batch), evaluate_on(tables, swapped)
    for field in ("forward_s", "backward_s", "update_s", "reshard_s", "exchange_s", "memory_bytes"):
        np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-12)


def test_column_then_row_moves_nothing_in_between() -> None:
    """Megatron's pair: output channels, then input channels; one gather before, one reduction after, nothing in the middle."""
    mlp = build(
        ("up", "linear", ("data",), {"out_features": 64, "activation": "relu"}),
        ("mid", "linear", ("up",), {"out_features": 256, "activation": "gelu"}),
        ("down", "linear", ("mid",), {"out_features": 64}),
    )
    case = workload(graph=mlp)
    layers = len(mlp.layers)

    def cost(*splits: Split) -> CostBatch:
        plan = Plan(workers=4, num_micro_batches=1, splits=(Split(batch=4), *splits), collectives=(None,) * layers)
        return evaluate(case, CLUSTER, [plan])

    columns, rows = Split(out_channels=4), Split(in_channels=4)
    pair = cost(columns, columns, rows)
    # Around mid: up's shares are gathered, and the partial sums of down are scattered; mid to down is free.
    tables = CostTables(case, CLUSTER, split_table([4]), 1)
    down = tables.layers[3]
    row = tables.table.row_of(rows)
    gather = next(e for e in tables.edges if e.consumer == 2)
    geometry = tables.geometry
    index = geometry.pair(
        0, geometry.layout_of[tables.table.row_of(columns)], geometry.need_of[0][tables.table.row_of(columns)]
    )
    expected = (
        gather.forward_s[index] + gather.backward_s[index] + down.inner_forward_s[row] + down.inner_backward_s[row]
    )
    assert pair.reshard_s[0] == pytest.approx(float(expected), rel=1e-12)
    assert pair.exchange_s[0] == 0.0
    assert pair.reshard_s[0] < cost(columns, columns, columns).reshard_s[0]


def test_a_producer_of_several_consumers_pays_every_move() -> None:
    """stem by batch: left needs channels, right needs channels, join follows the batch."""
    case = workload()
    tables = CostTables(case, CLUSTER, split_table([4]), 1)
    layers = len(SMALL.layers)
    base = [Split(batch=4)] * layers
    at = {layer.name: i for i, layer in enumerate(SMALL.layers)}

    def cost(**changes: Split) -> float:
        splits = list(base)
        for name, split in changes.items():
            splits[at[name]] = split
        plan = Plan(workers=4, num_micro_batches=1, splits=tuple(splits), collectives=(None,) * layers)
        return float(evaluate(case, CLUSTER, [plan]).reshard_s[0])

    columns = Split(out_channels=4)
    left, right = cost(left=columns), cost(right=columns)
    assert cost() == 0.0
    assert min(left, right) > 0.0
    assert cost(left=columns, right=columns) == pytest.approx(left + right, rel=1e-12)
    assert left == pytest.approx(right, rel=1e-12)
    assert len([e for e in tables.edges if e.producer == at["stem"]]) == 4


def _links(cluster: Cluster, bandwidth: float = 1.0, latency: float = 1.0) -> Cluster:
    levels = tuple(
        replace(
            level, bandwidth_bytes_per_s=bandwidth * level.bandwidth_bytes_per_s, latency_s=latency * level.latency_s
        )
        for level in cluster.levels
    )
    return replace(cluster, levels=levels)


_FASTER = {
    "bandwidth": (DEVICE, _links(CLUSTER, bandwidth=2.0)),
    "latency": (DEVICE, _links(CLUSTER, latency=0.5)),
    "peak": (replace(DEVICE, peak_flop_per_s={"fp32": 20e12}), CLUSTER),
    "memory bandwidth": (replace(DEVICE, memory_bandwidth_bytes_per_s=1e12), CLUSTER),
    "launches": (replace(DEVICE, launch_overhead_s=1e-6), CLUSTER),
}


@pytest.mark.parametrize("what", _FASTER)
@pytest.mark.parametrize("name", ["small", "alexnet", "nin"])
def test_better_hardware_is_never_slower(what: str, name: str) -> None:
    device, cluster = _FASTER[what]
    slow = CostTables(workload(name), CLUSTER, split_table([8, 12]), 2)
    fast = CostTables(workload(name, device=device), cluster, split_table([8, 12]), 2)
    rng = np.random.default_rng(7)
    for workers in (8, 12):
        batch = random_batch(slow, rng, workers, 200)
        a, b = evaluate_on(slow, batch), evaluate_on(fast, batch)
        assert np.all(b.step_time_s <= a.step_time_s * (1 + 1e-12))
        assert np.any(b.step_time_s < a.step_time_s)
        np.testing.assert_array_equal(a.memory_bytes, b.memory_bytes)


@pytest.mark.exact
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 4, 6, 8]), st.sampled_from([1, 2, 3]), st.booleans())
def test_random_plans_keep_the_rules(seed: int, workers: int, m: int, training: bool) -> None:
    case = workload(training=training)
    tables = CostTables(case, CLUSTER, split_table([workers]), m)
    costs = evaluate_on(tables, random_batch(tables, np.random.default_rng(seed), workers, 20))
    np.testing.assert_allclose(costs.step_time_s, sum(getattr(costs, part) for part in PARTS), rtol=1e-12)
    assert np.all(costs.step_time_s >= costs.compute_s)
    # No split computes faster than its even share of one worker's kernels without launch costs.
    ideal = replace(DEVICE, launch_overhead_s=0.0)
    free = workload(training=training, device=ideal)
    one = evaluate(
        free, CLUSTER, [Plan(workers=1, num_micro_batches=1, splits=(Split(),) * 12, collectives=(None,) * 12)]
    )
    assert np.all(costs.forward_s >= 0.99 * one.forward_s[0] / workers)


# -- the claim that the proof of the search rests on --------------------------------------------------------------------------


@pytest.mark.exact
@pytest.mark.parametrize("name", MODELS)
def test_more_micro_batches_never_take_less_time_or_more_memory_than_one(name: str) -> None:
    """For the same splits: each term of m micro-batches is at least that of one, and the hidden time no more.

    step = m (compute + moves) + update + lag, and the lag falls with what hides it; so it is enough that for every layer and
    split m f(B / m) >= f(B), that one backward pass of the smaller micro-batch is no longer, and that memory is no larger.
    """
    table = split_table([1, 2, 3, 4, 6, 8])
    for case in (workload(name), paleo(name)):
        one = CostTables(case, CLUSTER, table, 1)
        for m in (2, 3, 8, 48, 5):  # 5 does not divide the batch
            many = CostTables(case, CLUSTER, table, m)
            seen: set[int] = set()
            for a, b in zip(one.layers, many.layers, strict=True):
                if id(a) in seen:
                    continue
                seen.add(id(a))
                legal = b.legal
                assert np.all(a.legal[legal])
                for field in (
                    "forward_s",
                    "backward_input_s",
                    "backward_weight_s",
                    "inner_forward_s",
                    "inner_backward_s",
                ):
                    whole, part = getattr(a, field)[legal], getattr(b, field)[legal]
                    assert np.all(m * part >= whole * (1 - 1e-12)), field
                    assert np.all(part <= whole * (1 + 1e-12)), field
                assert np.all(b.activation_bytes[legal] <= a.activation_bytes[legal])
                for field in ("static_bytes", "exchange_s", "update_s"):
                    np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
            for x, y in zip(one.edges, many.edges, strict=True):
                assert np.all(m * (y.forward_s + y.backward_s) >= (x.forward_s + x.backward_s) * (1 - 1e-12))


@pytest.mark.parametrize("name", ["small", "alexnet", "gnmt"])
def test_whole_plans_in_micro_batches(name: str) -> None:
    case = workload(name)
    for workers in (4, 6):
        many = {m: CostTables(case, CLUSTER, split_table([workers]), m) for m in (1, 2, 4, 8)}
        batch = random_batch(many[8], np.random.default_rng(8), workers, 100)
        costs = {m: evaluate_on(tables, batch) for m, tables in many.items()}
        for m in (2, 4, 8):
            assert np.all(costs[m].step_time_s >= costs[1].step_time_s * (1 - 1e-12))
            assert np.all(costs[m].memory_bytes <= costs[1].memory_bytes)
