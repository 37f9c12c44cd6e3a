"""What single pipeline stages cost on one group of devices: any number of stages at a time.

Everything is asked of the mesh model's own functions (`costmodel.mesh`), one row per stage, so that a pipeline on one group alone costs
what `MeshModel` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined
from costmodel.mesh.communication import strides
from costmodel.mesh.data_parallel import CopyTimes, Division, copy_groups, exposed_exchange
from costmodel.mesh.memory import PipelineMemory
from costmodel.mesh.model import MeshModel
from costmodel.mesh.passes import module_passes
from costmodel.mesh.plan import MEMORY_PARTS, SCHEDULES, MeshBatch
from costmodel.mesh.stages import LayoutArrays, recomputed_share, weigh
from costmodel.mesh.step import gradient_passes_s
from costmodel.mixed.links import all_reduce_across_s

__all__ = ["StageCosts", "StageRows", "cost_stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """Stages; arrays (n,), modules (n, K).

    Attributes
    ----------
    tp, sequence_parallel, etp, micro_batch, num_micro_batches, recompute, recompute_blocks, zero_stage : arrays
        As in `costmodel.mesh.plan.MeshBatch`.
    stages, position : arrays
        Length of the pipeline, and where in it the stage is.
    group_stages : array
        Stages of the pipeline on this group.
    replicas : array
        Of the pipeline.
    order : array
        Position in ORDERS.
    shapes : array
        Unlike pipelines that exchange gradients.
    fewest_ranks : array
        Ranks over which the pipeline with the fewest has spread each block (replicas x tp): the shares in which gradients cross.
    cross_bytes_per_s, cross_latency_s : arrays
        The link between the pipelines, per share.
    modules : array
        Modules of each kind.
    """

    tp: IntArray
    sequence_parallel: IntArray
    etp: IntArray
    micro_batch: IntArray
    num_micro_batches: IntArray
    recompute: IntArray
    recompute_blocks: IntArray
    zero_stage: IntArray
    stages: IntArray
    position: IntArray
    group_stages: IntArray
    replicas: IntArray
    order: IntArray
    shapes: IntArray
    fewest_ranks: IntArray
    cross_bytes_per_s: FloatArray
    cross_latency_s: FloatArray
    modules: FloatArray

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def of(cls, modules: FloatArray, columns: Mapping[str, ArrayLike]) -> StageRows:
        """Rows from columns by name; a number is the same in every row."""
        arrays: dict[str, Any] = {}
        for item in fields(cls):
            if item.name != "modules":
                number = np.float64 if item.name.startswith("cross") else np.int64
                arrays[item.name] = np.broadcast_to(np.asarray(columns[item.name], dtype=number), len(modules))
        return cls(modules=modules, **arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Costs of stages; arrays (n,). Times of passes are of one micro-batch, without transfers between stages."""

    compute_s: FloatArray
    tp_exposed_s: FloatArray
    recompute_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray  # recomputation included
    plain_backward_s: FloatArray  # without
    exchange_s: FloatArray  # once per step: gradients and, under ZeRO-1, weights, as far as nothing hides them
    update_s: FloatArray  # once per step
    memory_bytes: FloatArray
    memory_parts: dict[str, FloatArray]

    @property
    def end_s(self) -> FloatArray:
        """What a stage does after its last backward pass."""
        return self.exchange_s + self.update_s


def cost_stages(model: MeshModel, rows: StageRows) -> StageCosts:
    """Score stages on one group.

    Parameters
    ----------
    model : MeshModel
        Of the group alone.
    rows : StageRows

    Returns
    -------
    StageCosts
    """
    deciding = [rows.tp, rows.sequence_parallel, rows.etp, rows.micro_batch, rows.recompute]
    if model.assumptions.contended_step_s:  # collectives inside a layer feel what stages exchange
        deciding += [rows.stages, rows.replicas, rows.order]
    first, row = combined(*deciding)
    keys = _batch(rows, first)
    stride = strides(keys.order, keys.tp, keys.cp, keys.dp, rows.group_stages[first])
    stride["ep"] = np.ones_like(keys.tp)
    table = model.rows(keys)
    passes = module_passes(table, keys, stride, model.groups, is_block=model.is_block)
    batch = _batch(rows, np.arange(len(rows)))
    layouts = _layouts(rows, model.is_block)
    modules = layouts.run_modules

    def sum_of(values: FloatArray) -> FloatArray:
        return weigh(modules, values, row)[:, 0]

    share = recomputed_share(modules, model.is_block, batch.recompute, batch.recompute_blocks)[:, 0]
    again = share * sum_of(passes.recompute_s) if model.workload.training else np.zeros(len(rows))
    plain, forward = sum_of(passes.backward_s), sum_of(passes.forward_s)
    # Gradients travel (in buckets) to unlike pipelines, too.
    spread = replace(batch, dp_replicate=batch.dp_replicate * rows.shapes)
    memory = PipelineMemory.build(model.workload, model.assumptions, table, row, layouts, spread, model.is_block)
    division = Division.of(batch, strides(batch.order, batch.tp, batch.cp, batch.dp, rows.group_stages))
    parts = {name: value[:, 0] for name, value in memory.divided(np.arange(len(rows)), division).parts.items()}
    exchange, update = _step_end(model, rows, memory, forward, plain)
    return StageCosts(
        compute_s=sum_of(passes.compute_forward_s + passes.compute_backward_s),
        tp_exposed_s=sum_of(passes.tp_forward_s + passes.tp_backward_s + passes.ep_forward_s + passes.ep_backward_s),
        recompute_s=again,
        forward_s=forward,
        backward_s=plain + again,
        plain_backward_s=plain,
        exchange_s=exchange,
        update_s=update,
        memory_bytes=np.asarray(sum(parts[name] for name in MEMORY_PARTS)),
        memory_parts=parts,
    )


