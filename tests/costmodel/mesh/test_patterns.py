"""Splits that a plan names itself: the standard one named is the standard one, others by hand, by the timeline and by what is refused."""

from __future__ import annotations

import itertools
import random
from dataclasses import fields, replace

import numpy as np
import pytest

from costmodel.mesh.detail import layer_rows
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import MeshError
from costmodel.mesh.plan import LayerSplit, MeshBatch, MeshPlan
from costmodel.mesh.tensor_parallel import WHOLE, Layout, Transfer, split_options, standard_splits, transfers
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.spaces.mesh.space import mesh_space
from tests.costmodel.mesh import plans as make
from tests.costmodel.mesh.test_mesh_timeline import Chunks
from tests.strategies.mesh.networks import decoder, two_level_cluster, workload_of

MODELS = ["llama3-8b", "gpt2-1.5b", "gpt3-1.3b", "deepseek-v3", "t5-11b", "mixtral-8x7b", "bert-large", "vit-l"]


def whole_pattern(model: MeshModel, tp: int) -> tuple[LayerSplit, ...]:
    graph = model.workload.graph
    return tuple(split for kind in model.modules.kinds for split in standard_splits(graph, kind, tp))


def random_pattern(model: MeshModel, tp: int, rng: random.Random) -> tuple[LayerSplit, ...]:
    """Any legal pattern of all layers that have one."""
    graph = model.workload.graph
    return tuple(
        rng.choice(split_options(graph, kind, position, tp))
        for kind in model.modules.kinds
        for position, index in enumerate(kind.layers)
        if graph.layers[index].kind not in ("moe", "input")
    )


def small(**values: int) -> MeshModel:
    cluster = two_level_cluster()
    graph = decoder(**{"blocks": 4, "features": 64, "heads": 8, "kv_heads": 4, **values})
    return MeshModel.build(workload_of(graph, cluster, 16), cluster, make.BARE)


@pytest.mark.parametrize("name", MODELS)
def test_the_standard_pattern_named_is_the_standard_pattern(name: str) -> None:
    """Every figure, by another way to write the collectives down."""
    space = mesh_space(resolve(Request(model=name, gpus=64, batch=64)))
    checked = 0
    for tp in (2, 4, 5, 8, 16):
        for sequence_parallel in (False, True):
            for pp, cp, zero in ((1, 1, 0), (2, 1, 1), (1, 2, 3)):
                plan = MeshPlan(
                    tp=tp,
                    sequence_parallel=sequence_parallel,
                    pp=pp,
                    cp=cp,
                    dp_replicate=1 if zero else 2,
                    dp_shard=2 if zero else 1,
                    zero_stage=zero,
                    micro_batch=2,
                    num_micro_batches=16,
                    recompute="selective" if pp == 2 else "none",
                )
                if space.broken(plan):
                    continue
                named = replace(plan, block_splits=whole_pattern(space.model, tp))
                costs = space.model.evaluate_plans([plan, named])
                for item in fields(costs):
                    one, other = getattr(costs, item.name).tolist()
                    assert other == pytest.approx(one, rel=1e-12, abs=0.0), (item.name, plan)
                checked += 1
    assert checked >= 3


def test_patterns_do_not_mix() -> None:
    """Plans are costed alike alone, together, and after others that differ in nothing but the pattern."""
    model, rng = small(), random.Random(5)
    plans = [
        MeshPlan(tp=4, dp_replicate=2, micro_batch=1, num_micro_batches=8, block_splits=pattern)
        for pattern in ((), *(random_pattern(model, 4, rng) for _ in range(12)))
    ]
    together = model.evaluate_plans(plans).step_time_s
    alone = [float(small().evaluate_plans([plan]).step_time_s[0]) for plan in plans]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)
    assert len({round(t, 12) for t in alone}) > 6
    batch = MeshBatch.from_plans(plans)
    assert [batch.plan(n) for n in range(len(plans))] == plans
    some = batch.take(np.array([3, 0]))
    assert [some.plan(0), some.plan(1)] == [plans[3], plans[0]]
    assert model.evaluate(batch).step_time_s.tolist() == pytest.approx(alone, rel=1e-12)


