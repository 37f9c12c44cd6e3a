"""Costs of one unit of every kind on one rank, by how a rank's share is cut: rows of (tp, sequence parallel, cp, ep, etp, micro-batch).

Everything that a plan costs is gathered from these rows. Times come from the layer families through the compute preset, as in
`costmodel.tables`; nothing here knows what a layer computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.compute import ComputeModel, PassTimes
from costmodel.graph import Graph
from costmodel.layers import Layer, Shard
from costmodel.layers.base import positions_of
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.groups import GroupTimes
from costmodel.mesh.patterns import split_roles
from costmodel.mesh.plan import LayerSplit
from costmodel.mesh.roles import LayerRole, Move, roles_of
from costmodel.mesh.saved import add_saved
from costmodel.mesh.shares import ATTENTION, RowKeys, shard_of
from costmodel.mesh.unfused import fp8_bytes, unfused_bytes
from costmodel.mesh.units import UnitKind, Units
from costmodel.network import Cluster
from costmodel.roofline import RooflineCompute
from costmodel.workload import Workload

__all__ = ["UnitTable", "add_layer", "add_moves", "unit_column", "unit_roles", "unit_table", "wants_input_gradient"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_WEIGHT_COLUMNS = (
    "dense_count",
    "expert_count",
    "dense_trainable",
    "expert_trainable",
    "tied_count",
    "tied_trainable",
    "apart_trainable",
)
# Under fp8 these layers compute in bf16 (NVIDIA Transformer Engine: fp8 covers the linear layers).
_FP8_KINDS = frozenset({"linear", "moe"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTable:
    """Costs of a unit; arrays (n rows, K kinds). Times and message sizes are of one micro-batch, sizes in bytes per rank."""

    forward_s: FloatArray
    backward_s: FloatArray  # both gradients
    weight_s: FloatArray  # the part of backward_s that only weight gradients need
    selective_s: FloatArray  # forward time of the layers that selective recomputation runs again
    tp_forward_s: FloatArray
    tp_backward_s: FloatArray
    etp_forward_s: FloatArray  # gathering and reducing tokens inside experts
    attention_forward_s: FloatArray  # part of forward_s that hides a ring of keys and values
    attention_backward_s: FloatArray
    kv_bytes: FloatArray  # keys and values of a rank's positions
    heads_bytes: FloatArray  # queries, keys, values and outputs of a rank's positions
    dispatch_bytes: FloatArray  # tokens that a rank sends to experts, once
    saved_bytes: FloatArray  # kept for the backward pass, nothing recomputed
    saved_selective_bytes: FloatArray
    input_bytes: FloatArray  # the unit's input, kept under full recomputation
    logits_bytes: FloatArray  # the loss and what enters it; not in saved_bytes
    dense_count: FloatArray  # weights of a rank outside routed experts
    expert_count: FloatArray
    dense_trainable: FloatArray
    expert_trainable: FloatArray
    tied_count: FloatArray  # weights of another unit that this one needs a copy of
    tied_trainable: FloatArray
    apart_trainable: (
        FloatArray  # the part of dense_trainable whose gradients the tensor-parallel ranks add up, once per step
    )
    # What the host starts: kernels, and collectives over the tensor-parallel ranks (0 for one rank).
    forward_launches: FloatArray
    backward_launches: FloatArray  # without those that only weight gradients need
    weight_launches: FloatArray
    selective_launches: FloatArray
    tensors: FloatArray  # weight tensors that are trained
    tp_forward_starts: FloatArray
    tp_backward_starts: FloatArray
    widest_bytes: FloatArray  # largest tensor of a rank: the gradient that is under way in the backward pass

    def take(self, rows: IntArray) -> UnitTable:
        """Rows of the table."""
        return UnitTable(**{item.name: getattr(self, item.name).take(rows, axis=0) for item in fields(self)})

    @classmethod
    def concatenate(cls, tables: Sequence[UnitTable]) -> UnitTable:
        """Rows of several tables, one after the other."""
        return cls(**{item.name: np.concatenate([getattr(t, item.name) for t in tables]) for item in fields(cls)})


def unit_table(
    workload: Workload,
    cluster: Cluster,
    units: Units,
    keys: RowKeys,
    needs: Sequence[bool] | None = None,
    assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS,
) -> UnitTable:
    """Cost every kind of unit in every row.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    units : Units
    keys : RowKeys
    needs : sequence of bool, optional
        ``workload.needs_gradient()``, if it is at hand.
    assumptions : MeshAssumptions

    Returns
    -------
    UnitTable
    """
    wanted = workload.needs_gradient() if needs is None else needs
    groups = GroupTimes(cluster=cluster, assumptions=assumptions)
    columns = [unit_column(workload, groups, kind, keys, wanted) for kind in units.kinds]
    return UnitTable(**{item.name: np.stack([c[item.name] for c in columns], axis=1) for item in fields(UnitTable)})


def unit_column(
    workload: Workload,
    groups: GroupTimes,
    kind: UnitKind,
    keys: RowKeys,
    needs: Sequence[bool],
    splits: Sequence[LayerSplit] = (),
) -> dict[str, FloatArray]:
    """Cost one kind of unit in every row: the columns of the table by name.

    Parameters
    ----------
    workload : Workload
    groups : GroupTimes
    kind : UnitKind
    keys : RowKeys
    needs : sequence of bool
        Layer -> whether a gradient flows through its output.
    splits : sequence of LayerSplit
        Layers that are not split as `costmodel.mesh.roles` says; tp and sequence parallelism are the same in all rows then.
    """
    total = {item.name: np.zeros(len(keys)) for item in fields(UnitTable)}
    roles = unit_roles(workload.graph, kind, keys, splits)
    for position, role in enumerate(roles):
        add_layer(total, workload, groups, kind, position, role, keys, needs)
    add_saved(total, workload, groups.assumptions, kind, keys, roles)
    return total


def unit_roles(graph: Graph, kind: UnitKind, keys: RowKeys, splits: Sequence[LayerSplit]) -> tuple[LayerRole, ...]:
    """Roles of the layers of a unit, by the splits that a plan names or else the standard."""
    if not splits:
        return roles_of(graph, kind)
    tp, sequence_parallel = int(keys.tp[0]), bool(keys.sequence_parallel[0])
    named = {split.layer: split for split in splits}
    return split_roles(graph, kind, named, tp, sequence_parallel=sequence_parallel)


def add_layer(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    kind: UnitKind,
    position: int,
    role: LayerRole,
    keys: RowKeys,
    needs: Sequence[bool],
) -> None:
    """Add times, weights and messages of one layer of a unit; what it keeps in memory depends on its neighbours and is not here."""
    graph = workload.graph
    index = kind.layers[position]
    layer = graph.layers[index]
    if layer.kind == "input":
        return
    shard = shard_of(graph.layers, kind, position, role, keys)
    wants_input = wants_input_gradient(graph, kind, position, needs)
    _add_compute(total, workload, layer, role, shard, wants_input=wants_input)
    _add_unfused(total, workload, groups.assumptions, layer, role, shard)
    _add_launches(total, workload, layer, shard, wants_input=wants_input)
    _add_tensor_parallel(total, workload, groups, layer, role, shard, keys, wants_input=wants_input)
    _add_weights(total, layer, role, shard, keys)
    if workload.training and layer.has_weights and not layer.is_frozen:
        total["tensors"] += 1.0
    if workload.training and layer.has_weights:
        _add_accumulation(total, workload, groups, layer, role, shard, keys)
    if layer.kind in ATTENTION:
        _add_attention_messages(total, workload, layer, shard)
    if layer.kind == "moe":
        _add_dispatch(total, workload, groups, layer, keys)


def wants_input_gradient(graph: Graph, kind: UnitKind, position: int, needs: Sequence[bool]) -> bool:
    """Whether a gradient flows through the inputs of a layer; blocks stand for all of their kind."""
    return any(needs) if kind.is_block else any(needs[u] for u in graph.producers[kind.layers[position]])


# -- terms --------------------------------------------------------------------------------------------------------------


def _rows_of(layer: Layer, shard: Shard) -> FloatArray:
    """Positions of all samples of the share."""
    return np.asarray(shard.batch * np.ceil(np.prod(layer.output_shape[1:]) / shard.sequence))


def _compute_of(workload: Workload, layer: Layer, is_head: bool) -> ComputeModel:
    compute = workload.compute
    if not isinstance(compute, RooflineCompute) or workload.precision.compute != "fp8":
        return compute
    if layer.kind in _FP8_KINDS and not is_head:
        return compute
    return replace(compute, precision=replace(compute.precision, compute="bf16"))


def _is_head(layer: Layer, role: LayerRole) -> bool:
    return layer.kind == "linear" and (role.role == "column" or role.degree == 1) and not layer.block


def _add_compute(
    total: dict[str, FloatArray], workload: Workload, layer: Layer, role: LayerRole, shard: Shard, *, wants_input: bool
) -> None:
    compute = _compute_of(workload, layer, _is_head(layer, role))
    times = compute.pass_times(layer, shard, needs_input_gradient=wants_input)
    total["forward_s"] += times.forward_s
    if layer.kind in ATTENTION:
        total["attention_forward_s"] += times.forward_s
    if layer.is_recomputable:
        total["selective_s"] += times.forward_s
    if not workload.training:
        return
    total["backward_s"] += times.backward_s
    if layer.kind in ATTENTION:
        total["attention_backward_s"] += times.backward_s
    elif layer.has_weights and wants_input:
        total["weight_s"] += _weight_only_s(compute, layer, shard, times)


def _add_unfused(
    total: dict[str, FloatArray],
    workload: Workload,
    assumptions: MeshAssumptions,
    layer: Layer,
    role: LayerRole,
    shard: Shard,
) -> None:
    """What kernels that are not fused move besides."""
    compute = _compute_of(workload, layer, _is_head(layer, role))
    if not isinstance(compute, RooflineCompute):
        return
    device, width = compute.device, workload.precision.activation_bytes
    elements = _rows_of(layer, shard) * shard.out_channels
    forward, backward = unfused_bytes(layer, shard, elements, width, assumptions)
    if layer.kind == "linear" and compute.precision.compute == "fp8":
        forward, backward = fp8_bytes(_rows_of(layer, shard) * shard.in_channels, elements, width)
    rate = device.memory_bandwidth_bytes_per_s * device.efficiency.memory_fraction
    total["forward_s"] += forward / rate
    if workload.training:
        total["backward_s"] += backward / rate


def _add_launches(
    total: dict[str, FloatArray], workload: Workload, layer: Layer, shard: Shard, *, wants_input: bool
) -> None:
    """Kernels that the host starts one after the other. Alternative algorithms are taken to be as many."""
    if not isinstance(workload.compute, RooflineCompute) or workload.compute.is_free(layer):
        return
    work = layer.family.work(layer, shard)
    forward, through, weights = (
        float(sum(kernel.launches for kernel in alternatives[0])) if alternatives else 0.0
        for alternatives in (work.forward, work.backward_input, work.backward_weight)
    )
    total["forward_launches"] += forward
    if layer.is_recomputable:
        total["selective_launches"] += forward
    if not workload.training:
        return
    needed = float(sum(kernel.launches for kernel in work.through))
    is_put_off = layer.kind not in ATTENTION and layer.has_weights and wants_input  # as `_add_compute` has weight_s
    total["weight_launches"] += weights - needed if is_put_off else 0.0
    total["backward_launches"] += (needed if is_put_off else weights) + (through if wants_input else 0.0)


def _add_accumulation(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    layer: Layer,
    role: LayerRole,
    shard: Shard,
    keys: RowKeys,
) -> None:
    """Gradients that are kept wider than they are computed are added to their sum behind every micro-batch: read, read and written.

    Under ZeRO-2 and 3 only a share is added up, but all are cast: about as many bytes.
    """
    precision, wide = workload.precision, groups.assumptions.main_gradient_bytes
    if not isinstance(workload.compute, RooflineCompute) or wide <= precision.gradient_bytes:
        return
    one = {name: np.zeros(len(keys)) for name in _WEIGHT_COLUMNS}
    _add_weights(one, layer, role, shard, keys)
    device = workload.compute.device
    moved = (one["dense_trainable"] + one["expert_trainable"]) * (precision.gradient_bytes + 2.0 * wide)
    time = moved / (device.memory_bandwidth_bytes_per_s * device.efficiency.memory_fraction)
    total["backward_s"] += time
    total["weight_s"] += time
    total["weight_launches"] += 1.0


def _weight_only_s(compute: ComputeModel, layer: Layer, shard: Shard, times: PassTimes) -> FloatArray:
    """Time of what a schedule may put off: weight gradients without what the gradient of the input needs too."""
    if layer.is_frozen or not layer.family.work(layer, shard).through:
        return times.backward_weight_s
    needed = compute.pass_times(replace(layer, frozen=True), shard, needs_input_gradient=True)
    return np.asarray(times.backward_s - needed.backward_s)


def _add_tensor_parallel(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    layer: Layer,
    role: LayerRole,
    shard: Shard,
    keys: RowKeys,
    *,
    wants_input: bool,
) -> None:
    """Megatron's operators around the split matrices, f and g, or g and its conjugate under sequence parallelism."""
    width, ranks = workload.precision.activation_bytes, groups.find(role.ranks(keys.tp), np.ones_like(keys.tp))
    if role.moves is not None:
        add_moves(total, workload, groups, layer, role.moves, keys, wants_input=wants_input)
    split = keys.sequence_parallel > 0

    def exchange(operation: str, message: FloatArray) -> FloatArray:
        return groups.time_s(operation, ranks, message)

    backward = workload.training and wants_input
    several = (keys.tp > 1).astype(np.float64)
    if role.gathers and role.moves is None:
        total["tp_forward_starts"] += several * split
        total["tp_backward_starts"] += several * backward
        message = shard.batch * np.ceil(np.prod(layer.input_shapes[0][1:]) / keys.cp) * layer.input_shapes[0][0] * width
        total["tp_forward_s"] += np.where(split, exchange("all_gather", message), 0.0)
        if backward:
            total["tp_backward_s"] += np.where(
                split, exchange("reduce_scatter", message), exchange("all_reduce", message)
            )
    if role.reduces and role.moves is None:
        total["tp_forward_starts"] += several
        total["tp_backward_starts"] += several * (split & workload.training)
        message = _rows_of(layer, shard) * layer.output_shape[0] * width
        total["tp_forward_s"] += np.where(split, exchange("reduce_scatter", message), exchange("all_reduce", message))
        if workload.training and (layer.has_weights or wants_input):
            total["tp_backward_s"] += np.where(split, exchange("all_gather", message), 0.0)
    if role.role == "channel":
        for inner in layer.family.work(layer, shard).exchanges:
            if inner.over == "out_channels":
                time = inner.repeats * exchange(inner.operation, np.broadcast_to(inner.elements * width, keys.tp.shape))
                total["tp_forward_s" if inner.phase == "forward" else "tp_backward_s"] += time


