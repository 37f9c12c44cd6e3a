"""Losses and feed-forward parts that are computed in chunks of the positions: hand-computed bytes, FLOP and launches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.plan import MeshPlan
from costmodel.mesh.tensor_parallel import in_mlp
from costmodel.network.graph import Graph
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

_FEATURES, _FFN, _POSITIONS, _BLOCKS, _WORDS = 64, 96, 32, 2, 512


def _graph() -> Graph:
    return decoder(blocks=_BLOCKS, features=_FEATURES, ffn=_FFN, positions=_POSITIONS, vocabulary=_WORDS)


_PLAN = MeshPlan(num_micro_batches=4)


def _costs(plan: MeshPlan = _PLAN, **changes: float) -> dict[str, float]:
    assumptions: MeshAssumptions = replace(make.BARE, **changes)
    costs = make.model_of(_graph(), 4, make.ideal_cluster(), assumptions).evaluate_plans([plan])
    return {name: float(getattr(costs, name)[0]) for name in (*costs.columns(), "step_time_s")}


def test_logits_of_one_chunk_are_there_at_a_time() -> None:
    whole = _POSITIONS * _WORDS * (2 + 4)  # in 16 bits and, for the loss, in 32
    assert _costs()["logits_bytes"] == whole
    entering = _POSITIONS * _FEATURES * 2  # gradients of what enters the head, made with the loss
    assert _costs(loss_chunks=4.0)["logits_bytes"] == whole / 4 + entering
    # 0: 512 words over 64 features are 8 chunks.
    assert _costs(loss_chunks=0.0) == _costs(loss_chunks=8.0)
    # No more chunks than positions.
    assert _costs(loss_chunks=1000.0)["logits_bytes"] == whole / _POSITIONS + entering


def test_one_chunk_of_a_feed_forward_part_is_kept_and_computed_again() -> None:
    whole, cut = _costs(), _costs(mlp_chunks=4.0)
    # Both halves (2 x 96 features) and their product are not kept; what enters the part is.
    assert whole["activation_bytes"] - cut["activation_bytes"] == _BLOCKS * _POSITIONS * 3 * _FFN * 2
    # While a block is run again, one chunk of these is there with gradients, or two of the largest tensor outside.
    plan = MeshPlan(num_micro_batches=4, recompute="full", recompute_blocks=_BLOCKS)
    before, after = _costs(plan)["working_bytes"], _costs(plan, mlp_chunks=4.0)["working_bytes"]
    outside = 2 * _POSITIONS * 2 * _FEATURES * 2  # four heads of queries, two each of keys and values
    inside = 2 * _POSITIONS * 2 * _FFN * 2
    chunk = 2 * _POSITIONS * 3 * _FFN * 2 / 4
    assert before - after == _POSITIONS * 3 * _FFN * 2 + inside - max(outside, chunk)


def test_the_backward_pass_repeats_the_forward_pass_of_the_part() -> None:
    """On a device that only computes: 2 (3 F f + f F) FLOP per position and block; the sums of gradients pass through memory."""
    model = make.model_of(_graph(), 4, make.ideal_cluster(), make.BARE)
    device = model.cluster.device
    whole, cut = _costs(), _costs(mlp_chunks=2.0)
    weights = _FFN * _FEATURES * 3
    sums = 3 * 2 * weights / device.stream_bytes_per_s
    forward = 2 * weights * _POSITIONS / device.peak_flop_per_s["bf16"]
    more = (cut["compute_s"] - whole["compute_s"]) / (4 * _BLOCKS)
    assert more >= forward + sums
    assert more == pytest.approx(forward + sums, rel=0.5)


def test_every_chunk_is_started_by_the_host() -> None:
    """A host that is slower than its device: three kernels forward (two products, a gate), started n times in place of once."""
    host = {"host_launch_s": 1e-3, "bare_launch": 1.0}
    times = [_costs(mlp_chunks=n, **host)["step_time_s"] for n in (2.0, 3.0, 4.0)]
    assert np.diff(times) == pytest.approx([times[1] - times[0]] * 2, rel=1e-6)
    # Per chunk, block and micro-batch: forward 3, again 3, backward gate 1 and two gradients of each product.
    assert times[1] - times[0] == pytest.approx(4 * _BLOCKS * (3 + 3 + 1 + 2 * 2) * 1e-3, rel=1e-6)


def test_which_layers_are_in_the_part() -> None:
    model = make.model_of(_graph(), 4, make.ideal_cluster(), make.BARE)
    kind = next(kind for kind in model.modules.kinds if kind.is_block)
    names = [_graph().layers[index].name.rsplit(".", 1)[-1] for index in kind.layers]
    inside = [name for name, features in zip(names, in_mlp(model.workload.graph, kind), strict=True) if features]
    assert inside == ["up", "glu", "down"]
    assert set(in_mlp(model.workload.graph, kind)) == {0, _FEATURES}


def test_gradients_follow_the_optimizer_to_the_host() -> None:
    """All but those of the module at hand, where nothing scatters them."""
    plan = MeshPlan(num_micro_batches=4, offload_optimizer=True)
    there, here = _costs(plan, hosted_gradients=1.0), _costs(plan)
    assert there["gradient_bytes"] == 0.0
    assert there["host_bytes"] - here["host_bytes"] == here["gradient_bytes"]
    assert there["working_bytes"] > here["working_bytes"]
    assert _costs(hosted_gradients=1.0) == _costs()


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_plan_costs_the_same_beside_others_that_are_cut(recompute: str) -> None:
    """With one chunk per 64 positions, micro-batches of 1 and 2 samples of 32 are one chunk each, those of 4 two."""
    assumptions = replace(make.BARE, mlp_chunks=0.0, host_launch_s=1e-5)
    model = make.model_of(_graph(), 4, make.ideal_cluster(), assumptions)
    blocks = _BLOCKS if recompute == "full" else 0
    plans = [
        MeshPlan(micro_batch=size, num_micro_batches=4 // size, recompute=recompute, recompute_blocks=blocks)
        for size in (1, 2, 4)
    ]
    together = model.evaluate_plans(plans)
    plain = make.model_of(_graph(), 4, make.ideal_cluster(), replace(assumptions, mlp_chunks=1.0)).evaluate_plans(plans)
    for n, plan in enumerate(plans):
        alone = make.model_of(_graph(), 4, make.ideal_cluster(), assumptions).evaluate_plans([plan])
        for name in together.columns():
            assert getattr(together, name)[n] == pytest.approx(getattr(alone, name)[0], rel=1e-12), name
            if n < 2:
                assert getattr(alone, name)[0] == pytest.approx(getattr(plain, name)[n], rel=1e-12), name
    assert together.activation_bytes[2] < plain.activation_bytes[2] or recompute == "full"
