"""The cost model: parts add up, folding changes nothing, the backward pass is simulated event by event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.kernels.roofline import RooflineCompute
from costmodel.layerwise.evaluate import (
    CHEAPEST,
    CostBatch,
    PlanBatch,
    evaluate,
    evaluate_on,
)
from costmodel.layerwise.plan import Plan, Stage
from costmodel.layerwise.splits import Split, split_table
from costmodel.layerwise.tables import CostTables
from tests.costmodel.layerwise.evaluate_cases import CLUSTER, PARTS, SMALL, random_batch, workload


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