@pytest.mark.exact
def test_the_timeline_agrees() -> None:
    """Random patterns in random pipelines: events give the same step as the closed form."""
    model, rng = small(blocks=8), random.Random(7)
    for n in range(60):
        tp = rng.choice((2, 4))
        plan = MeshPlan(
            tp=tp,
            sequence_parallel=rng.random() < 0.5,
            pp=rng.choice((2, 4)),
            schedule=rng.choice(("gpipe", "1f1b", "zero_bubble")),
            micro_batch=2,
            num_micro_batches=8,
            recompute=("none", "selective", "full")[n % 3],
            recompute_blocks=int(n % 3 == 2),
            block_splits=random_pattern(model, tp, rng),
        )
        costs = model.evaluate_plans([plan])
        left = sum(float(getattr(costs, name)[0]) for name in ("dp_exposed_s", "optimizer_s", "offload_s"))
        simulated = Chunks(model, plan).timeline().makespan_s
        assert float(costs.step_time_s[0]) - left == pytest.approx(simulated, rel=1e-2), plan


def _one(
    model: MeshModel, *splits: tuple[str, str, int], sequence_parallel: bool = False, tp: int = 4
) -> dict[str, float]:
    """Unit costs of the first block."""
    named = tuple(LayerSplit(layer=f"blocks.0.{name}", role=role, degree=degree) for name, role, degree in splits)
    plan = MeshPlan(tp=tp, sequence_parallel=sequence_parallel, micro_batch=1, num_micro_batches=16, block_splits=named)
    model.evaluate_plans([plan])
    table = model.rows(MeshBatch.from_plans([plan]))
    return {item.name: float(getattr(table, item.name)[0, 1]) for item in fields(table)}


def test_by_hand() -> None:
    """Weights, collectives and messages of a block of 64 features, 8 heads of 8 and 4 key and value heads, 16 positions."""
    model = small()
    norms, matrices = 2 * 64, {"qkv": 64 * 128, "proj": 64 * 64, "up": 64 * 256, "down": 128 * 64}
    standard = _one(model)
    assert standard["dense_count"] == norms + sum(matrices.values()) / 4
    # Everything on every rank: no collective at all.
    everything = [(name, "whole", 1) for name in (*matrices, "glu")]
    none = _one(model, *everything, ("attention", "repeated", 1))
    assert none["dense_count"] == norms + sum(matrices.values())
    assert none["tp_forward_s"] == none["tp_backward_s"] == none["apart_trainable"] == 0.0
    # Two shares instead of four: half the weights, groups of two.
    two = _one(model, ("up", "column", 2), ("glu", "channel", 2), ("down", "row", 2))
    assert (
        two["dense_count"] == norms + (matrices["qkv"] + matrices["proj"]) / 4 + (matrices["up"] + matrices["down"]) / 2
    )
    groups = model.groups
    size = np.array([16 * 64 * 2.0])  # bytes of the tensor between the layers, bf16

    def reduce_s(ranks: int) -> float:
        return float(groups.time_s("all_reduce", groups.find(np.array([ranks]), np.array([1]), np.array([0])), size)[0])

    assert standard["tp_forward_s"] == pytest.approx(2 * reduce_s(4), rel=1e-12)
    assert two["tp_forward_s"] == pytest.approx(reduce_s(4) + reduce_s(2), rel=1e-12)
    assert two["tp_backward_s"] == pytest.approx(reduce_s(4) + reduce_s(2), rel=1e-12)


