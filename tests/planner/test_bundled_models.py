"""Bundled networks against published sizes, shapes, and PALEO's own listing of the same networks."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel.network.graph import Graph
from costmodel.network.layers import Shape
from costmodel.network.layers.pooling import pair
from planner.files.loading import LoadedModel
from planner.files.resources import bundled
from planner.importers.networks import load_model
from tests.cases import mostly

NAMES = sorted(bundled("models"))


@cache
def load(name: str) -> LoadedModel:
    return load_model(name)


def graph(name: str) -> Graph:
    return load(name).graph


def shape(name: str, layer: str) -> Shape:
    return graph(name).layers[graph(name).index(layer)].output_shape


def published(name: str) -> dict[str, Any]:
    """Published number of parameters, as the network's file has it."""
    lines = bundled("models")[name].read_text(encoding="utf-8").split("\npublished_parameters:\n")[1].splitlines()
    entries = "\n".join(itertools.takewhile(lambda line: line.startswith("  "), lines))
    return yaml.safe_load(entries)


@mostly("published", "name", NAMES, quick=16)
def test_as_many_parameters_as_published(name: str) -> None:
    entry = published(name)
    parameters = graph(name).weight_count + graph(name).norm_count
    expected = entry["count"] + entry.get("difference", 0)
    assert parameters == (pytest.approx(expected, rel=0.005) if entry.get("rounded") else expected)


@mostly("published", "name", NAMES, quick=8)
def test_described_and_sourced(name: str) -> None:
    model = load(name)
    assert model.name == name
    assert model.description
    assert model.source
    assert model.global_batch >= 1
    assert model.path == bundled("models")[name]
    assert published(name)["source"]


def test_inception_v3_is_the_published_network() -> None:
    """Scale and shift in place of biases: torchvision 27,161,264 less 3,326,696 of the auxiliary head."""
    net = graph("inception_v3")
    channels = sum(layer.output_shape[0] for layer in net.layers if layer.kind == "convolution")
    assert net.norm_count == 2 * channels == 34_432
    assert net.weight_count + net.norm_count == 27_161_264 - 3_326_696
    convolutions = sum(layer.kind == "convolution" for layer in net.layers)
    assert convolutions == 94


def multiply_adds(name: str) -> float:
    """Of convolutions, fully connected layers and products of one sample, forward."""
    total = 0
    for layer in graph(name).layers:
        out, into = layer.output_shape, layer.input_shapes[0] if layer.input_shapes else ()
        if layer.kind == "convolution":
            total += math.prod(out) * math.prod(pair(layer.params.kernel)) * into[0] // layer.params.groups
        elif layer.kind == "deconvolution":
            total += math.prod(into) * math.prod(pair(layer.params.kernel)) * out[0]
        elif layer.kind == "linear":
            total += math.prod(out) * (into[0] if len(into) == 2 else math.prod(into))
        elif layer.kind == "matmul":
            total += math.prod(out) * into[2]
    return float(total)


# Billions of multiplications with an addition, torchvision's GFLOPS of the weights ("_ops") unless it says otherwise.
MULTIPLY_ADDS = {
    "regnet-x-400mf": 0.414, "regnet-x-800mf": 0.8, "regnet-x-1.6gf": 1.603, "regnet-x-3.2gf": 3.177, "regnet-x-8gf": 7.995,
    "regnet-x-16gf": 15.941, "regnet-x-32gf": 31.736, "regnet-y-400mf": 0.402, "regnet-y-800mf": 0.834, "regnet-y-1.6gf": 1.612,
    "regnet-y-3.2gf": 3.176, "regnet-y-8gf": 8.473, "regnet-y-16gf": 15.912, "regnet-y-32gf": 32.28, "swin-tiny": 4.491,
    "swin-small": 8.741, "swin-base": 15.431, "mobilenet-v3-large": 0.217, "mobilenet-v3-small": 0.057, "mnasnet-b1": 0.314,
    "shufflenet-v2": 0.145, "vgg11-bn": 7.609, "vgg13-bn": 11.308, "ssd300-vgg16": 34.858,
    "resnet200": 15.07, "se-resnet50": 4.13, "se-resnext50-32x4d": 4.26, "inception_resnet_v2": 13.18, "xception": 8.40,  # timm
    "mixer-b16": 12.61, "nasnet-large": 23.89,  # timm
    "nasnet-mobile": 0.564,  # arXiv:1707.07012, table 3
}  # fmt: skip


@mostly("published", ("name", "billions"), MULTIPLY_ADDS.items(), quick=8)
def test_multiply_adds(name: str, billions: float) -> None:
    assert multiply_adds(name) == pytest.approx(billions * 1e9, rel=0.03, abs=1e6)


