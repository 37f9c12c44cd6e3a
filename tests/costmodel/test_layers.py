"""Layer families: shapes, weights and operations counted by hand; shares of splits; halos."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.graph import Graph, LayerSpec
from costmodel.layers import FAMILIES, Kernel, Layer, LayerWork, Shape, ShapeError, family_of
from costmodel.layers.base import PassWork, params_from
from costmodel.layers.window import window
from costmodel.splits import Split, SplitTable, shard_of, split_table


def layer(kind: str, *shapes: Shape, **values: Any) -> Layer:
    params = params_from(kind, values)
    return Layer(
        name="l",
        kind=kind,
        params=params,
        inputs=tuple(f"i{k}" for k in range(len(shapes))),
        input_shapes=shapes,
        output_shape=family_of(kind).output_shape(params, shapes),
    )


def work_of(one: Layer, batch: int, split: Split = Split()) -> LayerWork:  # noqa: B008 - immutable
    """Work of one share, every array of length 1."""
    table = split_table([split.workers])
    row = table.row_of(split)
    single = SplitTable(
        worker_counts=(split.workers,),
        offsets=(0, 1),
        workers=table.workers[row : row + 1],
        batch=table.batch[row : row + 1],
        out_channels=table.out_channels[row : row + 1],
        in_channels=table.in_channels[row : row + 1],
        height=table.height[row : row + 1],
    )
    return one.family.work(one, shard_of(one, single, batch))


def gemm_flop(alternatives: PassWork) -> float:
    """Operations of the matrix products of the first alternative, which is the plain algorithm."""
    return sum(float(np.ravel(k.flop)[0]) for k in alternatives[0] if k.gemm is not None)


def flop(alternatives: PassWork) -> float:
    return sum(float(np.ravel(k.flop)[0]) for k in alternatives[0])


def passes(work: LayerWork) -> tuple[PassWork, PassWork, PassWork]:
    return work.forward, work.backward_input, work.backward_weight


def gemms(work: LayerWork) -> Iterator[Kernel]:
    for alternatives in passes(work):
        for kernels in alternatives:
            yield from (k for k in kernels if k.gemm is not None)


# -- convolutions -----------------------------------------------------------------------------------------------------------


def test_convolution_of_a_residual_block() -> None:
    """3x3, 64 to 64 channels on 56x56 (ResNet-50, conv2_x): 2 x 3136 x 576 x 64 = 231,211,008 FLOP per image and pass."""
    conv = layer("convolution", (64, 56, 56), out_channels=64, kernel=3, padding=1, bias=False, norm="batch")
    assert conv.output_shape == (64, 56, 56)
    assert conv.weight_count == 36_864
    assert conv.norm_count == 128
    work = work_of(conv, 2)
    assert [gemm_flop(p) for p in passes(work)] == [2 * 231_211_008.0] * 3
    forward = work.forward[0][0]
    assert float(forward.elements[0]) == 2 * (2 * 64 * 56 * 56) + 36_864
    assert forward.gemm is not None
    assert [float(np.ravel(x)[0]) for x in forward.gemm] == [2 * 3136, 64, 576]


def test_first_convolution_of_alexnet() -> None:
    """11x11 at stride 4 over 227x227: 96 x 55 x 55 (Krizhevsky et al. 2012), 2 x 55^2 x 363 x 96 FLOP; 34,944 weights."""
    conv = layer("convolution", (3, 227, 227), out_channels=96, kernel=11, stride=4)
    assert conv.output_shape == (96, 55, 55)
    assert conv.weight_count == 34_944
    work = work_of(conv, 1)
    # The gradients cost what the forward pass costs: the holes of a strided gradient are not multiplied.
    assert [flop(p) for p in passes(work)] == [2.0 * 55 * 55 * 363 * 96] * 3
    assert {k.algorithm for k in gemms(work)} == {"gemm"}  # neither Winograd nor FFT at stride 4


def test_grouped_convolution() -> None:
    """AlexNet's conv2 in two groups: half of the weights and operations (307,456 weights with biases)."""
    conv = layer("convolution", (96, 27, 27), out_channels=256, kernel=5, padding=2, groups=2)
    assert conv.weight_count == 25 * 48 * 256 + 256 == 307_456
    work = work_of(conv, 1)
    assert flop(work.forward) == 2.0 * 27 * 27 * 25 * 48 * 256
    for kernel in gemms(work):
        assert kernel.gemm is not None
        m, n, k = kernel.gemm
        assert float(kernel.flop[0] / (2.0 * m * n * k)[0]) == pytest.approx(2.0)  # two products side by side
    depthwise = layer("convolution", (32, 8, 8), out_channels=32, kernel=3, padding=1, groups=32)
    assert flop(work_of(depthwise, 4).forward) == 4 * 2.0 * 64 * 9 * 32
    assert float(work_of(depthwise, 4).forward[0][0].elements[0]) == 4 * 2 * 32 * 64 + 9 * 32


