"""Costs of one module of every kind on one rank, by how a rank's share is cut: rows of (tp, sequence parallel, cp, ep, etp, micro-batch).

Everything that a plan costs is gathered from these rows. Times come from the layer families through the compute preset, as in
`costmodel.layerwise.tables`; nothing here knows what a layer computes. Kernels that are not fused move bytes beyond those that the layer
families count: `unfused traffic` below.

Weights of the blocks
---------------------
A plan says how many stages there are; which blocks each gets must follow from the network alone. Were blocks weighed by the device that
runs the plan, a quicker device could move a cut to a worse place, and the same degrees would be another plan on every cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import FORMATS, Device
from costmodel.kernels.roofline import ComputeModel, PassTimes, RooflineCompute, attention_starts
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.communication import GroupTimes, add_attention_messages, add_dispatch, add_tensor_parallel, reached
from costmodel.mesh.memory import add_saved, add_saved_inputs
from costmodel.mesh.modules import MODULE_COLUMNS, GradientFlow, ModuleKind, Modules, ModuleTable, RowKeys, flow_of
from costmodel.mesh.plan import LayerSplit
from costmodel.mesh.tensor_parallel import (
    LayerRole,
    chunks_of,
    in_mlp,
    roles_of,
    rows_held,
    shard_of,
    split_roles,
)
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION, Layer, LayerWork, Shard
from costmodel.network.layers.attention import one_document
from costmodel.network.layers.base import PassWork
from costmodel.network.layers.mixture import MixtureParams, received
from costmodel.precision import Precision
from costmodel.workload import Workload

# A gated activation in two kernels, in elements of its output: forward both are 5 (activation 1 read, 1 written; product 2 and 1) in place
# of 3; backward the product is 6 (two gradients, 2 and 1 each), the activation 3, and joining both halves 4, in place of 5.
_GATE_FORWARD, _GATE_BACKWARD = 2.0, 8.0
# Kernels around a fused attention that read and write queries, and keys and values, as often (nanotron, src/nanotron/models/llama.py):
# to (3, batch, position) order, joining keys and values, their order, rotary embeddings; and the order of the output.
_QUERY_COPIES, _KEY_VALUE_COPIES = 3.0, 4.0
# Softmax of 16-bit scores in fp32, kernel by kernel, in bytes per score (Megatron-LM, FusedScaleMaskSoftmax.forward_torch_softmax). Forward
# to fp32 (2 read, 4 written), scaled (4 + 4), masked (4 + 4), softmax (4 + 4), to 16 bits (4 + 2), in place of 2 + 2; backward to fp32 (2 +
# 4), softmax (8 + 4), mask (4 + 4), scale (4 + 4), to 16 bits (4 + 2), in place of 4 + 2.
_CAST_SOFTMAX = 36.0 - 4.0, 40.0 - 6.0, 4.0, 4.0  # and what the host starts each way beyond one kernel
# The same of scores in 32 bits, which no fused kernel takes (is_kernel_available): they are masked in place (4 + 4), as a view of what the
# product wrote. So the backward pass copies whole gradients: into zeros for the view (4 written, 4 + 4), and for what was overwritten
# (CopySlices::apply in PyTorch's torch/csrc/autograd/functions/tensor.cpp: copied, cloned, and copied back, 4 + 4 each), around a mask
# that is not in place (cloned and filled, 4 + 4 each). PyTorch's profiler lists these kernels, of two nodes of autograd.
_WIDE_SOFTMAX = 8.0, 52.0, 1.0, 2.0
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
    layer: Layer, shard: Shard, elements: FloatArray, width: float, assumptions: MeshAssumptions
) -> tuple[FloatArray, FloatArray]:
    """Bytes of the forward and the backward pass beyond those of `LayerFamily.work`.

    Parameters
    ----------
    layer : Layer
    shard : Shard
    elements : array (n,)
        Of the output, on one rank.
    width : float
        Bytes of an activation.
    assumptions : MeshAssumptions
        ``loss_bytes_per_logit``, ``softmax_multiple``, ``autograd_copies`` and ``norm_copies``.

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
    apart = softmax_parts(layer, shard, width, assumptions)[:2]
    if np.any(apart):
        keys = float(layer.input_shapes[-1][1])
        forward, backward = apart * rows_held(layer, shard) * np.ceil(layer.params.heads / shard.split_out) * keys
        return forward, backward
    return _plain_bytes(layer, shard, elements, width, assumptions)


