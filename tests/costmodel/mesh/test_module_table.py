"""Rows of the module table: the same however they are asked for, and the memory of what is recomputed one way or another."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import MODULE_COLUMNS, ModuleTable
from costmodel.mesh.plan import RECOMPUTE, MeshBatch
from tests.cases import mostly
from tests.costmodel.mesh import plans as make

_FULL = RECOMPUTE.index("full")


def _case(seed: int) -> tuple[MeshModel, MeshBatch]:
    rng = random.Random(seed)
    model = make.model_of(make.network(rng), 48, make.cluster(rng), make.assumptions(rng))
    shape = make.shape_of(model)
    return model, MeshBatch.from_plans([make.random_plan(rng, shape) for _ in range(40)])


def _assert_equal(left: ModuleTable, right: ModuleTable) -> None:
    for name in MODULE_COLUMNS:
        assert np.array_equal(getattr(left, name), getattr(right, name)), name


@mostly("exact", "seed", range(12))
def test_rows_are_the_same_alone_and_together(seed: int) -> None:
    model, batch = _case(seed)
    together = model.rows(batch)
    fresh = MeshModel(workload=model.workload, groups=model.groups, modules=model.modules)
    for n in reversed(range(len(batch))):
        _assert_equal(fresh.rows(batch.take(np.array([n]))), ModuleTable.of_stack(_stack(together)[:, [n]]))
    _assert_equal(fresh.rows(batch), together)


def _stack(table: ModuleTable) -> np.ndarray:
    return np.array([getattr(table, name) for name in MODULE_COLUMNS])


@mostly("exact", "seed", range(12))
def test_memories_of_several_recomputations_are_those_of_each(seed: int) -> None:
    model, batch = _case(seed)
    rng = np.random.default_rng(seed)
    zero = np.zeros(len(batch), dtype=np.int64)
    kinds = [zero, zero + 1, zero + _FULL, rng.integers(0, 3, len(batch))]
    batches = [
        replace(batch, recompute=kind, recompute_blocks=np.where(kind == _FULL, rng.integers(1, 4, len(batch)), 0))
        for kind in kinds
    ]
    for one, memory in zip(batches, model.pipeline_memories(batches), strict=True):
        alone = model.pipeline_memory(one)
        for name in ("kept_bytes", "input_bytes", "share", "waiting_bytes", "again_bytes", "logits_bytes", "dense"):
            assert np.array_equal(getattr(memory, name), getattr(alone, name)), name
