"""Convolutions as PALEO sees them: tensors in NHWC, filters in HWIO, gradients as convolutions of stride 1.

Gradient geometry of one dimension (extent H, kernel K, stride S, pad p, output Ho):

    dilated = (Ho - 1) S + 1                   the output gradient with S - 1 zeros between neighbours
    before  = K - 1 - p
    after   = (H + K - 1) - dilated - before

The first release adds one zero if ``after - before = 1`` and pads ``before``; the last release adds one if they differ by one and
pads the smaller. Where the result has not the layer's own extents, PALEO stops with an assertion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers import Layer, Shard
from costmodel.network.layers.window import pair

__all__ = ["Axis", "Plain", "convolution_axes", "convolution_passes", "deconvolution_axes", "deconvolution_passes"]

Extent = FloatArray | float
Extents = tuple[Extent, Extent, Extent, Extent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A convolution reduced to what PALEO's formulas use; ``holes`` are the shares of zeros that dilation put in."""

    inputs: Extents  # samples, rows, columns, channels
    filters: Extents  # rows, columns, input channels, output channels
    outputs: Extents
    padding: tuple[int, int]
    filter_holes: Extent = 0.0
    input_holes: Extent = 0.0  # last release only


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One dimension of a convolution and of its gradients."""

    extent: int
    kernel: int
    stride: int
    output: int
    pad: int
    dilated: int
    gradient_pad: int

    @property
    def gradient_extent(self) -> int:
        """What the gradient of the input comes out as; should be `extent`."""
        return self.dilated + 2 * self.gradient_pad - self.kernel + 1

    def filter_extent(self, pad: int) -> int:
        """What the gradient of the filter comes out as, given the pad of that convolution; should be `kernel`."""
        return self.extent + 2 * pad - self.dilated + 1


def convolution_axes(layer: Layer) -> tuple[Axis, Axis]:
    """Both dimensions of a convolution by the rules of the first release.

    The pad of 'same' is ``floor(((H - 1) S + K - H) / 2)``, too large for S > 1 (the last release has Ho in the place of H).
    """
    p = layer.params
    axes = []
    for i in (0, 1):
        extent, kernel, stride = layer.input_shapes[0][i + 1], pair(p.kernel)[i], pair(p.stride)[i]
        pad = _pad(p.padding, i, (extent - 1) * stride + kernel - extent)
        if p.padding != "same":
            # PALEO knows no dilation: the kernel without holes that gives the same output has this padding.
            pad -= (pair(p.dilation)[i] - 1) * (kernel - 1) // 2
        output = layer.output_shape[i + 1]
        dilated = (output - 1) * stride + 1
        before = kernel - 1 - pad
        after = extent + kernel - 1 - dilated - before
        dilated += after - before == 1
        axes.append(
            Axis(
                extent=extent,
                kernel=kernel,
                stride=stride,
                output=output,
                pad=pad,
                dilated=dilated,
                gradient_pad=before,
            )
        )
    return axes[0], axes[1]


def deconvolution_axes(layer: Layer) -> tuple[Axis, Axis]:
    """Both dimensions of the convolution that a transposed one reverses, by the rules of the last release (the first has none)."""
    p = layer.params
    axes = []
    for i in (0, 1):
        # The reversed convolution goes from the output to the input.
        extent, output = layer.output_shape[i + 1], layer.input_shapes[0][i + 1]
        kernel, stride = pair(p.kernel)[i], pair(p.stride)[i]
        pad = _pad(p.padding, i, (output - 1) * stride + kernel - extent)
        axes.append(_last_release_axis(extent, kernel, stride, output, pad))
    return axes[0], axes[1]


def _pad(padding: object, i: int, same: int) -> int:
    if padding == "same":
        return same // 2
    if padding == "valid":
        return 0
    return padding[i] if isinstance(padding, tuple) else int(padding)  # type: ignore[call-overload,no-any-return]


def _last_release_axis(extent: int, kernel: int, stride: int, output: int, pad: int) -> Axis:
    dilated = (output - 1) * stride + 1
    before = kernel - 1 - pad
    after = extent + kernel - 1 - dilated - before
    dilated += abs(before - after) == 1
    return Axis(
        extent=extent,
        kernel=kernel,
        stride=stride,
        output=output,
        pad=pad,
        dilated=dilated,
        gradient_pad=min(before, after),
    )


def _share(whole: int, shard: Shard, part: Extent) -> FloatArray:
    """Extent of one worker's part of the rows; the whole where the rows are not split (PALEO itself never splits them)."""
    return np.where(shard.split_height == 1.0, float(whole), np.minimum(float(whole), part))


