"""Memory against Korthikanti et al. (arXiv:2205.05198), Rajbhandari et al. (arXiv:1910.02054) and Narayanan et al. (arXiv:2104.04473)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from costmodel.framework import Defaults, Framework, Selective
from costmodel.hardware.cluster import Cluster, DeviceGroup
from costmodel.hardware.device import Device
from costmodel.mesh.detail import layer_rows, stage_rows
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MEMORY_PARTS, MeshBatch, MeshPlan
from costmodel.network.graph import Graph
from costmodel.network.layers import Layer
from costmodel.precision import PRECISIONS
from planner.importers.networks import load_model
from tests.costmodel.mesh import plans as make
from tests.networks import Layers
from tests.strategies.mesh.networks import decoder, workload_of

B, S, H, A = 2, 32, 64, 4  # samples of a micro-batch, positions, features, heads
SBH = S * B * H


def _block_bytes(plan: MeshPlan, **network: object) -> float:
    """What one more block adds to the activations of one micro-batch."""
    found = []
    for blocks in (2, 3):
        graph = make.gpt(blocks=blocks, features=H, heads=A, positions=S, **network)  # type: ignore[arg-type]
        own = replace(plan, recompute_blocks=blocks if plan.recompute == "full" else 0, micro_batch=B)
        model = make.model_of(graph, B * own.dp, make.ideal_cluster())
        found.append(float(model.evaluate_plans([own]).activation_bytes[0]))
    return found[1] - found[0]


T1, T4, T4S = MeshPlan(), MeshPlan(tp=4), MeshPlan(tp=4, sequence_parallel=True)
SCORES = 5 * A * S / H


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (T1, 34 + SCORES),  # equation 1
        (T4, 10 + 24 / 4 + SCORES / 4),  # equation 2
        (T4S, (34 + SCORES) / 4),  # equation 4
        (MeshPlan(cp=2), (34 + SCORES) / 2),  # as sequence parallelism, but scores are of half the queries and all keys
    ],
)
def test_activations_of_a_block_are_those_of_korthikanti(plan: MeshPlan, expected: float) -> None:
    assert _block_bytes(plan) == pytest.approx(SBH * expected, rel=1e-12)


@pytest.mark.parametrize(("plan", "expected"), [(T1, 2.0), (T4, 2.0), (T4S, 0.5)])
def test_full_recomputation_keeps_the_input_of_a_block(plan: MeshPlan, expected: float) -> None:
    assert _block_bytes(replace(plan, recompute="full")) == pytest.approx(SBH * expected, rel=1e-12)


@pytest.mark.parametrize(("plan", "expected"), [(T1, 2 + 6 + 2 + 8), (T4, 4 + 14 / 4), (T4S, 18 / 4)])
def test_selective_recomputation_keeps_what_matrices_and_sums_make(plan: MeshPlan, expected: float) -> None:
    """The paper's runs only the attention again (34 sbh); here also norms, activations and dropout.

    What stays: the input of the block (2), queries, keys and values (6), the first sum (2), what enters the activation (8). The masks are
    drawn again from the same seed, which needs no input.
    """
    assert _block_bytes(replace(plan, recompute="selective")) == pytest.approx(SBH * expected, rel=1e-12)


@pytest.mark.exact
def test_selective_recomputation_never_keeps_more() -> None:
    for network in ({}, {"dropout": False}, {"fused": True}, {"fused": True, "dropout": False}):
        for plan in (T1, T4, T4S):
            assert _block_bytes(replace(plan, recompute="selective"), **network) <= _block_bytes(plan, **network)


def test_a_fused_attention_keeps_no_scores() -> None:
    # 34 without the mask and the copy of the scores; the logarithm of every row's sum in fp32.
    assert _block_bytes(T1, fused=True) == pytest.approx(34 * SBH + 4 * A * S * B, rel=1e-12)
    # Without dropout two masks of a byte less.
    assert _block_bytes(T1, fused=True, dropout=False) == pytest.approx(32 * SBH + 4 * A * S * B, rel=1e-12)


BUCKET = 5e4


@pytest.mark.parametrize(
    ("plan", "blocks", "other"),
    [
        (T1, 0, 0),
        (T4, 0, 0),
        (T4S, 3, 0),  # the gathered input of a matrix, the partial sums that it leaves, and the gradient of one of them
        (MeshPlan(pp=2), 2, 0),  # what a stage receives and what it sends
        (MeshPlan(pp=2, tp=4, sequence_parallel=True), 3 + 2 / 4, 0),  # a share each
        (MeshPlan(dp_replicate=2), 0, 2 * BUCKET),  # one that fills while one travels
        # Two of keys, values and their gradients, too.
        (MeshPlan(cp=2, pp=2), (2 + 2 * 4) / 2, 2 * BUCKET),
    ],
)
def test_communication_buffers_by_hand(plan: MeshPlan, blocks: float, other: float) -> None:
    """In tensors that enter a block: positions, samples and features of 16 bits."""
    graph, assumptions = make.gpt(blocks=2, features=H, heads=A, positions=S), replace(make.BARE, bucket_bytes=BUCKET)
    model = make.model_of(graph, 2 * B * plan.dp, make.ideal_cluster(), assumptions)
    costs = model.evaluate_plans([replace(plan, micro_batch=B, num_micro_batches=2)])
    assert costs.buffer_bytes[0] == pytest.approx(2 * SBH * blocks + other, rel=1e-12)


def test_buckets_hold_no_more_than_all_gradients() -> None:
    graph, assumptions = make.gpt(blocks=2, features=H, heads=A, positions=S), replace(make.BARE, bucket_bytes=1e12)
    model = make.model_of(graph, 2 * B, make.ideal_cluster(), assumptions)
    costs = model.evaluate_plans([MeshPlan(dp_replicate=2, micro_batch=B)])
    assert costs.buffer_bytes[0] == pytest.approx(costs.gradient_bytes[0], rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_repeated_key_and_value_heads_are_kept_too(tp: int) -> None:
    """2 heads of keys and values over up to 8 ranks: each rank keeps at least one of each."""
    features, heads, kv, ffn, positions, dim = 64, 8, 2, 128, 16, 8
    found = []
    for blocks in (2, 3):
        graph = decoder(blocks=blocks, features=features, heads=heads, kv_heads=kv, ffn=ffn, positions=positions)
        model = make.model_of(graph, 1, make.ideal_cluster())
        found.append(float(model.evaluate_plans([MeshPlan(tp=tp)]).activation_bytes[0]))
    whole = 2 * features * 4  # both norms: what enters and what leaves
    qkv = 2 * (heads // tp + 2 * max(kv // tp, 1)) * dim
    split = 2 * features + 2 * (2 * ffn) + 2 * ffn  # what proj reads, gate and value, what down reads
    logarithms = 4 * heads / tp
    assert found[1] - found[0] == pytest.approx(positions * (whole + qkv + split / tp + logarithms), rel=1e-12)


# -- weights, gradients, state ---------------------------------------------------------------------------------------------


def _gpt_weights(blocks: int, vocabulary: int) -> int:
    return vocabulary * H + blocks * (12 * H * H + 13 * H) + 2 * H


@pytest.mark.parametrize(
    ("stage", "replicate", "shard", "cp"),
    [(0, 4, 1, 1), (1, 1, 4, 1), (2, 1, 4, 1), (3, 1, 4, 1), (3, 2, 4, 1), (2, 2, 2, 4), (1, 1, 1, 4)],
)
def test_zero_memory_is_that_of_rajbhandari(stage: int, replicate: int, shard: int, cp: int) -> None:
    """Figure 1: (2 + 2 + K) psi with K = 12, then state, gradients and weights over N; our gradients accumulate in 4 bytes."""
    model = make.model_of(make.gpt(blocks=2), 8, make.ideal_cluster())
    plan = MeshPlan(
        dp_replicate=replicate, dp_shard=shard, zero_stage=stage, cp=cp, num_micro_batches=8 // (replicate * shard)
    )
    costs = model.evaluate_plans([plan])
    psi, n = _gpt_weights(2, 512), shard * cp
    assert model.workload.graph.weight_count == psi
    assert costs.weight_bytes[0] == pytest.approx(2 * psi / (n if stage >= 3 else 1), rel=1e-12)
    assert costs.gradient_bytes[0] == pytest.approx(4 * psi / (n if stage >= 2 else 1), rel=1e-12)
    assert costs.optimizer_bytes[0] == pytest.approx(12 * psi / (n if stage >= 1 else 1), rel=1e-12)


def test_optimizer_state_on_the_host_leaves_the_device() -> None:
    model = make.model_of(make.gpt(blocks=2), 4, make.ideal_cluster())
    costs = model.evaluate_plans([MeshPlan(num_micro_batches=4, offload_optimizer=True)])
    assert costs.optimizer_bytes[0] == 0.0
    assert costs.host_bytes[0] == pytest.approx(12 * _gpt_weights(2, 512), rel=1e-12)


@pytest.mark.parametrize(("again", "per_block"), [(6, 2), (5, 34 + SCORES)], ids=["all", "all but one"])
def test_activations_on_the_host_leave_what_two_blocks_keep(again: int, per_block: float) -> None:
    """Six blocks: inputs of 2 s b h bytes where all are run again, of which two wait; a block that is not keeps (34 + 5 a s / h) s b h."""
    plan = MeshPlan(micro_batch=B, recompute="full", recompute_blocks=again)
    graph = make.gpt(blocks=6, features=H, heads=A, positions=S, dropout=True)
    model = make.model_of(graph, B, make.ideal_cluster())
    on_device, away = model.evaluate_plans([plan, replace(plan, offload_activations=True)]).activation_bytes
    kept = SBH * (2 * again + (6 - again) * (34 + SCORES))
    assert on_device - away == pytest.approx(max(kept - 2 * SBH * per_block, 0.0), rel=1e-9)


def test_experts_are_shared_over_the_ranks_that_hold_the_same_ones() -> None:
    """8 ranks, ep 4: an expert has 2 copies, everything else 8 (DeepSpeed-MoE, arXiv:2201.05596, section 5.3)."""
    features, ffn, experts = 64, 128, 4
    graph = decoder(blocks=2, features=features, ffn=ffn, experts=experts)
    routed = 2 * experts * 3 * features * ffn
    rest = graph.weight_count - routed
    model = make.model_of(graph, 8, make.ideal_cluster())
    costs = model.evaluate_plans([MeshPlan(dp_shard=8, zero_stage=stage, ep=4) for stage in (1, 3)])
    assert costs.weight_bytes[0] == pytest.approx(2 * (rest + routed / 4), rel=1e-12)
    assert costs.optimizer_bytes[0] == pytest.approx(12 * (rest / 8 + routed / 4 / 2), rel=1e-12)
    assert costs.weight_bytes[1] == pytest.approx(2 * (rest / 8 + routed / 8), rel=1e-12)


def _frozen_tied(graph: Graph) -> Graph:
    """All weights frozen but the matrices of the blocks, which have adapters."""
    return replace(
        graph,
        layers=tuple(
            replace(layer, lora_rank=4) if layer.kind == "linear" and layer.block else replace(layer, frozen=True)
            for layer in graph.layers
        ),
    )


def test_frozen_tied_weights_have_no_state() -> None:
    graph = _frozen_tied(make.gpt(blocks=2, vocabulary=50000))
    model = make.model_of(graph, 4, make.ideal_cluster())
    rows = stage_rows(model, MeshPlan(pp=2, num_micro_batches=4))
    adapters = 4 * (H + 3 * H + H + H + H + 4 * H + 4 * H + H)  # r (in + out) of four matrices
    assert [row.optimizer_bytes for row in rows] == pytest.approx([12 * adapters] * 2, rel=1e-12)


def test_the_last_stage_keeps_a_copy_of_tied_weights() -> None:
    model = make.model_of(make.gpt(blocks=4, vocabulary=1000), 4, make.ideal_cluster())
    rows = stage_rows(model, MeshPlan(pp=2, num_micro_batches=4, stage_blocks=(2, 2)))
    table, blocks = 1000 * H, 2 * (12 * H * H + 13 * H)
    assert [row.weight_bytes for row in rows] == pytest.approx(
        [2 * (table + blocks), 2 * (table + blocks + 2 * H)], rel=1e-12
    )


# -- stage by stage, and layer by layer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_parts_of_every_stage_add_up(recompute: str) -> None:
    model = make.model_of(make.gpt(blocks=8, vocabulary=5000), 64, make.ideal_cluster())
    plan = MeshPlan(pp=4, dp_shard=2, zero_stage=1, num_micro_batches=8, recompute=recompute, offload_optimizer=True)
    rows, costs = stage_rows(model, plan), model.evaluate_plans([plan])
    for row in rows:
        assert sum(getattr(row, name) for name in MEMORY_PARTS) == pytest.approx(row.memory_bytes, rel=1e-12)
    fullest = max(rows, key=lambda row: row.memory_bytes)
    assert [getattr(fullest, name) for name in MEMORY_PARTS] == [
        float(getattr(costs, name)[0]) for name in MEMORY_PARTS
    ]
    assert max(row.host_bytes for row in rows) == costs.host_bytes[0] > 0
    # 1F1B: a stage has as many micro-batches as stages follow, and its own.
    assert [row.in_flight for row in rows] == [4, 3, 2, 1]


def test_the_layers_of_a_stage_keep_what_its_activations_are() -> None:
    model = make.model_of(make.gpt(blocks=8), 64, make.ideal_cluster())
    for recompute, name in (("none", "saved_bytes"), ("selective", "saved_selective_bytes")):
        plan = MeshPlan(tp=2, pp=4, micro_batch=2, num_micro_batches=8, recompute=recompute)
        row = stage_rows(model, plan)[1]  # two blocks
        layers = [layer for layer in layer_rows(model, plan) if layer.unit not in ("embedding", "head")]
        assert {layer.count for layer in layers} == {8}
        assert getattr(layers[-1], name) == 2 * S * H * 2  # what the next block reads, in 16 bits
        one = sum(getattr(layer, name) for layer in layers)
        assert row.activation_bytes == pytest.approx(2 * one * row.in_flight, rel=1e-12)


# -- micro-batches in flight -----------------------------------------------------------------------------------------------


def _rank_blocks(plan: MeshPlan) -> list[float]:
    """Activations of every rank in blocks and micro-batches; front and back apart."""
    found = []
    for blocks in (8, 16):
        graph = make.gpt(blocks=blocks, features=H, heads=A, positions=S)
        model = make.model_of(graph, plan.num_micro_batches, make.ideal_cluster())
        chunks = plan.pp * plan.vpp
        own = replace(plan, stage_blocks=(blocks // chunks,) * chunks)
        found.append([row.activation_bytes for row in stage_rows(model, own)])
    one = S * H * (34 + SCORES)
    return [(b - a) / one for a, b in zip(*found, strict=True)]


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "kept"),
    [
        ("1f1b", 16, [8, 6, 4, 2]),  # 2 more blocks per rank: 4, 3, 2, 1 micro-batches of each
        ("1f1b", 2, [4, 4, 4, 2]),
        ("gpipe", 16, [32] * 4),  # all
        ("zero_bubble", 16, [8] * 4),  # as many on every rank
    ],
)
def test_ranks_keep_the_micro_batches_of_their_schedule(schedule: str, micro_batches: int, kept: list[int]) -> None:
    found = _rank_blocks(MeshPlan(pp=4, num_micro_batches=micro_batches, schedule=schedule))
    assert found == pytest.approx(kept, rel=1e-12)


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (2, 4)])
def test_interleaving_keeps_more_by_the_published_factor(pp: int, vpp: int) -> None:
    """Korthikanti et al., section 4.2.3: (1 + (p - 1) / (p m)) as much on the first stage, m chunks per rank."""
    found = _rank_blocks(MeshPlan(pp=pp, vpp=vpp, num_micro_batches=16, schedule="interleaved"))[0]
    assert found == pytest.approx(8 * (1 + (pp - 1) / (pp * vpp)), rel=1e-12)


def test_logits_are_those_of_one_micro_batch() -> None:
    """fp32 logits (Korthikanti et al., section 4.3: 4 s b v), and the 16-bit ones that they are made from."""
    model = make.model_of(make.gpt(blocks=2, positions=S, vocabulary=1000), 4 * B, make.ideal_cluster())
    plans = [MeshPlan(micro_batch=B, num_micro_batches=4), MeshPlan(micro_batch=B, num_micro_batches=4, tp=4)]
    assert model.evaluate_plans(plans).logits_bytes.tolist() == pytest.approx([6 * S * B * 1000, 6 * S * B * 250])


@pytest.mark.parametrize(("copies", "bytes_per_logit"), [(0.5, 4), (1.0, 4), (2.0, 8), (3.0, 12)])
def test_logits_in_fp32_are_their_own_first_copy(copies: float, bytes_per_logit: int) -> None:
    model = make.model_of(
        make.gpt(blocks=2, positions=S, vocabulary=1000),
        B,
        make.ideal_cluster(),
        replace(make.BARE, logits_copies=copies),
    )
    wide = replace(model.workload, precision=PRECISIONS["fp32"])
    costs = MeshModel.build(wide, model.cluster, model.assumptions).evaluate_plans([MeshPlan(micro_batch=B)])
    assert costs.logits_bytes.tolist() == pytest.approx([bytes_per_logit * S * B * 1000])


def test_communicators_take_memory_on_several_devices() -> None:
    model = make.model_of(make.gpt(blocks=2), 8, make.ideal_cluster(), replace(make.BARE, communicator_bytes=3e9))
    costs = model.evaluate_plans([MeshPlan(num_micro_batches=8), MeshPlan(tp=2, num_micro_batches=8)])
    assert costs.context_bytes.tolist() == [model.workload.context_bytes, model.workload.context_bytes + 3e9]


def test_memory_does_not_depend_on_links_and_speeds() -> None:
    graph = make.gpt(blocks=4)
    plans = [MeshPlan(tp=2, pp=2, num_micro_batches=8), MeshPlan(dp_shard=4, zero_stage=3, num_micro_batches=2)]
    slow, fast = (
        MeshModel.build(workload_of(graph, c, 8), c).evaluate_plans(plans)
        for c in (make.ideal_cluster(), make.ideal_cluster(bandwidth=1e12, peak=1e15))
    )
    assert slow.memory_bytes.tolist() == fast.memory_bytes.tolist()


# --- What blocks keep where products run in fp8, against counts by hand -------------------------------------------------------------------


# 4 heads of queries, 2 of keys and 2 of values, of 16 features each.
_FEATURES, _INNER, _POSITIONS, _EXPERTS, _CHOSEN = 64, 96, 16, 8, 2


def _cluster() -> Cluster:
    one = make.ideal_cluster()
    peaks = {**one.device.peak_flop_per_s, "fp8": 2e12}
    device: Device = replace(one.device, peak_flop_per_s=peaks)
    return replace(one, groups=(DeviceGroup(device=device),))


def _kept(precision: str, *, experts: int = 0, column: str = "saved_bytes") -> float:
    graph = decoder(blocks=2, features=_FEATURES, ffn=_INNER, positions=_POSITIONS, experts=experts)
    cluster = _cluster()
    workload = workload_of(graph, cluster, 1, precision)
    model = MeshModel.build(workload, cluster, make.BARE)
    table = model.rows(MeshBatch.from_plans([MeshPlan()]))
    return float(getattr(table, column)[0, 1])


@pytest.mark.parametrize(
    ("column", "norms", "gate"),
    # Selective recomputation drops what norms and gates make, in any format.
    [("saved_bytes", -2 * _FEATURES, -_INNER), ("saved_selective_bytes", 0, 0)],
)
def test_products_keep_their_inputs_in_eight_bits(column: str, norms: int, gate: int) -> None:
    """Half the bytes of what norms and the gate make; what attention made stays for itself and, cast, for its product."""
    attention = _FEATURES
    assert _kept("fp8", column=column) - _kept("bf16", column=column) == _POSITIONS * (norms + attention + gate)


def test_experts_keep_their_tokens_in_eight_bits() -> None:
    """And what leaves their activation; the router reads the norm's output as it is, so that it stays."""
    found = _kept("fp8", experts=_EXPERTS) - _kept("bf16", experts=_EXPERTS)
    attention = -_FEATURES + _FEATURES
    assert found == _POSITIONS * (attention - _CHOSEN * (_FEATURES + _INNER))


