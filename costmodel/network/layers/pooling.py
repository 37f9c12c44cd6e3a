"""Sliding windows, whose geometry convolutions share, and pooling: maximum or average over a window or the whole image."""

from __future__ import annotations

from dataclasses import dataclass
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
    Tiling,
    param,
    register,
    shape_text,
)

# One number for both directions, or (height, width).
Size2 = int | tuple[int, int]
Padding = int | tuple[int, int] | Literal["same", "valid"]


@dataclass(frozen=True, slots=True)
class Window:
    """Kernel, stride and padding of both directions, and the output extent they give."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]  # before the first row and column; "same" may pad one more after the last
    output: tuple[int, int]
    dilation: tuple[int, int] = (1, 1)

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns of the input that one output sees: ``dilation (kernel - 1) + 1``."""
        return (self.dilation[0] * (self.kernel[0] - 1) + 1, self.dilation[1] * (self.kernel[1] - 1) + 1)


def pair(value: Size2) -> tuple[int, int]:
    """Expand a single number to both directions.

    >>> pair(3), pair((1, 7))
    ((3, 3), (1, 7))
    """
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def window(
    what: str,
    shape: Shape,
    kernel: Size2,
    stride: Size2,
    padding: Padding,
    *,
    ceil_mode: bool = False,
    dilation: Size2 = 1,
) -> Window:
    """Work out the output extent of a window over an image.

    ``output = floor((extent + 2 padding - kernel) / stride) + 1`` (ceil with ``ceil_mode``, dropping a window that would start
    in the padding); "valid" pads nothing; "same" gives ``ceil(extent / stride)``. A dilated kernel reaches over
    ``dilation (kernel - 1) + 1`` rows.

    Raises
    ------
    ShapeError
        The input is not an image, or is smaller than the kernel.

    Examples
    --------
    >>> window("conv", (3, 224, 224), 11, 4, "valid").output
    (54, 54)
    >>> window("pool", (64, 112, 112), 3, 2, 0, ceil_mode=True).output
    (56, 56)
    >>> window("conv", (3, 32, 32), 3, 1, 0, dilation=2).output
    (28, 28)
    """
    if len(shape) != 3:
        raise ShapeError(f"{what} needs an image (channels x height x width), its input is {shape_text(shape)}")
    kernels, strides, dilations = pair(kernel), pair(stride), pair(dilation)
    pads, outputs = [], []
    for extent, k, s, p in zip(
        shape[1:],
        Window(kernels, strides, (0, 0), (0, 0), dilations).reach,
        strides,
        ("same",) * 2 if padding == "same" else pair(0 if padding == "valid" else padding),
        strict=True,
    ):
        if p == "same":
            output = -(-extent // s)
            pad = max((output - 1) * s + k - extent, 0) // 2
        else:
            assert isinstance(p, int)
            pad = p
            if extent + 2 * pad < k:
                raise ShapeError(
                    f"kernel {kernels[0]}x{kernels[1]} does not fit into its input {shape_text(shape)} with padding {pad}"
                    + (f" and dilation {max(dilations)}" if max(dilations) > 1 else "")
                )
            room = extent + 2 * pad - k
            output = (-(-room // s) if ceil_mode else room // s) + 1
            if ceil_mode and (output - 1) * s >= extent + pad:
                output -= 1
        pads.append(pad)
        outputs.append(output)
    return Window(kernels, strides, (pads[0], pads[1]), (outputs[0], outputs[1]), dilations)


def input_rows(win: Window, input_height: int, rows: FloatArray) -> FloatArray:
    """Rows of the input that ``rows`` rows of the output need, the halo included: ``(rows - 1) stride + reach``, at most all."""
    needed = (rows - 1.0) * win.stride[0] + win.reach[0]
    return np.minimum(needed, float(input_height))


# Windows that overlap read an element several times, all but once from the cache that the multiprocessors share, whose bandwidth is this
# many times that of the memory: 2,155 of 900 GB/s on V100 (Jia et al., arXiv:1804.06826, tables 3.1 and 3.4; 1,624 of 732 GB/s on P100).
CACHE_OVER_MEMORY = 2.4


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParams:
    """Parameters of a pooling layer."""

    kernel: Size2 = param(doc="height and width of the window", minimum=1)
    stride: Size2 = param(doc="step between windows", default=1, minimum=1)
    padding: Padding = param(doc="a number, [height, width], 'same' or 'valid'", default=0, minimum=0)
    mode: Literal["max", "average"] = param(doc="what is taken over the window", default="max")
    ceil_mode: bool = param(doc="round the output extent up, as Caffe does", default=False)


@register("pool", PoolParams, "maximum or average over a sliding window")
class Pool(LayerFamily):
    """Maximum or average over a sliding window."""

    splits_rows = True

    def output_shape(self, params: PoolParams, inputs: tuple[Shape, ...]) -> Shape:
        """(channels, output height, output width)."""
        win = window("pooling", inputs[0], params.kernel, params.stride, params.padding, ceil_mode=params.ceil_mode)
        return (inputs[0][0], *win.output)

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
        tiling: Tiling = "maximum" if p.mode == "max" else "library"
        kept = 2.0 if p.mode == "max" else 1.0  # arrays that each window is looked up in backward
        again = np.maximum(windows - inputs, 0.0) / CACHE_OVER_MEMORY
        again_backward = kept * np.maximum(windows - outputs, 0.0) / CACHE_OVER_MEMORY
        halo_rows = np.maximum(rows_in - np.ceil(in_height / shard.split_height), 0.0)
        halo = shard.batch * halo_rows * in_width * shard.in_channels
        exchanges: tuple[InnerExchange, ...] = ()
        if win.kernel[0] > 1:
            exchanges = (
                InnerExchange(operation="point_to_point", over="height", elements=halo, phase="forward"),
                InnerExchange(operation="point_to_point", over="height", elements=halo, phase="input_gradient"),
            )
        return LayerWork(
            forward=((Kernel(flop=windows, elements=inputs + outputs + again, tiling=tiling),),),
            backward_input=((Kernel(flop=windows, elements=kept * (inputs + outputs) + again_backward),),),
            exchanges=exchanges,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalPoolParams:
    """Parameters of a global pooling layer."""

    mode: Literal["max", "average"] = param(doc="what is taken over the image", default="average")


@register("global_pool", GlobalPoolParams, "maximum or average over the whole image: one value per channel")
class GlobalPool(LayerFamily):
    """One value per channel."""

    keeps_input = False  # an average spreads its gradient without looking; a maximum keeps one index per channel

    def output_shape(self, params: Any, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - the mode does not change it
        """(channels,)."""
        if len(inputs[0]) != 3:
            raise ShapeError(f"global pooling needs an image, its input is {shape_text(inputs[0])}")
        return (inputs[0][0],)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """One addition per input element."""
        _, height, width = layer.input_shapes[0]
        inputs = shard.batch * height * width * shard.in_channels
        outputs = shard.batch * shard.out_channels
        kernel = Kernel(flop=inputs, elements=inputs + outputs)
        return LayerWork(forward=((kernel,),), backward_input=((kernel,),))
