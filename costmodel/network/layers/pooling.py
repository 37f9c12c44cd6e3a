"""Pooling: maximum or average over a window or the whole image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

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
    register,
    shape_text,
)
from costmodel.network.layers.window import Padding, Size2, input_rows, window

__all__ = ["GlobalPool", "GlobalPoolParams", "Pool", "PoolParams"]

# Windows that overlap read an element several times, all but once from the cache that the multiprocessors share, whose bandwidth is this
# many times that of the memory: 2,155 of 900 GB/s on V100 (Jia et al., arXiv:1804.06826, tables 3.1 and 3.4; 1,624 of 732 GB/s on P100).
_CACHE_OVER_MEMORY = 2.4


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParams:
    """Parameters of a pooling layer."""

    kernel: Size2 = param(doc="height and width of the window", minimum=1)
    stride: Size2 = param(doc="step between windows", default=1, minimum=1)
    padding: Padding = param(doc="a number, [height, width], 'same' or 'valid'", default=0, minimum=0)
    mode: Literal["max", "average"] = param(doc="what is taken over the window", default="max")
    ceil_mode: bool = param(doc="round the output extent up, as Caffe does", default=False)


@register
class Pool(LayerFamily):
    """Maximum or average over a sliding window."""

    kind = "pool"
    summary = "maximum or average over a sliding window"
    Params = PoolParams

    def output_shape(self, params: PoolParams, inputs: tuple[Shape, ...]) -> Shape:
        """(channels, output height, output width)."""
        win = window("pooling", inputs[0], params.kernel, params.stride, params.padding, ceil_mode=params.ceil_mode)
        return (inputs[0][0], *win.output)

    def limits(self, layer: Layer) -> SplitLimits:
        """Channels and rows."""
        return SplitLimits(out_channels=layer.output_shape[0], height=layer.output_shape[1], channelwise=True)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """One comparison or addition per element of every window.

        Forward reads every window and writes the output. Backward gathers for every element of the input from the windows that hold it: the
        gradient, and of a maximum the output alongside it (which the element is compared with), and writes the gradient of the input. What
        is read again comes from the cache.
        """
        p: PoolParams = layer.params
        win = window("pooling", layer.input_shapes[0], p.kernel, p.stride, p.padding, ceil_mode=p.ceil_mode)
        _, in_height, in_width = layer.input_shapes[0]
        rows_in = input_rows(win, in_height, shard.height)
        inputs = shard.batch * rows_in * in_width * shard.in_channels
        outputs = shard.batch * shard.height * layer.output_shape[2] * shard.out_channels
        windows = win.kernel[0] * win.kernel[1] * outputs  # elements that all windows read
        kept = 2.0 if p.mode == "max" else 1.0  # arrays that each window is looked up in backward
        again = np.maximum(windows - inputs, 0.0) / _CACHE_OVER_MEMORY
        again_backward = kept * np.maximum(windows - outputs, 0.0) / _CACHE_OVER_MEMORY
        halo_rows = np.maximum(rows_in - np.ceil(in_height / shard.split_height), 0.0)
        halo = shard.batch * halo_rows * in_width * shard.in_channels
        exchanges: tuple[InnerExchange, ...] = ()
        if win.kernel[0] > 1:
            exchanges = (
                InnerExchange(operation="point_to_point", over="height", elements=halo, phase="forward"),
                InnerExchange(operation="point_to_point", over="height", elements=halo, phase="input_gradient"),
            )
        return LayerWork(
            forward=((Kernel(flop=windows, elements=inputs + outputs + again),),),
            backward_input=((Kernel(flop=windows, elements=kept * (inputs + outputs) + again_backward),),),
            exchanges=exchanges,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalPoolParams:
    """Parameters of a global pooling layer."""

    mode: Literal["max", "average"] = param(doc="what is taken over the image", default="average")


@register
class GlobalPool(LayerFamily):
    """One value per channel."""

    kind = "global_pool"
    summary = "maximum or average over the whole image: one value per channel"
    Params = GlobalPoolParams
    keeps_input = False  # an average spreads its gradient without looking; a maximum keeps one index per channel

    def output_shape(self, params: Any, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - the mode does not change it
        """(channels,)."""
        if len(inputs[0]) != 3:
            raise ShapeError(f"global pooling needs an image, its input is {shape_text(inputs[0])}")
        return (inputs[0][0],)

    def limits(self, layer: Layer) -> SplitLimits:
        """Channels."""
        return SplitLimits(out_channels=layer.output_shape[0], channelwise=True)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """One addition per input element."""
        _, height, width = layer.input_shapes[0]
        inputs = shard.batch * height * width * shard.in_channels
        outputs = shard.batch * shard.out_channels
        kernel = Kernel(flop=inputs, elements=inputs + outputs)
        return LayerWork(forward=((kernel,),), backward_input=((kernel,),))
