"""Convolution and transposed convolution."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers.base import (
    Activation,
    InnerExchange,
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    Norm,
    Shape,
    ShapeError,
    Shard,
    SplitLimits,
    Tiling,
    image_epilogue,
    param,
    reduced_fraction,
    register,
    shape_text,
)
from costmodel.network.layers.pooling import Padding, Size2, Window, input_rows, pair, window


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionParams:
    """Parameters of a two-dimensional convolution."""

    out_channels: int = param(doc="filters", minimum=1)
    kernel: Size2 = param(doc="height and width of a filter, one number or [height, width]", minimum=1)
    stride: Size2 = param(doc="step between windows", default=1, minimum=1)
    padding: Padding = param(
        doc="zeros around the input: a number, [height, width], 'same' or 'valid'", default=0, minimum=0
    )
    dilation: Size2 = param(doc="step between the rows and columns that a filter sees", default=1, minimum=1)
    groups: int = param(doc="independent groups of channels", default=1, minimum=1)
    bias: bool = param(doc="add a bias per output channel", default=True)
    norm: Norm = param(doc="normalisation that follows, fused with the layer in this file", default=None)
    activation: Activation = param(doc="activation that follows, fused with the layer", default=None)


@register(
    "convolution", ConvolutionParams, "two-dimensional convolution, with optional bias, normalisation and activation"
)
class Convolution(LayerFamily):
    """Two-dimensional convolution; the cheapest of GEMM, Winograd, FFT and tiled FFT is used per pass."""

    input_for_weights_only = True

    def output_shape(self, params: ConvolutionParams, inputs: tuple[Shape, ...]) -> Shape:
        """(out_channels, output height, output width)."""
        win = window("a convolution", inputs[0], params.kernel, params.stride, params.padding, dilation=params.dilation)
        _check_groups(params.groups, inputs[0][0], params.out_channels)
        return (params.out_channels, *win.output)

    def weight_count(self, layer: Layer) -> int:
        """``kh kw (Ci / groups) Co + Co``."""
        p: ConvolutionParams = layer.params
        kernel = math.prod(pair(p.kernel))
        return kernel * (layer.input_shapes[0][0] // p.groups) * p.out_channels + (p.out_channels if p.bias else 0)

    def is_fully_connected(self, layer: Layer) -> bool:
        """A convolution whose output has one position sees its whole input: a fully connected layer in disguise."""
        return layer.output_shape[1:] == (1, 1)

    def limits(self, layer: Layer) -> SplitLimits:
        """Output channels, input channels (not for grouped ones) and rows; grouped channels split alike on both sides."""
        p: ConvolutionParams = layer.params
        if p.groups > 1:
            return SplitLimits(out_channels=p.groups, height=layer.output_shape[1], channelwise=True)
        return SplitLimits(
            out_channels=p.out_channels, in_channels=layer.input_shapes[0][0], height=layer.output_shape[1]
        )

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Forward, input gradient and weight gradient; strided gradients do not multiply by the holes they insert."""
        p: ConvolutionParams = layer.params
        win = window("a convolution", layer.input_shapes[0], p.kernel, p.stride, p.padding, dilation=p.dilation)
        _, in_height, in_width = layer.input_shapes[0]
        rows_in = input_rows(win, in_height, shard.height)
        shard, groups = _whole_groups(shard, p.groups, layer.input_shapes[0][0], p.out_channels)
        size = _Sizes(
            inputs=shard.batch * rows_in * in_width * shard.in_channels,
            filters=win.kernel[0] * win.kernel[1] * shard.in_channels * shard.out_channels / groups,
            outputs=shard.batch * shard.height * layer.output_shape[2] * shard.out_channels,
            positions=shard.batch * shard.height * layer.output_shape[2],
            patch=win.kernel[0] * win.kernel[1] * shard.in_channels / groups,
            channels=shard.out_channels,
            groups=groups,
        )
        kept = size.outputs * reduced_fraction(shard)
        forward, backward, own = image_epilogue(p.norm, p.activation, kept, bias=p.bias)
        passes = _convolution_passes(size, win, shard, (rows_in, in_width), layer.output_shape[2])
        return LayerWork(
            forward=tuple((*alternative, *forward) for alternative in passes[0]),
            backward_input=passes[1],
            backward_weight=tuple((*alternative, *backward, *own) for alternative in passes[2]),
            exchanges=_split_exchanges(layer, win, shard, size, rows_in),
            through=backward,
        )


def _check_groups(groups: int, channels_in: int, channels_out: int) -> None:
    if channels_in % groups or channels_out % groups:
        raise ShapeError(
            f"groups {groups} must divide both the input channels ({channels_in}) and out_channels ({channels_out})"
        )


