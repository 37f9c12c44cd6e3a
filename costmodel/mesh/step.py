"""From pipelines to steps: gradient exchange, weight gathering, optimizer and offloading around them.

Shapes: n plans, R runs of chunks, Q kinds of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.cores import Cores, pipeline_s
from costmodel.mesh.costs import MEMORY_PARTS, MeshCosts
from costmodel.mesh.groups import GroupTimes
from costmodel.mesh.keys import combined
from costmodel.mesh.memory import CoreMemory
from costmodel.mesh.passes import rank_recomputed_share, recomputed_share, weigh
from costmodel.mesh.plan import SCHEDULES, MeshBatch
from costmodel.mesh.sharding import CopyTimes, Division, exposed_exchange
from costmodel.workload import Workload

__all__ = ["step_costs", "step_times"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_ZERO_BUBBLE = SCHEDULES.index("zero_bubble")
_ROUNDING = 1e-12


def step_costs(
    workload: Workload,
    groups: GroupTimes,
    cores: Cores,
    memory: CoreMemory,
    index: IntArray,
    division: Division,
    *,
    exact: bool = True,
) -> MeshCosts:
    """Score plans that share pipelines.

    Parameters
    ----------
    workload : Workload
    groups : GroupTimes
    cores : Cores
    memory : CoreMemory
        Of the same cores.
    index : array (n,)
        Core of every plan.
    division : Division
    exact : bool
        False: step times are lower bounds.

    Returns
    -------
    MeshCosts
    """
    totals = _Totals.of(workload, groups, cores, memory, index, division, exact=exact)
    m = cores.batch.num_micro_batches[index]
    exists = cores.layouts.rank_first[index] >= 0
    parts = {name: value[index] for name, value in cores.rank_parts.items()}
    load = sum(parts.values()) + totals.gathering_s
    slowest = np.argmax(np.where(exists, load, -1.0), axis=1)
    rows = np.arange(len(index))
    picked = {name: m * value[rows, slowest] for name, value in parts.items()}
    gather_s = m * totals.gathering_s[rows, slowest]
    bubble = totals.flush_s - sum(picked.values()) - gather_s
    filled = memory.divided(index, division)
    total = filled.total_bytes
    fullest = np.argmax(total, axis=1)
    return MeshCosts(
        step_time_s=totals.step_time_s,
        compute_s=picked["compute_s"],
        recompute_s=picked["recompute_s"],
        tp_exposed_s=picked["tp_s"],
        cp_exposed_s=picked["cp_s"],
        ep_exposed_s=picked["ep_s"],
        pp_exposed_s=picked["transfer_s"],
        dp_exposed_s=gather_s + totals.exchange_s,
        bubble_s=np.where(np.abs(bubble) > _ROUNDING * totals.flush_s, bubble, 0.0),
        optimizer_s=totals.update_s,
        offload_s=totals.offload_s,
        memory_bytes=total[rows, fullest],
        host_bytes=filled.host_bytes[rows, fullest],
        stage=cores.layouts.rank_first[index][rows, fullest],
        **{name: filled.parts[name][rows, fullest] for name in MEMORY_PARTS},
    )


def step_times(
    workload: Workload,
    groups: GroupTimes,
    cores: Cores,
    memory: CoreMemory,
    index: IntArray,
    division: Division,
    *,
    exact: bool = True,
) -> FloatArray:
    """Step times alone, (n,): what `step_costs` says, without the parts."""
    return _Totals.of(workload, groups, cores, memory, index, division, exact=exact).step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """The terms of the step, arrays (n,)."""

    flush_s: FloatArray
    gathering_s: FloatArray  # (n, Q) of flush_s, per micro-batch: waiting for weights
    exchange_s: FloatArray
    update_s: FloatArray
    offload_s: FloatArray

    @property
    def step_time_s(self) -> FloatArray:
        """Their sum."""
        return self.flush_s + self.exchange_s + self.update_s + self.offload_s

    @classmethod
    def of(
        cls,
        workload: Workload,
        groups: GroupTimes,
        cores: Cores,
        memory: CoreMemory,
        index: IntArray,
        division: Division,
        *,
        exact: bool,
    ) -> _Totals:
        times = CopyTimes.of(groups, division.copies, has_experts=bool(np.any(memory.experts)))
        gathering = _gathered(workload, cores, times, index, division, exact=exact)
        # Rank 0 ends last: what it leaves is a bound for all.
        ranks = slice(None) if exact else slice(0, 1)
        end = _StepEnd(workload, groups, cores, memory, times, index, division, gathering.hidden_s, ranks)
        exchange_s, update_s, hosted_s = end.parts()
        m = cores.batch.num_micro_batches[index]
        waiting = gathering.waiting_s
        offload_s = hosted_s + m * _offload_per_micro_batch_s(groups, cores, memory, index, division, waiting)
        return cls(
            flush_s=gathering.flush_s,
            gathering_s=waiting,
            exchange_s=exchange_s,
            update_s=update_s,
            offload_s=offload_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathering:
    """The pipeline with ZeRO-3's gathering; arrays (n, Q) are of one micro-batch."""

    flush_s: FloatArray  # (n,)
    waiting_s: FloatArray  # what a rank waits for weights and gradients, part of flush_s
    hidden_s: FloatArray  # what backward passes hide of it, and of nothing else any more


