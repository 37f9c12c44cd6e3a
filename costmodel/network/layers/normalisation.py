"""Normalisations over the features of every position: layer normalisation and its root-mean-square form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from costmodel.network.layers.base import (
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
    positions_of,
    register,
    shape_text,
)
from costmodel.network.layers.shape_only import NoParams, share_of_output

__all__ = ["LayerNorm", "LayerNormParams", "RmsNorm"]


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

    def limits(self, layer: Layer) -> SplitLimits:
        """Features."""
        return SplitLimits(out_channels=layer.output_shape[0], channelwise=True)

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


@register
class LayerNorm(_FeatureNorm):
    """Layer normalisation (Ba, Kiros, Hinton, arXiv:1607.06450)."""

    kind = "layer_norm"
    summary = "normalisation over the features of every position, with scale and shift"
    Params = LayerNormParams
    statistics = 2
    flop = (7.0, 12.0, 3.0)  # mean, variance, difference, scale, shift

    def weight_count(self, layer: Layer) -> int:
        """``2 d``; ``d`` without shift or scale, none without both (OLMo, arXiv:2402.00838, section 2.1)."""
        return int(layer.output_shape[0] * (layer.params.bias + layer.params.scale))


@register
class RmsNorm(_FeatureNorm):
    """Root-mean-square normalisation (Zhang and Sennrich, arXiv:1910.07467)."""

    kind = "rms_norm"
    summary = "division by the root mean square of the features of every position, with scale"
    Params = NoParams
    statistics = 1
    flop = (4.0, 8.0, 2.0)  # square, sum, division, scale

    def weight_count(self, layer: Layer) -> int:
        """``d``."""
        return layer.output_shape[0]
