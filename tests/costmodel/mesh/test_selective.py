"""Selective recomputation of latent attention and of mixtures, against counts by hand; and its host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.network.graph import Graph
from tests.costmodel.mesh import plans as make
from tests.networks import Layers
from tests.strategies.mesh.networks import decoder

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


def _step_s(recompute: str, **assumed: float) -> float:
    model = MeshModel.build(*_question(), replace(make.BARE, **assumed))
    return float(model.evaluate_plans([MeshPlan(num_micro_batches=4, recompute=recompute)]).step_time_s[0])


def _question():
    model = make.model_of(decoder(blocks=4), 4, make.ideal_cluster(peak=1e9, memory_bandwidth=1e9))
    return model.workload, model.cluster


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
