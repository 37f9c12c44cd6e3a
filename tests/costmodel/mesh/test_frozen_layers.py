"""Frozen lower layers: no backward pass and nothing kept below the first layer that is trained; against plain loops and by hand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from costmodel.mesh.detail import model_flops_per_step, stage_rows
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import RowKeys, fold
from costmodel.mesh.plan import LayerSplit, MeshBatch, MeshPlan
from costmodel.mesh.tensor_parallel import roles_of, shard_of
from costmodel.mesh.tracks import mesh_tracks
from costmodel.network.graph import Graph
from costmodel.network.layers import Layer
from costmodel.schedules import SCHEDULES
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder, workload_of

BLOCKS, B, S, H, V = 6, 2, 32, 64, 512
SBH = S * B * H


def changed(graph: Graph, *, frozen: Callable[[Layer], bool], adapted: str = "") -> Graph:
    """The same network with some layers frozen, and one with an adapter."""
    layers = (replace(one, frozen=frozen(one), lora_rank=4 if one.name == adapted else 0) for one in graph.layers)
    return replace(graph, layers=tuple(layers))


def below(count: int) -> Callable[[Layer], bool]:
    """The embedding and the first blocks."""
    names = {f"blocks.{n}" for n in range(count)}
    return lambda layer: layer.block in names or layer.name == "embedding"


def network(count: int, **shape: object) -> Graph:
    """A GPT whose embedding and first blocks are frozen."""
    graph = make.gpt(blocks=BLOCKS, features=H, heads=4, positions=S, vocabulary=V, fused=True, tied=False, **shape)  # type: ignore[arg-type]
    return changed(graph, frozen=below(count))


def model_of(graph: Graph, batch: int = 8) -> MeshModel:
    return make.model_of(graph, batch, make.ideal_cluster())


def looped_s(model: MeshModel) -> tuple[float, float]:
    """Forward and backward of one sample on one device, layer by layer of the whole graph: what is not reached costs nothing."""
    graph, one = model.workload.graph, np.ones(1, dtype=np.int64)
    keys = RowKeys(tp=one, sequence_parallel=0 * one, cp=one, ep=one, etp=one, micro_batch=one, place=0 * one)
    reached: dict[str, bool] = {}
    forward = backward = 0.0
    places = {i: (kind, p) for kind in model.modules.kinds for p, i in enumerate(kind.layers)}
    for layer in graph.layers:
        arrives = any(reached[name] for name in layer.inputs)
        reached[layer.name] = arrives or layer.has_weights
        if layer.kind == "input":
            continue
        like = next(i for i in places if graph.layers[i].name == _first(graph, layer, places))
        kind, position = places[like]
        shard = shard_of(graph.layers, kind, position, roles_of(graph, kind)[position], keys)
        times = model.workload.compute.pass_times(layer, shard, needs_input_gradient=arrives)
        forward += float(times.forward_s[0])
        backward += float(times.backward_s[0]) if reached[layer.name] else 0.0
    return forward, backward


def _first(graph: Graph, layer: Layer, places: dict[int, object]) -> str:
    """A layer that is costed and has the same place in its block."""
    if not layer.block:
        return layer.name
    end = layer.name.removeprefix(layer.block)
    return next(graph.layers[i].name for i in places if graph.layers[i].block and graph.layers[i].name.endswith(end))


@pytest.mark.parametrize("count", [0, 1, 3, BLOCKS])
def test_the_backward_pass_ends_at_the_first_trained_layer(count: int) -> None:
    model = model_of(network(count))
    # Sums of wider gradients are no layer's.
    model = replace(model, groups=replace(model.groups, assumptions=replace(make.BARE, main_gradient_bytes=0.0)))
    forward, backward = looped_s(model)
    found = model.evaluate_plans([MeshPlan(num_micro_batches=8)])
    assert float(found.compute_s[0]) == pytest.approx(8 * (forward + backward), rel=1e-12)


def test_blocks_fold_by_the_gradient_that_flows_through_them() -> None:
    """Frozen ones, the first that is trained (whose first norm needs no gradient of its input), and the rest."""
    assert fold(network(3)).blocks == (1, 1, 1, 2, 3, 3)
    assert fold(network(BLOCKS)).blocks == (1,) * BLOCKS
    assert fold(network(0)).blocks == (1, 2, 2, 2, 2, 2)  # the embedding alone is frozen
    assert len(set(fold(make.gpt(blocks=BLOCKS)).blocks)) == 1


def test_frozen_blocks_have_no_backward_pass_and_keep_nothing() -> None:
    """Only norm and head are trained: 2 bytes of the norm's input and output, and nothing of 6 blocks."""
    found = model_of(network(BLOCKS)).evaluate_plans([MeshPlan(micro_batch=B, num_micro_batches=4)])
    assert float(found.activation_bytes[0]) == 2 * 2 * SBH
    # The gradient under way is of nothing in a block.
    assert float(found.working_bytes[0]) == 0.0
    graph = network(BLOCKS)
    head = 2 * 2 * V * H * S  # forward, and the gradients of weights and input
    whole = model_flops_per_step(workload_of(graph, make.ideal_cluster(), 8)) / 8
    body = model_flops_per_step(replace(workload_of(graph, make.ideal_cluster(), 8), training=False)) / 8
    assert whole - body == head


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_activations_of_partly_frozen_stacks_are_those_of_the_trained_blocks(recompute: str) -> None:
    """Each trained block keeps as much as in a network that is trained whole; frozen ones nothing, whatever is recomputed."""

    def kept(count: int) -> float:
        plan = MeshPlan(micro_batch=B, num_micro_batches=4, recompute=recompute)
        plan = replace(plan, recompute_blocks=BLOCKS if recompute == "full" else 0)
        return float(model_of(network(count)).evaluate_plans([plan]).activation_bytes[0])

    none, some, all_of_them = kept(BLOCKS), kept(3), kept(0)
    assert all_of_them > some > none
    assert some - none == pytest.approx((all_of_them - none) / 2, rel=1e-12)


