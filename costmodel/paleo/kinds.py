"""Which kinds of layers PALEO knows, and what it charges for each. To add one, decorate a function here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers import Layer, Shard
from costmodel.network.layers.shape_only import share_of_output
from costmodel.network.layers.window import pair
from costmodel.paleo.convolution import algorithm_calls, gemm_calls
from costmodel.paleo.elementary import FLOAT_BYTES, Call, Calls
from costmodel.paleo.geometry import (
    Axis,
    convolution_axes,
    convolution_passes,
    deconvolution_axes,
    deconvolution_passes,
    equivalent_axis,
)

__all__ = ["FREE_KINDS", "KINDS", "Algorithms", "Kind", "LayerCalls", "update_calls"]

# Algorithm of each pass: forward, gradient of the input, gradient of the weights.
Algorithms = tuple[str, str, str]

# PALEO builds these layers and charges nothing: input, concatenation, reshaping, element-wise sums, softmax, sigmoid, upsampling,
# and every "generic" layer (activations and normalisations). Attached biases, normalisations and activations are free too.
FREE_KINDS: frozenset[str] = frozenset(
    {
        "activation",
        "add",
        "batch_norm",
        "concat",
        "flatten",
        "input",
        "local_response_norm",
        "softmax",
        "upsample",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCalls:
    """Elementary calls of the three passes."""

    forward: Calls
    backward_input: Calls
    backward_weight: Calls = Calls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """PALEO's formula for one kind of layer.

    Attributes
    ----------
    calls : function of layer, share and algorithms
    refusal : function of a layer
        Why PALEO cannot evaluate it; empty where it can.
    skips_input_gradient : bool
        Whether the gradient of the network's input is left out. PALEO does so for convolutions only.
    has_algorithms : bool
        Whether an algorithm can be chosen per pass.
    """

    calls: Callable[[Layer, Shard, Algorithms], LayerCalls]
    refusal: Callable[[Layer], str]
    skips_input_gradient: bool = False
    has_algorithms: bool = False


KINDS: dict[str, Kind] = {}


def _never(_: Layer) -> str:
    return ""


def _kind(
    name: str, *, refusal: Callable[[Layer], str] = _never, **properties: bool
) -> Callable[[Callable[[Layer, Shard, Algorithms], LayerCalls]], Callable[[Layer, Shard, Algorithms], LayerCalls]]:
    def add(calls: Callable[[Layer, Shard, Algorithms], LayerCalls]) -> Any:
        assert name not in KINDS, f"PALEO formula for {name!r} registered twice"
        KINDS[name] = Kind(calls=calls, refusal=refusal, **properties)
        return calls

    return add


def _calls(flop: FloatArray, *elements: FloatArray) -> Calls:
    return Calls(flop=(Call(flop),), moved_bytes=tuple(Call(FLOAT_BYTES * count) for count in elements))


def _gradient_refusal(axes: tuple[Axis, Axis], filter_pads: tuple[int, int]) -> str:
    for axis, pad, what in zip(axes, filter_pads, ("rows", "columns"), strict=True):
        if axis.gradient_extent != axis.extent:
            wrong = f"the gradient of {axis.extent} {what} comes out as {axis.gradient_extent}"
        elif axis.filter_extent(pad) != axis.kernel:
            wrong = f"the gradient of a kernel of {axis.kernel} {what} comes out as {axis.filter_extent(pad)}"
        else:
            continue
        return f"PALEO stops at this shape: {wrong} (kernel {axis.kernel}, stride {axis.stride}, pad {axis.pad})"
    return ""


def _convolution_refusal(layer: Layer) -> str:
    if layer.params.groups > 1:
        return f"PALEO knows no grouped convolutions (groups: {layer.params.groups})"
    axes = convolution_axes(layer)
    return _gradient_refusal(axes, (axes[0].pad, axes[1].pad))


@_kind("convolution", refusal=_convolution_refusal, skips_input_gradient=True, has_algorithms=True)
def _convolution(layer: Layer, shard: Shard, algorithms: Algorithms) -> LayerCalls:
    """Forward and both gradients, each by its algorithm."""
    passes = convolution_passes(layer, shard)
    forward, to_input, to_weight = (algorithm_calls(a, plain) for a, plain in zip(algorithms, passes, strict=True))
    return LayerCalls(forward=forward, backward_input=to_input, backward_weight=to_weight)


def _deconvolution_refusal(layer: Layer) -> str:
    axes = deconvolution_axes(layer)
    for axis in axes:
        back = equivalent_axis(axis)
        if axis.gradient_extent != axis.extent or back.filter_extent(back.gradient_pad) != axis.kernel:
            return (
                "PALEO stops at this shape: the reversed convolution does not give it back "
                f"(kernel {axis.kernel}, stride {axis.stride}, pad {axis.pad})"
            )
    return ""


@_kind("deconvolution", refusal=_deconvolution_refusal)
def _deconvolution(layer: Layer, shard: Shard, _: Algorithms) -> LayerCalls:
    """Last release (the first has none): padding is read, and moving the dilated input costs FLOP."""
    forward, to_input, to_weight = (gemm_calls(p, padded_read=True) for p in deconvolution_passes(layer, shard))
    return LayerCalls(forward=forward, backward_input=to_input, backward_weight=to_weight)


def _pool_refusal(layer: Layer) -> str:
    p = layer.params
    for i, extent in enumerate(layer.input_shapes[0][1:]):
        kernel, stride = pair(p.kernel)[i], pair(p.stride)[i]
        same, valid = math.ceil(extent / stride), math.ceil((extent - kernel + 1) / stride)
        output = layer.output_shape[i + 1]
        if output not in (same, valid):
            return f"PALEO pools {extent} to {same} ('same') or {valid} ('valid'), not to {output}"
    return ""


def _input_elements(layer: Layer, shard: Shard, kernel_rows: int, stride_rows: int) -> FloatArray:
    """Elements of the input that a share of a pooling layer reads, halo included."""
    _, height, width = layer.input_shapes[0]
    needed = np.minimum((shard.height - 1.0) * stride_rows + kernel_rows, float(height))
    rows = np.where(shard.split_height == 1.0, float(height), needed)
    return shard.batch * rows * width * shard.in_channels


@_kind("pool", refusal=_pool_refusal)
def _pool(layer: Layer, shard: Shard, _: Algorithms) -> LayerCalls:
    """``2 kh kw |outputs|`` FLOP, inputs and outputs moved; the same backward."""
    kernel = pair(layer.params.kernel)
    outputs = share_of_output(layer, shard)
    inputs = _input_elements(layer, shard, kernel[0], pair(layer.params.stride)[0])
    calls = _calls(2.0 * kernel[0] * kernel[1] * outputs, inputs, outputs)
    return LayerCalls(forward=calls, backward_input=calls)


@_kind("global_pool")
def _global_pool(layer: Layer, shard: Shard, _: Algorithms) -> LayerCalls:
    """A pool whose kernel is the image: that is how PALEO's networks write it."""
    height, width = layer.input_shapes[0][1:]
    outputs = share_of_output(layer, shard)
    inputs = shard.batch * height * width * shard.in_channels
    calls = _calls(2.0 * height * width * outputs, inputs, outputs)
    return LayerCalls(forward=calls, backward_input=calls)


