"""Layers that work element by element: activations, dropout, addition, normalisations, softmax."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers.base import (
    InnerExchange,
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    Shape,
    ShapeError,
    Shard,
    param,
    positions_of,
    register,
    shape_text,
    share_of_output,
)
from costmodel.network.layers.shape_only import NoParams


class _Elementwise(LayerFamily):
    """Reads and writes every element; ``passes`` = elements moved per element (forward, backward), ``flop`` likewise."""

    passes: tuple[float, float] = (2.0, 3.0)
    flop: tuple[float, float] = (1.0, 1.0)
    splits_rows = True

    def output_shape(self, params: Any, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - it does not change the shape
        """The input's."""
        return inputs[0]

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """``passes`` x elements, each way."""
        elements = share_of_output(layer, shard)
        forward = Kernel(flop=self.flop[0] * elements, elements=self.passes[0] * elements)
        backward = Kernel(flop=self.flop[1] * elements, elements=self.passes[1] * elements)
        return LayerWork(forward=((forward,),), backward_input=((backward,),))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationParams:
    """Parameters of a stand-alone activation."""

    function: Literal["relu", "leaky_relu", "elu", "gelu", "sigmoid", "tanh", "swish"] = param(
        doc="the function", default="relu"
    )


@register("activation", ActivationParams, "a stand-alone activation function")
class ActivationLayer(_Elementwise):
    """An activation that is not attached to the layer before it."""

    recomputable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutParams:
    """Parameters of dropout."""

    keep: float = param(doc="probability of keeping an element", default=0.5, minimum=0.0, maximum=1.0)
    fused: bool = param(
        doc="drops inside the kernel that reads its output, a sum: only the mask is written beside it", default=False
    )


@register("dropout", DropoutParams, "random mask over the elements")
class Dropout(_Elementwise):
    """Random mask; written forward, read backward."""

    passes = (2.5, 2.5)  # the mask takes about a byte per element alongside the value
    flop = (2.0, 1.0)
    keeps_input = False
    recomputable = True

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Forward the mask alone where the sum does the rest (Megatron-LM, bias_dropout_add_fused_train); backward as ever."""
        work = super().trained_work(layer, shard)
        if not layer.params.fused:
            return work
        elements = share_of_output(layer, shard)
        return replace(work, forward=((Kernel(flop=self.flop[0] * elements, elements=0.5 * elements),),))

    def saved_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """The mask, a byte per element."""
        return np.asarray(0.5 * share_of_output(layer, shard))


@register("add", NoParams, "element-wise sum (residual connection)")
class Add(_Elementwise):
    """Element-wise sum of equal shapes (residual connections)."""

    keeps_input = False
    min_inputs = 2
    max_inputs = 1 << 30

    def output_shape(self, params: Any, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - has none
        """The common shape."""
        if len(set(inputs)) > 1:
            raise ShapeError(f"inputs of an addition differ: {', '.join(map(shape_text, inputs))}")
        return inputs[0]

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Reads every input, writes one output; the gradient is passed on to every input."""
        elements = share_of_output(layer, shard)
        inputs = len(layer.input_shapes)
        kernel = Kernel(flop=(inputs - 1.0) * elements, elements=(inputs + 1.0) * elements)
        return LayerWork(forward=((kernel,),), backward_input=((kernel,),))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNormParams:
    """Parameters of a stand-alone batch normalisation."""

    affine: bool = param(doc="a learned scale and shift per channel, counted as weights", default=False)


