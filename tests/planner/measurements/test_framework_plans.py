"""The memory that the log of a framework has."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.framework import NO_FRAMEWORK, Framework
from costmodel.mesh.detail import stage_rows
from costmodel.mesh.plan import MeshPlan
from planner.files.naming.frameworks import framework_of
from planner.measurements.plans import reported_bytes
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
