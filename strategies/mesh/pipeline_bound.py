"""How fast a pipeline can be at best, whatever the order of its ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined, rows_of
from costmodel.mesh.communication import handover_s
from costmodel.mesh.model import MeshModel
from costmodel.mesh.passes import ChunkPasses, UnitPasses, chunk_passes, unit_passes
from costmodel.mesh.pipelines import Cores, mesh_strides, pipeline_s
from costmodel.mesh.plan import MeshBatch
from costmodel.mesh.rows import UnitTable
from costmodel.mesh.schedule import ChunkRuns
from costmodel.mesh.stages import LayoutArrays, recomputed_units, weigh

__all__ = ["PipelineTimes", "worthy_times"]


# What decides the passes of a unit, given the best order.
_PASS_FIELDS = ("tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """What bounds are made of: exact times of pipelines (`of`), or the least of any order of their ranks (`worthy_times`).

    Shapes: n pipelines, R runs of chunks, Q kinds of ranks; ``passes`` has a row ``pass_of`` for each.
    """

    batch: MeshBatch
    layouts: LayoutArrays
    pass_of: IntArray
    passes: UnitPasses
    table: UnitTable  # of the same rows
    chunks: ChunkPasses  # (n, R)
    busy_s: FloatArray  # (n, Q)
    flush_s: FloatArray  # (n,)

    @classmethod
    def of(cls, cores: Cores) -> PipelineTimes:
        """Those of cores."""
        return cls(
            batch=cores.batch,
            layouts=cores.layouts,
            pass_of=cores.pass_of,
            passes=cores.passes,
            table=cores.table,
            chunks=cores.chunks,
            busy_s=cores.busy_s,
            flush_s=cores.flush_s,
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
            flush_s=self.flush_s[index],
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
    passes = unit_passes(table, bare, mesh_strides(bare), model.groups, is_block=is_block)
    busy = weigh(model.rank_units(batch), passes.forward_s + passes.backward_s, pass_of)
    rows = np.arange(len(batch))
    if is_worthy is not None:
        rows = np.flatnonzero(is_worthy(batch.num_micro_batches * np.max(busy, axis=1), batch))
        batch, pass_of, busy = batch.take(rows), pass_of[rows], rows_of(busy, rows)
    layouts = model.layouts(batch)
    transfer_s = _least_transfer_s(model, batch, layouts.run_cut)
    chunks = chunk_passes(passes, pass_of, layouts, batch, transfer_s, is_block)
    runs = ChunkRuns(count=layouts.run_chunks, forward_s=chunks.forward_s, backward_s=chunks.backward_s)
    if np.any(passes.recompute_s):
        busy += weigh(recomputed_units(layouts, batch.recompute, batch.recompute_blocks), passes.recompute_s, pass_of)
    flush_s = pipeline_s(batch, layouts.rank_last, runs, chunks.weight_s, busy, exact=False)
    times = PipelineTimes(
        batch=batch,
        layouts=layouts,
        pass_of=pass_of,
        passes=passes,
        table=table,
        chunks=chunks,
        busy_s=busy,
        flush_s=flush_s,
    )
    if is_worthy is None:
        return rows, times
    kept = np.flatnonzero(is_worthy(flush_s, batch))
    return rows[kept], times.take(kept)


def _least_transfer_s(model: MeshModel, batch: MeshBatch, cut: FloatArray) -> FloatArray:
    """Exposed time to receive a chunk's input from the nearest of all places where the stage before can be: (n, R)."""
    strides = (batch.tp, batch.tp * batch.cp, batch.tp * batch.dp, batch.tp * batch.cp * batch.dp)
    return handover_s(model.groups, batch, cut, model.workload.precision.activation_bytes, strides)