@register("batch_norm", BatchNormParams, "stand-alone batch normalisation")
class BatchNorm(_Elementwise):
    """Stand-alone batch normalisation (statistics per worker, as data-parallel frameworks do)."""

    passes = (3.0, 5.0)
    flop = (8.0, 16.0)
    recomputable = True

    def weight_count(self, layer: Layer) -> int:
        """``2 C`` where they are learned."""
        return 2 * layer.output_shape[0] if layer.params.affine else 0

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Backward reads input and gradient twice and writes once; the first reading makes the sums that the weights need too."""
        work = super().trained_work(layer, shard)
        if not layer.params.affine:
            return work
        elements = share_of_output(layer, shard)
        sums = Kernel(flop=0.25 * self.flop[1] * elements, elements=2.0 * elements)
        rest = Kernel(flop=0.75 * self.flop[1] * elements, elements=(self.passes[1] - 2.0) * elements)
        return LayerWork(forward=work.forward, backward_input=((rest,),), backward_weight=((sums,),), through=(sums,))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalResponseNormParams:
    """Parameters of local response normalisation."""

    size: int = param(doc="channels that are summed", default=5, minimum=1)


@register("local_response_norm", LocalResponseNormParams, "normalisation over neighbouring channels")
class LocalResponseNorm(_Elementwise):
    """Normalisation over neighbouring channels (Krizhevsky et al. 2012)."""

    splits_channels = False  # a window over channels crosses a split of the channels

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """A square and an addition per channel of the window."""
        elements = share_of_output(layer, shard)
        flop = (2.0 * layer.params.size + 3.0) * elements
        forward = Kernel(flop=flop, elements=2.0 * elements)
        backward = Kernel(flop=2.0 * flop, elements=4.0 * elements)
        return LayerWork(forward=((forward,),), backward_input=((backward,),))


@register("softmax", NoParams, "softmax over channels with cross-entropy loss")
class Softmax(_Elementwise):
    """Softmax over channels with the cross-entropy loss; a channel split exchanges the maximum and the sum."""

    passes = (3.0, 2.0)
    flop = (5.0, 2.0)
    keeps_input = False

    def saved_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """The logits in fp32, from which the loss is computed (Korthikanti et al., arXiv:2205.05198, section 4.3: 4 s b v bytes)."""
        return np.asarray(2.0 * share_of_output(layer, shard))

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Maximum, exponential, sum, division; two numbers per position cross a channel split."""
        base = super().trained_work(layer, shard)
        positions = share_of_output(layer, shard) / shard.out_channels
        reduce = InnerExchange(
            operation="all_reduce", over="out_channels", elements=positions, phase="forward", repeats=2
        )
        return LayerWork(forward=base.forward, backward_input=base.backward_input, exchanges=(reduce,))


class _FeatureNorm(LayerFamily):
    """One fused kernel each way; statistics cross a split of the features.

    Two numbers per position (mean and scale) stay for the backward pass; they are left out of ``saved_elements``, as in Korthikanti
    et al. (arXiv:2205.05198, section 4.1).
    """

    recomputable = True
    statistics: int  # numbers per position that a split of the features sums over the workers
    flop: tuple[float, float, float]  # per element: forward, gradient of the input, gradient of the weights

    def output_shape(self, params: Any, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - it does not change the shape
        """The input's, which is (features,) or (features, positions)."""
        if len(inputs[0]) > 2:
            raise ShapeError(
                f"{self.kind} normalises the features of a sequence (features x positions), its input is "
                f"{shape_text(inputs[0])}; put a to_sequence before it"
            )
        return inputs[0]

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Reads and writes every element; backward reads input and gradient, and reads both again for the weights' gradient."""
        elements = share_of_output(layer, shard)
        rows = shard.batch * positions_of(layer.output_shape, shard)
        sums = [
            InnerExchange(
                operation="all_reduce", over="out_channels", elements=rows, phase=phase, repeats=self.statistics
            )
            for phase in ("forward", "input_gradient")
        ]
        return LayerWork(
            forward=((Kernel(flop=self.flop[0] * elements, elements=2.0 * elements),),),
            backward_input=((Kernel(flop=self.flop[1] * elements, elements=3.0 * elements),),),
            backward_weight=((Kernel(flop=self.flop[2] * elements, elements=2.0 * elements),),)
            if self.weight_count(layer)
            else (),
            exchanges=tuple(sums),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNormParams:
    """Parameters of a layer normalisation."""

    bias: bool = param(doc="a shift per feature", default=True)
    scale: bool = param(doc="a scale per feature", default=True)


@register("layer_norm", LayerNormParams, "normalisation over the features of every position, with scale and shift")
class LayerNorm(_FeatureNorm):
    """Layer normalisation (Ba, Kiros, Hinton, arXiv:1607.06450)."""

    statistics = 2
    flop = (7.0, 12.0, 3.0)  # mean, variance, difference, scale, shift

    def weight_count(self, layer: Layer) -> int:
        """``2 d``; ``d`` without shift or scale, none without both (OLMo, arXiv:2402.00838, section 2.1)."""
        return int(layer.output_shape[0] * (layer.params.bias + layer.params.scale))


@register("rms_norm", NoParams, "division by the root mean square of the features of every position, with scale")
class RmsNorm(_FeatureNorm):
    """Root-mean-square normalisation (Zhang and Sennrich, arXiv:1910.07467)."""

    statistics = 1
    flop = (4.0, 8.0, 2.0)  # square, sum, division, scale

    def weight_count(self, layer: Layer) -> int:
        """``d``."""
        return layer.output_shape[0]
