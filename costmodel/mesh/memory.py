"""Memory of one rank by what fills it: arrays (n, Q), n plans and Q kinds of ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.costs import MEMORY_PARTS
from costmodel.mesh.passes import LayoutArrays, recomputed_share, weigh
from costmodel.mesh.plan import RECOMPUTE, MeshBatch
from costmodel.mesh.schedule import in_flight
from costmodel.mesh.sharding import CopyGroups
from costmodel.mesh.tables import UnitTable
from costmodel.workload import Workload

__all__ = ["RankMemory", "RankWeights", "rank_memory", "rank_weights"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_FULL, _SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """Weights of a rank before ZeRO, counts (n, Q)."""

    dense: FloatArray
    experts: FloatArray
    dense_trainable: FloatArray
    expert_trainable: FloatArray


def rank_weights(table: UnitTable, layouts: LayoutArrays, pp: IntArray) -> RankWeights:
    """Count the weights of every kind of rank; a pipeline keeps tied weights twice."""
    units = layouts.rank_units
    tied = weigh(units, np.where(pp[:, None] > 1, table.tied_count, 0.0))
    return RankWeights(
        dense=weigh(units, table.dense_count) + tied,
        experts=weigh(units, table.expert_count),
        dense_trainable=weigh(units, table.dense_trainable) + tied,
        expert_trainable=weigh(units, table.expert_trainable),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes by part, arrays (n, Q); the names of `costmodel.mesh.costs.MEMORY_PARTS`."""

    parts: dict[str, FloatArray]
    host_bytes: FloatArray

    @property
    def total_bytes(self) -> FloatArray:
        """All parts."""
        return np.asarray(sum(self.parts[name] for name in MEMORY_PARTS))


def rank_memory(
    workload: Workload,
    assumptions: MeshAssumptions,
    table: UnitTable,
    layouts: LayoutArrays,
    weights: RankWeights,
    batch: MeshBatch,
    copies: CopyGroups,
    is_block: NDArray[np.bool_],
) -> RankMemory:
    """Itemise the memory of every kind of rank.

    Parameters
    ----------
    workload : Workload
    assumptions : MeshAssumptions
    table : UnitTable
        One row per plan.
    layouts : LayoutArrays
    weights : RankWeights
    batch : MeshBatch
    copies : CopyGroups
    is_block : array (K,)

    Returns
    -------
    RankMemory

    Notes
    -----
    Weights, gradients and state follow Rajbhandari et al. (arXiv:1910.02054), activations Korthikanti et al. (arXiv:2205.05198) per
    layer, times the micro-batches in flight of the schedule.
    """
    parts = _states(workload, assumptions, weights, batch, copies)
    offloaded = np.where(batch.offload_optimizer[:, None] > 0, parts["optimizer_bytes"], 0.0)
    parts["optimizer_bytes"] = parts["optimizer_bytes"] - offloaded
    alive = in_flight(
        batch.schedule[:, None], batch.num_micro_batches[:, None], batch.pp[:, None], batch.vpp[:, None], np.maximum(layouts.rank_first, 0)
    )
    saved, hosted = _saved(table, layouts, batch, alive, is_block)
    working = _working(workload, assumptions, table, batch, copies, is_block)
    logits = weigh(layouts.rank_units, table.logits_bytes) * np.where(batch.schedule == 0, batch.num_micro_batches, 1)[:, None]
    exists = layouts.rank_first >= 0
    parts["activation_bytes"] = saved
    parts["working_bytes"] = working
    parts["logits_bytes"] = logits
    parts["buffer_bytes"] = _buffers(assumptions, table, batch, is_block)[:, None] + np.zeros_like(saved)
    parts["slack_bytes"] = assumptions.allocator_slack * (saved + working + logits)
    parts["context_bytes"] = np.full_like(saved, float(workload.context_bytes))
    return RankMemory(
        parts={name: np.where(exists, value, 0.0) for name, value in parts.items()}, host_bytes=np.where(exists, offloaded + hosted, 0.0)
    )