def _plain_bytes(
    layer: Layer, shard: Shard, elements: FloatArray, width: float, assumptions: MeshAssumptions
) -> tuple[FloatArray, FloatArray]:
    """`unfused_bytes` of what has one kernel in Megatron-LM and several where it is written out in Python."""
    copies, normed = assumptions.autograd_copies * width, np.zeros_like(elements)
    forward = backward = np.zeros_like(elements)
    if layer.kind == "rms_norm":
        normed = assumptions.norm_copies * elements
    elif layer.kind == "linear" and layer.lora_rank:
        entering = rows_held(layer, shard) * shard.in_channels
        forward = backward = assumptions.autograd_copies * (_ADAPTER_IN * entering + _ADAPTER_OUT * elements)
    elif layer.kind == "glu":
        forward, backward = copies * _GATE_FORWARD * elements, copies * _GATE_BACKWARD * elements
    elif layer.kind == "self_attention" and layer.params.fused:
        groups = (layer.params.kv_heads or layer.params.heads) / layer.params.heads
        forward = backward = 2.0 * copies * (_QUERY_COPIES + 2.0 * groups * _KEY_VALUE_COPIES) * elements
        if layer.params.qk_norm in _RMS:
            normed = assumptions.norm_copies * (1.0 + groups) * elements
    return forward + _NORM_FORWARD * normed, backward + _NORM_BACKWARD * normed


def softmax_parts(layer: Layer, shard: Shard, width: float, assumptions: MeshAssumptions) -> FloatArray:
    """What a softmax of attention takes that is written out in Python, beyond one kernel.

    Parameters
    ----------
    layer : Layer
    shard : Shard
    width : float
        Bytes of an activation.
    assumptions : MeshAssumptions
        ``softmax_multiple``.

    Returns
    -------
    array (4, n)
        Bytes per score forward and backward, and what the host starts. None where attention is fused, or where a fused softmax takes the
        scores: in 16 bits, if micro-batch times heads of the rank suits it.
    """
    multiple, is_wide = assumptions.softmax_multiple, width >= 4.0
    if not multiple or layer.kind not in ATTENTION or layer.params.fused:
        return np.zeros((4, *shard.batch.shape))
    rows = shard.batch * np.ceil(layer.params.heads / shard.split_out)
    is_apart = is_wide | (rows % multiple > 0)
    return np.asarray(np.multiply.outer(_WIDE_SOFTMAX if is_wide else _CAST_SOFTMAX, is_apart))


def expert_bytes(
    layer: Layer, shard: Shard, precision: Precision, assumptions: MeshAssumptions
) -> tuple[FloatArray, FloatArray]:
    """Bytes of the routed experts of a mixture in the forward and the backward pass, beyond those of `LayerFamily.work`.

    Casts of what enters both products and of the gradients of their results, limits before the activation, biases, and tokens that are
    put in order once more where ranks share experts: `sorted_rows` of them, before the experts and behind them.

    Parameters
    ----------
    layer : Layer
        A mixture of experts.
    shard : Shard
    precision : Precision
    assumptions : MeshAssumptions
        ``node_copies``.
    """
    params = layer.params
    rows = received(params, rows_held(layer, shard), shard)
    inside, outside = rows * np.ceil(params.ffn / shard.split_out), rows * layer.output_shape[0]
    entering = (params.matrices - 1.0) * inside  # the activation
    weights = np.ceil(params.experts / shard.experts) * np.ceil(params.ffn / shard.split_out) * params.matrices
    weights = weights * layer.output_shape[0]
    forward, backward = precision.casts_bytes(outside + inside, entering + outside, weights)
    again = sorted_rows(params, shard, assumptions) * rows_held(layer, shard) * layer.output_shape[0]
    forward, backward = (time + 2.0 * again * precision.activation_bytes for time in (forward, backward))
    if params.limited:
        forward, backward = forward + _LIMIT_FORWARD * entering, backward + _LIMIT_BACKWARD * entering
    if params.bias:
        forward, backward = forward + _BIAS_FORWARD * outside, backward + _BIAS_BACKWARD * outside
    return forward, backward


