"""What the default preset adds to the time of kernels: rates of long steps for sequences only, layouts of images in tf32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY
from costmodel.kernels.roofline import EAGER, ImageSoftware, PassTimes, RooflineCompute
from costmodel.network.layers import Layer, Shard, family_of
from costmodel.network.layers.base import params_from
from costmodel.precision import OPTIMIZERS, PRECISIONS

A100 = Device(
    name="a100",
    peak_flop_per_s={"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12},
    memory_bytes=80e9,
    memory_bandwidth_bytes_per_s=2e12,
    launch_overhead_s=3e-6,
    efficiency=replace(DEFAULT_EFFICIENCY, sustained_fraction=0.5),
)


def layer_of(kind: str, shape: tuple[int, ...], **values: Any) -> Layer:
    params = params_from(kind, values)
    output = family_of(kind).output_shape(params, (shape,))
    return Layer(name="x", kind=kind, params=params, inputs=("in",), input_shapes=(shape,), output_shape=output)


def passes_of(
    layer: Layer, precision: str, *, alone: bool = False, batch: int = 64, software: ImageSoftware = EAGER
) -> PassTimes:
    compute = RooflineCompute(
        device=A100, precision=PRECISIONS[precision], optimizer=OPTIMIZERS["sgd"], alone=alone, software=software
    )
    one = np.ones(1)
    inside = layer.input_shapes[0]
    shard = Shard(
        batch=batch * one,
        out_channels=layer.output_shape[0] * one,
        in_channels=inside[0] * one,
        height=(layer.output_shape[1] if len(layer.output_shape) == 3 else 1) * one,
        split_out=one,
        split_in=one,
        split_height=one,
    )
    return compute.pass_times(layer, shard, needs_input_gradient=True)


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
    halved = replace(A100, peak_flop_per_s={"fp32": 19.5e12, "tf32": 156e12, "bf16": 156e12})
    plain = RooflineCompute(
        device=halved, precision=replace(PRECISIONS["tf32"], compute="bf16"), optimizer=OPTIMIZERS["sgd"]
    )
    tf32 = RooflineCompute(device=halved, precision=PRECISIONS["tf32"], optimizer=OPTIMIZERS["sgd"])
    one = np.ones(1)
    shard = Shard(
        batch=64 * one, out_channels=512 * one, in_channels=256 * one, height=28 * one, split_out=one, split_in=one, split_height=one
    )  # fmt: skip
    times = [float(c.pass_times(conv, shard, needs_input_gradient=True).forward_s[0]) for c in (plain, tf32)]
    assert times[1] - times[0] == pytest.approx(transposed_s, rel=1e-9)
