"""Layers of last resort, for operations of imported programs that no other kind describes: they state their sizes themselves.

Memory bound but for the product; a share holds whole channels (the first axis) where the axes of all inputs agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.arrays import FloatArray
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
class PointwiseParams:
    """Parameters of an operation on every element."""

    flop: float = param(doc="operations per element of the output", default=1.0, minimum=0.0)
    weights: int = param(doc="learned numbers that it uses, such as a scale per channel", default=0, minimum=0)


@register(
    "pointwise",
    PointwiseParams,
    "any other operation on every element; further inputs are repeated to the shape of the first",
)
class Pointwise(LayerFamily):
    """One kernel that reads its inputs and writes as many elements as the first has."""

    max_inputs = 1 << 30
    recomputable = True

    def output_shape(self, params: PointwiseParams, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - any operation
        """The first input's; the extents of the others are its own, 1, or left out at the end."""
        first = inputs[0]
        for other in inputs[1:]:
            if len(other) > len(first) or any(o not in (1, f) for o, f in zip(other, first, strict=False)):
                raise ShapeError(
                    f"inputs of a pointwise operation differ: {shape_text(other)} cannot be repeated to {shape_text(first)}"
                )
        return first

    def weight_count(self, layer: Layer) -> int:
        """As stated."""
        count: int = layer.params.weights
        return count

    def limits(self, layer: Layer) -> SplitLimits:
        """Channels and rows, where no input is repeated along them."""
        shape = layer.output_shape
        whole = all(other == shape for other in layer.input_shapes)
        has_channels = all(other[0] == shape[0] for other in layer.input_shapes)
        rows = shape[1] if len(shape) == 3 and whole else 1
        return SplitLimits(out_channels=shape[0] if has_channels else 1, height=rows, channelwise=True)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Reads every input and writes the output; backward reads them and the gradient, and writes a gradient for each."""
        p: PointwiseParams = layer.params
        elements = share_of_output(layer, shard)
        read = sum(math.prod(shape) for shape in layer.input_shapes) / math.prod(layer.output_shape)
        forward = Kernel(flop=p.flop * elements, elements=(read + 1.0) * elements)
        backward = Kernel(flop=p.flop * len(layer.input_shapes) * elements, elements=(2.0 * read + 1.0) * elements)
        weights = Kernel(flop=2.0 * elements, elements=2.0 * elements)
        return LayerWork(
            forward=((forward,),),
            backward_input=((backward,),),
            backward_weight=((weights,),) if p.weights else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedShapeParams:
    """Parameters of a layer whose output shape is written down."""

    shape: tuple[int, ...] = param(doc="shape of the output, one sample, channels first", minimum=1)


class _StatedShape(LayerFamily):
    """Not split but by samples: what a share would need of the input is not known."""

    Params = StatedShapeParams
    keeps_input = False
    splits_channels = False

    def output_shape(self, params: StatedShapeParams, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - stated
        """The stated shape."""
        return tuple(params.shape)


@register(
    "rearrange", StatedShapeParams, "copies its input into another shape: a transpose, slice, padding or repetition"
)
class Rearrange(_StatedShape):
    """Transposes, slices, paddings and repetitions that are no views: a copy."""

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Reads and writes every element of the output; the gradient of the input is written whole."""
        out = shard.batch * math.prod(layer.output_shape)
        into = shard.batch * math.prod(layer.input_shapes[0])
        forward = Kernel(flop=0.0 * out, elements=2.0 * out)
        return LayerWork(
            forward=((forward,),), backward_input=((Kernel(flop=0.0 * out, elements=out + np.maximum(out, into)),),)
        )


@register(
    "assumed_free", StatedShapeParams, "an unknown operation that the user assumed to cost nothing (--assume-free)"
)
class AssumedFree(ViewFamily, _StatedShape):
    """An operation of an imported program that is not known, and that the user assumes to cost nothing: every output lists it."""

    max_inputs = 1 << 30


@register("reduce", StatedShapeParams, "sum, mean or maximum over some axes; 'shape' is what is left")
class Reduce(_StatedShape):
    """Sum, mean or maximum over some axes."""

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """One operation per element of the input."""
        out = shard.batch * math.prod(layer.output_shape)
        into = shard.batch * math.prod(layer.input_shapes[0])
        kernel = Kernel(flop=into, elements=into + out)
        return LayerWork(forward=((kernel,),), backward_input=((kernel,),))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulParams:
    """Parameters of a product of two tensors."""

    transposed: bool = param(
        doc="the second input is (products, columns, inner), not (products, inner, columns)", default=False
    )


@register("matmul", MatmulParams, "batched product of two layers' outputs: (g, m, k) by (g, k, n) becomes (g, m, n)")
class Matmul(LayerFamily):
    """Products of matrices that both come from layers, as many per sample as the first axis says."""

    min_inputs = 2
    max_inputs = 2

    def output_shape(self, params: MatmulParams, inputs: tuple[Shape, ...]) -> Shape:
        """(products, rows, columns)."""
        left, right = inputs
        if len(left) != 3 or len(right) != 3 or left[0] != right[0] or left[2] != right[2 if params.transposed else 1]:
            form = "(g, m, k) and (g, n, k)" if params.transposed else "(g, m, k) and (g, k, n)"
            raise ShapeError(f"a product needs inputs {form}, they are {shape_text(left)} and {shape_text(right)}")
        return (left[0], left[1], right[1 if params.transposed else 2])

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """``2 g m n k`` FLOP forward, and for each of the two gradients.

        Examples
        --------
        >>> one = np.ones(1)
        >>> layer = Layer(name="scores", kind="matmul", params=MatmulParams(), inputs=("q", "k"),
        ...               input_shapes=((2, 3, 5), (2, 5, 7)), output_shape=(2, 3, 7))
        >>> shard = Shard(batch=one, out_channels=2 * one, in_channels=2 * one, height=3 * one, split_out=one, split_in=one,
        ...               split_height=one)
        >>> layer.family.work(layer, shard).forward[0][0].flop.tolist()  # 2 products of 2*3*5*7 FLOP
        [420.0]
        """
        m, n = layer.output_shape[1:]
        k = layer.input_shapes[0][2]
        products: FloatArray = shard.batch * shard.out_channels
        one = np.ones_like(products)
        flop, elements = 2.0 * products * m * n * k, products * (m * k + k * n + m * n)

        def kernel(*gemm: Any) -> Kernel:
            return Kernel(flop=flop, elements=elements, gemm=(gemm[0] * one, gemm[1] * one, gemm[2] * one))

        return LayerWork(forward=((kernel(m, n, k),),), backward_input=((kernel(m, k, n), kernel(k, n, m)),))
