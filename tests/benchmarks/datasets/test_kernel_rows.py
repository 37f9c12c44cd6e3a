"""Kernels against formulas worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.datasets.reading import Row
from costmodel.kernels.roofline import kernel_time_s
from planner.files.loading import load_device
from planner.measurements.outcomes import DEFAULT, PALEO
from tests.benchmarks.datasets.published_rows import (
    BACKWARD,
    COLLECTIVES,
    CONVOLUTIONS,
    FORWARD,
    LAYERS,
    NETWORKS,
    OPERATORS,
    PEAKS,
    PRODUCTS,
    RECURRENT,
    Kind,
    only,
)


def test_a_product_is_a_kernel() -> None:
    found = only(PRODUCTS, device="p100", precision="fp32", m=1024, n=512, k=2048, time_ms=0.3)
    moved = 4.0 * (1024 * 2048 + 2048 * 512 + 1024 * 512)
    expected = kernel_time_s(
        load_device("p100").device, "fp32", flop=2.0 * 1024 * 512 * 2048, memory_bytes=moved, gemm=(1024, 512, 2048)
    )
    comparison = found.comparisons[0]
    assert comparison.predicted_s == pytest.approx(float(expected), rel=1e-12)
    assert comparison.measured_s == pytest.approx(0.3e-3)
    assert comparison.ideal_s == pytest.approx(2.0 * 1024 * 512 * 2048 / 10.6e12)


# Products in 16 bits on V100 (Baidu Research, README of DeepBench at a5a2b60, mixed precision): m, n, k, A transposed, milliseconds.
V100_PRODUCTS = [
    (1760, 128, 1760, "N", 0.07),
    (7680, 64, 2560, "N", 0.10),
    (2560, 64, 2560, "N", 0.08),
    (5124, 9124, 2560, "T", 8.73),  # 5124 halves are no multiple of 16 bytes: as long as without tensor cores
    (3072, 128, 1024, "T", 0.04),
]


@pytest.mark.parametrize(("m", "n", "k", "a_t", "time_ms"), V100_PRODUCTS)
def test_products_on_the_first_tensor_cores(m: int, n: int, k: int, a_t: str, time_ms: float) -> None:
    row = {
        "device": "NV_V100",
        "precision": "mixed",
        "m": m,
        "n": n,
        "k": k,
        "a_t": a_t,
        "b_t": "N",
        "time_ms": time_ms,
    }
    found = only(PRODUCTS, **row).comparisons[0]
    assert found.predicted_s == pytest.approx(found.measured_s, rel=0.35)


def test_early_tensor_cores_take_aligned_matrices_only() -> None:
    def taken_s(device: str, m: int, a_t: str = "N", b_t: str = "N", n: int = 4096) -> float:
        row = {"device": device, "precision": "fp16", "m": m, "n": n, "k": 4096, "a_t": a_t, "b_t": b_t, "time_ms": 2}
        return only(PRODUCTS, **row).comparisons[0].predicted_s

    assert taken_s("v100-16gb", 4100) > 2.5 * taken_s("v100-16gb", 4104)  # 4100 halves, 8200 bytes
    assert taken_s("v100-16gb", 4096, n=4100) < 1.1 * taken_s("v100-16gb", 4096)  # columns of 4096 all the same
    assert taken_s("v100-16gb", 4096, n=4100, b_t="T") > 2.5 * taken_s("v100-16gb", 4096, b_t="T")
    assert taken_s("a100-80gb", 4100) < 1.1 * taken_s("a100-80gb", 4104)  # a later library
    assert taken_s("p100", 4100) < 1.1 * taken_s("p100", 4104)  # no tensor cores


def test_kernels_on_tensor_cores_find_images_channel_by_channel() -> None:
    shape = {"n": 16, "c": 256, "h": 28, "w": 28, "k": 256, "r": 1, "s": 1, "fwd_ms": 1}
    found = only(CONVOLUTIONS, device="a100-80gb", precision="fp16", **shape).comparisons[0]
    device = load_device("a100-80gb").device
    elements = 2 * 16 * 256 * 28 * 28 + 256 * 256
    moved = {"flop": 0.0, "memory_bytes": 2.0 * 2 * elements}
    product = {"flop": 2.0 * 16 * 784 * 256 * 256, "memory_bytes": 2.0 * elements, "gemm": (16 * 784, 256, 256)}
    expected = kernel_time_s(device, "fp16", **product, tiling="thin") + kernel_time_s(device, "fp16", **moved)
    assert found.predicted_s == pytest.approx(float(expected), rel=1e-9)


def test_the_best_of_many_shapes_fills_tiles_and_waves() -> None:
    """Its rate is the device's fraction of the peak, less launching and starting the inner loop; other shapes lose more."""
    found = only(PEAKS, device="A100 SXM", precision="bf16", best_mnk="1024x10240x5120", mamf_tflops=271.2).comparisons[
        0
    ]
    device, flop = load_device("a100-80gb").device, 2.0 * 1024 * 10240 * 5120
    efficiency = device.efficiency
    at_best_s = flop / (312e12 * efficiency.matmul_fraction) * (1 + efficiency.depth_half / 5120)
    assert found.predicted_s == pytest.approx(device.launch_overhead_s + at_best_s, rel=1e-9)
    other = only(PRODUCTS, device="A100 SXM", precision="bf16", m=1024, n=10240, k=5120, time_ms=0.4).comparisons[0]
    assert other.predicted_s > 1.05 * found.predicted_s
    paleo = only(PEAKS, PALEO, device="A100 SXM", precision="bf16", best_mnk="1024x10240x5120", mamf_tflops=271.2)
    same = only(PRODUCTS, PALEO, device="A100 SXM", precision="bf16", m=1024, n=10240, k=5120, time_ms=0.4)
    assert paleo.comparisons[0].predicted_s == pytest.approx(same.comparisons[0].predicted_s)