def _gathered(
    workload: Workload, cores: Cores, times: CopyTimes, index: IntArray, division: Division, *, exact: bool
) -> _Gathering:
    """Time of the pipeline with ZeRO-3's gathering.

    Weights are gathered unit by unit before both passes, gradients scattered behind the backward one. Behind which a zero-bubble schedule
    hides no more than input gradients take.
    """
    flush = cores.flush_s[index]
    waiting = np.zeros((len(index), cores.layouts.rank_first.shape[1]))
    hidden = np.zeros_like(waiting)
    rows = np.flatnonzero(division.zero_stage >= 3)
    if not len(rows):
        return _Gathering(flush_s=flush, waiting_s=waiting, hidden_s=hidden)
    # What is offloaded makes no difference here.
    shared = division.copies.shard[rows], division.copies.expert_shard[rows]
    first, same = combined(index[rows], *shared)
    chosen = rows[first]
    core = index[chosen]
    unit, some = cores.pass_of[core], times.take(chosen)
    layouts, batch = cores.layouts.take(core), cores.batch.take(core)
    overlap = times.groups.assumptions.dp_overlap
    gather, reduce = _unit_exchanges(workload, cores, some, unit, batch)
    passes = cores.passes
    forward = np.maximum(gather - overlap * passes.forward_s[unit], 0.0)
    run_forward, extra = weigh(layouts.run_units, forward), weigh(layouts.rank_units, forward)
    run_backward, behind = np.zeros_like(run_forward), np.zeros_like(extra)
    if workload.training:
        moved = gather + reduce
        lags = (batch.schedule == _ZERO_BUBBLE)[:, None]
        hiding = passes.backward_s[unit] - np.where(lags, passes.weight_s[unit], 0.0)
        plain = np.maximum(moved - overlap * hiding, 0.0)
        # A unit that is recomputed gathers its weights once for both passes, and hides them behind both.
        again = np.maximum(moved - overlap * (hiding + passes.recompute_s[unit]), 0.0)
        run_share = recomputed_share(
            layouts.run_units, cores.is_block, batch.recompute, batch.recompute_blocks, layouts.run_recompute
        )
        rank_share = rank_recomputed_share(layouts, batch.recompute, batch.recompute_blocks)
        run_backward = _mixed(layouts.run_units, plain, again, run_share)
        extra = extra + _mixed(layouts.rank_units, plain, again, rank_share)
        behind = weigh(layouts.rank_units, np.minimum(moved, overlap * hiding))
    runs = cores.runs(core, run_forward, run_backward)
    busy = cores.busy_s[core] + extra
    time = pipeline_s(batch, layouts, runs, cores.chunks.weight_s[core], busy, exact=exact)
    flush[rows], waiting[rows], hidden[rows] = time[same], extra[same], behind[same]
    return _Gathering(flush_s=flush, waiting_s=waiting, hidden_s=hidden)