def sorted_rows(params: MixtureParams, shard: Shard, assumptions: MeshAssumptions) -> FloatArray:
    """Rows of a token that are read or written to put tokens in order, beyond one and its k copies, (n,).

    The tokens of all ranks arrive sorted by rank, and experts read them sorted by expert. A fused dispatcher delivers a token once, from
    which its copies are made then (Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py, _DeepepManager: permute behind the
    dispatch), so that as many are read as arrive; behind an all-to-all all copies are read and written again (MoEAlltoAllTokenDispatcher:
    sort_chunks_by_idxs), where a rank has several experts.

    Examples
    --------
    >>> one, ep = np.ones(2), np.array([1.0, 2.0])
    >>> shard = Shard(batch=one, out_channels=one, in_channels=one, height=one, split_out=one, split_in=one, split_height=one, experts=ep)
    >>> params = MixtureParams(experts=8, top_k=2, ffn=8)
    >>> [sorted_rows(params, shard, MeshAssumptions(node_copies=n)).tolist() for n in (0.0, 1.0)]
    [[0.0, 0.5], [0.0, 4.0]]
    """
    if not assumptions.node_copies and not assumptions.is_padded:
        return np.minimum(reached(shard.experts, np.array(float(params.top_k))) * shard.load, shard.experts) - 1.0
    copies = received(params, np.ones_like(shard.load), shard)
    return np.where((shard.experts > 1.0) & (shard.experts < params.experts), 2.0 * copies, 0.0)


def expert_kernels(params: MixtureParams, shard: Shard, precision: Precision) -> tuple[FloatArray, FloatArray]:
    """Kernels of single experts that the host of a rank starts in the forward and the backward pass.

    Two products and their four gradients per expert that the rank holds; in narrow formats a cast of what enters each product, and
    backward of the gradient of its result; with biases one kernel for that of the second product, and two for its gradients.

    Examples
    --------
    >>> one = np.ones(1)
    >>> shard = Shard(
    ...     batch=one, out_channels=one, in_channels=one, height=one, split_out=one, split_in=one, split_height=one, experts=4 * one
    ... )
    >>> from costmodel.precision import PRECISIONS
    >>> [n.tolist() for n in expert_kernels(MixtureParams(experts=64, top_k=2, ffn=8), shard, PRECISIONS["fp8"])]
    [[64.0], [96.0]]
    """
    held = np.ceil(params.experts / shard.experts)
    casts, biases = 2.0 * precision.casts, 1.0 * params.bias
    return held * (2.0 + casts + biases), held * (4.0 + casts + 2.0 * biases)


def expert_repeats(layer: Layer, shard: Shard, precision: Precision) -> tuple[FloatArray, FloatArray]:
    """Bytes and kernels with which selective recomputation makes again what leaves the activations of a mixture.

    The activation of the routed and of the shared experts, a kernel each; in narrow formats the cast of its result, one by one for the
    experts that the rank holds (kernels of single experts are not among those counted here).

    Parameters
    ----------
    layer : Layer
        A mixture of experts.
    shard : Shard
    precision : Precision
    """
    params, width = layer.params, precision.activation_bytes
    cast = precision.casts * (width + precision.operand.bytes)  # read, and written one way
    each = params.matrices * width + cast  # read once or, gated, both halves; written
    kernels = np.full_like(shard.batch, 1.0 + bool(params.shared_width), dtype=np.float64)
    return np.asarray(layer.family.repeated_elements(layer, shard) * each), kernels


def _moved(work: PassWork, width: float) -> FloatArray | float:
    return sum((np.asarray(kernel.elements) * width for kernel in work[0]), 0.0) if work else 0.0


# The largest of a module's layers counts, not their sum.
_LARGEST = frozenset({"widest_bytes"})


