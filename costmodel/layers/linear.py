"""Fully connected layers and embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from costmodel.layers.base import (
    InnerExchange,
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    Shape,
    ShapeError,
    Shard,
    SplitLimits,
    param,
    register,
    shape_text,
)
from costmodel.layers.epilogue import Activation, Norm, epilogue_kernels, reduced_fraction

__all__ = ["Embedding", "EmbeddingParams", "Linear", "LinearParams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearParams:
    """Parameters of a fully connected layer."""

    out_features: int = param(doc="outputs", minimum=1)
    bias: bool = param(doc="add a bias per output", default=True)
    norm: Norm = param(doc="normalisation that follows", default=None)
    activation: Activation = param(doc="activation that follows", default=None)


@register
class Linear(LayerFamily):
    """Matrix product: flattens an image; applies to every position of a sequence."""

    kind = "linear"
    summary = "fully connected layer; flattens images, applies per position to sequences"
    Params = LinearParams

    def output_shape(self, params: LinearParams, inputs: tuple[Shape, ...]) -> Shape:
        """(out_features,) or (out_features, positions)."""
        positions = inputs[0][1:] if len(inputs[0]) == 2 else ()
        return (params.out_features, *positions)

    def weight_count(self, layer: Layer) -> int:
        """``I O + O``."""
        p: LinearParams = layer.params
        return _features(layer.input_shapes[0]) * p.out_features + (p.out_features if p.bias else 0)

    def is_fully_connected(self, layer: Layer) -> bool:
        """True unless it is applied per position."""
        return len(layer.output_shape) == 1

    def limits(self, layer: Layer) -> SplitLimits:
        """Outputs and inputs."""
        return SplitLimits(out_channels=layer.params.out_features, in_channels=_features(layer.input_shapes[0]))

    def work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Y = X W, dX = dY W', dW = X' dY: ``2 N I O`` FLOP each."""
        p: LinearParams = layer.params
        rows = shard.batch * math.prod(layer.output_shape[1:])
        inputs, outputs = shard.in_channels, shard.out_channels
        flop = 2.0 * rows * inputs * outputs
        elements = rows * inputs + inputs * outputs + rows * outputs
        forward, backward = epilogue_kernels(p.norm, p.activation, rows * outputs * reduced_fraction(shard))
        return LayerWork(
            forward=((Kernel(flop=flop, elements=elements, gemm=(rows, outputs, inputs)), *forward),),
            backward_input=((Kernel(flop=flop, elements=elements, gemm=(rows, inputs, outputs)),),),
            backward_weight=((Kernel(flop=flop, elements=elements, gemm=(inputs, outputs, rows)), *backward),),
            exchanges=(
                InnerExchange(operation="reduce_scatter", over="in_channels", elements=rows * outputs, phase="forward"),
                InnerExchange(operation="all_gather", over="in_channels", elements=rows * outputs, phase="backward"),
            ),
        )


def _features(shape: Shape) -> int:
    return shape[0] if len(shape) == 2 else math.prod(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingParams:
    """Parameters of a table look-up."""

    num_embeddings: int = param(doc="rows of the table (vocabulary)", minimum=1)
    dim: int = param(doc="features per row", minimum=1)


@register
class Embedding(LayerFamily):
    """Look-up of one row per position; the gradient is treated as dense, as frameworks exchange it by default."""

    kind = "embedding"
    summary = "table look-up, one row per position of a sequence of indices"
    Params = EmbeddingParams

    def output_shape(self, params: EmbeddingParams, inputs: tuple[Shape, ...]) -> Shape:
        """(dim, positions)."""
        if len(inputs[0]) != 2 or inputs[0][0] != 1:
            raise ShapeError(
                f"an embedding needs a sequence of indices (1 x positions), its input is {shape_text(inputs[0])}"
            )
        return (params.dim, inputs[0][1])

    def weight_count(self, layer: Layer) -> int:
        """``V D``."""
        p: EmbeddingParams = layer.params
        return p.num_embeddings * p.dim

    def limits(self, layer: Layer) -> SplitLimits:
        """Features of a row."""
        return SplitLimits(out_channels=layer.params.dim)

    def work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Reads and writes one row per position; the gradient adds rows into the table."""
        moved = shard.batch * layer.output_shape[1] * shard.out_channels
        copy = Kernel(flop=0.0 * moved, elements=2.0 * moved)
        add = Kernel(flop=moved, elements=3.0 * moved)
        return LayerWork(forward=((copy,),), backward_weight=((add,),))
