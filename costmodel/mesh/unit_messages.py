"""What ranks that share a unit send each other: collectives of tensor and expert parallelism, and what context parallelism moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.mesh.dispatch import free_draws
from costmodel.mesh.flows import GradientFlow
from costmodel.mesh.groups import GroupTimes
from costmodel.mesh.roles import LayerRole, Move
from costmodel.mesh.shares import RowKeys, rows_held
from costmodel.network.layers import Layer, Shard
from costmodel.network.layers.base import positions_of
from costmodel.workload import Workload

__all__ = ["add_attention_messages", "add_dispatch", "add_moves", "add_tensor_parallel"]


# Numbers per position that the loss over a split vocabulary adds up, in a collective each: the maximum, the sum, and the label's logit
# (Megatron-LM, megatron/mpu/cross_entropy.py, _VocabParallelCrossEntropy).
_LOSS_COLLECTIVES = 3


def add_tensor_parallel(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    layer: Layer,
    role: LayerRole,
    shard: Shard,
    keys: RowKeys,
    flow: GradientFlow,
    weight_gradient_s: FloatArray,
) -> None:
    """Megatron's operators around the split matrices, f and g, or g and its conjugate under sequence parallelism.

    What the backward pass exchanges behind a matrix split by columns may travel while the gradient of its weights is computed
    (``column_overlap``); all else is waited for.
    """
    width, ranks = workload.precision.activation_bytes, groups.find(role.ranks(keys.tp), np.ones_like(keys.tp))
    if role.moves is not None:
        add_moves(total, workload, groups, layer, role.moves, keys, flow)
    split = keys.sequence_parallel > 0

    def exchange(operation: str, message: FloatArray) -> FloatArray:
        return groups.time_s(operation, ranks, message)

    several = (keys.tp > 1).astype(np.float64)

    def start(phase: str, count: FloatArray) -> None:
        total[f"tp_{phase}_starts"] += count
        total[f"tp_{phase}_s"] += groups.assumptions.collective_wait_s * count

    if role.gathers and role.moves is None:
        start("forward", several * split)
        start("backward", several * flow.to_inputs)
        message = shard.batch * np.ceil(np.prod(layer.input_shapes[0][1:]) / keys.cp) * layer.input_shapes[0][0] * width
        total["tp_forward_s"] += np.where(split, exchange("all_gather", message), 0.0)
        if flow.to_inputs:
            sent = np.where(split, exchange("reduce_scatter", message), exchange("all_reduce", message))
            total["tp_backward_s"] += np.maximum(sent - groups.assumptions.column_overlap * weight_gradient_s, 0.0)
    if role.reduces and role.moves is None:
        start("forward", several)
        start("backward", several * (split & flow.through))
        message = rows_held(layer, shard) * layer.output_shape[0] * width
        total["tp_forward_s"] += np.where(split, exchange("reduce_scatter", message), exchange("all_reduce", message))
        if flow.through:
            total["tp_backward_s"] += np.where(split, exchange("all_gather", message), 0.0)
    if role.role == "channel":
        for inner in layer.family.work(layer, shard).exchanges:
            if inner.over == "out_channels" and (inner.phase == "forward" or flow.through):
                repeats = _LOSS_COLLECTIVES if layer.kind == "softmax" else inner.repeats
                time = repeats * exchange(inner.operation, np.broadcast_to(inner.elements * width, keys.tp.shape))
                phase = "forward" if inner.phase == "forward" else "backward"
                start(phase, several * repeats)
                total[f"tp_{phase}_s"] += time


def add_moves(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    layer: Layer,
    moves: Sequence[Move],
    keys: RowKeys,
    flow: GradientFlow,
) -> None:
    """Add collectives at a layer whose split the plan names."""
    width = workload.precision.activation_bytes
    for move in moves:
        is_output = move.input_index < 0
        if move.is_backward and not (flow.through if is_output else flow.to_inputs):
            continue
        shape = layer.output_shape if is_output else layer.input_shapes[move.input_index]
        message = (
            _repeated_heads(layer, move)
            * keys.micro_batch
            * np.ceil(np.prod(shape[1:]) / keys.cp)
            * shape[0]
            * width
            / move.transfer.parts
        )
        group = groups.find(np.full_like(keys.tp, move.transfer.ranks), np.full_like(keys.tp, move.transfer.stride))
        phase = "backward" if move.is_backward else "forward"
        wait_s = groups.assumptions.collective_wait_s
        total[f"tp_{phase}_s"] += groups.time_s(move.transfer.operation, group, message) + wait_s
        total[f"tp_{phase}_starts"] += 1.0


def _repeated_heads(layer: Layer, move: Move) -> float:
    """How much larger the input of split attention is with key and value heads repeated, where there are fewer of them than shares."""
    if layer.kind not in ("self_attention", "cross_attention") or move.pieces == 1:
        return 1.0
    kv: int = layer.params.kv_heads or layer.params.heads
    if layer.kind == "self_attention":
        return float((layer.params.heads + 2 * max(kv, move.pieces)) / (layer.params.heads + 2 * kv))
    return max(kv, move.pieces) / kv if move.input_index == 1 else 1.0


def add_attention_messages(total: dict[str, FloatArray], workload: Workload, layer: Layer, shard: Shard) -> None:
    """What context parallelism moves: keys and values around a ring, or heads against positions."""
    width = workload.precision.activation_bytes
    params = layer.params
    heads = np.ceil(params.heads / shard.split_out)
    if layer.kind == "latent_attention":
        key_dim, value_dim = params.nope_dim + params.rope_dim, params.value_dim
        kv_elements = heads * (key_dim + value_dim)
        all_elements = kv_elements + heads * (key_dim + value_dim)
    else:
        kv_heads = np.maximum(np.ceil((params.kv_heads or params.heads) / shard.split_out), 1.0)
        kv_elements = 2.0 * kv_heads * params.head_dim
        all_elements = kv_elements + 2.0 * heads * params.head_dim
    rows = rows_held(layer, shard)
    keys_rows = rows
    if layer.kind == "cross_attention":  # keys and values are of another sequence
        keys_rows = shard.batch * positions_of(layer.input_shapes[1], shard)
    total["kv_bytes"] += keys_rows * kv_elements * width
    total["heads_bytes"] += (keys_rows * kv_elements + rows * (all_elements - kv_elements)) * width


def add_dispatch(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    layer: Layer,
    keys: RowKeys,
    flow: GradientFlow,
) -> None:
    """Tokens travel to their experts and back; with etp > 1 the ranks of an expert gather them and reduce the results."""
    features = layer.output_shape[0] * workload.precision.activation_bytes
    tokens = keys.micro_batch * np.ceil(np.prod(layer.output_shape[1:]) / (keys.cp * keys.tp))
    sent = tokens * layer.params.top_k * features
    total["dispatch_bytes"] += sent
    total["token_bytes"] += tokens * features
    total["drawn_bytes"] += tokens * features * free_draws(layer.params)
    total["returned_bytes"] += sent * flow.through
    gathered = sent * keys.etp
    ranks = groups.find(keys.etp, np.ones_like(keys.etp))
    gather = groups.time_s("all_gather", ranks, gathered)
    total["etp_forward_s"] += gather + groups.time_s("reduce_scatter", ranks, gathered)