def _batch(rows: StageRows, index: IntArray) -> MeshBatch:
    """The stages as plans of the mesh model: equal replicas that share the optimizer state under ZeRO-1."""
    one = np.ones(len(index), dtype=np.int64)
    zero, replicas = rows.zero_stage[index], rows.replicas[index]
    shared = zero > 0
    return MeshBatch(
        tp=rows.tp[index],
        sequence_parallel=rows.sequence_parallel[index],
        cp=one,
        cp_kind=0 * one,
        ep=one,
        etp=rows.etp[index],
        pp=rows.stages[index],
        vpp=one,
        schedule=SCHEDULES.index("1f1b") * one,
        dp_replicate=np.where(shared, 1, replicas),
        dp_shard=np.where(shared, replicas, 1),
        zero_stage=zero,
        micro_batch=rows.micro_batch[index],
        num_micro_batches=rows.num_micro_batches[index],
        recompute=rows.recompute[index],
        recompute_blocks=rows.recompute_blocks[index],
        offload_optimizer=0 * one,
        offload_activations=0 * one,
        order=rows.order[index],
    )


def _layouts(rows: StageRows, is_block: BoolArray) -> LayoutArrays:
    """One run and one rank per row."""
    modules = rows.modules[:, None, :]
    blocks = modules[:, :, is_block].sum(axis=2, keepdims=True)
    return LayoutArrays(
        run_modules=modules,
        run_chunks=np.ones((len(rows), 1), dtype=np.int64),
        run_cut=np.zeros((len(rows), 1)),
        rank_modules=modules,
        rank_first=rows.position[:, None],
        rank_last=rows.position[:, None],
        run_recompute=np.full((len(rows), 1), -1),
        rank_recompute=np.full((len(rows), 1, 1), -1),
        rank_chunks=modules[:, :, None, :],
        rank_lengths=blocks.astype(np.int64),
        rank_repeats=np.ones(blocks.shape, dtype=np.int64),
    )


def _step_end(
    model: MeshModel, rows: StageRows, memory: PipelineMemory, forward_s: FloatArray, backward_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Exposed exchange and update of every stage, as `costmodel.mesh.step` has them, with the way to unlike pipelines between.

    Where there are unlike pipelines, the replicas of a stage first reduce its gradients into shares, then the shares cross to the other
    pipelines, at last the replicas gather them (under ZeRO-1 the updated weights).
    """
    workload, assumptions = model.workload, model.assumptions
    if not workload.training:
        zero = np.zeros(len(rows))
        return zero, zero
    unlike, sharded = rows.shapes > 1, rows.zero_stage > 0
    batch = _batch(replace(rows, zero_stage=np.where(unlike | sharded, 1, 0)), np.arange(len(rows)))
    copies = copy_groups(batch, strides(batch.order, batch.tp, batch.cp, batch.dp, rows.group_stages))
    times = CopyTimes.of(model.groups, copies, has_experts=bool(np.any(memory.experts)))
    dense, experts = memory.dense_trainable, memory.expert_trainable
    width = max(assumptions.main_gradient_bytes, float(workload.precision.gradient_bytes))
    gradients = ((dense + experts) * width)[:, 0]
    reduce = (times.reduce_s(dense * width, experts * width) + times.replicate_s(dense * width, experts * width))[:, 0]
    if assumptions.zero_whole:
        reduce = np.where(sharded & ~unlike, times.whole_s(dense * width, experts * width)[:, 0], reduce)
    if np.any(unlike):
        shares = gradients * rows.tp / rows.fewest_ranks
        across = all_reduce_across_s(
            shares, rows.shapes.astype(np.float64), rows.cross_bytes_per_s, rows.cross_latency_s
        )
        back = np.where(sharded, 0.0, times.gather_s(dense * width, experts * width)[:, 0])
        reduce = reduce + np.where(unlike, across + back, 0.0)
    kept, embedding = np.where(sharded, assumptions.zero_overlap, 1.0), memory.embedding_trainable[:, 0]
    exposed = exposed_exchange(assumptions, reduce, gradients, kept * backward_s, embedding * width)
    width = float(workload.precision.weight_bytes)
    gather = times.gather_s(dense * width, experts * width)[:, 0]
    weights = ((dense + experts) * width)[:, 0]
    gathering = exposed_exchange(assumptions, gather, weights, kept * forward_s, embedding * width)
    pieces = assumptions.shard_piece_s * rows.replicas * memory.tensors[:, 0]
    exposed = exposed + np.where(sharded, gathering + np.where(rows.replicas > 1, pieces, 0.0), 0.0)
    whole = (dense + experts)[:, 0]
    elements = whole / np.where(sharded, rows.replicas, 1)
    update = workload.compute.update_s(elements)
    update = update + gradient_passes_s(workload, model.groups, whole if assumptions.zero_whole else elements)
    bare_s = assumptions.host_launch_s * assumptions.bare_launch
    started = bare_s * assumptions.update_launches * memory.tensors[:, 0]
    return exposed, np.maximum(update, started)
