"""Adapters under tensor parallelism: rank x inputs and rank x outputs, each split with the side of the matrix that it faces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.mesh.plan import LayerSplit, MeshPlan
from costmodel.network.graph import Graph
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

R, H, FFN = 4, 64, 128
# Outputs and inputs of the matrices of a block: queries with 4 heads and 2 + 2 of keys and values, gate and up together.
MATRICES = {"qkv": (128, H, "column"), "proj": (H, H, "row"), "up": (2 * FFN, H, "column"), "down": (H, FFN, "row")}


def adapted(*names: str) -> Graph:
    """Everything frozen but adapters of rank 4."""
    graph = decoder(blocks=2, features=H, heads=4, kv_heads=2, ffn=FFN)
    return replace(
        graph,
        layers=tuple(
            replace(layer, frozen=True, lora_rank=R if layer.name.split(".")[-1] in names else 0)
            for layer in graph.layers
        ),
    )


def trainable(graph: Graph, plan: MeshPlan) -> float:
    """Weights of a rank that are trained, by the bytes of their gradients (4 each)."""
    model = make.model_of(graph, 4, make.ideal_cluster())
    return float(model.evaluate_plans([plan]).gradient_bytes[0]) / 4


def share(name: str, role: str, degree: int) -> float:
    """By hand: the product X A B with A inputs x r and B r x outputs."""
    outputs, inputs, _ = MATRICES[name]
    if role == "column":
        return R * inputs + R * outputs / degree
    return R * inputs / degree + R * outputs if role == "row" else R * (inputs + outputs)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", list(MATRICES))
def test_the_factor_that_faces_the_split_side_is_split(name: str, tp: int) -> None:
    role = MATRICES[name][2]
    expected = share(name, role, tp)
    if name == "qkv" and tp == 4:  # 2 heads of keys and values: every rank holds one of 16 features, of each
        expected = R * H + R * (16 + 2 * 16)
    assert trainable(adapted(name), MeshPlan(tp=tp, num_micro_batches=4)) == 2 * expected


@pytest.mark.parametrize(("role", "degree"), [("column", 2), ("column", 4), ("row", 2), ("row", 4), ("whole", 1)])
def test_splits_of_single_layers_split_adapters_too(role: str, degree: int) -> None:
    names, splits = ("up", "down"), []
    for block in ("blocks.0", "blocks.1"):  # no gradient leaves the first one, so the two are of different kinds
        splits += [LayerSplit(layer=f"{block}.{name}", role=role, degree=degree) for name in names]
        splits.append(LayerSplit(layer=f"{block}.glu", role="whole", degree=1))
    plan = MeshPlan(tp=4, num_micro_batches=4, block_splits=tuple(splits))
    assert trainable(adapted(*names), plan) == 2 * sum(share(name, role, degree) for name in names)


def test_the_standard_split_by_name_is_the_standard_split() -> None:
    graph, plan = adapted(*MATRICES), MeshPlan(tp=2, num_micro_batches=4)
    named = tuple(
        LayerSplit(layer=f"blocks.{block}.{name}", role=role, degree=2)
        for block in (0, 1)
        for name, (_, _, role) in MATRICES.items()
    )
    model = make.model_of(graph, 4, make.ideal_cluster())
    both = model.evaluate_plans([plan, replace(plan, block_splits=named)])
    assert both.memory_bytes[0] == both.memory_bytes[1]
    assert both.step_time_s[0] == pytest.approx(both.step_time_s[1], rel=1e-12)


def test_gradients_of_the_whole_factor_are_added_up_over_the_ranks() -> None:
    """Ring of 2 ranks: r x inputs of a matrix by columns, r x outputs of one by rows, 4 bytes each, once per step."""
    plan = MeshPlan(tp=2, num_micro_batches=4)
    for name, whole in (("up", R * H), ("down", R * H)):
        model = make.model_of(adapted(name), 4, make.ideal_cluster())
        found = float(model.evaluate_plans([plan]).dp_exposed_s[0])
        assert found == pytest.approx(2 * whole * 4 / 1e9, rel=1e-12)


def test_adapters_of_one_rank_need_no_exchange() -> None:
    model = make.model_of(adapted("up"), 4, make.ideal_cluster())
    assert float(model.evaluate_plans([MeshPlan(num_micro_batches=4)]).dp_exposed_s[0]) == 0.0