def _unit_exchanges(
    workload: Workload, cores: Cores, times: CopyTimes, unit: IntArray, batch: MeshBatch
) -> tuple[FloatArray, FloatArray]:
    """Time to gather the weights of every kind of unit, and to scatter its gradients: (n, K) each."""
    table, width = cores.table, workload.precision.weight_bytes
    cut = (batch.pp > 1)[:, None]
    dense = table.dense_count[unit] + np.where(cut, table.tied_count[unit], 0.0)
    gather = times.gather_s(dense * width, table.expert_count[unit] * width)
    if not workload.training:
        return gather, np.zeros_like(gather)
    wide = _gradient_width(workload, times.groups)
    trained = table.dense_trainable[unit] + np.where(cut, table.tied_trainable[unit], 0.0)
    return gather, times.reduce_s(trained * wide, table.expert_trainable[unit] * wide, in_buckets=False)


def _mixed(units: FloatArray, plain: FloatArray, again: FloatArray, share: FloatArray) -> FloatArray:
    """Sum over units of which a share takes ``again`` and the rest ``plain``."""
    return share * weigh(units, again) + (1.0 - share) * weigh(units, plain)


def _gradient_width(workload: Workload, groups: GroupTimes) -> float:
    return max(groups.assumptions.main_gradient_bytes, float(workload.precision.gradient_bytes))