def module_table(
    workload: Workload,
    cluster: Cluster,
    modules: Modules,
    keys: RowKeys,
    assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS,
    *,
    groups: GroupTimes | None = None,
) -> ModuleTable:
    """Cost every kind of module in every row.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    modules : Modules
    keys : RowKeys
    assumptions : MeshAssumptions
    groups : GroupTimes, optional
        Of the cluster and the assumptions, if they are at hand.

    Returns
    -------
    ModuleTable
    """
    times = GroupTimes(cluster=cluster, assumptions=assumptions) if groups is None else groups
    columns = [module_column(workload, times, kind, keys) for kind in modules.kinds]
    return ModuleTable.of_stack(np.array([[c[name] for c in columns] for name in MODULE_COLUMNS]).swapaxes(1, 2))


def module_column(
    workload: Workload,
    groups: GroupTimes,
    kind: ModuleKind,
    keys: RowKeys,
    splits: Sequence[LayerSplit] = (),
) -> dict[str, FloatArray]:
    """Cost one kind of module in every row: the columns of the table by name.

    Parameters
    ----------
    workload : Workload
    groups : GroupTimes
    kind : ModuleKind
    keys : RowKeys
    splits : sequence of LayerSplit
        Layers that are not split as `costmodel.mesh.tensor_parallel` says; tp and sequence parallelism are the same in all rows then.
    """
    roles = module_roles(workload.graph, kind, keys, splits)
    expert = [position for position, index in enumerate(kind.layers) if workload.graph.layers[index].kind == "moe"]
    others = [position for position in range(len(roles)) if position not in expert]
    # What knows nothing of experts is costed once for all their layouts.
    few, row = keys.without_experts() if expert else (keys, slice(None))
    shared = _module_part(workload, groups, kind, few, roles, others)
    add_saved_inputs(shared, workload, kind, few)
    if not expert:
        return shared
    total = _module_part(workload, groups, kind, keys, roles, expert)
    for name, column in shared.items():
        together = np.maximum if name in _LARGEST else np.add
        together(column[row], total[name], out=total[name])
    return total


def _module_part(
    workload: Workload,
    groups: GroupTimes,
    kind: ModuleKind,
    keys: RowKeys,
    roles: Sequence[LayerRole],
    positions: Sequence[int],
) -> dict[str, FloatArray]:
    """Columns of some layers of a module."""
    total = {name: np.zeros(len(keys)) for name in MODULE_COLUMNS}
    layers = workload.graph.layers
    shards = {
        position: shard_of(layers, kind, position, roles[position], keys, groups.assumptions) for position in positions
    }
    for position, shard in shards.items():
        add_layer(total, workload, groups, kind, position, roles[position], keys, shard)
    add_saved(total, workload, groups.assumptions, kind, keys, roles, shards)
    return total


def module_roles(graph: Graph, kind: ModuleKind, keys: RowKeys, splits: Sequence[LayerSplit]) -> tuple[LayerRole, ...]:
    """Roles of the layers of a module, by the splits that a plan names or else the standard."""
    if not splits:
        return roles_of(graph, kind)
    tp, sequence_parallel = int(keys.tp[0]), bool(keys.sequence_parallel[0])
    named = {split.layer: split for split in splits}
    return split_roles(graph, kind, named, tp, sequence_parallel=sequence_parallel)