def test_groups_are_never_torn() -> None:
    """Three groups over two workers: one computes two of them, two thirds of all."""
    conv = layer("convolution", (6, 4, 4), out_channels=9, kernel=1, groups=3, bias=False)
    whole, share = work_of(conv, 1), work_of(conv, 1, Split(out_channels=2))
    for a, b in zip(passes(whole), passes(share), strict=True):
        assert flop(b) == pytest.approx(flop(a) * 2 / 3)
    thirds = work_of(conv, 1, Split(out_channels=3))
    assert flop(thirds.forward) == pytest.approx(flop(whole.forward) / 3)


def test_winograd_and_fft_are_offered_where_they_apply() -> None:
    def algorithms(**values: Any) -> set[str]:
        return {k.algorithm for k in gemms(work_of(layer("convolution", (8, 16, 16), out_channels=8, **values), 1))}

    assert algorithms(kernel=3, padding=1) == {"gemm", "winograd", "fft", "fft_tiling"}
    assert algorithms(kernel=5, padding=2) == {"gemm", "fft", "fft_tiling"}
    assert algorithms(kernel=3, stride=2) == {"gemm"}
    assert algorithms(kernel=1) == {"gemm"}
    assert algorithms(kernel=3, padding=1, groups=2) == {"gemm"}


def test_transposed_convolution() -> None:
    """DCGAN's first generator layer: 100x1x1 to 1024x4x4 by 4x4; every input meets the whole kernel once."""
    up = layer("deconvolution", (100, 1, 1), out_channels=1024, kernel=4)
    assert up.output_shape == (1024, 4, 4)
    assert up.weight_count == 16 * 100 * 1024 + 1024
    assert [flop(p) for p in passes(work_of(up, 3))] == [3 * 2.0 * 16 * 100 * 1024] * 3
    twice = layer("deconvolution", (64, 8, 8), out_channels=32, kernel=4, stride=2, padding=1)
    assert twice.output_shape == (32, 16, 16)
    assert layer("deconvolution", (64, 8, 8), out_channels=32, kernel=5, stride=2, padding="same").output_shape == (
        32,
        16,
        16,
    )
    # It is the adjoint of a convolution from its output to its input: the same operations.
    conv = layer("convolution", (32, 16, 16), out_channels=64, kernel=4, stride=2, padding=1)
    assert conv.output_shape == (64, 8, 8)
    assert flop(work_of(twice, 1).forward) == flop(work_of(conv, 1).backward_input)


@pytest.mark.parametrize(
    ("extent", "kernel", "stride", "pad", "dilation"),
    list(itertools.product((19, 32), (1, 3), (1, 2), (0, 2), (1, 2, 4))),
)
def test_dilated_convolutions_reach_further(extent: int, kernel: int, stride: int, pad: int, dilation: int) -> None:
    """A dilated kernel is a larger one with holes: same output, the weights and the products of the small one."""
    values = {"out_channels": 8, "stride": stride, "padding": pad}
    dilated = layer("convolution", (4, extent, extent), kernel=kernel, dilation=dilation, **values)
    spread = layer("convolution", (4, extent, extent), kernel=dilation * (kernel - 1) + 1, **values)
    assert dilated.output_shape == spread.output_shape
    assert dilated.weight_count == kernel**2 * 4 * 8 + 8
    positions = dilated.output_shape[1] * dilated.output_shape[2]
    assert [flop(p) for p in passes(work_of(dilated, 3))] == [3 * 2.0 * kernel**2 * 4 * 8 * positions] * 3