def test_nothing_frozen_is_run_again() -> None:
    plain, full = (
        MeshPlan(num_micro_batches=8, recompute=r, recompute_blocks=n) for r, n in (("none", 0), ("full", 6))
    )
    costs = model_of(network(3)).evaluate_plans([plain, full])
    trained = model_of(network(0)).evaluate_plans([plain, full])
    assert costs.recompute_s[0] == 0.0
    assert float(costs.recompute_s[1]) == pytest.approx(float(trained.recompute_s[1]) / 2, rel=1e-12)


def test_a_stage_below_the_first_trained_layer_receives_and_keeps_nothing() -> None:
    model = model_of(network(3))
    plan = MeshPlan(pp=2, schedule="1f1b", num_micro_batches=8, stage_blocks=(3, 3))
    first, second = stage_rows(model, plan)
    assert (first.backward_s, first.activation_bytes) == (0.0, 0.0)
    assert second.backward_s > 0
    assert second.activation_bytes > 0
    # The second stage receives activations, the first no gradients.
    assert first.transfer_s == 0.0
    assert second.transfer_s == pytest.approx(S * H * 2 / 1e9, rel=1e-12)


def test_sharded_frozen_weights_are_gathered_once() -> None:
    """ZeRO-3 over 2 ranks and ring all-gather of half the weights; the trained half is gathered again, and its gradients scattered."""
    model = model_of(network(BLOCKS))
    table = model.rows(MeshBatch.from_plans([MeshPlan()]))
    count = np.bincount(model.modules.kind_of) * table.dense_count[0]
    trained = table.dense_trainable[0]
    plan = MeshPlan(dp_shard=2, zero_stage=3, num_micro_batches=4)
    found = float(model.evaluate_plans([plan]).dp_exposed_s[0])
    gathered, again, scattered = 2 * count.sum(), 2 * count[trained > 0].sum(), 4 * trained.sum()
    assert found == pytest.approx(4 * (gathered + again + scattered) / 2 / 1e9, rel=1e-12)


def test_an_adapter_lets_the_gradient_through_all_that_follows() -> None:
    graph = make.gpt(blocks=BLOCKS, features=H, heads=4, positions=S, vocabulary=V, fused=True, tied=False)
    low = changed(graph, frozen=lambda _: True, adapted="blocks.1.qkv")
    assert [fold(low).blocks[n] == fold(low).blocks[2] for n in range(BLOCKS)] == [False, False, True, True, True, True]
    model = model_of(low)
    table = model.rows(MeshBatch.from_plans([MeshPlan()]))
    assert [bool(table.backward_s[0, kind] > 0) for kind in model.modules.blocks] == [
        False,
        True,
        True,
        True,
        True,
        True,
    ]
    assert [bool(table.dense_trainable[0, kind] > 0) for kind in model.modules.blocks] == [False, True, *[False] * 4]
    first = changed(graph, frozen=lambda _: True, adapted="blocks.0.qkv")
    table = model_of(first).rows(MeshBatch.from_plans([MeshPlan()]))
    assert np.all(table.backward_s[0, 1:] > 0)


