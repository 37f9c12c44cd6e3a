"""Rows of networks for images: what a step has beside its kernels, and whose network a name means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.datasets.images import network_name
from benchmarks.datasets.reading import Row
from costmodel.precision import PRECISIONS
from planner.measurements import convnets
from planner.measurements.convnets import image_assumptions
from planner.measurements.outcomes import DEFAULT
from tests.benchmarks.datasets.published_rows import NETWORKS, TRAINING, canonical, only


def test_networks_without_an_optimizer_step_are_compared_without_it() -> None:
    plain = {
        "model": "AlexNet (One Weird Trick paper)",
        "device": "titan-x",
        "precision": "fp32",
        "gpus": 1,
        "batch": 128,
    }
    with_update = only(NETWORKS, **plain, step_time_ms=81)
    without = only(NETWORKS, **plain, step_time_ms=81, forward_ms=27, backward_ms=53)
    assert without.comparisons[0].predicted_s < with_update.comparisons[0].predicted_s


def test_mxnet_of_nvidia_fuses_activations_in_16_bits() -> None:
    def predicted_s(framework: str, precision: str) -> float:
        row = {"model": "ResNet-50", "device": "V100-16GB", "gpus": 1, "batch": 128, "step_time_ms": 200}
        cells = {**row, "source": "NVIDIA DeepLearningExamples", "framework": framework, "precision": precision}
        return only(NETWORKS, **cells).comparisons[0].predicted_s

    assert predicted_s("MXNet 20.12", "fp16") < 0.98 * predicted_s("PyTorch", "fp16")
    assert predicted_s("MXNet 20.12", "fp32") == predicted_s("PyTorch", "fp32")


@pytest.mark.parametrize(
    ("framework", "precision", "than", "is_slower"),
    [
        ("PyTorch 1.0.0, cuDNN 7.4", "fp16", "TF2", True),  # images are transposed for matrix units
        ("tf_cnn_benchmarks", "fp32", "TF2", False),
        ("TF2", "fp16", "TF1+XLA", True),  # activations of their own
        ("TF2", "fp32", "neon", True),
    ],
)
def test_software_that_runs_images_otherwise(framework: str, precision: str, than: str, is_slower: bool) -> None:
    def predicted_s(software: str) -> float:
        row = {"model": "VGG16", "device": "V100-16GB", "gpus": 1, "batch": 64, "step_time_ms": 200}
        run = only(NETWORKS, **row, library=software, precision=precision)
        return run.comparisons[0].predicted_s

    assert (predicted_s(framework) > 1.01 * predicted_s(than)) == is_slower
    assert predicted_s(framework) >= predicted_s(than)


def test_branches_of_neon_write_into_what_they_are_joined_to() -> None:
    """Its MergeBroadcast copies nothing, either way; a network without branches runs as before."""

    def predicted_s(model: str, *left_out: str) -> float:
        cells = {
            "model": model,
            "device": "titan-x",
            "library": "Nervana-neon-fp32",
            "precision": "fp32",
            "batch": "64",
        }
        row = canonical(Row(line=2, cells={**cells, "gpus": "1", "step_time_ms": "600"}), NETWORKS.convert)
        run = convnets.asked(row)
        without = {f"fused_{name}": 0.0 for name in left_out}
        row.meaning = replace(run, assumptions=replace(run.assumptions, **without))
        return convnets.predict([row], DEFAULT)[0].comparisons[0].predicted_s

    assert predicted_s("GoogLeNet") < 0.99 * predicted_s("GoogLeNet", "concatenation")
    assert predicted_s("VGG16") == predicted_s("VGG16", "concatenation")


@pytest.mark.parametrize(
    ("cells", "is_first"),
    [
        ({"framework": "PyTorch 1.12, channels first"}, True),
        ({"framework": "PyTorch 2.1", "layout": "NCHW"}, True),
        ({"framework": "tf_cnn_benchmarks", "data_format": "NHWC"}, False),
        ({"framework": "tf_cnn_benchmarks"}, True),
        ({"framework": "PyTorch 2.1", "notes": "channels_last"}, False),
        ({"framework": "PyTorch 2.1"}, True),  # its default
        ({"framework": "PyTorch 2.1", "source": "NVIDIA DeepLearningExamples"}, False),
        ({"framework": "PyTorch 1.0", "source": "NVIDIA DeepLearningExamples"}, True),
        ({"framework": "MXNet 1.5"}, True),
        ({"framework": "TF2, Keras"}, False),
    ],
)
def test_the_layout_that_a_row_states(cells: dict[str, str], is_first: bool) -> None:
    row = Row(
        line=2,
        cells={
            "model": "resnet50",
            "device": "v100-16gb",
            "batch": "8",
            "step_time_ms": "9",
            "precision": "amp",
            **cells,
        },
    )
    found = image_assumptions(canonical(row, NETWORKS.convert), PRECISIONS["fp16"], is_one_row=False)
    assert bool(found.channels_first) == is_first


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("PyTorch", "ssd300-resnet50"),
        ("tf_cnn_benchmarks", "ssd300-resnet34"),
        ("MLPerf v0.6", "ssd300-resnet34"),
    ],
)
def test_ssd300_is_built_on_what_its_trainer_says(framework: str, name: str) -> None:
    assert network_name(Row(line=2, cells={"model": "SSD300", "framework": framework})) == name


def test_more_workers_with_batches_of_their_own_wait_for_the_exchange() -> None:
    one, eight = (
        only(NETWORKS, model="VGG16", device="K80", gpus=n, batch_per_gpu=32, step_time_ms=1000) for n in (1, 8)
    )
    assert eight.comparisons[0].predicted_s > one.comparisons[0].predicted_s
    assert eight.comparisons[0].ideal_s == pytest.approx(one.comparisons[0].ideal_s)


def test_servers_over_a_network_wait_for_the_weights() -> None:
    """244 MB of AlexNet, of which seven eighths cross 1 GB/s per node after every step: the step is at least that much longer."""
    cells = {"model": "alexnet-torchvision", "device": "k80", "gpus": 64, "batch_per_gpu": 64, "step_time_ms": 900}
    plain, servers = (
        only(NETWORKS, **cells, variable_update=text).comparisons[0].predicted_s
        for text in ("replicated", "distributed_replicated (gRPC PS)")
    )
    computed = only(NETWORKS, **{**cells, "gpus": 1}).comparisons[0].predicted_s
    assert servers > max(plain, computed + 4 * 61_100_840 * 7 / 8 / 1e9)
    one = {**cells, "gpus": 8}
    assert (
        only(NETWORKS, **one, variable_update="parameter_server/cpu").comparisons[0].predicted_s
        == only(NETWORKS, **one).comparisons[0].predicted_s
    )


NAMED = {
    ("AlexNet (One Weird Trick paper)", "soumith/convnet-benchmarks imagenet winners", ""): "alexnet-torchvision",
    ("OverFeat[fast]", "convnet-benchmarks torch cuDNN log", ""): "overfeat-fast",
    ("AlexNet", "", "TensorFlow tf_cnn_benchmarks"): "alexnet-tf-cnn-benchmarks",
    ("AlexNet", "", "TensorFlow"): "alexnet",
    ("ResNeXt101_32x8d", "", "MXNet"): "resnext101-32x8d",
    ("OxfordNet [Model-A]", "soumith/convnet-benchmarks imagenet winners", ""): "vgg-a",
}


@pytest.mark.parametrize(("row", "name"), NAMED.items())
def test_networks_of_one_name_are_told_apart_by_whose_they_are(row: tuple[str, str, str], name: str) -> None:
    cells = dict(zip(("model", "source", "framework"), row, strict=True))
    assert network_name(Row(line=2, cells=cells)) == name


@pytest.mark.parametrize(
    ("model", "batch", "cells", "seconds"),
    [
        ("Transformer-XL base", 32, {"tokens_per_s": 6144 * 4}, 0.25),  # 192 of each of 32
        ("GNMT", 128, {"tokens_per_s": 12_800 * 2}, 0.5),  # 50 of both languages
        ("WaveGlow", 10, {"audio_samples_per_s": 80_000}, 1.0),
        ("WaveGlow", 10, {"items_per_s": 80_000}, 1.0),  # what everybody counts
        ("WaveGlow", 10, {"items_per_s": 10, "unit": "segments (samples) per s"}, 1.0),
        ("Jasper", 64, {"items_per_s": 1680 * 32}, 2.0),
        ("Jasper", 64, {"items_per_s": 32, "unit": "sequences/s"}, 2.0),
        ("Jasper", 64, {"samples_per_s": 32}, 2.0),
        ("ResNet-50", 128, {"items_per_s": 256}, 0.5),
    ],
)
def test_throughputs_in_tokens_frames_and_audio_samples(
    model: str, batch: int, cells: dict[str, Any], seconds: float
) -> None:
    row = only(NETWORKS, model=model, device="v100-32gb", gpus=1, batch_per_gpu=batch, precision="amp", **cells)
    assert row.comparisons[0].measured_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("model", "unit", "reason"),
    [
        ("WaveGlow", "furlongs", "items_per_s counts 'furlongs': how many a sample has is not known"),
        ("WaveGlow", "frames/s", "no measured time"),  # of a wave, not of a spectrogram
        ("BERT-large", "", "items_per_s has no unit"),
    ],
)
def test_a_throughput_of_nobody_knows_what_is_skipped_with_the_reason(model: str, unit: str, reason: str) -> None:
    row = {"model": model, "device": "v100-32gb", "gpus": 1, "batch_per_gpu": 8, "items_per_s": 40, "unit": unit}
    assert only(TRAINING, **row).skipped == reason


def test_convolutions_along_time_know_no_channels_last() -> None:
    cells = {"device": "v100-32gb", "batch_per_gpu": "64", "precision": "amp", "items_per_s": "100"}
    nvidia = {**cells, "source": "NVIDIA DeepLearningExamples", "framework": "PyTorch 20.06"}
    runs = [
        convnets.asked(canonical(Row(line=2, cells={**nvidia, "model": model}), NETWORKS.convert))
        for model in ("Jasper", "ResNet-50")
    ]
    assert [bool(run.assumptions.channels_first) for run in runs] == [True, False]


def test_lambda_labs_transformer_xl_has_one_softmax() -> None:
    cells = {"model": "transformerxlbase", "source": "Lambda Labs deeplearning-benchmark"}
    assert network_name(Row(line=2, cells=cells)) == "transformer-xl-base-full-softmax"