def add_moves(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    layer: Layer,
    moves: Sequence[Move],
    keys: RowKeys,
    *,
    wants_input: bool,
) -> None:
    """Add collectives at a layer whose split the plan names; ``wants_input``: a gradient flows through its inputs."""
    width = workload.precision.activation_bytes
    for move in moves:
        is_output = move.input_index < 0
        if move.is_backward and not (workload.training and (wants_input or (is_output and layer.has_weights))):
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
        total[f"tp_{phase}_s"] += groups.time_s(move.transfer.operation, group, message)
        total[f"tp_{phase}_starts"] += 1.0


def _repeated_heads(layer: Layer, move: Move) -> float:
    """How much larger the input of split attention is with key and value heads repeated, where there are fewer of them than shares."""
    if layer.kind not in ("self_attention", "cross_attention") or move.pieces == 1:
        return 1.0
    kv: int = layer.params.kv_heads or layer.params.heads
    if layer.kind == "self_attention":
        return float((layer.params.heads + 2 * max(kv, move.pieces)) / (layer.params.heads + 2 * kv))
    return max(kv, move.pieces) / kv if move.input_index == 1 else 1.0


def _add_weights(total: dict[str, FloatArray], layer: Layer, role: LayerRole, shard: Shard, keys: RowKeys) -> None:
    tp = role.ranks(keys.tp).astype(np.float64)
    routed, shared = float(layer.expert_count), float(layer.shared_count)
    dense = float(layer.weight_count + layer.norm_count) - routed - shared
    if role.role == "column":
        share = shard.out_channels / layer.output_shape[0]
    else:
        share = 1.0 / tp if role.role in ("row", "vocabulary") else np.ones_like(tp)
    own = dense * share + shared / keys.etp
    experts = routed / (keys.ep * keys.etp)
    adapter = layer.adapter_count * 0.5 * (1.0 + 1.0 / tp)  # one of the two factors is split
    total["dense_count"] += own + adapter
    total["expert_count"] += experts
    total["dense_trainable"] += adapter if layer.is_frozen else own
    total["expert_trainable"] += 0.0 if layer.is_frozen else experts
    if role.role == "whole" and role.degree == 1:  # ranks see different positions of what others split
        apart = np.where(keys.sequence_parallel > 0, adapter if layer.is_frozen else own, 0.0)
        total["apart_trainable"] += apart
    total["tied_count"] += layer.tied_count * share
    total["tied_trainable"] += 0.0 if layer.is_frozen else layer.tied_count * share


