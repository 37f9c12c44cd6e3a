"""Totals of plans that share pipelines and divisions, against the itemised costs of the same plans one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.arrays import combined, rows_of
from costmodel.mesh.communication import Division
from costmodel.mesh.model import MeshModel
from costmodel.mesh.passes import mesh_strides, pipeline_columns
from costmodel.mesh.plan import RECOMPUTE, MeshBatch, MeshPlan
from tests.cases import mostly
from tests.costmodel.mesh import plans as make

OFFLOADS = [(0, 0), (0, 1), (1, 0), (1, 1)]


def _relatives(rng: random.Random, plan: MeshPlan, model: MeshModel) -> list[MeshPlan]:
    """Plans that share the division of dp with a plan: recomputed otherwise, or by another schedule of the same chunks."""
    result = [plan, replace(plan, recompute="none", recompute_blocks=0)]
    result += [
        replace(plan, recompute="full", recompute_blocks=n) for n in range(1, rng.randint(1, model.num_blocks) + 1)
    ]
    if plan.vpp == 1 and plan.schedule != "zero_bubble" and plan.pp > 1:
        result.append(replace(plan, schedule="gpipe"))
    return result


def _random_batch(rng: random.Random, model: MeshModel) -> MeshBatch:
    shape = make.shape_of(model)
    plans = [make.random_plan(rng, shape, offload=False) for _ in range(25)]
    return MeshBatch.from_plans([relative for plan in plans for relative in _relatives(rng, plan, model)])


def _totals(model: MeshModel, batch: MeshBatch) -> tuple[np.ndarray, np.ndarray]:
    """Step times and memory (n, 4), of plans grouped as a walk over the space would group them."""
    first, index = combined(*pipeline_columns(batch))
    distinct = batch.take(first)
    _, end = model.ends(distinct)
    rows, row = combined(end[index], batch.zero_stage, batch.dp_replicate, batch.dp_shard)
    assert len(rows) < len(batch)  # some share
    divided = batch.take(rows)
    division = Division.of(divided, mesh_strides(divided))
    return model.totals(model.pipelines(distinct), model.pipeline_memory(distinct), index, row, division, OFFLOADS)


@mostly("exact", "seed", range(12))
def test_totals_are_those_of_evaluate(seed: int) -> None:
    rng = random.Random(seed)
    model = make.model_of(make.network(rng), 48, make.cluster(rng), make.assumptions(rng))
    batch = _random_batch(rng, model)
    times, needed = _totals(model, batch)
    for h, (optimizer, activations) in enumerate(OFFLOADS):
        same = np.full(len(batch), 1)
        costs = model.evaluate(
            replace(batch, offload_optimizer=optimizer * same, offload_activations=activations * same)
        )
        np.testing.assert_allclose(times[:, h], costs.step_time_s, rtol=1e-12)
        np.testing.assert_allclose(needed[:, h], costs.memory_bytes, rtol=1e-12)


def test_totals_without_training() -> None:
    rng = random.Random(3)
    model = make.model_of(make.network(rng), 48, make.cluster(rng), make.assumptions(rng))
    model = replace(model, workload=replace(model.workload, training=False))
    batch = _random_batch(rng, model)
    times, needed = _totals(model, batch)
    costs = model.evaluate(batch)
    np.testing.assert_allclose(times[:, 0], costs.step_time_s, rtol=1e-12)
    np.testing.assert_allclose(needed[:, 0], costs.memory_bytes, rtol=1e-12)


def test_ends_leave_out_recomputation_alone() -> None:
    plan = MeshPlan(pp=2, dp_shard=4, zero_stage=1, num_micro_batches=4)
    others = [
        replace(plan, recompute="full", recompute_blocks=1),
        replace(plan, recompute="selective"),
        replace(plan, schedule="gpipe"),
        replace(plan, schedule="zero_bubble"),  # weight gradients hide nothing there
        replace(plan, micro_batch=2),
        replace(plan, tp=2),
        replace(plan, order="tp-pp-dp-cp"),
    ]
    _, end = MeshModel.ends(MeshBatch.from_plans([plan, *others]))
    assert [e == end[0] for e in end[1:].tolist()] == [True, True, True, False, False, False, False]
    assert set(RECOMPUTE) == {"none", "selective", "full"}


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2)])
def test_rows_are_selected_as_by_an_index(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).random(shape)
    index = np.array([4, 0, 0, 2, 3, 3, 1])
    found = rows_of(values, index)
    np.testing.assert_array_equal(found, values[index])
    assert found.T.flags.c_contiguous
    np.testing.assert_array_equal(rows_of(found, index[:3]), values[index][index[:3]])