def test_dilation_by_hand() -> None:
    # 32 - 2 (3 - 1) = 28; torch.nn.Conv2d(4, 8, 3, dilation=2)
    one = layer("convolution", (4, 32, 32), out_channels=8, kernel=3, dilation=2)
    assert one.output_shape == (8, 28, 28)
    # Neither Winograd nor FFT have kernels with holes.
    assert {k.algorithm for k in gemms(work_of(one, 1))} == {"gemm"}
    # Half of the output rows see 14 + 2 (3 - 1) rows of 32: two beyond their own half.
    halo = {e.operation: e.elements for e in work_of(one, 1, Split(height=2)).exchanges}["point_to_point"]
    assert float(np.asarray(halo).item()) == 2 * 32 * 4
    assert layer("convolution", (4, 32, 32), out_channels=8, kernel=3, dilation=2, padding="same").output_shape == (
        8,
        32,
        32,
    )
    with pytest.raises(ShapeError, match="with padding 0 and dilation 4"):
        layer("convolution", (4, 8, 8), out_channels=8, kernel=3, dilation=4)


def test_grouped_transposed_convolution() -> None:
    """FCN's upsampling: 21 classes, each its own bilinear kernel (num_output 21, group 21)."""
    up = layer("deconvolution", (21, 16, 16), out_channels=21, kernel=4, stride=2, groups=21, bias=False)
    assert up.output_shape == (21, 34, 34)
    assert up.weight_count == 21 * 16
    assert flop(work_of(up, 2).forward) == 2 * 2.0 * 21 * 16 * 256
    assert up.family.limits(up).out_channels == 21
    conv = layer("convolution", (6, 16, 16), out_channels=4, kernel=4, stride=2, padding=1, groups=2)
    adjoint = layer("deconvolution", (4, 8, 8), out_channels=6, kernel=4, stride=2, padding=1, groups=2)
    assert adjoint.output_shape == (6, 16, 16)
    assert flop(work_of(adjoint, 1).forward) == flop(work_of(conv, 1).backward_input)
    with pytest.raises(ShapeError, match="groups 2 must divide"):
        layer("deconvolution", (3, 8, 8), out_channels=6, kernel=4, groups=2)


# -- windows ----------------------------------------------------------------------------------------------------------------


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


@settings(max_examples=200, deadline=None)
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


# -- other families ---------------------------------------------------------------------------------------------------------


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
            **dict.fromkeys(("select_position", "slice_features"), ((8, 5),)),
            "self_attention": ((24, 5),),
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


# -- shares -----------------------------------------------------------------------------------------------------------------

SPLITTABLE = [
    layer("convolution", (24, 24, 24), out_channels=48, kernel=3, padding=1, norm="batch", activation="relu"),
    layer("convolution", (24, 24, 24), out_channels=48, kernel=5, padding="same", stride=2, activation="relu"),
    layer("convolution", (24, 24, 24), out_channels=48, kernel=3, padding=1, groups=12, norm="batch"),
    layer("convolution", (24, 24, 24), out_channels=48, kernel=1),
    layer("deconvolution", (24, 24, 24), out_channels=48, kernel=1, stride=1, activation="relu"),
    layer("linear", (24, 6, 6), out_features=48, activation="relu"),
    layer("linear", (24, 24), out_features=48),
    layer("embedding", (1, 24), num_embeddings=24, dim=48),
    layer("lstm", (24, 24), hidden=48),
    layer("lstm", (24, 24), hidden=48, bidirectional=True),
    layer("attention", (24, 5), (24, 6), units=8),
    layer("pool", (24, 24, 24), kernel=3, stride=2, padding=1),
    layer("global_pool", (24, 24, 24)),
    layer("softmax", (48,)),
    layer("activation", (24, 24, 24)),
    layer("dropout", (48,)),
    layer("add", (24, 24, 24), (24, 24, 24)),
    layer("concat", (24, 24, 24), (48, 24, 24)),
    layer("batch_norm", (24, 24, 24)),
    layer("local_response_norm", (24, 24, 24)),
    layer("upsample", (24, 24, 24), factor=2),
]


SPLITS = [
    Split(batch=3),
    Split(out_channels=4),
    Split(in_channels=3),
    Split(height=3),
    Split(batch=2, out_channels=2, height=2),
    Split(batch=2, out_channels=4, in_channels=3),
]


def _can_take(one: Layer, split: Split) -> bool:
    limits = one.family.limits(one)
    return (
        split.out_channels <= limits.out_channels
        and split.in_channels <= limits.in_channels
        and split.height <= limits.height
    )


