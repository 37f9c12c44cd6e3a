"""Traffic of kernels that are not fused: bytes that they move beyond those which the layer families count."""

from __future__ import annotations

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.shares import rows_held
from costmodel.network.layers import ATTENTION, Layer, Shard
from costmodel.network.layers.base import PassWork
from costmodel.network.layers.mixture import MixtureParams

__all__ = ["expert_bytes", "expert_kernels", "expert_repeats", "fp8_bytes", "softmax_kernels", "unfused_bytes"]


# A gated activation in two kernels, in elements of its output: forward both are 5 (activation 1 read, 1 written; product 2 and 1) in place
# of 3; backward the product is 6 (two gradients, 2 and 1 each), the activation 3, and joining both halves 4, in place of 5.
_GATE_FORWARD, _GATE_BACKWARD = 2.0, 8.0
# Kernels around a fused attention that read and write queries, and keys and values, as often (nanotron, src/nanotron/models/llama.py):
# to (3, batch, position) order, joining keys and values, their order, rotary embeddings; and the order of the output.
_QUERY_COPIES, _KEY_VALUE_COPIES = 3.0, 4.0
# Softmax of 16-bit scores in fp32, kernel by kernel, in bytes per score (Megatron-LM, FusedScaleMaskSoftmax.forward_torch_softmax). Forward
# to fp32 (2 read, 4 written), scaled (4 + 4), masked (4 + 4), softmax (4 + 4), to 16 bits (4 + 2), in place of 2 + 2; backward to fp32 (2 +
# 4), softmax (8 + 4), mask (4 + 4), scale (4 + 4), to 16 bits (4 + 2), in place of 4 + 2.
_SOFTMAX_FORWARD, _SOFTMAX_BACKWARD = 36.0 - 4.0, 40.0 - 6.0
_SOFTMAX_KERNELS = 5.0 - 1.0
# The bias of the second product is weighted by the router and added expert by expert in fp32 (Megatron-LM, megatron/core/transformer/moe/
# experts.py, TEGroupedMLP), in bytes per element. Forward: weighted (4 written), added (2 + 4 read, 4 written), experts joined (4 + 4), to
# 16 bits (4 + 2). Backward: to fp32 and back (2 + 4, 4 + 2), its parts joined (2 + 2), and for gradients of bias and weight a product and
# a sum each (4 + 4, 4).
_BIAS_FORWARD, _BIAS_BACKWARD = 28.0, 40.0
# Both halves limited and joined again before a gated activation (megatron/core/fusions/fused_bias_geglu.py), in bytes per element: 2 read
# and 2 written each time; backward joined and limited (2 + 2 and 2 + 2 + 2) and halves joined (2 + 2).
_LIMIT_FORWARD, _LIMIT_BACKWARD = 8.0, 14.0
# A root-mean-square norm written out in Python, in bytes per element of 16 bits (Hugging Face Transformers, models/llama/
# modeling_llama.py, LlamaRMSNorm.forward; the norms of its other models are copies of it), read and written. Forward: to fp32 (2 + 4),
# square (4 + 4), mean (4), product with the inverse root (4 + 4), to 16 bits (4 + 2), product with the weights (2 + 2), in place of 2 + 2.
# Backward, for the gradient of its input: product with the weights (2 + 2), to fp32 (2 + 4), product with the inverse root (4 + 4), that
# with the input (4 + 4 + 4) and its sum (4), gradient of the mean (4), of the square (4 + 4, 4 + 4, 4 + 4 + 4), the sum of both parts
# (4 + 4 + 4), to 16 bits (4 + 2), in place of 2 + 2 + 2.
_NORM_FORWARD, _NORM_BACKWARD = 36.0 - 4.0, 84.0 - 6.0
_RMS = ("rms", "rms_wide")
# Adapters of Hugging Face PEFT (tuners/lora/layer.py, Linear.forward), in bytes: dropout of what enters, forward (2 read, 2 and a mask of 1
# written) as backward (2 and 1 read, 2 written); what leaves times a number, both ways (2 + 2).
_ADAPTER_IN, _ADAPTER_OUT = 5.0, 4.0


