"""Fully connected layers and embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers.base import (
    Activation,
    InnerExchange,
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    Norm,
    Shape,
    ShapeError,
    Shard,
    SplitLimits,
    Tiling,
    epilogue_kernels,
    param,
    positions_of,
    reduced_fraction,
    register,
    shape_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearParams:
    """Parameters of a fully connected layer."""

    out_features: int = param(doc="outputs", minimum=1)
    bias: bool = param(doc="add a bias per output", default=True)
    norm: Norm = param(doc="normalisation that follows", default=None)
    activation: Activation = param(doc="activation that follows", default=None)
    tied: bool = param(doc="the weights are those of the embedding, and are counted there", default=False)
    padded: bool = param(
        doc="rows of its matrices are padded to multiples of 16 bytes, which matrix units load at once", default=True
    )


@register("linear", LinearParams, "fully connected layer; flattens images, applies per position to sequences")
class Linear(LayerFamily):
    """Matrix product: flattens an image; applies to every position of a sequence."""

    input_for_weights_only = True
    takes_adapter = True

    def output_shape(self, params: LinearParams, inputs: tuple[Shape, ...]) -> Shape:
        """(out_features,) or (out_features, positions)."""
        positions = inputs[0][1:] if len(inputs[0]) == 2 else ()
        return (params.out_features, *positions)

    def weight_count(self, layer: Layer) -> int:
        """``I O + O``; the bias alone where the matrix is another layer's."""
        p: LinearParams = layer.params
        return (0 if p.tied else math.prod(layer.matrix_shape)) + (p.out_features if p.bias else 0)

    def matrix_shape(self, layer: Layer) -> tuple[int, int]:
        """Outputs and inputs."""
        return (layer.params.out_features, _features(layer.input_shapes[0]))

    def is_fully_connected(self, layer: Layer) -> bool:
        """True unless it is applied per position."""
        return len(layer.output_shape) == 1

    def limits(self, layer: Layer) -> SplitLimits:
        """Outputs and inputs."""
        return SplitLimits(out_channels=layer.params.out_features, in_channels=_features(layer.input_shapes[0]))

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Y = X W, dX = dY W', dW = X' dY: ``2 N I O`` FLOP each."""
        p: LinearParams = layer.params
        rows = shard.batch * positions_of(layer.output_shape, shard)
        inputs, outputs = shard.in_channels, shard.out_channels
        flop = 2.0 * rows * inputs * outputs
        elements = rows * inputs + inputs * outputs + rows * outputs
        forward, backward = epilogue_kernels(p.norm, p.activation, rows * outputs * reduced_fraction(shard))
        aligned = None if p.padded else self._aligned(layer, inputs, outputs)

        def product(m: FloatArray, n: FloatArray, k: FloatArray, tiling: Tiling = "library") -> Kernel:
            return Kernel(flop=flop, elements=elements, gemm=(m, n, k), tiling=tiling, aligned=aligned)

        work = LayerWork(
            forward=((product(rows, outputs, inputs), *forward),),
            backward_input=((product(rows, inputs, outputs),),),
            backward_weight=((product(inputs, outputs, rows, "sums"), *backward),),
            exchanges=(
                InnerExchange(operation="reduce_scatter", over="in_channels", elements=rows * outputs, phase="forward"),
                InnerExchange(operation="all_gather", over="in_channels", elements=rows * outputs, phase="backward"),
            ),
            through=backward,
        )
        return _with_adapter(work, float(layer.lora_rank), rows, inputs, outputs) if layer.lora_rank else work

    def _aligned(self, layer: Layer, inputs: FloatArray, outputs: FloatArray) -> FloatArray:
        """Numbers at multiples of which the rows of a share begin, and those of the whole: a share is never computed faster than it."""
        whole = [np.array(float(width)) for width in self.matrix_shape(layer)]
        least = _divisor(np.asarray(outputs))
        for width in (np.asarray(inputs), *whole):
            least = np.minimum(least, _divisor(width))
        return least

    def saved_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """Inputs of the attached normalisation and activation; what an adapter keeps between its two matrices."""
        rows = shard.batch * positions_of(layer.output_shape, shard)
        return super().saved_elements(layer, shard) + rows * layer.lora_rank


def _divisor(width: FloatArray) -> FloatArray:
    """Largest of 8 (16 bytes of numbers of 16 bits), 4, 2 and 1 of which a width is a multiple.

    >>> _divisor(np.array([50304.0, 12564.0, 6282.0, 50257.0])).tolist()
    [8.0, 4.0, 2.0, 1.0]
    """
    return np.select([width % 8.0 == 0.0, width % 4.0 == 0.0, width % 2.0 == 0.0], [8.0, 4.0, 2.0], 1.0)


def _product(m: FloatArray, n: FloatArray, k: FloatArray) -> Kernel:
    return Kernel(flop=2.0 * m * n * k, elements=m * k + k * n + m * n, gemm=(m, n, k))


def _with_adapter(work: LayerWork, rank: float, rows: FloatArray, inputs: FloatArray, outputs: FloatArray) -> LayerWork:
    """``Y = X W + (X A) B`` with W frozen: two thin products forward, their four gradients, and the sums."""
    r = np.full_like(rows, rank)
    forward = (_product(rows, r, inputs), _product(rows, outputs, r), _sum_of(rows * outputs))
    into = (_product(rows, inputs, r), _sum_of(rows * inputs))
    weight = (_product(rows, r, outputs), _product(r, outputs, rows), _product(inputs, r, rows))
    return replace(
        work,
        forward=tuple((*kernels, *forward) for kernels in work.forward),
        backward_input=tuple((*kernels, *into) for kernels in work.backward_input),
        backward_weight=((*weight, *work.through),),
    )


def _sum_of(elements: FloatArray) -> Kernel:
    return Kernel(flop=elements, elements=3.0 * elements)


def _features(shape: Shape) -> int:
    return shape[0] if len(shape) == 2 else math.prod(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingParams:
    """Parameters of a table look-up."""

    num_embeddings: int = param(doc="rows of the table (vocabulary)", minimum=1)
    dim: int = param(doc="features per row", minimum=1)
    tied: bool = param(doc="the table is another embedding's, and is counted there", default=False)


@register("embedding", EmbeddingParams, "table look-up, one row per position of a sequence of indices")
class Embedding(LayerFamily):
    """Look-up of one row per position; the gradient is treated as dense, as frameworks exchange it by default."""

    keeps_input = False  # indices, which are small

    def output_shape(self, params: EmbeddingParams, inputs: tuple[Shape, ...]) -> Shape:
        """(dim, positions)."""
        if len(inputs[0]) != 2 or inputs[0][0] != 1:
            raise ShapeError(
                f"an embedding needs a sequence of indices (1 x positions), its input is {shape_text(inputs[0])}"
            )
        return (params.dim, inputs[0][1])

    def weight_count(self, layer: Layer) -> int:
        """``V D``; nothing where the table is another layer's."""
        return 0 if layer.params.tied else math.prod(layer.matrix_shape)

    def matrix_shape(self, layer: Layer) -> tuple[int, int]:
        """Rows of the table, and features of one."""
        return (layer.params.num_embeddings, layer.params.dim)

    def limits(self, layer: Layer) -> SplitLimits:
        """Features of a row."""
        return SplitLimits(out_channels=layer.params.dim)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Reads and writes one row per position; the gradient adds rows into the table."""
        moved = shard.batch * positions_of(layer.output_shape, shard) * shard.out_channels
        copy = Kernel(flop=0.0 * moved, elements=2.0 * moved)
        add = Kernel(flop=moved, elements=3.0 * moved)
        return LayerWork(forward=((copy,),), backward_weight=((add,),))