def test_whole_matrices_under_sequence_parallelism_by_hand() -> None:
    """Attention alone is split: its input and output change places by all-to-all, gradients of the matrices are added up."""
    model = small()
    splits = [(name, "whole", 1) for name in ("qkv", "proj", "up", "glu", "down")]
    costs, groups = _one(model, *splits, sequence_parallel=True), model.groups
    assert costs["apart_trainable"] == 64 * 128 + 64 * 64 + 64 * 256 + 128 * 64
    assert costs["dense_count"] == costs["apart_trainable"] + 2 * 64
    four = groups.find(np.array([4]), np.array([1]), np.array([0]))

    def trade_s(features: int) -> float:
        return float(groups.time_s("all_to_all", four, np.array([16 * features * 2.0 / 4]))[0])

    assert costs["tp_forward_s"] == pytest.approx(trade_s(128) + trade_s(64), rel=1e-12)
    assert costs["tp_backward_s"] == pytest.approx(trade_s(128) + trade_s(64), rel=1e-12)
    plan = MeshPlan(tp=4, sequence_parallel=True, micro_batch=1, num_micro_batches=16)
    named = tuple(LayerSplit(layer=f"blocks.0.{name}", role=role, degree=degree) for name, role, degree in splits)
    left = model.evaluate_plans([replace(plan, block_splits=named)])
    summed = groups.time_s("all_reduce", four, np.array([4 * 4.0 * costs["apart_trainable"]]))
    assert float(left.dp_exposed_s[0]) == pytest.approx(float(summed[0]), rel=1e-9)


def test_repeated_key_and_value_heads_travel() -> None:
    """Two key and value heads for four ranks: what is traded for heads holds them twice."""
    model = small(kv_heads=2)
    splits = [(name, "whole", 1) for name in ("qkv", "proj", "up", "glu", "down")]
    costs, groups = _one(model, *splits, sequence_parallel=True), model.groups
    four = groups.find(np.array([4]), np.array([1]), np.array([0]))
    sent = sum(
        float(groups.time_s("all_to_all", four, np.array([16 * features * 2.0 / 4]))[0]) for features in (16 * 8, 64)
    )
    assert costs["tp_forward_s"] == pytest.approx(sent, rel=1e-12)


def test_rows_of_layers_add_up_to_the_unit() -> None:
    model, rng = small(), random.Random(3)
    for _ in range(10):
        plan = MeshPlan(
            tp=4,
            sequence_parallel=True,
            micro_batch=1,
            num_micro_batches=16,
            block_splits=random_pattern(model, 4, rng),
        )
        table = model.rows(MeshBatch.from_plans([plan]))
        rows = [row for row in layer_rows(model, plan) if row.unit == "blocks.0"]
        exchanged = float(table.tp_forward_s[0, 1] + table.tp_backward_s[0, 1])
        assert sum(row.tp_exchange_s for row in rows) == pytest.approx(exchanged, rel=1e-12)
        assert sum(row.weights_per_rank for row in rows) == float(table.dense_count[0, 1])
        chosen = {split.layer: split for split in plan.block_splits}
        for row in rows:
            assert (row.split, row.degree) == (
                chosen[f"blocks.0.{row.name}"].role,
                chosen[f"blocks.0.{row.name}"].degree,
            )


@pytest.mark.parametrize(
    ("tp", "splits", "words"),
    [
        (1, [("blocks.0.qkv", "column", 1)], ["tp > 1"]),
        (4, [("blocks.0.qvk", "column", 4)], ["'blocks.0.qvk'", "did you mean 'blocks.0.qkv'"]),
        (4, [("blocks.1.qkv", "column", 4)], ["'blocks.1.qkv'", "name the layer of the first"]),
        (4, [("blocks.0.qkv", "column", 3)], ["'blocks.0.qkv'", "column 3", "allowed: column 2, 4"]),
        (4, [("blocks.0.norm1", "channel", 4)], ["'blocks.0.norm1'", "allowed: whole 1"]),
        (4, [("blocks.0.attention", "row", 4)], ["'blocks.0.attention'", "channel 2, 4", "repeated 1"]),
        (4, [("tokens", "whole", 1)], ["'tokens'", "not split by tp"]),
        (4, [("blocks.0.up", "row", 4), ("blocks.0.up", "row", 2)], ["'blocks.0.up'", "more than once"]),
    ],
)
def test_what_cannot_be_run_is_refused(tp: int, splits: list[tuple[str, str, int]], words: list[str]) -> None:
    named = tuple(LayerSplit(layer=name, role=role, degree=degree) for name, role, degree in splits)
    with pytest.raises(MeshError) as caught:
        small().evaluate_plans([MeshPlan(tp=tp, num_micro_batches=16, block_splits=named)])
    for word in words:
        assert word in str(caught.value)