class _StepEnd:
    """Exposed gradient exchange, weight gathering and update of the stage that ends last."""

    def __init__(
        self,
        workload: Workload,
        groups: GroupTimes,
        cores: Cores,
        memory: CoreMemory,
        times: CopyTimes,
        index: IntArray,
        division: Division,
        hidden_s: FloatArray,
        ranks: slice,
    ) -> None:
        self.hidden_s = hidden_s  # (n, Q) of other exchanges behind the last backward pass
        self.workload, self.groups, self.cores, self.memory = workload, groups, cores, memory
        self.times, self.index, self.division = times, index, division
        self.ranks = ranks  # kinds of ranks that are looked at

    def parts(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Exchange, update on the device, update on the host: (n,) each."""
        index, division = self.index, self.division
        if not self.workload.training:
            zero = np.zeros(len(index))
            return zero, zero, zero
        width = _gradient_width(self.workload, self.groups)
        stage = division.zero_stage[:, None]
        dense = self.memory.dense_trainable[:, self.ranks][index]
        experts = self.memory.expert_trainable[:, self.ranks][index]
        hides = self.groups.assumptions.dp_overlap
        hiding = self.cores.rank_hiding_s[:, self.ranks][index] - self.hidden_s[:, self.ranks] / max(hides, 1e-9)
        waiting = self._reduction(dense * width, experts * width, stage, np.maximum(hiding, 0.0))
        waiting += self._gathering(dense, experts, stage)
        update, hosted = self._update_s(dense, experts)
        rank_first = self.cores.layouts.rank_first[:, self.ranks][index]
        exists = rank_first >= 0
        # A rank ends its last backward pass while those before it still have theirs.
        slack = self.cores.rank_slack_s[:, self.ranks][index]
        tail = np.where(exists, waiting + update + hosted - slack, -np.inf)
        worst = np.argmax(tail, axis=1)
        rows = np.arange(len(index))
        whole = np.maximum(tail[rows, worst], 0.0)
        update_s = np.minimum(update[rows, worst], whole)
        hosted_s = np.minimum(hosted[rows, worst], whole - update_s)
        return whole - update_s - hosted_s + self._tied_exchange_s(width), update_s, hosted_s

    def _reduction(self, dense: FloatArray, experts: FloatArray, stage: IntArray, backward: FloatArray) -> FloatArray:
        """Exposed reduction of gradients: (n, Q)."""
        assumptions = self.groups.assumptions
        reduce = np.where(stage < 3, self.times.reduce_s(dense, experts), 0.0)
        exchange = reduce + self.times.replicate_s(dense, experts)
        exposed = exposed_exchange(assumptions, exchange, dense + experts, backward)
        if np.any(stage == 2):
            # ZeRO-2 keeps a share of the gradients only, so it reduces after every micro-batch.
            each = exposed_exchange(assumptions, reduce, dense + experts, backward)
            others = (self.cores.batch.num_micro_batches[self.index] - 1)[:, None]
            exposed += np.where(stage == 2, others * each, 0.0)
        return exposed

    def _gathering(self, dense: FloatArray, experts: FloatArray, stage: IntArray) -> FloatArray:
        """Exposed gathering of updated weights behind the next forward pass (ZeRO-1 and 2): (n, Q)."""
        width = self.workload.precision.weight_bytes
        gather = self.times.gather_s(dense * width, experts * width)
        forward = self.cores.rank_forward_s[:, self.ranks][self.index]
        exposed = exposed_exchange(self.groups.assumptions, gather, (dense + experts) * width, forward)
        return np.where((stage == 1) | (stage == 2), exposed, 0.0)

    def _update_s(self, dense: FloatArray, experts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Time of the optimizer on the device, and on the host with both transfers: (n, Q) each."""
        workload, assumptions, division = self.workload, self.groups.assumptions, self.division
        sharded = division.zero_stage[:, None] > 0
        elements = dense / np.where(sharded, division.copies.shard[:, None], 1)
        elements = elements + experts / np.where(sharded, division.copies.expert_shard[:, None], 1)
        on_device = workload.compute.update_s(elements)
        if not np.any(division.offload_optimizer):
            return on_device, np.zeros_like(on_device)
        moved = elements * (assumptions.main_gradient_bytes + workload.precision.weight_bytes)
        touched = elements * workload.optimizer.bytes_moved_per_weight(workload.precision)
        hosted = moved / assumptions.host_bytes_per_s + touched / assumptions.host_update_bytes_per_s
        away = division.offload_optimizer[:, None] > 0
        return np.where(away, 0.0, on_device), np.where(away, hosted, 0.0)

    def _tied_exchange_s(self, width: float) -> FloatArray:
        """The first and the last stage add up the gradients of the embedding that they share: (n,)."""
        cores = self.cores
        if not np.any(cores.table.tied_count):
            return np.zeros(len(self.index))
        message = np.max(cores.table.tied_count, axis=1)[cores.pass_of] * width
        pp = cores.batch.pp
        pair = self.groups.find(np.where(pp > 1, 2, 1), cores.stride["pp"] * np.maximum(pp - 1, 1))
        return self.groups.time_s("all_reduce", pair, message)[self.index]


def _offload_per_micro_batch_s(
    groups: GroupTimes, cores: Cores, memory: CoreMemory, index: IntArray, division: Division, waiting_s: FloatArray
) -> FloatArray:
    """What compute does not hide of saving and fetching activations, (n,); while a rank waits for weights, they travel."""
    if not np.any(division.offload_activations):
        return np.zeros(len(index))
    assumptions = groups.assumptions
    one_way = memory.block_bytes / memory.alive / assumptions.host_bytes_per_s
    forward = weigh(cores.layouts.rank_units, cores.passes.compute_forward_s, cores.pass_of)
    exposed = 2.0 * np.maximum(one_way - assumptions.offload_overlap * forward, 0.0)
    shown = np.max(np.maximum(exposed[index] - waiting_s, 0.0), axis=1)
    return np.where(division.offload_activations > 0, shown, 0.0)
