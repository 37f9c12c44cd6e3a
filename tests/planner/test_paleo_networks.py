"""Bundled networks against PALEO's own listing of the same networks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from costmodel.network.graph import Graph
from costmodel.network.layers.pooling import pair
from planner.importers.networks import load_model

KINDS = {
    "input": "input",
    "conv2d": "convolution",
    "pool2d": "pool",
    "dropout": "dropout",
    "softmax": "softmax",
}


def graph(name: str) -> Graph:
    return load_model(name).graph


def paleo_layers(reference_data: Path, net: str) -> list[dict[str, Any]]:
    summary = json.loads((reference_data / "paleo" / "reference" / "summary.json").read_text())
    layers: list[dict[str, Any]] = summary["nets"][net]["layers"]
    return layers


@pytest.mark.parametrize(
    ("name", "net"),
    [("alexnet", "alex_v2"), ("alexnet-cuda-convnet2", "alex_v2_1gpu"), ("nin", "nin"), ("overfeat", "overfeat")],
)
def test_same_layers_as_paleo(reference_data: Path, name: str, net: str) -> None:
    theirs = paleo_layers(reference_data, net)
    ours = graph(name).layers
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
    for layer in graph(name).layers:
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
    for layer in graph("vgg16").layers:
        assert layer.weight_count == theirs[layer.name]


def test_inception_v3_is_paleo_and_one_convolution(reference_data: Path) -> None:
    """Kernel, channels and output of every convolution: in 6a, PALEO halves the image in the 64 -> 96 one and lacks 96 -> 96."""
    theirs = Counter(
        (*layer["filters"], *layer["outputs"][1:3])
        for layer in paleo_layers(reference_data, "inception_v3")
        if layer["type"] == "conv2d"
    )
    ours: Counter[tuple[int, ...]] = Counter()
    for layer in graph("inception_v3").layers:
        if layer.kind == "convolution":
            height, width = pair(layer.params.kernel)
            ours[height, width, layer.input_shapes[0][0], layer.output_shape[0], *layer.output_shape[1:]] += 1
    classifier = (1, 1, 2048, 1000, 1, 1)  # a linear layer here
    assert ours - theirs == Counter([(3, 3, 64, 96, 35, 35), (3, 3, 96, 96, 17, 17)])
    assert theirs - ours == Counter([(3, 3, 64, 96, 17, 17), classifier])