def test_paleo_takes_a_product_at_the_peak() -> None:
    found = only(PRODUCTS, PALEO, device="p100", precision="fp32", m=1024, n=512, k=2048, time_ms=0.3)
    moved = 4.0 * (1024 * 2048 + 2048 * 512 + 1024 * 512)
    assert found.comparisons[0].predicted_s == pytest.approx(
        2.0 * 1024 * 512 * 2048 / 10.6e12 + moved / (732 * 2**30), rel=1e-3
    )


def test_half_storage_on_a_device_that_computes_in_single() -> None:
    """A kernel that memory bounds takes half as long with elements of half the size."""
    cells = {
        "device": "titan-x",
        "net": "x",
        "op": "ReLU(inplace)",
        "batch": 64,
        "activation_bytes": 2**30,
        "fwd_ms": 10,
        "bwd_ms": 0,
    }
    whole, half = (only(OPERATORS, precision=name, **cells) for name in ("fp32", "fp16"))
    assert half.comparisons[0].predicted_s == pytest.approx(0.5 * whole.comparisons[0].predicted_s, rel=0.01)
    assert half.comparisons[0].ideal_s == whole.comparisons[0].ideal_s


def test_the_three_passes_of_a_convolution() -> None:
    shape = {
        "n": 16,
        "c": 64,
        "h": 56,
        "w": 28,
        "k": 128,
        "r": 3,
        "s": 3,
        "pad_h": 1,
        "pad_w": 1,
        "stride_h": 1,
        "stride_w": 1,
    }
    found = only(CONVOLUTIONS, device="p100", precision="fp32", **shape, fwd_ms=1, bwd_input_ms=1, bwd_param_ms=1)
    assert [c.what for c in found.comparisons] == ["forward", "backward input", "backward weight"]
    flop = 2.0 * 16 * 56 * 28 * 128 * 64 * 9
    assert all(c.ideal_s == pytest.approx(flop / 10.6e12) for c in found.comparisons)
    one = only(CONVOLUTIONS, device="p100", precision="fp32", **shape, fwd_ms=1, bwd_input_ms="", bwd_param_ms="")
    assert [c.what for c in one.comparisons] == ["forward"]


def test_the_backward_pass_of_a_log_is_both_gradients() -> None:
    shape = {
        "n": 16,
        "c": 64,
        "h": 56,
        "w": 56,
        "k": 128,
        "r": 3,
        "s": 3,
        "stride": 1,
        "device": "p100",
        "precision": "fp32",
    }
    three = only(CONVOLUTIONS, **shape, fwd_ms=1, bwd_input_ms=1, bwd_param_ms=1).comparisons
    back = only(CONVOLUTIONS, **shape, **BACKWARD, time_ms=1).comparisons[0]
    assert back.predicted_s == pytest.approx(three[1].predicted_s + three[2].predicted_s)


