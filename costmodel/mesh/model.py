"""The judge of mesh plans: one network on one cluster, any number of plans at a time.

    step = pipeline (`costmodel.mesh.schedule`, units with their exposed communication)
         + what gradient reduction and the optimizer leave behind the last backward pass
         + what weight gathering leaves before the first forward pass

A `MeshModel` remembers the rows of its tables (`costmodel.mesh.tables`) and its stage layouts; it is otherwise a pure function of its fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.costs import MEMORY_PARTS, MeshCosts
from costmodel.mesh.groups import GroupTimes, strides
from costmodel.mesh.keys import combined
from costmodel.mesh.memory import RankWeights, rank_memory, rank_weights
from costmodel.mesh.passes import LayoutArrays, UnitPasses, chunk_passes, recomputed_share, stack_layouts, unit_passes, weigh
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.mesh.schedule import ChunkRuns, flush_s
from costmodel.mesh.sharding import CopyGroups, copy_groups, exposed_exchange, gather_s, reduce_s, replicate_s
from costmodel.mesh.stages import Layout, balanced_blocks, layout_of
from costmodel.mesh.tables import RowKeys, UnitTable, unit_table
from costmodel.mesh.units import MeshError, Units, fold
from costmodel.network import Cluster
from costmodel.workload import Workload

__all__ = ["MeshModel"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class _Cache:
    """Rows and layouts seen so far."""

    rows: dict[tuple[int, ...], int] = field(default_factory=dict)
    table: UnitTable | None = None
    layouts: dict[tuple[int, int], Layout] = field(default_factory=dict)
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshModel:
    """A network on a cluster, ready to cost mesh plans.

    Attributes
    ----------
    workload : Workload
    cluster : Cluster
    units : Units
    assumptions : MeshAssumptions
    """

    workload: Workload
    cluster: Cluster
    units: Units
    assumptions: MeshAssumptions = MeshAssumptions()
    _cache: _Cache = field(default_factory=_Cache, repr=False, compare=False)

    @classmethod
    def build(
        cls, workload: Workload, cluster: Cluster, assumptions: MeshAssumptions = MeshAssumptions()
    ) -> MeshModel:
        """Fold the network.

        Raises
        ------
        MeshError
            The network has no repeated blocks.
        """
        return cls(workload=workload, cluster=cluster, units=fold(workload.graph), assumptions=assumptions)

    @property
    def num_blocks(self) -> int:
        """Repeated blocks."""
        return self.units.num_blocks

    @property
    def is_block(self) -> NDArray[np.bool_]:
        """Kind of unit -> whether it is a repeated block."""
        return np.array([kind.is_block for kind in self.units.kinds])

    def layout(self, pp: int, vpp: int) -> Layout:
        """The uniform layout of so many ranks and chunks; see `costmodel.mesh.stages`."""
        known = self._cache.layouts.get((pp, vpp))
        if known is None:
            blocks = balanced_blocks(self.units, self._unit_weights(), pp * vpp)
            known = self._cache.layouts[pp, vpp] = layout_of(self.units, blocks, pp)
        return known

    def _unit_weights(self) -> tuple[float, ...]:
        """Kind of unit -> time of one sample on one device."""
        if not self._cache.weights:
            one = np.ones(1, dtype=np.int64)
            keys = RowKeys(tp=one, sequence_parallel=0 * one, cp=one, ep=one, etp=one, micro_batch=one)
            table = unit_table(self.workload, self.cluster, self.units, keys)
            self._cache.weights = tuple(float(x) for x in (table.forward_s + table.backward_s)[0])
        return self._cache.weights

    def rows(self, batch: MeshBatch) -> UnitTable:
        """Unit costs of every plan, one row each; new rows are computed together."""
        first, inverse = combined(*(getattr(batch, item.name) for item in fields(RowKeys)))
        columns = [getattr(batch, item.name)[first] for item in fields(RowKeys)]
        wanted = list(zip(*(column.tolist() for column in columns), strict=True))
        cache = self._cache
        missing = [n for n, key in enumerate(wanted) if key not in cache.rows]
        if missing:
            keys = RowKeys(**{item.name: column[missing] for item, column in zip(fields(RowKeys), columns, strict=True)})
            added = unit_table(self.workload, self.cluster, self.units, keys)
            for n in missing:
                cache.rows[wanted[n]] = len(cache.rows)
            cache.table = added if cache.table is None else UnitTable.concatenate([cache.table, added])
        assert cache.table is not None
        index = np.array([cache.rows[key] for key in wanted], dtype=np.int64)
        return cache.table.take(index[inverse])

    def layouts(self, batch: MeshBatch) -> LayoutArrays:
        """Uniform layouts of every plan."""
        first, inverse = combined(batch.pp, batch.vpp)
        chosen = [self.layout(int(batch.pp[n]), int(batch.vpp[n])) for n in first]
        return stack_layouts(chosen).take(inverse)

    def evaluate(self, batch: MeshBatch) -> MeshCosts:
        """Score legal plans (`costmodel.mesh.rules` says which are) with the uniform layout.

        Parameters
        ----------
        batch : MeshBatch

        Returns
        -------
        MeshCosts
        """
        return self._evaluate(batch, self.layouts(batch))

    def evaluate_plans(self, plans: Sequence[MeshPlan]) -> MeshCosts:
        """Score plans, those with a layout of their own included.

        Raises
        ------
        MeshError
            ``stage_blocks`` of a plan does not fit the network.
        """
        layouts = [
            layout_of(self.units, plan.stage_blocks, plan.pp) if plan.stage_blocks else self.layout(plan.pp, plan.vpp)
            for plan in plans
        ]
        for plan in plans:
            if plan.stage_blocks and len(plan.stage_blocks) != plan.pp * plan.vpp:
                raise MeshError(f"stage_blocks names {len(plan.stage_blocks)} chunks, pp x vpp is {plan.pp * plan.vpp}")
        return self._evaluate(MeshBatch.from_plans(plans), stack_layouts(layouts))

    def _evaluate(self, batch: MeshBatch, layouts: LayoutArrays) -> MeshCosts:
        parts = _Parts.build(self, batch, layouts)
        return parts.costs()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Intermediate results of one batch."""

    model: MeshModel
    batch: MeshBatch
    layouts: LayoutArrays
    table: UnitTable
    copies: CopyGroups
    groups: GroupTimes
    passes: UnitPasses
    weights: RankWeights
    gather_forward_s: FloatArray  # (n, K) exposed gathering of weights, ZeRO-3
    gather_backward_s: FloatArray
    transfer_s: FloatArray  # (n, R)
    stride: dict[str, IntArray]

    @classmethod
    def build(cls, model: MeshModel, batch: MeshBatch, layouts: LayoutArrays) -> _Parts:
        groups = GroupTimes(cluster=model.cluster)
        stride = strides(batch.order, batch.tp, batch.cp, batch.dp, batch.pp)
        # Experts fill the tensor-parallel ranks first; beyond the ranks before the pipeline they are pp times as far apart.
        near = np.where(stride["pp"] > 1, stride["pp"], 1)
        stride["ep"] = batch.etp * np.where((batch.ep * batch.etp > near) & (stride["pp"] < stride["dp"]), batch.pp, 1)
        table = model.rows(batch)
        copies = copy_groups(batch, stride)
        passes = unit_passes(table, batch, stride, groups, model.assumptions, is_block=model.is_block)
        forward, backward = _gathering(model, batch, table, passes, copies, groups)
        return cls(
            model=model,
            batch=batch,
            layouts=layouts,
            table=table,
            copies=copies,
            groups=groups,
            passes=passes,
            weights=rank_weights(table, layouts, batch.pp),
            gather_forward_s=forward,
            gather_backward_s=backward,
            transfer_s=_transfers(model, batch, layouts, groups, stride),
            stride=stride,
        )

    def costs(self) -> MeshCosts:
        """Put the parts together."""
        batch, units, m = self.batch, self.layouts.rank_units, self.batch.num_micro_batches[:, None]
        chunks = chunk_passes(
            self.passes, self.gather_forward_s, self.gather_backward_s, self.layouts, batch, self.transfer_s, self.model.is_block
        )
        runs = ChunkRuns(count=self.layouts.run_chunks, forward_s=chunks.forward_s, backward_s=chunks.backward_s)
        offload = self._offload_per_micro_batch_s()
        flush = flush_s(batch.schedule, batch.num_micro_batches, batch.pp, batch.vpp, runs, chunks.weight_s)
        rank = self._rank_times()
        load = sum(rank.values())
        slowest = np.argmax(np.where(self.layouts.rank_first >= 0, load, -1.0), axis=1)
        rows = np.arange(len(batch))
        picked = {name: (m * value)[rows, slowest] for name, value in rank.items()}
        forward = weigh(units, self.passes.forward_s)
        backward = weigh(units, self.passes.backward_s)
        end = self._step_end(forward, backward)
        memory = rank_memory(
            self.model.workload, self.model.assumptions, self.table, self.layouts, self.weights, batch, self.copies, self.model.is_block
        )
        total = memory.total_bytes
        fullest = np.argmax(total, axis=1)
        offload_s = batch.num_micro_batches * offload + end["offload_s"]
        dp_exposed = picked["gather_s"] + end["exchange_s"]
        return MeshCosts(
            step_time_s=flush + end["exchange_s"] + end["update_s"] + offload_s,
            compute_s=picked["compute_s"],
            recompute_s=picked["recompute_s"],
            tp_exposed_s=picked["tp_s"],
            cp_exposed_s=picked["cp_s"],
            ep_exposed_s=picked["ep_s"],
            pp_exposed_s=picked["transfer_s"],
            dp_exposed_s=dp_exposed,
            bubble_s=flush - sum(picked.values()),
            optimizer_s=end["update_s"],
            offload_s=offload_s,
            memory_bytes=total[rows, fullest],
            host_bytes=memory.host_bytes[rows, fullest],
            stage=self.layouts.rank_first[rows, fullest],
            **{name: memory.parts[name][rows, fullest] for name in MEMORY_PARTS},
        )

    def _rank_times(self) -> dict[str, FloatArray]:
        """Busy time of every kind of rank per micro-batch, by what it is spent on: (n, Q)."""
        p, units, batch = self.passes, self.layouts.rank_units, self.batch
        share = recomputed_share(
            units, self.model.is_block, batch.recompute, batch.recompute_blocks * batch.vpp
        )
        # The first and the last chunk of the network have one neighbour less.
        ends = units[:, :, 0] + units[:, :, -1]
        received = np.maximum(2.0 * batch.vpp[:, None] - ends, 0.0)
        return {
            "compute_s": weigh(units, p.compute_forward_s + p.compute_backward_s),
            "recompute_s": share * weigh(units, p.recompute_s),
            "tp_s": weigh(units, p.tp_forward_s + p.tp_backward_s),
            "cp_s": weigh(units, p.cp_forward_s + p.cp_backward_s),
            "ep_s": weigh(units, p.ep_forward_s + p.ep_backward_s),
            "gather_s": weigh(units, self.gather_forward_s + self.gather_backward_s),
            "transfer_s": received * np.max(self.transfer_s, axis=1, keepdims=True),
        }

    def _step_end(self, forward_s: FloatArray, backward_s: FloatArray) -> dict[str, FloatArray]:
        """Exposed gradient exchange, weight gathering and update of the stage that ends last: (n,)."""
        model, batch, weights = self.model, self.batch, self.weights
        workload, assumptions = model.workload, model.assumptions
        zero = np.zeros(len(batch))
        if not workload.training:
            return {"exchange_s": zero, "update_s": zero, "offload_s": zero}
        width = max(assumptions.main_gradient_bytes, float(workload.precision.gradient_bytes))
        dense, experts = weights.dense_trainable * width, weights.expert_trainable * width
        stage = batch.zero_stage[:, None]
        reduce = np.where(stage < 3, reduce_s(self.groups, self.copies, dense, experts), 0.0)
        exchange = reduce + replicate_s(self.groups, self.copies, dense, experts)
        exposed = exposed_exchange(assumptions, exchange, dense + experts, backward_s)
        # ZeRO-2 keeps a share of the gradients only, so it reduces after every micro-batch.
        each = exposed_exchange(assumptions, reduce, dense + experts, backward_s)
        exposed = exposed + np.where(stage == 2, (batch.num_micro_batches - 1)[:, None] * each, 0.0)
        share = workload.precision.weight_bytes
        gather = gather_s(self.groups, self.copies, weights.dense_trainable * share, weights.expert_trainable * share)
        gathered = np.where(
            (stage == 1) | (stage == 2),
            exposed_exchange(assumptions, gather, (weights.dense_trainable + weights.expert_trainable) * share, forward_s),
            0.0,
        )
        update, offloaded = self._update_s()
        # Stage s ends its last backward pass s chunks before the first stage does.
        quickest = np.min(np.where(self.layouts.rank_first >= 0, backward_s, np.inf), axis=1, keepdims=True)
        slack = self.layouts.rank_first * quickest / batch.vpp[:, None]
        tail = np.where(self.layouts.rank_first >= 0, exposed + gathered + update + offloaded - slack, -np.inf)
        worst = np.argmax(tail, axis=1)
        rows = np.arange(len(batch))
        whole = np.maximum(tail[rows, worst], 0.0)
        update_s = np.minimum(update[rows, worst], whole)
        offload_s = np.minimum(offloaded[rows, worst], whole - update_s)
        tied = self._tied_exchange_s(width)
        return {"exchange_s": whole - update_s - offload_s + tied, "update_s": update_s, "offload_s": offload_s}

    def _tied_exchange_s(self, width: float) -> FloatArray:
        """The first and the last stage add up the gradients of the embedding that they share."""
        batch = self.batch
        message = np.max(self.table.tied_count, axis=1) * width
        apart = self.stride["pp"] * np.maximum(batch.pp - 1, 1)
        return self.groups.time_s("all_reduce", np.where(batch.pp > 1, 2, 1), apart, message)

    def _update_s(self) -> tuple[FloatArray, FloatArray]:
        """Time of the optimizer on the device, and on the host with both transfers: (n, Q) each."""
        model, batch = self.model, self.batch
        sharded = batch.zero_stage[:, None] > 0
        dense = self.weights.dense_trainable / np.where(sharded, self.copies.shard[:, None], 1)
        experts = self.weights.expert_trainable / np.where(sharded, self.copies.expert_shard[:, None], 1)
        elements = dense + experts
        on_host = batch.offload_optimizer[:, None] > 0
        precision, assumptions = model.workload.precision, model.assumptions
        moved = elements * (assumptions.main_gradient_bytes + precision.weight_bytes)
        touched = elements * model.workload.optimizer.bytes_moved_per_weight(precision)
        hosted = moved / assumptions.host_bytes_per_s + touched / assumptions.host_update_bytes_per_s
        return np.where(on_host, 0.0, model.workload.compute.update_s(elements)), np.where(on_host, hosted, 0.0)

    def _offload_per_micro_batch_s(self) -> FloatArray:
        """What compute does not hide of saving and fetching activations: (n,)."""
        batch, assumptions = self.batch, self.model.assumptions
        if not np.any(batch.offload_activations):
            return np.zeros(len(batch))
        is_block = self.model.is_block
        kept = np.where(batch.recompute[:, None] == 1, self.table.saved_selective_bytes, self.table.saved_bytes)
        kept = np.where(batch.recompute[:, None] == 2, self.table.input_bytes, kept)
        bytes_each = weigh(self.layouts.rank_units, np.where(is_block, kept, 0.0))
        forward = weigh(self.layouts.rank_units, self.passes.compute_forward_s)
        one_way = bytes_each / assumptions.host_bytes_per_s
        exposed = 2.0 * np.maximum(one_way - assumptions.offload_overlap * forward, 0.0)
        return np.asarray(np.where(batch.offload_activations > 0, np.max(exposed, axis=1), 0.0))


