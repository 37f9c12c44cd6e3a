"""The least step time of every way to run a pipeline, before dp is divided.

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

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, rows_of
from costmodel.mesh.passes import time_before
from costmodel.mesh.plan import RECOMPUTE, SCHEDULES
from costmodel.mesh.stages import weigh
from costmodel.mesh.step import hidden_s, one_way_s, shown_s
from costmodel.tolerances import EQUAL
from strategies.mesh.gathering_bound import LeastGathering
from strategies.mesh.pipeline_bound import PipelineTimes
from strategies.mesh.ways import WayNeeds, Ways

__all__ = ["least_step_s", "raise_for_gathering"]


_FULL, _ZERO_BUBBLE = RECOMPUTE.index("full"), SCHEDULES.index("zero_bubble")
_SHARES_ALL = 3  # the stage of ZeRO that shares all state


def least_step_s(ways: Ways, times: PipelineTimes, needs: WayNeeds) -> FloatArray:
    """Step times that the ways of some pipelines do not go below.

    Parameters
    ----------
    ways : Ways
    times : PipelineTimes
        With the recomputation of the plain way.
    needs : WayNeeds
        Of the same pipelines.

    Returns
    -------
    array (n, V, Z)
        Infinite where nothing fits.
    """
    fits = needs.memory_bytes <= ways.capacity_bytes
    step = np.full_like(needs.memory_bytes, np.inf)
    rows = np.flatnonzero(fits.any(axis=(1, 2)))
    if not len(rows):
        return step
    some = rows_of(fits, rows)
    step[rows] = np.where(some, _of_fitting(ways, times.take(rows), needs.take(rows), some), np.inf)
    return step


def _of_fitting(ways: Ways, times: PipelineTimes, needs: WayNeeds, fits: BoolArray) -> FloatArray:
    ranks = _Ranks(ways, times, needs)
    flush = times.flush_s
    step = np.full_like(needs.memory_bytes, np.inf)
    for v, (kind, optimizer, activations) in enumerate(ways.each):
        for z, stage in enumerate(ways.stages):
            if not fits[:, v, z].any():
                continue
            if activations:
                path, shown = ranks.moved(kind)
                bound = path if stage >= 3 else np.maximum(path, flush + shown)
            else:
                bound = ranks.again(needs.blocks[:, optimizer, z]) if kind == _FULL else flush
            np.maximum(bound, flush, out=step[:, v, z])
    return step


def raise_for_gathering(
    step_s: FloatArray, ways: Ways, times: PipelineTimes, needs: WayNeeds, is_hopeful: Callable[[FloatArray], BoolArray]
) -> None:
    """Raise the times of `least_step_s` under ZeRO-3 by what ranks wait for weights and gradients, where it may matter.

    Parameters
    ----------
    step_s : array (n, V, Z)
        Raised in place.
    ways, times, needs
        Those that it was made with.
    is_hopeful : function of times (n, V)
        Which of them are still of interest.
    """
    if _SHARES_ALL not in ways.stages:
        return
    z = ways.stages.index(_SHARES_ALL)
    hopeful = is_hopeful(step_s[:, :, z])
    rows = np.flatnonzero(hopeful.any(axis=1))
    if not len(rows):
        return
    some, needs, hopeful = times.take(rows), needs.take(rows), rows_of(hopeful, rows)
    gathering, ranks = LeastGathering.of(ways.space, some), _Ranks(ways, some, needs)
    for v in range(len(ways.each)):
        own = np.flatnonzero(hopeful[:, v])
        if not len(own):
            continue
        waiting = gathering.waiting_s(own, needs.shards[own, v])
        path = ranks.paths_of_s(own, waiting)
        step_s[rows[own], v, z] = np.maximum(step_s[rows[own], v, z], path)


class _Ranks:
    """Times of the ranks of some pipelines, arrays (n, Q)."""

    def __init__(self, ways: Ways, times: PipelineTimes, needs: WayNeeds) -> None:
        self.ways, self.needs = ways, needs
        batch, layouts, passes = times.batch, times.layouts, times.passes
        self.layouts, self.busy_s = layouts, times.busy_s
        self.micro_batches = batch.num_micro_batches[:, None]
        backward = np.where((batch.schedule == _ZERO_BUBBLE)[:, None], 0.0, times.chunks.backward_s)
        self.lead_s = time_before(layouts.rank_last, layouts.run_chunks, times.chunks.forward_s + backward)
        # Where all blocks are recomputed anyway, the times hold it already.
        again = np.where(ways.space.model.is_block & (ways.plain[0] != _FULL), passes.forward_s, 0.0)
        self.unit_again_s = again
        freed = np.where(ways.space.model.is_block, times.table.saved_bytes - times.table.input_bytes, 0.0)
        each = np.where(freed > 0, again / np.where(freed > 0, freed, 1.0), np.inf)
        rate = np.min(each, axis=1, where=freed > 0, initial=np.inf)
        some = np.isfinite(rate)[:, None]
        self.again_s = weigh(
            layouts.rank_units, np.where(some, freed * np.where(some, rate[:, None], 0.0), 0.0), times.pass_of
        )
        self.times, self.assumptions = times, ways.space.model.assumptions
        self._moved: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._blocks: list[tuple[IntArray, FloatArray]] = []

    def again(self, blocks: IntArray) -> FloatArray:
        """Longest path with so many blocks per chunk recomputed."""
        again = np.zeros_like(self.busy_s)
        for lengths, per_block_s in self._per_block_s():
            again += np.minimum(blocks[:, None], lengths) * per_block_s
        return self.path_s(again)

    def _per_block_s(self) -> list[tuple[IntArray, FloatArray]]:
        """Of the different chunks of a rank: their blocks, and what each that is recomputed adds, (n, Q); as `recomputed_units` has it."""
        if not self._blocks:
            layouts = self.layouts
            for d in range(layouts.rank_lengths.shape[2]):
                lengths = layouts.rank_lengths[:, :, d]
                whole_s = weigh(layouts.rank_chunks[:, :, d], self.unit_again_s, self.times.pass_of)
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
        compute = weigh(self.layouts.rank_units, self.times.passes.compute_forward_s, self.times.pass_of)
        hidden = hidden_s(self.assumptions, compute)
        kept = one_way_s(self.assumptions, self.needs.kept_bytes[:, self.ways.kinds.index(kind)])
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
