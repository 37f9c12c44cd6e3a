"""Sliding windows: the geometry that convolutions and pooling share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers.base import Shape, ShapeError, shape_text

__all__ = ["Padding", "Size2", "Window", "input_rows", "pair", "window"]

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
