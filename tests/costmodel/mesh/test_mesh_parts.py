"""Parts of a step and of the memory: they add up, none is negative, a degree of 1 is free, and plans do not see each other."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import numpy as np
import pytest

from costmodel.mesh.detail import layer_rows, stage_rows
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE, MeshBatch, MeshCosts, MeshPlan
from costmodel.mesh.rules import broken_rules
from costmodel.mesh.stages import layout_of, recomputed_modules, stack_layouts
from tests.cases import mostly
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder, two_level_cluster

# Written down here, not taken from costmodel.mesh.plan: a part that is left out there must be missed.
TIMES = (
    "compute",
    "recompute",
    "tp_exposed",
    "cp_exposed",
    "ep_exposed",
    "pp_exposed",
    "dp_exposed",
    "bubble",
    "optimizer",
    "offload",
)
MEMORY = ("weight", "gradient", "optimizer", "activation", "working", "logits", "buffer", "slack", "context")


def _models(count: int, seed: int) -> list[MeshModel]:
    rng = random.Random(seed)
    return [
        make.model_of(make.network(rng, blocks=rng.choice([4, 6, 12])), 24, make.cluster(rng), make.assumptions(rng))
        for _ in range(count)
    ]


def _plans(model: MeshModel, count: int, seed: int) -> list[MeshPlan]:
    rng, shape = random.Random(seed), make.shape_of(model)
    return [make.random_plan(rng, shape) for _ in range(count)]


def _check(costs: MeshCosts) -> None:
    columns = {item.name: getattr(costs, item.name) for item in fields(costs)}
    time = sum(columns[f"{name}_s"] for name in TIMES)
    np.testing.assert_allclose(time, costs.step_time_s, rtol=1e-10)
    memory = sum(columns[f"{name}_bytes"] for name in MEMORY)
    np.testing.assert_allclose(memory, costs.memory_bytes, rtol=1e-12)
    for name, column in columns.items():
        assert np.isfinite(column).all(), name
        least = -1e-9 * float(costs.step_time_s.max()) if name == "bubble_s" else 0.0
        assert column.min() >= least, name
    assert (costs.compute_s > 0).all()
    assert (costs.weight_bytes > 0).all()
    assert len(columns) == len(TIMES) + len(MEMORY) + 5  # step, its wait for the host, memory, host memory, stage
    assert (costs.host_s <= costs.compute_s + costs.recompute_s).all()


@pytest.mark.parametrize("seed", range(6))
def test_parts_add_up_and_are_not_negative(seed: int) -> None:
    (model,) = _models(1, seed)
    plans = _plans(model, 500, seed)
    _check(model.evaluate(MeshBatch.from_plans(plans)))


def test_parts_of_uneven_plans_add_up() -> None:
    rng = random.Random(11)
    for model in _models(4, 11):
        # As many recomputed blocks as every chunk has, or none: a chunk with fewer is a test of its own.
        plans = [make.uneven(rng, plan, model.num_blocks) for plan in _plans(model, 60, 12)]
        plans = [replace(plan, recompute_blocks=model.num_blocks if plan.recompute == "full" else 0) for plan in plans]
        _check(model.evaluate_plans(plans))


def test_ranks_recompute_what_their_chunks_recompute() -> None:
    model = make.model_of(decoder(blocks=8), 8, two_level_cluster())
    plan = MeshPlan(
        pp=2,
        vpp=2,
        schedule="interleaved",
        num_micro_batches=8,
        recompute="full",
        recompute_blocks=2,
        stage_blocks=(1, 1, 3, 3),  # 1 + 2 blocks are run again on each rank, of 4
    )
    same = replace(plan, recompute_blocks=2, stage_recompute=(1, 1, 2, 2))
    costs = model.evaluate_plans([plan, same])
    assert costs.recompute_s[0] == pytest.approx(costs.recompute_s[1], rel=1e-12)
    assert costs.activation_bytes[0] == pytest.approx(costs.activation_bytes[1], rel=1e-12)


@pytest.mark.exact
def test_one_plan_is_a_batch_of_one_and_order_does_not_matter() -> None:
    for seed, model in enumerate(_models(3, 20)):
        plans = _plans(model, 150, seed)
        batch = MeshBatch.from_plans(plans)
        together, listed = model.evaluate(batch), model.evaluate_plans(plans)
        order = np.random.default_rng(seed).permutation(len(plans))
        shuffled = model.evaluate(batch.take(order))
        fresh = MeshModel.build(model.workload, model.cluster, model.assumptions)
        alone = [fresh.evaluate(batch.take(np.array([n]))) for n in range(0, len(plans), 5)]
        for item in fields(MeshCosts):
            values = getattr(together, item.name)
            np.testing.assert_allclose(getattr(listed, item.name), values, rtol=1e-11, atol=1e-15, err_msg=item.name)
            np.testing.assert_allclose(getattr(shuffled, item.name), values[order], rtol=1e-11, atol=1e-15)
            single = np.concatenate([getattr(costs, item.name) for costs in alone])
            np.testing.assert_allclose(single, values[::5], rtol=1e-11, atol=1e-15, err_msg=item.name)


def test_inference_parts_add_up() -> None:
    graph, cluster = decoder(blocks=4), two_level_cluster()
    model = make.model_of(graph, 64, cluster)
    forward = MeshModel.build(replace(model.workload, training=False), cluster, make.BARE)
    plans = [
        MeshPlan(pp=2, num_micro_batches=64),
        MeshPlan(pp=4, num_micro_batches=64),
        MeshPlan(tp=2, num_micro_batches=64),
    ]
    costs = forward.evaluate_plans(plans)
    _check(costs)
    assert (costs.gradient_bytes + costs.optimizer_bytes + costs.optimizer_s + costs.dp_exposed_s == 0).all()


def test_inference_receives_no_gradients() -> None:
    model = make.model_of(decoder(blocks=6, vocabulary=16), 256, make.ideal_cluster())
    forward = MeshModel.build(replace(model.workload, training=False), model.cluster, make.BARE)
    costs = forward.evaluate_plans([MeshPlan(pp=3, num_micro_batches=256, stage_blocks=(1, 4, 1))])
    assert costs.bubble_s[0] >= -1e-9 * costs.step_time_s[0]


# -- degrees of 1 ----------------------------------------------------------------------------------------------------------


@pytest.mark.exact
def test_a_degree_of_one_is_free() -> None:
    # Exact zeros, not small numbers.
    for model in _models(6, 40):
        plans = _plans(model, 60, 41)
        costs = model.evaluate(MeshBatch.from_plans(plans))
        for n, plan in enumerate(plans):
            for name, degree in (("tp", plan.tp), ("cp", plan.cp), ("pp", plan.pp)):
                assert degree > 1 or getattr(costs, f"{name}_exposed_s")[n] == 0.0, (name, plan)
            if plan.ep == 1 and plan.etp == 1:
                assert costs.ep_exposed_s[n] == 0.0
            if plan.dp * plan.cp == 1 and plan.ep * plan.etp == plan.tp:
                assert costs.dp_exposed_s[n] == 0.0
            if plan.pp == 1:
                assert abs(costs.bubble_s[n]) <= 1e-12 * costs.step_time_s[n]
            if plan.recompute == "none":
                assert costs.recompute_s[n] == 0.0
            if not (plan.offload_optimizer or plan.offload_activations):
                assert costs.offload_s[n] == costs.host_bytes[n] == 0.0


def _one(model: MeshModel, plan: MeshPlan) -> MeshCosts:
    return model.evaluate(MeshBatch.from_plans([plan]))


def test_one_worker_only_computes() -> None:
    costs = _one(make.model_of(make.gpt(), 4, two_level_cluster()), MeshPlan(num_micro_batches=4))
    assert costs.step_time_s[0] == pytest.approx(costs.compute_s[0] + costs.optimizer_s[0], rel=1e-14)
    assert costs.buffer_bytes[0] == 0.0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_with_one_rank_changes_nothing(stage: int) -> None:
    """Such plans are illegal (they would be counted twice); their cost is that of plain data parallelism all the same."""
    model = make.model_of(make.gpt(), 8, two_level_cluster())
    plain = MeshPlan(pp=2, dp_replicate=2, num_micro_batches=4)
    zero = replace(plain, zero_stage=stage)
    assert broken_rules(make.shape_of(model), plain) == []
    assert len(broken_rules(make.shape_of(model), zero)) == 1
    both = model.evaluate(MeshBatch.from_plans([plain, zero]))
    for item in fields(MeshCosts):
        values = getattr(both, item.name)
        assert values[0] == pytest.approx(values[1], rel=1e-12), item.name


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    shape = make.shape_of(make.model_of(make.gpt(), 4, two_level_cluster()))
    legal = MeshPlan(tp=2, sequence_parallel=True, num_micro_batches=4)
    assert broken_rules(shape, legal) == []
    (message,) = broken_rules(shape, replace(legal, tp=1))
    assert "sequence parallelism" in message


# -- breakdown -------------------------------------------------------------------------------------------------------------


@pytest.mark.exact
def test_layers_of_the_breakdown_add_up_to_the_compute_of_the_plan() -> None:
    for model in _models(4, 50):
        for plan in _plans(model, 12, 51):
            plan = replace(plan, pp=1, vpp=1, schedule="1f1b", recompute="none", recompute_blocks=0)  # noqa: PLW2901
            if broken_rules(make.shape_of(model), plan):
                continue
            costs, rows = _one(model, plan), layer_rows(model, plan)
            m = plan.num_micro_batches
            compute = sum(row.count * (row.forward_s + row.backward_s) for row in rows)
            assert costs.compute_s[0] == pytest.approx(m * compute, rel=1e-9)
            exchanged = sum(row.count * row.tp_exchange_s for row in rows) * (1 - model.assumptions.tp_overlap)
            assert costs.tp_exposed_s[0] == pytest.approx(m * exchanged, rel=1e-9, abs=1e-15)


@pytest.mark.exact
def test_the_fullest_rank_of_the_breakdown_is_the_memory_of_the_plan() -> None:
    rng = random.Random(60)
    for model in _models(5, 60):
        for plan in _plans(model, 25, 61):
            chosen = make.uneven(rng, plan, model.num_blocks) if rng.random() < 0.5 else plan
            costs, rows = model.evaluate_plans([chosen]), stage_rows(model, chosen)
            assert len(rows) == plan.pp
            assert [row.rank for row in rows] == list(range(plan.pp))
            assert costs.memory_bytes[0] == pytest.approx(max(row.memory_bytes for row in rows), rel=1e-12)
            assert rows[int(costs.stage[0])].memory_bytes == pytest.approx(costs.memory_bytes[0], rel=1e-12)


# --- No step is shorter than the work of its busiest rank: chunks that hold different kinds of blocks, recomputed in part -----------------


MIXED = {"features": 256, "heads": 8, "kv_heads": 8, "ffn": 512, "vocabulary": 256, "positions": 64, "experts": 4}


@mostly("exact", "seed", range(24))
def test_no_plan_has_less_than_no_bubble(seed: int) -> None:
    """m times what a rank does per micro-batch is the least time of a step."""
    rng = random.Random(seed)
    graph = decoder(blocks=rng.choice([7, 9, 13]), dense_blocks=rng.choice([1, 2, 3, 5]), **MIXED)
    model = make.model_of(graph, rng.choice([24, 48]), make.cluster(rng), make.assumptions(rng))
    shape = make.shape_of(model)
    plans = [make.random_plan(rng, shape) for _ in range(8)]
    plans += [replace(plan, recompute="full", recompute_blocks=1) for plan in plans]
    plans += [make.uneven(rng, plan, shape.num_blocks) for plan in plans if plan.pp * plan.vpp <= shape.num_blocks]
    costs = model.evaluate_plans(plans)
    worst = int(np.argmin(costs.bubble_s / costs.step_time_s))
    assert costs.bubble_s[worst] >= 0.0, plans[worst]


def test_blocks_that_run_again_are_counted_chunk_by_chunk() -> None:
    """3 dense blocks and 4 mixtures; chunks of 2, 2, 1, 2 on 2 ranks, one block of each run again.

    Rank 0 has chunks of two dense blocks and of one mixture: 1 of 2 dense blocks and the mixture. Rank 1 has a dense block with a mixture,
    and two mixtures: a half of each of the first chunk, and 1 of 2.
    """
    model = make.model_of(decoder(blocks=7, dense_blocks=3, **MIXED), 8, make.ideal_cluster())
    layouts = stack_layouts([layout_of(model.modules, (2, 2, 1, 2), 2)])
    full, one = np.array([RECOMPUTE.index("full")]), np.ones(1, dtype=np.int64)
    again = recomputed_modules(layouts, full, one)[0][:, 1:-1]
    assert layouts.rank_first[0].tolist() == [0, 1]
    assert again.tolist() == [[1.0, 1.0], [0.5, 1.5]]


def test_memory_of_recomputed_chunks_adds_up_block_by_block() -> None:
    """The same plan: what a rank keeps is what its chunks keep, each by itself."""
    graph = decoder(blocks=7, dense_blocks=3, **MIXED)
    model = make.model_of(graph, 8, make.ideal_cluster())
    plan = MeshPlan(pp=2, vpp=2, schedule="interleaved", num_micro_batches=8, stage_blocks=(2, 2, 1, 2))
    some = replace(plan, recompute="full", recompute_blocks=1)
    table = model.rows(MeshBatch.from_plans([some]))
    kept = table.saved_bytes[0] - table.input_bytes[0]
    plain, again = (stage_rows(model, one) for one in (plan, some))
    alive = (2 * (2 - 0 - 1) + 2 + 1) / 2, (2 * (2 - 1 - 1) + 2 + 1) / 2
    for rank, (dense, mixtures) in enumerate(((1.0, 1.0), (0.5, 1.5))):
        freed = plain[rank].activation_bytes - again[rank].activation_bytes
        assert freed == pytest.approx(alive[rank] * (dense * kept[1] + mixtures * kept[2]), rel=1e-12)