def test_every_problem_is_told_at_once() -> None:
    named = (
        LayerSplit(layer="blocks.0.qkv", role="column", degree=3),
        LayerSplit(layer="nothing", role="column", degree=4),
    )
    with pytest.raises(MeshError) as caught:
        small().evaluate_plans([MeshPlan(tp=4, num_micro_batches=16, block_splits=named)])
    assert len(str(caught.value).splitlines()) == 2


def test_tied_weights_keep_their_split() -> None:
    """The table and the head are one matrix."""
    graph = make.gpt(tied=True)
    cluster = two_level_cluster()
    model = MeshModel.build(workload_of(graph, cluster, 8), cluster)
    for kind in (model.modules.kinds[0], model.modules.kinds[-1]):
        for position, index in enumerate(kind.layers):
            layer = graph.layers[index]
            if layer.kind == "embedding" or layer.tied_count:
                assert len(split_options(graph, kind, position, 4)) == 1


# --- Layouts of a tensor over tensor-parallel ranks: what it takes to change them, by hand and by what must hold of any -------------------


PIECES = Layout(form="positions", degree=8)
SHARES = Layout(form="channels", degree=8)
FOUR = Layout(form="channels", degree=4)
GATHERED = Layout(form="gathered", degree=8)
PARTIAL = Layout(form="partial", degree=8)
GATHER = Transfer(operation="all_gather", ranks=8)
SCATTER = Transfer(operation="reduce_scatter", ranks=8)
REDUCE = Transfer(operation="all_reduce", ranks=8)
TRADE = Transfer(operation="all_to_all", ranks=8, parts=8)
PAIR = Transfer(operation="all_gather", ranks=2, stride=4, parts=4)


@pytest.mark.parametrize(
    ("held", "needed", "forward", "backward"),
    [
        (PIECES, GATHERED, (GATHER,), (SCATTER,)),  # Megatron-LM's g and its conjugate
        (WHOLE, GATHERED, (), (REDUCE,)),  # its f
        (PARTIAL, WHOLE, (REDUCE,), ()),
        (PARTIAL, PIECES, (SCATTER,), (GATHER,)),
        (WHOLE, SHARES, (), (GATHER,)),
        (SHARES, WHOLE, (GATHER,), ()),
        (SHARES, PIECES, (TRADE,), (TRADE,)),  # DeepSpeed Ulysses
        (FOUR, SHARES, (), (PAIR,)),
        (SHARES, FOUR, (PAIR,), ()),
        # Four ranks of eight add up shares that all eight have a piece of; the other four do the same.
        (PIECES, Layout(form="gathered", degree=4), (GATHER,), (Transfer(operation="reduce_scatter", ranks=4),)),
    ],
)
def test_moves_by_hand(
    held: Layout, needed: Layout, forward: tuple[Transfer, ...], backward: tuple[Transfer, ...]
) -> None:
    assert transfers(held, needed) == (forward, backward)


@pytest.mark.parametrize("layout", [WHOLE, PIECES, SHARES, Layout(form="channels", degree=3)])
def test_staying_is_free(layout: Layout) -> None:
    assert transfers(layout, layout) == ((), ())


def test_no_rank_receives_more_than_a_tensor_and_values_never_arrive_from_nowhere() -> None:
    """A move that adds what a rank did not have takes a collective; one that only leaves out does not."""
    forms = ("channels", "positions")
    layouts = [WHOLE, *(Layout(form=form, degree=d) for form in forms for d in (2, 4, 8))]
    for held, needed in itertools.product(layouts, layouts):
        forward, _ = transfers(held, needed)
        has_all = held == WHOLE or (held.form == needed.form and needed.degree % held.degree == 0)
        assert bool(forward) == (not has_all)
        for move in forward:
            assert move.ranks * move.stride <= 8
            assert move.parts in (1, needed.degree, held.degree)
