"""Model FLOPs: what a step must compute, whatever the plan; the numerator of the model FLOPs utilisation (MFU).

Convention (Chowdhery et al., PaLM, arXiv:2204.02311, appendix B): matrix products only, a multiply-add counted as
two, forward plus both gradients, recomputation not counted; attention counts the pairs of positions that its mask
leaves. A step's MFU is that over step time, devices and the dense peak of the number format.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.network.layers import ATTENTION, Layer, Shard
from costmodel.network.layers.base import PassWork
from costmodel.workload import Workload

__all__ = ["FLOP_CONVENTION", "model_flops_per_step"]

FLOP_CONVENTION = (
    "matrix products of forward and backward, a multiply-add counted as 2, causal attention as the half that its mask leaves, "
    "nothing for recomputation"
)


def model_flops_per_step(workload: Workload) -> float:
    """Floating-point operations of the matrix products of a step.

    Parameters
    ----------
    workload : Workload

    Returns
    -------
    float
    """
    total = 0.0
    needs = workload.needs_gradient()
    known: dict[object, tuple[float, float, float]] = {}
    for i, layer in enumerate(workload.graph.layers):
        if layer.kind == "input":
            continue
        if layer.signature not in known:
            known[layer.signature] = _of_layer(layer)
        forward, to_input, to_weights = known[layer.signature]
        total += forward
        if workload.training:
            total += to_weights if layer.has_weights or needs[i] else 0.0
            total += to_input if any(needs[u] for u in workload.graph.producers[i]) else 0.0
    return total * workload.global_batch


def _of_layer(layer: Layer) -> tuple[float, float, float]:
    """FLOP per sample of the three passes, by the cheapest-to-count (matrix product) algorithm."""
    one = np.ones(1)
    shape = layer.output_shape
    inside = layer.input_shapes[0]
    whole = float(np.prod(inside)) if layer.kind == "linear" and len(inside) != 2 else float(inside[0])
    shard = Shard(
        batch=one,
        out_channels=shape[0] * one,
        in_channels=whole * one,
        height=(float(shape[1]) if len(shape) == 3 else 1.0) * one,
        split_out=one,
        split_in=one,
        split_height=one,
    )
    if layer.kind == "moe":  # what an uneven load costs is time, not work
        layer = replace(layer, params=replace(layer.params, capacity_factor=1.0))
    if layer.kind in ATTENTION:  # written out, it computes what its mask hides as well
        layer = replace(layer, params=replace(layer.params, fused=True))
    work = layer.family.work(layer, shard)
    forward = _products(work.forward)
    if layer.kind in ATTENTION:
        return forward, 2.0 * forward, 0.0  # a fused kernel computes the scores again: not counted
    return forward, _products(work.backward_input), _products(work.backward_weight)


def _products(work: PassWork) -> float:
    for alternative in work:
        if all(kernel.algorithm in ("gemm", "attention", "attention_backward") for kernel in alternative):
            return float(sum(np.sum(kernel.flop) for kernel in alternative if kernel.gemm is not None))
    return float(sum(np.sum(kernel.flop) for kernel in work[0] if kernel.gemm is not None)) if work else 0.0
