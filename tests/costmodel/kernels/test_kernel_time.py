"""Kernel times: physics that must hold for any numbers, and measured matrix products."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.framework import with_attention
from costmodel.hardware.device import Device, DeviceError
from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY, Efficiency, EfficiencyError
from costmodel.kernels.roofline import EAGER, ImageSoftware, PassTimes, RooflineCompute, kernel_time_s
from costmodel.layerwise.plan import shard_of, split_table
from costmodel.network.layers import Layer
from costmodel.precision import OPTIMIZERS, PRECISIONS
from planner.files.loading import load_device
from tests.costmodel.network.layers.cases import layer as layer_of

A100 = Device(
    name="a100",
    peak_flop_per_s={"fp32": 19.5e12, "bf16": 312e12},
    memory_bytes=80e9,
    memory_bandwidth_bytes_per_s=2.039e12,
    efficiency=Efficiency(matmul_fraction=0.87, fill_outputs=884736),
)

extent = st.integers(min_value=1, max_value=20000)
scale = st.floats(min_value=1.0, max_value=50.0)
algorithms = st.sampled_from(["gemm", "winograd", "fft", "fft_tiling"])


def gemm_s(device: Device, m: float, n: float, k: float, count: float = 1.0, algorithm: str = "gemm") -> float:
    moved = 2.0 * count * (m * n + n * k + m * k)
    return float(
        kernel_time_s(
            device, "bf16", flop=2.0 * count * m * n * k, memory_bytes=moved, gemm=(m, n, k), algorithm=algorithm
        )
    )


@given(extent, extent, extent, scale, algorithms)
def test_more_work_never_takes_less_time(m: int, n: int, k: int, factor: float, algorithm: str) -> None:
    base = gemm_s(A100, m, n, k, algorithm=algorithm) * (1 - 1e-12)  # sums may differ in the last digit
    for bigger in ((m * factor, n, k), (m, n * factor, k), (m, n, k * factor)):
        assert gemm_s(A100, *bigger, algorithm=algorithm) >= base
    assert gemm_s(A100, m, n, k, factor, algorithm) >= base


@given(extent, extent, extent, st.integers(min_value=2, max_value=16))
def test_pieces_never_take_less_than_the_whole(m: int, n: int, k: int, pieces: int) -> None:
    whole = gemm_s(A100, m, n, k) * (1 - 1e-12)
    assert pieces * gemm_s(A100, m / pieces, n, k) >= whole
    assert pieces * gemm_s(A100, m, n / pieces, k) >= whole
    assert pieces * gemm_s(A100, m, n, k / pieces) >= whole


@given(extent, extent, extent, scale)
def test_a_better_device_is_never_slower(m: int, n: int, k: int, factor: float) -> None:
    base = gemm_s(A100, m, n, k)
    faster = {name: rate * factor for name, rate in A100.peak_flop_per_s.items()}
    assert gemm_s(replace(A100, peak_flop_per_s=faster), m, n, k) <= base
    bandwidth = A100.memory_bandwidth_bytes_per_s * factor
    assert gemm_s(replace(A100, memory_bandwidth_bytes_per_s=bandwidth), m, n, k) <= base
    assert gemm_s(replace(A100, launch_overhead_s=A100.launch_overhead_s * factor), m, n, k) >= base


@given(extent, extent, extent)
def test_never_beyond_the_peaks(m: int, n: int, k: int) -> None:
    time = gemm_s(A100, m, n, k)
    assert time >= 2.0 * m * n * k / A100.peak("bf16")
    assert time >= 2.0 * (m * n + n * k + m * k) / A100.memory_bandwidth_bytes_per_s
    assert time >= A100.launch_overhead_s


# A device without matrix units, with every constant of products away from its neutral value.
P100 = Device(
    name="p100",
    peak_flop_per_s={"fp32": 10e12, "fp16": 20e12},
    memory_bytes=16e9,
    memory_bandwidth_bytes_per_s=732e9,
    lanes_per_multiprocessor=64,
    launch_overhead_s=0.0,
    efficiency=Efficiency(
        matmul_fraction=0.5, tile_half=30, depth_half=20, fill_outputs=1000, split_depth=500, strided_gradient_fraction=0.4,
        vector_tile=3.0, vector_depth=1.5, vector_fill=0.8, vector_split=0.2, vector_floor=4.0,
        thin_tile=0.1, thin_depth=2.0, thin_fill=6.0, thin_split=0.3, weights_depth=5.0,
    ),
)  # fmt: skip
# One with matrix units for halves.
VOLTA = replace(P100, peak_flop_per_s={"fp32": 10e12, "fp16": 80e12})
tilings = st.sampled_from(["library", "recurrent", "thin", "weights"])


def product_s(
    device: Device, m: float, n: float, k: float, tiling: str = "library", number_format: str = "fp32"
) -> float:
    flop = 2.0 * m * n * k
    return float(kernel_time_s(device, number_format, flop=flop, memory_bytes=0.0, gemm=(m, n, k), tiling=tiling))


def test_products_on_vector_units_by_hand() -> None:
    """64 of 128 lanes: half of the tile and of the depth, a quarter of the fill; the split depth is 100."""
    m, n, k = 300.0, 200.0, 400.0
    library = 2 * (m + 45) * (n + 45) * (k + 15) + 2 * 200 * (k * 100 / (k + 100) + 15)
    assert product_s(P100, m, n, k) == pytest.approx(library / 5e12, rel=1e-12)
    # A kernel for thin matrices has its own tiles, whatever the lanes; its fill goes with the lanes.
    thin = 2 * (m + 3) * (n + 3) * (k + 40) + 2 * 3000 * (k * 150 / (k + 150) + 40)
    assert product_s(P100, m, n, k, "thin") == pytest.approx(thin / 5e12, rel=1e-12)
    assert product_s(P100, m, n, k, "recurrent") == product_s(P100, m, n, k, "thin")
    # A gradient of weights starts its pieces, however deep, and has tiles of 128 rows at least.
    weights = 2 * (m + 3) * (n + 3) * (k + 100) + 2 * 3000 * (k / (k + 1) + 100)
    assert product_s(P100, m, n, k, "weights") == pytest.approx(weights / 5e12, rel=1e-12)
    assert product_s(P100, 27, n, k, "weights") == pytest.approx(product_s(P100, 128, n, k, "weights"), rel=1e-12)
    assert product_s(P100, m, 27, k, "weights") < product_s(P100, m, 128, k, "weights")
    # Two halves per lane are vector units too, of twice the lanes; a format that is much faster has units of its own.
    halves = 2 * (m + 90) * (n + 90) * (k + 30) + 2 * 800 * (k * 100 / (k + 100) + 30)
    assert product_s(P100, m, n, k, number_format="fp16") == pytest.approx(halves / 10e12, rel=1e-12)
    # 60,000 outputs are many waves of 2 x 1,000: nearly all have tiles twice as large. 2,000 have tiles between half and twice as large.
    own = 2 * (m + 30) * (n + 30) * (k + 20) + 2 * 1000 * (0.5 + 1.5 * 60 / 62) * (k * 500 / (k + 500) + 20)
    assert product_s(VOLTA, m, n, k, number_format="fp16") == pytest.approx(own / 40e12, rel=1e-12)
    few = 2 * (50 + 30) * (40 + 30) * (k + 20) + 2 * 1000 * (0.5 + 1.5 / 2) * (k * 500 / (k + 500) + 20)
    assert product_s(VOLTA, 50, 40, k, number_format="fp16") == pytest.approx(few / 40e12, rel=1e-12)
    # Kernels for convolutions keep theirs.
    thin = 2 * (m + 30) * (n + 30) * (k + 20) + 2 * 1000 * (k * 500 / (k + 500) + 20)
    assert product_s(VOLTA, m, n, k, "thin", "fp16") == pytest.approx(thin / 40e12, rel=1e-12)
    assert product_s(VOLTA, m, n, k, "sums", "fp16") == product_s(VOLTA, m, n, k, "library", "fp16")


def test_lanes_may_be_slower_than_matrix_units() -> None:
    slow = replace(P100, best_flop_per_s={"fp32": 2.5e12})
    assert product_s(slow, 300, 200, 400) == pytest.approx(2 * product_s(P100, 300, 200, 400), rel=1e-12)
    turned = replace(slow, peak_flop_per_s=VOLTA.peak_flop_per_s)
    assert product_s(turned, 300, 200, 400, number_format="fp16") == product_s(
        VOLTA, 300, 200, 400, number_format="fp16"
    )


def test_a_library_has_no_tiles_below_a_least_side() -> None:
    """60 here: 4 x 30, half of it with 64 of 128 lanes."""
    assert product_s(P100, 300, 16, 400) == product_s(P100, 300, 60, 400) < product_s(P100, 300, 61, 400)
    assert product_s(P100, 16, 300, 400) == product_s(P100, 60, 300, 400) < product_s(P100, 61, 300, 400)
    assert product_s(P100, 300, 16, 400, "thin") < product_s(P100, 300, 60, 400, "thin")
    assert product_s(VOLTA, 300, 16, 400, number_format="fp16") < product_s(VOLTA, 300, 60, 400, number_format="fp16")


def test_fast_convolutions_run_on_vector_units_in_thin_kernels() -> None:
    flop, shape = 2.0 * 512 * 64 * 64, (512, 64, 64)
    device = replace(P100, efficiency=replace(P100.efficiency, winograd_fraction=0.8, fft_fraction=0.25))
    thin_s = product_s(device, *shape, "thin")
    for algorithm, fraction in (("winograd", 0.8), ("fft", 0.25), ("fft_tiling", 0.25)):
        time = kernel_time_s(device, "fp32", flop=flop, memory_bytes=0.0, gemm=shape, algorithm=algorithm)
        assert float(time) == pytest.approx(thin_s / fraction, rel=1e-12)


@given(extent, extent, extent, scale, tilings)
def test_laws_hold_on_vector_units(m: int, n: int, k: int, factor: float, tiling: str) -> None:
    base = product_s(P100, m, n, k, tiling)
    check_laws(P100, (m, n, k), factor, tiling, "fp32")
    faster = replace(P100, peak_flop_per_s={name: rate * factor for name, rate in P100.peak_flop_per_s.items()})
    assert product_s(faster, m, n, k, tiling) <= base
    assert product_s(P100, m, n, k, "weights") >= product_s(P100, max(m, 128), n, k, "weights") * (1 - 1e-12)


@given(extent, extent, extent, scale, tilings)
def test_laws_hold_on_matrix_units(m: int, n: int, k: int, factor: float, tiling: str) -> None:
    check_laws(VOLTA, (m, n, k), factor, tiling, "fp16")


def test_a_long_inner_loop_is_cut_where_outputs_are_few() -> None:
    """A million steps for 64 x 64 outputs: no longer than the outputs of a wave for 500 steps of each take, beside the work itself."""
    product = 2 * (64 + 30) * (64 + 30) * (1e6 + 20)
    start = 2 * 1000 * 2.0 * (500 + 20)
    assert product_s(VOLTA, 64, 64, 1e6, number_format="fp16") < (product + start) / 40e12


def check_laws(device: Device, shape: tuple[int, int, int], factor: float, tiling: str, number_format: str) -> None:
    """More work takes no less time, and pieces no less than the whole."""
    m, n, k = shape
    base = product_s(device, m, n, k, tiling, number_format)
    for bigger in ((m * factor, n, k), (m, n * factor, k), (m, n, k * factor)):
        # As long below the least side of a tile.
        assert product_s(device, *bigger, tiling, number_format) >= base * (1 - 1e-12)
    for smaller in ((m / 4, n, k), (m, n / 4, k), (m, n, k / 4)):
        assert 4 * product_s(device, *smaller, tiling, number_format) >= base * (1 - 1e-12)


def test_scattered_sums_take_a_share_of_the_bandwidth_on_vector_units_alone() -> None:
    def scattered_s(device: Device, number_format: str) -> float:
        return float(kernel_time_s(device, number_format, flop=0.0, memory_bytes=732e6, tiling="scattered"))

    assert scattered_s(P100, "fp32") == pytest.approx(1e-3 / 0.85 / 0.4, rel=1e-12)
    assert scattered_s(P100, "fp16") == scattered_s(P100, "fp32")
    assert scattered_s(VOLTA, "fp16") == 0.0 < scattered_s(VOLTA, "fp32")


def test_winograd_multiplies_two_halves_at_once_where_lanes_do() -> None:
    def winograd_s(device: Device, number_format: str) -> float:
        shape = (4096, 512, 512)
        time = kernel_time_s(device, number_format, flop=2e9, memory_bytes=0.0, gemm=shape, algorithm="winograd")
        return float(time)

    assert winograd_s(P100, "fp32") / 2 < winograd_s(P100, "fp16") < winograd_s(P100, "fp32")
    assert winograd_s(VOLTA, "fp16") == winograd_s(VOLTA, "fp32")  # not on matrix units


def test_neutral_multiples_make_all_units_alike() -> None:
    plain = Efficiency(matmul_fraction=0.5, tile_half=30, depth_half=20, fill_outputs=1000, split_depth=500)
    device = replace(P100, lanes_per_multiprocessor=128, efficiency=plain)
    times = {product_s(device, 77, 88, 99, tiling) for tiling in ("library", "thin", "recurrent")}
    assert len(times) == 1


def test_large_products_reach_the_stated_fraction() -> None:
    rate = 2 * 16384.0**3 / gemm_s(A100, 16384, 16384, 16384)
    assert rate == pytest.approx(0.87 * 312e12, rel=0.02)


def test_products_of_a_format_reach_the_rate_stated_for_it() -> None:
    """0.72 of the peak in 8 bits, and so in 4; 16 bits have a rate of their own."""
    peaks = {"fp32": 19.5e12, "bf16": 312e12, "fp8": 624e12, "nvfp4": 1248e12}
    best = {"bf16": 0.8 * 312e12, "fp8": 0.72 * 624e12}
    efficiency = Efficiency(tile_half=0, depth_half=0, fill_outputs=0)
    device = replace(A100, peak_flop_per_s=peaks, best_flop_per_s=best, efficiency=efficiency, launch_overhead_s=0.0)
    times = [
        float(kernel_time_s(device, name, flop=2e15, memory_bytes=0.0, gemm=(1e5, 1e5, 1e5)))
        for name in ("bf16", "fp8", "nvfp4")
    ]
    assert times == pytest.approx([2e15 / (312e12 * 0.8), 2e15 / (624e12 * 0.72), 2e15 / (1248e12 * 0.72)])


# 1,000 TFLOP/s at full clocks, 800 at the power limit; nothing else that costs time but what a test asks for.
LIMITED = Device(
    name="limited",
    peak_flop_per_s={"fp32": 100e12, "bf16": 1000e12},
    memory_bytes=80e9,
    memory_bandwidth_bytes_per_s=1e15,
    launch_overhead_s=0.0,
    best_flop_per_s={"bf16": 1000e12},
    sustained_flop_per_s={"bf16": 800e12},
    efficiency=Efficiency(tile_half=0, depth_half=0, fill_outputs=0, attention_fraction=0.5, odd_fraction=0.5),
)


@pytest.mark.parametrize(
    ("half", "expected_ms"),
    [
        (0.0, 1.25),  # 1 TFLOP at 800 TFLOP/s
        (
            2e3 * (1.25**0.5 - 1.0),
            1.25**0.4 / 0.8,
        ),  # a quarter more is charged: 1.367 ms at the limit, 1.25 at full clocks
        (2e3 * (2.0**0.5 - 1.0), 2.0),  # half of it idles: 2 ms at full clocks, 1.649 at the limit
    ],
)
def test_products_are_limited_by_power_or_by_what_idles_by_hand(half: float, expected_ms: float) -> None:
    """1 TFLOP of 2,000 x 2,000 outputs; tiles charge (1 + half / 2,000)^2 of it."""
    device = replace(LIMITED, efficiency=replace(LIMITED.efficiency, tile_half=half))
    time = kernel_time_s(device, "bf16", flop=1e12, memory_bytes=0.0, gemm=(2e3, 2e3, 125e3))
    assert float(time) == pytest.approx(expected_ms * 1e-3, rel=1e-12)


def test_only_what_draws_power_is_limited() -> None:
    def seconds(precision: str = "bf16", **options: Any) -> list[float]:
        both = (LIMITED, replace(LIMITED, sustained_flop_per_s={}))
        found = (
            kernel_time_s(d, precision, flop=1e12, memory_bytes=0.0, gemm=(2e3, 2e3, 125e3), **options) for d in both
        )
        return [float(time) for time in found]

    assert seconds() == pytest.approx([1.25e-3, 1e-3])
    for options in (
        {"precision": "fp32"},
        {"tiling": "unaligned"},
        {"tiling": "depthwise"},
        {"algorithm": "winograd"},
        {"algorithm": "attention"},  # 500 TFLOP/s: below the limit
        {"aligned": 1.0},  # half of the rate
    ):
        limited, full = seconds(**options)
        assert limited == full, options
    # In a step both lose the same share.
    efficiency = replace(LIMITED.efficiency, step_fraction=0.5)
    step = replace(LIMITED, efficiency=efficiency)
    time = kernel_time_s(step, "bf16", flop=1e12, memory_bytes=0.0, gemm=(2e3, 2e3, 125e3), in_step=True)
    assert float(time) == pytest.approx(2.5e-3)


usual_limit = replace(
    LIMITED, sustained_flop_per_s={"bf16": 500e12}, efficiency=replace(DEFAULT_EFFICIENCY, fill_outputs=1e6)
)


@given(extent, extent, extent, st.floats(0.05, 0.95), st.floats(1.0, 4.0))
def test_a_limit_keeps_the_order_of_products(m: int, n: int, k: int, cut: float, more: float) -> None:
    """More work takes no less time, pieces no less than the whole, and a lower limit makes nothing quicker."""
    whole = gemm_s(usual_limit, m, n, k)
    for larger in ((more * m, n, k), (m, more * n, k), (m, n, more * k)):
        assert gemm_s(usual_limit, *larger) >= whole * (1 - 1e-12)
    for first, second in (
        ((cut * m, n, k), ((1 - cut) * m, n, k)),
        ((m, cut * n, k), (m, (1 - cut) * n, k)),
        ((m, n, cut * k), (m, n, (1 - cut) * k)),
    ):
        assert gemm_s(usual_limit, *first) + gemm_s(usual_limit, *second) >= whole * (1 - 1e-12)
    lower = replace(usual_limit, sustained_flop_per_s={"bf16": 400e12})
    free = replace(usual_limit, sustained_flop_per_s={})
    assert gemm_s(lower, m, n, k) >= whole >= gemm_s(free, m, n, k)
    assert gemm_s(replace(usual_limit, sustained_flop_per_s={"bf16": 1000e12}), m, n, k) == gemm_s(free, m, n, k)


# TFLOP/s in fp8 of H200, square products of random numbers after 10,000 others (Azure AI benchmarking guide, ND H200 v5).
AZURE_H200 = {4096: 1249, 8192: 1301, 16384: 1366, 32768: 1350}
# TFLOP/s in bf16 of 2,816 x 1,536 outputs on H200, by the inner loop, held for seconds (S. Bekman, ml-engineering,
# compute/accelerator/benchmarks/README.md, "The K walk").
K_WALK_H200 = {4096: 722, 6144: 749, 10240: 741, 20480: 727}


def _rate(device: Device, precision: str, m: float, n: float, k: float) -> float:
    flop, moved = 2.0 * m * n * k, 2.0 * (m * n + n * k + k * m)
    return flop / float(kernel_time_s(device, precision, flop=flop, memory_bytes=moved, gemm=(m, n, k))) / 1e12


def test_held_products_of_others_on_h200() -> None:
    """The rates of the device file are from another table. Without a limit the largest would be a tenth too quick.

    One shape with ever longer inner loops gets no quicker at the limit, though it wastes less: it is never predicted above it.
    """
    device = load_device("h200").device
    for size, measured in AZURE_H200.items():
        assert _rate(device, "fp8", size, size, size) == pytest.approx(measured, rel=0.05), size
    free = replace(device, sustained_flop_per_s={})
    assert _rate(free, "fp8", 32768, 32768, 32768) > 1.1 * AZURE_H200[32768]
    for depth, measured in K_WALK_H200.items():
        assert 0.8 * measured < _rate(device, "bf16", 2816, 1536, depth) < device.sustained("bf16") / 1e12, depth


# TFLOP/s of rocBLAS in fp32 on gfx90a, a die of an MI250X or MI250, square products ("SGEMM Benchmark Results", 2024, as found by a
# search of public repositories). Lanes of the MI250X die reach 23.9.
ROCBLAS_GFX90A = {2048: 27.75, 4096: 34.34, 8192: 36.99}


def test_products_in_fp32_run_on_matrix_cores_of_cdna() -> None:
    """The share of the peak is that of bf16 there, the tiles are those of matrix units; neither is from products in fp32."""
    device = load_device("mi250x-gcd").device
    assert device.has_matrix_units("fp32")
    assert not load_device("mi50").device.has_matrix_units("fp32")
    for size, measured in ROCBLAS_GFX90A.items():
        assert _rate(device, "fp32", size, size, size) == pytest.approx(measured, rel=0.05), size


# TFLOP/s of DeepGEMM in fp8 by blocks on H20 (deepseek-ai/DeepGEMM, pull request 186, which is open: "w/o split-k"), 8,192 deep.
DEEPGEMM_H20 = {(128, 64): 12, (128, 128): 24, (128, 256): 47, (256, 64): 24, (256, 128): 47, (256, 256): 93}


def test_products_by_blocks_run_through_the_whole_inner_loop() -> None:
    """Up to a wave of tiles takes as long as one, and twice the loop twice as long; a library that cuts the loop is quicker."""
    device = load_device("h20").device
    measured = [2.0 * m * n * 8192 / rate for (m, n), rate in DEEPGEMM_H20.items()]
    found = [2.0 * m * n * 8192 / _rate(device, "fp8_block", m, n, 8192) for m, n in DEEPGEMM_H20]
    assert max(measured) < 1.05 * min(measured)
    assert max(found) < 1.4 * min(found)
    # Its tiles may be as narrow as 16 columns, which no size here knows.
    assert all(1.0 < ours / theirs < 2.6 for ours, theirs in zip(found, measured, strict=True))
    for m, n in DEEPGEMM_H20:
        assert _rate(device, "fp8_block", m, n, 8192) < 0.8 * _rate(device, "fp8", m, n, 8192)
    depths = np.array([2.0**14, 2.0**15, 2.0**16])
    times = 2.0 * 128 * 64 * depths / np.array([_rate(device, "fp8_block", 128, 64, k) for k in depths]) / 1e12
    assert np.diff(np.log2(times - device.launch_overhead_s)) == pytest.approx([1.0, 1.0], abs=0.01)


def test_batch_equals_scalars() -> None:
    rng = np.random.default_rng(0)
    m, n, k, moved = rng.uniform(1, 5000, (4, 30))
    flop = 2 * m * n * k
    batch = kernel_time_s(A100, "fp32", flop=flop, memory_bytes=moved, gemm=(m, n, k))
    single = [
        float(kernel_time_s(A100, "fp32", flop=flop[i], memory_bytes=moved[i], gemm=(m[i], n[i], k[i])))
        for i in range(30)
    ]
    assert batch.tolist() == single
    column = kernel_time_s(A100, "fp32", flop=flop[:, None], memory_bytes=moved[None, :])
    assert column.shape == (30, 30)


def test_elementwise_kernels_use_the_vector_rate() -> None:
    launch = A100.launch_overhead_s
    time = kernel_time_s(A100, "bf16", flop=1e12, memory_bytes=0.0)
    assert time == pytest.approx(launch + 1e12 / (19.5e12 * 0.8))
    wide = replace(A100, vector_flop_per_s=39e12)
    assert kernel_time_s(wide, "bf16", flop=1e12, memory_bytes=0.0) == pytest.approx(launch + 1e12 / (39e12 * 0.8))


def test_matrix_cores_do_not_help_transforms() -> None:
    for algorithm in ("winograd", "fft", "fft_tiling"):
        assert gemm_s(A100, 4096, 4096, 4096, algorithm=algorithm) > 5 * gemm_s(A100, 4096, 4096, 4096)


def test_launches_repeat_the_whole_kernel() -> None:
    one = kernel_time_s(A100, "bf16", flop=2e6, memory_bytes=3e4, gemm=(100, 100, 100))
    ten = kernel_time_s(A100, "bf16", flop=2e7, memory_bytes=3e5, gemm=(100, 100, 100), launches=10)
    assert ten == pytest.approx(10 * one, rel=1e-12)


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(DeviceError, match="no peak rate for fp8; it has fp32, bf16"):
        kernel_time_s(A100, "fp8", flop=1.0, memory_bytes=1.0, gemm=(1, 1, 1))
    with pytest.raises(EfficiencyError, match="unknown algorithm 'strassen'"):
        kernel_time_s(A100, "bf16", flop=1.0, memory_bytes=1.0, gemm=(1, 1, 1), algorithm="strassen")


# Name in DeepBench, peak FLOP/s, bytes/s, fraction of peak (as in configs/devices), and the floor of the harness: on the older
# two no product takes less than 76 us, whatever its size.
DEEPBENCH = [
    ("NV_TitanX", 6.60e12, 336.5e9, 0.77, 60e-6),
    ("NV_M40", 6.84e12, 288e9, 0.69, 60e-6),
    ("NV_P100", 10.6e12, 732e9, 0.87, 5e-6),
]


@pytest.mark.parametrize(("name", "peak", "bandwidth", "fraction", "floor"), DEEPBENCH)
def test_deepbench_products(
    reference_data: Path, name: str, peak: float, bandwidth: float, fraction: float, floor: float
) -> None:
    path = reference_data / "measurements" / "deepbench_gemm.csv"
    if not path.is_file():
        pytest.skip(f"no {path.name} in the reference data")
    with path.open(newline="") as stream:
        rows = [r for r in csv.DictReader(stream) if r["device"] == name and r["precision"] == "fp32"]
    m, n, k, measured_ms = (np.array([float(r[key]) for r in rows]) for key in ("m", "n", "k", "time_ms"))
    device = Device(
        name=name,
        peak_flop_per_s={"fp32": peak},
        memory_bytes=12e9,
        memory_bandwidth_bytes_per_s=bandwidth,
        launch_overhead_s=floor,
        efficiency=Efficiency(matmul_fraction=fraction),
    )
    moved = 4 * (m * n + n * k + m * k)
    time = kernel_time_s(device, "fp32", flop=2 * m * n * k, memory_bytes=moved, gemm=(m, n, k))
    error = np.log(time * 1e3 / measured_ms)
    assert len(rows) == 160
    assert float(np.mean(np.abs(error))) < 0.30
    assert abs(float(np.mean(error))) < 0.20
    assert float(np.median(np.abs(error[2 * m * n * k > 5e9]))) < 0.15  # the products that matter


def test_products_of_unaligned_rows_run_on_vector_units() -> None:
    """312 TFLOP/s in bf16 for rows of 16 bytes, else 19.5: 16 times as long, whatever the format of the vector units."""
    efficiency = Efficiency(matmul_fraction=0.8, tile_half=0, depth_half=0, fill_outputs=0)
    device = replace(A100, efficiency=efficiency, launch_overhead_s=0.0)

    def seconds(tiling: str, precision: str = "bf16") -> float:
        return float(kernel_time_s(device, precision, flop=2e15, memory_bytes=0.0, gemm=(1e5, 1e5, 1e5), tiling=tiling))

    assert seconds("unaligned") == pytest.approx(16.0 * seconds("library"))
    assert seconds("unaligned", "fp32") == seconds("library", "fp32")


def test_odd_rows_are_multiplied_by_slower_kernels_of_the_matrix_units() -> None:
    """From the whole rate to 0.4 of it in three equal steps, share by share, and only in 16 bits on matrix units."""
    efficiency = Efficiency(matmul_fraction=0.8, tile_half=0, depth_half=0, fill_outputs=0, odd_fraction=0.4)
    device = replace(A100, efficiency=efficiency, launch_overhead_s=0.0)

    def seconds(precision: str) -> list[float]:
        aligned = np.array([8.0, 4.0, 2.0, 1.0])
        times = kernel_time_s(device, precision, flop=2e15, memory_bytes=0.0, gemm=(1e5, 1e5, 1e5), aligned=aligned)
        return [float(time) for time in np.broadcast_to(times, 4)]

    whole, *others = seconds("bf16")
    assert others == pytest.approx([whole / 0.8, whole / 0.6, whole / 0.4])
    assert len(set(seconds("fp32"))) == 1


def test_a_core_adds_what_its_memory_takes() -> None:
    """A product of 2 ms whose operands take 1 ms: the share that is hidden, and what a repeated product finds in the caches."""
    ideal = Efficiency(
        matmul_fraction=1, vector_fraction=1, memory_fraction=1, tile_half=0, depth_half=0, fill_outputs=0,
        memory_overlap=0.25, cache_bytes=24e6, cache_speedup=6.0, pool_fraction=0.1,
    )  # fmt: skip
    core = Device(
        name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11,
        lanes_per_multiprocessor=1, launch_overhead_s=0.0, efficiency=ideal,
    )  # fmt: skip

    def time_s(moved: float, flop: float, *, warm: bool = False, tiling: str = "library") -> float:
        gemm = (1000.0, 1000.0, flop / 2e6) if tiling == "library" and flop else None
        return float(kernel_time_s(core, "fp32", flop=flop, memory_bytes=moved, gemm=gemm, tiling=tiling, is_warm=warm))

    assert time_s(1e8, 2e9) == pytest.approx(2e-3 + 0.75 * 1e-3)
    assert time_s(4e8, 2e9) == pytest.approx(4e-3 + 0.75 * 2e-3)
    assert time_s(24e6, 2e9, warm=True) == pytest.approx(2e-3)
    # Of 100 MB only the 76 that the caches do not hold are waited for.
    assert time_s(1e8, 2e9, warm=True) == pytest.approx(2e-3 + 0.75 * 0.76e-3)
    # The 24 MB in the caches come 6 times as fast as the other 26.
    assert time_s(50e6, 0.0, warm=True) == pytest.approx((26e6 + 24e6 / 6.0) / 1e11)
    assert time_s(0.0, 2e9, warm=True) == pytest.approx(2e-3)
    assert time_s(0.0, 1e6, tiling="maximum") == pytest.approx(10 * time_s(0.0, 1e6, tiling="thin"))


@given(extent, extent, extent, scale)
def test_laws_hold_where_memory_is_not_hidden(m: int, n: int, k: int, factor: float) -> None:
    """More work takes no less time, and pieces no less than the whole, however little is hidden."""
    core = replace(P100, efficiency=replace(P100.efficiency, memory_overlap=0.0, cache_bytes=1e6, cache_speedup=7.0))

    def time_s(rows: float) -> float:
        moved = 4.0 * (rows * k + k * n + rows * n)
        return float(
            kernel_time_s(core, "fp32", flop=2.0 * rows * n * k, memory_bytes=moved, gemm=(rows, float(n), float(k)))
        )

    assert time_s(m) <= time_s(m * factor) * (1 + 1e-9)
    assert 2.0 * time_s(m / 2.0) >= time_s(m) * (1 - 1e-9)


def test_windows_are_gathered_at_bytes_per_clock() -> None:
    """Ten multiprocessors of 64 lanes at 1 GHz that gather 10 bytes per clock: 100 GB/s for what depthwise outputs see."""
    made = Device(
        name="d",
        peak_flop_per_s={"fp32": 10 * 64 * 2 * 1e9, "fp16": 10 * 64 * 16 * 1e9},
        memory_bytes=1e9,
        memory_bandwidth_bytes_per_s=1e15,
        lanes_per_multiprocessor=64,
        efficiency=Efficiency(matmul_fraction=1, vector_fraction=1, window_bytes=10, window_start=1),
    )

    def time_s(precision: str, tiling: str, patch: float) -> float:
        flop = 2.0 * 1e9 * patch
        gemm = (1e9, 1.0, patch)
        return float(
            kernel_time_s(made, precision, flop=flop, memory_bytes=1.0, gemm=gemm, tiling=tiling, window=(1e9, 9.0))
        )

    assert time_s("fp16", "depthwise", 9.0) == pytest.approx(1e9 * 10 * 2 / 100e9, rel=1e-4)  # and 5 us to start it
    assert time_s("fp32", "depthwise", 9.0) == pytest.approx(1e9 * 10 * 4 / 100e9, rel=1e-4)
    assert time_s("fp16", "depthwise", 2e5) == pytest.approx(2.0 * 1e9 * 2e5 / 1.28e12)  # arithmetic of lanes
    assert time_s("fp16", "thin", 9e4) > time_s("fp16", "thin", 9.0)  # wide groups are products
    assert time_s("fp32", "thin", 9.0) >= time_s("fp32", "depthwise", 9.0)


# --- What the default preset adds to the time of kernels: rates of long steps for sequences only, layouts of images in tf32 ---------------


A100_SUSTAINED = Device(
    name="a100",
    peak_flop_per_s={"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12},
    memory_bytes=80e9,
    memory_bandwidth_bytes_per_s=2e12,
    launch_overhead_s=3e-6,
    efficiency=replace(DEFAULT_EFFICIENCY, step_fraction=0.5),
)


def passes_of(
    layer: Layer, precision: str, *, alone: bool = False, batch: int = 64, software: ImageSoftware = EAGER
) -> PassTimes:
    compute = RooflineCompute(
        device=A100_SUSTAINED,
        precision=PRECISIONS[precision],
        optimizer=OPTIMIZERS["sgd"],
        alone=alone,
        software=software,
    )
    return compute.pass_times(layer, shard_of(layer, split_table([1]), batch), needs_input_gradient=True)


def forward_s(layer: Layer, precision: str, *, alone: bool = False, batch: int = 64) -> float:
    return float(passes_of(layer, precision, alone=alone, batch=batch).forward_s[0])


def test_normalisations_that_do_the_work_of_the_activation_save_its_kernels() -> None:
    """Two passes of 16 bits over the outputs forward and three backward at 0.85 of the bandwidth, each with a launch."""
    values = {"out_channels": 64, "kernel": 3, "padding": 1, "activation": "relu"}
    software = ImageSoftware(fuses=frozenset({"activation", "normalised gradient"}))
    pass_s = 2 * 64 * 64 * 56 * 56 / (0.85 * 2e12)
    for norm, backward_s in (("batch", 3e-6 + 3 * pass_s), (None, 0.0)):
        layer = layer_of("convolution", (64, 56, 56), norm=norm, **values)
        own, fused = (passes_of(layer, "bf16", software=known) for known in (EAGER, software))
        assert float(own.forward_s[0] - fused.forward_s[0]) == pytest.approx(3e-6 + 2 * pass_s, rel=1e-9)
        assert float(own.backward_s[0] - fused.backward_s[0]) == pytest.approx(backward_s, rel=1e-9)


@pytest.mark.parametrize("kind", ["convolution", "deconvolution"])
def test_a_bias_is_added_and_summed_by_kernels_of_its_own(kind: str) -> None:
    """Read and written forward, its gradient read once backward; software that adds it in the convolution does neither."""
    plain, biased = (layer_of(kind, (64, 56, 56), out_channels=32, kernel=1, bias=bias) for bias in (False, True))
    pass_s = 2 * 64 * 32 * 56 * 56 / (0.85 * 2e12)
    without, own = passes_of(plain, "bf16"), passes_of(biased, "bf16")
    assert float(own.forward_s[0] - without.forward_s[0]) == pytest.approx(3e-6 + 2 * pass_s, rel=1e-9)
    assert float(own.backward_weight_s[0] - without.backward_weight_s[0]) == pytest.approx(3e-6 + pass_s, rel=1e-9)
    assert own.backward_input_s[0] == without.backward_input_s[0]
    fused = passes_of(biased, "bf16", software=ImageSoftware(fuses=frozenset({"bias"})))
    assert fused.forward_s[0] == without.forward_s[0]
    assert fused.backward_s[0] == without.backward_s[0]


def test_images_of_old_frameworks_are_transposed_before_matrix_units() -> None:
    layer = layer_of("convolution", (256, 28, 28), out_channels=256, kernel=3, padding=1, bias=False)
    old = ImageSoftware(channels_first=True)
    for precision in ("bf16", "tf32"):
        alone_s = passes_of(layer, precision, alone=True).forward_s[0]
        assert passes_of(layer, precision, software=old).forward_s[0] == alone_s
    assert passes_of(layer, "bf16").forward_s[0] < alone_s


def test_sequences_run_at_the_rates_of_a_long_step_and_images_do_not() -> None:
    sequence = layer_of("linear", (4096, 2048), out_features=4096, bias=False)
    assert forward_s(sequence, "bf16") == pytest.approx(2 * forward_s(sequence, "bf16", alone=True), rel=1e-3)
    other = layer_of("linear", (4096,), out_features=4096, bias=False)
    assert forward_s(other, "bf16") == forward_s(other, "bf16", alone=True)
    # Alone its images are transposed, too: twice input, filters and output, in a kernel of its own.
    conv = layer_of("convolution", (256, 28, 28), out_channels=256, kernel=3, padding=1, bias=False)
    transposed_s = 3e-6 + 2 * (64 * 2 * 256 * 28 * 28 + 9 * 256 * 256) * 2 / (2e12 * 0.85)
    assert forward_s(conv, "bf16", alone=True) - forward_s(conv, "bf16") == pytest.approx(transposed_s, rel=1e-9)


def test_images_in_tf32_are_transposed_for_the_matrix_units() -> None:
    """Twice input, filters and output in a kernel of its own, beside what bf16 would do at half of the rate."""
    conv = layer_of("convolution", (256, 28, 28), out_channels=512, kernel=1, bias=False)
    elements = 64 * (256 + 512) * 28 * 28 + 256 * 512
    transposed_s = 3e-6 + 2 * elements * 4 / (2e12 * 0.85)
    halved = replace(A100_SUSTAINED, peak_flop_per_s={"fp32": 19.5e12, "tf32": 156e12, "bf16": 156e12})
    plain = RooflineCompute(
        device=halved, precision=replace(PRECISIONS["tf32"], products=("bf16",)), optimizer=OPTIMIZERS["sgd"]
    )
    tf32 = RooflineCompute(device=halved, precision=PRECISIONS["tf32"], optimizer=OPTIMIZERS["sgd"])
    shard = shard_of(conv, split_table([1]), 64)
    times = [float(c.pass_times(conv, shard, needs_input_gradient=True).forward_s[0]) for c in (plain, tf32)]
    assert times[1] - times[0] == pytest.approx(transposed_s, rel=1e-9)


# TFLOP/s of cuDNN 9 and FlashAttention-2 in 16 bits on an H100 SXM: 16k tokens, 2,048 features in all heads (J. Shah et al.,
# arXiv:2407.08608, figures 5 and 6, as text extractions of the figures have them). Pass, features of a head, mask -> by positions.
POSITIONS = (512, 1024, 2048, 4096, 8192, 16384)
PUBLISHED_ATTENTION = {
    ("attention", 128, True): ((315, 410, 484, 518, 529, 539), (191, 260, 298, 319, 333, 335)),
    ("attention", 64, True): ((225, 288, 334, 363, 379, 388), (180, 229, 262, 284, 295, 299)),
    ("attention_backward", 128, False): ((305, 408, 465, 499, 518, 516), (214, 260, 291, 310, 318, 322)),
    ("attention_backward", 64, False): ((266, 348, 395, 417, 432, 433), (198, 238, 264, 279, 287, 291)),
}


@pytest.mark.parametrize("kind", PUBLISHED_ATTENTION)
@pytest.mark.parametrize(("kernels", "column"), [("newest", 0), ("portable", 1)])
def test_fused_attention_against_published_curves(kind: tuple[str, int, bool], kernels: Any, column: int) -> None:
    """Short rows and narrow heads are slower by what starts a row, the edge of a mask and exponentials: one set of sizes for both."""
    algorithm, dim, causal = kind
    device = with_attention(load_device("h100-sxm").device, kernels)
    errors = []
    for positions, published in zip(POSITIONS, PUBLISHED_ATTENTION[kind][column], strict=True):
        heads, batch, seen = 2048 // dim, 16384 // positions, positions / 2 if causal else positions
        flop = 2.0 * (2 if algorithm == "attention" else 5) * dim * batch * heads * positions * seen
        gemm, tiling = (positions, seen, dim), "masked" if causal else "library"
        seconds = kernel_time_s(
            device, "bf16", flop=flop, memory_bytes=0.0, gemm=gemm, algorithm=algorithm, tiling=tiling
        )
        errors.append(np.log(flop / float(seconds) / 1e12 / published))
    assert np.mean(np.abs(errors)) < 0.2, errors
    assert np.max(np.abs(errors)) < 0.30, errors
    assert np.ptp(errors[2:]) < 0.15, errors


# The same in fp8, no mask (figure 7): cuDNN 9 and FlashAttention-3.
PUBLISHED_FP8_ATTENTION = {
    64: ((344, 398, 447, 413, 431, 438), (240, 396, 462, 568, 596, 613)),
    128: ((617, 751, 886, 864, 971, 1005), (348, 596, 733, 918, 974, 1008)),
    256: ((686, 878, 1001, 1087, 1122, 1139), (510, 744, 931, 966, 1151, 1171)),
}


@pytest.mark.parametrize("dim", PUBLISHED_FP8_ATTENTION)
def test_attention_in_fp8_waits_for_its_exponentials(dim: int) -> None:
    """Products are twice as fast as in 16 bits, exponentials are not: 64 features gain 1.3 times, 256 gain 1.7."""
    device = load_device("h100-sxm").device
    for n, positions in enumerate(POSITIONS[2:], 2):
        heads, batch = 2048 // dim, 16384 // positions
        flop = 4.0 * dim * batch * heads * positions**2
        wide, narrow = (
            flop
            / float(
                kernel_time_s(
                    device, f, flop=flop, memory_bytes=0.0, gemm=(positions, positions, dim), algorithm="attention"
                )
            )
            / 1e12
            for f in ("bf16", "fp8")
        )
        published = np.exp(np.mean(np.log([rates[n] for rates in PUBLISHED_FP8_ATTENTION[dim]])))
        assert narrow == pytest.approx(published, rel=0.25), positions
        assert 1.2 < narrow / wide < 1.8


def test_short_queries_fill_whole_tiles() -> None:
    """One query of each of many heads takes as long as 96 (and 32 lost on average): a tile of 128 holds one head of one sample.

    Where few heads work, the device waits for the longest row of keys: twice the mean under a mask.
    """
    device = load_device("h100-sxm").device

    def attention_s(queries: float, heads: float, keys: float, tiling: Any = "library") -> float:
        flop = 4.0 * 128 * heads * queries * keys
        time = kernel_time_s(
            device,
            "bf16",
            flop=flop,
            memory_bytes=0.0,
            gemm=(queries, keys, 128),
            algorithm="attention",
            tiling=tiling,
        )
        return float(time) - device.launch_overhead_s

    assert attention_s(1, 1e5, 512) == pytest.approx(attention_s(96, 1e5, 512), rel=1e-9)
    assert attention_s(224, 1e5, 512) == pytest.approx(2.0 * attention_s(96, 1e5, 512), rel=1e-2)
    assert attention_s(1, 1e5, 512, "decode") == pytest.approx(0.5 * attention_s(1, 1e5, 512), rel=1e-2)
    assert attention_s(64, 1e5, 512, "decode") == attention_s(1, 1e5, 512, "decode")  # as many heads share keys
    assert attention_s(128, 1e5, 512, "decode") == pytest.approx(2.0 * attention_s(64, 1e5, 512, "decode"), rel=1e-2)
    assert attention_s(64, 4, 512) == attention_s(64, 8, 512)  # one tile each, side by side
    e = device.efficiency
    rate = e.attention_fraction * device.best("bf16") / (2.0 * e.fill_outputs / 128.0 / 128.0)  # of a multiprocessor
    longest = 2 * 512 + e.attention_start + e.attention_tile
    assert attention_s(64, 4, 512, "masked") == pytest.approx(4.0 * 128 * 128 * longest / rate, rel=1e-9)


@pytest.mark.parametrize(
    ("precision", "tiling", "times"), [("tf32", "sums", 2), ("tf32", "library", 1), ("bf16", "sums", 1)]
)
def test_gradients_of_weights_in_tf32_are_transposed_first(precision: str, tiling: str, times: int) -> None:
    efficiency = Efficiency(matmul_fraction=0.8, tile_half=0, depth_half=0, fill_outputs=0)
    a100 = replace(A100, peak_flop_per_s={**A100.peak_flop_per_s, "tf32": 156e12}, launch_overhead_s=0.0)
    plain, slow = (
        replace(a100, efficiency=replace(efficiency, tf32_sums_fraction=fraction)) for fraction in (1.0, 0.5)
    )
    product = {"flop": 2e15, "memory_bytes": 0.0, "gemm": (1e5, 1e5, 1e5), "tiling": tiling}
    assert kernel_time_s(slow, precision, **product) == pytest.approx(
        times * kernel_time_s(plain, precision, **product)
    )