def _whole_groups(shard: Shard, groups: int, channels_in: int, channels_out: int) -> tuple[Shard, FloatArray | float]:
    """A share holds whole groups: with 3 groups over 2 workers, 2 of them and two thirds of the channels on either side."""
    if groups == 1:
        return shard, 1.0
    held = np.ceil(groups / shard.split_out)
    channels = (held * (channels_in // groups), held * (channels_out // groups))
    return replace(shard, in_channels=channels[0], out_channels=channels[1]), held


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Element counts of one share, and the matrix an implicit GEMM multiplies: positions x patch by patch x channels."""

    inputs: FloatArray
    filters: FloatArray
    outputs: FloatArray
    positions: FloatArray
    patch: FloatArray
    channels: FloatArray
    groups: FloatArray | float

    @property
    def elements(self) -> FloatArray:
        return self.inputs + self.filters + self.outputs

    @property
    def flop(self) -> FloatArray:
        return 2.0 * self.outputs * self.patch


def _convolution_passes(
    size: _Sizes, win: Window, shard: Shard, extent: tuple[FloatArray, int], out_width: int
) -> tuple[tuple[tuple[Kernel, ...], ...], ...]:
    """Alternatives of the three passes; each moves input, filters and output once and multiplies the same number of times."""
    channels = size.channels / size.groups
    area = math.prod(win.kernel)
    is_strided = max(win.stride) > 1
    # Of the layer, not of its shares: a share costs the same whatever stands alongside it.
    is_whole = isinstance(size.groups, float)
    of_input = (shard.batch * extent[0] * extent[1], size.patch / area, channels * area)
    gemms = (
        (size.positions, channels, size.patch),
        # Gradient of the input: a convolution of the gradient of the output, or products of outputs and filters that are added up.
        (size.positions, size.patch, channels) if is_strided else of_input,
        (size.patch, channels, size.positions),  # gradient of the weights: sum over positions
    )
    is_depthwise = not is_whole and bool(np.all(np.asarray(size.patch) == area))
    tilings: tuple[Tiling, ...] = ("depthwise",) * 3 if is_depthwise else ("thin", "thin", "weights")
    seen = None if is_whole else (size.outputs, float(area))
    inner = (shard.in_channels, shard.out_channels, None)  # what Winograd's products sum over, besides the filter
    passes = []
    for index, gemm in enumerate(gemms):
        implicit = Kernel(
            flop=size.flop,
            elements=size.elements,
            gemm=gemm,
            tiling=tilings[index],
            images=not is_depthwise,  # lanes take any layout
            window=seen,
        )
        sums = (_scattered(size, size.inputs),) if index == 1 and is_strided and not is_depthwise else ()
        alternatives: list[tuple[Kernel, ...]] = [(implicit, *sums)]
        if is_whole and win.dilation == (1, 1):
            if win.kernel == (3, 3) and win.stride == (1, 1):
                alternatives.extend(_winograd(size, shard, out_width, inner[index]))
            if win.stride == (1, 1) and max(win.kernel) > 1:
                alternatives.append(
                    _fft(size, shard, (extent[0] + win.kernel[0] - 1, extent[1] + win.kernel[1] - 1), "fft")
                )
                alternatives.append(_fft(size, shard, (32, 32), "fft_tiling", extent, win))
        passes.append(tuple(alternatives))
    return tuple(passes)


def _scattered(size: _Sizes, into: FloatArray) -> Kernel:
    """Sums of a strided gradient, added one by one to what was set to zero first."""
    sums = size.positions * size.patch * size.groups
    return Kernel(flop=0.0 * sums, elements=sums + into, tiling="scattered")


def _winograd(size: _Sizes, shard: Shard, out_width: int, inner: FloatArray | None) -> list[tuple[Kernel, ...]]:
    """Lavin and Gray (arXiv:1509.09308): F(2x2, 3x3) in one kernel, and F(4x4, 3x3) with its transforms in memory.

    F(2x2) multiplies 16 numbers for 4 outputs instead of 36, F(4x4) 36 for 16 instead of 144; tiles at the border are whole. The one
    kernel transforms in registers and sums over channels only: not for the gradient of the weights, which sums over tiles (``inner``
    None).
    """
    channels_in, channels_out = shard.in_channels, shard.out_channels
    alternatives: list[tuple[Kernel, ...]] = []
    if inner is not None:
        tiles = shard.batch * np.ceil(shard.height / 2.0) * math.ceil(out_width / 2)
        # 16 products of tiles x inner by inner x outer, as one with four times the rows and the depth.
        gemm = (4.0 * tiles, channels_in * channels_out / inner, 4.0 * inner)
        flop = 32.0 * tiles * channels_in * channels_out
        alternatives.append((Kernel(flop=flop, elements=size.elements, gemm=gemm, algorithm="winograd"),))
    tiles = shard.batch * np.ceil(shard.height / 4.0) * math.ceil(out_width / 4)
    gemm = (channels_in, channels_out, tiles) if inner is None else (tiles, channels_in * channels_out / inner, inner)
    images, filters = 36.0 * tiles * (channels_in + channels_out), 4.0 * size.filters
    multiply = Kernel(
        flop=72.0 * tiles * channels_in * channels_out,
        elements=images + filters,
        gemm=gemm,
        algorithm="winograd",
        tiling="weights" if inner is None else "thin",
    )
    # Lavin and Gray, table 2: 13 to 15 operations per element that is transformed.
    transform = Kernel(flop=14.0 * (images + filters), elements=size.elements + images + filters, launches=3)
    alternatives.append((multiply, transform))
    return alternatives


def _fft(
    size: _Sizes,
    shard: Shard,
    field: tuple[FloatArray | int, int],
    algorithm: str,
    extent: tuple[FloatArray, int] | None = None,
    win: Window | None = None,
) -> tuple[Kernel, ...]:
    """FFT convolution (Mathieu, Henaff, LeCun, arXiv:1312.5851): transforms, a complex product per frequency, an inverse.

    A real 2-d transform of S points costs ``2.5 S log2 S`` FLOP; the product ``8/2 n c o S`` FLOP (half the spectrum). Tiling
    cuts the image into 32x32 tiles that overlap by the kernel.
    """
    points = np.asarray(field[0] * field[1], dtype=np.float64)
    tiles: FloatArray | float = 1.0
    if extent is not None and win is not None:
        useful = (field[0] - win.kernel[0] + 1, field[1] - win.kernel[1] + 1)
        tiles = np.ceil(extent[0] / np.maximum(useful[0], 1)) * math.ceil(extent[1] / max(useful[1], 1))
    planes_in = shard.batch * shard.in_channels * tiles
    planes_out = shard.batch * shard.out_channels * tiles
    filters = shard.in_channels * shard.out_channels
    transforms = 2.5 * points * np.log2(points)
    spectra = points * (planes_in + planes_out + filters)
    product = Kernel(
        flop=4.0 * planes_in * shard.out_channels * points,
        elements=spectra,
        gemm=(shard.batch * tiles, shard.out_channels, shard.in_channels),
        algorithm=algorithm,
    )
    transform = Kernel(
        flop=transforms * (planes_in + planes_out + filters),
        elements=spectra + size.elements,
        algorithm=algorithm,
        launches=3,
    )
    return (transform, product)


def _split_exchanges(
    layer: Layer, win: Window, shard: Shard, size: _Sizes, rows_in: FloatArray
) -> tuple[InnerExchange, ...]:
    """Partial sums of an input-channel split, and the halo rows of a split of the height."""
    exchanges = []
    if layer.family.limits(layer).in_channels > 1:
        # The partial outputs are reduced into channel shares; the gradient of the output is gathered back.
        exchanges += [
            InnerExchange(operation="reduce_scatter", over="in_channels", elements=size.outputs, phase="forward"),
            InnerExchange(operation="all_gather", over="in_channels", elements=size.outputs, phase="backward"),
        ]
    if win.kernel[0] > 1:
        _, in_height, in_width = layer.input_shapes[0]
        halo = np.maximum(rows_in - np.ceil(in_height / shard.split_height), 0.0)
        elements = shard.batch * halo * in_width * shard.in_channels
        exchanges += [
            InnerExchange(operation="point_to_point", over="height", elements=elements, phase="forward"),
            InnerExchange(operation="point_to_point", over="height", elements=elements, phase="input_gradient"),
        ]
    return tuple(exchanges)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeconvolutionParams:
    """Parameters of a transposed convolution."""

    out_channels: int = param(doc="filters", minimum=1)
    kernel: Size2 = param(doc="height and width of a filter", minimum=1)
    stride: Size2 = param(doc="enlargement of the image", default=1, minimum=1)
    padding: int | tuple[int, int] | Literal["same", "valid"] = param(
        doc="rows and columns dropped at the border; 'same' gives input x stride", default=0, minimum=0
    )
    output_padding: Size2 = param(doc="rows and columns added at the end, less than the stride", default=0, minimum=0)
    groups: int = param(doc="independent groups of channels", default=1, minimum=1)
    bias: bool = param(doc="add a bias per output channel", default=True)
    norm: Norm = param(doc="normalisation that follows", default=None)
    activation: Activation = param(doc="activation that follows", default=None)


@register("deconvolution", DeconvolutionParams, "transposed (fractionally strided) convolution")
class Deconvolution(LayerFamily):
    """Transposed convolution: the input gradient of a convolution used as a layer."""

    input_for_weights_only = True

    def output_shape(self, params: DeconvolutionParams, inputs: tuple[Shape, ...]) -> Shape:
        """``(extent - 1) stride + kernel - 2 padding + output_padding``; 'same' gives ``extent stride``."""
        if len(inputs[0]) != 3:
            raise ShapeError(f"a deconvolution needs an image, its input is {shape_text(inputs[0])}")
        _check_groups(params.groups, inputs[0][0], params.out_channels)
        out = []
        for axis, (extent, k, s) in enumerate(
            zip(inputs[0][1:], pair(params.kernel), pair(params.stride), strict=True)
        ):
            if params.padding == "same":
                if params.output_padding not in (0, (0, 0)):
                    raise ShapeError("output_padding has no meaning beside padding 'same', which says the output")
                out.append(extent * s)
                continue
            pad = 0 if params.padding == "valid" else pair(params.padding)[axis]
            more = pair(params.output_padding)[axis]
            if more >= s and more:
                raise ShapeError(f"output_padding {more} is not less than the stride {s}")
            out.append((extent - 1) * s + k - 2 * pad + more)
            if out[-1] < 1:
                raise ShapeError(f"padding {pad} leaves nothing of its input {shape_text(inputs[0])}")
        return (params.out_channels, out[0], out[1])

    def weight_count(self, layer: Layer) -> int:
        """``kh kw Ci Co / groups + Co``."""
        p: DeconvolutionParams = layer.params
        bias = p.out_channels if p.bias else 0
        return math.prod(pair(p.kernel)) * layer.input_shapes[0][0] * (p.out_channels // p.groups) + bias

    def limits(self, layer: Layer) -> SplitLimits:
        """Output and input channels (grouped ones split alike on both sides), and rows of the output."""
        p: DeconvolutionParams = layer.params
        height = min(layer.output_shape[1], layer.input_shapes[0][1])
        if p.groups > 1:
            return SplitLimits(out_channels=p.groups, height=height, channelwise=True)
        return SplitLimits(out_channels=p.out_channels, in_channels=layer.input_shapes[0][0], height=height)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Every input position is multiplied by the whole kernel once."""
        p: DeconvolutionParams = layer.params
        kernel, stride = pair(p.kernel), pair(p.stride)
        _, in_height, in_width = layer.input_shapes[0]
        rows_in = np.minimum(np.ceil((shard.height + kernel[0] - 1.0) / stride[0]), float(in_height))
        shard, groups = _whole_groups(shard, p.groups, layer.input_shapes[0][0], p.out_channels)
        size = _Sizes(
            inputs=shard.batch * rows_in * in_width * shard.in_channels,
            filters=kernel[0] * kernel[1] * shard.in_channels * shard.out_channels / groups,
            outputs=shard.batch * shard.height * layer.output_shape[2] * shard.out_channels,
            positions=shard.batch * rows_in * in_width,
            patch=kernel[0] * kernel[1] * shard.out_channels / groups,
            channels=shard.in_channels,
            groups=groups,
        )
        flop = 2.0 * size.positions * size.patch * size.channels
        channels = size.channels / groups
        gemms: tuple[Any, ...] = (
            (size.positions, size.patch, channels),
            (size.positions, channels, size.patch),
            (size.patch, channels, size.positions),
        )
        kept = size.outputs * reduced_fraction(shard)
        forward, backward, own = image_epilogue(p.norm, p.activation, kept, bias=p.bias)
        # Forward is what the gradient of the input is for a convolution.
        sums = (_scattered(size, size.outputs),) if max(stride) > 1 else ()
        tilings: tuple[Tiling, ...] = ("thin", "thin", "weights" if p.groups == 1 else "thin")
        kernels = [
            Kernel(flop=flop, elements=size.elements, gemm=gemm, tiling=tiling, images=True)
            for gemm, tiling in zip(gemms, tilings, strict=True)
        ]
        win = Window(kernel, (1, 1), (0, 0), (layer.output_shape[1], layer.output_shape[2]))
        return LayerWork(
            forward=((kernels[0], *sums, *forward),),
            backward_input=((kernels[1],),),
            backward_weight=((kernels[2], *backward, *own),),
            exchanges=_split_exchanges(layer, win, shard, size, rows_in),
            through=backward,
        )