@pytest.mark.exact
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_traces_of_partly_frozen_networks_end_with_the_step(schedule: str) -> None:
    rng = random.Random(f"frozen {schedule}")
    errors = []
    for _ in range(12):
        count = rng.choice([1, 2, 4, 6])
        graph = changed(make.network(rng, blocks=6), frozen=below(count))
        model = make.model_of(graph, 12, make.cluster(rng), make.assumptions(rng))
        plan = make.random_plan(rng, make.shape_of(model), schedule=schedule, offload=False)
        if plan.zero_stage == 3:  # copies of shards have a bound of their own
            plan = replace(plan, dp_replicate=1, num_micro_batches=plan.num_micro_batches * plan.dp_replicate)
        plan = make.uneven(rng, plan, model.num_blocks)
        costs = model.evaluate_plans([plan])
        errors.append(mesh_tracks(model, plan, inside=False).end_s / float(costs.step_time_s[0]) - 1.0)
        assert float(costs.bubble_s[0]) >= -1e-12
    assert max(errors) < 0.01
    assert np.median(np.abs(errors)) < 1e-9


@pytest.mark.exact
def test_freezing_more_never_costs_more() -> None:
    rng = random.Random(7)
    for _ in range(25):
        graph, cluster = make.network(rng, blocks=6), make.cluster(rng)
        models = [make.model_of(changed(graph, frozen=below(n)), 12, cluster) for n in (0, 2, 4, 6)]
        plan = make.random_plan(rng, make.shape_of(models[0]))
        blocks = models[0].blocks_of(plan.pp * plan.vpp)
        costs = [one.evaluate_plans([replace(plan, stage_blocks=blocks)]) for one in models]
        times = [float(one.step_time_s[0]) for one in costs]
        memory = [float(one.memory_bytes[0]) for one in costs]
        rounding = 1e-14 * times[0]  # sums of the same terms in another order
        assert all(more <= less + rounding for less, more in itertools.pairwise(times)), plan
        assert memory == sorted(memory, reverse=True), plan


def test_frozen_mixtures_send_no_gradients() -> None:
    """Tokens travel to their experts and back once, where nothing below is trained."""
    graph = changed(decoder(blocks=4, experts=4), frozen=below(4))
    trained = decoder(blocks=4, experts=4)
    plan = MeshPlan(ep=2, dp_replicate=2, num_micro_batches=4)
    frozen_s, trained_s = (float(model_of(g).evaluate_plans([plan]).ep_exposed_s[0]) for g in (graph, trained))
    assert frozen_s == pytest.approx(trained_s / 2, rel=1e-12)


# --- Adapters under tensor parallelism: rank x inputs and rank x outputs, each split with the side of the matrix that it faces ------------


R, FEATURES, FFN = 4, 64, 128
# Outputs and inputs of the matrices of a block: queries with 4 heads and 2 + 2 of keys and values, gate and up together.
MATRICES = {
    "qkv": (128, FEATURES, "column"),
    "proj": (FEATURES, FEATURES, "row"),
    "up": (2 * FFN, FEATURES, "column"),
    "down": (FEATURES, FFN, "row"),
}


def adapted(*names: str) -> Graph:
    """Everything frozen but adapters of rank 4."""
    graph = decoder(blocks=2, features=FEATURES, heads=4, kv_heads=2, ffn=FFN)
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
        expected = R * FEATURES + R * (16 + 2 * 16)
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
    for name, whole in (("up", R * FEATURES), ("down", R * FEATURES)):
        model = make.model_of(adapted(name), 4, make.ideal_cluster())
        found = float(model.evaluate_plans([plan]).dp_exposed_s[0])
        assert found == pytest.approx(2 * whole * 4 / 1e9, rel=1e-12)


def test_adapters_of_one_rank_need_no_exchange() -> None:
    model = make.model_of(adapted("up"), 4, make.ideal_cluster())
    assert float(model.evaluate_plans([MeshPlan(num_micro_batches=4)]).dp_exposed_s[0]) == 0.0