def unfused_bytes(
    layer: Layer, shard: Shard, elements: FloatArray, width: int, assumptions: MeshAssumptions
) -> tuple[FloatArray, FloatArray]:
    """Bytes of the forward and the backward pass beyond those of `LayerFamily.work`.

    Parameters
    ----------
    layer : Layer
    shard : Shard
    elements : array (n,)
        Of the output, on one rank.
    width : int
        Bytes of an activation.
    assumptions : MeshAssumptions
        ``loss_bytes_per_logit``, ``softmax_multiple``, ``autograd_copies``, ``norm_copies`` and ``adapter_copies``.

    Returns
    -------
    two arrays (n,)
    """
    if layer.kind == "softmax":
        work = layer.family.work(layer, shard)
        each = 0.5 * assumptions.loss_bytes_per_logit * elements
        return np.maximum(each - _moved(work.forward, width), 0.0), np.maximum(
            each - _moved(work.backward_input, width), 0.0
        )
    apart = softmax_kernels(layer, shard, assumptions)
    if np.any(apart):
        keys = float(layer.input_shapes[-1][1])
        scores = rows_held(layer, shard) * np.ceil(layer.params.heads / shard.split_out) * keys
        return np.where(apart > 0, _SOFTMAX_FORWARD * scores, 0.0), np.where(apart > 0, _SOFTMAX_BACKWARD * scores, 0.0)
    return _plain_bytes(layer, shard, elements, width, assumptions)


def _plain_bytes(
    layer: Layer, shard: Shard, elements: FloatArray, width: int, assumptions: MeshAssumptions
) -> tuple[FloatArray, FloatArray]:
    """`unfused_bytes` of what has one kernel in Megatron-LM and several where it is written out in Python."""
    copies, normed = assumptions.autograd_copies * width, np.zeros_like(elements)
    forward = backward = np.zeros_like(elements)
    if layer.kind == "rms_norm":
        normed = assumptions.norm_copies * elements
    elif layer.kind == "linear" and layer.lora_rank:
        entering = rows_held(layer, shard) * shard.in_channels
        forward = backward = assumptions.adapter_copies * (_ADAPTER_IN * entering + _ADAPTER_OUT * elements)
    elif layer.kind == "glu":
        forward, backward = copies * _GATE_FORWARD * elements, copies * _GATE_BACKWARD * elements
    elif layer.kind == "self_attention" and layer.params.fused:
        groups = (layer.params.kv_heads or layer.params.heads) / layer.params.heads
        forward = backward = 2.0 * copies * (_QUERY_COPIES + 2.0 * groups * _KEY_VALUE_COPIES) * elements
        if layer.params.qk_norm in _RMS:
            normed = assumptions.norm_copies * (1.0 + groups) * elements
    return forward + _NORM_FORWARD * normed, backward + _NORM_BACKWARD * normed


def softmax_kernels(layer: Layer, shard: Shard, assumptions: MeshAssumptions) -> FloatArray:
    """Kernels each way that the softmax of attention takes beyond one, (n,).

    Parameters
    ----------
    layer : Layer
    shard : Shard
    assumptions : MeshAssumptions
        ``softmax_multiple``.

    Returns
    -------
    array (n,)
        None where attention is fused, or where micro-batch times heads of the rank suits the fused softmax.
    """
    multiple = assumptions.softmax_multiple
    if not multiple or layer.kind not in ATTENTION or layer.params.fused:
        return np.zeros_like(shard.batch)
    rows = shard.batch * np.ceil(layer.params.heads / shard.split_out)
    return np.asarray(np.where(rows % multiple, _SOFTMAX_KERNELS, 0.0))


