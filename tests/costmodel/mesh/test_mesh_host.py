"""What the host, gradient sums, buckets and rings cost: against numbers worked out by hand from the kernels of the blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.plan import MeshPlan
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

LAUNCH_S, COLLECTIVE_S = 1e-3, 1e-2  # so slow that the device never counts
# Kernels of a fused block with dropout: two norms, four products, attention, gelu, two dropouts, two sums.
FORWARD = 12
# One kernel per norm, product, gelu, dropout and sum; two for attention; beside them one per product and norm for the weights.
BACKWARD = 2 + 4 + 2 + 1 + 2 + 2 + (4 + 2)


def _graph(blocks: int = 2):
    return make.gpt(blocks=blocks, fused=True)


def _step_s(plan: MeshPlan, assumptions: MeshAssumptions, *, blocks: int = 2, cluster: Cluster | None = None) -> float:
    model = make.model_of(_graph(blocks), 4, cluster or make.ideal_cluster(), assumptions)
    return float(model.evaluate_plans([plan]).step_time_s[0])


def _per_block(plan: MeshPlan, assumptions: MeshAssumptions, cluster: Cluster | None = None) -> float:
    """What each further block adds to a step."""
    four, two = (_step_s(plan, assumptions, blocks=blocks, cluster=cluster) for blocks in (4, 2))
    return (four - two) / 2


HOST = replace(make.BARE, host_launch_s=LAUNCH_S, bare_launch=1.0, main_gradient_bytes=0.0)


def test_a_block_takes_as_long_as_starting_its_kernels() -> None:
    found = _per_block(MeshPlan(num_micro_batches=4), HOST)
    assert found == pytest.approx(4 * (FORWARD + BACKWARD) * LAUNCH_S, rel=1e-3)  # the optimizer grows a little


def test_recomputed_blocks_are_started_again() -> None:
    found = _per_block(MeshPlan(num_micro_batches=4, recompute="full", recompute_blocks=4), HOST)
    assert found == pytest.approx(4 * (2 * FORWARD + BACKWARD) * LAUNCH_S, rel=1e-3)


@pytest.mark.parametrize(("recompute", "forward"), [("none", 1), ("full", 2)])
def test_a_backward_pass_is_started_without_python(recompute: str, forward: int) -> None:
    """Kernels of autograd take their share of a launch; what is recomputed runs the forward pass of a module again."""
    blocks = 4 if recompute == "full" else 0
    plan = MeshPlan(num_micro_batches=4, recompute=recompute, recompute_blocks=blocks)
    found = _per_block(plan, replace(HOST, bare_launch=0.25))
    assert found == pytest.approx(4 * (forward * FORWARD + 0.25 * BACKWARD) * LAUNCH_S, rel=1e-3)


@pytest.mark.parametrize(("sequence_parallel", "collectives"), [(False, 4), (True, 8)])
def test_collectives_of_a_block_are_started_too(*, sequence_parallel: bool, collectives: int) -> None:
    """Two all-reduces each way, or as many pairs of a gather and a scatter."""
    plan = MeshPlan(tp=2, sequence_parallel=sequence_parallel, num_micro_batches=4)
    slow = replace(HOST, host_collective_s=COLLECTIVE_S)
    assert _per_block(plan, slow) - _per_block(plan, HOST) == pytest.approx(4 * collectives * COLLECTIVE_S, rel=1e-3)


@pytest.mark.parametrize(("sequence_parallel", "collectives"), [(False, 4), (True, 8)])
def test_collectives_of_a_block_wait_for_their_ranks(*, sequence_parallel: bool, collectives: int) -> None:
    """The device is held up as often as the host starts one; a slow host has the time to spare."""
    plan = MeshPlan(tp=2, sequence_parallel=sequence_parallel, num_micro_batches=4)
    waiting = replace(make.BARE, collective_wait_s=1e-4)
    assert _per_block(plan, waiting) - _per_block(plan, make.BARE) == pytest.approx(4 * collectives * 1e-4, rel=1e-9)
    assert _per_block(plan, replace(HOST, collective_wait_s=1e-4)) == pytest.approx(_per_block(plan, HOST), rel=1e-9)
    alone = MeshPlan(num_micro_batches=4)
    assert _per_block(alone, waiting) == _per_block(alone, make.BARE)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_collectives_of_the_loss_wait_for_their_ranks(*, sequence_parallel: bool) -> None:
    """A vocabulary that is split has the embedding's reduced, and forward three numbers per position: maximum, sum, logit of the label.

    And backward the gradient of what enters the head is reduced; under sequence parallelism both have a gather for the other pass.
    """
    plan = MeshPlan(tp=2, sequence_parallel=sequence_parallel, num_micro_batches=4)
    waiting = replace(make.BARE, collective_wait_s=1e-4)
    more = _step_s(plan, waiting, blocks=2) - _step_s(plan, make.BARE, blocks=2)
    blocks = 2 * (_per_block(plan, waiting) - _per_block(plan, make.BARE))
    ends = 4 if sequence_parallel else 2
    assert more - blocks == pytest.approx(4 * (ends + 3) * 1e-4, rel=1e-6)


def test_a_slow_device_hides_the_host() -> None:
    cluster = make.ideal_cluster(peak=1e6, memory_bandwidth=1e5)
    plan = MeshPlan(num_micro_batches=4)
    bare = replace(make.BARE, main_gradient_bytes=0.0)
    assert _step_s(plan, replace(bare, host_launch_s=1e-9), cluster=cluster) == _step_s(plan, bare, cluster=cluster)


def _own_host(overlap: float) -> Cluster:
    cluster = make.ideal_cluster(peak=1e9, memory_bandwidth=1e8)
    own = replace(cluster.device, efficiency=replace(cluster.device.efficiency, host_overlap=overlap))
    return replace(cluster, groups=(replace(cluster.groups[0], device=own),))


@pytest.mark.parametrize("plan", [MeshPlan(num_micro_batches=4), MeshPlan(tp=2, num_micro_batches=4)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_device_that_is_its_own_host_takes_the_sum_of_both(plan: MeshPlan, recompute: str) -> None:
    """Kernels and their start one after the other, at any speed of the host; half of the shorter with half of an overlap."""
    plan = replace(plan, recompute=recompute, recompute_blocks=4 if recompute == "full" else 0)
    launches = 4 * ((2 if recompute == "full" else 1) * FORWARD + BACKWARD)
    bare = replace(HOST, host_launch_s=0.0)
    device_s = _per_block(plan, bare, _own_host(0.0))
    assert device_s == _per_block(plan, bare, _own_host(1.0))
    for launch_s in (1e-9, 1e-6, 1e-3):
        slow = replace(HOST, host_launch_s=launch_s)
        assert _per_block(plan, slow, _own_host(0.0)) == pytest.approx(device_s + launches * launch_s, rel=1e-9)
    fast = replace(HOST, host_launch_s=1e-9)
    assert _per_block(plan, fast, _own_host(0.5)) == pytest.approx(device_s + launches * 0.5e-9, rel=1e-12)


def test_kernels_of_split_matrices_take_longer_to_start() -> None:
    """Forward and backward alike, and only where tensor parallelism splits them."""
    slow = replace(HOST, bare_launch=0.25, split_launch_s=LAUNCH_S)
    found = _per_block(MeshPlan(tp=2, num_micro_batches=4), slow)
    assert found == pytest.approx(4 * (2 * FORWARD + 1.25 * BACKWARD) * LAUNCH_S, rel=1e-3)
    alone = MeshPlan(num_micro_batches=4)
    assert _per_block(alone, slow) == _per_block(alone, replace(slow, split_launch_s=0.0))


def test_gradients_are_summed_behind_every_micro_batch() -> None:
    """Memory traffic of 2 + 4 + 4 bytes per weight and micro-batch, where they are kept in 32 bits."""
    model = make.model_of(_graph(), 4, make.ideal_cluster())
    sums = replace(make.BARE, main_gradient_bytes=4.0)
    none = replace(make.BARE, main_gradient_bytes=2.0)
    plan = MeshPlan(num_micro_batches=4)
    weights = sum(layer.weight_count for layer in model.workload.graph.layers)
    assert _step_s(plan, sums) - _step_s(plan, none) == pytest.approx(4 * weights * 10 / 1e12, rel=1e-9)


@pytest.mark.parametrize(("tp", "steps"), [(2, 0), (4, 3)])
def test_rings_between_nodes_wait_for_their_steps(tp: int, steps: int) -> None:
    plan = MeshPlan(tp=tp, sequence_parallel=True, num_micro_batches=4)
    node, fabric = make.ideal_nodes(2).levels
    waiting = replace(make.ideal_nodes(2), levels=(node, replace(fabric, ring_step_s=1e-3)))
    more = _per_block(plan, make.BARE, waiting) - _per_block(plan, make.BARE, make.ideal_nodes(2))
    assert more == pytest.approx(4 * 8 * steps * 1e-3, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("tp", "dp", "waits"), [(4, 1, 6), (4, 2, 6), (2, 1, 2), (2, 2, 2)])
def test_collectives_wait_for_stages_on_other_nodes(tp: int, dp: int, waits: int) -> None:
    """Two stages on nodes of two: each of the eight collectives of a block waits for its ranks, and again for those of the other node."""
    plan = MeshPlan(
        tp=tp, sequence_parallel=True, pp=2, dp_replicate=dp, num_micro_batches=4 // dp, stage_blocks=(1, 1)
    )
    alone = replace(plan, pp=1, stage_blocks=(2,))
    slow = replace(make.BARE, contended_step_s=1e-2)
    cluster = make.ideal_nodes(2)
    for some, times in ((plan, 1), (alone, 0)):
        more = _step_s(some, slow, cluster=cluster) - _step_s(some, make.BARE, cluster=cluster)
        # Two stages of one block: m + 1 passes in turn; outside the blocks each of the 8 m collectives of embedding and head at most.
        assert more >= times * (4 // dp + 1) * 8 * waits * 1e-2 * 0.99
        assert more <= times * (4 // dp + 1) * 16 * waits * 1e-2
        assert (more > 0) == bool(times)


def test_every_bucket_pays_the_latency() -> None:
    cluster = replace(
        make.ideal_nodes(2),
        levels=tuple(replace(level, latency_s=1e-3, is_ordered=False) for level in make.ideal_nodes(2).levels),
    )
    model = make.model_of(_graph(), 4, cluster)
    size = 4.0 * sum(layer.weight_count for layer in model.workload.graph.layers)
    plan = MeshPlan(dp_replicate=2, num_micro_batches=2)
    whole, parts = (_step_s(plan, replace(make.BARE, bucket_bytes=size / n), cluster=cluster) for n in (1, 4))
    each_s = 2e-3 + 1.8e-6  # a ring of two ranks takes two steps per bucket, after the start of NCCL's Simple
    assert parts - whole == pytest.approx(3 * each_s, rel=1e-6)
    grown = replace(
        make.BARE, bucket_bytes=size / 8, bucket_bytes_per_rank=size / 4
    )  # two ranks: half of the gradients
    assert _step_s(plan, grown, cluster=cluster) - whole == pytest.approx(each_s, rel=1e-6)


def test_memory_of_copies() -> None:
    plan = MeshPlan(tp=2, sequence_parallel=True, num_micro_batches=4)

    def memory(**changes: float) -> dict[str, float]:
        costs = make.model_of(_graph(), 4, make.ideal_cluster(), replace(make.BARE, **changes)).evaluate_plans([plan])
        return {name: float(getattr(costs, name)[0]) for name in ("logits_bytes", "activation_bytes", "gradient_bytes")}

    bare, logits, gathered = memory(), memory(logits_copies=3.0), memory(gathered_copies=1.0)
    assert logits["logits_bytes"] - bare["logits_bytes"] == 2 * 4 * 32 * 512 / 2
    # Two matrices per block and the head read 32 x 64 numbers of 2 bytes, half of which the rank has already.
    assert gathered["activation_bytes"] - bare["activation_bytes"] == (2 * 2 + 1) * 32 * 64 * 2 / 2
    assert memory(gradient_copies=1.0)["gradient_bytes"] == 1.5 * bare["gradient_bytes"]


@pytest.mark.parametrize(
    ("copies", "kept"),
    [
        # Plain autograd keeps the activation of a gate.
        ("autograd_copies", 2 * 32 * 96 * 2),
        # Norms that are written out keep four bytes and two in place of two, two in each of two blocks and the one before the head.
        ("norm_copies", 5 * 4 * 32 * 64),
    ],
)
def test_copies_that_are_kept_for_the_backward_pass(copies: str, kept: int) -> None:
    graph = decoder(blocks=2, features=64, ffn=96, positions=32)
    found = []
    for number in (0.0, 1.0):
        model = make.model_of(graph, 4, make.ideal_cluster(), replace(make.BARE, **{copies: number}))
        found.append(float(model.evaluate_plans([MeshPlan(num_micro_batches=4)]).activation_bytes[0]))
    assert found[1] - found[0] == kept


def test_the_host_calls_an_adapter_as_one_module() -> None:
    """One kernel forward, and backward, at half of the price, one for it and one that adds its gradients to their sums."""

    def seconds(*names: str) -> float:
        graph = decoder(blocks=2, features=64, ffn=96, positions=32)
        layers = tuple(
            replace(layer, frozen=True, lora_rank=4 if layer.name.split(".")[-1] in names else 0)
            for layer in graph.layers
        )
        slow = replace(make.BARE, host_launch_s=1.0, bare_launch=0.5)
        model = make.model_of(replace(graph, layers=layers), 4, make.ideal_cluster(), slow)
        return float(model.evaluate_plans([MeshPlan(num_micro_batches=4)]).step_time_s[0])

    assert seconds("qkv", "up") - seconds("qkv") == pytest.approx(4 * 2 * (1.0 + 0.5 + 0.5), rel=1e-6)


def test_replicas_keep_their_buckets_beside_the_gradients() -> None:
    def gradients(copies: float, **plan: int) -> float:
        model = make.model_of(_graph(), 4, make.ideal_cluster(), replace(make.BARE, bucket_copies=copies))
        return float(model.evaluate_plans([MeshPlan(**plan)]).gradient_bytes[0])  # type: ignore[arg-type]

    alone = gradients(0.0, num_micro_batches=4)  # 4 bytes per weight
    assert gradients(1.0, num_micro_batches=4) == alone
    assert gradients(1.0, dp_replicate=2, num_micro_batches=2) == 1.5 * alone
    assert gradients(1.0, dp_shard=2, zero_stage=1, num_micro_batches=2) == alone


def test_whole_gradients_travel_when_the_backward_pass_is_over() -> None:
    """They hide as much behind the passes as without overlap: nothing. Copies of the optimizer know no whole gradients."""
    plan = MeshPlan(dp_shard=2, zero_stage=1, num_micro_batches=2)
    hiding = replace(make.BARE, dp_overlap=1.0, bucket_bytes=1.0)
    times = {overlap: _step_s(plan, replace(hiding, zero_whole=1.0, dp_overlap=overlap)) for overlap in (0.0, 1.0)}
    assert times[0.0] == pytest.approx(times[1.0], rel=1e-12)
    assert _step_s(plan, hiding) < _step_s(plan, replace(hiding, dp_overlap=0.0)) < times[0.0]
    copies = MeshPlan(dp_replicate=2, num_micro_batches=2)
    assert _step_s(copies, replace(hiding, zero_whole=1.0)) == _step_s(copies, hiding)


def test_copies_that_exchange_after_the_backward_pass() -> None:
    """Without ZeRO nothing hides; where ranks share the optimizer it is as before."""
    hiding = replace(make.BARE, dp_overlap=1.0, bucket_bytes=1.0)
    after = replace(hiding, replica_overlap=0.0)
    copies = MeshPlan(dp_replicate=2, num_micro_batches=2)
    assert _step_s(copies, hiding) < _step_s(copies, after) == _step_s(copies, replace(hiding, dp_overlap=0.0))
    for stage in (1, 2, 3):
        shared = MeshPlan(dp_shard=2, zero_stage=stage, num_micro_batches=2)
        assert _step_s(shared, after) == _step_s(shared, hiding)


def test_gradients_of_the_embedding_come_last_and_are_not_hidden() -> None:
    """A device so slow that it hides all else; 512 x 64 weights of 4 bytes go twice over half a ring of two ranks, at 1 GB/s."""
    cluster = make.ideal_cluster(peak=1e6, memory_bandwidth=1e5, bandwidth=1e9)
    hiding = replace(make.BARE, dp_overlap=1.0, bucket_bytes=1.0)
    model = make.model_of(_graph(), 4, cluster, hiding)
    plans = [
        MeshPlan(dp_replicate=2, num_micro_batches=2),
        MeshPlan(dp_replicate=2, pp=2, num_micro_batches=2, stage_blocks=(1, 1)),
    ]
    for plan in plans:  # the first stage holds it, and ends last
        exposed = model.evaluate_plans([plan]).dp_exposed_s[0]
        shared = (
            512 * 64 * 4 / 1e9 if plan.pp > 1 else 0.0
        )  # both stages have a copy of tied weights, whose gradients they add up
        assert exposed - shared == pytest.approx(512 * 64 * 4 / 1e9, rel=1e-6)


def test_the_head_hides_no_exchange() -> None:
    """Its gradients are the first, so that nothing travels behind them: a slow link shows all that front and blocks do not hide."""
    plan = MeshPlan(dp_replicate=2, num_micro_batches=2)
    hidden = []
    for vocabulary in (512, 4096):
        graph = decoder(blocks=2, features=64, kv_heads=4, ffn=96, positions=32, vocabulary=vocabulary)
        cluster = make.ideal_cluster(peak=1e9, memory_bandwidth=1e30, bandwidth=1e6)
        shown = [
            make.model_of(graph, 4, cluster, replace(make.BARE, dp_overlap=share, bucket_bytes=1.0))
            .evaluate_plans([plan])
            .dp_exposed_s[0]
            for share in (0.0, 1.0)
        ]
        hidden.append(shown[0] - shown[1])
    assert hidden[0] == pytest.approx(hidden[1], rel=1e-6)
    # Backward, two blocks take twice their products: four matrices of 64 x 64, three of 64 x 96, and half of or all 32 x 32 scores twice.
    matrices, scores = 2 * 32 * (4 * 64 * 64 + 3 * 64 * 96), 2 * 2 * 32 * 32 * 64
    assert 2 * 2 * (matrices + scores / 2) / 1e9 < hidden[0] < 2 * 2 * (matrices + scores) / 1e9 * 1.1


def test_whole_gradients_travel_twice_as_far_as_their_shares() -> None:
    cluster = make.ideal_cluster(bandwidth=1e9)
    size = 4.0 * sum(layer.weight_count for layer in _graph().layers)
    plan = MeshPlan(dp_shard=2, zero_stage=1, num_micro_batches=2)
    found = [_step_s(plan, replace(make.BARE, zero_whole=whole), cluster=cluster) for whole in (0.0, 1.0)]
    assert found[1] - found[0] == pytest.approx(0.5 * size / 1e9, rel=1e-9)  # of two ranks each has half
    for stage in (0, 2, 3):
        other = replace(plan, zero_stage=stage, dp_shard=2 if stage else 1, dp_replicate=1 if stage else 2)
        assert _step_s(other, replace(make.BARE, zero_whole=1.0)) == _step_s(other, make.BARE)


def test_gathered_weights_are_put_in_their_places_one_by_one() -> None:
    tensors = sum(layer.has_weights for layer in _graph().layers)
    for stage, pieces in ((1, 2 * tensors), (2, 2 * tensors), (3, 0)):
        plan = MeshPlan(dp_shard=2, zero_stage=stage, num_micro_batches=2)
        more = _step_s(plan, replace(make.BARE, shard_piece_s=1e-3)) - _step_s(plan, make.BARE)
        assert more == pytest.approx(pieces * 1e-3, rel=1e-9, abs=1e-12)
    alone = MeshPlan(dp_replicate=2, num_micro_batches=2)
    assert _step_s(alone, replace(make.BARE, shard_piece_s=1e-3)) == _step_s(alone, make.BARE)


def test_an_update_starts_kernels_for_every_tensor() -> None:
    plan, some = MeshPlan(num_micro_batches=4), replace(make.BARE, host_launch_s=2e-3, bare_launch=0.5)
    # With as many launches that they last longer than the update itself: each adds a millisecond per tensor.
    tensors = sum(layer.has_weights for layer in _graph().layers)
    more = _step_s(plan, replace(some, update_launches=20.0)) - _step_s(plan, replace(some, update_launches=10.0))
    assert more == pytest.approx(10 * 1e-3 * tensors, rel=1e-9)


def test_gradients_are_read_and_written_beside_the_update() -> None:
    """Four passes over fp32 gradients: 16 bytes per weight that a rank updates, at the bandwidth of its memory."""
    device = make.ideal_cluster().groups[0].device
    rate = device.memory_bandwidth_bytes_per_s * device.efficiency.memory_fraction
    weights = sum(layer.weight_count + layer.norm_count for layer in _graph().layers)
    four = replace(make.BARE, gradient_passes=4.0)
    for plan, share in (
        (MeshPlan(num_micro_batches=4), 1),
        (MeshPlan(dp_replicate=2, num_micro_batches=2), 1),
        (MeshPlan(dp_shard=2, zero_stage=1, num_micro_batches=2), 2),
        (MeshPlan(dp_shard=2, zero_stage=1, num_micro_batches=2, offload_optimizer=True), 2),
    ):
        more = _step_s(plan, four) - _step_s(plan, make.BARE)
        assert more == pytest.approx(16.0 * weights / share / rate, rel=1e-6)
    # Ranks that add up whole gradients find the norm of whole gradients.
    plan = MeshPlan(dp_shard=2, zero_stage=1, num_micro_batches=2)
    whole = [_step_s(plan, replace(make.BARE, zero_whole=1.0, gradient_passes=passes)) for passes in (0.0, 4.0)]
    assert whole[1] - whole[0] == pytest.approx(16.0 * weights / rate, rel=1e-6)


@pytest.mark.exact
def test_more_of_anything_is_never_quicker() -> None:
    plans = [
        MeshPlan(tp=2, sequence_parallel=True, pp=2, num_micro_batches=4),
        MeshPlan(dp_shard=2, zero_stage=3, num_micro_batches=2),
        MeshPlan(dp_shard=2, zero_stage=1, num_micro_batches=2),
    ]
    names = (
        "host_launch_s",
        "host_collective_s",
        "collective_wait_s",
        "contended_step_s",
        "update_launches",
        "gradient_passes",
        "shard_piece_s",
    )
    for name in names:
        times = [
            make.model_of(_graph(), 4, make.ideal_nodes(2), replace(make.BARE, **{name: value}))
            .evaluate_plans(plans)
            .step_time_s
            for value in (0.0, 1e-5, 1e-3)
        ]
        assert np.all(np.diff(times, axis=0) >= 0)


def _sharded_s(assumptions: MeshAssumptions, plan: MeshPlan, blocks: int) -> float:
    model = make.model_of(_graph(blocks), 8, make.ideal_cluster(bandwidth=1e15), assumptions)
    return float(model.evaluate_plans([plan]).step_time_s[0])


def test_captured_kernels_take_the_host_no_time() -> None:
    """All of a dense network; of a mixture the products of its experts remain, two forward and four backward for each of four."""
    slow = replace(
        make.BARE, host_launch_s=1.0, expert_launches=0.5, captured=1.0, expert_capacity=1.0, expert_padding=1.0
    )
    cluster = make.ideal_cluster(peak=1e15, memory_bandwidth=1e15)
    for experts, seconds in ((0, 0.0), (4, 0.5 * 4 * (2 + 0.5 * 4))):
        graph = decoder(blocks=2, experts=experts)
        steps = [
            float(make.model_of(graph, 3, cluster, some).evaluate_plans([MeshPlan(num_micro_batches=3)]).step_time_s[0])
            for some in (
                slow,
                replace(slow, host_launch_s=0.0),
                replace(slow, captured=0.5),
                replace(slow, captured=0.0),
            )
        ]
        assert steps[0] - steps[1] == pytest.approx(3 * 2 * seconds, abs=1e-3)
        assert steps[2] - steps[0] == pytest.approx(steps[3] - steps[2], rel=1e-6)
        assert steps[3] > steps[2] > steps[0]


@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_collectives_of_sharded_weights_are_started_too(recompute: str) -> None:
    """Per block and micro-batch: a gather in each pass, and a scatter (PyTorch FSDP); a block that runs again gathers once for both."""
    slow = replace(HOST, host_collective_s=COLLECTIVE_S)
    plan = MeshPlan(dp_shard=2, zero_stage=3, num_micro_batches=4, recompute=recompute)  # type: ignore[arg-type]
    plan = replace(plan, recompute_blocks=4 if recompute == "full" else 0)
    four, two = ((_sharded_s(slow, plan, n) - _sharded_s(HOST, plan, n)) for n in (4, 2))
    assert (four - two) / 2 == pytest.approx(4 * 3 * COLLECTIVE_S, rel=1e-3)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_weights_of_backward_passes_may_be_waited_for(recompute: str) -> None:
    """Compute hides all that is gathered and scattered, or all but what backward passes need: 16-bit weights, once per micro-batch."""
    cluster = make.ideal_cluster(peak=1e9, memory_bandwidth=1e15, bandwidth=1e9)
    plan = MeshPlan(dp_shard=2, zero_stage=3, num_micro_batches=4, recompute=recompute)  # type: ignore[arg-type]

    def block_s(share: float) -> float:
        assumptions = replace(HOST, dp_overlap=1.0, gather_overlap=share)
        four, two = (
            make.model_of(_graph(blocks), 8, cluster, assumptions).evaluate_plans(
                [replace(plan, recompute_blocks=blocks if recompute == "full" else 0)]
            )
            for blocks in (4, 2)
        )
        return float(four.step_time_s[0] - two.step_time_s[0]) / 2

    weights = (sum(n.weight_count for n in _graph(4).layers) - sum(n.weight_count for n in _graph(2).layers)) / 2
    gathered = 4 * 2.0 * weights / 2 / 1e9  # half of them, of 16 bits, from the other rank
    assert block_s(0.0) - block_s(1.0) == pytest.approx(gathered, rel=1e-6)
    assert block_s(0.5) - block_s(1.0) == pytest.approx(gathered / 2, rel=1e-6)


def test_weights_that_are_not_sharded_start_nothing() -> None:
    slow = replace(HOST, host_collective_s=COLLECTIVE_S)
    for plan in (
        MeshPlan(dp_shard=2, zero_stage=2, num_micro_batches=4),
        MeshPlan(dp_replicate=2, num_micro_batches=4),
    ):
        assert _sharded_s(slow, plan, 4) == pytest.approx(_sharded_s(HOST, plan, 4), rel=1e-9)


def test_a_slow_device_hides_the_collectives_of_sharded_weights() -> None:
    cluster = make.ideal_cluster(peak=1e6, memory_bandwidth=1e5, bandwidth=1e15)
    plan = MeshPlan(dp_shard=2, zero_stage=3, num_micro_batches=4)
    times = [
        float(make.model_of(_graph(), 8, cluster, assumed).evaluate_plans([plan]).step_time_s[0])
        for assumed in (HOST, replace(HOST, host_collective_s=COLLECTIVE_S))
    ]
    assert times[0] == times[1]


def test_what_devices_wait_for_hosts_is_part_of_the_compute() -> None:
    """Of kernels that take no time, all of it; of slow ones nothing; between, what the host needs beyond the device."""
    plan = MeshPlan(num_micro_batches=4)

    def costs(cluster: Cluster, assumptions: MeshAssumptions) -> tuple[float, float]:
        found = make.model_of(_graph(), 4, cluster, assumptions).evaluate_plans([plan])
        return float(found.compute_s[0]), float(found.host_s[0])

    bare, _ = costs(make.ideal_cluster(), replace(HOST, host_launch_s=0.0))
    compute, host = costs(make.ideal_cluster(), HOST)
    assert host == pytest.approx(compute - bare, rel=1e-12)
    assert host > 0.99 * compute
    slow = make.ideal_cluster(peak=1e6, memory_bandwidth=1e5)
    assert costs(slow, replace(HOST, host_launch_s=1e-9))[1] == 0.0