@pytest.mark.parametrize(
    ("name", "backbone", "deep"), [("ssd300-resnet50", "resnet50", 1024), ("ssd300-resnet34", "resnet34", 256)]
)
def test_ssd300(name: str, backbone: str, deep: int) -> None:
    """The first stages of the backbone, additional convolutions, and heads for 8,732 boxes: 4 numbers and 81 classes for each."""
    stages = ("conv1", "stage2", "stage3", "stage4")
    weights = sum(layer.weight_count for layer in graph(backbone).layers if layer.name.startswith(stages))
    into = deep
    for narrow, wide in ((256, 512), (256, 512), (128, 256), (128, 256), (128, 256)):
        has_bias = backbone == "resnet34"  # the others are normalised
        weights += into * narrow + 9 * narrow * wide + (narrow + wide if has_bias else 0)
        into = wide
    boxes = (4, 6, 6, 6, 4, 4)
    for channels, each in zip((deep, 512, 512, 256, 256, 256), boxes, strict=True):
        weights += (9 * channels + 1) * each * (4 + 81)
    assert graph(name).weight_count == weights
    assert shape(name, "classes") == (
        81,
        sum(size * size * each for size, each in zip((38, 19, 10, 5, 3, 1), boxes, strict=True)),
    )
    if backbone == "resnet34":
        assert graph(name).weight_count == pytest.approx(20e6, rel=0.01)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("vgg16", 256),
        ("resnet50", 256),
        ("overfeat", 128),
        ("dcgan-generator", 128),
        ("inception_v3", 1600),
        ("alexnet", 128),
    ],
)
def test_usual_global_batch(name: str, batch: int) -> None:
    assert load(name).global_batch == batch


SHAPES = [
    ("alexnet", "conv1", (64, 54, 54)),
    ("alexnet", "pool5", (256, 5, 5)),
    ("alexnet", "fc6", (4096, 1, 1)),
    ("alexnet-torchvision", "conv1", (64, 55, 55)),
    ("alexnet-torchvision", "pool5", (256, 6, 6)),
    ("alexnet-tf-cnn-benchmarks", "conv1", (64, 55, 55)),  # alexnet_model.py reshapes to 256 x 6 x 6
    ("alexnet-tf-cnn-benchmarks", "pool5", (256, 6, 6)),
    ("vgg16", "pool5", (512, 7, 7)),
    ("vgg-a", "conv4-2", (512, 28, 28)),
    ("nin", "cccp8", (1000, 5, 5)),
    ("nin", "pool4", (1000, 1, 1)),
    ("overfeat", "pool5", (1024, 6, 6)),
    ("squeezenet-1.0", "fire9.concat", (512, 13, 13)),  # arXiv:1602.07360, table 1
    ("inception_v4", "stem_5a.concat", (384, 35, 35)),  # arXiv:1602.07261, figures 3 and 9
    ("inception_v4", "reduction_a.concat", (1024, 17, 17)),
    ("inception_v4", "reduction_b.concat", (1536, 8, 8)),
    ("resnext50-32x4d", "stage5.3.relu", (2048, 7, 7)),  # arXiv:1611.05431, table 1
    ("efficientnet-b0", "conv2", (1280, 7, 7)),  # arXiv:1905.11946, table 1
    ("densenet161", "norm5", (2208, 7, 7)),
    # arXiv:1409.4842, table 1, column "output size"
    ("googlenet", "conv1", (64, 112, 112)),
    ("googlenet", "pool1", (64, 56, 56)),
    ("googlenet", "conv2", (192, 56, 56)),
    ("googlenet", "pool2", (192, 28, 28)),
    ("googlenet", "inception_3a.concat", (256, 28, 28)),
    ("googlenet", "inception_3b.concat", (480, 28, 28)),
    ("googlenet", "inception_4a.concat", (512, 14, 14)),
    ("googlenet", "inception_4d.concat", (528, 14, 14)),
    ("googlenet", "inception_4e.concat", (832, 14, 14)),
    ("googlenet", "inception_5b.concat", (1024, 7, 7)),
    # arXiv:1512.00567, table 1, and TensorFlow-Slim's end points
    ("inception_v3", "conv_2b", (64, 147, 147)),
    ("inception_v3", "pool_5a", (192, 35, 35)),
    ("inception_v3", "mixed_5b.concat", (256, 35, 35)),
    ("inception_v3", "mixed_5d.concat", (288, 35, 35)),
    ("inception_v3", "mixed_6a.concat", (768, 17, 17)),
    ("inception_v3", "mixed_6e.concat", (768, 17, 17)),
    ("inception_v3", "mixed_7a.concat", (1280, 8, 8)),
    ("inception_v3", "mixed_7c.concat", (2048, 8, 8)),
    # arXiv:1512.03385, table 1
    ("resnet50", "pool1", (64, 56, 56)),
    ("resnet50", "stage2.3.relu", (256, 56, 56)),
    ("resnet50", "stage3.4.relu", (512, 28, 28)),
    ("resnet50", "stage4.6.relu", (1024, 14, 14)),
    ("resnet152", "stage4.36.relu", (1024, 14, 14)),
    ("resnet152", "stage5.3.relu", (2048, 7, 7)),
    ("dcgan-generator", "deconv1", (512, 4, 4)),
    ("dcgan-generator", "deconv5", (3, 64, 64)),
    ("dcgan-discriminator", "conv4", (512, 4, 4)),
    ("dcgan-discriminator", "conv5", (1, 1, 1)),
    ("gnmt", "encoder1", (2048, 50)),
    ("gnmt", "attention", (1024, 50)),
    ("gnmt", "decoder.6.concat", (2048, 50)),
    ("gnmt", "fc", (32320, 50)),
    ("mlp", "fc3", (10,)),
]


