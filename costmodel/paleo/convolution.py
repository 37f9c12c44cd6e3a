"""What PALEO charges for a convolution: as a matrix product, or through Fourier transforms.

Tensors are in NHWC, filters in HWIO, gradients are convolutions of stride 1.

Gradient geometry of one dimension (extent H, kernel K, stride S, pad p, output Ho):

    dilated = (Ho - 1) S + 1                   the output gradient with S - 1 zeros between neighbours
    before  = K - 1 - p
    after   = (H + K - 1) - dilated - before

The first release adds one zero if ``after - before = 1`` and pads ``before``; the last release adds one if they differ by one and
pads the smaller. Where the result has not the layer's own extents, PALEO stops with an assertion.

Times are made of elementary ones: one arithmetic call, one pass of a tensor through memory, one fetch from another device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.device import Device
from costmodel.network.layers import Layer, Shard
from costmodel.network.layers.pooling import pair

# Every number is a 32-bit float in PALEO.
FLOAT_BYTES = 4

# Bytes are counted in GiB but bandwidths in decimal GB/s, so that memory looks 7.4 % faster than it is.
_GIB_PER_GB = 2.0**30 / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the elementary times of one device depend on.

    Attributes
    ----------
    flop_per_s : float
        Peak rate.
    bandwidth_bytes_per_s : float
        Nominal memory (or link) bandwidth.
    floor_s : float
        One clock period: the least time of a call.
    ppp : float
        Platform percent of peak, on arithmetic and memory alike.

    Examples
    --------
    >>> rates = Rates(flop_per_s=1e12, bandwidth_bytes_per_s=1e9, floor_s=1e-9, ppp=0.5)
    >>> float(rates.compute_s(1e12)), float(rates.memory_s(2**30)), float(rates.memory_s(0)), float(rates.compute_s(0))
    (2.0, 2.0, 1e-09, 0.0)
    """

    flop_per_s: float
    bandwidth_bytes_per_s: float
    floor_s: float
    ppp: float = 1.0

    @classmethod
    def of(cls, device: Device, ppp: float, *, bandwidth_bytes_per_s: float | None = None) -> Rates:
        """Rates of a device in 32-bit arithmetic; another bandwidth stands for the link of a fetch."""
        return cls(
            flop_per_s=device.peak("fp32"),
            bandwidth_bytes_per_s=bandwidth_bytes_per_s or device.memory_bandwidth_bytes_per_s,
            floor_s=1.0 / device.clock_hz if device.clock_hz > 0 else 0.0,
            ppp=ppp,
        )

    def compute_s(self, flop: ArrayLike) -> FloatArray:
        """``max(floor, FLOP / (peak ppp))``, 0 for no work."""
        work = np.asarray(flop, dtype=np.float64)
        return np.where(work == 0, 0.0, np.maximum(self.floor_s, work / (self.flop_per_s * self.ppp)))

    def memory_s(self, moved_bytes: ArrayLike) -> FloatArray:
        """``max(floor, bytes / 2^30 / (GB/s ppp))``: the floor applies even to nothing."""
        moved = np.asarray(moved_bytes, dtype=np.float64)
        return np.maximum(self.floor_s, moved / (self.bandwidth_bytes_per_s * _GIB_PER_GB * self.ppp))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Arithmetic and memory time of a pass, in seconds."""

    compute_s: FloatArray
    memory_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """PALEO's time of a pass: reading, computing and writing one after the other."""
        return self.compute_s + self.memory_s

    @property
    def overlapped_s(self) -> FloatArray:
        """PALEO's ``use_pipeline``: the longer of the two."""
        return np.maximum(self.compute_s, self.memory_s)

    def __add__(self, other: Parts) -> Parts:
        return Parts(compute_s=self.compute_s + other.compute_s, memory_s=self.memory_s + other.memory_s)


