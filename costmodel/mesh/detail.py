"""One mesh plan in detail: its layers, pipeline ranks, links and model FLOPs as rows.

The rows come from the same tables as the plan's cost: layer times add up to the compute and the tensor-parallel communication of a
micro-batch, rank memory to the memory of the plan.

Model FLOPs
-----------
What a step must compute, whatever the plan; the numerator of the model FLOPs utilisation (MFU).

Convention (Chowdhery et al., PaLM, arXiv:2204.02311, appendix B): matrix products only, a multiply-add counted as
two, forward plus both gradients, recomputation not counted; attention counts the pairs of positions that its mask
leaves. A step's MFU is that over step time, devices and the dense peak of the number format.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.hardware.cluster import LinkRow, link_rows
from costmodel.layerwise.plan import shard_of, split_table
from costmodel.mesh.communication import Division, mesh_strides
from costmodel.mesh.memory import add_saved_inputs, add_saved_layer, saved_facts
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import MODULE_COLUMNS
from costmodel.mesh.plan import MEMORY_PARTS, MeshBatch, MeshPlan
from costmodel.mesh.stages import stack_layouts
from costmodel.mesh.tables import add_layer, module_roles
from costmodel.mesh.tensor_parallel import check_splits
from costmodel.network.layers import ATTENTION, Layer
from costmodel.network.layers.base import PassWork
from costmodel.schedules import chunks_of_ranks
from costmodel.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One layer of one kind of module, on one rank, for one micro-batch."""

    unit: str  # "embedding", "head", or the first block of its kind
    count: int  # modules of this kind in the network
    name: str
    kind: str
    split: str  # how tensor parallelism splits it
    degree: int = 1  # over so many ranks; those beyond repeat it
    forward_s: float
    backward_s: float
    tp_exchange_s: float  # both passes
    weight_count: int  # of the whole layer
    weights_per_rank: int
    saved_bytes: float  # that it adds to what a micro-batch keeps for the backward pass, nothing recomputed; with what the next block reads
    saved_selective_bytes: float  # the same under selective recomputation


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One pipeline rank; times of one micro-batch. The parts of its memory add up to it, and what is on the host is beside it."""

    rank: int
    blocks: str  # per chunk: "8" or "4+4"
    forward_s: float  # communication inside the layers included
    backward_s: float
    recompute_s: float
    transfer_s: float
    in_flight: float  # micro-batches whose activations it keeps at once, in chunks of equal size
    memory_bytes: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    working_bytes: float
    logits_bytes: float
    buffer_bytes: float
    slack_bytes: float
    context_bytes: float
    host_bytes: float


def layer_rows(model: MeshModel, plan: MeshPlan) -> list[LayerRow]:
    """Every layer of every kind of module.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan

    Returns
    -------
    list of LayerRow
        In network order; equal modules once.
    """
    keys = model.row_keys(MeshBatch.from_plans([plan]))
    graph = model.workload.graph
    check_splits(graph, model.modules, plan)
    rows = []
    for number, kind in enumerate(model.modules.kinds):
        facts = saved_facts(model.workload, kind)
        for position, role in enumerate(module_roles(graph, kind, keys, plan.block_splits)):
            layer = graph.layers[kind.layers[position]]
            total = {name: np.zeros(1) for name in MODULE_COLUMNS}
            add_layer(total, model.workload, model.groups, kind, position, role, keys)
            if model.workload.training:
                add_saved_layer(total, model.workload, model.assumptions, kind, keys, position, role, facts[position])
                # What a block reads is made by the last layer of the one before; what the head reads is shown where it does.
                if position == (len(kind.layers) - 1 if layer.block else 0):
                    add_saved_inputs(total, model.workload, kind, keys)
            one = {name: float(value[0]) for name, value in total.items()}
            rows.append(
                LayerRow(
                    unit=kind.name,
                    count=model.modules.kind_of.count(number),
                    name=layer.name.removeprefix(f"{layer.block}."),
                    kind=layer.kind,
                    split=role.role,
                    degree=plan.tp if role.is_split and not role.degree else max(role.degree, 1),
                    forward_s=one["forward_s"],
                    backward_s=one["backward_s"],
                    tp_exchange_s=one["tp_forward_s"] + one["tp_backward_s"],
                    weight_count=layer.weight_count + layer.norm_count,
                    weights_per_rank=round(one["dense_count"] + one["expert_count"]),
                    saved_bytes=one["saved_bytes"],
                    saved_selective_bytes=one["saved_selective_bytes"],
                )
            )
    return rows


def stage_rows(model: MeshModel, plan: MeshPlan) -> list[StageRow]:
    """Every pipeline rank.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan

    Returns
    -------
    list of StageRow

    Raises
    ------
    MeshError
        ``stage_blocks`` or ``stage_recompute`` does not fit the network.
    """
    layout = model.layout_of_plan(plan, every_rank=True)
    layouts = stack_layouts([layout])
    batch = MeshBatch.from_plans([plan])
    pipelines = model.pipelines(batch, layouts)
    parts = pipelines.rank_parts()
    division = Division.of(batch)
    pipeline = model.pipeline_memory(batch, layouts)
    memory = pipeline.divided(np.zeros(1, dtype=np.int64), division)
    total = memory.total_bytes[0]
    rows = []
    for place in np.argsort(layout.rank_first).tolist():
        rank = int(layout.rank_first[place])
        own = chunks_of_ranks(plan.schedule, plan.pp, plan.vpp)[rank].tolist()
        rows.append(
            StageRow(
                rank=rank,
                blocks="+".join(str(layout.blocks[c]) for c in own),
                forward_s=float(pipelines.rank_forward_s[0, place]),
                backward_s=float(pipelines.rank_backward_s[0, place]),
                recompute_s=float(parts["recompute_s"][0, place]),
                transfer_s=float(parts["transfer_s"][0, place]),
                in_flight=float(pipeline.alive[0, place]),
                memory_bytes=float(total[place]),
                host_bytes=float(memory.host_bytes[0, place]),
                **{name: float(memory.parts[name][0, place]) for name in MEMORY_PARTS},
            )
        )
    return rows


def mesh_links(model: MeshModel, plan: MeshPlan) -> list[LinkRow]:
    """Every dimension whose ranks exchange something.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan

    Returns
    -------
    list of LinkRow
        The times are those of `MeshCosts`. Shards and their copies share the time of data parallelism, which stands where the group is that
        spans most: the other row has none.
    """
    batch = MeshBatch.from_plans([plan])
    stride = {name: int(value[0]) for name, value in mesh_strides(batch).items()}
    copies, costs = Division.of(batch), model.evaluate_plans([plan])
    place = model.groups.places(batch)
    inner = [
        ("tensor parallel", plan.tp, stride["tp"], float(costs.tp_exposed_s[0])),
        ("context parallel", plan.cp, stride["cp"], float(costs.cp_exposed_s[0])),
        ("expert parallel", plan.ep, stride["ep"], float(costs.ep_exposed_s[0])),
        ("between stages", plan.pp, stride["pp"], float(costs.pp_exposed_s[0])),
    ]
    shared = int(copies.shard[0]), int(copies.shard_stride[0])
    repeated = int(copies.replicate[0]), int(copies.replicate_stride[0])
    waiting = float(costs.dp_exposed_s[0])
    widest = int(np.argmax([size * apart if size > 1 else 0 for size, apart in (shared, repeated)]))
    outer = [
        ("data parallel, shards", *shared, waiting if widest == 0 else 0.0),
        ("data parallel, copies", *repeated, waiting if widest == 1 else 0.0),
    ]
    spans = [(name, model.groups.span_of(n, t, place), t, waits) for name, n, t, waits in (*inner, *outer) if n > 1]
    return link_rows(model.cluster, spans)


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
    needs = workload.graph.needs_gradient
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
    shard = shard_of(layer, split_table([1]), 1)
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
