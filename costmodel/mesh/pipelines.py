"""Pipelines without data parallelism: what plans that differ only in ZeRO, replicas and offloading have in common, computed once.

Shapes: c pipelines, K kinds of modules, R runs of chunks, Q kinds of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined, rows_of
from costmodel.mesh.communication import GroupTimes, p2p_s, strides
from costmodel.mesh.passes import ChunkPasses, ModulePasses, alone_share, chunk_passes, module_passes, rank_slack_s
from costmodel.mesh.plan import SCHEDULES, MeshBatch
from costmodel.mesh.rows import ModuleTable
from costmodel.mesh.schedule import ChunkRuns, makespan_s
from costmodel.mesh.stages import LayoutArrays, recomputed_modules, recomputed_share, weigh
from costmodel.tolerances import ROUNDING

__all__ = [
    "PIPELINE_FIELDS",
    "Pipelines",
    "build_pipelines",
    "end_columns",
    "mesh_strides",
    "pipeline_columns",
    "pipeline_s",
]


_INTERLEAVED, _ZERO_BUBBLE = SCHEDULES.index("interleaved"), SCHEDULES.index("zero_bubble")

# What a pipeline fixes; the rest of a plan says how dp is divided and what waits on the host.
PIPELINE_FIELDS: tuple[str, ...] = (
    "tp",
    "sequence_parallel",
    "cp",
    "cp_kind",
    "ep",
    "etp",
    "pp",
    "vpp",
    "schedule",
    "micro_batch",
    "num_micro_batches",
    "recompute",
    "recompute_blocks",
    "order",
)
# What decides the passes of a module.
_PASS_FIELDS = ("tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """Times of many pipelines."""

    batch: MeshBatch  # of the pipelines; fields outside PIPELINE_FIELDS and dp mean nothing
    layouts: LayoutArrays
    pass_of: IntArray  # (c,) row of the two below
    table: ModuleTable  # (u, K)
    passes: ModulePasses  # (u, K)
    stride: dict[str, IntArray]
    transfer_s: FloatArray  # (c, R)
    chunks: ChunkPasses  # (c, R)
    makespan_s: FloatArray  # (c,)
    busy_s: FloatArray  # (c, Q) busy time of every kind of rank per micro-batch; 0 for padding
    rank_forward_s: FloatArray  # (c, Q)
    rank_backward_s: FloatArray
    rank_hiding_s: FloatArray  # (c, Q) backward pass of one micro-batch behind which exchanges hide, that of the network's head left out
    # (c, Q) from the last pass of a rank to that of the first; gathering of ZeRO-3 adds to it. 0 where the times are bounds: those look at
    # the end of the first rank alone.
    rank_slack_s: FloatArray
    run_share: FloatArray  # (c, R) of the blocks of a chunk that is recomputed
    rank_again: FloatArray  # (c, Q, K) modules of a rank that are recomputed
    is_block: BoolArray  # (K,)

    def __len__(self) -> int:
        return len(self.makespan_s)

    def rank_parts(self) -> dict[str, FloatArray]:
        """Busy time of every kind of rank per micro-batch by what it is spent on, (c, Q) each."""
        passes, modules = self.passes, self.layouts.rank_modules
        zero = np.zeros_like(self.busy_s)

        def sum_of(values: FloatArray, counted: FloatArray = modules) -> FloatArray:
            return weigh(counted, values, self.pass_of) if np.any(values) else zero

        return {
            "compute_s": sum_of(passes.compute_forward_s + passes.compute_backward_s),
            "recompute_s": sum_of(passes.recompute_s, self.rank_again),
            "tp_s": sum_of(passes.tp_forward_s + passes.tp_backward_s),
            "cp_s": sum_of(passes.cp_forward_s + passes.cp_backward_s),
            "ep_s": sum_of(passes.ep_forward_s + passes.ep_backward_s),
            "transfer_s": _received_s(passes, self.pass_of, self.layouts, self.batch, self.transfer_s),
        }

    def runs(self, index: IntArray, forward_extra_s: FloatArray, backward_extra_s: FloatArray) -> ChunkRuns:
        """Chunks of a selection of the pipelines with some time added to their passes (n, R)."""
        return ChunkRuns(
            count=rows_of(self.layouts.run_chunks, index),
            forward_s=rows_of(self.chunks.forward_s, index) + forward_extra_s,
            backward_s=rows_of(self.chunks.backward_s, index) + backward_extra_s,
        )


def build_pipelines(
    batch: MeshBatch,
    layouts: LayoutArrays,
    groups: GroupTimes,
    rows: Callable[[MeshBatch], ModuleTable],
    *,
    is_block: BoolArray,
    activation_bytes: int,
    exact: bool,
) -> Pipelines:
    """Time the pipelines of many plans.

    Parameters
    ----------
    batch : MeshBatch
    layouts : LayoutArrays
    groups : GroupTimes
    rows : function of MeshBatch to ModuleTable
        Work, messages and memory of every kind of module.
    is_block : array (K,)
    activation_bytes : int
    exact : bool
        False: ``makespan_s`` of interleaved and zero-bubble pipelines is a lower bound, which is much quicker.

    Returns
    -------
    Pipelines
    """
    stride = mesh_strides(batch)
    deciding = [getattr(batch, name) for name in _PASS_FIELDS]
    if groups.assumptions.contended_step_s:  # collectives inside a layer feel what stages exchange
        deciding += [batch.pp, stride["pp"]]
    hides_tokens = groups.assumptions.ep_overlap > 0.0
    if hides_tokens:  # by other micro-batches, but for those that fill and drain the pipeline
        deciding += [batch.pp, batch.num_micro_batches]
    first, pass_of = combined(*deciding, stride["cp"], stride["ep"], *batch.split_columns)
    distinct = batch.take(first)
    table = rows(distinct)
    passes = module_passes(
        table,
        distinct,
        {name: value[first] for name, value in stride.items()},
        groups,
        is_block=is_block,
        alone=alone_share(distinct) if hides_tokens else None,
    )
    transfer_s = p2p_s(groups, batch, layouts.run_cut, activation_bytes, (stride["pp"],))
    chunks = chunk_passes(passes, pass_of, layouts, batch, transfer_s, is_block)
    runs = ChunkRuns(count=layouts.run_chunks, forward_s=chunks.forward_s, backward_s=chunks.backward_s)
    rank_again = recomputed_modules(layouts, batch.recompute, batch.recompute_blocks)
    forward = weigh(layouts.rank_modules, passes.forward_s, pass_of)
    backward = weigh(layouts.rank_modules, passes.backward_s, pass_of)
    busy = forward + backward
    busy += _received_s(passes, pass_of, layouts, batch, transfer_s)
    if np.any(passes.recompute_s):
        busy += weigh(rank_again, passes.recompute_s, pass_of)
    makespan = pipeline_s(batch, layouts.rank_last, runs, chunks.weight_s, busy, exact=exact)
    return Pipelines(
        batch=batch,
        layouts=layouts,
        pass_of=pass_of,
        table=table,
        passes=passes,
        stride=stride,
        transfer_s=transfer_s,
        chunks=chunks,
        makespan_s=makespan,
        busy_s=busy,
        rank_forward_s=forward,
        rank_backward_s=backward,
        rank_hiding_s=_hiding_s(batch, layouts, passes, pass_of, backward),
        rank_slack_s=rank_slack_s(
            batch.schedule,
            batch.num_micro_batches,
            layouts.rank_first,
            layouts.rank_last,
            layouts.run_chunks,
            chunks.backward_s,
            chunks.weight_s,
        )
        if exact
        else np.zeros_like(busy),
        run_share=recomputed_share(
            layouts.run_modules, is_block, batch.recompute, batch.recompute_blocks, layouts.run_recompute
        ),
        rank_again=rank_again,
        is_block=is_block,
    )


def _hiding_s(
    batch: MeshBatch, layouts: LayoutArrays, passes: ModulePasses, pass_of: IntArray, backward_s: FloatArray
) -> FloatArray:
    """Of the backward pass of every kind of rank, what exchanges of gradients hide behind: (c, Q)."""
    # No gradient is there to travel before those of the network's head (and loss); and weight gradients of a zero-bubble schedule
    # lag behind: they hide nothing.
    lags = (batch.schedule == _ZERO_BUBBLE)[:, None]
    hiding = backward_s - layouts.rank_modules[:, :, -1] * passes.backward_s[pass_of, -1][:, None]
    if np.any(lags):
        later = passes.weight_s.copy()
        later[:, -1] = 0.0
        hiding = np.where(lags, hiding - weigh(layouts.rank_modules, later, pass_of), hiding)
    return np.asarray(hiding)


def pipeline_s(
    batch: MeshBatch,
    rank_last: IntArray,
    runs: ChunkRuns,
    weight_s: FloatArray,
    busy_s: FloatArray,
    *,
    exact: bool,
) -> FloatArray:
    """Time of pipelines, (n,): `costmodel.mesh.schedule.makespan_s`, or a lower bound where the schedule is interleaved or zero-bubble.

    The bound follows one rank: it works after the first micro-batch has come through the chunks before its first one;
    its last backward pass is followed by those of the same chunks. Weight gradients of a zero-bubble schedule may
    come before or after that. Exact for equal chunks (interleaved), or close to it.
    """
    loose = (batch.schedule == _INTERLEAVED) | (batch.schedule == _ZERO_BUBBLE)
    if exact or not np.any(loose):
        return makespan_s(batch.schedule, batch.num_micro_batches, batch.pp, batch.vpp, runs, weight_s)
    total = np.empty(len(batch))
    others = np.flatnonzero(~loose)
    if len(others):
        some = batch.take(others)
        schedule, m = some.schedule, some.num_micro_batches
        total[others] = makespan_s(schedule, m, some.pp, some.vpp, runs.take(others), rows_of(weight_s, others))
    rows = np.flatnonzero(loose)
    total[rows] = _one_rank_s(
        batch.schedule[rows] == _ZERO_BUBBLE,
        batch.num_micro_batches[rows][:, None],
        rows_of(rank_last, rows),
        runs.take(rows),
        rows_of(weight_s, rows),
        rows_of(busy_s, rows),
    )
    return total


def _one_rank_s(
    splits_backward: BoolArray,
    m: IntArray,
    last: IntArray,
    runs: ChunkRuns,
    weight_s: FloatArray,
    busy_s: FloatArray,
) -> FloatArray:
    """Longest path that stays on one rank between its first and its last pass; see `pipeline_s`."""
    forwards, gradients, inner = (np.zeros_like(last, dtype=np.float64) for _ in range(3))
    start = np.zeros((len(last), 1))
    for r in range(runs.count.shape[1]):
        count = runs.count[:, r][:, None]
        before = np.minimum(np.maximum(last - start, 0.0), count)
        split = np.where(splits_backward, weight_s[:, r], 0.0)[:, None]
        forwards += before * runs.forward_s[:, r][:, None]
        gradients += before * (runs.backward_s[:, r][:, None] - split)
        inner = np.where((last >= start) & (last < start + count), split, inner)
        start = start + count
    # All of the rank's work and then nothing; or without its weight gradients, and then the gradients before it and
    # one weight gradient there.
    first_weight = np.where(splits_backward, weight_s[:, 0], 0.0)[:, None]
    alone = forwards + m * busy_s
    through = forwards + m * (busy_s - inner) + gradients + np.minimum(first_weight, inner)
    paths = np.where(splits_backward[:, None], np.maximum(alone, through), alone + gradients)
    return np.asarray(np.max(np.where(last >= 0, paths, 0.0), axis=1) * (1 - ROUNDING))


def mesh_strides(batch: MeshBatch) -> dict[str, IntArray]:
    """Strides of all dimensions, experts included: `costmodel.mesh.communication.strides`."""
    stride = strides(batch.order, batch.tp, batch.cp, batch.dp, batch.pp)
    # Experts fill the tensor-parallel ranks first; beyond the ranks before the pipeline they are pp times as far apart.
    beyond = (batch.ep * batch.etp > stride["pp"]) & (stride["pp"] < stride["dp"])
    stride["ep"] = batch.etp * np.where(beyond, batch.pp, 1)
    return stride


def _received_s(
    passes: ModulePasses, pass_of: IntArray, layouts: LayoutArrays, batch: MeshBatch, transfer_s: FloatArray
) -> FloatArray:
    """What every kind of rank receives from its neighbours, of one micro-batch: (n, Q)."""
    modules = layouts.rank_modules
    # The first chunk of the network receives no input, and the last no gradient.
    received = np.maximum(batch.vpp[:, None] - modules[:, :, 0], 0.0)
    received += np.maximum(_chunks_with_backward(passes, pass_of, layouts, batch) - modules[:, :, -1], 0.0)
    received *= _least(transfer_s)
    return received


def _chunks_with_backward(
    passes: ModulePasses, pass_of: IntArray, layouts: LayoutArrays, batch: MeshBatch
) -> FloatArray:
    """Chunks of every rank through which a gradient flows: all, or those above the first layer that is trained; (n, Q)."""
    flows = passes.compute_backward_s > 0
    if np.all(flows[:, 1:]):  # whatever holds a block or the head has a backward pass
        return np.repeat(batch.vpp[:, None].astype(np.float64), layouts.rank_first.shape[1], axis=1)
    total = np.zeros_like(layouts.rank_first, dtype=np.float64)
    for d in range(layouts.rank_repeats.shape[2]):
        some = weigh(layouts.rank_chunks[:, :, d], flows.astype(np.float64), pass_of)
        total += np.where(some > 0, layouts.rank_repeats[:, :, d], 0)
    return total


def _least(transfer_s: FloatArray) -> FloatArray:
    """Shortest transfer of a pipeline, (n, 1); 0 without any. They are all equal unless tensors pass over blocks."""
    least = np.min(np.where(transfer_s > 0, transfer_s, np.inf), axis=1, keepdims=True)
    return np.where(np.isfinite(least), least, 0.0)


def pipeline_columns(batch: MeshBatch) -> list[IntArray]:
    """Columns whose rows are the distinct pipelines; dp decides strides, so it belongs to them."""
    return [*(getattr(batch, name) for name in PIPELINE_FIELDS), batch.dp, *batch.split_columns]


def end_columns(batch: MeshBatch) -> list[IntArray]:
    """Columns whose rows are the distinct ends of steps, but for how long ranks wait for each other.

    What gradients, weights and the optimizer do there depends neither on recomputation nor, unless weight gradients are
    delayed, on the schedule.
    """
    without = {"recompute", "recompute_blocks", "schedule"}
    lags = (batch.schedule == _ZERO_BUBBLE).astype(np.int64)
    return [
        *(getattr(batch, name) for name in PIPELINE_FIELDS if name not in without),
        batch.dp,
        lags,
        *batch.split_columns,
    ]
