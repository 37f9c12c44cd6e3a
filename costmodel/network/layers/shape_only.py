"""Layers that only name or rearrange data: input, flatten, reshape, concatenation, upsampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from costmodel.network.layers.base import (
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    Shape,
    ShapeError,
    Shard,
    SplitLimits,
    ViewFamily,
    param,
    register,
    shape_text,
    share_of_output,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoParams:
    """A layer without parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputParams:
    """Parameters of an input."""

    shape: tuple[int, ...] = param(doc="shape of one sample, channels first", minimum=1)


@register("input", InputParams, "where samples enter; loading is not part of the step")
class Input(ViewFamily):
    """Where samples enter; loading them is not part of the step (every worker reads what it needs)."""

    splits_rows = True  # any layout: the loader delivers it
    min_inputs = 0
    max_inputs = 0

    def output_shape(self, params: InputParams, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - has none
        """The stated shape."""
        return tuple(params.shape)


@register("flatten", NoParams, "the same data as one vector (a view: moves nothing)")
class Flatten(ViewFamily):
    """The same data under another shape."""

    def output_shape(self, params: Any, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - has none
        """(elements,)."""
        return (math.prod(inputs[0]),)

    def limits(self, layer: Layer) -> SplitLimits:
        """Channels of the input, which stay contiguous."""
        return SplitLimits(out_channels=layer.input_shapes[0][0], channelwise=True)


@register("concat", NoParams, "concatenation along channels")
class Concat(LayerFamily):
    """Concatenation along channels; the copy is counted."""

    keeps_input = False
    min_inputs = 2
    max_inputs = 1 << 30

    def output_shape(self, params: Any, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - has none
        """Sum of the channels; the other extents must agree."""
        if len({shape[1:] for shape in inputs}) > 1:
            raise ShapeError(f"inputs of a concatenation differ beyond channels: {', '.join(map(shape_text, inputs))}")
        return (sum(shape[0] for shape in inputs), *inputs[0][1:])

    def limits(self, layer: Layer) -> SplitLimits:
        """Channels that every input has, and rows."""
        shape = layer.output_shape
        return SplitLimits(
            out_channels=min(s[0] for s in layer.input_shapes),
            height=shape[1] if len(shape) == 3 else 1,
            channelwise=True,
        )

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Read and write every element, forward and back; software whose layers write into the joined tensor leaves it out."""
        elements = share_of_output(layer, shard)
        copy = Kernel(flop=0.0 * elements, elements=2.0 * elements, fusable="concatenation")
        return LayerWork(forward=((copy,),), backward_input=((copy,),))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsampleParams:
    """Parameters of nearest-neighbour upsampling."""

    factor: int = param(doc="enlargement of height and width", minimum=1)


@register("upsample", UpsampleParams, "nearest-neighbour enlargement of an image")
class Upsample(LayerFamily):
    """Nearest-neighbour upsampling."""

    keeps_input = False

    def output_shape(self, params: UpsampleParams, inputs: tuple[Shape, ...]) -> Shape:
        """(channels, height x factor, width x factor)."""
        if len(inputs[0]) != 3:
            raise ShapeError(f"upsampling needs an image, its input is {shape_text(inputs[0])}")
        channels, height, width = inputs[0]
        return (channels, height * params.factor, width * params.factor)

    def limits(self, layer: Layer) -> SplitLimits:
        """Channels and rows of the input."""
        return SplitLimits(out_channels=layer.output_shape[0], height=layer.input_shapes[0][1], channelwise=True)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Write every output element; read the input."""
        elements = share_of_output(layer, shard) * (1.0 + 1.0 / layer.params.factor**2)
        kernel = Kernel(flop=0.0 * elements, elements=elements)
        return LayerWork(forward=((kernel,),), backward_input=((kernel,),))