def add_layer(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    kind: ModuleKind,
    position: int,
    role: LayerRole,
    keys: RowKeys,
    shard: Shard | None = None,
) -> FloatArray:
    """Add times, weights and messages of one layer of a module; what it keeps in memory depends on its neighbours and is not here.

    The share of a rank may be at hand. Returns the time of the gradient of the layer's weights in every row.
    """
    graph = workload.graph
    index = kind.layers[position]
    layer = graph.layers[index]
    if layer.kind == "input":
        return np.zeros(len(keys))
    if shard is None:
        shard = shard_of(graph.layers, kind, position, role, keys, groups.assumptions)
    flow = flow_of(workload, kind, position)
    weights = _weights(layer, role, shard, keys, is_narrow=workload.precision.holds(layer))
    attends = layer.kind in ATTENTION
    before = {name: total[f"attention_{name}_s"].copy() for name in ("forward", "backward") if attends}
    chunks = chunks_of(graph, kind, position, groups.assumptions, shard)
    if chunks is None:
        weight_gradient_s = _add_passes(total, workload, groups.assumptions, kind, position, shard, flow)
        add_tensor_parallel(total, workload, groups, layer, role, shard, keys, flow, weight_gradient_s)
    else:
        again = bool(in_mlp(graph, kind)[position]) and flow.through
        one = {name: np.zeros(len(keys)) for name in MODULE_COLUMNS}
        part = replace(shard, sequence=shard.sequence * chunks)
        weight_gradient_s = chunks * _add_passes(one, workload, groups.assumptions, kind, position, part, flow)
        own = {name: chunks * column for name, column in one.items()}
        _add_chunk_sums(own, workload, chunks - 1.0, weights)
        add_tensor_parallel(own, workload, groups, layer, role, shard, keys, flow, weight_gradient_s)
        if again:
            _repeat_forward(own, groups.assumptions, chunks > 1.0)
        for name, column in own.items():
            total[name] += column
    for name, column in weights.items():
        total[name] += column
    if workload.training and layer.has_weights:
        if not layer.is_frozen:
            total["tensors"] += 1.0
        _add_accumulation(total, workload, groups, weights)
    if attends:
        add_attention_messages(total, workload, layer, shard)
        own_s = {name: total[f"attention_{name}_s"] - time for name, time in before.items()}
        _add_uneven(total, workload, groups.assumptions, layer, keys, own_s)
    if layer.kind == "moe":
        add_dispatch(total, workload, groups, layer, keys, flow)
    return weight_gradient_s


def _add_passes(
    total: dict[str, FloatArray],
    workload: Workload,
    assumptions: MeshAssumptions,
    kind: ModuleKind,
    position: int,
    shard: Shard,
    flow: GradientFlow,
) -> FloatArray:
    """Add what the device computes, and what its host starts; returns the time of the gradient of the layer's weights."""
    graph, index = workload.graph, kind.layers[position]
    layer, producers = graph.layers[index], graph.producers[index]
    work = layer.family.work(layer, shard) if isinstance(workload.compute, RooflineCompute) else None
    weight_gradient_s = _add_compute(total, workload, layer, shard, flow, work)
    after_norm = bool(producers) and all(graph.layers[u].kind.endswith("norm") for u in producers)
    _add_unfused(total, workload, assumptions, layer, shard, flow, after_norm=after_norm)
    if work is not None:
        _add_launches(total, workload, assumptions, layer, shard, flow, work)
    return weight_gradient_s


def _add_uneven(
    total: dict[str, FloatArray],
    workload: Workload,
    assumptions: MeshAssumptions,
    layer: Layer,
    keys: RowKeys,
    passes_s: Mapping[str, FloatArray],
) -> None:
    """What ranks and sequences differ by in an attention that skips what its mask hides; ``passes_s``: its times by pass.

    Only what it takes per key differs, not where its rows of queries start (`costmodel.kernels.roofline`).
    """
    is_cut = assumptions.cp_balance == 0.0 and layer.kind in ("self_attention", "latent_attention")
    if getattr(layer.params, "state", False) or not layer.params.fused or (layer.documents is None and not is_cut):
        return
    mask = {"causal": layer.params.causal, "window": getattr(layer.params, "window", 0)}
    positions = layer.output_shape[1]
    packed = one_document(positions) if layer.documents is None else layer.documents
    degrees, place = np.unique(keys.cp, return_inverse=True)
    fullest = np.array([packed.fullest(cp, assumptions.cp_balance, **mask) for cp in degrees.tolist()])
    spread, seen = packed.spread(**mask) / np.sqrt(keys.micro_batch), packed.pairs(**mask) / positions
    for name, time in passes_s.items():
        starts = attention_starts(workload.compute, is_forward=name == "forward")
        total[f"uneven_{name}_s"] += (fullest[place] - 1.0) * time * (seen / (seen + starts))
        total[f"spread_{name}_s"] += spread * time * (seen / (seen + starts))


def _add_chunk_sums(
    total: dict[str, FloatArray], workload: Workload, sums: FloatArray, weights: dict[str, FloatArray]
) -> None:
    """Every chunk but the first adds its gradient of the weights to that of those before it: read, read and written."""
    if workload.training and isinstance(workload.compute, RooflineCompute):
        moved = 3.0 * workload.precision.gradient_bytes * sums * weights["dense_trainable"]
        total["backward_s"] += moved / workload.compute.device.stream_bytes_per_s
        total["weight_s"] += moved / workload.compute.device.stream_bytes_per_s