@pytest.mark.parametrize("experts", [0, _EXPERTS])
def test_products_that_keep_them_as_they_are(experts: int) -> None:
    assert _kept("fp8-rowwise", experts=experts) == _kept("bf16", experts=experts)


# --- Selective recomputation of latent attention and of mixtures, against counts by hand; and its host ------------------------------------


POSITIONS, FEATURES, HEADS = 16, 64, 4
# Compressed queries, and keys and values with 8 features for the position; a head: 16 + 8 for scores, 16 for values.
Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 24, 32, 16, 8, 16


def _latent(blocks: int = 2) -> Graph:
    """A decoder whose attention is that of DeepSeek, without anything behind it."""
    layers = Layers()
    add = layers.add

    def matrix(name: str, source: str, width: int, block: str) -> str:
        return add(name, "linear", source, block=block, out_features=width, bias=False)

    previous = add(
        "embedding", "embedding", add("tokens", "input", shape=(1, POSITIONS)), num_embeddings=64, dim=FEATURES
    )
    for n in range(blocks):
        block = f"blocks.{n}"
        norm = add("norm", "rms_norm", previous, block=block)
        q_norm = add("q_norm", "rms_norm", matrix("q_a", norm, Q_RANK, block), block=block)
        queries = matrix("q_b", q_norm, HEADS * (NOPE + ROPE), block)
        both = matrix("kv_a", norm, KV_RANK + ROPE, block)
        kv_norm = add(
            "kv_norm", "rms_norm", add("kv", "slice_features", both, block=block, features=KV_RANK), block=block
        )
        keys = matrix("kv_b", kv_norm, HEADS * (NOPE + VALUE), block)
        attention = add(
            "attention", "latent_attention", queries, keys, both, block=block,
            heads=HEADS, nope_dim=NOPE, rope_dim=ROPE, value_dim=VALUE,
        )  # fmt: skip
        previous = add("add", "add", matrix("proj", attention, FEATURES, block), previous, block=block)
    add("loss", "softmax", add("head", "linear", previous, out_features=64, bias=False))
    return layers.graph("latent")


