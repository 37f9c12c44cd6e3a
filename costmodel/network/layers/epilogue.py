"""Normalisation and activation attached to a layer: memory-bound passes over its output."""

from __future__ import annotations

from typing import Literal

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers.base import Kernel, Shard

__all__ = ["Activation", "Norm", "epilogue_kernels", "epilogue_saved", "image_epilogue", "reduced_fraction"]

Norm = Literal["batch"] | None
Activation = Literal["relu", "leaky_relu", "elu", "gelu", "sigmoid", "tanh", "swish"] | None

# Elements moved per output element (forward, backward).
# Batch normalisation: forward reads for the statistics, reads again and writes; backward reads the input and the gradient for the
# two sums, reads both again and writes (Ioffe and Szegedy, arXiv:1502.03167, equations of the backward pass).
_NORM_PASSES = (3.0, 5.0)
# An activation is applied while the result is still in registers (but see `image_epilogue`); its gradient reads gradient and output
# and writes.
_ACTIVATION_PASSES = (0.0, 3.0)
# Operations per element: about 4 forward (subtract, multiply, scale, shift), 8 backward; 1 for the activation.
_NORM_FLOP = (8.0, 16.0)


def epilogue_kernels(
    norm: Norm, activation: Activation, outputs: FloatArray
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Kernels that follow the layer forward and precede it backward.

    Parameters
    ----------
    norm, activation : names or None
    outputs : array (n,)
        Output elements of the share.

    Returns
    -------
    forward, backward : tuples of Kernel
    """
    forward: list[Kernel] = []
    backward: list[Kernel] = []
    if norm is not None:
        forward.append(Kernel(flop=_NORM_FLOP[0] * outputs, elements=_NORM_PASSES[0] * outputs, launches=2))
        backward.append(Kernel(flop=_NORM_FLOP[1] * outputs, elements=_NORM_PASSES[1] * outputs, launches=2))
    if activation is not None:
        moved = _ACTIVATION_PASSES[1] * outputs
        backward.append(Kernel(flop=outputs, elements=moved, fusable="" if norm is None else "normalised gradient"))
    return tuple(forward), tuple(backward)


def image_epilogue(
    norm: Norm, activation: Activation, outputs: FloatArray, *, bias: bool
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Kernels around a convolution: frameworks call a library for it, and start kernels of their own for its bias and activation.

    Bias: forward a kernel reads and writes the output, backward one reads its gradient (``BiasAdd`` and ``BiasAddGrad`` of TensorFlow,
    ``cudnnAddTensor`` and ``cudnnConvolutionBackwardBias`` of Torch, Caffe and PyTorch). An activation reads and writes the output
    once more (``cudnnActivationForward``, ``relu_`` of PyTorch). Software that does so in the convolution or normalisation leaves
    these kernels out (`Fusable`).

    Parameters
    ----------
    norm, activation : names or None
    outputs : array (n,)
        Output elements of the share.
    bias : bool

    Returns
    -------
    forward, backward, own : tuples of Kernel
        After the layer, before its backward pass, and for its own weights.

    Examples
    --------
    >>> forward, backward, own = image_epilogue(None, "relu", np.array([10.0]), bias=True)
    >>> [kernel.elements.tolist() for kernel in (*forward, *backward, *own)]
    [[20.0], [20.0], [30.0], [10.0]]
    """
    behind, before = epilogue_kernels(norm, activation, outputs)
    added = (Kernel(flop=outputs, elements=2.0 * outputs, fusable="bias"),) if bias else ()
    summed = (Kernel(flop=outputs, elements=outputs, fusable="bias"),) if bias else ()
    applied = (Kernel(flop=outputs, elements=2.0 * outputs, fusable="activation"),) if activation is not None else ()
    return (*added, *behind, *applied), before, summed


def epilogue_saved(norm: Norm, activation: Activation, outputs: FloatArray) -> FloatArray:
    """Elements that an attached normalisation and activation keep: their inputs, which no other layer sees.

    The gradient of an activation other than gelu and swish is found from its output, which the next layer keeps (in place
    where it is relu).

    >>> epilogue_saved("batch", "gelu", np.array([10.0])).tolist(), epilogue_saved(None, "relu", np.array([10.0])).tolist()
    ([20.0], [0.0])
    """
    return outputs * (float(norm is not None) + float(activation in ("gelu", "swish")))


def reduced_fraction(shard: Shard) -> FloatArray:
    """Part of a worker's outputs that it keeps once the partial sums of an input-channel split are reduced into channel shares.

    1 without such a split; with 10 output channels over 4 workers, 3 of 10.
    """
    return np.asarray(np.ceil(shard.out_channels / shard.split_in) / shard.out_channels)
