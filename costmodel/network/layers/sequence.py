"""What sequences need besides attention: positions, gates, and moves between images, sequences and vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from costmodel.network.layers.base import (
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    Shape,
    ShapeError,
    Shard,
    ViewFamily,
    param,
    positions_of,
    register,
    shape_text,
    share_of_output,
)

GateFunction = Literal["silu", "gelu", "relu", "sigmoid"]

# Elements moved per output of a gated unit: reads gate and value, writes the product; backward reads both and the gradient, writes
# two gradients.
GLU_PASSES = (3.0, 5.0)
# Operations per output: an exponential, a division, two products; backward also the derivative of the gate.
GLU_FLOP = (6.0, 10.0)


def _sequence(what: str, shape: Shape) -> None:
    if len(shape) != 2:
        raise ShapeError(f"{what} needs a sequence (features x positions), its input is {shape_text(shape)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionEmbeddingParams:
    """Parameters of learned positions."""

    max_positions: int = param(doc="rows of the table: the longest sequence", minimum=1)


@register("position_embedding", PositionEmbeddingParams, "adds a learned vector to every position")
class PositionEmbedding(LayerFamily):
    """Adds a learned vector to every position of its input."""

    keeps_input = False

    def output_shape(self, params: PositionEmbeddingParams, inputs: tuple[Shape, ...]) -> Shape:
        """The input's."""
        _sequence("a position embedding", inputs[0])
        if inputs[0][1] > params.max_positions:
            raise ShapeError(
                f"max_positions {params.max_positions} is less than the {inputs[0][1]} positions of its input "
                f"{shape_text(inputs[0])}"
            )
        return inputs[0]

    def weight_count(self, layer: Layer) -> int:
        """``max_positions d``."""
        count: int = layer.params.max_positions
        return count * layer.output_shape[0]

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Reads and writes every element and reads the table; its gradient sums over the samples."""
        elements = share_of_output(layer, shard)
        table = elements / shard.batch
        add = Kernel(flop=elements, elements=2.0 * elements + table)
        return LayerWork(
            forward=((add,),), backward_weight=((Kernel(flop=elements, elements=elements + 2.0 * table),),)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GluParams:
    """Parameters of a gated linear unit."""

    function: GateFunction = param(doc="what the gate passes through", default="silu")


@register(
    "glu",
    GluParams,
    "gated linear unit: 2f features become f, function(gate) x value; a second input is added to the first before",
)
class Glu(LayerFamily):
    """Gated linear unit: half of the features, through a function, times the other half (Shazeer, arXiv:2002.05202).

    A second input is added before: the condition of WaveNet's units (van den Oord et al., arXiv:1609.03499, section 2.5), one kernel too.
    """

    max_inputs = 2
    recomputable = True

    def output_shape(self, params: GluParams, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - any function
        """Half of the features."""
        if inputs[0][0] % 2:
            raise ShapeError(
                "a gated linear unit halves the features of its input, which must be even; its input is "
                f"{shape_text(inputs[0])}"
            )
        if len(set(inputs)) > 1:
            raise ShapeError(f"inputs of a gated linear unit differ: {', '.join(map(shape_text, inputs))}")
        return (inputs[0][0] // 2, *inputs[0][1:])

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Memory bound, each way; another input has two more elements per output to read, and its gradient is that of the first."""
        outputs = share_of_output(layer, shard)
        more = 2.0 * (len(layer.input_shapes) - 1)
        forward = Kernel(flop=(GLU_FLOP[0] + more) * outputs, elements=(GLU_PASSES[0] + more) * outputs)
        backward = Kernel(flop=(GLU_FLOP[1] + more) * outputs, elements=(GLU_PASSES[1] + more) * outputs)
        return LayerWork(forward=((forward,),), backward_input=((backward,),))


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFeaturesParams:
    """Parameters of a slice."""

    features: int = param(doc="how many features", minimum=1)
    start: int = param(doc="the first of them", default=0, minimum=0)


@register("slice_features", SliceFeaturesParams, "some of the features of every position (a view: moves nothing)")
class SliceFeatures(ViewFamily):
    """Some of the features, as a view.

    Under a split of the features every worker is taken to hold the slice of its own share, as in a concatenation.
    """

    def output_shape(self, params: SliceFeaturesParams, inputs: tuple[Shape, ...]) -> Shape:
        """(features, positions)."""
        if params.start + params.features > inputs[0][0]:
            raise ShapeError(
                f"features {params.start} to {params.start + params.features - 1} are not all there: its input "
                f"{shape_text(inputs[0])} has {inputs[0][0]}"
            )
        return (params.features, *inputs[0][1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToSequenceParams:
    """Parameters of the step from an image to a sequence."""

    class_token: bool = param(doc="a learned position before the others, from which the class is read", default=False)
    distillation_token: bool = param(doc="another one, from which the teacher's class is read (DeiT)", default=False)

    @property
    def tokens(self) -> int:
        """Learned positions."""
        return self.class_token + self.distillation_token


@register("to_sequence", ToSequenceParams, "an image (c, h, w) as a sequence (c, h x w), optionally with a class token")
class ToSequence(LayerFamily):
    """The positions of an image one after the other, each with its channels as features (Dosovitskiy et al., arXiv:2010.11929)."""

    keeps_input = False

    def output_shape(self, params: ToSequenceParams, inputs: tuple[Shape, ...]) -> Shape:
        """(channels, height x width, and one for each learned token)."""
        if len(inputs[0]) != 3:
            raise ShapeError(
                f"to_sequence needs an image (channels x height x width), its input is {shape_text(inputs[0])}"
            )
        channels, height, width = inputs[0]
        return (channels, height * width + params.tokens)

    def weight_count(self, layer: Layer) -> int:
        """The learned tokens, ``c`` each (DeiT has two: Touvron et al., arXiv:2012.12877, section 4)."""
        return int(layer.output_shape[0] * layer.params.tokens)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """A transposed copy; the gradient of a learned token sums over the samples."""
        elements = share_of_output(layer, shard)
        copy = Kernel(flop=0.0 * elements, elements=2.0 * elements)
        token = shard.batch * shard.out_channels * layer.params.tokens
        summed = Kernel(flop=token, elements=token + shard.out_channels * layer.params.tokens)
        return LayerWork(
            forward=((copy,),),
            backward_input=((copy,),),
            backward_weight=((summed,),) if layer.params.tokens else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectPositionParams:
    """Parameters of the choice of a position."""

    index: int = param(doc="which position, counted from 0", default=0, minimum=0)


@register("select_position", SelectPositionParams, "one position of a sequence: (d, n) becomes (d)")
class SelectPosition(LayerFamily):
    """One position of a sequence: what BERT's pooler and a vision transformer's head read."""

    keeps_input = False

    def output_shape(self, params: SelectPositionParams, inputs: tuple[Shape, ...]) -> Shape:
        """(features,)."""
        _sequence("select_position", inputs[0])
        if params.index >= inputs[0][1]:
            raise ShapeError(f"position {params.index} is not there: its input is {shape_text(inputs[0])}")
        return (inputs[0][0],)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Copies one position; the gradient of the others is written as zeros."""
        chosen = shard.batch * shard.out_channels
        everything = chosen * positions_of(layer.input_shapes[0], shard)
        return LayerWork(
            forward=((Kernel(flop=0.0 * chosen, elements=2.0 * chosen),),),
            backward_input=((Kernel(flop=np.zeros_like(chosen), elements=chosen + everything),),),
        )