def _of_a_block(graph: Graph, column: str) -> float:
    model = make.model_of(graph, 1, make.ideal_cluster())
    return float(getattr(model.rows(MeshBatch.from_plans([MeshPlan()])), column)[0, 1])


def test_latent_attention_keeps_narrow_vectors() -> None:
    """Not what three norms and the two matrices behind them make; 16 bits per number."""
    dropped = FEATURES + Q_RANK + KV_RANK + HEADS * (NOPE + ROPE) + HEADS * (NOPE + VALUE)
    graph = _latent()
    saved = _of_a_block(graph, "saved_bytes") - _of_a_block(graph, "saved_selective_bytes")
    # The slice is made again with the norm that reads it: it is no tensor of its own.
    assert saved == 2 * POSITIONS * dropped


def test_matrices_that_spread_latent_vectors_run_again() -> None:
    """Their products, and the norms with 4 FLOP per number, at 1 TFLOP/s; memory is free."""
    model = make.model_of(_latent(), 1, make.ideal_cluster(memory_bandwidth=1e30))
    flop = 2 * POSITIONS * (Q_RANK * HEADS * (NOPE + ROPE) + KV_RANK * HEADS * (NOPE + VALUE))
    flop += 4 * POSITIONS * (FEATURES + Q_RANK + KV_RANK)
    found = float(model.rows(MeshBatch.from_plans([MeshPlan()])).selective_s[0, 1])
    assert found == pytest.approx(flop / 1e12, rel=1e-6)


