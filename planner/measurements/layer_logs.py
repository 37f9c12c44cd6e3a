"""Logs of single layers of well-known networks, by name: the bundled network of that name says what the layer is.

Logs (of Caffe, here) list activations and copies as layers of their own, which bundled networks attach to the layer before: they are
costed as what they are, on the shape of the layer whose name they carry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from costmodel.hardware.device import Device
from costmodel.network.layers import Layer
from planner.measurements import convnets
from planner.measurements.kernel_rows import compared, kernel_outcomes, unit_of
from planner.measurements.outcomes import Comparison, Outcome
from planner.measurements.passes import LayerTimes, layer_of, layer_times, positive_ms
from planner.measurements.preset import Preset
from planner.measurements.tables import Row, RowSkipped

__all__ = ["one", "one_pass", "predict"]

# Samples per batch of convnet-benchmarks' networks (its README): 128, for VGG 64.
_BATCH = {"vgg-a": 64}
_USUAL_BATCH = 128


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    return kernel_outcomes(rows, preset, one)


def one(row: Row, preset: Preset) -> tuple[tuple[Comparison, ...], Device]:
    """Compare one row.

    Raises
    ------
    RowSkipped
        The network or the layer is not bundled.
    """
    name = convnets.network_name(row)
    if name is None:
        raise RowSkipped("no bundled network has this name")
    text = row.text("layer")
    if text in ("input", "data", "label") or "_split" in text:
        raise RowSkipped("moves no data: an input or the splitting of a tensor")
    layer = _layer(name, text)
    if layer is None:
        raise RowSkipped("the bundled network has no such layer")
    unit = unit_of(row, preset)
    batch = row.count("n") or row.count("batch") or row.default("n", _BATCH.get(name, _USUAL_BATCH))
    times = layer_times(layer, batch, unit.compute)
    return one_pass(row, times, unit.peak_flop_per_s), unit.device


# One of the two gradients: cuDNN's names and those of tables.
_GRADIENTS = (
    (r"^(?:b\w*[ _-]*(?:input|data)|dgrad|accgradinput|updategradinput)", "input"),
    (r"^(?:b\w*[ _-]*(?:param\w*|weights?|filter)|wgrad|accgradparam\w*)", "weight"),
)


def one_pass(row: Row, times: LayerTimes, peak: float) -> tuple[Comparison, ...]:
    """The pass that a row names: forward, or backward with both gradients.

    Raises
    ------
    RowSkipped
        It names something else.
    """
    measured_s, word = positive_ms(row, "time_ms"), row.text("pass_").lower()
    if word.startswith("f"):  # forward, fwd, fprop
        return compared("forward", times.forward_s, measured_s, times.forward_flop, peak)
    if re.match(r"b(?:ackward|wd|w|prop)?$", word):
        both_s = times.backward_input_s + times.backward_weight_s
        return compared("backward", both_s, measured_s, times.backward_input_flop + times.backward_weight_flop, peak)
    one = next((name for pattern, name in _GRADIENTS if re.search(pattern, word)), None)
    if one == "input":
        return compared("backward input", times.backward_input_s, measured_s, times.backward_input_flop, peak)
    if one == "weight":
        return compared("backward weight", times.backward_weight_s, measured_s, times.backward_weight_flop, peak)
    raise RowSkipped("column pass_ is neither forward nor backward (both gradients), backward_input, backward_weight")


@cache
def _layer(network: str, text: str) -> Layer | None:
    """The layer of a bundled network that a log means; None where there is none."""
    graph = convnets.graph_of(network)
    layers = {_plain(layer.name): layer for layer in graph.layers}
    layers |= {_numbered(graph.layers)[n]: layer for n, layer in enumerate(graph.layers) if _numbered(graph.layers)[n]}
    is_relu = "relu" in text
    found = layers.get(_plain(text)) or layers.get(_plain(re.sub(r"relu_?", "", text)))
    first = text.split("/", maxsplit=1)[0]
    found = found or layers.get(_plain(first)) or layers.get(_plain(first).rstrip("0123456789"))
    if text.endswith("/output"):  # where the branches of a block meet
        found = next((layer for layer in graph.layers if layer.kind == "concat" and layer.name.startswith(first)), None)
    if found is None:
        return None
    if is_relu:
        return layer_of("activation", (found.output_shape,), ())
    changes = {"activation": None, "norm": None}
    params = replace(found.params, **{key: value for key, value in changes.items() if hasattr(found.params, key)})
    return replace(found, params=params)


def _plain(name: str) -> str:
    """Letters and digits; what a log appends about kernel and stride is dropped.

    >>> _plain("inception_3a/5x5_reduce"), _plain("conv2/5x5_s1"), _plain("conv2/3x3_reduce")
    ('inception3a5x5reduce', 'conv2', 'conv2reduce')
    """
    word = re.sub(r"/?\d+x\d+_s\d+$", "", name)
    if word.startswith("conv"):
        word = re.sub(r"/\d+x\d+", "", word)
    return re.sub(r"[^a-z0-9]", "", word.lower())


def _numbered(layers: Sequence[Layer]) -> dict[int, str]:
    """Position -> "conv3": convolutions counted through, for networks that count them by stage ("conv2-1")."""
    names: dict[int, str] = {}
    for n, layer in enumerate(layers):
        if layer.kind == "convolution" and "-" in layer.name:
            names[n] = f"conv{len(names) + 1}"
    return {n: names.get(n, "") for n in range(len(layers))}