def _gathering(
    model: MeshModel, batch: MeshBatch, table: UnitTable, passes: UnitPasses, copies: CopyGroups, groups: GroupTimes
) -> tuple[FloatArray, FloatArray]:
    """ZeRO-3: weights are gathered unit by unit before both passes, gradients scattered behind the backward one: (n, K) each."""
    stage3 = batch.zero_stage[:, None] >= 3
    if not np.any(stage3):
        zero = np.zeros_like(table.forward_s)
        return zero, zero
    precision, overlap = model.workload.precision, model.assumptions.dp_overlap
    gather = gather_s(groups, copies, table.dense_count * precision.weight_bytes, table.expert_count * precision.weight_bytes)
    width = max(model.assumptions.main_gradient_bytes, float(precision.gradient_bytes))
    reduce = reduce_s(groups, copies, table.dense_trainable * width, table.expert_trainable * width)
    forward = np.maximum(gather - overlap * passes.forward_s, 0.0)
    backward = np.maximum(gather + reduce - overlap * (passes.backward_s + passes.recompute_s), 0.0)
    trains = model.workload.training
    return np.where(stage3, forward, 0.0), np.where(stage3 & trains, backward, 0.0)


def _transfers(
    model: MeshModel, batch: MeshBatch, layouts: LayoutArrays, groups: GroupTimes, stride: dict[str, IntArray]
) -> FloatArray:
    """Exposed time to receive the input of a chunk: (n, R). Under sequence parallelism every rank sends its share of the positions."""
    pieces = batch.cp * np.where(batch.sequence_parallel > 0, batch.tp, 1)
    message = layouts.run_cut * (batch.micro_batch / pieces * model.workload.precision.activation_bytes)[:, None]
    pair = np.where(batch.pp > 1, 2, 1)
    sent = groups.time_s("point_to_point", pair, stride["pp"], message)
    return sent * (1.0 - model.assumptions.pp_overlap)