def test_mixtures_make_their_activations_again() -> None:
    """2 of 8 experts of 96 inner features, as a feed-forward part of 192; and two norms."""
    graph = decoder(blocks=2, ffn=96, positions=POSITIONS, experts=8)
    dropped = _of_a_block(graph, "saved_bytes") - _of_a_block(graph, "saved_selective_bytes")
    assert dropped == 2 * POSITIONS * (2 * FEATURES + 2 * 96)


# What a rank of torchtitan keeps of a position of a block of Llama 3 8B, in numbers of 16 bits: what enters the block; of the products
# wq, wk, wv, wo, w1, w3, w2 every other one, wq, wv, w1 and w2; what attention makes, and two of them for the sum of each of 32 rows.
# Under sequence parallelism the outputs of wo and w2 are kept as they are scattered, and that of w2 as it is multiplied, too.
_OPERATORS = Framework(defaults=Defaults(selective="operators"))
_KEPT = [
    (T1, 4096 + (4096 + 1024 + 14336 + 4096) + 4096 + 64),
    (replace(T1, tp=2), 4096 + (2048 + 512 + 7168 + 4096) + 2048 + 32),
    (replace(T1, tp=2, sequence_parallel=True), 2048 + (2048 + 512 + 7168 + 4096) + 2048 + 32 + 2048 + 2048),
]


