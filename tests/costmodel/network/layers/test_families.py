"""Layers other than convolutions: shapes, weights and operations counted by hand, and faults named."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.layerwise.plan import Split, shard_of, split_table
from costmodel.network.graph import Graph, GraphError
from costmodel.network.layers import FAMILIES, Shape, ShapeError
from costmodel.network.layers.base import LayerSpec, params_from
from costmodel.network.layers.pooling import window
from tests.costmodel.network.layers.cases import flop, gemm_flop, gemms, layer, passes, saved, work, work_of


def test_linear_flattens_images_and_keeps_sequences() -> None:
    image = layer("linear", (256, 6, 6), out_features=4096)
    assert image.output_shape == (4096,)
    assert image.weight_count == 9216 * 4096 + 4096
    assert [flop(p) for p in passes(work_of(image, 2))] == [2 * 2.0 * 9216 * 4096] * 3
    sequence = layer("linear", (512, 30), out_features=1000, bias=False)
    assert sequence.output_shape == (1000, 30)
    assert sequence.weight_count == 512_000
    assert [flop(p) for p in passes(work_of(sequence, 2))] == [2 * 2.0 * 30 * 512_000] * 3
    assert image.family.is_fully_connected(image)
    assert not sequence.family.is_fully_connected(sequence)


def test_rows_that_are_not_padded_begin_where_whole_and_share_let_them() -> None:
    def aligned(inputs: int, outputs: int, ways: int = 1, **params: Any) -> list[float]:
        head = layer("linear", (inputs, 4), out_features=outputs, **params)
        work = work_of(head, 1, Split(out_channels=ways))
        kernels = [kernel for alternatives in passes(work) for kernel in alternatives[0]]
        products = [kernel.aligned for kernel in kernels if kernel.gemm is not None and kernel.aligned is not None]
        return [float(np.min(numbers)) for numbers in products]

    assert aligned(1024, 50257) == []  # padded unless it says otherwise
    for inputs, outputs, ways, found in (
        (1024, 50257, 1, 1.0),
        (1001, 50256, 1, 1.0),
        (1024, 50256, 1, 8.0),
        (1024, 24, 2, 4.0),  # shares of 12
        (1024, 56, 4, 2.0),  # shares of 14
        (1024, 15, 2, 1.0),  # shares of 8 are no faster than the whole
    ):
        assert aligned(inputs, outputs, ways, padded=False) == [found] * 3, (inputs, outputs, ways)


def test_dropout_inside_a_sum_writes_its_mask_alone() -> None:
    """2.5 elements in a kernel of its own, half of one (the mask, a byte) beside a sum; backward alike."""
    alone, inside = (work_of(layer("dropout", (64, 10), fused=fused), 2) for fused in (False, True))
    (own,), (mask,) = alone.forward[0], inside.forward[0]
    assert [float(np.max(kernel.elements)) for kernel in (own, mask)] == [2.5 * 1280, 0.5 * 1280]
    back = [float(np.max(work.backward_input[0][0].elements)) for work in (alone, inside)]
    assert back == [2.5 * 1280] * 2


def test_lstm() -> None:
    """4 gates: 4 H (I + H + 1) weights and 8 T H (I + H) FLOP per sample and direction."""
    one = layer("lstm", (10, 7), hidden=6)
    assert one.output_shape == (6, 7)
    assert one.weight_count == 4 * 6 * (10 + 6 + 1)
    two = layer("lstm", (10, 7), hidden=6, bidirectional=True)
    assert two.output_shape == (12, 7)
    assert two.weight_count == 2 * one.weight_count
    for cell, directions in ((one, 1), (two, 2)):
        work = work_of(cell, 3)
        assert gemm_flop(work.forward) == directions * 3 * 8.0 * 7 * 6 * 16
        both = gemm_flop(work.backward_input) + gemm_flop(work.backward_weight)
        assert both == pytest.approx(2 * gemm_flop(work.forward))
    # The gradient of the state runs back through the steps even if nobody wants the gradient of the input.
    assert any(k.launches >= 7 for k in work_of(one, 3).backward_weight[0])


@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
@pytest.mark.parametrize("biases", [0, 1, 2])
def test_recurrent_cells(cell: str, gates: int, biases: int) -> None:
    """G gates: G H (I + H + biases) weights and 2 G T H (I + H) FLOP per sample and direction; torch.nn counts two biases."""
    one = layer("lstm", (10, 7), hidden=6, bidirectional=True, cell=cell, biases=biases)
    assert one.output_shape == (12, 7)
    assert one.weight_count == 2 * gates * 6 * (10 + 6 + biases)
    work = work_of(one, 3)
    assert gemm_flop(work.forward) == 2 * 3 * 2.0 * gates * 7 * 6 * 16
    assert gemm_flop(work.backward_input) + gemm_flop(work.backward_weight) == pytest.approx(
        2 * gemm_flop(work.forward)
    )


def test_smaller_cells_keep_less() -> None:
    kept = []
    for cell in ("rnn", "gru", "lstm"):
        one = layer("lstm", (10, 7), hidden=6, cell=cell)
        kept.append(float(one.family.saved_elements(one, shard_of(one, split_table([1]), 3))[0]))
    assert kept == [3 * 6 * 7 * number for number in (1, 4, 5)]


def test_attention() -> None:
    """q: 5 steps of 8; k: 7 positions of 6; 4 units. Projections 4 (8 + 6) weights and a vector of 4."""
    one = layer("attention", (8, 5), (6, 7), units=4)
    assert one.output_shape == (6, 5)
    assert one.weight_count == 4 * 14 + 4
    project, context = 2.0 * 4 * (5 * 8 + 7 * 6), 2.0 * 5 * 7 * 6
    score = 4.0 * 5 * 7 * 4  # add, tanh, multiply, add per unit and pair
    assert flop(work_of(one, 2).forward) == 2 * (project + context + score)


def test_pooling_and_elementwise() -> None:
    pool = work_of(layer("pool", (4, 8, 8), kernel=2, stride=2), 3)
    assert flop(pool.forward) == 3 * 4 * 16 * 4
    assert float(pool.forward[0][0].elements[0]) == 3 * 4 * (64 + 16)
    # Backward every element of the input looks up the output and the gradient of its window: 64 times, 16 of them from the memory.
    assert float(pool.backward_input[0][0].elements[0]) == pytest.approx(
        3 * 4 * 2 * (64 + 16) + 3 * 4 * 2 * (64 - 16) / 2.4
    )
    # 2 x 2 windows of 9, of 25 elements: 11 read again from the cache; backward 9 lookups of each array where there are 4 outputs.
    overlapping = work_of(layer("pool", (1, 5, 5), kernel=3, stride=2), 1)
    assert float(overlapping.forward[0][0].elements[0]) == pytest.approx(25 + 4 + (36 - 25) / 2.4)
    assert float(overlapping.backward_input[0][0].elements[0]) == pytest.approx(2 * (25 + 4) + 2 * (36 - 4) / 2.4)
    average = work_of(layer("pool", (1, 5, 5), kernel=3, stride=2, mode="average"), 1)
    # A maximum is found by comparing; its gradient is scattered.
    kernels = (pool.forward, pool.backward_input, average.forward)
    assert [work[0][0].tiling for work in kernels] == ["maximum", "library", "library"]
    assert float(average.backward_input[0][0].elements[0]) == pytest.approx(25 + 4 + (36 - 4) / 2.4)
    whole = work_of(layer("global_pool", (4, 8, 8)), 3)
    assert float(whole.forward[0][0].elements[0]) == 3 * 4 * (64 + 1)
    add = work_of(layer("add", (4, 8, 8), (4, 8, 8), (4, 8, 8)), 3)
    assert float(add.forward[0][0].elements[0]) == 4 * 3 * 256
    assert flop(add.forward) == 2 * 3 * 256
    concat = layer("concat", (4, 8, 8), (6, 8, 8))
    assert concat.output_shape == (10, 8, 8)
    assert float(work_of(concat, 1).forward[0][0].elements[0]) == 2 * 640
    up = work_of(layer("upsample", (4, 8, 8), factor=2), 1)
    assert float(up.forward[0][0].elements[0]) == 4 * (64 + 256)
    assert layer("embedding", (1, 30), num_embeddings=1000, dim=16).weight_count == 16_000
    assert (
        float(work_of(layer("embedding", (1, 30), num_embeddings=1000, dim=16), 2).forward[0][0].elements[0])
        == 2 * 2 * 480
    )


def test_only_views_are_free() -> None:
    for kind, family in FAMILIES.items():
        shapes: dict[str, tuple[Shape, ...]] = {
            "input": (),
            "attention": ((8, 5), (6, 7)),
            "embedding": ((1, 5),),
            "lstm": ((8, 5),),
            "cross_attention": ((8, 5), (16, 7)),
            "latent_attention": ((8, 5), (12, 5), (6, 5)),
            **dict.fromkeys(("layer_norm", "rms_norm", "glu", "moe", "position_embedding"), ((8, 5),)),
            **dict.fromkeys(("select_position", "slice_features", "segment_memory"), ((8, 5),)),
            **dict.fromkeys(("self_attention", "relative_attention"), ((24, 5),)),
        }
        values: dict[str, dict[str, Any]] = {
            "input": {"shape": (4, 8, 8)},
            "convolution": {"out_channels": 4, "kernel": 3},
            "deconvolution": {"out_channels": 4, "kernel": 3},
            "linear": {"out_features": 4},
            "embedding": {"num_embeddings": 9, "dim": 4},
            "lstm": {"hidden": 4},
            "attention": {"units": 4},
            "pool": {"kernel": 2},
            "upsample": {"factor": 2},
            "self_attention": {"heads": 2, "head_dim": 4},
            "relative_attention": {"heads": 2, "head_dim": 4, "width": 8, "memory": 2},
            "segment_memory": {"positions": 3},
            "cross_attention": {"heads": 2, "head_dim": 4},
            "latent_attention": {"heads": 2, "nope_dim": 2, "rope_dim": 2, "value_dim": 4},
            "moe": {"experts": 4, "top_k": 2, "ffn": 6},
            "position_embedding": {"max_positions": 9},
            "slice_features": {"features": 3},
            **{stated: {"shape": (4, 8)} for stated in ("rearrange", "reduce", "assumed_free")},
        }
        image = ((4, 8, 8),) * family.min_inputs
        one = layer(kind, *shapes.get(kind, image), **values.get(kind, {}))
        views = ("input", "flatten", "slice_features", "assumed_free")
        moved = sum(float(k.elements[0]) for k in itertools.chain(*work_of(one, 1).forward))
        assert (moved == 0) == family.is_view == (kind in views), kind


@pytest.mark.parametrize(
    ("kind", "shapes", "values", "said"),
    [
        ("convolution", ((64,),), {"out_channels": 4, "kernel": 3}, "its input is 64"),
        ("convolution", ((3, 5, 5),), {"out_channels": 4, "kernel": 7}, "7x7 does not fit into its input 3x5x5"),
        ("convolution", ((3, 5, 5),), {"out_channels": 4, "kernel": 3, "groups": 2}, r"groups 2 .* \(3\) .* \(4\)"),
        ("convolution", ((4, 5, 5),), {"out_channels": 3, "kernel": 3, "groups": 2}, r"groups 2 .* \(4\) .* \(3\)"),
        (
            "deconvolution",
            ((3, 1, 1),),
            {"out_channels": 4, "kernel": 2, "padding": 1},
            "leaves nothing of its input 3x1x1",
        ),
        ("deconvolution", ((3, 9),), {"out_channels": 4, "kernel": 2}, "its input is 3x9"),
        ("pool", ((3, 4, 4),), {"kernel": 5}, "5x5 does not fit"),
        ("global_pool", ((3, 4),), {}, "its input is 3x4"),
        ("lstm", ((3, 4, 4),), {"hidden": 2}, "its input is 3x4x4"),
        ("embedding", ((2, 4),), {"num_embeddings": 2, "dim": 2}, "its input is 2x4"),
        ("attention", ((2, 4), (2,)), {"units": 2}, "2x4, 2$"),
        ("concat", ((2, 4, 4), (2, 4, 5)), {}, "2x4x4, 2x4x5"),
        ("add", ((2, 4, 4), (2, 4, 5)), {}, "2x4x4, 2x4x5"),
        ("upsample", ((2, 4),), {"factor": 2}, "its input is 2x4"),
    ],
)
def test_shapes_that_do_not_fit_are_named(
    kind: str, shapes: tuple[Shape, ...], values: dict[str, Any], said: str
) -> None:
    with pytest.raises(ShapeError, match=said):
        layer(kind, *shapes, **values)


def test_weights_of_a_network_add_up() -> None:
    specs = [
        LayerSpec(name="data", kind="input", params=params_from("input", {"shape": (1, 28, 28)})),
        LayerSpec(name="fc1", kind="linear", params=params_from("linear", {"out_features": 100}), inputs=("data",)),
        LayerSpec(name="fc2", kind="linear", params=params_from("linear", {"out_features": 10}), inputs=("fc1",)),
    ]
    assert Graph.build("mlp", specs).weight_count == 784 * 100 + 100 + 100 * 10 + 10
    assert math.prod(layer("flatten", (3, 4, 5)).output_shape) == 60


def test_kinds_of_kernels_are_named() -> None:
    strided = work_of(layer("convolution", (8, 16, 16), out_channels=8, kernel=3, stride=2, bias=False), 1)
    kinds = [[k.tiling for k in a[0]] for a in (strided.forward, strided.backward_input, strided.backward_weight)]
    assert kinds == [["thin"], ["thin", "scattered"], ["weights"]]
    transposed = work_of(layer("deconvolution", (8, 16, 16), out_channels=8, kernel=4, stride=2, bias=False), 1)
    kinds = [[k.tiling for k in a[0]] for a in (transposed.forward, transposed.backward_input)]
    assert kinds == [["thin", "scattered"], ["thin"]]
    products = gemms(work_of(layer("linear", (64,), out_features=8), 1))
    assert [k.tiling for k in products] == ["library", "library", "sums"]
    assert {k.tiling for k in gemms(work_of(layer("lstm", (64, 5), hidden=8), 1))} == {"recurrent"}


# --- Windows that slide over rows: extents by brute force and as published ----------------------------------------------------------------


def _slide(extent: int, kernel: int, stride: int, pad: int, *, ceil_mode: bool) -> int:
    """Count windows by sliding one: inside the padded image, or (ceil mode) starting at or before the last element or padding."""
    for count, start in enumerate(itertools.count(-pad, stride)):
        inside = start + kernel <= extent + pad
        # Caffe's rule: a window that overhangs counts if it begins inside the image or its left padding, and the one before it
        # did not already reach the end.
        overhangs = ceil_mode and start < extent and start - stride + kernel < extent + pad
        if not (inside or overhangs):
            return count
    raise AssertionError


@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 5), st.integers(0, 3), st.booleans())
def test_windows_are_those_that_slide(extent: int, kernel: int, stride: int, pad: int, ceil_mode: bool) -> None:
    assume(2 * pad <= kernel)
    assume(extent + 2 * pad >= kernel)
    win = window("pool", (1, extent, extent), kernel, stride, pad, ceil_mode=ceil_mode)
    assert win.output == (_slide(extent, kernel, stride, pad, ceil_mode=ceil_mode),) * 2


def test_published_window_extents() -> None:
    # GoogLeNet (Szegedy et al. 2015, table 1): 112 to 56 by a 3x3 maximum at stride 2, rounded up.
    assert layer("pool", (64, 112, 112), kernel=3, stride=2, ceil_mode=True).output_shape == (64, 56, 56)
    assert layer("pool", (64, 112, 112), kernel=3, stride=2).output_shape == (64, 55, 55)
    assert layer("pool", (64, 112, 112), kernel=3, stride=2, padding="same").output_shape == (64, 56, 56)
    # Inception v3 (Szegedy et al. 2016): 299 to 149; 1x7 and 7x1 keep 17x17 if padded alike.
    assert layer("convolution", (3, 299, 299), out_channels=32, kernel=3, stride=2, padding="valid").output_shape == (
        32,
        149,
        149,
    )
    assert layer("convolution", (128, 17, 17), out_channels=128, kernel=(1, 7), padding=(0, 3)).output_shape == (
        128,
        17,
        17,
    )
    assert layer("convolution", (128, 17, 17), out_channels=128, kernel=(7, 1), padding="same").output_shape == (
        128,
        17,
        17,
    )


# --- Frozen layers and low-rank adapters: cheaper backward passes, fewer weights to train -------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shapes", "values"),
    [
        ("linear", ((64, 9),), {"out_features": 32}),
        ("linear", ((64, 9),), {"out_features": 32, "activation": "gelu"}),
        ("convolution", ((8, 9, 9),), {"out_channels": 8, "kernel": 3, "norm": "batch", "activation": "relu"}),
        ("deconvolution", ((8, 9, 9),), {"out_channels": 8, "kernel": 3}),
        ("embedding", ((1, 9),), {"num_embeddings": 20, "dim": 8}),
        ("position_embedding", ((8, 9),), {"max_positions": 20}),
        ("layer_norm", ((8, 9),), {}),
        ("rms_norm", ((8, 9),), {}),
        ("lstm", ((8, 9),), {"hidden": 8}),
        ("attention", ((8, 5), (6, 7)), {"units": 4}),
        ("self_attention", ((24, 9),), {"heads": 2, "head_dim": 4, "relative_buckets": 4}),
        ("to_sequence", ((8, 3, 3),), {"class_token": True}),
        ("moe", ((8, 9),), {"experts": 4, "top_k": 2, "ffn": 6}),
    ],
)
def test_frozen_layers_only_pass_the_gradient_on(kind: str, shapes: tuple[Shape, ...], values: dict[str, Any]) -> None:
    trained, frozen = layer(kind, *shapes, **values), layer(kind, *shapes, frozen=True, **values)
    assert frozen.weight_count == trained.weight_count > 0
    assert frozen.trainable_count == 0
    assert not frozen.has_weights
    before, after = work(trained, batch=2), work(frozen, batch=2)
    assert [k.flop.tolist() for k in after.forward[0]] == [k.flop.tolist() for k in before.forward[0]]
    assert after.backward_weight == ()
    # The gradient of the input needs all it needed, and no more than everything that ran before.
    least = flop(before.backward_input)
    most = least + flop(before.backward_weight)
    assert least <= flop(after.backward_input) <= most
    assert all(exchange.phase != "backward" for exchange in after.exchanges)
    if getattr(trained.params, "activation", None) == "gelu":
        assert flop(after.backward_input) == least + 2 * 9 * 32  # the activation's gradient


def test_a_frozen_matrix_lets_its_input_go() -> None:
    assert layer("linear", (64, 9), out_features=32).keeps_input
    assert not layer("linear", (64, 9), out_features=32, frozen=True).keeps_input
    assert layer("linear", (64, 9), out_features=32, lora_rank=4).keeps_input
    assert layer("layer_norm", (64, 9), frozen=True).keeps_input


def test_an_adapter() -> None:
    """Hu et al. (arXiv:2106.09685): W stays, r (I + O) weights are trained; no gradient of W."""
    b, s, i, o, r = 2, 10, 64, 32, 4
    plain, adapted = layer("linear", (i, s), out_features=o), layer("linear", (i, s), out_features=o, lora_rank=r)
    assert adapted.weight_count == plain.weight_count
    assert adapted.trainable_count == r * (i + o)
    assert adapted.has_weights
    base, thin = 2 * b * s * i * o, 2 * b * s * r * (i + o)
    result = work(adapted, batch=b)
    assert gemm_flop(result.forward) == base + thin
    assert gemm_flop(result.backward_input) + gemm_flop(result.backward_weight) == base + 2 * thin
    assert saved(adapted, batch=b) == b * s * r


def test_adapters_are_for_linear_layers() -> None:
    specs = [
        LayerSpec(name="x", kind="input", params=params_from("input", {"shape": (8, 9)})),
        LayerSpec(name="norm", kind="rms_norm", params=params_from("rms_norm", {}), inputs=("x",), lora_rank=4),
    ]
    with pytest.raises(GraphError, match="norm: type 'rms_norm' takes no adapter"):
        Graph.build("n", specs)
