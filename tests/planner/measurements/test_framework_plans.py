"""What a framework refuses, and the memory that its log has."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.mesh.detail import stage_rows
from costmodel.mesh.plan import MeshPlan
from costmodel.software.framework import NO_FRAMEWORK, Framework
from planner.measurements.framework_plans import framework_fault, reported_bytes
from planner.naming.frameworks import framework_of
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

_NANOTRON = framework_of("nanotron")


def _model(vocabulary: int = 512, framework: Framework = NO_FRAMEWORK):
    graph = decoder(blocks=8, features=64, kv_heads=4, ffn=128, vocabulary=vocabulary)
    return make.model_of(graph, 8, make.ideal_cluster(), framework=framework)


def test_the_log_has_the_memory_of_the_first_rank() -> None:
    model = _model(vocabulary=65536)  # the last rank is the fullest: it holds the logits
    plan = MeshPlan(pp=2, num_micro_batches=8, stage_blocks=(5, 3))
    costs = model.evaluate_plans([plan])
    rows = stage_rows(model, plan)
    assert rows[1].memory_bytes == costs.memory_bytes[0] > rows[0].memory_bytes
    logged = reported_bytes(_model(vocabulary=65536, framework=_NANOTRON), [plan], costs.memory_bytes)
    assert logged[0] == pytest.approx(rows[0].memory_bytes - model.workload.context_bytes, rel=1e-12)
    assert np.array_equal(reported_bytes(model, [plan], costs.memory_bytes), costs.memory_bytes)


def test_nanotron_refuses_what_others_run() -> None:
    model, other = _model(framework=_NANOTRON), _model()  # a head of 0.8 blocks
    few = MeshPlan(pp=8, num_micro_batches=6)
    assert framework_fault(model, few) == "nanotron needs 7 micro-batches for 8 stages; the plan has 6"
    assert not framework_fault(model, MeshPlan(pp=8, num_micro_batches=7))
    assert not framework_fault(other, few)
    # A head of 8 blocks, 2 of 16 per stage: it comes behind 8 blocks to stage 4, what follows it to 5 and 6.
    heavy, plan = _model(vocabulary=5120, framework=_NANOTRON), MeshPlan(pp=8, num_micro_batches=8)
    assert framework_fault(heavy, plan) == "nanotron puts the loss on stage 6 of 8 and waits for it on stage 7"
    assert not framework_fault(_model(vocabulary=5120), plan)
    assert not framework_fault(heavy, MeshPlan(num_micro_batches=8))