@dataclass(frozen=True, slots=True)
class Call:
    """One elementary call: FLOP or bytes, and how often it is made."""

    amount: FloatArray
    times: FloatArray | float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The elementary calls of one pass of a layer: FLOP of each arithmetic call, bytes of each tensor moved."""

    flop: tuple[Call, ...] = ()
    moved_bytes: tuple[Call, ...] = ()

    def parts(self, rates: Rates, like: FloatArray) -> Parts:
        """Add the times up; ``like`` has the shape of the result."""
        compute_s, memory_s = np.zeros_like(like), np.zeros_like(like)
        for call in self.flop:
            compute_s = compute_s + call.times * rates.compute_s(call.amount)
        for call in self.moved_bytes:
            memory_s = memory_s + call.times * rates.memory_s(call.amount)
        return Parts(compute_s=compute_s, memory_s=memory_s)

    @property
    def total_flop(self) -> FloatArray:
        """FLOP of all calls."""
        return np.asarray(sum((call.amount * call.times for call in self.flop), np.asarray(0.0)))


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
        axes.append(_axis(extent, kernel, stride, output, pad))
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
        axes.append(_axis(extent, kernel, stride, output, pad, last_release=True))
    return axes[0], axes[1]


def _pad(padding: object, i: int, same: int) -> int:
    if padding == "same":
        return same // 2
    if padding == "valid":
        return 0
    return padding[i] if isinstance(padding, tuple) else int(padding)  # type: ignore[call-overload,no-any-return]


def _axis(extent: int, kernel: int, stride: int, output: int, pad: int, *, last_release: bool = False) -> Axis:
    """The gradient geometry of a dimension, see above."""
    dilated = (output - 1) * stride + 1
    before = kernel - 1 - pad
    after = extent + kernel - 1 - dilated - before
    dilated += (abs(after - before) if last_release else after - before) == 1
    return Axis(
        extent=extent,
        kernel=kernel,
        stride=stride,
        output=output,
        pad=pad,
        dilated=dilated,
        gradient_pad=min(before, after) if last_release else before,
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
    return _axis(axis.dilated, axis.kernel, 1, axis.gradient_extent, axis.gradient_pad, last_release=True)


# Names of the algorithms that can be chosen per pass; "gemm_additional_mem" is the last release's BWD_DATA_ALGO_1.
ALGORITHMS: tuple[str, ...] = ("gemm", "fft", "fft_tiling", "gemm_additional_mem")

_COMPLEX_BYTES = 2 * FLOAT_BYTES
_TILE = 32


def algorithm_calls(algorithm: str, plain: Plain) -> Calls:
    """Elementary calls of a pass by the name of its algorithm."""
    if algorithm == "fft":
        return fft_calls(plain, tiled=False)
    if algorithm == "fft_tiling":
        return fft_calls(plain, tiled=True)
    return gemm_calls(plain, workspace=algorithm == "gemm_additional_mem")


def gemm_calls(plain: Plain, *, padded_read: bool = False, workspace: bool = False) -> Calls:
    """Matrix product over unfolded patches.

    ``FLOP = 2 kh kw c ho wo o n (1 - filter holes)``, with holes in the inputs ``+ 2 |inputs| (1 - input holes)``;
    bytes: inputs, filters without holes, outputs.

    Parameters
    ----------
    plain : Plain
    padded_read : bool
        Count the padding among the inputs read (last release).
    workspace : bool
        Write and read the unfolded patches, ``8 n ho wo kh kw c`` bytes (last release).

    Returns
    -------
    Calls

    Examples
    --------
    >>> one = Plain(inputs=(1.0, 4.0, 4.0, 2.0), filters=(3.0, 3.0, 2.0, 5.0), outputs=(1.0, 2.0, 2.0, 5.0), padding=(0, 0))
    >>> calls = gemm_calls(one)
    >>> float(calls.flop[0].amount), [float(c.amount) for c in calls.moved_bytes]  # 2*3*3*2 * 2*2*5
    (720.0, [128.0, 360.0, 80.0])
    """
    n, h, w, c = plain.inputs
    kh, kw, depth, o = plain.filters
    _, ho, wo, _ = plain.outputs
    kept = 1.0 - plain.filter_holes
    flop = 2.0 * kh * kw * depth * ho * wo * o * n * kept
    flop = flop + np.where(np.asarray(plain.input_holes) > 0, 2.0 * n * h * w * c * (1.0 - plain.input_holes), 0.0)
    ph, pw = plain.padding if padded_read else (0, 0)
    moved = [
        FLOAT_BYTES * n * (h + 2 * ph) * (w + 2 * pw) * c,
        FLOAT_BYTES * kh * kw * depth * o * kept,
        FLOAT_BYTES * n * ho * wo * o,
    ]
    if workspace:
        moved.append(2 * FLOAT_BYTES * n * ho * wo * kh * kw * depth)
    return Calls(flop=(Call(np.asarray(flop)),), moved_bytes=tuple(Call(np.asarray(b)) for b in moved))


def fft_calls(plain: Plain, *, tiled: bool) -> Calls:
    """Transforms of inputs, filters and outputs, and a product per frequency; whole image or tiles of 32 x 32.

    With T tiles of S points (whole image: T = 1, S = padded rows x columns) and t = S^(1/2) rounded up to a power of two::

        transform = 2 t 5 t log2 t   (halved for one-dimensional filters); real to complex takes half of it
        FLOP : T [n c transform/2], T [4 n c o S], T [n o transform], c o transform/2
        bytes: T [4 n c S], T [8 n c S], T [8 n c S], T [8 n o S], 8 n o S, 4 |outputs|, 4 c o S, f, T f

    f = 8 c o S, or 8 c o (longest side) for one-dimensional filters. Tiles overlap nowhere and sizes are not rounded for memory:
    PALEO's simplifications.

    Parameters
    ----------
    plain : Plain
    tiled : bool

    Returns
    -------
    Calls
    """
    n, h, w, c = plain.inputs
    kh, kw, depth, o = (np.asarray(extent, dtype=np.float64) for extent in plain.filters)
    outputs = np.asarray(plain.outputs[0] * plain.outputs[1] * plain.outputs[2] * plain.outputs[3])
    if tiled:
        tiles = np.ceil(np.asarray(h) / _TILE) * np.ceil(np.asarray(w) / _TILE)
        points, side = np.asarray(float(_TILE**2)), np.asarray(float(_TILE))
    else:
        rows = np.maximum(h + 2.0 * plain.padding[0], kh)
        columns = np.maximum(w + 2.0 * plain.padding[1], kw)
        tiles, points, side = np.asarray(1.0), rows * columns, np.maximum(rows, columns)
    one_dimensional = (kh == 1) | (kw == 1)
    transform = _transform_flop(points) * np.where(one_dimensional, 0.5, 1.0)
    spectrum = _COMPLEX_BYTES * depth * o * np.where(one_dimensional, side, points)
    samples_in, samples_out = np.asarray(n * c), np.asarray(n * o)
    return Calls(
        flop=(
            Call(samples_in * transform / 2.0, tiles),
            Call(depth * o * transform / 2.0),
            Call(4.0 * samples_in * o * points, tiles),
            Call(samples_out * transform, tiles),
        ),
        moved_bytes=(
            Call(FLOAT_BYTES * samples_in * points, tiles),
            Call(_COMPLEX_BYTES * samples_in * points, tiles),
            Call(_COMPLEX_BYTES * samples_in * points, tiles),
            Call(_COMPLEX_BYTES * samples_out * points, tiles),
            Call(_COMPLEX_BYTES * samples_out * points),
            Call(FLOAT_BYTES * outputs),
            Call(FLOAT_BYTES * depth * o * points),
            Call(spectrum),
            Call(spectrum, tiles),
        ),
    )


def _transform_flop(points: FloatArray) -> FloatArray:
    """``10 t^2 log2 t`` with t the square root of the points, rounded up to a power of two.

    >>> float(_transform_flop(np.asarray(1024.0)))  # 10 * 32 * 32 * 5
    51200.0
    """
    mantissa, exponent = np.frexp(np.sqrt(points))
    log2 = np.where(mantissa == 0.5, exponent - 1, exponent).astype(np.float64)
    side = np.exp2(log2)
    return np.asarray(10.0 * side * side * log2)