def fp8_bytes(inputs: FloatArray, outputs: FloatArray, width: int) -> tuple[FloatArray, FloatArray]:
    """Bytes that casting to fp8 moves in the forward and the backward pass of a matrix.

    The input, and backward the gradient of the output, is read once and written twice in fp8: as it is, and transposed for the gradient
    of the weights, since fp8 tensor cores multiply rows by rows only (NVIDIA Transformer Engine, cast_transpose).

    Parameters
    ----------
    inputs, outputs : arrays (n,)
        Elements on one rank.
    width : int
        Bytes of an activation.

    Examples
    --------
    >>> [x.tolist() for x in fp8_bytes(np.array([10.0]), np.array([20.0]), 2)]
    [[40.0], [80.0]]
    """
    return (width + 2.0) * inputs, (width + 2.0) * outputs


def expert_bytes(layer: Layer, shard: Shard, width: int, *, is_fp8: bool) -> tuple[FloatArray, FloatArray]:
    """Bytes of the routed experts of a mixture in the forward and the backward pass, beyond those of `LayerFamily.work`.

    Casts of both products under fp8, limits before the activation, and biases.

    Parameters
    ----------
    layer : Layer
        A mixture of experts.
    shard : Shard
    width : int
        Bytes of an activation.
    is_fp8 : bool
    """
    params = layer.params
    rows = rows_held(layer, shard) * params.top_k * params.capacity_factor
    inside, outside = rows * np.ceil(params.ffn / shard.split_out), rows * layer.output_shape[0]
    entering = (params.matrices - 1.0) * inside  # the activation
    forward, backward = np.zeros_like(rows), np.zeros_like(rows)
    if is_fp8:
        for inputs, outputs in ((outside, entering), (inside, outside)):
            there, back = fp8_bytes(inputs, outputs, width)
            forward, backward = forward + there, backward + back
    if params.limited:
        forward, backward = forward + _LIMIT_FORWARD * entering, backward + _LIMIT_BACKWARD * entering
    if params.bias:
        forward, backward = forward + _BIAS_FORWARD * outside, backward + _BIAS_BACKWARD * outside
    return forward, backward


def expert_kernels(params: MixtureParams, shard: Shard, *, is_fp8: bool) -> tuple[FloatArray, FloatArray]:
    """Kernels of single experts that the host of a rank starts in the forward and the backward pass.

    Two products and their four gradients per expert that the rank holds; under fp8 a cast of what enters each product, and backward of
    the gradient of its result; with biases one kernel for that of the second product, and two for its gradients.

    Examples
    --------
    >>> one = np.ones(1)
    >>> shard = Shard(
    ...     batch=one, out_channels=one, in_channels=one, height=one, split_out=one, split_in=one, split_height=one, experts=4 * one
    ... )
    >>> [n.tolist() for n in expert_kernels(MixtureParams(experts=64, top_k=2, ffn=8), shard, is_fp8=True)]
    [[64.0], [96.0]]
    """
    held = np.ceil(params.experts / shard.experts)
    casts, biases = 2.0 * is_fp8, 1.0 * params.bias
    return held * (2.0 + casts + biases), held * (4.0 + casts + 2.0 * biases)


def expert_repeats(layer: Layer, shard: Shard, width: int, *, is_fp8: bool) -> tuple[FloatArray, FloatArray]:
    """Bytes and kernels with which selective recomputation makes again what leaves the activations of a mixture.

    The activation of the routed and of the shared experts, a kernel each; under fp8 the cast of its result, one by one for the experts
    that the rank holds (kernels of single experts are not among those counted here).

    Parameters
    ----------
    layer : Layer
        A mixture of experts.
    shard : Shard
    width : int
        Bytes of an activation.
    is_fp8 : bool
    """
    params = layer.params
    each = params.matrices * width + is_fp8 * (width + 1.0)  # read once or, gated, both halves; written
    kernels = np.full_like(shard.batch, 1.0 + bool(params.shared_width), dtype=np.float64)
    return np.asarray(layer.family.repeated_elements(layer, shard) * each), kernels


def _moved(work: PassWork, width: int) -> FloatArray | float:
    return sum((np.asarray(kernel.elements) * width for kernel in work[0]), 0.0) if work else 0.0
