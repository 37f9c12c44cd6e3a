"""Layers of transformers against published formulas, hand counts and brute force."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.device import Device
from costmodel.kernels.roofline import RooflineCompute
from costmodel.layerwise.plan import legal_splits, split_table
from costmodel.network.graph import Graph
from costmodel.network.layers import Kernel, Layer, LayerWork, Shape, ShapeError, Shard
from costmodel.network.layers.attention import pairs_of_positions
from costmodel.precision import OPTIMIZERS, PRECISIONS
from planner.files.loading import load_device
from tests.costmodel.network.layers.cases import gemm_flop, gpt_block, layer, moved, products, saved, shard, work

# -- operations ---------------------------------------------------------------------------------------------------------------------


def test_operations_of_a_gpt_block() -> None:
    """``24 B s h^2 + 4 B s^2 h`` FLOP forward and twice that backward (Narayanan et al., arXiv:2104.04473, appendix)."""
    b, s, h, a = 3, 128, 256, 8
    works = [work(one, batch=b) for one in gpt_block(h, a, s).layers]
    forward = sum(gemm_flop(w.forward) for w in works)
    assert forward == 24 * b * s * h**2 + 4 * b * s**2 * h
    assert sum(gemm_flop(w.backward_input) + gemm_flop(w.backward_weight) for w in works) == 2 * forward


@pytest.mark.parametrize("causal", [True, False])
def test_operations_of_a_fused_attention(causal: bool) -> None:
    """FlashAttention-2, section 4.1: ``4 s^2 d heads`` forward, half under a causal mask, 2.5 times as many backward."""
    b, s, h, a = 3, 128, 256, 8
    one = layer("self_attention", (3 * h, s), heads=a, head_dim=h // a, causal=causal)
    full = 4 * b * s**2 * h * (0.5 if causal else 1.0)
    assert gemm_flop(work(one, batch=b).forward) == full
    assert gemm_flop(work(one, batch=b).backward_input) == 2.5 * full
    # Queries, keys, values and output once forward; they and their gradients backward.
    assert moved(work(one, batch=b).forward) == 4 * b * s * h
    assert moved(work(one, batch=b).backward_input) == 8 * b * s * h
    (kernel,) = work(one, batch=b).forward[0]
    assert products(kernel) == b * a * 2  # two products per head and sample, over the keys that a query sees
    assert kernel.gemm is not None
    assert [float(np.max(extent)) for extent in kernel.gemm] == [s, s / 2 if causal else s, h // a]


def test_a_written_out_attention_moves_every_score() -> None:
    """Nine passes over the scores forward with dropout: written, softmax 2, dropout 2.5, read; all far more than the inputs."""
    b, s, a, d = 2, 256, 4, 8
    one = layer("self_attention", (3 * a * d, s), heads=a, head_dim=d, fused=False, dropout=True)
    scores = b * a * s * s
    assert moved(work(one, batch=b).forward) == scores * (1 + 2 + 2.5 + 1) + 4 * b * s * a * d
    assert [products(k) for k in work(one, batch=b).forward[0] if k.gemm is not None] == [b * a, b * a]
    without = layer("self_attention", (3 * a * d, s), heads=a, head_dim=d, fused=False)
    assert moved(work(one, batch=b).forward) - moved(work(without, batch=b).forward) == 2.5 * scores
    fused = layer("self_attention", (3 * a * d, s), heads=a, head_dim=d)
    assert moved(work(fused, batch=b).forward) * 20 < moved(work(one, batch=b).forward)


@given(queries=st.integers(1, 60), window=st.integers(0, 80), causal=st.booleans())
def test_pairs_against_a_mask(queries: int, window: int, causal: bool) -> None:
    """The mask, pair by pair; the formula counts half of the diagonal of a causal one, and half of the last column of a window."""
    q, k = np.indices((queries, queries))
    seen = min(window, queries) if window else queries
    computed = pairs_of_positions(queries, queries, causal=causal, window=window)
    if not causal:
        assert computed == queries * seen
    else:
        mask = (k <= q) & (q - k < seen)
        assert computed == mask.sum() - 0.5 * seen


def test_grouped_queries_move_fewer_keys() -> None:
    """8 heads of keys and values for 32 queries (Llama 3 8B): the same operations, a quarter of the keys and values."""
    many = layer("self_attention", (96 * 128, 1024), heads=32, head_dim=128)
    few = layer("self_attention", (48 * 128, 1024), heads=32, kv_heads=8, head_dim=128)
    assert gemm_flop(work(few).forward) == gemm_flop(work(many).forward)
    assert moved(work(many).forward) == 1024 * 128 * (32 + 2 * 32 + 32)
    assert moved(work(few).forward) == 1024 * 128 * (32 + 2 * 8 + 32)
    # Over 16 workers there are 2 heads of queries each, and one of keys that two workers repeat.
    assert moved(work(few, tp=16).forward) == 1024 * 128 * (2 + 2 * 1 + 2)


def test_scan_of_mamba2() -> None:
    """Two heads of 4 values over a state of 8, one group, chunks of 16: values, states of chunks and what a group shares, by hand."""
    sizes = {"heads": 2, "kv_heads": 1, "head_dim": 4, "state": 8}
    one = layer("self_attention", (2 * 4 + 2 * 8, 64), **sizes, window=16)
    tokens = 3 * 64
    values, states, sides, scores = tokens * 8, tokens * 8 * 8 // 16, tokens * 8, tokens * 16
    found = work(one, batch=3)
    assert moved(found.forward) == 3 * values + 6 * states + 4 * (sides + scores)
    assert moved(found.backward_input) == 11 * values + 17 * states + 14 * sides + 10 * scores
    # B' x and C states: 2 x 2 x 8 per value; a chunk's masked scores times values 16; C B' of the group.
    assert gemm_flop(found.forward) == values * (2 * 2 * 8 + 16) + 2 * scores * 8
    assert saved(one, batch=3) == 0
    longer = layer("self_attention", (2 * 4 + 2 * 8, 640), **sizes, window=16)
    assert moved(work(longer, batch=3).forward) == 10 * moved(found.forward)  # linear in positions
    assert moved(work(one, batch=3, tp=2).forward) == 1.5 * values + 3 * states + 4 * (sides + scores)
    for wrong, words in (({"window": 0}, "chunks"), ({"window": 16, "causal": False}, "causal")):
        with pytest.raises(ShapeError, match=words):
            layer("self_attention", (24, 64), **sizes, **wrong)
    with pytest.raises(ShapeError, match="2 heads x head_dim 4 \\+ 2 x 1 x state 8 = 24 features"):
        layer("self_attention", (16, 64), **sizes, window=16)


# Positions per second of mamba_ssm's scan forward on an H100: 128 heads of 64, one group, a state of 128, chunks of 256 (vllm-project/vllm,
# pull request 27299, "Original"; the chunks are those of Granite 4.0 H Small, whose sizes these are).
SCAN_H100 = {8192: 12.6e6, 16384: 12.9e6, 32768: 11.8e6, 65536: 11.1e6, 131072: 10.7e6}


@pytest.mark.parametrize("positions", SCAN_H100)
def test_scan_takes_what_it_was_measured_to_take(positions: int) -> None:
    """By memory and products a third quicker, alone: tiles are small, and programs wait for their loads."""
    device = load_device("h100-sxm").device
    compute = RooflineCompute(device=device, precision=PRECISIONS["bf16"], optimizer=OPTIMIZERS["sgd"], alone=True)
    sizes = {"heads": 128, "kv_heads": 1, "head_dim": 64, "window": 256}
    scan = layer("self_attention", (128 * 64 + 2 * 128, positions), **sizes, state=128)
    found_s = float(compute.pass_times(scan, shard(scan), needs_input_gradient=True).forward_s[0])
    assert 0.5 < found_s * SCAN_H100[positions] / positions < 0.8


def test_cross_attention() -> None:
    """Queries of 114 positions over 512 keys: ``4 heads d q k`` FLOP, no mask."""
    one = layer("cross_attention", (128 * 16, 114), (2 * 128 * 16, 512), heads=128, head_dim=16)
    assert one.output_shape == (2048, 114)
    assert gemm_flop(work(one, batch=2).forward) == 4 * 2 * 128 * 16 * 114 * 512
    assert moved(work(one, batch=2).forward) == 2 * 2048 * (114 + 2 * 512 + 114)


def test_latent_attention() -> None:
    """DeepSeek-V3: scores over 128 + 64 features, values of 128; 128 heads; half the pairs (arXiv:2412.19437, section 4.2)."""
    s = 512
    one = layer(
        "latent_attention",
        (128 * 192, s),
        (128 * 256, s),
        (576, s),
        heads=128,
        nope_dim=128,
        rope_dim=64,
        value_dim=128,
    )
    assert one.output_shape == (128 * 128, s)
    assert one.weight_count == 0
    forward, backward = work(one).forward, work(one).backward_input
    assert gemm_flop(forward) == 2 * 128 * (192 + 128) * s * s / 2
    assert gemm_flop(backward) == 2 * 128 * (3 * 192 + 2 * 128) * s * s / 2
    # What the kernel reads and writes, and a copy of the keys with their rotary part beside.
    assert moved(forward) == s * 128 * (192 + 192 + 128 + 128) + 2 * s * 128 * 192
    assert saved(one) == s * 128 * (2 + 64)


def selected_attention(s: int, **params: int) -> Layer:
    inputs = (128 * 192, s), (128 * 256, s), (576, s), (64 * 128, s), (128, s), (64, s)
    sizes = {"heads": 128, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
    return layer("latent_attention", *inputs, **sizes, **{"index_heads": 64, "index_dim": 128, **params})


def test_latent_attention_with_an_indexer() -> None:
    """DeepSeek-V3.2: 64 heads of 128 features score half the pairs, and 128 heads work on compressed vectors of what is selected."""
    s, selected = 512, 128
    one = selected_attention(s, selected=selected)
    seen = (
        selected * selected / 2 + (s - selected) * selected
    )  # of positions that have earlier ones enough, and the others
    index, attention = 2 * 64 * 128 * s * s / 2, 2 * 128 * (576 + 512) * seen
    assert gemm_flop(work(one).forward) == pytest.approx(index + attention, rel=0.01)
    assert gemm_flop(work(one).backward_input) == pytest.approx(
        2 * index + 2 * 128 * (3 * 576 + 2 * 512) * seen, rel=0.01
    )
    # With tensor parallelism a rank has half of the heads, and the whole indexer.
    assert gemm_flop(work(one, tp=2).forward) == pytest.approx(index + attention / 2, rel=0.01)
    assert saved(one) == s * (2 * 128 + 2 * selected)


@pytest.mark.parametrize("missing", ["selected", "index_heads", "index_dim"])
def test_an_indexer_is_whole(missing: str) -> None:
    with pytest.raises(ShapeError, match="an indexer has selected, index_heads and index_dim"):
        selected_attention(64, **{"selected": 16, missing: 0})


@given(pieces=st.integers(1, 9), heads=st.sampled_from([2, 4, 8]), tp=st.sampled_from([1, 2]), fused=st.booleans())
def test_pieces_of_the_positions(pieces: int, heads: int, tp: int, fused: bool) -> None:
    """Under context parallelism every piece of the queries sees all keys: the pieces do the work of the whole, rounded up."""
    s = 72
    one = layer("self_attention", (3 * heads * 16, s), heads=heads, head_dim=16, fused=fused)
    whole, piece = gemm_flop(work(one, tp=tp).forward), gemm_flop(work(one, tp=tp, sequence=pieces).forward)
    assert piece == pytest.approx(whole * -(-s // pieces) / s)
    assert pieces * piece >= whole * (1 - 1e-12)


@pytest.mark.parametrize(
    "one",
    [
        layer("linear", (64, 100), out_features=32, activation="gelu"),
        layer("layer_norm", (64, 100)),
        layer("rms_norm", (64, 100)),
        layer("glu", (64, 100)),
        layer("dropout", (64, 100)),
        layer("softmax", (64, 100)),
        layer("add", (64, 100), (64, 100)),
        layer("concat", (64, 100), (64, 100)),
        layer("embedding", (1, 100), num_embeddings=9, dim=16),
        layer("moe", (64, 100), experts=8, top_k=2, ffn=24, shared_experts=1),
    ],
    ids=lambda one: one.kind,
)
def test_layers_per_position_are_divided(one: Layer) -> None:
    """With 7 pieces of 100 positions the largest has 15: the same work as 15 positions."""
    shapes = tuple((shape[0], 15) for shape in one.input_shapes)
    output = one.family.output_shape(one.params, shapes)
    short = dataclasses.replace(one, input_shapes=shapes, output_shape=output)
    for cut, whole in zip(_passes(work(one, batch=3, sequence=7)), _passes(work(short, batch=3)), strict=True):
        assert [(float(k.flop[0]), float(k.elements[0])) for k in cut] == [
            (float(k.flop[0]), float(k.elements[0])) for k in whole
        ]
    assert saved(one, batch=3, sequence=7) == saved(short, batch=3)


def _passes(w: LayerWork) -> list[tuple[Kernel, ...]]:
    return [kernels for one in (w.forward, w.backward_input, w.backward_weight) for kernels in one]


def test_every_share_has_the_same_shape() -> None:
    """Callers that know nothing of sequences and experts leave them out."""
    three = np.ones(3)
    plain = Shard(
        batch=three,
        out_channels=three,
        in_channels=three,
        height=three,
        split_out=three,
        split_in=three,
        split_height=three,
    )
    assert plain.sequence.tolist() == plain.experts.tolist() == [1.0, 1.0, 1.0]
    picked = Shard(**{field.name: getattr(plain, field.name)[1:2] for field in dataclasses.fields(Shard)})
    assert picked.sequence.shape == (1,)


def test_norms_and_sinks_of_attention() -> None:
    """Norms read and write queries and keys once more; one over all heads sums two numbers per position over the workers."""
    b, s, sizes = 2, 64, {"heads": 4, "head_dim": 16}
    plain = work(layer("self_attention", (192, s), **sizes), batch=b)
    own = work(layer("self_attention", (192, s), **sizes, qk_norm="layer_own"), batch=b)
    wide = work(layer("self_attention", (192, s), **sizes, qk_norm="rms_wide"), batch=b, tp=2)
    assert moved(own.forward) - moved(plain.forward) == 2 * 2 * b * s * 64
    assert not own.exchanges
    assert [(e.operation, e.phase, float(e.elements[0]), e.repeats) for e in wide.exchanges] == [
        ("all_reduce", "forward", b * s, 2),
        ("all_reduce", "input_gradient", b * s, 2),
    ]
    sinks = work(layer("self_attention", (192, s), **sizes, sinks=True), batch=b)
    assert (sinks.forward, sinks.backward_input) == (plain.forward, plain.backward_input)
    assert moved(sinks.backward_weight) == 2 * b * 4 * s  # two numbers per row
    unlearned = work(layer("layer_norm", (64, s), bias=False, scale=False), batch=b)
    assert unlearned.forward
    assert not unlearned.backward_weight


# -- weights and splits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "count"),
    [
        (layer("rms_norm", (64, 9)), 64),
        (layer("layer_norm", (64, 9)), 128),
        (layer("layer_norm", (64, 9), bias=False), 64),
        (layer("layer_norm", (64, 9), bias=False, scale=False), 0),
        (layer("position_embedding", (64, 9), max_positions=20), 1280),
        (layer("self_attention", (96, 9), heads=4, head_dim=8), 0),
        (layer("self_attention", (96, 9), heads=4, head_dim=8, relative_buckets=32), 128),
        (layer("self_attention", (96, 9), heads=4, head_dim=8, sinks=True), 4),
        # One head's scales (and shifts) of queries and of keys; or those of 6 heads of queries and 3 of keys.
        (layer("self_attention", (96, 9), heads=6, kv_heads=3, head_dim=8, qk_norm="rms"), 16),
        (layer("self_attention", (96, 9), heads=6, kv_heads=3, head_dim=8, qk_norm="layer"), 32),
        (layer("self_attention", (96, 9), heads=6, kv_heads=3, head_dim=8, qk_norm="layer_own"), 72),
        (layer("self_attention", (96, 9), heads=6, kv_heads=3, head_dim=8, qk_norm="rms_wide"), 72),
        (layer("to_sequence", (64, 3, 3)), 0),
        (layer("to_sequence", (64, 3, 3), class_token=True), 64),
        (layer("to_sequence", (64, 3, 3), class_token=True, distillation_token=True), 128),
        (layer("linear", (64, 9), out_features=10, tied=True), 10),
        (layer("linear", (64, 9), out_features=10, tied=True, bias=False), 0),
        (layer("embedding", (1, 9), num_embeddings=10, dim=64, tied=True), 0),
        # Router 64 x 4; 4 experts of three matrices 64 x 32; the same without gates and with biases.
        (layer("moe", (64, 9), experts=4, top_k=2, ffn=32), 256 + 4 * 3 * 2048),
        (layer("moe", (64, 9), experts=4, top_k=2, ffn=32, gated=False), 256 + 4 * 2 * 2048),
        (
            layer("moe", (64, 9), experts=4, top_k=2, ffn=32, bias=True, router_bias=True),
            260 + 4 * (3 * 2048 + 2 * 32 + 64),
        ),
        (layer("moe", (64, 9), experts=4, top_k=2, ffn=32, shared_experts=2), 256 + 4 * 3 * 2048 + 3 * 64 * 64),
        (
            layer("moe", (64, 9), experts=4, top_k=2, ffn=32, shared_experts=1, shared_ffn=48, shared_gate=True),
            256 + 4 * 3 * 2048 + 3 * 64 * 48 + 64,
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Layer) else str(value),
)
def test_weights(one: Layer, count: int) -> None:
    assert one.weight_count == one.trainable_count == count
    assert one.has_weights == (count > 0)
    router = one.params.experts * (64 + one.params.router_bias) if one.kind == "moe" else count
    assert one.expert_count + one.shared_count == count - router


def test_tied_weights_belong_to_the_embedding() -> None:
    assert layer("linear", (64, 9), out_features=10, tied=True).tied_count == 640
    assert layer("embedding", (1, 9), num_embeddings=10, dim=64, tied=True).tied_count == 640
    assert layer("linear", (64, 9), out_features=10).tied_count == 0


def test_attention_splits_by_heads() -> None:
    """No more workers than heads of queries, however few heads of keys there are."""
    table = split_table([1, 2, 4, 8, 16])
    one = layer("self_attention", (8 * 4 + 2 * 2 * 4, 9), heads=8, kv_heads=2, head_dim=4)
    legal = legal_splits(one, table, 64)
    degrees = {int(d) for d in table.out_channels[legal]}
    assert degrees == {1, 2, 4, 8}
    assert set(table.in_channels[legal]) == set(table.height[legal]) == {1}


@pytest.mark.parametrize(
    ("kind", "shapes", "values", "said"),
    [
        (
            "self_attention",
            ((95, 9),),
            {"heads": 4, "head_dim": 8},
            r"\(4 \+ 2 x 4\) heads x head_dim 8 = 96 .* 95x9",
        ),
        ("self_attention", ((96, 3, 3),), {"heads": 4, "head_dim": 8}, "its input is 96x3x3"),
        ("self_attention", ((80, 9),), {"heads": 4, "kv_heads": 3, "head_dim": 8}, "heads 4 .* kv_heads 3"),
        ("cross_attention", ((32, 9), (60, 7)), {"heads": 4, "head_dim": 8}, "2 x 4 heads x head_dim 8 = 64 .* 60x7"),
        ("cross_attention", ((30, 9), (64, 7)), {"heads": 4, "head_dim": 8}, "4 heads x head_dim 8 = 32 .* 30x9"),
        (
            "latent_attention",
            ((32, 9), (48, 9), (8, 9)),
            {"heads": 4, "nope_dim": 4, "rope_dim": 8, "value_dim": 8},
            r"4 heads x \(4 \+ 8\) = 48 .* 32x9",
        ),
        (
            "latent_attention",
            ((48, 9), (48, 9), (8, 9)),
            {"heads": 4, "nope_dim": 4, "rope_dim": 8, "value_dim": 8},
            "more than rope_dim 8 .* 8x9",
        ),
        (
            "latent_attention",
            ((48, 9), (48, 7), (20, 9)),
            {"heads": 4, "nope_dim": 4, "rope_dim": 8, "value_dim": 8},
            "48x9, 48x7, 20x9",
        ),
        ("glu", ((5, 9),), {}, "even; its input is 5x9"),
        ("layer_norm", ((4, 3, 3),), {}, "its input is 4x3x3"),
        ("rms_norm", ((4, 3, 3),), {}, "its input is 4x3x3"),
        ("position_embedding", ((4, 9),), {"max_positions": 8}, "max_positions 8 .* 9 positions .* 4x9"),
        ("position_embedding", ((4, 3, 3),), {"max_positions": 8}, "its input is 4x3x3"),
        ("slice_features", ((8, 9),), {"start": 4, "features": 5}, "features 4 to 8 .* 8x9 has 8"),
        ("to_sequence", ((8, 9),), {}, "its input is 8x9"),
        ("select_position", ((8,),), {}, "its input is 8"),
        ("select_position", ((8, 9),), {"index": 9}, "position 9 .* 8x9"),
        ("moe", ((8, 3, 3),), {"experts": 4, "top_k": 1, "ffn": 4}, "its input is 8x3x3"),
        ("moe", ((8, 9),), {"experts": 4, "top_k": 5, "ffn": 4}, r"top_k 5 .* \(4\)"),
        (
            "relative_attention",
            ((95, 9),),
            {"heads": 4, "head_dim": 8, "width": 24, "memory": 5},
            "3 x 4 heads x head_dim 8 = 96",
        ),
        (
            "relative_attention",
            ((96, 5),),
            {"heads": 4, "head_dim": 8, "width": 24, "memory": 5},
            "memory 5 leaves no positions",
        ),
        ("segment_memory", ((4, 3, 3),), {"positions": 2}, "its input is 4x3x3"),
        ("glu", ((8, 9), (8, 8)), {}, "differ: 8x9, 8x8"),
    ],
)
def test_shapes_that_do_not_fit(kind: str, shapes: tuple[Shape, ...], values: dict[str, Any], said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        layer(kind, *shapes, **values)


def test_shapes() -> None:
    assert layer("to_sequence", (8, 14, 14), class_token=True).output_shape == (8, 197)
    assert layer("to_sequence", (8, 14, 14), class_token=True, distillation_token=True).output_shape == (8, 198)
    assert layer("select_position", (8, 197)).output_shape == (8,)
    assert layer("slice_features", (576, 9), features=512).output_shape == (512, 9)
    assert layer("glu", (64, 9)).output_shape == (32, 9)
    assert layer("rms_norm", (64,)).output_shape == (64,)


# -- time on a device ---------------------------------------------------------------------------------------------------------------

DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 1e13, "bf16": 1e14},
    memory_bytes=80e9,
    memory_bandwidth_bytes_per_s=1e12,
    launch_overhead_s=1e-6,
)
TIMED = [
    layer("self_attention", (3 * 256, 128), heads=8, head_dim=32),
    layer("self_attention", (3 * 256, 128), heads=8, head_dim=32, fused=False, dropout=True, relative_buckets=4),
    layer("cross_attention", (256, 96), (2 * 256, 128), heads=8, head_dim=32),
    layer("latent_attention", (256, 96), (256, 96), (48, 96), heads=8, nope_dim=16, rope_dim=16, value_dim=16),
    layer("moe", (64, 96), experts=8, top_k=2, ffn=64, shared_experts=1),
    layer("glu", (64, 96)),
    layer("layer_norm", (64, 96)),
    layer("position_embedding", (64, 96), max_positions=96),
    layer("linear", (64, 96), out_features=64, lora_rank=8),
]


@pytest.mark.parametrize("one", TIMED, ids=lambda one: one.kind)
@given(batch=st.integers(1, 12), tp=st.sampled_from([1, 2, 4]), sequence=st.integers(1, 6))
def test_more_work_takes_longer_and_pieces_no_less(one: Layer, batch: int, tp: int, sequence: int) -> None:
    """Time grows with the samples; two halves of a batch, and the pieces of a split, together take at least what the whole takes."""
    compute = RooflineCompute(device=DEVICE, precision=PRECISIONS["bf16"], optimizer=OPTIMIZERS["adam"])

    def time_s(**share: float) -> float:
        times = compute.pass_times(one, shard(one, **share), needs_input_gradient=True)
        return float((times.forward_s + times.backward_s)[0])

    whole = time_s(batch=batch)
    assert 0 < whole < time_s(batch=batch + 1)
    assert 2 * time_s(batch=-(-batch // 2)) >= whole * (1 - 1e-9)
    assert tp * time_s(batch=batch, tp=tp) >= whole * (1 - 1e-9)
    assert sequence * time_s(batch=batch, sequence=sequence) >= whole * (1 - 1e-9)


# --- Mixtures of experts: operations, experts over workers, what they keep ----------------------------------------------------------------


def test_operations_of_a_mixture() -> None:
    """A router for every token, three products for each of its 2 experts, three for the shared one; twice that backward."""
    b, s, d, f, e, k = 3, 50, 64, 96, 8, 2
    one = layer("moe", (d, s), experts=e, top_k=k, ffn=f, shared_experts=1)
    forward = 2 * b * s * d * e + 6 * b * s * d * f * (k + 1)
    result = work(one, batch=b)
    assert gemm_flop(result.forward) == forward
    assert gemm_flop(result.backward_input) + gemm_flop(result.backward_weight) == 2 * forward


def test_experts_over_workers() -> None:
    """Tokens are spread evenly: 4 workers with 2 experts each do the work of 8 experts on one, with a quarter of the weights."""
    one = layer("moe", (64, 1024), experts=8, top_k=2, ffn=96)
    alone, shared = work(one).forward, work(one, experts=4).forward
    assert gemm_flop(shared) == gemm_flop(alone)
    assert moved(alone) - moved(shared) == pytest.approx(0.75 * one.expert_count)
    up_alone, up_shared = alone[0][3], shared[0][3]
    assert (products(up_alone), products(up_shared)) == (8, 2)
    assert (float(up_alone.gemm[0][0]), float(up_shared.gemm[0][0])) == (1024 * 2 / 8, 1024 * 2 / 2)
    # Tensor parallelism inside the experts divides their width.
    assert gemm_flop(work(one, tp=4).forward) - 2 * 1024 * 64 * 8 == pytest.approx(
        (gemm_flop(alone) - 2 * 1024 * 64 * 8) / 4
    )


def test_the_fullest_worker_decides() -> None:
    even = layer("moe", (64, 1024), experts=8, top_k=2, ffn=96)
    uneven = layer("moe", (64, 1024), experts=8, top_k=2, ffn=96, capacity_factor=1.5)
    router = 2 * 1024 * 64 * 8
    assert gemm_flop(work(uneven).forward) - router == 1.5 * (gemm_flop(work(even).forward) - router)


def test_few_tokens_use_few_experts() -> None:
    """One token with 2 experts reads the weights of 2 of 64."""
    one = layer("moe", (64, 1), experts=64, top_k=2, ffn=96)
    assert moved(work(one).forward) < 64 * 64 + 2.1 * 3 * 64 * 96 + 1000


def test_what_a_mixture_keeps() -> None:
    """Per dispatched token its features, 2f before and f after the gate; per token the scores in fp32."""
    one = layer("moe", (64, 10), experts=8, top_k=2, ffn=96)
    assert saved(one, batch=3) == 3 * 10 * (2 * (64 + 3 * 96) + 2 * 8)
    shared = layer("moe", (64, 10), experts=8, top_k=2, ffn=96, shared_experts=1)
    assert saved(shared, batch=3) - saved(one, batch=3) == 3 * 10 * 3 * 96


# --- Transformer-XL's memory and attention by relative positions, and gates with a second input, counted by hand --------------------------


HEADS, DIM, WIDTH, MEMORY, OWN = 4, 8, 24, 5, 7
KEYS = MEMORY + OWN
SIZES = {"heads": HEADS, "head_dim": DIM, "width": WIDTH, "memory": MEMORY}


def test_shapes_and_weights() -> None:
    one = layer("relative_attention", (3 * HEADS * DIM, KEYS), **SIZES)
    assert one.output_shape == (HEADS * DIM, OWN)
    assert one.weight_count == WIDTH * HEADS * DIM
    both = layer("relative_attention", (3 * HEADS * DIM, KEYS), **SIZES, biases=True)
    assert both.weight_count - one.weight_count == 2 * HEADS * DIM
    assert layer("segment_memory", (16, OWN), positions=MEMORY).output_shape == (16, KEYS)


@pytest.mark.parametrize("batch", [1, 3])
def test_operations_of_attention_by_distance(batch: int) -> None:
    """Three products of all pairs, and the keys of the distances, which the samples share; twice that for the gradients."""
    one = layer("relative_attention", (3 * HEADS * DIM, KEYS), **SIZES)
    found = work(one, batch=batch)
    pairs = 2 * batch * HEADS * OWN * KEYS * DIM
    distances = 2 * KEYS * WIDTH * HEADS * DIM
    assert gemm_flop(found.forward) == 3 * pairs + distances
    assert gemm_flop(found.backward_input) + gemm_flop(found.backward_weight) == 2 * 3 * pairs + distances


def test_scores_are_shifted_added_and_masked_in_memory() -> None:
    """Beside those of plain attention: scores written once more, copied (2), added (3) and masked (2); its operands; two biases;

    keys, values and the result copied.
    """
    plain = layer("self_attention", (3 * HEADS * DIM, OWN), heads=HEADS, head_dim=DIM, fused=False)
    one = layer("relative_attention", (3 * HEADS * DIM, OWN), **{**SIZES, "memory": 0})
    scores, rows, features = HEADS * OWN * OWN, OWN * HEADS * DIM, HEADS * DIM
    more = (1 + 2 + 3 + 2) * scores + 2 * rows + 4 * rows + 3 * 2 * rows
    more += OWN * (WIDTH + features) + WIDTH * features
    assert moved(work(one).forward) - moved(work(plain).forward) == more
    back = (1 + 6 + 5) * scores + 2 * rows + 12 * rows
    assert moved(work(one).backward_input) - moved(work(plain).backward_input) == back


def test_a_memory_is_copied_and_kept_without_gradient() -> None:
    one = layer("segment_memory", (16, OWN), positions=MEMORY)
    assert moved(work(one, batch=2).forward) == 2 * 2 * 16 * KEYS
    assert not work(one).backward_input
    assert saved(one, batch=2) == 2 * 16 * MEMORY


def test_gates_add_a_second_input_in_the_same_kernel() -> None:
    """Forward reads gate and value of both and writes the product; images are gated along their channels."""
    alone, two = layer("glu", (8, 9)), layer("glu", (8, 9), (8, 9))
    assert [moved(work(one).forward) for one in (alone, two)] == [3 * 36, 5 * 36]
    assert [moved(work(one).backward_input) for one in (alone, two)] == [5 * 36, 7 * 36]
    assert layer("glu", (8, 1, 9)).output_shape == (4, 1, 9)


# --- What layers of transformers keep for the backward pass, against Korthikanti et al. (arXiv:2205.05198) --------------------------------


def kept_bytes(graph: Graph, batch: int, tp: dict[str, int]) -> float:
    """Two bytes per element of every tensor that some layer keeps as its input, once, and of what the layers keep besides.

    ``tp`` divides the channels of these layers' work and outputs.
    """
    producers = {layer.name: layer for layer in graph.layers}
    inputs = {name for one in graph.layers if one.keeps_input for name in one.inputs}
    elements = sum(batch * producers[name].output_elements / tp.get(name, 1) for name in inputs)
    elements += sum(saved(one, batch=batch, tp=tp.get(one.name, 1)) for one in graph.layers)
    return 2 * elements


@pytest.mark.parametrize(("h", "a", "s", "b"), [(64, 4, 16, 3), (6144, 64, 2048, 4), (12288, 96, 2048, 1)])
def test_activations_of_a_gpt_block(h: int, a: int, s: int, b: int) -> None:
    """Equation 1: ``s b h (34 + 5 a s / h)`` bytes without any parallelism."""
    assert kept_bytes(gpt_block(h, a, s), b, {}) == s * b * h * 34 + 5 * a * s * s * b


@pytest.mark.parametrize("t", [2, 8])
def test_activations_under_tensor_parallelism(t: int) -> None:
    """Equation 2: ``s b h (10 + 24 / t + 5 a s / (h t))``: what lies between column and row is divided."""
    h, a, s, b = 6144, 64, 2048, 4
    divided = dict.fromkeys(("qkv", "attention", "up", "gelu"), t)
    assert kept_bytes(gpt_block(h, a, s), b, divided) == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)))


def test_selective_recomputation_drops_the_attention() -> None:
    """Equation 6 without parallelism: 34 s b h remain when the written-out attention is run again."""
    h, a, s, b = 6144, 64, 2048, 4
    graph = gpt_block(h, a, s)
    attention = graph.layers[graph.index("attention")]
    assert attention.is_recomputable
    assert kept_bytes(graph, b, {}) - 2 * saved(attention, batch=b) == 34 * s * b * h
    names = {one.name for one in graph.layers if one.is_recomputable}
    assert names == {"norm1", "attention", "dropout1", "norm2", "gelu", "dropout2"}


def test_a_fused_attention_keeps_a_number_per_row() -> None:
    """FlashAttention-2 (arXiv:2307.08691, section 3.1): the logsumexp, fp32, per head and position."""
    h, a, s, b = 6144, 64, 2048, 4
    graph = gpt_block(h, a, s, fused=True)
    assert not graph.layers[graph.index("attention")].is_recomputable
    assert kept_bytes(graph, b, {}) == 34 * s * b * h + 4 * a * s * b


def test_logits_are_kept_in_fp32() -> None:
    """Section 4.3 of the same: ``4 s b v`` bytes."""
    assert 2 * saved(layer("softmax", (51200, 2048)), batch=3) == 4 * 2048 * 3 * 51200


@pytest.mark.parametrize("fused", [True, False])
def test_what_layers_keep_is_divided_by_the_positions(fused: bool) -> None:
    attention = layer("self_attention", (3 * 64, 96), heads=4, head_dim=16, fused=fused)
    experts = layer("moe", (64, 96), experts=4, top_k=2, ffn=32)
    for one, dropout in itertools.product((attention, experts), (layer("dropout", (64, 96)),)):
        assert saved(one, batch=2, sequence=3) == pytest.approx(saved(one, batch=2) / 3)
        assert saved(dropout, batch=2, sequence=3) == pytest.approx(saved(dropout, batch=2) / 3)
