"""Lower bounds of the step time of a pipeline, before its ranks are ordered and dp is divided.

Weight gathering under ZeRO-3
-----------------------------
Sharing weights among few ranks is quick and saves little memory. Under ZeRO-3 all state of a rank is shared, so a memory-saving mode
fits only where state is shared by so many ranks that (`ModeNeeds.shards`)

    state / dp_shard + what does not depend on it <= capacity

No division with as many, in no order of the ranks, gathers a module's weights or scatters its gradients in less than the least latency of
any plus the bytes at the quickest rate of any. Of that, passes hide a share (`costmodel.mesh.step.chunk_gathering`); more so if modules are
recomputed, but by no more than the recomputation takes. So a rank is busy for this long at least, whatever it recomputes.

Each memory-saving mode
-----------------------
A rank r starts when the first micro-batch has come through the chunks before its first one, works ``m busy_r``, and ends before the
backward passes of these chunks (weight gradients of a zero-bubble schedule fill gaps, so there they are left out):

    step >= lead_r + m (busy_r + again_r + shown_r)

``again_r`` is the forward pass of the blocks that must at least be recomputed for the pipeline to fit. ``shown_r`` is what compute does
not hide of moving activations to the host and back: with a share s of what blocks keep freed by running them again, ``again_r >= s R``
grows (R: all of it at the rate of the kind of block that frees most for its time) and ``shown_r = 2 max(E - s D - H, 0)`` falls, both
linearly, so the least sum lies at s = 0, s = 1 or where the maximum turns.
Activations also travel while a rank of ZeRO-3 waits for weights; that wait is part of its busy time, so the sum stays. Below ZeRO-3 nothing
else changes the pipeline, and ``step >= pipeline + m max_r shown_r`` too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined, rows_of
from costmodel.mesh.communication import copy_groups, p2p_s
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import ModuleTable
from costmodel.mesh.passes import (
    ChunkPasses,
    ModulePasses,
    Pipelines,
    chunk_passes,
    mesh_strides,
    module_passes,
    pipeline_s,
    time_before,
)
from costmodel.mesh.plan import RECOMPUTE, SCHEDULES, MeshBatch
from costmodel.mesh.schedule import ChunkRuns
from costmodel.mesh.stages import LayoutArrays, recomputed_modules, weigh
from costmodel.mesh.step import gradient_width, hidden_s, one_way_s, shown_s
from costmodel.tolerances import EQUAL
from strategies.mesh.memory_modes import MemoryModes, ModeNeeds
from strategies.mesh.space import MeshSpace, batch_of, selected

__all__ = ["LeastGathering", "PipelineTimes", "least_step_s", "raise_for_gathering", "worthy_times"]


# What decides the passes of a module, given the best order.
_PASS_FIELDS = ("tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """What bounds are made of: exact times of pipelines (`of`), or the least of any order of their ranks (`worthy_times`).

    Shapes: n pipelines, R runs of chunks, Q kinds of ranks; ``passes`` has a row ``pass_of`` for each.
    """

    batch: MeshBatch
    layouts: LayoutArrays
    pass_of: IntArray
    passes: ModulePasses
    table: ModuleTable  # of the same rows
    chunks: ChunkPasses  # (n, R)
    busy_s: FloatArray  # (n, Q)
    makespan_s: FloatArray  # (n,)

    @classmethod
    def of(cls, pipelines: Pipelines) -> PipelineTimes:
        """Those of pipelines."""
        return cls(
            batch=pipelines.batch,
            layouts=pipelines.layouts,
            pass_of=pipelines.pass_of,
            passes=pipelines.passes,
            table=pipelines.table,
            chunks=pipelines.chunks,
            busy_s=pipelines.busy_s,
            makespan_s=pipelines.makespan_s,
        )

    def take(self, index: IntArray) -> PipelineTimes:
        """A selection of the pipelines."""
        return PipelineTimes(
            batch=self.batch.take(index),
            layouts=self.layouts.take(index),
            pass_of=self.pass_of[index],
            passes=self.passes,
            table=self.table,
            chunks=ChunkPasses(
                **{item.name: rows_of(getattr(self.chunks, item.name), index) for item in fields(ChunkPasses)}
            ),
            busy_s=rows_of(self.busy_s, index),
            makespan_s=self.makespan_s[index],
        )


def worthy_times(
    model: MeshModel, batch: MeshBatch, is_worthy: Callable[[FloatArray, MeshBatch], BoolArray] | None
) -> tuple[IntArray, PipelineTimes]:
    """Pipelines without data parallelism that are worth it: which these are, and times that no order of their ranks goes below.

    Collectives inside the layers run among neighbours (as in `MeshModel.work_s`), transfers between stages over the nearest link of any
    order: no order has all of that at once. Every schedule takes longer if a chunk does, so the times are bounds.

    Parameters
    ----------
    model : MeshModel
    batch : MeshBatch
    is_worthy : function of (times, pipelines), optional
        Whether pipelines can matter that take no less; without it all are. It is asked first with how long the slowest rank is busy,
        which is soon known.
    """
    first, pass_of = combined(*(getattr(batch, name) for name in _PASS_FIELDS))
    distinct = batch.take(first)
    zero = np.zeros(len(distinct), dtype=np.int64)
    bare = replace(distinct, order=zero, pp=zero + 1)
    is_block = model.is_block
    table = model.rows(bare)
    passes = module_passes(table, bare, mesh_strides(bare), model.groups, is_block=is_block)
    busy = weigh(model.rank_modules(batch), passes.forward_s + passes.backward_s, pass_of)
    rows = np.arange(len(batch))
    if is_worthy is not None:
        rows = np.flatnonzero(is_worthy(batch.num_micro_batches * np.max(busy, axis=1), batch))
        batch, pass_of, busy = batch.take(rows), pass_of[rows], rows_of(busy, rows)
    layouts = model.layouts(batch)
    transfer_s = _least_transfer_s(model, batch, layouts.run_cut)
    chunks = chunk_passes(passes, pass_of, layouts, batch, transfer_s, is_block)
    runs = ChunkRuns(count=layouts.run_chunks, forward_s=chunks.forward_s, backward_s=chunks.backward_s)
    if np.any(passes.recompute_s):
        busy += weigh(recomputed_modules(layouts, batch.recompute, batch.recompute_blocks), passes.recompute_s, pass_of)
    makespan_s = pipeline_s(batch, layouts.rank_last, runs, chunks.weight_s, busy, exact=False)
    times = PipelineTimes(
        batch=batch,
        layouts=layouts,
        pass_of=pass_of,
        passes=passes,
        table=table,
        chunks=chunks,
        busy_s=busy,
        makespan_s=makespan_s,
    )
    if is_worthy is None:
        return rows, times
    kept = np.flatnonzero(is_worthy(makespan_s, batch))
    return rows[kept], times.take(kept)


def _least_transfer_s(model: MeshModel, batch: MeshBatch, cut: FloatArray) -> FloatArray:
    """Exposed time to receive a chunk's input from the nearest of all places where the stage before can be: (n, R)."""
    strides = (batch.tp, batch.tp * batch.cp, batch.tp * batch.dp, batch.tp * batch.cp * batch.dp)
    return p2p_s(model.groups, batch, cut, model.workload.precision.activation_bytes, strides)


