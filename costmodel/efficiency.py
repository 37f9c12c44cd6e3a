"""How close a kernel comes to the peaks of a device: PALEO's platform percent of peak, made dependent on the size of the operation.

A kernel takes a launch floor plus the longer of arithmetic and memory traffic (roofline: Williams, Waterman, Patterson, CACM 52(4),
2009). A matrix product of m x k by k x n is charged for whole tiles, for the start of its inner loop, and for a device that is only
full when enough outputs are in flight:

    compute = 2 { count (m + m0) (n + n0) (k + k0) + outputs0 [k k1 / (k + k1) + k0] } / (peak fraction)

The last bracket is the depth of the inner loop where few outputs must fill the device: a long one is cut into pieces that run side
by side (split-k). Every size enters through a concave increasing function that is not negative at 0, so more work never takes less
time and pieces never take less than the whole. `DEFAULT_EFFICIENCY` says where its numbers come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from costmodel.device import Device

__all__ = ["DEFAULT_EFFICIENCY", "Efficiency", "EfficiencyError", "kernel_time_s"]

FloatArray = NDArray[np.float64]


class EfficiencyError(ValueError):
    """An efficiency constant is outside its range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Constants of the efficiency model.

    Attributes
    ----------
    matmul_fraction : float
        Share of the peak that a large matrix product reaches.
    winograd_fraction, fft_fraction : float
        The same for the products of these convolution algorithms, relative to the vector peak: they do not run on matrix cores.
    vector_fraction : float
        Share of the vector peak that element-wise kernels reach.
    attention_fraction, attention_backward_fraction : float
        Rate of a fused attention over that of a matrix product of its size, forward and backward: the exponentials of the softmax run
        between its products.
    sustained_fraction : float
        Share of its best rate that a matrix product keeps up through a training step, where the power limit lowers the clocks and other
        work has filled the caches.
    elementwise_fraction : float
        Share of its best rate that an element-wise kernel keeps up through a training step, where casts and copies that no graph shows
        come with it. The last two do not apply to kernels timed alone.
    memory_fraction : float
        Share of the memory bandwidth that a long stream reaches.
    tile_half : float
        m0 = n0: rows (or columns) of outputs that are computed in vain, on average.
    depth_half : float
        k0: steps of the inner loop that starting and finishing a tile costs.
    fill_outputs : float
        outputs0: outputs in flight at which half the device is busy, where the inner loop is short.
    split_depth : float
        k1: steps of the inner loop at which half of it is cut into parallel pieces.
    source : str
        Where the numbers come from.

    Raises
    ------
    EfficiencyError
        A fraction outside (0, 1], or a half size below 0.
    """

    matmul_fraction: float = 0.80
    winograd_fraction: float = 0.80
    fft_fraction: float = 0.50
    vector_fraction: float = 0.80
    attention_fraction: float = 1.0
    attention_backward_fraction: float = 1.0
    sustained_fraction: float = 1.0
    elementwise_fraction: float = 1.0
    memory_fraction: float = 0.85
    tile_half: float = 32.0
    depth_half: float = 32.0
    fill_outputs: float = 131072.0
    split_depth: float = 4096.0
    source: str = ""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name.endswith("_fraction") and not 0.0 < value <= 1.0:
                raise EfficiencyError(f"{item.name} is {value}, expected a number above 0 and up to 1")
            if item.name in _SIZES and not (math.isfinite(value) and value >= 0.0):
                raise EfficiencyError(f"{item.name} is {value}, expected a number from 0")


_SIZES = frozenset({"tile_half", "depth_half", "fill_outputs", "split_depth"})

DEFAULT_EFFICIENCY = Efficiency(
    attention_fraction=0.60,
    attention_backward_fraction=0.48,
    sustained_fraction=0.85,
    elementwise_fraction=0.70,
    source="matmul_fraction, winograd_fraction, tile_half, depth_half, fill_outputs and split_depth: fit to the fp32 training GEMMs and "
    "convolutions of DeepBench on Titan X, M40 and P100 (Baidu Research, results/train), rounded; the fraction of peak of other "
    "devices is 0.51 to 0.97 in the MAMF table of ml-engineering (S. Bekman). sustained_fraction, elementwise_fraction, "
    "attention_fraction, attention_backward_fraction: fit to step times of MPT on A100 (llm-foundry), GPT on A100 "
    "(Megatron-LM) and transformers on H100 (NeMo), rounded. memory_fraction, vector_fraction, fft_fraction: assumptions",
)

# Algorithms that run outside the matrix cores, and the fraction that applies to them.
_ATTENTION = {"attention": "attention_fraction", "attention_backward": "attention_backward_fraction"}
_VECTOR_ALGORITHMS = {"winograd": "winograd_fraction", "fft": "fft_fraction", "fft_tiling": "fft_fraction"}


def kernel_time_s(
    device: Device,
    precision: str,
    *,
    flop: ArrayLike,
    memory_bytes: ArrayLike,
    gemm: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    algorithm: str = "gemm",
    launches: int = 1,
    sustained: bool = False,
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
    launches : int
        The kernel is that many equal ones, one after the other; flop and bytes are their sum.
    sustained : bool
        The kernel is part of a training step, not timed alone.

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
    ``time = launch + max(compute, memory)`` with ``memory = bytes / (bandwidth memory_fraction)``.

    Examples
    --------
    A device that computes 1 TFLOP/s and reads 100 GB/s without any loss:

    >>> from costmodel.device import Device
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
    flops = np.asarray(flop, dtype=np.float64) / launches
    moved = np.asarray(memory_bytes, dtype=np.float64) / launches
    efficiency = device.efficiency
    memory_s = moved / (device.memory_bandwidth_bytes_per_s * efficiency.memory_fraction)
    rate = _rate_flop_per_s(device, precision, algorithm, is_product=gemm is not None)
    if sustained and gemm is not None:
        rate *= efficiency.sustained_fraction
    elif sustained:
        memory_s = memory_s / efficiency.elementwise_fraction
    compute_s = (flops if gemm is None else _charged_flop(efficiency, flops, gemm)) / rate
    return np.asarray(launches * (device.launch_overhead_s + np.maximum(compute_s, memory_s)))


def _rate_flop_per_s(device: Device, precision: str, algorithm: str, *, is_product: bool) -> float:
    """Sustained rate of a large kernel."""
    efficiency = device.efficiency
    if algorithm in _VECTOR_ALGORITHMS:
        fraction: float = getattr(efficiency, _VECTOR_ALGORITHMS[algorithm])
        return device.vector_peak_flop_per_s * fraction
    if algorithm in _ATTENTION:
        fraction = getattr(efficiency, _ATTENTION[algorithm])
        return device.peak(precision) * efficiency.matmul_fraction * fraction
    if algorithm != "gemm":
        known = ", ".join((*_ATTENTION, *_VECTOR_ALGORITHMS))
        raise EfficiencyError(f"unknown algorithm '{algorithm}' (known: gemm, {known})")
    if is_product:
        return device.peak(precision) * efficiency.matmul_fraction
    return device.vector_peak_flop_per_s * efficiency.vector_fraction


def _charged_flop(efficiency: Efficiency, flop: FloatArray, gemm: tuple[ArrayLike, ArrayLike, ArrayLike]) -> FloatArray:
    """Operations that the device could have done in the time the product takes.

    ``2 {count (m + m0) (n + n0) (k + k0) + outputs0 [k k1 / (k + k1) + k0]}`` with ``count = flop / (2 m n k)``.

    >>> e = Efficiency(tile_half=0, depth_half=0, fill_outputs=100, split_depth=10)
    >>> float(_charged_flop(e, np.float64(2000.0), (10, 10, 10)))  # 2000 for the product, 2 x 100 x 5 to fill the device
    3000.0
    """
    m, n, k = (np.asarray(extent, dtype=np.float64) for extent in gemm)
    tiles = (1.0 + efficiency.tile_half / m) * (1.0 + efficiency.tile_half / n)
    depth = 1.0 + efficiency.depth_half / k
    limit = max(efficiency.split_depth, 1.0)
    fill = 2.0 * efficiency.fill_outputs * (k * limit / (k + limit) + efficiency.depth_half)
    charged = flop * tiles * depth + fill
    return np.asarray(np.where(flop > 0.0, charged, 0.0))
