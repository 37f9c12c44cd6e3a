"""What a checkpoint holds, and what each rank writes of it, against counts by hand."""

from __future__ import annotations

import pytest

from costmodel.mesh.plan import MeshPlan
from tests.costmodel.mesh import plans as make

# Weights of a network without embedding: four blocks, all alike.
GRAPH = make.gpt(blocks=4, features=64, heads=4, positions=32)
PER_WEIGHT = 2 + 4 + 8  # bf16, a 32-bit copy, two 32-bit moments of Adam


@pytest.mark.parametrize(
    ("plan", "first_writes"),
    [
        # What the first of the replicas writes, over an even share of its stage: weights 2, state 12 of 14 bytes.
        (MeshPlan(), 1.0),
        (MeshPlan(dp_replicate=4), 4.0),
        (MeshPlan(dp_shard=4, zero_stage=1), (2 * 4 + 12) / 14),
        (MeshPlan(dp_shard=4, zero_stage=3), 1.0),
        (MeshPlan(dp_replicate=2, dp_shard=2, zero_stage=3), 2.0),
        (MeshPlan(dp_shard=2, cp=2, zero_stage=2), (2 * 4 + 12) / 14),
        (MeshPlan(pp=2, dp_replicate=2), 2.0),
    ],
)
def test_bytes_of_ranks(plan: MeshPlan, first_writes: float) -> None:
    model = make.model_of(GRAPH, 8 * plan.dp, make.ideal_cluster())
    weights = GRAPH.weight_count + GRAPH.norm_count
    total, shared = model.saved_bytes([plan])
    assert total == pytest.approx(weights * PER_WEIGHT, rel=1e-12)
    _, first = model.saved_bytes([plan], shared=False)
    assert first[0] / shared[0] == pytest.approx(first_writes)
    if plan.pp == 1:
        assert shared[0] == pytest.approx(total / plan.workers)
    # A stage has at least its half, and at most everything.
    assert total / plan.workers <= shared[0] * (1 + 1e-9) <= total * (1 + 2e-9)


def test_tensor_parallel_ranks_share_all_but_small_weights() -> None:
    model = make.model_of(GRAPH, 8, make.ideal_cluster())
    total, ranks = model.saved_bytes([MeshPlan(tp=4)])
    assert 1.0 <= 4 * ranks[0] / total < 1.1
