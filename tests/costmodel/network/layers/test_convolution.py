"""Convolutions: shapes, weights and operations counted by hand; the algorithms on offer."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from costmodel.hardware.device import Device
from costmodel.kernels.roofline import kernel_time_s
from costmodel.layerwise.plan import Split
from costmodel.network.layers import ShapeError
from costmodel.network.layers.base import PassWork, Tiling
from tests.costmodel.network.layers.cases import gemm_flop, gemms, layer, passes, work_of


def flop(alternatives: PassWork) -> float:
    """Of the products of the first alternative: not of biases and activations around them."""
    return sum(float(np.ravel(k.flop)[0]) for k in alternatives[0] if k.gemm is not None)


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


def test_the_gradient_of_the_input_is_a_convolution_or_scattered_sums() -> None:
    """3 channels to 5 by 3x3: unit steps sum 5 x 9 products per input; with steps of two, 8 x 8 outputs have 27 sums each."""
    plain = work_of(layer("convolution", (3, 16, 16), out_channels=5, kernel=3, padding=1), 2)
    (kernel,) = plain.backward_input[0]
    assert [float(np.ravel(extent)[0]) for extent in kernel.gemm] == [2 * 16 * 16, 3, 5 * 9]
    assert flop(plain.backward_input) == flop(plain.forward)
    strided = work_of(layer("convolution", (3, 16, 16), out_channels=5, kernel=3, padding=1, stride=2), 2)
    product, sums = strided.backward_input[0]
    assert [float(np.ravel(extent)[0]) for extent in product.gemm] == [2 * 8 * 8, 27, 5]
    assert float(sums.elements[0]) == 2 * 8 * 8 * 27 + 2 * 3 * 16 * 16
    assert float(sums.flop[0]) == 0.0
    # Of groups, each sums its own.
    grouped = work_of(layer("convolution", (4, 16, 16), out_channels=8, kernel=3, padding=1, stride=2, groups=2), 2)
    assert float(grouped.backward_input[0][1].elements[0]) == 2 * 8 * 8 * 9 * 4 + 2 * 4 * 16 * 16
    assert grouped.backward_weight[0][0].tiling == "weights"


def test_transposed_convolution() -> None:
    """DCGAN's first generator layer: 100x1x1 to 1024x4x4 by 4x4; every input meets the whole kernel once."""
    up = layer("deconvolution", (100, 1, 1), out_channels=1024, kernel=4)
    assert up.output_shape == (1024, 4, 4)
    assert up.weight_count == 16 * 100 * 1024 + 1024
    assert [flop(p) for p in passes(work_of(up, 3))] == [3 * 2.0 * 16 * 100 * 1024] * 3
    twice = layer("deconvolution", (64, 8, 8), out_channels=32, kernel=4, stride=2, padding=1)
    assert twice.output_shape == (32, 16, 16)
    # torch.nn.ConvTranspose2d(..., output_padding=1): (8 - 1) 2 + 3 - 2 + 1 = 16, as many weights and products as without
    odd = layer("deconvolution", (64, 8, 8), out_channels=32, kernel=3, stride=2, padding=1, output_padding=1)
    assert odd.output_shape == (32, 16, 16)
    assert odd.weight_count == 64 * 32 * 9 + 32
    with pytest.raises(ShapeError, match="output_padding 2 is not less than the stride 2"):
        layer("deconvolution", (64, 8, 8), out_channels=32, kernel=3, stride=2, output_padding=2)
    with pytest.raises(ShapeError, match="no meaning beside padding 'same'"):
        layer("deconvolution", (64, 8, 8), out_channels=32, kernel=3, stride=2, padding="same", output_padding=1)
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


def test_winograd_multiplies_whole_tiles() -> None:
    """A 6x6 output: nine tiles of F(2x2) with 16 products each, and 2x2 tiles of F(4x4), two of which overhang, with 36."""
    work = work_of(layer("convolution", (3, 6, 6), out_channels=5, kernel=3, padding=1, bias=False), 7)
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


def test_winograd_tiles_have_a_least_side() -> None:
    """32 filters are multiplied like 64; gradients of weights, whose tiles are 128 tall, multiply 64 channels like 128."""
    device = Device(
        name="d",
        peak_flop_per_s={"fp32": 1e12},
        memory_bytes=1e9,
        memory_bandwidth_bytes_per_s=1e15,
        launch_overhead_s=0.0,
    )

    def seconds(gemm: tuple[float, float, float], tiling: Tiling) -> float:
        flop = 2.0 * 36 * np.prod(gemm)
        kernel = {"flop": flop, "memory_bytes": 0.0, "gemm": gemm, "algorithm": "winograd", "tiling": tiling}
        return float(kernel_time_s(device, "fp32", **kernel))

    assert seconds((1e6, 32, 256), "thin") > 0.95 * seconds((1e6, 64, 256), "thin")
    assert seconds((1e6, 64, 256), "thin") < 0.65 * seconds((1e6, 128, 256), "thin")
    assert seconds((64, 256, 1e6), "weights") > 0.9 * seconds((128, 256, 1e6), "weights")
    assert seconds((128, 256, 1e6), "weights") < 0.6 * seconds((256, 256, 1e6), "weights")


def test_groups_gather_their_windows() -> None:
    """Every output of a narrow group reads its positions itself; one channel per group is no product and scatters nothing."""
    narrow = work_of(layer("convolution", (8, 16, 16), out_channels=8, kernel=3, padding=1, groups=4), 2)
    outputs, positions = narrow.forward[0][0].window or (np.zeros(1), 0.0)
    assert (float(outputs[0]), positions) == (2 * 8 * 16 * 16, 9.0)
    assert narrow.forward[0][0].tiling == "thin"
    whole = work_of(layer("convolution", (8, 16, 16), out_channels=8, kernel=3, padding=1), 2)
    assert whole.forward[0][0].window is None
    depthwise = work_of(layer("convolution", (8, 16, 16), out_channels=16, kernel=5, padding=2, stride=2, groups=8), 2)
    passes = (depthwise.forward, depthwise.backward_input, depthwise.backward_weight)
    assert all(kernels[0][0].tiling == "depthwise" and not kernels[0][0].images for kernels in passes)
    assert all(kernels[0][0].window[1] == 25.0 for kernels in passes if kernels[0][0].window)
    assert len(depthwise.backward_input[0]) == 1
