"""What a step waits for the network, by link: the waits are the cost model's, the links those that the groups span."""

from __future__ import annotations

import random

import pytest

from costmodel.hardware.cluster import link_level
from costmodel.layerwise.detail import layer_links
from costmodel.layerwise.plan import Plan
from costmodel.layerwise.splits import Split
from costmodel.mesh.detail import mesh_links
from costmodel.mesh.plan import MeshPlan
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import two_level_cluster

CLUSTER = two_level_cluster(per_node=4, inside=300e9, outside=25e9)


@pytest.mark.parametrize(
    ("group", "stride", "is_inside"), [(2, 1, True), (4, 1, True), (2, 2, True), (8, 1, False), (2, 4, False)]
)
def test_a_group_uses_the_outermost_level_that_it_spans(group: int, stride: int, is_inside: bool) -> None:
    level, rate = link_level(CLUSTER, group, stride)
    assert level.name == CLUSTER.levels[0 if is_inside else 1].name
    assert rate == pytest.approx(300e9 if is_inside else 25e9)


def test_tensor_ranks_stay_in_the_node_and_copies_do_not() -> None:
    model = make.model_of(make.gpt(blocks=4, tied=False), 8, CLUSTER)
    rows = {row.traffic: row for row in mesh_links(model, MeshPlan(tp=4, dp_replicate=4, num_micro_batches=2))}
    assert set(rows) == {"tensor parallel", "data parallel, copies"}
    assert (rows["tensor parallel"].group, rows["tensor parallel"].stride) == (4, 1)
    assert rows["tensor parallel"].level == CLUSTER.levels[0].name
    assert (rows["data parallel, copies"].group, rows["data parallel, copies"].stride) == (4, 4)
    assert rows["data parallel, copies"].level == CLUSTER.levels[1].name


@pytest.mark.exact
def test_waits_add_up_to_the_exposed_communication() -> None:
    rng = random.Random(7)
    for _ in range(40):
        model = make.model_of(make.network(rng), 12, make.cluster(rng), make.assumptions(rng))
        plan = make.random_plan(rng, make.shape_of(model))
        costs = model.evaluate_plans([plan])
        names = ("tp", "cp", "ep", "pp", "dp")
        waiting = sum(float(getattr(costs, f"{name}_exposed_s")[0]) for name in names)
        # Expert weights may have copies where the dense ones have none, and inner tensor parallelism of experts has no row.
        if plan.ep == plan.etp == 1 and not make.shape_of(model).experts:
            assert sum(row.waiting_s for row in mesh_links(model, plan)) == pytest.approx(waiting)


def test_layers_are_gathered_by_their_groups() -> None:
    splits = (Split(batch=8), Split(batch=8), Split(batch=2, out_channels=4))
    plan = Plan(workers=8, num_micro_batches=1, splits=splits, collectives=("ring",) * 3)
    rows = layer_links(CLUSTER, plan, {0: 0.1, 1: 0.2, 2: 0.4}, 0.5)
    found = {(row.traffic, row.group, row.stride): row.waiting_s for row in rows}
    assert found == pytest.approx(
        {("gradient exchange", 8, 1): 0.3, ("gradient exchange", 2, 4): 0.4, ("activations", 8, 1): 0.5}
    )
    assert {row.level for row in rows} == {
        CLUSTER.levels[1].name
    }  # pairs that are a node apart, and eight over two nodes
