"""How long one worker computes its share of a layer: what a preset of the cost model provides, and the default one.

The default preset is a roofline of compute and memory with size-dependent efficiency and a launch floor.

Repairs the defects of the paper's program: strided gradients do not multiply by the holes they insert, every operation costs
something, one convention of units, the cheapest legal convolution algorithm per pass, an optimizer that costs its memory traffic.

Time of a kernel
----------------
PALEO's platform percent of peak is made dependent on the size of the operation. A kernel takes a launch floor plus the longer of arithmetic
and memory traffic (roofline: Williams, Waterman, Patterson, CACM 52(4), 2009), and on processors a part of the shorter, which nothing hides
(Treibig, Hager, arXiv:0905.0792). A matrix product of m x k by k x n is charged for whole
tiles, for the start of its inner loop, and for a device that is only full when enough outputs are in flight:

    compute = 2 { count (m + m0) (n + n0) (k + k0) + outputs0 [k k1 / (k + k1) + k0] } / (best rate)

The last bracket is the depth of the inner loop where few outputs must fill the device: a long one is cut into pieces that run side
by side (split-k). The four sizes are those of products on matrix units, where libraries choose larger tiles for more outputs: there
outputs0 is between half and twice its size, by outputs / (outputs + 2 outputs0). Products on vector units (fp32, and 16 bits at most
twice as fast) have other tiles, whose sides grow with
the arithmetic of a multiprocessor per clock: the shared memory that feeds it is equally wide on all of them. Their library has no
kernels for tiles below a least side f, so that m + m0 is max(m, f) + m0 there: 16, 32 and 64 columns take alike. Convolutions and
recurrent cells run kernels made for thin matrices.

That is at full clocks. At the power limit of the board clocks fall until what the busy share of the device draws is what there is. A
device of which the share e = FLOP / charged FLOP works draws e f^g at the clock f; at the limit f = (W / e)^(1/g), so that the rate, e f,
goes with W^p e^(1 - p), p = 1/g: one exponent says how rates follow watts and how little half-empty tiles cost at the limit. With S the
rate sustained there by products that leave nothing idle,

    compute = max(charged / (best rate), FLOP^p charged^(1 - p) / S)

Every size enters through an increasing function that is not negative at 0 and adds up to no less in pieces (concave, or the larger of
itself and a constant), so more work never takes less time and pieces never take less than the whole. `costmodel.hardware.efficiency` has
the numbers and their sources.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.device import USUAL_LANES, Device
from costmodel.hardware.efficiency import Efficiency, EfficiencyError
from costmodel.network.layers import Kernel, Layer, LayerWork, Shard
from costmodel.network.layers.base import Fusable, PassWork
from costmodel.precision import Optimizer, Precision

# Exponent of the power limit in the rate of products that it limits: boards with the same dies reach (W2 / W1)^0.57 to 0.67 of one another
# (MI300X at 750 W and MI325X at 1000 W: AMD, Measuring Max-Achievable FLOPs part 2, table 1, bf16 0.61, fp16 0.67, fp8 0.61; B200 at 1000 W
# and B300 at 1100 W: S. Bekman, ml-engineering, compute/accelerator/README.md, MSMF, bf16 0.57, fp8 0.66).
POWER_EXPONENT = 0.6

_SIXTEEN_BITS = frozenset({"fp16", "bf16"})
# Formats whose kernels do not split the inner loop over several tiles: DeepGEMM (csrc/jit_kernels/impls, sm90_fp8_gemm_1d2d) adds up blocks
# of 128 in fp32, and has no tiles that share a sum.
_UNCUT = frozenset({"fp8_block"})
# Algorithms, and the fraction that applies to them: fused attention, and convolutions that run outside the matrix cores.
_ATTENTION = {"attention": "attention_fraction", "attention_backward": "attention_backward_fraction"}
_VECTOR_ALGORITHMS = {"winograd": "winograd_fraction", "fft": "fft_fraction", "fft_tiling": "fft_fraction"}
# Numbers of 16 bits that matrix units load at once, 16 bytes (NVIDIA, Matrix Multiplication Background User's Guide).
_WHOLE_LOAD = 8.0
# Outputs of the tiles that a library for matrix units takes where there are few and where there are many, over 128 x 128: 128 x 64 (so that
# more of the device works; cuBLAS has tiles down to 64 x 64: NVIDIA, Matrix Multiplication Background User's Guide, tile quantization) and
# 256 x 128 (the most efficient one: the same).
_LEAST_TILE, _LARGEST_TILE = 0.5, 2.0
# Tiles of a row of queries that a mask cuts: a window does so at both of its ends.
_EDGES = {"masked": 1.0, "window": 2.0}
# Features of the heads whose rates are published, and rows of the tiles of a fused attention (FlashAttention-2 and 3, cuDNN).
_HEAD = 128.0
# Rows of the tiles of cuDNN's kernels for gradients of weights: maxwell_ and volta_scudnn_128x64_stridedB_splitK_interior_nn in profiles of
# TensorFlow (operator Conv2DBackpropFilter), 128x128 and 128x32 next to it.
_TALL = 128.0


def kernel_time_s(
    device: Device,
    precision: str,
    *,
    flop: ArrayLike,
    memory_bytes: ArrayLike,
    gemm: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    algorithm: str = "gemm",
    tiling: str = "library",
    launches: int = 1,
    in_step: bool = False,
    aligned: ArrayLike | None = None,
    window: tuple[ArrayLike, float] | None = None,
    is_warm: bool = False,
) -> FloatArray:
    """Time of a kernel, for any arrays that broadcast.

    Parameters
    ----------
    device : Device
    precision : str
        Number format of the matrix product, a key of ``device.peak_flop_per_s``.
    flop : array
        Floating-point operations, a multiply-add counted as two.
    memory_bytes : array
        Bytes read and written.
    gemm : (m, n, k), optional
        The matrix product behind the kernel; ``flop / (2 m n k)`` of them run side by side. None for element-wise kernels.
    algorithm : "gemm", "attention", "attention_backward", "winograd", "fft" or "fft_tiling"
        The last three run at the vector peak whatever the precision.
    tiling : "library", "sums", "unaligned", "grouped", "recurrent", "thin", "weights", "scattered", "depthwise", "masked"
        or "maximum"
        A matrix product of a library, such a one that sums over all samples (gradients of weights), one of matrices in 16 bits
        whose rows do not begin at multiples of 16 bytes, several in one kernel
        whose numbers of rows only the device knows, that of a recurrent cell, a kernel made for thin matrices, or such a one for the
        gradient of the weights of a convolution. "scattered" is no product: sums that the gradient of a strided convolution adds to
        memory (cuDNN Developer Guide, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0: by atomic additions); kernels for matrix units gather instead,
        and it takes no time (CUTLASS, implicit GEMM convolution). "depthwise": one channel per group, so that lanes add up windows and
        no tile of a product is computed. "masked": fused attention whose mask cuts tiles, "window": one
        whose mask cuts them twice, "decode": one of few queries over a cache. "maximum": max-pooling, for which
        processors compare one element after the other.
        Matrix units load 16 bytes at once (NVIDIA, Matrix Multiplication Background User's Guide, tensor core requirements): the third
        kind runs on vector units. GPT of 13,824 features on A100 (BigScience, train/tr11-176B-ml/chronicles-prequel.md) took 121 s per
        step with 64 heads of 216 and 163 s with 128 heads of 108.
    launches : int
        The kernel is that many equal ones, one after the other; flop and bytes are their sum.
    in_step : bool
        The kernel is part of a training step, not timed alone.
    aligned : array, optional
        Rows of a matrix of 16 bits begin at multiples of so many numbers (8, 4, 2 or 1), and not of 16 bytes: a library multiplies it
        on matrix units all the same, by kernels that load no more at once. Each halving costs a third of what is lost in all
        (``odd_fraction``): matrices whose rows are multiples of 4 bytes can still be copied alongside the products (PTX ISA, cp.async: 4,
        8 or 16 bytes).
    window : (outputs, positions), optional
        Of a convolution of narrow groups: outputs, and the positions of the input that each of them reads.
    is_warm : bool
        The kernel ran just before: caches hold what fits of what it moves.

    Returns
    -------
    array
        Seconds.

    Raises
    ------
    DeviceError
        The device does not compute in that precision.
    EfficiencyError
        Unknown algorithm.

    Notes
    -----
    ``time = launch + max(compute, memory) + (1 - memory_overlap) min(compute, fetched)`` with
    ``fetched = (bytes - held) / (bandwidth memory_fraction)`` and ``memory = fetched + held / (cache_speedup bandwidth memory_fraction)``;
    ``held``: what caches hold of a kernel that ran just before, at most ``cache_bytes``, else nothing.

    Examples
    --------
    A device that computes 1 TFLOP/s and reads 100 GB/s without any loss:

    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.efficiency import Efficiency
    >>> ideal = Efficiency(
    ...     matmul_fraction=1, vector_fraction=1, memory_fraction=1, tile_half=0, depth_half=0, fill_outputs=0
    ... )
    >>> device = Device(
    ...     name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11,
    ...     launch_overhead_s=1e-6, efficiency=ideal,
    ... )
    >>> product_s = kernel_time_s(device, "fp32", flop=2e9, memory_bytes=1e6, gemm=(1000, 1000, 1000))
    >>> round(float(product_s), 9)  # 1 us + 2 ms
    0.002001
    >>> round(float(kernel_time_s(device, "fp32", flop=1e3, memory_bytes=1e6)), 9)  # 1 us + 10 us
    1.1e-05
    """
    assert launches >= 1, "a kernel runs at least once"
    if tiling == "scattered" and device.has_matrix_units(precision):
        return np.zeros(np.broadcast_shapes(np.shape(flop), np.shape(memory_bytes)))
    flops = np.asarray(flop, dtype=np.float64) / launches
    moved = np.asarray(memory_bytes, dtype=np.float64) / launches
    efficiency = device.efficiency
    held = np.minimum(moved, efficiency.cache_bytes) if is_warm else 0.0
    charged_bytes = moved - (1.0 - 1.0 / efficiency.cache_speedup) * held
    memory_s = charged_bytes / device.stream_bytes_per_s
    on_vectors = tiling == "unaligned" and precision in _SIXTEEN_BITS
    is_product = gemm is not None and tiling != "depthwise"
    rate = _rate_flop_per_s(device, precision, algorithm, is_product=is_product, on_vectors=on_vectors)
    if tiling == "maximum":
        rate = rate * efficiency.pool_fraction
    if in_step and gemm is None:
        memory_s = memory_s / efficiency.elementwise_fraction
    if tiling == "scattered":
        memory_s = memory_s / efficiency.strided_gradient_fraction
    charged = flops
    if gemm is not None and algorithm in _ATTENTION:
        wide = device.peak(precision) / device.peak(_measured_format(device, precision))
        charged = _attention_flop(efficiency, flops, gemm, algorithm, tiling, wide=wide)
    elif gemm is not None and is_product:
        charged = _charged_flop(_sizes(device, precision, algorithm, tiling), flops, gemm) / (
            efficiency.tf32_sums_fraction if (precision, tiling) == ("tf32", "sums") else 1.0
        )
    if aligned is not None and precision in _SIXTEEN_BITS and device.has_matrix_units(precision):
        halvings = np.log2(_WHOLE_LOAD / np.asarray(aligned))
        charged = charged / (1.0 - (1.0 - efficiency.odd_fraction) * halvings / np.log2(_WHOLE_LOAD))
    compute_s = charged / rate
    limit = device.sustained(precision)
    if is_product and not on_vectors and algorithm not in _VECTOR_ALGORITHMS and limit < device.best(precision):
        compute_s = np.maximum(compute_s, flops**POWER_EXPONENT * charged ** (1.0 - POWER_EXPONENT) / limit)
    if in_step and gemm is not None and algorithm not in _ATTENTION:
        compute_s = compute_s / efficiency.step_fraction
    if window is not None and efficiency.window_bytes:
        compute_s = np.maximum(compute_s, _gathered_s(device, precision, *window))
    work_s = np.maximum(compute_s, memory_s)
    if efficiency.memory_overlap < 1.0:  # what the caches hold is there when it is needed
        fetched = np.divide(moved - held, charged_bytes, out=np.zeros_like(moved), where=charged_bytes > 0.0)
        work_s = work_s + (1.0 - efficiency.memory_overlap) * np.minimum(compute_s, fetched * memory_s)
    return np.asarray(launches * (device.launch_overhead_s + work_s))


def _rate_flop_per_s(
    device: Device, precision: str, algorithm: str, *, is_product: bool, on_vectors: bool = False
) -> float:
    """Rate of a large kernel at full clocks."""
    efficiency = device.efficiency
    if algorithm in _VECTOR_ALGORITHMS:
        fraction: float = getattr(efficiency, _VECTOR_ALGORITHMS[algorithm])
        wide = device.halves(precision) if algorithm == "winograd" else 1.0
        return device.vector_peak_flop_per_s * wide * device.lane_share(wide) * fraction
    if algorithm in _ATTENTION:
        fraction = getattr(efficiency, _ATTENTION[algorithm])
        measured = _measured_format(device, precision)
        return device.peak(precision) * device.best(measured) / device.peak(measured) * fraction
    if algorithm != "gemm":
        known = ", ".join((*_ATTENTION, *_VECTOR_ALGORITHMS))
        raise EfficiencyError(f"unknown algorithm '{algorithm}' (known: gemm, {known})")
    if is_product and on_vectors and device.has_matrix_units(precision):
        return device.vector_peak_flop_per_s * device.lane_share()
    if is_product:
        return device.best(precision)
    return device.vector_peak_flop_per_s * efficiency.vector_fraction


def _measured_format(device: Device, precision: str) -> str:
    """Format that the rates of fused attention were measured in: 16 bits. In others its products reach the same share of their peak."""
    return next((name for name in (precision, "bf16", "fp16") if name in device.formats & _SIXTEEN_BITS), precision)


def _gathered_s(device: Device, precision: str, outputs: ArrayLike, positions: float) -> FloatArray:
    """Time in which windows are gathered from the first-level caches: by bytes per clock of every multiprocessor."""
    e = device.efficiency
    width = 2.0 if precision in _SIXTEEN_BITS else 4.0
    # Of all multiprocessors together.
    clocks_per_s = device.vector_peak_flop_per_s / (2.0 * device.lanes_per_multiprocessor)
    gathered = np.asarray(outputs, dtype=np.float64) * (positions + e.window_start) * width
    return np.asarray(gathered / (e.window_bytes * clocks_per_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """m0 = n0, k0, outputs0, k1 and the least sides of a tile of one kind of product."""

    tile: float
    depth: float
    fill: float
    split: float
    chosen: bool = False  # the library has tiles of several sizes, and takes larger ones for more outputs
    group: float = 0.0  # by how much more a tile wastes of its rows
    floor: float = 0.0  # least side of a tile
    tall: float = 0.0  # the same for its rows alone


def _sizes(device: Device, precision: str, algorithm: str, tiling: str) -> _Sizes:
    """Half sizes of a product, by the units it runs on and the kernel it runs in."""
    e = device.efficiency
    if algorithm not in _VECTOR_ALGORITHMS and device.has_matrix_units(precision):
        # `fill_outputs` is half a wave of tiles of 128 x 128, of which libraries take smaller and larger ones.
        return _Sizes(
            tile=e.tile_half,
            depth=e.depth_half,
            fill=e.fill_outputs,
            split=math.inf if precision in _UNCUT else e.split_depth,
            chosen=tiling in ("library", "sums", "grouped") and algorithm == "gemm",
            # One tile for all of them, as nobody knows the rows of each when the kernel starts: half of it is empty, where a library that
            # knows them takes one that fits. DeepGEMM's table for one, two and four groups of 1024 rows together (README, masked
            # layout) is then met within 3 % on average, where without this it is 8 % slower.
            group=e.tile_half if tiling == "grouped" else 0.0,
        )
    lanes = device.lanes_per_multiprocessor * device.halves(precision) / USUAL_LANES
    if tiling not in ("library", "sums", "unaligned", "grouped") or algorithm in _VECTOR_ALGORITHMS:
        weights = tiling == "weights" and algorithm not in _VECTOR_ALGORITHMS
        winograd = algorithm == "winograd"
        return _Sizes(
            tile=e.tile_half * e.thin_tile,
            depth=e.depth_half * (e.weights_depth if weights else e.thin_depth),
            fill=e.fill_outputs * e.thin_fill * lanes,
            split=0.0 if weights else e.split_depth * e.thin_split,
            floor=e.winograd_side if winograd else 0.0,
            tall=_TALL if tiling == "weights" and (weights or winograd) else 0.0,
        )
    return _Sizes(
        tile=e.tile_half * e.vector_tile * lanes,
        depth=e.depth_half * e.vector_depth * lanes,
        fill=e.fill_outputs * e.vector_fill * lanes**2,
        split=e.split_depth * e.vector_split,
        floor=e.tile_half * e.vector_floor * lanes,
    )


def _charged_flop(size: _Sizes, flop: FloatArray, gemm: tuple[ArrayLike, ArrayLike, ArrayLike]) -> FloatArray:
    """Operations that the device could have done in the time the product takes.

    ``2 {count (max(m, f, t) + m0 + g) (max(n, f) + n0) (k + k0) + outputs0 [k k1 / (k + k1) + k0]}`` with ``count = flop / (2 m n k)``.

    >>> size = _Sizes(tile=0, depth=0, fill=100, split=10)
    >>> float(_charged_flop(size, np.float64(2000.0), (10, 10, 10)))  # 2000 for the product, 2 x 100 x 5 to fill the device
    3000.0
    >>> float(_charged_flop(_Sizes(tile=0, depth=0, fill=0, split=1, floor=40), np.float64(2e4), (100, 10, 10)))  # 40 columns
    80000.0
    """
    m, n, k = (np.asarray(extent, dtype=np.float64) for extent in gemm)
    tiles = (np.maximum(m, max(size.floor, size.tall)) + size.tile + size.group) / m
    tiles = tiles * ((np.maximum(n, size.floor) + size.tile) / n)
    depth = 1.0 + size.depth / k
    limit = max(size.split, 1.0)
    outputs = flop / (2.0 * k)
    many = outputs / (outputs + 2.0 * size.fill) if size.fill else 1.0
    side = _LEAST_TILE + (_LARGEST_TILE - _LEAST_TILE) * many if size.chosen else 1.0
    fill = 2.0 * size.fill * side * (k / (1.0 + k / limit) + size.depth)
    return np.asarray(np.where(flop > 0.0, flop * tiles * depth + fill, 0.0))


def _attention_flop(
    e: Efficiency,
    flop: FloatArray,
    gemm: tuple[ArrayLike, ArrayLike, ArrayLike],
    algorithm: str,
    tiling: str,
    *,
    wide: float = 1.0,
) -> FloatArray:
    """Operations that a fused attention could have done in its time on long rows of heads of 128 features.

    ``gemm`` is queries, keys that each of them sees, and features of a head. Queries fill tiles, none of which holds two heads or samples;
    half a wave of tiles is idle, and one lasts as long as its longest row of keys, twice the mean under a mask. A row of queries starts,
    works on one tile across the edge of a mask in vain, and takes one exponential per score: these count for more where heads are narrow,
    and where products are ``wide`` times as fast as in 16 bits, as exponentials are not:

        2 products d max{(rows + rows0) (keys + start + tile), 2 rows0 (longest + start + tile)} (1 + wide d0 / d) / (1 + d0 / 128)

    Kernels that decode pack the heads that share keys into a tile of half as many rows (PTX ISA, wgmma: 64), and cut keys into pieces where
    rows are few: half a wave of them is no more than work.

    >>> e = Efficiency(attention_start=100, attention_depth=64, attention_tile=128, fill_outputs=0, tile_half=0)
    >>> flop = np.float64(2 * 2 * 128 * 256 * 1000)  # 256 rows of a thousand keys
    >>> float(_attention_flop(e, flop, (256, 1000, 128), "attention", "library") / flop)
    1.1
    >>> float(_attention_flop(e, flop, (256, 1000, 128), "attention", "library", wide=2.0) / flop)  # 1.1 x 2 / 1.5
    1.4666666666666666
    >>> float(_attention_flop(e, flop, (32, 1000, 128), "attention", "library") / flop)  # a quarter of each tile
    4.4
    >>> float(_attention_flop(e, flop, (32, 1000, 128), "attention", "decode") / flop)
    2.2
    """
    queries, keys, depth = (np.asarray(extent, dtype=np.float64) for extent in gemm)
    forward, edges = algorithm == "attention", _EDGES.get(tiling, 0.0)
    products, start, narrow = (
        (2.0, e.attention_start, e.attention_depth)
        if forward
        else (5.0, e.attention_backward_start, e.attention_backward_depth)
    )
    rows, idle = flop / (2.0 * products * keys * depth), e.fill_outputs / _HEAD
    longer = start + edges * e.attention_tile
    if tiling == "decode":
        side = 0.5 * e.attention_tile
        rows = rows * (side * np.ceil(queries / side) / queries if side else 1.0)
        pairs = (rows + np.minimum(rows, idle)) * (keys + longer)
    else:
        rows = rows * (np.maximum(queries + e.tile_half, e.attention_tile) / queries)
        longest = (2.0 * keys if tiling == "masked" else keys) + longer
        pairs = np.where(rows > 0.0, np.maximum((rows + idle) * (keys + longer), 2.0 * idle * longest), 0.0)
    return np.asarray(2.0 * products * depth * pairs * ((1.0 + wide * narrow / depth) / (1.0 + narrow / _HEAD)))


def attention_starts(compute: ComputeModel, *, is_forward: bool) -> float:
    """Keys that a row of queries takes as long as where it starts and at the edge of its mask, beside those that it sees."""
    if not isinstance(compute, RooflineCompute):
        return 0.0
    e = compute.device.efficiency
    return (e.attention_start if is_forward else e.attention_backward_start) + e.attention_tile


class CostModelError(ValueError):
    """The cost model cannot evaluate a layer; the message names the layer and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Compute time of one worker's share in the three passes, each of shape (n,), in seconds.

    A model that does not separate the two gradients puts their sum into ``backward_weight_s``.
    """

    forward_s: FloatArray
    backward_input_s: FloatArray
    backward_weight_s: FloatArray

    @property
    def backward_s(self) -> FloatArray:
        """Both gradients."""
        return self.backward_input_s + self.backward_weight_s


class ComputeModel(Protocol):
    """A cost preset for a device: `paleo` or `roofline`."""

    @property
    def name(self) -> str:
        """Name of the preset."""

    @property
    def overlaps_exchange(self) -> bool:
        """Whether gradient exchange may overlap with the backward pass."""

    @property
    def counts_norm(self) -> bool:
        """Whether parameters of attached normalisations count as weights."""

    def pass_times(self, layer: Layer, shard: Shard, *, needs_input_gradient: bool) -> PassTimes:
        """Time the largest share of every split at once.

        Raises
        ------
        CostModelError
            The model has no formula for the layer.
        """

    def cost_key(self, layer: Layer) -> Hashable:
        """What beyond kind, parameters and shapes decides the cost (a name that a rule refers to)."""

    def update_s(self, weight_elements: FloatArray) -> FloatArray:
        """Time to apply the optimizer to a worker's share of the weights."""

    def sum_s(self, layer: Layer, elements: FloatArray) -> FloatArray:
        """Time to add up the gradients of a layer's output, where that moves so many elements (`costmodel.network.graph`)."""

    def is_free(self, layer: Layer) -> bool:
        """Whether the model counts the layer as costing nothing (listed in every output)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSoftware:
    """How a framework runs networks for images.

    Attributes
    ----------
    fuses : frozenset of Fusable
        Kernels that it leaves out.
    channels_first : bool
        Images lie channel by channel in 16 bits, too, so that matrix units get them transposed.
    """

    fuses: frozenset[Fusable] = frozenset()
    channels_first: bool = False


EAGER = ImageSoftware()


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCompute:
    """Roofline of one device at one precision."""

    device: Device
    precision: Precision
    optimizer: Optimizer
    alone: bool = False  # kernels are timed by themselves, not in a training step
    software: ImageSoftware = EAGER
    name: str = "roofline"
    overlaps_exchange: bool = True
    counts_norm: bool = True

    def pass_times(self, layer: Layer, shard: Shard, *, needs_input_gradient: bool) -> PassTimes:
        """Time the three passes; see `costmodel.kernels.roofline.ComputeModel.pass_times`."""
        return self.work_times(layer, layer.family.work(layer, shard), shard, needs_input_gradient=needs_input_gradient)

    def work_times(self, layer: Layer, work: LayerWork, shard: Shard, *, needs_input_gradient: bool) -> PassTimes:
        """The same where the work of the share is at hand."""
        zero = np.zeros_like(shard.batch)
        in_step = self._is_in_step(layer)
        into = self._pass_s(work.backward_input, zero, in_step=in_step) if needs_input_gradient else zero
        wide = self.precision.plain_weight_gradient and self.precision.casts
        of_weights = replace(self, precision=self.precision.unquantised) if wide else self
        return PassTimes(
            forward_s=self._pass_s(work.forward, zero, in_step=in_step),
            backward_input_s=into,
            backward_weight_s=of_weights._pass_s(work.backward_weight, zero, in_step=in_step),
        )

    def _is_in_step(self, layer: Layer) -> bool:
        """Whether a layer runs at the rates of a long training step: layers of sequences, not those of images.

        The two fractions stand for power limits under dense products and for casts around element-wise kernels; training steps of
        convolutional networks (NVIDIA DeepLearningExamples, ResNet-50 on V100 and A100) show neither.
        """
        return not self.alone and len(layer.output_shape) == 2

    def _keeps_channels_apart(self) -> bool:
        """Whether images lie channel by channel before matrix units: frameworks keep those of 32 bits so, and benchmarks of kernels all."""
        product, all_do = self.precision.compute, self.alone or self.software.channels_first
        return product == "tf32" or (all_do and product != "fp32" and self.device.has_matrix_units(product))

    def cost_key(self, layer: Layer) -> Hashable:  # noqa: ARG002 - shapes decide alone
        """Nothing beyond kind, parameters and shapes."""
        return ()

    def algorithms(self, layer: Layer, shard: Shard) -> tuple[str, str, str]:
        """Algorithm chosen in each pass for the first share (for explanations)."""
        work = layer.family.work(layer, shard)
        names = []
        for alternatives in (work.forward, work.backward_input, work.backward_weight):
            in_step = self._is_in_step(layer)
            times = [float(np.sum([np.ravel(self._kernel_s(k, in_step=in_step))[0] for k in a])) for a in alternatives]
            best = alternatives[int(np.argmin(times))] if times else ()
            names.append(next((k.algorithm for k in best if k.gemm is not None), ""))
        return (names[0], names[1], names[2])

    def update_s(self, weight_elements: FloatArray) -> FloatArray:
        """Optimizer step: reads and writes weights, gradients and state once, in one fused kernel."""
        moved = weight_elements * self.optimizer.bytes_moved_per_weight(self.precision)
        time = kernel_time_s(
            self.device, "fp32", flop=weight_elements * self.optimizer.flop_per_weight, memory_bytes=moved
        )
        return np.where(weight_elements > 0, time, 0.0)

    def sum_s(self, layer: Layer, elements: FloatArray) -> FloatArray:
        """One element-wise kernel; software whose layers add to what is there leaves it out."""
        kernel = Kernel(flop=0.0 * elements, elements=elements, fusable="gradient sum")
        return self._pass_s(((kernel,),), 0.0 * elements, in_step=self._is_in_step(layer))

    def is_free(self, layer: Layer) -> bool:
        """Only views are free."""
        return layer.family.is_view

    def _pass_s(self, alternatives: PassWork, zero: FloatArray, *, in_step: bool) -> FloatArray:
        """Cheapest alternative, element by element."""
        best: FloatArray | None = None
        for kernels in alternatives:
            total = zero
            for kernel in kernels:
                if kernel.fusable not in self.software.fuses:
                    total = total + self._kernel_s(kernel, in_step=in_step)
            best = total if best is None else np.minimum(best, total)
        return zero if best is None else best

    def _moved_bytes(self, kernel: Kernel) -> ArrayLike:
        """Bytes that a kernel reads and writes: m x k and k x n of a narrow product are narrow, what it leaves is not."""
        precision = self.precision
        if not precision.casts or kernel.gemm is None:
            return kernel.elements * precision.activation_bytes
        m, n = (np.asarray(extent, dtype=np.float64) for extent in kernel.gemm[:2])
        operands = np.minimum(kernel.flop * (0.5 / m + 0.5 / n), kernel.elements)
        return kernel.elements * precision.activation_bytes - operands * (
            precision.activation_bytes - precision.operand.bytes
        )

    def _kernel_s(self, kernel: Kernel, *, in_step: bool) -> FloatArray:
        time = kernel_time_s(
            self.device,
            self.precision.compute,
            flop=kernel.flop,
            memory_bytes=self._moved_bytes(kernel),
            gemm=kernel.gemm,
            algorithm=kernel.algorithm,
            tiling=kernel.tiling,
            launches=kernel.launches,
            in_step=in_step,
            aligned=kernel.aligned,
            window=kernel.window,
            is_warm=self.alone,
        )
        if kernel.images and self._keeps_channels_apart():
            # Matrix units read all channels of a position: what the kernel reads and writes is transposed first (cuDNN Developer Guide,
            # tensor layouts; NVIDIA, Convolutional Layers User's Guide).
            moved = 2.0 * kernel.elements * self.precision.activation_bytes
            time = time + kernel_time_s(self.device, self.precision.compute, flop=0.0, memory_bytes=moved)
        return time