def _states(
    workload: Workload, assumptions: MeshAssumptions, weights: RankWeights, batch: MeshBatch, copies: CopyGroups
) -> dict[str, FloatArray]:
    precision, zero = workload.precision, batch.zero_stage[:, None]
    shard, expert_shard = copies.shard[:, None], copies.expert_shard[:, None]

    def share(dense: FloatArray, experts: FloatArray, stage: int) -> FloatArray:
        return np.asarray(dense / np.where(zero >= stage, shard, 1) + experts / np.where(zero >= stage, expert_shard, 1))

    state = workload.optimizer.state_bytes + precision.master_bytes if workload.training else 0
    gradient = max(assumptions.main_gradient_bytes, float(precision.gradient_bytes)) if workload.training else 0.0
    return {
        "weight_bytes": share(weights.dense, weights.experts, 3) * precision.weight_bytes,
        "gradient_bytes": share(weights.dense_trainable, weights.expert_trainable, 2) * gradient,
        "optimizer_bytes": share(weights.dense_trainable, weights.expert_trainable, 1) * state,
    }


def _saved(
    table: UnitTable, layouts: LayoutArrays, batch: MeshBatch, alive: FloatArray, is_block: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """Activations kept on the device and on the host: (n, Q) each."""
    units = layouts.rank_units
    full = batch.recompute[:, None] == _FULL
    kept = np.where(batch.recompute[:, None] == _SELECTIVE, table.saved_selective_bytes, table.saved_bytes)
    blocks_per_rank = batch.recompute_blocks * batch.vpp  # recompute_blocks counts per chunk
    share = np.where(full, recomputed_share(units, is_block, batch.recompute, blocks_per_rank), 0.0)
    in_blocks = (1.0 - share) * weigh(units, np.where(is_block, kept, 0.0)) + share * weigh(
        units, np.where(is_block, table.input_bytes, 0.0)
    )
    # in_flight counts chunks; a rank's activations are those of vpp of them.
    copies = alive / batch.vpp[:, None]
    outside = weigh(units, np.where(is_block, 0.0, table.saved_bytes)) * copies
    in_blocks = in_blocks * copies
    offload = batch.offload_activations[:, None] > 0
    # Two blocks wait for the copy engines: the one being saved and the one being fetched.
    waiting = np.minimum(2.0 * np.max(np.where(is_block, kept, 0.0), axis=1, keepdims=True), in_blocks)
    return outside + np.where(offload, waiting, in_blocks), np.where(offload, in_blocks - waiting, 0.0)


def _working(
    workload: Workload,
    assumptions: MeshAssumptions,
    table: UnitTable,
    batch: MeshBatch,
    copies: CopyGroups,
    is_block: NDArray[np.bool_],
) -> FloatArray:
    """Memory that is needed now and then: a block run again, gathered weights, the gradient under way. (n, 1)."""
    biggest = np.max(np.where(is_block, table.saved_bytes, 0.0), axis=1)
    cheap = np.max(np.where(is_block, table.saved_bytes - table.saved_selective_bytes, 0.0), axis=1)
    again = np.where(batch.recompute == _FULL, biggest, np.where(batch.recompute == _SELECTIVE, cheap, 0.0))
    unit = np.max(table.dense_count + table.expert_count, axis=1)
    trained = np.max(table.dense_trainable + table.expert_trainable, axis=1)
    sharded = (copies.shard > 1) | (copies.expert_shard > 1)
    gathered = np.where((batch.zero_stage >= 3) & sharded, assumptions.prefetched_units * unit * workload.precision.weight_bytes, 0.0)
    whole_gradient = np.where((batch.zero_stage >= 2) & sharded, trained * workload.precision.gradient_bytes, 0.0)
    under_way = np.max(np.where(is_block, table.widest_bytes, 0.0), axis=1)
    if not workload.training:
        return np.asarray((gathered + under_way)[:, None])
    return np.asarray((again + gathered + whole_gradient + 2.0 * under_way)[:, None])


def _buffers(assumptions: MeshAssumptions, table: UnitTable, batch: MeshBatch, is_block: NDArray[np.bool_]) -> FloatArray:
    """Communication buffers: gathered positions, stage inputs and outputs, gradient buckets, tokens on their way to experts. (n,)."""
    entering = np.max(np.where(is_block, table.input_bytes, 0.0), axis=1)
    gathered = np.where(batch.sequence_parallel > 0, entering * batch.tp, 0.0)
    between = np.where(batch.pp > 1, 2.0 * entering, 0.0)
    buckets = np.where(batch.dp * batch.cp > 1, 2.0 * assumptions.bucket_bytes, 0.0)
    tokens = np.where(batch.ep > 1, 2.0 * np.max(table.dispatch_bytes, axis=1), 0.0)
    return np.asarray(gathered + between + buckets + tokens)
