"""Kernels against formulas worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.datasets.reading import Row
from costmodel.kernels.roofline import kernel_time_s
from planner.files.loading import load_cluster, load_device
from planner.measurements import collective_rows
from planner.measurements.outcomes import DEFAULT, PALEO, Outcome
from planner.measurements.tables import Row as TableRow
from tests.benchmarks.datasets.published_rows import (
    BACKWARD,
    COLLECTIVES,
    CONVOLUTIONS,
    DISPATCHES,
    FORWARD,
    LAYERS,
    NETWORKS,
    OPERATORS,
    PEAKS,
    PRODUCTS,
    RECURRENT,
    Kind,
    only,
    seconds,
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


# Products of 1,024 x 1,024 outputs in bf16 on an RTX 5090: steps of the inner loop, TFLOP/s on average (huggingface.co/datasets/dnakov/
# consumer-mamf, first lines of the run of 2025-10-20, at 400 of 575 W, which so small products do not reach).
@pytest.mark.parametrize(("k", "rate"), [(1024, 93.5), (2048, 123.5), (3072, 141.8), (4096, 149.8)])
def test_small_products_elsewhere(k: int, rate: float) -> None:
    time_ms = 2 * 1024 * 1024 * k / (rate * 1e9)
    row = {"device": "rtx-5090", "precision": "bf16", "m": 1024, "n": 1024, "k": k, "time_ms": time_ms}
    found = only(PRODUCTS, **row).comparisons[0]
    assert found.predicted_s == pytest.approx(found.measured_s, rel=0.2)


@pytest.mark.parametrize(("precision", "kernels", "moved"), [("fp8", 4, 5), ("fp8-blockwise", 1, 3 + 4 / 128)])
def test_a_product_in_fp8_may_hold_its_cast(precision: str, kernels: int, moved: float) -> None:
    """16 bits are read, twice where one scale is that of all inputs, and 8 written; a scale of 32 bits per 128 numbers."""
    row = {"device": "h100-sxm", "precision": precision, "m": 4096, "n": 64, "k": 4096, "time_ms": 1}
    alone, both = (
        only(PRODUCTS, **row, **more).comparisons[0].predicted_s for more in ({}, {"source": "AIConfigurator"})
    )
    device = load_device("h100-sxm").device
    expected = kernels * device.launch_overhead_s + moved * 4096 * 4096 / device.stream_bytes_per_s
    assert both - alone == pytest.approx(expected, rel=1e-9)


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
    at_best_s = flop / device.best("bf16") * (1 + efficiency.depth_half / 5120)
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


# --- Rows of collectives: by hand, by what was published, and in other words --------------------------------------------------------------


def test_an_all_reduce_inside_a_node_by_hand() -> None:
    found = only(COLLECTIVES, collective="all_reduce", device="A100-80GB", ranks=8, bytes=2**30, busbw_GBps=232)
    level = load_cluster("dgx-a100").cluster.levels[0]
    # NCCL's Simple: starts after 6.6 and 1.8 us, and the last of eight pieces is copied at 0.28 of 2,039 GB/s.
    ring_s = 14 * (level.latency_s + 2**27 / (level.bandwidth_bytes_per_s * level.efficiency)) + 2**27 / 570.92e9
    comparison = found.comparisons[0]
    assert comparison.predicted_s == pytest.approx(8.4e-6 + ring_s, rel=1e-6)
    assert comparison.measured_s == pytest.approx(2**30 * 2 * 7 / 8 / 232e9)


@pytest.mark.parametrize("name", ["broadcast_perf", "ncclBcast", "Reduce"])
def test_from_or_to_one_rank_by_hand(name: str) -> None:
    """Seven hops around the ring, and the whole message over every link in pieces; bus and algorithm bandwidth are one (nccl-tests)."""
    found = only(COLLECTIVES, collective=name, device="A100-80GB", ranks=8, bytes=2**30, busbw_GBps=230)
    level = load_cluster("dgx-a100").cluster.levels[0]
    chain_s = 7 * level.latency_s + 2**30 / (level.bandwidth_bytes_per_s * level.efficiency) + 2**30 / 7 / 570.92e9
    (comparison,) = found.comparisons
    assert comparison.predicted_s == pytest.approx(8.4e-6 + chain_s, rel=1e-6)
    assert comparison.measured_s == pytest.approx(2**30 / 230e9)
    assert comparison.what in ("broadcast", "reduce")


def test_switches_that_sum_by_hand() -> None:
    found = only(COLLECTIVES, collective="all_reduce", device="H100", ranks=8, bytes=2**30, busbw_GBps=466)
    # A launch of 8.4 us, two hops of 4 us, 1 GiB at 0.61 of 450 GB/s, and the pieces in which it travels.
    expected = 8.4e-6 + (8e-6**0.5 + (2**30 / (0.61 * 450e9)) ** 0.5) ** 2
    assert found.comparisons[0].predicted_s == pytest.approx(expected, rel=1e-6)
    assert found.comparisons[0].predicted_s == pytest.approx(found.comparisons[0].measured_s, rel=0.1)


def test_a_row_says_whether_switches_sum() -> None:
    """NVLink SHARP reaches 470 GB/s; without it a ring has 0.82 of 450."""
    stated = {
        "collective": "all_reduce",
        "device": "h100-sxm",
        "nodes": 1,
        "ranks": 8,
        "bytes": 2**33,
        "busbw_GBps": 370,
    }
    cells = {name: str(value) for name, value in stated.items()}
    usual, yes, no = (
        seconds(collective_rows.outcome_of(TableRow(line=2, cells=cells | more), DEFAULT))
        for more in ({}, {"in_network": "yes"}, {"in_network": "no"})
    )
    assert usual == yes
    assert 2**33 * 1.75 / no == pytest.approx(0.82 * 450e9, rel=0.04)


def test_a_custom_all_reduce_by_hand() -> None:
    """In a graph a kernel takes 2 us; a flag of 0.18 x 4 us, six partners more, and seven vectors of 64 KiB at 0.75 of 369 GB/s."""
    row = {"collective": "all_reduce", "ranks": 8, "nodes": 1, "bytes": 2**16, "time_us": 4.8}
    found = only(COLLECTIVES, device="H100", algorithm="TensorRT-LLM 1.0 custom all-reduce", **row).comparisons[0]
    flags_s = 0.18 * 4e-6 + 6 * 0.04 * 4e-6
    one_shot, two_shots = flags_s + 7 * 2**16 / (0.75 * 369e9), 2 * (flags_s + 7 / 8 * 2**16 / (0.75 * 369e9))
    assert found.predicted_s == pytest.approx(2e-6 + min(one_shot, two_shots), rel=1e-6)
    assert found.predicted_s == pytest.approx(found.measured_s, rel=0.15)


def dispatched(algorithm: str, **changes: object) -> Outcome:
    row = {
        "device": "H100 SXM",
        "gpus_per_node": 8,
        "nodes": 4,
        "ranks": 32,
        "tokens_per_rank": 4096,
        "hidden": 7168,
        "top_k": 8,
    }
    row |= {"experts": 256, "sms": 20, "dispatch_us": 3000, "combine_us": 5000, "algorithm": algorithm}
    return only(DISPATCHES, **{**row, **changes})


def test_tokens_on_their_way_to_experts_by_hand() -> None:
    """A token reaches 4 (1 - (3/4)^8) of 4 nodes, by quick kernels each of its 8 experts; 24 of 32 parts leave a node, at 380 GB/s."""
    for algorithm, copies in (("DeepEP normal", 4 * (1 - 0.75**8)), ("DeepEP low latency", 8.0)):
        sent = dispatched(algorithm).comparisons
        assert [c.what for c in sent] == ["dispatch", "combine"]
        for comparison, width in zip(sent, (1 + 4 / 128, 2.0), strict=True):
            leaving = 8 * 24 / 32 * 4096 * 7168 * copies * width
            assert comparison.predicted_s == pytest.approx(6.6e-6 + 10e-6 + leaving / 380e9, rel=1e-6)
    assert "multiprocessors" in dispatched("DeepEP normal", sms=8).skipped


@pytest.mark.parametrize(("nodes", "sums"), [(1, 19.5e9), (2, 13.6e9)])
def test_multiprocessors_copy_tokens_by_hand(nodes: int, sums: float) -> None:
    """A token reaches n (1 - (1 - 1/n)^8) of n ranks, and of two nodes nearly both: 20 multiprocessors make these copies."""
    ranks = 8 * nodes
    sent = dispatched("DeepEP normal", nodes=nodes, ranks=ranks, tokens_per_rank=65536).comparisons
    copies = ranks * (1 - (1 - 1 / ranks) ** 8) + (2 * (1 - 0.5**8) if nodes > 1 else 0)
    for comparison, width, rate in zip(sent, (1 + 4 / 128, 2.0), (17e9, sums), strict=True):
        assert comparison.predicted_s == pytest.approx(6.6e-6 + 65536 * 7168 * copies * width / (20 * rate), rel=1e-6)


# Microseconds that nccl-tests took on two p5.48xlarge (aws-samples, awsome-distributed-training, micro-benchmarks/nccl-tests, README).
TWO_P5 = {8: 69.12, 2**20: 123.2, 2**24: 298.1, 2**27: 870.3, 2**30: 4607.6, 2**34: 66132.0}


@pytest.mark.parametrize(("message", "measured_us"), TWO_P5.items())
def test_an_all_reduce_over_two_nodes_sums_in_switches_inside_them(message: int, measured_us: float) -> None:
    row = {"collective": "all_reduce", "nodes": 2, "ranks": 16, "bytes": message, "time_us": measured_us}
    found = only(COLLECTIVES, device="p5.48xlarge", **row).comparisons[0]
    assert found.predicted_s == pytest.approx(found.measured_s, rel=0.2)


def test_names_of_links_and_machines_mean_their_clusters() -> None:
    def predicted_s(device: str, **values: object) -> float:
        row = {"collective": "all_gather", "ranks": 64, "nodes": 8, "bytes": 2**28, "busbw_GBps": 100, **values}
        return only(COLLECTIVES, device=device, **row).comparisons[0].predicted_s

    # 63 steps of a ring over Elastic Fabric Adapters of 40 us each; InfiniBand has no such step.
    assert predicted_s("H100 SXM + EFA (p5)") > 63 * 40e-6 > predicted_s("H100 SXM")
    # "NVLink" in a name is no PCI Express card ("NVL").
    inside = {"ranks": 8, "nodes": 1}
    assert predicted_s("H100-80GB HBM3 DGX (NVLink4/NVSwitch)", **inside) == predicted_s("H100 SXM", **inside)
    assert predicted_s("H100 NVL", **inside) > 2 * predicted_s("H100 SXM", **inside)


def test_links_named_in_place_of_a_device() -> None:
    slow = only(COLLECTIVES, device="100GbE TCP sockets", ranks="", nodes="", bytes="", busbw_GBps=10)
    fast = only(COLLECTIVES, device="NVL4 + 8x400Gb RDMA (DGX H100)", ranks="", nodes="", bytes="", busbw_GBps=380)
    assert slow.comparisons[0].predicted_s > 10 * fast.comparisons[0].predicted_s


def test_what_was_fitted_of_the_links_counts() -> None:
    """Inside a node latency and efficiency of NVLink, over two the efficiency of InfiniBand, too; what a row states itself does not."""
    cells = {"device": "a100-80gb", "bytes": "1e9", "time_us": "9000", "ranks": "8", "nodes": "1"}
    one, two = (
        COLLECTIVES.predict([Row(line=2, cells={**cells, **more})])[0].fitted
        for more in ({}, {"ranks": "16", "nodes": "2"})
    )
    assert one == {"dgx-a100 nvlink: efficiency", "dgx-a100 nvlink: latency"}
    assert two == {*one, "dgx-a100 infiniband: efficiency"}


def message(**cells: str) -> Outcome:
    row = {"device": "h100-sxm", "nodes": "2", "ranks": "16", "bytes": "268435456", "time_us": "1500", **cells}
    return COLLECTIVES.predict([Row(line=2, cells=row)])[0]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("AllReduce", "all_reduce"), ("allgather", "all_gather"), ("reduce_scatter_perf", "reduce_scatter"), ("ncclAllToAll", "all_to_all"),
        ("sendrecv", "point_to_point"), ("reducescatter", "reduce_scatter"), ("all-gather-into-tensor", "all_gather"),
    ],
)  # fmt: skip
def test_collectives_by_the_names_of_libraries(text: str, name: str) -> None:
    assert message(collective=text).comparisons[0].what == name


def test_sizes_of_messages_in_other_units() -> None:
    plain = message()
    for text in ("256M", "256 MiB", "0.25 GiB", "268,435,456"):
        assert seconds(message(bytes=text)) == seconds(plain)
    assert message(time_us="1.5 ms").comparisons[0].measured_s == pytest.approx(1.5e-3)


def test_a_bandwidth_of_rings_or_a_range_where_there_is_no_other() -> None:
    traffic = 268435456 * 2 * 15 / 16
    ring = message(time_us="", busbw_ring_GBps="300")
    assert ring.comparisons[0].measured_s == pytest.approx(traffic / 300e9)
    both = message(time_us="", busbw_min="200", busbw_max="300", busbw_ring_GBps="100")
    assert both.comparisons[0].measured_s == pytest.approx(traffic / 250e9)
    assert message(time_us="", busbw_GBps="350", busbw_ring_GBps="100").comparisons[0].measured_s == pytest.approx(
        traffic / 350e9
    )


@pytest.mark.parametrize(
    ("text", "gbps"),
    [("400Gb IB", 400), ("HDR InfiniBand", 200), ("2x EDR", 200), ("25GbE TCP", 25), ("100 Gb/s", 100)],
)
def test_names_of_networks(text: str, gbps: float) -> None:
    """A row of 4 nodes with one rank each sees the whole link of a node."""
    outcome = message(device=text, nodes="4", ranks="4", time_us="", busbw_GBps=str(gbps / 8 * 0.9))
    assert not outcome.skipped
    ideal = 268435456 * 2 * 3 / 4 / (gbps / 8 * 1e9)
    assert outcome.comparisons[0].ideal_s == pytest.approx(ideal)