_ZERO_BUBBLE = SCHEDULES.index("zero_bubble")
# What decides which ranks share weights.
_SHAPE = ("tp", "cp", "dp", "pp", "ep", "etp")
_STAGE = 3
# Operation and kind of weights: gathering those outside experts and those of experts, scattering gradients of either.
_EXCHANGES = (("all_gather", 0), ("all_gather", 1), ("reduce_scatter", 0), ("reduce_scatter", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastGathering:
    """Least exchanges of some pipelines under ZeRO-3: n pipelines, u shapes, S numbers of ranks that share (ascending).

    Attributes
    ----------
    shards : array (u, S)
        Shares of dp; 0 for padding at the end.
    laws : array (4, 2, u, S)
        Least latency, and seconds per byte, of the exchanges among so many ranks or more; infinite where there are none.
    shape_of : array (n,)
    """

    space: MeshSpace
    times: PipelineTimes
    shards: IntArray
    laws: FloatArray
    shape_of: IntArray

    @classmethod
    def of(cls, space: MeshSpace, times: PipelineTimes) -> LeastGathering:
        """Those of some pipelines."""
        batch = times.batch
        first, shape_of = combined(*(getattr(batch, name) for name in _SHAPE))
        rows = {name: getattr(batch, name)[first] for name in _SHAPE}
        rows = space.with_shardings({**rows, "_shape": np.arange(len(first))})
        rows = space.with_orders(selected(rows, rows["zero_stage"] == _STAGE))
        shape = rows.pop("_shape")
        plans = batch_of(rows)
        share = _shares(plans, shape)
        shards = np.zeros((len(first), int(share.max(initial=-1)) + 1), dtype=np.int64)
        shards[shape, share] = plans.dp_shard
        laws = np.full((len(_EXCHANGES), 2, *shards.shape), np.inf)
        groups, copies = space.model.groups, copy_groups(plans, mesh_strides(plans))
        found = (
            groups.find(copies.shard, copies.shard_stride),
            groups.find(copies.expert_shard, copies.expert_stride),
        )
        for law, (operation, kind) in zip(laws, _EXCHANGES, strict=True):
            for least, each in zip(law, groups.least_law(operation, found[kind]), strict=True):
                np.minimum.at(least, (shape, share), each)
        # More ranks do not share any quicker than the least of all that are as many.
        laws = np.minimum.accumulate(laws[..., ::-1], axis=-1)[..., ::-1]
        return cls(space=space, times=times, shards=shards, laws=laws, shape_of=shape_of)

    def waiting_s(self, rows: IntArray, least: FloatArray) -> FloatArray:
        """What every kind of rank of some pipelines waits for weights and gradients of one micro-batch, (n, Q).

        Parameters
        ----------
        rows : array (n,)
            Pipelines.
        least : array (n,)
            Ranks that must share dp's copies, at least; infinite waiting where no division has so many.
        """
        times, shape = self.times, self.shape_of[rows]
        if not self.shards.shape[1]:
            return np.full((len(rows), times.busy_s.shape[1]), np.inf)
        known = self.shards[shape]
        place = np.count_nonzero((known > 0) & (known < least[:, None] * (1.0 - EQUAL)), axis=1)
        enough = place < np.count_nonzero(known, axis=1)
        laws = np.where(enough, self.laws[:, :, shape, np.where(enough, place, 0)], 0.0)[..., None]  # (4, 2, n, 1)
        model, table, passes, module = self.space.model, times.table, times.passes, times.pass_of[rows]
        weight, wide = model.workload.precision.weight_bytes, gradient_width(model.workload, model.groups)
        moved = (rows_of(count, module) * weight for count in (table.dense_count, table.expert_count))
        given = (rows_of(count, module) * wide for count in (table.dense_trainable, table.expert_trainable))
        gather, reduce = (
            sum(
                np.where(message > 0, law[0] + law[1] * message, 0.0)
                for law, message in zip(pair, messages, strict=True)
            )
            for pair, messages in ((laws[:2], moved), (laws[2:], given))
        )
        overlap, lost = model.assumptions.dp_overlap, model.assumptions.interference
        waiting = np.maximum(gather - overlap * rows_of(passes.forward_s, module), lost * gather)
        if model.workload.training:
            lags = (times.batch.schedule[rows] == _ZERO_BUBBLE)[:, None]
            backward = rows_of(passes.backward_s, module)
            hiding = backward - np.where(lags, rows_of(passes.weight_s, module), 0.0)
            again = np.where(backward > 0, gather, 0.0)
            waited = (1.0 - model.assumptions.gather_overlap) * again
            behind = again - waited + reduce
            waiting += waited + np.maximum(behind - overlap * hiding, lost * behind)
        total = weigh(rows_of(times.layouts.rank_modules, rows), waiting)
        return np.where(enough[:, None], total, np.inf)


def _shares(plans: MeshBatch, shape: IntArray) -> IntArray:
    """The how-maniest share of its shape every plan has, from the smallest."""
    first, share = combined(shape, plans.dp_shard)  # ascending by shape, then by share
    starts = np.searchsorted(shape[first], shape)
    return np.asarray(share - starts)


_FULL, _ZERO_BUBBLE = RECOMPUTE.index("full"), SCHEDULES.index("zero_bubble")
_SHARES_ALL = 3  # the stage of ZeRO that shares all state


def least_step_s(modes: MemoryModes, times: PipelineTimes, needs: ModeNeeds) -> FloatArray:
    """Step times that the modes of some pipelines do not go below.

    Parameters
    ----------
    modes : MemoryModes
    times : PipelineTimes
        With the recomputation of the plain mode.
    needs : ModeNeeds
        Of the same pipelines.

    Returns
    -------
    array (n, V, Z)
        Infinite where nothing fits.
    """
    fits = needs.memory_bytes <= modes.capacity_bytes
    step = np.full_like(needs.memory_bytes, np.inf)
    rows = np.flatnonzero(fits.any(axis=(1, 2)))
    if not len(rows):
        return step
    some = rows_of(fits, rows)
    step[rows] = np.where(some, _of_fitting(modes, times.take(rows), needs.take(rows), some), np.inf)
    return step


def _of_fitting(modes: MemoryModes, times: PipelineTimes, needs: ModeNeeds, fits: BoolArray) -> FloatArray:
    ranks = _Ranks(modes, times, needs)
    makespan = times.makespan_s
    step = np.full_like(needs.memory_bytes, np.inf)
    for v, (kind, optimizer, activations) in enumerate(modes.each):
        for z, stage in enumerate(modes.stages):
            if not fits[:, v, z].any():
                continue
            if activations:
                path, shown = ranks.moved(kind)
                bound = path if stage >= 3 else np.maximum(path, makespan + shown)
            else:
                bound = ranks.again(needs.blocks[:, optimizer, z]) if kind == _FULL else makespan
            np.maximum(bound, makespan, out=step[:, v, z])
    return step


def raise_for_gathering(
    step_s: FloatArray,
    modes: MemoryModes,
    times: PipelineTimes,
    needs: ModeNeeds,
    is_hopeful: Callable[[FloatArray], BoolArray],
) -> None:
    """Raise the times of `least_step_s` under ZeRO-3 by what ranks wait for weights and gradients, where it may matter.

    Parameters
    ----------
    step_s : array (n, V, Z)
        Raised in place.
    modes, times, needs
        Those that it was made with.
    is_hopeful : function of times (n, V)
        Which of them are still of interest.
    """
    if _SHARES_ALL not in modes.stages:
        return
    z = modes.stages.index(_SHARES_ALL)
    hopeful = is_hopeful(step_s[:, :, z])
    rows = np.flatnonzero(hopeful.any(axis=1))
    if not len(rows):
        return
    some, needs, hopeful = times.take(rows), needs.take(rows), rows_of(hopeful, rows)
    gathering, ranks = LeastGathering.of(modes.space, some), _Ranks(modes, some, needs)
    for v in range(len(modes.each)):
        own = np.flatnonzero(hopeful[:, v])
        if not len(own):
            continue
        waiting = gathering.waiting_s(own, needs.shards[own, v])
        path = ranks.paths_of_s(own, waiting)
        step_s[rows[own], v, z] = np.maximum(step_s[rows[own], v, z], path)


class _Ranks:
    """Times of the ranks of some pipelines, arrays (n, Q)."""

    def __init__(self, modes: MemoryModes, times: PipelineTimes, needs: ModeNeeds) -> None:
        self.modes, self.needs = modes, needs
        batch, layouts, passes = times.batch, times.layouts, times.passes
        self.layouts, self.busy_s = layouts, times.busy_s
        self.micro_batches = batch.num_micro_batches[:, None]
        backward = np.where((batch.schedule == _ZERO_BUBBLE)[:, None], 0.0, times.chunks.backward_s)
        self.lead_s = time_before(layouts.rank_last, layouts.run_chunks, times.chunks.forward_s + backward)
        # Where all blocks are recomputed anyway, the times hold it already.
        again = np.where(modes.space.model.is_block & (modes.plain[0] != _FULL), passes.forward_s, 0.0)
        self.module_again_s = again
        freed = np.where(modes.space.model.is_block, times.table.saved_bytes - times.table.input_bytes, 0.0)
        each = np.where(freed > 0, again / np.where(freed > 0, freed, 1.0), np.inf)
        rate = np.min(each, axis=1, where=freed > 0, initial=np.inf)
        some = np.isfinite(rate)[:, None]
        self.again_s = weigh(
            layouts.rank_modules, np.where(some, freed * np.where(some, rate[:, None], 0.0), 0.0), times.pass_of
        )
        self.times, self.assumptions = times, modes.space.model.assumptions
        self._moved: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._blocks: list[tuple[IntArray, FloatArray]] = []

    def again(self, blocks: IntArray) -> FloatArray:
        """Longest path with so many blocks per chunk recomputed."""
        again = np.zeros_like(self.busy_s)
        for lengths, per_block_s in self._per_block_s():
            again += np.minimum(blocks[:, None], lengths) * per_block_s
        return self.path_s(again)

    def _per_block_s(self) -> list[tuple[IntArray, FloatArray]]:
        """Of the different chunks of a rank: their blocks, and what each that is recomputed adds, (n, Q)."""
        if not self._blocks:
            layouts = self.layouts
            for d in range(layouts.rank_lengths.shape[2]):
                lengths = layouts.rank_lengths[:, :, d]
                whole_s = weigh(layouts.rank_chunks[:, :, d], self.module_again_s, self.times.pass_of)
                self._blocks.append((lengths, whole_s * layouts.rank_repeats[:, :, d] / np.maximum(lengths, 1)))
        return self._blocks

    def moved(self, kind: int) -> tuple[FloatArray, FloatArray]:
        """With activations on the host: the longest path, and what is shown of their moves in all micro-batches."""
        if kind not in self._moved:
            shown, more = self._shown(kind)
            self._moved[kind] = self.path_s(more), self.micro_batches[:, 0] * np.max(shown, axis=1)
        return self._moved[kind]

    def _shown(self, kind: int) -> tuple[FloatArray, FloatArray]:
        """What is shown at least, and the least sum of that and what is recomputed."""
        compute = weigh(self.layouts.rank_modules, self.times.passes.compute_forward_s, self.times.pass_of)
        hidden = hidden_s(self.assumptions, compute)
        kept = one_way_s(self.assumptions, self.needs.kept_bytes[:, self.modes.kinds.index(kind)])
        most = shown_s(kept, hidden)
        if kind != _FULL:
            return most, most
        inputs = one_way_s(self.assumptions, self.needs.input_bytes)
        least = shown_s(inputs, hidden)
        turn = np.clip((kept - hidden) / np.maximum(kept - inputs, 1e-30), 0.0, 1.0)
        return least, np.minimum(most, turn * self.again_s + least)

    def path_s(self, more_s: FloatArray) -> FloatArray:
        """Longest path with ranks that are busy for longer by so much, (n,)."""
        path = self.lead_s + self.micro_batches * (self.busy_s + more_s)
        return _longest_s(path, self.layouts.rank_last)

    def paths_of_s(self, rows: IntArray, more_s: FloatArray) -> FloatArray:
        """The same of some pipelines."""
        path = rows_of(self.lead_s, rows) + self.micro_batches[rows] * (rows_of(self.busy_s, rows) + more_s)
        return _longest_s(path, rows_of(self.layouts.rank_last, rows))


def _longest_s(path_s: FloatArray, last: IntArray) -> FloatArray:
    """The longest path of any rank that there is, (n,)."""
    return np.asarray(np.max(np.where(last >= 0, path_s, 0.0), axis=1) * (1 - EQUAL))