@pytest.mark.parametrize(("cell", "gates"), [("vanilla", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_cells_differ_by_their_gates(cell: str, gates: int) -> None:
    found = only(
        RECURRENT,
        device="p100",
        cell=cell,
        hidden=1024,
        batch=32,
        timesteps=25,
        fwd_ms=5,
        bwd_input_ms=5,
        bwd_weight_ms=5,
    )
    flop = 2.0 * 32 * 25 * 1024 * 1024 * gates  # the product with the state; none with the input
    for comparison in found.comparisons:
        assert comparison.ideal_s == pytest.approx(flop / 10.6e12, rel=0.01), comparison.what


def test_an_unknown_cell() -> None:
    assert (
        "none of vanilla, GRU, LSTM"
        in only(RECURRENT, device="p100", cell="SRU", hidden=8, batch=1, timesteps=1, fwd_ms=1).skipped
    )


def test_a_peak_is_its_best_product() -> None:
    found = only(PEAKS, device="NVIDIA A100 SXM", precision="bf16", mamf_tflops=271.2, best_mnk="1024x10240x5120")
    assert found.comparisons[0].measured_s == pytest.approx(2 * 1024 * 10240 * 5120 / 271.2e12)


@pytest.mark.parametrize(
    ("op", "elements", "flop"),
    [
        # VGG's second convolution: 64 channels, 224 x 224.
        (
            "Conv2d(64, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))",
            64 * 224 * 224,
            2 * 64 * 64 * 9 * 224 * 224,
        ),
        # AlexNet's first: 55 x 55 outputs.
        (
            "Conv2d(3, 64, kernel_size=(11, 11), stride=(4, 4), padding=(2, 2))",
            64 * 55 * 55,
            2 * 3 * 64 * 121 * 55 * 55,
        ),
        # Inception's factors keep the image: 17 x 17.
        (
            "Conv2d(128, 192, kernel_size=(1, 7), stride=(1, 1), padding=(0, 3), bias=False)",
            192 * 17 * 17,
            2 * 128 * 192 * 7 * 17 * 17,
        ),
        ("Linear(in_features=4096, out_features=1000, bias=True)", 1000, 2 * 4096 * 1000),
    ],
)
def test_operators_find_their_shapes_in_their_outputs(op: str, elements: int, flop: int) -> None:
    found = only(
        OPERATORS,
        device="v100-16gb",
        net="x",
        op=op,
        batch=32,
        activation_bytes=4.0 * 32 * elements,
        fwd_ms=50,
        bwd_ms=0,
    )
    assert found.comparisons[0].ideal_s == pytest.approx(32 * flop / 15.7e12)


def test_a_convolution_of_images_has_no_gradient_of_its_input() -> None:
    def backward_flop(channels: int) -> float:
        text = f"Conv2d({channels}, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))"
        outputs = 4.0 * 8 * 64 * 56 * 56
        row = {"device": "v100-16gb", "net": "x", "op": text, "batch": 8, "activation_bytes": outputs, "fwd_ms": 0}
        (found,) = only(OPERATORS, **row, bwd_ms=5).comparisons
        return found.ideal_s * 15.7e12

    once = 2 * 8 * 64 * 9 * 56 * 56
    assert backward_flop(3) == pytest.approx(once * 3)
    assert backward_flop(4) == pytest.approx(2 * once * 4)


def test_views_are_counted_not_scored() -> None:
    found = only(
        OPERATORS, device="v100-16gb", net="x", op="View(9216)", batch=32, activation_bytes=4.0, fwd_ms=0.1, bwd_ms=0
    )
    assert "view" in found.skipped
    assert not found.usable


def test_layers_of_a_log_are_those_of_the_bundled_network() -> None:
    conv2 = only(LAYERS, device="titan-x", net="alexnet", layer="conv2/5x5_s1", **FORWARD, time_ms=11, n=128)
    assert conv2.comparisons[0].ideal_s == pytest.approx(128 * 2 * 27 * 27 * 192 * 64 * 25 / 6.6e12, rel=0.1)
    relu = only(LAYERS, device="titan-x", net="alexnet", layer="conv2/relu", **FORWARD, time_ms=1, n=128)
    assert 0 < relu.comparisons[0].predicted_s < conv2.comparisons[0].predicted_s
    assert (
        "no such layer" in only(LAYERS, device="titan-x", net="alexnet", layer="conv99", **FORWARD, time_ms=1).skipped
    )


def test_products_in_another_format_than_the_storage() -> None:
    shape = {"device": "NV_P100", "m": 4096, "n": 4096, "k": 4096, "time_ms": 15}
    mixed = only(PRODUCTS, precision="fp16 storage, fp32 math (pseudo)", **shape).comparisons[0]
    wide, narrow = (only(PRODUCTS, precision=text, **shape).comparisons[0] for text in ("fp32", "fp16"))
    assert mixed.predicted_s == pytest.approx(wide.predicted_s)  # not bound by memory
    assert narrow.predicted_s < 0.6 * wide.predicted_s


@pytest.mark.parametrize(
    ("module", "cells", "reason"),
    [
        (PRODUCTS, {"m": 1, "n": 1, "k": "", "device": "p100", "time_ms": 1}, "m, n or k is not stated"),
        (PRODUCTS, {"m": 4096, "n": 4096, "k": 4096, "device": "p100", "time_ms": 1e-3}, "wrong unit"),
        (PRODUCTS, {"m": 4096, "n": 4096, "k": 4096, "device": "p100", "time_ms": 0}, "no measured time"),
        (NETWORKS, {"model": "FooNet", "device": "p100", "batch": 8, "step_time_ms": 1}, "no bundled network"),
        (NETWORKS, {"model": "resnet50", "device": "p100", "batch": "", "step_time_ms": 1}, "no batch"),
        (COLLECTIVES, {"device": "h100-sxm", "ranks": 1, "bytes": 8, "time_us": 3}, "fewer than two ranks"),
        (
            COLLECTIVES,
            {"collective": "gossip", "device": "h100-sxm", "ranks": 8, "bytes": 8, "time_us": 3},
            "'gossip' is not known",
        ),
        (
            CONVOLUTIONS,
            {"n": 1, "c": 3, "h": 4, "w": 4, "k": 8, "r": 9, "s": 9, "device": "p100", "fwd_ms": 1},
            "shapes do not fit",
        ),
    ],
)
def test_rows_that_are_left_out(module: Kind, cells: dict[str, object], reason: str) -> None:
    assert reason in only(module, **cells).skipped


def test_a_profilers_own_time_is_part_of_what_it_reports() -> None:
    row = {"op": "ReLU(inplace)", "net": "resnet50", "batch": 128, "activation_bytes": 4e6, "device": "v100-16gb"}
    times = {"fwd_ms": 0.3, "bwd_ms": 0.1}
    bare = only(OPERATORS, **row, **times)
    inside = only(
        OPERATORS,
        **row,
        **times,
        source="PipeDream profiles",
        provenance="msr-fiddle/pipedream profiler/image_classification/x L1",
    )
    other = only(
        OPERATORS,
        **row,
        **times,
        source="PipeDream profiles",
        provenance="msr-fiddle/pipedream profiler/translation/x L1",
    )
    for k, own_s in enumerate((250e-6, 20e-6)):
        assert inside.comparisons[k].predicted_s == pytest.approx(bare.comparisons[k].predicted_s + own_s)
        assert other.comparisons[k].predicted_s == bare.comparisons[k].predicted_s
    assert inside.fitted - bare.fitted == {"pipedream: forward_s", "pipedream: backward_s"}


def test_libraries_without_fast_convolutions() -> None:
    row = {"device": "titan-x", "n": 64, "c": 128, "h": 56, "w": 56, "k": 128, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}

    def forward_s(library: str) -> float:
        found = only(CONVOLUTIONS, **row, **FORWARD, time_ms=5, library=library)
        return found.comparisons[0].predicted_s

    assert forward_s("Caffe native (im2col+cuBLAS)") == forward_s("CuDNN[R2] *") > 1.3 * forward_s("Nervana-neon-fp32")
    assert forward_s("") == forward_s("TensorFlow")


def test_the_preset_paleo_says_nothing_about_recurrent_layers() -> None:
    cells = {"device": "p100", "cell": "LSTM", "hidden": "1024", "batch": "32", "timesteps": "25", "fwd_ms": "5.1"}
    (default,), (paleo,) = (RECURRENT.predict([Row(line=2, cells=cells)], preset) for preset in (DEFAULT, PALEO))
    assert default.is_scored
    assert "no formula for recurrent layers" in paleo.skipped
