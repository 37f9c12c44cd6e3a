"""Operators of a profiled network as PyTorch prints them, with the bytes of their output (PipeDream's profiles).

The output gives the size of the image: ``activation_bytes = batch x channels x height x width x 4``, square unless told otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.network.layers import Layer
from planner.measurements.kernels import Timed, Unit, layer_of, layer_passes, predict_kernels, timed, unit_of
from planner.measurements.outcomes import Outcome, Preset
from planner.measurements.tables import Row, RowSkipped

_BYTES = 4.0  # profiles are in fp32
# Operator -> family that moves as much per element of the output.
_ELEMENTWISE = {
    **dict.fromkeys(
        ("ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "SELU", "GELU", "SiLU", "Swish", "Hardswish", "Hardtanh", "Sigmoid", "Tanh"),
        "activation",
    ),
    **dict.fromkeys(("Dropout", "Dropout2d", "AlphaDropout"), "dropout"),
    **dict.fromkeys(("Softmax", "LogSoftmax"), "softmax"),
    "LayerNorm": "layer_norm",
}  # fmt: skip


# Seconds of a program that times operators one by one from the host, forward and backward: its own time is part of what it reports. Fit
# to the four image networks of PipeDream's profiles, whose smallest operators take 0.25 ms forward and 20 us backward: the profiler hooks
# every module in Python and synchronises (msr-fiddle/pipedream, profiler/torchmodules).
_PROFILERS = {"": (0.0, 0.0), "pipedream": (250e-6, 20e-6)}


def _operator(row: Row, preset: Preset) -> tuple[Unit, list[Timed]]:
    text = row.text("op")
    name = text.split("(", maxsplit=1)[0].strip()
    if not (row.has("fwd_ms") or row.has("bwd_ms")):
        raise RowSkipped("no measured time")
    batch = row.count("batch")
    if batch is None:
        raise RowSkipped("no batch is stated")
    elements = (row.number("activation_bytes") or 0.0) / _BYTES / batch
    if elements < 1:
        raise RowSkipped("activation_bytes is not stated")
    unit = unit_of(row, preset)
    passes = np.sum([layer_passes(layer, batch, unit.compute) for layer in _layers(name, text, elements)], axis=0)
    if text.startswith(
        "Conv2d(3,"
    ):  # of an image: the first convolution of a network, whose input asks for no gradient
        passes[1] = 0.0
    passes[:2, 0] += _PROFILERS[row.text("profiler")]
    return unit, timed(row, passes, {"forward": "fwd_ms", "backward": "bwd_ms"})


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    outcomes = []
    for outcome in predict_kernels(rows, preset, kernel=_operator):
        name = outcome.row.text("profiler")
        own = {f"{name}: forward_s", f"{name}: backward_s"} if name else set()
        outcomes.append(replace(outcome, fitted=outcome.fitted | own) if outcome.is_scored else outcome)
    return outcomes


def _layers(name: str, text: str, elements: float) -> list[Layer]:
    """The layers that an operator stands for.

    Raises
    ------
    RowSkipped
        No family does what it does.
    """
    builder = _BUILDERS.get(name)
    if builder is not None:
        return [builder(text, elements)]
    if name in _ELEMENTWISE:
        return [layer_of(_ELEMENTWISE[name], ((_flat(elements),),), ())]
    if "LSTM" in name:
        return _lstms(text, elements)
    if "Linear(" in text:
        return [_linear(text, elements)]
    raise RowSkipped(f"operator {name} has no family", usable=True)


def _convolution(text: str, elements: float) -> Layer:
    inside, outside = _ints(text)[:2]
    kernel, stride, padding = (
        _pair(text, key, default) for key, default in (("kernel_size", 1), ("stride", 1), ("padding", 0))
    )
    rows, columns = _square(elements, outside)
    shape = (
        inside,
        *(_extent(n, k, s, p) for n, k, s, p in zip((rows, columns), kernel, stride, padding, strict=True)),
    )
    params: tuple[tuple[str, Any], ...] = (
        ("out_channels", outside),
        ("kernel", kernel),
        ("stride", stride),
        ("padding", padding),
        ("groups", int(found[1]) if (found := re.search(r"groups=(\d+)", text)) else 1),
        ("bias", "bias=False" not in text),
    )
    return layer_of("convolution", (shape,), params)


def _pool(text: str, elements: float) -> Layer:
    """Channels are not printed: what is pooled counts, so one channel with all rows stands for many."""
    kernel, stride, padding = (
        _pair(text, key, default) for key, default in (("kernel_size", 2), ("stride", 2), ("padding", 0))
    )
    side = max(round(math.sqrt(elements)), 1)
    rows, columns = side, max(round(elements / side), 1)
    extents = (
        max(_extent(rows, kernel[0], stride[0], 0), kernel[0]),
        max(_extent(columns, kernel[1], stride[1], 0), kernel[1]),
    )
    params = (
        ("kernel", kernel),
        ("stride", stride),
        ("padding", padding if max(padding) * 2 <= min(kernel) else 0),
        ("mode", "average" if text.startswith("Avg") else "max"),
    )
    return layer_of("pool", ((1, *extents),), params)


def _linear(text: str, elements: float) -> Layer:
    inside, outside = _named(text, "in_features"), _named(text, "out_features")
    positions = _flat(elements / outside)
    shape = (inside,) if positions == 1 else (inside, positions)
    return layer_of("linear", (shape,), (("out_features", outside), ("bias", "bias=False" not in text)))


def _lstms(text: str, elements: float) -> list[Layer]:
    """Every ``LSTM(inputs, hidden, ...)`` in the text; the output is that of the last, forward and backward states together."""
    layers = []
    for inside, hidden, rest in re.findall(r"LSTM\((\d+), (\d+)([^)]*)\)", text):
        steps = _flat(elements / int(hidden) / 2) if "bidirectional" in text else _flat(elements / int(hidden))
        params = (("hidden", int(hidden)), ("bidirectional", "bidirectional=True" in rest))
        layers.append(layer_of("lstm", ((int(inside), steps),), params))
    if not layers:
        raise RowSkipped("operator LSTM states no sizes", usable=True)
    return layers


def _batch_norm(text: str, elements: float) -> Layer:
    channels = _ints(text)[0]
    return layer_of("batch_norm", ((channels, *_square(elements, channels)),), ())


def _embedding(text: str, elements: float) -> Layer:
    rows, width = _ints(text)[:2]
    return layer_of("embedding", ((1, _flat(elements / width)),), (("num_embeddings", rows), ("dim", width)))


_BUILDERS: dict[str, Callable[[str, float], Layer]] = {
    "Conv2d": _convolution,
    "MaxPool2d": _pool,
    "AvgPool2d": _pool,
    "Linear": _linear,
    "BatchNorm2d": _batch_norm,
    "Concat": lambda _, elements: layer_of("concat", ((_flat(elements),),), ()),
    "Add": lambda _, elements: layer_of("add", ((_flat(elements),), (_flat(elements),)), ()),
    "Embedding": _embedding,
}


def _ints(text: str) -> list[int]:
    inside = text.partition("(")[2]
    return [int(word) for word in re.findall(r"(?<![\w.=])(\d+)(?=[,)])", inside)]


def _named(text: str, key: str) -> int:
    found = re.search(rf"{key}=(\d+)", text)
    if not found:
        raise RowSkipped(f"operator states no {key}", usable=True)
    return int(found[1])


def _pair(text: str, key: str, default: int) -> tuple[int, int]:
    """``kernel_size=(3, 3)`` or ``kernel_size=3``."""
    found = re.search(rf"{key}=\(?(\d+)(?:, (\d+))?", text)
    if not found:
        return (default, default)
    return (int(found[1]), int(found[2] or found[1]))


def _square(elements: float, channels: int) -> tuple[int, int]:
    """Rows and columns of an image with so many elements."""
    positions = max(elements / channels, 1.0)
    side = round(math.sqrt(positions))
    return (side, max(round(positions / side), 1))


def _extent(out: int, kernel: int, stride: int, padding: int) -> int:
    """The smallest input that gives so many outputs."""
    return max((out - 1) * stride + kernel - 2 * padding, 1)


def _flat(elements: float) -> int:
    return max(round(elements), 1)