@pytest.mark.parametrize(("name", "layer", "expected"), SHAPES)
def test_shapes(name: str, layer: str, expected: Shape) -> None:
    assert shape(name, layer) == expected


@pytest.mark.parametrize(
    "name", ["alexnet", "vgg16", "resnet50", "inception_v4", "densenet121", "swin-tiny", "nasnet-mobile"]
)
def test_image_classifiers_end_in_1000_classes(name: str) -> None:
    assert graph(name).layers[-1].output_shape[0] == 1000


@pytest.mark.parametrize(
    "name", ["alexnet", "alexnet-torchvision", "alexnet-cuda-convnet2", "vgg16", "vgg-a", "overfeat"]
)
def test_classifier_layers_match_fc(name: str) -> None:
    """One pattern selects the fully connected layers: ``--fix 'fc*:out_channels'``."""
    names = [layer.name for layer in graph(name).layers if layer.family.is_fully_connected(layer)]
    assert names == ["fc6", "fc7", "fc8"]


def gnmt_weights(layers: int) -> int:
    """Embeddings, encoder (first layer in both directions), decoder, attention, classifier; H = 1024."""
    hidden, vocabulary = 1024, 32_320
    embeddings = 2 * vocabulary * hidden
    cell = 4 * hidden * (hidden + hidden + 1)
    wide = 4 * hidden * (2 * hidden + hidden + 1)
    encoder = 2 * cell + wide + (layers - 2) * cell
    decoder = cell + (layers - 1) * wide
    attention = 2 * hidden * hidden + hidden
    return embeddings + encoder + decoder + attention + hidden * vocabulary + vocabulary


def test_gnmt(new_file: Any) -> None:
    """With four layers on each side it is the network of MLPerf, which has 160,671,297 parameters (NVIDIA apex, tests)."""
    assert gnmt_weights(8) == graph("gnmt").weight_count
    assert graph("gnmt").weight_count == pytest.approx(278e6, rel=0.002)  # arXiv:1701.06538, table 2
    text = bundled("models")["gnmt"].read_text()
    assert text.count("repeat: 6") == 2
    small = load_model(str(new_file("gnmt4.yaml", text.replace("repeat: 6", "repeat: 2")))).graph
    assert small.weight_count == gnmt_weights(4)
    shared_embedding = 32_320 * 1024
    second_biases = 9 * 4 * 1024  # PyTorch's LSTM has two biases per gate: 5 cells in the encoder, 4 in the decoder
    normalised_attention = 1024 + 1  # a bias and a scale
    assert small.weight_count - shared_embedding + second_biases + normalised_attention == 160_671_297


def test_waveglow() -> None:
    """Upsampling; twelve mixtures of 8, 6 and 4 channels; in every flow eight layers over the signal and 640 conditions, and both ends."""

    def weights(channels: int) -> int:
        upsample = 80 * 80 * 1024 + 80
        layers = 8 * (channels * 2 * channels * 3 + 2 * channels + 640 * 2 * channels + 2 * channels)
        layers += 7 * (channels + 1) * 2 * channels + (channels + 1) * channels
        ends = 4 * sum(2 * half * 2 * half + (half + 1) * channels + (channels + 1) * 2 * half for half in (4, 3, 2))
        return upsample + 12 * layers + ends

    assert [graph(name).weight_count for name in ("waveglow", "waveglow-256")] == [weights(512), weights(256)]
    assert shape("waveglow", "condition") == (640, 1, 1000)
    assert load("waveglow").counts == {"audio_samples": 8000}