@pytest.mark.parametrize(("plan", "kept"), _KEPT)
def test_operators_that_torchtitan_keeps(plan: MeshPlan, kept: int) -> None:
    graph = load_model("llama3-8b").graph
    model = make.model_of(graph, 1, make.ideal_cluster(memory_bandwidth=1e30), framework=_OPERATORS)
    rows = model.rows(MeshBatch.from_plans([plan]))
    assert rows.saved_selective_bytes[0, 1] == 2 * 8192 * kept
    if plan.tp == 1:  # wk, wo and w3; norms with 4 FLOP per number, two sums with 1, the gate with 6
        flop = 2 * 4096 * (1024 + 4096 + 14336) + 2 * 4 * 4096 + 2 * 4096 + 6 * 14336
        assert rows.selective_s[0, 1] == pytest.approx(8192 * flop / 1e12, rel=1e-9)


def test_experts_run_again_but_not_their_exchanges() -> None:
    """2 of 8 experts per token: its copies are kept as they arrive and as they come back, where they go to other ranks."""
    graph = decoder(blocks=2, ffn=96, positions=POSITIONS, experts=8)
    model = make.model_of(graph, 2, make.ideal_cluster(), framework=_OPERATORS)
    plans = [MeshPlan(dp_shard=2, zero_stage=1), MeshPlan(dp_shard=2, zero_stage=1, ep=2)]
    alone, spread = model.rows(MeshBatch.from_plans(plans)).saved_selective_bytes[:, 1]
    assert spread - alone == 2 * POSITIONS * 2 * (2 * FEATURES)


