"""Plans and memory as a framework has them: stages equal or cut by thresholds, the memory of the first rank."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.framework import profile_of
from costmodel.mesh.detail import stage_rows
from costmodel.mesh.plan import MeshPlan
from planner.measurements.framework_plans import framework_fault, framework_plan, reported_bytes
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

_NANOTRON, _MEGATRON, _DEFAULT = profile_of("nanotron"), profile_of("Megatron-LM"), profile_of("")


def _model(vocabulary: int = 512):
    graph = decoder(blocks=8, features=64, kv_heads=4, ffn=128, vocabulary=vocabulary)
    return make.model_of(graph, 8, make.ideal_cluster())


def test_stages_are_cut_by_the_costs_of_matrices() -> None:
    """A block has 4 x 64^2 + 3 x 64 x 128 weights, 40,960; a head of 1,280 words has twice as many: 10 in all, 5 per stage."""
    plan = MeshPlan(pp=2, num_micro_batches=8)
    assert framework_plan(_NANOTRON, _model(1280), plan).stage_blocks == (5, 3)
    assert framework_plan(_DEFAULT, _model(1280), plan) == plan
    alone = MeshPlan(num_micro_batches=8)
    assert framework_plan(_NANOTRON, _model(), alone) == alone
    too_many = MeshPlan(pp=16, num_micro_batches=16)
    assert framework_plan(_NANOTRON, _model(), too_many) == too_many


def test_stages_of_megatron_are_equal_whatever_the_head_takes() -> None:
    """A head of 16 blocks by its weights: a balanced cut puts fewer blocks beside it."""
    model, plan = _model(vocabulary=10240), MeshPlan(pp=2, num_micro_batches=8)
    assert model.blocks_of(2) == (5, 3)
    assert framework_plan(_MEGATRON, model, plan).stage_blocks == (4, 4)
    chunks = MeshPlan(pp=2, vpp=2, schedule="interleaved", num_micro_batches=8)
    assert framework_plan(_MEGATRON, model, chunks).stage_blocks == (2,) * 4
    for other in (MeshPlan(num_micro_batches=8), MeshPlan(pp=3, num_micro_batches=8), MeshPlan(pp=16)):
        assert framework_plan(_MEGATRON, model, other) == other


def test_the_log_has_the_memory_of_the_first_rank() -> None:
    model = _model(vocabulary=65536)  # the last rank is the fullest: it holds the logits
    plan = MeshPlan(pp=2, num_micro_batches=8, stage_blocks=(5, 3))
    costs = model.evaluate_plans([plan])
    rows = stage_rows(model, plan)
    assert rows[1].memory_bytes == costs.memory_bytes[0] > rows[0].memory_bytes
    found = reported_bytes(_NANOTRON, model, [plan], costs.memory_bytes)
    assert found[0] == pytest.approx(rows[0].memory_bytes - model.workload.context_bytes, rel=1e-12)
    assert np.array_equal(reported_bytes(_DEFAULT, model, [plan], costs.memory_bytes), costs.memory_bytes)


def test_nanotron_refuses_what_others_run() -> None:
    model = _model()  # a head of 0.8 blocks
    few = MeshPlan(pp=8, num_micro_batches=6)
    assert framework_fault(_NANOTRON, model, few) == "nanotron needs 7 micro-batches for 8 stages; the plan has 6"
    assert not framework_fault(_NANOTRON, model, MeshPlan(pp=8, num_micro_batches=7))
    assert not framework_fault(_DEFAULT, model, few)
    # A head of 8 blocks, 2 of 16 per stage: it comes behind 8 blocks to stage 4, what follows it to 5 and 6.
    heavy, plan = _model(vocabulary=5120), MeshPlan(pp=8, num_micro_batches=8)
    assert (
        framework_fault(_NANOTRON, heavy, plan) == "nanotron puts the loss on stage 6 of 8 and waits for it on stage 7"
    )
    assert not framework_fault(_DEFAULT, heavy, plan)
    assert not framework_fault(_NANOTRON, heavy, MeshPlan(num_micro_batches=8))
