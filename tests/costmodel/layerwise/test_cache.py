"""Costs taken from what is known are those that would be costed again, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.kernels.roofline import RooflineCompute
from costmodel.layerwise import tables
from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.plan import Plan, Split, Stage, split_table
from costmodel.layerwise.tables import CostCache, CostTables, LayerCosts
from costmodel.uncertainty.constants import CONSTANTS, cluster_with
from costmodel.workload import Workload
from planner.files.loading import load_cluster
from planner.importers.networks import load_model
from tests.networks import roofline_workload

CLUSTER = load_cluster("dgx-h100").cluster


def workload(network: str, cluster: Cluster = CLUSTER, batch: int = 96) -> Workload:
    return roofline_workload(
        load_model(network).graph, cluster.device, batch, precision="bf16", collectives=ALL_REDUCE_NAMES
    )


ALEXNET = workload("alexnet")


def assert_same(left: tuple[LayerCosts, ...], right: tuple[LayerCosts, ...]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        for name in LayerCosts.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@pytest.fixture
def costings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every run over the layers of a network."""
    rows: list[int] = []
    whole = tables._Costing.all

    def counted(self: tables._Costing) -> tuple[LayerCosts, ...]:
        rows.append(len(self.zero))
        return whole(self)

    monkeypatch.setattr(tables._Costing, "all", counted)
    return rows


@pytest.mark.parametrize(
    "network", ["alexnet", "inception_v3", "gnmt", "dcgan-generator", "vit-l", "mixtral-8x7b", "t5-11b"]
)
def test_micro_batches_together_cost_what_each_costs_alone(network: str) -> None:
    case, table, numbers = workload(network), split_table([1, 2, 6, 8]), [1, 2, 5, 48]
    cache = CostCache(case, CLUSTER)
    cache.prepare(table, numbers)
    for m in numbers:
        assert_same(cache.tables(table, m).layers, CostTables(case, CLUSTER, table, m).layers)


def test_several_micro_batches_are_one_run(costings: list[int]) -> None:
    cache, table = CostCache(ALEXNET, CLUSTER), split_table([1, 2, 4])
    cache.prepare(table, [1, 2, 4, 8])
    for m in (1, 2, 4, 8):
        assert cache.tables(table, m).layers
    assert costings == [4 * len(table.workers)]


def test_no_more_rows_at_once_than_allowed(costings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    table = split_table([4])
    monkeypatch.setattr(tables, "_ROWS_AT_ONCE", 2 * len(table.workers))
    CostCache(ALEXNET, CLUSTER).prepare(table, [1, 2, 3, 4, 6])
    assert costings == [2 * len(table.workers)] * 2 + [len(table.workers)]


def test_a_part_is_taken_from_a_larger_table(costings: list[int]) -> None:
    cache = CostCache(ALEXNET, CLUSTER)
    assert cache.tables(split_table([1, 2, 8]), 2).layers
    part = cache.tables(split_table([8], batch_only=True), 2)
    assert_same(part.layers, CostTables(ALEXNET, CLUSTER, split_table([8], batch_only=True), 2).layers)
    assert len(costings) == 2  # the first one and the independent one
    other = cache.tables(split_table([4]), 2)
    assert_same(other.layers, CostTables(ALEXNET, CLUSTER, split_table([4]), 2).layers)


def test_equal_layers_stay_shared_in_a_part() -> None:
    case = workload("resnet50")
    tables = CostTables(case, CLUSTER, split_table([2, 4]), 1)
    part = tables.part(split_table([4]))
    assert len({id(costs) for costs in part.layers}) == len({id(costs) for costs in tables.layers}) < len(part.layers)


def test_what_finds_no_room_is_costed_again(costings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_KEPT_BYTES", 0.0)
    cache, table = CostCache(ALEXNET, CLUSTER), split_table([2])
    assert cache.tables(table, 1).layers
    assert cache.tables(table, 1).layers
    assert len(costings) == 2


def changed_question(constant: str, factor: float) -> tuple[Workload, Cluster]:
    cluster = cluster_with(CLUSTER, {constant: factor})
    assert isinstance(ALEXNET.compute, RooflineCompute)
    return replace(ALEXNET, compute=replace(ALEXNET.compute, device=cluster.device)), cluster


PLANS = [
    Plan(workers=16, num_micro_batches=1, splits=(Split(batch=16),) * 15, collectives=(None,) * 15),
    Plan(workers=4, num_micro_batches=2, splits=(Split(batch=2, height=2),) * 15, collectives=("ring",) * 15),
    Plan(workers=4, num_micro_batches=2, splits=(Split(out_channels=2, in_channels=2),) * 15, collectives=(None,) * 15),
    Plan(
        workers=3,
        num_micro_batches=4,
        splits=(Split(batch=2),) * 7 + (Split(),) * 8,
        collectives=(None,) * 15,
        stages=(Stage(first=0, last=6, replicas=2), Stage(first=7, last=14, replicas=1)),
    ),
]


@pytest.mark.parametrize("constant", list(CONSTANTS))
def test_a_changed_constant_costs_what_it_costs_from_scratch(constant: str, costings: list[int]) -> None:
    cache = CostCache(ALEXNET, CLUSTER)
    before = evaluate(ALEXNET, CLUSTER, PLANS, cache)
    runs = len(costings)
    case, cluster = changed_question(constant, 0.5)
    after = evaluate(case, cluster, PLANS, cache.changed(case, cluster))
    assert len(costings) == runs  # nothing is costed whole a second time
    scratch = evaluate(case, cluster, PLANS)
    for name in after.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(after, name), getattr(scratch, name), err_msg=name)
    # The known costs are not touched.
    again = evaluate(ALEXNET, CLUSTER, PLANS, cache)
    np.testing.assert_array_equal(again.step_time_s, before.step_time_s)


def test_links_leave_compute_and_the_device_leaves_links_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CostCache(ALEXNET, CLUSTER)
    evaluate(ALEXNET, CLUSTER, PLANS, cache)
    calls: list[str] = []
    compute, links = tables._Costing._compute_times, tables._Costing._inner_times
    monkeypatch.setattr(
        tables._Costing, "_compute_times", lambda self, kind: (calls.append("compute"), compute(self, kind))[1]
    )
    monkeypatch.setattr(
        tables._Costing, "_inner_times", lambda self, kind: (calls.append("links"), links(self, kind))[1]
    )
    for constant, only in (("matmul_rate", "compute"), ("link_latency", "links")):
        calls.clear()
        case, cluster = changed_question(constant, 2.0)
        evaluate(case, cluster, PLANS, cache.changed(case, cluster))
        assert set(calls) == {only}


def test_known_costs_of_another_question_are_refused() -> None:
    other = workload("alexnet", batch=48)
    with pytest.raises(AssertionError, match="another question"):
        evaluate(other, CLUSTER, PLANS[:1], CostCache(ALEXNET, CLUSTER))