def _repeat_forward(total: dict[str, FloatArray], assumptions: MeshAssumptions, is_cut: BoolArray) -> None:
    """The backward pass of a feed-forward part that is cut into chunks runs its forward pass again, chunk by chunk."""
    for name in ("s", "launches"):
        priced = assumptions.bare_launch if name == "launches" and assumptions.bare_launch else 1.0
        total[f"backward_{name}"] += np.where(is_cut, total[f"forward_{name}"] / priced, 0.0)
    for name in ("s", "starts"):
        total[f"tp_backward_{name}"] += np.where(is_cut, total[f"tp_forward_{name}"], 0.0)
    for name in ("s", "launches"):  # selective recomputation has nothing left to repeat
        total[f"selective_{name}"] = np.where(is_cut, 0.0, total[f"selective_{name}"])


# -- terms --------------------------------------------------------------------------------------------------------------


def _compute_of(workload: Workload, layer: Layer) -> ComputeModel:
    """What computes a layer: in a recipe of narrow formats only some kinds are narrow, and none outside the blocks."""
    compute, precision = workload.compute, workload.precision
    if not isinstance(compute, RooflineCompute) or precision.kind != "narrow" or precision.holds(layer):
        return compute
    return replace(compute, precision=precision.unquantised)


def _add_compute(
    total: dict[str, FloatArray],
    workload: Workload,
    layer: Layer,
    shard: Shard,
    flow: GradientFlow,
    work: LayerWork | None,
) -> FloatArray:
    """Add times of the device; returns that of the gradient of the layer's weights."""
    compute = _compute_of(workload, layer)
    if work is not None and isinstance(compute, RooflineCompute):
        times = compute.work_times(layer, work, shard, needs_input_gradient=flow.to_inputs)
    else:
        times = compute.pass_times(layer, shard, needs_input_gradient=flow.to_inputs)
    total["forward_s"] += times.forward_s
    if layer.kind in ATTENTION:
        total["attention_forward_s"] += times.forward_s
    total["selective_s"] += flow.again * times.forward_s
    if flow.kept and work is not None and isinstance(compute, RooflineCompute):
        kernels = work.forward[0]
        for place, share in flow.kept:
            kept = compute.work_times(layer, LayerWork(forward=((kernels[place],),)), shard, needs_input_gradient=False)
            total["selective_s"] -= share * kept.forward_s
    if not flow.through:
        return np.zeros_like(times.backward_weight_s)
    total["backward_s"] += times.backward_s
    if layer.kind in ATTENTION:
        total["attention_backward_s"] += times.backward_s
    elif layer.has_weights and flow.to_inputs:
        total["weight_s"] += _weight_only_s(compute, layer, shard, times, work)
    return times.backward_weight_s


def _add_unfused(
    total: dict[str, FloatArray],
    workload: Workload,
    assumptions: MeshAssumptions,
    layer: Layer,
    shard: Shard,
    flow: GradientFlow,
    *,
    after_norm: bool,
) -> None:
    """What kernels that are not fused move besides."""
    compute = _compute_of(workload, layer)
    if not isinstance(compute, RooflineCompute):
        return
    rate, precision = compute.device.stream_bytes_per_s, compute.precision
    elements = rows_held(layer, shard) * shard.out_channels
    forward, backward = unfused_bytes(layer, shard, elements, precision.activation_bytes, assumptions)
    if layer.kind == "moe":
        forward, backward = expert_bytes(layer, shard, precision, assumptions)
        again, kernels = expert_repeats(layer, shard, precision)
        if not flow.again:
            total["selective_s"] += again / rate * flow.through
            total["selective_launches"] += kernels * flow.through
    elif precision.holds(layer):
        entering, weights = rows_held(layer, shard) * shard.in_channels, shard.in_channels * shard.out_channels
        there, back = precision.casts_bytes(entering, elements, weights, after_norm=after_norm)
        forward, backward = forward + there, backward + back
    total["forward_s"] += forward / rate
    total["selective_s"] += flow.again * forward / rate
    if flow.through:
        total["backward_s"] += backward / rate