def _add_attention_messages(total: dict[str, FloatArray], workload: Workload, layer: Layer, shard: Shard) -> None:
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
    rows = _rows_of(layer, shard)
    keys_rows = rows
    if layer.kind == "cross_attention":  # keys and values are of another sequence
        keys_rows = shard.batch * positions_of(layer.input_shapes[1], shard)
    total["kv_bytes"] += keys_rows * kv_elements * width
    total["heads_bytes"] += (keys_rows * kv_elements + rows * (all_elements - kv_elements)) * width


def _add_dispatch(
    total: dict[str, FloatArray], workload: Workload, groups: GroupTimes, layer: Layer, keys: RowKeys
) -> None:
    """Tokens travel to their experts and back; with etp > 1 the ranks of an expert gather them and reduce the results."""
    features = layer.output_shape[0] * workload.precision.activation_bytes
    tokens = keys.micro_batch * np.ceil(np.prod(layer.output_shape[1:]) / (keys.cp * keys.tp))
    sent = tokens * layer.params.top_k * features
    total["dispatch_bytes"] += sent
    gathered = sent * keys.etp
    ranks = groups.find(keys.etp, np.ones_like(keys.etp))
    gather = groups.time_s("all_gather", ranks, gathered)
    total["etp_forward_s"] += gather + groups.time_s("reduce_scatter", ranks, gathered)