def _changed(graph: Graph, **changes: Callable[[Layer], object]) -> Graph:
    """Every layer with some fields as functions of it say."""
    made = (replace(each, **{name: of(each) for name, of in changes.items()}) for each in graph.layers)
    return replace(graph, layers=tuple(made))


def test_operators_kept_of_adapters() -> None:
    """Matrix, first and second product of an adapter are counted one after the other, for each of wq, wk, wv, wo, w1, w3, w2.

    Kept are odd ones of the 21: both wide products of wq, wv, w1 and w2, and the narrow one of wk, wo and w3. Of an adapter of rank 12 the
    three matrices before attention have 4 each, and both halves of the gated unit 6. Blocks before the first adapter keep nothing.
    """
    graph = decoder(blocks=2, features=64, heads=8, kv_heads=2, ffn=224, positions=32)
    rank = lambda each: 12 if each.kind == "linear" and each.block == "blocks.1" else 0  # noqa: E731
    graph = _changed(graph, frozen=lambda _: True, lora_rank=rank)
    model = make.model_of(graph, 1, make.ideal_cluster(memory_bandwidth=1e30), framework=_OPERATORS)
    rows = model.rows(MeshBatch.from_plans([T1]))
    kept = 64 + (2 * 64 + 4 + 2 * 16) + (64 + 2 * 8) + 12 + (2 * 224 + 6) + 2 * 64
    assert rows.saved_selective_bytes[0].tolist()[1:3] == [0.0, 2 * 32 * kept]
    matrices = 2 * 64 * (16 + 64 + 224)  # wk, wo, w3
    into = 2 * 64 * (4 + 4 + 6) + 2 * 224 * 12  # wq, wv, w1, w2
    out = 2 * 12 * (16 + 64 + 224) + (96 + 64 + 448 + 64)  # and the sum of every matrix with its adapter
    rest = 2 * 4 * 64 + 2 * 64 + 6 * 224
    assert rows.selective_s[0].tolist()[1:3] == pytest.approx([0.0, 32 * (matrices + into + out + rest) / 1e12])