# An adapter is one module to the host, whose time per kernel is that of a module with its Python code (`host_launch_s`), and one node to
# autograd, not three kernels forward (two products and a sum), three for its gradients, and two for that of its input.
_WITHIN_ADAPTER = 2.0


def _add_launches(
    total: dict[str, FloatArray],
    workload: Workload,
    assumptions: MeshAssumptions,
    layer: Layer,
    shard: Shard,
    flow: GradientFlow,
    work: LayerWork,
) -> None:
    """Kernels that the host starts one after the other. Alternative algorithms are taken to be as many."""
    if workload.compute.is_free(layer):
        return
    forward, through, weights = (
        float(sum(kernel.launches for kernel in alternatives[0])) if alternatives else 0.0
        for alternatives in (work.forward, work.backward_input, work.backward_weight)
    )
    if layer.lora_rank:
        forward, through, weights = (count - _WITHIN_ADAPTER for count in (forward, through, weights))
    single = 1.0 - assumptions.captured
    forward, through, weights = single * forward, single * through, single * weights
    apart, autograd = single * softmax_parts(layer, shard, workload.precision.activation_bytes, assumptions)[2:]
    started: FloatArray | float = forward
    if layer.kind == "moe":
        each, returned = expert_kernels(layer.params, shard, workload.precision)
        total["forward_launches"] += assumptions.expert_launches * each
        total["backward_launches"] += assumptions.expert_launches * returned * flow.through
        started = forward + assumptions.expert_launches * each
        # How many tokens each expert gets reaches the host when the router has run: nothing behind it is started ahead. Megatron-LM,
        # megatron/core/transformer/moe/token_dispatcher.py, unless the experts are padded; kernels that read it on the device need no host.
        # It is waited for again where all of the pass runs again, not in selective_s: recomputing modules leaves the router alone, and
        # checkpointing of operators keeps what was copied to the host (torchtitan, activation_checkpoint.py: aten._to_copy to the CPU).
        if assumptions.expert_launches and not assumptions.is_padded:
            total["forward_s"] += assumptions.host_launch_s * started
    total["forward_launches"] += forward + apart
    if flow.again:
        total["selective_launches"] += started + apart
    if not flow.through:
        return
    needed = single * float(sum(kernel.launches for kernel in work.through))
    is_put_off = layer.kind not in ATTENTION and layer.has_weights and flow.to_inputs  # as `_add_compute` has weight_s
    total["weight_launches"] += weights - needed if is_put_off else 0.0
    total["backward_launches"] += (needed if is_put_off else weights) + (through if flow.to_inputs else 0.0) + autograd


def _add_accumulation(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    weights: dict[str, FloatArray],
) -> None:
    """Gradients that are kept wider than they are computed are added to their sum after every micro-batch: read, read and written.

    Under ZeRO-2 and 3 only a share is added up, but all are cast: about as many bytes.
    """
    precision, wide = workload.precision, groups.assumptions.main_gradient_bytes
    if not isinstance(workload.compute, RooflineCompute) or wide <= precision.gradient_bytes:
        return
    moved = (weights["dense_trainable"] + weights["expert_trainable"]) * (precision.gradient_bytes + 2.0 * wide)
    time = moved / workload.compute.device.stream_bytes_per_s
    total["backward_s"] += time
    total["weight_s"] += time
    total["weight_launches"] += 1.0 - groups.assumptions.captured


def _weight_only_s(
    compute: ComputeModel, layer: Layer, shard: Shard, times: PassTimes, work: LayerWork | None
) -> FloatArray:
    """Time of what a schedule may put off: weight gradients without what the gradient of the input needs too."""
    if layer.is_frozen or not (layer.family.work(layer, shard) if work is None else work).through:
        return times.backward_weight_s
    needed = compute.pass_times(replace(layer, frozen=True), shard, needs_input_gradient=True)
    return np.asarray(times.backward_s - needed.backward_s)