def test_transformer_xl() -> None:
    """18 layers of 13.6 million, tables of 1024, 256, 64 and 16 features, their matrices, that of the head, and biases of the words."""
    layers = 18 * (4 * 1024**2 + 1024**2 + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024)
    assert layers == 245_532_672  # "n_nonemb_param" of Lambda Labs' logs
    clusters = {1024: 19_997, 256: 20_000, 64: 160_000, 16: 67_738}
    assert sum(clusters.values()) == 267_735
    tables = sum(width * words + 1024 * width for width, words in clusters.items())
    head = 1024**2 + 267_735 + 3 * 1025
    assert graph("transformer-xl-large").weight_count == layers + tables + head + 2 * 1024
    assert shape("transformer-xl-base", "layers.1.memory") == (512, 384)
    assert shape("transformer-xl-base", "layers.16.norm2") == (512, 192)
    longer = load_model("transformer-xl-base", seq=64).graph
    assert longer.layers[longer.index("layers.1.attention")].output_shape == (512, 64)


def test_speech_networks_halve_the_frames_once() -> None:
    for name in ("jasper", "quartznet"):
        assert shape(name, "features") == (64, 1, 1680)
        assert shape(name, "letters") == (29, 1, 840)
        assert load(name).counts == {"frames": 1680}


# --- Bundled networks against PALEO's own listing of the same networks --------------------------------------------------------------------


KINDS = {
    "input": "input",
    "conv2d": "convolution",
    "pool2d": "pool",
    "dropout": "dropout",
    "softmax": "softmax",
}


def paleo_graph(name: str) -> Graph:
    return load_model(name).graph


def paleo_layers(reference_data: Path, net: str) -> list[dict[str, Any]]:
    summary = json.loads((reference_data / "paleo" / "reference" / "summary.json").read_text())
    return summary["nets"][net]["layers"]


@pytest.mark.parametrize(
    ("name", "net"),
    [("alexnet", "alex_v2"), ("alexnet-cuda-convnet2", "alex_v2_1gpu"), ("nin", "nin"), ("overfeat", "overfeat")],
)
def test_same_layers_as_paleo(reference_data: Path, name: str, net: str) -> None:
    theirs = paleo_layers(reference_data, net)
    ours = paleo_graph(name).layers
    assert [layer.name for layer in ours] == [layer["name"] for layer in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert our.kind == KINDS[their["type"]]
        assert list(our.inputs) == their["parents"]
        assert our.weight_count == their["num_params"]
        batch_last = their["outputs"][1:]
        expected = (batch_last[-1], *batch_last[:-1])
        if our.kind == "softmax":
            assert our.output_shape[0] == expected[0]
        else:
            assert our.output_shape == expected


@pytest.mark.parametrize(("name", "net"), [("alexnet", "alex_v2"), ("nin", "nin"), ("overfeat", "overfeat")])
def test_same_parameters_as_paleo(reference_data: Path, name: str, net: str) -> None:
    """Kernels, strides, paddings, kinds of pooling, dropout and activations of the network file itself."""
    theirs = json.loads((reference_data / "paleo" / "nets" / f"{net}.json").read_text())["layers"]
    for layer in paleo_graph(name).layers:
        their, params = theirs[layer.name], layer.params
        if layer.kind in ("convolution", "pool"):
            kernel = their["filter"][:2] if layer.kind == "convolution" else their["ksize"][1:3]
            assert (params.kernel, params.kernel) == tuple(kernel)
            assert (params.stride, params.stride) == tuple(their["strides"][1:3])
            assert params.padding == their["padding"].lower()
        if layer.kind == "pool":
            assert params.mode == ("average" if their["type"] == "AvgPool" else "max")
        if layer.kind == "dropout":
            assert params.keep == their["dropout_keep_prob"]
        if "activation_fn" in their:  # the listing of overfeat leaves out those of its convolutions
            assert params.activation == their["activation_fn"]


def test_vgg16_has_the_weights_of_paleo_layer_by_layer(reference_data: Path) -> None:
    theirs = {layer["name"]: layer["num_params"] for layer in paleo_layers(reference_data, "vgg16")}
    for layer in paleo_graph("vgg16").layers:
        assert layer.weight_count == theirs[layer.name]


def test_inception_v3_is_paleo_and_one_convolution(reference_data: Path) -> None:
    """Kernel, channels and output of every convolution: in 6a, PALEO halves the image in the 64 -> 96 one and lacks 96 -> 96."""
    theirs = Counter(
        (*layer["filters"], *layer["outputs"][1:3])
        for layer in paleo_layers(reference_data, "inception_v3")
        if layer["type"] == "conv2d"
    )
    ours: Counter[tuple[int, ...]] = Counter()
    for layer in paleo_graph("inception_v3").layers:
        if layer.kind == "convolution":
            height, width = pair(layer.params.kernel)
            ours[height, width, layer.input_shapes[0][0], layer.output_shape[0], *layer.output_shape[1:]] += 1
    classifier = (1, 1, 2048, 1000, 1, 1)  # a linear layer here
    assert ours - theirs == Counter([(3, 3, 64, 96, 35, 35), (3, 3, 96, 96, 17, 17)])
    assert theirs - ours == Counter([(3, 3, 64, 96, 17, 17), classifier])