def test_frozen_layers_of_a_trained_block_run_again_too() -> None:
    graph = decoder(blocks=1)
    model = make.model_of(graph, 1, make.ideal_cluster(), framework=_OPERATORS)
    last = _changed(graph, frozen=lambda each: not each.name.endswith("down"))
    half = make.model_of(last, 1, make.ideal_cluster(), framework=_OPERATORS)
    plans = MeshBatch.from_plans([T1])
    assert half.rows(plans).selective_s[0, 1] == pytest.approx(model.rows(plans).selective_s[0, 1])


@pytest.mark.parametrize("shared", [0, 48])
def test_operators_kept_of_shared_experts(shared: int) -> None:
    """Behind wq, wk, wv and wo, their products are the fifth to seventh: the first and the last are kept, the other half runs again."""
    graph = decoder(blocks=1, ffn=96, positions=POSITIONS, experts=8)
    params = lambda each: replace(each.params, shared_ffn=shared) if each.kind == "moe" else each.params  # noqa: E731
    mixed = _changed(graph, params=params)
    cluster = make.ideal_cluster(memory_bandwidth=1e30)
    plain, rows = (
        make.model_of(net, 1, cluster, framework=_OPERATORS).rows(MeshBatch.from_plans([T1])) for net in (graph, mixed)
    )
    kept = bool(shared) * (shared + FEATURES)
    assert rows.saved_selective_bytes[0, 1] - plain.saved_selective_bytes[0, 1] == 2 * POSITIONS * kept
    again = 2 * FEATURES * shared + 6 * shared
    assert rows.selective_s[0, 1] - plain.selective_s[0, 1] == pytest.approx(POSITIONS * again / 1e12)