@_kind("dropout")
def _dropout(layer: Layer, shard: Shard, _: Algorithms) -> LayerCalls:
    """One FLOP per element, read and written; the same backward."""
    elements = share_of_output(layer, shard)
    calls = _calls(elements, elements, elements)
    return LayerCalls(forward=calls, backward_input=calls)


def _linear_refusal(layer: Layer) -> str:
    if len(layer.output_shape) > 1:
        return "PALEO's inner product takes one vector per sample, not a sequence"
    return ""


@_kind("linear", refusal=_linear_refusal)
def _linear(_layer: Layer, shard: Shard, _: Algorithms) -> LayerCalls:
    """``2 N I O`` FLOP; X, W and Y moved, in every pass. Last release (the first has none); the input gradient is always charged."""
    n, i, o = shard.batch, shard.in_channels, shard.out_channels
    calls = _calls(2.0 * n * i * o, n * i, i * o, n * o)
    return LayerCalls(forward=calls, backward_input=calls, backward_weight=calls)


def update_calls(weight_elements: FloatArray) -> Calls:
    """Update of the weights: ``2 W`` FLOP; weights, gradients and new weights moved. PALEO never applies ppp to it.

    >>> [float(c.amount) for c in update_calls(np.asarray(10.0)).moved_bytes]
    [40.0, 40.0, 40.0]
    """
    return _calls(2.0 * weight_elements, weight_elements, weight_elements, weight_elements)
