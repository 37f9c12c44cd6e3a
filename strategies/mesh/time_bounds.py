"""Lower bounds of the step time of a pipeline, before dp is divided.

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
from dataclasses import replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined, rows_of
from costmodel.hardware.cluster import AT_BEST
from costmodel.mesh.communication import mesh_strides, p2p_s
from costmodel.mesh.model import MeshModel
from costmodel.mesh.passes import (
    PASS_FIELDS,
    Pipelines,
    chunk_passes,
    exposed_transfers_s,
    module_passes,
    pipeline_s,
    time_before,
)
from costmodel.mesh.plan import FULL, MeshBatch
from costmodel.mesh.schedule import ChunkRuns
from costmodel.mesh.stages import recomputed_modules, weigh
from costmodel.mesh.step import hidden_s, one_way_s, shown_s
from costmodel.schedules import DELAYS_WEIGHTS, OVERLAPS
from costmodel.tolerances import EQUAL
from strategies.mesh.memory_modes import MemoryModes, ModeNeeds


def worthy(model: MeshModel, batch: MeshBatch, is_worthy: Callable[[FloatArray, MeshBatch], BoolArray]) -> IntArray:
    """Which pipelines without data parallelism are worth it in some order of their ranks.

    Collectives inside the layers run among neighbours (as in `MeshModel.work_s`), transfers between stages over the nearest link of any
    order: no order has all of that at once. Every schedule takes longer if a chunk does, so the times are bounds.

    Parameters
    ----------
    model : MeshModel
    batch : MeshBatch
    is_worthy : function of (times, pipelines)
        Whether pipelines can matter that take no less. It is asked first with how long the slowest rank is busy, which is soon known.
    """
    deciding = [getattr(batch, name) for name in PASS_FIELDS]
    first, pass_of = combined(*deciding, OVERLAPS[batch.schedule].astype(np.int64))
    distinct = batch.take(first)
    zero = np.zeros(len(distinct), dtype=np.int64)
    bare = replace(distinct, order=zero, pp=zero + 1, domain_gpus=zero + AT_BEST)
    passes = module_passes(model.rows(bare), bare, mesh_strides(bare), model.groups, is_block=model.is_block)
    busy = weigh(model.rank_modules(batch), passes.forward_s + passes.backward_s, pass_of)
    rows = np.flatnonzero(is_worthy(batch.num_micro_batches * np.max(busy, axis=1), batch))
    batch, pass_of, busy = batch.take(rows), pass_of[rows], rows_of(busy, rows)
    batch = replace(batch, domain_gpus=np.full(len(batch), AT_BEST))
    layouts = model.layouts(batch)
    strides = (batch.tp, batch.tp * batch.cp, batch.tp * batch.dp, batch.tp * batch.cp * batch.dp)
    sent_s = p2p_s(model.groups, batch, layouts.run_cut, model.workload.precision.activation_bytes, strides)
    enough = np.full((len(batch), 1), np.inf)  # chunks that hide all they may: they compute longer than here
    transfer_s = exposed_transfers_s(batch, sent_s, enough, model.assumptions.pp_overlap)
    chunks = chunk_passes(passes, pass_of, layouts, batch, transfer_s, model.is_block)
    runs = ChunkRuns(count=layouts.run_chunks, forward_s=chunks.forward_s, backward_s=chunks.backward_s)
    if np.any(passes.recompute_s):
        busy += weigh(recomputed_modules(layouts, batch.recompute, batch.recompute_blocks), passes.recompute_s, pass_of)
    makespan_s = pipeline_s(batch, layouts.rank_last, runs, chunks.weight_s, busy, exact=False)
    return rows[is_worthy(makespan_s, batch)]


def least_step_s(modes: MemoryModes, pipelines: Pipelines, needs: ModeNeeds) -> FloatArray:
    """Step times that the modes of some pipelines do not go below.

    Parameters
    ----------
    modes : MemoryModes
    pipelines : Pipelines
        With the recomputation of the plain mode.
    needs : ModeNeeds
        Of the same pipelines.

    Returns
    -------
    array (n, V, Z)
        Infinite where nothing fits.
    """
    fits = needs.memory_bytes <= modes.capacity_bytes
    ranks = _Ranks(modes, pipelines, needs)
    makespan = pipelines.makespan_s
    step = np.full_like(needs.memory_bytes, np.inf)
    for v, (kind, optimizer, activations) in enumerate(modes.each):
        for z, stage in enumerate(modes.stages):
            if not fits[:, v, z].any():
                continue
            if activations:
                path, shown = ranks.moved(kind)
                bound = path if stage >= 3 else np.maximum(path, makespan + shown)
            else:
                bound = ranks.again(needs.blocks[:, optimizer, z]) if kind == FULL else makespan
            step[:, v, z] = np.where(fits[:, v, z], np.maximum(bound, makespan), np.inf)
    return step


class _Ranks:
    """Times of the ranks of some pipelines, arrays (n, Q)."""

    def __init__(self, modes: MemoryModes, times: Pipelines, needs: ModeNeeds) -> None:
        self.modes, self.needs = modes, needs
        batch, layouts, passes = times.batch, times.layouts, times.passes
        self.layouts, self.busy_s = layouts, times.busy_s
        self.micro_batches = batch.num_micro_batches[:, None]
        backward = np.where(DELAYS_WEIGHTS[batch.schedule][:, None], 0.0, times.chunks.backward_s)
        self.lead_s = time_before(layouts.rank_last, layouts.run_chunks, times.chunks.forward_s + backward)
        # Where all blocks are recomputed anyway, the times hold it already.
        again = np.where(modes.space.model.is_block & (modes.plain[0] != FULL), passes.forward_s, 0.0)
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
        if kind != FULL:
            return most, most
        inputs = one_way_s(self.assumptions, self.needs.input_bytes)
        least = shown_s(inputs, hidden)
        turn = np.clip((kept - hidden) / np.maximum(kept - inputs, 1e-30), 0.0, 1.0)
        return least, np.minimum(most, turn * self.again_s + least)

    def path_s(self, more_s: FloatArray) -> FloatArray:
        """Longest path with ranks that are busy for longer by so much, (n,)."""
        path = self.lead_s + self.micro_batches * (self.busy_s + more_s)
        return np.asarray(np.max(np.where(self.layouts.rank_last >= 0, path, 0.0), axis=1) * (1 - EQUAL))