@pytest.mark.parametrize("selective", ["cheap", "modules", "operators"])
def test_what_is_made_again_is_of_what_nothing_recomputed_keeps(selective: Selective) -> None:
    """And with what is kept it is at least that; the rest of what is kept only serves to run layers again."""
    for graph in (make.gpt(), decoder(blocks=1, experts=8), decoder(blocks=1), _frozen_tied(make.gpt())):
        framework = Framework(defaults=Defaults(selective=selective))
        model = make.model_of(graph, 8, make.ideal_cluster(), framework=framework)
        plans = [T1, replace(T1, tp=2), replace(T1, tp=2, sequence_parallel=True)]
        rows = model.rows(MeshBatch.from_plans(plans))
        made, kept, saved = (getattr(rows, f"{name}_bytes")[:, 1] for name in ("remade", "saved_selective", "saved"))
        assert np.all(made >= 0.0)
        assert np.all(made <= saved)
        assert np.all(made + kept >= saved)


def test_operators_made_again_of_a_block() -> None:
    """Of a block of Llama 3 8B: what attention and matrices read that no kept product is, and what cheap layers need.

    Nothing recomputed keeps what enters, both norms' outputs, queries, keys and values, attention's output and its sums, the sum
    before the second norm, both halves and the product of the gated unit. Kept of these are the first, wq's, wv's and w1's outputs, and
    what attention makes.
    """
    graph = load_model("llama3-8b").graph
    rows = make.model_of(graph, 1, make.ideal_cluster(), framework=_OPERATORS).rows(MeshBatch.from_plans([T1]))
    assert rows.remade_bytes[0, 1] == 2 * 8192 * (2 * 4096 + 1024 + 4096 + 2 * 14336)


def _step_s(recompute: str, **assumed: float) -> float:
    cluster = make.ideal_cluster(peak=1e9, memory_bandwidth=1e9)
    model = make.model_of(decoder(blocks=4), 4, cluster, replace(make.BARE, **assumed))
    return float(model.evaluate_plans([MeshPlan(num_micro_batches=4, recompute=recompute)]).step_time_s[0])


def test_the_host_is_ahead_of_what_runs_again() -> None:
    """A host that starts everything in time costs nothing, also where it takes longer than the few layers that run again."""
    again_s = _step_s("selective") - _step_s("none")
    assert again_s > 0
    slow = {"host_launch_s": 1e-5}  # 4 blocks x 4 micro-batches x 4 layers take 0.6 ms to start
    assert _step_s("none", **slow) == pytest.approx(_step_s("none"), rel=0.02)
    assert _step_s("selective", **slow) - _step_s("none", **slow) == pytest.approx(again_s, rel=0.02)
    # A host that is late all the time starts two norms and a gate more per block and micro-batch.
    late = [_step_s(kind, host_launch_s=1.0) for kind in ("none", "selective")]
    assert late[1] - late[0] == pytest.approx(4 * 4 * 3, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "copies"),
    # Keys and values of 8 positions, with their gradients: twice in a ring, of all positions gathered. Else queries and outputs, too.
    [("ring", 2 * 2 * 2 * 64), ("all_gather", 4 * 2 * 2 * 64), ("all_to_all", 4 * 64)],
)
def test_what_attention_has_of_other_positions(kind: str, copies: int) -> None:
    graph = make.gpt(blocks=2, features=64, heads=4, positions=32, fused=True)
    model = make.model_of(graph, 4, make.ideal_cluster(), make.BARE)
    plan = MeshPlan(cp=4, cp_kind=kind, num_micro_batches=4)
    assert model.evaluate_plans([plan]).buffer_bytes[0] == 8 * copies * 2