def _weights(layer: Layer, role: LayerRole, shard: Shard, keys: RowKeys, *, is_narrow: bool) -> dict[str, FloatArray]:
    """Columns of the table that count the weights of a rank."""
    tp = role.ranks(keys.tp).astype(np.float64)
    routed, shared = float(layer.expert_count), float(layer.shared_count)
    dense = float(layer.weight_count + layer.norm_count) - routed - shared
    if role.role == "column":
        share = shard.out_channels / layer.output_shape[0]
    else:
        share = 1.0 / tp if role.role in ("row", "vocabulary") else np.ones_like(tp)
    own = dense * share + shared / keys.etp
    experts = routed / (keys.ep * keys.etp)
    adapter, repeated = _adapter_share(layer, role, share)
    tied, none = layer.tied_count * share, np.zeros_like(tp)
    narrow = shared / keys.etp if layer.kind == "moe" else own  # a router is not
    narrow = narrow if is_narrow else none
    found = {
        "dense_count": own + adapter,
        "narrow_count": narrow,
        "narrow_trainable": none if layer.is_frozen else narrow,
        "expert_count": experts,
        "dense_trainable": adapter if layer.is_frozen else own,
        "expert_trainable": none if layer.is_frozen else experts,
        "tied_count": tied,
        "tied_trainable": none if layer.is_frozen else tied,
    }
    if role.role == "whole" and role.degree == 1:  # ranks see different positions of what others split
        found["apart_trainable"] = np.where(keys.sequence_parallel > 0, found["dense_trainable"], 0.0)
    elif layer.lora_rank:  # each rank finds a part of the gradient of the factor that all hold
        found["apart_trainable"] = np.where(keys.tp > 1, repeated, 0.0)
    return found


def _adapter_share(layer: Layer, role: LayerRole, share: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights of an adapter on a rank, and how many of them the other tensor-parallel ranks hold too.

    The factor that reads what is split, or makes it, is split with it: rank x inputs and rank x outputs of a matrix split by columns (a
    ``share`` of its outputs) are r I + r O share, of one split by rows r I share + r O (Hu et al., arXiv:2106.09685, section 4.1: W + B A).
    """
    none = np.zeros_like(share)
    if not layer.lora_rank:
        return none, none
    thin = float(layer.lora_rank * layer.output_shape[0])  # rank x outputs; the rest is rank x inputs
    wide = float(layer.adapter_count) - thin
    if role.role == "column":
        return wide + thin * share, wide + none
    if role.role == "row":
        return wide * share + thin, thin + none
    return wide + thin + none, none


# Only the ratio of its rates matters: 200 FLOP per byte lie between an A100 (312 TFLOP/s and 2.0 TB/s: 153) and an H100 (989 TFLOP/s and
# 3.35 TB/s: 295; both dense bf16, NVIDIA datasheets).
_YARDSTICK = Device(
    name="yardstick",
    peak_flop_per_s=dict.fromkeys(FORMATS, 400e12),
    memory_bytes=80e9,
    memory_bandwidth_bytes_per_s=2e12,
)
# Samples that read the weights together: enough that a mixture weighs what its tokens compute, since its experts lie on many ranks.
_SAMPLES = 64


def module_weights(
    workload: Workload, cluster: Cluster, modules: Modules, assumptions: MeshAssumptions
) -> tuple[float, ...]:
    """Kind of module -> forward and backward time on a device that is the same for every cluster.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
        Not used by one rank without neighbours.
    modules : Modules
    assumptions : MeshAssumptions

    Returns
    -------
    tuple of float
        Seconds; only their ratios mean anything.
    """
    beside = [getattr(workload, item.name) for item in fields(workload) if item.name not in ("graph", "compute")]
    return workload.graph.once(
        ("unit weights", modules, assumptions, *beside),
        lambda: _module_weights(workload, cluster, modules, assumptions),
    )


def _module_weights(
    workload: Workload, cluster: Cluster, modules: Modules, assumptions: MeshAssumptions
) -> tuple[float, ...]:
    one = np.ones(1, dtype=np.int64)
    keys = RowKeys(
        tp=one, sequence_parallel=0 * one, cp=one, ep=one, etp=one, micro_batch=_SAMPLES * one, place=0 * one
    )
    compute = RooflineCompute(device=_YARDSTICK, precision=workload.precision, optimizer=workload.optimizer)
    table = module_table(replace(workload, compute=compute), cluster, modules, keys, assumptions=assumptions)
    return tuple(float(x) for x in (table.forward_s + table.backward_s)[0])