def _holes(dilated: tuple[Extent, Extent], kept: tuple[Extent, Extent]) -> Extent:
    points = dilated[0] * dilated[1]
    return (points - kept[0] * kept[1]) / points


def convolution_passes(layer: Layer, shard: Shard) -> tuple[Plain, Plain, Plain]:
    """Forward, gradient of the input, gradient of the filters, for one worker's share.

    A share of the rows reads the halo that its own rows need: forward ``(rows - 1) S + K`` rows, for the gradient of the input
    ``ceil(H / split) + K - 1`` rows of the dilated gradient.
    """
    high, wide = convolution_axes(layer)
    n, ci, co, rows = shard.batch, shard.in_channels, shard.out_channels, shard.height
    in_rows = _share(high.extent, shard, (rows - 1.0) * high.stride + high.kernel)
    own_rows = np.ceil(high.extent / shard.split_height)
    gradient_rows = _share(high.dilated, shard, own_rows + high.kernel - 1.0)
    dilated_rows = _share(high.dilated, shard, (rows - 1.0) * high.stride + 1.0)
    kernel = (float(high.kernel), float(wide.kernel))
    forward = Plain(
        inputs=(n, in_rows, float(wide.extent), ci),
        filters=(*kernel, ci, co),
        outputs=(n, rows, float(wide.output), co),
        padding=(high.pad, wide.pad),
    )
    to_input = Plain(
        inputs=(n, gradient_rows, float(wide.dilated), co),
        filters=(*kernel, co, ci),
        outputs=(n, own_rows, float(wide.extent), ci),
        padding=(high.gradient_pad, wide.gradient_pad),
    )
    to_filters = Plain(
        inputs=(ci, in_rows, float(wide.extent), n),
        filters=(dilated_rows, float(wide.dilated), n, co),
        outputs=(ci, *kernel, co),
        padding=(high.pad, wide.pad),
        filter_holes=_holes((dilated_rows, float(wide.dilated)), (rows, float(wide.output))),
    )
    return forward, to_input, to_filters


def deconvolution_passes(layer: Layer, shard: Shard) -> tuple[Plain, Plain, Plain]:
    """Forward, gradient of the input, gradient of the filters of a transposed convolution.

    Forward is the input gradient of the reversed convolution, the gradient of the input its forward pass, and the gradient of the
    filters that of the convolution which forward is equivalent to, with the same share of holes. Two defects are not
    kept: PALEO's own time does not follow the batch, and is 0 right after the input.
    """
    high, wide = deconvolution_axes(layer)
    n, ci, co, rows = shard.batch, shard.in_channels, shard.out_channels, shard.height
    spread_rows = _share(high.dilated, shard, rows + high.kernel - 1.0)
    in_rows = _share(high.output, shard, np.ceil((rows + high.kernel - 1.0) / high.stride))
    kernel = (float(high.kernel), float(wide.kernel))
    holes = _holes((float(high.dilated), float(wide.dilated)), (float(high.output), float(wide.output)))
    outputs = (n, rows, float(wide.extent), co)
    forward = Plain(
        inputs=(n, spread_rows, float(wide.dilated), ci),
        filters=(*kernel, ci, co),
        outputs=outputs,
        padding=(high.gradient_pad, wide.gradient_pad),
        input_holes=holes,
    )
    to_input = Plain(
        inputs=outputs,
        filters=(*kernel, co, ci),
        outputs=(n, in_rows, float(wide.output), ci),
        padding=(high.pad, wide.pad),
    )
    back_high, back_wide = (equivalent_axis(axis) for axis in (high, wide))
    to_filters = Plain(
        inputs=(ci, spread_rows, float(wide.dilated), n),
        filters=(_share(back_high.dilated, shard, rows), float(back_wide.dilated), n, co),
        outputs=(ci, *kernel, co),
        padding=(back_high.gradient_pad, back_wide.gradient_pad),
        filter_holes=holes,
    )
    return forward, to_input, to_filters


def equivalent_axis(axis: Axis) -> Axis:
    """The convolution of stride 1 that a transposed convolution is equivalent to, with its own gradient geometry."""
    return _last_release_axis(axis.dilated, axis.kernel, 1, axis.gradient_extent, axis.gradient_pad)