@pytest.mark.parametrize(
    ("one", "split"),
    [(one, split) for one in SPLITTABLE for split in SPLITS if _can_take(one, split)],
    ids=lambda value: value.kind if isinstance(value, Layer) else "x".join(map(str, value.degrees)),
)
def test_even_splits_share_the_operations_evenly(one: Layer, split: Split) -> None:
    whole, share = work_of(one, 12), work_of(one, 12, split)
    for a, b in zip(passes(whole), passes(share), strict=True):
        assert len(a) == len(b)
        if a:  # the first alternative is the plain algorithm
            assert flop(b) == pytest.approx(flop(a) / split.workers, rel=1e-12)


def test_limits_are_the_extents() -> None:
    def limits(one: Layer) -> tuple[int, int, int, bool]:
        found = one.family.limits(one)
        return found.out_channels, found.in_channels, found.height, found.channelwise

    assert limits(layer("convolution", (24, 20, 18), out_channels=48, kernel=3)) == (48, 24, 18, False)
    assert limits(layer("convolution", (24, 20, 18), out_channels=48, kernel=3, groups=12)) == (12, 1, 18, True)
    assert limits(layer("linear", (24, 2, 3), out_features=10)) == (10, 144, 1, False)
    assert limits(layer("linear", (24, 7), out_features=10)) == (10, 24, 1, False)
    assert limits(layer("concat", (24, 4, 4), (3, 4, 4))) == (3, 1, 4, True)
    assert limits(layer("pool", (24, 20, 18), kernel=2, stride=2)) == (24, 1, 10, True)
    assert limits(layer("flatten", (24, 20, 18))) == (24, 1, 1, True)
    assert limits(layer("local_response_norm", (24, 20, 18))) == (1, 1, 20, True)
    assert limits(layer("attention", (8, 5), (6, 7), units=4)) == (1, 1, 1, True)
    assert limits(layer("lstm", (8, 5), hidden=3, bidirectional=True)) == (3, 1, 1, False)


def _halo_rows(extent: int, kernel: int, stride: int, pad: int, parts: int) -> int:
    """Rows that a worker in the middle needs and does not have, counted one by one (rows and outputs divide evenly)."""
    outputs = (extent + 2 * pad - kernel) // stride + 1
    middle = parts // 2
    mine = range(middle * extent // parts, (middle + 1) * extent // parts)
    rows = range(middle * outputs // parts, (middle + 1) * outputs // parts)
    needed = {r * stride - pad + k for r in rows for k in range(kernel)} & set(range(extent))
    return len(needed - set(mine))


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "parts"),
    [(3, 1, 1, 3), (5, 1, 2, 4), (1, 1, 0, 4), (3, 2, 1, 3), (2, 2, 0, 3), (7, 1, 3, 3)],
)
def test_halo_is_the_rows_that_are_missing(kernel: int, stride: int, pad: int, parts: int) -> None:
    rows = _halo_rows(24, kernel, stride, pad, parts)
    for one in (
        layer("convolution", (6, 24, 10), out_channels=5, kernel=kernel, stride=stride, padding=pad),
        layer("pool", (6, 24, 10), kernel=kernel, stride=stride, padding=pad),
    ):
        sent = {
            e.phase: float(np.ravel(e.elements)[0])
            for e in work_of(one, 4, Split(height=parts)).exchanges
            if e.operation == "point_to_point"
        }
        expected = 4.0 * rows * 10 * 6
        assert sent.get("forward", 0.0) == expected
        assert sent.get("input_gradient", 0.0) == expected


def test_partial_sums_are_the_whole_share() -> None:
    conv = layer("convolution", (8, 6, 6), out_channels=12, kernel=3, padding=1)
    found = {
        e.phase: e for e in work_of(conv, 4, Split(in_channels=4, out_channels=3)).exchanges if e.over == "in_channels"
    }
    assert found["forward"].operation == "reduce_scatter"
    assert found["backward"].operation == "all_gather"
    assert float(found["forward"].elements[0]) == float(found["backward"].elements[0]) == 4 * 4 * 36


def test_an_attached_activation_costs_its_gradient_even_in_the_first_layer() -> None:
    """The gradient of the weights needs that of the activation, whether or not anybody wants the gradient of the input."""
    for kind, values in (("convolution", {"out_channels": 4, "kernel": 1}), ("linear", {"out_features": 4})):
        plain = layer(kind, (4, 8, 8), **values)
        dressed = layer(kind, (4, 8, 8), activation="relu", **values)
        assert flop(work_of(dressed, 1).backward_weight) > flop(work_of(plain, 1).backward_weight)
        assert flop(work_of(dressed, 1).backward_input) == flop(work_of(plain, 1).backward_input)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 24),
    st.integers(1, 24),
    st.integers(3, 20),
    st.sampled_from([1, 3, 5]),
    st.sampled_from([(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (3, 2, 1, 1), (1, 3, 2, 1), (2, 1, 1, 3)]),
)
def test_the_largest_share_is_at_least_the_even_share(
    batch: int, channels: int, filters: int, extent: int, kernel: int, degrees: tuple[int, int, int, int]
) -> None:
    """Every pass of any legal split: at least 1/workers of the whole, at most the whole, for each algorithm."""
    b, o, i, h = degrees
    assume(b <= batch and o * i <= filters and i <= channels and h <= extent)
    conv = layer("convolution", (channels, extent, extent), out_channels=filters, kernel=kernel, padding="same")
    split = Split(batch=b, out_channels=o, in_channels=i, height=h)
    whole, share = work_of(conv, batch), work_of(conv, batch, split)
    for a, c in zip(passes(whole), passes(share), strict=True):
        for before, after in zip(a, c, strict=True):
            for x, y in zip(before, after, strict=True):
                assert float(np.ravel(y.flop)[0]) <= float(np.ravel(x.flop)[0]) * (1 + 1e-12)
                assert float(np.ravel(y.elements)[0]) <= float(np.ravel(x.elements)[0]) * (1 + 1e-12)
        assert flop(c) >= flop(a) / split.workers * (1 - 1e-12)


def test_weights_of_a_network_add_up() -> None:
    specs = [
        LayerSpec(name="data", kind="input", params=params_from("input", {"shape": (1, 28, 28)})),
        LayerSpec(name="fc1", kind="linear", params=params_from("linear", {"out_features": 100}), inputs=("data",)),
        LayerSpec(name="fc2", kind="linear", params=params_from("linear", {"out_features": 10}), inputs=("fc1",)),
    ]
    assert Graph.build("mlp", specs).weight_count == 784 * 100 + 100 + 100 * 10 + 10
    assert math.prod(layer("flatten", (3, 4, 5)).output_shape) == 60


def test_winograd_multiplies_whole_tiles() -> None:
    """A 6x6 output: nine tiles of F(2x2) with 16 products each, and 2x2 tiles of F(4x4), two of which overhang, with 36."""
    work = work_of(layer("convolution", (3, 6, 6), out_channels=5, kernel=3, padding=1), 7)
    fused, (multiply, transform) = (a for a in work.forward if a[0].algorithm == "winograd")
    assert [float(fused[0].flop[0]), float(multiply.flop[0])] == [2.0 * 7 * 9 * 16 * 3 * 5, 2.0 * 7 * 4 * 36 * 3 * 5]
    for kernel in (fused[0], multiply):
        assert kernel.gemm is not None
        m, n, k = kernel.gemm
        assert float((kernel.flop / (2.0 * m * n * k))[0]) == pytest.approx(1.0 if kernel is fused[0] else 36.0)
    # The one kernel moves what an implicit product moves; the transforms go through memory.
    assert float(fused[0].elements[0]) == float(work.forward[0][0].elements[0])
    assert float(transform.elements[0]) > 36 * 7 * 4 * (3 + 5)
    # The gradient of the weights sums over tiles: no kernel of one piece.
    assert [len(a) for a in work.backward_weight if a[0].algorithm == "winograd"] == [2]


def test_kinds_of_kernels_are_named() -> None:
    strided = work_of(layer("convolution", (8, 16, 16), out_channels=8, kernel=3, stride=2), 1)
    tilings = [passes_[0][0].tiling for passes_ in (strided.forward, strided.backward_input, strided.backward_weight)]
    assert tilings == ["thin", "strided", "thin"]
    transposed = work_of(layer("deconvolution", (8, 16, 16), out_channels=8, kernel=4, stride=2), 1)
    assert [a[0][0].tiling for a in (transposed.forward, transposed.backward_input)] == ["strided", "thin"]
    assert {k.tiling for k in gemms(work_of(layer("linear", (64,), out_features=8), 1))} == {"library"}
    assert {k.tiling for k in gemms(work_of(layer("lstm", (64, 5), hidden=8), 1))} == {"thin"}
